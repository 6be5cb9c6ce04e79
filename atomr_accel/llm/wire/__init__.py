"""Kernels of language models: CUDA C++, and NumPy functions that do the same."""
