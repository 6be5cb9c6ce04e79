"""Threads of lanes: one that all libraries share, and a dedicated one for each library.

Under each isolation, two devices that differ in ``threads`` only are open side by side, and take
turns in every measurement. It prints medians of rounds, and the ratio of the dedicated threads'
time to the shared one's: above 1 the shared thread is faster.

- an ask: one product after the other, each awaited.
- a chain: 200 ops in a batch, each of the result of the one before, of two libraries in turn.
- side by side: 64 tasks that await ops of two libraries, independent of each other.
- a neighbour: one product after the other, while 16 tasks keep another library busy.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import trio
from measuring import median_of, seconds_in_flight

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device

ROUNDS: Final = 9
ASKS: Final = 200
LENGTH: Final = 200
TASKS: Final = 64
TURNS: Final = 16
NEIGHBOURS: Final = 16


@dataclass
class Subject:
    """A device, and the buffers that its ops take."""

    device: Device
    x: GpuRef
    scale: GpuRef
    bias: GpuRef


async def prepared(device: Device) -> Subject:
    """Make buffers, of a size at which launching takes longer than executing."""
    size = 64 if device.backend == "cpu" else 256
    return Subject(
        device,
        await device.put(np.eye(size, dtype=np.float32)),
        await device.put(np.ones(size, np.float32)),
        await device.put(np.zeros(size, np.float32)),
    )


async def product(subject: Subject) -> None:
    """Await a product."""
    await subject.device.blas.gemm(subject.x, subject.x)


async def norm(subject: Subject) -> None:
    """Await a layer norm."""
    await subject.device.dnn.layer_norm(subject.x, subject.scale, subject.bias)


async def ask(subject: Subject) -> float:
    """Return seconds of an ask, the median."""
    return await median_of(partial(product, subject), ASKS, before=0)


async def chain(subject: Subject) -> float:
    """Return seconds of an op of a chain."""
    begun = time.perf_counter()
    async with subject.device.batch() as batch:
        y = subject.x
        for _ in range(LENGTH // 2):
            y = batch.blas.gemm(y, subject.x)
            y = batch.dnn.layer_norm(y, subject.scale, subject.bias)
    return (time.perf_counter() - begun) / LENGTH


async def side_by_side(subject: Subject) -> float:
    """Return seconds for each op of many tasks."""
    ops = itertools.cycle((product, norm))
    return await seconds_in_flight(lambda: next(ops)(subject), TASKS, TURNS)


async def beside(subject: Subject) -> float:
    """Return seconds of an ask beside a busy library, the median."""

    async def neighbour() -> None:
        while True:
            await norm(subject)

    async with trio.open_nursery() as nursery:
        for _ in range(NEIGHBOURS):
            nursery.start_soon(neighbour)
        try:
            return await ask(subject)
        finally:
            nursery.cancel_scope.cancel()


MEASUREMENTS: Final[dict[str, Callable[[Subject], Awaitable[float]]]] = {
    "an ask": ask,
    "a chain": chain,
    "side by side": side_by_side,
    "a neighbour": beside,
}


async def compare(isolation: Literal["process", "thread"]) -> None:
    """Measure two devices in turns, and print."""
    async with AsyncExitStack() as stack:
        shared, dedicated = [
            await prepared(
                await stack.enter_async_context(
                    open_device(0, isolation=isolation, threads=threads, standby=None)
                )
            )
            for threads in ("shared", "per_library")
        ]
        device = shared.device
        print(f"{device.info.name}, backend {device.backend}, isolation {isolation}")
        print(f"{'us an op':14} {'shared':>8} {'per_library':>12} {'ratio':>6}")
        for name, measure in MEASUREMENTS.items():
            for subject in (shared, dedicated):  # libraries start, and plan
                await measure(subject)
            gc.collect()
            rounds = [(await measure(shared), await measure(dedicated)) for _ in range(ROUNDS)]
            one, other = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
            ratio = statistics.median(theirs / ours for ours, theirs in rounds)
            print(f"{name:14} {one:8.1f} {other:12.1f} {ratio:6.2f}", flush=True)


async def main() -> None:
    """Measure under both isolations."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    print(f"Python {sys.version.split()[0]}")
    await compare("process")
    await compare("thread")


if __name__ == "__main__":
    trio.run(main)
