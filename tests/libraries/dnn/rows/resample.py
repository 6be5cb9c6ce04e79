"""Images of another size for the conformance tests: each dimension of space is a matrix.

The references make these matrices element by element, from the definitions of
``torch.nn.functional``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample
from .routines import first, last

DTYPES = (*HALF, *REAL)


def average(size: int, places: int) -> Array:
    made = np.zeros((places, size))
    for place in range(places):
        begin = math.floor(Fraction(place * size, places))
        end = math.ceil(Fraction((place + 1) * size, places))
        made[place, begin:end] = 1 / (end - begin)
    return made


def nearest(size: int, places: int, offset: Fraction = Fraction(0)) -> Array:
    made = np.zeros((places, size))
    for place in range(places):
        made[place, math.floor((place + offset) * Fraction(size, places))] = 1
    return made


def exact(size: int, places: int) -> Array:
    return nearest(size, places, Fraction(1, 2))


def sources(size: int, places: int, *, aligned: bool) -> list[Fraction]:
    if aligned:
        return [place * Fraction(size - 1, max(1, places - 1)) for place in range(places)]
    half = Fraction(1, 2)
    return [(place + half) * Fraction(size, places) - half for place in range(places)]


def linear(size: int, places: int, *, aligned: bool = False) -> Array:
    made = np.zeros((places, size))
    for place, given in enumerate(sources(size, places, aligned=aligned)):
        at = min(max(given, Fraction(0)), Fraction(size - 1))
        for element in range(size):
            made[place, element] = max(0.0, float(1 - abs(at - element)))
    return made


def cubic(size: int, places: int, *, aligned: bool = False) -> Array:
    made = np.zeros((places, size))
    for place, at in enumerate(sources(size, places, aligned=aligned)):
        for element in range(math.floor(at) - 1, math.floor(at) + 3):
            d = abs(float(at - element))
            near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            made[place, min(max(element, 0), size - 1)] += near if d <= 1 else far
    return made


MATRICES: dict[str, Any] = {
    "nearest": nearest,
    "nearest-exact": exact,
    "area": average,
    "bicubic": cubic,
    **dict.fromkeys(("linear", "bilinear", "trilinear"), linear),
}


def matrices(case: Case) -> list[Array]:
    more = {"aligned": True} if case.get("align_corners") else {}
    make = MATRICES[case.get("mode", "area")]
    return [
        make(size, places, **more)
        for size, places in zip(case["space"], case["places"], strict=True)
    ]


def applied(x: Array, given: list[Array]) -> Array:
    """Each matrix on a dimension of space."""
    return reduce(
        lambda y, pair: np.moveaxis(np.tensordot(pair[1], y, (1, pair[0] + 2)), 0, pair[0] + 2),
        enumerate(given),
        x,
    )


def inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (last(sample.array(2, 3, *case["space"]), case),)


def expect(x: Array, **case: Any) -> Near:
    image, given = first(x, case), matrices(case)
    size = applied(abs(image), [abs(each) for each in given])
    return Near(last(applied(image, given), case), last(size, case))


def grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (last(sample.array(2, 3, *case["places"]), case),)


def expect_grad(dy: Array, **case: Any) -> Near:
    grad, given = first(dy, case), [each.T for each in matrices(case)]
    size = applied(abs(grad), [abs(each) for each in given])
    return Near(last(applied(grad, given), case), last(size, case))


def how(case: Case) -> Case:
    names = ("mode", "align_corners", "layout")
    return {name: case[name] for name in names if name in case}


def shape_of(case: Case) -> tuple[int, ...]:
    shape: tuple[int, ...] = last(np.zeros((2, 3, *case["space"]), np.int8), case).shape
    return shape


async def call(device: Any, x: Any, **case: Any) -> Any:
    if factor := case.get("scale_factor"):
        return await device.dnn.interpolate(x, scale_factor=factor, **how(case))
    return await device.dnn.interpolate(x, case["places"], **how(case))


async def call_grad(device: Any, dy: Any, **case: Any) -> Any:
    return await device.dnn.interpolate_grad(dy, shape_of(case), **how(case))


async def call_average(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.adaptive_avg_pool(x, case["places"], **how(case))


async def call_average_grad(device: Any, dy: Any, **case: Any) -> Any:
    return await device.dnn.adaptive_avg_pool_grad(dy, shape_of(case), **how(case))


def largest(x: Array, case: Case) -> tuple[Array, Array]:
    """The largest element of each place, and which one of its image that is."""
    image = first(x, case)
    windows = [
        [np.flatnonzero(row) for row in average(size, places)]
        for size, places in zip(case["space"], case["places"], strict=True)
    ]
    numbers = np.arange(math.prod(case["space"])).reshape(case["space"])
    y, index = np.zeros((2, *image.shape[:2], *case["places"]))
    for at in np.ndindex(*case["places"]):
        inside = np.ix_(*(windows[axis][place] for axis, place in enumerate(at)))
        part = image[(..., *inside)].reshape(*image.shape[:2], -1)
        best = part.argmax(-1)
        y[(..., *at)] = np.take_along_axis(part, best[..., None], -1)[..., 0]
        index[(..., *at)] = numbers[inside].ravel()[best]
    return y, index.astype(int)


def max_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    # Distinct numbers, because of equal ones only the first gets the gradient.
    count = 6 * math.prod(case["space"])
    x = (sample.rng.permutation(count) - count / 2) / 256
    return (last(x.reshape(2, 3, *case["space"]).astype(sample.dtype), case),)


def expect_max(x: Array, **case: Any) -> Near:
    return Near(last(largest(x, case)[0], case), 0.0)


async def call_max(device: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.adaptive_max_pool(x, case["places"], **how(case))


def max_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (*grad_inputs(sample, **case), *max_inputs(sample, **case))


def expect_max_grad(dy: Array, x: Array, **case: Any) -> Near:
    _, index = largest(x, case)
    given = first(dy, case)
    dx, size = np.zeros((2, 2, 3, math.prod(case["space"])))
    for lead in np.ndindex(2, 3):
        np.add.at(dx[lead], index[lead].ravel(), given[lead].ravel())
        np.add.at(size[lead], index[lead].ravel(), abs(given[lead]).ravel())
    shape = (2, 3, *case["space"])
    return Near(last(dx.reshape(shape), case), last(size.reshape(shape), case))


async def call_max_grad(device: Any, dy: Any, x: Any, **case: Any) -> Any:
    return await device.dnn.adaptive_max_pool_grad(dy, x, **how(case))


SIZES: list[Case] = [
    {"space": (9,), "places": (4,)},
    {"space": (3,), "places": (8,)},
    {"space": (7, 5), "places": (3, 5), "layout": "NHWC"},
    {"space": (4, 6), "places": (9, 1)},
    {"space": (4, 3, 5), "places": (2, 3, 4)},
]
NAMES = {1: "linear", 2: "bilinear", 3: "trilinear"}
INTERPOLATIONS: list[Case] = [
    *({**case, "mode": mode} for case in SIZES for mode in ("nearest", "nearest-exact", "area")),
    *(
        {**case, "mode": NAMES[len(case["space"])], "align_corners": aligned}
        for case in SIZES
        for aligned in (False, True)
    ),
    *(
        {**case, "mode": "bicubic", "align_corners": aligned}
        for case in SIZES
        if len(case["space"]) == 2
        for aligned in (False, True)
    ),
    {"space": (5, 4), "places": (7, 10), "mode": "bilinear", "scale_factor": (1.5, 2.5)},
    {"space": (5, 4), "places": (10, 8), "mode": "nearest", "scale_factor": 2},
]

OPERATIONS = [
    Operation("dnn.adaptive_avg_pool", DTYPES, SIZES, inputs, call_average, expect),
    Operation(
        "dnn.adaptive_avg_pool_grad", DTYPES, SIZES, grad_inputs, call_average_grad, expect_grad
    ),
    Operation("dnn.adaptive_max_pool", DTYPES, SIZES, max_inputs, call_max, expect_max),
    Operation(
        "dnn.adaptive_max_pool_grad",
        DTYPES,
        SIZES,
        max_grad_inputs,
        call_max_grad,
        expect_max_grad,
    ),
    # Weights lose a few bits between the place in the image and the cube of a distance.
    Operation("dnn.interpolate", DTYPES, INTERPOLATIONS, inputs, call, expect, factor=32),
    Operation(
        "dnn.interpolate_grad",
        DTYPES,
        INTERPOLATIONS,
        grad_inputs,
        call_grad,
        expect_grad,
        factor=32,
    ),
]
