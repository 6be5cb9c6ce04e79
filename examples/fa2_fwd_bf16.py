"""FlashAttention in bfloat16, where cuDNN has no kernel: a softcap of sequences with lengths.

A language model with a softcap, as Gemma 2 is, attends to padded prompts and then, token by token,
to a cache in pages of 12 rows. Both are held against attention in double precision.
"""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

HEADS, KV_HEADS, SIZE, PAGE = 8, 2, 64, 12
LENGTHS = [30, 17]
SOFTCAP = 20.0
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention of one sequence; the last query is the last key's."""
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(SIZE)
    scores = SOFTCAP * np.tanh(scores / SOFTCAP)
    own = np.arange(len(q))[:, None] + len(k) - len(q)
    scores = np.where(np.arange(len(k)) <= own, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y: np.ndarray = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)
    return y


async def main() -> None:
    """A padded batch with its gradients, then one more token for each sequence."""
    rng = np.random.default_rng()
    batch, longest = len(LENGTHS), max(LENGTHS)
    shapes = [(batch, longest, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    host = [rng.standard_normal(shape).astype(BFLOAT16) for shape in shapes]
    async with open_device(0) as device:
        flash: Any = device.flash_attention
        q, k, v = [await device.put(each) for each in host]
        lengths = await device.put(np.array(LENGTHS, np.int32))
        out, lse, _ = await flash.flash_attn_func(
            *(q, k, v),
            causal=True,
            softcap=SOFTCAP,
            seqlens_q=lengths,
            seqlens_k=lengths,
            return_attn_probs=True,
        )
        dq, dk, dv = await flash.flash_attn_backward(
            *(out, q, k, v, out, lse),
            causal=True,
            softcap=SOFTCAP,
            seqlens_q=lengths,
            seqlens_k=lengths,
        )
        got = (await device.get(out)).astype(float)
        wide = [each.astype(float) for each in host]
        for at, length in enumerate(LENGTHS):
            exact = attention(*(each[at, :length] for each in wide))
            np.testing.assert_allclose(got[at, :length], exact, atol=0.04)
        print(
            f"prompts of {LENGTHS} on {device.backend}: gradients {dq.shape}, {dk.shape}, "
            f"{dv.shape}"
        )

        # The same keys in pages, and one more token for each sequence.
        columns = -(-(longest + 1) // PAGE)
        table = rng.permutation(batch * columns).reshape(batch, columns).astype(np.int32)
        caches = []
        for each in host[1:]:
            rows = np.zeros((batch, columns * PAGE, KV_HEADS, SIZE), BFLOAT16)
            rows[:, :longest] = each
            pages = np.empty((batch * columns, PAGE, KV_HEADS, SIZE), BFLOAT16)
            pages[table] = rows.reshape(batch, columns, PAGE, KV_HEADS, SIZE)
            caches.append(await device.put(pages))
        new = [rng.standard_normal((batch, 1, *shape[2:])).astype(BFLOAT16) for shape in shapes]
        out = await flash.flash_attn_with_kvcache(
            *(await device.put(new[0]), caches[0], caches[1]),
            *(await device.put(new[1]), await device.put(new[2])),
            cache_seqlens=lengths,
            block_table=await device.put(table),
            causal=True,
            softcap=SOFTCAP,
        )
        got = (await device.get(out)).astype(float)
    for at, length in enumerate(LENGTHS):
        keys, values = (
            np.concatenate([old[at, :length], fresh[at]]).astype(float)
            for old, fresh in zip(host[1:], new[1:], strict=True)
        )
        exact = attention(new[0][at].astype(float), keys, values)
        np.testing.assert_allclose(got[at], exact, atol=0.04)
    print(f"one more token each, from pages of {PAGE} rows: {got.shape}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
