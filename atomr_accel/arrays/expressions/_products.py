"""NumPy's products of vectors and matrices, for refs and expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._dtypes import is_float
from ._methods import FUNCTIONS
from .expression import Expression, Operand, converted, reduce, ufunc, values_of, view
from .functions import _expand_dims, _moveaxis, _operand, _swapaxes
from .promotion import joint, resolve

if TYPE_CHECKING:
    from .expression import Value


def matmul(x1: Value, x2: Value, *, dtype: np.dtype[Any] | None = None) -> Expression:
    """``numpy.matmul``. The result has the dtype that ``x1 * x2`` has."""
    a, b = _operands("matmul", x1, x2)
    takes = resolve("multiply", (a.dtype, b.dtype), dtype)[2]
    if is_float(takes) and takes.itemsize == 1:
        raise TypeError(
            f"dtypes of a matrix product must have at least 16 bits if they are floats, not "
            f"{takes.name}; use device.blaslt.matmul"
        )
    k, rows = a.shape[-1], b.shape[-2:][0]
    if k != rows:
        raise ValueError(
            f"x2 must have {k} rows, as many as x1 has columns, not {rows}; x1 has shape "
            f"{a.shape}, x2 has shape {b.shape}"
        )
    leading = joint(((a.shape[:-2], takes), (b.shape[:-2], takes)))
    shape = (*leading, *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))
    args = converted(a, takes), converted(b, takes)
    return Expression("matmul", "matmul", args, (), shape, takes)


def _operands(name: str, x1: Value, x2: Value) -> tuple[Operand, Operand]:
    """Return the operands of a product, which need at least one dimension each."""
    for word, value in (("x1", x1), ("x2", x2)):
        if not isinstance(value, Operand) or not value.shape:
            raise ValueError(
                f"{word} of {name} must have at least one dimension, not none; multiply by a "
                "number with *"
            )
    assert isinstance(x1, Operand)
    assert isinstance(x2, Operand)
    return x1, x2


def _matvec(x1: Value, x2: Value, *, dtype: np.dtype[Any] | None = None) -> Operand:
    a, b = _operands("matvec", x1, x2)
    made = matmul(a, _expand_dims(b, -1), dtype=dtype)
    return view(made, tuple(range(len(made.shape) - 1)), made.shape[:-1])


def _vecmat(x1: Value, x2: Value, *, dtype: np.dtype[Any] | None = None) -> Operand:
    a, b = _operands("vecmat", x1, x2)
    made = matmul(_expand_dims(_conjugate(a), -2), b, dtype=dtype)
    last = len(made.shape) - 1
    return view(made, (*range(last - 1), last), (*made.shape[:-2], made.shape[-1]))


def _vecdot(x1: Value, x2: Value, *, dtype: np.dtype[Any] | None = None) -> Operand:
    a, b = _operands("vecdot", x1, x2)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"x2 must have vectors of {a.shape[-1]} elements, as x1 has, not {b.shape[-1]}"
        )
    return _sum_of(ufunc("multiply", _conjugate(a), b, dtype=dtype), -1)


def _conjugate(x: Operand) -> Operand:
    return ufunc("conjugate", x) if x.dtype.kind == "c" else x


def _sum_of(x: Operand, axis: int | None) -> Operand:
    """Return sums in the dtype of the elements, which are logical for bools."""
    name = "logical_or" if x.dtype.kind == "b" else "add"
    return reduce(name, x, axis, dtype=x.dtype if name == "add" else None)


def sum_of_products(a: Operand, b: Operand) -> Operand:
    """Return a matrix product as a sum over elementwise products.

    Devices compute products of integers and bools this way, because cuBLAS has none.
    """
    if len(b.shape) > 1:
        b = _swapaxes(b, -1, -2)
        if len(a.shape) > 1:
            a, b = _expand_dims(a, -2), _expand_dims(b, -3)
    return _sum_of(ufunc("multiply", a, b), -1)


def _dot(a: Any, b: Any) -> Operand:
    x, y = _operand(a), _operand(b)
    if not (x.shape and y.shape):
        return ufunc("multiply", x, y)
    if len(x.shape) == 1 or len(y.shape) < 3:
        return matmul(x, y)
    first, others = len(x.shape) - 2, len(y.shape) - 2
    made = matmul(_expand_dims(x, tuple(range(first, first + others))), y)
    return _moveaxis(made, -2, first)


def _inner(a: Any, b: Any) -> Operand:
    x, y = _operand(a), _operand(b)
    return _dot(x, _swapaxes(y, -1, -2) if x.shape and len(y.shape) > 1 else y)


def _vdot(a: Any, b: Any) -> Operand:
    x, y = _operand(a), _operand(b)
    if x.shape != y.shape:
        raise ValueError(
            f"b of vdot must have the shape of a, {x.shape}, not {y.shape}; reshape the refs that "
            "it is made of"
        )
    return _sum_of(ufunc("multiply", _conjugate(x), y), None)


FUNCTIONS[np.matmul] = matmul
FUNCTIONS[np.vecdot] = _vecdot
if np.lib.NumpyVersion(np.__version__) >= "2.2.0":
    FUNCTIONS[np.matvec] = _matvec
    FUNCTIONS[np.vecmat] = _vecmat
FUNCTIONS[np.dot] = _dot
FUNCTIONS[np.inner] = _inner
FUNCTIONS[np.vdot] = _vdot
FUNCTIONS[np.linalg.matmul] = lambda x1, x2, /: matmul(*values_of((x1, x2)))
