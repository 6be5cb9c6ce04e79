"""Smoke that rises around an obstacle, with a fault midway; the picture goes to a file.

The step is one recording. After the fault the scene continues from its last checkpoint.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import open_fluid, save_picture
from atomr_accel.testing import poison

HEIGHT, WIDTH = 64, 48


async def main() -> None:
    """Simulate, break the device, go on, and draw."""
    source, solid = np.zeros((HEIGHT, WIDTH)), np.zeros((HEIGHT, WIDTH))
    source[2:6, 20:28] = 1.5
    solid[33:39, 21:27] = 1
    async with (
        open_device(0) as device,
        open_fluid(
            device,
            (HEIGHT, WIDTH),
            boundary="walls",
            buoyancy=10.0,
            source=source,
            solid=solid,
            every=10,
            system=device.system,
            name="smoke",
        ) as fluid,
    ):
        await fluid.step(0.1, count=64)
        await poison(device)
        await fluid.step(0.1, count=20)
        statistics = fluid.statistics()
        assert statistics.faults == 1
        assert statistics.steps == 80  # of 84 steps a fault has undone four
        smoke = await fluid.read("smoke")
        assert smoke[40:].sum() > 1  # it is around the obstacle
        assert not smoke[33:39, 21:27].any()
        path = Path(tempfile.gettempdir()) / "fluid.png"
        await save_picture(path, await fluid.snapshot(), scale=6)
        print(f"{statistics.steps} steps, {statistics.faults} fault; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
