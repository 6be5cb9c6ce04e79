"""Pooling, softmax, dropout and local response normalisation for the conformance tests.

The references loop over places and channels.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample, on_cuda, product

DTYPES = (*HALF, *REAL)


# --- pooling ------------------------------------------------------------------------------


def windows(case: Case) -> dict[str, Any]:
    return {
        name: case[name]
        for name in ("window", "stride", "padding", "layout", "count_include_pad", "ceil_mode")
        if name in case
    }


def tuples(case: Case) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Window, stride and padding, a number for each dimension."""
    dims = len(case["space"])

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * dims if isinstance(value, int) else tuple(value)

    window = each(case["window"])
    return window, each(case.get("stride", window)), each(case.get("padding", 0))


def first(array: Array, case: Case) -> Array:
    """With channels in their place behind the batch."""
    return np.moveaxis(array, -1, 1) if case.get("layout") == "NHWC" else array


def last(array: Array, case: Case) -> Array:
    return np.moveaxis(array, 1, -1) if case.get("layout") == "NHWC" else array


def places(case: Case) -> list[tuple[tuple[int, ...], tuple[slice, ...], int]]:
    """For each place of the window: where, what of the image is in it, and its size."""
    window, stride, padding = tuples(case)
    space = case["space"]
    counts = []
    for size, taps, step, pad in zip(space, window, stride, padding, strict=True):
        begins = range(-pad, size + pad - taps + 1, step)
        if case.get("ceil_mode") and begins[-1] + taps < size + pad and begins[-1] + step < size:
            begins = range(-pad, begins[-1] + step + 1, step)
        counts.append(len(begins))
    found = []
    for at in itertools.product(*map(range, counts)):
        begin = [i * step - pad for i, step, pad in zip(at, stride, padding, strict=True)]
        inside = tuple(
            slice(max(0, low), min(size, low + taps))
            for low, taps, size in zip(begin, window, space, strict=True)
        )
        # Only what overlaps the padded image counts.
        over = [
            min(low + taps, size + pad) - low
            for low, taps, size, pad in zip(begin, window, space, padding, strict=True)
        ]
        found.append((at, inside, int(np.prod(over))))
    return found


def behind(index: Any) -> Any:
    """An index of the last dimensions."""
    return (..., *index)


def output_shape(case: Case) -> tuple[int, ...]:
    *_, (at, _, _) = places(case)
    return (*case["lead"], *(i + 1 for i in at))


def pool_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    # Distinct numbers, because of equal ones only the first gets the gradient.
    shape = (*case["lead"], *case["space"])
    count = int(np.prod(shape))
    x = (sample.rng.permutation(count) - count / 2) / 256
    return (last(x.reshape(shape).astype(sample.dtype), case),)


def max_pool(x: Array, case: Case) -> tuple[Array, Array]:
    """The result, and where in the image each element comes from, flat."""
    image = first(x, case)
    y = np.zeros(output_shape(case))
    index = np.zeros(y.shape, int)
    numbers = np.arange(int(np.prod(case["space"]))).reshape(case["space"])
    for at, inside, _ in places(case):
        part = image[behind(inside)].reshape(*image.shape[:2], -1)
        best = part.argmax(-1)
        y[behind(at)] = np.take_along_axis(part, best[..., None], -1)[..., 0]
        index[behind(at)] = numbers[inside].ravel()[best]
    return y, index


def expect_max(x: Array, **case: Any) -> Near:
    return Near(last(max_pool(x, case)[0], case), 0.0)


async def call_max(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.max_pool(x, **windows(case))


def max_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    (x,) = pool_inputs(sample, **case)
    y = last(max_pool(x.astype(np.float64), case)[0], case)
    return sample.array(*y.shape), y.astype(x.dtype), x


def expect_max_backward(dy: Array, y: Array, x: Array, **case: Any) -> Near:
    _, index = max_pool(x, case)
    given = first(dy, case)
    shape = first(x, case).shape
    dx, size = np.zeros((2, *shape[:2], int(np.prod(shape[2:]))))
    for lead in np.ndindex(*shape[:2]):
        np.add.at(dx[lead], index[lead].ravel(), given[lead].ravel())
        np.add.at(size[lead], index[lead].ravel(), abs(given[lead]).ravel())
    return Near(last(dx.reshape(shape), case), last(size.reshape(shape), case))


async def call_max_backward(device: Any, dy: Any, y: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.max_pool_grad(dy, y, x, **windows(case))


def shares(case: Case) -> list[tuple[tuple[int, ...], tuple[slice, ...], float]]:
    """Return for each place its position, the slices in it, and its divisor."""
    include = case.get("count_include_pad", True)
    return [
        (at, inside, count if include else int(np.prod([end.stop - end.start for end in inside])))
        for at, inside, count in places(case)
    ]


def expect_average(x: Array, **case: Any) -> Near:
    image = first(x, case)
    y, size = np.zeros((2, *output_shape(case)))
    axes = tuple(range(2, image.ndim))
    for at, inside, count in shares(case):
        y[behind(at)] = image[behind(inside)].sum(axes) / count
        size[behind(at)] = abs(image[behind(inside)]).sum(axes) / count
    return Near(last(y, case), last(size, case))


async def call_average(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.avg_pool(x, **windows(case))


def average_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (last(sample.array(*output_shape(case)), case),)


def expect_average_backward(dy: Array, **case: Any) -> Near:
    given = first(dy, case)
    dx, size = np.zeros((2, *case["lead"], *case["space"]))
    for at, inside, count in shares(case):
        each = given[behind(at)].reshape(*given.shape[:2], *[1] * (given.ndim - 2))
        dx[behind(inside)] += each / count
        size[behind(inside)] += abs(each) / count
    return Near(last(dx, case), last(size, case))


async def call_average_backward(device: Any, dy: Any, **case: Any) -> Any:
    shape = last(np.zeros((*case["lead"], *case["space"]), np.int8), case).shape
    return await device.dnn.avg_pool_grad(dy, shape, **windows(case))


POOLS: list[Case] = [
    {"lead": (2, 3), "space": (17,), "window": 3},
    {"lead": (2, 3), "space": (17,), "window": 3, "stride": 2, "padding": 1},
    {"lead": (2, 3), "space": (8, 9), "window": 2},
    {"lead": (1, 8), "space": (9, 7), "window": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    {"lead": (2, 8), "space": (9, 7), "window": 3, "stride": 2, "padding": 1, "layout": "NHWC"},
    {"lead": (1, 2), "space": (4, 5, 6), "window": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)},
    {"lead": (2, 3), "space": (8,), "window": 3, "stride": 2, "ceil_mode": True},
    {"lead": (2, 3), "space": (8,), "window": 4, "stride": 4, "ceil_mode": True},
    {
        "lead": (1, 3),
        "space": (6, 8),
        "window": (2, 4),
        "stride": 3,
        "padding": (1, 2),
        "ceil_mode": True,
        "layout": "NHWC",
    },
]
AVERAGES = [{**case, "count_include_pad": include} for case in POOLS for include in (True, False)]


# --- softmax ------------------------------------------------------------------------------


def softmax(x: Array, axis: int) -> Array:
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis, keepdims=True))


def softmax_inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (np.asarray(sample.rng.uniform(-4, 4, shape)).astype(sample.dtype),)


def expect_softmax(x: Array, axis: int, *, log: bool, **_: Any) -> Near:
    y = softmax(x, axis)
    slack = (1e-6 if x.dtype == np.float64 else 0.0) if on_cuda() else 0.0
    return Near(np.log(y) if log else y, 4.0 if log else None, slack=slack)


async def call_softmax(device: Any, x: Any, axis: int, *, log: bool, **_: Any) -> Any:
    dnn = device.dnn
    return await (dnn.log_softmax if log else dnn.softmax)(x, axis)


def softmax_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    (x,) = softmax_inputs(sample, **case)
    y = np.asarray(expect_softmax(x.astype(np.float64), case["axis"], log=case["log"]).value)
    return sample.array(*x.shape), y.astype(sample.dtype)


def expect_softmax_backward(dy: Array, y: Array, axis: int, *, log: bool, **_: Any) -> Near:
    if log:
        p = np.exp(y)
        return Near(
            dy - p * dy.sum(axis, keepdims=True),
            abs(dy) + p * abs(dy).sum(axis, keepdims=True),
        )
    size = y * (abs(dy) + (y * abs(dy)).sum(axis, keepdims=True))
    return Near(y * (dy - (y * dy).sum(axis, keepdims=True)), size)


async def call_softmax_backward(
    device: Any, dy: Any, y: Any, axis: int, *, log: bool, **_: Any
) -> Any:
    dnn = device.dnn
    return await (dnn.log_softmax_grad if log else dnn.softmax_grad)(dy, y, axis)


SOFTMAXES = [
    {"shape": shape, "axis": axis, "log": log}
    for shape, axis in (
        ((5,), 0),
        ((4, 33), -1),
        ((4, 33), 0),
        ((2, 3, 4, 5), 1),
        ((2, 3, 4, 5), 2),
        ((1000, 7), -1),
    )
    for log in (False, True)
]


# --- dropout ------------------------------------------------------------------------------


def philox(key: int, counter: int) -> list[int]:
    """A block of four words (Salmon et al., 2011), in Python's integers."""
    low = 0xFFFFFFFF
    c = [counter & low, counter >> 32 & low, 0, 0]
    k = [key & low, key >> 32 & low]
    for _ in range(10):
        first_, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ k[0],
            second & low,
            (first_ >> 32) ^ c[3] ^ k[1],
            first_ & low,
        ]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def expect_dropout(x: Array, p: float, seed: int, offset: int, **_: Any) -> Near:
    words = [philox(seed, (offset + i) // 4)[(offset + i) % 4] for i in range(x.size)]
    keep = np.array(words, np.uint64).reshape(x.shape) >= np.uint64(round(p * 2**32))
    return Near(np.where(keep, x / (1 - p), 0))


async def call_dropout(device: Any, x: Any, p: float, seed: int, offset: int, **_: Any) -> Any:
    return await device.dnn.dropout(x, p, seed=seed, offset=offset)


# --- local response normalisation ---------------------------------------------------------


def lrn_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (last(sample.array(*case["lead"], *case["space"]), case),)


def lrn_options(case: Case) -> dict[str, Any]:
    return {name: case[name] for name in ("size", "alpha", "beta", "k", "layout") if name in case}


def bases(x: Array, case: Case) -> tuple[Array, Array]:
    """Return the base of the power, and which channels (column) belong to which (row)."""
    channels, size = x.shape[1], case["size"]
    before = (size - 1) // 2
    near = np.zeros((channels, channels))
    for channel in range(channels):
        for other in range(channel - before, channel - before + size):
            if 0 <= other < channels:
                near[channel, other] = 1
    share = case["alpha"] / size
    return case["k"] + share * np.einsum("cd,nd...->nc...", near, x * x), near


def expect_lrn(x: Array, **case: Any) -> Near:
    image = first(x, case)
    return Near(last(image * bases(image, case)[0] ** -case["beta"], case))


async def call_lrn(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.local_response_norm(x, **lrn_options(case))


def lrn_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    (x,) = lrn_inputs(sample, **case)
    y = np.asarray(expect_lrn(x.astype(np.float64), **case).value).astype(x.dtype)
    return sample.array(*x.shape), y, x


def expect_lrn_backward(dy: Array, y: Array, x: Array, **case: Any) -> Near:
    given, image = first(dy, case), first(x, case)
    base, near = bases(image, case)
    beta = case["beta"]
    rate = 2 * case["alpha"] / case["size"] * beta
    others = given * image * base ** (-beta - 1)
    dx = given * base**-beta - rate * image * np.einsum("cd,nc...->nd...", near, others)
    return Near(last(dx, case))


async def call_lrn_backward(device: Any, dy: Any, y: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.local_response_norm_grad(dy, y, x, **lrn_options(case))


LRNS: list[Case] = [
    {"lead": (2, 7), "space": (4, 5), "size": 5, "alpha": 0.5, "beta": 0.75, "k": 1.0},
    {"lead": (2, 7), "space": (4, 5), "size": 4, "alpha": 0.5, "beta": 0.5, "k": 2.0},
    {"lead": (1, 3), "space": (11,), "size": 1, "alpha": 1.0, "beta": 0.75, "k": 1.0},
    {"lead": (1, 5), "space": (3, 2, 4), "size": 3, "alpha": 1.0, "beta": 1.0, "k": 1.0},
]

# The device computes powers of single precision by its fast functions.
POWERS = 64.0 if on_cuda() else 8.0

OPERATIONS = [
    Operation("dnn.max_pool", DTYPES, POOLS, pool_inputs, call_max, expect_max),
    Operation(
        "dnn.max_pool_grad",
        DTYPES,
        POOLS,
        max_backward_inputs,
        call_max_backward,
        expect_max_backward,
    ),
    Operation("dnn.avg_pool", DTYPES, AVERAGES, pool_inputs, call_average, expect_average),
    Operation(
        "dnn.avg_pool_grad",
        DTYPES,
        AVERAGES,
        average_backward_inputs,
        call_average_backward,
        expect_average_backward,
    ),
    Operation("dnn.softmax", DTYPES, SOFTMAXES, softmax_inputs, call_softmax, expect_softmax),
    Operation(
        "dnn.softmax_grad",
        DTYPES,
        SOFTMAXES,
        softmax_backward_inputs,
        call_softmax_backward,
        expect_softmax_backward,
    ),
    Operation(
        "dnn.dropout",
        DTYPES,
        product(p=[0.0, 0.3, 0.9], seed=[0, 2**40 + 5], offset=[0, 7, 2**34 + 2], shape=[(3, 11)]),
        softmax_inputs,
        call_dropout,
        expect_dropout,
    ),
    Operation(
        "dnn.local_response_norm",
        DTYPES,
        LRNS,
        lrn_inputs,
        call_lrn,
        expect_lrn,
        factor=POWERS,
        may_refuse=("bfloat16",),
    ),
    Operation(
        "dnn.local_response_norm_grad",
        DTYPES,
        LRNS,
        lrn_backward_inputs,
        call_lrn_backward,
        expect_lrn_backward,
        factor=POWERS,
        may_refuse=("bfloat16",),
    ),
]
