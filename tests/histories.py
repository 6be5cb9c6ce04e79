"""Histories of concurrent operations, and whether they are linearizable.

A history is linearizable if each operation can have happened in one moment between its call and its
return, so that all results are those of a sequential model. An operation whose outcome is unknown,
such as one whose caller was cancelled, may have happened at any moment after its call, or never.

    history = History()
    async with history.operation(("write", 3)) as done:
        done(await register.write(3))
    assert linearizable(history.operations, None, step)

``step(state, action)`` returns the result that the model gives, and its next state, which must be
hashable. For a model of many keys, check the operations of each key for themselves.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

UNKNOWN: Final = object()
"""Result of an operation whose outcome is unknown."""


@dataclass(frozen=True)
class Operation:
    """An operation, its result, and the moments of its call and its return."""

    action: Any
    result: Any
    called: float
    returned: float

    @property
    def known(self) -> bool:
        return self.result is not UNKNOWN


class History:
    """Records operations, in the order in which tasks call and return."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._time = 0

    def now(self) -> int:
        """A new moment."""
        self._time += 1
        return self._time

    @asynccontextmanager
    async def operation(self, action: Any) -> AsyncIterator[Callable[[Any], None]]:
        """Record an operation, whose outcome is unknown if the block says no result."""
        called = self.now()
        results: list[Any] = []
        try:
            yield results.append
        finally:
            result, returned = (results[0], self.now()) if results else (UNKNOWN, math.inf)
            self.operations.append(Operation(action, result, called, returned))


def linearizable(
    operations: Sequence[Operation],
    initial: Hashable,
    step: Callable[[Any, Any], tuple[Any, Any]],
) -> bool:
    """Return whether a history is linearizable (Wing and Gong's search, with Lowe's memory)."""
    ordered = sorted(operations, key=lambda each: each.called)
    needed = sum(1 << at for at, each in enumerate(ordered) if each.known)
    seen: set[tuple[int, Hashable]] = set()
    todo: list[tuple[int, Any]] = [(0, initial)]
    while todo:
        done, state = todo.pop()
        if done & needed == needed:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        # An operation can be the next one if none that is left returned before it was called.
        first = min(each.returned for at, each in enumerate(ordered) if not done >> at & 1)
        for at, each in enumerate(ordered):
            if each.called > first:
                break
            if not done >> at & 1:
                result, following = step(state, each.action)
                if not each.known or result == each.result:
                    todo.append((done | 1 << at, following))
    return False
