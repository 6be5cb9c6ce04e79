"""Starting threads when memory may be short."""

from __future__ import annotations

import errno
import mmap
import resource
import threading
from typing import Final

_USUAL_STACK: Final = 8 << 20

_BEGINNING: Final = 4 << 20
"""Bytes in addition to its stack that a thread may take before its function runs."""


def start(thread: threading.Thread) -> None:
    """Start a thread, or raise if the system has no room for it.

    A thread that gets its stack but no further memory dies before Python notices, and
    ``Thread.start`` then waits for it for ever. This function therefore checks for memory first.

    Raises:
        OSError: memory or threads are short (``ENOMEM``, ``EAGAIN``).
    """
    size = threading.stack_size()
    if not size:
        limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
        size = _USUAL_STACK if limit == resource.RLIM_INFINITY else limit
    require_room(size + _BEGINNING, f"the stack of thread {thread.name!r} and what it needs")
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"thread {thread.name!r}: {error}") from error


def require_room(nbytes: int, what: str) -> None:
    """Raise if the process has less than ``nbytes`` of address space left.

    Raises:
        OSError: address space is short (``ENOMEM``).
    """
    try:
        mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, OverflowError, MemoryError) as error:
        raise OSError(errno.ENOMEM, f"no room for {what}, {nbytes} bytes") from error
