"""Convolutions by our own kernels, for cases that cuDNN refuses or computes wrongly."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._nodes import wider
from ._launch import LaunchForm, Pointer, form

if TYPE_CHECKING:
    from ...wire._graph import DnnGraph, DnnTensor

SOURCE: Final = CudaSource(__package__, "convs.cu")

_ROLES: Final = {
    "conv_fprop": ("forward", ("y", "image", "weight"), ("image", "weight", "y")),
    "conv_dgrad": ("images", ("dx", "loss", "filter"), ("dx", "filter", "loss")),
    "conv_wgrad": ("filters", ("dw", "image", "loss"), ("image", "dw", "loss")),
}
"""The kernel of a node, its pointers, and which of its tensors are image, filter, result."""

_DTYPES: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    if node.op not in _ROLES:
        return False
    dtypes = {graph.tensors[id_].dtype for _, id_ in (*node.inputs, *node.outputs)}
    return len(dtypes) == 1 and dtypes <= _DTYPES


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    kernel, pointers, roles = _ROLES[node.op]
    ids = dict((*node.inputs, *node.outputs))
    image, filter_, result = (graph.tensors[ids[role]] for role in roles)
    window = dict(node.attributes)
    groups = image.shape[1] // filter_.shape[1]
    data = b"".join(map(_steps, (image, filter_, result)))
    data += struct.pack(
        "<5q", image.shape[0], image.shape[1], filter_.shape[0], filter_.shape[1], groups
    )
    for tensor in (image, filter_, result):
        data += _three(tensor.shape[2:], 1)
    data += _three(window["pre_padding"], 0)
    data += _three(window["stride"], 1) + _three(window["dilation"], 1)
    count = math.prod(graph.tensors[ids[pointers[0]]].shape)
    types = C_TYPES[wider(image.dtype)], C_TYPES[image.dtype]
    name = f"{kernel}<{', '.join(types)}>"
    places = [Pointer(ids[name]) for name in pointers]
    return [form(SOURCE, name, count, *places, data, struct.pack("<q", count))]


def _steps(tensor: DnnTensor) -> bytes:
    return struct.pack("<2q", *tensor.strides[:2]) + _three(tensor.strides[2:], 0)


def _three(values: Any, missing: int) -> bytes:
    """Numbers for three dimensions of space; missing ones come first."""
    return struct.pack("<3q", *[missing] * (3 - len(values)), *values)
