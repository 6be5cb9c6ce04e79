"""Rows of ``NODES`` for attention: forward and backward, in 16 bits and in fp8.

Tensors have shape (batch, heads, sequence, size), with any strides. The meaning is that of the
vendor's frontend.

    scores = attn_scale * q @ k.T            then, where they are given:
    scores = softcap * tanh(scores / softcap)
    scores = scores - alibi_slopes * abs(column - row)
    scores = scores + bias                   and minus infinity outside of the band and lengths.
    o = dropout(softmax(scores, and sink_token)) @ v
    stats = log(sum(exp(scores)))            the sink included.

Where the alignment is ``BOTTOM_RIGHT`` a row counts from ``seq_len_kv - seq_len_q`` on. A
column is seen if ``row - left < column <= row + right``. The vendor's own slopes
(``use_alibi_mask``) are those of the paper, 2 ** (-8 * head / heads) for powers of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._graph import DnnTensor, packed_strides
from ._node_type import NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._graph import Attribute, DnnGraph, GraphNode
    from ._node_type import Attributes, Inputs

ALIGNMENTS: Final = ("TOP_LEFT", "BOTTOM_RIGHT")
HALF: Final = ("float16", "bfloat16")
FP8: Final = ("float8_e4m3fn", "float8_e5m2")

LENGTHS: Final = ("seq_len_q", "seq_len_kv")
TABLES: Final = ("paged_attention_k_table", "paged_attention_v_table")
SCORES: Final = ("softcap", "alibi_slopes")
"""Inputs that change scores in ways for which the vendor has no option."""

CONSTANTS: Final = ("mask_value", "shift", "left", "right")
"""Numbers that such changes need for a band; ``attention_constants`` makes them. They repeat the
values of attributes."""

_BAND: Final[Mapping[str, Attribute]] = {
    "attn_scale": 1.0,
    "diagonal_alignment": "TOP_LEFT",
    "diagonal_band_left_bound": None,
    "diagonal_band_right_bound": None,
}
_OPTIONS: Final[Mapping[str, Attribute]] = {**_BAND, "use_alibi_mask": False, "dropout": 0.0}


def sizes(op: str, inputs: Inputs, attributes: Attributes) -> tuple[int, int, int, int, int]:
    """Batch, query heads, queries, keys, and the size of a value; checks that shapes fit."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if len(tensor.shape) != 4:
            raise ValueError(
                f"{op}: {name} must have shape (batch, heads, sequence, size), not {tensor.shape}"
            )
        if tensor.strides[3] != 1:
            raise ValueError(f"{op}: the last dimension of {name} must have stride 1")
        if tensor.dtype != q.dtype:
            raise TypeError(f"{op}: {name} must have the dtype of q, {q.dtype}, not {tensor.dtype}")
    batch, heads, queries, size = q.shape
    if k.shape[3] != size:
        raise ValueError(f"{op}: q must have the size of k, {k.shape[3]}, not {size}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"{op}: k {k.shape} and v {v.shape} differ in more than their size")
    if heads % k.shape[1]:
        raise ValueError(
            f"{op}: {heads} query heads are no multiple of {k.shape[1]} key and value heads"
        )
    keys = k.shape[2]
    if TABLES[0] in inputs:
        keys = _pages(op, inputs, attributes, batch)
    elif k.shape[0] != batch:
        raise ValueError(f"{op}: q must have the batch of k, {k.shape[0]}, not {batch}")
    return batch, heads, queries, keys, v.shape[3]


def _pages(op: str, inputs: Inputs, attributes: Attributes, batch: int) -> int:
    table = inputs[TABLES[0]]
    if TABLES[1] not in inputs:
        raise ValueError(f"{op}: {' and '.join(TABLES)} belong together")
    if len(table.shape) != 4 or table.shape[0] != batch or table.shape[1::2] != (1, 1):
        raise ValueError(
            f"{op}: a page table has shape (batch, 1, pages, 1) with a batch of {batch}, "
            f"not {table.shape}"
        )
    if LENGTHS[0] not in inputs:
        raise ValueError(f"{op}: pages need {' and '.join(LENGTHS)}")
    keys = attributes["max_seq_len_kv"]
    page = inputs["k"].shape[2]
    if not isinstance(keys, int) or not 0 < keys <= table.shape[2] * page:
        raise ValueError(
            f"{op}: max_seq_len_kv must be from 1 to {table.shape[2] * page}, not {keys}"
        )
    return keys


def is_single(graph: DnnGraph, node: GraphNode) -> bool:
    """Return whether a node is attention of one query to one key, without pages or raggedness."""
    tensors = {name: graph.tensors[id_] for name, id_ in (*node.inputs, *node.outputs)}
    lengths = [tensors[name].shape[2] for name in ("q", "k")]
    return (
        lengths == [1, 1]
        and TABLES[0] not in tensors
        and all(tensor.ragged < 0 for tensor in tensors.values())
    )


def _check(op: str, inputs: Inputs, attributes: Attributes) -> tuple[int, int, int, int, int]:
    found = sizes(op, inputs, attributes)
    batch, heads, queries, keys, _ = found
    _check_options(op, inputs, attributes)
    expected: dict[str, tuple[tuple[int, ...], ...]] = {
        "seq_len_q": ((batch, 1, 1, 1),),
        "seq_len_kv": ((batch, 1, 1, 1),),
        "sink_token": ((1, heads, 1, 1),),
        "alibi_slopes": ((1, heads, 1, 1), (batch, heads, 1, 1)),
        "bias": tuple(
            (b, h, rows, keys) for b in (batch, 1) for h in (heads, 1) for rows in (queries, 1)
        ),
    }
    for name, shapes in expected.items():
        tensor = inputs.get(name)
        if tensor is not None and tensor.shape not in shapes:
            raise ValueError(
                f"{op}: {name} must have shape {' or '.join(map(str, shapes))}, not {tensor.shape}"
            )
    return found


def _check_options(op: str, inputs: Inputs, attributes: Attributes) -> None:
    for pair in (LENGTHS, ("seed", "offset")):
        if (pair[0] in inputs) != (pair[1] in inputs):
            raise ValueError(f"{op}: {' and '.join(pair)} belong together")
    dropout = attributes.get("dropout", 0.0)
    if not 0 <= dropout < 1:
        raise ValueError(f"{op}: dropout must be at least 0 and below 1, not {dropout}")
    if (dropout > 0) != ("seed" in inputs):
        raise ValueError(f"{op}: dropout needs seed and offset, and they need dropout")
    if attributes["diagonal_alignment"] not in ALIGNMENTS:
        raise ValueError(
            f"{op}: diagonal_alignment must be one of {', '.join(ALIGNMENTS)}, "
            f"not {attributes['diagonal_alignment']!r}"
        )
    for name, least in (("left", 1), ("right", 0)):
        bound = attributes[f"diagonal_band_{name}_bound"]
        if bound is not None and bound < least:
            raise ValueError(f"{op}: diagonal_band_{name}_bound must be at least {least}")
    missing = [name for name in attention_constants(inputs, attributes) if name not in inputs]
    if missing:
        raise ValueError(f"{op}: with {' or '.join(SCORES)} it needs {', '.join(missing)}")


def attention_constants(given: Mapping[str, Any], attributes: Attributes) -> dict[str, float]:
    """Return the numbers that a lowering to single operations needs besides the attributes.

    Args:
        given: the inputs, by name; q and k have the lengths if there are no others.
        attributes: the node's attributes.
    """
    if not any(given.get(name) is not None for name in SCORES):
        return {}
    left = attributes["diagonal_band_left_bound"]
    right = attributes["diagonal_band_right_bound"]
    padded = given.get(LENGTHS[0]) is not None
    found: dict[str, float] = {}
    if padded or left is not None or right is not None:
        found["mask_value"] = MASK
    # The vendor's ALiBi is in the diagonal's own frame, so the alignment counts for slopes too.
    if attributes["diagonal_alignment"] == "BOTTOM_RIGHT" and not padded:
        found["shift"] = given["k"].shape[2] - given["q"].shape[2]
    if left is not None:
        found["left"] = left
    if right:
        found["right"] = right
    return found


MASK: Final = -1e30
"""Replacement of minus infinity. Its exponential is 0, and differences of it are never NaN."""


def _stats(batch: int, heads: int, queries: int) -> DnnTensor:
    shape = (batch, heads, queries, 1)
    return DnnTensor("float32", shape, packed_strides(shape), "virtual")


def _result(q: DnnTensor, size: int) -> DnnTensor:
    """Return a tensor with the layout of ``q`` in memory, and values of another size."""
    batch, heads, queries, _ = q.shape
    order = sorted(range(3), key=lambda axis: (-q.strides[axis], axis))
    shape = (batch, heads, queries, size)
    return DnnTensor(q.dtype, shape, packed_strides(shape, (*order, 3)), "virtual")


def _like(tensor: DnnTensor) -> DnnTensor:
    return DnnTensor(tensor.dtype, tensor.shape, tensor.strides, "virtual")


def _sdpa(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    q = inputs["q"]
    if q.dtype in FP8:
        raise TypeError(f"sdpa: {q.dtype} has scales, which sdpa_fp8 takes")
    batch, heads, queries, _, size = _check("sdpa", inputs, attributes)
    outputs = {"o": _result(q, size)}
    if attributes["generate_stats"]:
        outputs["stats"] = _stats(batch, heads, queries)
    return outputs


def _check_backward(op: str, inputs: Inputs, attributes: Attributes) -> None:
    batch, heads, queries, _, size = _check(op, inputs, attributes)
    for name in ("o", "dO"):
        if inputs[name].shape != (batch, heads, queries, size):
            raise ValueError(
                f"{op}: {name} must have shape {(batch, heads, queries, size)}, "
                f"not {inputs[name].shape}"
            )
    if inputs["stats"].shape != (batch, heads, queries, 1):
        raise ValueError(
            f"{op}: stats must have shape {(batch, heads, queries, 1)}, not {inputs['stats'].shape}"
        )


def _sdpa_backward(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    _check_backward("sdpa_backward", inputs, attributes)
    outputs = {"dQ": _like(inputs["q"]), "dK": _like(inputs["k"]), "dV": _like(inputs["v"])}
    for name, wanted, source in (
        ("dBias", attributes["has_dbias"], "bias"),
        ("dSink_token", "sink_token" in inputs, "sink_token"),
    ):
        if wanted:
            if source not in inputs:
                raise ValueError(f"sdpa_backward: {name} needs {source}")
            outputs[name] = _like(inputs[source])
    return outputs


def _one() -> DnnTensor:
    return DnnTensor("float32", (1, 1, 1, 1), (1, 1, 1, 1), "virtual")


def _need_fp8(op: str, inputs: Inputs) -> None:
    if inputs["q"].dtype not in FP8:
        raise TypeError(f"{op}: takes {' and '.join(FP8)}, not {inputs['q'].dtype}")


def _sdpa_fp8(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    _need_fp8("sdpa_fp8", inputs)
    batch, heads, queries, _, size = _check("sdpa_fp8", inputs, attributes)
    outputs = {"o": _result(inputs["q"], size)}
    if attributes["generate_stats"]:
        outputs["stats"] = _stats(batch, heads, queries)
    return {**outputs, "amax_s": _one(), "amax_o": _one()}


def _sdpa_fp8_backward(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    _need_fp8("sdpa_fp8_backward", inputs)
    _check_backward("sdpa_fp8_backward", inputs, attributes)
    gradients = {"dQ": _like(inputs["q"]), "dK": _like(inputs["k"]), "dV": _like(inputs["v"])}
    return {**gradients, **{name: _one() for name in ("amax_dQ", "amax_dK", "amax_dV", "amax_dP")}}


_QKV: Final = ("q", "k", "v")
_OPTIONAL: Final = (*LENGTHS, "bias", "sink_token", "seed", "offset", *SCORES, *CONSTANTS)

FP8_SCALES: Final = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
FP8_BACKWARD_SCALES: Final = (
    *("descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s"),
    *("descale_dP", "scale_s", "scale_dQ", "scale_dK", "scale_dV", "scale_dP"),
)


ATTENTION: Final = {
    "sdpa": NodeType(
        _QKV,
        ("o", "stats"),
        _sdpa,
        optional=(*_OPTIONAL, *TABLES),
        attributes={**_OPTIONS, "generate_stats": True, "max_seq_len_kv": None},
        about="attention; with page tables, ``k`` and ``v`` are (pages, heads, page, size)",
    ),
    "sdpa_backward": NodeType(
        (*_QKV, "o", "dO", "stats"),
        ("dQ", "dK", "dV", "dBias", "dSink_token"),
        _sdpa_backward,
        optional=_OPTIONAL,
        attributes={
            **_OPTIONS,
            "has_dbias": False,
            "use_deterministic_algorithm": False,
            "max_total_seq_len_q": None,
            "max_total_seq_len_kv": None,
        },
        about="the gradients of ``sdpa``",
    ),
    "sdpa_fp8": NodeType(
        (*_QKV, *FP8_SCALES),
        ("o", "stats", "amax_s", "amax_o"),
        _sdpa_fp8,
        optional=LENGTHS,
        attributes={**_BAND, "generate_stats": True},
        about="attention of fp8 numbers, each kind of which is multiplied by its ``descale``; "
        "probabilities and ``o`` are multiplied by their ``scale`` before they are rounded",
    ),
    "sdpa_fp8_backward": NodeType(
        (*_QKV, "o", "dO", "stats", *FP8_BACKWARD_SCALES),
        ("dQ", "dK", "dV", "amax_dQ", "amax_dK", "amax_dV", "amax_dP"),
        _sdpa_fp8_backward,
        optional=LENGTHS,
        attributes={**_BAND, "use_deterministic_algorithm": False},
        about="the gradients of ``sdpa_fp8``",
    ),
}
"""The rows by name."""
