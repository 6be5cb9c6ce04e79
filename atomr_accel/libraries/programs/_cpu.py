"""Programs on the CPU: lists of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ._messages import Describe, Forget, Record, Replay
from ._steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...backends.cpu._context import CpuContext, CpuStream


@final
class CpuPrograms:
    """Executes programs one op after the other."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        self._context: Final = context
        self._steps: Final = Steps(context, stream)
        self._programs: dict[int, list[tuple[Callable[[Any], Any], Any]]] = {}
        self._names: dict[int, list[str]] = {}
        self.handlers: Final = {
            Record: self._record,
            Replay: self._replay,
            Forget: self._forget,
            Describe: self._describe,
        }

    def close(self) -> None:
        """Close the executors."""
        self._steps.close()

    def _record(self, message: Record) -> None:
        self._context.check()
        self._programs.pop(message.program, None)  # should this fail, nothing is replayed
        for handler, step in self._steps.bind(message.prepare):
            handler(step)
        self._programs[message.program] = self._steps.bind(message.steps)
        self._names[message.program] = [step.name for step in message.steps]

    def _replay(self, message: Replay) -> None:
        self._context.check()
        for handler, step in self._programs[message.program]:
            handler(step)

    def _forget(self, message: Forget) -> None:
        self._programs.pop(message.program, None)  # it may never have been made
        self._names.pop(message.program, None)

    def _describe(self, message: Describe) -> str:
        names = self._names[message.program]
        nodes = [f'  op{i} [label="{name}"];' for i, name in enumerate(names)]
        edges = [f"  op{i} -> op{i + 1};" for i in range(len(names) - 1)]
        return "\n".join(["digraph program {", *nodes, *edges, "}"])
