"""A dam that breaks, as a liquid of particles, with a fault midway; the picture goes to a file."""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import open_liquid, save_picture
from atomr_accel.testing import poison

SPACING = 0.05
COLUMN = (0.5, 0.8)  # width and height of the water before


async def main() -> None:
    """Let the column fall, break the device on the way, and draw."""
    lines = [np.arange(SPACING / 2, side, SPACING) for side in COLUMN]
    positions = np.stack([each.ravel() for each in np.meshgrid(*lines)], -1)
    async with (
        open_device(0) as device,
        open_liquid(
            device, (2.0, 1.0), positions, spacing=SPACING, sound=12.0, image=(40, 80), every=5
        ) as liquid,
    ):
        await liquid.step(0.02, count=9)
        await poison(device)
        await liquid.step(0.02)  # from the last checkpoint
        await liquid.step(0.02, count=20 - liquid.steps)
        statistics = liquid.statistics()
        assert statistics.faults == 1
        assert 0 < statistics.lost_steps < 10
        x = await liquid.read("x")
        number = await liquid.read("id")
        assert sorted(number) == list(range(len(positions)))  # none is lost or there twice
        assert np.isfinite(x).all()
        # A front can be no faster than twice the speed of a wave in the column.
        limit = COLUMN[0] + 2 * np.sqrt(9.81 * COLUMN[1]) * statistics.time
        assert COLUMN[0] + 0.2 < x[:, 0].max() < limit
        assert x[:, 1].mean() < 0.8 * positions[:, 1].mean()
        path = Path(tempfile.gettempdir()) / "liquid.png"
        await save_picture(path, await liquid.snapshot(), scale=6)
        print(
            f"{len(x)} particles, {statistics.time:.2f} s, {statistics.faults} fault; "
            f"the front is at {x[:, 0].max():.2f}; the picture is {path}"
        )


if __name__ == "__main__":
    trio.run(main)
