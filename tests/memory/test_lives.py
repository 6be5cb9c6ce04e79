"""Holders of memory that end in any order: refs, exports, holds, snapshots, kept objects."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_accel import Device
from atomr_accel.memory import Hold, MemoryMap, Release, Slab, keep
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import Message

from .. import seeds
from ..harness import on_shared, sized
from .lives import Handle, Knot, Life, Piece, alive, in_use, kept_of, live, spans_of


@pytest.fixture
def memory() -> MemoryMap:
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), 8 << 20, -1, sealed=False))
    return memory


class Reviver:
    """Revives its things when the collector finds it in a cycle."""

    def __init__(self, things: list[Any], revived: list[Any]) -> None:
        self.things, self.revived = things, revived
        self.itself = self

    def __del__(self) -> None:
        self.revived.extend(self.things)


@pytest.mark.slow
async def test_memory_in_use_is_what_a_model_says() -> None:
    lives = await live(sized(300, 20_000), seeds.draw())
    assert lives.reused


def test_a_freed_block_and_its_hold_in_one_cycle_free_memory_once(memory: MemoryMap) -> None:
    block = memory.allocate(1000)
    assert block is not None
    hold = Hold(block)
    memory.free(block)
    assert memory.statistics().used == 1024
    cycle: list[Any] = [block, hold]
    cycle.append(cycle)
    del block, hold, cycle
    collect_garbage()
    assert len(memory.dropped) == 1
    assert memory.statistics().used == 0


@pytest.mark.parametrize("act", ["free", "rebind", "nothing"])
def test_what_a_finalizer_revives_keeps_its_memory(memory: MemoryMap, act: str) -> None:
    memory.add_slab(Slab(memory.new_slab_id(), 8 << 20, 10**6, sealed=True))
    block, onto = memory.allocate(1000), memory.allocate(1000, sealed=True)
    assert block is not None
    assert onto is not None
    hold = Hold(block)
    if act == "free":
        memory.free(block)
    elif act == "rebind":
        memory.rebind(block, onto)
    address, used = block.address, memory.statistics().used
    revived: list[Any] = []
    Reviver([block, hold], revived)
    del block, hold
    collect_garbage()
    assert memory.statistics().used == used
    others = [memory.allocate(1000) for _ in range(4)]
    assert address not in [each.address for each in others if each is not None]
    block, hold = revived
    assert block.held
    hold.release()
    hold.release()
    assert not block.held
    del others, block, hold
    revived.clear()
    del onto
    assert memory.statistics().used == 0


def test_a_hold_keeps_memory_that_the_block_gets_later(memory: MemoryMap) -> None:
    block = memory.promise()
    hold = Hold(block)
    assert block.held
    assert memory.provide(block, 1000)
    memory.free(block)
    assert memory.statistics().used == 1024
    hold.release()
    assert memory.statistics().used == 0


def test_holds_end_in_threads_while_blocks_move(memory: MemoryMap) -> None:
    def drop_all() -> None:
        while holds:
            holds.pop()

    holds: list[Hold] = []
    blocks = [memory.promise() for _ in range(300)]
    holds.extend(Hold(block) for block in blocks for _ in range(3))
    thread = threading.Thread(target=drop_all)
    thread.start()
    for block in blocks:
        assert memory.provide(block, 1000)
        memory.free(block)
    thread.join()
    assert not any(block.held for block in blocks)
    assert memory.statistics().used == 0


def test_a_kept_object_is_let_go_after_its_revival(memory: MemoryMap) -> None:
    let_go: deque[Any] = deque()
    kept = keep(memory, let_go, Release("lane", "name", Message()))
    revived: list[Any] = []
    Reviver([kept], revived)
    del kept
    collect_garbage()
    assert not let_go
    revived.clear()
    assert [release.lane for _, release in let_go] == ["lane"]


@on_shared
async def test_a_snapshot_is_given_back_once(device: Device) -> None:
    before = device.pinned.statistics().over_limit
    ref = await device.put(np.arange(4.0))
    snapshot = await device.snapshot([ref])
    await snapshot.wait()
    taken = device.pinned.statistics().over_limit - before
    assert taken > 0
    revived: list[Any] = []
    Reviver([snapshot], revived)
    del snapshot
    collect_garbage()
    assert device.pinned.statistics().over_limit == before + taken
    (content,) = await revived[0].arrays()
    assert content.tolist() == [0, 1, 2, 3]
    revived[0].close()
    del content
    assert device.pinned.statistics().over_limit == before
    revived.clear()
    await trio.testing.wait_all_tasks_blocked()
    assert device.pinned.statistics().over_limit == before


class Cycles(RuleBasedStateMachine):
    """Blocks and holds of a map, tied into cycles that threads collect."""

    def __init__(self) -> None:
        super().__init__()
        gc.freeze()  # so that collecting the rest is fast
        self.memory = MemoryMap("test:0")
        self.memory.bump()
        for sealed in (False, True):
            fd = os.memfd_create("test-slab")
            self.memory.add_slab(Slab(self.memory.new_slab_id(), 8 << 20, fd, sealed))
        self.handles: list[Handle] = []
        self.knots: list[Knot] = []

    def block(self, at: int) -> Handle | None:
        found = [each for each in self.handles if each.kind == "block" and each.life.piece]
        return found[at % len(found)] if found else None

    @rule(length=st.sampled_from([1, 100, 1000]))
    def allocate(self, length: int) -> None:
        block = self.memory.allocate(8 * length)
        assert block is not None
        life = Life(0.0, length, False, Piece(block.size))
        self.handles.append(Handle(block, life, "block"))

    @rule(at=st.integers(0, 9))
    def hold(self, at: int) -> None:
        found = self.block(at)
        if found is not None:
            hold, kept = Hold(found.thing), kept_of(found.life)
            self.handles.append(Handle(hold, found.life, "hold", block=False, kept=kept))

    @rule(at=st.integers(0, 9))
    def free(self, at: int) -> None:
        found = self.block(at)
        if found is not None:
            self.memory.free(found.thing)
            found.life.piece = None

    @rule(at=st.integers(0, 9))
    def rebind(self, at: int) -> None:
        found = self.block(at)
        if found is not None:
            onto = self.memory.allocate(8 * found.life.length, sealed=True)
            assert onto is not None
            found.life.piece = Piece(onto.size)
            self.memory.rebind(found.thing, onto)
            for each in alive(self.handles, self.knots):
                if each.life is found.life and each.kept is not None:
                    each.kept.add(found.life.piece)

    @rule(chosen=st.sets(st.integers(0, 9), min_size=1), revived=st.booleans())
    def tie(self, chosen: set[int], revived: bool) -> None:
        taken = [each for at, each in enumerate(self.handles) if at in chosen]
        self.handles[:] = [each for each in self.handles if each not in taken]
        self.knots.append(Knot(taken, self.handles if revived else None))
        del taken

    @rule()
    def collect(self) -> None:
        def work() -> None:
            knots.clear()
            collect_garbage()

        knots, self.knots = self.knots, []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    @invariant()
    def the_books_are_exact(self) -> None:
        handles = alive(self.handles, self.knots)
        assert self.memory.statistics().used == sum(piece.size for piece in in_use(handles))
        end = 0
        for address, size in sorted(spans_of(handles)):
            assert address >= end
            end = address + size

    def teardown(self) -> None:
        gc.unfreeze()
        self.memory.close()


TestCycles = Cycles.TestCase
TestCycles.settings = settings(max_examples=10, stateful_step_count=20)
