"""Attention in ways that tables do not show: any lengths, differences, chance, bad arguments."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import GpuRefStale, Unsupported
from atomr_accel.libraries.dnn.host._cpu_attention import FUNCTIONS, paper_slopes
from atomr_accel.libraries.dnn.host._philox import kept

from ....harness import ON_CUDA, on_shared
from ...conformance import MARKS, Near, compare, dtype_of, on_cuda
from ..rows.attention import LSE_SLACK, Mask, attention, ends, gradients, pieces, shares

pytestmark = MARKS

Array = np.ndarray[Any, Any]

HALF = dtype_of("float16")
MOST = 40


def normal(rng: np.random.Generator, *shape: int, dtype: Any = HALF) -> Array:
    return np.clip(rng.standard_normal(shape), -3, 3).astype(dtype)


# --- any lengths and pages ----------------------------------------------------------------

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
    """The same bits, whatever is there."""
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
    from atomr_accel.libraries.dnn.host import _cpu_attention

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


# --- gradients are differences ------------------------------------------------------------

STEP = 1e-5
ATTRIBUTES: dict[str, Any] = {
    "attn_scale": 0.4,
    "generate_stats": True,
    "diagonal_alignment": "BOTTOM_RIGHT",
    "diagonal_band_left_bound": None,
    "diagonal_band_right_bound": None,
    "use_alibi_mask": False,
    "dropout": 0.0,
    "max_seq_len_kv": None,
}


def problem(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "q": rng.standard_normal((2, 4, 5, 3)),
        "k": rng.standard_normal((2, 2, 7, 3)),
        "v": rng.standard_normal((2, 2, 7, 2)),
    }


@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        ([], {}),
        ([], {"diagonal_band_right_bound": 0, "diagonal_band_left_bound": 3}),
        (["bias"], {"diagonal_band_right_bound": 1}),
        (["sink_token"], {"diagonal_band_right_bound": 0}),
        (["softcap", "alibi_slopes"], {}),
        (["seed"], {"dropout": 0.4}),
        (["seq_len_q"], {"diagonal_band_right_bound": 0}),
    ],
)
def test_gradients_on_the_cpu_are_differences(more: list[str], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = problem(rng)
    optional: dict[str, dict[str, Any]] = {
        "bias": {"bias": rng.standard_normal((1, 4, 5, 7))},
        "sink_token": {"sink_token": rng.standard_normal((1, 4, 1, 1))},
        "softcap": {"softcap": np.float64(1.5)},
        "alibi_slopes": {"alibi_slopes": rng.uniform(0, 1, (1, 4, 1, 1))},
        "seed": {"seed": np.array([[[[5]]]]), "offset": np.array([[[[3]]]])},
        "seq_len_q": {
            "seq_len_q": np.array([3, 5]).reshape(2, 1, 1, 1),
            "seq_len_kv": np.array([7, 5]).reshape(2, 1, 1, 1),
        },
    }
    for name in more:
        inputs |= optional[name]
    chosen = {**ATTRIBUTES, **attributes}
    forward, backward = FUNCTIONS["sdpa"], FUNCTIONS["sdpa_backward"]
    result = forward(inputs, chosen, {})
    do = rng.standard_normal(result["o"].shape)
    names = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    outputs: Any = {gradient: inputs[name] for name, gradient in names.items() if name in inputs}
    given = {**inputs, "o": result["o"], "dO": do, "stats": result["stats"]}
    found = backward(given, chosen, outputs)
    seen = np.isfinite(result["stats"])
    for name, gradient in names.items():
        if name not in inputs:
            continue
        expected = np.zeros(inputs[name].shape)
        for index in np.ndindex(*expected.shape):
            values = []
            for sign in (1, -1):
                moved = inputs[name].copy()
                moved[index] += sign * STEP
                o = forward({**inputs, name: moved}, chosen, {})["o"]
                values.append((np.where(seen, o, 0) * do).sum())
            expected[index] = (values[0] - values[1]) / (2 * STEP)
        np.testing.assert_allclose(found[gradient], expected, atol=1e-8)


def test_gradients_of_the_reference_are_differences() -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "q": rng.standard_normal((4, 4, 3)),
        "k": rng.standard_normal((6, 2, 3)),
        "v": rng.standard_normal((6, 2, 3)),
        "bias": rng.standard_normal((4, 4, 6)),
        "sink": rng.standard_normal(4),
    }
    mask = Mask(causal=True, window=(3, 0), softcap=2.0)
    slopes = rng.uniform(0, 1, 4)

    def loss(given: dict[str, Array]) -> Any:
        return (attention(**given, mask=mask, slopes=slopes)[0] * do).sum()

    do = rng.standard_normal((4, 4, 3))
    o = attention(**arrays, mask=mask, slopes=slopes)[0]
    found = gradients(do, **arrays, o=o, mask=mask, slopes=slopes)
    for name, array in arrays.items():
        expected = np.zeros(array.shape)
        for index in np.ndindex(*array.shape):
            moved = [array.copy() for _ in range(2)]
            moved[0][index] += STEP
            moved[1][index] -= STEP
            high, low = (loss({**arrays, name: each}) for each in moved)
            expected[index] = (high - low) / (2 * STEP)
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-8)


# --- dropout ------------------------------------------------------------------------------


async def test_dropout_is_the_same_in_both_passes(device: Any) -> None:
    """With the unit matrix for values the result is what probabilities became."""
    rng = np.random.default_rng(0)
    n, p = 64, 0.3
    q, k, do = (normal(rng, 1, n, 2, n) for _ in range(3))
    v = np.broadcast_to(np.eye(n, dtype=HALF)[None, :, None], (1, n, 2, n))
    refs: Any = [await device.put(np.ascontiguousarray(array)) for array in (q, k, v, do)]
    given: Any = {"dropout_p": p, "seed": 7, "offset": 20}
    out, lse = await device.dnn.flash_attention(*refs[:3], return_lse=True, **given)
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
        out, lse = batch.dnn.flash_attention_varlen(
            q, k, v, cu, cu, 5, 5, causal=True, return_lse=True
        )
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
    async with device.record(*first) as program:
        out = program.dnn.flash_attention_varlen(q, k, v, cu, cu, 9, 9, causal=True)
    await program.replay()
    np.testing.assert_array_equal(await device.get(out), expected[0])
    await program.replay(*second)
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
    device.dnn.autotune = True
    tuned = await device.get(await device.dnn.flash_attention_varlen(*given, causal=True))
    out = await cache.attend(row, [sequence], row, v.reshape(1, 9, 2, 16), causal=True)
    device.dnn.autotune = False
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
    out, lse = await device.dnn.flash_attention(q, k, v, return_lse=True)
    grads = tuple([await device.empty(q.shape, HALF) for _ in range(3)])
    got: Any = await device.dnn.flash_attention_grad(do, q, k, v, out, lse, grads=grads)
    assert all(one is other for one, other in zip(got, grads, strict=True))
    fresh = await device.dnn.flash_attention_grad(do, q, k, v, out, lse)
    for one, other in zip(got, fresh, strict=True):
        compare(await device.get(one), Near((await device.get(other)).astype(float)), HALF)
    with pytest.raises(ValueError, match="three buffers"):
        await device.dnn.flash_attention_grad(do, q, k, v, out, lse, grads=grads[:2])


# --- bad arguments ------------------------------------------------------------------------


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
        (TypeError, "k has dtype bfloat16, but q has float16", (q, bf16, q), {}),
        (ValueError, "batch, sequence, heads, size", (q[0], q, q), {}),
        (ValueError, "batch of 2, but k has 1", (q, q[:1], q[:1]), {}),
        (ValueError, "differ in more than their size", (q, q, await zeros(2, 6, 4, 16)), {}),
        (ValueError, "q has size 16, but k has 8", (q, await zeros(2, 5, 4, 8), q), {}),
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
    out, lse = await dnn.flash_attention(q, q, q, return_lse=True)
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
        (ValueError, "block_table has 1 rows", {"block_table": table[:1]}),
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


# --- beside PyTorch -----------------------------------------------------------------------

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
    out, lse = await device.dnn.flash_attention(*refs[:3], causal=causal, return_lse=True)
    grads = await device.dnn.flash_attention_grad(refs[3], *refs[:3], out, lse, causal=causal)
    for ref, tensor in zip((out, *grads), (exact, q.grad, k.grad, v.grad), strict=True):
        assert tensor is not None
        expected = tensor.detach().transpose(1, 2).cpu().numpy()
        got = (await device.get(ref)).astype(np.float64)
        error = np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean())
        assert error < 0.01


async def test_what_cudnn_does_not_do_is_told_why(device: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = [await device.put(normal(rng, 1, 16, 2, 20)) for _ in range(3)]
    if on_cuda():  # sizes are multiples of 8 there
        with pytest.raises(Unsupported, match="hidden_dim should be multiple of 8"):
            await device.dnn.flash_attention(q, k, v)
    else:
        await device.dnn.flash_attention(q, k, v)
