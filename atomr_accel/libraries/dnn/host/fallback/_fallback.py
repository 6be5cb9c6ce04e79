"""Graphs of one node that our own kernels compute, because cuDNN lacks or refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from . import _attention, _blocks, _convs, _moves, _nodes, _norms, _products, _resamples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .....backends.cuda.host.context import CudaContext, CudaStream
    from .....executors.cuda_kernels import KernelArguments, Kernels
    from .....executors.device_code import CudaSource
    from ...wire._graph import DnnGraph
    from ._launch import FallbackLaunch, LaunchForm

_FAMILIES: Final = (
    *(_convs, _products, _norms, _attention),
    *(_resamples, _moves, _blocks, _nodes),
)


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph."""
    return len(graph.nodes) == 1 and any(family.computes(graph) for family in _FAMILIES)


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    family = next(family for family in _FAMILIES if family.computes(graph))
    found: list[LaunchForm] = family.forms(graph)
    return found


def launches(
    graph: DnnGraph, addresses: Mapping[int, int], scalars: Mapping[int, float]
) -> list[FallbackLaunch]:
    """Return the launches that compute a graph for which ``computes`` is true."""
    return [each.filled(addresses, scalars) for each in forms(graph)]


class _PreparedLaunch(NamedTuple):
    """A prepared launch, whose arguments change only at the given places.

    Attributes:
        launch: launches the kernel.
        pointers: words of the arguments, each with the position of its pointer in a run.
        numbers: words of the arguments, each with the position of its number in a run.
    """

    launch: Callable[[], None]
    arguments: KernelArguments
    pointers: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]


@final
class Own:
    """The kernels, for one stream."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context = context
        self._stream = stream
        self._made: dict[CudaSource, Kernels] = {}

    def close(self) -> None:
        """Unload the kernels."""
        for kernels in self._made.values():
            kernels.close()
        self._made.clear()

    def prepare(
        self, graph: DnnGraph, pointers: Mapping[int, int], numbers: Mapping[int, int]
    ) -> Callable[[Sequence[int], Sequence[float], int], None]:
        """Prepare a graph for which ``computes`` is true.

        Args:
            graph: the graph.
            pointers: which of a run's pointers a tensor has, by id.
            numbers: which of a run's numbers it has.

        Returns:
            What queues the graph, given a run's pointers, its numbers, and scratch memory,
            of which it needs none.
        """
        prepared = [self._prepared(form, pointers, numbers) for form in forms(graph) if form.items]

        def run(values: Sequence[int], scalars: Sequence[float], _scratch: int) -> None:
            for launch, arguments, places, doubles in prepared:
                words = arguments.pointers
                for word, at in places:
                    words[word] = values[at]
                for word, at in doubles:
                    arguments.numbers[word] = scalars[at]
                launch()

        return run

    def _prepared(
        self, form: LaunchForm, pointers: Mapping[int, int], numbers: Mapping[int, int]
    ) -> _PreparedLaunch:
        from .....executors.cuda_kernels import (  # needs NVRTC, which others do not
            KernelArguments,
            Kernels,
        )

        kernels = self._made.get(form.source)
        if kernels is None:
            kernels = self._made[form.source] = Kernels(self._context, self._stream, form.source)
        arguments = KernelArguments(form.data)
        return _PreparedLaunch(
            kernels.prepare(kernels.function(form.name), form.items, arguments),
            arguments,
            tuple((word, pointers[id_]) for word, id_ in form.pointers if id_ in pointers),
            tuple((word, numbers[id_]) for word, id_ in form.numbers if id_ in numbers),
        )
