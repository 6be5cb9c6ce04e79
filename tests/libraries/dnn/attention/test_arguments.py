"""Attention and bad arguments; what cuDNN does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import GpuRefStale, Unsupported

from ...conformance import MARKS, on_cuda
from ..rows.attention import ends
from .inputs import HALF, normal

pytestmark = MARKS


async def test_bad_arguments(device: Any) -> None:
    def zeros(*shape: int, dtype: Any = HALF) -> Any:
        return device.put(np.zeros(shape, dtype))

    dnn: Any = device.dnn
    q = await zeros(2, 5, 4, 16)
    wide = await zeros(2, 5, 4, 16, dtype=np.float32)
    bf16 = q.view("bfloat16")
    fp8 = q.reshape(-1)[:320].view("float8_e5m2").reshape(2, 5, 4, 16)
    for error, match, args, options in (
        (TypeError, "q must be a GpuRef", (0, q, q), {}),
        (TypeError, "k must be float16 or bfloat16, not float32$", (q, wide, q), {}),
        (TypeError, "16, not float8_e5m2, which flash_attention_fp8 takes", (fp8, fp8, fp8), {}),
        (TypeError, "k must have the dtype of q, float16, not bfloat16", (q, bf16, q), {}),
        (ValueError, "batch, sequence, heads, size", (q[0], q, q), {}),
        (ValueError, "q must have the batch of k, 1, not 2", (q, q[:1], q[:1]), {}),
        (ValueError, "differ in more than their size", (q, q, await zeros(2, 6, 4, 16)), {}),
        (ValueError, "q must have the size of k, 8, not 16", (q, await zeros(2, 5, 4, 8), q), {}),
        (ValueError, "no multiple", (q, *[await zeros(2, 5, 3, 16)] * 2), {}),
        (ValueError, "layout must be", (q, q, q), {"layout": "shbd"}),
        (TypeError, "has no dropout;", (q, q, q), {"dropout": 0.5}),
        (ValueError, "dropout_p must be", (q, q, q), {"dropout_p": 1.0}),
        (ValueError, "softcap must be", (q, q, q), {"softcap": -1.0}),
        (ValueError, "align must be", (q, q, q), {"align": "middle"}),
        (TypeError, "window must be two", (q, q, q), {"window": 3}),
        (ValueError, "each of window must be a whole number", (q, q, q), {"window": (-2, 0)}),
        (ValueError, "seed must be", (q, q, q), {"dropout_p": 0.5, "seed": -1}),
        (ValueError, "alibi_slopes=True takes causal", (q, q, q), {"alibi_slopes": True}),
        (TypeError, "sink must be float32", (q, q, q), {"sink": q}),
        (ValueError, r"sink must have shape \(4,\)", (q, q, q), {"sink": wide}),
        (ValueError, "bias must have shape", (q, q, q), {"bias": q}),
        (ValueError, "belong together", (q, q, q), {"seqlens_q": q}),
        (TypeError, "out is float32 .* but the result is float16", (q, q, q), {"out": wide}),
        (ValueError, "out is float16 of shape .* but the result", (q, q, q), {"out": q[0]}),
    ):
        with pytest.raises(error, match=match):
            await dnn.flash_attention(*args, **options)
    with pytest.raises(ValueError, match="shares memory with"):
        await dnn.flash_attention(q, q, q, out=q)
    out, lse = await dnn.flash_attention_with_lse(q, q, q)
    with pytest.raises(ValueError, match=r"lse must have shape \(2, 4, 5\)"):
        await dnn.flash_attention_grad(out, q, q, q, out, lse.reshape(4, 2, 5))
    with pytest.raises(TypeError, match="grad must be float16"):
        await dnn.flash_attention_grad(wide, q, q, q, out, lse)

    flat, cu = await zeros(10, 4, 16), await device.put(ends([4, 6]))
    for error, match, changes in (
        (ValueError, "max_seqlen_q must be", {"max_seqlen_q": 0}),
        (ValueError, "max_seqlen_q must be .* to 2147483647", {"max_seqlen_q": 2**31}),
        (ValueError, "max_seqlen_k must be .* to 2147483647", {"max_seqlen_k": 2**70}),
        (TypeError, "cu_seqlens_k must be int32", {"cu_seqlens_k": wide}),
        (ValueError, "cu_seqlens_k must have shape", {"cu_seqlens_k": cu[:2]}),
        (ValueError, "total, heads, size", {"q": q}),
        (TypeError, "has no bias", {"bias": q}),
        (ValueError, "pages, page, heads, size", {"block_table": cu}),
    ):
        given: dict[str, Any] = {"q": flat, "k": flat, "v": flat}
        given |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 6, "max_seqlen_k": 6}
        with pytest.raises(error, match=match):
            await dnn.flash_attention_varlen(**{**given, **changes})
    # More than there are altogether is no longer than that.
    most = {"max_seqlen_q": 2**31 - 1, "max_seqlen_k": 2**31 - 1}
    y = await dnn.flash_attention_varlen(flat, flat, flat, cu, cu, **most)
    np.testing.assert_array_equal(
        await device.get(y),
        await device.get(await dnn.flash_attention_varlen(flat, flat, flat, cu, cu, 6, 6)),
    )

    pages = await zeros(6, 8, 4, 16)
    table = await device.put(np.zeros((2, 3), np.int32))
    one, lengths = await zeros(2, 1, 4, 16), await device.put(np.ones(2, np.int32))
    for error, match, changes in (
        (ValueError, r"cache_seqlens must have shape \(2,\)", {"cache_seqlens": table}),
        (
            ValueError,
            "block_table must have 2 rows, one for each sequence, not 1",
            {"block_table": table[:1]},
        ),
        (ValueError, "max_seqlen_k must be a whole number from 1 to 24", {"max_seqlen_k": 25}),
        (ValueError, "belong together", {"k": one}),
        (ValueError, "k must have shape", {"k": q[:1], "v": q[:1]}),
        (TypeError, "has no dropout_p", {"dropout_p": 0.1}),
    ):
        given = {"cache_seqlens": lengths, "block_table": table}
        with pytest.raises(error, match=match):
            await dnn.flash_attention_with_kvcache(one, pages, pages, **{**given, **changes})
    with pytest.raises(ValueError, match="scales must be exactly descale_q"):
        await dnn.flash_attention_fp8(*[q.view("float8_e4m3fn")] * 3, scales={})
    await device.free(q)
    with pytest.raises(GpuRefStale, match="q was freed"):
        await dnn.flash_attention(q, flat, flat)


async def test_unsupported_attention_says_why(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = [await device.put(normal(rng, 16, 2, 20)) for _ in range(3)]
    ends = await device.put(np.array([0, 7, 16], np.int32))
    if on_cuda():  # sizes of ragged sequences are multiples of 8 there
        with pytest.raises(Unsupported, match="multiple of 8"):
            await device.dnn.flash_attention_varlen(q, k, v, ends, ends, 9, 9)
    else:
        await device.dnn.flash_attention_varlen(q, k, v, ends, ends, 9, 9)
