"""Expressions: what refs, operators and NumPy's functions make, and a device computes."""

from ._expression import Expression, broadcast, cast, constant, index
from ._functions import Number, Operand, Value
from ._methods import ELSEWHERE
from ._parts import apart, joined, parts_of

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
]
