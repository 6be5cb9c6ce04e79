"""Attention of a single query to a single key by our own kernels.

cuDNN has no gradient for this case, and with a sink no result. With dropout our kernels compute
both, because both must drop the same elements.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._attention_nodes import is_single
from ..philox import threshold
from ._launch import LaunchForm, NumberPlace, Part, Pointer, form

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...wire._graph import DnnGraph, DnnTensor

SOURCE: Final = CudaSource(__package__, "attention.cu")

_OPS: Final = ("sdpa", "sdpa_backward")
_WIDE: Final = frozenset({"stats", "sink_token", "dSink_token"})
_ROWS: Final = ("q", "k", "v", "o", "dO", "dQ", "dK", "dV")
_DTYPES: Final = {
    **dict.fromkeys(_WIDE, "float32"),
    **dict.fromkeys(("seq_len_q", "seq_len_kv"), "int32"),
    **dict.fromkeys(("seed", "offset"), "int64"),
}
_IGNORED: Final = frozenset({"alibi_slopes", "mask_value", "shift", "left", "right"})
"""Inputs without an effect if row and column are 0."""

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32"})


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    if node.op not in _OPS or graph.compute != "float32" or not is_single(graph, node):
        return False
    tensors = {name: graph.tensors[id_] for name, id_ in (*node.inputs, *node.outputs)}
    dtype = tensors["q"].dtype
    return dtype in _FLOATS and all(
        tensor.dtype == _DTYPES.get(name, dtype)
        and tensor.kind != "scalar"
        and (tensor.strides[3] == 1 if name in _ROWS else name not in _DTYPES or tensor.whole)
        for name, tensor in tensors.items()
        if name not in _IGNORED and name != "softcap"
    )


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    ids = dict((*node.inputs, *node.outputs))
    tensors = {name: graph.tensors[id_] for name, id_ in ids.items()}
    attributes = dict(node.attributes)
    q, k, v = (tensors[name] for name in "qkv")
    batch, heads, _, size = q.shape
    dropped = float(attributes["dropout"] or 0.0)  # type: ignore[arg-type]

    def places(names: Iterable[str]) -> list[Part]:
        return [part for name in names for part in _place(ids.get(name), tensors.get(name))]

    # As an output "o" is nothing that the forward pass reads.
    read = ("q", "k", "v", "o", "dO", "stats", "bias")
    given = {name for name, _ in node.inputs}
    single = places(name if name in given else "" for name in read)
    pointers = ("sink_token", "seq_len_q", "seq_len_kv", "seed", "offset")
    single += [Pointer(ids.get(name)) for name in pointers]
    numbers = (batch, heads, k.shape[1], size, v.shape[3], threshold(dropped))
    cap = NumberPlace(ids["softcap"]) if "softcap" in ids else struct.pack("<d", 0.0)
    scale = float(attributes["attn_scale"] or 0.0)  # type: ignore[arg-type]
    single += [struct.pack("<6q2d", *numbers, scale, 1 / (1 - dropped)), cap]

    def launch(kernel: str, outputs: Iterable[str], count: int, *more: int) -> LaunchForm:
        last = struct.pack(f"<{len(more) + 1}q", *more, count)
        name = f"{kernel}<{C_TYPES[q.dtype]}>"
        return form(SOURCE, name, count, *single, *places(outputs), last)

    if node.op == "sdpa":
        return [launch("forward", ("o", "stats"), batch * heads * v.shape[3])]
    found = []
    for kernel, name in (
        ("by_q", "dQ"),
        ("by_k", "dK"),
        ("by_v", "dV"),
        ("by_sink", "dSink_token"),
    ):
        if name in ids:
            found.append(launch(kernel, (name,), math.prod(tensors[name].shape)))
    if "dBias" in ids:
        lead = tensors["dBias"].shape[:2]
        found.append(launch("by_bias", ("dBias",), math.prod(lead), *lead))
    return found


def _place(id_: int | None, tensor: DnnTensor | None) -> list[Part]:
    """A pointer, and the steps of batches and heads; 0 where one serves all."""
    steps = [0, 0]
    if tensor is not None:
        steps = [0 if tensor.shape[axis] == 1 else tensor.strides[axis] for axis in (0, 1)]
    return [Pointer(id_), struct.pack("<2q", *steps)]
