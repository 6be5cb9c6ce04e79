"""A replica pool under random faults, deaths, restarts, cancellations and ends."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned
from atomr_accel.actors import Backoff, Intensity, Overflow
from atomr_accel.patterns import (
    CircuitBreaker,
    Closed,
    Dropped,
    Hedge,
    Observer,
    Overloaded,
    ReplicaLost,
    ReplicaPool,
    open_replica_pool,
)

from ..harness import on_mock_clock
from .worlds import poisoned


class Bad(Exception):
    """Raised by a replica for an item."""


class Death(Exception):
    """Ends a replica."""


@dataclass
class World:
    """Random behaviour of a run's replicas, and the observed events."""

    rng: random.Random
    limit: int
    faults: float
    errors: float

    def __post_init__(self) -> None:
        self.opened = 0
        self.inside = 0
        self.working: Counter[int] = Counter()
        self.starts: Counter[int] = Counter()
        self.deaths: list[trio.Event] = []

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[Callable[[int], Awaitable[tuple[str, int]]]]:
        await trio.sleep(self.rng.choice([0, 0, 2]))
        self.opened += 1
        here = Counter[int]()
        death = trio.Event()
        self.deaths.append(death)
        closed = False

        async def work(item: int) -> tuple[str, int]:
            assert not closed
            here[item] += 1
            self.starts[item] += 1
            self.working[item] += 1
            assert here.total() <= self.limit
            try:
                await trio.sleep(self.rng.choice([0, 0.1, 1, 1, 1, 7]))
                chance = self.rng.random()
                if chance < self.faults:
                    raise poisoned()
                if chance < self.faults + self.errors:
                    raise Bad(item)
                return ("answer", item)
            finally:
                here[item] -= 1
                self.working[item] -= 1

        async def die() -> None:
            await death.wait()
            raise Death

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(die)
                yield work
                nursery.cancel_scope.cancel()
        finally:
            closed = True
            self.deaths.remove(death)
            assert not here.total()
            self.opened -= 1


class Ends(Observer):
    """Checks each event against the allowed ones."""

    def __init__(self) -> None:
        self.open: set[object] = set()
        self.ends = self.begun = 0

    def submitted(self, item: object) -> None:
        self.begun += 1
        self.open.add(item)

    def answered(self, item: object, seconds: float) -> None:
        self.end(item)

    def failed(self, item: object, error: BaseException, seconds: float) -> None:
        self.end(item)

    def withdrawn(self, item: object, seconds: float) -> None:
        self.end(item)

    def end(self, item: object) -> None:
        self.open.remove(item)
        self.ends += 1


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    replicas=st.integers(1, 4),
    limit=st.integers(1, 3),
    capacity=st.integers(1, 5),
    overflow=st.sampled_from(Overflow),
    policy=st.sampled_from(["round_robin", "least_loaded", "power_of_two"]),
    idempotent=st.booleans(),
    share=st.sampled_from([None, 0.1, 1.0]),
    faults=st.sampled_from([0, 0.2]),
    errors=st.sampled_from([0, 0.3]),
    ends=st.sampled_from(["drained", "cancelled", "failed"]),
    requests=st.integers(0, 40),
)
@on_mock_clock
async def test_every_request_has_one_end(
    seed: int,
    replicas: int,
    limit: int,
    capacity: int,
    overflow: Overflow,
    policy: Any,
    idempotent: bool,
    share: float | None,
    faults: float,
    errors: float,
    ends: str,
    requests: int,
) -> None:
    rng = random.Random(seed)
    world = World(rng, limit, faults, errors)
    observer = Ends()
    hedge = None if share is None else Hedge(quantile=0.8, share=share, minimum=3)
    outcomes: dict[int, str] = {}

    async def caller(pool: ReplicaPool[int, tuple[str, int]], item: int) -> None:
        await trio.sleep(rng.uniform(0, 10))
        with trio.move_on_after(rng.choice([math.inf, math.inf, 0, 1.5])):
            try:
                answer = await pool(item)
                outcomes[item] = "answered" if answer == ("answer", item) else "another's"
            except Bad as error:
                outcomes[item] = "failed" if error.args == (item,) else "another's"
            except ContextPoisoned:
                outcomes[item] = "failed"
                assert faults
            except ReplicaLost:
                outcomes[item] = "lost"
            except Closed:
                outcomes[item] = "closed"
            except Overloaded:
                assert overflow is Overflow.REJECT
                outcomes[item] = "refused"
            except Dropped:
                assert overflow is Overflow.DROP_OLDEST
                outcomes[item] = "refused"
            return
        outcomes[item] = "left"

    async def disturb(pool: ReplicaPool[int, tuple[str, int]]) -> None:
        while True:
            await trio.sleep(rng.uniform(0, 3))
            names = [each.name for each in pool.statistics().replicas]
            match rng.randrange(5):
                case 0 if world.deaths:
                    rng.choice(world.deaths).set()
                case 1:
                    with trio.move_on_after(rng.uniform(0, 5)):
                        await pool.restart(rng.choice(names))
                case 2:
                    name = rng.choice(names)
                    with trio.move_on_after(rng.uniform(0, 5)) as scope:
                        await pool.drain(name)
                    if not scope.cancelled_caught:
                        try:
                            await trio.sleep(1)
                        finally:
                            pool.resume(name)
                case 3 if len(names) < 5:
                    await pool.add(world.factory)
                case 4 if len(names) > 1:
                    await pool.remove(names[0])

    async with trio.open_nursery() as outer:
        try:
            with trio.CancelScope() as scope:
                async with open_replica_pool(
                    [world.factory] * replicas,
                    policy=policy,
                    max_in_flight=limit,
                    capacity=capacity,
                    overflow=overflow,
                    idempotent=idempotent,
                    hedge=hedge,
                    breaker=lambda: CircuitBreaker(
                        minimum=2, backoff=Backoff(initial=1.0), counts=lambda error: True
                    ),
                    intensity=Intensity(restarts=10_000),
                    backoff=Backoff(initial=0.5, base=0.5, maximum=0.5),
                    rng=rng,
                    observer=observer,
                ) as pool:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(disturb, pool)
                        for item in range(requests):
                            outer.start_soon(caller, pool, item)
                        await trio.sleep(rng.uniform(0, 15))
                        nursery.cancel_scope.cancel()
                    if ends == "cancelled":
                        scope.cancel()
                    if ends == "failed":
                        raise Death
        except Death:
            assert ends == "failed"
        assert not world.opened
        assert not world.working.total()
        statistics = pool.statistics()
        assert statistics.running == statistics.waiting == 0
        assert len(trio.lowlevel.current_task().child_nurseries) == 1
    assert set(outcomes) == {*range(requests)}
    told = Counter(outcomes.values())
    assert not told["another's"]
    assert ends != "drained" or statistics.refused == told["refused"]
    assert statistics.answered == told["answered"]
    assert statistics.failed == told["failed"] + told["lost"]
    assert not observer.open
    assert observer.ends == observer.begun == statistics.submitted
    if share is None:
        assert statistics.hedged == 0
    else:
        assert statistics.hedged <= share * statistics.submitted
        assert idempotent or statistics.hedged == 0
    # What is asked at most: three attempts, each with at most one second request.
    assert all(count <= 3 * (1 + (share is not None)) for count in world.starts.values())
    if not faults and not idempotent:
        assert all(count == 1 for count in world.starts.values())


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    quantile=st.sampled_from([0.5, 0.9, 1.0]),
    errors=st.sampled_from([0, 0.1]),
)
@on_mock_clock
async def test_hedging_stays_in_its_share(
    seed: int, share: float, quantile: float, errors: float
) -> None:
    rng = random.Random(seed)
    calls = 0
    now: Counter[int] = Counter()
    most = 0

    async def work(item: int) -> int:
        nonlocal calls, most
        calls += 1
        now[item] += 1
        most = max(most, now[item])
        try:
            await trio.sleep(rng.lognormvariate(0, 1))
            if rng.random() < errors:
                raise Bad(item)
            return item
        finally:
            now[item] -= 1

    async with open_replica_pool(
        [lambda: nullcontext(work)] * 4,
        max_in_flight=50,
        idempotent=True,
        hedge=Hedge(quantile=quantile, share=share, minimum=5),
        breaker=lambda: CircuitBreaker(counts=lambda error: False),
    ) as pool:

        async def ask(item: int) -> None:
            await trio.sleep(rng.uniform(0, 40))
            with suppress(Bad):
                assert await pool(item) == item
            assert not now[item]  # the loser has left
            statistics = pool.statistics()
            assert statistics.hedged <= share * statistics.submitted

        async with trio.open_nursery() as nursery:
            for item in range(100):
                nursery.start_soon(ask, item)
    statistics = pool.statistics()
    assert calls == 100 + statistics.hedged
    assert statistics.hedges_won <= statistics.hedged
    assert most == (1 if not statistics.hedged else 2)
    if share == 1 and quantile == 0.5:
        assert statistics.hedged > 20
        assert statistics.hedges_won > 0
