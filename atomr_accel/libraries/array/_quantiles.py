"""``device.array``'s medians and quantiles, by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ..._dtypes import as_dtype
from ...expressions import Operand, constant
from ...expressions._expression import axes_of, cast, ufunc, where
from ...expressions._promotion import FLOAT32, HALVES
from .._op import D, op
from .._request import Request
from ._sorting import Sorting
from ._steps import Steps, target_of

if TYPE_CHECKING:
    from ...memory import GpuRef
    from ._reductions import Axis

Method = Literal["linear", "lower", "higher", "nearest", "midpoint"]

_METHODS: Final = ("linear", "lower", "higher", "nearest", "midpoint")
_FLOAT64: Final = as_dtype(np.float64)


class Quantiles(Sorting[D]):
    """Medians, quantiles and percentiles: NaN where there is one."""

    @op
    def median(
        self, a: Operand, axis: Axis = None, out: GpuRef | None = None, *, keepdims: bool = False
    ) -> Request[GpuRef]:
        """Medians; as ``numpy.median``.

        Args:
            a: a ref or an expression, of real numbers.
            axis: along which axes; all by default.
            out: where the result goes.
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
            q: which, from 0 to 1; of several the result has them along new first axes.
            axis: along which axes; all by default.
            out: where the result goes.
            method: what is between two elements: ``"linear"``, ``"lower"``, ``"higher"``,
                ``"nearest"`` or ``"midpoint"``.
            keepdims: whether these axes stay, with one element.

        Raises:
            ValueError: no elements, ``q`` out of range, or another method.
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
            q: which, from 0 to 100.
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
        shares = np.true_divide(q, dtype.type(100) if dtype.kind == "f" else 100)
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
        if given.dtype.kind == "b" and method in ("linear", "midpoint") and name != "median":
            raise TypeError("quantiles between booleans, which have no difference; cast them first")
        axes = axes_of(axis, len(given.shape))
        n = math.prod(given.shape[at] for at in axes)
        if not n:
            raise ValueError(f"{name} of no elements")
        kept = tuple(extent for at, extent in enumerate(given.shape) if at not in axes)
        dtype = given.dtype
        between = method in ("linear", "midpoint")
        if dtype.kind in "biu" and between:
            dtype = _FLOAT64
        elif between and not isinstance(q, int | float):  # of Python's no dtype comes
            dtype = as_dtype(np.result_type(dtype, np.asarray(q).dtype))
        if keepdims:
            kept_shape = tuple(1 if at in axes else extent for at, extent in enumerate(given.shape))
        else:
            kept_shape = kept
        shape = (*shares.shape, *kept_shape)

        def build(steps: Steps) -> GpuRef:
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


def _at(rows: GpuRef, share: float, method: Method, dtype: np.dtype[Any]) -> Operand:
    """A quantile of each row, which are sorted."""
    n = rows.shape[-1]
    place = (n - 1) * share
    low = min(math.floor(place), n - 1)
    high = min(low + 1, n - 1)
    part = place - low
    match method:
        case "lower":
            part = 0.0
        case "higher":
            part = float(part > 0)
        case "nearest":
            low, part = round(place), 0.0
        case "midpoint":
            part = 0.5 if part else 0.0
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
    if rows.dtype.kind in "fV":
        last = cast(rows[..., n - 1], wide)
        made = where(ufunc("isnan", last), last, made)
    return cast(made, dtype)
