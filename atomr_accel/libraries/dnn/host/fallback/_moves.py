"""Operations that only move elements, by our own kernel."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._graph import MOST_DIMS
from ...wire._layout_nodes import LAYOUT
from ._launch import LaunchForm, Pointer, form

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...wire._graph import DnnGraph, DnnTensor

SOURCE: Final = CudaSource(__package__, "moves.cu", DIMS=MOST_DIMS)

_UNSIGNED: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "u64"}
"""Types that are moved without a conversion, by their bytes."""

_BYTES: Final = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}

_CONVERTED: Final = frozenset(C_TYPES)
"""Dtypes that can be converted into each other."""


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernel computes a graph of one node."""
    (node,) = graph.nodes
    if node.op not in LAYOUT:
        return False
    tensors = [graph.tensors[id_] for _, id_ in (*node.outputs, *node.inputs)]
    target = tensors[0].dtype
    return all(
        each.ragged < 0 and (each.dtype == target or {each.dtype, target} <= _CONVERTED)
        for each in tensors
    )


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ((_, target),) = node.outputs
    out, attributes = graph.tensors[target], dict(node.attributes)
    made = []
    begin = 0  # along the axis that is joined
    for _, source in node.inputs:
        x = graph.tensors[source]
        to, start = _walk(out.shape, out.strides), 0
        source_walk = _walk(x.shape, x.strides)
        if node.op == "slice":
            start, source_walk = _sliced(x, out.shape, attributes)
        elif node.op == "transpose":
            order: Sequence[int] = attributes["permutation"]  # type: ignore[assignment]
            source_walk = _walk(out.shape, [x.strides[axis] for axis in order])
        first = 0
        if node.op == "concatenate":
            axis = int(attributes["axis"])  # type: ignore[arg-type]
            first, to = begin * out.strides[axis], _walk(x.shape, out.strides)
            begin += x.shape[axis]
        count = math.prod(x.shape) if node.op == "concatenate" else math.prod(out.shape)
        walks = struct.pack("<q", first) + to + struct.pack("<q", start) + source_walk
        parts = (Pointer(target), Pointer(source), walks, struct.pack("<q", count))
        made.append(form(SOURCE, move_name(graph.compute, out.dtype, x.dtype), count, *parts))
    return made


def move_name(compute: str, target: str, source: str) -> str:
    """The kernel that moves elements of one dtype to another's."""
    if target == source:
        kind = _UNSIGNED[_BYTES[target]]
        return f"move<{kind}, {kind}, {kind}>"
    return f"move<{C_TYPES[compute]}, {C_TYPES[target]}, {C_TYPES[source]}>"


def _sliced(
    x: DnnTensor, shape: Sequence[int], attributes: Mapping[str, object]
) -> tuple[int, bytes]:
    """Return the offset of a slice, and the steps through it."""
    starts: Sequence[int] = attributes["starts"]  # type: ignore[assignment]
    steps: Sequence[int] = attributes["steps"] or (1,) * len(shape)  # type: ignore[assignment]
    first = sum(start * stride for start, stride in zip(starts, x.strides, strict=True))
    return first, _walk(shape, [a * b for a, b in zip(steps, x.strides, strict=True)])


def _walk(shape: Sequence[int], steps: Sequence[int]) -> bytes:
    missing = [0] * (MOST_DIMS - len(shape))
    return struct.pack(f"<{1 + 2 * MOST_DIMS}q", len(shape), *shape, *missing, *steps, *missing)
