"""Replica pools: several replicas serve one function, and may fail and restart."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, Unpack, final

import trio

from .._errors import EarlierErrors, LastError, said_of
from ..actors import (
    Backoff,
    ChildSpec,
    Intensity,
    NameTaken,
    NoSuchChild,
    Overflow,
    Place,
    Supervision,
    SupervisorStopped,
)
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.policies import LeastLoaded, PowerOfTwo, RoundRobin
from ..actors.util import NoPublicConstructor, check_instance, check_member
from ..wire.options import count, flag, text
from ._calls import CallsInProgress, InCallers, RequestCounts, serving_callers
from ._errors import CircuitOpen, Dropped, Overloaded, ReplicaLost
from ._latencies import Latencies
from ._members import Factory, check_call, check_factory, is_fault, is_for_member, opened
from ._replicas import (
    Hedge,
    Policy,
    Replica,
    ReplicaLife,
    ReplicaStatistics,
)
from ._retry import CircuitBreaker

if TYPE_CHECKING:
    from ._observer import Observer

In = TypeVar("In")
Out = TypeVar("Out")

PolicyName = Literal["round_robin", "least_loaded", "power_of_two"]
"""Name of a policy that the package provides."""

_INTENSITY: Final = Intensity(restarts=10, within=60.0)
_BACKOFF: Final = Backoff(initial=0.0, base=1.0, factor=2.0, maximum=30.0)


def usual_breaker() -> CircuitBreaker:
    """Return the default breaker of a replica, which opens at half of at least ten outcomes."""
    return CircuitBreaker(window=20, minimum=10, threshold=0.5, counts=is_for_member)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPoolStatistics(RequestCounts):
    """Statistics of a replica pool, at one moment.

    Every submitted request counts in one of ``waiting``, ``running``, ``answered``, ``failed``,
    ``refused`` and ``withdrawn``.

    Attributes:
        submitted: requests so far.
        waiting: requests that wait for a replica with room.
        running: requests in progress.
        answered: requests that got a result.
        failed: requests that raised an error of a replica.
        refused: requests that were refused: there was no room, or the block was left.
        withdrawn: requests whose callers were cancelled.
        asked_elsewhere: repeated requests, because a replica or its device had failed.
        hedged: requests that were made a second time because they took long.
        hedges_won: hedged requests that the second replica answered first.
        replicas: the replicas of the pool.
    """

    waiting: int
    asked_elsewhere: int
    hedged: int
    hedges_won: int
    replicas: tuple[ReplicaStatistics, ...]


class _PoolWaiter:
    __slots__ = ("dropped", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.dropped = False


@final
class ReplicaPool(InCallers, Generic[In, Out], metaclass=NoPublicConstructor):
    """Shares requests out among replicas, as `open_replica_pool` returns it.

    ``await pool(item)`` makes one request. Once the block was left, methods raise `Closed`; a name
    that no replica has raises ``LookupError``.
    """

    _made_by: ClassVar[str] = "open_replica_pool(factories)"

    def __init__(
        self,
        supervision: Supervision,
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
        self.supervision = supervision
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._capacity = capacity
        self._overflow = overflow
        self._attempts = attempts
        self._idempotent = idempotent
        self._hedge = hedge
        self._breaker = breaker
        self._calls = CallsInProgress("pool", observer)
        self._tally = self._calls.tally
        self._replicas: dict[str, Replica] = {}
        self._adding: set[str] = set()
        self._numbers = 0
        # Those who wait for a replica with room, first come, first served. The first is woken
        # when there may be one, and chooses in its own task; who comes later does not overtake.
        self._waiting: dict[_PoolWaiter, None] = {}
        self._left = False
        self._latencies = Latencies()
        self._elsewhere = self._hedgeable = self._hedged = self._hedges_won = 0

    async def __call__(self, item: In) -> Out:
        """Ask for one item. See ``ask``."""
        return await self.ask(item)

    @trio.lowlevel.enable_ki_protection
    async def ask(self, item: In, *, idempotent: bool | None = None) -> Out:
        """Ask one of the replicas, and wait for its answer.

        The replica's function runs in your own task. If you are cancelled, or your deadline passes,
        the function is cancelled too.

        Args:
            item: the argument of the request.
            idempotent: whether the request may run twice; by default, the pool's setting.

        Raises:
            Overloaded: too many requests wait, and the pool's policy is to reject.
            Dropped: too many waited, and this was the oldest of them.
            ReplicaLost: the replica ended meanwhile, and the request is not idempotent.
            Exception: any error that the replica raised.
        """
        if idempotent is not None:
            idempotent = flag(idempotent, "idempotent")
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
        """Return the statistics of this moment."""
        counts = self._tally.counts()
        counts["running"] -= len(self._waiting)
        return ReplicaPoolStatistics(
            **counts,
            waiting=len(self._waiting),
            asked_elsewhere=self._elsewhere,
            hedged=self._hedged,
            hedges_won=self._hedges_won,
            replicas=tuple(replica._statistics() for replica in self._replicas.values()),
        )

    # --- which replica

    def _candidates(self, tried: list[Replica]) -> list[Replica]:
        """Return the replicas that may be asked now and have room, untried ones if possible.

        While there is an untried one without room, its room is waited for: one that has failed just
        now would fail again at once, until all attempts are used up.
        """
        up = [replica for replica in self._replicas.values() if replica._up]
        healthy = [replica for replica in up if replica._breaker.would_admit()]
        # Where all have been ejected there is nobody better, so none is.
        able = healthy or up
        untried = [replica for replica in able if replica not in tried]
        return [replica for replica in untried or able if replica._has_room]

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
        """Return a replica, and count one more request in flight there."""
        if not self._waiting and (candidates := self._candidates(tried)):
            return self._choose(candidates)
        if len(self._waiting) >= self._capacity and self._overflow is not Overflow.WAIT:
            self._make_room()
        waiter = _PoolWaiter()
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
        """Wake the first waiter, because there may be a replica with room."""
        if self._waiting:
            next(iter(self._waiting)).event.set()

    def _next_return(self) -> float:
        """Return the time at which the next ejected replica may be probed."""
        left = [
            replica._breaker.statistics().retry_in
            for replica in self._replicas.values()
            if replica._up and replica._has_room and not replica._breaker.would_admit()
        ]
        return trio.current_time() + min((each for each in left if each > 0), default=math.inf)

    # --- requests

    async def _ask_one(self, replica: Replica, item: Any) -> Any:
        """Ask a replica that was taken, and release it."""
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
        """Ask a replica that was taken, and a second one if the first takes long."""
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
        """Return another replica with room, if the share of hedges allows it, else None."""
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
            factory: makes the replica's context manager.
            name: the name of the replica; by default, ``replica-1`` and so on.

        Returns:
            Its name.

        Raises:
            NameTaken: the pool has a replica of that name.
            Exception: any error of the factory or of entering its context manager. The replica is
                then not added.
        """
        replica = self._enlist(factory, name)
        self._adding.add(replica.name)
        try:
            await self._open(replica)
        except BaseException:
            del self._replicas[replica.name]
            raise
        finally:
            self._adding.discard(replica.name)
        return replica.name

    def _enlist(self, factory: Factory[In, Out], name: str | None = None) -> Replica:
        self._calls.check_thread()
        if self._left:
            raise self._calls.closed()
        if name is None:
            self._numbers += 1
            name = f"replica-{self._numbers}"
        text(name, "name", 1)
        if name in self._replicas:
            raise NameTaken(f"the pool has a replica {name!r} already; choose another name")
        check_factory(factory)
        replica = Replica.construct(name, factory, self._max_in_flight, self._breaker)
        self._replicas[name] = replica
        return replica

    async def _open(self, replica: Replica) -> None:
        spec = ChildSpec(replica.name, partial(self._live, replica))
        await self.start_child(spec, kind="Replica")

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Open the replicas, and have them supervised.

        Requests that wait for a replica outlast a life.
        """
        async with PlainNursery() as nursery:
            for name, replica in self._replicas.items():
                if name not in self._adding:  # its caller opens that
                    nursery.start_soon(self._open, replica)
        task_status.started()
        await trio.sleep_forever()

    def ended(self, cause: BaseException | None) -> None:
        """End the requests in progress, and refuse those that wait."""
        super().ended(cause)
        self._left = True
        for replica in self._replicas.values():
            replica._notify()  # who waits for its next life waits for nothing

    @trio.lowlevel.enable_ki_protection
    async def _live(self, replica: Replica, *, task_status: trio.TaskStatus[None]) -> None:
        """Run a replica through one life after another until one fails."""
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
        """Stop giving requests to a replica, and wait until it has none. ``resume`` undoes this.

        If you are cancelled meanwhile, it gets requests again.
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
        """Give requests to a drained replica again.

        Raises:
            RuntimeError: the replica was not drained.
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

        A restart does not count as a failure. If you are cancelled while the replica drains, it
        continues to serve.

        Raises:
            Exception: any error of opening the replica. That is a failure, and its supervisor tries
                again.
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
        """Restart the replicas one after the other. Requests wait only while no replica has room.

        The restart ends at the first replica that does not open again. The rest are not restarted.

        Args:
            beside: open each replica's successor, under a new name, before the replica is drained
                and closed. The pool then never has fewer replicas than before.

        Raises:
            Exception: any error of opening a replica.
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
            ValueError: the replica is the last one that serves.
        """
        replica = self._find(name)
        if sum(not each._held for each in self._replicas.values()) - (not replica._held) < 1:
            raise ValueError(f"replica {name!r} is the last one that serves: add another one first")
        await self.drain(name)
        self._find(name)
        del self._replicas[name]
        with suppress(NoSuchChild, SupervisorStopped):  # the life of the pool has ended meanwhile
            await self.stop_child(name)

    def _find(self, name: str) -> Replica:
        self._calls.check_thread()
        if self._left:
            raise self._calls.closed()
        check_instance("name", name, str)
        replica = self._replicas.get(name)
        if replica is None:
            raise LookupError(
                f"the pool has no replica {name!r}; it has {', '.join(self._replicas) or 'none'}"
            )
        return replica


async def _lost_by_fault(error: ReplicaLost, life: ReplicaLife) -> bool:
    """Return True if a device's fault ended a replica while it ran a request.

    The fault is then still on its way, because the replica's resources are being closed.
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
    **place: Unpack[Place],
) -> AsyncIterator[ReplicaPool[In, Out]]:
    """Open several replicas of a function, and share the requests out among them.

    A factory makes each replica: an async context manager that gives a coroutine function and owns
    the resources this needs, such as a device, a process or a ``Batcher``. A supervisor restarts
    them. A replica whose block fails is opened again after a back-off, and the others serve
    meanwhile. If that happens more often than ``intensity`` allows, the pool fails:
    ``SupervisionFailed`` leaves the block.

    A request that fails by a device's fault (``is_transient``, or `DeviceLost`) is asked again, at
    another replica if possible. The failed attempt has had no effect outside the device. A request
    is also asked again if such a fault ended its replica. If the replica ended for another reason,
    an idempotent request is asked elsewhere. Any other request gets ``ReplicaLost``, with the
    replica's failure as its ``__cause__``. Other errors are the request's answer.

    Too many failures eject a replica: it gets no requests for a while, and is then probed with
    one. If all that are open would be ejected, none is.

    Leaving the block takes no more requests, waits for those in progress and closes the replicas.
    If an exception or a cancellation leaves the block, those in progress get ``Closed``. An error
    raised while a replica closes leaves the block.

    Args:
        factories: one for each replica; the same one several times is fine. All are opened before
            the block begins, and an error of opening one leaves it.
        policy: by its name, or an object with a method ``choose``.
        max_in_flight: the maximum number of requests that a replica runs at the same time.
        capacity: the number of requests that may wait for a replica with room.
        overflow: the action for one more. With ``Overflow.WAIT`` it waits too.
        attempts: the maximum number of attempts of a request. Second requests by ``hedge`` do not
            count.
        idempotent: whether requests may be done twice, unless they say otherwise.
        hedge: when requests that take long are made a second time; only idempotent ones are.
        breaker: makes the circuit breaker that ejects a replica: one for each of its lives.
        intensity: the number of restarts allowed in a period.
        backoff: the wait before a replica is opened again.
        rng: the random numbers of ``"power_of_two"``.
        observer: receives the outcomes of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the pool an actor, with its
            replicas below it. It answers ``Call(item)``. Where its replicas fail too often, its
            supervisor opens all of them again.

    Raises:
        Exception: any error of opening a replica.
    """
    policies: dict[str, Callable[[], Policy]] = {
        "round_robin": RoundRobin,
        "least_loaded": LeastLoaded,
        "power_of_two": partial(PowerOfTwo, rng),
    }
    if isinstance(policy, str):
        if policy not in policies:
            raise ValueError(f"policy must be one of {', '.join(policies)}, not {policy!r}")
        policy = policies[policy]()
    if not callable(getattr(policy, "choose", None)):
        raise TypeError(f"policy must have a method choose, unlike {policy!r}")
    check_member("overflow", overflow, Overflow)
    if hedge is not None:
        check_instance("hedge", hedge, Hedge)
    if not callable(breaker):
        raise TypeError(f"breaker must be a function that makes one, not {said_of(breaker)}")
    if rng is not None:
        check_instance("rng", rng, random.Random)
    check_instance("factories", factories, Iterable)
    makers = [*factories]
    if not makers:
        raise ValueError("a pool wants one replica or more")
    kind: type[ReplicaPool[In, Out]] = ReplicaPool
    pool = kind.construct(
        Supervision(intensity=intensity, backoff=backoff),
        policy=policy,
        max_in_flight=count(max_in_flight, "max_in_flight"),
        capacity=count(capacity, "capacity"),
        overflow=overflow,
        attempts=count(attempts, "attempts"),
        idempotent=flag(idempotent, "idempotent"),
        hedge=hedge,
        breaker=breaker,
        observer=observer,
    )
    for factory in makers:
        pool._enlist(factory)
    async with serving_callers(pool, place):
        yield pool
