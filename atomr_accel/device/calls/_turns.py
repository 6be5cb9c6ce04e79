"""The order in which calls continue after a fault."""

from __future__ import annotations

import heapq
import itertools
from typing import Final, final

import trio

from ...lanes import uninterrupted

_MOST_TURNS: Final = 64
"""Number of turns of trio's loop over which calls that continue are spread."""


@final
@uninterrupted
class Again:
    """Lets calls continue after a fault, in the order in which they were made.

    The device wakes all of them at once, and trio runs the tasks of one turn of its loop in either
    order. A call that has waited for nearly all earlier ones could so wait for all of them again.
    Each call therefore continues in a turn of its own, unless there are many.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, trio.lowlevel.Task]] = []
        self._soon = False

    def number(self) -> int:
        """The number of a call that is made."""
        return next(self._numbers)

    async def wait(self, number: int) -> None:
        """Wait until earlier calls have continued."""
        waiting = self._waiting
        entry = number, trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            waiting.remove(entry)
            heapq.heapify(waiting)
            return trio.lowlevel.Abort.SUCCEEDED

        heapq.heappush(waiting, entry)
        if not self._soon:
            self._go_on_soon()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _go_on_soon(self) -> None:
        self._soon = True
        trio.lowlevel.current_trio_token().run_sync_soon(self._go_on)

    def _go_on(self) -> None:
        self._soon = False
        for _ in range(-(-len(self._waiting) // _MOST_TURNS)):
            trio.lowlevel.reschedule(heapq.heappop(self._waiting)[1])
        if self._waiting:
            self._go_on_soon()
