"""Sparse calls on the CPU, with SciPy. 16-bit types are computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from ...._dtypes import DTYPES
from ....executors.operations import array_handlers
from ....wire import StickyFault
from ..wire._messages import (
    Analyse,
    ComputeProduct,
    FindStructure,
    ForgetSparse,
    MeasureSparse,
    RunSparse,
    Solve,
    decode,
)
from ..wire._vectors import Axpby, Gather, Scatter

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import DenseMatrix, Matrix, Scalar, SparseSpec

Array = np.ndarray[Any, Any]

_ILLEGAL_ADDRESS: Final = 700
_BANDS: Final = {"tridiagonal": 1, "tridiagonal_batch": 1, "pentadiagonal": 2}


@final
class CpuSparse:
    """Executes sparse messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._products: dict[int, Any] = {}
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Analyse: self._nothing,
            RunSparse: self._call,
            ForgetSparse: self._forget,
            MeasureSparse: lambda _message: 0,
            FindStructure: self._multiply,
            ComputeProduct: self._product,
            Solve: self._solve,
            **array_handlers(
                context, {Axpby: self._axpby, Gather: self._gather, Scatter: self._scatter}
            ),
        }
        self._calls: Final[dict[str, Callable[..., None]]] = {
            "matvec": self._matmul,
            "matmat": self._matmul,
            "sddmm": self._sddmm,
            "dot": self._dot,
            **dict.fromkeys(_BANDS, self._banded),
        }

    def close(self) -> None:
        """Nothing is held but structures of products."""
        self._products.clear()

    def _nothing(self, _message: Analyse) -> None:
        self._context.check()

    def _call(self, message: RunSparse) -> None:
        self._context.check()
        spec = decode(message.spec)
        alpha, beta = number(message.alpha), number(message.beta)
        self._calls[spec.op](spec, message.operands, alpha, beta)

    # --- products -----------------------------------------------------------------------------

    def _matmul(self, spec: SparseSpec, at: tuple[int, ...], alpha: Any, beta: Any) -> None:
        a = self._matrix(spec.matrices[0], at[:3])
        taken = taken_as(a, spec.trans)
        x, out = (
            self._dense(each, place, spec.dtype)
            for each, place in zip(spec.dense, at[3:], strict=True)
        )
        with np.errstate(all="ignore"):
            made = alpha * (taken @ wide(x))
            if beta:
                made = made + beta * wide(out)
        out[...] = made.astype(out.dtype)

    def _sddmm(self, spec: SparseSpec, at: tuple[int, ...], alpha: Any, beta: Any) -> None:
        pattern = spec.matrices[0]
        c = self._matrix(pattern, at[:3])
        a, b = (
            self._dense(each, place, spec.dtype)
            for each, place in zip(spec.dense, at[3:5], strict=True)
        )
        out = self._array(at[5], (pattern.nnz,), spec.dtype)
        rows = np.repeat(np.arange(pattern.shape[0]), np.diff(c.indptr))
        found = alpha * np.einsum("ik,ik->i", a[rows], b.T[c.indices])
        out[...] = found + beta * c.data if beta else found

    def _multiply(self, message: FindStructure) -> int:
        self._context.check()
        spec = decode(message.spec)
        a, b = self._pair(spec, message.operands)
        # Elements of one each add up to no zeros, so none of the structure is lost.
        ones = [
            scipy.sparse.csr_array((np.ones(len(m.data)), m.indices, m.indptr), shape=m.shape)
            for m in (a, b)
        ]
        found = scipy.sparse.csr_array(ones[0] @ ones[1])
        found.sort_indices()
        self._products[message.number] = found
        return int(found.nnz)

    def _product(self, message: ComputeProduct) -> None:
        self._context.check()
        spec = decode(message.spec)
        found = self._products[message.number]
        a, b = self._pair(spec, message.operands)
        index = spec.matrices[0].index
        indptr = self._array(message.operands[6], (found.shape[0] + 1,), index)
        indices = self._array(message.operands[7], (found.nnz,), index)
        data = self._array(message.operands[8], (found.nnz,), spec.dtype)
        if message.structure:
            indptr[...], indices[...] = found.indptr, found.indices
        if not found.nnz:
            return
        made = scipy.sparse.coo_array(a @ b)
        # SciPy leaves out what cancels; here every place of the structure has its element.
        width = found.shape[1]
        rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
        places = rows * width + found.indices
        data[...] = 0
        at = np.searchsorted(places, made.row.astype(np.int64) * width + made.col)
        data[at] = number(message.alpha) * made.data

    def _pair(self, spec: SparseSpec, at: tuple[int, ...]) -> tuple[Any, Any]:
        return self._matrix(spec.matrices[0], at[:3]), self._matrix(spec.matrices[1], at[3:6])

    def _forget(self, message: ForgetSparse) -> None:
        self._products.pop(message.number, None)

    # --- systems ------------------------------------------------------------------------------

    def _solve(self, message: Solve) -> None:
        self._context.check()
        spec = decode(message.spec)
        lower, unit = spec.flags
        a = self._matrix(spec.matrices[0], message.operands[:3])
        b, out = (
            self._dense(each, place, spec.dtype)
            for each, place in zip(spec.dense, message.operands[3:], strict=True)
        )
        if not b.size:
            return
        triangle = (
            scipy.sparse.tril(a, format="csr") if lower else scipy.sparse.triu(a, format="csr")
        )
        diagonal = triangle.diagonal()
        if unit or not diagonal.all():
            triangle = triangle - scipy.sparse.diags_array(diagonal - 1)
        taken = scipy.sparse.csr_array(taken_as(triangle, spec.trans))
        right = number(message.alpha) * b
        made = scipy.sparse.linalg.spsolve_triangular(
            taken, right, lower=lower == (spec.trans == 0), unit_diagonal=unit
        )
        if not unit and not diagonal.all():
            made = np.full_like(made, np.nan)  # what dividing by zero comes to, and what follows
        out[...] = made

    def _banded(self, spec: SparseSpec, at: tuple[int, ...], _alpha: Any, _beta: Any) -> None:
        n, count = spec.sizes
        reach = _BANDS[spec.op]
        systems = 1 if spec.op == "tridiagonal" else count
        target = self._stack(spec, at[-1], count, n)
        diagonals = [self._stack(spec, each, systems, n) for each in at[:-1]]
        bands = np.zeros((systems, 2 * reach + 1, n), target.dtype)
        for diagonal, offset in zip(diagonals, range(-reach, reach + 1), strict=True):
            low, high = max(0, -offset), min(n, n - offset)
            bands[:, reach - offset, low + offset : high + offset] = diagonal[:, low:high]
        for each in range(systems):
            # A single matrix has all right sides, one of a stack has one.
            right = target.T if systems < count else target[each]
            try:
                made = scipy.linalg.solve_banded((reach, reach), bands[each], right)
            except np.linalg.LinAlgError:
                made = np.full_like(right, np.nan)
            right[...] = made

    def _stack(self, spec: SparseSpec, address: int, count: int, n: int) -> Array:
        """Vectors, which pentadiagonal systems have beside each other."""
        if spec.op == "pentadiagonal":
            return self._array(address, (n, count), spec.dtype).T
        return self._array(address, (count, n), spec.dtype)

    # --- vectors ------------------------------------------------------------------------------

    def _axpby(self, x: Array, indices: Array, y: Array, a: Scalar, b: Scalar) -> None:
        require_within(self._context, indices, len(y))
        beta = number(b)
        y[...] = beta * y if beta else 0
        np.add.at(y, indices, number(a) * x)

    def _gather(self, y: Array, indices: Array, out: Array) -> None:
        require_within(self._context, indices, len(y))
        out[...] = y[indices]

    def _scatter(self, x: Array, indices: Array, y: Array) -> None:
        require_within(self._context, indices, len(y))
        y[indices] = x

    def _dot(self, spec: SparseSpec, at: tuple[int, ...], _alpha: Any, _beta: Any) -> None:
        vector, n = spec.matrices[0], spec.dense[0].shape[0]
        indices = self._array(at[0], (vector.nnz,), vector.index)
        require_within(self._context, indices, n)
        x = self._array(at[1], (vector.nnz,), spec.dtype)
        out = self._array(at[3], (), spec.dtype)
        y = self._array(at[2], (n,), spec.dtype)
        out[...] = (x.conj() if spec.flags[0] else x) @ y[indices]

    # --- operands -----------------------------------------------------------------------------

    def _array(self, address: int, shape: tuple[int, ...], dtype: str) -> Array:
        return self._context.array(address, shape, DTYPES[dtype])

    def _dense(self, dense: DenseMatrix, address: int, dtype: str) -> Array:
        """A dense operand, as it counts."""
        kind = DTYPES[dtype]
        if len(dense.shape) == 1:
            return self._context.array(address, dense.shape, kind)
        strides = (dense.ld * kind.itemsize, kind.itemsize)
        return self._context.array(
            address, dense.shape, kind, strides if dense.by_rows else strides[::-1]
        )

    def _matrix(self, matrix: Matrix, at: tuple[int, ...]) -> Any:
        return matrix_at(self._context, matrix, at)


def matrix_at(context: CpuContext, matrix: Matrix, at: tuple[int, ...]) -> Any:
    """A sparse operand; what a device would not survive is a fault here, too."""
    if matrix.format in ("blocked-ell", "sliced-ell"):
        return _ell_at(context, matrix, at)
    rows, columns = matrix.shape
    r, c = matrix.block
    majors = {"csr": rows, "csc": columns, "bsr": rows // r}[matrix.format]
    index = DTYPES[matrix.index]
    major = context.array(at[0], (majors + 1,), index)
    indices = context.array(at[1], (matrix.nnz,), index)
    shape = (matrix.nnz, r, c) if matrix.format == "bsr" else (matrix.nnz,)
    data = wide(context.array(at[2], shape, DTYPES[matrix.dtype]))
    if major[0] or major[-1] != matrix.nnz or (np.diff(major) < 0).any():
        _fault(context, "a sparse matrix has an indptr that is none")
    require_within(context, indices, rows if matrix.format == "csc" else columns // c)
    make: Any = getattr(scipy.sparse, f"{matrix.format}_array")
    return make((data, indices, major), shape=matrix.shape)


def _ell_at(context: CpuContext, matrix: Matrix, at: tuple[int, ...]) -> Any:
    """A matrix with rows of equal length, by rows."""
    rows, columns = matrix.shape
    size, across = matrix.block
    index, dtype = DTYPES[matrix.index], DTYPES[matrix.dtype]
    if matrix.format == "blocked-ell":
        majors = rows // size
        indices = context.array(at[1], (majors, matrix.nnz // majors), index)
        data = wide(context.array(at[2], (rows, matrix.nnz // majors * size), dtype))
        split = data.reshape(majors, size, -1, size)
        row, place = np.nonzero(indices >= 0)
        data, minor = split[row, :, place, :], indices[row, place]
    else:
        slices = -(-rows // size)
        offsets = context.array(at[0], (slices + 1,), index)
        indices = context.array(at[1], (matrix.padded,), index)
        (place,) = np.nonzero(indices >= 0)
        begin = np.searchsorted(offsets, place, side="right") - 1
        row = begin * size + (place - offsets[begin]) % size
        data = wide(context.array(at[2], (matrix.padded,), dtype))[place]
        minor, majors = indices[place], rows
    require_within(context, minor, columns // across)
    require_within(context, row, majors)
    if matrix.format == "sliced-ell":
        return scipy.sparse.coo_array((data, (row, minor)), shape=matrix.shape)
    pointers = np.searchsorted(row, np.arange(majors + 1))
    return scipy.sparse.bsr_array((data, minor, pointers), shape=matrix.shape)


def require_within(context: CpuContext, indices: Array, bound: int) -> None:
    """Indices are in bounds; others are a fault."""
    if indices.size and (indices.min() < 0 or indices.max() >= bound):
        _fault(context, f"there is an index out of bounds for {bound}")


def _fault(context: CpuContext, what: str) -> None:
    fault = StickyFault(
        f"{what}: an illegal address",
        status=_ILLEGAL_ADDRESS,
        status_name="CUDA_ERROR_ILLEGAL_ADDRESS",
    )
    context.fail(fault)
    raise fault


def number(value: Scalar) -> complex | float:
    """A number of a message."""
    return complex(*value) if isinstance(value, tuple) else value


def taken_as(a: Any, trans: int) -> Any:
    """Return a matrix itself, transposed, or conjugate transposed, for ``trans`` 0, 1 or 2."""
    return a if trans == 0 else a.T if trans == 1 else a.conj().T


def wide(array: Array) -> Array:
    """Return an array in the dtype in which it is computed."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
