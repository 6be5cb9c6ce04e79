"""Pinned arrays whose block has ended: their memory is neither shared nor lost."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_accel import Device, DeviceLost, open_system
from atomr_accel.lanes import Piece, PinnedPool
from atomr_accel.testing import kill_host

from ..harness import BACKEND, descriptors, on_shared, opened, same_bits

MIB = 1 << 20
BYTE = np.dtype(np.uint8)


@pytest.mark.parametrize("size", [16, 4000, 3 << 20])
@on_shared
async def test_an_array_whose_block_was_left_is_nobody_elses(device: Device, size: int) -> None:
    async with device.pinned.array(size, np.uint8) as old:
        old[:] = 1
        part, raw = old[3:], old.data
    del old
    buffer = await device.put(np.full(size, 3, np.uint8))
    async with device.pinned.array(size, np.uint8) as new:
        new[:] = 2
        assert not np.shares_memory(new, part)
        with pytest.raises(ValueError, match="was given back"):
            await device.put(part)
        with pytest.raises(ValueError, match="was given back"):
            await device.get(buffer[3:], out=part)
        part[:] = 4
        raw[0] = 5
        assert (new == 2).all()
        assert (await device.get(await device.put(new)) == 2).all()
    assert device.pinned.statistics().used == 0


@pytest.mark.parametrize("shape", [0, (), (3, 0, 2), (2, 3)])
@on_shared
async def test_shapes_of_arrays(device: Device, shape: Any) -> None:
    async with device.pinned.array(shape, np.float32) as array:
        assert array.shape == np.empty(shape).shape
        assert (array.dtype, array.flags.c_contiguous) == (np.float32, True)
        array[...] = 7
        assert same_bits(await device.get(await device.put(array)), array)


@on_shared
async def test_memory_is_used_again_once_the_last_view_is_gone(device: Device) -> None:
    addresses = set()
    for _ in range(20):
        async with device.pinned.array(2 << 20, np.uint8) as array:
            addresses.add(array.__array_interface__["data"][0])
            view = array[5:10]
        assert len(view) == 5
    assert len(addresses) == 2  # in turns with that of the block before


async def test_held_arrays_delay_no_caller() -> None:
    """The name after ``as`` lives on after its block, as it does in this loop."""
    async with opened(pinned_limit=4 * MIB) as device:
        kept = []
        for turn in range(4):
            async with device.pinned.array(4 * MIB, np.uint8) as array:
                array[:] = turn
                ref = await device.put(array)
                assert (await device.get(ref) == turn).all()
            kept.append(array[:100])
            assert device.pinned.statistics().capacity <= 4 * MIB
        assert [set(array) for array in kept] == [{0}, {1}, {2}, {3}]


async def test_array_held_beyond_its_device_stays_mapped() -> None:
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened(pinned_limit=4 * MIB))
        async with device.pinned.array(MIB, np.uint8) as array:
            array[:] = 3
        async with device.pinned.array(8 * MIB, np.uint8, oversize="exceed") as beyond:
            beyond[:] = 4
    before = descriptors()
    assert (array == 3).all()
    assert (beyond == 4).all()
    del array, beyond
    assert descriptors() <= before


async def test_arrays_of_before_a_fault_are_nobody_elses_either() -> None:
    async with opened(max_restarts=9) as device:
        async with device.pinned.array(MIB, np.uint8) as old:
            await device.put(old)
            await kill_host(device)
            old[:] = 1
            ref = await device.put(old)
        async with device.pinned.array(MIB, np.uint8) as new:
            new[:] = 2
            await device.get(ref, out=new)
            assert (new == 1).all()
            new[:] = 2
        assert (old == 1).all()


class Pools(RuleBasedStateMachine):
    """Arrays come and go, views of them stay: none is another's, and the limit holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = iter(range(1, 1 << 20))
        self.pool = PinnedPool(16 * MIB, lambda: next(self.numbers))
        self.inside: list[tuple[Piece, np.ndarray[Any, Any], int]] = []
        self.views: list[tuple[np.ndarray[Any, Any], int]] = []
        self.stamp = 0

    @rule(nbytes=st.sampled_from([1, 300, 70_000, MIB, 5 * MIB, 16 * MIB]))
    def enter(self, nbytes: int) -> None:
        piece = self.pool.try_acquire(nbytes)
        if piece is None:
            assert self.inside  # else there must be room, whatever views are held
            return
        array = piece.array((nbytes,), BYTE)
        self.stamp = (self.stamp + 1) % 251
        array[:: max(1, nbytes // 7)] = self.stamp
        self.inside.append((piece, array, self.stamp))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), keep=st.booleans())
    def leave(self, data: st.DataObject, keep: bool) -> None:
        piece, array, stamp = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        if keep:
            self.views.append((array[:: max(1, len(array) // 7)], stamp))
        del array
        piece.release()

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    @rule()
    def trim(self) -> None:
        self.pool.trim()

    @invariant()
    def everybody_has_what_he_wrote(self) -> None:
        for _, array, stamp in self.inside:
            assert (array[:: max(1, len(array) // 7)] == stamp).all()
        for view, stamp in self.views:
            assert (view == stamp).all()

    @invariant()
    def the_limit_holds(self) -> None:
        found = self.pool.statistics()
        assert found.capacity <= found.limit
        assert found.used == sum(piece.size for piece, _, _ in self.inside)

    def teardown(self) -> None:
        before = descriptors()
        arenas = self.pool.statistics().arenas
        self.pool.close(DeviceLost("of the test"))
        assert descriptors() <= before - arenas
        self.everybody_has_what_he_wrote()


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.lists(st.sampled_from([1, 2, 4]), max_size=12))
async def test_waiting_callers_get_returned_memory_in_order(sizes: list[int]) -> None:
    """However many views are held, all of those in line are served in the end."""
    numbers = iter(range(1, 1 << 20))
    pool = PinnedPool(4 * MIB, lambda: next(numbers))
    held = []

    async def user(size: int) -> None:
        piece = await pool.acquire(size * MIB)
        held.append(piece.array((size * MIB,), BYTE)[:10])
        await trio.lowlevel.checkpoint()
        piece.release()

    async with trio.open_nursery() as nursery:
        for size in sizes:
            nursery.start_soon(user, size)
    assert pool.statistics().used == 0
    pool.close(DeviceLost("of the test"))


async def test_waiting_caller_learns_of_the_end_of_the_device() -> None:
    async with open_system("demo") as system:
        device = await system.spawn_device(0, backend=BACKEND, pinned_limit=MIB)
        told: list[DeviceLost] = []

        async def wait() -> None:
            try:
                async with device.pinned.array(MIB, np.uint8):
                    raise AssertionError("there is no device")
            except DeviceLost as error:
                told.append(error)

        async with trio.open_nursery() as nursery, device.pinned.array(MIB, np.uint8) as array:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await device.ref.stop()
            array[:] = 3  # it is the program's for as long as the block runs
        assert "it was stopped" in str(told[0])


async def test_puts_that_wait_when_the_device_ends_are_told() -> None:
    async with open_system("demo") as system:
        device = await system.spawn_device(0, backend=BACKEND)
        data = np.zeros(24 * MIB, np.uint8)
        over = 0

        async def put() -> None:
            nonlocal over
            with suppress(DeviceLost):
                await device.put(data)
            over += 1

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(put)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            await device.ref.stop()
        assert over == 8
