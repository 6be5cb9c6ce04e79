"""Gain of ``open_device(low_latency=True)``: small products, with its two mechanisms on or off.

One mechanism lets ports send and receive between the turns of trio's loop. The other is the
interpreter's switch interval, which is short while ops are in flight. A device that was opened with
``low_latency=False`` has neither; an interval that the program sets stays, and so stands for the
second in either state. The four ways alternate in short rounds, each begun by another one. For each
way it prints the median of its rounds, with median and quartiles of its ratios to the round with
neither mechanism.

All of it is measured alone, next to a thread of the program that computes in Python, and next to a
task that does, a millisecond at a time.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SIZE: Final = 64
BATCH: Final = 200
ROUNDS: Final = 24
ROUND_SECONDS: Final = 0.04
"""About how long a round is: what disturbs this machine lasts longer, and hits all four alike."""

USUAL: Final = 0.005
SHORT: Final = 0.0001
KEPT: Final = 0.0049
"""Another one than the interpreter's own is the program's, and stays."""


class Way(NamedTuple):
    """A state of the two mechanisms."""

    name: str
    low_latency: bool
    interval: float


NEITHER: Final = Way("neither", low_latency=False, interval=USUAL)
WAYS: Final = (
    Way("both", low_latency=True, interval=USUAL),
    Way("between turns", low_latency=True, interval=KEPT),
    Way("interval", low_latency=False, interval=SHORT),
    NEITHER,
)


class Side(NamedTuple):
    """A device and the matrices that it multiplies."""

    device: Device
    a: GpuRef
    out: list[GpuRef]


class Round(NamedTuple):
    """Ops per second of a round, and the seconds of a single awaited op."""

    rate: float
    latency: float


async def ask(side: Side, tasks: int, each: int) -> Round:
    """Have some tasks await products, one after the other."""
    device, a, out = side
    waited: list[float] = []

    async def work(result: GpuRef) -> None:
        for _ in range(each):
            asked = time.perf_counter()
            await device.blas.gemm(a, a, out=result)
            waited.append(time.perf_counter() - asked)

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(work, out[number])
    return Round(tasks * each / (time.perf_counter() - begun), statistics.median(waited))


async def batch(side: Side, batches: int) -> Round:
    """Leave some batches, one after the other."""
    device, a, out = side
    waited: list[float] = []
    for _ in range(batches):
        begun = time.perf_counter()
        async with device.batch() as collected:
            for number in range(BATCH):
                collected.blas.gemm(a, a, out=out[number % len(out)])
        waited.append(time.perf_counter() - begun)
    return Round(BATCH * batches / sum(waited), statistics.median(waited))


LOADS: Final[dict[str, Callable[[Side, int], Awaitable[Round]]]] = {
    "1 task": lambda side, each: ask(side, 1, each),
    "8 tasks": lambda side, each: ask(side, 8, each),
    "64 tasks": lambda side, each: ask(side, 64, each),
    f"batch of {BATCH}": batch,
}


@asynccontextmanager
async def alone() -> AsyncIterator[None]:
    """Nothing else happens."""
    yield


@asynccontextmanager
async def thread_computes() -> AsyncIterator[None]:
    """A thread holds the GIL whenever it gets it."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(10_000))
            for _ in range(10_000):
                pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@asynccontextmanager
async def task_computes() -> AsyncIterator[None]:
    """A task holds the loop for a millisecond at a time."""

    async def compute() -> None:
        while True:
            end = time.perf_counter() + 1e-3
            while time.perf_counter() < end:
                pass
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute)
        yield
        nursery.cancel_scope.cancel()


async def measure(
    sides: dict[bool, Side], load: Callable[[Side, int], Awaitable[Round]]
) -> dict[str, list[Round]]:
    """Rounds of all ways, in turns."""
    found: dict[str, list[Round]] = {way.name: [] for way in WAYS}
    counts: dict[str, int] = {}
    order = [*WAYS]
    for number in range(-2, ROUNDS):
        for way in order:
            sys.setswitchinterval(way.interval)
            count = counts.get(way.name, 1)
            begun = time.perf_counter()
            made = await load(sides[way.low_latency], count)
            seconds = (time.perf_counter() - begun) / count
            if number < 0:  # as many as a round has time for
                counts[way.name] = max(1, int(ROUND_SECONDS / seconds))
            else:
                found[way.name].append(made)
        order.append(order.pop(0))
    sys.setswitchinterval(USUAL)
    return found


async def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with AsyncExitStack() as stack:
        sides = {}
        for low_latency in (True, False):
            device = await stack.enter_async_context(open_device(0, low_latency=low_latency))
            a = await device.put(np.ones((SIZE, SIZE), np.float32))
            out = [await device.empty((SIZE, SIZE), np.float32) for _ in range(64)]
            sides[low_latency] = Side(device, a, out)
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        for beside in (alone, thread_computes, task_computes):
            async with beside():
                for load, run in LOADS.items():
                    found = await measure(sides, run)
                    for way, rounds in found.items():
                        rate, latency = (
                            statistics.median(each) for each in zip(*rounds, strict=True)
                        )
                        ratios = [
                            one.rate / other.rate
                            for one, other in zip(rounds, found[NEITHER.name], strict=True)
                        ]
                        low, ratio, high = statistics.quantiles(ratios, n=4)
                        print(
                            f"{beside.__name__:16} {load:13} {way:14} {rate:9.0f} op/s"
                            f" {latency * 1e6:8.0f} us  of neither {ratio:6.2f}"
                            f" ({low:.2f} to {high:.2f})",
                            flush=True,
                        )


if __name__ == "__main__":
    trio.run(main)
