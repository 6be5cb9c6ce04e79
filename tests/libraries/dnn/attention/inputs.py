"""Queries, keys and values for tests of attention."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...conformance import Array, dtype_of

HALF: Final = dtype_of("float16")


def normal(rng: np.random.Generator, *shape: int, dtype: Any = HALF) -> Array:
    return np.clip(rng.standard_normal(shape), -3, 3).astype(dtype)


def integers(values: Any) -> Array:
    """Lengths, ends, or tables."""
    return np.array(values, np.int32)


def floats(values: Any) -> Array:
    """Slopes, sinks, or scales."""
    return np.array(values, np.float32)
