"""Parked standbys: hosts that are prepared, stand still, and continue after a fault."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.lowlevel

from atomr_accel import Device, DeviceInstrument, Standby, StandbyWarning, Unsupported
from atomr_accel.backends import cpu
from atomr_accel.device.standby import _parking, _spare
from atomr_accel.testing import kill_host, poison, standby_ready

from ..harness import AT_ONCE, ON_CUDA, sized
from .in_host import load
from .standbys import EYE, answer, hot, open_a_lane, standby_of, works

PARKERS: Final = "tests.device.parkers"

parked: Final = functools.partial(hot, standby=Standby(parked=1))


pytestmark = pytest.mark.usefixtures("patient", "at_once")


@pytest.fixture(autouse=True)
def follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spare, "SETTLE", AT_ONCE)
    monkeypatch.setattr(_spare, "CALM_SECONDS", 0.0)


def state_of(pid: int) -> str:
    """The process's state by the kernel: ``T`` is stopped."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def parker(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Give the CPU backend another parker."""
    if ON_CUDA:
        pytest.skip("of the CPU backend")
    backend = replace(cpu.BACKEND, parker=None if name is None else f"{PARKERS}:{name}")
    monkeypatch.setattr(cpu, "BACKEND", backend)


class Changes(DeviceInstrument):
    """Wakes a task when a standby changes its state."""

    def __init__(self) -> None:
        self._changed = trio.Event()

    def standby_changed(self, _device: object, _state: str) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, which becomes true with a change."""
        while not condition():
            await self._changed.wait()


async def stopped(pid: int) -> None:
    """Wait until a process has been stopped, which the kernel does by and by.

    On CUDA the driver parks a process, which is not stopped then.
    """
    if ON_CUDA:
        return
    with trio.fail_after(10):
        while state_of(pid) != "T":  # nothing else says when
            await trio.lowlevel.checkpoint()


async def test_a_parked_standby_stands_still_and_takes_over() -> None:
    async with parked() as device:
        sealed = await device.put(2 * EYE, sealed=True)
        await works(device)
        for number in (1, 2):
            await standby_ready(device)
            host = standby_of(device).hosts[0]
            assert host.pid is not None
            await stopped(host.pid)
            seen = standby_of(device).statistics()
            assert (seen.mode, seen.state, seen.parked, seen.ready) == ("parked", "parked", 1, 1)
            assert not seen.degraded
            assert seen.nbytes == 0
            assert seen.host_bytes > 0
            await poison(device)
            await works(device)
            assert device.statistics().host_pid == host.pid
            assert device.generation == 1 + number
            assert np.array_equal(await device.get(sealed), 2 * EYE)
        assert standby_of(device).statistics().used == 2


async def test_states_of_sealed_buffers_are_where_they_were() -> None:
    """The host's arrays on sealed memory are valid again when it returns."""
    async with parked() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        first, _ = await answer(device, init)
        for _ in range(2):
            await standby_ready(device)
            host = standby_of(device).hosts[0]
            await kill_host(device)
            pid, _ = await answer(device, init)
            assert pid == host.pid != first


@pytest.mark.slow
async def test_a_parked_standby_follows_the_device() -> None:
    async with parked() as device:
        await standby_ready(device)
        await open_a_lane(device)
        sealed = await device.put(EYE, sealed=True)
        await standby_ready(device)
        del sealed
        kept = await device.put(3 * EYE, sealed=True)
        await standby_ready(device)
        await poison(device)
        assert np.array_equal(await device.get(kept), 3 * EYE)
        assert {lane.name for lane in device.statistics().lanes} >= {"memory", "fft"}


async def test_a_parked_one_becomes_hot_when_a_hot_one_is_used() -> None:
    async with hot(standby=Standby(hot=1, parked=1)) as device:
        await standby_ready(device)
        seen = standby_of(device).statistics()
        assert (seen.mode, seen.kept, seen.ready, seen.parked) == ("hot", 2, 2, 1)
        first, second, *_ = standby_of(device).hosts
        await kill_host(device)  # `poison` opens a lane first, which the standbys follow
        await works(device)
        assert device.statistics().host_pid == first.pid
        await standby_ready(device)
        assert standby_of(device).hosts[0].pid == second.pid
        assert standby_of(device).statistics().parked == 1
        await kill_host(device)
        await works(device)
        assert device.statistics().host_pid == second.pid


@pytest.mark.slow
async def test_after_a_fault_one_is_kept_from_being_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another fault that follows soon does not wait for its return."""
    async with parked() as device:
        await works(device)
        await standby_ready(device)
        monkeypatch.setattr(_spare, "CALM_SECONDS", 1e6)
        monkeypatch.setattr(_parking.Parking, "park", None)
        for used in (1, 2):
            await kill_host(device)
            await works(device)
            await standby_ready(device)
            seen = standby_of(device).statistics()
            assert (seen.state, seen.used, seen.ready, seen.parked) == ("ready", used, 1, 0)
            assert not seen.degraded


@pytest.mark.slow
async def test_only_the_one_that_takes_over_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[tuple[int | None, bool]] = []
    restore = _parking.Parking.restore

    async def counted(self: Any, host: Any, *args: Any, urgent: bool = False) -> None:
        returned.append((host.pid, urgent))
        await restore(self, host, *args, urgent=urgent)

    monkeypatch.setattr(_parking.Parking, "restore", counted)
    async with hot(standby=Standby(parked=2)) as device:
        await works(device)
        await standby_ready(device)
        returned.clear()
        await kill_host(device)
        await works(device)
        await standby_ready(device)
        assert returned == [(device.statistics().host_pid, True)]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "nowhere"])
async def test_parked_by_default_where_hosts_can_be(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A parked standby where hosts are slow to start, or a warm one without a warning."""
    parker(monkeypatch, "IsNone" if where == "nowhere" else "Stops")
    monkeypatch.setattr(cpu, "BACKEND", replace(cpu.BACKEND, slow_start=True))
    async with hot(standby=Standby()) as device:
        await works(device)
        await standby_ready(device)
        seen = standby_of(device).statistics()
        mode = "parked" if where == "here" else "warm"
        told = (seen.mode, seen.kept, seen.ready, seen.parked, seen.degraded, seen.problem)
        assert told == (mode, 1, 1, int(where == "here"), False, None)
        host = standby_of(device).hosts[0]
        await kill_host(device)
        await works(device)
        assert device.statistics().host_pid == host.pid


@pytest.mark.slow
async def test_a_return_waits_for_no_other_host_that_is_being_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parker(monkeypatch, "ParksOne")
    changes = Changes()
    async with hot(standby=Standby(parked=2), instruments=[changes]) as device:
        await changes.until(
            lambda: (
                [host.step for host in standby_of(device)._spares].count("parking") == 1
                and standby_of(device).statistics().parked == 1
            )
        )
        host = standby_of(device).hosts[0]
        await kill_host(device)
        await works(device)
        assert device.statistics().host_pid == host.pid


async def test_a_parked_one_that_dies_is_replaced() -> None:
    async with parked() as device:
        await standby_ready(device)
        host = standby_of(device).hosts[0]
        host.kill()
        await host.wait_ended()
        await standby_ready(device)
        assert standby_of(device).statistics().died == 1
        assert standby_of(device).hosts[0].pid != host.pid
        assert device.generation == 1
        await works(device)


@pytest.mark.slow
async def test_a_parked_one_is_killed_with_the_device() -> None:
    async with hot(standby=Standby(parked=2)) as device:
        await standby_ready(device)
        pids = [host.pid for host in standby_of(device).hosts]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


async def test_a_return_that_fails_is_killed_and_the_device_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parker(monkeypatch, "LosesAll")
    async with parked() as device:
        await standby_ready(device)
        host = standby_of(device).hosts[0]
        await poison(device)
        await works(device)
        assert device.statistics().host_pid != host.pid
        await host.wait_ended()
        await standby_ready(device)
        assert standby_of(device).statistics().died == 1


@pytest.mark.slow
async def test_without_room_it_stays_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    parker(monkeypatch, "HasNoRoom")
    async with parked() as device:
        await standby_ready(device)
        host = standby_of(device).hosts[0]
        monkeypatch.setattr(_spare, "SETTLE", replace(AT_ONCE, initial=1e6, base=1e6, maximum=1e6))
        await poison(device)
        await works(device)
        assert device.statistics().host_pid != host.pid
        assert host.alive
        seen = standby_of(device).statistics()
        assert "all of it is taken" in str(seen.problem)
        assert seen.degraded


@pytest.mark.slow
async def test_a_host_that_cannot_be_parked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    parker(monkeypatch, "ParksOneInTwo")
    async with parked() as device:
        await standby_ready(device)
        assert standby_of(device).statistics().died == 1
        assert standby_of(device).statistics().problem is None
        await works(device)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["park", "restore"])
async def test_a_parker_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    parker(monkeypatch, f"Hangs_{step}")
    monkeypatch.setattr(_parking, f"{step.upper()}_SECONDS", 0.1)
    monkeypatch.setattr("atomr_accel.lanes._spawn.GRACE_SECONDS", 0.1)
    changes = Changes()
    async with parked(instruments=[changes]) as device:
        if step == "restore":
            await standby_ready(device)
        else:
            await changes.until(lambda: standby_of(device).statistics().died > 0)
            assert "not parked within 0.1 s" in str(standby_of(device).statistics().problem)
        await poison(device)
        await works(device)


@pytest.mark.parametrize(
    ("name", "match"),
    [(None, "backend 'cpu' cannot park hosts; ask for hot"), ("IsNone", "update the driver")],
)
async def test_where_hosts_cannot_be_parked_opening_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str | None, match: str
) -> None:
    parker(monkeypatch, name)
    with pytest.raises(Unsupported, match=match):
        async with parked():
            pytest.fail("opened")


@pytest.mark.slow
async def test_host_memory_limits_parked_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spare, "host_bytes", lambda _: 20 << 20)
    wanted = Standby(parked=3, host_memory=50 << 20)
    changes = Changes()
    async with hot(standby=wanted, instruments=[changes]) as device:
        with pytest.warns(StandbyWarning, match="3 parked standbys take 62914560 bytes of host me"):
            await changes.until(lambda: standby_of(device).statistics().problem is not None)
        seen = standby_of(device).statistics()
        assert (seen.parked, seen.degraded) == (2, True)
        assert "and host_memory is 52428800" in str(seen.problem)
        assert seen.host_bytes == 40 << 20
        await poison(device)
        await works(device)


@pytest.mark.slow
async def test_a_budget_that_holds_none_leaves_warm_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spare, "host_bytes", lambda _: 60 << 20)
    async with hot(standby=Standby(parked=1, host_memory=50 << 20)) as device:
        with pytest.warns(StandbyWarning, match="keeps a warm standby, not a parked one"):
            await standby_ready(device)
        seen = standby_of(device).statistics()
        assert (seen.mode, seen.parked, seen.degraded) == ("warm", 0, True)
        await poison(device)
        await works(device)


@pytest.mark.slow
async def test_a_host_with_a_lane_of_collectives_is_not_parked() -> None:
    async with parked() as device:
        await standby_ready(device)
        spec = replace(device.core.lanes["memory"][0], name="talks", parkable=False)

        async def open_it() -> None:
            await device.core.open_lane(spec)
            await standby_ready(device)

        with pytest.warns(StandbyWarning, match="a host with lane 'talks' cannot be parked"):
            await open_it()
        assert standby_of(device).statistics().mode == "warm"
        await poison(device)
        await works(device)


# --- random histories -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(sized(2, 12)))
async def test_any_history_ends_with_right_answers_and_no_process(seed: int) -> None:
    rng = random.Random(seed)
    wanted = Standby(hot=rng.randrange(2), parked=1 + rng.randrange(2), warm=rng.randrange(2))
    pids: set[int] = set()
    generation = 1
    async with hot(standby=wanted, backoff=AT_ONCE) as device:
        weights = await device.put(EYE, sealed=True)
        init = functools.partial(load, weights)
        for _ in range(sized(8, 24)):
            pids.update(_pids(device))
            generation += await _step(device, rng)
            pids.update(_pids(device))
            found = await device.retry(_product, device, weights)
            assert np.array_equal(found, 2 * EYE)
            assert device.generation == generation
            if rng.randrange(3) == 0:
                await device.retry(answer, device, init)
        with trio.fail_after(30):
            await standby_ready(device)
        pids.update(_pids(device))
        if rng.randrange(2):
            await poison(device)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def _product(device: Device, weights: Any) -> Any:
    doubled = await device.put(2 * EYE)
    return await device.get(await device.blas.gemm(doubled, weights))


async def _step(device: Device, rng: random.Random) -> int:
    """Do something to the device or its standbys; return the number of faults."""
    hosts = standby_of(device).hosts
    match rng.randrange(7):
        case 0:
            await poison(device)
            await device.core.ready()
            return 1
        case 1:
            await kill_host(device)
            return 1
        case 2 | 3 if hosts:
            rng.choice(hosts).kill()
        case 4:
            with trio.move_on_after(rng.random() / 10):
                await standby_ready(device)
        case 5:
            with trio.fail_after(30):
                await standby_ready(device)
        case _:
            with trio.move_on_after(rng.random() / 100):
                await device.put(np.ones(1 << rng.randrange(16)), sealed=True)
    return 0


def _pids(device: Device) -> Iterator[int]:
    for host in standby_of(device).hosts:
        if host.pid is not None:
            yield host.pid
