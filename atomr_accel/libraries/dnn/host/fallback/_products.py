"""Matrix products by our own kernel: in full precision, and in cases that cuDNN refuses."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from .....executors.device_code import C_TYPES, CudaSource
from ._launch import THREADS, LaunchForm, Pointer, form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...wire._graph import DnnGraph, DnnTensor

_SIDE: Final = 16
"""A block has as many rows of threads, each with as many threads."""

_MOST_BATCH_DIMS: Final = 6

SOURCE: Final = CudaSource(__package__, "products.cu", SIDE=_SIDE, DIMS=_MOST_BATCH_DIMS)

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})

_MANY: Final = 256
"""Number of large squares from which they are used. They need fewer reads, but must be enough for
all processors."""

assert _SIDE * _SIDE == THREADS


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernel computes a graph of one node."""
    (node,) = graph.nodes
    tensors = [graph.tensors[id_] for _, id_ in (*node.inputs, *node.outputs)]
    return node.op == "matmul" and all(
        tensor.dtype in _FLOATS and tensor.kind != "scalar" and tensor.ragged < 0
        for tensor in tensors
    )


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ids = dict((*node.inputs, *node.outputs))
    a, b, c = tensors = [graph.tensors[ids[name]] for name in ("A", "B", "c")]
    *batch, m, n = c.shape
    each, squares = _squares(batch, m, n, wide=graph.compute == "float64")
    places = [Pointer(ids[name]) for name in ("c", "A", "B")]
    data = struct.pack("<4q", m, n, a.shape[-1], len(batch))
    for tensor in tensors:
        data += struct.pack("<2q", *tensor.strides[-2:])
    data += _words(batch) + b"".join(map(_batch_steps, tensors))
    # Factors differ where one was computed by a step before.
    types = ", ".join(C_TYPES[each] for each in (graph.compute, a.dtype, b.dtype, c.dtype))
    name = f"multiply<{types}, {each}>"
    return [form(SOURCE, name, squares * THREADS, *places, data, struct.pack("<q", squares))]


def _squares(batch: Sequence[int], m: int, n: int, *, wide: bool) -> tuple[int, int]:
    """Elements of a thread in each direction, and squares of the result."""
    counts = {
        each: math.prod(batch) * -(-m // (_SIDE * each)) * -(-n // (_SIDE * each))
        for each in (4, 8)
    }
    # Of a square that is mostly empty most work is for nothing; doubles fill the registers.
    large = not wide and min(m, n) > 4 * _SIDE and counts[8] >= _MANY
    each = 8 if large else 4
    return each, counts[each]


def _batch_steps(tensor: DnnTensor) -> bytes:
    """Elements from one matrix to the next; 0 where one serves all."""
    dims = list(zip(tensor.shape, tensor.strides, strict=True))[:-2]
    return _words([0 if size == 1 else stride for size, stride in dims])


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{_MOST_BATCH_DIMS}q", *values, *[0] * (_MOST_BATCH_DIMS - len(values)))
