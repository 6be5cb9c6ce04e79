"""Execution of other libraries' messages on one lane, with its own executors."""

from __future__ import annotations

import itertools
import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import msgspec

from ....wire.control import find_class
from ..wire.messages import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ....wire import Message
    from ....wire.interface import Executor
    from ..wire.messages import Node, RecordingStep


class BoundStep(NamedTuple):
    """A step with its executor.

    Attributes:
        number: its place among the steps of the recording and its parts, from 1 on.
    """

    name: str
    handler: Callable[[Any], Any]
    message: Any
    number: int = 0


class BoundSection(NamedTuple):
    """A section with its nodes and their executors."""

    section: Section
    nodes: list[BoundStep | BoundSection]


Bound: TypeAlias = BoundStep | BoundSection


@final
class RecordingExecutors:
    """Executors by name, all on one stream, and decoders for their messages."""

    def __init__(self, context: Any, stream: Any) -> None:
        self._context = context
        self._stream = stream
        self._executors: dict[str, tuple[Executor, Callable[[bytes], Any]]] = {}
        self._users: dict[tuple[str, Message], set[int]] = {}

    def prepare(self, steps: Iterable[RecordingStep], recording: int) -> None:
        """Execute now the steps whose effect a recording needs only once."""
        for step in steps:
            bound = self._bind_step(step)
            undo = getattr(bound.message, "undo", None)
            if undo is not None:
                self._users.setdefault((step.executor, undo()), set()).add(recording)
            bound.handler(bound.message)

    def execute(self, steps: Iterable[RecordingStep]) -> None:
        """Execute steps now."""
        for step in steps:
            bound = self._bind_step(step)
            bound.handler(bound.message)

    def forget(self, recording: int) -> None:
        """Undo preparations that served this recording and no other remaining one."""
        for key, users in list(self._users.items()):
            users.discard(recording)
            if not users:
                del self._users[key]
                executor, message = key
                self._executor(executor)[0].handlers[type(message)](message)

    def bind(self, nodes: Iterable[Node], numbers: Iterator[int] | None = None) -> list[Bound]:
        """Return the nodes with their executors."""
        numbers = itertools.count(1) if numbers is None else numbers
        return [
            BoundSection(node, self.bind(node.nodes, numbers))
            if isinstance(node, Section)
            else self._bind_step(node, next(numbers))
            for node in nodes
        ]

    def _bind_step(self, step: RecordingStep, number: int = 0) -> BoundStep:
        executor, decode = self._executor(step.executor)
        message = decode(step.message)
        return BoundStep(step.name, executor.handlers[type(message)], message, number)

    def close(self) -> None:
        """Close the executors."""
        for executor, _ in self._executors.values():
            executor.close()

    def _executor(self, reference: str) -> tuple[Executor, Callable[[bytes], Any]]:
        found = self._executors.get(reference)
        if found is None:
            kind = find_class("the executor of a recorded call", reference)
            executor: Executor = kind(self._context, self._stream)
            union = reduce(operator.or_, executor.handlers)
            found = executor, msgspec.msgpack.Decoder(union).decode
            self._executors[reference] = found
        return found
