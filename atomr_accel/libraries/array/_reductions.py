"""``device.array``'s reductions: expressions that are computed at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._dtypes import is_inexact
from ...arrays.expressions import Operand, constant
from ...arrays.expressions.expression import ufunc
from ...arrays.expressions.expression import where as choose
from ...arrays.expressions.functions import require_inexact
from ...ops import D, Request, op
from .steps import ArrayPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...arrays.expressions import Number, Value

Axis = int | tuple[int, ...] | None


class ArrayReductions(ArrayPart[D]):
    """Sums, extremes and their like along any axes.

    They are those of expressions, and take expressions, too: ``device.array.sum(x * y)`` is one
    kernel. ``out`` takes results that cast to its dtype without another kind.
    """

    def _reduced(
        self, function: Callable[..., Any], a: Operand, out: GpuRef | None, /, **options: Any
    ) -> Request[GpuRef]:
        given = self._operand(a, "a")
        return self._evaluated(function(given, **options), out)

    @op
    def sum(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Add elements; as ``numpy.sum``. Sums of floats of 16 bits or less are made in float32.

        Args:
            a: a ref or an expression.
            axis: the axes to reduce; all by default.
            dtype: the dtype of the computation and of the result.
            out: the buffer for the result.
            keepdims: whether these axes stay, with one element.
            initial: a number that is added to each sum.
            where: the elements that count.

        Raises:
            numpy.exceptions.AxisError: no such axis.
        """
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "where": where}
        return self._reduced(np.sum, a, out, initial=initial, **options)

    @op
    def prod(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Multiply elements; as ``numpy.prod``. Arguments and errors are those of ``sum``."""
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "where": where}
        return self._reduced(np.prod, a, out, initial=initial, **options)

    @op
    def max(
        self,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Find the largest elements, or NaN in rows that have one; as ``numpy.max``.

        Args:
            a: a ref or an expression.
            axis: the axes to reduce; all by default.
            out: the buffer for the result.
            keepdims: whether these axes stay, with one element.
            initial: a further number that counts in each row.
            where: the elements that count; needs ``initial``.

        Raises:
            ValueError: no elements, and no ``initial``.
        """
        return self._reduced(
            np.max, a, out, axis=axis, keepdims=keepdims, initial=initial, where=where
        )

    @op
    def min(
        self,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Find the smallest elements, or NaN; as ``numpy.min``. Arguments as for ``max``."""
        return self._reduced(
            np.min, a, out, axis=axis, keepdims=keepdims, initial=initial, where=where
        )

    @op
    def ptp(
        self, a: Operand, axis: Axis = None, out: GpuRef | None = None, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Compute the range from smallest to largest element; as ``numpy.ptp``, and as ``max``."""
        return self._reduced(np.ptp, a, out, axis=axis, keepdims=keepdims)

    @op
    def mean(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        *,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Compute means; as ``numpy.mean``. Floats of 16 bits or less are added in float32.

        Args:
            a: a ref or an expression.
            axis: the axes to reduce; all by default.
            dtype: the dtype of the computation.
            out: the buffer for the result.
            keepdims: whether these axes stay, with one element.
            where: the elements that count.
        """
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "where": where}
        return self._reduced(np.mean, a, out, **options)

    @op
    def var(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Value = True,
        correction: float | None = None,
    ) -> Request[GpuRef]:
        """Compute variances; as ``numpy.var``.

        Args:
            a: a ref or an expression.
            axis: the axes to reduce; all by default.
            dtype: the dtype of the computation.
            out: the buffer for the result.
            ddof: is subtracted from the number of elements to get the divisor.
            keepdims: whether these axes stay, with one element.
            where: the elements that count.
            correction: as ``ddof``.

        Raises:
            ValueError: both ``ddof`` and ``correction``.
        """
        options = {
            "dtype": dtype,
            "ddof": _less(ddof, correction),
            "keepdims": keepdims,
            "where": where,
        }
        return self._reduced(np.var, a, out, axis=axis, **options)

    @op
    def std(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Value = True,
        correction: float | None = None,
    ) -> Request[GpuRef]:
        """Compute standard deviations; as ``numpy.std``. Arguments are those of ``var``."""
        options = {
            "dtype": dtype,
            "ddof": _less(ddof, correction),
            "keepdims": keepdims,
            "where": where,
        }
        return self._reduced(np.std, a, out, axis=axis, **options)

    @op
    def any(
        self,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        *,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Test whether any element is not zero; as ``numpy.any``.

        Args:
            a: a ref or an expression.
            axis: the axes to reduce; all by default.
            out: the buffer for the result.
            keepdims: whether these axes stay, with one element.
            where: the elements that count.
        """
        return self._reduced(np.any, a, out, axis=axis, keepdims=keepdims, where=where)

    @op
    def all(
        self,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        *,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Test whether all elements are nonzero; as ``numpy.all``. Arguments as for ``any``."""
        return self._reduced(np.all, a, out, axis=axis, keepdims=keepdims, where=where)

    @op
    def count_nonzero(
        self, a: Operand, axis: Axis = None, *, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Count the elements that are not zero, as int64; as ``numpy.count_nonzero``."""
        return self._reduced(np.count_nonzero, a, None, axis=axis, keepdims=keepdims)

    @op
    def argmax(
        self,
        a: Operand,
        axis: int | None = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the index of the largest element, int64; as ``numpy.argmax``.

        Args:
            a: a ref or an expression.
            axis: the axis to reduce; all elements count as one row by default.
            out: the buffer for the result.
            keepdims: whether the axis stays, with one element.

        Raises:
            ValueError: no elements.
        """
        return self._reduced(np.argmax, a, out, axis=axis, keepdims=keepdims)

    @op
    def argmin(
        self,
        a: Operand,
        axis: int | None = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the index of the smallest element, int64; as ``numpy.argmin``, and as ``argmax``."""
        return self._reduced(np.argmin, a, out, axis=axis, keepdims=keepdims)

    @op
    def norm(
        self,
        x: Operand,
        ord: float | str | None = None,  # noqa: A002 - NumPy's name
        axis: Axis = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Norms of vectors; as ``numpy.linalg.norm``.

        Args:
            x: a ref or an expression.
            ord: the kind of norm; by default the root of the sum of squares.
            axis: along which axes.
            keepdims: whether these stay, with one element.

        Raises:
            TypeError: a norm of matrices other than ``"fro"``.
        """
        function: Any = np.linalg.norm
        return self._evaluated(function(self._operand(x), ord, axis, keepdims))

    # --- without NaN ------------------------------------------------------------------------

    @op
    def nansum(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Add elements without NaN; as ``numpy.nansum``. Arguments as for ``sum``."""
        return self._reduced(np.nansum, a, out, axis=axis, dtype=dtype, keepdims=keepdims)

    @op
    def nanprod(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Products without NaN; as ``numpy.nanprod``, and as ``sum``."""
        return self._reduced(np.nanprod, a, out, axis=axis, dtype=dtype, keepdims=keepdims)

    @op
    def nanmax(
        self, a: Operand, axis: Axis = None, out: GpuRef | None = None, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Find the largest elements except NaN; as ``numpy.nanmax``. Arguments as for ``max``."""
        return self._reduced(np.nanmax, a, out, axis=axis, keepdims=keepdims)

    @op
    def nanmin(
        self, a: Operand, axis: Axis = None, out: GpuRef | None = None, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Find the smallest elements except NaN; as ``numpy.nanmin``. Arguments as for ``max``."""
        return self._reduced(np.nanmin, a, out, axis=axis, keepdims=keepdims)

    @op
    def nanmean(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Compute means without NaN; as ``numpy.nanmean``. Arguments as for ``mean``."""
        require_inexact(self._operand(a), dtype)
        return self._reduced(
            np.mean, a, out, axis=axis, dtype=dtype, keepdims=keepdims, where=_not_nan(a)
        )

    @op
    def nanvar(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        correction: float | None = None,
    ) -> Request[GpuRef]:
        """Compute variances without NaN; as ``numpy.nanvar``. Arguments as for ``var``.

        If at most ``ddof`` elements of a row count, its variance is infinite, or NaN if all are
        equal, as for ``var``; NumPy's is NaN.
        """
        require_inexact(self._operand(a), dtype)
        options = {
            "dtype": dtype,
            "ddof": _less(ddof, correction),
            "keepdims": keepdims,
            "where": _not_nan(a),
        }
        return self._reduced(np.var, a, out, axis=axis, **options)

    @op
    def nanstd(
        self,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        correction: float | None = None,
    ) -> Request[GpuRef]:
        """Compute standard deviations without NaN; as ``numpy.nanstd``, and as ``nanvar``."""
        require_inexact(self._operand(a), dtype)
        options = {
            "dtype": dtype,
            "ddof": _less(ddof, correction),
            "keepdims": keepdims,
            "where": _not_nan(a),
        }
        return self._reduced(np.std, a, out, axis=axis, **options)

    @op
    def nanargmax(
        self,
        a: Operand,
        axis: int | None = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the index of the largest element except NaN; as ``numpy.nanargmax``.

        A row of NaN alone, which is an error in NumPy, gives the first element's index. Arguments
        are those of ``argmax``.
        """
        x = instead_of_nan(a, -math.inf)
        return self._reduced(np.argmax, x, out, axis=axis, keepdims=keepdims)

    @op
    def nanargmin(
        self,
        a: Operand,
        axis: int | None = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the index of the smallest element except NaN; as ``numpy.nanargmin``."""
        x = instead_of_nan(a, math.inf)
        return self._reduced(np.argmin, x, out, axis=axis, keepdims=keepdims)


def _less(ddof: float, correction: float | None) -> float:
    if correction is not None and ddof:
        raise ValueError("ddof must be 0 where correction is given; use only one of them")
    return ddof if correction is None else correction


def _not_nan(a: Any) -> Any:
    if not isinstance(a, Operand) or not is_inexact(a.dtype):
        return True
    return ~ufunc("isnan", a)


def instead_of_nan(a: Any, value: float) -> Any:
    """Return an array with a number in place of each NaN."""
    if not isinstance(a, Operand) or not is_inexact(a.dtype):
        return a
    return choose(ufunc("isnan", a), constant(value, a.dtype), a)
