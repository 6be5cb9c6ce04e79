"""Kernels for what cuDNN refuses."""
