"""Smoke that rises in three dimensions, with a fault midway; the picture is a slice of it."""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import open_fluid, save_picture
from atomr_accel.testing import poison

DEPTH, HEIGHT, WIDTH = 12, 28, 16
RATE = 2.0  # smoke that is added to a cell of the source in a second


async def main() -> None:
    """Simulate, break the device, go on, and draw."""
    source = np.zeros((DEPTH, HEIGHT, WIDTH))
    source[4:8, 2:5, 6:10] = RATE
    async with (
        open_device(0) as device,
        open_fluid(device, (DEPTH, HEIGHT, WIDTH), buoyancy=8.0, source=source, every=5) as fluid,
    ):
        await fluid.step(0.12, count=18)
        await poison(device)
        await fluid.step(0.12)  # from the last checkpoint
        await fluid.step(0.12, count=30 - fluid.steps)
        statistics = fluid.statistics()
        assert statistics.faults == 1
        assert 0 < statistics.lost_steps < 10
        smoke = await fluid.read("smoke")
        added = source.sum() * statistics.time
        assert abs(smoke.sum() / added - 1) < 0.25  # MacCormack keeps the total to that here
        height = (smoke.sum((0, 2)) * np.arange(HEIGHT)).sum() / smoke.sum()
        assert height > 6  # from 3
        assert np.abs(smoke - smoke[::-1]).max() < 0.2 * smoke.max()  # one half is like the other
        path = Path(tempfile.gettempdir()) / "smoke.png"
        await save_picture(path, await fluid.snapshot(), scale=10)
        print(
            f"{statistics.steps} steps of {DEPTH} x {HEIGHT} x {WIDTH} cells, "
            f"{statistics.faults} fault; smoke is at {height:.1f}; the picture is {path}"
        )


if __name__ == "__main__":
    trio.run(main)
