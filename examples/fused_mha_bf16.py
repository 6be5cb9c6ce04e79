"""Multi-head attention in bfloat16: projections, causal attention, gradients, and decoding.

The same sequences go through attention at once, and token by token from a cache in pages: both
must agree, and the gradients must be those that differences tell.
"""

import warnings

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

BATCH, LENGTH, HEADS, KV_HEADS, SIZE = 2, 24, 8, 2, 64
WIDTH = HEADS * SIZE
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention in float64; each key head serves a group of query heads."""
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=2) for each in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(SIZE)
    scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y: np.ndarray = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)
    return y


def wide(array: np.ndarray) -> np.ndarray:
    """In double precision."""
    return array.astype(np.float64)


async def main() -> None:
    """Project, attend, differentiate, decode."""
    rng = np.random.default_rng()
    x = rng.standard_normal((BATCH * LENGTH, WIDTH)).astype(BFLOAT16)
    widths = (WIDTH, KV_HEADS * SIZE, KV_HEADS * SIZE)
    projections = [
        (rng.standard_normal((WIDTH, width)) / np.sqrt(WIDTH)).astype(BFLOAT16) for width in widths
    ]
    async with open_device(0) as device:
        dnn = device.dnn
        tokens = await device.put(x)
        q, k, v = [
            (await device.blas.gemm(tokens, await device.put(each))).reshape(
                BATCH, LENGTH, -1, SIZE
            )
            for each in projections
        ]
        out, lse = await dnn.flash_attention_with_lse(q, k, v, causal=True)
        upstream = await device.put(rng.standard_normal(out.shape).astype(BFLOAT16))
        grads = await dnn.flash_attention_grad(upstream, q, k, v, out, lse, causal=True)
        hosts = [wide(await device.get(ref)) for ref in (q, k, v)]
        got, down = [wide(await device.get(ref)) for ref in (out, upstream)]
        slopes = [wide(await device.get(ref)) for ref in grads]

        # The same, token by token: what was computed before comes from the cache.
        cache = await dnn.kv_cache(32, 16, KV_HEADS, SIZE, dtype=BFLOAT16)
        sequences = [cache.new() for _ in range(BATCH)]
        steps = []
        narrow = [each.astype(BFLOAT16) for each in hosts]
        for at in range(LENGTH):
            row = [await device.put(np.ascontiguousarray(each[:, at : at + 1])) for each in narrow]
            steps.append(await device.get(await cache.attend(row[0], sequences, row[1], row[2])))
        used = cache.statistics()

    exact = attention(*hosts)
    np.testing.assert_allclose(got, exact, atol=0.03)
    np.testing.assert_allclose(wide(np.concatenate(steps, axis=1)), exact, atol=0.03)

    # Along a random direction the gradients say how fast the result moves.
    for name, array, slope in zip("qkv", hosts, slopes, strict=True):
        way = rng.standard_normal(array.shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [each + step * way if each is array else each for each in hosts]
            ends.append((attention(*moved) * down).sum())
        told, found = (slope * way).sum(), (ends[0] - ends[1]) / 2e-6
        spread = np.linalg.norm(slope) * 0.05
        assert abs(told - found) < spread, (name, told, found)
        print(f"d/d{name}: {told:9.3f}, by differences {found:9.3f}")
    print(
        f"attention on {device.backend}: {got.shape} in bfloat16, off by "
        f"{np.abs(got - exact).max():.1e} at most; decoded from {used.used} pages"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
