"""Threads that copy large arrays to and from staging memory."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from .._failures import short_of

if TYPE_CHECKING:
    from collections.abc import Callable

COPIERS: Final = min(8, os.cpu_count() or 1)
"""Threads that copy at once. Eight saturate the memory of the machines we know."""


@final
class Copiers:
    """Threads that copy, started when they are needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(COPIERS, name)
        self._started = False

    def submit(self, function: Callable[..., object], *args: object) -> None:
        """Have one of them call a function.

        Raises:
            OutOfMemory: there is none, and no room for one.
        """
        try:
            self._pool.submit(function, *args)
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            if self._started:
                return  # the pool has it nevertheless, for those that there are
            self.close(cancel_futures=True)
            self._pool = ThreadPoolExecutor(COPIERS, self._name)
            raise short_of(OSError(errno.EAGAIN, str(error)), "a copying thread") from error
        self._started = True

    def close(self, *, cancel_futures: bool = False) -> None:
        """Refuse new work, and finish the work that was begun."""
        self._pool.shutdown(wait=False, cancel_futures=cancel_futures)
