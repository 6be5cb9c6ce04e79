"""The interpreter's switch interval while ops are in flight."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel.lanes import _loop_flusher, _switch_interval

from ..harness import Gate, opened

USUAL: Final = 5000


def interval() -> int:
    """In microseconds."""
    return round(sys.getswitchinterval() * 1e6)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_switch_interval, "_busy", 0)  # tests of ports leave ops unanswered
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL * 1e-6)
    yield
    sys.setswitchinterval(before)


async def test_switch_interval_is_short_while_ops_are_in_flight(gate: Gate) -> None:
    async with opened(isolation="thread") as one, opened(isolation="thread") as other:
        hold, cells = await gate.kernel(one), await one.zeros(1, np.float32)
        x = await other.zeros(4, np.float32)
        assert interval() == USUAL
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            assert interval() < USUAL / 10
            await other.get(x)
            assert interval() < USUAL / 10
            gate.open()
        assert interval() == USUAL


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_switch_interval_set_by_the_program_stays(gate: Gate, when: str) -> None:
    async with opened(isolation="thread") as device:
        hold, cells = await gate.kernel(device), await device.zeros(1, np.float32)
        if when == "before":
            sys.setswitchinterval(0.002)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            sys.setswitchinterval(0.002)
            gate.open()
        await device.get(cells)
        assert interval() == 2000


async def test_a_device_may_leave_it_and_the_loop_alone(gate: Gate) -> None:
    async with opened(isolation="thread", low_latency=False) as device:
        hold, cells = await gate.kernel(device), await device.zeros(1, np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            assert interval() == USUAL
            assert _loop_flusher._of_run.get() is None
            gate.open()
        async with opened(isolation="thread") as other:
            await other.get(await other.zeros(4, np.float32))
            assert _loop_flusher._of_run.get() is not None
        assert _loop_flusher._of_run.get() is None
        assert (await device.get(cells)).shape == (1,)


async def test_switch_interval_is_restored_after_a_device_is_left_early(gate: Gate) -> None:
    async with trio.open_nursery() as nursery, opened(isolation="thread") as device:
        hold, cells = await gate.kernel(device), await device.zeros(1, np.float32)
        nursery.start_soon(hold, cells)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        gate.open()
    assert interval() == USUAL
