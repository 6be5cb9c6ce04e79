"""``device.array``'s reductions: expressions that are computed at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import is_inexact
from ...arrays.expressions import Operand, cast, constant
from ...arrays.expressions.expression import ufunc
from ...arrays.expressions.expression import where as choose
from ...arrays.expressions.functions import require_inexact
from ...arrays.expressions.promotion import require_castable
from ...ops import D, Request, op, op_family
from .steps import ArrayPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...arrays.expressions import Number, Value

Axis = int | tuple[int, ...] | None


_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""


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

    @op_family
    def sum(
        self,
        _name: str,
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
        return self._reduced(getattr(_NUMPY, _name), a, out, initial=initial, **options)

    prod: Final = sum.like(  # noqa: A003 - the op above
        """Multiply elements; as ``numpy.prod``. Arguments and errors are those of ``sum``."""
    )

    @op_family
    def max(
        self,
        _name: str,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Find the largest elements, or NaN in rows that have one; as ``numpy.max``.

        Arguments are those of ``sum``. ``initial`` is a further number that counts in each row;
        ``where`` needs it.

        Raises:
            ValueError: no elements, and no ``initial``.
        """
        options = {"axis": axis, "keepdims": keepdims, "where": where}
        return self._reduced(getattr(_NUMPY, _name), a, out, initial=initial, **options)

    min: Final = max.like(  # noqa: A003 - the op above
        """Find the smallest elements, or NaN; as ``numpy.min``. Arguments as for ``max``."""
    )

    @op
    def ptp(
        self,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Compute the range from smallest to largest element; as ``numpy.ptp``, and as ``max``.

        The difference has the dtype of ``out``, if there is one.
        """
        given = self._operand(a, "a")
        if out is None or self._ref(out, "out").dtype is given.dtype:
            return self._reduced(_NUMPY.ptp, given, out, axis=axis, keepdims=keepdims)
        most, least = (each(given, axis, keepdims=keepdims) for each in (_NUMPY.max, _NUMPY.min))
        require_castable(given.dtype, out.dtype, "same_kind")
        return self._evaluated(ufunc("subtract", cast(most, out.dtype), least), out)

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

        Arguments are those of ``sum``.
        """
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "where": where}
        return self._reduced(np.mean, a, out, **options)

    @op_family
    def var(
        self,
        _name: str,
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
        """Compute variances; as ``numpy.var``. Other arguments are those of ``sum``.

        ``ddof``, or ``correction``, is subtracted from the number of elements to get the divisor.

        Raises:
            ValueError: both ``ddof`` and ``correction``.
        """
        options = {"dtype": dtype, "ddof": _less(ddof, correction), "keepdims": keepdims}
        return self._reduced(getattr(_NUMPY, _name), a, out, axis=axis, where=where, **options)

    std: Final = var.like(
        """Compute standard deviations; as ``numpy.std``. Arguments are those of ``var``."""
    )

    @op_family
    def any(
        self,
        _name: str,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
        *,
        where: Value = True,
    ) -> Request[GpuRef]:
        """Test whether any element is not zero; as ``numpy.any``. Arguments as for ``sum``."""
        return self._reduced(
            getattr(_NUMPY, _name), a, out, axis=axis, keepdims=keepdims, where=where
        )

    all: Final = any.like(  # noqa: A003 - the op above
        """Test whether all elements are nonzero; as ``numpy.all``. Arguments as for ``sum``."""
    )

    @op
    def count_nonzero(
        self, a: Operand, axis: Axis = None, *, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Count the elements that are not zero, as int64; as ``numpy.count_nonzero``."""
        return self._reduced(np.count_nonzero, a, None, axis=axis, keepdims=keepdims)

    @op_family
    def argmax(
        self,
        _name: str,
        a: Operand,
        axis: int | None = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the index of the largest element, int64; as ``numpy.argmax``.

        All elements count as one row by default. Arguments are those of ``sum``.

        Raises:
            ValueError: no elements.
        """
        if _name.startswith("nan"):
            _name = _name.removeprefix("nan")
            a = instead_of_nan(a, -math.inf if _name == "argmax" else math.inf)
        return self._reduced(getattr(_NUMPY, _name), a, out, axis=axis, keepdims=keepdims)

    argmin: Final = argmax.like(
        """Find the index of the smallest element; as ``numpy.argmin``, and as ``argmax``."""
    )

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

    @op_family
    def nansum(
        self,
        _name: str,
        a: Operand,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Add elements without NaN; as ``numpy.nansum``. Arguments as for ``sum``."""
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
        if _name != "nanmean":
            return self._reduced(getattr(_NUMPY, _name), a, out, **options)
        require_inexact(self._operand(a), dtype)
        return self._reduced(np.mean, a, out, where=_not_nan(a), **options)

    nanprod: Final = nansum.like("""Products without NaN; as ``numpy.nanprod``, and as ``sum``.""")

    @op_family
    def nanmax(
        self,
        _name: str,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Find the largest elements except NaN; as ``numpy.nanmax``. Arguments as for ``max``."""
        return self._reduced(getattr(_NUMPY, _name), a, out, axis=axis, keepdims=keepdims)

    nanmin: Final = nanmax.like(
        """Find the smallest elements except NaN; as ``numpy.nanmin``. Arguments as for ``max``."""
    )
    nanmean: Final = nansum.like(
        """Compute means without NaN; as ``numpy.nanmean``. Arguments as for ``mean``."""
    )

    @op_family
    def nanvar(
        self,
        _name: str,
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
        options = {"dtype": dtype, "ddof": _less(ddof, correction), "keepdims": keepdims}
        function = getattr(_NUMPY, _name.removeprefix("nan"))
        return self._reduced(function, a, out, axis=axis, where=_not_nan(a), **options)

    nanstd: Final = nanvar.like(
        """Compute standard deviations without NaN; as ``numpy.nanstd``, and as ``nanvar``."""
    )
    nanargmax: Final = argmax.like(
        """Find the index of the largest element except NaN; as ``numpy.nanargmax``.

        A row of NaN alone, which is an error in NumPy, gives the first element's index. Arguments
        are those of ``argmax``.
        """
    )
    nanargmin: Final = argmax.like(
        """Find the index of the smallest element except NaN; as ``numpy.nanargmin``.

        A row of NaN alone, which is an error in NumPy, gives the first element's index. Arguments
        are those of ``argmax``.
        """
    )


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
