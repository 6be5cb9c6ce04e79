"""Graphs that move elements, sum channels, and resample images, among other operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, Unsupported

from .... import seeds
from ...conformance import MARKS, dtype_of

pytestmark = MARKS

DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn"),
    *("bool", "int8", "uint16", "int32", "uint64"),
)


def values(shape: tuple[int, ...], dtype: str) -> Any:
    return seeds.rng().integers(-4 if "u" not in dtype else 0, 5, shape).astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
async def test_moves(device: Device, dtype: str, last: bool) -> None:
    """Moves give NumPy's result for the shape that the graph has."""
    x = values((2, 4, 3, 6), dtype)
    given = await device.put(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x)

    async def run(op: str, times: int = 1, **attributes: Any) -> Any:
        graph = device.dnn.graph()
        images = graph.tensor(x.shape, dtype, name="x", channels_last=last)
        names = [f"input{at}" for at in range(times)] if times > 1 else ["input"]
        made: Any = graph.node(op, **dict.fromkeys(names, images), **attributes)
        plan = await graph.build(made)
        return await device.get(await plan(x=given))

    def laid(y: Any) -> Any:
        return np.moveaxis(y, 1, -1) if last else y

    moved = await run("reshape", shape=(3, 4, 12))
    np.testing.assert_array_equal(moved, x.reshape(3, 4, 12))
    moved = await run("transpose", permutation=(2, 0, 3, 1))
    np.testing.assert_array_equal(moved, x.transpose(2, 0, 3, 1))
    moved = await run("slice", starts=(0, 1, 0, 1), stops=(2, 3, 3, 6), steps=(1, 1, 2, 3))
    np.testing.assert_array_equal(moved, laid(x[:, 1:3, ::2, 1::3]))
    moved = await run("slice", starts=(1, 0, 0, 0), stops=(2, 4, 3, 6))
    np.testing.assert_array_equal(moved, laid(x[1:]))
    for axis in (1, 3):
        moved = await run("concatenate", 3, axis=axis)
        np.testing.assert_array_equal(moved, laid(np.concatenate([x, x, x], axis)))


async def test_moves_among_others(device: Device) -> None:
    """Heads are split, attended to and joined again; the tensors in between have no names."""
    rng = seeds.rng()
    x = rng.standard_normal((2, 5, 12)).astype(np.float32)
    w = rng.standard_normal((1, 12, 12)).astype(np.float32)
    graph = device.dnn.graph()
    rows, weight = (
        graph.tensor(x.shape, "float32", name="x"),
        graph.tensor(w.shape, "float32", name="w"),
    )
    heads = graph.reshape(graph.relu(rows @ weight), shape=(2, 5, 3, 4))
    heads = graph.transpose(heads, permutation=(0, 2, 1, 3))
    first = graph.slice(heads, starts=(0, 0, 0, 0), stops=(2, 1, 5, 4))
    joined = graph.concatenate(first * 2.0, heads, axis=1)
    plan = await graph.build(joined, joined + 1.0)
    got = await plan(x=await device.put(x), w=await device.put(w))
    split = np.maximum(x.astype(float) @ w, 0).reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
    expected = np.concatenate([split[:, :1] * 2, split], 1)
    np.testing.assert_allclose(await device.get(got[0]), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(await device.get(got[1]), expected + 1, rtol=1e-4, atol=1e-5)


async def test_integers_are_moved_and_then_computed_with(device: Device) -> None:
    x = values((3, 4), "int32")
    graph = device.dnn.graph()
    turned = graph.transpose(graph.tensor(x.shape, "int32", name="x"), permutation=(1, 0))
    plan = await graph.build(turned * 3)
    got = await device.get(await plan(x=await device.put(x)))
    np.testing.assert_array_equal(got, x.T * 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
async def test_statistics_of_what_was_convolved(device: Device, dtype: str) -> None:
    rng = seeds.rng()
    x, w = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((2, 6, 5, 8), (16, 1, 1, 8)))
    graph = device.dnn.graph()
    images = graph.tensor((2, 8, 6, 5), dtype, name="x", channels_last=True)
    filters = graph.tensor((16, 8, 1, 1), dtype, name="w", channels_last=True)
    y = graph.conv(images, filters)
    plan = await graph.build(y, *graph.genstats(y))
    got = await plan(x=await device.put(x), w=await device.put(w))
    made, total, squares = [await device.get(each) for each in got]
    assert total.shape == squares.shape == (1, 1, 1, 16)
    assert total.dtype == squares.dtype == ("float64" if dtype == "float64" else "float32")
    exact = (x.astype(float) @ w.astype(float).reshape(16, 8).T).reshape(-1, 16)
    close: Any = (
        {"rtol": 1e-3, "atol": 5e-2} if dtype == "float16" else {"rtol": 1e-4, "atol": 1e-4}
    )
    np.testing.assert_allclose(made.reshape(-1, 16).astype(float), exact, **close)
    np.testing.assert_allclose(total.ravel(), exact.sum(0), **close)
    np.testing.assert_allclose(squares.ravel(), (exact**2).sum(0), **close)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
async def test_products_of_numbers_with_a_scale_for_each_block(device: Device, dtype: str) -> None:
    rng = seeds.rng()
    a, b = (
        rng.uniform(-4, 4, shape).astype(dtype_of(dtype)) for shape in ((2, 16, 96), (2, 96, 8))
    )
    scales = [rng.integers(120, 134, shape).astype(np.uint8) for shape in ((2, 16, 3), (2, 3, 8))]
    graph = device.dnn.graph()
    left = graph.block_scale_dequantize(
        graph.tensor(a.shape, dtype, name="a"),
        graph.tensor(scales[0].shape, "uint8", name="scale_a"),
        axis=2,
    )
    right = graph.block_scale_dequantize(
        graph.tensor(b.shape, dtype, name="b"),
        graph.tensor(scales[1].shape, "uint8", name="scale_b"),
        axis=1,
    )
    product = left @ right
    graph.output(product, dtype="float32")
    plan = await graph.build(left, product)
    given = dict(zip(("a", "b", "scale_a", "scale_b"), (a, b, *scales), strict=True))
    got = await plan(**{name: await device.put(each) for name, each in given.items()})
    wide = [2.0 ** (each.astype(float) - 127) for each in scales]
    one = a.astype(float) * wide[0].repeat(32, 2)
    other = b.astype(float) * wide[1].repeat(32, 1)
    np.testing.assert_array_equal((await device.get(got[0])).astype(float), one)
    magnitude = np.abs(one) @ np.abs(other)
    assert (np.abs(await device.get(got[1]) - one @ other) <= 1e-5 * magnitude).all()


async def test_images_are_resampled_in_a_graph(device: Device) -> None:
    x = seeds.rng().standard_normal((1, 2, 4, 6)).astype(np.float32)
    graph = device.dnn.graph()
    images = graph.tensor(x.shape, "float32", name="x")
    window = {"window": (2, 2), "stride": (2, 2), "pre_padding": (0, 0), "post_padding": (0, 0)}
    small = graph.resample(graph.relu(images), mode="MAXPOOL", **window)
    wide = graph.interpolate(small, mode="NEAREST", size=(4, 6))
    mean = graph.adaptive_pool(images, mode="AVGPOOL", size=(1, 1))
    plan = await graph.build(wide + images, mean)
    got = [await device.get(each) for each in await plan(x=await device.put(x))]
    most = np.maximum(x, 0).reshape(1, 2, 2, 2, 3, 2).max((3, 5))
    np.testing.assert_allclose(got[0], most.repeat(2, 2).repeat(2, 3) + x, rtol=1e-6)
    np.testing.assert_allclose(got[1], x.mean((2, 3), keepdims=True), rtol=1e-5)


async def test_moves_refuse_mismatched_shapes(device: Device) -> None:
    graph = device.dnn.graph()
    x, y = graph.tensor((2, 4, 6), "float32"), graph.tensor((2, 4, 6), "float16")
    whole = graph.tensor((2, 4, 6), "int32")
    pool = {"stride": (1,), "pre_padding": (0,), "post_padding": (0,)}
    pooled = {"mode": "MAXPOOL", "window": (2,), **pool}
    refused: list[tuple[type[Exception], str, str, tuple[Any, ...], dict[str, Any]]] = [
        (ValueError, "as many elements", "reshape", (x,), {"shape": (2, 5)}),
        (ValueError, "no elements of 6", "slice", (x,), {"starts": (0, 0, 6), "stops": (2, 4, 6)}),
        (ValueError, "one for each", "slice", (x,), {"starts": (0,), "stops": (2,)}),
        (ValueError, "no permutation", "transpose", (x,), {"permutation": (0, 2, 2)}),
        (ValueError, "axis 3 is not one", "concatenate", (x, x), {"axis": 3}),
        (TypeError, "of one dtype", "concatenate", (x, y), {"axis": 0}),
        (ValueError, "takes tensors, no numbers", "concatenate", (x, 1.0), {"axis": 0}),
        (ValueError, "mode must be one", "resample", (x,), {**pooled, "mode": "SUM"}),
        (ValueError, "window must be 1 numbers", "resample", (x,), {**pooled, "window": (2, 2)}),
        (ValueError, "is not below", "resample", (x,), {**pooled, "pre_padding": (2,)}),
        (ValueError, "does not fit into 6", "resample", (x,), {**pooled, "window": (7,)}),
        (ValueError, "size must be 1", "adaptive_pool", (x,), {"mode": "AVGPOOL", "size": ()}),
        (ValueError, "CUBIC is for two", "interpolate", (x,), {"mode": "CUBIC", "size": (3,)}),
        (
            *(ValueError, "which no|belongs to MAXPOOL", "resample_backward", (x,)),
            {**pooled, "shape": (2, 4, 7)},
        ),
    ]
    for error, match, op, inputs, attributes in refused:
        with pytest.raises(error, match=match):
            getattr(graph, op)(*inputs, **attributes)
    with pytest.raises(Unsupported, match="genstats: input has dtype int32"):
        graph.genstats(whole)
    eighths = graph.tensor((2, 4, 6), "float8_e5m2")
    with pytest.raises(TypeError, match="float8_e8m0fnu is, not float8_e5m2 and int32"):
        graph.block_scale_dequantize(eighths, whole, axis=2)
    scales = graph.tensor((2, 4, 2), "uint8")
    with pytest.raises(ValueError, match=r"not \(2, 4, 1\)"):
        graph.block_scale_dequantize(eighths, scales, axis=2)
    with pytest.raises(ValueError, match="at least 3 dimensions"):
        graph.genstats(graph.tensor((4, 6), "float32"))
