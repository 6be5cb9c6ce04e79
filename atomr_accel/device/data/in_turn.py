"""Worker threads for what waits in C, such as a database: one call after the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from .transfer import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class InTurn:
    """Calls in worker threads, one at a time and in the order in which they were asked for.

    ::

        turns = InTurn()
        rows = await turns.run(connection.execute, "SELECT ...")

    So a SQLite connection that was opened with ``check_same_thread=False`` needs no lock. A call
    may be cancelled while it waits. One that has begun is awaited to its end.
    """

    def __init__(self) -> None:
        self._limiter: Final = trio.CapacityLimiter(1)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function(*args)`` in a thread, and return its result."""
        return await in_thread(partial(function, *args), self._limiter)
