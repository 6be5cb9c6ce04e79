"""``device.array``'s weighted means, covariances, and quantiles without NaN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..._dtypes import as_dtype, is_inexact
from ...arrays.expressions import Operand, broadcast, cast, constant
from ...arrays.expressions.expression import ufunc
from ...arrays.expressions.promotion import common
from ...ops import D, Request, op
from ._counting import Counting
from ._quantiles import Quantiles, weights_like
from .steps import CallSteps

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ._reductions import Axis

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

_FLOAT64: Final = as_dtype(np.float64)


class Moments(Quantiles[D], Counting[D]):
    """Weighted means and covariances."""

    @op
    def average(
        self,
        a: Operand,
        axis: Axis = None,
        weights: Operand | None = None,
        returned: bool = False,
        *,
        keepdims: bool = False,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Compute weighted means; as ``numpy.average``.

        Weights whose sum is 0, an error in NumPy, give NaN or infinities.
        """
        x = self._operand(a, "a")
        axes = axis if axis is None else normalize_axis_tuple(axis, len(x.shape))
        if weights is None:
            made: Operand = _NUMPY.mean(x, axis=axes, keepdims=keepdims)
            count = math.prod(x.shape) / max(1, math.prod(made.shape))
            total: Operand = constant(count, made.dtype)
        else:
            w = weights_like(self._operand(weights, "weights"), x.shape, axes)
            kinds = (x.dtype, w.dtype)
            dtype = common(kinds if is_inexact(x.dtype) else (*kinds, _FLOAT64))
            total = w.sum(axes, dtype, keepdims=keepdims)
            made = cast(x, dtype) * cast(w, dtype)
            made = made.sum(axes, keepdims=keepdims) / total
        total = broadcast(total, made.shape)

        def build(steps: CallSteps) -> GpuRef | tuple[GpuRef, GpuRef]:
            if not returned:
                return steps.evaluate(made)
            first, second = steps.evaluate_all([made, total])
            return first, second

        return self._several("average", build)

    @op
    def cov(
        self,
        m: Operand,
        y: Operand | None = None,
        rowvar: bool = True,
        bias: bool = False,
        ddof: int | None = None,
        fweights: Operand | None = None,
        aweights: Operand | None = None,
        *,
        dtype: DTypeLike | None = None,
    ) -> Request[GpuRef]:
        """Compute covariances of variables; as ``numpy.cov``.

        Weights are not checked: results of negative ones, or of those whose sum is 0, mean nothing.
        """
        build = self._covariance(m, y, rowvar, bias, ddof, fweights, aweights, dtype)
        return self._several("cov", build)

    @op
    def corrcoef(
        self,
        x: Operand,
        y: Operand | None = None,
        rowvar: bool = True,
        *,
        dtype: DTypeLike | None = None,
    ) -> Request[GpuRef]:
        """Compute correlation coefficients of variables; as ``numpy.corrcoef``, and as ``cov``."""
        covariance = self._covariance(x, y, rowvar, False, None, None, None, dtype)

        def build(steps: CallSteps) -> GpuRef:
            c = covariance(steps)
            if not c.ndim:
                return steps.evaluate(c / c)
            spread = steps.evaluate(ufunc("sqrt", c.diagonal().real))
            scaled: Operand = c / spread[:, None] / spread[None, :]
            if c.dtype.kind != "c":
                return steps.evaluate(scaled.clip(-1, 1))
            made = steps.evaluate(scaled)
            real, imag = made.real.clip(-1, 1), made.imag.clip(-1, 1)
            return steps.evaluate(cast(real + imag * constant(1j, c.dtype), c.dtype))

        return self._several("corrcoef", build)

    def _covariance(
        self,
        m: Operand,
        y: Operand | None,
        rowvar: bool,
        bias: bool,
        ddof: int | None,
        fweights: Operand | None,
        aweights: Operand | None,
        dtype: DTypeLike | None,
    ) -> Any:
        given = [self._operand(m, "m")] + ([] if y is None else [self._operand(y, "y")])
        if ddof is not None and ddof != int(ddof):
            raise ValueError("ddof must be integer")
        for name, each in zip("my", given, strict=False):
            if len(each.shape) > 2:
                raise ValueError(f"{name} has more than 2 dimensions")
        kinds = (*(each.dtype for each in given), _FLOAT64)
        kind = common(kinds) if dtype is None else as_dtype(dtype)
        rows = [_variables(each, rowvar) for each in given]
        n = rows[0].shape[1]
        if any(each.shape[1] != n for each in rows):
            raise ValueError(f"y must have {n} observations, as m has, not {rows[-1].shape[1]}")
        for name, w in (("fweights", fweights), ("aweights", aweights)):
            if w is not None and self._operand(w, name).shape != (n,):
                raise ValueError(f"{name} must have shape ({n},), not {w.shape}")
        if fweights is not None and fweights.dtype.kind not in "iu":
            raise TypeError("fweights must be integer")
        less = (0 if bias else 1) if ddof is None else ddof
        count = sum(each.shape[0] for each in rows)

        def build(steps: CallSteps) -> GpuRef:
            x = steps.output((count, n), kind)
            start = 0
            for each in rows:
                steps.evaluate(cast(each, kind), x[start : start + each.shape[0]])
                start += each.shape[0]
            weights = [cast(each, _FLOAT64) for each in (fweights, aweights) if each is not None]
            w = steps.evaluate(math.prod(weights[1:], start=weights[0])) if weights else None
            if w is None:
                total: Any = float(n)
                free: Any = max(total - less, 0.0)
                mean: Operand = x.mean(1, keepdims=True)
            else:
                total = w.sum()
                taken_off = less if aweights is None else less * (w * weights[-1]).sum() / total
                free = ufunc("maximum", total - taken_off, 0.0)
                mean = (x * w).sum(1, keepdims=True) / total
            apart = steps.evaluate(cast(x - mean, kind))
            weighted = apart if w is None else steps.evaluate(cast(apart * w, kind))
            other = weighted.T if kind.kind != "c" else ufunc("conjugate", weighted.T)
            with np.errstate(divide="ignore"):
                scale = 1.0 / (np.float64(free) if isinstance(free, float) else free)
            return steps.evaluate(cast((apart @ other) * scale, kind)).squeeze()

        return build


def _variables(x: Operand, rowvar: bool) -> Operand:
    """Return a matrix with a row for each variable."""
    made: Operand = _NUMPY.expand_dims(x, tuple(range(2 - len(x.shape))))
    return made if rowvar or len(x.shape) < 2 else _NUMPY.transpose(made)
