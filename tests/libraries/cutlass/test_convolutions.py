"""``device.cutlass`` convolves as NumPy does in float64, with the epilogues of products."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device, Unsupported

from ...harness import on_shared
from ..conformance import dtype_of
from .specs import COMPILING, FIXED, near, put

pytestmark = COMPILING

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def convolved(
    x: Array, w: Array, stride: Axes, padding: tuple[tuple[int, int], ...], dilation: Axes
) -> Array:
    """Return the convolution by its definition, in float64: a product for each tap."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)))
    reach = [step * (count - 1) for step, count in zip(dilation, w.shape[1:-1], strict=True)]
    ends = [size - far for size, far in zip(x.shape[1:-1], reach, strict=True)]
    total: Any = 0
    for tap in np.ndindex(w.shape[1:-1]):
        begins = [step * at for step, at in zip(dilation, tap, strict=True)]
        met = x[
            (
                slice(None),
                *(
                    slice(begin, begin + end, step)
                    for begin, end, step in zip(begins, ends, stride, strict=True)
                ),
            )
        ]
        total = total + met @ w[(slice(None), *tap)].T
    return np.asarray(total)


WINDOWS: Final[dict[str, tuple[Axes, Axes, Axes, tuple[tuple[int, int], ...], Axes]]] = {
    "1-D": ((9,), (3,), (2,), ((1, 0),), (2,)),
    "2-D": ((9, 6), (3, 2), (2, 1), ((1, 2), (0, 1)), (1, 2)),
    "3-D": ((5, 4, 6), (2, 3, 1), (1, 2, 2), ((0, 1), (1, 1), (2, 0)), (2, 1, 1)),
    "one tap": ((4, 4), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
}
"""Sizes of images and of filters, stride, padding, dilation."""


@pytest.mark.parametrize("name", WINDOWS)
@on_shared
async def test_windows(device: Device, name: str) -> None:
    image, taps, stride, padding, dilation = WINDOWS[name]
    x, a = await put(device, (2, *image, 8), "bfloat16")
    w, b = await put(device, (16, *taps, 8), "bfloat16")
    out = await device.cutlass.conv(
        x, w, stride=stride, padding=padding, dilation=dilation, **FIXED
    )
    await near(device, out, convolved(a, b, stride, padding, dilation), "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        ("float16", "float16"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("int8", "int32"),
        ("float8_e4m3fn", "bfloat16"),
    ],
)
@on_shared
async def test_dtypes(device: Device, dtype: str, result: str) -> None:
    x, a = await put(device, (2, 5, 4, 16), dtype)
    w, b = await put(device, (16, 3, 3, 16), dtype)
    out = await device.cutlass.conv(x, w, padding="same", dtype=result)
    expected = convolved(a, b, (1, 1), ((1, 1), (1, 1)), (1, 1))
    await near(device, out, expected, result)


@pytest.mark.parametrize("name", WINDOWS)
@on_shared
async def test_the_gradient_by_images_is_the_adjoint(device: Device, name: str) -> None:
    image, taps, _, padding, dilation = WINDOWS[name]
    one = (1,) * len(image)
    w, b = await put(device, (8, *taps, 16), "float16")
    x = np.random.default_rng(5).integers(-2, 3, (2, *image, 16)).astype(np.float64)
    y = convolved(x, b, one, padding, dilation)
    grad, g = await put(device, y.shape, "float16")
    out = await device.cutlass.conv_input_grad(
        grad, w, x.shape, padding=padding, dilation=dilation, dtype="float32", **FIXED
    )
    dx = (await device.get(out)).astype(np.float64)
    assert dx.shape == x.shape
    assert np.isclose((y * g).sum(), (x * dx).sum())


@pytest.mark.parametrize("name", WINDOWS)
@on_shared
async def test_the_gradient_by_filters_is_the_adjoint(device: Device, name: str) -> None:
    image, taps, stride, padding, dilation = WINDOWS[name]
    x, a = await put(device, (2, *image, 16), "bfloat16")
    w = np.random.default_rng(5).integers(-2, 3, (8, *taps, 16)).astype(np.float64)
    y = convolved(a, w, stride, padding, dilation)
    grad, g = await put(device, y.shape, "bfloat16")
    out = await device.cutlass.conv_weight_grad(
        *(grad, x, w.shape),
        stride=stride,
        padding=padding,
        dilation=dilation,
        dtype="float32",
        **FIXED,
    )
    dw = (await device.get(out)).astype(np.float64)
    assert dw.shape == w.shape
    assert np.isclose((y * g).sum(), (w * dw).sum())


@on_shared
async def test_gradients_by_filters_have_epilogues_too(device: Device) -> None:
    x, a = await put(device, (2, 5, 4, 8), "float16")
    grad, g = await put(device, (2, 3, 3, 16), "float16")
    dw = np.stack(
        [np.einsum("nhwk,nhwc->kc", g, a[:, r : r + 3, s : s + 3]) for r, s in np.ndindex(3, 2)],
        1,
    ).reshape(16, 3, 2, 8)
    old, o = await put(device, dw.shape, "float32")
    more, e = await put(device, dw.shape, "float32")
    row, v = await put(device, (8,), "float32")
    column, u = await put(device, (16, 1, 1, 1), "float32")
    kept = await device.zeros(dw.shape, "float32")
    sums, norms = await device.zeros(8, "float32"), await device.zeros(16, "float32")
    value = device.cutlass.accumulator * row * column + more
    out = await device.cutlass.conv_weight_grad(
        *(grad, x, dw.shape),
        out=old,
        c=old,
        beta=1.0,
        epilogue=value.store(kept).sum(0, sums).sum(1, norms) * 2,
        **FIXED,
    )
    assert out is old
    expected = (dw + o) * v * u + e
    await near(device, kept, expected, "float32")
    await near(device, out, 2 * expected, "float32")
    await near(device, sums, expected.sum((0, 1, 2)), "float32")
    await near(device, norms, expected.sum((1, 2, 3)), "float32")


@on_shared
async def test_epilogues_have_channels_as_rows_and_positions_as_columns(device: Device) -> None:
    x, a = await put(device, (2, 4, 4, 8), "float16")
    w, b = await put(device, (16, 3, 3, 8), "float16")
    y = 0.5 * convolved(a, b, (1, 1), ((1, 1), (1, 1)), (1, 1))
    bias, v = await put(device, (16,), "float16")
    residual, r = await put(device, y.shape, "float16")
    scale, s = await put(device, (*y.shape[:-1], 1), "float32")
    channels, places = (
        await device.zeros(16, "float32"),
        await device.zeros(y.shape[:-1], "float32"),
    )
    value = (device.cutlass.accumulator * scale).sum(0, channels).sum(1, places).relu() + 1
    out = await device.cutlass.conv(
        *(x, w), padding=1, alpha=0.5, beta=2.0, c=residual, bias=bias, epilogue=value, **FIXED
    )
    scaled = (y + 2 * r + v) * s
    await near(device, out, np.maximum(scaled, 0) + 1, "float16")
    await near(device, channels, scaled.sum((0, 1, 2)), "float32")
    await near(device, places, scaled.sum(-1), "float32")


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    x, a = await put(device, (1, 4, 4, 8), "bfloat16")
    w, b = await put(device, (8, 3, 3, 8), "bfloat16")
    y = convolved(a, b, (1, 1), ((1, 1), (1, 1)), (1, 1))
    async with device.batch() as batch:
        first = batch.cutlass.conv(x, w, padding=1, **FIXED)
    await near(device, first, y, "bfloat16")
    async with device.record() as recording:
        out = recording.cutlass.conv(x, w, padding=1, **FIXED)
    for factor in (1, 2):
        await device.copy(await device.put((a * factor).astype(dtype_of("bfloat16"))), x)
        await recording.replay()
        await near(device, out, y * factor, "bfloat16")


@on_shared
async def test_the_same_as_that_of_dnn(device: Device) -> None:
    """By the same arguments, with channels last."""
    x, _ = await put(device, (2, 6, 5, 8), "float16")
    w, _ = await put(device, (16, 3, 2, 8), "float16")
    given: Any = {"stride": (2, 1), "padding": [(1, 0), 1], "dilation": 1, "layout": "NHWC"}
    ours = await device.cutlass.conv(x, w, **given)
    theirs = await device.get(await device.dnn.conv(x, w, **given))
    await near(device, ours, theirs.astype(np.float64), "float16")


WRONG: Final[dict[str, tuple[dict[str, Any], type[Exception], str]]] = {
    "channels": ({"w": (8, 3, 3, 16)}, ValueError, "have 8 channels and .* have 16; .* device.dnn"),
    "rank": ({"w": (8, 3, 8)}, ValueError, "images have 4 dimensions, filters 3"),
    "two dimensions": ({"x": (8, 8), "w": (8, 8)}, ValueError, "images have 3 to 5 dimensions"),
    "nothing": ({"x": (0, 9, 9, 8)}, ValueError, "have no elements"),
    "too wide": ({"dilation": 5}, ValueError, "reach beyond images"),
    "stride": ({"stride": 0}, ValueError, "stride"),
    "padding": ({"padding": "full"}, ValueError, "padding must be 'valid', 'same'"),
    "rows": ({"x": (1, 9, 9, 4), "w": (8, 3, 3, 4)}, ValueError, "rows of x have 4 elements"),
    "filters": ({"w": (4, 3, 3, 8)}, ValueError, "rows of the result have 4"),
    "dtypes": ({"w_dtype": "bfloat16"}, TypeError, "x is float16 and w bfloat16"),
    "bias": ({"bias": (9,)}, ValueError, r"bias must have shape \(8,\), not \(9,\)"),
    "layout": ({"layout": "NCHW"}, Unsupported, "channels last, 'NHWC'"),
    "groups": ({"groups": 2}, Unsupported, "device.dnn has groups"),
    "far stride": ({"stride": 9}, Unsupported, "TMA has up to 8"),
    "far padding": ({"padding": 129}, Unsupported, "TMA has from -128 to 127"),
    "far filter": (
        {"x": (1, 4, 4, 40, 8), "w": (8, 1, 1, 32, 8), "padding": [(0, 0), (0, 0), (0, 15)]},
        Unsupported,
        "32 taps with dilation 1 is 31 from the first; TMA has up to 30",
    ),
}


@on_shared
async def test_arguments_that_are_refused(device: Device) -> None:
    for what, (changed, error, said) in WRONG.items():
        given: dict[str, Any] = {
            "x": (1, 9, 9, 8),
            "w": (8, 3, 3, 8),
            "x_dtype": "float16",
            "w_dtype": "float16",
        }
        given |= changed
        x, w = [await device.zeros(given.pop(name), given.pop(f"{name}_dtype")) for name in "xw"]
        if "bias" in given:
            given["bias"] = await device.zeros(given["bias"], "float16")
        async with device.batch() as batch:
            with pytest.raises(error, match=said):
                batch.cutlass.conv(x, w, **given)
                pytest.fail(what)


@on_shared
async def test_gradients_that_are_refused(device: Device) -> None:
    grad, w = (
        await device.zeros((1, 7, 7, 8), "float16"),
        await device.zeros((8, 3, 3, 8), "float16"),
    )
    wide, filters = (
        await device.zeros((1, 7, 7, 8), "float32"),
        await device.zeros((8, 3, 3, 8), "float32"),
    )
    wrong: tuple[tuple[Any, dict[str, Any], type[Exception], str], ...] = (
        (
            (grad, w, (1, 8, 8, 8)),
            {},
            ValueError,
            r"grad must have shape \(1, 6, 6, 8\), as the result of the convolution",
        ),
        ((grad, w, (1, 15, 15, 8)), {"stride": 2}, Unsupported, "for stride 1"),
        ((wide, filters, (1, 9, 9, 8)), {}, Unsupported, "gradients of convolutions in float32"),
        ((grad, w, (1, 9, 9.5, 8)), {}, TypeError, r"shape\[2\]"),
        ((grad, w, None), {}, TypeError, "shape must be whole numbers"),
        ((grad, w, (1, 9, 9, 8)), {"stride": True}, TypeError, "stride must be an integer"),
        ((grad, w, (1, 9, 9, 8)), {"padding": (True, 0)}, TypeError, "padding must be an integer"),
    )
    for given, more, error, said in wrong:
        with pytest.raises(error, match=said):
            await device.cutlass.conv_input_grad(*given, **more)
    x = await device.zeros((1, 9, 9, 8), "float16")
    refused: tuple[tuple[Any, type[Exception], str], ...] = (
        ((8, 3, 2, 8), ValueError, r"grad must have shape \(1, 7, 8, 8\), as the result of the"),
        ((8, 3, 3, 16), ValueError, "filters of shape .* have 16"),
        (None, TypeError, "shape must be whole numbers"),
    )
    for shape, error, said in refused:
        with pytest.raises(error, match=said):
            await device.cutlass.conv_weight_grad(grad, x, shape)
    with pytest.raises(Unsupported, match="gradients of convolutions in float32"):
        await device.cutlass.conv_weight_grad(wide, wide, (8, 1, 1, 8))


@on_shared
async def test_tuning(device: Device) -> None:
    x, a = await put(device, (1, 4, 4, 8), "bfloat16")
    w, b = await put(device, (8, 3, 3, 8), "bfloat16")
    found = await device.cutlass.tune_conv(
        x, w, padding=1, tiles=[(128, 128, 64)], clusters=[(1, 1, 1), (2, 1, 1)], swizzles=[1]
    )
    assert {(each.cluster, each.schedule) for each in found} == {
        (cluster, schedule)
        for cluster in ((1, 1, 1), (2, 1, 1))
        for schedule in ("cooperative", "pingpong")
    }
    kernels = device.statistics().caches["cutlass.kernels"].entries
    out = await device.cutlass.conv(x, w, padding=1)
    assert device.statistics().caches["cutlass.kernels"].entries == kernels
    await near(device, out, convolved(a, b, (1, 1), ((1, 1), (1, 1)), (1, 1)), "bfloat16")
