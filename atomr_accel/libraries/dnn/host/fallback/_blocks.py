"""Numbers that have a scale for each block of them, by our own kernel.

cuDNN takes these only in front of products, on devices of compute capability 10.0 and newer, and
with scales in tiles (``CUDNN_TENSOR_REORDERING_F8_128x4``).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._block_nodes import BLOCKS
from ...wire._graph import MOST_DIMS
from ._launch import LaunchForm, Pointer, form

if TYPE_CHECKING:
    from ...wire._graph import DnnGraph

SOURCE: Final = CudaSource(__package__, "blocks.cu", DIMS=MOST_DIMS)

_EXPONENTS: Final = {"float8_e4m3fn": 4, "float8_e5m2": 5}
_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernel computes a graph of one node."""
    (node,) = graph.nodes
    return node.op in BLOCKS and graph.tensors[node.outputs[0][1]].dtype in _FLOATS


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ids, attributes = dict((*node.inputs, *node.outputs)), dict(node.attributes)
    x, scale, y = (graph.tensors[ids[name]] for name in ("input", "descale", "y"))
    data = struct.pack("<3q", len(x.shape), attributes["axis"], attributes["block_size"])
    for numbers in (x.shape, x.strides, scale.strides, y.strides):
        data += struct.pack(f"<{MOST_DIMS}q", *numbers, *[0] * (MOST_DIMS - len(numbers)))
    places = [Pointer(ids[name]) for name in ("y", "input", "descale")]
    count = math.prod(x.shape)
    name = f"dequantize<{_EXPONENTS[x.dtype]}, {C_TYPES[y.dtype]}>"
    return [form(SOURCE, name, count, *places, data, struct.pack("<q", count))]
