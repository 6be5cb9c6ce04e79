"""Edges of a histogram whose intervals have one size, and checks of its ends."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ...._dtypes import DTYPES

STEEPEST: Final = 2.0**1022
"""Largest number of intervals per unit by which distances are multiplied.

With more of them, distances are first divided by the range, which does not overflow.
"""


def require_intervals(low: float, high: float, count: int, edge: str) -> None:
    """Check that intervals have different edges."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"autodetected range of [{low}, {high}] is not finite")
    refused = f"Too many bins for data range. Cannot create {count} finite-sized bins."
    if not math.isfinite(high - low):
        raise ValueError(refused)
    step = (high - low) / count
    narrow = DTYPES[edge]
    # Only where a step is about as small as numbers are apart there is anything to look at.
    with np.errstate(all="ignore"):  # ends may be too large for the dtype
        apart = np.spacing(np.array([low, high]).astype(narrow))
        if step > 4 * float(np.abs(apart).max()):
            return
        edges = edges_between(low, high, count).astype(narrow)
    if not (edges[:-1] < edges[1:]).all():
        raise ValueError(refused)


def edges_between(low: float, high: float, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the edges of ``count`` intervals of one size."""
    at, apart = np.arange(count + 1, dtype=np.float64), high - low
    wide = apart * STEEPEST > count
    edges = at * (apart / count) + low if wide else at / count * apart + low
    edges[-1] = high
    return np.asarray(edges)
