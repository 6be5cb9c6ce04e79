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

HEIGHT, WIDTH = 96, 64


async def main() -> None:
    """Simulate, break the device, go on, and draw."""
    source, solid = np.zeros((HEIGHT, WIDTH)), np.zeros((HEIGHT, WIDTH))
    source[3:8, 26:38] = 1.5
    solid[50:58, 28:36] = 1
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
        await fluid.step(0.1, count=94)
        await poison(device)
        await fluid.step(0.1, count=30)
        statistics = fluid.statistics()
        assert statistics.faults == 1
        assert statistics.steps == 120  # of 124 steps a fault has undone four
        smoke = await fluid.read("smoke")
        assert smoke[60:].sum() > 1  # it is around the obstacle
        assert not smoke[50:58, 28:36].any()
        path = Path(tempfile.gettempdir()) / "fluid.png"
        await save_picture(path, await fluid.snapshot(), scale=4)
        print(f"{statistics.steps} steps, {statistics.faults} fault; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
