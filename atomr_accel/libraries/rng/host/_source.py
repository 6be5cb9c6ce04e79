"""The RNG lane's kernels: where they are, what they are called, and their arguments."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ...host._device_code import C_TYPES, CudaSource

if TYPE_CHECKING:
    from ..wire._messages import Law

SOURCE: Final = CudaSource(__package__, "draws.cu")

NAMES: Final = {
    "uniform": "Uniform",
    "normal": "Normal",
    "lognormal": "LogNormal",
    "exponential": "Exponential",
    "cauchy": "Cauchy",
    "integers32": "Integers32",
    "integers64": "Integers64",
    "search": "Search",
    "gamma": "Gamma",
    "beta": "Beta",
    "poisson": "Poisson",
}
"""What a distribution is called in the kernels."""

ROWS: Final = {16: "Wide", 8: "u64", 4: "u32", 2: "unsigned short", 1: "unsigned char"}
"""Types in which rows are copied, by their size."""


def type_of(law: Law) -> str:
    """A distribution as a type of the kernels."""
    return f"{NAMES[law.name]}<{C_TYPES[law.dtype]}>"


def parameters(law: Law, table: int = 0) -> bytes:
    """``Params`` for a distribution.

    Args:
        law: the distribution.
        table: the pointer to its table.
    """
    a, b = (*law.floats, 0.0, 0.0)[:2]
    words = 2**32 if law.name == "integers32" else 2**64
    biased = (words - law.span) % law.span if law.span else 0
    return struct.pack("<2d5Q", a, b, law.low, law.span % words, biased, law.extent, table)
