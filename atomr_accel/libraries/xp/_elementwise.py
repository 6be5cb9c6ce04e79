"""Elementwise functions of the Array API standard."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...arrays import GpuRef
from ...arrays.expressions import Operand, Value
from ...ops import D, Request, op, op_like
from ..array.steps import ArrayPart

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

_ROUNDED: Final = frozenset(("ceil", "floor", "trunc"))
"""Functions that leave integers unchanged."""
_NAMES: Final[dict[str, str]] = {}
"""NumPy's names of the functions that have others there."""


def _unary(self: StandardElementwise[Any], name: str, x: Operand, /) -> Request[GpuRef]:
    given = self._operand(x)
    if name in _ROUNDED and given.dtype.kind in "iu":
        return self._evaluated(given)
    return self._evaluated(self._made(getattr(_NUMPY, _NAMES.get(name, name)), given))


def _binary(self: StandardElementwise[Any], name: str, x1: Value, x2: Value, /) -> Request[GpuRef]:
    return self._evaluated(self._made(getattr(_NUMPY, _NAMES.get(name, name)), x1, x2))


def _told(name: str, numpy: str | None) -> str:
    if numpy is not None:
        _NAMES[name] = numpy
    return f"Compute ``numpy.{numpy or name}`` of each element."


def _of_one(name: str, numpy: str | None = None) -> op[[Operand], GpuRef]:
    return op_like(_unary, name, _told(name, numpy))


def _of_two(name: str, numpy: str | None = None) -> op[[Value, Value], GpuRef]:
    return op_like(_binary, name, _told(name, numpy))


class StandardElementwise(ArrayPart[D]):
    """Functions of each element, of refs, expressions and numbers."""

    abs: Final = _of_one("abs", "absolute")
    acos: Final = _of_one("acos", "arccos")
    acosh: Final = _of_one("acosh", "arccosh")
    asin: Final = _of_one("asin", "arcsin")
    asinh: Final = _of_one("asinh", "arcsinh")
    atan: Final = _of_one("atan", "arctan")
    atanh: Final = _of_one("atanh", "arctanh")
    bitwise_invert: Final = _of_one("bitwise_invert", "invert")
    ceil: Final = _of_one("ceil")
    conj: Final = _of_one("conj", "conjugate")
    cos: Final = _of_one("cos")
    cosh: Final = _of_one("cosh")
    exp: Final = _of_one("exp")
    expm1: Final = _of_one("expm1")
    floor: Final = _of_one("floor")
    isfinite: Final = _of_one("isfinite")
    isinf: Final = _of_one("isinf")
    isnan: Final = _of_one("isnan")
    log: Final = _of_one("log")
    log1p: Final = _of_one("log1p")
    log2: Final = _of_one("log2")
    log10: Final = _of_one("log10")
    logical_not: Final = _of_one("logical_not")
    negative: Final = _of_one("negative")
    positive: Final = _of_one("positive")
    reciprocal: Final = _of_one("reciprocal")
    sign: Final = _of_one("sign")
    signbit: Final = _of_one("signbit")
    sin: Final = _of_one("sin")
    sinh: Final = _of_one("sinh")
    square: Final = _of_one("square")
    sqrt: Final = _of_one("sqrt")
    tan: Final = _of_one("tan")
    tanh: Final = _of_one("tanh")
    trunc: Final = _of_one("trunc")
    add: Final = _of_two("add")
    atan2: Final = _of_two("atan2", "arctan2")
    bitwise_and: Final = _of_two("bitwise_and")
    bitwise_left_shift: Final = _of_two("bitwise_left_shift", "left_shift")
    bitwise_or: Final = _of_two("bitwise_or")
    bitwise_right_shift: Final = _of_two("bitwise_right_shift", "right_shift")
    bitwise_xor: Final = _of_two("bitwise_xor")
    copysign: Final = _of_two("copysign")
    divide: Final = _of_two("divide")
    equal: Final = _of_two("equal")
    floor_divide: Final = _of_two("floor_divide")
    greater: Final = _of_two("greater")
    greater_equal: Final = _of_two("greater_equal")
    hypot: Final = _of_two("hypot")
    less: Final = _of_two("less")
    less_equal: Final = _of_two("less_equal")
    logaddexp: Final = _of_two("logaddexp")
    logical_and: Final = _of_two("logical_and")
    logical_or: Final = _of_two("logical_or")
    logical_xor: Final = _of_two("logical_xor")
    maximum: Final = _of_two("maximum")
    minimum: Final = _of_two("minimum")
    multiply: Final = _of_two("multiply")
    nextafter: Final = _of_two("nextafter")
    not_equal: Final = _of_two("not_equal")
    pow: Final = _of_two("pow", "power")
    remainder: Final = _of_two("remainder")
    subtract: Final = _of_two("subtract")
