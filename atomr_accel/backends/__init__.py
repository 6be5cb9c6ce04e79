"""Backends: one folder each, behind one protocol (``host._protocol.HostContext``).

A host imports this package with the backend that it runs, so nothing here loads more than
descriptions.
"""

from ._backend import Backend, Capabilities

__all__ = ["Backend", "Capabilities"]
