"""Parts that the rows of all levels share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...conformance import COMPLEX, REAL, Array, Case, Near

DOUBLES = (*REAL, *COMPLEX)


def method(name: str, **fixed: Any) -> Callable[..., Any]:
    """A call of a method of ``device.blas`` with the case's options."""

    def call(device: Any, *refs: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        return getattr(device.blas, name)(*refs, **fixed, **options)

    return call


SIZES = (
    "m",
    "n",
    "k",
    "batch_a",
    "batch_b",
    "nrhs",
    "lead",
    "shape_a",
    "shape_b",
    "sizes",
    "lead_a",
    "lead_x",
)
"""Names in a case that are sizes, not options."""


def op(array: Array, trans: Any) -> Array:
    """``op(array)`` over its last two dimensions."""
    if trans in (0, False, "N"):
        return array
    turned = np.swapaxes(array, -1, -2)
    return turned.conj() if trans in (2, "C") else turned


def turned(rows: int, columns: int, trans: Any) -> tuple[int, int]:
    """The shape of what ``op`` makes (rows, columns) of."""
    return (columns, rows) if trans not in (0, False, "N") else (rows, columns)


def near(terms: Callable[..., Array], *arrays: Array, **more: Any) -> Near:
    """A reference with the magnitude of its terms."""
    return Near(terms(*arrays), terms(*map(np.abs, arrays)), **more)


def scalar(value: complex, like: Array) -> Any:
    """A scalar for a case: its real part where the dtype is real."""
    return value if like.dtype.kind == "c" else value.real


ALPHA, BETA = 0.75 - 0.5j, -0.5 + 0.25j
"""The scalars of all cases; of real dtypes their real parts."""


def taken(x: Any, n: int | None, off: int, inc: int) -> Any:
    """Return a view of a vector: n elements from ``off`` on, in steps of ``inc``."""
    part = x[off:]
    count = -(-part.shape[0] // abs(inc)) if n is None else n
    part = part[: max(0, (count - 1) * abs(inc) + 1)] if count else part[:0]
    return part[:: abs(inc)] if inc > 0 else part[::-1][:: abs(inc)]


def room(n: int, off: int, inc: int) -> int:
    """The length of a vector of n elements."""
    return off + max(0, n - 1) * abs(inc) + 1 if off or inc != 1 else n


def symmetric(a: Array, case: Case, *, hermitian: bool = False) -> Array:
    """The whole of which ``a`` holds one triangle."""
    half = np.tril(a, -1) if case.get("lower") else np.triu(a, 1)
    diagonal = np.diag(a).real if hermitian else np.diag(a)
    return half + (half.conj().T if hermitian else half.T) + np.diag(diagonal)


def triangular(a: Array, case: Case) -> Array:
    """The triangle that ``a`` holds."""
    if case.get("unit_diagonal"):
        return (np.tril(a, -1) if case.get("lower") else np.triu(a, 1)) + np.eye(len(a))
    return np.tril(a) if case.get("lower") else np.triu(a)


def banded(a: Array, case: Case) -> Array:
    """The matrix of a band; sizes are those of ``op`` of it."""
    m, n = turned(case["m"], case["n"], case.get("trans", 0))
    kl, ku = case["kl"], case["ku"]
    whole = np.zeros((m, n), a.dtype)
    for i in range(m):
        for j in range(max(0, i - kl), min(n, i + ku + 1)):
            whole[i, j] = a[ku + i - j, j]
    return whole


def diagonals(a: Array, case: Case) -> Array:
    """The matrix of a band that holds one triangle; the other one is zeros."""
    k, n = a.shape[0] - 1, a.shape[1]
    whole = np.zeros((n, n), a.dtype)
    for i, j in inside(n, case, k):
        whole[i, j] = a[i - j if case["lower"] else k + i - j, j]
    return whole


def inside(n: int, case: Case, k: int | None = None) -> list[tuple[int, int]]:
    """Return the positions in a triangle, or in a band of it, column by column."""
    most = n if k is None else k
    return [
        (i, j)
        for j in range(n)
        for i in (
            range(j, min(n, j + most + 1)) if case["lower"] else range(max(0, j - most), j + 1)
        )
    ]


def unpacked(ap: Array, case: Case) -> Array:
    """The matrix of a packed triangle; the other one is zeros."""
    n = (math.isqrt(8 * len(ap) + 1) - 1) // 2
    whole = np.zeros((n, n), ap.dtype)
    for at, place in enumerate(inside(n, case)):
        whole[place] = ap[at]
    return whole


def repacked(whole: Array, case: Case) -> Array:
    """A packed triangle of a matrix."""
    return np.array([whole[at] for at in inside(len(whole), case)], whole.dtype)


def hide(a: Array, lower: Any = False, unit_diagonal: Any = False, **_: Any) -> Array:
    """Poison what a routine must not read of a structured matrix."""
    keep = np.tril(np.ones(a.shape, bool)) if lower else np.triu(np.ones(a.shape, bool))
    if unit_diagonal:
        keep &= ~np.eye(len(a), dtype=bool)
    a[~keep] = np.nan
    return a


def solve(matrix: Array, right: Array) -> Array:
    """A solution in more than double precision: three steps of refinement."""
    coarse = matrix.astype(np.complex128 if matrix.dtype.kind == "c" else np.float64)
    if not matrix.size:
        return right
    x = np.linalg.solve(coarse, right.astype(coarse.dtype)).astype(matrix.dtype)
    for _ in range(3):
        x = x + np.linalg.solve(coarse, (right - matrix @ x).astype(coarse.dtype))
    return x


def each(arrays: Array, ndim: int = 2) -> list[Array]:
    """The matrices, or vectors, of a stack, as views."""
    return [arrays[at] for at in np.ndindex(arrays.shape[: arrays.ndim - ndim])]
