"""Single nodes by our own kernels, where cuDNN refuses them."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from ....host._device_code import C_TYPES
from ...wire._element_types import MODULAR, integers_of, stored_as
from ...wire._graph import MOST_DIMS
from ...wire._nodes import NODES
from ._common_source import THREADS, Launch
from ._node_source import EXPRESSIONS, MOST_INPUTS, pointwise_kernel, reduction_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...wire._graph import Attribute, Graph, Node, Tensor

_TYPES: Final = frozenset(C_TYPES) - {"complex64", "complex128"}


def computes(graph: Graph) -> bool:
    """Whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    tensors = [graph.tensors[id_] for _, id_ in (*node.inputs, *node.outputs)]
    return (node.op in EXPRESSIONS or node.op == "reduction") and all(
        tensor.dtype in _TYPES and tensor.ragged < 0 for tensor in tensors
    )


def packed_node(
    graph: Graph,
    ids: list[int],
    target: int,
    addresses: dict[int, int],
    scalars: dict[int, float],
    counted: Attribute = None,
) -> bytes:
    """The arguments of a pointwise kernel that reads tensors ``ids`` and writes ``target``.

    With an axis to be ``counted`` it does not read, and moves along that axis alone.
    """
    out = graph.tensors[target]
    axes = range(len(out.shape))
    lists: list[Sequence[int]] = [out.strides]
    for id_ in ids:
        steps = [_step(graph.tensors[id_], axis) for axis in axes]
        lists.append(steps if counted is None else [int(axis == counted) for axis in axes])
    shape, (steps, *others) = _merged(out.shape, lists)
    data = struct.pack("<Qqq", addresses[target], math.prod(shape), len(shape))
    data += _words(shape) + _words(steps)
    for id_, steps in zip(ids, others, strict=True):
        data += struct.pack("<Qd", addresses.get(id_, 0), scalars.get(id_, 0.0)) + _words(steps)
    empty = struct.pack("<Qd", 0, 0.0) + _words(())
    return data + empty * (MOST_INPUTS - len(ids))


def packed_reduction(graph: Graph, node: Node, addresses: dict[int, int]) -> bytes:
    """The arguments of a reduction kernel."""
    ((_, source),), ((_, target),) = node.inputs, node.outputs
    x, y = graph.tensors[source], graph.tensors[target]
    data = struct.pack("<QQ", addresses[target], addresses[source])
    for summed in (False, True):
        axes = [axis for axis in range(len(x.shape)) if (x.shape[axis] != y.shape[axis]) == summed]
        sizes = [x.shape[axis] for axis in axes]
        data += struct.pack("<qq", math.prod(sizes), len(axes)) + _words(sizes)
        data += _words([x.strides[axis] for axis in axes])
        data += _words([_step(y, axis) for axis in axes])
    return data


def _merged(
    shape: Sequence[int], lists: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """As few dimensions as there can be: a position costs a division for each but the first.

    Args:
        shape: sizes.
        lists: steps along them, of all tensors; the slowest of the first one comes first.
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in lists]
    for axis in sorted(range(len(shape)), key=lambda axis: -lists[0][axis]):
        size, steps = shape[axis], [each[axis] for each in lists]
        if size == 1:
            continue
        if sizes and all(each[-1] == size * step for each, step in zip(merged, steps, strict=True)):
            sizes[-1] *= size
        else:
            sizes.append(size)
            for each in merged:
                each.append(0)
        for each, step in zip(merged, steps, strict=True):
            each[-1] = step
    return sizes, merged


def _step(tensor: Tensor, axis: int) -> int:
    """Elements from one index to the next; 0 where one number serves all."""
    return 0 if tensor.kind == "scalar" or tensor.shape[axis] == 1 else tensor.strides[axis]


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{MOST_DIMS}q", *values, *[0] * (MOST_DIMS - len(values)))


def launches(graph: Graph, addresses: dict[int, int], scalars: dict[int, float]) -> list[Launch]:
    """What computes a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ((_, target),) = node.outputs
    order = dict(node.inputs)
    ids = [order[name] for name in NODES[node.op].inputs]
    out = graph.tensors[target]
    attributes, integers = dict(node.attributes), integers_of(graph, node)
    compute = "int64" if node.op == "gen_index" else graph.compute
    if integers:
        # Those of arithmetic modulo a power of two, where C++ has no such thing for signed ones.
        signed = node.op not in MODULAR and not integers.startswith("u")
        compute = "int64" if signed else "uint64"
    types = [compute, out.dtype, *(graph.tensors[id_].dtype for id_ in ids)]
    names = ", ".join(C_TYPES[dtype] for dtype in types)
    if node.op == "reduction":
        source = reduction_kernel(str(attributes["mode"]))
        data = packed_reduction(graph, node, addresses)
        return [Launch(source, f"reduce<{names}>", math.prod(out.shape) * THREADS, data)]
    whole = stored_as(node.op, integers) if integers else ""
    source = pointwise_kernel(node.op, len(ids), attributes, whole)
    axis = attributes["axis"] if node.op == "gen_index" else None
    data = packed_node(graph, ids, target, addresses, scalars, axis)
    return [Launch(source, f"node<{names}>", math.prod(out.shape), data)]
