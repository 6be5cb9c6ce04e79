"""Modules that executors share: bindings, kernels of our own, caches on disk."""
