"""Cases of ``device.blas``, from the table of its conformance tests."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.blas.rows import OPERATIONS
from .rows import Table, check_row


def _fits(name: str, case: dict[str, Any]) -> bool:
    """Return whether sizes fit: least squares need tall matrices, vectors have their own length."""
    if "int8" in name:
        return False
    return "length" not in case and (name != "blas.gels_batched" or case["m"] >= case["n"])


TABLE: Final = Table(OPERATIONS, vary=("m", "n", "k", "nrhs"), fits=_fits)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
