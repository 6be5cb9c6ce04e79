"""Cases of ``device.tensor``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Final

import numpy as np

from atomr_accel import Device

from ..libraries.tensor.rows import ROWS
from .rows import Table, check_row

TABLE: Final = Table(ROWS)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
