"""Recordings on the CPU: lists of ops, and of lists."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, final

from ....backends.cpu.host.memory import CpuMemory
from ....wire import Copy
from ....wire.blackbox import CURRENT, NODE
from ..wire.messages import (
    Describe,
    ForgetRecording,
    PrepareRecording,
    Replay,
    ReplayTogether,
)
from ._steps import BoundStep, RecordingExecutors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire.messages import Section
    from ._steps import Bound


@final
class CpuRecordings:
    """Executes recordings one op after the other."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        self._context: Final = context
        self._steps: Final = RecordingExecutors(context, stream)
        self._copy: Final = CpuMemory(context, stream).handlers[Copy]
        self._recordings: dict[int, list[Bound]] = {}
        self.handlers: Final = {
            PrepareRecording: self._record,
            Replay: self._replay,
            ReplayTogether: self._replay_together,
            ForgetRecording: self._forget,
            Describe: self._describe,
        }

    def close(self) -> None:
        """Close the executors."""
        self._steps.close()

    def _record(self, message: PrepareRecording) -> None:
        self._context.check()
        self._recordings.pop(message.recording, None)  # should this fail, nothing is replayed
        self._steps.prepare(message.prepare, message.recording)
        self._recordings[message.recording] = self._steps.bind(message.nodes)

    def _replay(self, message: Replay) -> None:
        self._context.check()
        self._execute(self._recordings[message.recording], CURRENT.words)
        for each in message.copies:
            self._copy(each)

    def _replay_together(self, message: ReplayTogether) -> None:
        self._steps.execute(message.first)
        self._replay(Replay(message.recording))

    def _execute(self, nodes: list[Bound], record: memoryview) -> None:
        for node in nodes:
            if isinstance(node, BoundStep):
                record[NODE] = node.number
                node.handler(node.message)
                continue
            section = node.section
            if section.kind == "loop":
                while self._is_set(section):
                    self._execute(node.nodes, record)
            elif section.kind == "call" or self._is_set(section):
                self._execute(node.nodes, record)

    def _is_set(self, section: Section) -> bool:
        return bool(self._context.bytes_at(section.flag, section.nbytes).any())

    def _forget(self, message: ForgetRecording) -> None:
        self._recordings.pop(message.recording, None)  # it may never have been made
        self._steps.forget(message.recording)

    def _describe(self, message: Describe) -> str:
        numbers = itertools.count()
        return "\n".join(
            ["digraph recording {", *_chain(self._recordings[message.recording], numbers), "}"]
        )


def _chain(nodes: list[Bound], numbers: Iterator[int]) -> Iterator[str]:
    """Nodes of a graph, one after the other; sections are clusters of their own."""
    before = None
    for node in nodes:
        number = next(numbers)
        if isinstance(node, BoundStep):
            yield f'  op{number} [label="{node.name}"];'
        else:
            yield f'  op{number} [label="{node.section.kind}" shape=diamond];'
            yield f"  subgraph cluster{number} {{"
            yield from (f"  {line}" for line in _chain(node.nodes, numbers))
            yield "  }"
        if before is not None:
            yield f"  op{before} -> op{number};"
        before = number
