"""Faults in the middle of moving data: the right error, nothing corrupt, nothing leaked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale
from atomr_accel.device.data.transfer import in_chunks
from atomr_accel.testing import kill_host
from atomr_accel.testing.garbage import collect_garbage

from ..array_samples import Array, random_bits
from ..harness import ON_CUDA, Gate, Tensor, descriptors, opened, same_bits, settled, used_by

NBYTES: Final = 64 << 20 if ON_CUDA else 20 << 20
MOVED: Final = 1 << 30 if ON_CUDA else NBYTES
"""Size of an array that ``put`` and ``get`` move, in bytes."""


def made_here() -> Callable[[Any], int]:
    """A function of a function travels by value."""

    def length(x: Any) -> int:
        return len(x)

    return length


CALLS: Final[dict[str, Callable[[Device, GpuRef, Array], Awaitable[object]]]] = {
    "put": lambda device, ref, array: device.put(array, out=ref),
    "get": lambda device, ref, array: device.get(ref, out=array),
    "export": lambda device, ref, array: device.export(ref),
    "share": lambda device, ref, array: device.share(ref),
    "seal": lambda device, ref, array: device.seal(ref),
    "copy": lambda device, ref, array: device.copy(ref),
    "run": lambda device, ref, array: device.run(made_here(), ref),
}
"""Calls that wait for a kernel that holds ``ref``, and are in flight meanwhile."""


@cache
def noise(nbytes: int) -> Array:
    array = random_bits((nbytes // 4,), np.dtype(np.float32), 0)
    array.flags.writeable = False
    return array


def nothing_is_held(device: Device) -> bool:
    """Return whether all staging and pinned memory has been freed."""
    core = device.core
    held = core.staging._pool.in_use or device.pinned.statistics().used
    return not (held or core.transfers or core.reaper.quarantined or core.reaper.terminating)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "page_locked"),
    [*((call, False) for call in CALLS), ("put", True), ("get", True)],
)
@pytest.mark.parametrize("blow", ["fault", "kill"])
async def test_a_fault_in_the_middle(gate: Gate, call: str, blow: str, page_locked: bool) -> None:
    content = noise(MOVED if call in ("put", "get") else NBYTES)
    async with opened(pinned_limit=content.nbytes + (1 << 20), max_restarts=9) as device:
        hold = await gate.kernel(device)
        sealed = await device.put(content, sealed=True)
        small = np.zeros(1, np.float32)
        await CALLS[call](device, await device.put(small), small)  # its lane is open
        await device.trim()
        before = descriptors()
        async with device.pinned.array(content.shape, np.float32) as own:
            own[:] = content
            array = own if page_locked else content.copy()
            ref = await device.put(np.zeros_like(content))
            errors: list[ContextPoisoned] = []

            async def in_flight(function: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(ContextPoisoned) as caught:
                    await function()
                errors.append(caught.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_flight, partial(hold, ref, fault=blow == "fault"))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(in_flight, partial(CALLS[call], device, ref, array))
                # Its ops are in flight behind the kernel, and staging memory is full.
                while device.statistics().in_flight < 2:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked(cushion=0.02)
                assert device.statistics().in_flight >= 2
                if blow == "kill":
                    await kill_host(device)
                else:
                    gate.open()
            assert len(errors) == 2
            assert {error.generation for error in errors} == {1}
            assert len({id(error.__cause__) for error in errors}) == 1
            assert ref.is_stale
            assert call == "get" or same_bits(array, content)
            await works(device, sealed, content)
        del ref, own, array
        errors.clear()
        collect_garbage()  # tracebacks hold refs and arrays in cycles
        await settled(device)
        while not nothing_is_held(device):  # until the old host has ended
            await trio.lowlevel.checkpoint()
        await device.trim()
        await device.pinned.trim()
        assert descriptors() <= before
        await device.free(sealed)
        assert used_by(device) == 0


@pytest.mark.slow
@pytest.mark.parametrize("blow", ["fault", "kill"])
async def test_a_fault_while_an_array_is_adopted(gate: Gate, blow: str) -> None:
    content = noise(MOVED)
    async with opened(max_restarts=9) as device:
        hold = await gate.kernel(device)
        sealed = await device.put(content, sealed=True)
        cells = await device.zeros(1, np.float32)
        refs: list[GpuRef] = []

        async def adopt() -> None:
            # The buffer is new: one that is lost before anything has arrived is made again.
            try:
                refs.append(await device.adopt(Tensor(content.copy())))
            except ContextPoisoned as error:
                assert error.generation == 1  # noqa: PT017 (either is right)

        async def break_it() -> None:
            if blow == "kill":
                await kill_host(device)
            else:
                gate.open()
                with pytest.raises(ContextPoisoned):
                    await hold(cells, fault=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(adopt)
            while not device.statistics().transfers:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(break_it)
        if refs and not refs[0].is_stale:
            assert same_bits(await device.get(refs[0]), content)
        await works(device, sealed, content)
        refs.clear()
        await device.free(cells) if not cells.is_stale else None
        while not nothing_is_held(device):
            await trio.lowlevel.checkpoint()
        await device.free(sealed)
        await device.trim()
        assert used_by(device) == 0


async def works(device: Device, sealed: GpuRef, content: Array) -> None:
    """Check that sealed data has not changed, and that data moves both ways."""
    assert same_bits(await device.get(sealed), content)
    again = await device.put(content)
    assert same_bits(await device.get(again), content)
    await device.free(again)
    with pytest.raises(GpuRefStale):
        await device.get(again)


async def test_ended_transfer_is_not_kept_alive() -> None:
    """The transfer's array is freed too, without a garbage collection."""

    async def move(start: int, _length: int) -> None:
        await trio.lowlevel.checkpoint()
        raise GpuRefStale(f"at {start}")

    gc.disable()
    try:
        try:
            await in_chunks(1 << 30, move)
        except GpuRefStale as error:
            told = weakref.ref(error)
        assert told() is None
    finally:
        gc.enable()
