"""The lanes of the compiler and of kernels."""

from __future__ import annotations

from typing import Final

from ...ops import LaneSpec

COMPILER: Final = LaneSpec(
    "nvrtc",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuCompiler",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaCompiler",
    },
    watched=False,
    own_thread=True,
)
KERNELS: Final = LaneSpec(
    "kernels",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuKernels",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaKernels",
    },
    max_streams=4,
)
