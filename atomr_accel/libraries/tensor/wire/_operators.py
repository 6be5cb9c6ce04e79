"""Operators, under NumPy's names where it has them, and compute types."""

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
"""What may be done to each element, and what the vendor calls it."""

COMPLEX_UNARY: Final = ("identity", "conjugate")
"""Those for complex numbers."""

BINARY: Final = {"add": "ADD", "multiply": "MUL", "maximum": "MAX", "minimum": "MIN"}
"""What joins two operands, and what the vendor calls it."""

REDUCTIONS: Final = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""Reductions, and by what they join elements."""

COMPUTE: Final = {
    "float16": ("32F",),
    "bfloat16": ("32F",),
    "float32": ("32F", "TF32", "3XTF32", "16F", "16BF"),
    "float64": ("64F", "32F"),
    "complex64": ("32F", "TF32", "3XTF32"),
    "complex128": ("64F", "32F"),
}
"""The compute types of a dtype, the default one first."""
