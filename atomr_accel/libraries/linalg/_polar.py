"""Scaling for polar decompositions, which give singular values faster than QR iterations.

A polar decomposition begins with a norm, which overflows or underflows for very large or very small
numbers. With infinities or NaN its iteration may not end. It therefore gets matrices whose largest
element is near one, and identities for matrices that cannot be scaled so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ._steps import INT32, real_of
from .wire._messages import NOT_FINITE

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ._steps import LinalgSteps

_FARTHEST: Final = {"float32": 120, "float64": 1000}
"""Largest change of exponents: no scaled number is infinite, and squares stay normal."""


class Scaled(NamedTuple):
    """Matrices for a polar decomposition.

    Attributes:
        matrices: times powers of two.
        largest: the size of the largest element that each was given with, of shape (..., 1, 1).
    """

    matrices: GpuRef
    largest: GpuRef

    def values(self, s: GpuRef) -> Operand:
        """Return the singular values of the original matrices, from those of ``matrices``."""
        largest = self.largest.reshape(self.largest.shape[:-1])
        return where(largest > 0, s / _power_of(largest), constant(0, s.dtype))

    def told(self, info: GpuRef) -> Operand:
        """Return LAPACK's info for the original matrices."""
        largest = self.largest.reshape(info.shape)
        return where(ufunc("isfinite", largest), info, constant(NOT_FINITE, INT32))


def scaled(steps: LinalgSteps, given: GpuRef) -> Scaled:
    """Matrices of which there is at least one element each, as a polar decomposition takes them."""
    dtype, size = given.dtype, abs(given)
    most: Any = size
    largest = steps.evaluate(most.max((-2, -1), keepdims=True))
    usable: Any = ufunc("isfinite", largest) & (largest > 0)
    extents = given.shape[-2:]
    one = cast(index(extents, 0) == index(extents, 1), dtype)
    matrices = where(usable, given * cast(_power_of(largest), dtype), one)
    return Scaled(steps.evaluate(matrices), largest)


def _power_of(largest: GpuRef) -> Operand:
    """The power of two that brings numbers of that size near one."""
    dtype = real_of(largest.dtype)
    far = constant(_FARTHEST[dtype.name], INT32)
    exponent: Any = ufunc("maximum", ufunc("minimum", ufunc("frexp:1", largest), far), -far)
    return ufunc("ldexp", constant(1, dtype), -exponent)
