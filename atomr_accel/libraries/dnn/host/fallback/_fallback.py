"""Graphs of one node that our own kernels compute: what cuDNN does not have, or refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from . import _attention, _convs, _nodes, _norms, _products

if TYPE_CHECKING:
    from .....backends.cuda.host._context import CudaContext, CudaStream
    from ....host._cuda_kernels import Kernels
    from ....host._device_code import CudaSource
    from ...wire._graph import Graph
    from ._launch import Launch

_FAMILIES: Final = (_convs, _products, _norms, _attention, _nodes)


def computes(graph: Graph) -> bool:
    """Whether the kernels compute a graph."""
    return len(graph.nodes) == 1 and any(family.computes(graph) for family in _FAMILIES)


def launches(graph: Graph, addresses: dict[int, int], scalars: dict[int, float]) -> list[Launch]:
    """What computes a graph for which ``computes`` is true.

    Args:
        graph: the graph.
        addresses: pointers by id.
        scalars: numbers by id.
    """
    family = next(family for family in _FAMILIES if family.computes(graph))
    found: list[Launch] = family.launches(graph, addresses, scalars)
    return found


@final
class Own:
    """The kernels, for one stream."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context = context
        self._stream = stream
        self._made: dict[CudaSource, Kernels] = {}

    def close(self) -> None:
        """Unload what was loaded."""
        for kernels in self._made.values():
            kernels.close()
        self._made.clear()

    def run(self, graph: Graph, addresses: dict[int, int], scalars: dict[int, float]) -> None:
        """Queue a graph; as for ``launches``."""
        from ....host._cuda_kernels import Arguments, Kernels  # needs NVRTC, which others do not

        for source, name, items, data in launches(graph, addresses, scalars):
            kernels = self._made.get(source)
            if kernels is None:
                kernels = Kernels(self._context, self._stream, source)
                self._made[source] = kernels
            kernels.launch(kernels.function(name), items, Arguments(data))
