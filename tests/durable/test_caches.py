"""Durable paged caches: sequences continue after a fault with all tokens that are proven."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, Device, GpuRefStale, Unsupported
from atomr_accel.testing import kill_host, poison

from ..harness import cpu_only, opened, sized
from ..seeds import draw
from .caches import COLUMNS, HEADS, PAGE, SIZE, ModelledCache, rows_of
from .scribbling import Scribbler, scribble
from .withdrawing import Withdrawer

ROW = HEADS * SIZE * 2


async def filled(device: Device, lengths: list[int], **options: Any) -> tuple[Any, list[int]]:
    """Return a durable cache with sequences of these lengths, in one layer."""
    cache = await device.dnn.kv_cache(
        24, PAGE, HEADS, SIZE, dtype="float16", durable=True, **options
    )
    sequences = [cache.new() for _ in lengths]
    for at, length in enumerate(lengths):
        row = await device.put(np.full((1, length, HEADS, SIZE), at + 1, np.float16))
        await cache.append([sequences[at]], row, row)
    return cache, sequences


async def test_sequences_continue_with_all_tokens_of_appends_that_returned() -> None:
    async with opened() as device:
        cache, (first, second) = await filled(device, [6, 3])
        assert cache.durable
        await poison(device)
        row = await device.put(np.ones((1, 1, HEADS, SIZE), np.float16))
        for call in (cache.append([first], row, row), cache.attend(row, [first])):
            with pytest.raises(GpuRefStale, match=r"call: await cache.recover\(\)"):
                await call
        with pytest.raises(GpuRefStale, match="recover"):
            cache.fork(first)
        found = await cache.recover()
        assert {each: (one.length, one.lost, one.changed) for each, one in found.items()} == {
            first: (6, 0, False),
            second: (3, 0, False),
        }
        await cache.append([first], row, row)
        out = await device.get(await cache.attend(row, [second]))
        assert (out == 2).all()
        assert cache.length(first) == 7


@cpu_only
async def test_a_sequence_is_cut_before_the_first_token_that_has_changed() -> None:
    async with opened() as device:
        cache, (first, second) = await filled(device, [11, 6])
        row = rows_of(cache, first, 0, 5, 1)[0]
        scribble(cache.v, row * ROW + 7, b"\1")
        await kill_host(device)
        found = await cache.recover()
        assert (found[first].length, found[first].lost, found[first].changed) == (5, 6, True)
        assert (found[second].length, found[second].lost) == (6, 0)
        assert len(cache.pages(first)) == 2  # the third one is free
        assert cache.statistics().used == 4


@cpu_only
async def test_recovering_without_a_fault_finds_changes_too() -> None:
    async with opened() as device:
        empty, _ = await filled(device, [])
        assert await empty.recover() == {}
        cache, (first,) = await filled(device, [4])
        assert (await cache.recover())[first].lost == 0
        scribble(cache.k, rows_of(cache, first, 0, 3, 1)[0] * ROW, b"\1")
        assert (await cache.recover())[first].lost == 1
        assert (await cache.recover())[first].lost == 0


async def test_an_append_digests_its_rows_alone() -> None:
    async with opened() as device:
        cache, sequences = await filled(device, [5, 9])
        durables: Any = device.core.durables
        asked: list[int] = []
        submit = durables._ask

        def noted(name: str, proofs: Any, writer: Any) -> Any:
            asked.extend(proof.count for _, _, proof in proofs)
            return submit(name, proofs, writer)

        durables._ask = noted
        row = await device.put(np.ones((2, 3, HEADS, SIZE), np.float16))
        await cache.append(sequences, row, row)
        assert asked == [6, 6]  # of k and of v


@pytest.mark.parametrize("replays", [False, True])
async def test_batches_and_recordings_write_rows_in_a_block_of_growing(replays: bool) -> None:
    async with opened() as device:
        cache, sequences = await filled(device, [5, 3])
        q = await device.put(np.ones((2, 1, HEADS, SIZE), np.float16))
        with cache.growing(sequences, columns=COLUMNS) as rows:
            assert rows.lengths.tolist() == [5, 3]
            assert rows.table.shape == (2, COLUMNS)
            lengths, table = await device.put(rows.lengths), await device.put(rows.table)
            options: dict[str, Any] = {"cache_seqlens": lengths, "block_table": table}
            recording = device.record(q, lengths, table)
            async with recording if replays else device.batch() as collector:
                collector.dnn.flash_attention_with_kvcache(
                    q, cache.k[0], cache.v[0], q, q, **options
                )
            if replays:
                await recording.replay()
            with pytest.raises(ValueError, match="is in a block"):
                cache.free(sequences[0])
        await kill_host(device)
        found = await cache.recover()
        assert [found[each].length for each in sequences] == [6, 4]
        assert not any(one.lost for one in found.values())


async def test_rows_that_no_op_has_written_are_not_proven() -> None:
    async with opened() as device:
        cache, (one,) = await filled(device, [6])
        cache.trim(one, 2)
        with cache.growing([one], 3):
            pass  # the rows of the earlier tokens are still there
        with pytest.raises(ZeroDivisionError), cache.growing([one], 2):
            raise ZeroDivisionError
        assert cache.length(one) == 5
        await kill_host(device)
        found = (await cache.recover())[one]
        assert (found.length, found.lost, found.changed) == (2, 3, False)


async def test_writes_by_ops_that_do_not_say_which_rows_leave_them_unproven() -> None:
    async with opened() as device:
        cache, (first, second) = await filled(device, [2, 3])
        await device.fill(cache.k[0, cache.pages(second)[0], 1:2], 5)
        await kill_host(device)
        found = await cache.recover()
        assert found[first].lost == 0
        assert (found[second].length, found[second].changed) == (1, False)


def raises(*_arrays: Any) -> None:
    """Write nothing, in the host."""
    raise ZeroDivisionError


def touch(*_arrays: Any) -> None:
    """Write nothing, in the host."""


@pytest.mark.parametrize("fails", [False, True])
async def test_rows_of_an_op_that_is_withdrawn_or_fails_are_not_proven(fails: bool) -> None:
    withdrawer = Withdrawer()
    async with opened(instruments=[withdrawer]) as device:
        cache, (one, other) = await filled(device, [6, 2])
        cache.trim(one, 2)
        q = await device.put(np.ones((2, 1, HEADS, SIZE), np.float16))
        with cache.growing([one, other], columns=COLUMNS) as rows:
            lengths, table = await device.put(rows.lengths), await device.put(rows.table)
            options: dict[str, Any] = {"cache_seqlens": lengths, "block_table": table}
            if fails:
                with pytest.raises(ZeroDivisionError):
                    await device.run(raises, cache.k[0], cache.v[0])
            else:
                withdrawer.withdraws = "dnn.flash_attention_with_kvcache"
                async with device.batch() as batch:
                    batch.dnn.flash_attention_with_kvcache(
                        q, cache.k[0], cache.v[0], q, q, **options
                    )
            # Which of the two was to write the rows is not known.
            await device.run(touch, cache.k[0], cache.v[0])
        assert cache.length(one) == 3
        await kill_host(device)
        found = await cache.recover()
        assert [found[each].length for each in (one, other)] == [2, 2]
        assert not found[one].changed
        row = await device.put(np.ones((2, 1, HEADS, SIZE), np.float16))
        await cache.append([one, other], row, row)
        await kill_host(device)
        assert [each.length for each in (await cache.recover()).values()] == [3, 3]


@pytest.mark.parametrize("waits", range(4))
async def test_cancelled_appends_are_proven_or_not_there(waits: int) -> None:
    async with opened() as device:
        cache, sequences = await filled(device, [1, 1, 1])
        row = await device.put(np.full((1, 2, HEADS, SIZE), 9, np.float16))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for each in sequences:
                    nursery.start_soon(cache.append, [each], row, row)
                for _ in range(waits):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        before = [cache.length(each) for each in sequences]
        assert set(before) <= {1, 3}
        await device.get(cache.k)  # which comes after what was sent
        await device.core.durables.proven(cache.k.block)
        await kill_host(device)
        found = await cache.recover()
        assert [found[each].length for each in sequences] == before
        memory = (await device.get(cache.k)).reshape(-1, HEADS * SIZE)
        for at, each in enumerate(sequences):
            there = memory[rows_of(cache, each, 0, 0, before[at])]
            assert (there == np.array([at + 1, 9, 9])[: before[at], None]).all()


async def test_appends_that_are_cancelled_before_they_are_sent_are_not_there() -> None:
    async with opened() as device:
        cache, sequences = await filled(device, [4, 2])
        other = cache.fork(sequences[0])
        row = await device.put(np.full((3, 2, HEADS, SIZE), 9, np.float16))
        q = row[:, :1]
        everyone = [*sequences, other]
        before = [cache.pages(each) for each in everyone], cache.statistics()
        core: Any = device.core
        for call in (cache.append(everyone, row, row), cache.attend(q, everyone, row, row)):
            with pytest.MonkeyPatch.context() as patch, trio.CancelScope() as scope:
                patch.setattr(core.first_try, "try_empty", lambda *_: None)  # it waits for memory
                scope.cancel()
                await call
            assert scope.cancelled_caught
        assert ([cache.pages(each) for each in everyone], cache.statistics()) == before
        assert [cache.length(each) for each in everyone] == [4, 2, 4]
        await kill_host(device)
        found = await cache.recover()
        assert [found[each].length for each in everyone] == [4, 2, 4]
        assert not any(one.lost for one in found.values())


async def test_a_copy_in_flight_leaves_the_tokens_of_the_shared_page() -> None:
    async with opened() as device:
        cache, (one,) = await filled(device, [6])
        other = cache.fork(one)
        row = await device.put(np.ones((1, 1, HEADS, SIZE), np.float16))

        async def append() -> None:
            with suppress(ContextPoisoned):
                await cache.append([other], row, row)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.lowlevel.checkpoint()
            await kill_host(device)
        found = await cache.recover()
        assert found[one].lost == 0
        assert found[other].length in (6, 7)
        assert not found[other].changed
        statistics = cache.statistics()
        assert statistics.used == len({*cache.pages(one), *cache.pages(other)})


async def test_what_is_refused() -> None:
    async with opened() as device:
        plain = await device.dnn.kv_cache(4, PAGE, HEADS, SIZE, dtype="float16")
        assert not plain.durable
        with pytest.raises(ValueError, match="must be durable to recover"):
            await plain.recover()
        with pytest.raises(ValueError, match="a multiple of 8 bytes"):
            await device.dnn.kv_cache(4, PAGE, 1, 3, dtype="float16", durable=True)
        cache, (one,) = await filled(device, [3])
        with pytest.raises(Unsupported, match="not durable"):
            await device.export(cache.k)
        with pytest.raises(ValueError, match=r"await cache.recover\(\)"):
            await device.verify(cache.k)
        with (
            pytest.raises(ValueError, match="columns must be at least 2"),
            cache.growing([one], 3, columns=1),
        ):
            pass
        assert cache.k.digest is None
        batch = device.batch()
        with pytest.raises(Unsupported, match="make it before"):
            async with batch:
                batch.dnn.kv_cache(4, PAGE, HEADS, SIZE, dtype="float16", durable=True)


@cpu_only
@pytest.mark.slow
async def test_random_programs() -> None:
    async with opened() as device:
        scribbler = Scribbler(device)
        for _ in range(sized(4, 40)):
            source = random.Random(draw())
            model = await ModelledCache.make(device, source)
            for _ in range(2):
                for _ in range(source.randint(1, 12)):
                    await model.change()
                for _ in range(source.randrange(3)):
                    await model.scribble(scribbler)
                await kill_host(device)
                await model.recover()
