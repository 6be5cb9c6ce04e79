"""Attention over any lengths, pages, padding and masks; elements past the ends do not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ....harness import ON_CUDA, on_shared
from ...conformance import MARKS, Array, Near, Operation, check, compare, dtype_of, on_cuda
from ..rows.attention import LSE_SLACK, OPERATIONS, Mask, attention, ends, gradients, pieces
from .inputs import HALF, normal

pytestmark = MARKS

MOST = 40


lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=3, max_size=3)
masks = st.sampled_from(
    [Mask(), Mask(causal=True), Mask(window=(5, 2)), Mask(causal=True, window=(8, -1))]
)


def options_of(mask: Mask) -> dict[str, Any]:
    return {"causal": mask.causal, "window": mask.window}


@settings(max_examples=12 if ON_CUDA else 20)
@given(lengths, masks, st.integers(0, 2**32 - 1))
@on_shared
async def test_any_lengths(device: Any, each: list[tuple[int, int]], mask: Mask, seed: int) -> None:
    """Ragged sequences: each has at least as many keys as queries."""
    rng = np.random.default_rng(seed)
    queries = [count for count, _ in each]
    keys = [count + more for count, more in each]
    q = normal(rng, sum(queries), 4, 16)
    k, v = normal(rng, sum(keys), 2, 16), normal(rng, sum(keys), 2, 16)
    cu_q, cu_k = ends(queries), ends(keys)
    refs: list[Any] = [await device.put(array) for array in (q, k, v, cu_q, cu_k)]
    out, lse = await device.dnn.flash_attention_varlen(
        *refs, MOST, MOST, return_lse=True, **options_of(mask)
    )
    parts = [
        attention(a.astype(float), b.astype(float), c.astype(float), mask)
        for a, b, c in zip(pieces(q, cu_q), pieces(k, cu_k), pieces(v, cu_k), strict=True)
    ]
    o, logs, size = (np.concatenate(part) for part in zip(*parts, strict=True))
    compare(await device.get(out), Near(o, size), HALF)
    compare(
        await device.get(lse),
        Near(logs, dtype="float32", slack=LSE_SLACK),
        np.dtype(np.float32),
    )


@settings(max_examples=12 if ON_CUDA else 20)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=2, max_size=2),
    st.permutations(range(20)),
    st.integers(0, 2**32 - 1),
)
@on_shared
async def test_any_pages(
    device: Any, sizes: list[tuple[int, int]], order: list[int], seed: int
) -> None:
    """Chunked prefill: queries are the last ones of sequences whose keys are in pages."""
    rng = np.random.default_rng(seed)
    page, columns, pages = 8, 5, 20
    each = [length for length, _ in sizes]
    queries = [min(length, most) for length, most in sizes]
    table = np.array(order)[: 2 * columns].reshape(2, columns)
    k, v = normal(rng, pages, page, 2, 16), normal(rng, pages, page, 2, 16)
    q = normal(rng, sum(queries), 4, 16)
    cu_q, cu_k = ends(queries), ends(each)
    refs: list[Any] = [await device.put(array) for array in (q, k, v, cu_q, cu_k)]
    out = await device.dnn.flash_attention_varlen(
        *refs,
        20,
        page * columns,
        block_table=await device.put(table.astype(np.int32)),
        causal=True,
    )
    parts = []
    for at, part in enumerate(pieces(q, cu_q)):
        rows = [x[table[at]].reshape(-1, 2, 16)[: each[at]].astype(float) for x in (k, v)]
        parts.append(attention(part.astype(float), rows[0], rows[1], Mask(causal=True)))
    o, _, size = (np.concatenate(part) for part in zip(*parts, strict=True))
    compare(await device.get(out), Near(o, size), HALF)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 3), (3, 1), (2, 3)])
@on_shared
async def test_sequences_that_fill_their_room_are_what_they_are_without_lengths(
    device: Any, layout: str, queries: int, keys: int
) -> None:
    rng = np.random.default_rng(queries + 8 * keys)
    batch, heads, size = 2, 4, 16

    def made(length: int) -> Any:
        shape = (batch, length, heads, size) if layout == "bshd" else (batch, heads, length, size)
        return device.put(rng.standard_normal(shape).astype(np.float16))

    q, k, v, grad = await made(queries), await made(keys), await made(keys), await made(queries)
    lengths = {
        "seqlens_q": await device.put(np.full(batch, queries, np.int32)),
        "seqlens_k": await device.put(np.full(batch, keys, np.int32)),
    }
    flash, flash_grad = device.dnn.flash_attention, device.dnn.flash_attention_grad
    out, lse = await flash(q, k, v, layout=layout, return_lse=True)
    plain = (out, lse, *await flash_grad(grad, q, k, v, out, lse, layout=layout))
    made_out, made_lse = await flash(q, k, v, layout=layout, return_lse=True, **lengths)
    gradients = await flash_grad(grad, q, k, v, out, lse, layout=layout, **lengths)
    for one, other in zip(plain, (made_out, made_lse, *gradients), strict=True):
        expected, found = await device.get(one), await device.get(other)
        np.testing.assert_allclose(found.astype(float), expected.astype(float), atol=4e-3)


@settings(max_examples=12 if ON_CUDA else 20)
@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(0, 16)), min_size=2, max_size=2),
    st.sampled_from([{}, {"causal": True}, {"softcap": 1.5}]),
    st.sampled_from([np.nan, np.inf, -np.inf, 65504.0]),
    st.integers(0, 2**32 - 1),
)
@on_shared
async def test_any_padding(
    device: Any, each: list[tuple[int, int]], options: dict[str, Any], behind: float, seed: int
) -> None:
    """Padded sequences: what lies behind their ends is not read, and gets no gradient."""
    if on_cuda() and options.get("softcap") is not None:
        options = {}
    rng = np.random.default_rng(seed)
    q, k, v, do = (normal(rng, 2, MOST, 2, 16) for _ in range(4))
    ends_q = [count for count, _ in each]
    ends_k = [count + more for count, more in each]
    for array, lasts in ((q, ends_q), (do, ends_q), (k, ends_k), (v, ends_k)):
        for row, last in zip(array, lasts, strict=True):
            row[last:] = behind
    seqlens = [await device.put(np.array(lasts, np.int32)) for lasts in (ends_q, ends_k)]
    given: Any = {"seqlens_q": seqlens[0], "seqlens_k": seqlens[1], **options}
    refs = [await device.put(array) for array in (q, k, v, do)]
    out, lse = await device.dnn.flash_attention(*refs[:3], return_lse=True, **given)
    o, stats = [(await device.get(ref)).copy() for ref in (out, lse)]
    for row, rest, last in zip(o, stats, ends_q, strict=True):
        row[last:], rest[:, last:] = behind, behind
    back = [await device.put(array) for array in (o, stats)]
    grads = await device.dnn.flash_attention_grad(refs[3], *refs[:3], *back, **given)
    got = [await device.get(ref) for ref in grads]
    mask = Mask(**options)
    for at, (a, b) in enumerate(zip(ends_q, ends_k, strict=True)):
        qs, ks, vs = q[at, :a].astype(float), k[at, :b].astype(float), v[at, :b].astype(float)
        expected, _, size = attention(qs, ks, vs, mask)
        compare(o[at, :a], Near(expected, size), HALF)
        found = gradients(do[at, :a].astype(float), qs, ks, vs, o[at, :a].astype(float), mask)
        for name, array, end in zip("qkv", got, (a, b, b), strict=True):
            near = Near(getattr(found, name), getattr(found, f"{name}_size"))
            compare(array[at, :end], near, HALF, 16.0)
            assert not array[at, end:].any() or name == "q" or on_cuda()


@pytest.mark.parametrize("behind", [np.nan, np.inf])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
async def test_what_lies_behind_the_ends_counts_for_nothing(
    device: Any, dtype: str, layout: str, behind: float
) -> None:
    """Results have the same bits whatever lies past the ends."""
    rng = np.random.default_rng(5)
    lengths, dnn = np.array([5, 12], np.int32), device.dnn
    size = 128 if dtype.startswith("float8") else 16  # the one that cuDNN takes backward
    shape = (2, 16, 4, size) if layout == "bshd" else (2, 4, 16, size)
    arrays = {name: normal(rng, *shape, dtype=dtype_of(dtype)) for name in ("q", "k", "v", "do")}
    one = await device.put(np.float32(1))
    forward = dict.fromkeys(("descale_q", "descale_k", "descale_v", "descale_s"), one)
    forward |= {"scale_s": one, "scale_o": one}
    backward = dict.fromkeys(
        (
            *(f"descale_{name}" for name in ("q", "k", "v", "o", "dO", "s", "dP")),
            *(f"scale_{name}" for name in ("s", "dQ", "dK", "dV", "dP")),
        ),
        one,
    )
    ends = await device.put(lengths)
    options = {"seqlens_q": ends, "seqlens_k": ends, "layout": layout}
    results = []
    for what in (0.0, behind):
        rows = np.arange(16)[:, None, None] if layout == "bshd" else np.arange(16)[:, None]
        inside = rows < lengths.reshape(2, 1, 1, 1)
        q, k, v, do = [
            await device.put(np.where(inside, array, np.array(what, array.dtype)))
            for array in arrays.values()
        ]
        if dtype.startswith("float8"):
            o, lse, *_ = await dnn.flash_attention_fp8(q, k, v, scales=forward, **options)
        else:
            o, lse = await dnn.flash_attention(q, k, v, return_lse=True, **options)
        host, stats = await device.get(o), await device.get(lse)
        o = await device.put(np.where(inside, host, np.array(what, host.dtype)))
        counts = np.arange(16) < lengths[:, None, None]
        lse = await device.put(np.where(counts, stats, np.float32(what)))
        if dtype.startswith("float8"):
            made = await dnn.flash_attention_fp8_grad(
                do, q, k, v, o, lse, scales=backward, **options
            )
        else:
            made = await dnn.flash_attention_grad(do, q, k, v, o, lse, **options)
        found = [host, *[await device.get(ref) for ref in made]]
        parts = [np.where(inside, array, 0) for array in found[:4]]
        results.append([*parts, np.where(counts, stats, 0), *found[4:]])
    for one_, other in zip(*results, strict=True):
        assert np.isfinite(one_.astype(float)).all()
        assert one_.tobytes() == other.tobytes()


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("behind", [np.nan, np.inf])
async def test_what_lies_behind_the_rows_of_a_cache_counts_for_nothing(
    device: Any, behind: float, queries: int, *, paged: bool
) -> None:
    rng = np.random.default_rng(6)
    lengths = np.array([4, 9], np.int32)
    q = await device.put(normal(rng, 2, queries, 4, 16))
    new = [await device.put(normal(rng, 2, queries, 2, 16)) for _ in "kv"]
    caches = [normal(rng, 2, 16, 2, 16) for _ in "kv"]
    options: dict[str, Any] = {"cache_seqlens": await device.put(lengths)}
    if paged:
        options["block_table"] = await device.put(np.array([[1, 3], [2, 0]], np.int32))
    results = []
    for what in (0.0, behind):
        refs = []
        for cache in caches:
            rows = np.where(np.arange(16)[:, None, None] < lengths.reshape(2, 1, 1, 1), cache, what)
            rows = rows.astype(HALF)
            if paged:  # page 0 is the second one of the second sequence
                rows = rows.reshape(4, 8, 2, 16)[[3, 0, 2, 1]]
            refs.append(await device.put(rows))
        out, lse = await device.dnn.flash_attention_with_kvcache(
            q, *refs, *new, return_lse=True, **options
        )
        results.append([await device.get(out), await device.get(lse)])
    for one, other in zip(*results, strict=True):
        assert np.isfinite(one.astype(float)).all()
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("behind", [np.nan, np.inf])
@pytest.mark.parametrize("longest", [20, 64])
async def test_what_others_have_left_in_pages_counts_for_nothing(
    device: Any, behind: float, longest: int
) -> None:
    """A page that a sequence gets, and pages that it has not filled."""
    rng = np.random.default_rng(6)
    table = np.array([[5, -1, 99], [2, 0, 4]], np.int32)
    cu_q, cu_k = np.array([0, 3, 8], np.int32), np.array([2, 6, 15], np.int32)
    q, k, v = normal(rng, 8, 4, 16), normal(rng, 6, 8, 2, 16), normal(rng, 6, 8, 2, 32)
    parts, used = [], np.zeros((6, 8, 1, 1), bool)
    for at in range(2):
        length = cu_k[at + 1] - cu_k[at]
        places = table[at, np.arange(length) // 8], np.arange(length) % 8
        used[places] = True
        keys, values = (x[places].astype(float) for x in (k, v))
        one = q[cu_q[at] : cu_q[at + 1]].astype(float)
        parts.append(attention(one, keys, values, Mask(causal=True)))
    refs = [np.where(used, x, np.array(behind, HALF)) for x in (k, v)]
    out, lse = await device.dnn.flash_attention_varlen(
        *[await device.put(x) for x in (q, *refs, cu_q, cu_k)],
        *(5, longest),
        block_table=await device.put(table),
        causal=True,
        return_lse=True,
    )
    o, stats, size = (np.concatenate(part) for part in zip(*parts, strict=True))
    compare(await device.get(out), Near(o, size), HALF)
    compare(await device.get(lse), Near(stats, dtype="float32", slack=LSE_SLACK), np.dtype("f4"))


async def test_a_sequence_that_gets_the_page_of_another_one(device: Any) -> None:
    """One that has had NaN in it."""
    rng = np.random.default_rng(2)
    cache = await device.dnn.kv_cache(4, 8, 2, 16, dtype=HALF)
    bad = cache.new()
    rows = [await device.put(np.full((1, 30, 2, 16), np.nan, HALF)) for _ in "kv"]
    await cache.append([bad], *rows)
    cache.free(bad)
    q, k, v = normal(rng, 1, 4, 4, 16), normal(rng, 1, 11, 2, 16), normal(rng, 1, 11, 2, 16)
    sequence = cache.new()
    q_, k_, v_ = [await device.put(x) for x in (q, k, v)]
    out = await cache.attend(q_, [sequence], k_, v_, causal=True)
    one, keys, values = (x[0].astype(float) for x in (q, k, v))
    expected, _, size = attention(one, keys, values, Mask(causal=True))
    compare((await device.get(out))[0], Near(expected, size), HALF)


async def test_sequences_that_lie_one_after_the_other_do_not_touch(device: Any) -> None:
    ends_ = await device.put(np.array([0, 5, 12, 16], np.int32))
    results = []
    for what in (1.0, np.nan):
        rng = np.random.default_rng(8)
        arrays = [normal(rng, 16, 2, 16) for _ in range(4)]
        for array in arrays:
            array[5:12] = what
        refs = [await device.put(array) for array in arrays]
        given = (ends_, ends_, 8, 8)
        out, lse = await device.dnn.flash_attention_varlen(*refs[:3], *given, return_lse=True)
        made = await device.dnn.flash_attention_varlen_grad(refs[3], *refs[:3], out, lse, *given)
        found = [await device.get(ref) for ref in (out, *made)]
        results.append([np.concatenate([each[:5], each[12:]]) for each in found])
    for one, other in zip(*results, strict=True):
        assert np.isfinite(one.astype(float)).all()
        assert one.tobytes() == other.tobytes()


@pytest.mark.skipif(on_cuda(), reason="cuDNN is such a library")
async def test_a_library_that_multiplies_by_zero_gets_clean_copies(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.dnn.host import cpu_attention as _cpu_attention

    gathered = _cpu_attention._gathered

    def tiles(pages: Array, table: Array, lengths: Array, keys: int) -> Array:
        whole = np.full_like(lengths, keys)
        return gathered(pages, table.clip(0, len(pages) - 1), whole, keys)

    monkeypatch.setattr(_cpu_attention, "_cleaned", lambda inputs: inputs)
    monkeypatch.setattr(_cpu_attention, "_gathered", tiles)
    await test_what_lies_behind_the_ends_counts_for_nothing(device, "float16", "bshd", np.nan)
    await test_what_lies_behind_the_ends_counts_for_nothing(device, "bfloat16", "bhsd", np.inf)
    await test_what_lies_behind_the_rows_of_a_cache_counts_for_nothing(
        device, np.nan, 3, paged=False
    )
    await test_what_lies_behind_the_rows_of_a_cache_counts_for_nothing(
        device, np.nan, 3, paged=True
    )
    await test_what_others_have_left_in_pages_counts_for_nothing(device, np.nan, 64)
    await test_a_sequence_that_gets_the_page_of_another_one(device)


@settings(max_examples=12 if ON_CUDA else 20)
@given(
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 4)]),
    st.floats(0, 0.9),
    st.integers(0, 2**32 - 1),
)
@on_shared
async def test_any_mask(device: Any, lead: tuple[int, int], hidden: float, seed: int) -> None:
    """A bias that hides any keys, but not all of them, from any queries."""
    rng = np.random.default_rng(seed)
    n = 24
    mask = rng.random((*lead, n, n)) < hidden
    mask[..., np.arange(n), rng.integers(0, n, n)] = False
    bias = np.where(mask, -30000, rng.uniform(-1, 1, mask.shape)).astype(HALF)
    q, k, v, do = (normal(rng, 2, n, 4, 16) for _ in range(4))
    refs: Any = [await device.put(each) for each in (q, k, v, do)]
    given: Any = {"bias": await device.put(bias)}
    out, lse = await device.dnn.flash_attention(*refs[:3], return_lse=True, **given)
    grads = await device.dnn.flash_attention_grad(refs[3], *refs[:3], out, lse, **given)
    o, *got = [await device.get(ref) for ref in (out, *grads)]
    wide = [each.astype(float) for each in (q, k, v, do)]
    total, most = np.zeros((2, 2, 4, n, n))
    for at in range(2):
        each = bias[at % lead[0]].astype(float)
        a, b, c, d = (array[at] for array in wide)
        expected, _, size = attention(a, b, c, Mask(), bias=each)
        compare(o[at], Near(expected, size), HALF)
        found = gradients(d, a, b, c, o[at].astype(float), Mask(), bias=each)
        for name, array in zip("qkv", got[:3], strict=True):
            near = Near(getattr(found, name), getattr(found, f"{name}_size"))
            compare(array[at], near, HALF, 16.0)
        total[at], most[at] = found.bias, found.bias_size
    axes = tuple(axis for axis, size in enumerate(lead) if size == 1)
    near = Near(total.sum(axes, keepdims=True), most.sum(axes, keepdims=True))
    compare(got[3], near, HALF, 16.0)


@pytest.mark.skipif(on_cuda(), reason="cuDNN is such a library")
@pytest.mark.parametrize(
    "row", [row for row in OPERATIONS if "fp8" not in row.name], ids=lambda row: row.name
)
async def test_a_library_that_leaves_queries_without_keys_alone(
    device: Any, monkeypatch: pytest.MonkeyPatch, row: Operation
) -> None:
    """Their results are anything, their statistics large, and those make NaN of gradients."""
    from atomr_accel.libraries.dnn.host import _cpu
    from atomr_accel.libraries.dnn.host import cpu_attention as _cpu_attention

    def seen(inputs: Any, attributes: Any) -> Array:
        scores = _cpu_attention._scores(inputs, attributes, attributes["attn_scale"])
        whole = np.broadcast_to(scores.seen, scores.value.shape)
        return np.asarray(whole.any(-1, keepdims=True))

    def forward(inputs: Any, attributes: Any, outputs: Any) -> Any:
        found = _cpu_attention._sdpa(inputs, attributes, outputs)
        rows = seen(inputs, attributes)
        blank = (np.where(rows, found[name], junk) for name, junk in (("o", np.nan), ("stats", -1)))
        return dict(zip(("o", "stats"), blank, strict=True))

    def backward(inputs: Any, attributes: Any, outputs: Any) -> Any:
        found = _cpu_attention._sdpa_backward(inputs, attributes, outputs)
        rows: Array = np.broadcast_to(seen(inputs, attributes), inputs["stats"].shape)
        if "seq_len_q" in inputs:
            behind = np.arange(rows.shape[2])[:, None] >= inputs["seq_len_q"]
            rows = np.logical_or(rows, behind)
        if not (rows | (inputs["stats"] > 1e29)).all():
            return {name: np.full_like(each, np.nan) for name, each in found.items()}
        found["dQ"] = np.where(seen(inputs, attributes), found["dQ"], np.nan)
        return found

    monkeypatch.setitem(_cpu.FUNCTIONS, "sdpa", forward)
    monkeypatch.setitem(_cpu.FUNCTIONS, "sdpa_backward", backward)
    for case in row.cases:
        await check(device, row, "float16", case, row.library)
