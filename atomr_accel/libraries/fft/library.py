"""Descriptor of the library: ``device.fft``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._cache import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = rng.standard_normal((16, 1000), np.float32)
    return await device.get(await device.fft.rfft(await device.put(x))), np.fft.rfft(x.astype("f8"))


LIBRARY: Final = Library(
    name="fft",
    summary="Fourier transforms (cuFFT)",
    facade="atomr_accel.libraries.fft._facade:Fft",
    lanes=(LANE,),
    uses=("cub",),
    numpy_modules=("numpy.fft",),
    needs=(Requirement("cufft", "device.fft", "cuda12", vendor=True),),
    check=LibraryCheck("rfft of 16 x 1000, float32", 1e-5, _check),
)
