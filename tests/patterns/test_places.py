"""Patterns with a place in the tree of actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorRestarted,
    Backoff,
    Call,
    GetStatistics,
    Group,
    Intensity,
    Message,
    Strategy,
    Supervision,
    handler,
    open_actor_system,
)
from atomr_accel.actors.nursery import PlainNursery
from atomr_accel.patterns import (
    Batcher,
    CascadeStage,
    Closed,
    Pipeline,
    ReplicaLost,
    RolledBack,
    SpeculativeDecoder,
    Stage,
    Tokens,
    open_batcher,
    open_cascade,
    open_ensemble,
    open_fair_share,
    open_hot_swap,
    open_pipeline,
    open_replica_pool,
    open_speculative,
)

from ..harness import on_mock_clock
from .toy_models import ToyModel, ToyText


async def test_in_a_system_a_batcher_is_an_actor_and_restarts(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = trio.Event()

    async def slow(items: list[int]) -> list[int]:
        await release.wait()
        return [item + 1 for item in items]

    async with (
        open_actor_system("test") as system,
        open_batcher(slow, max_size=1, system=system, name="generate") as batcher,
        trio.open_nursery() as nursery,
    ):
        got: dict[int, object] = {}

        async def ask(item: int) -> None:
            try:
                got[item] = await batcher.ref.ask(Call(item)) if item % 2 else await batcher(item)
            except (Closed, ActorRestarted) as error:
                got[item] = error

        for item in range(4):
            nursery.start_soon(ask, item)
            await trio.testing.wait_all_tasks_blocked()
        node = system.tree().children[0]
        assert (node.path, node.kind, node.depth) == ("/generate", "Batcher", 4)
        with monkeypatch.context() as patch:
            patch.setattr(Batcher, "_next", {}.pop)
            batcher.tune(max_in_flight=2)  # wakes the task that forms batches
            await trio.testing.wait_all_tasks_blocked()
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert system.tree().children[0].restarts >= 1
        await trio.sleep(10)
        # The batch that ran has failed, as have the asks through the actor; the queue waited.
        assert isinstance(got[0], Closed)
        assert isinstance(got[0].__cause__, KeyError)
        assert got[2] == 3
        assert all(isinstance(got[item], ActorRestarted) for item in (1, 3))
        assert await batcher.ref.ask(Call(7)) == 8


class Explode(Message[None]):
    """An order to fail."""


class Bomb(Actor):
    """A sibling whose failures restart all others."""

    @handler
    async def explode(self, message: Explode) -> None:
        raise ZeroDivisionError


ALL = Supervision(
    strategy=Strategy.ONE_FOR_ALL,
    intensity=Intensity(restarts=1000, within=1.0),
    backoff=Backoff(initial=0.25, base=0.25, factor=1.0),
)


Factory = Callable[[], AbstractAsyncContextManager[Callable[[float], Awaitable[float]]]]


async def work(item: float) -> float:
    await trio.sleep(item)
    return item


async def work_on_all(items: list[float]) -> list[float]:
    await trio.sleep(max(items))
    return items


def total(answers: list[float]) -> float:
    return sum(answers)


class Slow(ToyModel):
    """A model each of whose steps takes a second."""

    async def __call__(self, tokens: Tokens) -> ToyText:
        await trio.sleep(1)
        return await super().__call__(tokens)


async def asked(pattern: Any, item: float) -> float:
    """Ask a pattern for the same number; a decoder counts tokens."""
    if not isinstance(pattern, SpeculativeDecoder):
        return cast("float", await pattern(item))
    text = pattern.generate([1], max_tokens=2)
    return item * len([token async for token in text]) / 2


async def asked_by_ref(pattern: Any, item: float) -> float:
    """Do the same by a message to its ref."""
    if not isinstance(pattern, SpeculativeDecoder):
        return cast("float", await pattern.ref.ask(Call(item)))
    return item * len(await pattern.ref.ask(Call([1], {"max_tokens": 2}))) / 2


PATTERNS: dict[str, Callable[..., AbstractAsyncContextManager[Any]]] = {
    "Batcher": lambda **place: open_batcher(work_on_all, max_size=2, max_in_flight=2, **place),
    "ReplicaPool": lambda **place: open_replica_pool(
        [lambda: nullcontext(work)] * 2, max_in_flight=2, **place
    ),
    "HotSwap": lambda **place: open_hot_swap(lambda: nullcontext(work), **place),
    "Pipeline": lambda **place: open_pipeline(Stage(work, 2), work, **place),
    "Cascade": lambda **place: open_cascade(CascadeStage(work), confidence=float, **place),
    "Ensemble": lambda **place: open_ensemble(work, combine=total, **place),
    "FairServer": lambda **place: open_fair_share(work, capacity=2, tenant=str, **place),
    "SpeculativeDecoder": lambda **place: open_speculative(Slow(1), None, **place),
}

MOMENTS = st.integers(0, 12).map(lambda quarter: quarter / 4)


@pytest.mark.parametrize("kind", PATTERNS)
@settings(max_examples=15)
@given(
    requests=st.lists(st.tuples(MOMENTS, MOMENTS, st.booleans(), st.none() | MOMENTS), max_size=8),
    faults=st.lists(MOMENTS, max_size=4),
)
@on_mock_clock
async def test_each_request_has_one_end_whatever_restarts(
    kind: str, requests: list[tuple[float, float, bool, float | None]], faults: list[float]
) -> None:
    ends: dict[int, str] = {}

    async def ask(pattern: Any, number: int) -> None:
        when, item, by_ref, leaves = requests[number]
        await trio.sleep(when)
        with trio.move_on_after(float("inf") if leaves is None else leaves):
            try:
                assert await (asked_by_ref if by_ref else asked)(pattern, item) == item
                ends[number] = "answered"
            except (Closed, ReplicaLost, ActorRestarted):
                assert faults
                ends[number] = "told"
            return
        ends[number] = "left"

    async def fail(bomb: ActorRef, when: float) -> None:
        await trio.sleep(when)
        bomb.tell(Explode())

    async with open_actor_system("test") as system:
        group = await system.spawn(Group, name="group", supervision=ALL)
        bomb = await system.spawn(Bomb, supervisor=group)
        async with PATTERNS[kind](parent=group, name="pattern") as pattern:
            async with trio.open_nursery() as nursery:
                for number in range(len(requests)):
                    nursery.start_soon(ask, pattern, number)
                for when in faults:
                    nursery.start_soon(fail, bomb, when)
            await trio.sleep(5)
            node = system.tree().children[0].children[1]
            assert (node.path, node.kind, node.depth) == ("/group/pattern", kind, 0)
            assert bool(node.restarts) >= bool(faults)
            assert await system.find("/group/pattern").ask(GetStatistics()) == (
                pattern.statistics()
            )
            assert await asked(pattern, 0.5) == 0.5
            assert await asked_by_ref(pattern, 0.5) == 0.5
        assert pattern.ref.stopped
    assert len(ends) == len(requests)


@pytest.mark.parametrize("kind", PATTERNS)
async def test_a_pattern_that_is_stopped_by_its_ref_is_closed(
    kind: str, autojump_clock: object
) -> None:
    async with open_actor_system("test") as system, PATTERNS[kind](system=system) as pattern:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                # Who has a slot of a fair share works in a task of its own, and goes on.
                with (
                    nullcontext() if kind == "FairServer" else pytest.raises((Closed, ReplicaLost))
                ):
                    await asked(pattern, 1)

            await trio.testing.wait_all_tasks_blocked()
            assert system.tree().children[0].depth == 1
            await pattern.ref.stop()
        with pytest.raises(Closed, match="its actor has ended"):
            await asked(pattern, 1)


@pytest.mark.parametrize("kind", PATTERNS)
async def test_a_name_wants_a_place(kind: str) -> None:
    with pytest.raises(ValueError, match="name must come with a place"):
        async with PATTERNS[kind](name="generate"):
            raise AssertionError("it must not begin")


async def test_replicas_are_below_their_pool_and_restart_alone_or_with_it(
    autojump_clock: object,
) -> None:
    broken = {"replica": trio.Event()}
    lives = []

    @asynccontextmanager
    async def replica() -> AsyncIterator[Callable[[float], Awaitable[float]]]:
        lives.append(1)

        async def fail() -> None:
            await broken["replica"].wait()
            raise KeyError("broken")

        async with PlainNursery() as nursery:
            nursery.start_soon(fail)
            yield work
            nursery.cancel_scope.cancel()

    factories: list[Factory] = [replica, lambda: nullcontext(work)]
    async with (
        open_actor_system("test") as system,
        open_replica_pool(
            factories,
            intensity=Intensity(restarts=1, within=60),
            system=system,
            name="pool",
        ) as pool,
    ):
        tree = system.tree().children[0]
        assert sorted((one.path, one.kind) for one in tree.children) == [
            ("/pool/replica-1", "Replica"),
            ("/pool/replica-2", "Replica"),
        ]
        assert await pool.add(lambda: nullcontext(work)) == "replica-3"
        with pytest.raises(ValueError, match="must be without '/'"):
            await pool.add(lambda: nullcontext(work), name="a/b")
        await pool.remove("replica-3")
        assert len(system.tree().children[0].children) == 2
        for restarts in (0, 1):
            broken["replica"].set()
            broken["replica"] = trio.Event()
            await trio.testing.wait_all_tasks_blocked()
            assert await pool(0.5) == 0.5  # by another replica, or in the pool's next life
            tree = system.tree().children[0]
            assert tree.restarts == restarts
            assert sorted(one.restarts for one in tree.children) == [0, 1 - restarts]
        assert len(lives) == 3
        assert [one.lives for one in pool.statistics().replicas] == [3, 2]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_the_present_version_is_opened_again(
    autojump_clock: object, idempotent: bool
) -> None:
    broken = {"version": trio.Event()}

    @asynccontextmanager
    async def version() -> AsyncIterator[Callable[[float], Awaitable[float]]]:
        async def fail() -> None:
            await broken["version"].wait()
            broken["version"] = trio.Event()
            raise KeyError("broken")

        await trio.sleep(1)
        async with PlainNursery() as nursery:
            nursery.start_soon(fail)
            yield work
            nursery.cancel_scope.cancel()

    async with (
        open_actor_system("test") as system,
        open_hot_swap(version, idempotent=idempotent, system=system, name="swap") as swap,
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def in_progress() -> None:
            if idempotent:
                assert await swap(5) == 5
                return
            with pytest.raises(ReplicaLost) as caught:
                await swap(5)
            assert isinstance(caught.value.__cause__, KeyError)

        @nursery.start_soon
        async def load() -> None:
            with pytest.raises(RolledBack, match="was started again"):
                await swap.load(lambda: nullcontext(work), canary=[0.5])

        await trio.testing.wait_all_tasks_blocked()
        broken["version"].set()
        await trio.testing.wait_all_tasks_blocked()
        assert await swap(1) == 1  # waits for the next life
        assert system.tree().children[0].restarts == 1
        assert swap.version == "v1"
        assert await swap.load(lambda: nullcontext(work), name="v2") == "v2"
        assert await swap.ref.ask(Call(1, {"key": "ann"})) == 1


async def test_a_run_of_a_pipeline_is_told_of_a_failure_and_waiting_items_are_not(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def numbers() -> AsyncIterator[float]:
        for number in range(5):
            yield number

    async with (
        open_actor_system("test") as system,
        open_pipeline(work, system=system) as pipeline,
        trio.open_nursery() as nursery,
    ):
        run = pipeline.run(numbers())
        assert await anext(run) == 0

        @nursery.start_soon
        async def waits() -> None:
            assert await pipeline(1) == 1

        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "_at", {}.pop)
            with pytest.raises(Closed, match="failed, and is started again") as caught:
                while True:
                    await anext(run)
        assert isinstance(caught.value.__cause__, KeyError | TypeError)
        with pytest.raises(StopAsyncIteration):
            await anext(run)
        with pytest.raises(Closed, match="is started again"):  # it is between two lives
            pipeline.run(numbers())
        await trio.sleep(1)
        assert [number async for number in pipeline.run(numbers())] == [*range(5)]
        assert system.tree().children[0].restarts


async def test_an_item_that_failed_and_waits_for_its_turn_has_one_end(
    autojump_clock: object,
) -> None:
    async def slow_or_bad(item: float) -> float:
        await trio.sleep(item)
        if item == 1:
            raise ValueError(item)
        return item

    async def numbers() -> AsyncIterator[float]:
        for number in (9, 1):
            yield number

    async with open_actor_system("test") as system:
        group = await system.spawn(Group, supervision=ALL)
        bomb = await system.spawn(Bomb, supervisor=group)
        async with open_pipeline(Stage(slow_or_bad, 2), parent=group) as pipeline:
            run = pipeline.run(numbers())
            await trio.sleep(2)
            bomb.tell(Explode())
            with pytest.raises(Closed):
                await anext(run)
            statistics = pipeline.statistics()
            assert (statistics.failed, statistics.refused, statistics.in_progress) == (1, 1, 0)
