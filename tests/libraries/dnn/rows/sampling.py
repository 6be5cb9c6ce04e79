"""Samples of images and their windows for the conformance tests.

A sample is a sum of all elements of an image, by weights that the references make from the
definitions of ``torch.nn.functional``, element by element. Positions stay away from those where
the result has a kink, so differences of samples are slopes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample
from .routines import first, last

DTYPES = (*HALF, *REAL)
BATCH, CHANNELS = 2, 3


def options(case: Case, *names: str) -> Case:
    return {name: case[name] for name in (*names, "layout") if name in case}


def images(sample: Sample, space: tuple[int, ...], case: Case) -> Array:
    return last(sample.array(BATCH, CHANNELS, *space), case)


# --- positions from matrices --------------------------------------------------------------


def even(size: int, *, aligned: bool) -> Array:
    if size == 1:
        return np.zeros(1)
    line = np.linspace(-1, 1, size)
    return line if aligned else line * (size - 1) / size


def points(case: Case) -> Array:
    """(...places, dimensions + 1)."""
    axes = [even(size, aligned=case["align_corners"]) for size in case["places"]]
    mesh = np.meshgrid(*axes, indexing="ij")
    return np.stack([*mesh[::-1], np.ones(case["places"])], -1)


def theta_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    dims = len(case["places"])
    return (sample.array(BATCH, dims, dims + 1),)


def expect_affine(theta: Array, **case: Any) -> Near:
    base = points(case)
    value = np.einsum("nij,...j->n...i", theta, base)
    return Near(value, np.einsum("nij,...j->n...i", abs(theta), abs(base)) + 1)


async def call_affine(device: Any, theta: Any, **case: Any) -> Any:
    size = (BATCH, 7, *case["places"])
    return await device.dnn.affine_grid(theta, size, align_corners=case["align_corners"])


def affine_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (sample.array(BATCH, *case["places"], len(case["places"])),)


def expect_affine_grad(grad: Array, **case: Any) -> Near:
    dims = grad.shape[-1]
    flat, base = grad.reshape(BATCH, -1, dims), points(case).reshape(-1, dims + 1)
    value = np.einsum("npi,pj->nij", flat, base)
    return Near(value, np.einsum("npi,pj->nij", abs(flat), abs(base) + 1))


async def call_affine_grad(device: Any, grad: Any, **case: Any) -> Any:
    return await device.dnn.affine_grid_grad(grad, align_corners=case["align_corners"])


GRIDS: list[Case] = [
    {"places": places, "align_corners": aligned}
    for places in ((4, 5), (1, 6), (3, 2, 4), (20, 30))
    for aligned in (False, True)
]


# --- elements at positions ----------------------------------------------------------------


def between(low: float, high: float, where: float) -> float:
    """A position reflected until it is inside."""
    if low == high:
        return low
    while not low <= where <= high:
        where = 2 * low - where if where < low else 2 * high - where
    return where


def weights(g: float, size: int, case: Case) -> Array:
    """Weights of the elements along a dimension."""
    aligned, padding = case["align_corners"], case["padding_mode"]
    where = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
    if padding == "reflection":
        where = between(0, size - 1, where) if aligned else between(-0.5, size - 0.5, where)
    if padding != "zeros":
        where = min(max(where, 0), size - 1)
    distance = abs(where - np.arange(size))
    return (distance < 0.5) * 1.0 if case["mode"] == "nearest" else np.maximum(1 - distance, 0)


def matrices(grid: Array, case: Case) -> Array:
    """(batch, places, elements)."""
    flat = np.asarray(grid.reshape(BATCH, -1, grid.shape[-1]), np.float64)
    made = np.zeros((*flat.shape[:2], math.prod(case["space"])))
    for at in np.ndindex(*flat.shape[:2]):
        product = np.ones(())
        for g, size in zip(flat[at][::-1], case["space"], strict=True):
            product = np.multiply.outer(product, weights(float(g), size, case))
        made[at] = product.ravel()
    return made


def grid_of(sample: Sample, case: Case) -> Array:
    """Positions inside and outside, not near elements or midway between them."""
    rng, made = sample.rng, []
    for size in reversed(case["space"]):
        shape = (BATCH, *case["places"])
        where = rng.integers(-size - 1, 2 * size, shape) + rng.uniform(0.1, 0.4, shape)
        where += rng.choice([0, 0.5], shape)
        span = max(1, size - 1) if case["align_corners"] else size
        made.append((where if case["align_corners"] else where + 0.5) * 2 / span - 1)
    return np.stack(made, -1).astype(sample.dtype)


def sample_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return images(sample, case["space"], case), grid_of(sample, case)


def summed(matrix: Array, x: Array, case: Case) -> Array:
    y = np.einsum("npe,nce->ncp", matrix, x.reshape(BATCH, CHANNELS, -1))
    return last(y.reshape(BATCH, CHANNELS, *case["places"]), case)


def reach(case: Case) -> float:
    """The factor of a position's own rounding."""
    return 4.0 * sum(case["space"])


def expect_sample(x: Array, grid: Array, **case: Any) -> Near:
    matrix, image = matrices(grid, case), first(x, case)
    size = reach(case) * np.ones_like(matrix[..., :1])
    everywhere = np.broadcast_to(size, matrix.shape)
    magnitude = summed(everywhere / matrix.shape[-1], abs(image), case)
    return Near(summed(matrix, image, case), magnitude)


HOW = ("mode", "padding_mode", "align_corners")


async def call_sample(device: Any, x: Any, grid: Any, **case: Any) -> Any:
    return await device.dnn.grid_sample(x, grid, **options(case, *HOW))


def sample_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return images(sample, case["places"], case), grid_of(sample, case)


def expect_input_grad(grad: Array, grid: Array, **case: Any) -> Near:
    matrix, slopes = matrices(grid, case), first(grad, case).reshape(BATCH, CHANNELS, -1)
    dx = np.einsum("npe,ncp->nce", matrix, slopes)
    size = np.broadcast_to(abs(slopes).sum(-1, keepdims=True) * reach(case), dx.shape)
    shape = (BATCH, CHANNELS, *case["space"])
    return Near(last(dx.reshape(shape), case), last(size.reshape(shape), case))


async def call_input_grad(device: Any, grad: Any, grid: Any, **case: Any) -> Any:
    shape = last(np.zeros((BATCH, CHANNELS, *case["space"]), np.int8), case).shape
    how = options(case, *HOW, "deterministic")
    return await device.dnn.grid_sample_input_grad(grad, grid, shape, **how)


def grid_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    grad, grid = sample_grad_inputs(sample, **case)
    return grad, images(sample, case["space"], case), grid


def expect_grid_grad(grad: Array, x: Array, grid: Array, **case: Any) -> Near:
    image, slopes = first(x, case), first(grad, case)
    wide, step = np.asarray(grid, np.float64), 1e-5
    value = np.zeros(grid.shape)
    for axis in range(grid.shape[-1]):
        move = np.zeros(grid.shape[-1])
        move[axis] = step
        ends = [
            np.einsum(
                "npe,nce,ncp->np",
                matrices(wide + sign * move, case),
                image.reshape(BATCH, CHANNELS, -1),
                slopes.reshape(BATCH, CHANNELS, -1),
            )
            for sign in (1, -1)
        ]
        value[..., axis] = ((ends[0] - ends[1]) / (2 * step)).reshape(grid.shape[:-1])
    return Near(value, np.full(value.shape, CHANNELS * reach(case) ** 2), slack=1e-8)


async def call_grid_grad(device: Any, grad: Any, x: Any, grid: Any, **case: Any) -> Any:
    return await device.dnn.grid_sample_grid_grad(grad, x, grid, **options(case, *HOW))


SAMPLES: list[Case] = [
    {
        "space": space,
        "places": places,
        "mode": mode,
        "padding_mode": padding,
        "align_corners": aligned,
        **({"layout": layout} if layout else {}),
    }
    for (space, places, layout), mode, padding, aligned in itertools.product(
        (((4, 5), (3, 4), None), ((3, 1), (2, 5), "NHWC"), ((2, 3, 4), (2, 2, 3), None)),
        ("bilinear", "nearest"),
        ("zeros", "border", "reflection"),
        (False, True),
    )
]


# --- windows ------------------------------------------------------------------------------


def numbers(case: Case, name: str, default: int) -> tuple[int, ...]:
    given = case.get(name, default)
    return (given,) * len(case["space"]) if isinstance(given, int) else tuple(given)


def movement(case: Case) -> list[tuple[int, ...]]:
    """Size, stride, padding and distance for each dimension."""
    names = (("window", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    return list(zip(*(numbers(case, *each) for each in names), strict=True))


def counts(case: Case) -> tuple[int, ...]:
    return tuple(
        (size + 2 * pad - far * (tap - 1) - 1) // step + 1
        for size, (tap, step, pad, far) in zip(case["space"], movement(case), strict=True)
    )


def pairs(case: Case) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Each element of the window at each place, and the image's element that is there."""
    for o, place in enumerate(np.ndindex(*counts(case))):
        for k, tap in enumerate(np.ndindex(*numbers(case, "window", 1))):
            element = tuple(
                at * step - pad + each * far
                for at, each, (_, step, pad, far) in zip(place, tap, movement(case), strict=True)
            )
            if all(0 <= e < size for e, size in zip(element, case["space"], strict=True)):
                yield o, k, element


def unfold_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (images(sample, case["space"], case),)


def expect_unfold(x: Array, **case: Any) -> Near:
    image, taps = first(x, case), math.prod(numbers(case, "window", 1))
    made = np.zeros((BATCH, CHANNELS, taps, math.prod(counts(case))), image.dtype)
    for o, k, element in pairs(case):
        at: Any = (..., *element)
        made[:, :, k, o] = image[at]
    return Near(made.reshape(BATCH, CHANNELS * taps, -1), 0.0)


MOVES = ("stride", "padding", "dilation")


async def call_unfold(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.unfold(x, case["window"], **options(case, *MOVES))


def fold_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    taps = math.prod(numbers(case, "window", 1))
    return (sample.array(BATCH, CHANNELS * taps, math.prod(counts(case))),)


def expect_fold(x: Array, **case: Any) -> Near:
    taps = math.prod(numbers(case, "window", 1))
    columns = x.reshape(BATCH, CHANNELS, taps, -1)
    made, size = np.zeros((2, BATCH, CHANNELS, *case["space"]))
    for o, k, element in pairs(case):
        made[(..., *element)] += columns[:, :, k, o]
        size[(..., *element)] += abs(columns[:, :, k, o])
    return Near(last(made, case), last(size, case))


async def call_fold(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.fold(x, case["space"], case["window"], **options(case, *MOVES))


COLUMNS: list[Case] = [
    {"space": (7,), "window": 3, "stride": 2, "padding": 1},
    {"space": (5, 6), "window": (2, 3)},
    {"space": (6, 5), "window": 3, "stride": (1, 2), "padding": (2, 1), "layout": "NHWC"},
    {"space": (7, 6), "window": 2, "stride": 3, "padding": 1, "dilation": (3, 2)},
    {"space": (3, 4, 5), "window": (2, 1, 3), "stride": 2, "padding": 1},
]


# --- places of the largest ----------------------------------------------------------------


def pool_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (images(sample, case["space"], case),)  # in few bits some are equal


def expect_pool(x: Array, **case: Any) -> tuple[Near, Near]:
    image = first(x, case)
    found: dict[int, list[tuple[int, ...]]] = {}
    for o, _, element in pairs(case):
        found.setdefault(o, []).append(element)
    y = np.zeros((BATCH, CHANNELS, len(found)), image.dtype)
    index = np.zeros(y.shape, np.int64)
    for o, elements in found.items():
        keys: list[Any] = [(..., *each) for each in elements]
        values = np.stack([image[key] for key in keys], -1)
        y[..., o] = values.max(-1)
        flat = np.array([np.ravel_multi_index(each, case["space"]) for each in elements])
        index[..., o] = flat[values.argmax(-1)]
    shape = (BATCH, CHANNELS, *counts(case))
    return (
        Near(last(y.reshape(shape), case), 0.0),
        Near(last(index.reshape(shape), case), 0.0, dtype="int64"),
    )


async def call_pool(device: Any, x: Any, **case: Any) -> Any:
    how = options(case, "stride", "padding")
    return await device.dnn.max_pool_with_indices(x, case["window"], **how)


def indices_of(sample: Sample, case: Case) -> Array:
    """Indices of which none comes twice in an image and channel."""
    places, space = math.prod(counts(case)), math.prod(case["space"])
    made = [sample.rng.permutation(space)[:places] for _ in range(BATCH * CHANNELS)]
    shape = (BATCH, CHANNELS, *counts(case))
    return last(np.array(made, np.int64).reshape(shape), case)


def unpool_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return images(sample, counts(case), case), indices_of(sample, case)


def expect_unpool(x: Array, indices: Array, **case: Any) -> Near:
    small, where = (first(each, case).reshape(BATCH, CHANNELS, -1) for each in (x, indices))
    made = np.zeros((BATCH, CHANNELS, math.prod(case["space"])), small.dtype)
    for n, c, o in np.ndindex(*small.shape):
        made[n, c, where[n, c, o]] = small[n, c, o]
    return Near(last(made.reshape(BATCH, CHANNELS, *case["space"]), case), 0.0)


async def call_unpool(device: Any, x: Any, indices: Any, **case: Any) -> Any:
    how = options(case, "stride", "padding")
    return await device.dnn.max_unpool(x, indices, case["window"], output_size=case["space"], **how)


def unpool_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return images(sample, case["space"], case), indices_of(sample, case)


def expect_unpool_grad(grad: Array, indices: Array, **case: Any) -> Near:
    wide, where = (first(each, case).reshape(BATCH, CHANNELS, -1) for each in (grad, indices))
    made = np.zeros(where.shape, wide.dtype)
    for n, c, o in np.ndindex(*where.shape):
        made[n, c, o] = wide[n, c, where[n, c, o]]
    return Near(last(made.reshape(BATCH, CHANNELS, *counts(case)), case), 0.0)


async def call_unpool_grad(device: Any, grad: Any, indices: Any, **case: Any) -> Any:
    return await device.dnn.max_unpool_grad(grad, indices, **options(case))


POOLS: list[Case] = [
    {"space": (7,), "window": 3, "stride": 2, "padding": 1},
    {"space": (4, 6), "window": 2, "stride": 2},
    {"space": (5, 6), "window": (3, 2), "stride": (1, 2), "padding": 1, "layout": "NHWC"},
    {"space": (3, 4, 5), "window": 2, "stride": (1, 2, 2)},
]

OPERATIONS = [
    Operation("dnn.affine_grid", DTYPES, GRIDS, theta_inputs, call_affine, expect_affine),
    Operation(
        "dnn.affine_grid_grad",
        DTYPES,
        GRIDS,
        affine_grad_inputs,
        call_affine_grad,
        expect_affine_grad,
    ),
    Operation("dnn.grid_sample", DTYPES, SAMPLES, sample_inputs, call_sample, expect_sample),
    Operation(
        "dnn.grid_sample_input_grad",
        DTYPES,
        [{**case, "deterministic": bool(at % 3)} for at, case in enumerate(SAMPLES)],
        sample_grad_inputs,
        call_input_grad,
        expect_input_grad,
    ),
    Operation(
        "dnn.grid_sample_grid_grad",
        DTYPES,
        SAMPLES,
        grid_grad_inputs,
        call_grid_grad,
        expect_grid_grad,
    ),
    Operation("dnn.unfold", DTYPES, COLUMNS, unfold_inputs, call_unfold, expect_unfold),
    Operation("dnn.fold", DTYPES, COLUMNS, fold_inputs, call_fold, expect_fold),
    Operation("dnn.max_pool_with_indices", DTYPES, POOLS, pool_inputs, call_pool, expect_pool),
    Operation("dnn.max_unpool", DTYPES, POOLS, unpool_inputs, call_unpool, expect_unpool),
    Operation(
        "dnn.max_unpool_grad",
        DTYPES,
        POOLS,
        unpool_grad_inputs,
        call_unpool_grad,
        expect_unpool_grad,
    ),
]
