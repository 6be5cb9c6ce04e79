"""Operators, with NumPy's names if it has them, and compute types."""

from __future__ import annotations

from typing import Final

UNARY: Final = {
    "identity": "IDENTITY",
    "sqrt": "SQRT",
    "relu": "RELU",
    "conjugate": "CONJ",
    "reciprocal": "RCP",
    "sigmoid": "SIGMOID",
    "tanh": "TANH",
    "exp": "EXP",
    "log": "LOG",
    "absolute": "ABS",
    "negative": "NEG",
    "sin": "SIN",
    "cos": "COS",
    "tan": "TAN",
    "sinh": "SINH",
    "cosh": "COSH",
    "arcsin": "ASIN",
    "arccos": "ACOS",
    "arctan": "ATAN",
    "arcsinh": "ASINH",
    "arccosh": "ACOSH",
    "arctanh": "ATANH",
    "ceil": "CEIL",
    "floor": "FLOOR",
    "mish": "MISH",
    "swish": "SWISH",
    "softplus": "SOFT_PLUS",
    "softsign": "SOFT_SIGN",
}
"""Operators for each element, and the vendor's names for them."""

COMPLEX_UNARY: Final = ("identity", "conjugate")
"""Operators for complex numbers."""

BINARY: Final = {"add": "ADD", "multiply": "MUL", "maximum": "MAX", "minimum": "MIN"}
"""Operators that join two operands, and the vendor's names for them."""

REDUCTIONS: Final = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""Reductions, and the operators by which they join elements."""

TF32: Final = "TF32"

COMPUTE: Final = {
    "float16": ("32F",),
    "bfloat16": ("32F",),
    "float32": ("32F", TF32, "3XTF32", "16F", "16BF"),
    "float64": ("64F", "32F"),
    "complex64": ("32F", TF32, "3XTF32"),
    "complex128": ("64F", "32F"),
}
"""The compute types of a dtype, the default one first."""
