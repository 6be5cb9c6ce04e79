"""The functions of cuRAND in use (``curand.h``), and its generators.

Only words are taken from cuRAND, not its distributions. The number of words that those use differs
between generators, so a sequence could not be resumed at an offset after them.
For the same reason quasi-random sequences are made from its direction vectors, which
define them at every index.
"""

from __future__ import annotations

from typing import Final

PROTOTYPES: Final = {
    "curandGetVersion": "int*",
    "curandCreateGenerator": "ptr* int",
    "curandDestroyGenerator": "ptr",
    "curandSetStream": "ptr ptr",
    "curandSetPseudoRandomGeneratorSeed": "ptr u64",
    "curandSetGeneratorOffset": "ptr u64",
    "curandSetGeneratorOrdering": "ptr int",
    "curandGenerate": "ptr ptr size",
    "curandGetDirectionVectors32": "ptr* int",
    "curandGetDirectionVectors64": "ptr* int",
    "curandGetScrambleConstants32": "ptr*",
    "curandGetScrambleConstants64": "ptr*",
}

STATUSES: Final = {
    "CURAND_STATUS_SUCCESS": 0,
    "CURAND_STATUS_VERSION_MISMATCH": 100,
    "CURAND_STATUS_NOT_INITIALIZED": 101,
    "CURAND_STATUS_ALLOCATION_FAILED": 102,
    "CURAND_STATUS_TYPE_ERROR": 103,
    "CURAND_STATUS_OUT_OF_RANGE": 104,
    "CURAND_STATUS_LENGTH_NOT_MULTIPLE": 105,
    "CURAND_STATUS_DOUBLE_PRECISION_REQUIRED": 106,
    "CURAND_STATUS_LAUNCH_FAILURE": 201,
    "CURAND_STATUS_PREEXISTING_FAILURE": 202,
    "CURAND_STATUS_INITIALIZATION_FAILED": 203,
    "CURAND_STATUS_ARCH_MISMATCH": 204,
    "CURAND_STATUS_INTERNAL_ERROR": 999,
}
"""The library has no function that names them."""

ENUMS: Final = {
    **STATUSES,
    "CURAND_RNG_PSEUDO_XORWOW": 101,
    "CURAND_RNG_PSEUDO_MRG32K3A": 121,
    "CURAND_RNG_PSEUDO_MTGP32": 141,
    "CURAND_RNG_PSEUDO_MT19937": 142,
    "CURAND_ORDERING_PSEUDO_BEST": 100,
    "CURAND_ORDERING_PSEUDO_DEFAULT": 101,
    "CURAND_ORDERING_PSEUDO_SEEDED": 102,
    "CURAND_ORDERING_PSEUDO_LEGACY": 103,
    "CURAND_ORDERING_PSEUDO_DYNAMIC": 104,
    "CURAND_DIRECTION_VECTORS_32_JOEKUO6": 101,
    "CURAND_SCRAMBLED_DIRECTION_VECTORS_32_JOEKUO6": 102,
    "CURAND_DIRECTION_VECTORS_64_JOEKUO6": 103,
    "CURAND_SCRAMBLED_DIRECTION_VECTORS_64_JOEKUO6": 104,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAMES: Final = {status: name for name, status in STATUSES.items()}

GENERATORS: Final = {
    "xorwow": ENUMS["CURAND_RNG_PSEUDO_XORWOW"],
    "mrg32k3a": ENUMS["CURAND_RNG_PSEUDO_MRG32K3A"],
    "mtgp32": ENUMS["CURAND_RNG_PSEUDO_MTGP32"],
    "mt19937": ENUMS["CURAND_RNG_PSEUDO_MT19937"],
}
"""Generators that run in cuRAND; PHILOX4_32_10 runs in kernels of this package."""

SKIPS: Final = frozenset(("xorwow", "mrg32k3a"))
"""Generators that ``curandSetGeneratorOffset`` can move; others draw the skipped words."""

ORDERINGS: Final = {
    name: ENUMS[f"CURAND_ORDERING_PSEUDO_{name.upper()}"]
    for name in ("best", "default", "seeded", "legacy", "dynamic")
}

VECTORS: Final = {
    "sobol32": ENUMS["CURAND_DIRECTION_VECTORS_32_JOEKUO6"],
    "scrambled_sobol32": ENUMS["CURAND_SCRAMBLED_DIRECTION_VECTORS_32_JOEKUO6"],
    "sobol64": ENUMS["CURAND_DIRECTION_VECTORS_64_JOEKUO6"],
    "scrambled_sobol64": ENUMS["CURAND_SCRAMBLED_DIRECTION_VECTORS_64_JOEKUO6"],
}
"""The direction vectors of each quasi-random sequence."""
