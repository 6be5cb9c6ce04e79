"""Nurseries that one failure leaves as itself, not in a group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio

from ._deciders import leaves

if TYPE_CHECKING:
    from types import TracebackType


@final
class PlainNursery:
    """``async with PlainNursery() as nursery:``, a nursery that wraps no single failure.

    What leaves the block is what went wrong: the one exception, with its traceback, its cause
    and its context; or, where several things failed, a group of them. Only the group that this
    nursery itself would make is taken off: a group that somebody raised inside stays what it is.
    Whether the program runs trio with strict exception groups makes no difference.

    A cancellation beside a failure is dropped, as it is where a failure replaces it in a
    ``finally`` block.
    """

    __slots__ = ("_manager",)

    async def __aenter__(self) -> trio.Nursery:
        # Strict, so that it always makes a group, and we know which one it has made.
        self._manager = trio.open_nursery(strict_exception_groups=True)
        return await self._manager.__aenter__()

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        failure: BaseException
        try:
            return bool(await self._manager.__aexit__(kind, error, traceback))
        except BaseExceptionGroup as group:
            failure = plain(group)
        try:
            if failure is error or _is_copy(failure, error):
                return False  # it goes on as if there were no nursery
            context = failure.__context__
            try:
                raise failure
            finally:
                failure.__context__ = context  # and not what else is being handled here
        finally:
            del failure, error  # the tracebacks have this frame in them


def plain(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, where a group was made of whatever was raised."""
    failures = [part for part in group.exceptions if not isinstance(part, trio.Cancelled)]
    if not failures:
        return group.exceptions[0]
    return failures[0] if len(failures) == 1 else group


def _is_copy(failure: BaseException, error: BaseException | None) -> bool:
    """Whether it is a group of the body's, with the same in it: cancel scopes copy groups."""
    if not isinstance(failure, BaseExceptionGroup) or not isinstance(error, BaseExceptionGroup):
        return False
    return list(map(id, leaves(failure))) == list(map(id, leaves(error)))
