"""Hosts on standby: their preparation, their use, and their leftovers."""

from __future__ import annotations

import errno
import functools
import os
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    Device,
    DeviceLost,
    GpuRef,
    GpuRefStale,
    OutOfMemory,
    Standby,
    StandbyWarning,
    Unsupported,
)
from atomr_accel.actors import Backoff
from atomr_accel.device import _open
from atomr_accel.device._growth import SlabGrowth
from atomr_accel.device.contexts import context as _context
from atomr_accel.device.contexts._prepared import PreparedHost
from atomr_accel.device.core import DeviceCore
from atomr_accel.device.standby import _budget, _spare
from atomr_accel.device.standby._keeper import StandbyKeeper
from atomr_accel.lanes import HostDied, HostHandle, Isolation, start_host
from atomr_accel.testing import kill_host, poison, standby_ready
from atomr_accel.testing.garbage import collect_garbage
from tests.harness import cpu_only, descriptors, opened

from .in_host import (
    has_imported,
    import_from,
    import_rare,
    load,
    load_and_note,
    load_once,
    load_slowly,
)
from .standbys import EYE, OFTEN, answer, hot, standby_of, works

pytestmark = [  # each starts hosts, and most several
    cpu_only,
    pytest.mark.slow,
    pytest.mark.usefixtures("patient", "at_once"),
]


def mapped_by(standby: StandbyKeeper) -> set[int]:
    """The slabs that the best one has."""
    prepared = standby._best_first()[0].prepared
    return set() if prepared is None else prepared.mapped


# --- what a hot one has prepared ----------------------------------------------------------------


async def test_a_hot_one_has_all_that_the_device_has() -> None:
    async with hot() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await works(device)
        before, _ = await answer(device, init)
        ends: list[Callable[[Device], Awaitable[object]]] = [poison, kill_host, poison]
        for end in ends:
            await standby_of(device).wait_ready()
            host = standby_of(device).hosts[0]
            ready = time.monotonic()
            await end(device)
            pid, made = await answer(device, init)
            assert pid == host.pid != before
            assert made < ready  # not again
            startup = device.statistics().startup
            assert startup is not None
            assert startup.remapped_bytes == 0
            assert {lane.name for lane in device.statistics().lanes} >= {"memory", "blas", "run"}
            await works(device)
            before = pid


async def test_standby_follows_later_seals_and_frees() -> None:
    async with hot() as device:
        standby = standby_of(device)
        await standby.wait_ready()
        for number in range(2):
            first = await device.put(np.full(3, number), sealed=True)
            second = await device.seal(await device.put(np.full(1 << 20, number, np.int32)))
            await standby.wait_ready()
            slabs = {slab.id for slab in device.core.memory.surviving_slabs()}
            assert mapped_by(standby) == slabs
            await poison(device)
            assert (await device.get(first)).tolist() == [number] * 3
            await device.free(first)
            await device.free(second)
            await device.trim()
            assert standby._best_first()[0].prepared is None or not mapped_by(standby)
            await standby.wait_ready()
            assert not mapped_by(standby)


async def test_plans_and_kernels_are_made_there() -> None:
    async with hot() as device:
        kernel = await device.nvrtc.compile(_NOTHING, "nothing", cpu=print)
        await kernel.launch(1, 1, await device.zeros(2, np.float32))
        await device.fft.fft(await device.put(np.ones(8, np.complex64)))
        await device.fft.fft(await device.put(np.ones(9, np.complex64)))
        weight = await device.put(np.ones(4, np.float32), sealed=True)
        await device.dnn.layer_norm(await device.put(np.ones((2, 4), np.float32)), weight, weight)
        await standby_ready(device)
        spare = standby_of(device)._best_first()[0]
        assert spare.shadow is not None
        done = {name: port.statistics().completed for name, port in spare.shadow.ports.items()}
        assert done["fft"] >= 2
        assert done["kernels"] >= 1
        assert sum(done[lane] for lane in done if lane.startswith("dnn")) >= 1
        for _ in range(2):
            await poison(device)
            await works(device)
            await kernel.launch(1, 1, await device.zeros(2, np.float32))
            await standby_ready(device)


async def test_plans_are_made_again_in_a_warm_one_before_the_program_asks() -> None:
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        weight = await device.put(np.ones(4, np.float32), sealed=True)
        await device.dnn.layer_norm(await device.put(np.ones((2, 4), np.float32)), weight, weight)
        await standby_ready(device)
        await kill_host(device)
        await works(device)
        lanes = {lane.name: lane for lane in device.statistics().lanes}
        assert lanes["dnn-plans"].submitted >= 1


async def test_recordings_are_captured_in_advance() -> None:
    async with hot() as device:
        standby = standby_of(device)
        weights = await device.put(2 * EYE, sealed=True)
        x, flag = await device.put(EYE), await device.put(np.array([1], np.int32))
        async with device.record(x) as inner:
            doubled = inner.blas.gemm(x, weights)
        async with device.record(x, flag) as outer:
            outer.call(inner, x)
            with outer.when(flag):
                product = outer.blas.gemm(doubled, x)
        for number in (1, 2):
            if number > 1:
                x, flag = await device.put(number * EYE), await device.put(np.array([1], np.int32))
            await outer.replay(x, flag)
            await standby_ready(device)
            spare = standby._best_first()[0]
            assert spare.prepared is not None
            assert spare.shadow is not None
            assert spare.prepared.captured == {outer.number}
            assert spare.shadow.ports["recordings"].statistics().completed == 1
            assert not spare.shadow.memory._slabs  # nothing is left of what it was captured on
            await outer.replay(x, flag)  # which has changed nothing here
            assert np.array_equal(await device.get(product), 2 * number**2 * EYE)
            host = standby.hosts[0]
            await poison(device)
            await works(device)
            assert device.statistics().host_pid == host.pid
        # What the host has captured goes with the recording, also where nobody has replayed it.
        before = device.core.ports["recordings"].statistics().submitted
        del outer, inner, doubled, product
        collect_garbage()
        await works(device)
        assert device.core.ports["recordings"].statistics().submitted == before + 1
        await standby_ready(device)


async def test_recordings_that_are_gone_are_forgotten_there() -> None:
    async with hot() as device:
        standby = standby_of(device)
        x = await device.put(EYE)
        async with device.record(x) as recording:
            recording.blas.gemm(x, x)
        await recording.replay()
        await standby_ready(device)
        spare = standby._best_first()[0]
        assert spare.prepared is not None
        assert spare.prepared.captured
        del recording
        collect_garbage()
        device.core.changed()
        await standby_ready(device)
        assert not spare.prepared.captured
        await poison(device)
        await works(device)


async def test_a_recording_that_cannot_be_captured_there_is_captured_later() -> None:
    async with hot() as device:
        gone, weights = await device.put(EYE, sealed=True), await device.put(EYE, sealed=True)
        x = await device.put(EYE)
        async with device.record(x) as recording:
            product = recording.blas.gemm(x, gone)
        await device.free(gone)
        await recording.replay(replace={gone: weights})
        await standby_ready(device)
        await poison(device)
        await recording.replay(await device.put(3 * EYE), replace={gone: weights})
        assert np.array_equal(await device.get(product), 3 * EYE)


async def test_a_state_of_what_does_not_survive_is_not_made() -> None:
    """The state takes a plain buffer, which is stale after the fault."""
    async with hot() as device:
        init = functools.partial(load, await device.put(EYE))
        await answer(device, init)
        await standby_of(device).wait_ready()
        await poison(device)
        with pytest.raises(GpuRefStale):
            await answer(device, init)
        await works(device)


async def test_a_state_that_cannot_be_made_there_is_made_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A port that only one process can have, say."""
    there = tmp_path / "there"
    async with hot() as device:
        init = functools.partial(load_once, str(there), await device.put(EYE, sealed=True))
        await answer(device, init)
        await standby_of(device).wait_ready()
        assert "cannot have the state of lane 'run'" in caplog.text
        there.unlink()
        await poison(device)
        await answer(device, init)


async def test_standby_is_used_while_it_prepares_state(tmp_path: Path) -> None:
    """And goes on with that: the state is made once."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    os.mkfifo(gate)
    fd = os.open(gate, os.O_RDWR)
    try:
        async with hot() as device:
            weights = await device.put(EYE, sealed=True)
            init = functools.partial(load_slowly, str(gate), str(log), weights)
            os.write(fd, b".")
            before, _ = await answer(device, init)
            while device.statistics().standby.state != "init":  # type: ignore[union-attr]
                await trio.lowlevel.checkpoint()
            await kill_host(device)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer, device, init)
                await works(device)  # other lanes need not wait for it
                os.write(fd, b".")
            pid, _ = await answer(device, init)
            assert pid != before
            while len(log.read_text().split()) < 3:  # that of the next standby has begun
                await trio.lowlevel.checkpoint()
            assert log.read_text().split()[:2] == [str(before), str(pid)]
            os.write(fd, b"..")
    finally:
        os.close(fd)


# --- warming up -----------------------------------------------------------------------------


async def test_warm_up_gets_a_device_that_nothing_is_left_of() -> None:
    seen: list[tuple[int | None, int | None]] = []
    made: list[GpuRef] = []
    devices: list[Device] = []

    async def warm_up(rehearsal: Device) -> None:
        if "sealed" not in shared:
            return
        a = await rehearsal.put(2 * EYE)
        product = await rehearsal.get(await rehearsal.blas.gemm(a, shared["sealed"]))
        assert np.array_equal(product, 2 * EYE)
        async with rehearsal.batch() as batch:
            batch.fft.fft(await rehearsal.put(np.ones(8, np.complex64)))
        async with rehearsal.record(a) as recording:
            squared = recording.blas.gemm(a, shared["sealed"])
        await recording.replay()
        assert np.array_equal(await rehearsal.get(squared), 2 * EYE)
        seen.append((rehearsal.statistics().host_pid, device.statistics().host_pid))
        made.append(a)
        devices.append(rehearsal)

    shared: dict[str, Any] = {}
    async with hot(standby=Standby(hot=1, warm_up=warm_up)) as device:
        shared["sealed"] = await device.put(EYE, sealed=True)
        for _ in range(2):
            await standby_of(device).wait_ready()
            host = standby_of(device).hosts[0]
            assert seen[-1][0] == host.pid != seen[-1][1] == device.statistics().host_pid
            assert made[-1].is_stale
            with pytest.raises(ValueError, match="where the op runs, not on"):
                await device.get(made[-1])
            await poison(device)
            await works(device)
            with pytest.raises(DeviceLost, match="its warm_up, which is over"):
                await works(devices[-1])
            assert {lane.name for lane in device.statistics().lanes} >= {"memory", "blas", "fft"}
            assert np.array_equal(await device.get(shared["sealed"]), EYE)


async def test_a_state_is_made_once_in_each_host_however_often_it_warms_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rehearsals = 0

    async def warm_up(rehearsal: Device) -> None:
        nonlocal rehearsals
        if init is not None:
            await answer(rehearsal, init)
            await rehearsal.put(np.ones(1 << 20))
            rehearsals += 1

    init: Callable[[], Any] | None = None
    async with hot(standby=Standby(hot=1, warm_up=warm_up)) as device:
        init = functools.partial(load_and_note, str(log), await device.put(EYE, sealed=True))
        for _ in range(2):
            await answer(device, init)
            await standby_ready(device)
            device.core.changed()
            await standby_ready(device)
            assert rehearsals >= 2
            await poison(device)
            rehearsals = 0
        await answer(device, init)
        made = log.read_text().split()
        assert len(set(made)) == len(made) >= 3


async def test_warm_up_buffers_are_not_taken_for_the_programs_own() -> None:
    """Plans and kernels have numbers in the host, and both of them count."""

    def kernel(value: int) -> Callable[[Any], None]:
        def run(cells: Any) -> None:
            cells[:] = value

        return run

    async def use(device: Device, lengths: tuple[int, ...], value: int) -> list[Any]:
        made = await device.nvrtc.compile(_NOTHING, "nothing", cpu=kernel(value))

        async def again() -> None:
            cells = await device.zeros(2, np.float32)
            await made.launch(1, 1, cells)
            assert (await device.get(cells)).tolist() == [value] * 2
            for length in lengths:
                host = np.arange(length) + 1j
                found = await device.get(await device.fft.fft(await device.put(host)))
                np.testing.assert_allclose(found, np.fft.fft(host), atol=1e-9)

        await again()
        return [again]

    async def warm_up(rehearsal: Device) -> None:
        await use(rehearsal, (5, 6, 7, 8), 1)

    async with hot(standby=Standby(hot=1, warm_up=warm_up)) as device:
        (again,) = await use(device, (8, 5, 9), 2)
        for _ in range(2):
            await standby_ready(device)
            await poison(device)
            await again()


_NOTHING: Final = 'extern "C" __global__ void nothing(float* cells) {}'


async def test_a_warm_up_that_fails_is_told_and_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    async def warm_up(rehearsal: Device) -> None:
        with pytest.raises(Unsupported, match="cannot seal anything"):
            await rehearsal.put(EYE, sealed=True)
        raise ZeroDivisionError("once more")

    async with hot(standby=Standby(hot=1, warm_up=warm_up)) as device:
        await standby_of(device).wait_ready()
        assert "ZeroDivisionError('once more')" in caplog.text
        seen = standby_of(device).statistics()
        assert seen.problem == "warm_up of a standby failed: ZeroDivisionError('once more')"
        assert not seen.degraded
        await poison(device)
        await works(device)


async def test_standby_is_used_while_it_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spare, "LONG_SECONDS", -1.0)
    begun = trio.Event()

    async def warm_up(rehearsal: Device) -> None:
        await rehearsal.put(np.ones(1 << 20))
        begun.set()
        await trio.sleep_forever()

    async with hot(standby=Standby(hot=1, warm_up=warm_up)) as device:
        await begun.wait()
        host = standby_of(device).hosts[0]
        seen = standby_of(device).statistics()
        assert seen.state == "warming up"
        assert seen.degraded
        assert "warm_up of a standby has not returned for" in str(seen.problem)
        await poison(device)
        await works(device)
        assert device.statistics().host_pid == host.pid


async def test_a_fault_while_it_warms_up_is_the_standbys_own() -> None:
    faults: list[Callable[[Device], Awaitable[object]]] = [poison, kill_host]

    async def warm_up(rehearsal: Device) -> None:
        if faults:
            await faults.pop()(rehearsal)

    async with hot(standby=Standby(hot=1, warm_up=warm_up), max_restarts=0) as device:
        await standby_of(device).wait_ready()
        assert device.generation == 1
        assert device.statistics().faults == 0
        statistics = device.statistics().standby
        assert statistics is not None
        assert statistics.died == 2
        await works(device)


# --- when the next host is taken ------------------------------------------------------------------


async def test_a_fault_is_not_waited_for_but_a_restart_that_fails_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def rng() -> float:
        waits.append(trio.current_time())
        return 0.5

    monkeypatch.setattr(_open, "_RESTART_BACKOFF", Backoff(base=1e-3, jitter=0.5, rng=rng))
    async with opened(standby=Standby(warm=1), backoff=None, max_restarts=OFTEN) as device:
        for _ in range(3):
            await standby_ready(device)
            await poison(device)
            await works(device)
        assert not waits

        async def start(isolation: Isolation, *_: object) -> HostHandle:
            if len(waits) < 2:
                raise OSError(errno.EAGAIN, "no room for another process")
            return await start_host(isolation)

        monkeypatch.setattr(_context, "start_host", start)
        monkeypatch.setattr(_spare, "start_host", start)
        for _ in range(2):  # the one that is ready, and one that is not
            await kill_host(device)
        await works(device)
        assert len(waits) == 2


# --- how many, and what of them is told -----------------------------------------------------------


async def test_standby_count_matches_the_option() -> None:
    async with hot(standby=Standby(hot=2)) as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await answer(device, init)
        await standby_of(device).wait_ready()
        hosts = {host.pid for host in standby_of(device).hosts}  # that in reserve may be ready, too
        assert len(hosts) >= 2
        seen = set()
        for _ in range(2):
            await poison(device)
            seen.add((await answer(device, init))[0])
        assert len(seen) == 2
        assert seen <= hosts
        statistics = device.statistics().standby
        assert statistics is not None
        assert (statistics.mode, statistics.kept, statistics.used) == ("hot", 2, 2)
        await standby_of(device).wait_ready()


async def test_one_that_dies_is_replaced_and_is_no_fault() -> None:
    async with hot(max_restarts=0) as device:
        standby = standby_of(device)
        for number in range(2):
            await standby.wait_ready()
            standby.hosts[0].kill()
            while standby.ready:
                await trio.lowlevel.checkpoint()
            await standby.wait_ready()
            assert standby.statistics().died == number + 1
        assert device.generation == 1
        await works(device)


async def test_a_storm_of_faults_ends_with_a_hot_one() -> None:
    async with hot() as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        for _ in range(6):
            await poison(device)
            await answer(device, init)
        await standby_of(device).wait_ready()
        statistics = device.statistics().standby
        assert statistics is not None
        assert (statistics.mode, statistics.state) == ("hot", "ready")
        assert device.generation == 7


# --- no room ---------------------------------------------------------------------------------


def costs(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Contexts take some of the device's memory."""
    usual = PreparedHost.open

    async def open_(self: PreparedHost, core: DeviceCore) -> Any:
        info = await usual(self, core)
        hosts[self.host] = core
        return info

    async def free_memory(host: HostHandle) -> int:
        core = hosts[host]
        await trio.lowlevel.checkpoint()
        open_now = sum(other.alive for other in hosts)
        free: int = (1 << 30) - open_now * nbytes - core.memory.capacity
        return free

    hosts: dict[Any, DeviceCore] = {}
    monkeypatch.setattr(PreparedHost, "open", open_)
    monkeypatch.setattr(_budget, "free_memory", free_memory)


@pytest.mark.parametrize("opens", [False, True])
async def test_a_second_context_that_cannot_be_had_leaves_a_warm_one(
    monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    usual = PreparedHost.open

    async def refuse(*_: object) -> Any:
        await trio.lowlevel.checkpoint()
        raise OutOfMemory("all but one are prohibited", requested=0)

    async def exclusive(self: PreparedHost, core: DeviceCore) -> Any:
        if core.original is not None:
            if not opens:
                await refuse()
            info = await usual(self, core)
            self.host.request = refuse  # type: ignore[assignment] # page-locking fails, say
            return info
        return await usual(self, core)

    monkeypatch.setattr(PreparedHost, "open", exclusive)
    async with hot(max_restarts=3) as device:
        with pytest.warns(StandbyWarning, match="a second context cannot be had: all but"):
            await standby_of(device).wait_ready()
        for _ in range(3):  # it is told once
            await standby_of(device).wait_ready()
            statistics = device.statistics().standby
            assert statistics is not None
            assert (statistics.mode, statistics.died) == ("warm", 0)
            assert statistics.degraded
            assert "a second context cannot be had: all but" in str(statistics.problem)
            host = standby_of(device).hosts[0]
            await kill_host(device)  # `poison` opens a lane first, which the standbys follow
            await works(device)
            assert opens or device.statistics().host_pid == host.pid


async def test_a_limit_without_room_for_a_second_context_leaves_a_warm_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs(monkeypatch, 64 << 20)
    async with hot(memory_limit=32 << 20) as device:
        with pytest.warns(StandbyWarning, match="takes 67108864 bytes, 33554432 more than"):
            await standby_of(device).wait_ready()
        assert standby_of(device).statistics().mode == "warm"
        assert standby_of(device).statistics().nbytes == 0
        await poison(device)
        await works(device)


async def test_the_program_comes_before_its_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    costs(monkeypatch, 16 << 20)
    async with hot(memory_limit=32 << 20) as device:
        await standby_of(device).wait_ready()
        assert standby_of(device).statistics().nbytes == 16 << 20
        small = await device.zeros(8 << 20, np.uint8)
        assert standby_of(device).statistics().mode == "hot"
        with pytest.warns(StandbyWarning, match="the program needs its memory"):
            large = await device.zeros(18 << 20, np.uint8)
        assert (await device.get(large)).sum() == 0
        await standby_of(device).wait_ready()
        assert standby_of(device).statistics().mode == "warm"
        assert standby_of(device).statistics().died == 0
        with pytest.raises(OutOfMemory, match="its memory_limit is"):
            await device.zeros(18 << 20, np.uint8)
        del small, large
        await poison(device)
        await works(device)
        await standby_of(device).wait_ready()
        assert standby_of(device).statistics().mode == "hot"  # there is room again


async def test_memory_of_a_host_that_is_ending_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hot standby is back before the driver has freed all that the last host had."""
    usual = SlabGrowth._create_now

    async def create(self: SlabGrowth, *args: Any, **kwargs: Any) -> Any:
        if not last.ended:
            await trio.lowlevel.checkpoint()
            refused.append(args)
            last.kill()
            raise OutOfMemory("another has it", requested=0)
        return await usual(self, *args, **kwargs)

    refused: list[Any] = []
    async with hot() as device:
        await standby_ready(device)
        last = await start_host("process")
        device.core.reaper.terminating.append(last)
        monkeypatch.setattr(SlabGrowth, "_create_now", create)
        await works(device)
        assert refused
        assert last not in device.core.reaper.terminating
        assert standby_of(device).statistics().mode == "hot"


async def test_without_a_standby_nobody_waits_for_one() -> None:
    async with opened(standby=None) as device:
        assert device.statistics().standby is None
        with pytest.raises(Unsupported, match="keeps no standby"):
            await standby_ready(device)


# --- what a warm one has imported ---------------------------------------------------------------


async def test_a_warm_one_has_imported_what_functions_have() -> None:
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        assert not await device.run(has_imported, "wave")
        assert await device.run(import_rare)
        await standby_of(device).wait_ready()
        for _ in range(2):
            await poison(device)
            assert await device.run(has_imported, "wave")
            await standby_of(device).wait_ready()


async def test_standby_works_without_memory_that_it_cannot_import(tmp_path: Path) -> None:
    """A module that is not there any more, or ends its process's life with an exception."""
    (tmp_path / "only_once.py").write_text("x = 1\n")
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        await device.run(import_from, str(tmp_path), "only_once")
        (tmp_path / "only_once.py").unlink()
        await standby_of(device).wait_ready()
        await poison(device)
        await works(device)


# --- nothing is left ---------------------------------------------------------------------------


async def test_standbys_leave_nothing_behind() -> None:
    before = descriptors()
    pids = []
    async with hot(standby=Standby(hot=2)) as device:
        init = functools.partial(load, await device.put(EYE, sealed=True))
        await answer(device, init)
        await standby_of(device).wait_ready()
        pids += [host.pid for host in standby_of(device).hosts]
        await poison(device)
        await answer(device, init)
        pids.append(device.statistics().host_pid)
    assert descriptors() == before
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_warnings_as_errors_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    costs(monkeypatch, 64 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StandbyWarning)
        async with hot(memory_limit=32 << 20) as device:
            await standby_of(device).wait_ready()
            await works(device)


async def test_a_host_that_cannot_say_what_it_imported_ends_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def learn(host: HostHandle, core: DeviceCore) -> None:
        await trio.lowlevel.checkpoint()
        raise HostDied("it has ended")

    monkeypatch.setattr(_spare, "learn", learn)
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        await device.run(has_imported, "wave")
        await standby_of(device).wait_ready()


async def test_a_host_hears_of_what_a_warm_up_has_left_when_it_is_taken_meanwhile() -> None:
    heard = []

    class Host:
        """One that is busy when it is taken."""

        async def request(self, message: Any, *, required: bool = False) -> None:
            if not required:
                await trio.lowlevel.checkpoint_if_cancelled()
            heard.extend(message.ids)

    shadow: Any = SimpleNamespace(
        in_flight={},
        memory=SimpleNamespace(epoch=None, abandon=lambda: [7]),
        host_calls=SimpleNamespace(keep_states=lambda *_: None),
    )
    prepared: Any = SimpleNamespace(host=Host(), mapped=set())
    spare: Any = None
    with trio.CancelScope() as scope:
        scope.cancel()
        await _spare.Spare._give_back(spare, shadow, prepared)
    assert heard == [7]
