"""Cases of ``device.linalg``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.linalg.rows import OPERATIONS
from .rows import Table, check_row


def _fits(name: str, case: dict[str, Any]) -> bool:
    """Return whether sizes fit: least squares with refinement need tall matrices."""
    del name
    m, n = int(case.get("m", 99)), int(case.get("n", 99))
    if case.get("subset") is not None and n <= case["subset"][1]:
        return False
    return (case.get("refine") is None or m >= n) and int(case.get("k") or 0) <= min(m, n)


TABLE: Final = Table(OPERATIONS, vary=("m", "n"), sizes=(1, 2, 3, 5, 8, 17, 32, 33), fits=_fits)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
