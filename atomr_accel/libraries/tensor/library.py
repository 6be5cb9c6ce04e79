"""Descriptor of the library: ``device.tensor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._operations import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = rng.standard_normal((6, 20, 30)), rng.standard_normal((30, 6, 10))
    made = await device.tensor.einsum("bik,kbj->jbi", await device.put(a), await device.put(b))
    return await device.get(made), np.einsum("bik,kbj->jbi", a, b)


LIBRARY: Final = Library(
    name="tensor",
    summary="sums of products along any axes (cuTENSOR; einsum without it, too)",
    facade="atomr_accel.libraries.tensor._facade:Tensor",
    lanes=(LANE,),
    uses=("blas", "cub"),
    numpy_modules=("numpy",),
    needs=(Requirement("cutensor", "device.tensor", "cutensor12", vendor=True),),
    check=LibraryCheck("einsum bik,kbj->jbi, float64", 1e-13, _check),
)
