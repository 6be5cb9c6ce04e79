"""Drops that grow and meet: components, distances and cells of each frame, with a fault midway.

SciPy counts the components of the last frame, too; the picture goes to a file.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio
from scipy import ndimage

from atomr_accel import open_device
from atomr_accel.realtime import open_frame_analysis, save_picture
from atomr_accel.testing import poison

HEIGHT, WIDTH, DROPS, FRAMES = 120, 160, 24, 12


async def main() -> None:
    """Analyse frames, break the device, go on, and draw."""
    random = np.random.default_rng(7)
    centres = random.uniform(0, (HEIGHT, WIDTH), (DROPS, 2))
    grown = random.uniform(0.4, 1.0, DROPS)
    place = np.indices((HEIGHT, WIDTH))[:, None]
    apart = np.hypot(*(place - centres.T[:, :, None, None]))
    counts = []
    async with (
        open_device(0) as device,
        open_frame_analysis(
            device, (HEIGHT, WIDTH), every=4, system=device.system, name="drops"
        ) as analysis,
    ):
        for number in range(FRAMES):
            frame = (apart < (grown * (number + 1))[:, None, None]).any(0)
            if number == FRAMES // 2:
                await poison(device)
            await analysis.push(frame.astype(np.float32), dt=1 / 30)
            counts.append(int((await analysis.read("count"))[0]))
        statistics = analysis.statistics()
        assert (statistics.steps, statistics.faults) == (FRAMES - 2, 1)
        assert counts[-1] < max(counts)  # some drops have met
        labels, count = ndimage.label(frame)
        assert count == counts[-1]
        assert (await analysis.read("labels") == labels).all()
        wanted = ndimage.distance_transform_edt(frame)
        assert np.allclose(await analysis.read("distance"), wanted)
        path = Path(tempfile.gettempdir()) / "components.png"
        await save_picture(path, await analysis.snapshot(), scale=4)
        print(f"{counts} components, {statistics.faults} fault; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
