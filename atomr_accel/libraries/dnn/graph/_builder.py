"""Makes graphs, node by node; each is held against its row of ``NODES``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import as_dtype
from ..wire._element_types import require_known, require_stored, require_types
from ..wire._graph import MOST_DIMS, DnnGraph, DnnTensor, GraphNode, strides_of
from ..wire._node_type import REQUIRED
from ..wire._nodes import NODES, POINTWISE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import DTypeLike

    from ..wire._graph import Attribute
    from ..wire._node_type import NodeType


@final
class Symbol:
    """A tensor of a graph that is being built.

    Attributes:
        id: its number in the graph.
    """

    __slots__ = ("builder", "id")

    def __init__(self, builder: Builder, id_: int) -> None:
        self.builder: Final = builder
        self.id: Final = id_

    @property
    def tensor(self) -> DnnTensor:
        """The tensor that it names: dtype, shape and strides."""
        return self.builder.tensors[self.id]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return self.tensor.dtype

    def __repr__(self) -> str:
        tensor = self.tensor
        return f"<{tensor.kind} {self.id}: {tensor.dtype} {tensor.shape}>"


@final
class Builder:
    """Makes a graph, node by node.

    Attributes:
        tensors: the tensors so far.
        nodes: the nodes so far.
    """

    def __init__(self) -> None:
        self.tensors: list[DnnTensor] = []
        self.nodes: list[GraphNode] = []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        strides: Sequence[int] | None = None,
        *,
        last: bool = False,
        ragged: Symbol | None = None,
    ) -> Symbol:
        """A buffer that nodes read.

        Args:
            shape: dimensions.
            dtype: element type.
            strides: elements from one index to the next; by default there are no gaps.
            last: whether its channels are last in memory; with ``strides``, whether the channels
                of tensors made like it are.
            ragged: offset of each batch entry in elements, int32 of shape
                (batch + 1, 1, 1, 1).
        """
        sizes = _integers(shape, "shape")
        steps = strides_of(sizes, last=last) if strides is None else _integers(strides, "strides")
        if len(steps) != len(sizes):
            raise ValueError(f"strides {steps} do not fit shape {sizes}: one for each dimension")
        if not 0 < len(sizes) <= MOST_DIMS or not _is_batch(sizes) or min(steps) < 0:
            raise ValueError(
                f"a tensor has 1 to {MOST_DIMS} dimensions, of which only the first may be 0, and "
                f"strides of at least 0, not shape {sizes} with strides {steps}"
            )
        base = -1 if ragged is None else ragged.id
        return self._add(DnnTensor(_known(dtype), sizes, steps, "buffer", base, last))

    def scalar(self, dtype: DTypeLike = "float32", ndim: int = 4) -> Symbol:
        """A number that comes with every run."""
        ones = (1,) * ndim
        return self._add(DnnTensor(_known(dtype), ones, ones, "scalar"))

    def node(self, op: str, **given: Any) -> dict[str, Symbol]:
        """Add an operation.

        Args:
            op: a key of ``NODES``.
            given: inputs (symbols; None for an optional one that is not there) and
                attributes, by the names of the row.

        Returns:
            The outputs by name: virtual until ``output`` is called for them.
        """
        row = NODES[op]
        inputs, attributes = _split(op, row, given)
        for name, symbol in inputs.items():
            if symbol.builder is not self:
                raise ValueError(f"{op}: {name} belongs to another graph")
        tensors = {name: symbol.tensor for name, symbol in inputs.items()}
        if op not in POINTWISE:
            require_types(op, tensors)
        inferred = row.infer(tensors, attributes)
        outputs = {name: self._add(tensor) for name, tensor in inferred.items()}
        self.nodes.append(
            GraphNode(
                op,
                tuple((name, symbol.id) for name, symbol in inputs.items()),
                tuple((name, symbol.id) for name, symbol in outputs.items()),
                tuple(sorted(attributes.items())),
            )
        )
        return outputs

    def output(
        self,
        symbol: Symbol,
        dtype: DTypeLike | None = None,
        strides: Sequence[int] | None = None,
        *,
        ragged: Symbol | None = None,
    ) -> Symbol:
        """Give a virtual tensor memory.

        Args:
            symbol: an output of a node.
            dtype: element type; by default what the node's row says.
            strides: elements from one index to the next; by default as inferred.
            ragged: as for ``tensor``.
        """
        self.require_computed(symbol)
        tensor = symbol.tensor
        steps = tensor.strides if strides is None else _integers(strides, "strides")
        if len(steps) != len(tensor.shape):
            raise ValueError(f"strides {steps} do not fit shape {tensor.shape}")
        name = tensor.dtype if dtype is None else _known(dtype)
        require_stored(tensor.dtype, name)
        base = -1 if ragged is None else ragged.id
        self.tensors[symbol.id] = DnnTensor(name, tensor.shape, steps, "buffer", base, tensor.last)
        return symbol

    def require_computed(self, symbol: Symbol) -> None:
        """Make sure that a tensor can be an output."""
        if symbol.tensor.kind == "scalar" or symbol.id not in self._outputs():
            raise ValueError(f"an output must be computed in this graph, which {symbol} is not")

    def finish(self, compute: Any = None, *, tf32: bool = False) -> DnnGraph:
        """The graph.

        Args:
            compute: dtype of computations; by default float64 where an input has it, and
                float32 otherwise.
            tf32: whether products of float32 may round their factors to ten bits.
        """
        if not self.nodes:
            raise ValueError("a graph needs at least one node")
        if compute is None:
            wide = any(tensor.dtype == "float64" for tensor in self.tensors)
            compute = "float64" if wide else "float32"
        compute = as_dtype(compute).name
        graph = DnnGraph(tuple(self.tensors), tuple(self.nodes), compute, tf32)
        if not graph.written():
            raise ValueError("a graph needs at least one output: call output(tensor)")
        return graph

    def _outputs(self) -> set[int]:
        return {id_ for node in self.nodes for _, id_ in node.outputs}

    def _add(self, tensor: DnnTensor) -> Symbol:
        self.tensors.append(tensor)
        return Symbol(self, len(self.tensors) - 1)


def _is_batch(sizes: tuple[int, ...]) -> bool:
    """Return whether a shape has elements, or would have with a first dimension that is not 0."""
    return sizes[0] >= 0 and min(sizes[1:], default=1) > 0


def _split(
    op: str, row: NodeType, given: Mapping[str, Any]
) -> tuple[dict[str, Symbol], dict[str, Attribute]]:
    """Split the arguments of a node into inputs and attributes."""
    known = {*row.inputs, *row.optional, *row.attributes}
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"{op} has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    inputs = {}
    for name in (*row.inputs, *row.optional):
        symbol = given.get(name)
        if symbol is None:
            if name in row.optional:
                continue
            raise TypeError(f"{op} needs {name}")
        if not isinstance(symbol, Symbol):
            raise TypeError(f"{op}: {name} must be a tensor of the graph, not {symbol!r}")
        inputs[name] = symbol
    attributes = {name: given.get(name, default) for name, default in row.attributes.items()}
    if missing := [name for name, value in attributes.items() if value is REQUIRED]:
        raise TypeError(f"{op} needs {', '.join(missing)}")
    return inputs, {name: _plain(value) for name, value in attributes.items()}


def _known(dtype: DTypeLike) -> str:
    """The name of a dtype of the table."""
    name = as_dtype(dtype).name
    require_known(name)
    return name


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _integers(values: Iterable[Any], name: str) -> tuple[int, ...]:
    try:
        return tuple(int(value.__index__()) for value in values)
    except (AttributeError, TypeError):
        raise TypeError(f"{name} must be a sequence of integers, not {values!r}") from None
