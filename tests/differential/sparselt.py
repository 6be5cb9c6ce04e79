"""Cases of ``device.sparselt``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Final

import numpy as np

from atomr_accel import Device

from ..libraries.sparselt.rows import OPERATIONS
from .rows import Table, check_row

TABLE: Final = Table(OPERATIONS, vary=("m", "n", "k"), sizes=(32, 64, 96, 128, 160))


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
