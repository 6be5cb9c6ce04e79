"""CUDA's graphs without CUDA: what ``CudaRecordings`` asks of the driver, done on the host.

The steps' executors are those of the CPU backend, and their work is captured while a stream
captures. It refuses the same calls as the driver, and ``alive`` shows the objects that are left
behind.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_accel.host import host as _host
from atomr_accel.libraries.recordings.host import _steps
from atomr_accel.wire.control import find_class

from .driver import FakeDriver, installed

INVALID_VALUE = 1
NOT_SUPPORTED = 801
UPDATE_FAILURE = 910
RECORDINGS = "atomr_accel.libraries.recordings.host._cpu:CpuRecordings"


@dataclass(eq=False)
class Node:
    """A node: work of the host, a child graph, or a conditional with its body."""

    run: Callable[[], object] | None = None
    child: Graph | None = None
    handle: int = 0
    loops: bool = False


@dataclass(eq=False)
class Graph:
    nodes: list[Node] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)

    def __int__(self) -> int:
        return id(self)

    def copy(self) -> Graph:
        nodes = [
            Node(node.run, node.child and node.child.copy(), node.handle, node.loops)
            for node in self.nodes
        ]
        return Graph(nodes, list(self.handles))

    def shape(self) -> list[Any]:
        """Return the properties that an update must not change."""
        return [node.child.shape() if node.child else None for node in self.nodes]

    def hollow(self) -> bool:
        """Return whether a graph inside has no nodes."""
        return any(n.child and (not n.child.nodes or n.child.hollow()) for n in self.nodes)

    def conditionals(self) -> list[int]:
        found = [node.handle for node in self.nodes if node.handle]
        return found + [h for n in self.nodes if n.child for h in n.child.conditionals()]


class Driver(FakeDriver):
    """The driver's functions on graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing: list[Node] | None = None
        self.alive: set[Any] = set()
        self.values: dict[int, int] = {}
        self.updates: list[int] = []
        self.memory: Callable[[int, int], Any]

    def make(self, thing: Any) -> Any:
        self.alive.add(thing)
        return 0, thing

    def destroy(self, thing: Any) -> tuple[int]:
        self.alive.remove(thing)
        return (0,)

    # --- capture --------------------------------------------------------------------------

    def cuStreamBeginCapture(self, stream: object, mode: object) -> tuple[int]:  # noqa: N802
        assert self.capturing is None, "a capture inside a capture"
        self.capturing = []
        return (0,)

    def cuStreamEndCapture(self, stream: object) -> Any:  # noqa: N802
        assert self.capturing is not None
        nodes, self.capturing = self.capturing, None
        return self.make(Graph(nodes))

    def work(self, run: Callable[[], object]) -> None:
        """Queue an executor's work."""
        if self.capturing is None:
            run()
        else:
            self.capturing.append(Node(run))

    # --- graphs ---------------------------------------------------------------------------

    def cuGraphCreate(self, flags: int) -> Any:  # noqa: N802
        return self.make(Graph())

    def cuGraphDestroy(self, graph: Graph) -> tuple[int]:  # noqa: N802
        return self.destroy(graph)

    def cuGraphGetNodes(self, graph: Graph, count: int) -> Any:  # noqa: N802
        return 0, [], len(graph.nodes)

    def _add(self, graph: Graph, last: list[Node] | None, count: int, node: Node) -> Any:
        # All that is built here is a chain, so what runs is the list of nodes.
        if [*(last or ())] != graph.nodes[-1:] or count != len(last or ()):
            return INVALID_VALUE, None
        graph.nodes.append(node)
        return 0, node

    def cuGraphAddChildGraphNode(  # noqa: N802
        self, graph: Graph, last: list[Node] | None, count: int, child: Graph
    ) -> Any:
        if child.conditionals():
            return NOT_SUPPORTED, None
        return self._add(graph, last, count, Node(child=child.copy()))

    def cuGraphAddEmptyNode(self, graph: Graph, last: None, count: int) -> Any:  # noqa: N802
        return self._add(graph, last, count, Node(lambda: None))

    def cuGraphAddKernelNode(  # noqa: N802
        self, graph: Graph, last: list[Node] | None, count: int, parameters: Any
    ) -> Any:
        assert parameters.func == "set_conditional"
        extra = (ctypes.c_void_p * 5).from_address(parameters.extra)
        size = ctypes.c_size_t.from_address(extra[3] or 0).value
        packed = ctypes.string_at(extra[1] or 0, size)
        handle, address, nbytes = struct.unpack("QQI", packed)

        def run() -> None:
            self.values[handle] = int(self.memory(address, nbytes).any())

        return self._add(graph, last, count, Node(run))

    def cuGraphConditionalHandleCreate(  # noqa: N802
        self, root: Graph, context: object, value: int, flags: int
    ) -> Any:
        handle = len(self.values) + 1
        self.values[handle] = 0
        root.handles.append(handle)
        return 0, handle

    def cuGraphAddNode(self, graph: Graph, last: list[Node], *rest: Any) -> Any:  # noqa: N802
        count, parameters = rest[-2:]
        conditional = parameters.conditional
        body = Graph()
        conditional.phGraph_out = [body]
        loops = conditional.type is self.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        return self._add(graph, last, count, Node(None, body, conditional.handle, loops))

    def cuGraphInstantiate(self, graph: Graph, flags: int) -> Any:  # noqa: N802
        if sorted(graph.handles) != sorted(graph.conditionals()) or graph.hollow():
            return INVALID_VALUE, None
        return self.make(SimpleExec(graph.copy()))

    def cuGraphExecUpdate(self, executable: SimpleExec, graph: Graph) -> Any:  # noqa: N802
        assert not graph.conditionals()
        fits = executable.graph.shape() == graph.shape()
        self.updates.append(fits)
        if fits:
            executable.graph = graph.copy()
        return (0 if fits else UPDATE_FAILURE), None

    def cuGraphExecDestroy(self, executable: SimpleExec) -> tuple[int]:  # noqa: N802
        return self.destroy(executable)

    def cuGraphLaunch(self, executable: SimpleExec, stream: object) -> tuple[int]:  # noqa: N802
        self._run(executable.graph)
        return (0,)

    def _run(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.run is not None:
                node.run()
                continue
            assert node.child is not None
            if not node.handle:
                self._run(node.child)
            while node.handle and self.values[node.handle]:
                self._run(node.child)
                if not node.loops:
                    break

    # --- the kernel -----------------------------------------------------------------------

    def cuCtxGetCurrent(self) -> Any:  # noqa: N802
        return 0, "context"

    def cuModuleLoadData(self, image: bytes) -> Any:  # noqa: N802
        return self.make(image.decode())

    def cuModuleGetFunction(self, module: str, name: bytes) -> Any:  # noqa: N802
        assert f".entry {name.decode()}" in module
        return 0, name.decode()

    def cuModuleUnload(self, module: str) -> tuple[int]:  # noqa: N802
        return self.destroy(module)


@dataclass(eq=False)
class SimpleExec:
    graph: Graph


class Stream:
    """The stream that is captured, and all others."""

    handle = "stream"
    captures = True

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, thing: object, give_back: Callable[[], object]) -> None:
        self.kept.append((thing, give_back))

    def follow(self, _other: object) -> None:
        """Everything is done at once."""

    def synchronize(self) -> None:
        """Everything is done."""

    def close(self) -> None:
        """Nothing is held."""


class Executor:
    """An executor of the CPU backend whose work is captured while the stream captures."""

    def __init__(self, fake: Driver, stream: Stream, inner: Any) -> None:
        def captured(handler: Callable[[Any], Any], message: Any) -> None:
            if fake.capturing is None:
                handler(message)
                return
            _, needed = fake.make(object())
            stream.keep(needed, partial(fake.destroy, needed))

            def run() -> None:
                assert needed in fake.alive, "given back, though the graph is launched"
                handler(message)

            fake.work(run)

        self.handlers = {
            kind: partial(captured, handler) for kind, handler in inner.handlers.items()
        }
        self.close = inner.close


@contextmanager
def graphs(driver_version: int = 13000) -> Iterator[Driver]:
    """Have the CPU backend replay recordings as graphs; needs ``isolation="thread"``."""
    from atomr_accel.libraries.recordings.host import _cuda

    fake = Driver()
    stream: Any = Stream()

    def recordings(context: Any, _stream: Any) -> Any:
        fake.memory = context.bytes_at
        cuda: Any = SimpleNamespace(
            capture_stream=lambda: stream,
            info=SimpleNamespace(driver_version=driver_version),
            pointer=lambda address: address,
            cpu=context,
        )
        return _cuda.CudaRecordings(cuda, stream)

    def load_recordings(what: str, reference: str) -> Any:
        return recordings if reference == RECORDINGS else find_class(what, reference)

    def load_step(what: str, reference: str) -> Any:
        return lambda context, stream: Executor(
            fake, stream, find_class(what, reference)(context.cpu, stream)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_host, "find_class", load_recordings)
        patch.setattr(_steps, "find_class", load_step)
        with installed(fake):
            yield fake
