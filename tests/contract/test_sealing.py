"""Sealed buffers: read-only for good."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefSealed, GpuRefStale
from atomr_accel.lanes import CHUNK, HostHandle, Isolation, Op
from atomr_accel.testing import poison
from atomr_accel.testing.garbage import collect_garbage

from ..array_samples import Array, arrays, random_bits
from ..harness import (
    Gate,
    cancelled_at,
    cpu_only,
    interrupted_at,
    on_shared,
    opened,
    same_bits,
    settled,
    used_by,
)


@given(array=arrays(), before=st.booleans())
@on_shared
async def test_sealing_keeps_the_content_and_the_handle(
    device: Device, array: Array, before: bool
) -> None:
    ref = await device.put(array, sealed=before)
    assert ref.sealed == before
    assert await device.seal(ref) is ref
    assert await device.seal(ref) is ref
    assert ref.sealed
    assert "sealed" in repr(ref)
    assert same_bits(await device.get(ref), array)


@on_shared
async def test_a_large_buffer_is_sealed_whole(device: Device) -> None:
    array = random_bits((2 * CHUNK + 3,), np.dtype(np.uint8), 5)
    ref = await device.seal(await device.put(array))
    assert same_bits(await device.get(ref), array)


@on_shared
async def test_sealed_buffer_refuses_every_write(device: Device) -> None:
    a = await device.put(np.eye(2))
    sealed = await device.seal(await device.put(np.ones((2, 2))))
    with pytest.raises(GpuRefSealed, match="out is sealed") as info:
        await device.blas.gemm(a, a, out=sealed)
    assert isinstance(info.value, ValueError)
    assert np.array_equal(await device.get(sealed), np.ones((2, 2)))


@on_shared
async def test_a_sealed_buffer_can_be_freed_and_its_memory_used_again(device: Device) -> None:
    used_by(device)  # what earlier tests dropped is freed now, and not in between
    before = device.statistics().memory.sealed
    ref = await device.put(np.zeros(1000), sealed=True)
    assert device.statistics().memory.sealed > before
    await device.free(ref)
    assert device.statistics().memory.sealed == before
    with pytest.raises(GpuRefStale, match=r"^ref was freed"):
        await device.get(ref)
    again = await device.put(np.ones(1000), sealed=True)
    assert np.array_equal(await device.get(again), np.ones(1000))


@on_shared
async def test_sealing_moves_the_memory_and_returns_what_it_was_in(device: Device) -> None:
    used_by(device)
    ref = await device.put(np.zeros(10_000))
    plain = device.statistics().memory
    await device.seal(ref)
    sealed = device.statistics().memory
    assert sealed.used == plain.used
    assert sealed.sealed == plain.sealed + plain.used - plain.sealed


@on_shared
async def test_many_tasks_may_seal_the_same_buffer(device: Device) -> None:
    array = np.arange(1000)
    ref = await device.put(array)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(device.seal, ref)
    assert same_bits(await device.get(ref), array)


@on_shared
async def test_sealing_and_filling_many_at_once(device: Device) -> None:
    async def seal(i: int) -> None:
        ref = await device.put(np.full(i * 97, i), sealed=bool(i % 2))
        await device.seal(ref)
        refs.append((i, ref))

    refs: list[tuple[int, GpuRef]] = []
    async with trio.open_nursery() as nursery:
        for i in range(40):
            nursery.start_soon(seal, i)
    for i, ref in refs:
        assert np.array_equal(await device.get(ref), np.full(i * 97, i))


async def test_an_op_in_flight_is_sealed_in(gate: Gate, isolation: Isolation) -> None:
    """Sealing comes after the ops submitted before it, and before later ones."""
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(4, np.float32)
        await device.put(1, sealed=True)  # so that sealing needs no new slab, which takes a while
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(device.seal, cells)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(GpuRefSealed):
                await device.blas.scal(2, cells)
            gate.open()
        assert (await device.get(cells)).tolist() == [1, 0, 0, 0]


async def test_sealing_that_was_given_up_leaves_a_plain_buffer(
    gate: Gate, isolation: Isolation
) -> None:
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(4, np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(device.seal, cells)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            sealed: bool = cells.sealed
            assert not sealed
            gate.open(2)
            await hold(cells)
        assert (await device.get(cells)).tolist() == [2, 0, 0, 0]
        assert (await device.seal(cells)).sealed
        assert (await device.get(cells)).tolist() == [2, 0, 0, 0]


async def test_a_buffer_freed_while_it_is_sealed_stays_freed(
    gate: Gate, isolation: Isolation
) -> None:
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(4, np.float32)
        refused = []

        async def seal() -> None:
            with pytest.raises(GpuRefStale, match=r"^ref was freed"):
                await device.seal(cells)
            refused.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(seal)
            await trio.testing.wait_all_tasks_blocked()
            await device.free(cells)
            gate.open()
        assert refused == [True]
        assert cells.is_stale
        await settled(device)
        assert device.statistics().memory.used == 0


async def test_a_write_that_waits_for_a_seal_to_fail_is_not_lost(
    tmp_path: Path, isolation: Isolation
) -> None:
    """Two tasks seal one buffer and one of them is cancelled: it stays sealed."""
    gate = Gate(tmp_path)
    try:
        async with opened(isolation=isolation) as device:
            hold = await gate.kernel(device)
            cells = await device.zeros(4, np.float32)
            scope = trio.CancelScope()

            async def seal_and_be_cancelled() -> None:
                with scope:
                    await device.seal(cells)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, cells)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(seal_and_be_cancelled)
                nursery.start_soon(device.seal, cells)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                gate.open()
            assert cells.sealed
            assert (await device.get(cells)).tolist() == [1, 0, 0, 0]
            with pytest.raises(GpuRefSealed):
                await device.blas.scal(2, cells)
    finally:
        gate.close()


async def test_writers_are_refused_while_a_seal_waits_for_another(
    gate: Gate, isolation: Isolation
) -> None:
    async with opened(isolation=isolation) as device:
        hold = await gate.kernel(device)
        first, second = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
        scope = trio.CancelScope()

        async def seal_and_be_cancelled() -> None:
            with scope:
                await device.seal(second)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(device.seal, first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(seal_and_be_cancelled)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(GpuRefSealed):
                await device.fill(second, 1)
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(device.fill, second, 2)
            gate.open()
        assert first.sealed
        assert (await device.get(second)).tolist() == [2] * 4


@pytest.mark.slow
@cpu_only
@pytest.mark.parametrize("cancelled", [False, True])
async def test_interrupted_seal_waits_for_its_host_to_end(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is killed may still be writing there, through its second mapping."""
    may_end = trio.Event()
    ended: set[HostHandle] = set()
    wait_ended = HostHandle.wait_ended

    async def end_late(host: HostHandle) -> int | None:
        await may_end.wait()
        code = await wait_ended(host)
        ended.add(host)
        return code

    array = random_bits((3 << 20,), np.dtype(np.uint8), 1)
    async with opened(max_restarts=99) as device:
        core = device.core
        submit = core.submit
        unprotected: list[tuple[HostHandle, int]] = []
        protected: list[tuple[HostHandle, int, Op]] = []

        def harmless(host: HostHandle, address: int) -> bool:
            """Return whether a host cannot write to an address of a sealed slab."""
            done = [op for h, at, op in protected if (h, at) == (host, address)]
            return host in ended or any(op.answered and op.error is None for op in done)

        def watched(port: Any, name: str, message: Any, reads: Any = (), writes: Any = ()) -> Op:
            op = submit(port, name, message, reads, writes)
            if name in ("protect", "unprotect"):
                (block,) = writes
                assert core.context is not None
                host = core.context.host
                if name == "protect":
                    protected.append((host, block.address, op))
                else:
                    others = [h for h, at in unprotected if at == block.address and h is not host]
                    assert all(harmless(other, block.address) for other in others)
                    unprotected.append((host, block.address))
            return op

        monkeypatch.setattr(core, "submit", watched)
        monkeypatch.setattr(HostHandle, "wait_ended", end_late)
        await device.put(np.zeros(1), sealed=True)
        try:
            for step in (2, 3, 4):
                if cancelled:
                    await cancelled_at(step, lambda: device.put(array, sealed=True))
                    await poison(device)
                else:
                    with suppress(ContextPoisoned):
                        await interrupted_at(
                            step,
                            lambda: device.put(array, sealed=True),
                            lambda: poison(device),
                        )
                ref = await device.put(array, sealed=True)
                assert same_bits(await device.get(ref), array)
                await device.free(ref)
        finally:
            may_end.set()
        await poison(device)
        while core.reaper.terminating or core.reaper.quarantined:
            await trio.testing.wait_all_tasks_blocked(0.001)
        collect_garbage()
        assert device.statistics().memory.used == 0
