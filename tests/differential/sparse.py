"""Cases of ``device.sparse``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.sparse.rows import OPERATIONS
from .rows import Table, check_row


def _fits(name: str, case: dict[str, Any]) -> bool:
    """Return whether sizes fit: indices must all differ."""
    return not name.endswith(("gather", "scatter", "dot", "axpby")) or case["k"] <= case["n"]


def _views(name: str) -> int:
    """Parts of matrices are contiguous, which their functions say."""
    return 6 if "spgemm" in name else 3


TABLE: Final = Table(OPERATIONS, vary=("n", "columns"), views=_views, fits=_fits)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
