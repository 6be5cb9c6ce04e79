"""Elementwise functions of the Array API standard."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...arrays import GpuRef
from ...arrays.expressions import Operand, Value
from ...ops import D, Request, op_family
from ..array.steps import ArrayPart

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

_ROUNDED: Final = frozenset(("ceil", "floor", "trunc"))
"""Functions that leave integers unchanged."""


@op_family
def _unary(self: StandardElementwise[Any], name: str, x: Operand, /) -> Request[GpuRef]:
    given = self._operand(x)
    if name in _ROUNDED and given.dtype.kind in "iu":
        return self._evaluated(given)
    return self._evaluated(self._made(getattr(_NUMPY, name), given))


@op_family
def _binary(self: StandardElementwise[Any], name: str, x1: Value, x2: Value, /) -> Request[GpuRef]:
    return self._evaluated(self._made(getattr(_NUMPY, name), x1, x2))


class StandardElementwise(ArrayPart[D]):
    """Functions of each element, of refs, expressions and numbers."""

    abs: Final = _unary.like("Compute ``numpy.abs`` of each element.")
    acos: Final = _unary.like("Compute ``numpy.acos`` of each element.")
    acosh: Final = _unary.like("Compute ``numpy.acosh`` of each element.")
    asin: Final = _unary.like("Compute ``numpy.asin`` of each element.")
    asinh: Final = _unary.like("Compute ``numpy.asinh`` of each element.")
    atan: Final = _unary.like("Compute ``numpy.atan`` of each element.")
    atanh: Final = _unary.like("Compute ``numpy.atanh`` of each element.")
    bitwise_invert: Final = _unary.like("Compute ``numpy.bitwise_invert`` of each element.")
    ceil: Final = _unary.like("Compute ``numpy.ceil`` of each element.")
    conj: Final = _unary.like("Compute ``numpy.conj`` of each element.")
    cos: Final = _unary.like("Compute ``numpy.cos`` of each element.")
    cosh: Final = _unary.like("Compute ``numpy.cosh`` of each element.")
    exp: Final = _unary.like("Compute ``numpy.exp`` of each element.")
    expm1: Final = _unary.like("Compute ``numpy.expm1`` of each element.")
    floor: Final = _unary.like("Compute ``numpy.floor`` of each element.")
    isfinite: Final = _unary.like("Compute ``numpy.isfinite`` of each element.")
    isinf: Final = _unary.like("Compute ``numpy.isinf`` of each element.")
    isnan: Final = _unary.like("Compute ``numpy.isnan`` of each element.")
    log: Final = _unary.like("Compute ``numpy.log`` of each element.")
    log1p: Final = _unary.like("Compute ``numpy.log1p`` of each element.")
    log2: Final = _unary.like("Compute ``numpy.log2`` of each element.")
    log10: Final = _unary.like("Compute ``numpy.log10`` of each element.")
    logical_not: Final = _unary.like("Compute ``numpy.logical_not`` of each element.")
    negative: Final = _unary.like("Compute ``numpy.negative`` of each element.")
    positive: Final = _unary.like("Compute ``numpy.positive`` of each element.")
    reciprocal: Final = _unary.like("Compute ``numpy.reciprocal`` of each element.")
    sign: Final = _unary.like("Compute ``numpy.sign`` of each element.")
    signbit: Final = _unary.like("Compute ``numpy.signbit`` of each element.")
    sin: Final = _unary.like("Compute ``numpy.sin`` of each element.")
    sinh: Final = _unary.like("Compute ``numpy.sinh`` of each element.")
    square: Final = _unary.like("Compute ``numpy.square`` of each element.")
    sqrt: Final = _unary.like("Compute ``numpy.sqrt`` of each element.")
    tan: Final = _unary.like("Compute ``numpy.tan`` of each element.")
    tanh: Final = _unary.like("Compute ``numpy.tanh`` of each element.")
    trunc: Final = _unary.like("Compute ``numpy.trunc`` of each element.")
    add: Final = _binary.like("Compute ``numpy.add`` of each element.")
    atan2: Final = _binary.like("Compute ``numpy.atan2`` of each element.")
    bitwise_and: Final = _binary.like("Compute ``numpy.bitwise_and`` of each element.")
    bitwise_left_shift: Final = _binary.like(
        "Compute ``numpy.bitwise_left_shift`` of each element."
    )
    bitwise_or: Final = _binary.like("Compute ``numpy.bitwise_or`` of each element.")
    bitwise_right_shift: Final = _binary.like(
        "Compute ``numpy.bitwise_right_shift`` of each element."
    )
    bitwise_xor: Final = _binary.like("Compute ``numpy.bitwise_xor`` of each element.")
    copysign: Final = _binary.like("Compute ``numpy.copysign`` of each element.")
    divide: Final = _binary.like("Compute ``numpy.divide`` of each element.")
    equal: Final = _binary.like("Compute ``numpy.equal`` of each element.")
    floor_divide: Final = _binary.like("Compute ``numpy.floor_divide`` of each element.")
    greater: Final = _binary.like("Compute ``numpy.greater`` of each element.")
    greater_equal: Final = _binary.like("Compute ``numpy.greater_equal`` of each element.")
    hypot: Final = _binary.like("Compute ``numpy.hypot`` of each element.")
    less: Final = _binary.like("Compute ``numpy.less`` of each element.")
    less_equal: Final = _binary.like("Compute ``numpy.less_equal`` of each element.")
    logaddexp: Final = _binary.like("Compute ``numpy.logaddexp`` of each element.")
    logical_and: Final = _binary.like("Compute ``numpy.logical_and`` of each element.")
    logical_or: Final = _binary.like("Compute ``numpy.logical_or`` of each element.")
    logical_xor: Final = _binary.like("Compute ``numpy.logical_xor`` of each element.")
    maximum: Final = _binary.like("Compute ``numpy.maximum`` of each element.")
    minimum: Final = _binary.like("Compute ``numpy.minimum`` of each element.")
    multiply: Final = _binary.like("Compute ``numpy.multiply`` of each element.")
    nextafter: Final = _binary.like("Compute ``numpy.nextafter`` of each element.")
    not_equal: Final = _binary.like("Compute ``numpy.not_equal`` of each element.")
    pow: Final = _binary.like("Compute ``numpy.pow`` of each element.")
    remainder: Final = _binary.like("Compute ``numpy.remainder`` of each element.")
    subtract: Final = _binary.like("Compute ``numpy.subtract`` of each element.")
