"""The members of a replica pool, and the policies that choose between them."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar, final

import trio

from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import count, real, set_fields
from ._members import Factory, MemberFunction
from ._retry import CircuitBreaker, CircuitState

In = TypeVar("In")
Out = TypeVar("Out")

_WEIGHT: Final = 0.125


class ReplicaState(enum.Enum):
    """State of a replica of a pool."""

    STARTING = "starting"
    """The replica is opening: for the first time, after a failure, or in a planned restart."""
    SERVING = "serving"
    EJECTED = "ejected"
    """Too many requests failed there recently. It gets none for a while if others can serve."""
    PROBING = "probing"
    """The replica was ejected. One trial request decides whether it serves again."""
    DRAINING = "draining"
    """The replica gets no further requests, and finishes those it has."""
    DRAINED = "drained"
    """The replica has no requests, and gets none."""


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """Statistics of one replica of a pool, at one moment.

    Attributes:
        name: the replica's name.
        state: whether it serves.
        in_flight: requests in progress.
        answered: requests that it has answered.
        failed: requests that have failed there, for any reason.
        lives: number of times that it was opened.
        ejections: number of times that it was ejected.
        seconds: average duration of a request, to which each new one adds an eighth; zero before
            the first.
    """

    name: str
    state: ReplicaState
    in_flight: int
    answered: int
    failed: int
    lives: int
    ejections: int
    seconds: float


class ReplicaLife:
    """The life of a replica, from its opening to its end."""

    __slots__ = ("ended", "failure")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.failure: Exception | None = None

    def end(self, failure: Exception | None) -> None:
        """End the life, with a failure or without."""
        self.failure = failure
        self.ended.set()


@final
class Replica(metaclass=NoPublicConstructor):
    """One replica of a pool, as policies see it."""

    _made_by: ClassVar[str] = "open_replica_pool(factories)"

    __slots__ = (
        "__weakref__",
        "_answered",
        "_began",
        "_breaker",
        "_ejections",
        "_factory",
        "_failed",
        "_failure",
        "_held",
        "_life",
        "_limit",
        "_lives",
        "_make_breaker",
        "_member",
        "_name",
        "_retire",
        "_seconds",
    )

    def __init__(
        self,
        name: str,
        factory: Factory[Any, Any],
        limit: int,
        make_breaker: Callable[[], CircuitBreaker],
    ) -> None:
        self._name = name
        self._factory = factory
        self._limit = limit
        self._make_breaker = make_breaker
        self._breaker = make_breaker()
        check_instance("what breaker makes", self._breaker, CircuitBreaker)
        self._member = MemberFunction("replica", name)
        self._held = 0
        self._answered = self._failed = self._lives = self._ejections = 0
        self._seconds = 0.0
        self._retire = trio.Event()
        self._life = ReplicaLife()
        # The next life, or the failure to come to it; for those who wait for that.
        self._began = trio.Event()
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<Replica {self._name!r}: {self.state.value}, {self.in_flight} in flight>"

    @property
    def name(self) -> str:
        """Name of the replica in the pool."""
        return self._name

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._member.in_flight

    @property
    def seconds(self) -> float:
        """Average duration of a request; zero before the first. See ``ReplicaStatistics``."""
        return self._seconds

    @property
    def state(self) -> ReplicaState:
        """State of the replica."""
        if self._held:
            return ReplicaState.DRAINING if self.in_flight else ReplicaState.DRAINED
        if self._member.call is None:
            return ReplicaState.STARTING
        match self._breaker.state:
            case CircuitState.OPEN:
                return ReplicaState.EJECTED
            case CircuitState.HALF_OPEN:
                return ReplicaState.PROBING
        return ReplicaState.SERVING

    @property
    def _up(self) -> bool:
        """True if the replica is open and not draining, even if it is ejected."""
        return self._member.call is not None and not self._held

    @property
    def _has_room(self) -> bool:
        return self.in_flight < self._limit

    def _statistics(self) -> ReplicaStatistics:
        return ReplicaStatistics(
            name=self._name,
            state=self.state,
            in_flight=self.in_flight,
            answered=self._answered,
            failed=self._failed,
            lives=self._lives,
            ejections=self._ejections + self._breaker.statistics().opened,
            seconds=self._seconds,
        )

    # --- lives

    def _begin(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self._member.call = call
        self._lives += 1
        self._ejections += self._breaker.statistics().opened
        self._breaker = self._make_breaker()  # what failed in an earlier life is forgotten
        self._retire = trio.Event()
        self._life = ReplicaLife()
        self._failure = None
        self._notify()

    def _notify(self) -> None:
        self._began.set()
        self._began = trio.Event()

    # --- requests

    def _took(self, seconds: float) -> None:
        self._answered += 1
        known = self._seconds or seconds
        self._seconds = known + _WEIGHT * (seconds - known)


class Policy(Protocol):
    """Chooses the replica for a request."""

    def choose(self, replicas: Sequence[Replica], /) -> Replica:
        """One of the replicas given, which are those that have room: at least one.

        They come in the order in which they were added to the pool.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """When a request that takes long is made a second time, at another replica.

    The first answer counts and the other request is cancelled (Dean and Barroso, 2013). A second
    request goes out when the first has taken longer than ``quantile`` of those before, if another
    replica has room at that moment. There are never more of them than ``share`` of the requests.

    Attributes:
        quantile: of the times that the last 512 requests took.
        share: second requests for each request, at most.
        minimum: with fewer times known there is none.
    """

    quantile: float = 0.95
    share: float = 0.05
    minimum: int = 20

    def __post_init__(self) -> None:
        set_fields(
            self,
            quantile=real(self.quantile, "quantile", above=0, most=1),
            share=real(self.share, "share", least=0, most=1),
            minimum=count(self.minimum, "minimum"),
        )
