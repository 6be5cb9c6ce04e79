"""Asking again after a fault."""

from __future__ import annotations

import heapq
import inspect
import itertools
from types import CoroutineType
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple, final

import trio

from ..._errors import ContextPoisoned, EarlierErrors, GpuRefStale, said_of
from ...lanes import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..core import DeviceCore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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


@trio.lowlevel.disable_ki_protection  # the function is the program's
async def retry(
    core: DeviceCore, function: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts], attempts: int
) -> T:
    """Implement ``Device.retry``."""
    given: object = function
    if isinstance(given, CoroutineType):
        name = given.__name__
        said_of(given)  # closes it
        raise TypeError(
            "retry takes an async function and its arguments, not a coroutine, which runs but "
            f"once: write `device.retry({name}, x)` in place of `device.retry({name}(x))`"
        )
    if not callable(function):
        raise TypeError(
            f"retry takes an async function and its arguments, not {said_of(function)}: "
            "`await device.retry(function, x)` calls it, as often as need be"
        )
    if isinstance(attempts, bool) or not isinstance(attempts, int):
        raise TypeError(f"attempts must be a whole number, not {attempts!r}")
    if attempts < 1:
        raise ValueError(f"attempts must be positive, not {attempts}")
    earlier = EarlierErrors()
    number = core.again.number()
    while True:
        generation = core.memory.generation
        made = function(*args)
        if not inspect.isawaitable(made):
            raise TypeError(f"retry takes an async function; {function!r} returned {made!r}")
        try:
            return await made
        except Exception as error:
            rebuilt = core.memory.generation != generation
            if not _may_help(error, rebuilt=rebuilt) or len(earlier) + 1 == attempts:
                earlier.tell(error)
                raise
            earlier.add(error)
        await core.ready()
        await core.again.wait(number)


def _may_help(error: Exception, *, rebuilt: bool) -> bool:
    """Return True if another attempt may succeed, because only a fault caused the errors."""
    if isinstance(error, ExceptionGroup):
        return all(_may_help(one, rebuilt=rebuilt) for one in error.exceptions)
    if isinstance(error, GpuRefStale) and not rebuilt:
        error.add_note("the buffer was stale from the first: make it in the function, or seal it")
        return False
    return isinstance(error, (ContextPoisoned, GpuRefStale))
