"""Level 1: vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..conformance import FLOATS, HALF, Near, Operation
from .common import near, scalar, taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..conformance import Array, Case, Sample

LENGTHS: list[Case] = [
    {"sizes": 0},
    {"sizes": 1},
    {"sizes": 37},
    {"sizes": 300},
    {"sizes": 37, "n": 5, "offx": 2, "incx": 3},
]
TWO_LENGTHS: list[Case] = [
    *LENGTHS[:4],
    {"sizes": 37, "n": 5, "offx": 2, "incx": 3, "offy": 1, "incy": 2},
    {"sizes": 37, "n": 6, "incx": -2, "offy": 3, "incy": 5},
]


def level1(name: str, **options: Any) -> Callable[..., Any]:
    """A call of a routine of level 1; ``n`` is an option there."""

    def call(device: Any, *refs: Any, sizes: int, **case: Any) -> Any:
        return getattr(device.blas, name)(*refs, **options, **case)

    return call


def vectors(count: int) -> Callable[..., Any]:
    """Inputs of level 1."""

    def make(sample: Sample, sizes: int, **_: Any) -> tuple[Array, ...]:
        return tuple(sample.array(sizes) for _ in range(count))

    return make


def written(change: Callable[..., None]) -> Callable[..., Any]:
    """The reference of a routine that writes its vectors: both, or y alone."""

    def expect(
        x: Array,
        y: Array,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
        **_: Any,
    ) -> tuple[Near, Near]:
        x, y = x.copy(), y.copy()
        # What terms cancel still costs precision.
        size = float(np.abs(x).max(initial=0)) + float(np.abs(y).max(initial=0))
        change(taken(x, n, offx, incx), taken(y, n, offy, incy))
        return Near(x, size), Near(y, size)

    return expect


def axpy(x: Array, y: Array) -> None:
    y += scalar(0.75 - 0.5j, y) * x


def swap(x: Array, y: Array) -> None:
    x[...], y[...] = y.copy(), x.copy()


def copy(x: Array, y: Array) -> None:
    y[...] = x


def rot(x: Array, y: Array) -> None:
    s = scalar(0.5 + 0.25j, x)
    x[...], y[...] = 0.75 * x + s * y, 0.75 * y - np.conj(s) * x


async def call_axpy(device: Any, x: Any, y: Any, sizes: int, **case: Any) -> Any:
    a = 0.75 - 0.5j if x.dtype.kind == "c" else 0.75
    return x, await device.blas.axpy(x, y, a=a, **case)


async def call_copy(device: Any, x: Any, y: Any, sizes: int, **case: Any) -> Any:
    return x, await device.blas.copy(x, y, **case)


async def call_rot(device: Any, x: Any, y: Any, sizes: int, **case: Any) -> Any:
    s = 0.5 + 0.25j if x.dtype.kind == "c" else 0.5
    return await device.blas.rot(x, y, 0.75, s, **case)


async def call_scal(device: Any, x: Any, sizes: int, **case: Any) -> Any:
    a = 0.75 - 0.5j if x.dtype.kind == "c" else 0.75
    return await device.blas.scal(a, x, **case)


def scal(x: Array, n: int | None = None, offx: int = 0, incx: int = 1, **_: Any) -> Array:
    x = x.copy()
    part = taken(x, n, offx, incx)
    part *= scalar(0.75 - 0.5j, x)
    return x


def dot(
    x: Array,
    y: Array,
    n: int | None = None,
    offx: int = 0,
    incx: int = 1,
    offy: int = 0,
    incy: int = 1,
    conj: bool = False,
    **_: Any,
) -> Near:
    x, y = taken(x, n, offx, incx), taken(y, n, offy, incy)
    return near(lambda x, y: np.asarray((x.conj() if conj else x) @ y), x, y)


REAL_RESULTS = {np.dtype(np.complex128): "float32", np.dtype(np.clongdouble): "float64"}
"""The dtype of a real result, by the wide type of its input; else that of the case."""


def reduced(function: Callable[[Array], Any], dtype: str | None = None) -> Callable[..., Near]:
    def expect(x: Array, n: int | None = None, offx: int = 0, incx: int = 1, **_: Any) -> Near:
        value = np.asarray(function(taken(x, n, offx, incx)))
        return Near(value, np.abs(value), dtype=dtype or REAL_RESULTS.get(x.dtype))

    return expect


def magnitude(x: Array) -> Array:
    return np.asarray(np.abs(x.real) + np.abs(x.imag))


LEVEL1 = [
    Operation("blas.axpy", FLOATS, TWO_LENGTHS, vectors(2), call_axpy, written(axpy), writes=(1,)),
    Operation(
        "blas.copy",
        FLOATS,
        TWO_LENGTHS,
        vectors(2),
        call_copy,
        written(copy),
        writes=(1,),
        may_refuse=HALF,
    ),
    Operation(
        "blas.swap",
        FLOATS,
        TWO_LENGTHS,
        vectors(2),
        level1("swap"),
        written(swap),
        writes=(0, 1),
        may_refuse=HALF,
    ),
    Operation(
        "blas.rot",
        FLOATS,
        TWO_LENGTHS,
        vectors(2),
        call_rot,
        written(rot),
        writes=(0, 1),
        may_refuse=HALF,
    ),
    Operation("blas.scal", FLOATS, LENGTHS, vectors(1), call_scal, scal, writes=(0,)),
    Operation("blas.dot", FLOATS, TWO_LENGTHS, vectors(2), level1("dot"), dot),
    Operation(
        "blas.dotc", FLOATS, TWO_LENGTHS, vectors(2), level1("dotc"), partial(dot, conj=True)
    ),
    Operation(
        "blas.nrm2",
        FLOATS,
        LENGTHS,
        vectors(1),
        level1("nrm2"),
        reduced(lambda x: np.sqrt((np.abs(x) ** 2).sum())),
    ),
    Operation(
        "blas.asum",
        FLOATS,
        LENGTHS,
        vectors(1),
        level1("asum"),
        reduced(lambda x: magnitude(x).sum()),
        may_refuse=HALF,
    ),
    Operation(
        "blas.amax",
        FLOATS,
        LENGTHS[1:],
        vectors(1),
        level1("amax"),
        reduced(lambda x: np.argmax(magnitude(x)), "int64"),
        may_refuse=HALF,
    ),
    Operation(
        "blas.amin",
        FLOATS,
        LENGTHS[1:],
        vectors(1),
        level1("amin"),
        reduced(lambda x: np.argmin(magnitude(x)), "int64"),
        may_refuse=HALF,
    ),
]
