"""Ctrl+C at any line of the package: the call happened or it did not, and the device goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest
import trio

import atomr_accel
from atomr_accel import Device, GpuRef

from .. import seeds
from ..harness import ROOT, opened, settled, sized, used_by

Call = Callable[[Device, GpuRef], Awaitable[object]]

PACKAGE: Final = str(Path(atomr_accel.__file__).parent)


SHORT: Final = sized(4, 1)
"""From one line to the next that is tried; which one is the first, the seed says."""


class Interrupt:
    """Sends the program SIGINT before the ``number``-th line that it runs inside the package."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.lines = 0
        self.where = ""

    def __enter__(self) -> Interrupt:
        self._former = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._former)

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._number:
                path = Path(frame.f_code.co_filename).relative_to(ROOT)
                self.where = f"{path}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self._line


async def batch(device: Device, x: GpuRef) -> None:
    async with device.batch() as batch:
        batch.blas.gemm(x, x)
        batch.dnn.relu(x)


def length_of(array: np.ndarray[Any, Any]) -> int:
    return len(array)


def total_of(device: Device) -> int:
    return device.statistics().memory.used


CALLS: Final[dict[str, Call]] = {
    "fill": lambda device, x: device.fill(x, 2),
    "put": lambda device, x: device.put(np.ones(8, np.float32)),
    "put, large": lambda device, x: device.put(np.ones(1 << 18, np.float32)),
    "put, sealed": lambda device, x: device.put(np.ones(8, np.float32), sealed=True),
    "get": lambda device, x: device.get(x),
    "copy": lambda device, x: device.copy(x),
    "gemm": lambda device, x: device.blas.gemm(x, x),
    "relu": lambda device, x: device.dnn.relu(x),
    "rfft": lambda device, x: device.fft.rfft(x),
    "normal": lambda device, x: device.rng.normal(size=5),
    "run": lambda device, x: device.run(length_of, x),
    "batch": batch,
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_ctrl_c_at_any_line_leaves_the_device_whole(call: Call) -> None:
    async with opened(isolation="process") as device:
        x = await device.put(np.ones((8, 8), np.float32))
        await call(device, x)
        await settled(device)
        used, total, tried, interrupted = used_by(device), total_of(device), 0, 0
        number = -(seeds.draw() % SHORT)
        while True:
            # Every line of what is short; of what is long every third, since much is repeated.
            number = max(1, number + (SHORT if number < 200 else 3 * SHORT))
            tried += 1
            interrupt = Interrupt(number)
            try:
                with interrupt:
                    await call(device, x)
                await trio.lowlevel.checkpoint()  # what came after the last one of the call
            except KeyboardInterrupt:
                interrupted += 1
            if not interrupt.where:
                break
            with trio.move_on_after(5) as patience:
                await device.fill(x, 3)
                assert (await device.get(x) == 3).all(), interrupt.where
                await settled(device)
            assert not patience.cancelled_caught, f"hangs after an interrupt at {interrupt.where}"
            if total_of(device) != total:  # tracebacks may hold refs in cycles: look closely
                assert used_by(device) == used, interrupt.where
        assert interrupted == tried - 1 or number > 200
        assert device.generation == 1
