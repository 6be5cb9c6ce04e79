"""Descriptors that are kept for the next host, so that no other code can take them.

If a program has no free descriptor, calls that need one fail, but its devices survive. A context
that ends passes its descriptors on in the same turn of the loop in which it closes them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

RESERVED: Final = 16
"""Descriptors that starting a host takes besides its lanes: sockets, pipes, and process
start-up."""

_STEP: Final = 4
"""Number of descriptors that are released at a time."""


@final
class Reserve:
    """Descriptors that a device keeps for its rebuilds.

    Args:
        size: how many; 0 for one that keeps none.
    """

    def __init__(self, size: int = RESERVED) -> None:
        self._size = size
        self._returned = 0
        self._usable = True
        self._kept: list[int] = []

    def use(self) -> None:
        """Let ``make`` take kept descriptors from now on, because a host is about to start."""
        self._usable = True

    def settle(self) -> None:
        """Keep only the descriptors for the next host, now that the current one has started."""
        self._usable = False
        self._returned = 0
        self.fill()
        self._release(len(self._kept) - self._size)

    def returned(self, count: int) -> None:
        """Keep descriptors of the last host, which were just closed, until ``settle``."""
        if self._size:
            self._returned += count
            self.fill()

    def fill(self) -> None:
        """Keep as many as are wanted, if there are: right after some were closed."""
        with suppress(OSError):
            while len(self._kept) < self._size + self._returned:
                self._kept.append(os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        """Keep none any more."""
        self._size = self._returned = 0
        self._release(len(self._kept))

    def make(self, create: Callable[[], T]) -> T:
        """Call ``create``, and again with kept descriptors if there are no others.

        Args:
            create: a function that opens descriptors; without free ones it raises and leaves none
                open.

        Raises:
            OSError: the kept descriptors do not suffice.
        """
        while True:
            try:
                made = create()
            except OSError as error:
                short = error.errno in (errno.EMFILE, errno.ENFILE)
                if not (short and self._usable and self._kept):
                    raise
                self._release(_STEP)
            else:
                if self._usable:
                    self.fill()
                return made

    def _release(self, most: int) -> None:
        for _ in range(min(most, len(self._kept))):
            os.close(self._kept.pop())


NO_RESERVE: Final = Reserve(0)
