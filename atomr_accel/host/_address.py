"""The device's address space, which means the same in every process.

An address is ``slab << SLAB_SHIFT | offset``; only a host turns it into a pointer, with
the base where it mapped the slab.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

SLAB_SHIFT: Final = 40
OFFSET_MASK: Final = (1 << SLAB_SHIFT) - 1


def shared_fd(nbytes: int, name: str) -> int:
    """An anonymous file of ``nbytes`` that lives as long as somebody holds it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:  # no memfd outside Linux: an unlinked file does the same, less quickly
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd
