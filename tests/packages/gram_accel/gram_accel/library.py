"""The library: its facade and its descriptor. Other libraries' lanes execute its ops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import GpuRef
from atomr_accel.ops import (
    ARRAY_LANE,
    D,
    DeviceView,
    Facade,
    Library,
    LibraryCheck,
    Preparer,
    Request,
    Submission,
    op,
    require_readable,
)


class Gram(Facade[D]):
    """Products of the rows of matrices."""

    def __init__(self, device: DeviceView, array: Facade[Any], blas: Facade[Any]) -> None:
        self.home = device
        self._array: Any = array.as_requests(device)
        self._blas: Any = blas.as_requests(device)

    @op
    def total(self, x: GpuRef) -> Request[GpuRef]:
        """Sum the products of all pairs of rows.

        Args:
            x: shape (m, n), float32 or float64.

        Returns:
            A scalar on the device, of the dtype of x.

        Raises:
            ValueError: x has another number of axes.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            require_readable(x, preparer.memory, "x")
            if len(x.shape) != 2:
                raise ValueError(f"x must have two axes, not shape {x.shape}")
            products = self._blas.gemm(x, x, trans_b=True)
            made = products.prepare(preparer)
            total = self._array.sum(made.result).prepare(preparer)
            first = Request(products.lane, products.name, lambda _preparer: made)
            made_after: Submission[GpuRef] = total.around(before=[first])
            return made_after

        return Request(ARRAY_LANE, "gram.total", prepare)


async def check(device: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Sum the products of random rows."""
    x = rng.integers(0, 5, (20, 30)).astype(np.float64)
    total = await device.get(await device.gram.total(await device.put(x)))
    return total, (x @ x.T).sum()


LIBRARY: Final = Library(
    name="gram",
    summary="products of rows",
    facade="gram_accel.library:Gram",
    lanes=(),
    uses=("array", "blas"),
    check=LibraryCheck("total of (20, 30) float64", 0.0, check),
)
