"""Replica pools: one function, served by several that may die."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, final

import trio

from .._errors import EarlierErrors, LastError
from ..actors import Backoff, ChildSpec, Intensity, NameTaken, Overflow, Supervisor, open_supervisor
from ..actors._blocks import opens
from ..actors._nursery import PlainNursery
from ..actors._policies import LeastLoaded, PowerOfTwo, RoundRobin
from ..actors._util import NoPublicConstructor, check_instance, check_member, check_whole
from ._calls import Calls, closing
from ._errors import CircuitOpen, Dropped, Overloaded, ReplicaLost
from ._latencies import Latencies
from ._members import Factory, check_call, check_factory, is_fault, opened, tells_of_member
from ._replicas import (
    Hedge,
    Life,
    Policy,
    Replica,
    ReplicaStatistics,
)
from ._retry import CircuitBreaker

if TYPE_CHECKING:
    from ._observer import Observer

In = TypeVar("In")
Out = TypeVar("Out")

PolicyName = Literal["round_robin", "least_loaded", "power_of_two"]
"""A policy of the package's own."""

_INTENSITY: Final = Intensity(restarts=10, within=60.0)
_BACKOFF: Final = Backoff(initial=0.0, base=1.0, factor=2.0, maximum=30.0)


def usual_breaker() -> CircuitBreaker:
    """What ejects a replica unless the pool is told otherwise: half of ten outcomes have failed."""
    return CircuitBreaker(window=20, minimum=10, threshold=0.5, counts=tells_of_member)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPoolStatistics:
    """A replica pool at one moment.

    Every request that was submitted is in one of these: ``waiting``, ``running``, ``answered``,
    ``failed``, ``refused``, ``dropped``.
    """

    submitted: int
    waiting: int
    """Requests that wait for a replica with room."""
    running: int
    answered: int
    failed: int
    """Requests that got an error of a replica's."""
    refused: int
    """Requests that got a refusal: there was no room, or the block was left."""
    dropped: int
    """Requests whose callers were cancelled."""
    asked_elsewhere: int
    """How often a request was asked again because its replica, or its device, had failed."""
    hedged: int
    """How many were made a second time because they took long."""
    hedges_won: int
    """How many of these were answered by the second first."""
    replicas: tuple[ReplicaStatistics, ...]


class _Waiter:
    __slots__ = ("dropped", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.dropped = False


@final
class ReplicaPool(Generic[In, Out], metaclass=NoPublicConstructor):
    """What ``open_replica_pool`` gives: ``await pool(item)`` is one request."""

    _made_by: ClassVar[str] = "open_replica_pool(factories)"

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        policy: Policy,
        max_in_flight: int,
        capacity: int,
        overflow: Overflow,
        attempts: int,
        idempotent: bool,
        hedge: Hedge | None,
        breaker: Callable[[], CircuitBreaker],
        observer: Observer | None,
    ) -> None:
        self._supervisor = supervisor
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._capacity = capacity
        self._overflow = overflow
        self._attempts = attempts
        self._idempotent = idempotent
        self._hedge = hedge
        self._breaker = breaker
        self._calls = Calls("pool", observer)
        self._tally = self._calls.tally
        self._replicas: dict[str, Replica] = {}
        self._numbers = 0
        # Those who wait for a replica with room, first come, first served. The first is woken
        # when there may be one, and chooses in its own task; who comes later does not overtake.
        self._waiting: dict[_Waiter, None] = {}
        self._left = False
        self._latencies = Latencies()
        self._elsewhere = self._hedgeable = self._hedged = self._hedges_won = 0

    async def __call__(self, item: In) -> Out:
        """Ask for one item. See ``ask``."""
        return await self.ask(item)

    @trio.lowlevel.enable_ki_protection
    async def ask(self, item: In, *, idempotent: bool | None = None) -> Out:
        """Ask one of the replicas, and wait for its answer.

        The replica's function runs in your own task. If you are cancelled, or your deadline
        passes, so is it.

        Args:
            item: what to ask.
            idempotent: whether it may be done twice; by default, what the pool was told.

        Raises:
            Overloaded: too many requests wait, and the pool's policy is to reject.
            Dropped: too many waited, and this was the oldest of them.
            ReplicaLost: the replica ended meanwhile, and the request is not idempotent.
            Closed: the block was left.
            Exception: what the replica raised.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        twice = self._idempotent if idempotent is None else idempotent
        with self._calls.one(item):
            tried: list[Replica] = []
            earlier = EarlierErrors()
            while True:
                first = await self._take(tried)
                tried.append(first)
                life = first._life
                try:
                    if twice and self._hedge is not None:
                        answer: Out = await self._ask_hedged(self._hedge, first, item, tried)
                    else:
                        answer = await self._ask_one(first, item)
                    return answer
                except Exception as error:
                    elsewhere = is_fault(error)
                    if isinstance(error, ReplicaLost):
                        elsewhere = twice or await _lost_by_fault(error, life)
                    if len(earlier) + 1 >= self._attempts or not elsewhere:
                        earlier.tell(error)
                        raise
                    earlier.add(error)
                    self._elsewhere += 1
                    self._tally.retry(item, error)

    def statistics(self) -> ReplicaPoolStatistics:
        """A snapshot."""
        tally = self._tally
        return ReplicaPoolStatistics(
            submitted=tally.submitted,
            waiting=len(self._waiting),
            running=tally.in_progress - len(self._waiting),
            answered=tally.answered,
            failed=tally.failed,
            refused=tally.refused,
            dropped=tally.dropped,
            asked_elsewhere=self._elsewhere,
            hedged=self._hedged,
            hedges_won=self._hedges_won,
            replicas=tuple(replica._statistics() for replica in self._replicas.values()),
        )

    # --- which replica

    def _candidates(self, tried: list[Replica]) -> list[Replica]:
        """The replicas with room that may be asked now, if there are any: rather untried ones."""
        up = [replica for replica in self._replicas.values() if replica._up]
        healthy = [replica for replica in up if replica._breaker.would_admit()]
        # Where all have been ejected there is nobody better, so none is.
        roomy = [replica for replica in healthy or up if replica._has_room]
        return [replica for replica in roomy if replica not in tried] or roomy

    def _choose(self, candidates: list[Replica]) -> Replica:
        chosen = self._policy.choose(candidates)
        if chosen not in candidates:
            raise ValueError(
                f"{self._policy!r} must choose one of the replicas it is given, and chose "
                f"{chosen!r}"
            )
        chosen._member.take()
        return chosen

    async def _take(self, tried: list[Replica]) -> Replica:
        """A replica, with one request more in flight."""
        if not self._waiting and (candidates := self._candidates(tried)):
            return self._choose(candidates)
        if len(self._waiting) >= self._capacity and self._overflow is not Overflow.WAIT:
            self._make_room()
        waiter = _Waiter()
        self._waiting[waiter] = None
        try:
            while True:
                first = next(iter(self._waiting)) is waiter
                if first and (candidates := self._candidates(tried)):
                    return self._choose(candidates)
                waiter.event = trio.Event()
                look_at = self._next_return() if first else math.inf
                if look_at < math.inf:
                    with trio.move_on_at(look_at):
                        await waiter.event.wait()
                else:
                    await waiter.event.wait()
                if waiter.dropped:
                    raise Dropped("a later request took its place in the queue")
        finally:
            self._waiting.pop(waiter, None)
            self._wake()

    def _make_room(self) -> None:
        waiting = len(self._waiting)
        if self._overflow is Overflow.REJECT:
            raise Overloaded(
                f"{waiting} requests wait already, and no more than {self._capacity} may",
                waiting=waiting,
                capacity=self._capacity,
            )
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        oldest.dropped = True
        oldest.event.set()

    def _wake(self) -> None:
        """There may be a replica with room: the first in the queue looks."""
        if self._waiting:
            next(iter(self._waiting)).event.set()

    def _next_return(self) -> float:
        """When the next ejected replica may be probed."""
        left = [
            replica._breaker.statistics().retry_in
            for replica in self._replicas.values()
            if replica._up and replica._has_room and not replica._breaker.would_admit()
        ]
        return trio.current_time() + min((each for each in left if each > 0), default=math.inf)

    # --- requests

    async def _ask_one(self, replica: Replica, item: Any) -> Any:
        """Ask a replica that was taken, and give it back."""
        breaker = replica._breaker
        deadline = trio.current_effective_deadline()
        began = trio.current_time()
        try:
            self._tally.start(item)
            with breaker.attempt() if breaker.would_admit() else nullcontext():
                result = await replica._member.ask(item)
            replica._took(trio.current_time() - began)
            return result
        except trio.Cancelled:
            if trio.current_time() >= deadline:
                # It was too slow for its caller, which no error tells.
                with suppress(trio.TooSlowError, CircuitOpen), breaker.attempt():
                    raise trio.TooSlowError from None
            raise
        except Exception:
            replica._failed += 1
            raise
        finally:
            replica._member.leave()
            self._wake()

    async def _ask_hedged(
        self, hedge: Hedge, first: Replica, item: Any, tried: list[Replica]
    ) -> Any:
        """Ask a replica that was taken, and another one if it takes long."""
        began = trio.current_time()
        self._hedgeable += 1
        results: list[tuple[Replica, Any]] = []
        running = 1
        ended = trio.Event()

        async def ask(replica: Replica) -> None:
            nonlocal running
            try:
                results.append((replica, await self._ask_one(replica, item)))
            except Exception as error:  # noqa: BLE001 (raised below, if it counts)
                failed.add(error)
            running -= 1
            if results or not running:
                ended.set()
                nursery.cancel_scope.cancel()

        patience = math.inf
        if len(self._latencies) >= hedge.minimum:
            patience = self._latencies.quantile(hedge.quantile)
        with LastError() as failed:
            async with PlainNursery() as nursery:
                nursery.start_soon(ask, first)
                with trio.move_on_after(patience):
                    await ended.wait()
                await trio.lowlevel.checkpoint()  # what is answered in this very turn is in time
                if not ended.is_set() and (second := self._take_second(hedge, tried)):
                    running += 1
                    tried.append(second)
                    nursery.start_soon(ask, second)
            if not results:
                failed.throw()
        replica, result = results[0]
        self._hedges_won += replica is not first
        self._latencies.add(trio.current_time() - began)
        return result

    def _take_second(self, hedge: Hedge, tried: list[Replica]) -> Replica | None:
        """Another replica, if one has room that nobody waits for, and the share allows it."""
        if self._waiting or self._hedged + 1 > hedge.share * self._hedgeable:
            return None
        others = [each for each in self._candidates(tried) if each not in tried]
        if not others:
            return None
        self._hedged += 1
        return self._choose(others)

    # --- lives of replicas

    async def add(self, factory: Factory[In, Out], *, name: str | None = None) -> str:
        """Add a replica, and wait until it is open.

        Args:
            factory: makes its context manager.
            name: its name; by default, ``replica-1`` and so on.

        Returns:
            Its name.

        Raises:
            NameTaken: there is one of that name.
            Exception: what the factory, or entering what it made, raised. There is no such
                replica then.
        """
        replica = self._enlist(factory, name)
        await self._open(replica)
        return replica.name

    def _enlist(self, factory: Factory[In, Out], name: str | None = None) -> Replica:
        self._calls.check_thread()
        if name is None:
            self._numbers += 1
            name = f"replica-{self._numbers}"
        if name in self._replicas:
            raise NameTaken(f"the pool has a replica {name!r} already; choose another name")
        check_factory(factory)
        replica = Replica._create(name, factory, self._max_in_flight, self._breaker)
        self._replicas[name] = replica
        return replica

    async def _open(self, replica: Replica) -> None:
        spec = ChildSpec(replica.name, partial(self._live, replica))
        try:
            await self._supervisor.start_child(spec)
        except BaseException:
            del self._replicas[replica.name]
            raise

    @trio.lowlevel.enable_ki_protection
    async def _live(self, replica: Replica, *, task_status: trio.TaskStatus[None]) -> None:
        """A replica's task: life after life, until one fails. Its supervisor begins again."""
        lives = 0
        try:
            while True:
                async with opened(replica._factory, replica._member.what) as call:
                    check_call(call, replica._member.what)
                    replica._begin(call)
                    self._wake()
                    if not lives:
                        task_status.started()
                    lives += 1
                    await replica._member.serve(replica._retire.wait)
        except BaseException as error:
            if isinstance(error, Exception):
                replica._failure = error
            replica._life.end(replica._failure)
            replica._notify()
            raise

    @trio.lowlevel.enable_ki_protection
    async def drain(self, name: str) -> None:
        """Give a replica no more requests, and wait until it has none. ``resume`` ends that.

        If you are cancelled meanwhile, it gets requests again.

        Raises:
            LookupError: there is no replica of that name.
            Closed: the block was left.
        """
        replica = self._find(name)
        replica._held += 1
        try:
            await replica._member.until_idle()
            await trio.lowlevel.checkpoint()
        except BaseException:
            self._release(replica)
            raise

    def resume(self, name: str) -> None:
        """Give a replica requests again that was drained.

        Raises:
            LookupError: there is no replica of that name.
            Closed: the block was left.
            RuntimeError: it was not drained.
        """
        replica = self._find(name)
        if not replica._held:
            raise RuntimeError(f"replica {name!r} was not drained")
        self._release(replica)

    def _release(self, replica: Replica) -> None:
        replica._held -= 1
        self._wake()

    @trio.lowlevel.enable_ki_protection
    async def restart(self, name: str) -> None:
        """Drain a replica, close it, and wait until it has been opened again by its factory.

        It does not count as a failure. If you are cancelled while it drains, it goes on as it was.

        Raises:
            LookupError: there is no replica of that name.
            Closed: the block was left.
            Exception: what opening it has raised. That is a failure, and its supervisor goes on
                to try.
        """
        replica = self._find(name)
        await self.drain(name)
        try:
            self._find(name)  # also after a while
            began = replica._began
            replica._retire.set()
            await began.wait()
            if replica._failure is not None:
                raise replica._failure
            if replica._member.call is None:
                raise self._calls.closed("was closed while it restarted a replica")
        finally:
            self._release(replica)

    async def restart_all(self, *, beside: bool = False) -> None:
        """Restart the replicas one after the other. Requests wait no longer than there is no room.

        It ends at the first that does not open again: the others are left as they were.

        Args:
            beside: open each one's successor, under a new name, before it is drained and closed,
                so that there are never fewer replicas than before.

        Raises:
            Exception: what opening a replica has raised.
        """
        for name, replica in [*self._replicas.items()]:
            if name not in self._replicas:
                continue  # somebody has removed it meanwhile
            if beside:
                await self.add(replica._factory)
                await self.remove(name)
            else:
                await self.restart(name)

    async def remove(self, name: str) -> None:
        """Drain a replica, and close it for good.

        Raises:
            LookupError: there is no replica of that name.
            Closed: the block was left.
            ValueError: it is the last one.
        """
        replica = self._find(name)
        if sum(not each._held for each in self._replicas.values()) - (not replica._held) < 1:
            raise ValueError(f"replica {name!r} is the last one that serves: add another one first")
        await self.drain(name)
        self._find(name)
        del self._replicas[name]
        await self._supervisor.stop_child(name)

    def _find(self, name: str) -> Replica:
        self._calls.check_thread()
        if self._left:
            raise self._calls.closed()
        replica = self._replicas.get(name)
        if replica is None:
            raise LookupError(
                f"the pool has no replica {name!r}; it has {', '.join(self._replicas) or 'none'}"
            )
        return replica


async def _lost_by_fault(error: ReplicaLost, life: Life) -> bool:
    """Whether it was a device's fault that has ended a replica under a request.

    The fault is on its way then: what the replica owns is being closed.
    """
    await life.ended.wait()
    if error.__cause__ is None:
        error.__cause__ = life.failure
    return life.failure is not None and is_fault(life.failure)


@opens
async def open_replica_pool(
    factories: Iterable[Factory[In, Out]],
    *,
    policy: PolicyName | Policy = "least_loaded",
    max_in_flight: int = 1,
    capacity: int = 1024,
    overflow: Overflow = Overflow.WAIT,
    attempts: int = 3,
    idempotent: bool = False,
    hedge: Hedge | None = None,
    breaker: Callable[[], CircuitBreaker] = usual_breaker,
    intensity: Intensity = _INTENSITY,
    backoff: Backoff = _BACKOFF,
    rng: random.Random | None = None,
    observer: Observer | None = None,
) -> AsyncIterator[ReplicaPool[In, Out]]:
    """Open several replicas of a function, and share the requests out among them.

    Each replica is what its factory makes: an async context manager that gives a coroutine
    function, and that owns what this needs, such as a device, a process or a ``Batcher``. A
    supervisor looks after them. A replica whose block fails is opened again after a back-off, and
    the others serve meanwhile. If that happens more often than ``intensity`` allows, the pool
    fails: ``SupervisionFailed`` leaves the block.

    A request that fails by a device's fault (``is_transient``, or `DeviceLost`) is asked again,
    rather at another replica: what was running on a device then has had no effect outside it. So
    is one whose replica was ended by such a fault under it. If the replica ended otherwise, it is
    asked elsewhere if it is marked idempotent, and gets ``ReplicaLost`` if not, whose
    ``__cause__`` is what the replica failed with. Other errors are its answer.

    Too many failures eject a replica: it gets no requests for a while, and is then probed with
    one. If all that are open would be ejected, none is.

    Leaving the block takes no more requests, waits for those in progress and closes the replicas.
    Where an exception or a cancellation leaves it, those in progress get ``Closed``. What a replica
    raises as it is closed leaves the block.

    Args:
        factories: one for each replica; the same one several times is fine. All are opened before
            the block begins, and what one of them raises leaves it.
        policy: by its name, or an object with a method ``choose``.
        max_in_flight: how many requests a replica may have.
        capacity: how many requests may wait for a replica with room.
        overflow: what becomes of one more. With ``Overflow.WAIT`` it waits all the same.
        attempts: how often a request is asked at most. Second requests by ``hedge`` do not count.
        idempotent: whether requests may be done twice, unless they say otherwise.
        hedge: when requests that take long are made a second time; only idempotent ones are.
        breaker: makes what decides about the ejection of a replica: one for each of its lives.
        intensity: how often replicas may be opened again.
        backoff: how long that waits.
        rng: what ``"power_of_two"`` draws by.
        observer: is told what becomes of requests.

    Raises:
        Exception: what opening a replica has raised.
    """
    policies: dict[str, Callable[[], Policy]] = {
        "round_robin": RoundRobin,
        "least_loaded": LeastLoaded,
        "power_of_two": partial(PowerOfTwo, rng),
    }
    if isinstance(policy, str):
        if policy not in policies:
            raise ValueError(f"policy must be one of {', '.join(policies)}, got {policy!r}")
        policy = policies[policy]()
    for what, number in (
        ("max_in_flight", max_in_flight),
        ("capacity", capacity),
        ("attempts", attempts),
    ):
        check_whole(what, number)
        if number < 1:
            raise ValueError(f"{what} must be positive, got {number}")
    check_member("overflow", overflow, Overflow)
    if hedge is not None:
        check_instance("hedge", hedge, Hedge)
    check_instance("factories", factories, Iterable)
    makers = [*factories]
    if not makers:
        raise ValueError("a pool wants one replica or more")
    async with open_supervisor("pool", intensity=intensity, backoff=backoff) as supervisor:
        kind: type[ReplicaPool[In, Out]] = ReplicaPool
        pool = kind._create(
            supervisor,
            policy=policy,
            max_in_flight=max_in_flight,
            capacity=capacity,
            overflow=overflow,
            attempts=attempts,
            idempotent=idempotent,
            hedge=hedge,
            breaker=breaker,
            observer=observer,
        )
        replicas = [pool._enlist(factory) for factory in makers]
        async with PlainNursery() as nursery:
            for replica in replicas:
                nursery.start_soon(pool._open, replica)
        try:
            async with closing(pool._calls):
                yield pool
        finally:
            pool._left = True
            for replica in pool._replicas.values():
                replica._notify()  # who waits for its next life waits for nothing
