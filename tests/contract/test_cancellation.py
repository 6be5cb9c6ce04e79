"""Cancelled callers leave at once, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Device, GpuRef, open_device
from atomr_accel.lanes import Isolation
from atomr_accel.testing.garbage import collect_garbage

from ..array_samples import random_bits
from ..harness import BACKEND, Gate, cancelled_at, on_shared, opened, same_bits, settled, used_by

cloudpickle.register_pickle_by_value(sys.modules[__name__])

EYE: Final = np.eye(16, dtype=np.float32)
LARGE: Final = random_bits((9_000_001,), np.dtype(np.uint8), 3)
SOURCE: Final = 'extern "C" __global__ void add(float* x, float what) { x[threadIdx.x] += what; }'


def add(x: Any, what: Any) -> None:
    x.reshape(-1)[:16] += what


async def put(device: Device, _: GpuRef) -> None:
    assert same_bits(await device.get(await device.put(EYE)), EYE)


async def put_large(device: Device, _: GpuRef) -> None:
    assert same_bits(await device.get(await device.put(LARGE)), LARGE)


async def put_sealed(device: Device, _: GpuRef) -> None:
    assert same_bits(await device.get(await device.put(EYE, sealed=True)), EYE)


async def put_large_sealed(device: Device, _: GpuRef) -> None:
    assert same_bits(await device.get(await device.put(LARGE, sealed=True)), LARGE)


async def seal(device: Device, _: GpuRef) -> None:
    ref = await device.put(EYE)
    await device.seal(ref)
    assert same_bits(await device.get(ref), EYE)


async def get(device: Device, sealed: GpuRef) -> None:
    assert same_bits(await device.get(sealed), EYE)


async def gemm(device: Device, sealed: GpuRef) -> None:
    out = await device.zeros((16, 16), np.float32)
    await device.blas.gemm(sealed, sealed, out=out, beta=1.0)
    product = await device.blas.gemm(out, sealed)
    assert same_bits(await device.get(product), EYE)


async def full(device: Device, _: GpuRef) -> None:
    assert (await device.get(await device.full(5, 7))).tolist() == [7] * 5


async def kernel(device: Device, _: GpuRef) -> None:
    compiled = await device.nvrtc.compile(SOURCE, "add", cpu=add)
    x = await device.zeros(16, np.float32)
    await compiled.launch(1, 16, x, 1.5)
    await compiled.launch(1, 16, x, 1.5)
    assert (await device.get(x)).tolist() == [3.0] * 16


async def free(device: Device, _: GpuRef) -> None:
    ref = await device.put(EYE)
    await device.free(ref)
    assert ref.is_stale


CALLS: Final = [
    put,
    put_large,
    put_sealed,
    put_large_sealed,
    seal,
    get,
    gemm,
    full,
    kernel,
    free,
]


@pytest.mark.parametrize("call", CALLS)
@on_shared
async def test_a_caller_may_be_cancelled_at_any_step(
    device: Device, call: Callable[[Device, GpuRef], Awaitable[None]]
) -> None:
    sealed = await device.put(EYE, sealed=True)
    await call(device, sealed)
    await settled(device)
    used = used_by(device)
    for step in range(1, 200):
        reached = await cancelled_at(step, partial(call, device, sealed))
        await call(device, sealed)
        if not reached:
            break
    else:
        pytest.fail("it never comes to an end")
    assert step > 1
    await settled(device)
    assert used_by(device) == used
    assert device.core.staging._pool.in_use == 0
    assert same_bits(await device.get(sealed), EYE)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_the_first_call_on_a_device_may_be_cancelled_too(
    call: Callable[[Device, GpuRef], Awaitable[None]],
) -> None:
    """Then its lanes are being opened."""
    for step in range(1, 200):
        async with opened(isolation="thread") as device:
            sealed = await device.put(EYE, sealed=True)
            used = used_by(device)
            reached = await cancelled_at(step, partial(call, device, sealed))
            await call(device, sealed)
            await settled(device)
            assert used_by(device) == used
        if not reached:
            break


async def test_many_cancelled_callers_at_once(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        sealed = await device.put(EYE, sealed=True)
        used = used_by(device)
        for step in range(1, 12):
            async with trio.open_nursery() as nursery:
                for call in CALLS:
                    nursery.start_soon(cancelled_at, step, partial(call, device, sealed))
        for call in CALLS:
            await call(device, sealed)
        await settled(device)
        assert used_by(device) == used


async def test_memory_that_a_kernel_may_still_write_is_not_reused(
    gate: Gate, isolation: Isolation
) -> None:
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        a = await device.put(EYE)
        await device.blas.gemm(a, a)
        cells = await device.zeros((16, 16), np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(device.blas.gemm, cells, a)  # waits for the kernel
            await trio.testing.wait_all_tasks_blocked()
            in_flight, used = device.statistics().in_flight, used_by(device)
            assert in_flight >= 2
            nursery.cancel_scope.cancel()
        # They have left, while the ops have not.
        assert device.statistics().in_flight == in_flight
        del cells
        assert used_by(device) == used
        ones = np.ones((16, 16), np.float32)
        news = [await device.put(ones) for _ in range(20)]
        gate.open()
        await settled(device)
        for new in news:
            assert same_bits(await device.get(new), ones)
        news.clear()
        assert used_by(device) < used


async def test_a_deadline_is_kept_while_a_kernel_runs(gate: Gate, isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(1, np.float32)
        with trio.move_on_after(0.01) as scope:
            await hold(cells)
        assert scope.cancelled_caught
        gate.open()
        assert (await device.get(cells)).tolist() == [1.0]


# --- opening and closing -------------------------------------------------------------------


def open_files() -> set[str]:
    """Return this process's open files by name, because numbers are reused."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name}: {entry.readlink()}")
        except FileNotFoundError:
            continue  # the listing itself
    return found


def children() -> set[str]:
    """The processes that this one has started and not reaped."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended since
            found.update((task / "children").read_text().split())
    return found


async def open_and_close(isolation: Isolation) -> None:
    async with open_device(0, backend=BACKEND, isolation=isolation) as device:
        assert same_bits(await device.get(await device.put(EYE)), EYE)


@pytest.mark.slow
def test_opening_may_be_cancelled_at_any_step(isolation: Isolation) -> None:
    trio.run(open_and_close, isolation)
    collect_garbage()
    files, processes = open_files(), children()
    for step in range(1, 200):
        if not trio.run(cancelled_at, step, partial(open_and_close, isolation)):
            break
    else:
        pytest.fail("it never comes to an end")
    assert step > 5
    collect_garbage()
    assert open_files() == files
    assert children() == processes
