"""Durable pages whose numbers the program gives out: rows are proven, or they are not there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, GpuRefStale, Unsupported
from atomr_accel.libraries.digests.wire.messages import RowRange
from atomr_accel.libraries.dnn.attention import durable_rows
from atomr_accel.testing import kill_host, poison

from ..harness import cpu_only, on_shared, opened
from ..seeds import rng
from .scribbling import scribble

PAGES, PAGE, LAYERS = 5, 4, 2


async def made(device: Device, dtype: Any = "float16") -> Any:
    """Make durable pages."""
    return await device.dnn.durable_pages(PAGES, PAGE, 2, 4, layers=LAYERS, dtype=dtype)


async def write(device: Device, pages: Any, slots: list[int], *, replays: bool = False) -> None:
    """Write rows by a batch or a recording."""
    with pages.writing(slots):
        recording = device.record()
        async with recording if replays else device.batch() as ops:
            for layer in range(LAYERS):
                for ref in (pages.k, pages.v):
                    rows = ref[layer].reshape(PAGES * PAGE, 2, 4)
                    for slot in slots:
                        ops.fill(rows[slot], slot + 1)
        if replays:
            await recording.replay()


@pytest.mark.parametrize(
    ("replays", "dtype"), [(False, "float32"), (True, ml_dtypes.bfloat16)], ids=["batch", "replay"]
)
async def test_rows_of_ops_that_have_returned_survive(replays: bool, dtype: Any) -> None:
    async with opened() as device:
        pages = await made(device, dtype)
        await write(device, pages, [0, 1, 2, 9, 8, 17], replays=replays)
        before = await device.get(pages.k)
        await kill_host(device)
        assert not pages.recovered
        with pytest.raises(GpuRefStale, match=r"await pages.recover\(filled\)"), pages.writing([3]):
            pass
        found = await pages.recover([4, 0, 1, 0, 4])
        assert found.tolist() == [3, 0, 1, 0, 0]
        assert pages.recovered
        np.testing.assert_array_equal(await device.get(pages.k), before)
        await write(device, pages, [3])
        await poison(device)
        assert (await pages.recover([4, 0, 4, 0, 0])).tolist() == [4, 0, 2, 0, 0]


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, PAGES * PAGE - 1), min_size=1, unique=True), max_size=4),
    st.lists(st.tuples(st.integers(0, PAGES * PAGE * LAYERS - 1), st.booleans()), max_size=3),
    st.lists(st.integers(0, PAGE), min_size=PAGES, max_size=PAGES),
)
@cpu_only
@on_shared
async def test_pages_keep_what_comes_before_the_first_row_that_is_not_proven(
    device: Device, writes: list[list[int]], changes: list[tuple[int, bool]], filled: list[int]
) -> None:
    pages = await made(device)
    good = np.zeros((PAGES, PAGE), np.bool_)
    for slots in writes:
        await write(device, pages, slots)
        good.reshape(-1)[slots] = True
    for row, keys in changes:
        scribble(pages.k if keys else pages.v, row * 16 + 5, b"\x77")
        good.reshape(-1)[row % (PAGES * PAGE)] = False
    expected = [min(filled[at], [*good[at], False].index(False)) for at in range(PAGES)]
    assert (await pages.recover(filled)).tolist() == expected


@cpu_only
@pytest.mark.parametrize("most", [512, 1 << 20])
async def test_single_rows_are_asked_for_where_sums_differ(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_rows, "_MOST_SUMMED", most)
    monkeypatch.setattr(durable_rows, "_PIECE", 256)
    layers, count, size = 2, 41, 8
    async with opened() as device:
        pages = await device.dnn.durable_pages(count, size, 1, 4, layers=layers, dtype="float16")
        filled = rng().integers(0, size + 1, count)
        used = np.arange(size) < filled[:, None]
        with pages.writing(np.flatnonzero(used)):
            values = rng().random((layers, count, size, 1, 4)).astype(np.float16)
            for ref in (pages.k, pages.v):
                await device.put(values, out=ref)
        asked: list[int] = []
        digests_of_rows = RowRange.of

        def of(address: Any, row_bytes: int, rows: Any) -> RowRange:
            asked.append(len(rows))
            return digests_of_rows(address, row_bytes, rows)

        monkeypatch.setattr(RowRange, "of", of)
        assert (await pages.recover(filled)).tolist() == filled.tolist()
        assert not asked
        expected = filled.copy()
        for _ in range(3):
            layer, page, row = (int(rng().integers(end)) for end in (layers, count, size))
            scribble(pages.v, ((layer * count + page) * size + row) * 8, b"\x77\x77")
            if row < filled[page]:
                expected[page] = min(expected[page], row)
            await kill_host(device)
            assert (await pages.recover(filled)).tolist() == expected.tolist()
        assert sum(asked) <= 2 * 3 * 3 * 256


async def test_rows_of_a_block_in_which_an_op_fails_are_not_proven() -> None:
    async with opened() as device:
        pages = await made(device)
        await write(device, pages, [0, 1, 2])
        with pytest.raises(ContextPoisoned), pages.writing([1, 3]):
            raise await poison(device)
        assert (await pages.recover([4] * PAGES)).tolist() == [1, 0, 0, 0, 0]
        with (
            pytest.raises(GpuRefStale, match="while rows were being written"),
            pages.writing([0]),
        ):
            await kill_host(device)
        assert (await pages.recover([4] * PAGES)).tolist() == [0] * PAGES


@on_shared
async def test_what_is_refused(device: Device) -> None:
    pages = await made(device)
    for slots in ([0, 0], [-1], [PAGES * PAGE]):
        with (
            pytest.raises(ValueError, match="different numbers from 0 to 19"),
            pages.writing(slots),
        ):
            pass
    for filled in ([4], [5] * PAGES, [-1] * PAGES):
        with pytest.raises(ValueError, match="filled must be 5 numbers from 0 to 4"):
            await pages.recover(filled)
    with pytest.raises(TypeError, match="slots must be integers"), pages.writing([0.5]):
        pass
    with pytest.raises(TypeError, match="filled must be integers"):
        await pages.recover([0.5] * PAGES)
    with pytest.raises(ValueError, match="a multiple of 8 bytes"):
        await device.dnn.durable_pages(4, PAGE, 1, 3, dtype="float16")
    with pytest.raises(ValueError, match="pages must be"):
        await device.dnn.durable_pages(0, PAGE, 1, 4)
    with pytest.raises(TypeError, match="float32, float16 or bfloat16, not float64"):
        await made(device, np.float64)
    batch = device.batch()
    with pytest.raises(Unsupported, match="make it before"):
        async with batch:
            batch.dnn.durable_pages(4, PAGE, 1, 4)
    with pytest.raises(Unsupported, match="await it"):
        async with device.batch() as other:
            other.using(pages)
