"""Descriptor of the library: ``device.array``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import ARRAY_LANE, ARRAY_WAITS, Library, LibraryCheck
from .evaluate import BUILDS

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = rng.standard_normal((64, 1000), np.float32)
    ref = await device.put(x)
    got = await device.get(await device.evaluate(np.exp(ref * 0.5).sum(1)))
    return got, np.exp(x.astype("f8") * 0.5).sum(1)


LIBRARY: Final = Library(
    name="array",
    summary="NumPy's functions for making, joining, sorting and counting arrays",
    facade="atomr_accel.libraries.array.facade:ArrayFunctions",
    lanes=(BUILDS, ARRAY_LANE, ARRAY_WAITS),
    uses=("cub",),
    numpy_modules=("numpy", "numpy.linalg"),
    check=LibraryCheck("sums of exp(x / 2), float32", 1e-5, _check),
)
