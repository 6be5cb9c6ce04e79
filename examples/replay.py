"""A journal: a run is recorded, replayed, compared, and its fault reduced to the calls it needs."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, open_device
from atomr_accel.replay import explain, open_journal, read_journal, replay_journal, state_at
from atomr_accel.testing import poison


async def power_iteration(device: Device, steps: int) -> float:
    """The largest eigenvalue of a random symmetric matrix."""
    rng = device.rng.default_rng(3)
    half = await rng.normal(size=(64, 64))
    a = await device.blas.gemm(half, half.T)
    x = await rng.normal(size=64)
    for _ in range(steps):
        y = await device.blas.gemv(a, x)
        x = await device.evaluate(y / np.sqrt((y * y).sum()))
    return float(await device.get(await device.blas.dot(x, await device.blas.gemv(a, x))))


async def main() -> None:
    """Record, replay, look back, and explain."""
    folder = Path(tempfile.mkdtemp())
    run, fault = folder / "run.journal", folder / "fault.journal"

    async with open_device(0) as device:
        async with open_journal(device, run, contents=True, results=True) as journal:
            found = await power_iteration(device, 20)
        print(f"replay on {device.backend}: {journal.position} calls recorded, {found:.4f} found")

    lines = await read_journal(run)
    print(f"  the last of them: {lines[-1]}")

    async with open_device(0) as device:
        report = await replay_journal(run, device)
        assert report.same, report
        print(f"  again: {report}")
        buffers = await state_at(run, 2, device)
        print(f"  after call 2 there were {len(buffers)} buffers")

    async with open_device(0) as device, open_journal(device, fault):
        x = await device.zeros((8, 8))
        await device.blas.gemm(x, x)
        await poison(device)

    explanation = await explain(fault, out=folder / "least.py")
    assert len(explanation.minimal) == 2, explanation
    print(f"  the fault comes again with {len(explanation.minimal)} calls: {folder / 'least.py'}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
