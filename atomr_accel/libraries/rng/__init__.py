"""cuRAND: random and quasi-random numbers."""

from ._facade import Rng
from ._generator import Generator
from ._state import GeneratorStatistics

__all__ = ["Generator", "GeneratorStatistics", "Rng"]
