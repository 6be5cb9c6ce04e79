"""Balls that rays meet, and neighbours of points, by a spatial index, with a fault midway.

The picture is drawn by a ray for each pixel, and a second one towards the light.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import SpatialIndex, save_picture
from atomr_accel.testing import poison

SIZE, RADIUS = 80, 0.35
LIGHT = np.array([0.48, 0.6, -0.64])


async def main() -> None:
    """Ask for neighbours, break the device, and draw by rays."""
    rng = np.random.default_rng(4)
    points = rng.uniform((-2, -2, 0), (2, 2, 4), (60, 3)).astype(np.float32)
    async with open_device(0) as device:
        index = await SpatialIndex.build(device, points)
        distances, neighbours = await index.nearest(points, k=3)
        apart = np.linalg.norm(points[:, None].astype(float) - points, axis=-1)
        assert np.allclose(distances, np.sort(apart, 1)[:, :3])
        assert (neighbours[:, 0] == np.arange(60)).all()  # each is its own nearest

        await poison(device)  # the index keeps its points

        y, x = np.mgrid[2 : -2 : SIZE * 1j, -2 : 2 : SIZE * 1j]
        origins = np.stack([x, y, np.full_like(x, -3)], -1).reshape(-1, 3)
        ahead = np.broadcast_to([0.0, 0.0, 1.0], origins.shape)
        far, ball = await index.cast(origins, ahead, RADIUS)
        met = ball >= 0
        places = origins[met] + far[met, None] * ahead[met]
        normals = (places - points[ball[met]]) / RADIUS
        assert np.abs(np.linalg.norm(normals, axis=1) - 1).max() < 1e-4  # they are on the balls
        _, before_light = await index.cast(
            places + 1e-3 * normals, np.broadcast_to(LIGHT, places.shape), RADIUS
        )
        assert index.statistics().points == 60
        assert device.generation > 1

    bright = 0.15 + 0.85 * np.clip(normals @ LIGHT, 0, 1) * (before_light < 0)
    colours = 0.35 + 0.65 * np.random.default_rng(1).random((60, 3))
    image = np.full((SIZE * SIZE, 3), 18, np.uint8)
    image[met] = (255 * bright[:, None] * colours[ball[met]]).astype(np.uint8)
    path = Path(tempfile.gettempdir()) / "neighbours.png"
    await save_picture(path, image.reshape(SIZE, SIZE, 3), scale=3)
    print(f"{met.sum()} of {met.size} rays meet one of 60 balls; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
