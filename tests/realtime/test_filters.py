"""Image filters against OpenCV, and their kernels against each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import cv2
import numpy as np
import pytest

from atomr_accel import Device, GpuRef, Recording, Unsupported
from atomr_accel.realtime import Filters
from atomr_accel.realtime.wire import filters as wire

from .. import seeds
from ..harness import cpu_only
from .emulated import emulated, needs_compiler

Array = np.ndarray[Any, Any]

BORDERS: dict[Any, int] = {
    "constant": cv2.BORDER_CONSTANT,
    "replicate": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT,
    "reflect_101": cv2.BORDER_REFLECT_101,
}


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, run the NumPy functions, and then the kernels' own C++."""
    if request.param == "kernel":
        monkeypatch.setattr("atomr_accel.realtime._filters.FILTERS", emulated(wire.FILTERS))


pytestmark = pytest.mark.usefixtures("sources")


def picture(*shape: int) -> Array:
    """Return a smooth picture with noise and edges, of whole numbers to 255."""
    h, w, *c = shape
    y, x = np.mgrid[:h, :w]
    base = 90 + 60 * np.sin(x / 5) + 40 * np.cos(y / 7) + 50 * (x > y)
    noise = seeds.rng().integers(0, 40, shape)
    made: Array = np.rint(np.clip((base[..., None] if c else base) + noise, 0, 255))
    return made.astype(np.float32)


async def filtered(
    device: Device,
    image: Array,
    build: Callable[[Filters, Recording, GpuRef], GpuRef],
) -> Array:
    """Return what a recorded filter makes of an image."""
    filters = await Filters.load(device)
    x = await device.put(image)
    async with device.record(x) as recording:
        made = build(filters, recording, x)
    await recording.replay()
    return await device.get(made)


@pytest.mark.parametrize("shape", [(23, 31), (9, 8, 3)])
@pytest.mark.parametrize("border", BORDERS)
async def test_gauss(device: Device, border: Any, shape: tuple[int, ...]) -> None:
    image = picture(*shape)
    filters = await Filters.load(device)
    across, down = await filters.gaussian(7, 1.5), await filters.gaussian(5, 1.1)
    found = await filtered(
        device, image, lambda f, on, x: f.separable(on, x, across, down, border=border)
    )
    wanted = cv2.sepFilter2D(
        image,
        -1,
        cv2.getGaussianKernel(7, 1.5),
        cv2.getGaussianKernel(5, 1.1),
        borderType=BORDERS[border],
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


async def test_borders_wrap_and_reflect_beyond_the_size(device: Device) -> None:
    image = picture(3, 4)
    filters = await Filters.load(device)
    weights = await filters.weights(np.arange(1.0, 14))
    one = await filters.weights([1.0])
    for border, pad in [("wrap", "wrap"), ("reflect", "symmetric"), ("reflect_101", "reflect")]:
        found = await filtered(
            device,
            image,
            lambda f, on, x, border=border: f.separable(on, x, weights, one, border=border),  # type: ignore[misc]
        )
        wide = np.pad(image, ((0, 0), (6, 6)), pad)  # type: ignore[call-overload]
        wanted = np.stack([np.correlate(row, np.arange(1.0, 14)) for row in wide])
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


async def test_correlation(device: Device) -> None:
    image, weights = picture(11, 12, 2), seeds.rng().standard_normal((3, 5)).astype(np.float32)
    ref = await device.put(weights)
    found = await filtered(device, image, lambda f, on, x: f.correlate(on, x, ref))
    np.testing.assert_allclose(found, cv2.filter2D(image, -1, weights), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("shape", [(20, 17), (12, 13, 3)])
async def test_bilateral(device: Device, shape: tuple[int, ...]) -> None:
    image = picture(*shape)
    found = await filtered(device, image, lambda f, on, x: f.bilateral(on, x, 7, 30.0, 3.0))
    wanted = cv2.bilateralFilter(image, 7, 30.0, 3.0)
    np.testing.assert_allclose(found, wanted, atol=0.05)


@pytest.mark.parametrize("size", [3, 5])
async def test_median(device: Device, size: int) -> None:
    image = picture(19, 14, 3)
    found = await filtered(device, image, lambda f, on, x: f.median(on, x, size))
    assert (found == cv2.medianBlur(image, size)).all()


async def test_median_of_seven(device: Device) -> None:
    image = picture(12, 14)
    found = await filtered(device, image, lambda f, on, x: f.median(on, x, 7))
    assert (found == cv2.medianBlur(image.astype(np.uint8), 7)).all()


@pytest.mark.parametrize("kind", [cv2.MORPH_RECT, cv2.MORPH_CROSS, cv2.MORPH_ELLIPSE])
async def test_morphology(device: Device, kind: int) -> None:
    image, shape = picture(16, 21, 2), cv2.getStructuringElement(kind, (5, 3)).astype(np.uint8)
    ref = await device.put(shape)
    for name, op in [
        *(("erode", cv2.MORPH_ERODE), ("dilate", cv2.MORPH_DILATE)),
        *(("opening", cv2.MORPH_OPEN), ("closing", cv2.MORPH_CLOSE)),
    ]:
        found = await filtered(
            device,
            image,
            lambda f, on, x, name=name: getattr(f, name)(on, x, ref),  # type: ignore[misc]
        )
        assert (found == cv2.morphologyEx(image, op, shape)).all(), name


@pytest.mark.parametrize("size", [3, 5])
async def test_sobel(device: Device, size: int) -> None:
    image = picture(14, 15)
    filters = await Filters.load(device)
    smooth, derive = await filters.sobel(size)
    found = await filtered(device, image, lambda f, on, x: f.separable(on, x, derive, smooth))
    assert (found == cv2.Sobel(image, cv2.CV_32F, 1, 0, ksize=size)).all()


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("limits", [(60, 180), (0, 0), (150.7, 400.2)])
async def test_canny(device: Device, limits: tuple[float, float], squares: bool) -> None:
    image = cv2.GaussianBlur(picture(40, 50).astype(np.uint8), (5, 5), 0)
    filters = await Filters.load(device)
    smooth, derive = await filters.sobel()

    def build(f: Filters, on: Recording, x: GpuRef) -> GpuRef:
        dx = f.separable(on, x, derive, smooth, border="replicate")
        dy = f.separable(on, x, smooth, derive, border="replicate")
        return f.canny(on, dx, dy, *limits, squares=squares)

    found = await filtered(device, image.astype(np.float32), build)
    wanted = cv2.Canny(image, *limits, L2gradient=squares)
    assert (found == wanted).all()


@pytest.mark.parametrize("low", [0, 100, 255])
async def test_equalization(device: Device, low: int) -> None:
    image = np.maximum(picture(30, 20), low).astype(np.float32)
    found = await filtered(device, image, lambda f, on, x: f.equalize(on, x))
    assert (found == cv2.equalizeHist(image.astype(np.uint8))).all()


async def test_tables(device: Device) -> None:
    image, random = picture(9, 10, 3), seeds.rng()
    for shape in ((256,), (256, 3)):
        table = random.random(shape).astype(np.float32)
        ref = await device.put(table)
        found = await filtered(device, image, lambda f, on, x, ref=ref: f.look_up(on, x, ref))  # type: ignore[misc]
        wanted = cv2.LUT(
            image.astype(np.uint8), table.reshape(1, 256, -1) if table.ndim == 2 else table
        )
        assert (found == wanted).all()


SPACES = {
    "rgb2gray": cv2.COLOR_RGB2GRAY,
    "bgr2gray": cv2.COLOR_BGR2GRAY,
    "rgb2bgr": cv2.COLOR_RGB2BGR,
    "rgb2ycrcb": cv2.COLOR_RGB2YCrCb,
    "ycrcb2rgb": cv2.COLOR_YCrCb2RGB,
    "rgb2xyz": cv2.COLOR_RGB2XYZ,
    "rgb2hsv": cv2.COLOR_RGB2HSV,
    "hsv2rgb": cv2.COLOR_HSV2RGB,
}


async def test_colours(device: Device) -> None:
    filters = await Filters.load(device)
    for name, code in SPACES.items():
        image = seeds.rng().random((7, 9, 3), np.float32)
        if name == "hsv2rgb":
            image[..., 0] *= 359
        image[0, :3] = np.array([[0.0], [1.0], [0.5]])
        space = await filters.space(name)
        found = await filtered(device, image, lambda f, on, x, to=space: f.convert(on, x, to))  # type: ignore[misc]
        np.testing.assert_allclose(found, cv2.cvtColor(image, code), 1e-4, 1e-4, err_msg=name)


METHODS: dict[Any, int] = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
}


@pytest.mark.parametrize("method", METHODS)
async def test_sizes(device: Device, method: Any) -> None:
    image = picture(18, 24, 3)
    for height, width in [(9, 12), (5, 7), (18, 24), (31, 13)]:

        def build(f: Filters, on: Recording, x: GpuRef, h: int = height, w: int = width) -> GpuRef:
            return f.resize(on, x, h, w, method=method)

        if method == "area" and height > 18:
            with pytest.raises(Unsupported, match="makes no image larger"):
                await filtered(device, image, build)
            continue
        found = await filtered(device, image, build)
        wanted = cv2.resize(image, (width, height), interpolation=METHODS[method])
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=0.02)


async def test_bad_input_is_refused_in_the_caller(device: Device) -> None:
    filters = await Filters.load(device)
    image = await device.put(picture(6, 8))
    byte = await device.put(np.zeros((6, 8), np.uint8))
    line = await device.put(np.zeros(6, np.float32))
    three = await device.put(picture(6, 8, 3))
    gray = await filters.space("rgb2gray")
    wrong: list[tuple[Callable[[Any], object], type[Exception], str]] = [
        (lambda on: filters.median(on, byte, 3), TypeError, "image must be float32"),
        (lambda on: filters.median(on, line, 3), ValueError, "image must have shape"),
        (lambda on: filters.median(on, image[:, ::2], 3), ValueError, "image must be contiguous"),
        (lambda on: filters.median(on, None, 3), TypeError, "image must be an instance of GpuRef"),  # type: ignore[arg-type]
        (lambda _: filters.median(device, image, 3), TypeError, "on must be a batch or a rec"),  # type: ignore[arg-type]
        (lambda _: filters.convert(device, three, gray), TypeError, "on must be a batch or a rec"),  # type: ignore[arg-type]
        (lambda on: filters.median(on, image, 4), ValueError, "size must be odd"),
        (lambda on: filters.median(on, image, 9), ValueError, "size must be from 3 to 7"),
        (lambda on: filters.median(on, image, 3, border="mirror"), ValueError, "border must be"),  # type: ignore[arg-type]
        (lambda on: filters.separable(on, image, line, line), ValueError, "odd sizes"),
        (lambda on: filters.bilateral(on, image, 3, 0, 1), ValueError, "colour must be from"),
        (lambda on: filters.bilateral(on, image, 3, 1, np.nan), ValueError, "space must be finite"),
        (lambda on: filters.erode(on, image, byte), ValueError, "two odd sizes"),
        (lambda on: filters.canny(on, image, image, 2, 1), ValueError, "low must be at most"),
        (lambda on: filters.canny(on, image, three, 1, 2), ValueError, "dx and dy must be"),
        (lambda on: filters.equalize(on, three), ValueError, "must have one channel"),
        (lambda on: filters.look_up(on, image, line), ValueError, "table must be float32"),
        (lambda on: filters.resize(on, image, 0, 3), ValueError, "height must be from 1"),
    ]
    async with device.record() as recording:
        for call, kind, message in wrong:
            with pytest.raises(kind, match=message):
                call(recording)
    later: list[tuple[Awaitable[object], str]] = [
        (filters.gaussian(4), "size must be odd"),
        (filters.sobel(7), "size must be 3 or 5"),
        (filters.space("rgb2lab"), "name must be one of"),
        (filters.weights([np.nan]), "values must be finite"),
    ]
    for each, message in later:
        with pytest.raises(ValueError, match=message):
            await each
