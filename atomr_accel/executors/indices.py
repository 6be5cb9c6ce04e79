"""Checks of indices and lengths in a buffer, which only an executor can read."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_within(values: np.ndarray[Any, Any], least: int, most: int, name: str) -> None:
    """Check that integers are in a range, so that they can be counted with, or point to memory."""
    outside = (values < least) | (values > most)
    if outside.any():
        index = tuple(int(each[0]) for each in np.nonzero(outside))
        where = ", ".join(map(str, index))
        raise ValueError(
            f"{name}[{where}] must be from {least} to {most}, not "
            f"{int(values[index])}; {np.count_nonzero(outside)} of {values.size} are "
            "outside"
        )
