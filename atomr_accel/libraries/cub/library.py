"""Descriptor of the library: ``device.cub``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from .call import BUILDER, LANE, WAITING

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    keys = rng.integers(-(1 << 30), 1 << 30, 50_000, np.int32)
    return await device.get(await device.cub.sort(await device.put(keys))), np.sort(keys)


LIBRARY: Final = Library(
    name="cub",
    summary="reductions, scans, sorts and selections (CUB)",
    facade="atomr_accel.libraries.cub.facade:Cub",
    lanes=(LANE, BUILDER, WAITING),
    needs=(
        Requirement("nvJitLink", "device.cub", "cuda12", vendor=True),
        Requirement("cuda-cccl", "device.cub", "cuda12"),
    ),
    check=LibraryCheck("sort of 50,000 int32", 0.0, _check),
)
