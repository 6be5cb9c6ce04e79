"""Gradients against differences: along a random direction they say how fast a result moves."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from .... import seeds
from ...conformance import MARKS

pytestmark = MARKS

STEP = 1e-5
IMAGE, FILTER = (2, 4, 6, 5), (6, 2, 3, 2)
WINDOW: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), 1), "groups": 2}
RESULT = (2, 6, 3, 6)
PIXELS = (3, 4, 5, 6)


async def first(call: Awaitable[Any]) -> Any:
    return (await call)[0]


async def conv_grads(d: Any, grad: Any, x: Any, w: Any) -> Any:
    return (
        await d.conv_input_grad(grad, w, IMAGE, **WINDOW),
        await d.conv_weight_grad(grad, x, FILTER, **WINDOW),
    )


async def bias_grads(d: Any, grad: Any, x: Any, w: Any, b: Any) -> Any:
    return (*await conv_grads(d, grad, x, w), await d.conv_bias_grad(grad))


def norm_grads(name: str, *extra: Any, **options: Any) -> Any:
    """A norm's gradients, with the statistics of its forward pass."""

    async def compute(d: Any, grad: Any, x: Any, w: Any, b: Any) -> Any:
        forward, backward = getattr(d, f"{name}_norm_train"), getattr(d, f"{name}_norm_grad")
        running = (None, None) if name == "batch" else ()
        _, *kept = await forward(x, *extra, *running, w, b, **options)
        more = {} if name == "rms" else options
        return await backward(grad, x, *extra, w, *kept, **more)

    return compute


def norm(name: str, *extra: Any, **options: Any) -> Any:
    running = (None, None) if name == "batch" else ()

    async def compute(d: Any, x: Any, w: Any, b: Any) -> Any:
        made = getattr(d, f"{name}_norm_train")(x, *extra, *running, w, b, **options)
        return await first(made)

    return compute


def activation(name: str) -> tuple[Any, Any]:
    async def grads(d: Any, grad: Any, x: Any) -> Any:
        return (await getattr(d, f"{name}_grad")(grad, x),)

    return lambda d, x: getattr(d, name)(x), grads


CASES: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "conv": (lambda d, x, w: d.conv(x, w, **WINDOW), conv_grads, (IMAGE, FILTER)),
    "conv with bias": (
        lambda d, x, w, b: d.conv(x, w, bias=b, **WINDOW),
        bias_grads,
        (IMAGE, FILTER, (6,)),
    ),
    **{
        f"{name} norm": (
            norm(name, layout="NHWC"),
            norm_grads(name, layout="NHWC"),
            (PIXELS, (6,), (6,)),
        )
        for name in ("batch", "instance")
    },
    "group norm": (
        norm("group", 3, layout="NHWC"),
        norm_grads("group", 3, layout="NHWC"),
        (PIXELS, (6,), (6,)),
    ),
    **{
        f"{name} norm": (norm(name), norm_grads(name), (PIXELS, (5, 6), (5, 6)))
        for name in ("layer", "rms")
    },
    **{
        name: (*activation(name), ((4, 5),))
        for name in ("sigmoid", "tanh", "gelu", "silu", "elu", "softplus")
    },
}


@pytest.mark.parametrize("name", CASES)
async def test_gradients_are_slopes(device: Device, name: str) -> None:
    forward, backward, shapes = CASES[name]
    rng = seeds.rng()
    dnn = device.dnn
    arrays = [rng.standard_normal(shape) for shape in shapes]
    refs = [await device.put(array) for array in arrays]
    y = await forward(dnn, *refs)
    grad = rng.standard_normal(y.shape)
    gradients = await backward(dnn, await device.put(grad), *refs)
    assert len(gradients) == len(arrays)

    async def value(at: int, array: Any) -> float:
        moved = [*refs]
        moved[at] = await device.put(array)
        result = await device.get(await forward(dnn, *moved))
        return float((result * grad).sum())

    for at, gradient in enumerate(gradients):
        told = await device.get(gradient)
        assert told.shape == arrays[at].shape
        way = rng.standard_normal(told.shape)
        ahead = await value(at, arrays[at] + STEP * way)
        behind = await value(at, arrays[at] - STEP * way)
        slope = (ahead - behind) / (2 * STEP)
        scale = np.abs(told * way).sum() + 1
        assert abs((told * way).sum() - slope) < 1e-6 * scale, (name, at)


async def test_gradients_of_a_transposed_convolution_are_convolutions(device: Device) -> None:
    """``conv_transpose`` is the adjoint of ``conv``: <conv(x), y> = <x, conv_transpose(y)>."""
    rng = seeds.rng()
    x, w, y = (rng.standard_normal(shape) for shape in (IMAGE, FILTER, RESULT))
    refs = [await device.put(each) for each in (x, w, y)]
    ahead = await device.get(await device.dnn.conv(refs[0], refs[1], **WINDOW))
    back = await device.get(
        await device.dnn.conv_transpose(
            refs[2], refs[1], **WINDOW, output_padding=(IMAGE[2] - 6 + 1 - 1, 0)
        )
    )
    assert ahead.shape == RESULT
    assert back.shape == IMAGE
    np.testing.assert_allclose((ahead * y).sum(), (back * x).sum(), rtol=1e-9)
