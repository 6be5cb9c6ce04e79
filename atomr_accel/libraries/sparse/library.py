"""Descriptor of the library: ``device.sparse``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import scipy.sparse

from ...ops import Library, LibraryCheck, Requirement
from .direct import DIRECT
from .part import LANE, WAITING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    matrix: Any = scipy.sparse.random_array((300, 200), density=0.05, format="csr", rng=rng)
    x = rng.standard_normal(200)
    made = await device.sparse.matmul(await device.sparse.put(matrix), await device.put(x))
    return await device.get(made), matrix @ x


LIBRARY: Final = Library(
    name="sparse",
    summary="sparse matrices (cuSPARSE, cuDSS)",
    facade="atomr_accel.libraries.sparse._facade:Sparse",
    lanes=(LANE, DIRECT, WAITING),
    uses=("array", "cub"),
    objects=("atomr_accel.libraries.sparse.direct:SparseLU",),
    needs=(
        Requirement("cusparse", "device.sparse", "cuda12", vendor=True),
        Requirement("cudss", "direct solvers of device.sparse", "cudss12", vendor=True),
    ),
    check=LibraryCheck("a csr matrix of 300 x 200 times a vector, float64", 1e-13, _check),
)
