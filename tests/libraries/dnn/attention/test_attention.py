"""Attention in ways that tables do not show: dropout, batches, recordings, slopes, layouts."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.dnn.host.cpu_attention import paper_slopes
from atomr_accel.libraries.dnn.host.philox import kept

from ....harness import opened
from ...conformance import MARKS, Near, compare, dtype_of, on_cuda
from ..rows.attention import Mask, ends, shares
from .inputs import HALF, normal

pytestmark = MARKS


# --- dropout ------------------------------------------------------------------------------


async def test_dropout_is_the_same_in_both_passes(device: Any) -> None:
    """With the unit matrix for values the result is what probabilities became."""
    rng = np.random.default_rng(0)
    n, p = 64, 0.3
    q, k, do = (normal(rng, 1, n, 2, n) for _ in range(3))
    v = np.broadcast_to(np.eye(n, dtype=HALF)[None, :, None], (1, n, 2, n))
    refs: Any = [await device.put(np.ascontiguousarray(array)) for array in (q, k, v, do)]
    given: Any = {"dropout_p": p, "seed": 7, "offset": 20}
    out, lse = await device.dnn.flash_attention_with_lse(*refs[:3], **given)
    o = (await device.get(out)).astype(float)
    scale = 1 / np.sqrt(n)
    exact = np.stack(
        [
            shares(q[0, :, h].astype(float), k[0, :, h].astype(float), Mask(), h, *[None] * 3)[0]
            for h in range(2)
        ]
    )
    keep = np.moveaxis(o[0], 1, 0) != 0
    share = keep.mean()
    assert abs(share - (1 - p)) < 5 * np.sqrt(p * (1 - p) / keep.size)
    compare(np.moveaxis(o[0], 1, 0).astype(HALF), Near(np.where(keep, exact / (1 - p), 0)), HALF)
    again = await device.get(await device.dnn.flash_attention(*refs[:3], **given))
    np.testing.assert_array_equal(again, o.astype(HALF))
    for change in ({"seed": 8}, {"offset": 4}):
        other = await device.dnn.flash_attention(*refs[:3], **{**given, **change})
        assert ((await device.get(other)) != again).mean() > 0.2
    # The backward pass drops the same ones.
    grads = await device.dnn.flash_attention_grad(refs[3], *refs[:3], out, lse, **given)
    dq, dk, dv = [(await device.get(ref))[0] for ref in grads]
    for head in range(2):
        d, mask = do[0, :, head].astype(float), keep[head] / (1 - p)
        delta = (d * o[0, :, head]).sum(-1, keepdims=True)
        ds = exact[head] * (d * mask - delta) * scale
        size = exact[head] * (abs(d) * mask + abs(d * o[0, :, head]).sum(-1, keepdims=True)) * scale
        a, b = q[0, :, head].astype(float), k[0, :, head].astype(float)
        for got, value, most in (
            (dq, ds @ b, size @ abs(b)),
            (dk, ds.T @ a, size.T @ abs(a)),
            (dv, (exact[head] * mask).T @ d, (exact[head] * mask).T @ abs(d)),
        ):
            compare(got[:, head], Near(value, most), HALF, 16.0)
    if not on_cuda():
        expected = kept(7, 20, keep.size, p).reshape(1, 2, n, n)[0]
        np.testing.assert_array_equal(keep, expected)


# --- batches, recordings, slopes ----------------------------------------------------------


async def test_in_a_batch(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = [await device.put(normal(rng, 9, 2, 16)) for _ in range(3)]
    cu = await device.put(ends([4, 5]))
    alone = await device.get(
        await device.dnn.flash_attention_varlen(q, k, v, cu, cu, 5, 5, causal=True)
    )
    async with device.batch() as batch:
        out, lse = batch.dnn.flash_attention_varlen_with_lse(q, k, v, cu, cu, 5, 5, causal=True)
        grads = batch.dnn.flash_attention_varlen_grad(
            out, q, k, v, out, lse, cu, cu, 5, 5, causal=True
        )
    np.testing.assert_array_equal(await device.get(out), alone)
    outside = await device.dnn.flash_attention_varlen_grad(
        out, q, k, v, out, lse, cu, cu, 5, 5, causal=True
    )
    for one, other in zip(grads, outside, strict=True):
        np.testing.assert_array_equal(await device.get(one), await device.get(other))


async def test_recorded(device: Any) -> None:
    """Replayed with other sequences, lengths too, of the same sizes."""
    rng = np.random.default_rng(0)

    async def fresh(lengths: list[int]) -> list[Any]:
        made = [await device.put(normal(rng, 9, 2, 16)) for _ in range(3)]
        return [*made, await device.put(ends(lengths))]

    first, second = await fresh([4, 5]), await fresh([7, 2])
    expected = [
        await device.get(
            await device.dnn.flash_attention_varlen(q, k, v, cu, cu, 9, 9, causal=True)
        )
        for q, k, v, cu in (first, second)
    ]
    q, k, v, cu = first
    async with device.record(*first) as recording:
        out = recording.dnn.flash_attention_varlen(q, k, v, cu, cu, 9, 9, causal=True)
    await recording.replay()
    np.testing.assert_array_equal(await device.get(out), expected[0])
    await recording.replay(*second)
    np.testing.assert_array_equal(await device.get(out), expected[1])


async def test_trying_all_plans_changes_no_result(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = [await device.put(normal(rng, 9, 2, 16)) for _ in range(3)]
    cu = await device.put(ends([4, 5]))
    given = (q, k, v, cu, cu, 5, 5)
    plain = await device.get(await device.dnn.flash_attention_varlen(*given, causal=True))
    cache = await device.dnn.kv_cache(4, 8, 2, 16, dtype=HALF)
    sequence = cache.new()
    row = q.reshape(1, 9, 2, 16)
    options: Any = {"causal": True, "autotune": True}
    tuned = await device.get(await device.dnn.flash_attention_varlen(*given, **options))
    out = await cache.attend(row, [sequence], row, v.reshape(1, 9, 2, 16), **options)
    compare(tuned, Near(plain.astype(float)), HALF)
    assert cache.length(sequence) == 9  # once, and not once more for trying
    own = await device.dnn.flash_attention(row, row, v.reshape(1, 9, 2, 16), causal=True)
    compare(await device.get(out), Near((await device.get(own)).astype(float)), HALF)
    assert device.dnn.statistics().tuned == 2


async def test_the_papers_slopes(device: Any) -> None:
    assert paper_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert paper_slopes(6).tolist()[4:] == [2.0**-1, 2.0**-3]
    rng = np.random.default_rng(0)
    q, k, v = [await device.put(normal(rng, 1, 24, 8, 16)) for _ in range(3)]
    slopes = await device.put(paper_slopes(8).astype(np.float32))
    own = await device.dnn.flash_attention(q, k, v, causal=True, alibi_slopes=True)
    given = await device.dnn.flash_attention(q, k, v, causal=True, alibi_slopes=slopes)
    np.testing.assert_allclose(
        (await device.get(own)).astype(float), (await device.get(given)).astype(float), atol=4e-3
    )


async def test_heads_first(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, 2, 9, h, 16) for h in (4, 2, 2))
    plain = await device.dnn.flash_attention(*[await device.put(each) for each in (q, k, v)])
    moved = [await device.put(np.ascontiguousarray(each.swapaxes(1, 2))) for each in (q, k, v)]
    got = await device.dnn.flash_attention(*moved, layout="bhsd")
    np.testing.assert_array_equal((await device.get(got)).swapaxes(1, 2), await device.get(plain))


async def test_gradients_go_where_they_are_wanted(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v, do = [await device.put(normal(rng, 1, 9, 2, 16)) for _ in range(4)]
    out, lse = await device.dnn.flash_attention_with_lse(q, k, v)
    grads = tuple([await device.empty(q.shape, HALF) for _ in range(3)])
    got: Any = await device.dnn.flash_attention_grad(do, q, k, v, out, lse, grads=grads)
    assert all(one is other for one, other in zip(got, grads, strict=True))
    fresh = await device.dnn.flash_attention_grad(do, q, k, v, out, lse)
    for one, other in zip(got, fresh, strict=True):
        compare(await device.get(one), Near((await device.get(other)).astype(float)), HALF)
    with pytest.raises(ValueError, match="three buffers"):
        await device.dnn.flash_attention_grad(do, q, k, v, out, lse, grads=grads[:2])


# --- against PyTorch ----------------------------------------------------------------------

needs_torch = pytest.mark.skipif(
    not (on_cuda() and importlib.util.find_spec("torch")), reason="needs PyTorch and a GPU"
)


@needs_torch
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
async def test_beside_torch(device: Any, size: int, *, causal: bool) -> None:
    """Real sizes, against PyTorch in double precision."""
    import torch

    rng = np.random.default_rng(size)
    batch, length, heads, kv_heads = 2, 513, 8, 2
    dtype = dtype_of("bfloat16")
    host = [
        normal(rng, batch, length, count, size, dtype=dtype)
        for count in (heads, kv_heads, kv_heads, heads)
    ]
    q, k, v, do = [
        torch.from_numpy(each.astype(np.float64)).cuda().transpose(1, 2).requires_grad_()
        for each in host
    ]
    wide = [q, *(each.repeat_interleave(heads // kv_heads, 1) for each in (k, v))]
    exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    exact.backward(do.detach())
    refs: Any = [await device.put(each) for each in host]
    out, lse = await device.dnn.flash_attention_with_lse(*refs[:3], causal=causal)
    grads = await device.dnn.flash_attention_grad(refs[3], *refs[:3], out, lse, causal=causal)
    for ref, tensor in zip((out, *grads), (exact, q.grad, k.grad, v.grad), strict=True):
        assert tensor is not None
        expected = tensor.detach().transpose(1, 2).cpu().numpy()
        got = (await device.get(ref)).astype(np.float64)
        error = np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean())
        assert error < 0.01


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
async def test_parts_of_one_projection_are_not_copied(layout: Any) -> None:
    """Queries, keys and values lie side by side, as one product has made them."""
    batch, length, heads, size = 2, 5, 3, 16
    rng = np.random.default_rng(0)
    shape = (batch, length, 3, heads, size)
    host = rng.standard_normal(shape, np.float32).astype(np.float16)
    async with opened(standby=None) as device:
        whole = await device.put(host)
        parts = [whole[:, :, at] for at in range(3)]
        copies = [await device.put(np.ascontiguousarray(host[:, :, at])) for at in range(3)]
        if layout == "bhsd":
            parts = [part.swapaxes(1, 2) for part in parts]
            copies = [await device.copy(part.swapaxes(1, 2)) for part in copies]
        expected = await device.get(
            await device.dnn.flash_attention(*copies, causal=True, layout=layout)
        )
        for _ in range(3):
            got = await device.dnn.flash_attention(*parts, causal=True, layout=layout)
            np.testing.assert_array_equal(await device.get(got), expected)
        if layout == "bshd":
            assert "array" not in device.core.ports  # which copies what has to be
