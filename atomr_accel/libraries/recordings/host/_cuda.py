"""Recordings on CUDA: graphs, captured from the libraries' own calls."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from ....backends.cuda.host.driver import check, driver
from ....backends.cuda.host.memory import CudaMemory
from ....wire import Copy
from ..wire.messages import (
    Describe,
    ForgetRecording,
    PrepareRecording,
    Replay,
    ReplayTogether,
)
from ._graph import GraphMaker, conditional, waiting
from ._steps import RecordingExecutors

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream, Kept
    from ._steps import Bound


@dataclass(frozen=True, slots=True)
class _CudaRecording:
    """A graph in the form in which it is launched.

    Attributes:
        fixed: whether its parameters cannot be changed in place.
        kept: objects that its launches need besides the recording's buffers.
    """

    graph: Any
    executable: Any
    fixed: bool
    kept: list[Kept]


@final
class CudaRecordings:
    """Captures steps into graphs and launches them."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._stream: Final = stream
        self._copy: Final = CudaMemory(context, stream).handlers[Copy]
        self._captured: Final = context.capture_stream()
        self._steps: Final = RecordingExecutors(context, self._captured)
        self._graphs: Final = GraphMaker(context, self._captured)
        self._recordings: dict[int, _CudaRecording] = {}
        self.handlers: Final = {
            PrepareRecording: self._record,
            Replay: self._replay,
            ReplayTogether: self._replay_together,
            ForgetRecording: self._forget,
            Describe: self._describe,
        }

    def close(self) -> None:
        """Release the graphs and close the executors."""
        for number in list(self._recordings):
            self._forget(ForgetRecording(number))
        self._graphs.close()
        self._steps.close()
        self._captured.close()

    def _record(self, message: PrepareRecording) -> None:
        try:
            self._capture(message)
        except BaseException:
            self._forget(
                ForgetRecording(message.recording)
            )  # nothing is replayed, not with other buffers
            raise

    def _capture(self, message: PrepareRecording) -> None:
        if message.prepare:
            # Graphs are launched on another stream: those in flight come before, the next after.
            self._captured.follow(self._stream)
            self._steps.prepare(message.prepare, message.recording)
            self._stream.follow(self._captured)
        nodes = self._steps.bind(message.nodes)
        kept = self._captured.kept = []
        try:
            graph = self._graphs.build(nodes)
            try:
                self._take(message.recording, graph, nodes, kept)
            except BaseException:
                driver.cuGraphDestroy(graph)
                raise
        except BaseException:
            _give_back(kept)
            raise

    def _take(self, number: int, graph: Any, nodes: list[Bound], kept: list[Kept]) -> None:
        """Launch a graph from now on as the recording of that number."""
        # The kernels that look at flags have their graph's own handles as arguments, which
        # an update would put into a graph that has others. A communicator cannot be ended while
        # there is a graph with ops of it, and an updated graph has its former ops as well.
        fixed = conditional(nodes) or waiting(nodes)
        former = self._recordings.pop(number, None)
        executable = None
        if former is not None:
            if not fixed and not former.fixed:
                # If the nodes differ only in buffers, change the parameters in place.
                status, _ = driver.cuGraphExecUpdate(former.executable, graph)
                if int(status) == 0:
                    executable = former.executable
            if executable is None or former.kept:
                self._stream.synchronize()  # launches of the former graph may be under way
            if executable is None:
                check("cuGraphExecDestroy", driver.cuGraphExecDestroy(former.executable))
            check("cuGraphDestroy", driver.cuGraphDestroy(former.graph))
            _give_back(former.kept)
        if executable is None:
            executable = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
        self._recordings[number] = _CudaRecording(graph, executable, fixed, kept)

    def _replay(self, message: Replay) -> None:
        recording = self._recordings[message.recording]
        check("cuGraphLaunch", driver.cuGraphLaunch(recording.executable, self._stream.handle))
        for each in message.copies:
            self._copy(each)

    def _replay_together(self, message: ReplayTogether) -> None:
        self._steps.execute(message.first)
        self._replay(Replay(message.recording))

    def _forget(self, message: ForgetRecording) -> None:
        recording = self._recordings.pop(message.recording, None)
        if recording is not None:  # it could be made
            self._stream.synchronize()
            check("cuGraphExecDestroy", driver.cuGraphExecDestroy(recording.executable))
            check("cuGraphDestroy", driver.cuGraphDestroy(recording.graph))
            _give_back(recording.kept)
        self._steps.forget(message.recording)

    def _describe(self, message: Describe) -> str:
        graph = self._recordings[message.recording].graph
        fd, path = tempfile.mkstemp(suffix=".dot")
        os.close(fd)
        try:
            check("cuGraphDebugDotPrint", driver.cuGraphDebugDotPrint(graph, path.encode(), 0))
            return Path(path).read_text()
        finally:
            Path(path).unlink()


def _give_back(kept: list[Kept]) -> None:
    """Free memory that no launch needs any more."""
    while kept:
        _, give_back = kept.pop()
        give_back()
