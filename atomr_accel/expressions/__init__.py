"""Expressions: what refs, operators and NumPy's functions make, and a device computes."""

from ._expression import Expression, broadcast, cast, constant, index
from ._functions import Number, Operand, Value

__all__ = ["Expression", "Number", "Operand", "Value", "broadcast", "cast", "constant", "index"]
