"""Workspaces that ops of a lane share: as few as will do, never too small, never stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.libraries._perform import Room
from atomr_accel.libraries._workspaces import Workspaces
from atomr_accel.testing import poison

from ..harness import on_shared, opened, program

if TYPE_CHECKING:
    from atomr_accel import Device
    from atomr_accel.memory import Block

WAYS, SMALL = 3, 4096


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 2 * SMALL), st.booleans(), st.integers(0, 9)), max_size=20
    )
)
@on_shared
async def test_an_op_gets_what_no_other_has_while_there_may_be_more(
    device: Device, steps: list[tuple[int, bool, int]]
) -> None:
    spaces = Workspaces(WAYS, SMALL)
    core = device._core
    in_flight: list[Block] = []
    await device.free(await device.zeros(16 * SMALL))  # so that there is room
    for nbytes, stays, ends in steps:
        block = spaces.take(core, Room(core), nbytes)
        busy = [other for other in in_flight if other.writer]
        assert block.size >= nbytes
        if block in busy:  # then there are as many as there may be
            assert nbytes > SMALL or len({id(other) for other in busy}) >= WAYS
        assert len(spaces._kept[core]) <= WAYS
        assert spaces.nbytes(core) >= nbytes
        block.writer = 1 if stays else block.writer
        in_flight.append(block)
        if ends < len(in_flight):
            in_flight.pop(ends).writer = 0
    for block in in_flight:
        block.writer = 0
    spaces.clear(core)
    assert spaces.nbytes(core) == 0


@pytest.mark.parametrize("nbytes", [SMALL, SMALL + 1])
@on_shared
async def test_what_runs_alone_takes_the_same_memory_each_time(device: Device, nbytes: int) -> None:
    spaces, core = Workspaces(WAYS, SMALL), device._core
    await device.free(await device.zeros(16 * SMALL))
    blocks = {id(spaces.take(core, Room(core), nbytes)) for _ in range(5)}
    assert len(blocks) == 1
    assert spaces.nbytes(core) == nbytes


@program
async def test_a_rebuild_takes_it_away() -> None:
    async with opened(isolation="process") as device:
        spaces, core = Workspaces(WAYS, SMALL), device._core
        await device.zeros(1)
        before = spaces.take(core, Room(core), 100)
        await poison(device)
        await device.zeros(1)
        assert spaces.nbytes(core) == 0
        after = spaces.take(core, Room(core), 100)
        assert after is not before
        assert after.epoch is device._core.memory.epoch
