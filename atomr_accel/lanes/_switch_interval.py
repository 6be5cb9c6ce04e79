"""A short switch interval while ops are in flight, so that computing threads do not slow them down.

A thread that wants the GIL of another asks for it after the interpreter's *switch interval*, 5 ms
by default. Trio's thread gives the GIL away whenever it waits for I/O. With a thread that computes
without pause, each turn of the event loop would take 5 ms, and a device would finish all its ops
meanwhile. The interval is therefore short while ops are in flight.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

_MICROSECOND: Final = 1e-6
_USUAL: Final = 5000 * _MICROSECOND
"""The interpreter's default interval. If a program has set another one, it stays."""

_PROMPT: Final = 100 * _MICROSECOND
"""Interval while ops are in flight. A switch takes about 10 µs, so computing threads lose
little."""

_MORE: Final = 0.5 * _MICROSECOND
"""Margin for the interpreter, which truncates to whole microseconds."""

_lock: Final = threading.Lock()
_busy = 0
"""Devices of this process with ops in flight."""


def shorten_switch_interval() -> None:
    """Note that a device has ops in flight now."""
    global _busy  # noqa: PLW0603 (the interval is the process's too)
    with _lock:
        _busy += 1
        if _busy == 1 and sys.getswitchinterval() == _USUAL:
            sys.setswitchinterval(_PROMPT + _MORE)


def restore_switch_interval() -> None:
    """Note that a device has no more ops in flight."""
    global _busy  # noqa: PLW0603
    with _lock:
        _busy -= 1
        if not _busy and sys.getswitchinterval() == _PROMPT:
            sys.setswitchinterval(_USUAL + _MORE)
