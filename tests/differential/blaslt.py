"""Cases of ``device.blaslt``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.blaslt.rows import OPERATIONS
from .rows import Table, check_row


def _fits(name: str, case: dict[str, Any]) -> bool:
    """Return whether sizes are free; those of narrow types are multiples."""
    del case
    return "fp" not in name and "int8" not in name


TABLE: Final = Table(OPERATIONS, vary=("m", "n", "k"), fits=_fits)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
