"""NVRTC: CUDA C++ compiled and launched at run time."""

from ._facade import COMPILER, KERNELS, Kernel, Nvrtc, NvrtcStatistics

__all__ = ["COMPILER", "KERNELS", "Kernel", "Nvrtc", "NvrtcStatistics"]
