"""Replica pools: every request is answered once, whatever becomes of the replicas."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, DeviceLost
from atomr_accel.actors import Backoff, Intensity, NameTaken, Overflow, SupervisionFailed
from atomr_accel.patterns import (
    CircuitBreaker,
    Closed,
    Dropped,
    Hedge,
    Overloaded,
    Replica,
    ReplicaLost,
    ReplicaPool,
    ReplicaState,
    open_replica_pool,
)

from ..harness import refused
from .worlds import poisoned

AT_ONCE = Backoff(initial=0.0, base=0.0)
OFTEN = Intensity(restarts=1000)


class Bad(Exception):
    """Raised by a replica for an item."""


class Worker:
    """A replica that notes what happens to it, and dies on demand."""

    def __init__(self, seconds: float = 1.0, *, opening: float = 0.0) -> None:
        self.seconds = seconds
        self.opening = opening
        self.busy = self.most = self.lives = self.cancelled = 0
        self.calls: list[Any] = []
        self.fails: Exception | None = None
        self.fails_to_open: Exception | None = None
        self.open = False
        self.dying = trio.Event()
        self.death: Exception = Bad("died")

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
        await trio.sleep(self.opening)
        if self.fails_to_open is not None:
            raise self.fails_to_open
        self.lives += 1
        self.dying = trio.Event()
        self.open = True
        here = 0

        async def work(item: Any) -> Any:
            nonlocal here
            here += 1
            try:
                return await self.work(item)
            finally:
                here -= 1

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.die)
                yield work
                nursery.cancel_scope.cancel()
        finally:
            assert not here  # nobody uses what is being closed
            self.open = False

    async def die(self) -> None:
        await self.dying.wait()
        raise self.death

    async def work(self, item: Any) -> Any:
        self.calls.append(item)
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await trio.sleep(self.seconds)
            if self.fails is not None:
                raise self.fails
            return item
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.busy -= 1


def opened(
    *workers: Worker, **options: Any
) -> Any:  # an async context manager of ReplicaPool[Any, Any]
    options = {"backoff": AT_ONCE, "intensity": OFTEN, **options}
    return open_replica_pool([worker.factory for worker in workers], **options)


async def ask_all(pool: ReplicaPool[Any, Any], items: Sequence[Any]) -> None:
    async def ask(item: Any) -> None:
        assert await pool(item) == item

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(ask, item)
            await trio.testing.wait_all_tasks_blocked()


async def test_requests_are_shared_out(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker() for _ in range(3)]
    async with opened(*workers) as pool:
        await ask_all(pool, range(7))
        assert trio.current_time() == 3
        statistics = pool.statistics()
    assert [len(worker.calls) for worker in workers] == [3, 2, 2]
    assert [worker.most for worker in workers] == [1, 1, 1]
    assert statistics.answered == statistics.submitted == 7
    assert [each.name for each in statistics.replicas] == ["replica-1", "replica-2", "replica-3"]
    assert [each.seconds for each in statistics.replicas] == [1, 1, 1]
    assert not any(worker.open for worker in workers)


async def test_a_function_that_owns_nothing(autojump_clock: trio.testing.MockClock) -> None:
    worker = Worker()
    worker.open = True
    async with open_replica_pool([lambda: nullcontext(worker.work)], max_in_flight=4) as pool:
        await ask_all(pool, range(4))
    assert worker.most == 4


@pytest.mark.parametrize(
    ("policy", "expected"), [("round_robin", [3, 3, 3]), ("least_loaded", [4, 1, 4])]
)
async def test_policies(
    policy: Any, expected: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    workers = [Worker(1), Worker(100), Worker(1)]
    options = {"policy": policy, "max_in_flight": 10}
    async with opened(*workers, **options) as pool, trio.open_nursery() as nursery:
        for item in range(9):
            nursery.start_soon(pool, item)
            await trio.sleep(2)
    assert [len(worker.calls) for worker in workers] == expected


async def test_two_choices_are_nearly_even(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(1000) for _ in range(10)]
    async with opened(
        *workers, policy="power_of_two", rng=random.Random(1), max_in_flight=100
    ) as pool:
        await ask_all(pool, range(200))
    assert all(17 <= worker.most <= 23 for worker in workers)


async def test_a_policy_of_ones_own(autojump_clock: trio.testing.MockClock) -> None:
    class Last:
        def choose(self, replicas: Sequence[Replica]) -> Replica:
            return replicas[-1]

    workers = [Worker(), Worker()]
    async with opened(*workers, policy=Last()) as pool:
        assert await pool(1) == 1
    assert workers[1].calls == [1]

    class Stranger:
        def choose(self, replicas: Sequence[Replica]) -> Replica:
            return Replica.construct("?", workers[0].factory, 1, CircuitBreaker)

    async with opened(*workers, policy=Stranger()) as pool:
        with pytest.raises(ValueError, match="must choose one of the replicas it is given"):
            await pool(1)


async def test_the_first_to_wait_is_the_first_to_be_served(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker()
    async with opened(worker) as pool:
        await ask_all(pool, range(10))
    assert worker.calls == [*range(10)]


@pytest.mark.parametrize("overflow", [Overflow.REJECT, Overflow.DROP_OLDEST, Overflow.WAIT])
async def test_full_pool_refuses_requests(
    overflow: Overflow, autojump_clock: trio.testing.MockClock
) -> None:
    ends: dict[int, Any] = {}
    worker = Worker()
    async with opened(worker, capacity=2, overflow=overflow) as pool:

        async def ask(item: int) -> None:
            try:
                ends[item] = await pool(item)
            except (Overloaded, Dropped) as error:
                ends[item] = type(error)

        async with trio.open_nursery() as nursery:
            for item in range(4):
                nursery.start_soon(ask, item)
                await trio.testing.wait_all_tasks_blocked()
        assert pool.statistics().refused == (overflow is not Overflow.WAIT)
    expected: dict[int, Any] = {item: item for item in range(4)}
    if overflow is Overflow.REJECT:
        expected[3] = Overloaded
    if overflow is Overflow.DROP_OLDEST:
        expected[1] = Dropped
    assert ends == expected


async def test_a_waiter_that_is_cancelled_is_passed_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker()
    async with opened(worker) as pool:

        async def impatient() -> None:
            with trio.move_on_after(0.5):
                await pool("impatient")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(impatient)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(pool, 2)
        assert pool.statistics().withdrawn == 1
    assert worker.calls == [1, 2]


# --- replicas fail


async def test_an_error_is_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    worker = Worker()
    worker.fails = Bad("no")
    async with opened(worker) as pool:
        with pytest.raises(Bad):
            await pool(1)
        assert pool.statistics().failed == 1
    assert worker.calls == [1]


@pytest.mark.parametrize(
    "error", [poisoned(), DeviceLost("gone"), ExceptionGroup("both", [poisoned()])]
)
async def test_after_a_fault_of_the_device_another_replica_is_asked(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    workers = [Worker(), Worker()]
    workers[0].fails = error
    async with opened(*workers) as pool:
        assert await pool(1) == 1
        assert pool.statistics().asked_elsewhere == 1
    assert [worker.calls for worker in workers] == [[1], [1]]


async def test_room_of_another_replica_is_waited_for_after_a_fault(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The replica that has failed still takes requests, and would fail all attempts at once."""
    workers = [Worker(0.0), Worker(10.0)]
    workers[0].fails = poisoned()
    async with opened(*workers, max_in_flight=1, policy="round_robin", attempts=3) as pool:
        await ask_all(pool, range(4))
    assert sorted(workers[1].calls) == [0, 1, 2, 3]
    assert all(workers[0].calls.count(item) <= 1 for item in range(4))


async def test_there_is_a_last_attempt(autojump_clock: trio.testing.MockClock) -> None:
    worker = Worker()
    worker.fails = poisoned()
    async with opened(worker, attempts=2) as pool:
        with pytest.raises(ContextPoisoned):
            await pool(1)
    assert worker.calls == [1, 1]


@pytest.mark.parametrize("death", [Bad("died"), DeviceLost("gone")])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_replica_that_dies(
    idempotent: bool, death: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    workers = [Worker(), Worker()]
    workers[0].death = death
    async with opened(*workers) as pool:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                if idempotent or isinstance(death, DeviceLost):
                    assert await pool.ask(1, idempotent=idempotent) == 1
                else:
                    with pytest.raises(ReplicaLost) as info:
                        await pool(1)
                    assert info.value.replica == "replica-1"
                    assert isinstance(info.value.__cause__, ExceptionGroup)
                    assert info.value.__cause__.exceptions == (death,)

            nursery.start_soon(ask)
            await trio.sleep(0.5)
            workers[0].dying.set()
        await trio.testing.wait_all_tasks_blocked()
        await ask_all(pool, range(2))
        assert [each.lives for each in pool.statistics().replicas] == [2, 1]
    assert workers[0].cancelled == 1


async def test_requests_wait_for_a_replica_that_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker(opening=5)
    async with opened(worker) as pool:
        worker.dying.set()
        await trio.sleep(1)
        assert pool.statistics().replicas[0].state is ReplicaState.STARTING
        assert await pool(1) == 1
        assert trio.current_time() == 11


async def test_replicas_that_die_too_often_end_the_pool(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker()
    ends: list[type] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(SupervisionFailed) as info:
            async with opened(worker, intensity=Intensity(restarts=0)) as pool:

                async def ask() -> None:
                    try:
                        await pool.ask(1, idempotent=True)
                    except Closed:
                        ends.append(Closed)

                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                worker.dying.set()
                await trio.sleep_forever()
        assert isinstance(info.value.__cause__, ExceptionGroup)
    assert ends == [Closed]


async def test_a_replica_that_does_not_open(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(), Worker()]
    workers[1].fails_to_open = Bad("cannot")
    await refused(Bad, None, opened, *workers)
    assert not workers[0].open


async def test_a_replica_that_fails_is_ejected_and_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(), Worker()]
    workers[0].fails = Bad("ill")

    def breaker() -> CircuitBreaker:
        return CircuitBreaker(
            window=3,
            minimum=3,
            threshold=1.0,
            backoff=Backoff(initial=10.0, base=20.0),
            counts=lambda error: True,
        )

    async with opened(*workers, policy="round_robin", breaker=breaker) as pool:
        failed = 0
        for item in range(20):
            try:
                await pool(item)
            except Bad:
                failed += 1
            if item == 8:
                assert pool.statistics().replicas[0].state is ReplicaState.EJECTED
        assert failed == 3 + 1  # one was the probe
        workers[0].fails = None
        await trio.sleep(20)
        assert pool.statistics().replicas[0].state is ReplicaState.PROBING
        before = len(workers[0].calls)
        for item in range(6):
            await pool(item)
        assert len(workers[0].calls) == before + 3
        assert pool.statistics().replicas[0].state is ReplicaState.SERVING
        assert pool.statistics().replicas[0].ejections == 2


async def test_never_are_all_ejected(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(), Worker()]
    for worker in workers:
        worker.fails = Bad("ill")
    async with opened(*workers, max_in_flight=2) as pool:
        for item in range(60):
            with pytest.raises(Bad):
                await pool(item)
        for worker in workers:
            worker.fails = None
        assert await pool(1) == 1
    assert trio.current_time() == 61


async def test_being_too_slow_for_callers_counts(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(100), Worker(1)]
    async with opened(*workers, policy="round_robin") as pool:
        for item in range(30):
            with trio.move_on_after(5):
                await pool(item)
        first, second = pool.statistics().replicas
    assert first.ejections >= 1
    assert second.answered >= 16
    assert second.ejections == 0


async def test_waiting_caller_gets_a_replica_that_may_be_probed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(1), Worker(1000)]
    workers[0].fails = Bad("ill")

    def breaker() -> CircuitBreaker:
        return CircuitBreaker(minimum=1, backoff=Backoff(initial=10.0), counts=lambda error: True)

    async with opened(*workers, policy="round_robin", breaker=breaker) as pool:
        with pytest.raises(Bad):
            await pool(1)
        workers[0].fails = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool, 2)
            await trio.sleep(1)
            assert await pool(3) == 3
            assert trio.current_time() == 12


# --- hedging


async def test_a_request_that_takes_long_is_made_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(), Worker()]
    hedge = Hedge(quantile=0.9, share=0.05, minimum=20)
    async with opened(*workers, hedge=hedge, idempotent=True, policy="round_robin") as pool:
        for item in range(40):
            await pool(item)
        assert pool.statistics().hedged == 0
        workers[0].seconds = 100
        start = trio.current_time()
        assert await pool(1) == 1
        assert trio.current_time() == start + 2
        assert workers[0].cancelled == 1
        assert not workers[0].busy
        statistics = pool.statistics()
        assert (statistics.hedged, statistics.hedges_won) == (1, 1)
        assert statistics.answered == statistics.submitted == 41
        workers[1].seconds = 100
        assert await pool.ask(2, idempotent=False) == 2  # made once
        assert pool.statistics().hedged == 1


async def test_the_second_answer_counts_if_the_first_is_an_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(), Worker()]
    hedge = Hedge(quantile=0.5, share=1.0, minimum=1)
    async with opened(*workers, hedge=hedge, idempotent=True, policy="round_robin") as pool:
        await pool(0)
        await pool(1)
        workers[0].seconds, workers[0].fails = 1.5, Bad("late")
        workers[1].seconds = 3
        assert await pool(2) == 2
        workers[1].seconds, workers[1].fails = 3, Bad("later")
        with pytest.raises(Bad) as info:
            await pool(3)
        assert info.value.__notes__


# --- planned changes


async def test_a_replica_is_drained_and_resumed(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(), Worker()]
    async with opened(*workers) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(pool, 1)
        await trio.sleep(0.5)
        await pool.drain("replica-1")
        assert trio.current_time() == 1
        assert pool.statistics().replicas[0].state is ReplicaState.DRAINED
        await ask_all(pool, range(3))
        assert len(workers[0].calls) == 1
        pool.resume("replica-1")
        await ask_all(pool, range(2))
        assert len(workers[0].calls) == 2
        with pytest.raises(RuntimeError, match="was not drained"):
            pool.resume("replica-1")
        with pytest.raises(LookupError, match="the pool has no replica 'x'; it has replica-1"):
            await pool.drain("x")


async def test_a_drain_that_is_cancelled_changes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(10)]
    async with opened(*workers) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(pool, 1)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await pool.restart("replica-1")
        assert pool.statistics().replicas[0].state is ReplicaState.SERVING
        assert workers[0].lives == 1


@pytest.mark.parametrize("beside", [True, False])
async def test_a_rolling_restart_keeps_serving(
    beside: bool, autojump_clock: trio.testing.MockClock
) -> None:
    workers = [Worker(opening=3) for _ in range(3)]
    most_closed = 0
    async with opened(*workers) as pool:
        done = False

        async def keep_asking() -> None:
            nonlocal most_closed
            while not done:
                assert await pool(1) == 1
                if not beside:
                    most_closed = max(most_closed, sum(not worker.open for worker in workers))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(keep_asking)
            await pool.restart_all(beside=beside)
            done = True
        statistics = pool.statistics()
        assert statistics.failed == statistics.refused == 0
        assert len(statistics.replicas) == 3
        assert [worker.lives for worker in workers] == [2, 2, 2]
        assert most_closed <= 1
        if not beside:
            assert pool._service_supervisor is not None
            assert pool._service_supervisor.statistics().failures == 0


async def test_a_rolling_restart_ends_where_it_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    workers = [Worker(), Worker(), Worker()]
    async with opened(*workers, backoff=Backoff(initial=1.0, base=1.0)) as pool:
        workers[1].fails_to_open = Bad("cannot")
        with pytest.raises(Bad):
            await pool.restart_all()
        assert [worker.lives for worker in workers] == [2, 1, 1]
        await ask_all(pool, range(4))
        workers[1].fails_to_open = None
        await trio.sleep(2)
        assert [worker.lives for worker in workers] == [2, 2, 1]


async def test_replicas_come_and_go(autojump_clock: trio.testing.MockClock) -> None:
    workers = [Worker(), Worker()]
    async with opened(workers[0]) as pool:
        with pytest.raises(ValueError, match="is the last one that serves"):
            await pool.remove("replica-1")
        assert await pool.add(workers[1].factory, name="another") == "another"
        with pytest.raises(NameTaken):
            await pool.add(workers[1].factory, name="another")
        await ask_all(pool, range(2))
        assert [worker.calls for worker in workers] == [[0], [1]]
        await pool.remove("replica-1")
        assert not workers[0].open
        await ask_all(pool, range(2))
        assert len(workers[1].calls) == 3


# --- the end


async def test_leaving_the_block_waits_for_requests(autojump_clock: trio.testing.MockClock) -> None:
    worker = Worker()
    ends: list[int] = []
    async with trio.open_nursery() as nursery:
        async with opened(worker) as pool:

            async def ask(item: int) -> None:
                ends.append(await pool(item))

            for item in range(3):
                nursery.start_soon(ask, item)
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(ends) == [0, 1, 2]
        with pytest.raises(Closed):
            await pool(4)
        with pytest.raises(Closed):
            await pool.restart("replica-1")
        with pytest.raises(Closed):
            pool.resume("replica-1")


async def test_restart_of_a_closed_pool_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker(opening=5)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with opened(worker) as pool:

                async def restart() -> None:
                    with pytest.raises(Closed):
                        await pool.restart("replica-1")

                nursery.start_soon(restart)
                await trio.sleep(1)
                scope.cancel()
                await trio.sleep_forever()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"policy": "best"}, ValueError),
        ({"max_in_flight": 0}, ValueError),
        ({"max_in_flight": 1.5}, TypeError),
        ({"overflow": "reject"}, TypeError),
        ({"hedge": 0.95}, TypeError),
        ({"breaker": 1}, TypeError),
        ({"breaker": lambda: 1}, TypeError),
        ({"idempotent": "yes"}, TypeError),
        ({"rng": "a"}, TypeError),
    ],
)
async def test_options_are_checked(options: dict[str, Any], error: type[Exception]) -> None:
    await refused(error, "must be|must make", opened, Worker(), **options)


async def test_factory_result_is_checked() -> None:
    await refused(ValueError, "one replica or more", open_replica_pool, [])
    await refused(TypeError, "must make an async context manager", open_replica_pool, [lambda: 3])
    await refused(
        TypeError, "must open as a coroutine function", open_replica_pool, [lambda: nullcontext(3)]
    )
