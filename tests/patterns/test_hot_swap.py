"""Hot swaps: one version answers each request, and a bad one does not take over."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.actors import NameTaken
from atomr_accel.patterns import (
    Closed,
    Gate,
    HotSwap,
    ReplicaLost,
    RolledBack,
    Shadow,
    SwapInProgress,
    SwapState,
    VersionRole,
    open_hot_swap,
)

from ..harness import on_mock_clock, refused
from .worlds import poisoned


class Bad(Exception):
    """Raised by a version for an item."""


class Model:
    """A version that notes what happens to it."""

    def __init__(self, name: str, seconds: float = 1.0, *, opening: float = 0.0) -> None:
        self.name = name
        self.seconds = seconds
        self.opening = opening
        self.calls: list[Any] = []
        self.busy = 0
        self.open = False
        self.fails: Exception | None = None
        self.fails_to_open: Exception | None = None
        self.fails_to_close: Exception | None = None
        self.death = trio.Event()

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[Callable[[Any], Awaitable[tuple[str, Any]]]]:
        await trio.sleep(self.opening)
        if self.fails_to_open is not None:
            raise self.fails_to_open
        self.open = True

        async def die() -> None:
            await self.death.wait()
            raise Bad("died")

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(die)
                yield self.work
                nursery.cancel_scope.cancel()
        finally:
            assert not self.busy
            self.open = False
        if self.fails_to_close is not None:
            raise self.fails_to_close

    async def work(self, item: Any) -> tuple[str, Any]:
        assert self.open
        self.calls.append(item)
        self.busy += 1
        try:
            await trio.sleep(self.seconds)
            if self.fails is not None:
                raise self.fails
            return (self.name, item)
        finally:
            self.busy -= 1


def agree(item: Any, one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    return bool(one[1] == other[1] == item)


@asynccontextmanager
async def asking(swap: HotSwap[Any, Any], answers: list[Any]) -> AsyncIterator[None]:
    """Ask again and again while the block runs."""

    async def ask(client: int) -> None:
        for number in range(10_000):
            answer = await swap.ask((client, number), key=f"client-{client}")
            answers.append(answer)

    async with trio.open_nursery() as nursery:
        for client in range(20):
            nursery.start_soon(ask, client)
        yield
        nursery.cancel_scope.cancel()


@contextmanager
def rolled_back(match: str) -> Iterator[None]:
    with pytest.raises(RolledBack, match=match) as info:
        yield
    assert info.value.version == "v2"


async def test_one_version(autojump_clock: trio.testing.MockClock) -> None:
    model = Model("a")
    async with open_hot_swap(model.factory, rng=random.Random(1)) as swap:
        assert await swap(1) == ("a", 1)
        assert swap.version == "v1"
        assert swap.state is SwapState.SERVING
    assert not model.open
    with pytest.raises(Closed):
        await swap(2)
    with pytest.raises(Closed):
        await swap.load(model.factory)


async def test_another_takes_over(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old", 10), Model("new", opening=3)
    async with (
        open_hot_swap(old.factory, rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):
        got = []

        async def ask(item: int) -> None:
            got.append(await swap(item))

        nursery.start_soon(ask, 1)
        nursery.start_soon(swap.load, new.factory)
        await trio.sleep(2)
        assert swap.statistics().state is SwapState.LOADING
        await trio.sleep(2)
        assert swap.statistics().state is SwapState.DRAINING
        assert swap.version == "v2"
        assert [each.role for each in swap.statistics().versions] == [
            VersionRole.LEAVING,
            VersionRole.PRESENT,
        ]
        nursery.start_soon(ask, 2)
        await trio.sleep(7)
        assert swap.state is SwapState.SERVING
        assert not old.open
    assert got == [("new", 2), ("old", 1)]


async def test_a_version_that_does_not_open_changes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    old, new = Model("old"), Model("new")
    new.fails_to_open = Bad("cannot")
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap:
        with pytest.raises(Bad, match="cannot"):
            await swap.load(new.factory)
        assert await swap(1) == ("old", 1)
        new.fails_to_open, new.fails = None, Bad("cold")
        with pytest.raises(Bad, match=r"^cold$"):
            await swap.load(new.factory, warm_up=[1])
        assert await swap(1) == ("old", 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not new.open
        assert swap.statistics().rolled_back == 2
        new.fails = None
        assert await swap.load(new.factory, warm_up=[1, 2], name="again") == "again"
        assert await swap(1) == ("new", 1)
    assert new.calls == [1, 1, 2, 1]


@pytest.mark.parametrize("how", ["warm_up", "cancelled", "rolled back", "promoted"])
async def test_a_version_that_is_closed_slowly_is_waited_for(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    old, new, last = Model("old"), Model("new"), Model("last")
    closed: list[Model] = []

    def slow(model: Model) -> Callable[[], Any]:
        @asynccontextmanager
        async def factory() -> AsyncIterator[Any]:
            async with model.factory() as work:
                yield work
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            closed.append(model)

        return factory

    async with (
        open_hot_swap(slow(old), rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):

        async def load() -> None:
            with rolled_back("a bad feeling"):
                await swap.load(slow(new), canary=[0.5])

        if how == "warm_up":
            new.fails = Bad("cold")
            with pytest.raises(Bad, match=r"^cold$"):
                await swap.load(slow(new), warm_up=[1])
            assert closed == [new]
        elif how == "rolled back":
            nursery.start_soon(load)
            await trio.sleep(1)
            swap.rollback("a bad feeling")
            await trio.sleep(1)
        else:
            with trio.move_on_after(1):
                await swap.load(slow(new), canary=[] if how == "promoted" else [0.5])
        assert await swap.load(last.factory, name="last") == "last"
        assert closed == ([old, new] if how == "promoted" else [new, old])
        assert await swap(1) == ("last", 1)


async def test_through_all_steps(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new", opening=1)
    answers: list[Any] = []
    states: list[tuple[SwapState, float]] = []
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap:

        async def watch() -> None:
            await trio.sleep(0.25)  # whatever happens here does so at whole seconds
            while True:
                await trio.sleep(0.5)
                statistics = swap.statistics()
                if not states or states[-1] != (statistics.state, statistics.share):
                    states.append((statistics.state, statistics.share))

        async with asking(swap, answers), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(3)
            await swap.load(
                new.factory,
                warm_up=["warm"],
                shadow=Shadow(agree, share=0.5),
                canary=[0.2, 0.5],
                gate=Gate(minimum=30),
            )
            taken_over = len(answers)
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        (version,) = swap.statistics().versions
    assert states == [
        (SwapState.SERVING, 0),
        (SwapState.LOADING, 0),
        (SwapState.WARMING_UP, 0),
        (SwapState.SHADOWING, 0),
        (SwapState.CANARY, 0.2),
        (SwapState.CANARY, 0.5),
        (SwapState.DRAINING, 0),
        (SwapState.SERVING, 0),
    ]
    assert version.copies >= 30
    assert version.compared >= 30
    assert version.mismatches == 0
    assert {name for name, _ in answers[taken_over + 20 :]} == {"new"}
    # No client goes back and forth.
    for client in range(20):
        names = [name for name, (who, _) in answers if who == client]
        assert names == sorted(names, reverse=True)


async def test_a_gate_that_fails_on_errors(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    new.fails = Bad("no")
    answers: list[Any] = []
    async with (
        open_hot_swap(old.factory, rng=random.Random(1), idempotent=True) as swap,
        asking(swap, answers),
    ):
        with rolled_back("of .* requests failed"):
            await swap.load(new.factory, canary=[0.5], gate=Gate(minimum=20))
        assert not new.open
        await trio.sleep(3)
        statistics = swap.statistics()
        assert statistics.failed == 0  # the present version has answered instead
        assert statistics.asked_again == len(new.calls)
    assert {name for name, _ in answers} == {"old"}


async def test_a_gate_that_fails_on_latency(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new", 2)
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap, asking(swap, []):
        with rolled_back("answers take 2 s and those of the present version 1 s"):
            await swap.load(new.factory, canary=[0.5], gate=Gate(minimum=20))
        await swap.load(new.factory, canary=[0.5], gate=Gate(minimum=20, latency_ratio=2))


async def test_each_step_has_outcomes_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap, asking(swap, []):
        await swap.load(new.factory, canary=[0.4, 0.5, 0.6], gate=Gate(minimum=30))
        assert len(new.calls) >= 90


async def test_a_gate_that_fails_on_answers(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap, asking(swap, []):
        with rolled_back("answers differ"):
            await swap.load(new.factory, shadow=Shadow(lambda item, a, b: a == b))
        with pytest.raises(Bad, match="compare"):
            await swap.load(new.factory, shadow=Shadow(compare_badly))
        await trio.sleep(5)
        assert swap.state is SwapState.SERVING


def compare_badly(item: Any, one: Any, other: Any) -> bool:
    raise Bad("compare")


async def test_shadows_do_not_answer_and_are_bounded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    old, new = Model("old"), Model("new", 100)
    answers: list[Any] = []
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap, asking(swap, answers):
        with trio.move_on_after(20):
            await swap.load(new.factory, shadow=Shadow(agree, max_in_flight=4))
        assert len(new.calls) == 4
        await trio.testing.wait_all_tasks_blocked()
        assert not new.open
        assert swap.state is SwapState.SERVING
    assert {name for name, _ in answers} == {"old"}


async def test_by_call(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    async with (
        open_hot_swap(old.factory, rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):
        with pytest.raises(RuntimeError, match="no version is being rolled out"):
            swap.rollback()

        async def load() -> None:
            with rolled_back("did not take over: a bad feeling"):
                await swap.load(new.factory, canary=[0.1])

        nursery.start_soon(load)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SwapInProgress):
            await swap.load(new.factory)
        swap.rollback("a bad feeling")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NameTaken):
            await swap.load(new.factory, name="v1")
        nursery.start_soon(swap.load, new.factory)
        await trio.testing.wait_all_tasks_blocked()
        assert await swap(1) == ("new", 1)
        nursery.start_soon(lambda: swap.load(old.factory, canary=[0.1, 0.2]))
        await trio.testing.wait_all_tasks_blocked()
        assert swap.state is SwapState.CANARY
        swap.promote()
        await trio.testing.wait_all_tasks_blocked()
        assert await swap(1) == ("old", 1)


async def test_calls_from_another_thread_change_nothing() -> None:
    old, new = Model("old", 0), Model("new", 0)
    async with (
        open_hot_swap(old.factory, rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):

        async def load() -> None:
            with rolled_back("did not take over: a bad feeling"):
                await swap.load(new.factory, canary=[0.1])

        def work() -> None:
            with pytest.raises(RuntimeError, match=r"run_sync\(swap.promote\)"):
                swap.promote()
            with pytest.raises(RuntimeError, match=r"run_sync\(swap.rollback\)"):
                swap.rollback("another one")
            assert swap.state is SwapState.CANARY
            trio.from_thread.run_sync(swap.rollback, "a bad feeling")

        nursery.start_soon(load)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(work)
    assert swap.version == "v1"


async def test_a_candidate_that_ends_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new", 5)
    async with open_hot_swap(old.factory, rng=random.Random(3)) as swap:
        async with trio.open_nursery() as nursery:
            errors = []

            async def ask() -> None:
                try:
                    assert await swap(1) == ("old", 1)
                except ReplicaLost as error:
                    errors.append(error)

            async def load() -> None:
                with rolled_back("it has ended by itself"):
                    await swap.load(new.factory, canary=[0.5])

            nursery.start_soon(load)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(10):
                nursery.start_soon(ask)
            await trio.sleep(0.5)
            new.death.set()
        assert len(errors) == len(new.calls) > 0
        assert await swap(1) == ("old", 1)

        new.death = trio.Event()
        async with trio.open_nursery() as nursery:

            async def warm_up() -> None:
                with rolled_back("it has ended by itself"):
                    await swap.load(new.factory, warm_up=[1, 2, 3], name="v2")

            nursery.start_soon(warm_up)
            await trio.sleep(7)
            new.death.set()
        assert await swap(1) == ("old", 1)


async def test_faults_of_a_candidate_reach_nobody(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    new.fails = poisoned()
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap, asking(swap, []):
        with rolled_back("requests failed"):
            await swap.load(new.factory, canary=[0.5], gate=Gate(minimum=10))
        assert swap.statistics().asked_again > 0


async def test_the_present_version_ends_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    model = Model("a")
    with pytest.RaisesGroup(Bad):
        async with open_hot_swap(model.factory, rng=random.Random(1)):
            model.death.set()
            await trio.sleep_forever()


async def test_a_version_that_fails_to_close(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Model("old"), Model("new")
    old.fails_to_close = Bad("stuck")
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap:
        assert await swap.load(new.factory) == "v2"
        assert "version 'v1' has failed as it was closed" in caplog.text
        assert await swap(1) == ("new", 1)


async def test_cancelled_load_loads_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    old, new = Model("old"), Model("new", 5, opening=1)
    async with open_hot_swap(old.factory, rng=random.Random(1)) as swap:
        for seconds in (0.5, 3, 20):
            with trio.move_on_after(seconds):
                await swap.load(new.factory, warm_up=[1], canary=[0.5])
            await trio.sleep(10)
            assert not new.open
            assert swap.version == "v1"
            assert swap.state is SwapState.SERVING


async def test_leaving_the_block_ends_a_roll_out(autojump_clock: trio.testing.MockClock) -> None:
    old, new = Model("old"), Model("new")
    async with trio.open_nursery() as nursery:
        async with open_hot_swap(old.factory, rng=random.Random(1)) as swap:

            async def load() -> None:
                with pytest.raises(Closed):
                    await swap.load(new.factory, canary=[0.5])

            nursery.start_soon(load)
            await trio.testing.wait_all_tasks_blocked()
        assert not new.open


@pytest.mark.parametrize("canary", [[0], [1], [0.5, 0.1], [2]])
async def test_shares_are_checked(canary: list[float]) -> None:
    model = Model("a")
    async with open_hot_swap(model.factory, rng=random.Random(1)) as swap:
        with pytest.raises(
            ValueError, match=r"canary must be (more than 0 and below 1|shares that grow), not"
        ):
            await swap.load(model.factory, canary=canary)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    idempotent=st.booleans(),
    errors=st.sampled_from([0, 0, 0.2]),
    ends=st.sampled_from(["drained", "cancelled"]),
)
@on_mock_clock
async def test_no_request_is_lost_or_mixed(
    seed: int, idempotent: bool, errors: float, ends: str
) -> None:
    rng = random.Random(seed)
    outcomes: dict[int, str] = {}
    opened: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    starts: Counter[int] = Counter()
    deaths: list[trio.Event] = []

    def version(name: str) -> Any:
        @asynccontextmanager
        async def factory() -> AsyncIterator[Any]:
            await trio.sleep(rng.choice([0, 1]))
            if name != "v1" and rng.random() < 0.2:
                raise Bad("cannot open")
            opened[name] += 1
            death = trio.Event()

            async def work(item: int) -> tuple[int, str]:
                assert opened[name]
                busy[name] += 1
                starts[item] += item >= 0
                try:
                    await trio.sleep(rng.choice([0, 0.5, 1, 3]))
                    if name != "v1" and rng.random() < errors:
                        raise Bad(item)
                    return (item, name)
                finally:
                    busy[name] -= 1

            async def die() -> None:
                await death.wait()
                raise Bad("died")

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(die)
                    if name != "v1":
                        deaths.append(death)
                    yield work
                    nursery.cancel_scope.cancel()
            finally:
                assert not busy[name]
                opened[name] -= 1

        return factory

    async def caller(swap: HotSwap[int, Any], item: int) -> None:
        await trio.sleep(rng.uniform(0, 20))
        with trio.move_on_after(rng.choice([math.inf, math.inf, 0.7])):
            try:
                got, _ = await swap.ask(item, key=rng.choice([None, "a", "b"]))
                outcomes[item] = "answered" if got == item else "another's"
            except Bad as error:
                outcomes[item] = "failed" if error.args == (item,) else "another's"
            except ReplicaLost:
                outcomes[item] = "lost"
                assert not idempotent
            except Closed:
                outcomes[item] = "closed"
                assert ends == "cancelled"
            return
        outcomes[item] = "left"

    async def roll_out(swap: HotSwap[int, Any]) -> None:
        number = 1
        while True:
            number += 1
            before = swap.version
            with trio.move_on_after(rng.choice([math.inf, 2, 8])) as scope:
                try:
                    await swap.load(
                        version(f"v{number}"),
                        name=f"v{number}",
                        warm_up=[-1] * rng.randrange(3),
                        shadow=rng.choice(
                            [None, Shadow(lambda item, a, b: a[0] == b[0] == item, share=0.5)]
                        ),
                        canary=rng.choice([[], [0.5], [0.1, 0.9]]),
                        gate=Gate(minimum=rng.choice([1, 5]), latency_ratio=3, error_margin=0.1),
                    )
                    assert swap.version == f"v{number}"
                except (Bad, RolledBack):
                    assert swap.version == before
                except SwapInProgress:
                    await trio.sleep(1)
            if scope.cancelled_caught:
                assert swap.version in {before, f"v{number}"}

    async def disturb(swap: HotSwap[int, Any]) -> None:
        while True:
            await trio.sleep(rng.uniform(0, 6))
            if swap._roll_out is not None:
                match rng.randrange(3):
                    case 0:
                        swap.rollback()
                    case 1:
                        swap.promote()
                    case 2 if deaths and len(swap._versions) == 2 and swap.version == "v1":
                        deaths[-1].set()

    async with trio.open_nursery() as outer:
        with trio.CancelScope() as scope:
            async with open_hot_swap(version("v1"), idempotent=idempotent, rng=rng) as swap:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(roll_out, swap)
                    nursery.start_soon(disturb, swap)
                    for item in range(50):
                        outer.start_soon(caller, swap, item)
                    await trio.sleep(25 if ends == "drained" else rng.uniform(0, 20))
                    nursery.cancel_scope.cancel()
                if ends == "cancelled":
                    scope.cancel()
        assert not opened.total()
        assert not busy.total()
        assert not swap._versions
        statistics = swap.statistics()
        assert statistics.running == 0
    told = Counter(outcomes.values())
    assert set(outcomes) == {*range(50)}
    assert not told["another's"]
    assert statistics.answered == told["answered"]
    assert statistics.failed == told["failed"] + told["lost"]
    assert statistics.submitted >= told.total() - told["closed"]


@pytest.mark.parametrize("loading", [False, True])
async def test_a_key_is_text_or_bytes_also_while_nothing_is_loaded(
    autojump_clock: trio.testing.MockClock, loading: bool
) -> None:
    old, new = Model("old"), Model("new")
    async with open_hot_swap(old.factory) as swap, trio.open_nursery() as nursery:
        if loading:
            nursery.start_soon(lambda: swap.load(new.factory, canary=[0.5]))
            await trio.sleep(1)
        for wrong in (5, 1.5, ["user"]):
            with pytest.raises(TypeError, match="key must be a str or bytes, not"):
                await swap.ask(1, key=wrong)  # type: ignore[arg-type]
        for key in ("user", b"user", "\udce9"):
            await swap.ask(1, key=key)
        nursery.cancel_scope.cancel()
    assert len(old.calls) + len(new.calls) == 3


async def test_options_are_checked() -> None:
    model = Model("a")
    wrong: Any
    for wrong in ({"version": 3}, {"idempotent": "yes"}, {"rng": "a"}):
        await refused(
            TypeError, f"{next(iter(wrong))} must be", open_hot_swap, model.factory, **wrong
        )
    await refused(ValueError, "version must be", open_hot_swap, model.factory, version="")
    async with open_hot_swap(model.factory) as swap:
        for wrong in ({"canary": 0.5}, {"name": 3}, {"warm_up": 3}):
            with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
                await swap.load(model.factory, **wrong)
