"""cuBLAS's batched factorizations in SciPy: column-major matrices by tables of pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

Array = np.ndarray[Any, Any]


def memory(pointer: int, nbytes: int) -> Array:
    """Bytes anywhere."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))


def integers(pointer: int, count: int, dtype: Any = np.int32) -> Array:
    """Integers on the device."""
    return memory(pointer, count * np.dtype(dtype).itemsize).view(dtype)


def stack(table: int, batch: int, rows: int, columns: int, ld: int, dtype: Any) -> list[Array]:
    """The matrices that a table points to, as views."""
    assert ld >= rows
    matrices = []
    for pointer in integers(table, batch, np.uint64):
        count = (columns - 1) * ld + rows
        flat = memory(int(pointer), count * dtype.itemsize).view(dtype)
        strides = (dtype.itemsize, ld * dtype.itemsize)
        matrices.append(np.lib.stride_tricks.as_strided(flat, (rows, columns), strides))
    return matrices


def routine(name: str, dtype: Any) -> Any:
    return get_lapack_funcs(name, dtype=dtype)


def getrf(dtype: Any, n: int, a: int, lda: int, pivots: int, info: int, batch: int) -> None:
    swaps, infos = integers(pivots, batch * n).reshape(batch, n), integers(info, batch)
    for i, matrix in enumerate(stack(a, batch, n, n, lda, dtype)):
        matrix[...], zero_based, infos[i] = routine("getrf", dtype)(matrix)
        swaps[i] = zero_based + 1


def getrs(
    dtype: Any,
    trans: int,
    n: int,
    nrhs: int,
    a: int,
    lda: int,
    pivots: int,
    b: int,
    ldb: int,
    info: Any,
    batch: int,
) -> None:
    info._obj.value = 0
    swaps = integers(pivots, batch * n).reshape(batch, n) - 1
    sides = stack(b, batch, n, nrhs, ldb, dtype)
    for i, matrix in enumerate(stack(a, batch, n, n, lda, dtype)):
        sides[i][...] = routine("getrs", dtype)(matrix, swaps[i], sides[i], trans=trans)[0]


def getri(
    dtype: Any, n: int, a: int, lda: int, pivots: int, c: int, ldc: int, info: int, batch: int
) -> None:
    swaps = integers(pivots, batch * n).reshape(batch, n) - 1
    infos, results = integers(info, batch), stack(c, batch, n, n, ldc, dtype)
    for i, matrix in enumerate(stack(a, batch, n, n, lda, dtype)):
        results[i][...], infos[i] = routine("getri", dtype)(matrix, swaps[i])


def geqrf(dtype: Any, m: int, n: int, a: int, lda: int, tau: int, info: Any, batch: int) -> None:
    info._obj.value = 0
    scalars = stack(tau, batch, min(m, n), 1, min(m, n), dtype)
    for i, matrix in enumerate(stack(a, batch, m, n, lda, dtype)):
        matrix[...], scalars[i][:, 0] = routine("geqrf", dtype)(matrix)[:2]


def gels(
    dtype: Any,
    trans: int,
    m: int,
    n: int,
    nrhs: int,
    a: int,
    lda: int,
    c: int,
    ldc: int,
    info: Any,
    infos: int,
    batch: int,
) -> None:
    assert trans == 0
    assert m >= n
    info._obj.value = 0
    sides, found = stack(c, batch, m, nrhs, ldc, dtype), integers(infos, batch)
    for i, matrix in enumerate(stack(a, batch, m, n, lda, dtype)):
        matrix[...], sides[i][...], found[i] = routine("gels", dtype)(matrix, sides[i])


def trsm(
    dtype: Any,
    side: int,
    uplo: int,
    trans: int,
    diag: int,
    m: int,
    n: int,
    alpha: Any,
    a: int,
    lda: int,
    b: int,
    ldb: int,
    batch: int,
) -> None:
    factor = np.frombuffer(bytes(alpha._obj), dtype)[0]
    sides, order = stack(b, batch, m, n, ldb, dtype), n if side else m
    for i, matrix in enumerate(stack(a, batch, order, order, lda, dtype)):
        sides[i][...] = get_blas_funcs("trsm", dtype=dtype)(
            factor, matrix, sides[i], side=side, lower=1 - uplo, trans_a=trans, diag=diag
        )


def matinv(dtype: Any, n: int, a: int, lda: int, to: int, ld: int, infos: int, batch: int) -> None:
    assert n <= 32
    found, inverses = integers(infos, batch), stack(to, batch, n, n, ld, dtype)
    for i, matrix in enumerate(stack(a, batch, n, n, lda, dtype)):
        lu, swaps, found[i] = routine("getrf", dtype)(matrix)
        inverses[i][...] = routine("getri", dtype)(lu, swaps)[0]


BATCHED: dict[str, Callable[..., None]] = {
    "getrf": getrf,
    "getrs": getrs,
    "getri": getri,
    "geqrf": geqrf,
    "gels": gels,
    "trsm": trsm,
    "matinv": matinv,
}
