"""Memory limits, running out of memory, and giving memory back."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, OutOfMemory, open_device
from atomr_accel.memory import SLICE, MemoryMap
from atomr_accel.memory.map import SLAB_BYTES, Slab

from ..harness import cancelled_at, descriptors, on_shared, opened, settled, used_by

MIB = 1 << 20


@pytest.mark.parametrize("mebibytes", [8, 64, 65, 200])
async def test_a_limit_leaves_room_for_plain_and_sealed_and_shared_buffers(mebibytes: int) -> None:
    async with opened(isolation="thread", memory_limit=mebibytes * MIB) as device:
        kept = [await device.put(np.ones(100))]
        kept.append(await device.put(np.ones(100), sealed=True))
        await device.seal(kept[0])
        shared = await device.share(kept[1])
        kept.append(await device.put(np.ones(100)))
        assert device.statistics().memory.capacity <= mebibytes * MIB
        shared.close()


async def test_running_out_is_no_misfortune() -> None:
    async with opened(isolation="thread", memory_limit=100 * MIB) as device:
        refs: list[GpuRef] = []
        with pytest.raises(OutOfMemory, match="memory_limit is 104857600") as caught:
            while True:
                refs.append(await device.empty(10 * MIB, np.uint8))
        assert len(refs) >= 9
        found = device.statistics().memory
        assert found.capacity <= 100 * MIB
        assert caught.value.requested == 10 * MIB
        assert caught.value.in_use == found.used
        assert caught.value.free == found.free < 10 * MIB
        assert caught.value.largest_free == found.largest_free
        assert caught.value.__cause__ is not None
        with pytest.raises(OutOfMemory):
            await device.put(np.zeros(20 * MIB, np.uint8), sealed=True)
        for number, ref in enumerate(refs):  # nothing was lost
            await device.fill(ref, number)
        assert [(await device.get(ref[-1:]))[0] for ref in refs] == list(range(len(refs)))
        del ref, refs[-1]
        await device.put(np.zeros(10 * MIB, np.uint8))  # and it does not stay


async def test_free_slabs_are_released_for_a_new_one() -> None:
    async with opened(isolation="thread", memory_limit=150 * MIB) as device:
        many = [await device.empty(2 * MIB, np.uint8) for _ in range(60)]
        capacity = device.statistics().memory.capacity
        assert capacity == 15 * 8 * MIB  # slabs that share take a sixteenth of the limit
        del many
        assert device.statistics().memory.used == 0
        large = await device.put(np.ones(120 * MIB, np.uint8))  # those slabs must go for it
        assert device.statistics().memory.slabs == 1
        assert (await device.get(large[-5:]) == 1).all()
        sealed = await device.put(np.ones(MIB, np.uint8), sealed=True)
        assert sealed.sealed
        assert device.statistics().memory.capacity <= 150 * MIB


async def test_no_device_has_that_much() -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(OutOfMemory):
            await device.empty(1 << 50, np.uint8)
        await device.zeros(3)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="memory_limit must be a whole number of at least"):
            async with open_device(backend="cpu", memory_limit=wrong):
                pass
    async with opened(isolation="thread", memory_limit=2 << 20) as device:
        with pytest.raises(OutOfMemory, match="is 2097152, of which memory takes pieces of 2 MiB"):
            await device.zeros(1 << 20)


@on_shared
async def test_trimming_gives_descriptors_back(device: Device) -> None:
    await device.trim()
    before = descriptors(), device.statistics().memory.slabs
    ref = await device.empty(100 * MIB, np.uint8)
    assert device.statistics().memory.slabs == before[1] + 1
    await device.free(ref)
    assert await trim_interrupted(device)
    await device.trim()
    assert (descriptors(), device.statistics().memory.slabs) == before
    await device.zeros(3)


async def trim_interrupted(device: Device) -> int:
    step = 1
    while await cancelled_at(step, device.trim):
        step += 1
        await settled(device)
    await trio.lowlevel.checkpoint()
    return step


# --- the map, without a device ------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 100 * MIB), st.booleans()), max_size=40),
    st.integers(4 * MIB, 400 * MIB) | st.none(),
)
def test_growth_serves_the_request_within_the_limit(
    requests: list[tuple[int, bool]], limit: int | None
) -> None:
    memory = MemoryMap("test:0", limit)
    memory.bump()
    blocks = []
    for nbytes, smallest in requests:
        block = memory.allocate(nbytes)
        if block is None:
            sizes = memory.slab_sizes(nbytes)
            assert sizes == sorted(sizes, reverse=True)
            if limit is None:
                assert sizes
            if not sizes:
                continue
            size = sizes[-1 if smallest else 0]
            memory.add_slab(Slab(memory.new_slab_id(), size, -1, sealed=False))
            block = memory.allocate(nbytes)
        assert block is not None
        blocks.append(block)
        found = memory.statistics()
        assert found.used == sum(block.size for block in blocks)
        assert limit is None or found.capacity <= limit
        assert 0 <= found.fragmentation < 1
    blocks.clear()
    block = None
    memory.trim()
    assert memory.statistics().capacity == 0


def test_slabs_grow_with_the_memory_in_use() -> None:
    memory = MemoryMap("test:0")
    memory.bump()
    blocks = []
    while memory.capacity < 100 << 30:
        block = memory.allocate(16 * MIB)
        if block is None:
            size = memory.growth(16 * MIB)
            assert size >= SLAB_BYTES
            memory.add_slab(Slab(memory.new_slab_id(), size, -1, sealed=False))
        else:
            blocks.append(block)
    assert memory.statistics().slabs < 300  # of the 1024 descriptors a process may have
    assert memory.statistics().fragmentation == 0


# --- much at once -------------------------------------------------------------------------------


async def test_many_dropped_buffers_are_released_a_few_per_turn() -> None:
    """Dropping any number of buffers at once delays no other task for long."""

    class LoopFlusher(trio.abc.Instrument):
        released = most = 0

        def after_io_wait(self, timeout: float) -> None:
            self.released = 0

    async with opened(isolation="thread", memory_limit=64 * MIB) as device:
        memory = device.core.memory
        turns = LoopFlusher()
        release = memory.release

        def counted(address: int, size: int) -> None:
            turns.released += 1
            turns.most = max(turns.most, turns.released)
            release(address, size)

        refs = [await device.empty(10_000, np.uint8) for _ in range(6000)]
        refs.clear()
        memory.release = counted  # type: ignore[method-assign]
        trio.lowlevel.add_instrument(turns)
        try:
            # There is room for it only when most of them are gone.
            large = await device.empty(60 * MIB, np.uint8)
        finally:
            trio.lowlevel.remove_instrument(turns)
            del memory.release
        assert 0 < turns.most <= 2 * SLICE
        del large
        assert used_by(device) == 0
