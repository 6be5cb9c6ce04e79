"""Programs on CUDA: graphs, captured from the libraries' own calls."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from ...backends.cuda._driver import check, driver
from ._messages import Describe, Forget, Record, Replay
from ._steps import Steps

if TYPE_CHECKING:
    from ...backends.cuda._context import CudaContext, CudaStream

_RELAXED: Final = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@dataclass(frozen=True, slots=True)
class _Program:
    graph: Any
    executable: Any


@final
class CudaPrograms:
    """Captures steps into graphs and launches them."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._stream: Final = stream
        self._steps: Final = Steps(context, stream)
        self._programs: dict[int, _Program] = {}
        self.handlers: Final = {
            Record: self._record,
            Replay: self._replay,
            Forget: self._forget,
            Describe: self._describe,
        }

    def close(self) -> None:
        """Release the graphs and close the executors."""
        for number in list(self._programs):
            self._forget(Forget(number))
        self._steps.close()

    def _record(self, message: Record) -> None:
        try:
            self._capture(message)
        except BaseException:
            self._forget(Forget(message.program))  # nothing is replayed, not with other buffers
            raise

    def _capture(self, message: Record) -> None:
        for handler, step in self._steps.bind(message.prepare):
            handler(step)
        bound = self._steps.bind(message.steps)
        stream = self._stream.handle
        # Relaxed, because libraries allocate and load modules when first called, which
        # the stricter modes forbid while any stream of the process captures.
        check("cuStreamBeginCapture", driver.cuStreamBeginCapture(stream, _RELAXED))
        try:
            for handler, step in bound:
                handler(step)
        except BaseException:
            driver.cuStreamEndCapture(stream)
            raise
        graph = check("cuStreamEndCapture", driver.cuStreamEndCapture(stream))
        former = self._programs.pop(message.program, None)
        executable = None
        if former is not None:
            # The same steps on other buffers: change the parameters in place.
            status, _ = driver.cuGraphExecUpdate(former.executable, graph)
            if int(status) == 0:
                executable = former.executable
            else:
                check("cuGraphExecDestroy", driver.cuGraphExecDestroy(former.executable))
            check("cuGraphDestroy", driver.cuGraphDestroy(former.graph))
        if executable is None:
            executable = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
        self._programs[message.program] = _Program(graph, executable)

    def _replay(self, message: Replay) -> None:
        program = self._programs[message.program]
        check("cuGraphLaunch", driver.cuGraphLaunch(program.executable, self._stream.handle))

    def _forget(self, message: Forget) -> None:
        program = self._programs.pop(message.program, None)
        if program is None:
            return  # it could not be made
        self._stream.synchronize()
        check("cuGraphExecDestroy", driver.cuGraphExecDestroy(program.executable))
        check("cuGraphDestroy", driver.cuGraphDestroy(program.graph))

    def _describe(self, message: Describe) -> str:
        graph = self._programs[message.program].graph
        fd, path = tempfile.mkstemp(suffix=".dot")
        os.close(fd)
        try:
            check("cuGraphDebugDotPrint", driver.cuGraphDebugDotPrint(graph, path.encode(), 0))
            return Path(path).read_text()
        finally:
            Path(path).unlink()
