"""The program's map of device memory: generations, sealing, and the holders of blocks."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from atomr_accel import DeviceLost, GpuRef, GpuRefSealed, GpuRefStale, OutOfMemory
from atomr_accel.memory import SLICE, Allocator, Block, MemoryMap, Slab, round_size
from atomr_accel.memory._allocator import ALIGNMENT
from atomr_accel.ops import require_readable, require_writable
from atomr_accel.wire import OFFSET_MASK, PLACE, SLAB_SHIFT

BYTE = np.dtype(np.uint8)
SLABS = 8 << 20


def ref_of(block: Block, nbytes: int) -> GpuRef:
    return GpuRef(block, (nbytes,), BYTE, nbytes)


@dataclass(eq=False)
class Held:
    """A buffer as the model knows it."""

    ref: GpuRef
    generation: int
    size: int
    sealed: bool = False
    freed: bool = False
    flying: list[int] = field(default_factory=list)  # ops in flight that use it
    kept: int = 0  # bytes that such ops keep beside what it has now


class Maps(RuleBasedStateMachine):
    """Random lives of buffers, across generations."""

    buffers = Bundle("buffers")

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryMap("test:0")
        self.memory.bump()
        self.memory.slab_changed = self.is_told
        self.held: list[Held] = []
        self.fds: set[int] = set()
        self.seq = 0

    def new_slab(self, nbytes: int, *, sealed: bool) -> None:
        fd = os.memfd_create("test-slab")
        self.fds.add(fd)
        slab = Slab(self.memory.new_slab_id(), self.memory.growth(nbytes), fd, sealed)
        self.memory.add_slab(slab)

    def is_told(self, slab: Slab, added: bool) -> None:
        """Ask for statistics, as an instrument may that hears of a slab. That releases blocks."""
        assert self.memory.has_slab(slab.id) == added
        statistics = self.memory.statistics()
        assert statistics.capacity == statistics.used + statistics.free

    @rule(target=buffers, nbytes=st.integers(1, SLABS), sealed=st.booleans())
    def allocate_alone(self, nbytes: int, sealed: bool) -> Held:
        fd = os.memfd_create("test-slab")
        self.fds.add(fd)
        slab = Slab(self.memory.new_slab_id(), round_size(nbytes), fd, sealed)
        block = self.memory.add_dedicated(slab)
        held = Held(ref_of(block, nbytes), self.memory.generation, slab.nbytes, sealed)
        self.held.append(held)
        return held

    @rule(target=buffers, nbytes=st.integers(0, SLABS), sealed=st.booleans())
    def allocate(self, nbytes: int, sealed: bool) -> Held:
        block = self.memory.allocate(nbytes, sealed=sealed)
        if block is None:
            self.new_slab(nbytes, sealed=sealed)
            block = self.memory.allocate(nbytes, sealed=sealed)
            assert block is not None
        assert self.memory.slab_of(block).sealed == sealed
        held = Held(ref_of(block, nbytes), self.memory.generation, round_size(nbytes))
        if sealed:
            self.memory.seal(block)
            held.sealed = True
        self.held.append(held)
        return held

    @rule(held=buffers, write=st.booleans())
    def use(self, held: Held, write: bool) -> None:
        """An op begins: it refuses stale and sealed refs, and holds its own."""
        check = require_writable if write else require_readable
        stale = not held.sealed and held.generation != self.memory.generation
        if held.freed or stale:
            with pytest.raises(GpuRefStale):
                check(held.ref, self.memory, "x")
        elif write and held.sealed:
            with pytest.raises(GpuRefSealed):
                check(held.ref, self.memory, "x")
        else:
            block = check(held.ref, self.memory, "x")
            self.seq += 1
            block.readers = {*(block.readers or ()), self.seq}
            held.flying.append(self.seq)

    @rule(held=buffers)
    def op_ends(self, held: Held) -> None:
        block = held.ref.block
        if held.flying:
            assert block.readers is not None
            block.readers.discard(held.flying.pop())
            if not held.flying:
                held.kept = 0
                if held.freed:
                    held.size = 0
            block.settle()

    @rule(held=buffers)
    def free(self, held: Held) -> None:
        if not held.ref.is_stale:
            self.memory.free(held.ref.block)
            held.freed = True
            if not held.flying:
                held.size = 0

    @rule(held=buffers)
    def seal(self, held: Held) -> None:
        if held.ref.is_stale or held.sealed:
            return
        onto = self.memory.allocate(held.ref.nbytes, sealed=True)
        if onto is None:
            self.new_slab(held.ref.nbytes, sealed=True)
            onto = self.memory.allocate(held.ref.nbytes, sealed=True)
            assert onto is not None
        if held.flying:
            held.kept += held.size
        self.memory.rebind(held.ref.block, onto)
        held.sealed = True
        assert not held.ref.is_stale

    @rule(held=consumes(buffers))
    def drop(self, held: Held) -> None:
        """The last handle goes; ops in flight would hold the block, so they end first."""
        while held.flying:
            self.op_ends(held)
        self.held.remove(held)
        del held.ref

    @rule(some=st.lists(consumes(buffers), max_size=6))
    def drop_some(self, some: list[Held]) -> None:
        """Several handles go before anything looks for them."""
        for held in some:
            if held in self.held:
                self.drop(held)

    @rule()
    def bump(self) -> None:
        before = self.memory.generation
        for held in self.held:  # everything in flight is answered at a rebuild
            while held.flying:
                self.op_ends(held)
        assert self.memory.bump() == before + 1

    @rule()
    @precondition(lambda self: self.held)
    def trim(self) -> None:
        sealed = {slab.id for slab in self.memory.surviving_slabs()}
        used = {
            held.ref.block.address >> 40
            for held in self.held
            if held.size and (held.sealed or held.generation == self.memory.generation)
        }
        kept = {held for held in self.held if held.kept}
        self.memory.trim()
        trimmed = set(self.memory.unmapped)
        assert not trimmed & used
        remaining = {slab.id for slab in self.memory.surviving_slabs()}
        assert remaining == sealed - trimmed
        for held in self.held:
            if not held.sealed and held.generation != self.memory.generation:
                held.size = 0  # its slab is gone, whoever still holds the ref
        assert kept == {held for held in self.held if held.kept}

    @invariant()
    def the_books_are_exact(self) -> None:
        gc.collect(0)
        statistics = self.memory.statistics()
        now = self.memory.generation
        assert statistics.used == sum(held.size + held.kept for held in self.held)
        stale = [held for held in self.held if not held.sealed and held.generation != now]
        assert statistics.stale == sum(held.size for held in stale)
        sealed = sum(held.size for held in self.held if held.sealed)
        assert statistics.sealed == sealed
        assert statistics.capacity == statistics.used + statistics.free
        for held in self.held:
            gone = held.freed or (not held.sealed and held.generation != now)
            assert held.ref.is_stale == gone
            assert held.ref.generation == held.generation

    @invariant()
    def descriptors_are_open_exactly_for_slabs(self) -> None:
        slabs = self.memory.statistics().slabs  # looks for what has become garbage, too
        self.fds = {fd for fd in self.fds if is_open(fd)}
        assert len(self.fds) == slabs

    def teardown(self) -> None:
        self.memory.close()
        assert not any(map(is_open, self.fds))


def is_open(fd: int) -> bool:
    """Return whether a descriptor still refers to one of the test's slabs."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/memfd:test-slab")
    except OSError:
        return False


TestMaps = Maps.TestCase
TestMaps.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.fixture
def memory() -> Iterator[MemoryMap]:
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), SLABS, -1, sealed=False))
    yield memory
    memory.close()


def allocate(memory: MemoryMap, nbytes: int) -> GpuRef:
    block = memory.allocate(nbytes)
    assert block is not None
    return ref_of(block, nbytes)


def test_refs_may_be_dropped_by_any_thread_at_any_time(memory: MemoryMap) -> None:
    def drop_many() -> None:
        for _ in range(200):
            refs.pop()

    refs = [allocate(memory, 100) for _ in range(800)]
    threads = [threading.Thread(target=drop_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while refs:
        memory.statistics()  # the program's thread collects meanwhile
    for thread in threads:
        thread.join()
    assert memory.statistics().used == 0


def test_slabs_have_numbers_for_as_long_as_addresses_are_no_places(memory: MemoryMap) -> None:
    last = (PLACE >> SLAB_SHIFT) - 1
    memory._slab_ids = itertools.count(last)
    shadow = memory.shadow()
    number = memory.new_slab_id()
    assert (number << SLAB_SHIFT | OFFSET_MASK) < PLACE
    for each in (memory, shadow, memory):
        with pytest.raises(OutOfMemory, match=f"has had {last} slabs"):
            each.new_slab_id()


def test_stale_slabs_go_with_their_last_ref(memory: MemoryMap) -> None:
    one, other = allocate(memory, 1), allocate(memory, 1)
    memory.bump()
    assert (memory.statistics().slabs, memory.statistics().stale) == (1, 2 * ALIGNMENT)
    del one
    assert (memory.statistics().slabs, memory.statistics().stale) == (1, ALIGNMENT)
    del other
    assert memory.statistics().slabs == 0


def test_the_reasons_for_a_refusal(memory: MemoryMap) -> None:
    other = MemoryMap("other:1")
    ref = allocate(memory, 10)
    with pytest.raises(
        TypeError, match=r"a must be a GpuRef, not list.*a = await device\.put\(a\)"
    ):
        require_readable([], memory, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a must be on other:1, where the op runs, not on test:0;"):
        require_readable(ref, other, "a")
    memory.bump()
    with pytest.raises(GpuRefStale, match=r"a is of generation 1, but test:0 .* generation 2"):
        require_readable(ref, memory, "a")


def test_the_larger_the_request_the_larger_the_slab(memory: MemoryMap) -> None:
    assert memory.growth(0) == memory.growth(1 << 20) == 64 << 20
    for nbytes in (40 << 20, (100 << 20) + 1, 5 << 30):
        size = memory.growth(nbytes)
        assert size >= round_size(nbytes)
        assert size % (2 << 20) == 0


def test_dropped_blocks_are_released_a_few_at_a_time(memory: MemoryMap) -> None:
    """Dropping many blocks does not make the next allocation wait for all of them."""
    refs = [allocate(memory, 300 * i % 5000) for i in range(3000)]
    random.Random(1).shuffle(refs)
    refs.clear()
    waiting = len(memory.dropped)
    assert waiting == 3000
    while memory.dropped:
        refs.append(allocate(memory, 100))
        assert waiting - len(memory.dropped) <= SLICE
        waiting = len(memory.dropped)
    assert memory.statistics().used == len(refs) * ALIGNMENT


@pytest.mark.parametrize("size", [ALIGNMENT, 2 << 20])
def test_merging_what_is_free_is_bounded(size: int) -> None:
    allocator = Allocator()
    allocator.add_slab(1, 5000 * size)
    addresses = [allocator.allocate(size) for _ in range(5000)]
    random.Random(1).shuffle(addresses)
    most = 0
    for address in addresses:
        assert address is not None
        allocator.free(address, size)
        most = max(most, sum(map(len, allocator._bins.values())))
    assert most == SLICE
    assert allocator.in_use == 0
    assert allocator.largest_free == 5000 * size


def test_memory_that_was_dropped_before_a_fault_goes_with_its_generation(memory: MemoryMap) -> None:
    refs = [allocate(memory, 100) for _ in range(2 * SLICE)]
    refs.clear()
    memory.bump()
    assert memory.allocate(100) is None
    while memory.dropped:
        memory.collect(SLICE)
    assert (memory.statistics().slabs, memory.statistics().used) == (0, 0)


def test_refs_of_a_closed_device_are_stale(memory: MemoryMap) -> None:
    memory.add_slab(Slab(memory.new_slab_id(), SLABS, os.memfd_create("test-slab"), sealed=True))
    block = memory.allocate(10, sealed=True)
    assert block is not None
    memory.seal(block)
    sealed, plain = ref_of(block, 10), allocate(memory, 10)
    memory.bump()
    memory.over = "is closed"
    memory.close()
    for ref, error in ((sealed, DeviceLost), (plain, GpuRefStale)):
        assert ref.is_stale
        with pytest.raises(error, match="a is gone: test:0 is closed"):
            require_readable(ref, memory, "a")
