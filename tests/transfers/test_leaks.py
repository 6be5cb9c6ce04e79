"""Cycles and deaths by the thousand: everything ends where it began.

The full numbers take minutes, so they run in the session ``full``, on either backend.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import outcome
import pytest
import trio

from atomr_accel import Device
from atomr_accel.device.data.transfer import in_worker
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host
from atomr_accel.testing.garbage import collect_garbage

from ..harness import FULL, ON_CUDA, SECONDS, cpu_only, descriptors, opened, same_bits, settled

IN_FULL: Final = [
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="of the session full"),
]

MIB: Final = 1 << 20
SIZES: Final = [1, 4096, 300_000, 3 * MIB]
SLACK: Final = (64 if ON_CUDA else 12) * MIB
"""Allowed difference of resident memory, in bytes; the driver's processes differ more."""


def made_here() -> Callable[[], int]:
    """A function of a function travels by value."""

    def free_bytes() -> int:
        from cuda.bindings import driver

        free: int = driver.cuMemGetInfo()[1]
        return free

    return free_bytes


def anonymous(pid: int | str) -> int:
    """Bytes of a process's own memory that are resident."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


class Thing:
    """An object that a thread may hold."""


@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_thread_that_has_not_gone_on_holds_nothing(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread keeps the objects that it has handed over until the kernel lets it run."""
    held: list[Any] = []

    async def run_sync(function: Callable[[], Any], **_options: Any) -> Any:
        result = outcome.capture(function)
        held.extend((function, result))
        await trio.lowlevel.checkpoint()
        return result.unwrap()

    def work(thing: Thing) -> Thing:
        if fails:
            raise ZeroDivisionError
        return thing

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    thing = Thing()
    gone = weakref.ref(thing)
    with suppress(ZeroDivisionError):
        await in_worker(work, thing)
    del thing
    collect_garbage()
    assert gone() is None
    assert held


class Boom(Exception):
    """Raised by the program."""


@cpu_only
@pytest.mark.parametrize("how", ["nothing", "pinned", "returned", "snapshot", "export"])
def test_a_closed_device_is_gone_whatever_an_error_holds(how: str, isolation: Isolation) -> None:
    """An error refers to the frames that it has passed, and these to arrays."""
    seen: list[weakref.ref[Any]] = []

    async def fails() -> Any:
        async with opened(isolation=isolation) as device:
            seen.append(weakref.ref(device.core))
            x = await device.put(np.ones(1000))
            if how == "pinned":
                async with device.pinned.array((1000,)) as array:
                    raise Boom(array.shape)
            if how == "returned":
                async with device.pinned.array((1000,)) as array:
                    return array
            if how == "snapshot":
                _snapshot = await device.snapshot([x])
            elif how == "export":
                array = np.asarray(await device.export(x))
            raise Boom

    for _ in range(2):
        with suppress(Boom):
            trio.run(fails)
        collect_garbage()
        assert seen.pop()() is None


class Census:
    """Counts of things that may leak, at one moment."""

    def __init__(self, device: Device, free: int) -> None:
        collect_garbage()
        host = device.statistics().host_pid or "self"
        memory = device.statistics().memory
        pinned = device.pinned.statistics()
        self.exact = {
            "descriptors": descriptors(),
            "the host's": len([*Path(f"/proc/{host}/fd").iterdir()]),
            "processes": sum(
                len(task.read_text(encoding="ascii").split())
                for task in Path("/proc/self/task").glob("*/children")
            ),
            "slabs": (memory.slabs, memory.capacity, memory.used, memory.stale),
            "page-locked": (pinned.arenas, pinned.capacity, pinned.used),
            "staging": device.core.staging._pool.in_use,
        }
        self.objects = len(gc.get_objects())
        self.resident = {"program": anonymous("self"), "host": anonymous(host)}
        self.free = free

    @classmethod
    async def of(cls, device: Device) -> Census:
        await settled(device)
        reaper = device.core.reaper
        while reaper.terminating or reaper.quarantined:  # until those hosts have ended
            await trio.lowlevel.checkpoint()
        await device.trim()
        # Where other tests run beside this one, theirs would count, too.
        alone = "PYTEST_XDIST_WORKER" not in os.environ
        free: Any = await device.run(made_here()) if ON_CUDA and alone else 0
        return cls(device, free)

    def assert_kept(self, before: Census, times: int) -> None:
        assert self.exact == before.exact
        assert self.objects - before.objects < 300 + times / 10
        for where, resident in self.resident.items():
            assert resident - before.resident[where] < SLACK, where
        assert abs(self.free - before.free) < 32 * MIB


async def cycle(device: Device, times: int) -> None:
    arrays = [np.full(size, 7, np.uint8) for size in SIZES]
    for at in range(times):
        array = arrays[at % len(arrays)]
        ref = await device.put(array)
        back = await device.get(ref)
        assert back[-1] == 7
        if at % 3:
            await device.free(ref)


@pytest.mark.slow
@pytest.mark.parametrize("times", [400, pytest.param(10_000, marks=IN_FULL)])
async def test_cycles_of_put_get_and_free_leave_nothing(isolation: Isolation, times: int) -> None:
    async with opened(isolation=isolation) as device:
        await cycle(device, 100)
        before = await Census.of(device)
        await cycle(device, times)
        (await Census.of(device)).assert_kept(before, times)


@pytest.mark.slow
@pytest.mark.parametrize("times", [8, pytest.param(200, marks=IN_FULL)])
def test_deaths_of_hosts_leave_nothing(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is logged is kept by pytest, with each fault and its traceback.
    monkeypatch.setattr(logging.getLogger("atomr_accel.actors"), "disabled", True)
    trio.run(deaths, times)


async def deaths(times: int) -> None:
    sealed_array = np.arange(1 << 18)
    with trio.fail_after(SECONDS + 3 * times):
        async with opened(max_restarts=10**6, standby=None) as device:
            sealed = await device.put(sealed_array, sealed=True)

            async def die(times: int) -> None:
                for _ in range(times):
                    ref = await device.put(sealed_array)
                    async with device.pinned.array((1000,), np.uint8) as array:
                        array[:] = 1
                        await device.put(array)
                    await kill_host(device)
                    assert ref.is_stale
                    assert same_bits(await device.get(sealed), sealed_array)

            await die(2)
            before = await Census.of(device)
            await die(times)
            (await Census.of(device)).assert_kept(before, times)
