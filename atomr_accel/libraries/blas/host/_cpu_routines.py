"""Levels 1 to 3 on the CPU: a function for each row.

The functions get whole operands: transposed, completed by their structure, and 16-bit ones in
float32. Triangles, packed matrices and bands with structure keep their storage, because SciPy's
routines expect it. This module stores the results: it adds beta times the old output, and writes
only the part that the structure covers.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...._dtypes import DTYPES
from ....host.host import IMPORTS
from ..wire._rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext
    from ..wire._messages import RunRoutine, Scalar
    from ..wire._rows import RowOperand

Array = np.ndarray[Any, Any]


Call = Any
"""The arguments of a routine, as attributes."""


def execute(context: CpuContext, message: RunRoutine) -> None:
    """Execute a ``RunRoutine`` message."""
    row = ROWS[message.row]
    dtype = DTYPES[message.dtype]
    compute = wide(dtype)
    sizes = dict(zip(row.sizes, message.sizes, strict=True))
    options = dict(zip(row.options, message.options, strict=True))
    scalars = {
        name: number(value) for (name, _), value in zip(row.numbers, message.scalars, strict=True)
    }
    for name, at in zip(scalars, message.at, strict=False):
        if scalars[name] is None:
            kind = DTYPES[row.scalar_dtype(name, message.dtype)]
            scalars[name] = context.array(at, (), kind).item()
    call = SimpleNamespace(**sizes, **options, **scalars)
    beta = scalars.get("beta", 0.0)
    targets = []
    places = zip(
        row.operands, message.places, message.steps, row.shapes(sizes, options), strict=True
    )
    for operand, place, step, shape in places:
        if operand.steps:
            stored = vector(context, place, shape[0], step, dtype)
        elif operand.gaps:
            stored = matrix(context, place, shape, step, dtype)
        else:
            stored = context.array(place, shape, DTYPES[operand.dtype_of(message.dtype)])
        if operand.written:
            targets.append((operand, stored))
            if message.clear:
                stored[...] = 0
        if operand.access in ("r", "rw"):
            setattr(call, operand.name, _whole(operand, stored.astype(compute, copy=False), call))
    result = _FUNCTIONS[row.name](call)
    values = result if isinstance(result, tuple) else (result,)
    for (operand, stored), value in zip(targets, values, strict=True):
        if operand.access == "beta" and beta != 0:
            value = value + beta * stored.astype(compute)  # noqa: PLW2901
        _store(operand, stored, value, lower=bool(options.get("lower")))


def _whole(operand: RowOperand, stored: Array, call: Call) -> Array:
    """Return an operand as a whole matrix, or its storage if SciPy's routine expects that."""
    as_stored = operand.structure == "triangular" or (operand.form and operand.structure)
    if operand.written or as_stored:
        return stored
    op = getattr(call, operand.trans) if operand.trans else 0
    if operand.form == "band":
        m, n = (call.n, call.m) if op else (call.m, call.n)
        stored = _from_band(stored, m, n, call.kl, call.ku)
    elif operand.structure:
        stored = mirrored(stored, lower=call.lower, hermitian=operand.structure == "hermitian")
    return apply(stored, op)


def _store(operand: RowOperand, stored: Array, value: Any, *, lower: bool) -> None:
    if not operand.structure or operand.form:
        stored[...] = value
        return
    n = len(stored)
    inside = np.tril_indices(n) if lower else np.triu_indices(n)
    stored[inside] = value[inside]
    if operand.structure == "hermitian":
        np.fill_diagonal(stored.imag, 0)


def vector(context: CpuContext, place: int, n: int, step: int, dtype: np.dtype[Any]) -> Array:
    """The elements of a vector, as a view."""
    if not n:
        return np.empty(0, dtype)
    flat = context.array(place, ((n - 1) * abs(step) + 1,), dtype)
    return flat[::step]


def matrix(
    context: CpuContext, place: int, shape: tuple[int, ...], step: int, dtype: np.dtype[Any]
) -> Array:
    """The elements of a matrix with ``step`` elements from one row to the next, as a view."""
    rows, columns = shape
    if not rows or not columns:
        return np.empty(shape, dtype)
    flat = context.array(place, ((rows - 1) * step + columns,), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, (step * dtype.itemsize, dtype.itemsize))


def number(value: Scalar | None) -> Any:
    """A scalar of a message as Python has it; None is one that is elsewhere."""
    return complex(*value) if isinstance(value, (tuple, list)) else value


def apply(array: Array, op: int) -> Array:
    """``op(array)`` over its last two dimensions."""
    if not op:
        return array
    return np.swapaxes(array.conj() if op == 2 else array, -1, -2)


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are computed."""
    return dtype if dtype.itemsize > 2 else DTYPES["float32"]


def mirrored(stored: Array, *, lower: bool, hermitian: bool) -> Array:
    """The whole of a symmetric matrix of which one triangle is stored."""
    half = np.tril(stored, -1) if lower else np.triu(stored, 1)
    diagonal = np.diag(stored).real if hermitian else np.diag(stored)
    whole: Array = half + (half.conj().T if hermitian else half.T)
    np.fill_diagonal(whole, diagonal)
    return whole


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


def _nrm2(c: Call) -> Any:
    with IMPORTS.late():
        from scipy.linalg.blas import dnrm2, dznrm2

    if not c.x.size:
        return 0.0
    exact = np.ascontiguousarray(c.x, np.complex128 if c.x.dtype.kind == "c" else np.float64)
    return dznrm2(exact) if exact.dtype.kind == "c" else dnrm2(exact)


def _rotation(name: str, *arguments: Array) -> Any:
    from . import _cpu_rotations  # which few programs need

    return getattr(_cpu_rotations, name)(*arguments)


def _outer(c: Call, x: Array, y: Array) -> Array:
    return _share(c.alpha, np.outer(x, y))


def _geam(c: Call) -> Array:
    """A factor of 0 ignores its matrix, NaNs included."""
    terms = [c.a.dtype.type(f) * each for f, each in ((c.alpha, c.a), (c.beta, c.b)) if f != 0]
    return sum(terms, np.zeros((c.m, c.n), c.a.dtype))


def _beside(c: Call) -> Array:
    return _share(c.alpha, c.b @ c.a if c.side else c.a @ c.b)


def _triangle(routine: str, c: Call, b: Array, **more: Any) -> Array:
    """Run ``trmm`` or ``trsm`` of SciPy, which read only the triangle."""
    with IMPORTS.late():
        from scipy.linalg import get_blas_funcs

    if not b.size:
        return b
    function = get_blas_funcs(routine, (c.a, b))
    result: Array = function(
        getattr(c, "alpha", 1.0), c.a, b, lower=c.lower, diag=c.unit_diagonal, **more
    )
    return result


def solve_triangular(alpha: Any, a: Array, b: Array, options: tuple[int, ...]) -> Array:
    """A triangular system of matrices, with its side, triangle, op and diagonal of ones."""
    side, lower, trans, unit = options
    call: Call = SimpleNamespace(a=a, alpha=alpha, lower=lower, unit_diagonal=unit)
    return _triangle("trsm", call, b, side=side, trans_a=trans)


def _triangle_vector(routine: str, c: Call) -> Array:
    return _triangle(routine, c, c.x[:, None], trans_a=c.trans)[:, 0]


def _triangle_matrix(routine: str, c: Call) -> Array:
    return _triangle(routine, c, c.b, trans_a=c.trans_a, side=c.side)


def _in_scipy(routine: str, c: Call, *arguments: Any, **options: Any) -> Array:
    """Run a routine of ``scipy.linalg.blas`` on stored matrices."""
    with IMPORTS.late():
        from scipy.linalg import get_blas_funcs

    if not c.n:
        return np.empty(0, c.x.dtype)
    result: Array = get_blas_funcs(routine, (c.x,))(*arguments, lower=c.lower, **options)
    return result


def _of_band(routine: str, c: Call) -> Array:
    return _in_scipy(routine, c, c.k, c.alpha, c.a, c.x)


def _of_packed(routine: str, c: Call) -> Array:
    return _in_scipy(routine, c, c.n, c.alpha, c.ap, c.x)


def _to_packed(routine: str, c: Call, *vectors: Array) -> Array:
    return _in_scipy(routine, c, c.n, c.alpha, *vectors, c.ap)


def _band_vector(routine: str, c: Call) -> Array:
    return _in_scipy(routine, c, c.k, c.a, c.x, trans=c.trans, diag=c.unit_diagonal)


def _packed_vector(routine: str, c: Call) -> Array:
    return _in_scipy(routine, c, c.n, c.ap, c.x, trans=c.trans, diag=c.unit_diagonal)


def scaled(factor: Any, value: Array) -> Array:
    """A multiple of an array, of its dtype."""
    result: Array = value.dtype.type(factor) * value
    return result


def _share(factor: Any, value: Array) -> Array:
    """A multiple of what goes into a result. BLAS does not read that where the factor is 0."""
    return scaled(factor, value) if factor != 0 else np.zeros_like(value)


def _rank_2k(c: Call) -> Array:
    product = _share(c.alpha, c.a @ c.b.T)
    return product + product.T


def _hermitian_rank_2k(c: Call) -> Array:
    product = _share(c.alpha, c.a @ c.b.conj().T)
    return product + product.conj().T


def _hermitian_squares(c: Call) -> Array:
    product = _outer(c, c.x, c.y.conj())
    result: Array = c.a + product + product.conj().T
    return result


def _product(c: Call) -> Array:
    return _share(c.alpha, c.a @ c.x)


_FUNCTIONS: Final[dict[str, Callable[[Call], Any]]] = {
    "axpy": lambda c: c.y + _share(c.a, c.x),
    "scal": lambda c: scaled(c.a, c.x),
    "copy": lambda c: c.x,
    "swap": lambda c: (c.y.copy(), c.x.copy()),
    "rot": lambda c: (
        scaled(c.c, c.x) + scaled(c.s, c.y),
        scaled(c.c, c.y) - scaled(np.conj(c.s), c.x),
    ),
    "rotm": lambda c: _rotation("rotm", c.x, c.y, c.param),
    "rotg": lambda c: _rotation("rotg", c.a, c.b),
    "rotmg": lambda c: _rotation("rotmg", c.d1, c.d2, c.x1, c.y1),
    "dot": lambda c: c.x @ c.y,
    "dotc": lambda c: c.x.conj() @ c.y,
    "nrm2": _nrm2,
    "asum": lambda c: _magnitude(c.x).sum(),
    "amax": lambda c: np.argmax(_magnitude(c.x)),
    "amin": lambda c: np.argmin(_magnitude(c.x)),
    "gemv": _product,
    "gbmv": _product,
    "symv": _product,
    "hemv": _product,
    "ger": lambda c: c.a + _outer(c, c.x, c.y),
    "gerc": lambda c: c.a + _outer(c, c.x, c.y.conj()),
    "syr": lambda c: c.a + _outer(c, c.x, c.x),
    "syr2": lambda c: c.a + _outer(c, c.x, c.y) + _outer(c, c.y, c.x),
    "trmv": lambda c: _triangle_vector("trmm", c),
    "trsv": lambda c: _triangle_vector("trsm", c),
    "sbmv": partial(_of_band, "sbmv"),
    "hbmv": partial(_of_band, "hbmv"),
    "spmv": partial(_of_packed, "spmv"),
    "hpmv": partial(_of_packed, "hpmv"),
    "her": lambda c: c.a + _outer(c, c.x, c.x.conj()),
    "her2": _hermitian_squares,
    "spr": lambda c: _to_packed("spr", c, c.x),
    "hpr": lambda c: _to_packed("hpr", c, c.x),
    "spr2": lambda c: _to_packed("spr2", c, c.x, c.y),
    "hpr2": lambda c: _to_packed("hpr2", c, c.x, c.y),
    "tbmv": partial(_band_vector, "tbmv"),
    "tbsv": partial(_band_vector, "tbsv"),
    "tpmv": partial(_packed_vector, "tpmv"),
    "tpsv": partial(_packed_vector, "tpsv"),
    "symm": _beside,
    "hemm": _beside,
    "syrk": lambda c: _share(c.alpha, c.a @ c.a.T),
    "herk": lambda c: _share(c.alpha, c.a @ c.a.conj().T),
    "syr2k": _rank_2k,
    "her2k": _hermitian_rank_2k,
    "syrkx": lambda c: _share(c.alpha, c.a @ c.b.T),
    "herkx": lambda c: _share(c.alpha, c.a @ c.b.conj().T),
    "gemm3m": lambda c: _share(c.alpha, c.a @ c.b),
    "trmm": lambda c: _triangle_matrix("trmm", c),
    "trsm": lambda c: _triangle_matrix("trsm", c),
    "geam": _geam,
    "dgmm": lambda c: c.a * c.x if c.side else c.x[:, None] * c.a,
}
"""Function of each row. It returns the written operand, or two as a tuple; beta times the old value
is added afterwards.
"""
