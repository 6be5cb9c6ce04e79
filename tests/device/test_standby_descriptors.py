"""Descriptors are short: the program's lanes and hosts get those of standbys."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel import Standby
from atomr_accel.actors import Backoff
from atomr_accel.device.contexts import context as _context
from atomr_accel.device.contexts._prepared import PreparedHost
from atomr_accel.device.core import DeviceCore
from atomr_accel.device.standby import _keeper, _spare
from atomr_accel.device.standby._keeper import StandbyKeeper
from atomr_accel.lanes import HostHandle, start_host
from atomr_accel.testing import kill_host
from tests.harness import cpu_only, no_descriptors, opened

from .standbys import OFTEN, hot, open_a_lane, standby_of, works

pytestmark = [cpu_only, pytest.mark.slow, pytest.mark.usefixtures("patient", "at_once")]


@pytest.mark.parametrize("standby", [Standby(hot=1), Standby(warm=1)])
async def test_a_lane_gets_the_descriptors_of_standbys(standby: Any) -> None:
    async with opened(standby=standby, max_restarts=OFTEN) as device:
        await standby_of(device).wait_ready()
        hosts = standby_of(device).hosts
        with no_descriptors():
            await open_a_lane(device)
            assert all(host.ended for host in hosts)
        await works(device)
        await standby_of(device).wait_ready()


async def test_no_standby_starts_before_a_lane_has_its_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, usual_host = PreparedHost.start_lanes, start_host
    attempts: list[str] = []

    async def start_lanes(self: PreparedHost, core: DeviceCore, specs: Any) -> dict[str, Exception]:
        attempts.append("lane")
        if len(attempts) == 1:
            await trio.lowlevel.checkpoint()
            return {spec.name: OSError(errno.EMFILE, "too many open files") for spec in specs}
        await trio.testing.wait_all_tasks_blocked(0.01)  # a standby would start now
        failed = await usual(self, core, specs)
        attempts.append("lane has started")
        return failed

    async def start(*args: Any) -> HostHandle:
        attempts.append("standby")
        return await usual_host(*args)

    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        await standby_of(device).wait_ready()
        monkeypatch.setattr(PreparedHost, "start_lanes", start_lanes)
        monkeypatch.setattr(_spare, "start_host", start)
        await open_a_lane(device)
        await standby_of(device).wait_ready()
        assert attempts == ["lane", "lane", "lane has started", "standby"]


async def test_a_lane_is_started_again_if_standbys_have_ended_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = PreparedHost.start_lanes
    attempts: list[str] = []

    async def start_lanes(self: PreparedHost, core: DeviceCore, specs: Any) -> dict[str, Exception]:
        attempts.append("lane")
        if len(attempts) > 1:
            return await usual(self, core, specs)
        (host,) = standby_of(device).hosts
        host.kill()
        await host.wait_ended()
        await trio.testing.wait_all_tasks_blocked()
        assert not standby_of(device).hosts
        return {spec.name: OSError(errno.EMFILE, "too many open files") for spec in specs}

    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        await standby_of(device).wait_ready()
        monkeypatch.setattr(_keeper, "_RETRY", Backoff(initial=1e6, base=1e6, maximum=1e6))
        monkeypatch.setattr(PreparedHost, "start_lanes", start_lanes)
        await open_a_lane(device)
        assert attempts == ["lane", "lane"]


async def test_a_host_gets_the_descriptors_of_standbys(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = start_host
    refused: list[object] = []

    async def start(*args: Any) -> HostHandle:
        if not all(host.ended for host in hosts):
            refused.append(args)
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EMFILE, "too many open files")
        return await usual(*args)

    async def nothing(_: StandbyKeeper) -> None:
        await trio.lowlevel.checkpoint()

    async with hot() as device:
        await standby_of(device).wait_ready()
        hosts = standby_of(device).hosts
        monkeypatch.setattr(_context, "start_host", start)
        monkeypatch.setattr(type(standby_of(device)), "take", nothing)
        await kill_host(device)
        await works(device)
        assert len(refused) == 1
        assert device.generation == 2
