"""Cases of ``device.blas``, from the table of its conformance tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..libraries.blas.rows import OPERATIONS
from .rows import Table, check_row

if TYPE_CHECKING:
    import numpy as np

    from atomr_accel import Device


def _fits(name: str, case: dict[str, Any]) -> bool:
    """Whether sizes go together: least squares are of tall matrices, vectors have their length."""
    if "int8" in name:
        return False
    return "length" not in case and (name != "blas.gels_batched" or case["m"] >= case["n"])


TABLE: Final = Table(OPERATIONS, vary=("m", "n", "k", "nrhs"), fits=_fits)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    return await check_row(device, random, TABLE)
