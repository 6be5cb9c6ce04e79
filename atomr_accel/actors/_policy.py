"""Options of children: how each is started, restarted and stopped.

These values check themselves. `_supervision` applies them.
"""

from __future__ import annotations

import enum
import inspect
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..wire.options import LARGEST, count, real, set_fields, whole
from .deciders import Decider, restart_always
from .util import check_instance, check_member


class Strategy(enum.Enum):
    """The children that a restart concerns. They keep the order in which they started."""

    ONE_FOR_ONE = "one_for_one"
    """Only the child that failed."""
    ONE_FOR_ALL = "one_for_all"
    """All: they are stopped in reverse order, then started in order."""
    REST_FOR_ONE = "rest_for_one"
    """The child that failed and those started after it."""


class RestartType(enum.Enum):
    """The ends after which a child is restarted."""

    PERMANENT = "permanent"
    """Always, also when it returns."""
    TRANSIENT = "transient"
    """When it fails, not when it returns."""
    TEMPORARY = "temporary"
    """Never, not even with its siblings."""


class AutoShutdown(enum.Enum):
    """The ends of significant children that stop their supervisor."""

    ANY = "any"
    """The first end of a significant child."""
    ALL = "all"
    """The end of the last significant child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Number of restarts in a period that a supervisor allows.

    After more than ``restarts`` within ``within`` seconds it stops all children and escalates. The
    count is the supervisor's, not each child's. Restarts multiply down a tree: with the default at
    three levels, a leaf can be started 64 times before the top gives up.
    """

    restarts: int = 3
    within: float = 60.0

    def __post_init__(self) -> None:
        set_fields(
            self,
            restarts=count(self.restarts, "restarts", 0),
            within=real(self.within, "within", above=0, infinity=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Wait between a failure and its restart.

    The first restart in the intensity's window waits ``initial`` seconds. The n-th restart after it
    waits ``base * factor ** (n - 1)``, at most ``maximum``, which may be infinite. Each wait is
    then spread by up to ``jitter`` (a fraction) in both directions. ``rng`` returns floats in
    [0, 1); pass ``random.Random(seed).random`` to make jitter repeatable.
    """

    initial: float = 0.0
    base: float = 0.1
    factor: float = 2.0
    maximum: float = 5.0
    jitter: float = 0.0
    rng: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_fields(
            self,
            initial=real(self.initial, "initial", least=0),
            base=real(self.base, "base", least=0),
            factor=real(self.factor, "factor", least=1),
            maximum=real(self.maximum, "maximum", least=0, infinity=True),
            jitter=real(self.jitter, "jitter", least=0, most=1),
        )
        if not callable(self.rng):
            raise TypeError(
                f"rng must be a function such as random.Random(3).random, not {self.rng!r}"
            )

    def delay(self, n: int) -> float:
        """Seconds before the ``n``-th restart in a window, counted from 1."""
        if whole(n, "n", most=LARGEST) <= 1:
            delay = self.initial
        else:
            try:
                delay = min(self.base * self.factor ** (n - 2), self.maximum)
            except OverflowError:
                delay = self.maximum if self.base else 0.0
        if self.jitter and 0 < delay < math.inf:
            delay *= 1 + self.jitter * (2 * self.rng() - 1)
        return delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Options of a supervisor.

    Attributes:
        strategy: the children that a restart concerns.
        decider: a function from a failure, and the name of the child that failed, to a directive.
            By default, restart.
        intensity: the number of restarts allowed in a period.
        backoff: the wait before a restart.
        escalation: makes the exception to raise when the supervisor gives up, from its name and the
            last failure, which becomes the ``__cause__``. By default, `SupervisionFailed`. Failures
            that are not an `Exception` are raised unchanged.
        auto_shutdown: the ends of significant children that stop the supervisor.
    """

    strategy: Strategy = Strategy.ONE_FOR_ONE
    decider: Decider = restart_always
    intensity: Intensity = Intensity()
    backoff: Backoff = Backoff()
    escalation: Callable[[str, BaseException], BaseException] | None = None
    auto_shutdown: AutoShutdown = AutoShutdown.ANY

    def __post_init__(self) -> None:
        check_member("strategy", self.strategy, Strategy)
        if not _takes_two(self.decider):
            raise TypeError(
                "decider must be a function that takes a failure and the name of the child that "
                f"failed and returns a Directive, not {self.decider!r}; write `def decide(failure, "
                "child)`, or decide_by_type({ValueError: Directive.STOP})"
            )
        check_instance("intensity", self.intensity, Intensity)
        check_instance("backoff", self.backoff, Backoff)
        if self.escalation is not None and not callable(self.escalation):
            raise TypeError(
                "escalation must be a function that takes a name and a failure and "
                f"returns the exception to raise, not {self.escalation!r}"
            )
        check_member("auto_shutdown", self.auto_shutdown, AutoShutdown)


def _takes_two(function: object) -> bool:
    """Return False if an object cannot be called with two arguments, as far as is known."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # of a builtin, which does not tell
        return True
    return True


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Options to start and stop one child.

    Attributes:
        name: the child's name, unique among the supervisor's children.
        run: ``async def run(*, task_status) -> None``, which calls ``task_status.started(value)``
            when it is ready for work, as with `trio.Nursery.start`. It is called again for each
            restart. To stop the child, the supervisor cancels its cancel scope.
        restart: the ends after which the child is restarted.
        grace: the seconds that the child gets to leave after it was cancelled. A task cannot be
            killed, so the supervisor still waits for a child that takes longer, and reports it in
            the log and in the statistics.
        significant: whether its end stops the supervisor, as ``auto_shutdown`` says. Permanent
            children never end by themselves, so they cannot be significant.
    """

    name: str
    run: Callable[..., Awaitable[None]]
    restart: RestartType = RestartType.PERMANENT
    grace: float = 5.0
    significant: bool = False

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name:
            raise ValueError(f"a child's name must be a non-empty string, not {name!r}")
        if not callable(self.run):
            raise TypeError(f"child {self.name!r}: run must be an async function, not {self.run!r}")
        check_member(f"child {self.name!r}: restart", self.restart, RestartType)
        grace = real(self.grace, f"child {self.name!r}: grace", least=0, infinity=True)
        set_fields(self, grace=grace)
        if self.significant and self.restart is RestartType.PERMANENT:
            raise ValueError(
                f"child {self.name!r}: a permanent child never ends by itself, so it cannot be "
                "significant; make it TRANSIENT or TEMPORARY"
            )
