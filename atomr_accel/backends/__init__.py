"""Backends: one folder each, behind one protocol (``host._protocol.HostContext``)."""
