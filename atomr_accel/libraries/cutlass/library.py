"""Descriptor of the library: ``device.cutlass``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._builds import BUILDER, LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Multiply half-precision matrices. A GPU compiles this for half a minute the first time."""
    a, b = (rng.standard_normal((256, 128)).astype(np.float16) for _ in "ab")
    refs = [await device.put(each) for each in (a, b)]
    made = await device.cutlass.matmul(*refs, trans_b=True, dtype="float32")
    return await device.get(made), a.astype("f4") @ b.T.astype("f4")


LIBRARY: Final = Library(
    name="cutlass",
    summary="products with tiles, schedules and epilogues of choice (CUTLASS)",
    facade="atomr_accel.libraries.cutlass._facade:Cutlass",
    lanes=(LANE, BUILDER),
    needs=(Requirement("nvidia-cutlass", "device.cutlass", "cutlass12"),),
    check=LibraryCheck("matmul 256 x 256 x 128, float16", 1e-3, _check, optional=True),
)
