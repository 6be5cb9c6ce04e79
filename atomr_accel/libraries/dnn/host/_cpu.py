"""DNN on the CPU: graphs interpreted node by node, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...blaslt.host.cpu import saturate
from ..wire._element_types import FLOATS, INTEGERS
from ..wire._graph import decode
from ..wire._messages import ForgetGraph, PrepareGraph, RunGraph, TuneGraph
from ..wire._nodes import POINTWISE
from . import _cpu_blocks, _cpu_conv, _cpu_layout, _cpu_norm, _cpu_pointwise, _cpu_resample
from . import cpu_attention as _cpu_attention
from ._cpu_losses import CpuLosses
from ._cpu_rnn import CpuRnn
from ._cpu_routines import CpuRoutines
from ._cpu_sampling import CpuSampling
from .cpu_sequences import CpuSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._graph import DnnGraph, DnnTensor, GraphNode

Array = np.ndarray[Any, Any]
Function = Any  # (inputs by name, attributes by name, output tensors by name) -> arrays by name

FUNCTIONS: Final[dict[str, Function]] = {
    **_cpu_attention.FUNCTIONS,
    **_cpu_blocks.FUNCTIONS,
    **_cpu_conv.FUNCTIONS,
    **_cpu_layout.FUNCTIONS,
    **_cpu_norm.FUNCTIONS,
    **_cpu_pointwise.FUNCTIONS,
    **_cpu_resample.FUNCTIONS,
}
"""The operations of ``_nodes.NODES``. Numbers come and go in the graph's compute type."""

_MOST_GRAPHS: Final = 1024


@final
class CpuDnn:
    """Executes DNN messages; narrow types are computed in float32."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._graphs: dict[bytes, DnnGraph] = {}
        graphs: dict[type, Callable[[Any], Any]] = {
            PrepareGraph: self._prepare,
            RunGraph: self._run,
            TuneGraph: self._tune,
            ForgetGraph: self._forget,
        }
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            **graphs,
            **CpuSequences(context, graphs).handlers,
            **CpuRoutines(context).handlers,
            **CpuLosses(context).handlers,
            **CpuSampling(context).handlers,
            **CpuRnn(context).handlers,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _prepare(self, message: PrepareGraph) -> tuple[int, str, str]:
        self._context.check()
        origin = "memory" if message.graph in self._graphs else "built"
        self._graph(message.graph)
        return 0, origin, "numpy"

    def _tune(self, message: TuneGraph) -> tuple[int, str, str]:
        self._run(message.run)
        return 0, "built", "numpy"

    def _forget(self, message: ForgetGraph) -> None:
        self._context.check()
        self._graphs.pop(message.graph, None)

    def _graph(self, encoded: bytes) -> DnnGraph:
        graph = self._graphs.get(encoded)
        if graph is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            graph = self._graphs[encoded] = decode(encoded)
        return graph

    def _run(self, message: RunGraph) -> None:
        self._context.check()
        graph = self._graph(message.graph)
        interpret(
            graph,
            dict(zip(graph.buffers(), message.addresses, strict=True)),
            dict(zip(graph.scalars(), message.scalars, strict=True)),
            self._context.bytes_at,
        )


def interpret(
    graph: DnnGraph,
    addresses: Mapping[int, int],
    scalars: Mapping[int, float],
    memory: Callable[[int, int], Array],
) -> None:
    """Compute a graph.

    Args:
        graph: the graph to compute.
        addresses: addresses of its buffers, by id.
        scalars: its numbers, by id.
        memory: the bytes at an address, as many as wanted.
    """
    wide = DTYPES[graph.compute]
    values: dict[int, Any] = {
        id_: (DTYPES[dtype] if (dtype := graph.tensors[id_].dtype) in INTEGERS else wide).type(
            value
        )
        for id_, value in scalars.items()
    }
    buffers = _Buffers(graph, addresses, memory)
    computed = {id_ for node in graph.nodes for _, id_ in node.outputs}
    for id_ in addresses:
        if id_ not in computed:
            values[id_] = _widened(buffers.read(id_), wide)
    # Values out of range become infinite or NaN, as on a GPU.
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            inputs = {name: values[id_] for name, id_ in node.inputs}
            if _converts(graph, node):
                inputs = {name: np.asarray(value, wide)[()] for name, value in inputs.items()}
            tensors = {name: graph.tensors[id_] for name, id_ in node.outputs}
            results = FUNCTIONS[node.op](inputs, dict(node.attributes), tensors)
            for name, id_ in node.outputs:
                result = results[name]
                if graph.tensors[id_].kind == "buffer":
                    buffers.write(id_, result)
                values[id_] = result


def _converts(graph: DnnGraph, node: GraphNode) -> bool:
    """Return whether a node converts integers to floating point before it computes."""
    dtypes = {graph.tensors[id_].dtype for _, id_ in node.inputs}
    return node.op in POINTWISE and bool(dtypes & FLOATS) and not dtypes <= FLOATS


def _widened(array: Array, wide: np.dtype[Any]) -> Array:
    """Convert floating-point numbers to the compute type, and leave others unchanged."""
    return array if array.dtype.kind in "biu" else array.astype(wide)


@final
class _Buffers:
    """The buffers of a graph as arrays."""

    def __init__(
        self, graph: DnnGraph, addresses: Mapping[int, int], memory: Callable[[int, int], Array]
    ) -> None:
        self._tensors = graph.tensors
        self._addresses = addresses
        self._memory = memory

    def read(self, id_: int) -> Array:
        tensor = self._tensors[id_]
        if tensor.ragged < 0:
            return self._view(id_, 0, tensor.shape)
        dense = np.zeros(tensor.shape, DTYPES[tensor.dtype])
        for where, piece in self._pieces(id_, tensor):
            dense[where] = piece
        return dense

    def write(self, id_: int, value: Array) -> None:
        tensor = self._tensors[id_]
        dtype = DTYPES[tensor.dtype]
        value = np.broadcast_to(value, tensor.shape)
        if tensor.ragged < 0:
            self._view(id_, 0, tensor.shape)[...] = saturate(value, dtype)
            return
        for where, piece in self._pieces(id_, tensor):
            piece[...] = saturate(value[where], dtype)

    def _view(self, id_: int, offset: int, shape: tuple[int, ...]) -> Array:
        """Part of a buffer, from an element on."""
        tensor = self._tensors[id_]
        dtype = DTYPES[tensor.dtype]
        if 0 in shape:
            return np.zeros(shape, dtype)
        nbytes, strides = dtype.itemsize, []
        for size, stride in zip(shape, tensor.strides, strict=True):
            strides.append(stride * dtype.itemsize)
            nbytes += (size - 1) * strides[-1]
        address = self._addresses[id_] + offset * dtype.itemsize
        memory = self._memory(address, nbytes)
        return np.ndarray(shape, dtype, memory, strides=strides)

    def _pieces(self, id_: int, tensor: DnnTensor) -> Iterable[tuple[tuple[Any, ...], Array]]:
        """The sequences of a ragged tensor: where they are in a dense one, and their memory.

        The sequence is the dimension, after the first, with the largest step.
        """
        offsets = self.read(tensor.ragged).ravel().tolist()
        # Of a single head the step is the same as of the sequence.
        axis = max(
            range(1, len(tensor.shape)), key=lambda each: (tensor.strides[each], tensor.shape[each])
        )
        for entry in range(tensor.shape[0]):
            begin, end = offsets[entry], offsets[entry + 1]
            length = (end - begin) // tensor.strides[axis]
            shape = (1, *tensor.shape[1:axis], length, *tensor.shape[axis + 1 :])
            where = tuple(slice(size) for size in shape[1:])
            yield (slice(entry, entry + 1), *where), self._view(id_, begin, shape)
