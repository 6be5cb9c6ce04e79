"""NVRTC: CUDA C++ compiled and launched at run time."""
