"""The CUDA backend's context, streams and memory lane, on a GPU of the host's memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atomr_accel import DeviceUnavailable, OutOfMemory, open_device
from atomr_accel.backends import cuda
from atomr_accel.backends.cuda.host.context import CudaContext
from atomr_accel.wire import SLAB_SHIFT, StickyFault, StreamPlan

from ..fakes.driver import installed, memory
from ..fakes.gpu import GRANULARITY, MEMORY, FakeGpu
from ..harness import cpu_only

pytestmark = cpu_only


@pytest.fixture(params=[0, 3], ids=["at once", "late"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A GPU whose work is seen to be done at once, or only when asked again."""
    there = dataclasses.replace(cuda.BACKEND, why_absent=lambda: None)
    monkeypatch.setattr(cuda, "BACKEND", there)
    with installed(FakeGpu(late=request.param)) as fake:
        yield fake


@pytest.mark.parametrize("completion", ["polled", "blocking", "hybrid", "callback"])
async def test_a_device_from_opening_to_closing(gpu: FakeGpu, completion: Any) -> None:
    async with open_device(0, backend="cuda", isolation="thread", completion=completion) as device:
        assert (device.info.name, device.info.compute_capability) == ("Fake", (9, 0))
        host = np.arange(3 * GRANULARITY // 8, dtype=np.float64)
        refs = [await device.put(host + each) for each in range(3)]
        for each, ref in enumerate(refs):
            assert np.array_equal(await device.get(ref), host + each)
        for dtype, value in ((np.uint8, 7), (np.int16, -2), (np.float32, 0.1), (np.complex128, 1j)):
            filled = await device.full((1001,), value, dtype)
            assert (await device.get(filled) == np.full(1001, value, dtype)).all()
        sealed = await device.seal(refs[0])
        assert np.array_equal(await device.get(sealed), host)
        copied = await device.copy(refs[1])
        assert np.array_equal(await device.get(copied), host + 1)
        with pytest.raises(OutOfMemory, match="no room"):
            await device.empty((MEMORY,), np.uint8)
    assert gpu.alive == {}
    assert gpu.held == {}


def test_a_fault_ends_the_context(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan())
    context.check()
    gpu.fault = 700
    with pytest.raises(StickyFault, match="cuStreamQuery returned CUDA_ERROR_ILLEGAL_ADDRESS"):
        context.check()
    gpu.fault = 600
    context.check()
    gpu.fault = 0
    context.close()
    assert gpu.alive == {}


def test_a_stream_that_a_sanitizer_looks_at_is_waited_for(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan(sanitized=True))
    stream = context.open_lane("blas", 0)
    waited: list[bool] = []

    def synchronize(each: int) -> Any:
        waited.append(each in gpu.alive)
        return (0,)

    gpu.change(cuStreamSynchronize=synchronize)
    token = stream.mark()
    while not stream.finished(token):
        assert waited == []
    assert waited == [True]
    stream.release(token)
    stream.close()
    assert waited == [True, True]  # while it was there
    context.close()
    assert gpu.alive == {}


def test_streams_of_equal_names_are_one(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan(priorities={"blas": -1}))
    first, again = (context.open_lane(name, ("mine", 0)) for name in ("blas", "fft"))
    other, own, further = (context.open_lane("dnn", name) for name in (("mine", 1), None, None))
    assert first.queue == again.queue
    assert len({each.queue for each in (first, other, own, further)}) == 4
    first.close()
    assert again.queue in gpu.alive, "another lane uses it"
    for stream in (again, other, own, further):
        stream.close()
    context.close()
    assert gpu.alive == {}


@pytest.mark.parametrize("sleeps", [True, False])
def test_only_events_that_threads_sleep_for_interrupt(gpu: FakeGpu, sleeps: bool) -> None:
    made: list[int] = []
    create = gpu.cuEventCreate

    def note(flags: Any) -> Any:
        made.append(int(flags))
        return create(flags)

    gpu.change(cuEventCreate=note)
    context = CudaContext(0, StreamPlan(sleeps=sleeps))
    stream = context.open_lane("blas", None)
    assert made
    blocking = int(gpu.CUevent_flags.CU_EVENT_BLOCKING_SYNC)
    assert [bool(flags & blocking) for flags in made] == [sleeps] * len(made)
    stream.close()
    context.close()


def test_free_memory_is_what_the_driver_says(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan())
    assert context.free_memory() == MEMORY
    gpu.change(cuMemGetInfo=lambda: (0, 5, MEMORY))
    assert context.free_memory() == 5
    context.close()


def test_sealed_memory_is_mapped_a_second_time_to_be_written(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan())
    fd = context.create_slab(5, GRANULARITY, sealed=True)
    assert context.pointer(5 << SLAB_SHIFT) == context.writable_pointer(5 << SLAB_SHIFT)
    places = [(5 << SLAB_SHIFT) + offset for offset in (0, 8)]
    assert context.pointers(places) == [context.pointer(place) for place in places]
    context.unprotect(5)
    context.unprotect(5)
    writable = context.writable_pointer((5 << SLAB_SHIFT) + 8)
    assert writable != context.pointer((5 << SLAB_SHIFT) + 8)
    gpu.cuMemsetD8Async(writable, 9, 1, 0)
    context.protect(5)
    assert context.writable_pointer((5 << SLAB_SHIFT) + 8) == writable
    context.protect(5)
    context.map_slab(6, fd, GRANULARITY, sealed=True)  # as the next host does
    os.close(fd)
    assert memory(context.pointer((6 << SLAB_SHIFT) + 8), 1)[0] == 9
    context.close()
    assert gpu.alive == {}


def test_a_slab_that_is_held_comes_back_where_it_was(gpu: FakeGpu) -> None:
    context = CudaContext(0, StreamPlan())
    before = len(gpu.alive)
    fd = context.create_slab(5, GRANULARITY, sealed=True)
    at = context.pointer(5 << SLAB_SHIFT)
    context.hold_slab(5)
    assert len(gpu.alive) == before + 1  # the address, and no allocation
    with pytest.raises(KeyError):
        context.pointer(5 << SLAB_SHIFT)
    usual = gpu.cuMemSetAccess
    gpu.change(cuMemSetAccess=lambda *_: (2,))
    with pytest.raises(OutOfMemory):
        context.map_slab(5, fd, GRANULARITY, sealed=True)
    assert len(gpu.alive) == before + 1
    gpu.change(cuMemSetAccess=usual)
    context.map_slab(5, fd, GRANULARITY, sealed=True)
    assert context.pointer(5 << SLAB_SHIFT) == at
    context.hold_slab(5)
    context.unmap_slab(5)
    assert len(gpu.alive) == before
    context.map_slab(5, fd, GRANULARITY, sealed=True)
    context.hold_slab(5)
    os.close(fd)
    context.close()
    assert gpu.alive == {}


@pytest.mark.parametrize("failing", ["cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"])
def test_memory_that_cannot_be_mapped_is_returned(gpu: FakeGpu, failing: str) -> None:
    context = CudaContext(0, StreamPlan())
    before = dict(gpu.alive)
    gpu.change(**{failing: lambda *_: (2, 0)})
    with pytest.raises(OutOfMemory):
        context.create_slab(5, GRANULARITY, sealed=False)
    assert gpu.alive == before


def test_devices_that_cannot_be_had(gpu: FakeGpu) -> None:
    with pytest.raises(DeviceUnavailable, match="no CUDA device 1; the driver has 1 device"):
        CudaContext(1, StreamPlan())
    gpu.change(cuDriverGetVersion=lambda: (0, 11080))
    with pytest.raises(DeviceUnavailable, match=r"supports CUDA 11\.8, but CUDA 12\.0"):
        CudaContext(0, StreamPlan())
    gpu.change(cuInit=lambda _flags: (100,))
    with pytest.raises(DeviceUnavailable, match="cuInit returned CUDA_ERROR_NO_DEVICE"):
        CudaContext(0, StreamPlan())
    assert gpu.alive == {}
