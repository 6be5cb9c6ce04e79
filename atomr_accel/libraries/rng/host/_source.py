"""The RNG lane's kernels: their source, their names, and their arguments."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ....executors.device_code import C_TYPES, CudaSource

if TYPE_CHECKING:
    from ..wire._messages import Distribution

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
    "geometric": "Geometric",
    "gamma": "Gamma",
    "beta": "Beta",
    "poisson": "Poisson",
    "negative_binomial": "NegativeBinomial",
}
"""Names of distributions in the kernels."""

ROWS: Final = {16: "Wide", 8: "u64", 4: "u32", 2: "unsigned short", 1: "unsigned char"}
"""Types in which rows are copied, by their size."""


def type_of(distribution: Distribution) -> str:
    """A distribution as a type of the kernels."""
    return f"{NAMES[distribution.name]}<{C_TYPES[distribution.dtype]}>"


def parameters(distribution: Distribution, table: int = 0) -> bytes:
    """``Params`` for a distribution."""
    a, b = (*distribution.floats, 0.0, 0.0)[:2]
    words = 2**32 if distribution.name == "integers32" else 2**64
    biased = (words - distribution.span) % distribution.span if distribution.span else 0
    return struct.pack(
        "<2d5Q",
        a,
        b,
        distribution.low,
        distribution.span % words,
        biased,
        distribution.extent,
        table,
    )
