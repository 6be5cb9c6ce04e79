"""Image filters as one recorded program, with a fault midway; the picture shows four stages.

Noise is taken away by a median, edges are found by Canny's filter, and brightness is made even.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import Device, open_device
from atomr_accel.realtime import Filters, save_picture
from atomr_accel.testing import poison

SIZE, RADIUS = 128, 40


def scene() -> np.ndarray:
    """Return a disc before a slope, in the dark, with pixels that are broken."""
    y, x = np.mgrid[:SIZE, :SIZE]
    image = 30 + 0.2 * x
    image[np.hypot(x - 64, y - 64) < RADIUS] = 110
    rng = np.random.default_rng(0)
    broken = rng.random(image.shape)
    image[broken < 0.03], image[broken > 0.97] = 0, 255
    return np.asarray(image.round(), np.float32)


async def filtered(device: Device, image: np.ndarray) -> list[np.ndarray]:
    """Return the image without noise, its edges, and the image with even brightness."""
    filters = await Filters.load(device)
    smooth, derive = await filters.sobel()
    x = await device.put(image)
    async with device.record(x) as program:
        calm = filters.median(program, image=x, size=5)
        dx = filters.separable(program, calm, derive, smooth, border="replicate")
        dy = filters.separable(program, calm, smooth, derive, border="replicate")
        made = [calm, filters.canny(program, dx, dy, 80, 160), filters.equalize(program, calm)]
    await program.replay()
    return [await device.get(each) for each in made]


async def main() -> None:
    """Filter, break the device, filter again, and draw."""
    image = scene()
    async with open_device(0) as device:
        before = await device.retry(filtered, device, image)
        await poison(device)
        after = await device.retry(filtered, device, image)
        generation = device.generation
    calm, edges, even = after
    assert generation > 1
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert np.abs(calm - image).max() > 100  # the broken pixels are gone
    y, x = edges.nonzero()
    far = np.abs(np.hypot(x - 64, y - 64) - RADIUS)
    assert len(y) > 4 * RADIUS
    assert np.percentile(far, 90) < 2  # edges are those of the disc
    assert even.max() - even.min() > 2 * (calm.max() - calm.min())
    path = Path(tempfile.gettempdir()) / "filters.png"
    stages = np.hstack([image, calm, edges, even]).clip(0, 255).astype(np.uint8)
    await save_picture(path, stages)
    print(f"{len(y)} pixels of edges, before and after a fault; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
