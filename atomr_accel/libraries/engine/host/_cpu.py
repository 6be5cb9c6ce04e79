"""Engines on the CPU backend: tensors are the buffers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ._engines import EngineExecutor

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream


@final
class CpuEngines(EngineExecutor):
    """Runs engines in the host's memory."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        super().__init__(context, ("cpu", 0), ["CPUExecutionProvider"])
