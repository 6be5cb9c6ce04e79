"""Buffers as arrays in the program's process, and arrays as buffers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefSealed,
    GpuRefStale,
    OutOfMemory,
    open_device,
)
from atomr_accel._dtypes import DTYPES
from atomr_accel.device.interop._exports import _of_numpy
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import SLAB_SHIFT
from atomr_accel.wire.interop import CUDA, DeviceArray, _borrow_capsule, borrow

from ..array_samples import LAYOUTS, Array, arrays, layouts
from ..dropping import DROPS, REFUSED, failures
from ..forked import in_child
from ..harness import (
    Tensor,
    cancelled_at,
    cpu_only,
    descriptors,
    on_shared,
    opened,
    same_bits,
    used_by,
)

_begun, _let = threading.Event(), threading.Event()
"""Events of a function that waits in the middle of its work, in a host that is a thread."""

DLPACK = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DLPACK |= {"float16", "float32", "float64", "complex64", "complex128"}


# --- export, on the CPU backend -----------------------------------------------------------------


@cpu_only
@given(array=arrays())
@on_shared
async def test_an_export_is_the_buffer_itself(device: Device, array: Array) -> None:
    ref = await device.put(array)
    export = await device.export(ref)
    assert (export.shape, export.dtype, export.nbytes) == (ref.shape, ref.dtype, ref.nbytes)
    view = np.asarray(export)
    assert same_bits(view, array)
    assert same_bits(np.asarray(export.numpy()), array)
    if array.dtype.name in DLPACK:
        assert same_bits(np.from_dlpack(export), array)
    if array.nbytes:
        view.reshape(-1).view(np.uint8)[:] = 0
        assert not (await device.get(ref)).tobytes().strip(b"\0")
    del view, export
    await device.trim()


@cpu_only
@on_shared
async def test_a_part_can_be_exported_and_both_sides_see_writes(device: Device) -> None:
    ref = await device.put(np.arange(12, dtype=np.float32).reshape(3, 4))
    view = np.asarray(await device.export(ref[1]))
    assert list(view) == [4, 5, 6, 7]
    await device.fill(ref, 9)
    assert (view == 9).all()
    view[2] = -1
    assert (await device.get(ref))[1, 2] == -1
    del view
    await device.trim()


@cpu_only
@on_shared
async def test_a_sealed_export_is_read_only(device: Device) -> None:
    ref = await device.put(np.arange(5), sealed=True)
    export = await device.export(ref)
    view = np.asarray(export)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert not np.from_dlpack(export).flags.writeable
    plain = await device.put(np.arange(5))
    view = np.asarray(await device.export(plain))
    with pytest.raises(ValueError, match="ref is exported"):
        await device.seal(plain)
    del view
    collect_garbage()
    assert (await device.seal(plain)).sealed
    del export
    await device.trim()


@cpu_only
@on_shared
async def test_exports_keep_the_memory_and_stale_ones_refuse(device: Device) -> None:
    used = used_by(device)
    ref = await device.put(np.full(1000, 7))
    export = await device.export(ref)
    view = np.from_dlpack(export)
    await device.free(ref)
    for _ in range(20):  # whoever gets memory now does not get that
        await device.fill(await device.empty(1000, np.int64), 1)
    assert (view == 7).all()
    for protocol in ("numpy", "__dlpack__", "__array__"):
        with pytest.raises(GpuRefStale, match="was freed"):
            getattr(export, protocol)()
    with pytest.raises(GpuRefStale, match="was freed"):
        np.asarray(export)
    with pytest.raises(GpuRefStale, match="was freed"):
        await device.export(ref)
    assert used_by(device) > used
    del view, export, ref
    collect_garbage()
    await device.trim()
    assert used_by(device) == used


@cpu_only
@on_shared
async def test_errors_pass_while_exported_arrays_are_dropped(device: Device) -> None:
    exports = []
    for dtype in DTYPES.values():
        for sealed in (False, True):
            ref = await device.put(np.ones((2, 3), dtype), sealed=sealed)
            exports += [await device.export(part) for part in (ref, ref.T, ref[1, 2:], ref[:0])]

    def pass_errors() -> None:
        assert [failures(export, DROPS) for export in exports] == [[]] * len(exports)

    in_child(pass_errors)
    del exports[:]
    await device.trim()


@cpu_only
@on_shared
async def test_a_refused_array_is_given_back(device: Device) -> None:
    used = used_by(device)
    for dtype in DTYPES.values():
        ref = await device.put(np.ones((100, 100), dtype))
        export = await device.export(ref)
        with suppress(*REFUSED):
            np.from_dlpack(export)
        assert failures(export, ["refused call"]) == []
        del ref, export
    collect_garbage()
    await device.trim()
    assert used_by(device) == used


@pytest.mark.slow
@cpu_only
async def test_exports_outlive_faults_and_the_device() -> None:
    before = descriptors()
    async with opened(max_restarts=9) as device:
        ref = await device.put(np.arange(1 << 20))
        sealed = await device.put(np.arange(10), sealed=True)
        export, view2 = await device.export(ref), np.asarray(await device.export(sealed))
        view = np.asarray(export)
        for blow in (poison, kill_host):
            await blow(device)
            assert (view == np.arange(1 << 20)).all()
            assert (np.asarray(await device.export(sealed)) == np.arange(10)).all()
        with pytest.raises(GpuRefStale, match="is of generation 1"):
            np.asarray(export)
        with pytest.raises(GpuRefStale, match="is of generation 1"):
            await device.export(ref)
        await device.trim()
        assert view[-1] == (1 << 20) - 1
    assert view[-1] == (1 << 20) - 1
    assert view2[-1] == 9
    del view, view2, export
    collect_garbage()
    async with opened() as device:
        await device.export(await device.zeros(3))  # which looks for what others have left
    del device
    collect_garbage()
    assert descriptors() == before


@cpu_only
@on_shared
async def test_cancelled_exports_and_adoptions_leave_nothing(device: Device) -> None:
    await device.trim()
    used = used_by(device)
    ref = await device.put(np.arange(1000))
    other = np.arange(1 << 20)
    step = 1
    while await cancelled_at(step, lambda: device.export(ref)):
        step += 1
    step = 1
    while await cancelled_at(step, lambda: device.adopt(Tensor(other))):
        step += 1
    await device.free(ref)
    collect_garbage()
    await device.trim()
    assert used_by(device) == used


# --- adopt --------------------------------------------------------------------------------------


@cpu_only
@given(array=arrays(), layout=layouts)
@on_shared
async def test_numpy_arrays_can_be_adopted(device: Device, array: Array, layout: str) -> None:
    ref = await device.adopt(LAYOUTS[layout](array))
    assert same_bits(await device.get(ref), array)
    doubled = await device.copy(ref)
    assert same_bits(await device.get(doubled), array)


@cpu_only
@on_shared
async def test_arrays_of_other_libraries_can_be_adopted(device: Device) -> None:
    array = np.arange(24.0).reshape(4, 6)
    for part in (array, array[1:3], array[::2, 1:], array.T):
        assert same_bits(await device.get(await device.adopt(Tensor(part))), part.copy())
    with pytest.raises(TypeError, match=r"device\.put takes what numpy\.asarray does"):
        await device.adopt([1, 2, 3])
    with pytest.raises(
        TypeError, match="dtype <U1 cannot live in device memory; use one of bool, int8,"
    ):
        await device.adopt(np.array(["a"]))
    with pytest.raises(ValueError, match="bring it to the CPU first"):
        await device.adopt(DeviceArray(256, (3,), np.dtype(np.float32), device=0))


@pytest.mark.parametrize(
    "function",
    [
        np.sum,
        np.asarray,
        np.copy,
        np.negative,
        np.linalg.norm,
        lambda x: np.ones(3) + x,
        lambda x: np.float32(2) * x,
        lambda x: np.add(x, x),
        lambda x: np.concatenate([x, x]),
        lambda x: np.array([x]),
        lambda x: np.copyto(np.ones(3), x),
        lambda x: np.ones(3).dot(x),
    ],
)
def test_numpy_does_not_take_an_array_on_a_gpu_for_one_object(
    function: Callable[[Any], object],
) -> None:
    array = DeviceArray(256, (3,), np.dtype(np.float32), device=0)
    with pytest.raises(TypeError, match=r"which NumPy cannot see.*await device\.get\(ref\)"):
        function(array)
    assert array.__dlpack_device__() == (CUDA, 0)  # others can


@cpu_only
@on_shared
async def test_exported_memory_returns_without_a_copy(device: Device) -> None:
    ref = await device.put(np.arange(12.0).reshape(3, 4))
    export = await device.export(ref)
    assert await device.adopt(export) is ref
    part = await device.adopt(Tensor(np.asarray(export)[1:]))
    assert part.shape == (2, 4)
    await device.fill(part, 5)
    assert (await device.get(ref))[1:].min() == 5
    await device.free(ref)
    assert part.is_stale
    del export
    await device.trim()


def _fill_when_let(x: np.ndarray[Any, Any]) -> None:
    _begun.set()
    _let.wait()
    x[:] = 7


@cpu_only
async def test_adopted_memory_outlives_a_fault_until_its_lanes_have_ended() -> None:
    """Threads go on after a fault of their context, and write to what their ops were given."""
    _begun.clear()
    _let.clear()
    array = np.zeros(1 << 10)
    alive = weakref.ref(array)

    async def run(device: Device, ref: GpuRef) -> None:
        with pytest.raises((ContextPoisoned, DeviceLost)):
            await device.run(_fill_when_let, ref)

    with pytest.raises(DeviceLost):
        async with open_device(backend="cpu", isolation="thread") as device:
            try:
                ref = await device.adopt(array)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run, device, ref)
                    await trio.to_thread.run_sync(_begun.wait)
                    del ref, array
                    await poison(device)
                collect_garbage()
                assert alive() is not None
            finally:
                _let.set()
            await trio.sleep_forever()
    collect_garbage()
    assert alive() is None


@cpu_only
async def test_under_thread_isolation_memory_is_shared() -> None:
    async with open_device(backend="cpu", isolation="thread") as device:
        array = np.arange(10.0)
        ref = await device.adopt(array)
        await device.fill(ref[5:], 0)
        assert list(array[:7]) == [0, 1, 2, 3, 4, 0, 0]
        sealed = await device.seal(await device.copy(ref))
        assert same_bits(await device.get(sealed), array)
        fixed = np.arange(10.0)
        fixed.flags.writeable = False
        await device.fill(await device.adopt(fixed), 1)  # a copy, then
        assert fixed[3] == 3
        used = device.statistics().memory.used
        await device.free(ref)
        assert device.statistics().memory.used < used


async def test_adopting_with_no_room() -> None:
    async with open_device(backend="cpu", isolation="thread", memory_limit=4 << 20) as device:
        fixed = np.zeros(8 << 20, np.uint8)
        fixed.flags.writeable = False
        with pytest.raises(OutOfMemory):
            await device.adopt(fixed)
        await device.zeros(3)


@pytest.mark.slow
@cpu_only
@pytest.mark.parametrize("blow", [poison, kill_host])
async def test_a_fault_in_the_middle_of_exports_and_adoptions(blow: Any) -> None:
    before = descriptors()
    async with opened(max_restarts=9) as device:
        array = np.arange(1 << 16)
        stop = trio.Event()

        async def export() -> None:
            while not stop.is_set():
                try:
                    ref = await device.put(array)
                    view = np.asarray(await device.export(ref))
                except (ContextPoisoned, GpuRefStale):
                    continue
                assert same_bits(view, array)

        async def adopt() -> None:
            while not stop.is_set():
                try:
                    ref = await device.adopt(Tensor(array))
                    back = await device.get(ref)
                except (ContextPoisoned, GpuRefStale):
                    continue
                assert same_bits(back, array)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(export)
            nursery.start_soon(adopt)
            for _ in range(3):
                for _ in range(30):
                    await trio.lowlevel.checkpoint()
                await blow(device)
                await device.zeros(3)
            stop.set()
        collect_garbage()
        await device.trim()
        assert used_by(device) == 0
    collect_garbage()
    assert descriptors() == before


# --- capsules, on a GPU that is not there -------------------------------------------------------


def test_a_gpus_array_is_no_buffer_where_kernels_would_not_expect_one() -> None:
    from atomr_accel.device.interop._exports import begins_at

    for pointer, dtype, element, buffer in (
        (1 << 20, "float32", True, True),
        ((1 << 20) + 4, "float32", True, False),
        ((1 << 20) + 2, "float32", False, False),
        ((1 << 20) + 128, "complex64", True, False),
        ((1 << 20) + 1, "int8", True, False),
    ):
        borrowed = borrow(DeviceArray(pointer, (3,), np.dtype(dtype), device=0))
        assert begins_at(borrowed, borrowed.dtype.itemsize) == element
        assert begins_at(borrowed, 256) == buffer
    assert begins_at(borrow(np.zeros(9, np.int8)[1:]), 256), "the CPU reads what begins anywhere"


def test_an_array_of_a_gpu_is_shared_where_it_is() -> None:
    array = DeviceArray(1 << 20, (2, 3), np.dtype(np.float32), device=1, sealed=True)
    assert array.__cuda_array_interface__["data"] == (1 << 20, False)
    found = _borrow_capsule(array.__dlpack__(stream=1))
    assert (found.pointer, found.device_type, found.device) == (1 << 20, CUDA, 1)
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(1, 0))


@given(array=arrays(), layout=layouts)
def test_borrowing_is_numpys_view(array: Array, layout: str) -> None:
    part = LAYOUTS[layout](array)
    if not part.flags.writeable or part.dtype.name not in DLPACK or not part.dtype.isnative:
        return
    found = borrow(part)
    assert same_bits(found.as_numpy(), array)
    assert found.contiguous == part.flags.c_contiguous
    if part.size:
        assert np.shares_memory(found.as_numpy(), part)


@cpu_only
@on_shared
async def test_refs_themselves_say_how_to_be_read(device: Device) -> None:
    ref = await device.put(np.zeros(3), sealed=True)
    with pytest.raises(TypeError, match=r"await device\.get\(ref\)"):
        np.asarray(ref)
    with pytest.raises(GpuRefSealed):
        await device.fill(ref, 1)


@cpu_only
async def test_memory_stays_mapped_while_an_array_is_copied_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault ends the buffer meanwhile, and its slab is given up."""
    async with opened() as device:
        exports: Any = device.core.exports
        view = exports._view
        take, mapped = view.take, list[bool]()

        async def fail() -> None:
            await kill_host(device)
            await device.trim()

        def slow(address: int, borrowed: Any) -> None:
            if not mapped:
                trio.from_thread.run(fail)
            mapped.append(address >> SLAB_SHIFT in view.mapped)
            take(address, borrowed)

        monkeypatch.setattr(view, "take", slow)
        array = np.arange(1000.0)
        ref = await exports._take(_of_numpy(array))
        assert mapped == [True, True]
        assert (ref.generation, len(view.mapped)) == (2, 1)
        assert same_bits(await device.get(ref), array)
        before = used_by(device)
        await device.free(ref)
        assert used_by(device) < before
