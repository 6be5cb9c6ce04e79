"""``device.array``'s reductions: expressions that are computed at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import is_inexact
from ...arrays.expressions import Operand, constant
from ...arrays.expressions.expression import ufunc
from ...arrays.expressions.expression import where as choose
from ...arrays.expressions.functions import require_inexact
from ...ops import D, Request, op, op_like
from .steps import ArrayPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...arrays.expressions import Number, Value

Axis = int | tuple[int, ...] | None


_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""


def _added(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: GpuRef | None = None,
    keepdims: bool = False,
    initial: Number | None = None,
    where: Value = True,
) -> Request[GpuRef]:
    options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "where": where}
    return self._reduced(getattr(_NUMPY, name), a, out, initial=initial, **options)


def _extreme(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    out: GpuRef | None = None,
    keepdims: bool = False,
    initial: Number | None = None,
    where: Value = True,
) -> Request[GpuRef]:
    options = {"axis": axis, "keepdims": keepdims, "where": where}
    return self._reduced(getattr(_NUMPY, name), a, out, initial=initial, **options)


def _along(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    out: GpuRef | None = None,
    keepdims: bool = False,
) -> Request[GpuRef]:
    return self._reduced(getattr(_NUMPY, name), a, out, axis=axis, keepdims=keepdims)


def _spread(
    self: ArrayReductions[Any],
    name: str,
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
    options = {"dtype": dtype, "ddof": _less(ddof, correction), "keepdims": keepdims}
    return self._reduced(getattr(_NUMPY, name), a, out, axis=axis, where=where, **options)


def _tested(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    out: GpuRef | None = None,
    keepdims: bool = False,
    *,
    where: Value = True,
) -> Request[GpuRef]:
    return self._reduced(getattr(_NUMPY, name), a, out, axis=axis, keepdims=keepdims, where=where)


def _position(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: int | None = None,
    out: GpuRef | None = None,
    *,
    keepdims: bool = False,
) -> Request[GpuRef]:
    if name.startswith("nan"):
        name = name.removeprefix("nan")
        a = instead_of_nan(a, -math.inf if name == "argmax" else math.inf)
    return self._reduced(getattr(_NUMPY, name), a, out, axis=axis, keepdims=keepdims)


def _added_without_nan(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: GpuRef | None = None,
    keepdims: bool = False,
) -> Request[GpuRef]:
    options = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
    if name != "nanmean":
        return self._reduced(getattr(_NUMPY, name), a, out, **options)
    require_inexact(self._operand(a), dtype)
    return self._reduced(np.mean, a, out, where=_not_nan(a), **options)


def _spread_without_nan(
    self: ArrayReductions[Any],
    name: str,
    a: Operand,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: GpuRef | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Request[GpuRef]:
    require_inexact(self._operand(a), dtype)
    given = (a, axis, dtype, out, ddof, keepdims)
    return _spread(self, name.removeprefix("nan"), *given, where=_not_nan(a), correction=correction)


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

    sum: Final = op_like(
        _added,
        "sum",
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
        """,
    )
    prod: Final = op_like(
        _added,
        "prod",
        """Multiply elements; as ``numpy.prod``. Arguments and errors are those of ``sum``.""",
    )
    max: Final = op_like(
        _extreme,
        "max",
        """Find the largest elements, or NaN in rows that have one; as ``numpy.max``.

        Arguments are those of ``sum``. ``initial`` is a further number that counts in each row;
        ``where`` needs it.

        Raises:
            ValueError: no elements, and no ``initial``.
        """,
    )
    min: Final = op_like(
        _extreme,
        "min",
        """Find the smallest elements, or NaN; as ``numpy.min``. Arguments as for ``max``.""",
    )
    ptp: Final = op_like(
        _along,
        "ptp",
        """Compute the range from smallest to largest element; as ``numpy.ptp``, and as ``max``.""",
    )

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

    var: Final = op_like(
        _spread,
        "var",
        """Compute variances; as ``numpy.var``. Other arguments are those of ``sum``.

        Args:
            ddof: is subtracted from the number of elements to get the divisor.
            correction: as ``ddof``.

        Raises:
            ValueError: both ``ddof`` and ``correction``.
        """,
    )
    std: Final = op_like(
        _spread,
        "std",
        """Compute standard deviations; as ``numpy.std``. Arguments are those of ``var``.""",
    )
    any: Final = op_like(
        _tested,
        "any",
        """Test whether any element is not zero; as ``numpy.any``. Arguments as for ``sum``.""",
    )
    all: Final = op_like(
        _tested,
        "all",
        """Test whether all elements are nonzero; as ``numpy.all``. Arguments as for ``sum``.""",
    )

    @op
    def count_nonzero(
        self, a: Operand, axis: Axis = None, *, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Count the elements that are not zero, as int64; as ``numpy.count_nonzero``."""
        return self._reduced(np.count_nonzero, a, None, axis=axis, keepdims=keepdims)

    argmax: Final = op_like(
        _position,
        "argmax",
        """Find the index of the largest element, int64; as ``numpy.argmax``.

        Args:
            a: a ref or an expression.
            axis: the axis to reduce; all elements count as one row by default.
            out: the buffer for the result.
            keepdims: whether the axis stays, with one element.

        Raises:
            ValueError: no elements.
        """,
    )
    argmin: Final = op_like(
        _position,
        "argmin",
        """Find the index of the smallest element; as ``numpy.argmin``, and as ``argmax``.""",
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

    nansum: Final = op_like(
        _added_without_nan,
        "nansum",
        """Add elements without NaN; as ``numpy.nansum``. Arguments as for ``sum``.""",
    )
    nanprod: Final = op_like(
        _added_without_nan,
        "nanprod",
        """Products without NaN; as ``numpy.nanprod``, and as ``sum``.""",
    )
    nanmax: Final = op_like(
        _along,
        "nanmax",
        """Find the largest elements except NaN; as ``numpy.nanmax``. Arguments as for ``max``.""",
    )
    nanmin: Final = op_like(
        _along,
        "nanmin",
        """Find the smallest elements except NaN; as ``numpy.nanmin``. Arguments as for ``max``.""",
    )
    nanmean: Final = op_like(
        _added_without_nan,
        "nanmean",
        """Compute means without NaN; as ``numpy.nanmean``. Arguments as for ``mean``.""",
    )
    nanvar: Final = op_like(
        _spread_without_nan,
        "nanvar",
        """Compute variances without NaN; as ``numpy.nanvar``. Arguments as for ``var``.

        If at most ``ddof`` elements of a row count, its variance is infinite, or NaN if all are
        equal, as for ``var``; NumPy's is NaN.
        """,
    )
    nanstd: Final = op_like(
        _spread_without_nan,
        "nanstd",
        """Compute standard deviations without NaN; as ``numpy.nanstd``, and as ``nanvar``.""",
    )
    nanargmax: Final = op_like(
        _position,
        "nanargmax",
        """Find the index of the largest element except NaN; as ``numpy.nanargmax``.

        A row of NaN alone, which is an error in NumPy, gives the first element's index. Arguments
        are those of ``argmax``.
        """,
    )
    nanargmin: Final = op_like(
        _position,
        "nanargmin",
        """Find the index of the smallest element except NaN; as ``numpy.nanargmin``.""",
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
