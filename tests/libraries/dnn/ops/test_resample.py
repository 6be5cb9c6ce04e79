"""Resampled images against matrices, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from .... import seeds
from ....harness import ON_CUDA
from ...conformance import MARKS, conform
from ...refusals import refuses
from ..rows.resample import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=2)

FLOAT = np.dtype(np.float32)


async def test_resample_keeps_infinities_and_nans_in_place(device: Device) -> None:
    """Elements of weight 0 do not count; the largest of NaN is NaN, and takes the gradient."""
    dnn = device.dnn
    x = await device.put(np.array([[[1, np.inf, 2, np.nan, 3, 4]]], FLOAT))
    cases: list[tuple[Any, list[float]]] = [
        (dnn.adaptive_avg_pool(x, 3), [np.inf, np.nan, 3.5]),
        (dnn.adaptive_max_pool(x, 3), [np.inf, np.nan, 4]),
        (dnn.max_pool(x, 4, stride=4, ceil_mode=True), [np.nan, 4]),
        (dnn.interpolate(x, 3, mode="nearest"), [1, 2, 3]),
        (dnn.interpolate(x, 6, mode="linear"), [1, np.inf, 2, np.nan, 3, 4]),
    ]
    for call, expected in cases:
        got = await device.get(await call)
        np.testing.assert_array_equal(got, np.array([[expected]], FLOAT))
    grad = await device.put(np.ones((1, 1, 3), FLOAT))
    got = await device.get(await dnn.adaptive_max_pool_grad(grad, x))
    np.testing.assert_array_equal(got, [[[0, 1, 0, 1, 0, 1]]])


async def test_a_place_that_begins_behind_the_image_is_none(device: Device) -> None:
    x = await device.put(np.arange(10, dtype=FLOAT).reshape(1, 1, 10))
    # Of 10 elements in steps of 4, a window of 2 leaves none that begins inside.
    assert (await device.dnn.max_pool(x, 2, stride=4, ceil_mode=True)).shape == (1, 1, 3)
    assert (await device.dnn.max_pool(x, 3, stride=4, ceil_mode=True)).shape == (1, 1, 3)
    assert (await device.dnn.max_pool(x, 3, stride=4)).shape == (1, 1, 2)
    padded = await device.dnn.avg_pool(x, 2, stride=3, padding=1, ceil_mode=True)
    np.testing.assert_array_equal(await device.get(padded), [[[0, 2.5, 5.5, 8.5]]])


async def test_windows_larger_than_the_padded_image(device: Device) -> None:
    """A window has a place if less than a step is missing."""
    dnn = device.dnn
    x = await device.put(np.array([[[3, 1, 5]]], FLOAT))
    one = await device.put(np.ones((1, 1, 1), FLOAT))
    pooled = await dnn.max_pool(x, 6, padding=1, ceil_mode=True)
    calls: list[tuple[Any, list[float]]] = [
        (dnn.max_pool(x, 4, ceil_mode=True), [5]),
        (dnn.avg_pool(x, 4, ceil_mode=True), [3]),
        (dnn.avg_pool(x, 6, padding=1, ceil_mode=True), [9 / 5]),
        (dnn.avg_pool(x, 6, padding=1, ceil_mode=True, count_include_pad=False), [3]),
        (dnn.max_pool_grad(one, pooled, x, 6, padding=1, ceil_mode=True), [0, 0, 1]),
        (dnn.avg_pool_grad(one, x.shape, 6, padding=1, ceil_mode=True), [0.2] * 3),
    ]
    for call, expected in calls:
        got = await device.get(await call)
        np.testing.assert_allclose(got, np.array([[expected]], FLOAT), rtol=1e-6)
    for stride, ceil in ((4, False), (1, True), (3, True)):
        with pytest.raises(ValueError, match=r"a window of 6 .* does not fit"):
            await dnn.max_pool(x, 6, stride=stride, ceil_mode=ceil)


async def test_in_batches_recordings_and_given_buffers(device: Device) -> None:
    host = seeds.rng().standard_normal((2, 3, 6, 5)).astype(FLOAT)
    x = await device.put(host)
    expected = await device.get(await device.dnn.interpolate(x, (3, 10), mode="bilinear"))
    async with device.batch() as batch:
        y = batch.dnn.interpolate(x, (3, 10), mode="bilinear")
    np.testing.assert_array_equal(await device.get(y), expected)
    out = await device.full((2, 3, 3, 10), 7.0, FLOAT)
    assert await device.dnn.interpolate(x, (3, 10), mode="bilinear", out=out) is out
    np.testing.assert_array_equal(await device.get(out), expected)
    async with device.record() as recording:
        pooled = recording.dnn.adaptive_max_pool(x, 2)
    await recording.replay()
    apart = await device.dnn.adaptive_max_pool(x, 2)
    np.testing.assert_array_equal(await device.get(pooled), await device.get(apart))


test_bad_arguments = refuses(
    "dnn",
    [
        ("adaptive_avg_pool(0, 2)", TypeError, "x must be a GpuRef"),
        ("interpolate(0, 2)", TypeError, "x must be a GpuRef"),
        (
            "interpolate(i4_2x3x8x8, 2)",
            TypeError,
            "x must have dtype float16, bfloat16, float32 or float64, not int32",
        ),
        ("interpolate(f4_2x3x8x8[0, 0], 2)", ValueError, "one to three dimensions"),
        ('interpolate(f4_2x3x8x8, 2, layout="NWC")', ValueError, "layout 'NWC' does not fit"),
        ("interpolate(f4_2x3x8x8)", ValueError, "either a size or a scale"),
        ("interpolate(f4_2x3x8x8, 2, scale_factor=2)", ValueError, "either a size"),
        ("interpolate(f4_2x3x8x8, (1, 2, 3))", ValueError, "size must be an integer or 2"),
        ("interpolate(f4_2x3x8x8, scale_factor=0.1)", ValueError, "makes"),
        ("interpolate(f4_2x3x8x8, scale_factor=(1, 2, 3))", ValueError, "a number or 2"),
        ('interpolate(f4_2x3x8x8, 2, mode="cubic")', ValueError, "mode must be one of"),
        ('interpolate(f4_2x3x8x8, 2, mode="linear")', ValueError, "use one of nearest"),
        ("interpolate(f4_2x3x8x8, 2, align_corners=True)", ValueError, "align_corners is for"),
        ("adaptive_max_pool(f4_2x3x8x8, 0)", ValueError, "output_size must be"),
        ("adaptive_max_pool(f4_2x3x8x8, 2, out=f4_2x3x8x8)", ValueError, "out is float32 of shape"),
        (
            "max_pool_grad(f4_2x3x4x4, f4_2x3x4x4, f4_2x3x8x8, 3, ceil_mode=True)",
            ValueError,
            "grad must have shape",
        ),
        ("max_pool(f4_2x3x8x8, 3, ceil_mode=1)", TypeError, "ceil_mode"),
        (
            "adaptive_max_pool_grad(f4_2x3x4x4, i4_2x3x8x8)",
            TypeError,
            "x must have the dtype of grad, float32, not int32",
        ),
        (
            "adaptive_avg_pool_grad(f4_2x3x4x4, (2, 3, 8))",
            ValueError,
            r"grad must have the shape of the result for images \(2, 3, 8\), not",
        ),
    ],
)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("max_pool", marks=pytest.mark.skipif(ON_CUDA, reason="cuDNN decides")),
        "max_pool of parts",
        "adaptive_max_pool",
    ],
)
@pytest.mark.parametrize(
    "image", [[np.nan, 1, 2, 0], [0, 1, np.nan, np.nan], [np.nan] * 4, [1, 2, 3, 0]]
)
async def test_every_gradient_of_a_largest_arrives(
    device: Device, way: str, image: list[float]
) -> None:
    """The first NaN gets it, where the result came from."""
    dnn, wanted = device.dnn, np.zeros((1, 1, 2, 2), np.float32)
    x = await device.put(np.array(image, np.float32).reshape(wanted.shape))
    wanted.flat[np.argmax(image)] = 7
    grad = await device.put(np.full((1, 1, 1, 1), 7, np.float32))
    if way == "adaptive_max_pool":
        made = await dnn.adaptive_max_pool_grad(grad, x)
    elif way == "max_pool":
        made = await dnn.max_pool_grad(grad, await dnn.max_pool(x, 2), x, 2)
    else:
        x = await device.put(
            np.pad(await device.get(x), ((0, 0), (0, 0), (0, 1), (0, 0)), mode="edge")
        )
        y = await dnn.max_pool(x, 2, ceil_mode=True)
        grads = await device.put(np.array([7, 0], np.float32).reshape(y.shape))
        made = (await dnn.max_pool_grad(grads, y, x, 2, ceil_mode=True))[:, :, :2]
    np.testing.assert_array_equal(await device.get(made), wanted)
