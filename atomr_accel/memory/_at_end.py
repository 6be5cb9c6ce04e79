"""Entries of a queue that are appended when the last reference to an object is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import msgspec

if TYPE_CHECKING:
    from collections import deque


@final
class AtEnd(msgspec.Struct, eq=False, gc=False):
    """Appends ``entry`` to ``queue`` once, when nothing refers to it any more.

    The garbage collector does not track it, and so never finalizes it in a cycle while another
    finalizer could still use or revive its owners. It ends by its reference count alone, after all
    of its owners. That may be in any thread, in the middle of anything.
    The program's thread takes the entries out.

    Cycles through it would never be collected: neither the entry nor what the queue holds may lead
    to an object that has it.

    Attributes:
        queue: gets the entry.
        entry: may be replaced until then.
    """

    queue: deque[Any]
    entry: Any

    def __del__(self) -> None:
        self.queue.append(self.entry)
