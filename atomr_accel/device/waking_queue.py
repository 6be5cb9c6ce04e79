"""A queue for finalizers, which wakes the program's thread."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import trio

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable


@final
class WakingQueue(deque[Any]):
    """Entries that finalizers append, until the program's thread takes them out."""

    def __init__(self, collect: weakref.WeakMethod[Callable[[], None]]) -> None:
        super().__init__()
        self._collect = collect
        self._token = trio.lowlevel.current_trio_token()

    def append(self, entry: Any) -> None:
        """Note an entry; from any thread, in the middle of anything."""
        super().append(entry)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._collected, idempotent=True)

    def _collected(self) -> None:
        collect = self._collect()
        if collect is not None:
            collect()
