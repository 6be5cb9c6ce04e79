"""Getting the GIL back in time: what keeps a computing thread from slowing ops down.

Whoever wants the GIL of another thread asks for it after the interpreter's *switch interval*,
5 ms by default, and trio's thread gives it away whenever it waits for I/O. So with a thread
that computes without pause each turn of the event loop would take 5 ms, in which a device is
long done with all that is in flight. Therefore the interval is short while ops are in flight.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

_MICROSECOND: Final = 1e-6
_USUAL: Final = 5000 * _MICROSECOND
"""The interpreter's own interval, as it tells it. Where a program has set another, that stays."""

_PROMPT: Final = 100 * _MICROSECOND
"""A switch takes some ten, so threads that compute lose little by it."""

_MORE: Final = 0.5 * _MICROSECOND
"""The interpreter keeps whole microseconds, and cuts off what is beyond."""

_lock: Final = threading.Lock()
_busy = 0
"""Devices of this process with ops in flight."""


def shorten_switch_interval() -> None:
    """A device has ops in flight now."""
    global _busy  # noqa: PLW0603 (the interval is the process's too)
    with _lock:
        _busy += 1
        if _busy == 1 and sys.getswitchinterval() == _USUAL:
            sys.setswitchinterval(_PROMPT + _MORE)


def restore_switch_interval() -> None:
    """A device has none any more."""
    global _busy  # noqa: PLW0603
    with _lock:
        _busy -= 1
        if not _busy and sys.getswitchinterval() == _PROMPT:
            sys.setswitchinterval(_USUAL + _MORE)
