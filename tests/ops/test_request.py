"""The steps of requests: none is lost where others are added."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.ops import LaneSpec, Request, Submission

LANE = LaneSpec("lane", {})

names = st.lists(st.text("abc", max_size=2), max_size=3)


def step(name: str) -> Request[None]:
    return Request(LANE, name, lambda _preparer: Submission(name, (), ()))


@given(names, st.lists(st.tuples(names, names), max_size=4))
def test_steps_keep_those_inside_when_others_are_added(
    before: list[str], around: list[tuple[list[str], list[str]]]
) -> None:
    made: Submission[Any] = Submission("own", (), (), "result")
    made = made.around(map(step, before))
    expected = [*before, "own"]
    for outer, behind in around:
        made = made.around(map(step, outer), map(step, behind))
        expected = [*outer, *expected, *behind]
    driver: Any = None
    assert [each.message for _, each in made.steps(step("own"), driver)] == expected
    assert made.result == "result"
