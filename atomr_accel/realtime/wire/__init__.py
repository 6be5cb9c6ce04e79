"""Kernels of simulations and filters: CUDA C++, and NumPy functions that do the same."""
