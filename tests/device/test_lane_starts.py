"""Lanes as they start: what ends with one that does not, and what goes on without it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from atomr_accel import ContextPoisoned, OutOfMemory, Unsupported
from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.device._settings import StreamStrategy
from atomr_accel.lanes import HostHandle, start_host
from atomr_accel.ops import LaneSpec
from atomr_accel.testing import kill_host
from atomr_accel.wire import Fault, LanesOpened, Open, OpenLanes
from tests.harness import cpu_only, descriptors, opened

from .standbys import OFTEN, open_a_lane, works

pytestmark = cpu_only

LANES: Final = """
import os, pathlib, threading
from atomr_accel.wire import StickyFault

class Lane:
    handlers = {}
    def __init__(self, context, stream):
        pass

class Aborts(Lane):
    def __init__(self, context, stream):
        os.abort()

class MeetsAFault(Lane):
    def __init__(self, context, stream):
        context.fail(StickyFault("elsewhere", status=700, status_name="A_FAULT"))
        raise RuntimeError("the library says INTERNAL_ERROR")

class Second(Lane):
    marker = "started"

    def __init__(self, context, stream):
        marker = pathlib.Path(__file__).with_name(self.marker)
        if marker.exists():
            self.second()
        marker.touch()

class AbortsLater(Second):
    def second(self):
        os.abort()

class FailsLater(Second):
    def second(self):
        raise ValueError("not today")

class FaultsLater(Second):
    def second(self):
        raise StickyFault("not today", status=700, status_name="A_FAULT")

class Meets(Second):
    meeting = threading.Barrier(2, timeout=20)

    def second(self):
        self.meeting.wait()

class Meets2(Meets):
    marker = "started, too"
"""


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LaneSpec]:
    """Lanes that do not start well."""
    (tmp_path / "lanes_for_tests.py").write_text(LANES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: LaneSpec(name, {"cpu": f"lanes_for_tests:{name}"})


async def test_a_lane_that_ends_its_host_does_not_cost_the_device(
    lanes: Callable[[str], LaneSpec],
) -> None:
    async with opened(max_restarts=2) as device:
        errors: list[Exception] = []

        async def use() -> None:
            try:
                await device.core.open_lane(lanes("Aborts"))
            except (ContextPoisoned, Unsupported) as error:
                errors.append(error)

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(use)
        first = errors[:5] + errors[5:10]
        assert all(isinstance(error, ContextPoisoned) for error in first)
        assert all("starting lane 'Aborts'" in str(error) for error in first)
        for error in errors[10:]:
            assert isinstance(error, Unsupported)
            assert "killed by SIGABRT" in str(error)
        assert len(errors) == 15
        assert device.generation == 3
        await works(device)


@pytest.mark.parametrize("streams", ["per_actor", "single"])  # threads of their own, or one
async def test_lane_start_during_a_fault_raises_the_fault(
    lanes: Callable[[str], LaneSpec], streams: StreamStrategy
) -> None:
    async with opened(max_restarts=2, streams=streams) as device:
        with pytest.raises(ContextPoisoned, match="starting lane 'MeetsAFault'") as caught:
            await device.core.open_lane(lanes("MeetsAFault"))
        assert (caught.value.status, caught.value.status_name) == (700, "A_FAULT")
        await works(device)
        assert device.generation == 2


async def test_hosts_killed_while_a_lane_starts_do_not_count_against_it() -> None:
    async with opened(max_restarts=OFTEN) as device:
        core = device.core
        for _ in range(3):
            context = await core.ready()
            start = context.host.request

            async def killed(request: Any, *fds: int) -> Any:
                if isinstance(request, OpenLanes):
                    context.host.kill()  # noqa: B023
                return await start(request, *fds)  # noqa: B023

            context.host.request = killed  # type: ignore[method-assign, assignment]
            with pytest.raises(ContextPoisoned, match="starting lane 'fft'"):
                await open_a_lane(device)
        await open_a_lane(device)


@pytest.mark.parametrize("kind", [Open, OpenLanes])
async def test_a_start_waits_for_the_memory_of_killed_hosts(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    usual = HostHandle.request
    refused: list[object] = []

    async def request(self: HostHandle, message: Any, *fds: int, **how: Any) -> Any:
        if isinstance(message, kind) and not last.ended:
            refused.append(message)
            last.kill()
            await trio.lowlevel.checkpoint()
            raise OutOfMemory("a host that is ending has the memory", requested=0)
        return await usual(self, message, *fds, **how)

    async with opened(max_restarts=2, standby=None) as device:
        await works(device)
        last = await start_host("process")
        device.core.reaper.terminating.append(last)
        monkeypatch.setattr(HostHandle, "request", request)
        if kind is Open:
            await kill_host(device)
            await works(device)
            assert device.generation == 2
        else:
            await open_a_lane(device)
        assert refused
        assert last not in device.core.reaper.terminating


async def test_a_lane_without_memory_after_that_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = HostHandle.request

    async def request(self: HostHandle, message: Any, *fds: int, **how: Any) -> Any:
        if isinstance(message, OpenLanes):
            await trio.lowlevel.checkpoint()
            raise OutOfMemory("the program has the memory", requested=0)
        return await usual(self, message, *fds, **how)

    async with opened(standby=None) as device:
        await works(device)
        monkeypatch.setattr(HostHandle, "request", request)
        with pytest.raises(OutOfMemory, match="the program has the memory"):
            await open_a_lane(device)


async def test_without_staging_memory_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "nothing can be locked")

    monkeypatch.setattr(CpuContext, "map_pinned", refuse)
    before = descriptors()
    with pytest.raises(OSError, match="nothing can be locked"):
        async with opened(isolation="thread"):
            pass
    assert descriptors() == before


async def test_a_host_that_tells_of_other_lanes_than_it_was_asked_for_is_killed() -> None:
    async with opened(max_restarts=OFTEN) as device:
        context = await device.core.ready()
        ask = context.host.request

        async def odd(request: Any, *fds: int) -> Any:
            reply = await ask(request, *fds)
            return (LanesOpened({"memory": Fault((), 700, "ODD", "")}), -1) if fds else reply

        context.host.request = odd  # type: ignore[method-assign, assignment]
        with pytest.raises(ContextPoisoned) as info:
            await open_a_lane(device)
        assert "told that lane 'memory' does not start" in str(info.value.__cause__)
        await works(device)
        assert device.generation == 2


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["per_actor", "single"])  # threads of their own, or one
@pytest.mark.parametrize("name", ["AbortsLater", "FailsLater", "FaultsLater"])
async def test_a_rebuild_goes_on_without_a_lane_that_does_not_start(
    lanes: Callable[[str], LaneSpec], name: str, streams: StreamStrategy
) -> None:
    # One host tells that it is one of several lanes, another which one it is.
    async with opened(max_restarts=4, streams=streams) as device:
        await works(device)
        await device.core.open_lane(lanes(name))
        await kill_host(device)
        await works(device)
        assert device.generation == 2
        assert name not in {lane.name for lane in device.statistics().lanes}
        with pytest.raises((ContextPoisoned, ValueError), match=r"SIGABRT|not today"):
            await device.core.open_lane(lanes(name))


@pytest.mark.parametrize("streams", ["per_actor", "single"])
async def test_a_rebuild_starts_lanes_side_by_side(
    lanes: Callable[[str], LaneSpec], streams: StreamStrategy
) -> None:
    async with opened(streams=streams) as device:
        for name in ("Meets", "Meets2"):
            await device.core.open_lane(lanes(name))
        await kill_host(device)
        await works(device)
        assert {"Meets", "Meets2"} <= {lane.name for lane in device.statistics().lanes}
