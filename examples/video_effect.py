"""A video with an effect: edges that glow and fade, with a fault midway; writes an MP4 and a PNG.

The video is made here, too. Each of its pictures goes through one recorded graph of filters, which
remembers its last result. The fault does not touch that memory.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import GpuRef, Recording, open_device
from atomr_accel.realtime import Filters, open_effect, open_film, open_video, save_picture
from atomr_accel.testing import poison

HEIGHT, WIDTH, FRAMES = 96, 160, 48


async def make(path: Path) -> None:
    """Film a disc that goes to the right and bounces."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    async with open_film(path, rate=24) as film:
        for at in range(FRAMES):
            across = 20 + at * (WIDTH - 40) / (FRAMES - 1)
            up = 20 + 50 * abs(np.cos(at / 8))
            disc = np.hypot(x - across, HEIGHT - up - y) < 14
            picture = np.stack([disc * 235, disc * 160, 40 + disc * 20], -1)
            await film.add(picture.astype(np.uint8))


async def main() -> None:
    """Film, convert through a fault, and look at the result."""
    folder = Path(tempfile.gettempdir())
    source, target = folder / "disc.mp4", folder / "video_effect.mp4"
    await make(source)
    async with open_device(0) as device:
        filters = await Filters.load(device)
        smooth, derive = await filters.sobel()
        gray = await filters.space("rgb2gray")
        glow = await filters.gaussian(5)
        tint = await filters.weights([1.0, 0.55, 0.2])

        def edges(on: Recording, image: GpuRef, last: GpuRef) -> GpuRef:
            calm = filters.convert(on, image, gray)
            dx = filters.separable(on, calm, derive, smooth, border="replicate")
            dy = filters.separable(on, calm, smooth, derive, border="replicate")
            found = filters.separable(on, filters.canny(on, dx, dy, 100, 200), glow, glow)
            bright = on.evaluate(found.reshape(HEIGHT, WIDTH, 1) * tint * np.float32(2))
            return on.evaluate(np.maximum(bright, last * np.float32(0.93)))

        async with open_effect(device, (HEIGHT, WIDTH), edges, feedback=True) as effect:

            async def fail_midway() -> None:
                while effect.statistics().frames < FRAMES // 2:
                    await trio.lowlevel.checkpoint()
                await poison(device)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_midway)
                frames = await effect.convert(source, target)
            faults = effect.statistics().faults
    assert (frames, faults) == (FRAMES, 1)
    async with open_video(target) as video:
        pictures = [picture async for picture in video]
    assert len(pictures) == FRAMES
    red = pictures[-1][..., 0].astype(int)
    assert red[:, WIDTH - 40 :].max() > 180  # the edges of the disc where it is now
    trail = red[:, 20 : WIDTH - 40].max(0)
    assert trail[:40].mean() < trail[40:].mean()  # and before, the darker the longer ago
    assert trail[40:].min() > 10  # the fault has left no gap
    path = folder / "video_effect.png"
    await save_picture(path, pictures[-1], scale=2)
    print(f"{frames} pictures, {faults} fault; the film is {target}, its last picture {path}")


if __name__ == "__main__":
    trio.run(main)
