"""Descriptor of the library: ``device.xp``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = rng.standard_normal((64, 1000), np.float32)
    ref = await device.xp.cumulative_sum(await device.xp.asarray(x), axis=1)
    return await device.get(ref), np.cumulative_sum(x.astype("f8"), axis=1)


LIBRARY: Final = Library(
    name="xp",
    summary="the names of the Array API standard",
    facade="atomr_accel.libraries.xp._facade:ArrayApi",
    lanes=(),
    uses=("cub",),
    check=LibraryCheck("cumulative sums, float32", 1e-4, _check),
)
