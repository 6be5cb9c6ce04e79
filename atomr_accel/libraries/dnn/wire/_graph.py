"""A dnn graph as a value: tensors, and the nodes that compute some of them from others.

A graph has everything but addresses. It is sent as bytes, which are also the key
under which plans are kept, here, in the host and on disk. ``Builder`` makes graphs and
holds each node against its row of ``_nodes.NODES``, so a graph that exists is well formed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, final

import msgspec

from ...._dtypes import as_dtype
from ....wire import encode as encode_part
from ._element_types import require_known, require_stored, require_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ._nodes import NodeType

Attribute = None | bool | int | float | str | tuple[int, ...]
"""What an attribute of a node may be."""

MOST_DIMS: Final = 8
"""The most dimensions of a tensor (``CUDNN_DIM_MAX``)."""


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a graph.

    Attributes:
        dtype: element type. What is virtual is computed in the graph's compute type.
        shape: dimensions, in the order of the vendor's (batch, channels, space).
        strides: elements from one index to the next, for each dimension.
        kind: ``"buffer"`` has memory, ``"virtual"`` exists inside a kernel only,
            ``"scalar"`` is a number that comes with every run.
        ragged: id of the tensor that tells where each batch entry begins; -1 for none.
        last: whether its channels are last in memory, and those of what is made like it. Said
            and not read from strides: where a dimension has size 1, these fit both layouts.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: Literal["buffer", "virtual", "scalar"] = "buffer"
    ragged: int = -1
    last: bool = False

    @property
    def extent(self) -> int:
        """Elements from the first to the last, both included."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)

    @property
    def whole(self) -> bool:
        """Whether its elements lie side by side, in whatever order."""
        steps = [each for each in zip(self.strides, self.shape, strict=True) if each[1] != 1]
        filled = 1
        for stride, size in sorted(steps):
            if stride != filled:
                return False
            filled *= size
        return True

    @property
    def dense(self) -> bool:
        """Whether its elements lie side by side along one dimension at least."""
        steps = zip(self.shape, self.strides, strict=True)
        return any(size != 1 and stride == 1 for size, stride in steps)


class Node(msgspec.Struct, frozen=True, array_like=True):
    """An operation.

    Attributes:
        op: a key of ``NODES``.
        inputs, outputs: tensor ids by the names that the row gives them.
        attributes: all that the row has, sorted by name.
    """

    op: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    attributes: tuple[tuple[str, Attribute], ...]


class Graph(msgspec.Struct, frozen=True, array_like=True):
    """Tensors by id, and nodes in an order in which they can be computed.

    A part of a graph has all of its tensors, too, so that they keep their ids.

    Attributes:
        compute: dtype of computations and of virtual tensors.
        tf32: whether products of float32 may round their factors to ten bits.
    """

    tensors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    compute: str
    tf32: bool = False

    def used(self) -> frozenset[int]:
        """Ids of the tensors that nodes read or write, and of what these depend on."""
        found = {id_ for node in self.nodes for _, id_ in (*node.inputs, *node.outputs)}
        offsets = {self.tensors[id_].ragged for id_ in found} - {-1}
        return frozenset(found | offsets)

    def written(self) -> tuple[int, ...]:
        """Ids of the buffers that nodes write."""
        found = {id_ for node in self.nodes for _, id_ in node.outputs}
        return tuple(sorted(id_ for id_ in found if self.tensors[id_].kind == "buffer"))

    def buffers(self) -> tuple[int, ...]:
        """Ids of the buffers that are used, in the order in which addresses are given."""
        return self._of_kind("buffer")

    def scalars(self) -> tuple[int, ...]:
        """Ids of the scalars that are used, in the order in which numbers are given."""
        return self._of_kind("scalar")

    def _of_kind(self, kind: str) -> tuple[int, ...]:
        return tuple(id_ for id_ in sorted(self.used()) if self.tensors[id_].kind == kind)


def encode(graph: Graph) -> bytes:
    """A graph as messages carry it; equal ones give the same bytes."""
    return encode_part(graph, "dnn")


decode: Final = msgspec.msgpack.Decoder(Graph).decode


def packed_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides without gaps.

    Args:
        shape: the dimensions.
        order: the dimensions from the slowest to the fastest; by default as they come.
    """
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def channels_last(ndim: int) -> tuple[int, ...]:
    """The order of dimensions (batch, channels, space) in which channels are fastest."""
    return order_of(ndim, last=True)


def order_of(ndim: int, *, last: bool) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest, channels first or last."""
    return (0, *range(2, ndim), 1) if last and ndim > 1 else tuple(range(ndim))


def strides_of(shape: Sequence[int], *, last: bool) -> tuple[int, ...]:
    """Strides without gaps, channels first or last."""
    return packed_strides(shape, order_of(len(shape), last=last))


@final
class Symbol:
    """A tensor of a graph that is being built.

    Attributes:
        id: its number in the graph.
    """

    __slots__ = ("builder", "id")

    def __init__(self, builder: Builder, id_: int) -> None:
        self.builder = builder
        self.id = id_

    @property
    def tensor(self) -> Tensor:
        """What is known of it."""
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
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: Any,
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
            last: whether its channels are last in memory; with ``strides``, whether those of
                what is made like it are.
            ragged: where each batch entry begins, in elements, int32 of shape
                (batch + 1, 1, 1, 1).

        Raises:
            ValueError: dimensions that are not positive, or too many; strides that do not fit.
            TypeError: no dtype.
            Unsupported: a dtype that graphs do not have.
        """
        sizes = _integers(shape, "shape")
        steps = strides_of(sizes, last=last) if strides is None else _integers(strides, "strides")
        if len(steps) != len(sizes):
            raise ValueError(f"strides {steps} do not fit shape {sizes}: one for each dimension")
        if not 0 < len(sizes) <= MOST_DIMS or min(sizes) < 1 or min(steps) < 0:
            raise ValueError(
                f"a tensor has 1 to {MOST_DIMS} dimensions of at least 1 and strides of at "
                f"least 0, not shape {sizes} with strides {steps}"
            )
        base = -1 if ragged is None else ragged.id
        return self._add(Tensor(_known(dtype), sizes, steps, "buffer", base, last))

    def scalar(self, dtype: Any = "float32", ndim: int = 4) -> Symbol:
        """A number that comes with every run."""
        ones = (1,) * ndim
        return self._add(Tensor(_known(dtype), ones, ones, "scalar"))

    def node(self, op: str, **given: Any) -> dict[str, Symbol]:
        """Add an operation.

        Args:
            op: a key of ``NODES``.
            given: inputs (symbols; None for an optional one that is not there) and
                attributes, by the names of the row.

        Returns:
            The outputs by name: virtual until ``output`` is called for them.

        Raises:
            ValueError, TypeError: what the row does not take.
            Unsupported: dtypes that it does not compute with.
        """
        from ._nodes import NODES, POINTWISE

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
            Node(
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
        dtype: Any = None,
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

        Raises:
            ValueError: it is no output of a node, or strides do not fit.
            Unsupported: a dtype that it cannot have.
        """
        tensor = symbol.tensor
        if tensor.kind == "scalar" or symbol.id not in self._outputs():
            raise ValueError(f"{symbol} is not computed in this graph, so it cannot be its output")
        steps = tensor.strides if strides is None else _integers(strides, "strides")
        if len(steps) != len(tensor.shape):
            raise ValueError(f"strides {steps} do not fit shape {tensor.shape}")
        name = tensor.dtype if dtype is None else _known(dtype)
        require_stored(tensor.dtype, name)
        base = -1 if ragged is None else ragged.id
        self.tensors[symbol.id] = Tensor(name, tensor.shape, steps, "buffer", base, tensor.last)
        return symbol

    def finish(self, compute: Any = None, *, tf32: bool = False) -> Graph:
        """The graph.

        Args:
            compute: dtype of computations; by default float64 where an input has it, and
                float32 otherwise.
            tf32: whether products of float32 may round their factors to ten bits.

        Raises:
            ValueError: there is nothing to compute, or nothing comes out.
        """
        if not self.nodes:
            raise ValueError("a graph needs at least one node")
        if compute is None:
            wide = any(tensor.dtype == "float64" for tensor in self.tensors)
            compute = "float64" if wide else "float32"
        compute = as_dtype(compute).name
        graph = Graph(tuple(self.tensors), tuple(self.nodes), compute, tf32)
        if not graph.written():
            raise ValueError("a graph needs at least one output: call output(tensor)")
        return graph

    def _outputs(self) -> set[int]:
        return {id_ for node in self.nodes for _, id_ in node.outputs}

    def _add(self, tensor: Tensor) -> Symbol:
        self.tensors.append(tensor)
        return Symbol(self, len(self.tensors) - 1)


def _split(
    op: str, row: NodeType, given: Mapping[str, Any]
) -> tuple[dict[str, Symbol], dict[str, Attribute]]:
    """What was given to a node, as inputs and attributes."""
    from ._nodes import REQUIRED

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


def _known(dtype: Any) -> str:
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
