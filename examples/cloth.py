"""A flag in the wind, with a fault midway; the picture goes to a file.

Two corners are pinned. The wind turns while the scene runs; nothing is recorded anew.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import open_cloth, save_picture
from atomr_accel.testing import poison

ROWS, COLUMNS, SPACING = 16, 24, 0.1


async def main() -> None:
    """Let the cloth hang, blow at it, break the device, and draw."""
    async with (
        open_device(0) as device,
        open_cloth(
            device,
            (ROWS, COLUMNS),
            spacing=SPACING,
            damping=0.5,
            longest=1 / 240,
            every=10,
            system=device.system,
            name="flag",
        ) as cloth,
    ):
        await cloth.step(1 / 60, count=25)
        cloth.update(wind_z=8.0, wind_x=2.0, drag=4.0)
        await poison(device)
        await cloth.step(1 / 60, count=20)
        statistics = cloth.statistics()
        assert (statistics.steps, statistics.faults) == (40, 1)  # a fault has undone five
        x = await cloth.read("x")
        assert np.allclose(x[0, 0], (0, (ROWS - 1) * SPACING, 0))  # it is pinned
        assert x[..., 2].mean() > 0.2  # the wind has it
        links = np.linalg.norm(np.diff(x, axis=0), axis=-1) / SPACING
        assert 0.9 < links.mean() < 1.1  # no link has given way
        path = Path(tempfile.gettempdir()) / "cloth.png"
        await save_picture(path, await cloth.snapshot(), scale=2)
        print(f"{statistics.steps} steps, {statistics.faults} fault; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
