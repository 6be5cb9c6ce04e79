"""Attention for the conformance tests: ways to call it, and a naive reference in float64.

The reference takes one sequence at a time and one head at a time, with all scores in
memory. Its gradients are the textbook's, and tests hold them against finite differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...conformance import HALF, Array, Case, Near, Operation, Sample, on_cuda

LSE_SLACK = 1e-4 if on_cuda() else 0.0
"""cuDNN computes exponentials and logarithms with the device's approximations."""

FP8_LSE_SLACK = 2e-4 if on_cuda() else 1e-5
"""Slack of log-sum-exps in fp8, whose kernels take coarser approximations.

The steps after them keep four bits anyway. On an H200 the kernels were off by 1.3e-4, on
log-sum-exps of about 2.
"""

OPTIONS = ("causal", "window", "align", "softcap", "softmax_scale")
EXTRAS = ("slopes", "bias", "sink")


@dataclass
class Mask:
    """Options of a call, for one sequence."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    align: str = "bottom_right"
    softcap: float = 0.0
    softmax_scale: float | None = None

    def seen(self, queries: int, keys: int) -> Array:
        """Which keys each query sees, one by one."""
        seen = np.zeros((queries, keys), bool)
        shift = keys - queries if self.align == "bottom_right" else 0
        before, after = self.window
        for i in range(queries):
            for j in range(keys):
                distance = j - (i + shift)
                late = distance > 0 if self.causal else 0 <= after < distance
                early = 0 <= before < -distance
                seen[i, j] = not late and not early
        return seen


def shares(
    q: Array, k: Array, mask: Mask, head: int, slopes: Any, bias: Any, sink: Any
) -> tuple[Array, Array, Array]:
    """Probabilities of one head of one sequence, their logarithm's sum, and the cap's slope."""
    scale = mask.softmax_scale or 1 / math.sqrt(q.shape[-1])
    scores = q @ k.T * scale
    slope = np.ones_like(scores)
    if mask.softcap:
        slope = 1 - np.tanh(scores / mask.softcap) ** 2
        scores = mask.softcap * np.tanh(scores / mask.softcap)
    if slopes is not None:
        shift = len(k) - len(q) if mask.align == "bottom_right" else 0
        distance = np.arange(len(k))[None, :] - (np.arange(len(q))[:, None] + shift)
        scores = scores - slopes[head] * abs(distance)
    if bias is not None:
        scores = scores + bias
    scores = np.where(mask.seen(len(q), len(k)), scores, -np.inf)
    if sink is not None:
        scores = np.concatenate([scores, np.full((len(q), 1), sink[head])], axis=1)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(1))
    p = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[:, None])
    return p[:, : len(k)], lse, slope


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    *,
    slopes: Any = None,
    bias: Any = None,
    sink: Any = None,
) -> tuple[Array, Array, Array]:
    """The result for one sequence, (queries, heads, size), its logarithms, its magnitude."""
    queries, heads, _ = q.shape
    group = heads // k.shape[1]
    o = np.zeros((queries, heads, v.shape[-1]))
    lse, size = np.zeros((queries, heads)), np.zeros_like(o)
    for head in range(heads):
        keys, values = k[:, head // group], v[:, head // group]
        each = None if bias is None else bias[head % len(bias)]
        p, lse[:, head], _ = shares(q[:, head], keys, mask, head, slopes, each, sink)
        o[:, head], size[:, head] = p @ values, p @ abs(values)
    return o, lse, size


@dataclass
class Gradients:
    """Gradients of one sequence with their magnitudes."""

    q: Array
    k: Array
    v: Array
    q_size: Array
    k_size: Array
    v_size: Array
    bias: Array
    bias_size: Array
    sink: Array
    sink_size: Array


def gradients(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    mask: Mask,
    *,
    slopes: Any = None,
    bias: Any = None,
    sink: Any = None,
) -> Gradients:
    """The gradients for one sequence."""
    queries, heads, size = q.shape
    group = heads // k.shape[1]
    scale = mask.softmax_scale or 1 / math.sqrt(size)
    shapes = {"q": q.shape, "k": k.shape, "v": v.shape}
    shapes |= {"bias": (heads, queries, len(k)), "sink": (heads,)}
    named = {name: np.zeros(shape) for name, shape in shapes.items()}
    named |= {f"{name}_size": np.zeros(shape) for name, shape in shapes.items()}
    found = Gradients(**named)
    for head in range(heads):
        at = head // group
        each = None if bias is None else bias[head % len(bias)]
        p, lse, slope = shares(q[:, head], k[:, at], mask, head, slopes, each, sink)
        delta = (do[:, head] * o[:, head]).sum(-1, keepdims=True)
        delta_size = abs(do[:, head] * o[:, head]).sum(-1, keepdims=True)
        ds = p * (do[:, head] @ v[:, at].T - delta)
        ds_size = p * (abs(do[:, head]) @ abs(v[:, at]).T + delta_size)
        found.bias[head], found.bias_size[head] = ds, ds_size
        if sink is not None:
            share = np.exp(sink[head] - lse)[:, None]
            found.sink[head] = -(share * delta).sum()
            found.sink_size[head] = (share * delta_size).sum()
        ds, ds_size = ds * slope * scale, ds_size * slope * scale
        found.q[:, head] = ds @ k[:, at]
        found.q_size[:, head] = ds_size @ abs(k[:, at])
        found.k[:, at] += ds.T @ q[:, head]
        found.k_size[:, at] += ds_size.T @ abs(q[:, head])
        found.v[:, at] += p.T @ do[:, head]
        found.v_size[:, at] += p.T @ abs(do[:, head])
    return found


# --- dense --------------------------------------------------------------------------------


def options(case: Case) -> dict[str, Any]:
    return {name: case[name] for name in OPTIONS if name in case}


def mask_of(case: Case) -> Mask:
    return Mask(**options(case))


def extras(case: Case, given: tuple[Any, ...]) -> dict[str, Any]:
    """The optional inputs of a case, by name."""
    return dict(zip([name for name in EXTRAS if case.get(name)], given, strict=True))


def arguments(case: Case, given: tuple[Any, ...]) -> dict[str, Any]:
    """Return the extras under the names of the call's arguments."""
    found = extras(case, given)
    if "slopes" in found:
        found["alibi_slopes"] = found.pop("slopes")
    return {**options(case), **found}


def make_extras(sample: Sample, case: Case, heads: int, queries: int, keys: int) -> list[Array]:
    made: list[Array] = []
    if case.get("slopes"):
        made.append(np.asarray(2.0 ** -sample.rng.uniform(1, 6, heads), np.float32))
    if case.get("bias"):
        made.append(sample.array(1, heads, queries, keys))
    if case.get("sink"):
        made.append(np.asarray(sample.rng.uniform(-2, 2, heads), np.float32))
    return made


def sizes(case: Case) -> Any:
    """Batch, queries, keys, heads, key and value heads, size, size of values."""
    heads, size = case.get("heads", 4), case.get("size", 16)
    queries, values = case.get("queries", 24), case.get("value_size", size)
    keys, kv_heads = case.get("keys", queries), case.get("kv_heads", heads)
    return (case.get("batch", 2), queries, keys, heads, kv_heads, size, values)


def dense_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    batch, queries, keys, heads, kv_heads, size, value_size = sizes(case)
    q = sample.array(batch, queries, heads, size)
    k = sample.array(batch, keys, kv_heads, size)
    v = sample.array(batch, keys, kv_heads, value_size)
    return (q, k, v, *make_extras(sample, case, heads, queries, keys))


async def call_dense(device: Any, q: Any, k: Any, v: Any, *given: Any, **case: Any) -> Any:
    return await device.dnn.flash_attention_with_lse(q, k, v, **arguments(case, given))


def one_bias(found: dict[str, Any]) -> dict[str, Any]:
    """The optional inputs of one entry of a batch: a bias has none."""
    return {**found, **({"bias": found["bias"][0]} if "bias" in found else {})}


def expect_dense(q: Array, k: Array, v: Array, *given: Any, **case: Any) -> tuple[Near, Near]:
    mask, more = mask_of(case), one_bias(extras(case, given))
    parts = [attention(*each, mask, **more) for each in zip(q, k, v, strict=True)]
    o, lse, size = (np.stack(part) for part in zip(*parts, strict=True))
    return Near(o, size), Near(lse.swapaxes(1, 2), dtype="float32", slack=LSE_SLACK)


def backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    q, k, v, *more = dense_inputs(sample, **case)
    wide = [each.astype(np.float64) for each in (q, k, v, *more)]
    o, lse = (each.value for each in expect_dense(*wide, **case))
    do = sample.array(*o.shape)
    return (do, q, k, v, o.astype(q.dtype), lse.astype(np.float32), *more)


async def call_backward(
    device: Any, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *given: Any, **case: Any
) -> Any:
    return await device.dnn.flash_attention_grad(do, q, k, v, o, lse, **arguments(case, given))


def expect_backward(
    do: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *given: Any, **case: Any
) -> tuple[Near, ...]:
    mask, more = mask_of(case), one_bias(extras(case, given))
    each = zip(do, q, k, v, o, strict=True)
    return stacked([gradients(*one, mask, **more) for one in each], case)


def stacked(found: list[Gradients], case: Case) -> tuple[Near, ...]:
    """Gradients of a batch as results of a call."""
    results = [
        Near(
            np.stack([getattr(each, name) for each in found]),
            np.stack([getattr(each, f"{name}_size") for each in found]),
        )
        for name in "qkv"
    ]
    for name, dtype in (("bias", None), ("sink", "float32")):
        if case.get(name):
            value = sum(getattr(each, name) for each in found)
            size = sum(getattr(each, f"{name}_size") for each in found)
            lead = (None,) if name == "bias" else ()
            slack = 0.01 * np.max(size) if name == "sink" else 0.0
            results.append(Near(value[lead], size[lead], dtype=dtype, slack=slack))
    return tuple(results)


PLAIN: list[Case] = [
    {},
    {"queries": 1, "keys": 40},
    {"queries": 40, "keys": 17, "kv_heads": 2},
    {"heads": 6, "kv_heads": 1, "size": 32},
    {"batch": 1, "queries": 70, "heads": 2, "size": 64, "softmax_scale": 0.3},
    {"size": 32, "value_size": 16},
]
MASKED: list[Case] = [
    {"causal": True},
    {"causal": True, "queries": 9, "keys": 40, "kv_heads": 2},
    {"causal": True, "queries": 1, "keys": 33},
    {"causal": True, "queries": 9, "keys": 40, "align": "top_left"},
    {"causal": True, "window": (5, 0)},
    {"window": (5, 3), "queries": 20, "keys": 33},
    {"window": (-1, 4), "align": "top_left"},
    {"window": (0, -1)},
]
LONGER: list[Case] = [
    {"causal": True, "queries": 40, "keys": 24},
    {"window": (6, 2), "queries": 40, "keys": 33},
]
"""More queries than keys: the first ones see nothing."""

BLIND: list[Case] = [
    {"queries": 15, "keys": 4, "window": (7, 0), "align": "top_left", "softcap": 5.0},
    {"queries": 9, "keys": 3, "window": (3, 0), "align": "top_left", "heads": 1},
    {"queries": 18, "keys": 17, "causal": True, "window": (0, 2), "align": "top_left"},
    {"queries": 80, "keys": 5, "window": (2, 1), "align": "top_left", "kv_heads": 2},
]
"""The last queries see nothing: the window is behind the last key."""

SCORED: list[Case] = [
    {"softcap": 2.0},
    {"softcap": 2.0, "causal": True, "kv_heads": 2},
    {"softcap": 1.5, "causal": True, "window": (7, 0), "queries": 20, "keys": 40},
    {"slopes": True, "causal": True},
    {"slopes": True, "queries": 20, "keys": 33},
    {"slopes": True, "softcap": 2.0, "window": (9, 4)},
    {"sink": True},
    {"sink": True, "causal": True, "window": (7, 0), "kv_heads": 2},
    {"bias": True},
    {"bias": True, "causal": True},
]

DENSE = [
    Operation(
        f"dnn.flash_attention{suffix}",
        HALF,
        cases,
        dense_inputs,
        call_dense,
        expect_dense,
        may_refuse=HALF if suffix == ".longer" else (),
    )
    for suffix, cases in (
        ("", PLAIN),
        (".masked", MASKED),
        (".blind", BLIND),
        (".longer", LONGER),
        (".scored", SCORED),
    )
]
BACKWARD = [
    Operation(
        f"dnn.flash_attention_grad{suffix}",
        HALF,
        cases,
        backward_inputs,
        call_backward,
        expect_backward,
        factor=16.0,
    )
    for suffix, cases in (("", PLAIN), (".masked", MASKED), (".blind", BLIND), (".scored", SCORED))
]


# --- ragged -------------------------------------------------------------------------------


def ends(lengths: Any) -> Array:
    """Return the starts of the sequences, and the end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def ragged_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    _, _, _, heads, kv_heads, size, value_size = sizes(case)
    lengths_q, lengths_k = case["lengths_q"], case.get("lengths_k", case["lengths_q"])
    q = sample.array(sum(lengths_q), heads, size)
    k = sample.array(sum(lengths_k), kv_heads, size)
    v = sample.array(sum(lengths_k), kv_heads, value_size)
    more = make_extras(sample, case, heads, 0, 0)
    return (q, k, v, ends(lengths_q), ends(lengths_k), *more)


def longest(case: Case) -> tuple[int, int]:
    lengths = case["lengths_q"]
    return max(lengths), max(case.get("lengths_k") or lengths)


async def call_ragged(
    device: Any, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *given: Any, **case: Any
) -> Any:
    cu_k = cu_q if "lengths_k" not in case else cu_k
    return await device.dnn.flash_attention_varlen_with_lse(
        q, k, v, cu_q, cu_k, *longest(case), **arguments(case, given)
    )


def pieces(array: Array, cu: Array) -> list[Array]:
    return np.split(array, np.asarray(cu[1:-1], int))


def expect_ragged(
    q: Array, k: Array, v: Array, cu_q: Array, cu_k: Array, *given: Any, **case: Any
) -> tuple[Near, Near]:
    mask, more = mask_of(case), extras(case, given)
    each = zip(pieces(q, cu_q), pieces(k, cu_k), pieces(v, cu_k), strict=True)
    parts = [attention(*one, mask, **more) for one in each]
    o, lse, size = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Near(o, size), Near(lse, dtype="float32", slack=LSE_SLACK)


def ragged_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    q, k, v, cu_q, cu_k, *more = ragged_inputs(sample, **case)
    wide = [each.astype(np.float64) for each in (q, k, v)]
    o, lse = (each.value for each in expect_ragged(*wide, cu_q, cu_k, *more, **case))
    do = sample.array(*o.shape)
    return (do, q, k, v, o.astype(q.dtype), lse.astype(np.float32), cu_q, cu_k, *more)


async def call_ragged_backward(
    device: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    cu_q: Any,
    cu_k: Any,
    *given: Any,
    **case: Any,
) -> Any:
    cu_k = cu_q if "lengths_k" not in case else cu_k
    return await device.dnn.flash_attention_varlen_grad(
        do, q, k, v, o, lse, cu_q, cu_k, *longest(case), **arguments(case, given)
    )


def expect_ragged_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    cu_q: Array,
    cu_k: Array,
    *given: Any,
    **case: Any,
) -> tuple[Near, ...]:
    mask, more = mask_of(case), extras(case, given)
    by_query = [pieces(each, cu_q) for each in (do, q)]
    by_key = [pieces(each, cu_k) for each in (k, v)]
    each = zip(*by_query, *by_key, pieces(o, cu_q), strict=True)
    found = [gradients(a, b, c, d, e, mask, **more) for a, b, c, d, e in each]
    results = [
        Near(
            np.concatenate([getattr(each, name) for each in found]),
            np.concatenate([getattr(each, f"{name}_size") for each in found]),
        )
        for name in "qkv"
    ]
    if case.get("sink"):
        results.append(_sinks(found))
    return tuple(results)


def _sinks(found: list[Gradients]) -> Near:
    size = sum(each.sink_size for each in found)
    value = sum(each.sink for each in found)
    return Near(value, size, dtype="float32", slack=0.01 * np.max(size))


RAGGED_CASES: list[Case] = [
    {"lengths_q": (5, 24, 1, 17)},
    {"lengths_q": (5, 24, 1, 17), "causal": True, "kv_heads": 2},
    {"lengths_q": (30,), "causal": True, "window": (6, 0), "heads": 1},
    {"lengths_q": (3, 9, 1), "lengths_k": (40, 9, 33)},
    {"lengths_q": (3, 9, 1), "lengths_k": (40, 9, 33), "causal": True, "kv_heads": 1},
    {"lengths_q": (3, 9), "lengths_k": (40, 19), "window": (8, 3)},
]
CAPPED: Case = {"lengths_q": (20, 33), "softcap": 2.0, "causal": True}
SLOPED: Case = {"lengths_q": (20, 33), "slopes": True, "causal": True}
"""A case that cuDNN 9.19 differentiates but does not compute forward."""
UNEVEN: Case = {"lengths_q": (3, 9), "lengths_k": (40, 19), "softcap": 2.0, "causal": True}
SINK: Case = {"lengths_q": (20, 33), "sink": True, "causal": True}

RAGGED = [
    *(
        Operation(
            f"dnn.flash_attention_varlen{suffix}",
            HALF,
            cases,
            ragged_inputs,
            call_ragged,
            expect_ragged,
            may_refuse=HALF if suffix else (),
        )
        for suffix, cases in (
            ("", [*RAGGED_CASES, SINK]),
            (".refusable", [CAPPED, SLOPED, UNEVEN]),
        )
    ),
    *(
        Operation(
            f"dnn.flash_attention_varlen_grad{suffix}",
            HALF,
            cases,
            ragged_backward_inputs,
            call_ragged_backward,
            expect_ragged_backward,
            factor=16.0,
            may_refuse=HALF if suffix else (),
        )
        for suffix, cases in (
            ("", [*RAGGED_CASES, SLOPED]),
            (".refusable", [CAPPED, UNEVEN, SINK]),
        )
    ),
]


# --- caches -------------------------------------------------------------------------------


def cached_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    batch, queries, _, heads, kv_heads, size, value_size = sizes(case)
    page, columns, new = case["page"], case["columns"], case.get("new", 0)
    room = page * columns
    pages = batch * columns + 3 if case.get("paged", True) else batch
    rows = page if case.get("paged", True) else room
    lengths = sample.rng.integers(queries, room - new + 1, batch).astype(np.int32)
    table = np.zeros((1, 1), np.int32)
    if case.get("paged", True):
        table = sample.rng.permutation(pages)[: batch * columns].reshape(batch, columns)
    inputs: list[Array] = [
        sample.array(batch, queries, heads, size),
        sample.array(pages, rows, kv_heads, size),
        sample.array(pages, rows, kv_heads, value_size),
        sample.array(batch, max(1, new), kv_heads, size),
        sample.array(batch, max(1, new), kv_heads, value_size),
        lengths,
        table.astype(np.int32),
    ]
    return (*inputs, *make_extras(sample, case, heads, 0, 0))


async def call_cached(
    device: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    lengths: Any,
    table: Any,
    *given: Any,
    **case: Any,
) -> Any:
    fresh = (k, v) if case.get("new") else ()
    o = await device.dnn.flash_attention_with_kvcache(
        q,
        k_cache,
        v_cache,
        *fresh,
        cache_seqlens=lengths,
        block_table=table if case.get("paged", True) else None,
        **arguments(case, given),
    )
    return (o, k_cache, v_cache)


def expect_cached(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    lengths: Array,
    table: Array,
    *given: Any,
    **case: Any,
) -> tuple[Near, ...]:
    mask, more = mask_of(case), extras(case, given)
    batch, rows = len(q), k_cache.shape[1]
    if not case.get("paged", True):
        table = np.arange(batch)[:, None]
    caches = [k_cache.copy(), v_cache.copy()]
    parts = []
    for b in range(batch):
        end = int(lengths[b])
        for step in range(case.get("new", 0)):
            at = divmod(end, rows)
            for cache, fresh in zip(caches, (k, v), strict=True):
                cache[table[b, at[0]], at[1]] = fresh[b, step]
            end += 1
        keys, values = (np.concatenate(cache[table[b]])[:end] for cache in caches)
        parts.append(attention(q[b], keys, values, mask, **more))
    o, _, size = (np.stack(part) for part in zip(*parts, strict=True))
    return Near(o, size), *(Near(cache, 0.0) for cache in caches)


CACHES: list[Case] = [
    {"queries": 1, "page": 16, "columns": 4, "kv_heads": 2, "causal": True},
    {"queries": 1, "page": 8, "columns": 5, "new": 1, "heads": 8, "kv_heads": 1},
    {"queries": 12, "page": 16, "columns": 3, "new": 12, "causal": True},
    {"queries": 3, "page": 4, "columns": 9, "new": 3, "causal": True, "window": (6, 0)},
    {"queries": 2, "page": 16, "columns": 3, "new": 2, "paged": False, "causal": True},
]
SCORED_CACHES: list[Case] = [
    {"queries": 2, "page": 16, "columns": 3, "softcap": 2.0, "causal": True},
    {"queries": 4, "page": 16, "columns": 3, "slopes": True, "causal": True},
]

CACHED = [
    Operation(
        f"dnn.flash_attention_with_kvcache{suffix}",
        HALF,
        cases,
        cached_inputs,
        call_cached,
        expect_cached,
        writes=(1, 2),
        may_refuse=HALF if suffix else (),
    )
    for suffix, cases in (("", CACHES), (".refusable", SCORED_CACHES))
]

# --- fp8 ----------------------------------------------------------------------------------

E4M3 = "float8_e4m3fn"
FORWARD_SCALES = {
    "descale_q": 0.5,
    "descale_k": 2.0,
    "descale_v": 0.25,
    "descale_s": 1 / 128,
    "scale_s": 128.0,
    "scale_o": 8.0,
}
BACKWARD_SCALES = {
    **FORWARD_SCALES,
    "descale_o": 1 / 8,
    "descale_dO": 0.5,
    "descale_dP": 1 / 64,
    "scale_dP": 64.0,
    "scale_dQ": 8.0,
    "scale_dK": 8.0,
    "scale_dV": 4.0,
}
del BACKWARD_SCALES["scale_o"]


def scalars(scales: dict[str, float]) -> list[Array]:
    return [np.array(value, np.float32) for value in scales.values()]


def fp8_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    return (*dense_inputs(sample, **case), *scalars(FORWARD_SCALES))


def fp8_options(case: Case) -> dict[str, Any]:
    return {name: value for name, value in options(case).items() if name != "softcap"}


async def call_fp8(device: Any, q: Any, k: Any, v: Any, *given: Any, **case: Any) -> Any:
    scales = dict(zip(FORWARD_SCALES, given, strict=True))
    return await device.dnn.flash_attention_fp8(q, k, v, scales=scales, **fp8_options(case))


def descaled(scales: dict[str, float], **arrays: Array) -> list[Array]:
    return [array * scales[f"descale_{name}"] for name, array in arrays.items()]


def expect_fp8(q: Array, k: Array, v: Array, *given: Any, **case: Any) -> tuple[Near, ...]:
    del given
    mask = mask_of(case)
    wide = descaled(FORWARD_SCALES, q=q, k=k, v=v)
    parts = [attention(a, b, c, mask) for a, b, c in zip(*wide, strict=True)]
    o, lse, size = (np.stack(part) for part in zip(*parts, strict=True))
    p = max(
        shares(a[:, h], b[:, h * b.shape[1] // a.shape[1]], mask, h, None, None, None)[0].max()
        for a, b, _ in zip(*wide, strict=True)
        for h in range(q.shape[2])
    )
    scale = FORWARD_SCALES["scale_o"]
    return (
        Near(o * scale, size * scale),
        Near(lse.swapaxes(1, 2), dtype="float32", slack=FP8_LSE_SLACK),
        # A device may round probabilities before they are divided by their sum.
        Near(p, dtype="float32", slack=1.0 if on_cuda() else 1e-5),
        Near(abs(o).max(), dtype="float32", slack=0.125 * size.max()),
    )


def fp8_backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    q, k, v = dense_inputs(sample, **case)
    wide = [each.astype(np.float64) for each in (q, k, v)]
    o, lse, *_ = (each.value for each in expect_fp8(*wide, **case))
    do = sample.array(*o.shape)
    scales = scalars(BACKWARD_SCALES)
    return (do, q, k, v, o.astype(q.dtype), lse.astype(np.float32), *scales)


async def call_fp8_backward(
    device: Any, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *given: Any, **case: Any
) -> Any:
    scales = dict(zip(BACKWARD_SCALES, given, strict=True))
    return await device.dnn.flash_attention_fp8_grad(
        do, q, k, v, o, lse, scales=scales, **fp8_options(case)
    )


def expect_fp8_backward(
    do: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *given: Any, **case: Any
) -> tuple[Near, ...]:
    del given, lse
    scales = BACKWARD_SCALES
    wide = descaled(scales, dO=do, q=q, k=k, v=v, o=o)
    mask = mask_of(case)
    found = [gradients(a, b, c, d, e, mask) for a, b, c, d, e in zip(*wide, strict=True)]
    results, largest = [], []
    # Terms that are rounded to 0: the smallest steps of fp8, over the whole sum.
    steps = 2.0**-10 * max(q.shape[1], k.shape[1])
    for name in "qkv":
        value = np.stack([getattr(each, name) for each in found])
        size = np.stack([getattr(each, f"{name}_size") for each in found])
        scale = scales[f"scale_d{name.upper()}"]
        lost = steps * (1.0 if name == "v" else scales["descale_dP"]) * scale
        results.append(Near(value * scale, size * scale, slack=lost))
        most = 0.25 * size.max() + lost
        largest.append(Near(abs(value).max(), dtype="float32", slack=most))
    ds = max(abs(each.bias).max() for each in found) / math.sqrt(q.shape[-1])
    size = max(each.bias_size.max() for each in found) / math.sqrt(q.shape[-1])
    return (*results, *largest, Near(ds, dtype="float32", slack=0.25 * size))


FP8_CASES: list[Case] = [
    {"size": 128},
    {"size": 128, "causal": True, "kv_heads": 2},
    {"size": 128, "queries": 24, "keys": 64, "window": (30, -1), "align": "top_left"},
]
FP8 = [
    Operation(
        "dnn.flash_attention_fp8",
        (E4M3,),
        [*FP8_CASES[:2], {"size": 64}],
        fp8_inputs,
        call_fp8,
        expect_fp8,
        factor=1.0,
    ),
    Operation(
        "dnn.flash_attention_fp8_grad",
        (E4M3,),
        FP8_CASES[:2],
        fp8_backward_inputs,
        call_fp8_backward,
        expect_fp8_backward,
        factor=1.5,
    ),
    Operation(
        "dnn.flash_attention_fp8.window",
        (E4M3,),
        FP8_CASES[2:],
        fp8_inputs,
        call_fp8,
        expect_fp8,
        factor=1.0,
        may_refuse=(E4M3,),
    ),
]

OPERATIONS = [*DENSE, *BACKWARD, *RAGGED, *CACHED, *FP8]
