"""Expressions: what refs, operators and NumPy's functions make, and a device computes."""

from ._methods import ELSEWHERE
from ._parts import apart, joined, parts_of
from ._products import sum_of_products
from .expression import Expression, broadcast, cast, constant, index
from .functions import Number, Operand, Value

__all__ = [
    "ELSEWHERE",
    "Expression",
    "Number",
    "Operand",
    "Value",
    "apart",
    "broadcast",
    "cast",
    "constant",
    "index",
    "joined",
    "parts_of",
    "sum_of_products",
]
