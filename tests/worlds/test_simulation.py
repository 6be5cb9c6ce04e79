"""Worlds of simulated ranks, on a clock that jumps: every death is reported correctly."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import DeviceLost, WorldBroken

from ..harness import sized
from ..patterns.worlds import on_mock_clock, run
from .simulated import REBUILD, Simulation, Work, start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from atomr_accel.worlds._engine import Term


DEADLINE = 5.0
"""Deadline of simulated worlds, in seconds."""

SHORT = 2.0
"""Time that a lane may be busy with other work without a report, in seconds."""


async def busy(
    size: int,
    seed: int,
    deaths: Sequence[tuple[float, int, str]],
    sizes: Sequence[tuple[float, int, int]] = (),
    letters: Sequence[tuple[float, int, int, bool]] = (),
    leaving: float | None = None,
    restart: float | None = None,
    *,
    named: bool = False,
    **options: Any,
) -> None:
    """Ops go on, one after the other and side by side, while ranks die, leave and join.

    Args:
        size: how many ranks there are.
        seed: of chance.
        deaths: when, who, and how.
        sizes: when the world is resized: to the ranks from one on, and how many of them.
        letters: when, from whom, and to which of the others; and whether it is ``send``, or
            else ``recv``.
        leaving: when the world is left, whatever is under way. Otherwise that is at the end.
        restart: when the engine is stopped and runs again, unless the world was left before.
        named: whether every failure must name a rank.
        **options: of the world.
    """
    async with Simulation(size, seed, deadline=DEADLINE, **options) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        answers: dict[int, str] = {}
        told: list[WorldBroken] = []
        brought: list[int] = []
        waiting: dict[int, tuple[int, ...]] = {}
        may_die: Counter[int] = Counter()

        def numbers(term: Term) -> list[int]:
            return [engine._members[member].number for member in term.members]

        async def resize(after: float, first: int, count: int) -> None:
            await trio.sleep(after)
            first %= size
            with left_or_not():
                await engine.resize(ranks[first : first + count])

        @contextmanager
        def left_or_not() -> Iterator[None]:
            try:
                yield
            except WorldBroken:
                assert leaving is not None

        async def caller(first: int) -> None:
            for op in range(first, 20, 4):
                try:
                    term = await engine.whole()
                    values = {member: op * 1000 + member for member in term.members}
                    call = start(engine, term, op, values)
                    await call.wait()
                except WorldBroken as error:
                    told.append(error)
                    assert op not in answers
                    answers[op] = "broken"
                else:
                    assert op not in answers
                    answers[op] = "done"
                    expected = sum(values.values())
                    got = simulation.network.results[op]
                    assert got == dict.fromkeys(numbers(term), expected)

        async def bring(source: int, to: int, letter: Any, sent: Callable[[], object]) -> int:
            called_in = engine.members
            term = await engine.whole()
            engine.require("the op has not begun", called_in)
            values = {term.members[to]: 0, term.members[source]: letter}
            call = start(engine, term, 1000 + letter, values)
            sent()
            await call.wait()
            brought.append(letter)
            assert simulation.network.results[1000 + letter] == dict.fromkeys(
                {numbers(term)[source], numbers(term)[to]}, letter
            )
            return int(letter)

        async def post(number: int, after: float, source: int, to: int, sends: bool) -> None:
            await trio.sleep(after)
            waiting[number] = members = engine.members
            source %= len(members)
            to = (source + 1 + to % max(1, len(members) - 1)) % len(members)
            try:
                if sends:
                    await engine.mail.send(source, to, number)  # type: ignore[arg-type]
                else:
                    await engine.mail.receive(source, to, partial(bring, source, to))
            except WorldBroken as error:
                told.append(error)
            del waiting[number]

        async def kill(after: float, number: int, how: str) -> None:
            await trio.sleep(after)
            rank = ranks[number % size]
            if how == "busy":
                rank.stuck_until = max(rank.stuck_until, trio.current_time() + SHORT)
                return
            may_die[rank.number] += 1
            if how == "hang":
                rank.hung = True
            elif how == "stuck":
                rank.stuck_until = math.inf
            else:
                rank.die()

        epochs: list[int] = []

        async def watch() -> None:
            with engine.watch() as changes:
                async for epoch in changes:
                    epochs.append(epoch)  # noqa: PERF401 - it is cancelled in the end

        async def leave_in_the_midst(after: float) -> None:
            await trio.sleep(after)
            await simulation.leave()

        async def restart_in_the_midst(after: float) -> None:
            await trio.sleep(after)
            if leaving is None or after < leaving:
                await simulation.restart()

        await engine.whole()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number, letter in enumerate(letters):
                nursery.start_soon(post, number, *letter)
            async with trio.open_nursery() as inner:
                for first in range(4):
                    inner.start_soon(caller, first)
                for death in deaths:
                    inner.start_soon(kill, *death)
                for each in sizes:
                    inner.start_soon(resize, *each)
                if restart is not None:
                    inner.start_soon(restart_in_the_midst, restart)
                if leaving is not None:
                    inner.start_soon(leave_in_the_midst, leaving)
            assert sorted(answers) == list(range(20))
            again = 0
            while leaving is None:  # until who hangs has been found out
                term = await engine.whole()
                assert term.epoch == engine.membership.epoch
                try:
                    await start(engine, term, 99, dict.fromkeys(term.members, 1)).wait()
                except WorldBroken:
                    continue
                again = 1
                got = simulation.network.results[99]
                assert got == dict.fromkeys(numbers(term), len(term.members))
                break
            # What waits for its other end is what may still have one.
            assert leaving is not None or set(waiting.values()) <= {engine.members}
            await simulation.leave()
        assert not waiting
        assert epochs == sorted(set(epochs))
        assert all(error.epoch <= engine.membership.epoch for error in told)
        causes = {(error.epoch, id(error.__cause__)) for error in told if error.__cause__}
        assert len(causes) == len({epoch for epoch, _ in causes})  # one cause for an epoch
        if named:
            assert all(error.rank is not None for error in told)
        await trio.sleep(2 * DEADLINE)  # what is answered now is nobody's
        done = list(answers.values()).count("done") + len(brought) + again
        assert (engine.membership.in_flight, engine.membership.completed) == (0, done)
        for rank in ranks:
            assert rank.deaths <= may_die[rank.number]
            assert not rank.alive or not rank.joined


AFTER = st.floats(0, 0.3)
RANK = st.integers(0, 5)


@pytest.mark.slow
@settings(max_examples=sized(30, 400), deadline=None)
@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 1000),
    deaths=st.lists(
        st.tuples(AFTER, RANK, st.sampled_from(("fault", "fault", "hang", "stuck", "busy"))),
        max_size=6,
    ),
    sizes=st.lists(st.tuples(AFTER, RANK, st.integers(1, 6)), max_size=4),
    letters=st.lists(st.tuples(AFTER, RANK, RANK, st.booleans()), max_size=8),
    leaving=st.none() | AFTER,
    restart=st.none() | AFTER,
    shrink=st.booleans(),
    holds_back=st.booleans(),
)
def test_every_op_is_answered_once_and_right_whoever_dies_leaves_and_joins(
    size: int,
    deaths: list[tuple[float, int, str]],
    sizes: list[tuple[float, int, int]],
    shrink: bool,
    **others: Any,
) -> None:
    if shrink:  # so that somebody is left: the first rank, which is always in it
        deaths = [death for death in deaths if death[1] % size][: size - 1]
        sizes = [(after, 0, count) for after, _, count in sizes]
    run(partial(busy, size, deaths=deaths, sizes=sizes, shrink=shrink, **others))


@settings(max_examples=sized(20, 400), deadline=None)
@given(
    size=st.integers(1, 4),
    more=st.integers(0, 2),
    seed=st.integers(0, 1000),
    deaths=st.lists(st.tuples(AFTER, RANK), max_size=8),
    shrink=st.booleans(),
)
@pytest.mark.slow
@on_mock_clock
async def test_world_opens_and_is_resized_wherever_a_rank_dies_meanwhile(
    size: int, more: int, seed: int, deaths: list[tuple[float, int]], shrink: bool
) -> None:
    async with Simulation(size, seed, more=more, shrink=shrink, deadline=DEADLINE) as simulation:
        engine, ranks = simulation.engine, simulation.ranks

        async def kill(after: float, number: int) -> None:
            await trio.sleep(after)
            ranks[number % len(ranks)].die()

        async with trio.open_nursery() as nursery:
            for death in deaths:
                nursery.start_soon(kill, *death)
            await engine.whole()
            await engine.resize([*engine.present, *ranks[size:]])
        await trio.sleep(2 * REBUILD)
        term = await engine.whole()
        assert len(term.members) == size + more or shrink
        await start(engine, term, 1, dict.fromkeys(term.members, 1)).wait()
        assert [*simulation.network.results[1].values()] == [len(term.members)] * len(term.members)


@pytest.mark.parametrize("how", ["lost", "cancelled", "left", "over"])
@on_mock_clock
async def test_resize_whose_new_rank_does_not_start_changes_nothing(how: str) -> None:
    async with Simulation(2, more=2) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        scope = trio.CancelScope()
        told: list[Exception] = []
        ranks[3].stuck_starting = True

        async def resize() -> None:
            with scope:
                try:
                    await engine.resize(ranks)
                except (DeviceLost, WorldBroken) as error:
                    told.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resize)
            await trio.sleep(1)
            await start(engine, term, 1, dict.fromkeys(range(2), 1)).wait()  # it goes on
            if how == "lost":
                ranks[3].stuck_starting = False
                ranks[3].die(for_good=True)
            elif how == "cancelled":
                scope.cancel()
            elif how == "left":
                await simulation.leave()
            else:
                ranks[1].die(for_good=True)
        assert [type(error) for error in told] == {
            "lost": [DeviceLost],
            "cancelled": [],
            "left": [WorldBroken],
            "over": [WorldBroken],
        }[how]
        if how in ("lost", "cancelled"):
            assert await engine.whole() is term
            await start(engine, term, 2, dict.fromkeys(range(2), 1)).wait()


@pytest.mark.slow
@settings(max_examples=sized(15, 200), deadline=None)
@given(
    size=st.integers(2, 5),
    seed=st.integers(0, 1000),
    death=st.tuples(AFTER, RANK, st.sampled_from(("stuck", "hang"))),
    fault=st.lists(st.tuples(AFTER, RANK, st.just("fault")), max_size=1),
    holds_back=st.booleans(),
)
def test_one_rank_that_keeps_others_waiting_is_named(
    size: int,
    seed: int,
    death: tuple[float, int, str],
    fault: list[tuple[float, int, str]],
    holds_back: bool,
) -> None:
    run(partial(busy, size, seed, [death, *fault], holds_back=holds_back, named=True))


@pytest.mark.slow
def test_hundreds_of_ranks() -> None:
    deaths = [(0.01 * number, 37 * number, "fault") for number in range(4)]
    run(partial(busy, sized(120, 400), 1, deaths))


@on_mock_clock
async def test_a_world_waits_for_the_rank_that_died() -> None:
    async with Simulation(3) as simulation:
        engine = simulation.engine
        term = await engine.whole()
        call = start(engine, term, 1, dict.fromkeys(range(3), 1))
        simulation.ranks[1].die()
        with pytest.raises(WorldBroken, match="rank 1 of 3") as caught:
            await call.wait()
        assert (caught.value.rank, caught.value.epoch) == (1, 1)
        term = await engine.whole()
        assert (term.epoch, term.members) == (2, (0, 1, 2))


@on_mock_clock
async def test_a_world_goes_on_without_the_rank_that_died() -> None:
    async with Simulation(3, shrink=True) as simulation:
        engine = simulation.engine
        await engine.whole()
        simulation.ranks[0].die()
        await trio.testing.wait_all_tasks_blocked()
        term = await engine.whole()
        assert (term.epoch, term.members) == (2, (1, 2))
        await start(engine, term, 1, {1: 10, 2: 20}).wait()
        assert simulation.network.results[1] == {1: 30, 2: 30}


@pytest.mark.parametrize("shrink", [False, True])
@on_mock_clock
async def test_a_device_that_is_lost_for_good(shrink: bool) -> None:
    async with Simulation(2, shrink=shrink) as simulation:
        engine = simulation.engine
        await engine.whole()
        simulation.ranks[1].die(for_good=True)
        await trio.sleep(2)
        if shrink:
            assert (await engine.whole()).members == (0,)
        else:
            with pytest.raises(WorldBroken, match="is lost"):
                await engine.whole()


@on_mock_clock
async def test_a_rank_that_hangs_is_killed_at_the_deadline_and_named() -> None:
    async with Simulation(3, deadline=8.0) as simulation:
        engine = simulation.engine
        term = await engine.whole()
        simulation.ranks[2].hung = True
        begun = trio.current_time()
        call = start(engine, term, 1, dict.fromkeys(range(3), 1))
        with pytest.raises(WorldBroken, match="simulated:2 does not answer") as caught:
            await call.wait()
        assert caught.value.rank == 2
        assert 8 <= trio.current_time() - begun <= 11
        assert (await engine.whole()).epoch == 2
        assert [rank.deaths for rank in simulation.ranks] == [0, 0, 1]


@on_mock_clock
async def test_idle_rank_is_not_blamed() -> None:
    async with Simulation(3, deadline=8.0) as simulation:
        engine = simulation.engine
        term = await engine.whole()
        for op in range(3):
            await start(engine, term, op, {0: 1, 1: 1}).wait()
        simulation.ranks[1].stuck_until = math.inf
        call = start(engine, term, 9, dict.fromkeys(range(3), 1))
        with pytest.raises(WorldBroken, match="simulated:1 has not begun it") as caught:
            await call.wait()
        assert caught.value.rank == 1
        assert (await engine.whole()).epoch == 2
        assert [rank.deaths for rank in simulation.ranks] == [0, 1, 0]


@pytest.mark.parametrize("holds_back", [False, True])
@on_mock_clock
async def test_the_rank_that_others_wait_for_is_blamed_whichever_op_is_the_oldest(
    holds_back: bool,
) -> None:
    """Ops that have all begun may be unanswered only because a later op has not run."""
    async with Simulation(3, deadline=8.0, holds_back=holds_back) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        ranks[1].begins = 1
        first = start(engine, term, 1, dict.fromkeys(range(3), 1))
        start(engine, term, 2, {0: 1, 2: 1})
        last = start(engine, term, 3, dict.fromkeys(range(3), 1))
        with pytest.raises(WorldBroken, match="simulated:1 has not begun it") as caught:
            await last.wait()
        assert caught.value.rank == 1
        assert (first.broken is None) is not holds_back
        assert (await engine.whole()).epoch == 2
        assert [rank.deaths for rank in ranks] == [0, 1, 0]


@on_mock_clock
async def test_waiting_rank_is_not_blamed() -> None:
    async with Simulation(4, deadline=8.0) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        ranks[3].stuck_until = math.inf
        # 0 waits for 1, which is in an op with 2, which is in one with 3.
        start(engine, term, 1, {2: 1, 3: 1})
        start(engine, term, 2, {1: 1, 2: 1})
        call = start(engine, term, 3, {0: 1, 1: 1})
        with pytest.raises(WorldBroken, match="simulated:3") as caught:
            await call.wait()
        assert caught.value.rank == 3
        await engine.whole()
        assert [rank.deaths for rank in ranks] == [0, 0, 0, 1]


@on_mock_clock
async def test_a_rank_that_waits_in_another_world_is_not_blamed() -> None:
    async with Simulation(2, deadline=8.0) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        over = trio.Event()
        ranks[1].elsewhere.add(-1)
        ranks[1]._submit(Work(-1, True, over.wait, lambda _: None))
        call = start(engine, term, 1, dict.fromkeys(range(2), 1))
        with pytest.raises(WorldBroken, match="simulated:1 waits for a collective of") as caught:
            await call.wait()
        assert caught.value.rank is None
        over.set()
        await engine.whole()
        assert [rank.deaths for rank in ranks] == [0, 0]


@pytest.mark.parametrize("how", ["stuck", "hung"])
@on_mock_clock
async def test_rank_that_does_not_rejoin_is_killed_and_named(how: str) -> None:
    async with Simulation(3, deadline=8.0) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        if how == "stuck":
            ranks[1].stuck_until = math.inf
        else:
            ranks[1].hung = True
        start(engine, term, 1, dict.fromkeys(range(3), 1))
        await trio.sleep(1)
        ranks[2].die()
        await trio.testing.wait_all_tasks_blocked()
        term = await engine.whole()
        assert (term.epoch, term.members) == (3, (0, 1, 2))
        broken = engine.membership.broken
        assert broken is not None
        assert (broken.epoch, broken.rank) == (2, 1)
        assert [rank.deaths for rank in ranks] == [0, 1, 1]


@on_mock_clock
async def test_a_rank_that_cannot_be_killed_is_named_as_the_world_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Simulation(3, deadline=8.0) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        monkeypatch.setattr(ranks[1], "kill", lambda *_: None)
        ranks[1].stuck_until = math.inf
        with pytest.raises(WorldBroken, match="rank 1 of 3 failed in epoch 1"):
            await start(engine, term, 1, dict.fromkeys(range(3), 1)).wait()
        with pytest.raises(WorldBroken, match="simulated:1 has not begun it") as caught:
            await engine.whole()
        assert (caught.value.rank, caught.value.epoch) == (1, 4)  # after three attempts


@on_mock_clock
async def test_a_world_whose_ranks_are_all_stuck_comes_back() -> None:
    async with Simulation(2, deadline=8.0) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        for rank in ranks:
            rank.stuck_until = math.inf
        with pytest.raises(WorldBroken) as caught:
            await start(engine, term, 1, dict.fromkeys(range(2), 1)).wait()
        assert caught.value.rank is None  # what they do may end
        await engine.whole()
        assert [rank.deaths for rank in ranks] == [1, 1]


@on_mock_clock
async def test_late_answer_after_leaving_is_ignored() -> None:
    for seed in range(30):
        async with Simulation(2, seed) as simulation:
            engine = simulation.engine
            term = await engine.whole()
            call = start(engine, term, 1, dict.fromkeys(range(2), 1))
            await trio.sleep(seed / 1000)
            await simulation.leave()
            if call.broken is not None:
                with pytest.raises(WorldBroken, match="all_reduce was not done: the world was"):
                    await call.wait()
            await trio.sleep(1)
            assert engine.membership.in_flight == 0
            assert engine.membership.completed == (call.broken is None)
            with engine.watch() as epochs, pytest.raises(trio.EndOfChannel):
                await epochs.receive()


@on_mock_clock
async def test_hanging_rank_is_killed_at_the_deadline_of_leaving() -> None:
    async with Simulation(2, deadline=8.0) as simulation:
        await simulation.engine.whole()
        simulation.ranks[1].hung = True
        begun = trio.current_time()
        await simulation.leave()
        assert trio.current_time() - begun == pytest.approx(8)
        await trio.sleep(1)
        assert [rank.deaths for rank in simulation.ranks] == [0, 1]
        assert simulation.ranks[0].joined == set()


@pytest.mark.parametrize("how", ["over", "left", "shrunk", "resized"])
@on_mock_clock
async def test_waiting_rank_learns_that_the_other_end_is_gone(how: str) -> None:
    async with Simulation(3, shrink=how == "shrunk") as simulation:
        engine, mail = simulation.engine, simulation.engine.mail
        await engine.whole()
        told: list[WorldBroken] = []
        nobody: Any = None

        async def wait(function: Callable[..., Awaitable[object]], *args: object) -> None:
            with pytest.raises(WorldBroken, match=r"was not|nothing was") as caught:
                await function(*args)
            told.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, mail.receive, 2, 1, nobody)
            nursery.start_soon(wait, mail.receive, 0, 1, nobody)
            nursery.start_soon(wait, mail.send, 0, 2, nobody)
            await trio.testing.wait_all_tasks_blocked()
            if how == "left":
                await simulation.leave()
            elif how == "resized":
                await engine.resize(simulation.ranks[:2])
            else:
                simulation.ranks[2].die(for_good=True)
        assert len(told) == 3
        if how in ("over", "left"):
            await wait(mail.send, 0, 1, nobody)
            await wait(mail.receive, 0, 1, nobody)
        else:
            assert {error.rank for error in told} == {2 if how == "shrunk" else None}
            assert (await engine.whole()).members == (0, 1)


@on_mock_clock
async def test_sent_message_is_received_in_the_next_epoch() -> None:
    async with Simulation(2) as simulation:
        engine = simulation.engine
        await engine.whole()
        letter: Any = "a buffer"
        got: list[object] = []

        async def bring(ref: object, sent: Callable[[], object]) -> None:
            await engine.whole()
            sent()
            got.append(ref)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.mail.send, 0, 1, letter)
            await trio.testing.wait_all_tasks_blocked()
            simulation.ranks[1].die()
            await engine.mail.receive(0, 1, bring)
        assert (got, engine.membership.epoch) == ([letter], 2)


@on_mock_clock
async def test_a_world_is_resized_when_no_op_is_in_flight() -> None:
    async with Simulation(4) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        term = await engine.whole()
        call = start(engine, term, 1, dict.fromkeys(range(4), 1))
        done: list[str] = []

        async def later() -> None:
            term = await engine.whole()
            done.append(f"epoch {term.epoch}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.resize, ranks[2:])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(later)
            await call.wait()
            assert call.broken is None
            assert done == []
        assert done == ["epoch 2"]
        term = await engine.whole()
        assert (term.epoch, term.members) == (2, (2, 3))
        assert engine.membership.breaks == 0
        ranks[0].die()  # which is nothing to it any more
        await engine.resize([ranks[3], *ranks[:2]])
        term = await engine.whole()
        assert (term.epoch, term.members) == (3, (3, 4, 5))
        assert set(engine._followers) == {3, 4, 5}
        await start(engine, term, 2, {3: 1, 4: 2, 5: 4}).wait()
        assert simulation.network.results[2] == {3: 7, 0: 7, 1: 7}


@on_mock_clock
async def test_resize_cancelled_before_its_ops_are_done_changes_nothing() -> None:
    async with Simulation(2) as simulation:
        engine = simulation.engine
        term = await engine.whole()
        simulation.ranks[1].stuck_until = math.inf
        start(engine, term, 1, dict.fromkeys(range(2), 1))
        with trio.move_on_after(1):
            await engine.resize(simulation.ranks[:1])
        assert (await engine.whole()) is term


@on_mock_clock
async def test_a_caller_that_is_cancelled_leaves_and_the_op_goes_on() -> None:
    async with Simulation(3) as simulation:
        engine = simulation.engine
        term = await engine.whole()
        with trio.move_on_after(0):
            await start(engine, term, 1, dict.fromkeys(range(3), 1)).wait()
        await start(engine, term, 2, dict.fromkeys(range(3), 2)).wait()
        await trio.sleep(1)
        assert simulation.network.results[1] == dict.fromkeys(range(3), 3)
