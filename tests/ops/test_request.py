"""Requests: no step is lost where others are added, and answers are awaited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, Unsupported
from atomr_accel.libraries.cub.call import WAITING
from atomr_accel.libraries.cub.wire.messages import Count
from atomr_accel.ops import D, Facade, LaneSpec, Preparer, Request, Submission, op, require_readable

from ..harness import on_shared

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


class Counting(Facade[D]):
    def __init__(self, home: Any) -> None:
        self.home = home

    @op
    def read(self, number: GpuRef) -> Request[int]:
        """Return the number as the lane's answer."""

        def prepare(preparer: Preparer) -> Submission[int]:
            block = require_readable(number, preparer.memory, "number")
            return Submission(Count(block.address), (block,), ())

        return Request(WAITING, "counting.read", prepare)


@on_shared
async def test_an_op_whose_result_is_its_answer_is_awaited(device: Device) -> None:
    counting = Counting[Any](device.core)
    number = await device.put(np.array(3))
    assert await counting.read(number) == 3
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
            counting.on(batch).read(number)
        with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
            batch.perform(counting.as_requests(device.core).read(number))
    async with device.record() as recording:
        with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
            counting.on(recording).read(number)
        recording.fill(number, 4)
    await recording.replay()
    assert await counting.read(number) == 4
