"""A dnn graph as a value: tensors, and the nodes that compute some of them from others.

A graph has everything but addresses. It is sent as bytes, which are also the key
under which plans are kept, in the program, in the host and on disk. ``graph/_builder.py``
makes graphs and holds each node against its row of ``_nodes.NODES``, so a graph that exists
is well formed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ....wire import encode as encode_part

if TYPE_CHECKING:
    from collections.abc import Sequence

Attribute = None | bool | int | float | str | tuple[int, ...]
"""Value of an attribute of a node."""

MOST_DIMS: Final = 8
"""The most dimensions of a tensor (``CUDNN_DIM_MAX``)."""


class DnnTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a graph.

    Attributes:
        dtype: element type. Virtual tensors are computed in the graph's compute type.
        shape: dimensions, in the order of the vendor's (batch, channels, space).
        strides: elements from one index to the next, for each dimension.
        kind: ``"buffer"`` has memory, ``"virtual"`` exists inside a kernel only,
            ``"scalar"`` is a number that comes with every run.
        ragged: id of the tensor with the offset of each batch entry; -1 for none.
        last: whether its channels are last in memory, and those of tensors made like it. It is
            stored, because strides fit both layouts if a dimension has size 1.
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
        """``True`` if its elements lie side by side, in any order of dimensions."""
        steps = [each for each in zip(self.strides, self.shape, strict=True) if each[1] != 1]
        filled = 1
        for stride, size in sorted(steps):
            if stride != filled:
                return False
            filled *= size
        return True

    @property
    def dense(self) -> bool:
        """``True`` if its elements lie side by side along at least one dimension."""
        steps = zip(self.shape, self.strides, strict=True)
        return any(size != 1 and stride == 1 for size, stride in steps)


class GraphNode(msgspec.Struct, frozen=True, array_like=True):
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


class DnnGraph(msgspec.Struct, frozen=True, array_like=True):
    """Tensors by id, and nodes in an order in which they can be computed.

    A part of a graph has all of its tensors, too, so that they keep their ids.

    Attributes:
        compute: dtype of computations and of virtual tensors.
        tf32: whether products of float32 may round their factors to ten bits.
    """

    tensors: tuple[DnnTensor, ...]
    nodes: tuple[GraphNode, ...]
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


def encode(graph: DnnGraph) -> bytes:
    """A graph as messages carry it; equal ones give the same bytes."""
    return encode_part(graph, "dnn")


decode: Final = msgspec.msgpack.Decoder(DnnGraph).decode


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


def order_of(ndim: int, *, last: bool) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest, channels first or last."""
    return (0, *range(2, ndim), 1) if last and ndim > 1 else tuple(range(ndim))


def strides_of(shape: Sequence[int], *, last: bool) -> tuple[int, ...]:
    """Strides without gaps, channels first or last."""
    return packed_strides(shape, order_of(len(shape), last=last))
