"""Descriptor of the library: ``device.nvrtc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from .lanes import COMPILER, KERNELS
from .wire.messages import UNCHECKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SOURCE: Final = """
// Multiplies the first n elements of x by a factor, one in each thread.
extern "C" __global__ void scale(float* x, int n, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}
"""


async def _check(
    device: Any, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]] | tuple[NDArray[Any], NDArray[Any], str]:
    def scale(x: NDArray[Any], n: int, factor: float) -> None:
        x.reshape(-1)[:n] *= factor

    x = rng.standard_normal((10_000,), np.float32)
    kernel = await device.nvrtc.compile(_SOURCE, "scale", cpu=scale)
    ref = await device.put(x)
    await kernel.launch(-(-x.size // 256), 256, ref, x.size, 2.0)
    result = await device.get(ref)
    if kernel.log == UNCHECKED:
        return result, 2 * x, f"a kernel's Python function alone: {UNCHECKED}"
    if device.core.capabilities.python_kernels:
        return result, 2 * x, "a kernel, compiled, and its Python function, launched"
    return result, 2 * x


LIBRARY: Final = Library(
    name="nvrtc",
    summary="kernels compiled at run time (NVRTC)",
    facade="atomr_accel.libraries.nvrtc._facade:Nvrtc",
    lanes=(COMPILER, KERNELS),
    objects=(
        "atomr_accel.libraries.nvrtc.kernel:Kernel",
        "atomr_accel.libraries.nvrtc.module:KernelModule",
    ),
    needs=(Requirement("nvrtc", "device.nvrtc, device.array", "cuda12", vendor=True),),
    check=LibraryCheck("a kernel, compiled and launched", 0.0, _check),
)
