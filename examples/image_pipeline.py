"""A picture through a pipeline: denoised, sharpened, its edges, its histogram equalised, halved.

Everything between ``put`` and the last ``get`` stays on the device: convolutions, expressions of
several steps in one kernel, and strided views in place of copies. The pictures are written as PNG
into the folder that the command line names, or into a temporary one: look at them.
"""

import struct
import sys
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, GpuRef, open_device

HEIGHT, WIDTH, LEVELS = 384, 512, 256
TAPS = np.array([1, 4, 6, 4, 1], np.float32) / 16  # a blur, by binomial coefficients
AMOUNT, CONTRAST, GAMMA = 1.5, 1.25, 0.8


def scene(rng: np.random.Generator) -> np.ndarray:
    """Discs over a gradient, as a camera in the dark would see them: (rows, columns, colours)."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = np.stack([x / WIDTH, y / HEIGHT, 1 - x / WIDTH], -1)
    for _ in range(24):
        centre, radius = rng.uniform(0, (HEIGHT, WIDTH)), rng.uniform(10, 70)
        inside = np.hypot(y - centre[0], x - centre[1]) < radius
        image[inside] = rng.random(3)
    dark = 0.1 + 0.4 * image + rng.normal(0, 0.03, image.shape)
    return np.asarray((dark.clip(0, 1) * 255).round().astype(np.uint8))


def png(image: np.ndarray) -> bytes:
    """A picture of bytes, grey or in colours, in the format of a file."""
    rows = image.reshape(image.shape[0], -1)
    unfiltered = np.pad(rows, ((0, 0), (1, 0))).tobytes()  # the first byte of a row: no filter
    kind = 2 if image.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, kind, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(unfiltered)), (b"IEND", b"")
    framed = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


# --- what is computed by expressions: of refs on the device, of arrays by NumPy ---------------


def finish(image: Any, blurred: Any) -> Any:
    """Unsharp mask, contrast and gamma, one after the other for each number."""
    sharp = image + AMOUNT * (image - blurred)
    return np.clip((sharp - 0.5) * CONTRAST + 0.5, 0, 1) ** GAMMA


def luminance(image: Any) -> Any:
    """Grey, from colours in the first dimension."""
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def sobel(grey: Any) -> Any:
    """Return the steepness, by six of the eight neighbours each way: views, shifted by a pixel."""
    n, s, w, e = grey[:-2], grey[2:], grey[1:-1, :-2], grey[1:-1, 2:]
    across = n[:, 2:] + 2 * e + s[:, 2:] - n[:, :-2] - 2 * w - s[:, :-2]
    down = s[:, :-2] + 2 * s[:, 1:-1] + s[:, 2:] - n[:, :-2] - 2 * n[:, 1:-1] - n[:, 2:]
    return np.sqrt(across**2 + down**2)


def levels(image: Any) -> Any:
    """Return the image in 256 levels."""
    return np.clip(np.rint(image * (LEVELS - 1)), 0, LEVELS - 1).astype(np.uint8)


def halve(image: Any) -> Any:
    """Half the rows and columns: the mean of four strided views."""
    x = image
    return (x[..., ::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, ::2] + x[..., 1::2, 1::2]) / 4


async def main() -> None:
    """Run it, write the result, compare with NumPy."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="pictures-"))
    photo = scene(np.random.default_rng(7))

    async with open_device(0) as device:
        down = await device.put(TAPS.reshape(1, 1, -1, 1))
        right = await device.put(TAPS.reshape(1, 1, 1, -1))

        async def blur(planes: GpuRef) -> GpuRef:
            edge = ((0, 0), (2, 2), (2, 2))
            x = (await device.array.pad(planes, edge, mode="edge"))[:, None]  # a batch of planes
            return (await device.dnn.conv(await device.dnn.conv(x, down), right))[:, 0]

        pixels = (await device.put(photo)).transpose(2, 0, 1)  # a view: colours first
        image = await device.evaluate(pixels.astype(np.float32) / 255)
        clean = await blur(image)
        final = await device.fuse(finish)(clean, await blur(clean))
        grey = await device.fuse(luminance)(final)
        finished = await device.evaluate(levels(final))
        edges = await device.fuse(lambda x: levels(sobel(x)))(grey)
        shades = await device.evaluate(levels(grey))

        counts, _ = await device.array.histogram(shades, LEVELS, (0, LEVELS))
        below = await device.array.cumsum(counts)
        curve = await device.evaluate((below * (LEVELS - 1) // below[-1]).astype(np.uint8))
        equal = await device.array.take(curve, shades)
        small = await device.evaluate(levels(halve(final)))

        pictures = {
            "1-photo": photo,
            "2-finished": await device.get(finished.transpose(1, 2, 0)),
            "3-edges": await device.get(edges),
            "4-grey": await device.get(shades),
            "5-equalised": await device.get(equal),
            "6-small": await device.get(small.transpose(1, 2, 0)),
        }
        got = await device.get(final), await device.get(counts)

    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(png(picture))
    check(photo, pictures, *got)
    before, after = (
        np.ptp(np.percentile(pictures[name], (5, 95))) for name in ("4-grey", "5-equalised")
    )
    assert after > 2 * before
    print(f"grey: nine of ten pixels within {before:.0f} levels, {after:.0f} once equalised")
    print(f"pictures on {device.backend}: all as NumPy has them, in {folder}")


def check(
    photo: np.ndarray, pictures: dict[str, np.ndarray], final: np.ndarray, counts: np.ndarray
) -> None:
    """Compute the images with NumPy in float64, and allow an error of one level."""

    def blur(planes: np.ndarray) -> Any:
        x = np.pad(planes, ((0, 0), (2, 2), (2, 2)), mode="edge")
        x = sum(tap * x[:, i : i + HEIGHT] for i, tap in enumerate(TAPS.astype(float)))
        return sum(tap * x[..., i : i + WIDTH] for i, tap in enumerate(TAPS.astype(float)))

    clean = blur(photo.transpose(2, 0, 1) / 255)
    expected = finish(clean, blur(clean))
    np.testing.assert_allclose(final, expected, atol=1e-4)
    grey = luminance(expected)
    for name, exact in (
        ("2-finished", levels(expected).transpose(1, 2, 0)),
        ("3-edges", levels(sobel(grey))),
        ("4-grey", levels(grey)),
        ("6-small", levels(halve(expected)).transpose(1, 2, 0)),
    ):
        assert pictures[name].shape == exact.shape
        assert np.abs(pictures[name].astype(int) - exact).max() <= 1, name
    shades = pictures["4-grey"]
    np.testing.assert_array_equal(counts, np.bincount(shades.ravel(), minlength=LEVELS))
    curve = np.cumsum(counts) * (LEVELS - 1) // shades.size
    np.testing.assert_array_equal(pictures["5-equalised"], curve[shades])


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
