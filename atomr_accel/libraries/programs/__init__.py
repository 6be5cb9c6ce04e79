"""Recorded programs: CUDA graphs, and lists of ops on the CPU."""

from ._messages import Describe, Forget, Kind, Node, Record, Replay, Section, Step

__all__ = ["Describe", "Forget", "Kind", "Node", "Record", "Replay", "Section", "Step"]
