"""Backends: one folder each, behind one protocol (``lanes.HostContext``)."""

from ._registry import Backend, BackendName, find_backend

__all__ = ["Backend", "BackendName", "find_backend"]
