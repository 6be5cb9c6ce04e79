"""Calls by flash-attn's names in ways that rows do not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import GpuRefSealed, GpuRefStale, Unsupported

from ..conformance import MARKS, Near, compare, dtype_of, on_cuda
from ..dnn.attention.inputs import HALF, floats, integers, normal
from ..dnn.rows.attention import Mask, attention, ends

pytestmark = MARKS

E4M3 = dtype_of("float8_e4m3fn")
BFLOAT16 = dtype_of("bfloat16")


async def putting(device: Any, *arrays: Any) -> list[Any]:
    return [await device.put(np.ascontiguousarray(array)) for array in arrays]


async def test_both_backends_agree(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v, do = await putting(device, *[normal(rng, 2, 40, 4, 32) for _ in range(4)])
    flash = device.flash_attention
    found = []
    for backend in ("auto", "cudnn", "kernel"):
        given: Any = {"causal": True, "window_size": (9, -1), "backend": backend}
        out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
        grads = await flash.flash_attn_backward(do, q, k, v, out, lse, **given)
        found.append([(await device.get(ref)).astype(float) for ref in (out, lse, *grads)])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_allclose(one, other, atol=0.02, rtol=0.02)


async def test_statistics_say_what_computed(device: Any) -> None:
    rng = np.random.default_rng(1)
    by_cudnn = "cudnn" if on_cuda() else "numpy"
    for backend, counted, size in (
        ("cudnn", by_cudnn, 40),
        ("kernel", "kernel", 40),
        ("cudnn", "padded" if on_cuda() else "numpy", 36),
    ):
        q, k, v = await putting(device, *[normal(rng, 3, 13, 2, size) for _ in range(3)])
        before = device.dnn.statistics().attention
        for _ in range(2):  # the second one is prepared already
            await device.flash_attention.flash_attn_func(q, k, v, backend=backend)
        after = device.dnn.statistics().attention
        assert {name: count - before.get(name, 0) for name, count in after.items()} == {
            **dict.fromkeys(after, 0),
            counted: 1,
        }


async def test_packed(device: Any) -> None:
    rng = np.random.default_rng(0)
    whole = normal(rng, 2, 9, 3, 4, 16)
    packed, pair = await putting(device, whole, whole[:, :, 1:])
    q, k, v = await putting(device, *(whole[:, :, at] for at in range(3)))
    flash = device.flash_attention
    out, lse, _ = await flash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    expected, logs = (await device.get(out)).astype(float), await device.get(lse)
    grads = await flash.flash_attn_backward(out, q, k, v, out, lse, causal=True)
    for backend in ("auto", "kernel"):
        for call, given in (
            (flash.flash_attn_qkvpacked_func, (packed,)),
            (flash.flash_attn_kvpacked_func, (q, pair)),
        ):
            got = await device.get(await call(*given, causal=True, backend=backend))
            np.testing.assert_allclose(got.astype(float), expected, atol=4e-3)
            by_place = (0.0, None, True, (-1, -1), 0.0, None, False, True)
            got, kept, _ = await call(*given, *by_place, backend=backend)
            np.testing.assert_allclose((await device.get(got)).astype(float), expected, atol=4e-3)
            np.testing.assert_allclose(await device.get(kept), logs, atol=4e-3)
        parts = [packed[:, :, at] for at in range(3)]
        same = await flash.flash_attn_backward(got, *parts, got, kept, causal=True, backend=backend)
        for one, other in zip(same, grads, strict=True):
            compare(await device.get(one), Near((await device.get(other)).astype(float)), HALF)
    with pytest.raises(ValueError, match=r"qkv must have shape \(batch, sequence, 3"):
        await flash.flash_attn_qkvpacked_func(pair)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
async def test_values_behind_the_ends_change_nothing(device: Any, garbage: float) -> None:
    rng = np.random.default_rng(0)
    lengths = integers([5, 0, 24])
    arrays = [normal(rng, 3, 24, 2, 16) for _ in range(4)]
    counts = await device.put(lengths)
    inside = np.arange(24)[:, None, None] < lengths[:, None, None, None]
    results = []
    for what in (0.0, garbage):
        q, k, v, do = await putting(
            device, *(np.where(inside, each, np.array(what, HALF)) for each in arrays)
        )
        given: Any = {"seqlens_q": counts, "seqlens_k": counts, "causal": True, "softcap": 2.0}
        flash = device.flash_attention
        out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
        o, logs = await device.get(out), await device.get(lse)
        behind = np.arange(24) >= lengths[:, None, None]
        assert not o[~inside[..., 0, 0]].any()
        assert np.isneginf(np.where(behind, logs, -np.inf)).all()
        changed = await putting(
            device,
            np.where(inside, o, np.array(what, HALF)),
            np.where(behind, np.float32(what), logs),
        )
        grads = await flash.flash_attn_backward(do, q, k, v, *changed, **given)
        results.append([o, *[await device.get(ref) for ref in grads]])
        assert all(not each[~inside[..., 0, 0]].any() for each in results[-1])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
async def test_caches_in_fp8(device: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    lengths = [7, 30]
    q = normal(rng, 2, 1, 4, 32, dtype=dtype_of(dtype))
    caches = [normal(rng, 2, 40, 2, 32, dtype=E4M3) for _ in "kv"]
    scales = floats([[0.5, 2.0], [1.0, 0.25]])
    one = np.float32(0.5)
    refs = await putting(device, q, *caches, integers(lengths), scales, one)
    narrow = {"q_descale": refs[5]} if dtype == "float8_e4m3fn" else {}
    got = await device.flash_attention.flash_attn_with_kvcache(
        *refs[:3],
        cache_seqlens=refs[3],
        k_descale=refs[4],
        v_descale=refs[5],
        causal=True,
        **narrow,
    )
    assert got.dtype == (BFLOAT16 if narrow else q.dtype)
    found = (await device.get(got)).astype(float)
    for at, length in enumerate(lengths):
        k = caches[0][at, :length].astype(float) * scales[at][:, None]
        v = caches[1][at, :length].astype(float) * 0.5
        wide = q[at].astype(float) * (0.5 if narrow else 1)
        expected, _, _ = attention(wide, k, v, Mask())
        np.testing.assert_allclose(found[at], expected, atol=0.02, rtol=0.02)


async def test_ways_to_say_how_long_a_cache_is(device: Any) -> None:
    rng = np.random.default_rng(0)
    flash = device.flash_attention
    q, k, v = await putting(
        device, normal(rng, 2, 3, 4, 16), *[normal(rng, 5, 20, 2, 16) for _ in "kv"]
    )
    lengths, which = await putting(device, integers([12, 12]), integers([3, 1]))
    first = [each[:2] for each in (k, v)]
    expected = await flash.flash_attn_with_kvcache(
        q, *first, cache_seqlens=lengths, causal=True, backend="kernel"
    )
    for backend in ("auto", "kernel"):
        by_number = await flash.flash_attn_with_kvcache(
            q, *first, cache_seqlens=12, causal=True, backend=backend
        )
        compare(await device.get(by_number), Near((await device.get(expected)).astype(float)), HALF)
    chosen = [await device.put((await device.get(each))[[3, 1]]) for each in (k, v)]
    moved = await flash.flash_attn_with_kvcache(
        q, *chosen, cache_seqlens=lengths, causal=True, backend="kernel"
    )
    by_index = await flash.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, cache_batch_idx=which, causal=True, backend="kernel"
    )
    np.testing.assert_array_equal(await device.get(by_index), await device.get(moved))
    whole = await flash.flash_attn_with_kvcache(q, *first, causal=True)
    plain = await flash.flash_attn_func(q, *first, causal=True)
    compare(await device.get(whole), Near((await device.get(plain)).astype(float)), HALF)
    for given in ({"cache_seqlens": 4, "k": k, "v": v}, {"block_table": which}):
        with pytest.raises(ValueError, match="cache_seqlens must be an int32 buffer"):
            await flash.flash_attn_with_kvcache(q, k, v, **given)
    with pytest.raises(ValueError, match="cache_seqlens must be a whole number from 0 to 20"):
        await flash.flash_attn_with_kvcache(q, *first, cache_seqlens=21)


@pytest.mark.parametrize("queries", [1, 3, 70])
async def test_a_cache_without_keys(device: Any, queries: int) -> None:
    """A cache without keys acts as one whose lengths in device memory are 0."""
    rng = np.random.default_rng(0)
    flash = device.flash_attention
    q, k, v = await putting(
        device, normal(rng, 2, queries, 4, 16), *[normal(rng, 2, 20, 2, 16) for _ in "kv"]
    )
    lengths, sink = await putting(device, integers([0, 0]), floats([1.0, 2.0, 3.0, 4.0]))
    for more in ({}, {"sink": sink}, {"causal": True}, {"softcap": 2.0, "window_size": (3, 0)}):
        found = []
        for count, backend in ((0, "auto"), (lengths, "kernel")):
            out, lse = await flash.flash_attn_with_kvcache(
                *(q, k, v),
                cache_seqlens=count,
                return_softmax_lse=True,
                backend=backend,
                **more,
            )
            assert not (await device.get(out)).any()
            found.append(await device.get(lse))
        np.testing.assert_array_equal(*found)
        assert ("sink" in more) == np.isfinite(found[0]).all()
    with pytest.raises(Unsupported, match="cuDNN does not do a cache without keys"):
        await flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=0, backend="cudnn")


async def test_the_papers_slopes_of_a_single_query(device: Any) -> None:
    """The penalty is by the distance to the query's own key, which is the last one."""
    rng = np.random.default_rng(0)
    q = normal(rng, 2, 1, 4, 16)
    q, k, v = await putting(device, q, *[normal(rng, 2, 30, 4, 16) for _ in "kv"])
    lengths, slopes = await putting(
        device, integers([9, 30]), floats([2.0 ** (-2 * i) for i in range(1, 5)])
    )
    given = {"cache_seqlens": lengths, "causal": True}
    flash = device.flash_attention
    own = await flash.flash_attn_with_kvcache(q, k, v, alibi_slopes=True, **given)
    same = await flash.flash_attn_with_kvcache(q, k, v, alibi_slopes=slopes, **given)
    compare(await device.get(own), Near((await device.get(same)).astype(float)), HALF)


async def test_in_a_batch_and_recorded(device: Any) -> None:
    rng = np.random.default_rng(0)
    sets = [await putting(device, *[normal(rng, 1, 9, 2, 16) for _ in range(3)]) for _ in "ab"]
    counts = await device.put(integers([7]))
    given: Any = {"seqlens_q": counts, "seqlens_k": counts, "softcap": 2.0, "causal": True}
    flash = device.flash_attention
    alone = [await device.get(await flash.flash_attn_func(*each, **given)) for each in sets]
    async with device.batch() as batch:
        out, lse, _ = batch.flash_attention.flash_attn_func(
            *sets[1], return_attn_probs=True, **given
        )
        grads = batch.flash_attention.flash_attn_backward(out, *sets[1], out, lse, **given)
        plain = batch.flash_attention.flash_attn_func(*sets[1])  # cuDNN's
    np.testing.assert_array_equal(await device.get(out), alone[1])
    outside = await flash.flash_attn_backward(out, *sets[1], out, lse, **given)
    for one, other in zip(grads, outside, strict=True):
        np.testing.assert_array_equal(await device.get(one), await device.get(other))
    assert plain.shape == out.shape
    async with device.record(*sets[0]) as recording:
        result = recording.flash_attention.flash_attn_func(*sets[0], **given)
    await recording.replay()
    np.testing.assert_array_equal(await device.get(result), alone[0])
    await recording.replay(*sets[1])
    np.testing.assert_array_equal(await device.get(result), alone[1])


async def test_return_attn_probs_gives_three_results_by_a_trace_too(device: Any) -> None:
    q = await device.put(normal(np.random.default_rng(0), 1, 9, 2, 16))
    for backend in ("cudnn", "kernel"):
        for _ in range(3):
            three = await device.flash_attention.flash_attn_func(
                q, q, q, return_attn_probs=True, backend=backend
            )
            assert [each.shape for each in (three.out, three.softmax_lse)] == [q.shape, (1, 2, 9)]
            assert three.S_dmask is None


async def test_results_go_where_they_are_wanted(device: Any) -> None:
    rng = np.random.default_rng(0)
    flash = device.flash_attention
    q, k, v = await putting(device, *[normal(rng, 1, 9, 2, 16) for _ in range(3)])
    out = await device.empty(q.shape, HALF)
    got, lse, _ = await flash.flash_attn_func(
        q, k, v, out=out, return_attn_probs=True, backend="kernel"
    )
    assert got is out
    grads = tuple([await device.empty(q.shape, HALF) for _ in range(3)])
    for _ in range(3):  # by a trace, too
        made = await flash.flash_attn_backward(
            out, q, k, v, out, lse, grads=grads, backend="kernel"
        )
        assert all(one is other for one, other in zip(made, grads, strict=True))
    with pytest.raises(ValueError, match="out shares memory with q"):
        await flash.flash_attn_func(q, k, v, out=q, backend="kernel")
    with pytest.raises(ValueError, match=r"grads \(dk\) shares memory with grads \(dq\)"):
        await flash.flash_attn_backward(
            out, q, k, v, out, lse, grads=(grads[0], grads[0], grads[2]), backend="kernel"
        )


async def test_dropout_is_the_same_in_both_passes_and_of_what_is_said(device: Any) -> None:
    rng = np.random.default_rng(0)
    n, p = 32, 0.3
    arrays = [normal(rng, 1, n, 1, n) for _ in range(2)]
    eye = np.eye(n, dtype=HALF)[None, :, None]
    q, k, v, do = await putting(device, *arrays, eye, np.ones((1, n, 1, n), HALF))
    flash = device.flash_attention
    given: Any = {"dropout_p": p, "seed": 7, "offset": 5, "backend": "kernel"}
    out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
    kept = (await device.get(out))[0, :, 0] != 0
    assert abs(kept.mean() - (1 - p)) < 0.1
    _, _, dv = await flash.flash_attn_backward(do, q, k, v, out, lse, **given)
    shares = (await device.get(out))[0, :, 0].astype(float)
    np.testing.assert_allclose((await device.get(dv))[0, :, 0, 0], shares.sum(0), atol=0.02)
    for change in ({"seed": 8}, {"offset": 6}):
        other = await flash.flash_attn_func(q, k, v, **{**given, **change})
        assert (((await device.get(other))[0, :, 0] != 0) != kept).mean() > 0.2


def kept_of(ones: Any, batch: int, heads: int, queries: int, keys: int, offset: int) -> Any:
    """Which probabilities a page of the documentation says are not dropped, (batch, heads, ...)."""
    words = ones[offset : offset + batch * heads * queries * keys]
    return words.reshape(batch, heads, queries, keys) != 0


async def test_words_of_the_mask_of_dropout(device: Any) -> None:
    """Mask words are laid out by the sizes of the buffers, or by the given longest sequences."""
    rng = np.random.default_rng(0)
    batch, heads, queries, keys, offset = 2, 2, 3, 6, 9
    size = offset + batch * heads * 64 * 128
    every = await device.dnn.dropout(await device.put(np.ones(size, np.float32)), 0.5, seed=3)
    ones = await device.get(every)
    # Values by which the result has the probabilities of keys in its columns.
    values = np.zeros((batch, keys, heads, 16), HALF)
    values[:, np.arange(keys), :, np.arange(keys)] = 1
    q, k, v = await putting(
        device, normal(rng, batch, queries, heads, 16), normal(rng, *values.shape), values
    )
    flash = device.flash_attention
    given: Any = {"dropout_p": 0.5, "seed": 3, "offset": offset, "backend": "kernel"}

    async def mask(out: Any) -> Any:
        found = (await device.get(out)).reshape(batch, queries, heads, 16)[..., :keys]
        return found.transpose(0, 2, 1, 3) != 0

    got = await mask(await flash.flash_attn_func(q, k, v, **given))
    np.testing.assert_array_equal(got, kept_of(ones, batch, heads, queries, keys, offset))

    cu_q, cu_k = await putting(device, ends([queries] * batch), ends([keys] * batch))
    flat = [each.reshape(-1, heads, 16) for each in (q, k, v)]
    for most_q, most_k, rows, columns in ((queries, keys, 64, 64), (3, 1000, 64, 64)):
        out = await flash.flash_attn_varlen_func(*flat, cu_q, cu_k, most_q, most_k, **given)
        expected = kept_of(ones, batch, heads, rows, columns, offset)[:, :, :queries, :keys]
        np.testing.assert_array_equal(await mask(out), expected)

    pages = [each.reshape(-1, 2, heads, 16) for each in (k, v)]
    table = await device.put(integers([[0, 1, 2, 0], [3, 4, 5, 0]]))
    # The table has room for 8 keys.
    cases: list[tuple[int, int, dict[str, Any]]] = [(6, 6, {}), (7, 7, {}), (64, 8, {})]
    if not on_cuda():
        cases += [(6, 64, {"backend": "auto"})]
    for most, columns, other in cases:
        out = await flash.flash_attn_varlen_func(
            flat[0], *pages, cu_q, cu_k, queries, most, block_table=table, **{**given, **other}
        )
        expected = kept_of(ones, batch, heads, 64, columns, offset)[:, :, :queries, :keys]
        np.testing.assert_array_equal(await mask(out), expected)


async def test_dropout_without_a_seed_is_that_of_0(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = await putting(device, *[normal(rng, 1, 20, 2, 16) for _ in range(3)])
    found = [
        await device.get(await device.flash_attention.flash_attn_func(q, k, v, 0.5, **given))
        for given in ({}, {}, {"seed": 0, "offset": 0}, {"seed": 1})
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != found[3]).any()


async def test_bad_arguments(device: Any) -> None:
    flash = device.flash_attention
    q = await device.put(np.zeros((2, 5, 4, 16), HALF))
    wide = await device.put(np.zeros((2, 5, 4, 16), np.float32))
    fp8 = await device.put(np.zeros((2, 5, 4, 16), E4M3))
    odd = await device.put(np.zeros((2, 5, 4, 12), HALF))
    counts, scale = await putting(device, integers([5, 5]), np.float32(1.0))
    for error, match, args, options in (
        (TypeError, "q must be a GpuRef", (0, q, q), {}),
        (TypeError, "k must be float16 or bfloat16", (q, wide, q), {}),
        (ValueError, "each of window_size must be", (q, q, q), {"window_size": (-2, 0)}),
        (TypeError, "window_size must be two", (q, q, q), {"window_size": 3}),
        (TypeError, "has no rotary; .* out, .* seqlens_q, .* window_size", 3 * (q,), {"rotary": 1}),
        (TypeError, "has no window; ", (q, q, q), {"window": (1, 1)}),
        (ValueError, "backend must be one of", (q, q, q), {"backend": "torch"}),
        (TypeError, "deterministic must be", (q, q, q), {"deterministic": 2}),
        (TypeError, "return_attn_probs must be", (q, q, q), {"return_attn_probs": "yes"}),
        (ValueError, "belong together", (q, q, q), {"seqlens_q": counts}),
        (ValueError, "out shares memory with q, which flash_attention", (q, q, q), {"out": q}),
        (ValueError, "without zeros", (q[:, :0], q, q), {}),
        (Unsupported, "multiples of 8", (odd, odd, odd), {"backend": "kernel"}),
        (TypeError, "out is float32", (q, q, q), {"out": wide, "backend": "kernel"}),
        (ValueError, "out is float16 of shape", (q, q, q), {"out": q[0], "backend": "kernel"}),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            await flash.flash_attn_func(*args, **options)
    for error, match, options in (
        (ValueError, "num_splits must be", {"num_splits": 129}),
        (ValueError, "q_descale is for numbers in fp8", {"q_descale": scale}),
        (TypeError, "k_descale must be float32", {"k_descale": counts}),
        (ValueError, r"v_descale must have shape \(\) or \(1,\) or \(2, 4\)", {"v_descale": wide}),
        (Unsupported, "cuDNN does not do numbers in fp8", {"backend": "cudnn"}),
        (ValueError, "without pages", {"cache_batch_idx": counts, "block_table": counts}),
        (TypeError, "return_softmax_lse must be", {"return_softmax_lse": 1}),
        (ValueError, "k and v belong together", {"k": fp8, "cache_seqlens": None}),
        (ValueError, "k and v belong together", {"v": fp8, "cache_seqlens": 3}),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            await flash.flash_attn_with_kvcache(q, fp8, fp8, **{"cache_seqlens": counts, **options})
    with pytest.raises(TypeError, match="has no bias"):
        cu = await device.put(ends([5, 5]))
        flat = q.reshape(10, 4, 16)
        await flash.flash_attn_varlen_func(flat, flat, flat, cu, cu, 5, 5, bias=flat)
    part = await device.put(np.zeros(2 * 5 * 4 * 16 + 1, HALF))
    with pytest.raises(ValueError, match="begins 2 bytes into its buffer"):
        await flash.flash_attn_func(part[1:].reshape(q.shape), q, q, backend="kernel")
    new = await device.put(np.zeros((2, 1, 4, 16), HALF))
    cache, other = await putting(device, *[np.zeros((2, 5, 4, 16), HALF) for _ in "kv"])
    await device.seal(cache)
    with pytest.raises(GpuRefSealed, match="k_cache is sealed"):
        await flash.flash_attn_with_kvcache(
            q, cache, other, new, new, cache_seqlens=counts, backend="kernel"
        )
    await device.free(q)
    with pytest.raises(GpuRefStale, match="q was freed"):
        await flash.flash_attn_func(q, wide, wide)


@pytest.mark.skipif(on_cuda(), reason="nobody looks at what is in device memory there")
async def test_lengths_that_point_out_of_buffers(device: Any) -> None:
    flash = device.flash_attention
    x = await device.zeros((2, 8, 4, 16), HALF)
    given: Any = {"softcap": 1.0}
    bad = await device.put(integers([4, 9]))
    with pytest.raises(ValueError, match=r"seqlens_q\[1\] must be from 0 to 8, not 9"):
        await flash.flash_attn_func(x, x, x, seqlens_q=bad, seqlens_k=bad, **given)
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\] must be from 0 to 8, not 9"):
        await flash.flash_attn_with_kvcache(x, x, x, cache_seqlens=bad, **given)
    flat, cu = x.reshape(16, 4, 16), await device.put(integers([0, 9, 17]))
    with pytest.raises(ValueError, match=r"cu_seqlens_q\[2\] must be from 0 to 16, not 17"):
        await flash.flash_attn_varlen_func(flat, flat, flat, cu, cu, 16, 16, **given)
    pages, table = x.reshape(4, 4, 4, 16), await device.put(integers([[0, 1], [9, 9]]))
    lengths = await device.put(integers([8, 1]))
    with pytest.raises(ValueError, match=r"block_table.*\[.*0\] must be from 0 to 3, not 9"):
        await flash.flash_attn_with_kvcache(
            x, pages, pages, cache_seqlens=lengths, block_table=table, **given
        )
    which = await device.put(integers([0, 2]))
    for backend in ("auto", "kernel"):
        with pytest.raises(
            ValueError, match=r"block_table or cache_batch_idx.*\[.*0\] must be from 0 to 1, not 2"
        ):
            await flash.flash_attn_with_kvcache(
                x, x, x, cache_seqlens=lengths, cache_batch_idx=which, backend=backend
            )


@pytest.mark.skipif(on_cuda(), reason="nobody looks at what is in device memory there")
@pytest.mark.parametrize("backend", ["auto", "kernel"])
@pytest.mark.parametrize("queries", [1, 2])
async def test_more_keys_than_the_caller_has_told(device: Any, backend: str, queries: int) -> None:
    rng = np.random.default_rng(0)
    flash = device.flash_attention
    q, new = await putting(device, normal(rng, 2, queries, 4, 16), normal(rng, 2, 2, 4, 16))
    k, v = await putting(device, *[normal(rng, 2, 8, 4, 16) for _ in "kv"])
    table = await device.put(integers([[0, 1], [2, 3]]))
    lengths, before = await device.put(integers([2, 6])), await device.get(k)
    for caches, pages in (
        ((k, v), {}),
        ([each.reshape(4, 4, 4, 16) for each in (k, v)], {"block_table": table}),
    ):
        given: Any = {**pages, "cache_seqlens": lengths, "backend": backend}
        expected = await flash.flash_attn_with_kvcache(q, *caches, **given)
        got = await flash.flash_attn_with_kvcache(q, *caches, max_seqlen_k=6, **given)
        compare(await device.get(got), Near((await device.get(expected)).astype(float)), HALF)
        with pytest.raises(ValueError, match=r"cache_seqlens\[1\] must be from 0 to 3, not 6"):
            await flash.flash_attn_with_kvcache(q, *caches, max_seqlen_k=3, **given)
        with pytest.raises(ValueError, match=r"cache_seqlens\[1\] must be from 0 to 5, not 6"):
            await flash.flash_attn_with_kvcache(q, *caches, new, new, max_seqlen_k=7, **given)
        np.testing.assert_array_equal(await device.get(k), before)  # nothing was written
        with pytest.raises(ValueError, match="max_seqlen_k must be a whole number from 2 to 8"):
            await flash.flash_attn_with_kvcache(q, *caches, new, new, max_seqlen_k=1, **given)
    for length, most in ((None, 8), (6, 6)):
        same: Any = {"cache_seqlens": length, "backend": backend}
        await flash.flash_attn_with_kvcache(q, k, v, max_seqlen_k=most, **same)
        with pytest.raises(
            ValueError, match=f"must be at least {most}, the most keys of a sequence, not 5"
        ):
            await flash.flash_attn_with_kvcache(q, k, v, max_seqlen_k=5, **same)
        with pytest.raises(TypeError, match="max_seqlen_k must be"):
            await flash.flash_attn_with_kvcache(q, k, v, max_seqlen_k="x", **same)
    await flash.flash_attn_with_kvcache(
        q, k, v, new, new, cache_seqlens=lengths, max_seqlen_k=8, backend=backend
    )
    assert ((await device.get(k)) != before).any(axis=(2, 3)).sum() == 2 * 2
