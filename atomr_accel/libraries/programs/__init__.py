"""Recorded programs: CUDA graphs, and lists of ops on the CPU."""

from ._messages import Describe, Forget, Record, Replay, Step

__all__ = ["Describe", "Forget", "Record", "Replay", "Step"]
