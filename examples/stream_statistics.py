"""Statistics over a stream of frames, with a fault midway; the histogram goes to a file.

A camera sees noise around a slow wave. NumPy computes the same of the frames that count.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import open_frame_statistics, save_picture
from atomr_accel.testing import poison

SHAPE, FRAMES = (48, 64), 40


async def main() -> None:
    """Push frames, break the device, go on, and draw."""
    random = np.random.default_rng(3)
    wave = 128 + 60 * np.sin(np.arange(SHAPE[1]) / 9)
    frames = (wave + random.normal(0, 12, (FRAMES, *SHAPE))).astype(np.float32)
    async with (
        open_device(0) as device,
        open_frame_statistics(device, SHAPE, every=8, system=device.system, name="camera") as scene,
    ):
        for number, frame in enumerate(frames):
            if number == 29:
                await poison(device)
            await scene.push(frame, dt=1 / 30)
        lost = scene.statistics().lost_steps
        assert lost == 5  # those after the checkpoint of the 24th
        counted = np.delete(frames, np.s_[24:29], 0).astype(np.float64)
        summary = await scene.summary()
        assert summary.frames == FRAMES - lost
        assert np.isclose(summary.mean, counted.mean())
        assert np.isclose(summary.variance, counted.var())
        assert np.allclose(await scene.read("mean"), counted.mean(0))
        path = Path(tempfile.gettempdir()) / "stream_statistics.png"
        await save_picture(path, await scene.snapshot(), scale=3)
        deviation = summary.variance**0.5
        print(f"{summary.mean:.1f} ± {deviation:.1f}, {lost} frames lost; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
