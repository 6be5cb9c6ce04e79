"""CUDA graphs of recordings: captured steps, child graphs, conditional nodes.

A driver cannot capture into a graph while it captures another, and every library's handle has one
stream. So runs of steps are captured one after the other, each into its own graph, which becomes a
child graph of the enclosing graph.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments
from ....executors.device_code import read_kernels
from ._steps import BoundSection, BoundStep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire.messages import Section
    from ._steps import Bound


CONDITIONAL_DRIVER: Final = 12030
"""First driver with conditional nodes: the one of CUDA 12.3."""


def conditional(nodes: Iterable[Bound]) -> bool:
    """Return whether any node, at any depth, depends on a flag."""
    return any(
        isinstance(node, BoundSection) and (node.section.kind != "call" or conditional(node.nodes))
        for node in nodes
    )


def waiting(nodes: Iterable[Bound]) -> bool:
    """Return whether any node, at any depth, waits for other devices."""
    return any(
        waiting(node.nodes) if isinstance(node, BoundSection) else node.message.waits
        for node in nodes
    )


@final
class GraphMaker:
    """Makes graphs."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context = context
        self._stream: Final = stream
        self._module: Any = None
        self._set_conditional: Any = None

    def close(self) -> None:
        """Unload the kernel."""
        if self._module is not None:
            check("cuModuleUnload", driver.cuModuleUnload(self._module))

    def build(self, nodes: list[Bound]) -> Any:
        """The graph of some nodes.

        Raises:
            Unsupported: a flag decides on some of them, which the driver cannot do.
        """
        if all(isinstance(node, BoundStep) for node in nodes):
            return self._capture(nodes)
        if conditional(nodes):
            self._load()
        graph = check("cuGraphCreate", driver.cuGraphCreate(0))
        try:
            self._fill(graph, graph, [], nodes)
        except BaseException:
            driver.cuGraphDestroy(graph)
            raise
        return graph

    def _fill(self, graph: Any, root: Any, last: list[Any], nodes: list[Bound]) -> list[Any]:
        """Add nodes to a graph after the node ``last``; return the last node, if there is one.

        Args:
            graph: the graph to extend; it may be the body of a conditional node.
            root: the outermost graph.
            last: the node before them, as a list; empty for none.
            nodes: the nodes to add.
        """
        for plain, group in itertools.groupby(nodes, lambda node: isinstance(node, BoundStep)):
            if plain:
                last = self._embed(graph, last, self._capture(group))
                continue
            for node in group:
                assert isinstance(node, BoundSection)
                if node.section.kind != "call":
                    last = self._decide(graph, root, last, node)
                elif conditional(node.nodes):  # a child graph must not be
                    last = self._fill(graph, root, last, node.nodes)
                else:
                    last = self._embed(graph, last, self.build(node.nodes))
        return last

    def _capture(self, steps: Iterable[Bound]) -> Any:
        """Return the graph of the work that some steps queue."""
        stream = self._stream.handle
        # Relaxed, because libraries allocate and load modules when first called, which
        # the stricter modes forbid while any stream of the process captures.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check("cuStreamBeginCapture", driver.cuStreamBeginCapture(stream, relaxed))
        try:
            for step in steps:
                assert isinstance(step, BoundStep)
                step.handler(step.message)
        except BaseException:
            _, graph = driver.cuStreamEndCapture(stream)
            if graph is not None and int(graph):
                driver.cuGraphDestroy(graph)
            raise
        return check("cuStreamEndCapture", driver.cuStreamEndCapture(stream))

    @staticmethod
    def _embed(graph: Any, last: list[Any], child: Any) -> list[Any]:
        """Make ``child`` a node of a graph, which takes a copy; an empty one makes none."""
        try:
            _, count = check("cuGraphGetNodes", driver.cuGraphGetNodes(child, 0))
            if not count:
                return last
            node = check(
                "cuGraphAddChildGraphNode",
                driver.cuGraphAddChildGraphNode(graph, last or None, len(last), child),
            )
        finally:
            driver.cuGraphDestroy(child)
        return [node]

    # --- conditional nodes ----------------------------------------------------------------

    def _load(self) -> None:
        """Load the kernel that sets the values of conditional nodes."""
        if self._set_conditional is not None:
            return
        version = self._context.info.driver_version
        if version < CONDITIONAL_DRIVER or not hasattr(driver, "cuGraphConditionalHandleCreate"):
            raise Unsupported(
                "a flag can decide on a part of a recording only with a driver of CUDA 12.3 or "
                f"newer; this one is of CUDA {version // 1000}.{version % 1000 // 10}"
            )
        image = read_kernels(__package__, "set_conditional.ptx").encode()
        self._module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
        self._set_conditional = check(
            "cuModuleGetFunction", driver.cuModuleGetFunction(self._module, b"set_conditional")
        )

    def _decide(self, graph: Any, root: Any, last: list[Any], node: BoundSection) -> list[Any]:
        """Add a conditional node, with a kernel before it that looks at the flag."""
        section, kinds = node.section, driver.CUgraphConditionalNodeType
        context = check("cuCtxGetCurrent", driver.cuCtxGetCurrent())
        handle = check(
            "cuGraphConditionalHandleCreate",
            driver.cuGraphConditionalHandleCreate(root, context, 0, 0),
        )
        last = self._look(graph, last, handle, section)
        parameters = driver.CUgraphNodeParams()
        parameters.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        parameters.conditional.handle = handle
        parameters.conditional.type = (
            kinds.CU_GRAPH_COND_TYPE_WHILE
            if section.kind == "loop"
            else kinds.CU_GRAPH_COND_TYPE_IF
        )
        parameters.conditional.size = 1
        parameters.conditional.ctx = context
        edge_data = (None,) if driver.major >= 13 else ()  # an argument since CUDA 13
        added = check(
            "cuGraphAddNode",
            driver.cuGraphAddNode(graph, last, *edge_data, len(last), parameters),
        )
        body = parameters.conditional.phGraph_out[0]
        end = self._fill(body, root, [], node.nodes)
        if section.kind == "loop":
            self._look(body, end, handle, section)
        elif not end:  # its steps queue nothing; a body needs a node
            check("cuGraphAddEmptyNode", driver.cuGraphAddEmptyNode(body, None, 0))
        return [added]

    def _look(self, graph: Any, last: list[Any], handle: Any, section: Section) -> list[Any]:
        """Add the kernel that sets a conditional handle to what the flag says."""
        pointer = self._context.pointer(section.flag)
        arguments = KernelArguments(struct.pack("QQI", int(handle), pointer, section.nbytes))
        parameters = driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self._set_conditional
        parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1
        parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1
        parameters.sharedMemBytes = 0
        parameters.extra = arguments.address
        node = check(
            "cuGraphAddKernelNode",
            driver.cuGraphAddKernelNode(graph, last or None, len(last), parameters),
        )
        return [node]
