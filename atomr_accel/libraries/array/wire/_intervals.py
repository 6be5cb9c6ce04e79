"""Checks of the ends of a histogram whose intervals have one size."""

from __future__ import annotations

import math

import numpy as np

from ...._dtypes import DTYPES


def require_intervals(low: float, high: float, count: int, edge: str) -> None:
    """Check that intervals have different edges.

    Args:
        low: the first edge.
        high: the last edge.
        count: the number of intervals.
        edge: the dtype of the edges.

    Raises:
        ValueError: the range is not finite, or the dtype is too coarse for ``count`` intervals.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"autodetected range of [{low}, {high}] is not finite")
    step = (high - low) / count
    narrow = DTYPES[edge]
    # Only where a step is about as small as numbers are apart there is anything to look at.
    with np.errstate(all="ignore"):  # ends may be too large for the dtype
        apart = np.spacing(np.array([low, high]).astype(narrow))
        if step > 4 * float(np.abs(apart).max()):
            return
        edges = (np.arange(count + 1) * step + low).astype(narrow)
        edges[-1] = high
    if (edges[:-1] >= edges[1:]).any():
        raise ValueError(f"Too many bins for data range. Cannot create {count} finite-sized bins.")
