"""Lanes of hosts on standby follow those of the device: closed, opened anew, or about to be."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import trio

from atomr_accel.device.contexts._prepared import PreparedHost
from atomr_accel.device.standby import _spare
from atomr_accel.testing import poison, standby_ready
from tests.harness import cpu_only

from .in_host import load
from .standbys import EYE, answer, hot, standby_of, works

pytestmark = [cpu_only, pytest.mark.slow, pytest.mark.usefixtures("patient", "at_once")]


async def test_lanes_that_are_closed_are_closed_there_and_opened_anew() -> None:
    async with hot() as device:
        standby = standby_of(device)
        init = functools.partial(load, await device.put(EYE, sealed=True))
        for _ in range(2):
            await answer(device, init, "mine")
            await standby.wait_ready()
            spare = standby._best_first()[0]
            assert spare.prepared is not None
            assert "run.mine" in spare.prepared.ports
            await device.close_lane("mine")
            await standby.wait_ready()
            assert "run.mine" not in spare.prepared.ports
            await answer(device, init, "mine")
            await standby.wait_ready()
            await poison(device)
            await answer(device, init, "mine")


async def test_a_lane_that_was_just_closed_is_not_taken_over() -> None:
    async with hot() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await answer(device, init, "mine")
        await standby_ready(device)
        port = device.core.ports["run.mine"]
        port.hang_up()  # as closing it does, and at the same time
        device.core.remove_lane("run.mine")
        calls: Any = device._host_calls
        calls._lanes.pop("mine")
        await poison(device)
        await works(device)
        assert "run.mine" not in {lane.name for lane in device.statistics().lanes}
        await answer(device, init, "mine")


@pytest.mark.parametrize("step", ["load", "import_modules"])
async def test_a_lane_that_was_just_reopened_has_no_earlier_state(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby may have opened the lane already, or not."""
    reached = trio.Event()

    async def stay(*_: object) -> None:
        reached.set()
        await trio.sleep_forever()

    async with hot() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await answer(device, init, "mine")
        await standby_ready(device)
        monkeypatch.setattr(PreparedHost, step, stay)
        await device.close_lane("mine")
        await reached.wait()
        await answer(device, init, "mine")
        number = device.core.lanes["run.mine"][1]
        await poison(device)
        await answer(device, init, "mine")
        assert device.core.ports["run.mine"].index == device.core.lanes["run.mine"][1] == number


async def test_waking_a_standby_that_is_used_at_once_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane is closed, and so followed, in the turn in which a fault has it taken."""

    async def nothing(_: object) -> None:
        """Learn nothing, because no context exists then."""

    monkeypatch.setattr(_spare.Spare, "_learn", nothing)
    async with hot() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await answer(device, init, "mine")
        await standby_ready(device)
        standby = standby_of(device)
        spare = standby._best_first()[0]
        assert spare.prepared is not None
        port = spare.prepared.ports["run.mine"]
        before = set(spare.prepared.ports)
        device.core.drop_lane("run.mine")  # as closing it does
        spare.prepared, spare.taken = None, True  # as taking it does
        assert spare.context is not None
        spare.context.hand_over()
        spare.scope.cancel()
        assert await spare.context.handed_over()
        assert set(spare.context.prepared.ports) == before
        assert port._sock.fileno() >= 0
        prepared = spare.context.prepared
        device.core.lifecycle.discard(prepared.host, prepared.ports, spare.shadow)
        assert port._sock.fileno() < 0
