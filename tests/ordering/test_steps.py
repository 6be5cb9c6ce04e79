"""Number of Python calls of the package that a warm call makes, in program and host."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

import atomr_accel
from atomr_accel import Device

_PACKAGE: Final = str(Path(atomr_accel.__file__).parent)


class Frames:
    """Counts frames of the package while it is switched on, in all threads that begin after it."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            self.count += 1


async def _gemm(device: Device) -> Callable[[], Awaitable[Any]]:
    a = await device.put(np.ones((8, 8), np.float32))
    return lambda: device.blas.gemm(a, a)


async def _sort(device: Device) -> Callable[[], Awaitable[Any]]:
    x = await device.put(np.arange(100, dtype=np.float32))
    return lambda: device.array.sort(x)


async def _conv(device: Device) -> Callable[[], Awaitable[Any]]:
    x = await device.put(np.ones((2, 4, 8, 8), np.float32))
    w = await device.put(np.ones((4, 4, 3, 3), np.float32))
    return lambda: device.dnn.conv(x, w)


async def _nrm2(device: Device) -> Callable[[], Awaitable[Any]]:
    x = await device.put(np.ones(64, np.float32))
    return lambda: device.blas.nrm2(x)


async def _nrm2_of_a_column(device: Device) -> Callable[[], Awaitable[Any]]:
    matrix = await device.put(np.ones((64, 4), np.float32))
    return lambda: device.blas.nrm2(matrix[:, 3])


@pytest.mark.parametrize(
    ("make", "limit"),
    [(_gemm, 80), (_sort, 80), (_conv, 140), (_nrm2, 110), (_nrm2_of_a_column, 110)],
)
def test_a_warm_call_makes_few_python_calls(
    make: Callable[[Device], Awaitable[Callable[[], Awaitable[Any]]]], limit: int
) -> None:
    frames = Frames()

    async def count() -> list[int]:
        counts = []
        async with atomr_accel.open_device(0, backend="cpu", isolation="thread") as device:
            call = await make(device)
            for _ in range(4):
                await call()
            for _ in range(9):
                frames.count, frames.on = 0, True
                await call()
                frames.on = False
                counts.append(frames.count)
        return counts

    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(frames)
    threading.setprofile(frames)
    try:
        counts = trio.run(count)
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    # The host may still poll for the end of one call while the program makes the next, so the
    # least of several counts is the call's own.
    assert min(counts) <= limit, counts
