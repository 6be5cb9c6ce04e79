"""Kernels for graphs that cuDNN refuses."""
