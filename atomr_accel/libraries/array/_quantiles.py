"""``device.array``'s medians and quantiles, by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from ..._dtypes import HALVES, as_dtype, is_added, is_float
from ...arrays.expressions import Operand, constant
from ...arrays.expressions.axes import axes_of
from ...arrays.expressions.expression import cast, ufunc, where
from ...arrays.expressions.promotion import FLOAT32
from ...ops import D, Request, op
from ._sorting import Sorting
from .steps import CallSteps, target_of

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ._reductions import Axis

Method = Literal[
    "linear",
    "lower",
    "higher",
    "nearest",
    "midpoint",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
]

_METHODS: Final[tuple[Method, ...]] = get_args(Method)
_ELEMENTS: Final = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
"""Methods that return one of the elements."""

_CONSTANTS: Final[dict[Method, tuple[float, float]]] = {
    "interpolated_inverted_cdf": (0, 1),
    "hazen": (1 / 2, 1 / 2),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
"""Alpha and beta of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996)."""

_FLOAT64: Final = as_dtype(np.float64)


class Quantiles(Sorting[D]):
    """Medians, quantiles and percentiles; NaN for rows with a NaN."""

    @op
    def median(
        self, a: Operand, axis: Axis = None, out: GpuRef | None = None, *, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Medians; as ``numpy.median``.

        Args:
            a: a ref or an expression, of real numbers.
            axis: the axes; all by default.
            out: the buffer for the result.
            keepdims: whether these axes stay, with one element.

        Raises:
            ValueError: no elements.
            TypeError, Unsupported: as ``sort``.
        """
        return self._quantiles("median", a, 0.5, axis, out, "midpoint", keepdims=keepdims)

    @op
    def quantile(
        self,
        a: Operand,
        q: float | Sequence[float],
        axis: Axis = None,
        out: GpuRef | None = None,
        *,
        method: Method = "linear",
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Quantiles; as ``numpy.quantile``.

        Args:
            a: a ref or an expression, of real numbers.
            q: the quantiles, from 0 to 1; several of them become new first axes of the result.
            axis: the axes; all by default.
            out: the buffer for the result.
            method: NumPy's name of the interpolation between two elements.
            keepdims: whether these axes stay, with one element.

        Raises:
            ValueError: no elements, ``q`` out of range, or an unknown method.
            TypeError, Unsupported: as ``sort``.
        """
        return self._quantiles("quantile", a, q, axis, out, method, keepdims=keepdims)

    @op
    def percentile(
        self,
        a: Operand,
        q: float | Sequence[float],
        axis: Axis = None,
        out: GpuRef | None = None,
        *,
        method: Method = "linear",
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Quantiles of hundredths; as ``numpy.percentile``, and as ``quantile``.

        Args:
            a: as for ``quantile``.
            q: the percentiles, from 0 to 100.
            axis: as for ``quantile``.
            out: as for ``quantile``.
            method: as for ``quantile``.
            keepdims: as for ``quantile``.

        Raises:
            ValueError, TypeError, Unsupported: as ``quantile``.
        """
        if isinstance(q, Operand):
            raise TypeError("q must be numbers of the program's; fetch them first")
        dtype = self._operand(a, "a").dtype
        numpys = is_float(dtype) and not is_added(dtype)  # 100 has no place in some of the others
        shares: Any = np.true_divide(q, dtype.type(100) if numpys else 100)
        if type(q) in (int, float) and not numpys:
            shares = float(shares)
        name = "percentile"
        return self._quantiles(name, a, shares, axis, out, method, keepdims=keepdims)

    def _quantiles(
        self,
        name: str,
        a: Operand,
        q: Any,
        axis: Axis,
        out: GpuRef | None,
        method: Method,
        *,
        keepdims: bool,
    ) -> Request[GpuRef]:
        given = self._operand(a, "a")
        if isinstance(q, Operand):
            raise TypeError("q must be numbers of the program's; fetch them first")
        shares = np.asarray(q, np.float64)
        if not ((shares >= 0) & (shares <= 1)).all():
            what = "Percentiles must be in the range [0, 100]"
            raise ValueError(
                what if name == "percentile" else "Quantiles must be in the range [0, 1]"
            )
        if method not in _METHODS:
            raise ValueError(f"{method!r} is not a valid method. Use one of: {_METHODS}")
        if given.dtype.kind == "c":
            raise TypeError("a must be an array of real numbers")
        if given.dtype.kind == "b" and method not in _ELEMENTS and name != "median":
            raise TypeError("quantiles between booleans, which have no difference; cast them first")
        axes = axes_of(axis, len(given.shape))
        n = math.prod(given.shape[at] for at in axes)
        if not n:
            raise ValueError(f"{name} of no elements")
        kept = tuple(extent for at, extent in enumerate(given.shape) if at not in axes)
        dtype = given.dtype
        between = method not in _ELEMENTS
        if dtype.kind in "biu" and between:
            dtype = _FLOAT64
        elif between and type(q) not in (int, float):  # of Python's no dtype comes
            dtype = as_dtype(np.result_type(dtype, np.asarray(q).dtype))
        if keepdims:
            kept_shape = tuple(1 if at in axes else extent for at, extent in enumerate(given.shape))
        else:
            kept_shape = kept
        shape = (*shares.shape, *kept_shape)

        def build(steps: CallSteps) -> GpuRef:
            ref = steps.ref(given, "a")
            moved = ref.moveaxis(axes, tuple(range(-len(axes), 0))) if axes else ref[..., None]
            rows = moved if len(axes) == 1 or not axes else steps.contiguous(moved)
            if len(axes) > 1:
                rows = rows.reshape(*kept, n)
            values, _ = self._rows(steps, rows, len(kept), descending=False, order=False)
            made = target_of(steps, out, shape, dtype, op=name)
            flat = values.reshape(*kept, n)
            for place in np.ndindex(shares.shape):
                to = made[place].reshape(kept) if keepdims else made[place]
                steps.evaluate(cast(_at(flat, float(shares[place]), method, dtype), dtype), to)
            return made

        return self._several(name, build)


def _place(n: int, share: float, method: Method) -> tuple[int, float]:
    """Return the index before a quantile of ``n`` sorted elements, and the fraction after it."""
    match method:
        case "inverted_cdf" | "averaged_inverted_cdf":
            place = n * share - 1
        case "closest_observation":
            place = n * share - 1.5
        case "linear" | "lower" | "higher" | "nearest" | "midpoint":
            place = (n - 1) * share
        case _:
            alpha, beta = _CONSTANTS[method]
            place = n * share + (alpha + share * (1 - alpha - beta)) - 1
    if place < 0:
        return 0, 0.0
    if place >= n - 1:
        return n - 1, 0.0
    low = math.floor(place)
    part = place - low
    match method:
        case "lower":
            part = 0.0
        case "higher" | "inverted_cdf":
            part = float(part > 0)
        case "nearest":
            low, part = round(place), 0.0
        case "midpoint":
            part = 0.5 if part else 0.0
        case "averaged_inverted_cdf":
            part = 1.0 if part else 0.5
        case "closest_observation":
            part = float(part > 0 or low % 2 == 0)
    return low, part


def _at(rows: GpuRef, share: float, method: Method, dtype: np.dtype[Any]) -> Operand:
    """A quantile of each row, which are sorted."""
    n = rows.shape[-1]
    low, part = _place(n, share, method)
    high = min(low + 1, n - 1)
    wide = FLOAT32 if dtype in HALVES else dtype
    first: Operand = cast(rows[..., low], wide)
    if part == 1.0:
        made = cast(rows[..., high], wide)
    elif part == 0.0:
        made = first
    elif method == "midpoint":
        made = (first + cast(rows[..., high], wide)) * constant(0.5, wide)
    else:
        second = cast(rows[..., high], wide)
        apart = second - first
        if part < 0.5:
            made = first + apart * constant(part, wide)
        else:
            made = second - apart * constant(1 - part, wide)
        made = where(first == second, first, made)
    if is_float(rows.dtype):
        last = cast(rows[..., n - 1], wide)
        made = where(ufunc("isnan", last), last, made)
    return cast(made, dtype)
