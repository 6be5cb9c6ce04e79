"""Workspaces that ops of a lane share: as few as will do, never too small, never stale."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.memory import Block, round_size
from atomr_accel.ops import TOGETHER, Workspaces
from atomr_accel.testing import poison

from ..harness import on_shared, opened

WAYS, SMALL = 3, 4096


@settings(max_examples=60)
@given(steps=st.lists(st.tuples(st.integers(1, 2 * SMALL), st.booleans()), max_size=40))
@on_shared
async def test_there_are_few_and_each_is_large_enough(
    device: Device, steps: list[tuple[int, bool]]
) -> None:
    spaces, core = Workspaces(WAYS, SMALL), device.core
    await device.free(await device.zeros(16 * SMALL))  # so that there is room
    taken: list[Block] = []
    for nbytes, ends in steps:
        block = spaces.obtain(core.first_try, nbytes)
        assert block.size >= nbytes
        assert nbytes <= spaces.nbytes(core) <= WAYS * 2 * SMALL
        block.writer = 1
        taken.append(block)
        if ends:
            taken.pop(0).writer = 0
    for block in taken:
        block.writer = 0
    spaces.clear(core)
    assert spaces.nbytes(core) == 0


@pytest.mark.parametrize(("nbytes", "most"), [(SMALL, WAYS), (SMALL + 1, 1)])
@on_shared
async def test_small_ops_that_are_in_flight_together_take_different_ones(
    device: Device, nbytes: int, most: int
) -> None:
    spaces, core = Workspaces(WAYS, SMALL), device.core
    await device.free(await device.zeros(16 * SMALL))
    taken: list[Block] = []
    for _ in range(5):  # longer than there are ways
        for op in range(TOGETHER):
            block = spaces.obtain(core.first_try, nbytes)
            block.writer = 1
            if not op:
                taken.append(block)
            assert block is taken[-1]
    for number, block in enumerate(taken):
        assert block is taken[number % most]
        block.writer = 0
    assert len({id(block) for block in taken}) == most


@pytest.mark.parametrize("nbytes", [SMALL, SMALL + 1])
@on_shared
async def test_lone_op_uses_the_same_workspace_each_time(device: Device, nbytes: int) -> None:
    spaces, core = Workspaces(WAYS, SMALL), device.core
    await device.free(await device.zeros(16 * SMALL))
    blocks = {id(spaces.obtain(core.first_try, nbytes)) for _ in range(5)}
    assert len(blocks) == 1
    assert spaces.nbytes(core) == round_size(nbytes)


async def test_a_rebuild_takes_it_away() -> None:
    async with opened(isolation="process") as device:
        spaces, core = Workspaces(WAYS, SMALL), device.core
        await device.zeros(1)
        before = spaces.obtain(core.first_try, 100)
        await poison(device)
        await device.zeros(1)
        assert spaces.nbytes(core) == 0
        after = spaces.obtain(core.first_try, 100)
        assert after is not before
        assert after.epoch is device.core.memory.epoch
