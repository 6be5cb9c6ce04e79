"""Attention with NumPy: the formulas of ``_attention_nodes``, one after the other.

All scores are in memory at once, so this is for sizes that tests have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ...blaslt.host.cpu import saturate
from .cpu_sequences import table_name
from .philox import kept

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]


class _Scores(NamedTuple):
    """Inputs of the softmax.

    Attributes:
        value: scores (batch, heads, queries, keys).
        seen: whether a query sees a key; broadcasts to the scores.
        slope: derivative of the scores with respect to ``attn_scale * q @ k.T``; 1 without a
            softcap.
        k, v: the keys and values of each query head.
    """

    value: Array
    seen: Array
    slope: Any
    k: Array
    v: Array


def paper_slopes(heads: int) -> Array:
    """ALiBi's slopes for a number of heads (Press et al., 2021)."""
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    second = [2.0 ** (-8.0 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return np.array([*first, *second][:heads])


def _gathered(pages: Array, table: Array, lengths: Array, keys: int) -> Array:
    """Gather the rows that page tables point to, as (batch, heads, keys, size)."""
    size = pages.shape[2]
    batch = len(table)
    found = np.zeros((batch, pages.shape[1], keys, pages.shape[3]), pages.dtype)
    for entry, length in enumerate(lengths.ravel().astype(int)):
        used = min(-(-length // size), table.shape[2])
        if used:  # the pages of an empty sequence may be any
            places = table[entry, 0, :used, 0]
            require_within(
                places, 0, len(pages) - 1, f"{table_name(table.shape[2])}, row {entry}, "
            )
            rows = pages[places].swapaxes(0, 1)
            rows = rows.reshape(pages.shape[1], used * size, -1)[:, : min(length, keys)]
            found[entry, :, : rows.shape[1]] = rows
    return found


def _cleaned(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return inputs with zeros behind the ends of sequences, which may hold any values.

    Probabilities are 0 there, but 0 times infinity is NaN.
    """
    if "seq_len_q" not in inputs:
        return inputs
    cleaned = dict(inputs)
    for lengths, names in (
        (inputs["seq_len_q"], ("q", "o", "dO", "stats")),
        # What is gathered from pages ends where sequences do.
        (inputs["seq_len_kv"], () if "paged_attention_k_table" in inputs else ("k", "v")),
    ):
        for name in names:
            if name in inputs:
                rows = np.arange(inputs[name].shape[2])[:, None]
                cleaned[name] = np.where(rows < lengths, inputs[name], 0)
    return cleaned


def _scores(inputs: Mapping[str, Any], attributes: Mapping[str, Any], scale: Any) -> _Scores:
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    batch, heads, queries, _ = q.shape
    lengths_q, lengths_k = inputs.get("seq_len_q"), inputs.get("seq_len_kv")
    if "paged_attention_k_table" in inputs:
        assert lengths_k is not None
        keys = attributes["max_seq_len_kv"]
        k = _gathered(k, inputs["paged_attention_k_table"], lengths_k, keys)
        v = _gathered(v, inputs["paged_attention_v_table"], lengths_k, keys)
    keys = k.shape[2]
    k, v = (np.repeat(each, heads // each.shape[1], axis=1) for each in (k, v))
    value = (q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)
    slope: Any = q.dtype.type(1)
    if "softcap" in inputs:
        cap = q.dtype.type(inputs["softcap"])
        bent = np.tanh(value / cap)
        value, slope = bent * cap, 1 - bent * bent
    row = np.arange(queries)[:, None]
    column = np.arange(keys)[None, :]
    seen = np.ones((batch, 1, queries, keys), bool)
    moved = row
    if lengths_q is not None and lengths_k is not None:
        require_within(lengths_q.ravel(), 0, queries, "lengths of queries")
        require_within(lengths_k.ravel(), 0, keys, "lengths of keys")
        seen &= (row < lengths_q) & (column < lengths_k)
    if attributes["diagonal_alignment"] == "BOTTOM_RIGHT":
        moved = row + (keys - queries if lengths_q is None else lengths_k - lengths_q)
    left = attributes["diagonal_band_left_bound"]
    right = attributes["diagonal_band_right_bound"]
    if right is not None:
        seen &= column <= moved + right
    if left is not None:
        seen &= column > moved - left
    slopes = inputs.get("alibi_slopes")
    if attributes.get("use_alibi_mask"):
        slopes = paper_slopes(heads).astype(q.dtype)[None, :, None, None]
    if slopes is not None:
        value = value - slopes * np.abs(column - moved)
    if "bias" in inputs:
        value = value + inputs["bias"]
    return _Scores(np.where(seen, value, -np.inf), seen, slope, k, v)


def _softmax(scores: Array, sink: Array | None) -> tuple[Array, Array]:
    """Probabilities, and the logarithm of their common divisor; rows that see nothing are 0."""
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0)
    exponentials = np.exp(scores - top)
    total = exponentials.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        stats = np.log(total) + top
    return exponentials / np.where(total > 0, total, 1), np.asarray(stats)


def _probabilities(scores: Array, stats: Array) -> Array:
    return np.asarray(np.exp(scores - np.where(np.isfinite(stats), stats, 0)))


def _dropped(inputs: Mapping[str, Any], attributes: Mapping[str, Any], shape: Any) -> Any:
    """Return the factors of probabilities: 0 for dropped ones, and above 1 for the others."""
    p = attributes.get("dropout", 0.0)
    if not p:
        return 1
    seed, offset = int(inputs["seed"].item()), int(inputs["offset"].item())
    keep = kept(seed, offset, int(np.prod(shape)), p).reshape(shape)
    return np.where(keep, 1 / (1 - p), 0).astype(np.float32)


def _sdpa(
    inputs: Mapping[str, Any], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Any]:
    del outputs
    inputs = _cleaned(inputs)
    scores = _scores(inputs, attributes, attributes["attn_scale"])
    p, stats = _softmax(scores.value, inputs.get("sink_token"))
    return {"o": (p * _dropped(inputs, attributes, p.shape)) @ scores.v, "stats": stats}


def _per_group(gradient: Array, heads: int) -> Array:
    """The sum over the query heads that share a key and value head."""
    batch, query_heads, *rest = gradient.shape
    grouped = gradient.reshape(batch, heads, query_heads // heads, *rest)
    return np.asarray(grouped.sum(2))


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    axes = tuple(axis for axis, size in enumerate(shape) if size != array.shape[axis])
    return np.asarray(array.sum(axes, keepdims=True))


def _sdpa_backward(
    inputs: Mapping[str, Any], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Any]:
    inputs = _cleaned(inputs)
    q, do, stats = inputs["q"], inputs["dO"], inputs["stats"]
    heads = inputs["k"].shape[1]
    scale = q.dtype.type(attributes["attn_scale"])
    scores = _scores(inputs, attributes, scale)
    rows = scores.seen.any(-1, keepdims=True)
    do = np.where(rows, do, 0)  # what lies behind the end of a sequence is not read
    p = _probabilities(scores.value, np.where(rows, stats, 0))
    dropped = _dropped(inputs, attributes, p.shape)
    delta = (np.where(rows, inputs["o"], 0) * do).sum(-1, keepdims=True)
    dp = (do @ scores.v.swapaxes(-1, -2)) * dropped
    ds = p * (dp - delta)
    found: dict[str, Any] = {"dV": _per_group((p * dropped).swapaxes(-1, -2) @ do, heads)}
    if "dBias" in outputs:
        found["dBias"] = _sum_to(ds, outputs["dBias"].shape)
    if "dSink_token" in outputs:
        share = np.where(rows, np.exp(inputs["sink_token"] - np.where(rows, stats, 0)), 0)
        found["dSink_token"] = _sum_to(-share * delta, outputs["dSink_token"].shape)
    ds = ds * scores.slope * scale
    found["dQ"] = ds @ scores.k
    found["dK"] = _per_group(ds.swapaxes(-1, -2) @ np.where(rows, q, 0), heads)
    return found


def _rounded(array: Array, scale: Any, dtype: str) -> Array:
    """Multiplied, and rounded to a narrow type."""
    return np.asarray(saturate(array * scale, DTYPES[dtype]).astype(array.dtype))


def _largest(array: Array) -> Array:
    return np.asarray(np.abs(array).max(initial=0)).reshape(1, 1, 1, 1)


def _sdpa_fp8(
    inputs: Mapping[str, Any], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Any]:
    inputs = _cleaned(inputs)
    scale = attributes["attn_scale"] * inputs["descale_q"] * inputs["descale_k"]
    scores = _scores(inputs, attributes, scale)
    p, stats = _softmax(scores.value, None)
    narrow = _rounded(p, inputs["scale_s"], outputs["o"].dtype)
    o = (narrow @ scores.v) * inputs["descale_s"] * inputs["descale_v"]
    found = {"o": o * inputs["scale_o"], "amax_s": _largest(p), "amax_o": _largest(o)}
    return {**found, "stats": stats}


def _sdpa_fp8_backward(
    inputs: Mapping[str, Any], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Any]:
    inputs = _cleaned(inputs)
    q, do, stats = inputs["q"], inputs["dO"], inputs["stats"]
    heads, dtype = inputs["k"].shape[1], outputs["dQ"].dtype
    scale = q.dtype.type(attributes["attn_scale"])
    scores = _scores(inputs, attributes, scale * inputs["descale_q"] * inputs["descale_k"])
    rows = scores.seen.any(-1, keepdims=True)
    do = np.where(rows, do, 0)
    p = _probabilities(scores.value, np.where(rows, stats, 0))
    narrow = _rounded(p, inputs["scale_s"], dtype)
    dv = (narrow.swapaxes(-1, -2) @ do) * inputs["descale_s"] * inputs["descale_dO"]
    o = np.where(rows, inputs["o"], 0) * inputs["descale_o"]
    delta = (o * do * inputs["descale_dO"]).sum(-1, keepdims=True)
    dp = (do @ scores.v.swapaxes(-1, -2)) * inputs["descale_dO"] * inputs["descale_v"]
    ds = p * (dp - delta) * scale
    narrow = _rounded(ds, inputs["scale_dP"], dtype)
    dq = (narrow @ scores.k) * inputs["descale_dP"] * inputs["descale_k"]
    dk = (narrow.swapaxes(-1, -2) @ np.where(rows, q, 0)) * inputs["descale_dP"]
    dk = dk * inputs["descale_q"]
    gradients = {"dQ": dq, "dK": _per_group(dk, heads), "dV": _per_group(dv, heads)}
    found = {f"amax_{name}": _largest(each) for name, each in gradients.items()}
    found["amax_dP"] = _largest(ds)
    return {
        **found,
        **{name: each * inputs[f"scale_{name}"] for name, each in gradients.items()},
    }


FUNCTIONS: Final = {
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "sdpa_fp8": _sdpa_fp8,
    "sdpa_fp8_backward": _sdpa_fp8_backward,
}
