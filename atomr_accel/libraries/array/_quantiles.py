"""``device.array``'s medians and quantiles, by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from ..._dtypes import HALVES, as_dtype, is_float
from ...arrays.expressions import Operand, broadcast, constant
from ...arrays.expressions.axes import axes_of
from ...arrays.expressions.expression import cast, ufunc, where
from ...arrays.expressions.promotion import FLOAT32
from ...ops import D, Request, op_family
from ._scans import scanned
from ._sorting import Sorting
from .choosing import INT64, GatherAxis, choose
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

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

_FLOAT64: Final = as_dtype(np.float64)


class Quantiles(Sorting[D]):
    """Medians, quantiles and percentiles; NaN for rows with a NaN, or without NaN."""

    @op_family
    def median(
        self,
        _name: str,
        a: Operand,
        axis: Axis = None,
        out: GpuRef | None = None,
        *,
        keepdims: bool = False,
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
        return self._quantiles(_name, a, 0.5, axis, out, "midpoint", keepdims=keepdims)

    @op_family
    def quantile(
        self,
        _name: str,
        a: Operand,
        q: float | Sequence[float],
        axis: Axis = None,
        out: GpuRef | None = None,
        *,
        method: Method = "linear",
        keepdims: bool = False,
        weights: Operand | None = None,
    ) -> Request[GpuRef]:
        """Quantiles; as ``numpy.quantile``.

        ``q`` are from 0 to 1; several of them become new first axes of the result. ``method`` is
        NumPy's name of the interpolation between two elements. ``weights`` say how much each
        element counts, at least 0, with ``"inverted_cdf"`` alone: of the shape of ``a``, or of that
        of ``axis``. They are not checked: results of negative ones, or of zeros alone, mean
        nothing. Other arguments are those of ``median``.

        Raises:
            ValueError: no elements, ``q`` out of range, an unknown method, or weights with another
                method or of another shape.
            TypeError, Unsupported: as ``sort``.
        """
        shares = self._shares(q) if _name.endswith("percentile") else q
        return self._quantiles(_name, a, shares, axis, out, method, weights, keepdims=keepdims)

    percentile: Final = quantile.like(
        """Quantiles of hundredths, from 0 to 100; as ``numpy.percentile``, and as ``quantile``."""
    )
    nanmedian: Final = median.like(
        """Medians without NaN; as ``numpy.nanmedian``. Arguments and errors are ``median``'s."""
    )
    nanquantile: Final = quantile.like(
        """Quantiles without NaN; as ``numpy.nanquantile``; NaN for rows of NaN alone.

        Arguments and errors are those of ``quantile``.
        """
    )

    def _shares(self, q: Any) -> Any:
        """Return hundredths as quantiles."""
        if isinstance(q, Operand):
            raise TypeError("q must be numbers of the program's; fetch them first")
        shares: Any = np.true_divide(q, 100)  # in the precision of q, as a float32 0.4 is more
        return float(shares) if type(q) in (int, float) else shares

    def _quantiles(
        self,
        name: str,
        a: Operand,
        q: Any,
        axis: Axis,
        out: GpuRef | None,
        method: Method,
        weights: Operand | None = None,
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
                what if name.endswith("percentile") else "Quantiles must be in the range [0, 1]"
            )
        if method not in _METHODS:
            raise ValueError(f"{method!r} is not a valid method. Use one of: {_METHODS}")
        if given.dtype.kind == "c":
            raise TypeError("a must be an array of real numbers")
        if given.dtype.kind == "b" and method not in _ELEMENTS and not name.endswith("median"):
            raise TypeError("quantiles between booleans, which have no difference; cast them first")
        axes = axes_of(axis, len(given.shape))
        n = math.prod(given.shape[at] for at in axes)
        if not n:
            raise ValueError(f"{name} of no elements")
        kept = tuple(extent for at, extent in enumerate(given.shape) if at not in axes)
        if weights is not None:
            if method != "inverted_cdf":
                raise ValueError(f"Only method 'inverted_cdf' supports weights. Got: {method}.")
            weights = weights_like(self._operand(weights, "weights"), given.shape, axes)
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
            rows = _as_rows(steps, ref, axes, kept, n)
            weighted = weights is not None
            values, order = self._rows(steps, rows, len(kept), descending=False, order=weighted)
            made = target_of(steps, out, shape, dtype, op=name)
            flat = values.reshape(*kept, n)
            skipping = name.startswith("nan") and is_float(dtype)
            there = ~ufunc("isnan", flat) if skipping else None
            counts = None if there is None else steps.evaluate(there.sum(-1))
            shared = None
            if weights is not None and order is not None:
                heavy = _as_rows(steps, steps.ref(weights, "weights"), axes, kept, n)
                heavy = _along(steps, heavy, order.reshape(*kept, n))
                heavy = steps.cast(heavy, _FLOAT64)
                if there is not None:
                    heavy = steps.evaluate(where(there, heavy, 0.0))
                sums = scanned(steps, "add", heavy)
                shared = steps.evaluate(where(sums == 0, -1.0, sums / sums[..., -1:]))
            for place in np.ndindex(shares.shape):
                to = made[place].reshape(kept) if keepdims else made[place]
                share = float(shares[place])
                if shared is not None:
                    first = cast((shared < share).sum(-1), INT64)
                    first = steps.evaluate(ufunc("minimum", first, n - 1))
                    found: Operand = _along(steps, flat, first[..., None])[..., 0]
                    found = found if skipping else _with_nan(found, flat)
                elif counts is None:
                    found = _at(flat, share, method, dtype)
                else:
                    found = _at_counted(steps, flat, counts, share, method, dtype)
                steps.evaluate(cast(found, dtype), to)
            return made

        return self._several(name, build)


def _place(n: Any, share: float, method: Method) -> tuple[Any, Any]:
    """Return the index before a quantile of ``n`` sorted elements, and the fraction after it.

    ``n`` is a float, or an expression of such numbers.
    """
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
    low = np.floor(place)
    part = place - low
    match method:
        case "lower":
            part = part * 0.0
        case "higher" | "inverted_cdf":
            part = np.where(part > 0, 1.0, 0.0)
        case "nearest":
            low, part = np.rint(place), part * 0.0
        case "midpoint":
            part = np.where(part > 0, 0.5, 0.0)
        case "averaged_inverted_cdf":
            part = np.where(part > 0, 1.0, 0.5)
        case "closest_observation":
            part = np.where((part > 0) | (low % 2 == 0), 1.0, 0.0)
    inside = (place >= 0) & (place < n - 1)
    ends = np.where(place < 0, 0.0, np.maximum(n - 1, 0.0))
    return np.where(inside, low, ends), np.where(inside, part, 0.0)


def _at_counted(
    steps: CallSteps,
    rows: GpuRef,
    counts: GpuRef,
    share: float,
    method: Method,
    dtype: np.dtype[Any],
) -> Operand:
    """A quantile of the first elements of each row, which are sorted."""
    wide = FLOAT32 if dtype in HALVES else dtype
    low, part = _place(cast(counts, _FLOAT64), share, method)
    high = ufunc("minimum", low + 1, rows.shape[-1] - 1.0)
    places = [steps.evaluate(cast(each, INT64))[..., None] for each in (low, high)]
    first, second = (cast(_along(steps, rows, each)[..., 0], wide) for each in places)
    weight = cast(part, wide)
    apart = second - first
    made = where(part < 0.5, first + apart * weight, second - apart * (1 - weight))
    if method == "midpoint":
        made = (first + second) * constant(0.5, wide)
    return where((part == 0) | (first == second), first, where(part == 1, second, made))


def _as_rows(
    steps: CallSteps, ref: GpuRef, axes: tuple[int, ...], kept: tuple[int, ...], n: int
) -> GpuRef:
    """Return a view or a copy whose last axis has the elements of several axes."""
    moved = ref.moveaxis(axes, tuple(range(-len(axes), 0))) if axes else ref[..., None]
    return moved if len(axes) < 2 else steps.contiguous(moved).reshape(*kept, n)


def _along(steps: CallSteps, rows: GpuRef, places: GpuRef) -> GpuRef:
    """Return elements of each row."""
    made = steps.output(places.shape, rows.dtype)
    axes = [
        GatherAxis(extent, made.strides[at], rows.strides[at] if at < rows.ndim - 1 else 0, (step,))
        for at, (extent, step) in enumerate(zip(places.shape, places.strides, strict=True))
    ]
    choose(steps, "gather", made, rows, [(places, rows.ndim - 1)], axes, (), outside="wrap")
    return made


def _with_nan(made: Operand, rows: GpuRef) -> Operand:
    """Return results of sorted rows, NaN for those that end with one."""
    if not is_float(rows.dtype):
        return made
    last: Operand = rows[..., -1]
    return where(ufunc("isnan", last), last, made)


def weights_like(w: Operand, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> Operand:
    """Return weights in a shape that broadcasts to that of the elements."""
    if w.shape == shape:
        return w
    if axes is None:
        raise TypeError("Axis must be specified when shapes of a and weights differ.")
    if w.shape != tuple(shape[at] for at in axes):
        raise ValueError(
            "Shape of weights must be consistent with shape of a along specified axis."
        )
    order = sorted(range(len(axes)), key=axes.__getitem__)
    moved: Any = _NUMPY.transpose(w, order)
    gone = tuple(at for at in range(len(shape)) if at not in axes)
    return broadcast(_NUMPY.expand_dims(moved, gone), shape)


def _at(rows: GpuRef, share: float, method: Method, dtype: np.dtype[Any]) -> Operand:
    """A quantile of each row, which are sorted."""
    n = rows.shape[-1]
    place, fraction = _place(float(n), share, method)
    low, part = int(place), float(fraction)
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
