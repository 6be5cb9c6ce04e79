"""Ensembles: a quorum answers without waiting for the others."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import Closed, QuorumMissed, open_ensemble

from ..harness import on_mock_clock


class Bad(Exception):
    """Raised by a member."""


def total(answers: list[int]) -> int:
    return sum(answers)


def member(
    value: int, seconds: float = 1.0, *, fails: bool = False
) -> Callable[[int], Awaitable[int]]:
    async def answer(item: int) -> int:
        await trio.sleep(seconds)
        if fails:
            raise Bad(value)
        return item + value

    return answer


async def test_all_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with open_ensemble(member(1, 3), member(2), member(3, 2), combine=list) as ensemble:
        assert await ensemble(10) == [11, 12, 13]
        assert trio.current_time() == 3
    with pytest.raises(Closed):
        await ensemble(1)


async def test_a_quorum_answers(autojump_clock: trio.testing.MockClock) -> None:
    members = [member(1, 100), member(2), member(3, 2)]
    async with open_ensemble(*members, combine=total, quorum=2) as ensemble:
        assert await ensemble(10) == 25
        assert trio.current_time() == 2
        statistics = ensemble.statistics()
    assert statistics.answers == (0, 1, 1)
    assert statistics.stragglers == (1, 0, 0)


async def test_ensemble_that_needs_all_answers_raises_the_first_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    members = [member(1, 100), member(2, 2, fails=True), member(3, 1)]
    async with open_ensemble(*members, combine=total) as ensemble:
        with pytest.raises(Bad):
            await ensemble(10)
        assert trio.current_time() == 2


async def test_too_many_failures(autojump_clock: trio.testing.MockClock) -> None:
    members = [member(1, 100), member(2, fails=True), member(3, 2, fails=True)]
    async with open_ensemble(*members, combine=total, quorum=2) as ensemble:
        with pytest.raises(QuorumMissed, match="2 of 3 members have to answer") as info:
            await ensemble(10)
        assert (info.value.quorum, info.value.answered) == (2, 0)
        assert isinstance(info.value.__cause__, ExceptionGroup)
        assert len(info.value.__cause__.exceptions) == 2
        assert ensemble.statistics().errors == (0, 1, 1)


@pytest.mark.parametrize("quorum", [0, 3])
async def test_quorums_are_checked(quorum: int) -> None:
    with pytest.raises(ValueError, match="quorum must be a whole number from 1 to 2"):
        async with open_ensemble(member(1), member(2), combine=total, quorum=quorum):
            pass
    with pytest.raises(TypeError, match="one member or more"):
        async with open_ensemble(combine=total):
            pass


@settings(max_examples=80)
@given(
    members=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    quorum=st.integers(1, 6),
    leave=st.sampled_from([math.inf, 2.5]),
)
@on_mock_clock
async def test_against_a_model(members: list[tuple[int, bool]], quorum: int, leave: float) -> None:
    quorum = min(quorum, len(members))
    running = 0

    def made(number: int) -> Callable[[int], Awaitable[int]]:
        seconds, fails = members[number]
        function = member(number, seconds, fails=fails)

        async def counted(item: int) -> int:
            nonlocal running
            running += 1
            try:
                return await function(item)
            finally:
                running -= 1

        return counted

    good = sorted(seconds for seconds, fails in members if not fails)
    bad = sorted(seconds for seconds, fails in members if fails)
    spare = len(members) - quorum
    enough = good[quorum - 1] if len(good) >= quorum else math.inf
    missed = bad[spare] if len(bad) > spare else math.inf
    async with open_ensemble(*map(made, range(len(members))), combine=list, quorum=quorum) as e:
        outcome = "left"
        with trio.move_on_after(leave):
            try:
                answers = await e(0)
                outcome = "answered"
                assert len(answers) >= quorum
                assert answers == sorted(answers)
                assert all(members[each][0] <= enough for each in answers)
            except (Bad, QuorumMissed):
                outcome = "missed"
        assert not running
        assert trio.current_time() == min(enough, missed, leave)
        if leave < min(enough, missed):
            assert outcome == "left"
        else:
            assert outcome == ("answered" if enough < missed else "missed")
