"""What stands for kernels of the command line on the CPU backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

SCALE: Final = """
extern "C" __global__ void scale(float* x, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""
"""CUDA C++ of ``scale``."""


def scale(x: np.ndarray[Any, Any], n: int, factor: float) -> None:
    """Multiply the first elements by a factor."""
    x.reshape(-1)[:n] *= factor
