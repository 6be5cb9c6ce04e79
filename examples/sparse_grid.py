"""Heat that spreads on a grid too large to be stored in full, with a fault midway.

Blocks of cells exist where there is heat. A grid that is full refuses a step and stays as it was.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import OutOfMemory, open_device
from atomr_accel.realtime import open_sparse_grid, save_picture
from atomr_accel.testing import poison

SHAPE = (4096, 512, 512)  # 4 GiB of float32
SOURCES, STEPS = 40, 12


async def main() -> None:
    """Light sources along a line, let heat spread, break the device, and draw."""
    turn = np.linspace(0, 2 * np.pi, SOURCES)
    heart = 16 * np.sin(turn) ** 3, 13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn)
    across, up = (256 + 4 * each for each in heart)
    sources = np.stack([np.full(SOURCES, 2048), up, across], 1).astype(np.int64)
    async with (
        open_device(0) as device,
        open_sparse_grid(
            device,
            SHAPE,
            capacity=400,
            fading=0.05,
            threshold=1e-4,
            every=5,
            system=device.system,
            name="heat",
        ) as grid,
    ):
        await grid.put(sources, np.full(SOURCES, 30.0))
        for step in range(STEPS):
            if step == 7:
                await poison(device)
            await grid.step(0.1)
        statistics, blocks = grid.statistics(), await grid.blocks()
        assert (statistics.steps, statistics.faults) == (STEPS - 2, 1)
        cells = await grid.read("cells")
        made = 30.0 * len({*map(tuple, sources.tolist())})
        left = made * (1 - 0.05 * 0.1) ** statistics.steps
        assert np.isclose(cells.sum(dtype=float), left, rtol=0.01)  # no heat is lost on the way
        try:
            await grid.step(0.1, count=200)
            raise AssertionError("there is room for more than was expected")
        except OutOfMemory as full:
            print(full)
        assert grid.steps > statistics.steps
        path = Path(tempfile.gettempdir()) / "sparse_grid.png"
        await save_picture(path, (await grid.snapshot())[160:352, 160:352], scale=4)
        print(f"{blocks} of {4096 * 512 * 512 // 512} blocks were made; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
