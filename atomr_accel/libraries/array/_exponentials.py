"""``device.array``'s sums of exponentials under SciPy's names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._dtypes import DTYPES
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.expression import ufunc, where
from ...arrays.expressions.promotion import common
from ...ops import D, Request, op
from .steps import ArrayPart, CallSteps

if TYPE_CHECKING:
    from ...arrays import GpuRef

Axis = int | tuple[int, ...] | None


class Exponentials(ArrayPart[D]):
    """Sums of exponentials that neither overflow nor lose small terms.

    Integers and bools count as float64. Complex numbers are a ``TypeError``.
    """

    @op
    def logsumexp(
        self,
        a: Operand,
        axis: Axis = None,
        b: Operand | None = None,
        keepdims: bool = False,
        return_sign: bool = False,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Logarithm of a sum of exponentials; as ``scipy.special.logsumexp``.

        ``b`` are factors of the exponentials, in a shape that broadcasts. A term with the factor 0
        adds nothing, even if its element is not finite. With ``return_sign`` the
        result is the logarithm of the sum's size, and its sign; otherwise a negative sum is NaN.
        """
        x: Any = self._real(a, "a")
        if b is None:
            top = _finite(x.max(axis, keepdims=True, initial=-math.inf))
            first = x == top
            ties: Any = cast(first, x.dtype)
            many = ties.sum(axis, keepdims=True)
            rest = where(first, 0.0, ufunc("exp", x - top)).sum(axis, keepdims=True)
            # The largest terms are 1, so what they add is known exactly.
            near = ufunc("log1p", rest / where(many > 0, many, 1.0)) + ufunc("log", many)
            log = where(many > 0, near, ufunc("log", rest)) + top
            sign: Any = ufunc("sign", many + rest)
        else:
            factors: Any = self._real(b, "b")
            dtype = common((x.dtype, factors.dtype))
            x, factors = cast(x, dtype), cast(factors, dtype)
            used = where(factors != 0, x, -math.inf)
            top = _finite(used.max(axis, keepdims=True, initial=-math.inf))
            total: Any = (factors * ufunc("exp", used - top)).sum(axis, keepdims=True)
            log = ufunc("log", abs(total) if return_sign else total) + top
            sign = ufunc("sign", total)
        if not keepdims:
            gone = tuple(range(len(log.shape))) if axis is None else axis
            log, sign = log.squeeze(gone), sign.squeeze(gone)
        if not return_sign:
            alone: Any = self._evaluated(log)
            return alone  # type: ignore[no-any-return]

        def build(steps: CallSteps) -> tuple[GpuRef, GpuRef]:
            found, signs = steps.evaluate_all([log, sign])
            return found, signs

        return self._several("logsumexp", build)

    @op
    def softmax(self, x: Operand, axis: Axis = None) -> Request[GpuRef]:
        """Exponentials divided by their sum; as ``scipy.special.softmax``.

        The sum is over all elements, unless ``axis`` is given. ``device.dnn.softmax`` is the
        vendor's, over one axis.
        """
        given: Any = self._real(x, "x")
        powers: Any = ufunc("exp", given - given.max(axis, keepdims=True, initial=-math.inf))
        return self._evaluated(powers / powers.sum(axis, keepdims=True))

    @op
    def log_softmax(self, x: Operand, axis: Axis = None) -> Request[GpuRef]:
        """Logarithms of ``softmax``; as ``scipy.special.log_softmax``."""
        given: Any = self._real(x, "x")
        less: Any = given - _finite(given.max(axis, keepdims=True, initial=-math.inf))
        powers: Any = ufunc("exp", less)
        return self._evaluated(less - ufunc("log", powers.sum(axis, keepdims=True)))

    def _real(self, x: Operand, name: str) -> Operand:
        """Return an argument as floats."""
        given = self._operand(x, name)
        if given.dtype.kind == "c":
            raise TypeError(f"{name} must be real numbers, not {np.dtype(given.dtype).name}")
        return cast(given, DTYPES["float64"]) if given.dtype.kind in "biu" else given


def _finite(top: Operand) -> Any:
    """Return the largest elements, and zeros for those that are not finite."""
    return where(ufunc("isfinite", top), top, 0.0)
