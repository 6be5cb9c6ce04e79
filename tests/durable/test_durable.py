"""Durable buffers: writable memory that continues after a fault if its content is proven."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefStale,
    Standby,
    Unsupported,
)
from atomr_accel.testing import kill_host, poison
from atomr_accel.wire import CHUNK_BYTES

from ..harness import Gate, cpu_only, opened, sized
from ..seeds import draw
from .programs import CHANGED, IN_FLIGHT, Program, run_together
from .scribbling import Scribbler, scribble
from .withdrawing import Withdrawer

FLOATS = CHUNK_BYTES // 4
"""Elements of float32 that one digest covers."""


def digested(device: Device) -> int:
    """Return the number of ops that the lane of digests has been given."""
    lanes = {lane.name: lane.submitted for lane in device.statistics().lanes}
    return lanes.get("digests", 0)


async def test_tasks_that_write_side_by_side_all_go_on() -> None:
    async with opened() as device:
        ref = await device.zeros(1000, np.float32, durable=True)
        ones = np.ones(1000, np.float32)

        async def fill() -> None:
            for _ in range(10):
                await device.fill(ref, 1)

        async def put() -> None:
            for _ in range(10):
                await device.put(ones, out=ref)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(fill)
                nursery.start_soon(put)
        await kill_host(device)
        assert (await device.get(ref) == 1).all()


async def test_what_was_written_in_any_way_continues_after_a_fault() -> None:
    async with opened() as device:
        array = np.arange(3 * FLOATS + 5, dtype=np.float32)
        put = await device.put(array, durable=True)
        zeros = await device.zeros((300, 300), durable=True)
        full = await device.full(7, 2.5, durable=True)
        made = await device.put(array)
        view = made[10:20]
        assert await device.make_durable(made) is made
        assert put.durable
        assert view.durable
        assert not put.sealed
        await device.put(np.ones(10, np.float32), out=view)
        await device.copy(await device.put(np.ones((300, 10))), zeros[:, 5:15])
        await device.evaluate(put * 2, out=put)
        await device.fill(full, 3)

        before = device.generation
        await poison(device)

        assert (await device.get(put) == 2 * array).all()
        array[10:20] = 1
        assert (await device.get(made) == array).all()
        assert (await device.get(zeros)).sum() == 3000
        assert (await device.get(full) == 3).all()
        assert device.generation == before + 1
        found = device.statistics().durable
        assert (found.buffers, found.verified, found.in_flight, found.changed) == (4, 4, 0, 0)
        assert found.nbytes == 2 * array.nbytes + 8 * 300 * 300 + 8 * 7
        await device.fill(put, 1)  # and they can be written again
        await kill_host(device)
        assert (await device.get(put) == 1).all()


async def test_buffers_continue_on_a_hot_standby() -> None:
    async with opened(standby=Standby(hot=1)) as device:
        ref = await device.put(np.arange(1000), durable=True)
        for number in range(3):
            await device.fill(ref[number : number + 1], -1)
            await poison(device)
        assert (await device.get(ref))[:4].tolist() == [-1, -1, -1, 3]


@cpu_only
async def test_changed_bytes_make_a_buffer_stale_and_no_other() -> None:
    async with opened() as device:
        ref = await device.zeros(4 * FLOATS, np.float32, durable=True)
        other = await device.zeros(4 * FLOATS, np.float32, durable=True)
        scribble(ref, 2 * CHUNK_BYTES + 17, b"\1")
        await kill_host(device)
        with pytest.raises(GpuRefStale, match=f"{CHANGED} .1 of 4 .* at byte {2 * CHUNK_BYTES}"):
            await device.get(ref)
        with pytest.raises(GpuRefStale, match=CHANGED):
            await device.fill(ref[:3], 1)
        assert ref.is_stale
        assert not (await device.get(other)).any()
        found = device.statistics().durable
        assert (found.buffers, found.in_flight, found.changed) == (1, 0, 1)


@cpu_only
async def test_an_op_beside_changed_bytes_does_not_vouch_for_them() -> None:
    async with opened() as device:
        ref = await device.zeros(3 * FLOATS, np.float32, durable=True)
        scribble(ref, 100, b"\1")
        await device.fill(ref[FLOATS:], 1)  # two chunks, and not the one that has changed
        stale = [ref.is_stale]
        await device.fill(ref[50 : FLOATS + 1], 1)
        stale.append(ref.is_stale)
        assert stale == [False, True]


@cpu_only
async def test_a_write_that_is_withdrawn_does_not_vouch_for_bytes() -> None:
    withdrawer = Withdrawer()
    async with opened(instruments=[withdrawer]) as device:
        changed, same = [await device.zeros(FLOATS, np.float32, durable=True) for _ in range(2)]
        scribble(changed, 100, b"\1")
        withdrawer.withdraws = "fill"
        for ref in (changed, same):
            await device.fill(ref, 1)
        with pytest.raises(GpuRefStale, match=CHANGED):
            await device.verify(changed)
        await device.verify(same)
        await kill_host(device)
        assert not (await device.get(same)).any()


@cpu_only
async def test_changed_bytes_that_are_all_written_again_do_not_matter() -> None:
    async with opened() as device:
        ref = await device.zeros(3 * FLOATS, np.float32, durable=True)
        scribble(ref, CHUNK_BYTES + 100, b"\1" * 50)
        await device.fill(ref[FLOATS : 2 * FLOATS], 1)
        await kill_host(device)
        assert (await device.get(ref)).sum() == FLOATS


async def test_a_write_in_flight_makes_its_buffer_stale_and_no_other(tmp_path: Path) -> None:
    async with opened() as device:
        ref = await device.zeros(1000, np.float32, durable=True)
        other = await device.zeros(1000, durable=True)
        gate = Gate(tmp_path)
        hold = await gate.kernel(device)

        async def write() -> None:
            with pytest.raises(ContextPoisoned):
                await hold(ref)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            await kill_host(device)
        gate.close()
        with pytest.raises(GpuRefStale, match=IN_FLIGHT):
            await device.get(ref)
        assert not (await device.get(other)).any()
        assert device.statistics().durable.in_flight == 1


async def test_an_op_that_is_awaited_is_proven() -> None:
    """The host is killed as soon as the op returns, which includes its digests."""
    async with opened() as device:
        ref = await device.zeros((64, 64), np.float32, durable=True)
        one = await device.put(np.eye(64, dtype=np.float32))
        for number in range(4):
            if number % 2:
                await device.blas.gemm(one, one, out=ref, alpha=float(number))
            else:
                async with device.batch() as batch:
                    batch.blas.gemm(one, one, out=ref, alpha=float(number))
                    batch.fill(ref[0], number)
            await kill_host(device)
            found = await device.get(ref)
            assert found[1, 1] == number
            one = await device.put(np.eye(64, dtype=np.float32))


async def test_a_failed_op_is_proven_too() -> None:
    async with opened() as device:
        ref = await device.zeros(1000, durable=True)
        with pytest.raises(ZeroDivisionError):
            await device.run(_spoil, ref)
        await kill_host(device)
        assert (await device.get(ref))[0] == 1


def _spoil(array: Any) -> None:
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        array = cupy.asarray(array)
    array[0] = 1
    raise ZeroDivisionError


async def test_an_append_digests_what_it_appends() -> None:
    async with opened() as device:
        ref = await device.zeros(100 * FLOATS, np.float32, durable=True)
        sizes: list[int] = []
        durables: Any = device.core.durables
        submit = durables._ask

        def noted(name: str, asked: Any, *writer: Any) -> Any:
            sizes.extend(proof.count for _, _, proof in asked)
            return submit(name, asked, *writer)

        durables._ask = noted
        await device.put(np.ones(10, np.float32), out=ref[5 * FLOATS + 7 :][:10])
        assert sizes == [1, 1]  # one as it was, and one as it is now
        sizes.clear()
        await device.fill(ref[:FLOATS], 1)
        assert sizes == [1]


async def test_programs_without_durable_buffers_digest_nothing() -> None:
    async with opened() as device:
        ref = await device.zeros(100)
        await device.fill(ref, 1)
        assert not device.core.memory.has_durable
        assert digested(device) == 0
        durable = await device.zeros(100, durable=True)
        before = digested(device)
        await device.fill(ref, 2)
        assert digested(device) == before
        await device.fill(durable, 2)
        assert digested(device) == before + 1


async def test_recordings_and_their_results() -> None:
    async with opened() as device:
        ref = await device.zeros(1000, durable=True)
        x = await device.put(np.arange(1000.0))
        async with device.record(x) as recording:
            made = recording.evaluate(x + 1)
            recording.copy(made, ref)
        await recording.replay()
        await kill_host(device)
        assert (await device.get(ref) == np.arange(1, 1001)).all()
        x = await device.put(np.ones(1000))
        await recording.replay(x)
        await kill_host(device)
        assert (await device.get(ref) == 2).all()
        await recording.replay(await device.put(np.ones(1000)))
        await device.make_durable(made)
        with pytest.raises(ValueError, match="must not be durable"):
            await recording.replay(await device.put(np.ones(1000)))


async def test_exports_are_refused_with_a_reason() -> None:
    async with opened() as device:
        ref = await device.zeros(10, durable=True)
        with pytest.raises(Unsupported, match="plain or sealed to be exported, not durable"):
            await device.export(ref)
        with await device.share(ref) as shared:  # a copy, as of any buffer
            assert not (await device.get(await device.adopt(shared))).any()


@cpu_only
async def test_an_exported_buffer_does_not_become_durable() -> None:
    async with opened() as device:
        ref = await device.zeros(10)
        array = (await device.export(ref)).numpy()
        with pytest.raises(ValueError, match="is exported"):
            await device.make_durable(ref)
        del array


async def test_sealed_and_durable_exclude_each_other() -> None:
    async with opened() as device:
        with pytest.raises(ValueError, match="not both"):
            await device.put(np.ones(3), sealed=True, durable=True)
        sealed = await device.put(np.ones(3), sealed=True)
        with pytest.raises(ValueError, match="is sealed"):
            await device.make_durable(sealed)
        with pytest.raises(ValueError, match="makes a buffer of its own"):
            await device.put(np.ones(3), out=await device.zeros(3), durable=True)
        durable = await device.zeros(3, durable=True)
        with pytest.raises(ValueError, match="seal a copy"):
            await device.seal(durable)
        assert not durable.sealed


async def test_empty_and_freed_buffers() -> None:
    async with opened() as device:
        empty = await device.zeros((0, 3), durable=True)
        freed = await device.zeros(10, durable=True)
        await device.free(freed)
        dropped = await device.zeros(10, durable=True)
        del dropped
        await kill_host(device)
        assert (await device.get(empty)).shape == (0, 3)
        with pytest.raises(GpuRefStale, match="was freed"):
            await device.get(freed)
        assert device.statistics().durable.buffers == 1


async def test_large_transfers_to_views_are_proven() -> None:
    async with opened() as device:
        array = np.arange(4 << 20, dtype=np.float32)
        ref = await device.put(array, durable=True)
        part = np.ones(2 << 20, np.float32)
        await device.put(part, out=ref[1000:][: len(part)])
        await kill_host(device)
        array[1000 : 1000 + len(part)] = part
        assert (await device.get(ref) == array).all()


async def test_a_snapshot_is_restored_into_durable_buffers() -> None:
    async with opened() as device:
        ref = await device.put(np.arange(1000.0), durable=True)
        snapshot = await device.snapshot([ref])
        await device.fill(ref, 0)
        await device.restore(snapshot, out=[ref])
        await kill_host(device)
        assert (await device.get(ref) == np.arange(1000)).all()


@cpu_only  # on CUDA it would end all tests of its process
async def test_under_thread_isolation_a_fault_is_final() -> None:
    with pytest.raises(DeviceLost):
        async with opened(isolation="thread") as device:
            ref = await device.zeros(1000, durable=True)
            await device.fill(ref[3:5], 1)
            assert (await device.get(ref)).sum() == 2
            await poison(device)
            await device.get(ref)


async def _written(device: Device, ref: GpuRef) -> None:
    await device.put(np.ones(300, np.float32), out=ref[100:400])
    async with device.batch() as batch:
        batch.fill(ref[400:], 2)


@pytest.mark.slow
async def test_a_host_killed_at_any_await_of_a_write_leaves_no_wrong_bytes() -> None:
    """A ref that continues has the bytes of writes that returned, and others are stale."""
    expected = np.zeros(1000, np.float32)
    expected[100:400] = 1
    whole = expected.copy()
    whole[400:] = 2
    for step in range(sized(12, 40)):
        async with opened() as device:
            ref = await device.zeros(1000, np.float32, durable=True)

            async def write(device: Device = device, ref: GpuRef = ref) -> None:
                await _written(device, ref)

            ended = await killed_at(step, device, write)
            try:
                found = await device.get(ref)
            except GpuRefStale as error:
                found, said = None, str(error)
            if found is None:
                assert IN_FLIGHT in said
                assert not ended
                continue
            allowed = [whole] if ended else [np.zeros_like(expected), expected, whole]
            assert any((found == one).all() for one in allowed), step


async def killed_at(step: int, device: Device, function: Any) -> bool:
    """Kill the host at a checkpoint of a function; return True if it came to its end."""
    ended = False

    async def run() -> None:
        nonlocal ended
        try:
            await function()
            ended = True
        except (ContextPoisoned, GpuRefStale):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(step):
            await trio.lowlevel.checkpoint()
        await kill_host(device)
    return ended


@cpu_only
@pytest.mark.slow
async def test_random_programs() -> None:
    async with opened() as device:
        for _ in range(sized(1, 5)):
            source = random.Random(draw())
            scribbler = Scribbler(device)
            programs = [
                Program(device, random.Random(source.getrandbits(64)), scribbler) for _ in range(4)
            ]
            await run_together(device, source, programs)
