"""Executing other libraries' messages on one lane, with executors of its own."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import msgspec

from ...host import load
from ._messages import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...host import Executor
    from ._messages import Node, Step


class BoundStep(NamedTuple):
    """A step with what executes it."""

    name: str
    handler: Callable[[Any], Any]
    message: Any


class BoundSection(NamedTuple):
    """A section with what executes its nodes."""

    section: Section
    nodes: list[BoundStep | BoundSection]


Bound: TypeAlias = BoundStep | BoundSection


@final
class Steps:
    """Executors by name, all on one stream, and decoders for their messages."""

    def __init__(self, context: Any, stream: Any) -> None:
        self._context = context
        self._stream = stream
        self._executors: dict[str, tuple[Executor, Callable[[bytes], Any]]] = {}

    def prepare(self, steps: Iterable[Step]) -> None:
        """Execute steps now, those of which a program needs the effect only once."""
        for step in steps:
            bound = self._bind_step(step)
            bound.handler(bound.message)

    def bind(self, nodes: Iterable[Node]) -> list[Bound]:
        """Each node with what executes it."""
        return [
            BoundSection(node, self.bind(node.nodes))
            if isinstance(node, Section)
            else self._bind_step(node)
            for node in nodes
        ]

    def _bind_step(self, step: Step) -> BoundStep:
        executor, decode = self._executor(step.executor)
        message = decode(step.message)
        return BoundStep(step.name, executor.handlers[type(message)], message)

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
