"""Types of elements in kernels of expressions, and properties of functions of elements."""

from __future__ import annotations

from typing import Final

STORED: Final = {
    "bool": "flag",
    "int8": "i8",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "u64",
    "float16": "h16",
    "bfloat16": "b16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float4_e2m1fn": "e2m1",
    "float32": "float",
    "float64": "double",
    "complex64": "c64",
    "complex128": "c128",
}
"""Types of elements in memory, by dtype."""

SMALL: Final = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"})
"""Dtypes that are floats in registers, and rounded after each function."""

EXACT: Final = frozenset(
    {
        *("negative", "positive", "absolute", "fabs", "sign", "copysign", "conjugate"),
        *("maximum", "minimum", "fmax", "fmin", "floor", "ceil", "trunc", "rint", "frexp:1"),
    }
)
"""Functions whose results need no rounding."""

OF_COMPLEX: Final = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "negative", "positive", "conjugate", "absolute"),
        *("square", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "power", "float_power", "sign"),
        *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite"),
        *("maximum", "minimum", "fmax", "fmin", "real", "imag"),
    }
)

CHEAP: Final = frozenset(
    {
        *("add", "subtract", "multiply", "square", "negative", "positive", "absolute", "fabs"),
        *("maximum", "minimum", "fmax", "fmin", "conjugate", "real", "imag", "sign"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan"),
        *("logical_and", "logical_or", "logical_xor", "logical_not", "invert"),
        *("bitwise_and", "bitwise_or", "bitwise_xor"),
    }
)
"""Functions of few instructions."""

LONG: Final = 8
"""Cheap functions that take as long as another one, from where on results are kept."""

OVER: Final = frozenset({"float16", "bfloat16", "float32"})
"""Dtypes of quotients for which the reciprocal of a common divisor may be used."""


def register(dtype: str) -> str:
    """Return the type of elements of a dtype in registers."""
    if dtype in SMALL:
        return "float"
    return "bool" if dtype == "bool" else STORED[dtype]
