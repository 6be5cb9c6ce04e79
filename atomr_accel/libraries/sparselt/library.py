"""Descriptor of the library: ``device.sparselt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._facade import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Multiply a pruned matrix by a dense one, with exact results."""
    a, b = rng.integers(-8, 9, (64, 64)), rng.integers(-8, 9, (64, 32))
    pruned = await device.sparselt.prune(await device.put(a.astype(np.float16)))
    structured = await device.sparselt.compress(pruned)
    made = await device.sparselt.matmul(structured, await device.put(b.astype(np.float16)))
    return await device.get(made), (await device.get(pruned)).astype("f4") @ b


LIBRARY: Final = Library(
    name="sparselt",
    summary="products with matrices half of whose elements are zero (cuSPARSELt)",
    facade="atomr_accel.libraries.sparselt._facade:SparseLt",
    lanes=(LANE,),
    needs=(Requirement("cusparseLt", "device.sparselt", "cusparselt12", vendor=True),),
    check=LibraryCheck(
        "a 2:4 matrix of 64 x 64 times 64 x 32, float16", 1e-3, _check, optional=True
    ),
)
