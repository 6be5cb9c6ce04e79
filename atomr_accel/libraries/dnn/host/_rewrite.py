"""Rewrite graphs for cuDNN: without dead steps, in parts, with fewer dimensions.

Tensors keep their numbers and their memory, so results are run with the same addresses. All
functions are pure, and the CPU can interpret their results, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from ..wire._attention_nodes import TABLES
from ..wire._element_types import FLOATS
from ..wire._graph import (
    Attribute,
    DnnGraph,
    DnnTensor,
    GraphNode,
    order_of,
    packed_strides,
    strides_of,
)
from ..wire._nodes import NODES, POINTWISE

if TYPE_CHECKING:
    from collections.abc import Sequence

ELEMENTWISE: Final = (POINTWISE - {"gen_index"}) | {"reduction"}
"""Operations that look at the position of an element only to broadcast or to reduce."""

_HEADS: Final = ("q", "k", "v", "o", "dO", "dQ", "dK", "dV")
_HEAD_STEP: Final = 8
"""cuDNN's attention takes sizes of heads that are multiples of it."""

_MOST_GROUPS: Final = 4
_MOST_COLUMNS: Final = 1024
_LEAST_COLUMNS: Final = 64


def live(graph: DnnGraph) -> DnnGraph:
    """A graph without the nodes that contribute to no buffer."""
    wanted = {id_ for id_, tensor in enumerate(graph.tensors) if tensor.kind == "buffer"}
    nodes: list[GraphNode] = []
    for node in reversed(graph.nodes):
        if any(id_ in wanted for _, id_ in node.outputs):
            wanted.update(id_ for _, id_ in node.inputs)
            nodes.append(node)
    return msgspec.structs.replace(graph, nodes=tuple(reversed(nodes)))


def unfusable(graph: DnnGraph) -> str:
    """Why nodes cannot be fused, which cuDNN does all the same; empty if they can.

    A node reads results of the same graph in its own shape only, and those of a reduction not
    at all. An elementwise graph has one result, and its nodes have one shape, but for what a
    reduction leaves.
    """
    computed: dict[int, str] = {}
    shapes = set()
    for node in graph.nodes:
        source = node.inputs[0][1] if node.op == "reduction" else node.outputs[0][1]
        shape = graph.tensors[source].shape
        if node.op in ELEMENTWISE:
            shapes.add(shape)
            for id_ in {id_ for _, id_ in node.inputs} & computed.keys():
                if computed[id_] == "reduction":
                    return f"{node.op} of a reduction's result in the same graph"
                if graph.tensors[id_].shape != shape:
                    return f"{node.op} that broadcasts a result of the same graph"
        computed.update((id_, node.op) for _, id_ in node.outputs)
    if len(graph.nodes) > 1 and all(node.op in ELEMENTWISE for node in graph.nodes):
        if len(shapes) > 1 or len(graph.written()) > 1:
            return "several results of an elementwise graph"
        if any(graph.tensors[id_].dtype == "bool" for id_ in computed):
            return "masks in an elementwise graph"
    return ""


def cut(graph: DnnGraph, at: int) -> tuple[DnnGraph, DnnGraph]:
    """The first ``at`` nodes, and the rest.

    What the rest needs of the first becomes a buffer in both; its memory is the caller's
    to find.
    """
    head, tail = graph.nodes[:at], graph.nodes[at:]
    made = {id_ for node in head for _, id_ in node.outputs}
    wanted = {id_ for node in tail for _, id_ in node.inputs}
    # Products come in the dtype of their factors; the rest loses nothing on the way.
    plain = all(node.op in ELEMENTWISE for node in head)
    tensors = tuple(
        _as_buffer(tensor, graph.compute if plain else "")
        if id_ in made & wanted and tensor.kind == "virtual"
        else tensor
        for id_, tensor in enumerate(graph.tensors)
    )
    return (
        msgspec.structs.replace(graph, tensors=tensors, nodes=head),
        msgspec.structs.replace(graph, tensors=tensors, nodes=tail),
    )


def widened(graph: DnnGraph) -> tuple[DnnGraph, ...]:
    """Attention with heads of any size, as steps around one that cuDNN takes.

    Zeros behind q, k, v, o and dO change no score and no sum. Results are cut back.

    Returns:
        Graphs of one node each, whose tensors go on behind those of ``graph``; none if sizes are
        fine, or sequences are ragged or in pages.
    """
    (node,) = graph.nodes
    if node.op not in ("sdpa", "sdpa_backward"):
        return ()
    ends = (*node.inputs, *node.outputs)
    odd = {id_ for name, id_ in ends if name in _HEADS and graph.tensors[id_].shape[3] % _HEAD_STEP}
    if not odd or any(name in TABLES or graph.tensors[id_].ragged >= 0 for name, id_ in ends):
        return ()
    tensors = list(graph.tensors)
    nodes: list[GraphNode] = []

    def add(like: DnnTensor, shape: tuple[int, ...]) -> int:
        tensors.append(DnnTensor(like.dtype, shape, packed_strides(shape)))
        return len(tensors) - 1

    def step(op: str, inputs: dict[str, int], output: int, **attributes: Attribute) -> None:
        everything = sorted({**NODES[op].attributes, **attributes}.items())
        (name,) = NODES[op].outputs
        nodes.append(GraphNode(op, tuple(inputs.items()), ((name, output),), tuple(everything)))

    q = dict(node.inputs)["q"]
    one = (1, 1, 1, 1)
    some, zero = (add(tensors[q], one) for _ in range(2))
    step("slice", {"input": q}, some, starts=(0, 0, 0, 0), stops=one)
    step("gen_index", {"input": some}, zero, axis=0)  # of the only element, which is 0
    wide: dict[int, int] = {}
    for id_ in dict.fromkeys(id_ for _, id_ in node.inputs if id_ in odd):
        tensor = tensors[id_]
        *rows, size = tensor.shape
        rest = -size % _HEAD_STEP
        zeros, wide[id_] = add(tensor, (*rows, rest)), add(tensor, (*rows, size + rest))
        step("identity", {"input": zero}, zeros)
        step("concatenate", {"input0": id_, "input1": zeros}, wide[id_], axis=3)
    after = [id_ for _, id_ in node.outputs if id_ in odd]
    for id_ in after:
        *rows, size = tensors[id_].shape
        wide[id_] = add(tensors[id_], (*rows, size + -size % _HEAD_STEP))
    inputs, outputs = (
        tuple((name, wide.get(id_, id_)) for name, id_ in each)
        for each in (node.inputs, node.outputs)
    )
    nodes.append(msgspec.structs.replace(node, inputs=inputs, outputs=outputs))
    for id_ in after:
        step("slice", {"input": wide[id_]}, id_, starts=(0, 0, 0, 0), stops=tensors[id_].shape)
    whole = msgspec.structs.replace(graph, tensors=tuple(tensors))
    return tuple(msgspec.structs.replace(whole, nodes=(each,)) for each in nodes)


def _as_buffer(tensor: DnnTensor, dtype: str) -> DnnTensor:
    if not dtype or tensor.dtype not in FLOATS:
        dtype = tensor.dtype
    return msgspec.structs.replace(tensor, kind="buffer", dtype=dtype)


def flattened(graph: DnnGraph) -> DnnGraph:
    """Rewrite an elementwise graph as rows and columns, the form that cuDNN fuses.

    Neighbours in memory that are broadcast and reduced together become one dimension; the
    last of these are the channels. A graph with other nodes, or with tensors of different
    layouts, is returned unchanged.
    """
    ids = graph.used()
    if any(node.op not in ELEMENTWISE for node in graph.nodes):
        return graph
    tensors = {id_: graph.tensors[id_] for id_ in ids if graph.tensors[id_].kind != "scalar"}
    ndim = max(len(tensor.shape) for tensor in tensors.values())
    if any(len(each.shape) != ndim or each.ragged >= 0 for each in tensors.values()):
        return graph
    whole = tuple(max(each.shape[axis] for each in tensors.values()) for axis in range(ndim))
    largest = max(tensors.values(), key=lambda tensor: tensor.extent)
    order = order_of(ndim, last=largest.last)
    if not all(_lies(tensor, order) for tensor in tensors.values()):
        return graph
    groups = _groups(list(tensors.values()), whole, order)
    if len(groups) > _MOST_GROUPS:
        return graph
    # The fastest group is the channels; the others are the batch and space.
    places = [0, *range(2, len(groups)), 1] if len(groups) > 1 else [1]
    shapes = {id_: _grouped(tensor.shape, groups, places) for id_, tensor in tensors.items()}
    axes = {axis: places[at] for at, group in enumerate(groups) for axis in group}
    if len(groups) == 1 and not any(node.op == "reduction" for node in graph.nodes):
        shapes = {id_: _split(shape) for id_, shape in shapes.items()}
    shapes |= dict.fromkeys(graph.scalars(), (1,) * _MOST_GROUPS)
    return msgspec.structs.replace(
        graph,
        tensors=tuple(
            msgspec.structs.replace(
                tensor,
                shape=shapes[id_],
                strides=strides_of(shapes[id_], last=True),
                last=True,
            )
            if id_ in shapes
            else tensor
            for id_, tensor in enumerate(graph.tensors)
        ),
        nodes=tuple(_moved(node, axes) for node in graph.nodes),
    )


def _split(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A single row as several, so that there is work for many processors."""
    columns = math.gcd(shape[1], _MOST_COLUMNS)
    if columns < _LEAST_COLUMNS:
        return shape
    return (shape[1] // columns, columns, 1, 1)


def _lies(tensor: DnnTensor, order: Sequence[int]) -> bool:
    """Return whether a tensor has no gaps and has its dimensions, except those of 1, in order."""
    packed = packed_strides(tensor.shape, order)
    steps = zip(tensor.shape, tensor.strides, packed, strict=True)
    return all(size == 1 or have == want for size, have, want in steps)


def _groups(
    tensors: Sequence[DnnTensor], whole: tuple[int, ...], order: Sequence[int]
) -> list[list[int]]:
    """Dimensions, from the slowest to the fastest, that can be one."""
    groups: list[list[int]] = []
    kinds: list[tuple[bool, ...]] = []
    for axis in order:
        if whole[axis] == 1:
            continue
        kind = tuple(tensor.shape[axis] == 1 for tensor in tensors)
        if groups and kinds[-1] == kind:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            kinds.append(kind)
    return groups or [[order[-1]]]


def _grouped(
    shape: tuple[int, ...], groups: Sequence[Sequence[int]], places: Sequence[int]
) -> tuple[int, ...]:
    sizes = [1] * _MOST_GROUPS
    for group, place in zip(groups, places, strict=True):
        sizes[place] = math.prod(shape[axis] for axis in group)
    return tuple(sizes)


def _moved(node: GraphNode, axes: dict[int, int]) -> GraphNode:
    """A node with the dimensions it names in their new places."""
    moved: list[tuple[str, Attribute]] = []
    for name, value in node.attributes:
        if name == "axes" and isinstance(value, tuple):
            moved.append((name, tuple(sorted({axes[axis] for axis in value if axis in axes}))))
        else:
            moved.append((name, value))
    return msgspec.structs.replace(node, attributes=tuple(moved))
