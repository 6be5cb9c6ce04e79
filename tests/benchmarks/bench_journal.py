"""Cost of a journal: without one, with one, with contents, with every result.

    python tests/benchmarks/bench_journal.py

64 products in flight, from tasks of their own, and products in a batch; on the device under test.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from measuring import seconds_in_flight

from atomr_accel import open_device
from atomr_accel.replay import open_journal

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef

TASKS, EACH, ROUNDS = 64, 8, 7
MODES: dict[str, dict[str, Any] | None] = {
    "without": None,
    "journal": {},
    "contents": {"contents": True},
    "results": {"contents": True, "results": True},
}


async def in_flight(device: Device, x: GpuRef) -> float:
    """Seconds for one product."""
    return await seconds_in_flight(lambda: device.blas.gemm(x, x), TASKS, EACH)


async def in_a_batch(device: Device, x: GpuRef) -> float:
    """Seconds of the program's thread for one call."""
    async with device.batch() as batch:
        start = time.perf_counter()
        for _ in range(TASKS):
            batch.blas.gemm(x, x)
        took = time.perf_counter() - start
    return took / TASKS


async def main() -> None:
    """Each mode in turn, several times; the best of each."""
    best: dict[tuple[str, str], float] = {}
    async with open_device(0) as device:
        x = await device.put(np.eye(32, dtype=np.float32))
        await in_flight(device, x)
        for _ in range(ROUNDS):
            for mode, options in MODES.items():
                with tempfile.TemporaryDirectory() as folder:
                    async with AsyncExitStack() as stack:
                        if options is not None:
                            path = Path(folder) / "journal"
                            await stack.enter_async_context(open_journal(device, path, **options))
                        for measured in (in_flight, in_a_batch):
                            took = await measured(device, x)
                            key = mode, measured.__name__
                            best[key] = min(took, best.get(key, took))
    for (mode, name), took in best.items():
        ratio = took / best["without", name]
        print(f"{name:12} {mode:10} {took * 1e6:8.1f} us  {ratio:6.2f}")


if __name__ == "__main__":
    trio.run(main)
