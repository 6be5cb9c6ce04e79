"""Convolution, normalisation, activations and reductions as rows for the conformance tests.

References are computed from windows of indices, so they share nothing with a backend.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special

from ...conformance import HALF, Array, Case, Near, Operation, Sample, on_cuda, product
from . import products

REALS = (*HALF, "float32", "float64")


def first(array: Array, *, last: bool) -> Array:
    """An image or filter with its channels after the batch."""
    return np.moveaxis(array, -1, 1) if last else array


def back(array: Array, *, last: bool) -> Array:
    return np.moveaxis(array, 1, -1) if last else array


def laid(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if last else shape


# --- convolution --------------------------------------------------------------------------


def tuples(value: Any, space: int) -> list[tuple[int, int]]:
    """Padding as pairs."""
    each = [value] * space if isinstance(value, int) else value
    return [(one, one) if isinstance(one, int) else tuple(one) for one in each]


def windows(
    image: tuple[int, ...], taps: tuple[int, ...], padding: Any, stride: Any, dilation: Any
) -> Array:
    """Which element of a flat image each tap of each position meets; -1 is padding.

    Shape (positions..., taps...).
    """
    space = len(image)
    strides = [stride] * space if isinstance(stride, int) else stride
    dilations = [dilation] * space if isinstance(dilation, int) else dilation
    index = np.arange(math.prod(image)).reshape(image)
    index = np.pad(index, tuples(padding, space), constant_values=-1)
    spans = [d * (t - 1) + 1 for d, t in zip(dilations, taps, strict=True)]
    found = sliding_window_view(index, spans)
    found = found[tuple(slice(None, None, step) for step in strides)]
    apart: Any = (..., *(slice(None, None, step) for step in dilations))
    return np.asarray(found[apart])


def gathered(x: Array, taps: tuple[int, ...], **window: Any) -> Array:
    """(N, C, positions, taps) of images (N, C, ...)."""
    index = windows(x.shape[2:], taps, **window)
    flat = x.reshape(*x.shape[:2], -1)
    flat = np.concatenate([flat, np.zeros_like(flat[..., :1])], -1)  # -1 is the last one
    return np.asarray(flat[..., index.reshape(-1, math.prod(taps))])


def correlate(x: Array, w: Array, groups: int, **window: Any) -> Array:
    n, k = x.shape[0], w.shape[0]
    met = gathered(x, w.shape[2:], **window)
    met = met.reshape(n, groups, -1, *met.shape[2:])
    split = w.reshape(groups, k // groups, w.shape[1], -1)
    y = np.einsum("ngcpt,gkct->ngkp", met, split)
    positions = windows(x.shape[2:], w.shape[2:], **window).shape[: x.ndim - 2]
    return np.asarray(y.reshape(n, k, *positions))


def correlate_grad_input(
    grad: Array, w: Array, shape: tuple[int, ...], groups: int, **window: Any
) -> Array:
    n, k = grad.shape[:2]
    index = windows(shape[2:], w.shape[2:], **window).reshape(-1, math.prod(w.shape[2:]))
    split = w.reshape(groups, k // groups, w.shape[1], -1)
    parts = np.einsum("ngkp,gkct->ngcpt", grad.reshape(n, groups, k // groups, -1), split)
    dx = np.zeros((n, shape[1], math.prod(shape[2:]) + 1), grad.dtype)
    where: Any = (slice(None), slice(None), index)
    np.add.at(dx, where, parts.reshape(n, shape[1], *index.shape))
    return dx[..., :-1].reshape(shape)


def correlate_grad_weight(
    x: Array, grad: Array, shape: tuple[int, ...], groups: int, **window: Any
) -> Array:
    n, k = grad.shape[:2]
    met = gathered(x, shape[2:], **window)
    met = met.reshape(n, groups, -1, *met.shape[2:])
    split = grad.reshape(n, groups, k // groups, -1)
    return np.asarray(np.einsum("ngkp,ngcpt->gkct", split, met).reshape(shape))


WINDOW = ("stride", "padding", "dilation")


def window_of(case: Case) -> Case:
    return {"stride": 1, "padding": 0, "dilation": 1} | {
        name: case[name] for name in WINDOW if name in case
    }


def options_of(case: Case) -> Case:
    names = (*WINDOW, "groups", "layout", "activation", "output_padding")
    return {name: case[name] for name in names if name in case}


def last_of(case: Case) -> bool:
    return (case.get("layout") or "NCHW").endswith("C")


def shapes_of(image: Any, filters: Any, groups: int = 1, **case: Any) -> Any:
    """The images, filters and results of a case, channels first."""
    weight = (filters[0], image[1] // groups, *filters[1:])
    window = window_of(case)
    positions = windows(image[2:], weight[2:], **window).shape[: len(image) - 2]
    return tuple(image), weight, (image[0], filters[0], *positions)


def conv_inputs(sample: Sample, bias: bool = False, **case: Any) -> tuple[Array, ...]:
    image, weight, _ = shapes_of(**case)
    last = last_of(case)
    arrays = [sample.array(*laid(image, last=last)), sample.array(*laid(weight, last=last))]
    return (*arrays, sample.array(weight[0])) if bias else tuple(arrays)


async def call_conv(device: Any, x: Any, w: Any, b: Any = None, **case: Any) -> Any:
    return await device.dnn.conv(x, w, bias=b, **options_of(case))


def conv(x: Array, w: Array, b: Array | None = None, groups: int = 1, **case: Any) -> Near:
    last = last_of(case)
    image, weight = first(x, last=last), first(w, last=last)
    window = window_of(case)
    y = correlate(image, weight, groups, **window)
    size = correlate(abs(image), abs(weight), groups, **window)
    if b is not None:
        across = (slice(None), *(None for _ in y.shape[2:]))
        y, size = y + b[across], size + abs(b)[across]
    if case.get("activation"):
        y = ACTIVATIONS[case["activation"]](y)
    return Near(back(y, last=last), back(size, last=last))


def grad_input_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    _, weight, y = shapes_of(**case)
    last = last_of(case)
    return sample.array(*laid(y, last=last)), sample.array(*laid(weight, last=last))


async def call_grad_input(device: Any, grad: Any, w: Any, **case: Any) -> Any:
    shape = laid(tuple(case["image"]), last=last_of(case))
    return await device.dnn.conv_input_grad(grad, w, shape, **options_of(case))


def grad_input(grad: Array, w: Array, groups: int = 1, **case: Any) -> Near:
    last = last_of(case)
    loss, weight = first(grad, last=last), first(w, last=last)
    window, shape = window_of(case), tuple(case["image"])
    dx = correlate_grad_input(loss, weight, shape, groups, **window)
    size = correlate_grad_input(abs(loss), abs(weight), shape, groups, **window)
    return Near(back(dx, last=last), back(size, last=last))


def grad_weight_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    image, _, y = shapes_of(**case)
    last = last_of(case)
    return sample.array(*laid(image, last=last)), sample.array(*laid(y, last=last))


async def call_grad_weight(device: Any, x: Any, grad: Any, **case: Any) -> Any:
    _, weight, _ = shapes_of(**case)
    shape = laid(weight, last=last_of(case))
    return await device.dnn.conv_weight_grad(grad, x, shape, **options_of(case))


def grad_weight(x: Array, grad: Array, groups: int = 1, **case: Any) -> Near:
    last = last_of(case)
    _, shape, _ = shapes_of(groups=groups, **case)
    image, loss, window = first(x, last=last), first(grad, last=last), window_of(case)
    dw = correlate_grad_weight(image, loss, shape, groups, **window)
    size = correlate_grad_weight(abs(image), abs(loss), shape, groups, **window)
    return Near(back(dw, last=last), back(size, last=last))


async def call_grad_bias(device: Any, grad: Any, **case: Any) -> Any:
    return await device.dnn.conv_bias_grad(grad, layout=case.get("layout"))


def grad_bias(dtype: str, grad: Array, **case: Any) -> Near:
    axes = (0, *range(2, grad.ndim))
    loss = first(grad, last=last_of(case))
    return Near(loss.sum(axes), abs(loss).sum(axes), dtype=dtype)


def transpose_inputs(sample: Sample, image: Any, filters: Any, **case: Any) -> tuple[Array, ...]:
    """Here a filter has (channels in, channels out / groups, ...)."""
    groups, last = case.get("groups", 1), last_of(case)
    weight = (image[1], filters[0] // groups, *filters[1:])
    arrays = sample.array(*laid(tuple(image), last=last)), sample.array(*laid(weight, last=last))
    return (*arrays, sample.array(filters[0]))


async def call_transpose(device: Any, x: Any, w: Any, b: Any, **case: Any) -> Any:
    return await device.dnn.conv_transpose(x, w, bias=b, **options_of(case))


def transposed(x: Array, w: Array, b: Array, groups: int = 1, **case: Any) -> Near:
    last, window = last_of(case), window_of(case)
    loss, weight = first(x, last=last), first(w, last=last)
    space = loss.ndim - 2
    more = case.get("output_padding", 0)
    numbers = [
        [value] * space if isinstance(value, int) else value
        for value in (window["stride"], window["dilation"], more)
    ]
    sizes = [
        (size - 1) * step - sum(pad) + apart * (taps - 1) + extra + 1
        for size, taps, pad, step, apart, extra in zip(
            loss.shape[2:],
            weight.shape[2:],
            tuples(window["padding"], space),
            *numbers,
            strict=True,
        )
    ]
    shape = (loss.shape[0], weight.shape[1] * groups, *sizes)
    across = (slice(None), *(None for _ in sizes))
    y = correlate_grad_input(loss, weight, shape, groups, **window) + b[across]
    size = correlate_grad_input(abs(loss), abs(weight), shape, groups, **window) + abs(b)[across]
    return Near(back(y, last=last), back(size, last=last))


PLANE = [
    *product(
        image=[(2, 8, 7, 6)],
        filters=[(16, 3, 3), (8, 1, 1)],
        layout=["NCHW", "NHWC"],
        padding=[0, 1],
        stride=[1, 2],
    ),
    {"image": (1, 3, 9, 8), "filters": (5, 3, 2), "layout": "NCHW", "dilation": (2, 3)},
    {"image": (2, 8, 6, 5), "filters": (8, 3, 3), "layout": "NHWC", "padding": ((0, 1), (2, 1))},
    {"image": (2, 8, 6, 5), "filters": (8, 3, 3), "layout": "NCHW", "padding": ((1, 0), 1)},
    # Of size 1, so that strides fit both layouts.
    {"image": (2, 1, 6, 5), "filters": (8, 1, 1), "layout": "NHWC"},
    {"image": (2, 1, 6, 5), "filters": (8, 3, 3), "layout": "NHWC", "padding": 1},
    {"image": (2, 8, 6, 5), "filters": (1, 3, 3), "layout": "NHWC", "padding": 1},
    {"image": (1, 8, 1, 1), "filters": (8, 1, 1), "layout": "NHWC"},
    *product(
        image=[(2, 16, 6, 5)],
        filters=[(32, 3, 3)],
        groups=[2, 4, 16],
        layout=["NCHW", "NHWC"],
        padding=[1],
    ),
]
LINE = [
    *product(
        image=[(2, 8, 11)], filters=[(16, 3)], layout=["NCW", "NWC"], padding=[1], stride=[1, 2]
    ),
    {"image": (1, 4, 9), "filters": (6, 3), "groups": 2, "dilation": 2, "padding": ((2, 1),)},
]
VOLUME = product(
    image=[(2, 8, 5, 4, 6)],
    filters=[(8, 3, 3, 3), (16, 1, 2, 2)],
    layout=["NCDHW", "NDHWC"],
    padding=[0, 1],
    stride=[1, (1, 2, 2)],
)
CONVOLUTIONS = [*PLANE, *LINE, *VOLUME]

FUSED = product(
    image=[(2, 8, 6, 5)],
    filters=[(16, 3, 3)],
    layout=["NCHW", "NHWC"],
    padding=[1],
    bias=[True],
    activation=[
        *(None, "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "swish", "elu"),
        "softplus",
    ],
)

TRANSPOSED = [
    *product(
        image=[(2, 8, 5, 4)],
        filters=[(16, 3, 3)],
        layout=["NCHW", "NHWC"],
        padding=[0, 1],
        stride=[1, 2],
    ),
    {"image": (2, 8, 5, 4), "filters": (8, 3, 3), "stride": 2, "padding": 1, "output_padding": 1},
    {"image": (2, 8, 5, 4), "filters": (16, 3, 3), "groups": 2, "layout": "NHWC", "dilation": 2},
    {"image": (2, 8, 7), "filters": (16, 3), "stride": 2},
    {"image": (2, 8, 5, 4), "filters": (1, 3, 3), "stride": 2, "layout": "NHWC"},
    {"image": (2, 1, 5, 4), "filters": (8, 1, 1), "layout": "NHWC"},
    {"image": (2, 8, 3, 4, 3), "filters": (8, 2, 2, 2), "stride": 2, "layout": "NDHWC"},
]


# --- activations --------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + special.erf((x / np.sqrt(2)).astype(float))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "softplus": lambda x: np.log1p(np.exp(-abs(x))) + np.maximum(x, 0),
}

FAST = 2e-5 if on_cuda() else 0.0
"""cuDNN computes exponentials and hyperbolic tangents by the device's fast functions."""

STEP = 1e-4
"""Gradients of activations are differences over twice this."""


def slope(name: str, x: Array) -> Array:
    """The derivative; of those with a corner, on the side of the point."""
    function = ACTIVATIONS[name]
    if name in ("relu", "leaky_relu"):
        return np.where(x > 0, function(x + 1) - function(x), 0.01 * (name != "relu"))
    wide = x.astype(np.longdouble)
    return np.asarray((function(wide + STEP) - function(wide - STEP)) / (2 * STEP))


def activation_inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (4 * sample.array(*shape),)


async def call_activation(name: str, device: Any, x: Any, **_: Any) -> Any:
    if name == "gelu_tanh":
        return await device.dnn.gelu(x, approximate="tanh")
    return await getattr(device.dnn, name)(x)


def activation(name: str, x: Array, **_: Any) -> Near:
    return Near(ACTIVATIONS[name](x), slack=FAST if name != "gelu" else max(FAST, 1e-6))


def activation_grad_inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    x = 4 * sample.array(*shape)
    x[np.abs(x) < 1e-3] = 1  # differences at a corner mean nothing
    return sample.array(*shape), x


async def call_activation_grad(name: str, device: Any, grad: Any, x: Any, **_: Any) -> Any:
    if name == "gelu_tanh":
        return await device.dnn.gelu_grad(grad, x, approximate="tanh")
    return await getattr(device.dnn, f"{name}_grad")(grad, x)


def activation_grad(name: str, grad: Array, x: Array, **_: Any) -> Near:
    return Near(grad * slope(name, x), slack=max(FAST, 1e-6))


SHAPES = product(shape=[(3, 5), (2, 3, 4, 5), (64, 48), (7,), (2, 2, 3, 2, 2, 2), (4096,)])
NAMES = [name for name in ACTIVATIONS if name != "swish"]


# --- reductions ---------------------------------------------------------------------------

REDUCTIONS: dict[str, Any] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "absmax": lambda x, axis, keepdims: abs(x).max(axis, keepdims=keepdims),
    "norm1": lambda x, axis, keepdims: abs(x).sum(axis, keepdims=keepdims),
    "norm2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
}


def reduce_inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (sample.array(*shape),)


async def call_reduce(device: Any, x: Any, shape: Any, **case: Any) -> Any:
    return await device.dnn.reduce(x, **case)


def reduced(dtype: str, x: Array, mode: str, axis: Any, keepdims: bool, **_: Any) -> Near:
    function = REDUCTIONS[mode]
    size = REDUCTIONS["mean" if mode == "mean" else "sum"](abs(x), axis=axis, keepdims=keepdims)
    return Near(function(x, axis=axis, keepdims=keepdims), size, dtype=dtype)


REDUCED = [
    *product(shape=[(16, 24)], mode=REDUCTIONS, axis=[0, 1, None], keepdims=[False, True]),
    *product(
        shape=[(4, 6, 8, 16)],
        mode=["sum", "max"],
        axis=[(2, 3), (0, 1, 2), -1, None],
        keepdims=[False],
    ),
]


# --- normalisation ------------------------------------------------------------------------


def normalised(
    x: Array, axes: tuple[int, ...], weight: Array, bias: Array | float, *, eps: float, rms: bool
) -> tuple[Array, Array, Array]:
    """The result and the statistics, which keep their axes."""
    mean = np.zeros_like(x.sum(axes, keepdims=True)) if rms else x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + eps)
    return (x - mean) * inverse * weight + bias, mean, inverse


def gradients(
    grad: Array, x: Array, axes: tuple[int, ...], weight: Array, *, eps: float, rms: bool
) -> Array:
    """The gradient by x, from the Jacobian of the normalisation written out.

    With m numbers under one statistic, d y_j / d x_i = (delta_ij - [1/m] - n_i n_j / m) / s.
    """
    keep = [axis for axis in range(x.ndim) if axis not in axes]
    order = (*keep, *axes)
    shape = [x.shape[axis] for axis in order]
    rows = math.prod(shape[: len(keep)])

    def matrix(array: Array) -> Array:
        return np.broadcast_to(array, x.shape).transpose(order).reshape(rows, -1)

    flat, scaled = matrix(x), matrix(grad * weight)
    count = flat.shape[1]
    _, mean, inverse = normalised(flat, (1,), np.ones(1), 0.0, eps=eps, rms=rms)
    normal = (flat - mean) * inverse
    unit = np.eye(count)
    jacobian = unit - (0 if rms else 1 / count) - normal[:, :, None] * normal[:, None, :] / count
    dx = np.einsum("ri,rij->rj", scaled, jacobian) * inverse
    return np.asarray(dx.reshape(shape).transpose(np.argsort(order)))


EPS = 1e-3


def norm_inputs(
    sample: Sample, shape: Any, parameter: Any, narrow: bool = False, **case: Any
) -> tuple[Array, ...]:
    last = last_of(case)
    dtype = sample.dtype.name if narrow else wider(sample.dtype.name)
    x = 2 * sample.array(*laid(tuple(shape), last=last)) + sample.dtype.type(0.5)
    return x, sample.array(*parameter, dtype=dtype), sample.array(*parameter, dtype=dtype)


def wider(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def channel(parameter: Array, ndim: int) -> Array:
    return parameter.reshape(-1, *(1 for _ in range(ndim - 2)))


async def call_instance(device: Any, x: Any, weight: Any, bias: Any, **case: Any) -> Any:
    return await device.dnn.instance_norm_train(x, weight, bias, eps=EPS, layout=case.get("layout"))


def statistics(dtype: str, y: Near, *kept: Array) -> Any:
    """A result, and statistics in their dtype; of one that is alone only the result."""
    return (y, *(Near(each, abs(each).max(initial=0) * 4, dtype=wider(dtype)) for each in kept))


def near(value: Array, *terms: Array | float) -> Near:
    return Near(value, sum(np.abs(term).max() for term in (value, *terms)))


def instance(dtype: str, x: Array, weight: Array, bias: Array, **case: Any) -> Any:
    last = last_of(case)
    image = first(x, last=last)
    axes = tuple(range(2, image.ndim))
    scale, shift = channel(weight, image.ndim), channel(bias, image.ndim)
    y, mean, inverse = normalised(image, axes, scale, shift, eps=EPS, rms=False)
    kept = (each.reshape(image.shape[:2]) for each in (mean, inverse))
    return statistics(dtype, near(back(y, last=last)), *kept)


def grouped(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


async def call_group(device: Any, x: Any, weight: Any, bias: Any, **case: Any) -> Any:
    return await device.dnn.group_norm_train(
        x, case["groups"], weight, bias, eps=EPS, layout=case.get("layout")
    )


def group(dtype: str, x: Array, weight: Array, bias: Array, groups: int, **case: Any) -> Any:
    last = last_of(case)
    image = first(x, last=last)
    split = grouped(image, groups)
    axes = tuple(range(2, split.ndim))
    one = np.ones(1)
    y, mean, inverse = normalised(split, axes, one, 0.0, eps=EPS, rms=False)
    y = y.reshape(image.shape) * channel(weight, image.ndim) + channel(bias, image.ndim)
    kept = (each.reshape(image.shape[0], groups) for each in (mean, inverse))
    return statistics(dtype, near(back(y, last=last)), *kept)


def batch_inputs(sample: Sample, shape: Any, **case: Any) -> tuple[Array, ...]:
    kept = wider(sample.dtype.name)
    arrays = norm_inputs(sample, shape, (shape[1],), **case)
    mean = sample.array(shape[1], dtype=kept)
    return (*arrays, mean, np.abs(sample.array(shape[1], dtype=kept)) + 1)


async def call_batch(device: Any, x: Any, w: Any, b: Any, m: Any, v: Any, **case: Any) -> Any:
    layout = case.get("layout")
    if not case["training"]:
        return await device.dnn.batch_norm(x, m, v, w, b, eps=EPS, layout=layout)
    y, mean, inverse = await device.dnn.batch_norm_train(
        x, m, v, w, b, momentum=0.3, eps=EPS, layout=layout
    )
    return y, mean, inverse, m, v


def batch(dtype: str, x: Array, w: Array, b: Array, m: Array, v: Array, **case: Any) -> Any:
    last = last_of(case)
    image = first(x, last=last)
    w, b = channel(w, image.ndim), channel(b, image.ndim)
    if not case["training"]:
        mean, variance = channel(m, image.ndim), channel(v, image.ndim)
        y = (image - mean) / np.sqrt(variance + EPS) * w + b
        return near(back(y, last=last), mean)
    axes = (0, *range(2, image.ndim))
    y, mean, inverse = normalised(image, axes, w, b, eps=EPS, rms=False)
    count = image.size // image.shape[1]
    unbiased = image.var(axes, ddof=1) if count > 1 else image.var(axes)
    kept = [mean.ravel(), inverse.ravel(), 0.7 * m + 0.3 * mean.ravel(), 0.7 * v + 0.3 * unbiased]
    return statistics(dtype, near(back(y, last=last)), *kept)


async def call_layer(device: Any, x: Any, weight: Any, bias: Any, **case: Any) -> Any:
    return await device.dnn.layer_norm_train(x, weight, bias, eps=EPS)


def layer(dtype: str, x: Array, weight: Array, bias: Array, **case: Any) -> Any:
    axes = tuple(range(x.ndim - weight.ndim, x.ndim))
    y, mean, inverse = normalised(x, axes, weight, bias, eps=EPS, rms=False)
    leading = x.shape[: x.ndim - weight.ndim]
    return statistics(dtype, near(y), mean.reshape(leading), inverse.reshape(leading))


async def call_rms(device: Any, x: Any, weight: Any, bias: Any, **case: Any) -> Any:
    bias = bias if case["shift"] else None
    return await device.dnn.rms_norm_train(x, weight, bias, eps=EPS)


def rms(dtype: str, x: Array, weight: Array, bias: Array, **case: Any) -> Any:
    axes = tuple(range(x.ndim - weight.ndim, x.ndim))
    shift = bias if case["shift"] else 0.0
    y, _, inverse = normalised(x, axes, weight, shift, eps=EPS, rms=True)
    return statistics(dtype, near(y), inverse.reshape(x.shape[: x.ndim - weight.ndim]))


def grad_inputs(kind: str, sample: Sample, **case: Any) -> tuple[Array, ...]:
    x, weight, _ = norm_inputs(sample, **case)
    return sample.array(*x.shape), x, weight


async def call_norm_grad(kind: str, device: Any, grad: Any, x: Any, w: Any, **case: Any) -> Any:
    """The statistics come from the forward pass; its bias does not matter to them."""
    dnn, layout = device.dnn, case.get("layout")
    if kind == "batch":
        _, *kept = await dnn.batch_norm_train(x, None, None, w, w, eps=EPS, layout=layout)
        return await dnn.batch_norm_grad(grad, x, w, *kept, layout=layout)
    if kind == "group":
        groups = case["groups"]
        _, *kept = await dnn.group_norm_train(x, groups, w, w, eps=EPS, layout=layout)
        return await dnn.group_norm_grad(grad, x, groups, w, *kept, layout=layout)
    if kind == "instance":
        _, *kept = await dnn.instance_norm_train(x, w, w, eps=EPS, layout=layout)
        return await dnn.instance_norm_grad(grad, x, w, *kept, layout=layout)
    if kind == "layer":
        _, *kept = await dnn.layer_norm_train(x, w, w, eps=EPS)
        return await dnn.layer_norm_grad(grad, x, w, *kept)
    _, inverse = await dnn.rms_norm_train(x, w, eps=EPS)
    return await dnn.rms_norm_grad(grad, x, w, inverse)


def norm_grad(kind: str, dtype: str, grad: Array, x: Array, w: Array, **case: Any) -> Any:
    last = last_of(case)
    image, loss = first(x, last=last), first(grad, last=last)
    across = w if kind in ("layer", "rms") else channel(w, image.ndim)
    lead = image.ndim - w.ndim
    axes = {
        "instance": tuple(range(2, image.ndim)),
        "batch": (0, *range(2, image.ndim)),
        "group": tuple(range(2, image.ndim + 1)),
    }.get(kind, tuple(range(lead, image.ndim)))
    if kind == "group":
        groups = case["groups"]
        split, scaled = grouped(image, groups), grouped(loss * across, groups)
        dx = gradients(scaled, split, axes, np.ones(1), eps=EPS, rms=False).reshape(image.shape)
        normal, _, inverse = normalised(split, axes, np.ones(1), 0.0, eps=EPS, rms=False)
        normal = normal.reshape(image.shape)
    else:
        dx = gradients(loss, image, axes, across, eps=EPS, rms=kind == "rms")
        normal, _, inverse = normalised(image, axes, np.ones(1), 0.0, eps=EPS, rms=kind == "rms")
    summed = tuple(range(lead)) if kind in ("layer", "rms") else (0, *range(2, image.ndim))
    parameter = dtype if case.get("narrow") else wider(dtype)
    size = abs(loss).sum(summed)
    # The mean is subtracted from numbers that may be much larger than the difference.
    largest = abs(image).max() * inverse.max()
    sums = [
        Near((loss * normal).sum(summed), size * largest, dtype=parameter),
        Near(loss.sum(summed), size, dtype=parameter),
    ]
    terms = abs(loss * across).max() * (largest**2 + 1)
    return (Near(back(dx, last=last), max(abs(dx).max(), terms)), *sums)


IMAGES: list[Case] = [
    *product(shape=[(3, 8, 4, 5), (2, 5, 3, 3)], layout=["NCHW", "NHWC"]),
    {"shape": (2, 8, 6), "layout": "NWC"},
    {"shape": (2, 16, 2, 3, 4), "layout": "NCDHW"},
]
"""For batch norm also a number of channels that cuDNN does not take."""

CHANNELS = [{**case, "parameter": (case["shape"][1],)} for case in IMAGES]
GROUPS = [
    {**case, "groups": groups}
    for case in CHANNELS
    for groups in (1, 2, case["shape"][1])
    if case["shape"][1] % groups == 0
]
BATCH: list[Case] = [
    *({**case, "training": training} for case in IMAGES for training in (True, False)),
    {"shape": (6, 8), "training": True},
    {"shape": (6, 8), "training": False},
]
BATCH_GRAD = [case for case in CHANNELS if case["shape"][0] > 1]
ROWS: list[Case] = [
    {"shape": (6, 40), "parameter": (40,)},
    {"shape": (2, 3, 17), "parameter": (17,)},
    {"shape": (4, 3, 8), "parameter": (3, 8)},
    {"shape": (64,), "parameter": (64,)},
]
NARROW = [{**case, "narrow": narrow} for case in ROWS for narrow in (False, True)]
RMS = [{**case, "shift": shift} for case in NARROW for shift in (False, True)]


def of_dtypes(
    name: str, cases: list[Case], inputs: Any, call: Any, expect: Any, **more: Any
) -> Any:
    """A row for each dtype, for references that need to know it."""
    return [
        Operation(name, (dtype,), cases, inputs, call, partial(expect, dtype), **more)
        for dtype in REALS
    ]


def sums_of(name: str, cases: list[Case], inputs: Any, call: Any, expect: Any) -> list[Operation]:
    """Rows whose results have the dtype of sums."""
    return [
        Operation(name, (dtype,), cases, inputs, call, partial(expect, wider(dtype)), factor=32)
        for dtype in REALS
    ]


CONVOLVERS: list[tuple[str, list[Case], Any, Any, Any]] = [
    ("conv", CONVOLUTIONS, conv_inputs, call_conv, conv),
    ("conv_fused", FUSED, conv_inputs, call_conv, conv),
    ("conv_input_grad", CONVOLUTIONS, grad_input_inputs, call_grad_input, grad_input),
    ("conv_weight_grad", CONVOLUTIONS, grad_weight_inputs, call_grad_weight, grad_weight),
    ("conv_transpose", TRANSPOSED, transpose_inputs, call_transpose, transposed),
]

OPERATIONS = [
    *products.OPERATIONS,
    *(
        Operation(
            f"dnn.{name}",
            REALS,
            cases,
            inputs,
            call,
            expect,
            factor=16 if cases is FUSED else 8,
        )
        for name, cases, inputs, call, expect in CONVOLVERS
    ),
    *sums_of(
        "dnn.conv_bias_grad",
        product(shape=[(2, 8, 4, 5)], layout=["NCHW", "NHWC"]),
        reduce_inputs,
        call_grad_bias,
        grad_bias,
    ),
    *(
        Operation(
            f"dnn.{name}",
            REALS,
            SHAPES,
            activation_inputs,
            partial(call_activation, name),
            partial(activation, name),
            factor=16,
        )
        for name in NAMES
    ),
    *(
        Operation(
            f"dnn.{name}_grad",
            REALS,
            SHAPES,
            activation_grad_inputs,
            partial(call_activation_grad, name),
            partial(activation_grad, name),
            factor=16,
        )
        for name in NAMES
    ),
    *sums_of("dnn.reduce", REDUCED, reduce_inputs, call_reduce, reduced),
    *of_dtypes("dnn.instance_norm", CHANNELS, norm_inputs, call_instance, instance, factor=16),
    *of_dtypes("dnn.group_norm", GROUPS, norm_inputs, call_group, group, factor=16),
    *of_dtypes(
        "dnn.batch_norm",
        BATCH,
        batch_inputs,
        call_batch,
        batch,
        writes=(3, 4),
        factor=16,
    ),
    *of_dtypes("dnn.layer_norm", NARROW, norm_inputs, call_layer, layer, factor=16),
    *of_dtypes("dnn.rms_norm", RMS, norm_inputs, call_rms, rms, factor=16),
    *(
        row
        for kind, cases in (
            ("instance", CHANNELS),
            ("group", GROUPS),
            ("batch", BATCH_GRAD),
            ("layer", NARROW),
            ("rms", RMS),
        )
        for row in of_dtypes(
            f"dnn.{kind}_norm_grad",
            cases,
            partial(grad_inputs, kind),
            partial(call_norm_grad, kind),
            partial(norm_grad, kind),
            factor=32,
        )
    ),
]
