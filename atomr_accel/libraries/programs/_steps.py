"""Executing other libraries' messages on one lane, with executors of its own."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, final

import msgspec

from ...host import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...host import Executor
    from ._messages import Step


@final
class Steps:
    """Executors by name, all on one stream, and decoders for their messages."""

    def __init__(self, context: Any, stream: Any) -> None:
        self._context = context
        self._stream = stream
        self._executors: dict[str, tuple[Executor, Callable[[bytes], Any]]] = {}

    def bind(self, steps: tuple[Step, ...]) -> list[tuple[Callable[[Any], Any], Any]]:
        """Each step as a handler and its message."""
        bound = []
        for step in steps:
            executor, decode = self._executor(step.executor)
            message = decode(step.message)
            bound.append((executor.handlers[type(message)], message))
        return bound

    def close(self) -> None:
        """Close the executors."""
        for executor, _ in self._executors.values():
            executor.close()

    def _executor(self, reference: str) -> tuple[Executor, Callable[[bytes], Any]]:
        found = self._executors.get(reference)
        if found is None:
            executor: Executor = load(reference)(self._context, self._stream)
            union = reduce(operator.or_, executor.handlers)
            found = executor, msgspec.msgpack.Decoder(union).decode
            self._executors[reference] = found
        return found
