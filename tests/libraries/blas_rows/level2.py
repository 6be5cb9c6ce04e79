"""Level 2: a matrix and vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..conformance import COMPLEX, FLOATS, Near, Operation, product
from .common import (
    ALPHA,
    BETA,
    DOUBLES,
    SIZES,
    hide,
    method,
    near,
    op,
    room,
    scalar,
    solve,
    symmetric,
    taken,
    triangular,
    turned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..conformance import Array, Case, Sample


STEPS: list[Case] = [{}, {"offx": 1, "incx": 2, "offy": 2, "incy": 3}]


def gemv_inputs(
    sample: Sample,
    m: int,
    n: int,
    trans: Any = 0,
    offx: int = 0,
    incx: int = 1,
    offy: int = 0,
    incy: int = 1,
    **_: Any,
) -> tuple[Array, ...]:
    rows, columns = turned(m, n, trans)
    x, y = sample.array(room(columns, offx, incx)), sample.array(room(rows, offy, incy))
    return sample.array(m, n), x, y


def matrix_vector(name: str) -> Callable[..., Any]:
    """A call with alpha, beta and an output."""

    async def call(device: Any, a: Any, x: Any, y: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
        return await getattr(device.blas, name)(a, x, out=y, alpha=alpha, beta=beta, **options)

    return call


def plain(name: str) -> Callable[..., Any]:
    """A call without any of that."""

    async def call(device: Any, a: Any, x: Any, _y: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        return await getattr(device.blas, name)(a, x, **options)

    return call


def update(whole: Callable[[Array, Case], Array]) -> Callable[..., Near]:
    """``alpha * op(a) @ x + beta * y``, where ``whole`` makes the matrix."""

    def expect(a: Array, x: Array, y: Array, **case: Any) -> Near:
        offx, incx = case.get("offx", 0), case.get("incx", 1)
        offy, incy = case.get("offy", 0), case.get("incy", 1)
        matrix = op(whole(a, case), case.get("trans", 0))
        rows, columns = matrix.shape
        first = taken(x, columns, offx, incx)
        value, size = y.copy(), np.abs(y)
        alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
        part, terms = taken(value, rows, offy, incy), taken(size, rows, offy, incy)
        part[...] = alpha * (matrix @ first) + beta * part
        terms[...] = np.abs(matrix) @ np.abs(first) + terms
        return Near(value, size)

    return expect


def product_of(whole: Callable[[Array, Case], Array]) -> Callable[..., Near]:
    """``op(a) @ x``."""

    def expect(a: Array, x: Array, _y: Array, **case: Any) -> Near:
        return near(np.matmul, op(whole(a, case), case.get("trans", 0)), x)

    return expect


def as_is(a: Array, _case: Case) -> Array:
    return a


def banded(a: Array, case: Case) -> Array:
    """The matrix of a band."""
    m, n, kl, ku = (case[key] for key in ("m", "n", "kl", "ku"))
    whole = np.zeros((m, n), a.dtype)
    for i in range(m):
        for j in range(max(0, i - kl), min(n, i + ku + 1)):
            whole[i, j] = a[ku + i - j, j]
    return whole


def gbmv_inputs(sample: Sample, m: int, n: int, kl: int, ku: int, trans: Any) -> Any:
    rows, columns = turned(m, n, trans)
    return sample.array(kl + ku + 1, n), sample.array(columns), sample.array(rows)


async def call_gbmv(device: Any, a: Any, x: Any, y: Any, **case: Any) -> Any:
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return await device.blas.gbmv(
        case["m"],
        case["n"],
        case["kl"],
        case["ku"],
        a,
        x,
        out=y,
        alpha=alpha,
        beta=beta,
        trans=case["trans"],
    )


def square_inputs(sample: Sample, n: int, **case: Any) -> tuple[Array, ...]:
    a, x, y = gemv_inputs(sample, n, n, **case)
    return hide(a, **case), x, y


def triangle_inputs(sample: Sample, n: int, offx: int = 0, incx: int = 1, **case: Any) -> Any:
    a = hide(sample.triangular(n, unit=case["diag"] == 1), **case)
    return a, sample.array(room(n, offx, incx))


async def call_trmv(device: Any, a: Any, x: Any, **case: Any) -> Any:
    options = {key: value for key, value in case.items() if key not in SIZES}
    return await device.blas.trmv(a, x, out=x, **options)


async def call_trsv(device: Any, a: Any, x: Any, **case: Any) -> Any:
    options = {key: value for key, value in case.items() if key not in SIZES}
    return await device.blas.trsv(a, x, out=x, **options)


def trmv(a: Array, x: Array, n: int, offx: int = 0, incx: int = 1, **case: Any) -> Near:
    matrix = op(triangular(a, case), case["trans"])
    value = x.copy()
    part = taken(value, n, offx, incx)
    part[...] = matrix @ part
    return Near(value)


def trsv(a: Array, x: Array, n: int, offx: int = 0, incx: int = 1, **case: Any) -> Near:
    matrix = op(triangular(a, case), case["trans"])
    value = x.copy()
    part = taken(value, n, offx, incx)
    part[...] = solve(matrix, part)
    return Near(value)


def outer(conj: bool) -> Callable[..., Near]:
    def expect(x: Array, y: Array, a: Array, m: int, n: int, **case: Any) -> Near:
        left = taken(x, m, case.get("offx", 0), case.get("incx", 1))
        right = taken(y, n, case.get("offy", 0), case.get("incy", 1))
        right = right.conj() if conj else right
        return Near(a + scalar(ALPHA, a) * np.outer(left, right), np.abs(a) + 2)

    return expect


def outer_inputs(sample: Sample, m: int, n: int, **case: Any) -> tuple[Array, ...]:
    x = sample.array(room(m, case.get("offx", 0), case.get("incx", 1)))
    y = sample.array(room(n, case.get("offy", 0), case.get("incy", 1)))
    return x, y, sample.array(m, n)


def call_outer(name: str) -> Callable[..., Any]:
    async def call(device: Any, x: Any, y: Any, a: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        return await getattr(device.blas, name)(x, y, a=a, alpha=scalar(ALPHA, a), **options)

    return call


def new_outer(x: Array, y: Array, _a: Array, **_: Any) -> Array:
    return np.outer(x, y)


RECTANGLES = product(m=[0, 1, 5, 34], n=[0, 1, 7, 33])
SQUARES = product(n=[0, 1, 5, 33], lower=[False, True])

LEVEL2 = [
    Operation(
        "blas.gemv",
        FLOATS,
        [
            *product(m=[0, 1, 5, 34], n=[0, 1, 7, 33], trans=[0, 1, 2]),
            *({"m": 5, "n": 7, "trans": trans, **STEPS[1]} for trans in (0, "T", "C")),
        ],
        gemv_inputs,
        matrix_vector("gemv"),
        update(as_is),
        writes=(2,),
    ),
    Operation(
        "blas.gemv without out",
        FLOATS,
        product(m=[0, 5], n=[0, 7], trans=[0, 1, 2]),
        gemv_inputs,
        plain("gemv"),
        product_of(as_is),
    ),
    Operation(
        "blas.gbmv",
        DOUBLES,
        product(m=[1, 6, 9], n=[1, 6], kl=[0, 2], ku=[0, 1, 7], trans=[0, 1, 2]),
        gbmv_inputs,
        call_gbmv,
        update(banded),
        writes=(2,),
    ),
    Operation(
        "blas.symv",
        DOUBLES,
        [*SQUARES, *({"n": 5, "lower": lower, **STEPS[1]} for lower in (False, True))],
        square_inputs,
        matrix_vector("symv"),
        update(symmetric),
        writes=(2,),
    ),
    Operation(
        "blas.hemv",
        COMPLEX,
        [*SQUARES, *({"n": 5, "lower": lower, **STEPS[1]} for lower in (False, True))],
        square_inputs,
        matrix_vector("hemv"),
        update(partial(symmetric, hermitian=True)),
        writes=(2,),
    ),
    Operation(
        "blas.ger",
        DOUBLES,
        [*RECTANGLES, {"m": 5, "n": 7, **STEPS[1]}],
        outer_inputs,
        call_outer("ger"),
        outer(conj=False),
        writes=(2,),
    ),
    Operation(
        "blas.gerc",
        DOUBLES,
        [*RECTANGLES, {"m": 5, "n": 7, **STEPS[1]}],
        outer_inputs,
        call_outer("gerc"),
        outer(conj=True),
        writes=(2,),
    ),
    Operation(
        "blas.ger without a",
        DOUBLES,
        RECTANGLES,
        outer_inputs,
        lambda device, x, y, _a, **_: device.blas.ger(x, y),
        new_outer,
    ),
    *(
        Operation(
            f"blas.{name}",
            DOUBLES,
            [
                *product(n=[0, 1, 5, 33], lower=[False, True], trans=[0, 1, 2], diag=[0, 1]),
                *product(n=[5], lower=[False], trans=["N", "C"], diag=[0], offx=[1], incx=[3]),
            ],
            triangle_inputs,
            call,
            expect,
            writes=(1,),
            factor=64,
        )
        for name, call, expect in (("trmv", call_trmv, trmv), ("trsv", call_trsv, trsv))
    ),
    Operation(
        "blas.trsv without out",
        DOUBLES,
        product(n=[0, 5, 33], lower=[False, True], trans=[0, 1, 2], diag=[0]),
        triangle_inputs,
        method("trsv"),
        trsv,
        factor=64,
    ),
]
