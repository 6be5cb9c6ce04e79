"""Cascades: the first stage that is sure answers, within budget and deadline."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import CascadeStage, CircuitOpen, Closed, open_batcher, open_cascade

from ..harness import on_mock_clock, refused
from .worlds import poisoned


class Bad(Exception):
    """Raised by a stage for an item."""


class Answers:
    """A stage that gives ``(name, confidence)`` after a while."""

    def __init__(self, name: str, confidence: float, seconds: float = 1.0) -> None:
        self.name = name
        self.confidence = confidence
        self.seconds = seconds
        self.fails: Exception | None = None
        self.calls = 0

    async def __call__(self, item: Any) -> tuple[str, float]:
        self.calls += 1
        await trio.sleep(self.seconds)
        if self.fails is not None:
            raise self.fails
        return (self.name, self.confidence)

    def stage(self, threshold: float = 0.8, cost: float = 1.0) -> CascadeStage[Any, Any]:
        return CascadeStage(self, threshold, cost, self.name)


def sure(answer: tuple[str, float]) -> float:
    return answer[1]


def opened(*stages: CascadeStage[Any, Any], **options: Any) -> Any:
    return open_cascade(*stages, confidence=sure, **options)


async def test_the_first_that_is_sure_answers(autojump_clock: trio.testing.MockClock) -> None:
    small, large = Answers("small", 0.9), Answers("large", 1.0, 10)
    async with opened(small.stage(), large.stage(cost=10)) as cascade:
        assert await cascade(1) == ("small", 0.9)
        assert large.calls == 0
        small.confidence = 0.5
        answer = await cascade.ask(2)
        assert (answer.value, answer.stage, answer.cost) == (("large", 1.0), "large", 11)
        assert trio.current_time() == 12
        statistics = cascade.statistics()
    assert statistics.cost == 12
    assert [each.asked for each in statistics.stages] == [2, 1]
    assert [each.accepted for each in statistics.stages] == [1, 1]
    with pytest.raises(Closed):
        await cascade(3)


async def test_the_most_confident_answers_if_none_is_sure(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stages = [Answers("a", 0.3), Answers("b", 0.6), Answers("c", 0.5)]
    async with opened(*(each.stage() for each in stages)) as cascade:
        answer = await cascade.ask(1)
    assert (answer.stage, answer.confidence, answer.cost, answer.skipped) == ("b", 0.6, 3, ())


async def test_budgets(autojump_clock: trio.testing.MockClock) -> None:
    stages = [Answers("a", 0.3), Answers("b", 0.6), Answers("c", 0.7)]
    costs = [1, 5, 2]
    async with opened(
        *(each.stage(cost=cost) for each, cost in zip(stages, costs, strict=True)), budget=4
    ) as cascade:
        answer = await cascade.ask(1)
        assert (answer.stage, answer.cost, answer.skipped) == ("c", 3, ("b",))
        answer = await cascade.ask(1, budget=6)
        assert (answer.stage, answer.cost, answer.skipped) == ("b", 6, ("c",))
        assert cascade.statistics().stages[1].over_budget == 1
        with pytest.raises(ValueError, match="must be at least 1, which the cheapest stage costs"):
            await cascade.ask(1, budget=0.5)


async def test_deadlines(autojump_clock: trio.testing.MockClock) -> None:
    small, large = Answers("small", 0.5), Answers("large", 1.0, 10)
    async with opened(small.stage(), large.stage(), reserve=0.1) as cascade:
        # It is not known yet how long the second takes: it is tried, and ended in time.
        with trio.fail_after(5):
            answer = await cascade.ask(1)
        assert (answer.stage, answer.skipped) == ("small", ("large",))
        assert trio.current_time() == pytest.approx(4.9)
        # That took 3.9 s at least, and 3 s are left.
        with trio.fail_after(4):
            answer = await cascade.ask(1)
        assert answer.stage == "small"
        assert large.calls == 1
        assert trio.current_time() == pytest.approx(5.9)
        with trio.fail_after(20):
            assert (await cascade.ask(1)).stage == "large"
        # Without any answer yet, nothing is skipped.
        with trio.move_on_after(0.5) as scope:
            await cascade(1)
        assert scope.cancelled_caught


@pytest.mark.parametrize("error", [poisoned(), CircuitOpen("broken", retry_in=1.0)])
async def test_a_stage_that_cannot_answer_is_passed_over(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    small, large = Answers("small", 0.9), Answers("large", 1.0)
    small.fails = error
    async with opened(small.stage(), large.stage()) as cascade:
        answer = await cascade.ask(1)
        assert (answer.stage, answer.skipped) == ("large", ("small",))
        large.fails = poisoned()
        with pytest.raises(type(large.fails)) as info:
            await cascade(1)
        assert info.value is large.fails
        assert info.value.__notes__
        small.fails, small.confidence = None, 0.1
        assert (await cascade.ask(1)).stage == "small"


async def test_other_errors_are_answers(autojump_clock: trio.testing.MockClock) -> None:
    small, large = Answers("small", 0.9), Answers("large", 1.0)
    small.fails = Bad("no")
    async with opened(small.stage(), large.stage()) as cascade:
        with pytest.raises(Bad):
            await cascade(1)
    assert large.calls == 0


async def test_a_stage_of_batches(autojump_clock: trio.testing.MockClock) -> None:
    batches: list[int] = []

    async def classify(items: list[int]) -> list[tuple[str, float]]:
        batches.append(len(items))
        await trio.sleep(1)
        return [("batch", 1.0 if item % 2 else 0.1) for item in items]

    large = Answers("large", 1.0)
    async with (
        open_batcher(classify, max_size=8, max_wait=0.1) as batcher,
        opened(CascadeStage(batcher, 0.8, name="batch"), large.stage()) as cascade,
        trio.open_nursery() as nursery,
    ):
        for item in range(8):
            nursery.start_soon(cascade, item)
    assert batches == [8]
    assert large.calls == 4


async def test_options_are_checked() -> None:
    stage = Answers("a", 1.0).stage()
    await refused(TypeError, "one stage or more", opened)
    await refused(TypeError, "CascadeStage objects", opened, Answers("a", 1.0))
    await refused(
        ValueError, "must be at least 1, which the cheapest stage costs", opened, stage, budget=0
    )
    await refused(ValueError, "reserve must be at least 0, not -1", opened, stage, reserve=-1)


@settings(max_examples=100)
@given(
    stages=st.lists(
        st.tuples(
            st.sampled_from([0.1, 0.5, 0.9]),  # its confidence
            st.integers(1, 4),  # its cost
            st.sampled_from([0.0, 1.0, 5.0]),  # how long it takes
            st.sampled_from([None, None, None, "fault", "bad"]),
        ),
        min_size=1,
        max_size=5,
    ),
    budget=st.sampled_from([4, 6, math.inf]),
    leave=st.sampled_from([2.5, 7.5, math.inf]),
)
@on_mock_clock
async def test_against_a_model(
    stages: list[tuple[float, int, float, str | None]], budget: float, leave: float
) -> None:
    """Compare the decisions with a model that knows the future."""

    def expected(seconds: list[float]) -> tuple[str, float] | str:
        spent, now, best = 0.0, 0.0, None
        for number, (confidence, cost, took, fails) in enumerate(stages):
            if spent + cost > budget:
                continue
            if best is not None and now + seconds[number] >= leave - 0.125:
                continue
            spent += cost
            if best is not None and now + took >= leave - 0.125:
                now = leave - 0.125
                continue
            if now + took >= leave:
                return "left"
            now += took
            if fails == "bad":
                return "bad"
            if fails == "fault":
                continue
            if best is None or confidence > best[1]:
                best = (str(number), confidence)
            if confidence >= 0.8:
                break
        return best or "fault"

    members = [
        Answers(str(n), confidence, took) for n, (confidence, _, took, _) in enumerate(stages)
    ]
    for member, (_, _, _, fails) in zip(members, stages, strict=True):
        member.fails = {"fault": poisoned(), "bad": Bad()}.get(fails or "")
    made = [m.stage(0.8, cost) for m, (_, cost, _, _) in zip(members, stages, strict=True)]
    async with opened(*made, budget=budget, reserve=0.125) as cascade:
        for _ in range(2):  # the second time, durations are known
            known = [each.seconds for each in cascade.statistics().stages]
            got: Any = "left"
            with trio.move_on_after(leave):
                try:
                    got = await cascade(1)
                except Bad:
                    got = "bad"
                except type(poisoned()):
                    got = "fault"
            assert got == expected(known)
