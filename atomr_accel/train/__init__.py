"""Training that repeats a step instead of losing a run."""

from . import _library_rules  # noqa: F401 - registers the rules
from ._rules import Applied, rule
from ._tape import Tape, checkpoint, custom, differentiate, grad
from ._values import Value, stop_gradient

__all__ = [
    "Applied",
    "Tape",
    "Value",
    "checkpoint",
    "custom",
    "differentiate",
    "grad",
    "rule",
    "stop_gradient",
]
