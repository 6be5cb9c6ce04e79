"""Long and pinned transfers: their data, their leftovers, and faults."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, DeviceLost, GpuRefStale
from atomr_accel.device.data._progress import TransferStatistics
from atomr_accel.device.data.transfer import SMALL
from atomr_accel.lanes import CHUNK, Piece, PinnedPool
from atomr_accel.testing import kill_host, poison

from ..array_samples import Array, noise
from ..harness import Gate, cancelled_at, on_shared, opened, same_bits, settled, used_by

SIZES = [SMALL, SMALL + 1, CHUNK + 1, 5 * CHUNK + 4097]


def nothing_is_held(device: Device) -> bool:
    """Return whether all staging and pinned memory has been freed."""
    core = device.core
    return core.staging._pool.in_use == 0 and not core.transfers and not core.reaper.quarantined


# --- ordinary arrays --------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
@on_shared
async def test_long_arrays_arrive_whole(device: Device, nbytes: int) -> None:
    array = noise(nbytes)
    ref = await device.put(array)
    assert same_bits(await device.get(ref), array)
    other = noise(nbytes, 1)
    assert await device.put(other, out=ref) is ref
    assert same_bits(await device.get(ref, out=array), other)
    assert nothing_is_held(device)


@on_shared
async def test_a_long_array_need_not_be_contiguous(device: Device) -> None:
    array = np.arange(3 * SMALL, dtype=np.int64).reshape(3, -1).T
    assert np.array_equal(await device.get(await device.put(array)), array)


@pytest.mark.parametrize("nbytes", [SMALL, 2 * SMALL])
@on_shared
async def test_long_rearrangement_runs_in_a_thread(device: Device, nbytes: int) -> None:
    threads: set[int] = set()

    class Watched(np.ndarray[Any, Any]):
        """Notes in which thread it is copied to or from."""

        def __array_ufunc__(self, *_args: object, **_kwargs: object) -> Any:
            return NotImplemented

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            plain = [np.asarray(arg) for arg in args]
            return func(*plain, **kwargs)

    side = math.isqrt(nbytes // 8)
    array = np.arange(side * side, dtype=">f8").reshape(side, side)
    ref = await device.put(array)
    out = np.empty((side, side)).T.view(Watched)
    assert await device.get(ref, out=out) is out
    assert (np.asarray(out) == array).all()
    assert (threads == {threading.get_ident()}) == (nbytes == SMALL)
    other = await device.put(array.T.view(Watched))
    assert (await device.get(other) == array.T).all()
    async with device.batch() as batch:
        of_a_batch = batch.put(array.T)
    assert of_a_batch.dtype == np.float64
    assert (await device.get(of_a_batch) == array.T).all()


@pytest.mark.slow
@on_shared
async def test_how_far_a_transfer_is_can_be_seen(device: Device) -> None:
    seen: list[TransferStatistics] = []
    array = noise(9 * CHUNK)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def watch() -> None:
            while True:
                seen.extend(device.statistics().transfers)
                await trio.lowlevel.checkpoint()

        await device.get(await device.put(array))
        nursery.cancel_scope.cancel()
    for name in ("put", "get"):
        steps = [each.done for each in seen if each.name == name]
        assert steps == sorted(steps)
        assert 0 < steps[-1] <= len(array)
    assert {each.nbytes for each in seen} == {len(array)}
    assert device.statistics().transfers == ()


@on_shared
async def test_put_out_must_fit(device: Device) -> None:
    ref = await device.put(np.zeros((2, 3), np.float32))
    with pytest.raises(
        ValueError, match=r"out must have the shape of the array, \(3, 2\), not \(2, 3\)"
    ):
        await device.put(np.zeros((3, 2), np.float32), out=ref)
    with pytest.raises(
        TypeError, match="out must have the dtype of the array, float64, not float32"
    ):
        await device.put(np.zeros((2, 3)), out=ref)
    with pytest.raises(ValueError, match="leave out away"):
        await device.put(np.zeros((2, 3), np.float32), out=ref, sealed=True)
    with pytest.raises(TypeError, match="out must be a GpuRef"):
        await device.put(np.zeros(3), out=np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["put", "get"])
@pytest.mark.parametrize("nbytes", [SMALL, 3 * CHUNK])
@on_shared
async def test_a_cancelled_transfer_leaves_nothing(
    device: Device, direction: str, nbytes: int
) -> None:
    array = noise(nbytes)
    ref = await device.put(array)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "put": lambda: device.put(array, out=ref),
        "get": lambda: device.get(ref),
    }
    step = 1
    while await cancelled_at(step, calls[direction]):
        step += 1
        await settled(device)
        assert nothing_is_held(device)
    assert step > 1
    assert same_bits(await device.get(ref), array)


# --- page-locked arrays -------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, SMALL, SMALL + 1, 70 << 20])
@on_shared
async def test_page_locked_arrays_travel_both_ways(device: Device, nbytes: int) -> None:
    array = noise(nbytes)
    async with (
        device.pinned.array((nbytes,), np.uint8) as source,
        device.pinned.array((nbytes,), np.uint8) as target,
    ):
        source[:] = array
        ref = await device.put(source)
        assert await device.get(ref, out=target) is target
        assert same_bits(target, array)
        part = slice(nbytes // 3, nbytes // 3 * 2 + 1)
        await device.put(source[: len(array[part])], out=ref[part])
        array[part] = array[: len(array[part])]
        assert same_bits(await device.get(ref), array)
        assert device.pinned.statistics().used >= 2 * nbytes
    assert device.pinned.statistics().used == 0
    await device.pinned.trim()
    assert device.pinned.statistics().capacity == 0


@on_shared
async def test_a_page_locked_array_is_refused_after_its_block(device: Device) -> None:
    async with device.pinned.array((2 * SMALL,), np.uint8) as array:
        ref = await device.put(array)
    with pytest.raises(ValueError, match="was given back"):
        await device.put(array)
    with pytest.raises(ValueError, match="was given back"):
        await device.get(ref, out=array)


async def test_caller_of_an_exhausted_pool_waits_in_line() -> None:
    async with opened(isolation="thread", pinned_limit=4 << 20) as device:
        order = []

        async def take(name: str, nbytes: int) -> None:
            async with device.pinned.array((nbytes,), np.uint8):
                order.append(name)
                await trio.testing.wait_all_tasks_blocked()

        async with (
            trio.open_nursery() as nursery,
            device.pinned.array((3 << 20,), np.uint8),
        ):
            nursery.start_soon(take, "large", 4 << 20)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(take, "small", 4096)  # would fit, but came later
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            assert device.pinned.statistics().waiting == 2
        assert order == ["large", "small"]
        with pytest.raises(ValueError, match="oversize='exceed'"):
            device.pinned.array((5 << 20,), np.uint8)
        async with device.pinned.array((5 << 20,), np.uint8, oversize="exceed") as array:
            array[:] = 3
            ref = await device.put(array)
            assert device.pinned.statistics().over_limit >= 5 << 20
        assert device.pinned.statistics().over_limit == 0
        assert (await device.get(ref) == 3).all()


@pytest.mark.parametrize("direction", ["put", "get"])
@on_shared
async def test_a_cancelled_page_locked_transfer_leaves_nothing(
    device: Device, direction: str
) -> None:
    async with device.pinned.array((2 * SMALL,), np.uint8) as array:
        array[:] = noise(len(array))
        ref = await device.put(array)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "put": lambda: device.put(array, out=ref),
            "get": lambda: device.get(ref, out=array),
        }
        step = 1
        while await cancelled_at(step, calls[direction]):
            step += 1
            if direction == "get":
                assert not device.statistics().in_flight  # so the array is the caller's again
        await settled(device)
    assert device.pinned.statistics().used == 0
    assert nothing_is_held(device)


async def test_page_locked_arrays_survive_rebuilds() -> None:
    async with opened(max_restarts=9) as device:
        async with device.pinned.array((3 * SMALL,), np.uint8) as array:
            array[:] = noise(len(array))
            expected = array.copy()
            await device.put(array)
            for fault in (poison, kill_host):
                await fault(device)
                assert same_bits(array, expected)
                ref = await device.put(array)
                assert same_bits(await device.get(ref), expected)
        assert device.pinned.statistics().used == 0


# --- the pool against a model --------------------------------------------------------------


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 12 << 20), st.integers(0, 99)), max_size=60)
)
def test_pieces_never_overlap_and_the_limit_holds(steps: list[tuple[bool, int, int]]) -> None:
    numbers = iter(range(1, 1000))
    pool = PinnedPool(16 << 20, lambda: next(numbers))
    held: list[tuple[Piece, int]] = []
    try:
        for take, nbytes, which in steps:
            if take:
                piece = pool.try_acquire(nbytes)
                if piece is not None:
                    held.append((piece, nbytes))
                elif not held:
                    pytest.fail("an empty pool has no room for less than its limit")
            elif held:
                held.pop(which % len(held))[0].release()
            spans = sorted((piece.address, piece.address + nbytes) for piece, nbytes in held)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            found = pool.statistics()
            assert found.capacity <= pool.limit
            assert found.used == sum(piece.size for piece, _ in held)
        for piece, _ in held:
            piece.release()
        pool.trim()
        assert pool.statistics().capacity == 0
    finally:
        pool.close(DeviceLost("of the test"))


def test_memory_used_by_an_op_returns_after_it() -> None:
    pool = PinnedPool(4 << 20, lambda: 1)
    piece = pool.try_acquire(100)
    assert piece is not None
    piece.hold()
    piece.release()
    assert pool.statistics().used
    piece.drop()
    assert not pool.statistics().used
    pool.close(DeviceLost("of the test"))


# --- faults -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page_locked", [False, True])
@pytest.mark.parametrize("direction", ["put", "get"])
@pytest.mark.parametrize("blow", [poison, kill_host])
async def test_a_fault_in_the_middle_of_a_transfer(
    blow: Callable[[Device], Awaitable[object]], direction: str, page_locked: bool
) -> None:
    async with opened(max_restarts=9) as device, device.pinned.array((40 << 20,), np.uint8) as own:
        own[:] = 7
        array = own if page_locked else np.full(own.shape, 7, np.uint8)
        await break_a_transfer(device, array, direction, blow)
        assert (array == 7).all()
        again = await device.put(array)
        assert same_bits(await device.get(again), array)
        await device.free(again)
        while not nothing_is_held(device):  # until the old host has ended
            await trio.lowlevel.checkpoint()
        assert used_by(device) == 0


async def break_a_transfer(
    device: Device, array: Array, direction: str, blow: Callable[[Device], Awaitable[object]]
) -> None:
    ref = await device.put(array)

    async def transfer() -> None:
        with pytest.raises((ContextPoisoned, GpuRefStale)):  # in flight, or just before
            while True:
                if direction == "put":
                    await device.put(array, out=ref)
                else:
                    await device.get(ref, out=array)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(transfer)
        while not device.statistics().transfers:
            await trio.lowlevel.checkpoint()
        await blow(device)
    assert ref.is_stale


# --- small arrays return before they have arrived ---------------------------------------------


@on_shared
async def test_a_small_array_is_the_callers_again_at_once(device: Device) -> None:
    array = noise(SMALL)
    expected = array.copy()
    refs = []
    for _ in range(3):
        refs.append(await device.put(array))
        array[:] = 0
        array[:] = expected
    target = await device.put(np.zeros_like(array))
    await device.put(array, out=target)
    array[:] = 0
    for ref in (*refs, target):
        assert same_bits(await device.get(ref), expected)
    assert nothing_is_held(device)


@on_shared
async def test_small_arrays_on_their_way_are_bounded(device: Device) -> None:
    array = noise(1000)
    most = 0
    for _ in range(500):
        ref = await device.put(array)
        most = max(most, device.statistics().in_flight)
    assert most <= 66
    assert same_bits(await device.get(ref), array)
    await settled(device)
    assert nothing_is_held(device)


async def test_a_small_array_that_does_not_arrive_is_a_fault() -> None:
    async with opened(max_restarts=9) as device:
        ref = await device.put(noise(1000))
        # A message that the host cannot obey stands for whatever may go wrong there.
        ref.block.address += 1 << 60
        async with device.watch_generation() as changes:
            await device.put(noise(1000), out=ref)
            assert await anext(changes) == 2
        assert ref.is_stale
        fault = device.statistics().last_fault
        assert fault is not None
        assert "put failed" in fault
        ref.block.address -= 1 << 60
        assert same_bits(await device.get(await device.put(noise(1000))), noise(1000))
        while not nothing_is_held(device):
            await trio.lowlevel.checkpoint()


async def test_a_fault_makes_what_was_on_its_way_stale(gate: Gate) -> None:
    async with opened(max_restarts=9) as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(1000, np.float32)
        async with trio.open_nursery() as nursery:

            async def launch() -> None:
                with pytest.raises(ContextPoisoned):
                    await hold(cells, fault=True)

            nursery.start_soon(launch)
            await trio.testing.wait_all_tasks_blocked()
            await device.put(np.ones(1000, np.float32), out=cells)  # after the kernel, that is
            assert device.statistics().in_flight == 2
            gate.open()
        assert cells.is_stale
        with pytest.raises(GpuRefStale):
            await device.get(cells)
        while not nothing_is_held(device):
            await trio.lowlevel.checkpoint()
