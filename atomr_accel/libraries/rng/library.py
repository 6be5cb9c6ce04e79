"""Descriptor of the library: ``device.rng``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._draws import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check that the same seed gives the same numbers, and that their mean is right."""
    seed = int(rng.integers(1 << 31))
    once, again = [
        await device.get(await device.rng.default_rng(seed).random(1 << 16, np.float32))
        for _ in range(2)
    ]
    mean = once.mean(dtype="f8") if np.array_equal(once, again) else np.nan
    return np.array([mean]), np.array([0.5])


LIBRARY: Final = Library(
    name="rng",
    summary="random numbers (cuRAND)",
    facade="atomr_accel.libraries.rng._facade:Rng",
    lanes=(LANE,),
    uses=("array", "cub", "blas"),
    objects=("atomr_accel.libraries.rng.generator:Generator",),
    needs=(Requirement("curand", "device.rng", "cuda12", vendor=True),),
    # Five standard deviations of the mean of 2**16 numbers, by the mean.
    check=LibraryCheck("65,536 uniform numbers, twice", 1.2e-2, _check),
)
