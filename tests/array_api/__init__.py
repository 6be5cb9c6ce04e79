"""A synchronous namespace of the Array API standard, for the standard's own tests.

    ARRAY_API_TESTS_MODULE=tests.array_api pytest array_api_tests

The device is in a trio thread of its own; each call waits for it. It shows that the pieces exist,
and is not meant for programs: a program awaits, or collects calls in batches.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ._array import Array, array_of, evaluated, on_device, refs_of, unwrapped
from ._functions import *  # noqa: F403 - the standard's names

__array_api_version__: Final = "2024.12"
__version__: Final = "of the working tree"

e: Final = math.e
inf: Final = math.inf
nan: Final = math.nan
pi: Final = math.pi
newaxis: Final = None

bool: Final = np.dtype(np.bool_)  # noqa: A001
int8: Final = np.dtype(np.int8)
int16: Final = np.dtype(np.int16)
int32: Final = np.dtype(np.int32)
int64: Final = np.dtype(np.int64)
uint8: Final = np.dtype(np.uint8)
uint16: Final = np.dtype(np.uint16)
uint32: Final = np.dtype(np.uint32)
uint64: Final = np.dtype(np.uint64)
float32: Final = np.dtype(np.float32)
float64: Final = np.dtype(np.float64)
complex64: Final = np.dtype(np.complex64)
complex128: Final = np.dtype(np.complex128)

_UNARY: Final = {
    **{
        name: name
        for name in (
            *("cos", "cosh", "sin", "sinh", "tan", "tanh", "exp", "expm1", "log", "log1p", "log2"),
            *("log10", "sqrt", "square", "sign", "signbit", "negative", "positive", "isnan"),
            *("isfinite", "isinf", "ceil", "floor", "trunc", "logical_not", "reciprocal"),
        )
    },
    "abs": "absolute",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
    "bitwise_invert": "invert",
    "conj": "conjugate",
    "round": "rint",
}
_BINARY: Final = {
    **{
        name: name
        for name in (
            *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "equal"),
            *("not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and"),
            *("logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum"),
            *("minimum", "hypot", "copysign", "logaddexp", "nextafter"),
        )
    },
    "atan2": "arctan2",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "pow": "power",
}
_AS_THEY_ARE: Final = frozenset(["ceil", "floor", "trunc", "round"])
"""Integers are their own results, with unchanged dtype."""


def _unary(name: str, numpy_name: str) -> Any:
    function: Any = getattr(np, numpy_name)

    def call(x: Array, /) -> Array:
        if name in _AS_THEY_ARE and x.dtype.kind in "iu":
            return array_of(on_device("copy", x._ref))
        return evaluated(function(x._ref))

    call.__name__ = name
    return call


def _binary(name: str, numpy_name: str) -> Any:
    function: Any = getattr(np, numpy_name)

    def call(x1: Array, x2: Array, /) -> Array:
        return evaluated(function(unwrapped(x1), unwrapped(x2)))

    call.__name__ = name
    return call


for _name, _numpy in _UNARY.items():
    globals()[_name] = _unary(_name, _numpy)
for _name, _numpy in _BINARY.items():
    globals()[_name] = _binary(_name, _numpy)

__all__ = ["Array", "refs_of"]
