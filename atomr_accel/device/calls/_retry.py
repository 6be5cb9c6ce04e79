"""Asking again after a fault."""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from ..._errors import (
    ContextPoisoned,
    EarlierErrors,
    GpuRefStale,
    KernelHung,
    is_awaitable,
    said_of,
)
from ...wire.options import count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..core import DeviceCore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
    attempts = count(attempts, "attempts")
    earlier = EarlierErrors()
    number = core.again.number()
    while True:
        generation = core.memory.generation
        made = function(*args)
        if not is_awaitable(made):
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
    if isinstance(error, KernelHung) and error.culprit:
        return False  # it would hang again, and take down all others again
    return isinstance(error, (ContextPoisoned, GpuRefStale))
