"""Paged caches of keys and values, compared with lists of rows through any history of calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefStale, OutOfMemory, Unsupported
from atomr_accel.testing import poison

from ....harness import ON_CUDA, on_shared, opened
from ...conformance import MARKS, Near, compare, dtype_of
from ..rows.attention import Mask, attention

pytestmark = MARKS

Array = np.ndarray[Any, Any]

HALF = dtype_of("float16")
HEADS, SIZE, PAGE, PAGES, LAYERS = 2, 16, 4, 12, 2


@dataclass
class Model:
    """A cache as lists of rows: (layer, sequence) to keys and values."""

    cache: Any
    rng: np.random.Generator
    rows: dict[int, list[list[tuple[Array, Array]]]] = field(default_factory=dict)

    def row(self) -> Array:
        return self.rng.uniform(-1, 1, (HEADS, SIZE)).astype(HALF)

    def fresh(self, count: int, new: int) -> tuple[Array, Array]:
        shape = (count, new, HEADS, SIZE)
        k, v = (self.rng.uniform(-1, 1, shape).astype(HALF) for _ in "kv")
        return k, v

    def write(self, sequences: list[int], layer: int, k: Array, v: Array) -> None:
        for at, sequence in enumerate(sequences):
            self.rows[sequence][layer].extend(zip(k[at], v[at], strict=True))

    def check_pages(self) -> None:
        """Every page in use has users, and no page is both free and in use."""
        statistics = self.cache.statistics()
        held = [set(self.cache.pages(sequence)) for sequence in self.rows]
        used = set().union(*held)
        assert statistics.used == len(used)
        assert statistics.sequences == len(self.cache) == len(self.rows)
        assert statistics.shared == sum(sum(page in each for each in held) > 1 for page in used)
        for sequence, layers in self.rows.items():
            longest = max(len(rows) for rows in layers)
            assert len(self.cache.pages(sequence)) >= -(-longest // PAGE)
            for layer, rows in enumerate(layers):
                assert self.cache.length(sequence, layer) == len(rows)

    async def check_rows(self, device: Device) -> None:
        """Check that memory holds the rows that were written."""
        k, v = await device.get(self.cache.k), await device.get(self.cache.v)
        for sequence, layers in self.rows.items():
            pages = list(self.cache.pages(sequence))
            for layer, rows in enumerate(layers):
                if rows:
                    for memory, side in ((k, 0), (v, 1)):
                        found = memory[layer, pages].reshape(-1, HEADS, SIZE)[: len(rows)]
                        np.testing.assert_array_equal(found, [row[side] for row in rows])

    async def check_attention(self, device: Device, sequences: list[int], layer: int) -> None:
        q = self.rng.uniform(-1, 1, (len(sequences), 1, 4, SIZE)).astype(HALF)
        out = await device.get(
            await self.cache.attend(await device.put(q), sequences, layer=layer, causal=True)
        )
        for at, sequence in enumerate(sequences):
            rows = self.rows[sequence][layer]
            k, v = (np.array([row[side] for row in rows], np.float64) for side in (0, 1))
            expected, _, size = attention(q[at].astype(float), k, v, Mask(causal=True))
            compare(out[at], Near(expected, size), HALF)


step = st.one_of(
    st.tuples(st.just("new")),
    st.tuples(st.just("fork"), st.integers(0, 9)),
    st.tuples(st.just("free"), st.integers(0, 9)),
    st.tuples(st.just("trim"), st.integers(0, 9), st.floats(0, 1)),
    st.tuples(st.just("append"), st.integers(0, 1023), st.integers(0, 1), st.integers(1, 7)),
    st.tuples(st.just("append"), st.integers(0, 1023), st.integers(0, 1), st.integers(1, 7)),
)


@settings(max_examples=5 if ON_CUDA else 20)
@given(st.lists(step, min_size=4, max_size=25), st.integers(0, 2**32 - 1))
@example([("new",), ("new",), ("append", 0, 0, 1), ("fork", 0)], 0)
@on_shared
async def test_any_history(device: Device, steps: list[tuple[Any, ...]], seed: int) -> None:
    cache = await device.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, layers=LAYERS, dtype=HALF)
    model = Model(cache, np.random.default_rng(seed))
    for name, *arguments in steps:
        there = list(model.rows)
        if name == "new" or not there:
            model.rows[cache.new()] = [[] for _ in range(LAYERS)]
        elif name == "append":
            mask, layer, new = arguments
            chosen = [each for at, each in enumerate(there) if mask >> at % 10 & 1] or there[:1]
            k, v = model.fresh(len(chosen), new)
            before = [cache.pages(each) for each in there], cache.statistics()
            try:
                await cache.append(chosen, await device.put(k), await device.put(v), layer=layer)
            except OutOfMemory as error:
                assert error.requested > error.free  # noqa: PT017 - it may go well, too
                assert before == ([cache.pages(each) for each in there], cache.statistics())
            else:
                model.write(chosen, layer, k, v)
        else:
            sequence = there[arguments[0] % len(there)]
            rows = model.rows[sequence]
            if name == "fork":
                model.rows[cache.fork(sequence)] = [list(layer) for layer in rows]
            elif name == "free":
                cache.free(sequence)
                del model.rows[sequence]
            else:
                length = int(arguments[1] * min(map(len, rows)))
                cache.trim(sequence, length)
                model.rows[sequence] = [layer[:length] for layer in rows]
        model.check_pages()
    await model.check_rows(device)
    for layer in range(LAYERS):
        filled = [each for each, layers in model.rows.items() if layers[layer]]
        if filled:
            await model.check_attention(device, filled[:3], layer)


async def test_new_rows_and_attention_in_one_call(device: Device) -> None:
    cache = await device.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, dtype=HALF)
    model = Model(cache, np.random.default_rng(0))
    sequences = [cache.new(), cache.new()]
    model.rows = {sequence: [[]] for sequence in sequences}
    for new in (5, 1, 3):  # a prompt, and what follows
        k, v = model.fresh(2, new)
        q = model.rng.uniform(-1, 1, (2, new, 4, SIZE)).astype(HALF)
        refs = [await device.put(each) for each in (q, k, v)]
        out, lse = await cache.attend_with_lse(refs[0], sequences, *refs[1:], causal=True)
        model.write(sequences, 0, k, v)
        model.check_pages()
        got, sums = await device.get(out), await device.get(lse)
        for at, sequence in enumerate(sequences):
            rows = model.rows[sequence][0]
            keys, values = (np.array([row[side] for row in rows], float) for side in (0, 1))
            expected, logs, size = attention(q[at].astype(float), keys, values, Mask(causal=True))
            compare(got[at], Near(expected, size), HALF)
            np.testing.assert_allclose(sums[at], logs.T, atol=1e-4)
    await model.check_rows(device)


async def test_forks_share_pages_until_they_write(device: Device) -> None:
    cache = await device.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, dtype=HALF)
    model = Model(cache, np.random.default_rng(0))
    first = cache.new()
    model.rows[first] = [[]]
    k, v = model.fresh(1, 6)
    await cache.append([first], await device.put(k), await device.put(v))
    model.write([first], 0, k, v)
    second = cache.fork(first)
    model.rows[second] = [list(model.rows[first][0])]
    assert cache.pages(second) == cache.pages(first)
    assert cache.statistics().shared == 2
    k, v = model.fresh(2, 1)
    await cache.append([first, second], await device.put(k), await device.put(v))
    model.write([first, second], 0, k, v)
    # The full page is still shared; of the other one there was one copy, not two.
    assert cache.pages(second)[0] == cache.pages(first)[0]
    assert cache.pages(second)[1] != cache.pages(first)[1]
    assert cache.statistics().copied == 1
    model.check_pages()
    await model.check_rows(device)
    cache.free(first)
    del model.rows[first]
    model.check_pages()
    await model.check_rows(device)


@pytest.mark.parametrize("waits", range(5))
@on_shared
async def test_a_cancelled_call_has_happened_or_not(device: Device, waits: int) -> None:
    cache = await device.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, dtype=HALF)
    model = Model(cache, np.random.default_rng(waits))
    sequences = [cache.new() for _ in range(4)]
    model.rows = {sequence: [[]] for sequence in sequences}
    q = await device.put(np.zeros((1, 1, 4, SIZE), HALF))
    for attends in (False, True):
        fresh = [model.fresh(1, 5) for _ in sequences]
        refs = [[await device.put(array) for array in pair] for pair in fresh]
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for sequence, (k, v) in zip(sequences, refs, strict=True):
                    if attends:
                        nursery.start_soon(cache.attend, q, [sequence], k, v)
                    else:
                        nursery.start_soon(cache.append, [sequence], k, v)
                for _ in range(waits):  # so that some are sent, and others wait their turn
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        for sequence, rows in zip(sequences, fresh, strict=True):
            if cache.length(sequence) > len(model.rows[sequence][0]):
                model.write([sequence], 0, *rows)
        model.check_pages()
        await model.check_rows(device)


async def test_bad_use(device: Device) -> None:
    dnn = device.dnn
    cache = await dnn.kv_cache(4, PAGE, HEADS, SIZE, layers=2, dtype=HALF)
    sequence = cache.new()
    row = await device.put(np.zeros((1, 1, HEADS, SIZE), HALF))
    q = await device.put(np.zeros((1, 1, 4, SIZE), HALF))
    for call in (cache.free, cache.fork, cache.pages, cache.length, lambda at: cache.trim(at, 0)):
        with pytest.raises(ValueError, match="no sequence 99"):
            call(99)
    with pytest.raises(ValueError, match="cannot be cut to 1"):
        cache.trim(sequence, 1)
    with pytest.raises(ValueError, match="no layer 2"):
        await cache.append([sequence], row, row, layer=2)
    with pytest.raises(ValueError, match="different ones"):
        await cache.append([sequence, sequence], row, row)
    with pytest.raises(ValueError, match="different ones"):
        await cache.append([], row, row)
    with pytest.raises(ValueError, match=r"k must have shape \(1, 1, 2, 16\)"):
        await cache.append([sequence], q, row)
    with pytest.raises(TypeError, match="k must be float16"):
        await cache.append([sequence], row.view("bfloat16"), row)
    with pytest.raises(ValueError, match="without any rows"):
        await cache.attend(q, [sequence])
    with pytest.raises(ValueError, match="belong together"):
        await cache.attend(q, [sequence], row)
    with pytest.raises(TypeError, match="has no dropout_p"):
        await cache.attend(q, [sequence], dropout_p=0.5)
    long = await device.put(np.zeros((1, 17, HEADS, SIZE), HALF))
    with pytest.raises(OutOfMemory, match="1 too few"):
        await cache.append([sequence], long, long)
    assert cache.statistics().used == 0
    await cache.append([sequence], row, row)
    with pytest.raises(
        ValueError, match="q must have heads of the cache's size 16, a multiple of its 2"
    ):
        await cache.attend(await device.put(np.zeros((1, 1, 3, SIZE), HALF)), [sequence])
    cache.free(sequence)
    assert sequence not in cache
    with pytest.raises(ValueError, match="power of two"):
        await dnn.kv_cache(4, 3, HEADS, SIZE)
    with pytest.raises(TypeError, match="float16 or bfloat16"):
        await dnn.kv_cache(4, 4, HEADS, SIZE, dtype="float32")
    with pytest.raises(ValueError, match="pages must be"):
        await dnn.kv_cache(0, 4, HEADS, SIZE)


async def test_its_calls_are_awaited_inside_a_batch_too(device: Device) -> None:
    cache = await device.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, dtype="float16")
    sequence = cache.new()
    rows = await device.put(np.ones((1, 3, HEADS, SIZE), HALF))
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="await them"):
            batch.using(cache)  # type: ignore[call-overload]
        with pytest.raises(Unsupported, match="waits for the device's answer"):
            batch.dnn.kv_cache(PAGES, PAGE, HEADS, SIZE, dtype="float16")
        await cache.append([sequence], rows, rows)
    async with device.record() as recording:
        with pytest.raises(Unsupported, match="recording"):
            recording.using(cache)  # type: ignore[call-overload]
    assert cache.length(sequence) == 3


async def test_a_rebuild_makes_a_cache_stale() -> None:
    async with opened(isolation="process") as device:
        cache = await device.dnn.kv_cache(4, PAGE, HEADS, SIZE, dtype=HALF)
        sequence = cache.new()
        row = await device.put(np.zeros((1, 1, HEADS, SIZE), HALF))
        await cache.append([sequence], row, row)
        await poison(device)
        row = await device.put(np.zeros((1, 1, HEADS, SIZE), HALF))
        with pytest.raises(GpuRefStale):
            await cache.append([sequence], row, row)
        assert cache.length(sequence) == 1
