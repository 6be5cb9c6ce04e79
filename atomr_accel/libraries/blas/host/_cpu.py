"""BLAS on the CPU, with NumPy and SciPy. 16-bit types are computed in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ..wire._messages import (
    Factor,
    Gemm,
    GemmEx,
    GemmList,
    MatrixMatrix,
    MatrixVector,
    Scalar,
    Vectors,
)
from ._cpu_factor import factor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host._context import CpuContext, CpuStream

Array = np.ndarray[Any, Any]

_INTEGER_SUMS: Final = np.dtype(np.int32)


@final
class CpuBlas:
    """Executes BLAS messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {
            Gemm: self._gemm,
            GemmEx: self._gemm_ex,
            GemmList: self._gemm_list,
            Vectors: self._vectors,
            MatrixVector: self._matrix_vector,
            MatrixMatrix: self._matrix_matrix,
            Factor: self._factor,
        }

    def close(self) -> None:
        """Nothing is held."""

    # --- products -------------------------------------------------------------------------

    def _gemm(self, message: Gemm) -> None:
        context = self._context
        context.check()
        m, n, k = message.m, message.n, message.k
        dtype = DTYPES[message.dtype]
        a = context.array(message.a, (k, m) if message.trans_a else (m, k), dtype)
        b = context.array(message.b, (n, k) if message.trans_b else (k, n), dtype)
        c = context.array(message.c, (m, n), dtype)
        self._product(a, b, c, message)

    def _gemm_ex(self, message: GemmEx) -> None:
        context = self._context
        context.check()
        m, n, k, batch = message.m, message.n, message.k, message.batch
        dtype = DTYPES[message.dtype]
        shape_a = (k, m) if message.trans_a else (m, k)
        shape_b = (n, k) if message.trans_b else (k, n)
        a = self._stack(message.a, batch, message.strides_a, shape_a, dtype)
        b = self._stack(message.b, batch, message.strides_b, shape_b, dtype)
        c = context.array(message.c, (*batch, m, n), DTYPES[message.dtype_c])
        if c.size:
            self._product(a, b, c, message)

    def _gemm_list(self, message: GemmList) -> None:
        context = self._context
        context.check()
        dtype, dtype_c = DTYPES[message.dtype], DTYPES[message.dtype_c]
        places = zip(message.a, message.b, message.c, message.shapes, strict=True)
        for at_a, at_b, at_c, (m, n, k) in places:
            a = context.array(at_a, (k, m) if message.trans_a else (m, k), dtype)
            b = context.array(at_b, (n, k) if message.trans_b else (k, n), dtype)
            self._product(a, b, context.array(at_c, (m, n), dtype_c), message)

    def _product(self, a: Array, b: Array, c: Array, message: Gemm | GemmEx | GemmList) -> None:
        wide = _INTEGER_SUMS if c.dtype.kind == "i" else _wide(c.dtype)
        left = apply(a.astype(wide, copy=False), message.trans_a)
        right = apply(b.astype(wide, copy=False), message.trans_b)
        result: Array = left @ right
        alpha, beta = number(message.alpha), number(message.beta)
        if alpha != 1.0:
            result = wide.type(alpha) * result
        if beta != 0.0:
            result = result + wide.type(beta) * c.astype(wide)
        c[...] = result.astype(c.dtype)

    def _stack(
        self,
        address: int,
        batch: tuple[int, ...],
        steps: tuple[int, ...],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> Array:
        """Matrices at constant steps, as one array."""
        if 0 in batch or 0 in shape:
            return np.zeros((*batch, *shape), dtype)
        extent = sum((size - 1) * step for size, step in zip(batch, steps, strict=True))
        flat = self._context.array(address, (extent + shape[0] * shape[1],), dtype)
        strides = (*steps, shape[1], 1)
        return np.lib.stride_tricks.as_strided(
            flat,
            (*batch, *shape),
            [step * dtype.itemsize for step in strides],
            writeable=False,
        )

    # --- routines -------------------------------------------------------------------------

    def _vectors(self, message: Vectors) -> None:
        self._context.check()
        dtype = DTYPES[message.dtype]
        x = self._vector(message.x, message.n, message.incx, dtype)
        y = self._vector(message.y, message.n, message.incy, dtype) if message.y else x
        routine = message.routine
        if routine in _REDUCTIONS:
            result_dtype, reduce = _REDUCTIONS[routine]
            kind = DTYPES["int64"] if result_dtype == "index" else dtype
            if result_dtype == "real":
                kind = np.zeros(0, dtype).real.dtype if dtype.kind == "c" else dtype
            result = reduce(x.astype(_wide(dtype)), y.astype(_wide(dtype)))
            self._context.array(message.result, (), kind)[...] = result
        else:
            _UPDATES[routine](x, y, *map(number, message.scalars))

    def _matrix_vector(self, message: MatrixVector) -> None:
        context = self._context
        context.check()
        dtype = DTYPES[message.dtype]
        wide = _wide(dtype)
        m, n, op = message.m, message.n, message.trans
        banded = message.routine == "gbmv"
        shape = (message.kl + message.ku + 1, n) if banded else (m, n)
        stored = context.array(message.a, shape, dtype)
        if message.routine in ("ger", "gerc"):
            x = self._vector(message.x, m, message.incx, dtype)
            y = self._vector(message.y, n, message.incy, dtype)
            if message.clear:
                stored[...] = 0
            other = y.conj() if message.routine == "gerc" else y
            stored += dtype.type(number(message.alpha)) * np.outer(x, other)
            return
        rows, columns = (n, m) if op else (m, n)
        x = self._vector(message.x, columns, message.incx, dtype).astype(wide)
        y = self._vector(message.y, rows, message.incy, dtype)
        if message.routine in ("trmv", "trsv"):
            level3 = "trmm" if message.routine == "trmv" else "trsm"
            y[...] = triangle(level3, stored, x[:, None], message, op)[:, 0]
            return
        if banded:
            a = _from_band(stored, m, n, message.kl, message.ku)
        elif message.routine == "gemv":
            a = stored
        else:
            a = mirrored(stored, lower=message.lower, hermitian=message.routine == "hemv")
        update(y, apply(a.astype(wide), op) @ x, message.alpha, message.beta)

    def _matrix_matrix(self, message: MatrixMatrix) -> None:
        context = self._context
        context.check()
        dtype = DTYPES[message.dtype]
        m, n = message.m, message.n
        routine = message.routine
        c = context.array(message.c, (m, n), dtype)
        op = message.trans_a
        alpha = number(message.alpha)
        if routine == "geam":
            total = np.zeros((m, n), dtype)
            for address, trans, factor_of in (
                (message.a, op, alpha),
                (message.b, message.trans_b, number(message.beta)),
            ):
                if factor_of != 0.0:
                    each = context.array(address, (n, m) if trans else (m, n), dtype)
                    total = total + dtype.type(factor_of) * apply(each, trans)
            c[...] = total
        elif routine == "dgmm":
            a = context.array(message.a, (m, n), dtype)
            x = self._vector(message.b, n if message.right else m, message.incx, dtype)
            c[...] = a * x if message.right else x[:, None] * a
        elif routine in ("symm", "hemm", "trmm", "trsm"):
            size = n if message.right else m
            a = context.array(message.a, (size, size), dtype)
            b = context.array(message.b, (m, n), dtype)
            if routine in ("trmm", "trsm"):
                c[...] = triangle(routine, a, b, message, op, right=message.right, alpha=alpha)
                return
            a = mirrored(a, lower=message.lower, hermitian=routine == "hemm")
            update(c, b @ a if message.right else a @ b, message.alpha, message.beta)
        else:
            self._rank_k(message, c, dtype)

    def _rank_k(self, message: MatrixMatrix, c: Array, dtype: np.dtype[Any]) -> None:
        n, k, alpha = message.n, message.k, number(message.alpha)
        shape = (k, n) if message.trans_a else (n, k)
        hermitian = message.routine.startswith("her")
        a = self._context.array(message.a, shape, dtype)
        b = self._context.array(message.b, shape, dtype)
        if message.trans_a:  # what is transposed comes first then
            a, b = (a.conj().T, b.conj().T) if hermitian else (a.T, b.T)
        product = dtype.type(alpha) * (a @ (b.conj().T if hermitian else b.T))
        if message.routine in ("syr2k", "her2k"):
            product = product + (product.conj().T if hermitian else product.T)
        if message.clear:
            c[...] = 0
        inside = np.tril_indices(n) if message.lower else np.triu_indices(n)
        part = c[inside]
        update(part, product[inside], 1.0, message.beta)
        c[inside] = part
        if hermitian:
            np.fill_diagonal(c.imag, 0)

    def _factor(self, message: Factor) -> None:
        self._context.check()
        factor(self._context, message)

    def _vector(self, address: int, n: int, inc: int, dtype: np.dtype[Any]) -> Array:
        if not n:
            return np.empty(0, dtype)
        flat = self._context.array(address, ((n - 1) * abs(inc) + 1,), dtype)
        return flat[:: abs(inc)] if inc > 0 else flat[::inc]


def number(value: Scalar) -> Any:
    """A scalar of a message as Python has it."""
    return complex(*value) if isinstance(value, (tuple, list)) else value


def apply(array: Array, op: int) -> Array:
    """``op(array)`` over its last two dimensions."""
    if not op:
        return array
    return np.swapaxes(array.conj() if op == 2 else array, -1, -2)


def update(out: Array, product: Array, alpha: Scalar, beta: Scalar) -> None:
    """``out = alpha * product + beta * out``, without reading ``out`` where beta is 0."""
    result = product * product.dtype.type(number(alpha))
    if number(beta) != 0:
        result = result + product.dtype.type(number(beta)) * out.astype(product.dtype)
    out[...] = result.astype(out.dtype)


def mirrored(stored: Array, *, lower: bool, hermitian: bool) -> Array:
    """The whole of a symmetric matrix of which one triangle is stored."""
    half = np.tril(stored, -1) if lower else np.triu(stored, 1)
    diagonal = np.diag(stored).real if hermitian else np.diag(stored)
    whole: Array = half + (half.conj().T if hermitian else half.T)
    np.fill_diagonal(whole, diagonal)
    return whole


def triangle(
    routine: str,
    a: Array,
    b: Array,
    message: MatrixVector | MatrixMatrix,
    op: int,
    *,
    right: bool = False,
    alpha: Any = 1.0,
) -> Array:
    """``trmm`` or ``trsm``; those of SciPy do not read what they should not."""
    from scipy.linalg import get_blas_funcs

    if not b.size:
        return b
    function = get_blas_funcs(routine, (a, b))
    result: Array = function(
        alpha,
        a,
        b,
        side=int(right),
        lower=int(message.lower),
        trans_a=op,
        diag=int(message.unit),
    )
    return result


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.itemsize > 2 else np.dtype(np.float32)


def _from_band(band: Array, m: int, n: int, kl: int, ku: int) -> Array:
    whole = np.zeros((m, n), band.dtype)
    for diagonal in range(-kl, ku + 1):
        first, last = max(0, diagonal), min(n, m + diagonal)
        if first < last:
            columns = np.arange(first, last)
            whole[columns - diagonal, columns] = band[ku - diagonal, first:last]
    return whole


def _magnitude(x: Array) -> Array:
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def _nrm2(x: Array, _y: Array) -> Any:
    from scipy.linalg.blas import dnrm2, dznrm2

    if not x.size:
        return 0.0
    exact = np.ascontiguousarray(x, np.complex128 if x.dtype.kind == "c" else np.float64)
    return dznrm2(exact) if x.dtype.kind == "c" else dnrm2(exact)


_REDUCTIONS: Final[dict[str, tuple[str, Callable[[Array, Array], Any]]]] = {
    # routine: (kind of the result, function)
    "dot": ("same", lambda x, y: x @ y),
    "dotc": ("same", lambda x, y: x.conj() @ y),
    "nrm2": ("real", _nrm2),
    "asum": ("real", lambda x, _: _magnitude(x).sum()),
    "amax": ("index", lambda x, _: np.argmax(_magnitude(x))),
    "amin": ("index", lambda x, _: np.argmin(_magnitude(x))),
}


def _axpy(x: Array, y: Array, a: Any) -> None:
    wide = _wide(y.dtype)
    y[...] = (y.astype(wide) + wide.type(a) * x.astype(wide)).astype(y.dtype)


def _scal(x: Array, _y: Array, a: Any) -> None:
    wide = _wide(x.dtype)
    x[...] = (wide.type(a) * x.astype(wide)).astype(x.dtype)


def _copy(x: Array, y: Array) -> None:
    y[...] = x


def _swap(x: Array, y: Array) -> None:
    x[...], y[...] = y.copy(), x.copy()


def _rot(x: Array, y: Array, c: Any, s: Any) -> None:
    wide = _wide(x.dtype)
    old_x, old_y = x.astype(wide), y.astype(wide)
    c, s = wide.type(c), wide.type(s)
    x[...] = (c * old_x + s * old_y).astype(x.dtype)
    y[...] = (c * old_y - np.conj(s) * old_x).astype(y.dtype)


_UPDATES: Final[dict[str, Callable[..., None]]] = {
    "axpy": _axpy,
    "scal": _scal,
    "copy": _copy,
    "swap": _swap,
    "rot": _rot,
}
