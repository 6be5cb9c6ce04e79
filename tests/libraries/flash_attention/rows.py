"""Rows of our own kernels: those of ``device.dnn``'s attention, called by flash-attn's names.

The references and the cases are the same, with those that cuDNN does not do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ..conformance import Case
from ..dnn.rows import attention as rows

_KERNEL: Final[dict[str, Any]] = {"backend": "kernel"}


def _arguments(case: Case, given: tuple[Any, ...]) -> dict[str, Any]:
    found = {**rows.arguments(case, given), **_KERNEL}
    if "window" in found:
        found["window_size"] = found.pop("window")
    return found


async def _dense(device: Any, q: Any, k: Any, v: Any, *given: Any, **case: Any) -> Any:
    out, lse, _ = await device.flash_attention.flash_attn_func(
        q, k, v, return_attn_probs=True, **_arguments(case, given)
    )
    return out, lse


async def _backward(device: Any, *given: Any, **case: Any) -> Any:
    return await device.flash_attention.flash_attn_backward(
        *given[:6], **_arguments(case, given[6:])
    )


async def _ragged(
    device: Any, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *given: Any, **case: Any
) -> Any:
    longest = rows.longest(case)
    out, lse, _ = await device.flash_attention.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, *longest, return_attn_probs=True, **_arguments(case, given)
    )
    return out, lse


async def _ragged_backward(device: Any, *given: Any, **case: Any) -> Any:
    return await device.flash_attention.flash_attn_varlen_backward(
        *given[:8], *rows.longest(case), **_arguments(case, given[8:])
    )


async def _cached(device: Any, q: Any, k_cache: Any, v_cache: Any, *given: Any, **case: Any) -> Any:
    k, v, lengths, table, *more = given
    fresh = (k, v) if case.get("new") else ()
    o = await device.flash_attention.flash_attn_with_kvcache(
        *(q, k_cache, v_cache, *fresh),
        cache_seqlens=lengths,
        block_table=table if case.get("paged", True) else None,
        **_arguments(case, tuple(more)),
    )
    return (o, k_cache, v_cache)


_ANY_PAGE: Final[list[Case]] = [
    {"queries": 1, "page": 5, "columns": 9, "causal": True, "softcap": 2.0, "kv_heads": 2},
    {"queries": 1, "page": 3, "columns": 20, "sink": True, "new": 1},
    {"queries": 20, "page": 7, "columns": 9, "sink": True, "causal": True, "heads": 8},
]

_CALLS: Final[dict[str, tuple[str, Any]]] = {
    "dnn.flash_attention": ("flash_attn_func", _dense),
    "dnn.flash_attention_grad": ("flash_attn_backward", _backward),
    "dnn.flash_attention_varlen": ("flash_attn_varlen_func", _ragged),
    "dnn.flash_attention_varlen_grad": ("flash_attn_varlen_backward", _ragged_backward),
    "dnn.flash_attention_with_kvcache": ("flash_attn_with_kvcache", _cached),
}

OPERATIONS: Final = [
    replace(
        operation,
        name=operation.name.replace(name, f"flash_attention.{called}"),
        call=call,
        cases=[*operation.cases, *(_ANY_PAGE if suffix and call is _cached else ())],
        may_refuse=(),
    )
    for operation in (*rows.DENSE, *rows.BACKWARD, *rows.RAGGED, *rows.CACHED)
    for name, dot, suffix in [operation.name.partition(".")[2].partition(".")]
    for name in [f"dnn.{name}"]
    for called, call in [_CALLS[name]]
]
