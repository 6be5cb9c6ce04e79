"""Descriptor of the library: ``device.blaslt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._facade import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = (rng.standard_normal((128, 128)).astype("f2") for _ in range(2))
    made = await device.blaslt.matmul(await device.put(a), await device.put(b), epilogue="relu")
    return await device.get(made), np.maximum(a.astype("f8") @ b.astype("f8"), 0)


LIBRARY: Final = Library(
    name="blaslt",
    summary="products with epilogues, scales and narrow types (cuBLASLt)",
    facade="atomr_accel.libraries.blaslt._facade:BlasLt",
    lanes=(LANE,),
    needs=(Requirement("cublasLt", "device.blaslt", "cuda12", vendor=True),),
    check=LibraryCheck("matmul 128 x 128 x 128 and relu, float16", 2e-3, _check),
)
