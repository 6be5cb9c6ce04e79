"""Descriptor of the library: ``device.blas``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from .checks import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = rng.standard_normal((192, 256), np.float32), rng.standard_normal((256, 320), np.float32)
    got = await device.get(await device.blas.gemm(await device.put(a), await device.put(b)))
    return got, a.astype("f8") @ b


LIBRARY: Final = Library(
    name="blas",
    summary="linear algebra (cuBLAS)",
    facade="atomr_accel.libraries.blas.facade:Blas",
    lanes=(LANE,),
    needs=(Requirement("cublas", "device.blas", "cuda12", vendor=True),),
    check=LibraryCheck("gemm 192 x 256 x 320, float32", 1e-5, _check),
)
