"""Recordings: CUDA graphs, and lists of ops on the CPU."""
