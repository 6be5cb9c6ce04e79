"""Worlds of simulated ranks, on a clock that jumps: whoever dies, everybody is told right."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import WorldBroken

from ..harness import sized
from .simulated import Simulation, start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from atomr_accel.worlds._engine import Term

LONG = 300


def run(function: Callable[[], Awaitable[None]]) -> None:
    """Run on a clock that jumps when all wait."""

    async def main() -> None:
        with trio.fail_after(LONG):
            await function()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def busy(
    size: int,
    seed: int,
    deaths: list[tuple[float, int, str]],
    sizes: Sequence[tuple[float, int, int]] = (),
    **options: Any,
) -> None:
    """Ops go on, one after the other and side by side, while ranks die, leave and join.

    Args:
        size: how many ranks there are.
        seed: of chance.
        deaths: when, who, and how.
        sizes: when the world is resized: to the ranks from one on, and how many of them.
        **options: of the world.
    """
    async with Simulation(size, seed, deadline=5.0, **options) as simulation:
        engine, ranks = simulation.engine, simulation.ranks
        answers: dict[int, str] = {}
        told: list[WorldBroken] = []

        def numbers(term: Term) -> list[int]:
            return [engine._members[member].number for member in term.members]

        async def resize(after: float, first: int, count: int) -> None:
            await trio.sleep(after)
            first %= size
            await engine.resize(ranks[first : first + count])

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

        async def kill(after: float, rank: int, how: str) -> None:
            await trio.sleep(after)
            if how == "hang":
                ranks[rank % size].hung = True
            else:
                ranks[rank % size].die()

        epochs: list[int] = []

        async def watch() -> None:
            with engine.watch() as changes:
                async for epoch in changes:
                    epochs.append(epoch)  # noqa: PERF401 - it is cancelled in the end

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as inner:
                for first in range(4):
                    inner.start_soon(caller, first)
                for death in deaths:
                    inner.start_soon(kill, *death)
                for each in sizes:
                    inner.start_soon(resize, *each)
            nursery.cancel_scope.cancel()
        assert sorted(answers) == list(range(20))
        assert epochs == sorted(set(epochs))
        assert all(error.epoch <= engine.membership.epoch for error in told)
        causes = {(error.epoch, id(error.__cause__)) for error in told}
        assert len(causes) == len({epoch for epoch, _ in causes})  # one cause for an epoch
        while True:  # until who hangs has been found out
            term = await engine.whole()
            assert term.epoch == engine.membership.epoch
            assert engine.membership.in_flight == 0
            try:
                await start(engine, term, 99, dict.fromkeys(term.members, 1)).wait()
            except WorldBroken:
                continue
            got = simulation.network.results[99]
            assert got == dict.fromkeys(numbers(term), len(term.members))
            return


@pytest.mark.slow
@settings(max_examples=sized(20, 300), deadline=None)
@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 1000),
    deaths=st.lists(
        st.tuples(
            st.floats(0, 0.3), st.integers(0, 5), st.sampled_from(("fault", "fault", "hang"))
        ),
        max_size=6,
    ),
    sizes=st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 5), st.integers(1, 6)), max_size=4),
    shrink=st.booleans(),
    shrinking=st.sampled_from(("never", "works", "fails", "hangs", "unknown")),
)
def test_every_op_is_answered_once_and_right_whoever_dies_leaves_and_joins(
    size: int,
    seed: int,
    deaths: list[tuple[float, int, str]],
    sizes: list[tuple[float, int, int]],
    shrink: bool,
    shrinking: str,
) -> None:
    if shrink:  # so that somebody is left: the first rank, which is always in it
        deaths = [death for death in deaths if death[1] % size][: size - 1]
        sizes = [(after, 0, count) for after, _, count in sizes]
    run(functools.partial(busy, size, seed, deaths, sizes, shrink=shrink, shrinking=shrinking))


@pytest.mark.slow
def test_hundreds_of_ranks() -> None:
    deaths = [(0.01 * number, 37 * number, "fault") for number in range(4)]
    run(functools.partial(busy, sized(120, 400), 1, deaths))


def test_a_world_waits_for_the_rank_that_died() -> None:
    async def program() -> None:
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

    run(program)


def test_a_world_goes_on_without_the_rank_that_died() -> None:
    async def program() -> None:
        async with Simulation(3, shrink=True) as simulation:
            engine = simulation.engine
            await engine.whole()
            simulation.ranks[0].die()
            await trio.testing.wait_all_tasks_blocked()
            term = await engine.whole()
            assert (term.epoch, term.members) == (2, (1, 2))
            await start(engine, term, 1, {1: 10, 2: 20}).wait()
            assert simulation.network.results[1] == {1: 30, 2: 30}

    run(program)


@pytest.mark.parametrize("shrinking", ["works", "fails", "hangs", "unknown"])
def test_what_is_left_of_a_communicator_is_the_next_one_where_that_works(shrinking: str) -> None:
    works = shrinking == "works"

    async def program() -> None:
        async with Simulation(4, shrinking=shrinking, shrink=True) as simulation:
            engine, network = simulation.engine, simulation.network
            term = await engine.whole()
            call = start(engine, term, 1, dict.fromkeys(range(4), 1))
            simulation.ranks[2].die()
            with pytest.raises(WorldBroken, match="rank 2 of 4"):
                await call.wait()
            term = await engine.whole()
            # Where it fails, those ranks have met anew in another epoch.
            failed = shrinking in ("fails", "hangs")
            assert (term.epoch, term.members) == (3 if failed else 2, (0, 1, 3))
            await start(engine, term, 2, dict.fromkeys(term.members, 1)).wait()
            await trio.sleep(1)
            for member in term.members:  # and nobody is in any other
                assert simulation.ranks[member].joined == {term.number}
            asked = network.shrunk
            assert asked <= 3
            simulation.ranks[0].die()
            await trio.sleep(1)
            term = await engine.whole()
            assert term.members == (1, 3)
            assert network.shrunk == asked + 2 * works  # no second attempt at what has failed
            await start(engine, term, 3, dict.fromkeys(term.members, 1)).wait()
            assert network.results[3] == {1: 2, 3: 2}

    run(program)


@pytest.mark.parametrize("shrink", [False, True])
def test_a_device_that_is_lost_for_good(shrink: bool) -> None:
    async def program() -> None:
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

    run(program)


def test_a_rank_that_hangs_is_killed_at_the_deadline_and_named() -> None:
    async def program() -> None:
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

    run(program)


def test_who_takes_no_part_is_not_blamed() -> None:
    async def program() -> None:
        async with Simulation(3, deadline=8.0) as simulation:
            engine = simulation.engine
            term = await engine.whole()
            for op in range(3):
                await start(engine, term, op, {0: 1, 1: 1}).wait()
            simulation.ranks[1].stuck = True
            call = start(engine, term, 9, dict.fromkeys(range(3), 1))
            with pytest.raises(WorldBroken, match="simulated:1 has not begun it") as caught:
                await call.wait()
            assert caught.value.rank == 1
            assert (await engine.whole()).epoch == 2
            assert [rank.deaths for rank in simulation.ranks] == [0, 1, 0]

    run(program)


def test_a_world_is_resized_when_no_op_is_in_flight() -> None:
    async def program() -> None:
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

    run(program)


def test_who_is_cancelled_before_ops_are_done_has_resized_nothing() -> None:
    async def program() -> None:
        async with Simulation(2) as simulation:
            engine = simulation.engine
            term = await engine.whole()
            simulation.ranks[1].stuck = True
            start(engine, term, 1, dict.fromkeys(range(2), 1))
            with trio.move_on_after(1):
                await engine.resize(simulation.ranks[:1])
            assert (await engine.whole()) is term

    run(program)


def test_a_caller_that_is_cancelled_leaves_and_the_op_goes_on() -> None:
    async def program() -> None:
        async with Simulation(3) as simulation:
            engine = simulation.engine
            term = await engine.whole()
            with trio.move_on_after(0):
                await start(engine, term, 1, dict.fromkeys(range(3), 1)).wait()
            await start(engine, term, 2, dict.fromkeys(range(3), 2)).wait()
            await trio.sleep(1)
            assert simulation.network.results[1] == dict.fromkeys(range(3), 3)

    run(program)
