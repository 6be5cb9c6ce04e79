"""Descriptor of the library: ``device.linalg``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._steps import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    a = rng.standard_normal((8, 48, 48)) + 10 * np.eye(48)
    b = rng.standard_normal((8, 48, 3))
    x = await device.linalg.solve(await device.put(a), await device.put(b))
    return await device.get(x), np.linalg.solve(a, b)


LIBRARY: Final = Library(
    name="linalg",
    summary="factorizations, systems and eigenvalues (cuSOLVER)",
    facade="atomr_accel.libraries.linalg._facade:Linalg",
    lanes=(LANE,),
    uses=("cub", "blas", "array"),
    numpy_modules=("numpy.linalg", "numpy"),
    needs=(Requirement("cusolver", "device.linalg", "cuda12", vendor=True),),
    check=LibraryCheck("solve of 8 systems of 48, float64", 1e-12, _check),
)
