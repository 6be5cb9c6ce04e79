"""Nurseries that one failure leaves as itself, not in a group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio

from ._errors import ActorStopped
from ._records import identity
from .deciders import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


@final
class PlainNursery:
    """``async with PlainNursery() as nursery:``, a nursery that wraps no single failure.

    A single exception leaves the block unchanged, with its traceback, cause and context. Several
    exceptions leave it as a group. Only the group that this nursery would make is removed: a
    group that was raised inside stays a group. If tasks fail because of the exception that the
    block itself raised, it is raised once, without theirs. Trio's setting for strict exception
    groups makes no difference.

    A cancellation next to a failure is dropped, as if the failure had replaced it in a
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
            failure = plain(group if error is None else _told_once(group, error))
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
    """Return the failure itself if a group was made only to wrap it."""
    failures = [part for part in group.exceptions if not isinstance(part, trio.Cancelled)]
    if not failures:
        return group.exceptions[0]
    return failures[0] if len(failures) == 1 else group


def _told_once(
    group: BaseExceptionGroup[BaseException], error: BaseException
) -> BaseExceptionGroup[BaseException]:
    """The group without what failed because of the very error that the body raised.

    Such as a supervisor that gave up because of a failure that ``ask`` has told the body, too. If
    the body itself only missed an actor that ended with such a failure, the others tell more.
    """
    # Its cancellations have been taken out on the way, if it is a group.
    own = [part for part in group.exceptions if part is error or _is_copy(part, _failed(error))]
    rest = [part for part in group.exceptions if part not in own]
    reasons = {identity(cause) for part in rest for cause in _causes(part)}
    if own and all(_only_missed(leaf, reasons) for leaf in leaves(own[0])):
        return group.derive(rest).with_traceback(group.__traceback__)
    told = set(map(identity, leaves(error)))
    others = [part for part in group.exceptions if told.isdisjoint(map(identity, _causes(part)))]
    if not own or len(others) + 1 == len(group.exceptions):
        return group
    return group.derive([own[0], *others]).with_traceback(group.__traceback__)


def _only_missed(failure: BaseException, reasons: set[int]) -> bool:
    """True if it is the ``ActorStopped`` of an actor that ended for one of these reasons."""
    missed = isinstance(failure, ActorStopped)
    return missed and not reasons.isdisjoint(map(identity, _causes(failure)))


def _causes(failure: BaseException) -> Iterator[BaseException]:
    """Yield all exceptions of a failure, and their causes."""
    seen: set[int] = set()
    todo = [*leaves(failure)]
    while todo:
        part = todo.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            if part.__cause__ is not None:
                todo += leaves(part.__cause__)


def _failed(error: BaseException) -> BaseException | None:
    """An error without the cancellations in it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return error.split(trio.Cancelled)[1]


def _is_copy(failure: BaseException, error: BaseException | None) -> bool:
    """True if it is a copy of the body's group, with the same errors: cancel scopes copy groups."""
    if not isinstance(failure, BaseExceptionGroup) or not isinstance(error, BaseExceptionGroup):
        return False
    return list(map(id, leaves(failure))) == list(map(id, leaves(error)))


def tasks_around() -> Iterator[tuple[trio.lowlevel.Task, int]]:
    """Yield this task, and those that wait for it to end: its nursery's, that one's, and so on.

    With each comes the number of the task's nurseries that are open around the one in question.
    """
    task = trio.lowlevel.current_task()
    depth = len(task.child_nurseries)
    while True:
        yield task, depth
        nursery = task.parent_nursery
        if nursery is None or nursery.parent_task is None:
            return
        task = nursery.parent_task
        depth = task.child_nurseries.index(nursery)
