"""The allocator against a model that knows every byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from atomr_accel.memory import Allocator, round_size
from atomr_accel.memory._allocator import ALIGNMENT
from atomr_accel.wire import SLAB_SHIFT

MIB = 1 << 20


@given(nbytes=st.integers(0, 1 << 45))
def test_sizes_are_rounded_up_a_little(nbytes: int) -> None:
    size = round_size(nbytes)
    assert size >= max(nbytes, ALIGNMENT)
    assert size % ALIGNMENT == 0
    assert size <= max(ALIGNMENT, nbytes + nbytes // 16 + ALIGNMENT)
    assert round_size(size) == size


@given(one=st.integers(0, 1 << 40), other=st.integers(0, 1 << 40))
def test_rounding_keeps_the_order(one: int, other: int) -> None:
    assert (round_size(one) <= round_size(other)) or one > other


class Allocations(RuleBasedStateMachine):
    """Random use of an allocator; the model is a map from address to size."""

    pieces = Bundle("pieces")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator()
        self.slabs: dict[int, int] = {}
        self.live: dict[int, int] = {}

    @initialize(nbytes=st.integers(1, 16))
    def first_slab(self, nbytes: int) -> None:
        self.add_slab(nbytes)

    @rule(nbytes=st.integers(1, 16))
    @precondition(lambda self: len(self.slabs) < 6)
    def add_slab(self, nbytes: int) -> None:
        slab = max(self.slabs, default=0) + 1
        self.slabs[slab] = nbytes * MIB
        self.allocator.add_slab(slab, nbytes * MIB)

    @rule(target=pieces, nbytes=st.integers(0, 4000) | st.integers(0, 5 * MIB))
    def allocate(self, nbytes: int) -> int:
        size = round_size(nbytes)
        address = self.allocator.allocate(size)
        if address is None:
            assert self.largest_hole() < size, "there was room"
            return -1
        assert address % ALIGNMENT == 0
        slab, offset = address >> SLAB_SHIFT, address & ((1 << SLAB_SHIFT) - 1)
        assert offset + size <= self.slabs[slab]
        for other, other_size in self.live.items():
            assert address + size <= other or other + other_size <= address, "they overlap"
        self.live[address] = size
        return address

    @rule(address=consumes(pieces))
    def free(self, address: int) -> None:
        if address >= 0:
            self.allocator.free(address, self.live.pop(address))

    @rule()
    def give_up_empty_slabs(self) -> None:
        used = {address >> SLAB_SHIFT for address in self.live}
        empty = self.allocator.empty_slabs()
        assert sorted(empty) == sorted(self.slabs.keys() - used)
        for slab in empty:
            self.allocator.remove_slab(slab)
            del self.slabs[slab]

    @rule()
    def the_largest_hole_is_known_and_can_be_had(self) -> None:
        largest = self.allocator.largest_free
        assert largest == self.largest_hole()

    def largest_hole(self) -> int:
        """The longest stretch of a slab without a live piece."""
        largest = 0
        for slab, nbytes in self.slabs.items():
            start = slab << SLAB_SHIFT
            inside = sorted(a for a in self.live if a >> SLAB_SHIFT == slab)
            ends = [start, *(a + self.live[a] for a in inside)]
            starts = [*inside, start + nbytes]
            largest = max([largest, *(b - a for a, b in zip(ends, starts, strict=True))])
        return largest

    @invariant()
    def the_books_are_exact(self) -> None:
        allocator = self.allocator
        assert allocator.capacity == sum(self.slabs.values())
        assert allocator.in_use == sum(self.live.values())
        assert allocator.free_bytes == allocator.capacity - allocator.in_use

    def teardown(self) -> None:
        for address, size in self.live.items():
            self.allocator.free(address, size)
        self.live.clear()
        assert sorted(self.allocator.empty_slabs()) == sorted(self.slabs)
        assert self.allocator.in_use == 0


TestAllocations = Allocations.TestCase
TestAllocations.settings = settings(max_examples=120, stateful_step_count=50)


@pytest.mark.parametrize("size", [4096, 2 * MIB])
def test_a_freed_piece_serves_the_next_request_of_its_size(size: int) -> None:
    allocator = Allocator()
    allocator.add_slab(1, 16 * MIB)
    pieces = [allocator.allocate(size) for _ in range(3)]
    assert None not in pieces
    for piece in pieces:  # also where all that is free would be one hole
        assert piece is not None
        allocator.free(piece, size)
        assert allocator.allocate(size) == piece


@pytest.mark.parametrize(
    "order", [range(64), range(63, -1, -1), [*range(0, 64, 2), *range(1, 64, 2)]]
)
def test_freed_neighbours_become_one(order: list[int]) -> None:
    allocator = Allocator()
    allocator.add_slab(1, 16 * MIB)
    size = MIB // 4
    pieces = [allocator.allocate(size) for _ in range(64)]
    assert allocator.allocate(ALIGNMENT) is None
    for at in order:
        address = pieces[at]
        assert address is not None
        allocator.free(address, size)
    assert allocator.largest_free == 16 * MIB
    assert allocator.allocate(16 * MIB) == 1 << SLAB_SHIFT


def test_the_best_fit_is_taken() -> None:
    allocator = Allocator()
    for slab, mib in ((1, 8), (2, 2), (3, 4)):
        allocator.add_slab(slab, mib * MIB)
    address = allocator.allocate(round_size(2 * MIB))
    assert address is not None
    assert address >> SLAB_SHIFT == 2


@pytest.mark.parametrize("size", [MIB // 4, 2 * MIB])
def test_neighbours_in_bins_become_one_when_they_are_needed(size: int) -> None:
    allocator = Allocator()
    allocator.add_slab(1, 64 * size)
    pieces = [allocator.allocate(size) for _ in range(64)]
    for address in pieces[10:12]:
        assert address is not None
        allocator.free(address, size)  # too little to be merged at once
    assert allocator.allocate(2 * size) == pieces[10]
