"""Shapes and inputs of attention to measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Shape(NamedTuple):
    """Sizes of attention."""

    batch: int
    length: int
    heads: int
    size: int
    causal: bool

    @property
    def name(self) -> str:
        return f"{self.length} x {self.size}{' causal' if self.causal else ''}"

    def operations(self, name: str) -> float:
        """Multiplications and additions of a pass."""
        forward = 4.0 * self.batch * self.heads * self.length**2 * self.size
        return forward * (2.5 if name == "backward" else 1.0) / (2 if self.causal else 1)


async def random(device: Device, *sizes: int) -> GpuRef:
    """Return normal numbers, as in PyTorch, because a kernel's speed depends on its data."""
    return await device.rng.normal(size=sizes, dtype=BFLOAT16)
