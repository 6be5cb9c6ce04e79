"""Pooling and interpolation by our own kernels, which the vendor's frontend has none of."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._resample_nodes import RESAMPLING, ResampleAxis, axes_of
from ._launch import LaunchForm, Pointer, form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...wire._graph import DnnGraph, DnnTensor

SOURCE: Final = CudaSource(__package__, "resamples.cu")

_KINDS: Final = ("window", "adaptive", "NEAREST", "NEAREST_EXACT", "LINEAR", "CUBIC")
"""The kernels' ``Kind``, in its order."""

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
_NONE: Final = ResampleAxis("window", 1, 1)
"""A dimension that is not there."""


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    tensors = [graph.tensors[id_] for _, id_ in (*node.inputs, *node.outputs)]
    return node.op in RESAMPLING and all(
        tensor.dtype in _FLOATS and tensor.ragged < 0 for tensor in tensors
    )


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ids, attributes = dict((*node.inputs, *node.outputs)), dict(node.attributes)
    op, back, _ = node.op.partition("_backward")
    image, result = ("dx", "loss") if back else ("input", "y")
    x, y = graph.tensors[ids[image]], graph.tensors[ids[result]]
    largest = attributes["mode"] == "MAXPOOL"
    axes = axes_of(op, x.shape[2:], attributes)
    include = attributes["mode"] == "AVGPOOL_INCLUDE_PADDING"
    data = struct.pack("<2q", x.shape[1], include)
    for axis in (*[_NONE] * (3 - len(axes)), *axes):
        data += struct.pack("<8q", _KINDS.index(axis.kind), *axis[1:])
    data += _steps(graph.tensors[ids.get("input", ids[image])]) + _steps(y) + _steps(x)
    places = [ids["dx"], ids["loss"]] if back else [ids["y"], ids["input"]]
    if back and largest:
        places.append(ids["input"])
    types = [graph.tensors[id_].dtype for id_ in places]
    count = math.prod((x if back else y).shape)
    name = resample_name(node.op, (graph.compute, *types), largest=largest)
    parts: list[Any] = [Pointer(id_) for id_ in places]
    return [form(SOURCE, name, count, *parts, data, struct.pack("<q", count))]


def resample_name(op: str, types: Sequence[str], *, largest: bool) -> str:
    """The kernel of an operation, with the dtypes that it computes in, writes and reads."""
    kernel = "largest" if largest else "average"
    if op.endswith("_backward"):
        kernel = "spread_largest" if largest else "spread"
    return f"{kernel}<{', '.join(C_TYPES[each] for each in types)}>"


def _steps(tensor: DnnTensor) -> bytes:
    space = tensor.strides[2:]
    return struct.pack("<5q", *tensor.strides[:2], *[0] * (3 - len(space)), *space)
