"""DNN against PyTorch in float64, if PyTorch is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from ... import seeds
from ..conformance import MARKS, dtype_of, eps_of

pytestmark = MARKS

torch = pytest.importorskip("torch")
functional = torch.nn.functional

EPS = 1e-3
DTYPES = ("float16", "bfloat16", "float32", "float64")


def rounded(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    return rng.uniform(-1, 1, shape).astype(dtype_of(dtype))


def wide(array: Any) -> Any:
    """An array as PyTorch has it, in float64, to be differentiated by."""
    return torch.tensor(array.astype(np.float64), requires_grad=True)


def close(got: Any, expected: Any, dtype: str, terms: int) -> None:
    exact = expected.detach().numpy()
    tolerance = 8 * eps_of(dtype_of(dtype)) * (1 + np.abs(exact).max()) + terms * 1e-7
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=tolerance)


def turned(array: Any, *, last: bool) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array


def back(array: Any, *, last: bool) -> Any:
    return np.moveaxis(array, -1, 1) if last else array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
async def test_convolution_and_its_gradients(device: Device, dtype: str, last: bool) -> None:
    rng = seeds.rng()
    shapes = ((2, 16, 12, 10), (24, 8, 3, 3), (24,))
    x, w, b = (rounded(rng, shape, dtype) for shape in shapes)
    window: Any = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    tx, tw, tb = map(wide, (x, w, b))
    ty = functional.relu(functional.conv2d(tx, tw, tb, **window))
    grad = rounded(rng, tuple(ty.shape), dtype)
    ty.backward(torch.tensor(grad.astype(np.float64)))

    dnn, layout = device.dnn, "NHWC" if last else "NCHW"
    images, filters, dy = [await device.put(turned(each, last=last)) for each in (x, w, grad)]
    shift = await device.put(b)
    window["layout"] = layout
    y = await dnn.conv(images, filters, bias=shift, activation="relu", **window)
    slope = await dnn.relu_grad(dy, y)
    results = [
        (y, ty),
        (await dnn.conv_input_grad(slope, filters, images.shape, **window), tx.grad),
        (await dnn.conv_weight_grad(slope, images, filters.shape, **window), tw.grad),
    ]
    for got, expected in results:
        close(back(await device.get(got), last=last), expected, dtype, 400)
    close(await device.get(await dnn.conv_bias_grad(slope, layout=layout)), tb.grad, dtype, 400)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_transposed_convolution(device: Device, dtype: str) -> None:
    rng = seeds.rng()
    shapes = ((2, 16, 7, 6), (16, 4, 3, 2))
    x, w = (rounded(rng, shape, dtype) for shape in shapes)
    window: Any = {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2, "groups": 2}
    expected = functional.conv_transpose2d(wide(x), wide(w), **window)
    y = await device.dnn.conv_transpose(await device.put(x), await device.put(w), **window)
    close(await device.get(y), expected, dtype, 200)


NORMS: dict[str, Any] = {
    "batch": lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True, eps=EPS),
    "instance": lambda x, w, b: functional.instance_norm(x, None, None, w, b, eps=EPS),
    "group": lambda x, w, b: functional.group_norm(x, 4, w, b, EPS),
    "layer": lambda x, w, b: functional.layer_norm(x, tuple(w.shape), w, b, EPS),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
async def test_norms_and_their_gradients(device: Device, dtype: str, name: str) -> None:
    rng = seeds.rng()
    shape = (4, 16, 6, 5)
    sizes = shape[2:] if name == "layer" else shape[1:2]
    kept = "float64" if dtype == "float64" else "float32"
    x = rounded(rng, shape, dtype)
    w, b = (rounded(rng, sizes, kept) for _ in range(2))
    tx, tw, tb = map(wide, (x, w, b))
    ty = NORMS[name](tx, tw, tb)
    grad = rounded(rng, shape, dtype)
    ty.backward(torch.tensor(grad.astype(np.float64)))

    forward = getattr(device.dnn, f"{name}_norm_train")
    backward = getattr(device.dnn, f"{name}_norm_grad")
    refs = [await device.put(each) for each in (x, w, b)]
    extra = (4,) if name == "group" else ()
    running = (None, None) if name == "batch" else ()
    y, *saved = await forward(refs[0], *extra, *running, *refs[1:], eps=EPS)
    upstream = await device.put(grad)
    gradients = await backward(upstream, refs[0], *extra, refs[1], *saved)
    for got, expected in zip((y, *gradients), (ty, tx.grad, tw.grad, tb.grad), strict=True):
        close(await device.get(got), expected, dtype, 600)


ACTIVATIONS: dict[str, Any] = {
    name: getattr(functional, name)
    for name in ("relu", "leaky_relu", "gelu", "silu", "elu", "softplus", "sigmoid", "tanh")
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
async def test_activations_and_their_gradients(device: Device, dtype: str, name: str) -> None:
    rng = seeds.rng()
    x, grad = (rounded(rng, (8, 96), dtype) for _ in range(2))
    tx = wide(x)
    ty = ACTIVATIONS[name](tx)
    ty.backward(torch.tensor(grad.astype(np.float64)))
    refs = [await device.put(each) for each in (x, grad)]
    y = await getattr(device.dnn, name)(refs[0])
    dx = await getattr(device.dnn, f"{name}_grad")(refs[1], refs[0])
    close(await device.get(y), ty, dtype, 300)  # cuDNN's fast exponentials
    close(await device.get(dx), tx.grad, dtype, 300)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("aligned", [False, True])
async def test_samples_and_their_gradients(
    device: Device, padding: str, mode: str, aligned: bool
) -> None:
    rng = seeds.rng()
    x, matrix = rng.uniform(-1, 1, (2, 3, 6, 5)), rng.uniform(-1.2, 1.2, (2, 2, 3))
    how: Any = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    tx, tm = wide(x), wide(matrix)
    grid = functional.affine_grid(tm, (2, 3, 4, 7), align_corners=aligned)
    ty = functional.grid_sample(tx, grid, **how)
    grad = rng.uniform(-1, 1, tuple(ty.shape))
    ty.backward(torch.tensor(grad))

    dnn = device.dnn
    image, theta, slope = [await device.put(each) for each in (x, matrix, grad)]
    places = await dnn.affine_grid(theta, (2, 3, 4, 7), align_corners=aligned)
    dgrid = await dnn.grid_sample_grid_grad(slope, image, places, **how)
    results = [
        (await dnn.grid_sample(image, places, **how), ty),
        (await dnn.grid_sample_input_grad(slope, places, x.shape, **how), tx.grad),
        (await dnn.affine_grid_grad(dgrid, align_corners=aligned), tm.grad),
    ]
    for got, expected in results:
        close(await device.get(got), expected, "float64", 0)


async def test_windows_and_places_of_the_largest(device: Device) -> None:
    rng = seeds.rng()
    x = rng.uniform(-1, 1, (2, 3, 7, 8))
    image, tx = await device.put(x), torch.tensor(x)
    moves: Any = {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}
    columns = await device.dnn.unfold(image, (2, 3), **moves)
    wanted = functional.unfold(tx, (2, 3), **moves)
    close(await device.get(columns), wanted, "float64", 0)
    back = await device.dnn.fold(columns, (7, 8), (2, 3), **moves)
    close(await device.get(back), functional.fold(wanted, (7, 8), (2, 3), **moves), "float64", 0)
    y, indices = await device.dnn.max_pool_with_indices(image, 2)
    ty, places = functional.max_pool2d(tx, 2, return_indices=True)
    np.testing.assert_array_equal(await device.get(indices), places.numpy())
    unpooled = await device.dnn.max_unpool(y, indices, 2, output_size=(7, 8))
    wanted = functional.max_unpool2d(ty, places, 2, output_size=(7, 8))
    np.testing.assert_array_equal(await device.get(unpooled), wanted.numpy())
