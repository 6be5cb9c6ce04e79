"""The distributions: how many words each takes, and which generators can make it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from ...._dtypes import DTYPES

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
WHOLE: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

BLOCK: Final = 4
"""Words that generators make at once."""

MOST_DIMENSIONS: Final = 20000
"""For how many dimensions cuRAND has direction vectors."""


@dataclass(frozen=True, slots=True)
class GeneratorKind:
    """A generator.

    Attributes:
        bits: of its words.
        quasi: whether it makes quasi-random points.
        fused: whether its words are made where they are used, rather than by cuRAND.
        orderings: how its words may be ordered in memory.
    """

    bits: int = 32
    quasi: bool = False
    fused: bool = False
    orderings: tuple[str, ...] = ("default",)


KINDS: Final = {
    # The legacy ordering is the default one, and the best one too.
    "philox4_32_10": GeneratorKind(fused=True, orderings=("default", "best", "legacy")),
    "xorwow": GeneratorKind(orderings=("default", "best", "seeded", "legacy", "dynamic")),
    "mrg32k3a": GeneratorKind(orderings=("default", "best", "legacy", "dynamic")),
    "mtgp32": GeneratorKind(orderings=("default", "best", "legacy", "dynamic")),
    "mt19937": GeneratorKind(orderings=("default", "legacy")),
    "sobol32": GeneratorKind(quasi=True),
    "scrambled_sobol32": GeneratorKind(quasi=True),
    "sobol64": GeneratorKind(bits=64, quasi=True),
    "scrambled_sobol64": GeneratorKind(bits=64, quasi=True),
}
"""The generators by cuRAND's names for them."""


@dataclass(frozen=True, slots=True)
class WordUse:
    """The use of words by a distribution.

    Attributes:
        wide: True if every value takes 64 bits, regardless of its type.
        until_accepted: True if the number of words for a value varies.
    """

    wide: bool = False
    until_accepted: bool = False

    def values(self, dtype: str) -> int:
        """Values that a block of words gives."""
        if self.until_accepted:
            return 1
        return 2 if self.wide or DTYPES[dtype].itemsize == 8 else 4


DISTRIBUTIONS: Final = {
    "uniform": WordUse(),
    "normal": WordUse(),
    "lognormal": WordUse(),
    "exponential": WordUse(),
    "cauchy": WordUse(),
    "integers32": WordUse(),
    "integers64": WordUse(wide=True),
    "search": WordUse(wide=True),
    "geometric": WordUse(wide=True),
    "gamma": WordUse(until_accepted=True),
    "beta": WordUse(until_accepted=True),
    "poisson": WordUse(until_accepted=True),
    "negative_binomial": WordUse(until_accepted=True),
}
"""The distributions as executors know them."""


def integer_distribution(span: int, dtype: str) -> str:
    """The distribution for integers of a dtype out of ``span`` many."""
    narrow = span <= 2**32 and DTYPES[dtype].itemsize <= 4
    return "integers32" if narrow else "integers64"


def digits(dtype: str) -> int:
    """Bits of a uniform number of a dtype in [0, 1): as many as it holds exactly."""
    return {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}[dtype]


@cache
def bounds(dtype: str) -> tuple[int, int]:
    """The least and the largest integer of a dtype."""
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(DTYPES[dtype])
    return int(info.min), int(info.max)
