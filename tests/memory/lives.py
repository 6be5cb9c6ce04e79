"""Random lives of buffers whose holders end in cycles, collected by threads.

``python -m tests.memory.lives --steps 100000`` puts, seals, shares, frees, exports, holds, copies
and takes snapshots, and ties all of these into cycles. The garbage collector ends these in an order
of its own, in other threads, and some are revived by a finalizer. A model knows all memory that is
in use. After each step the device must count the same, buffers in use must not overlap, and
whatever is read must have the right content.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from atomr_accel import Device, open_device
from atomr_accel.memory import Hold, least_slab, round_size
from atomr_accel.testing.garbage import collect_garbage

from ..harness import settled

MOST: Final = 24
"""Handles that are held at a time."""

SIZES: Final = (1, 100, 1000, 1000, 5000)
"""Elements of a buffer. One size is more likely, so that memory is reused exactly."""


class Piece:
    """Memory that the model has given to a buffer."""

    def __init__(self, size: int) -> None:
        self.size: Final = size


@dataclass(eq=False)
class Life:
    """A buffer as the model knows it.

    Attributes:
        value: each of its elements.
        length: its elements.
        sealed: whether it is read-only.
        piece: its memory, until it is freed.
    """

    value: float
    length: int
    sealed: bool
    piece: Piece | None


@dataclass(eq=False)
class Handle:
    """An object of the program, and what the model knows of it.

    Attributes:
        thing: the object.
        life: its buffer.
        kind: a word for it.
        block: whether it keeps the buffer as such, so also memory that the buffer gets later.
        kept: for a hold, the memory that it keeps, freed or not.
    """

    thing: Any
    life: Life
    kind: str
    block: bool = True
    kept: set[Piece] | None = None


def is_closed(handle: Handle) -> bool:
    """Return True for a shared buffer that its finalizer has closed before it was revived."""
    return bool(handle.kind.startswith("shared") and handle.thing.fd < 0)


def kept_of(life: Life) -> set[Piece]:
    """Return what a new hold of a buffer keeps."""
    return {life.piece} if life.piece is not None else set()


class Knot:
    """An end of a cycle, which may revive all that is in it when the collector finds it."""

    def __init__(self, handles: list[Handle], saved: list[Handle] | None) -> None:
        self.handles = handles
        self.saved = saved
        self.itself = self

    def __del__(self) -> None:
        if self.saved is not None:
            self.saved.extend(self.handles)


def alive(handles: list[Handle], knots: list[Knot]) -> list[Handle]:
    """Return all handles, also those in cycles that were not let go of."""
    return [*handles, *(each for knot in knots for each in knot.handles)]


def in_use(handles: list[Handle]) -> set[Piece]:
    """Return the memory that some handle keeps."""
    known = {each.life for each in handles if each.block and not is_closed(each)}
    pieces = {life.piece for life in known if life.piece is not None}
    return pieces.union(*(each.kept for each in handles if each.kept is not None))


def spans_of(handles: list[Handle]) -> set[tuple[int, int]]:
    """Return addresses and sizes of the memory of blocks, refs, exports and holds."""
    spans: set[tuple[int, int]] = set()
    for each in handles:
        if each.kind in ("block", "ref", "export") and each.life.piece is not None:
            ref = each.thing.ref if each.kind == "export" else each.thing
            block = ref if each.kind == "block" else ref.block
            spans.add((block.address, block.size))
        if each.kind == "hold":
            spans.update(piece.entry for piece in each.thing._keeping.pieces if piece)
    return spans


class Lives:
    """A device, what the program has of it, and the model of both."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device: Final = device
        self.chance: Final = random.Random(seed)
        self.handles: list[Handle] = []
        self.knots: list[Knot] = []
        self.steps: Counter[str] = Counter()
        self.reused = 0
        self._seen: set[int] = set()
        self._number = 0
        self.choices: Final[list[tuple[Callable[[], Awaitable[None]], int]]] = [
            (self.put, 5),
            (self.copy_in_batch, 2),
            (self.seal, 2),
            (self.share, 2),
            (self.free, 2),
            (self.export, 4),
            (self.array, 3),
            (self.hold, 2),
            (self.release, 1),
            (self.snapshot, 1),
            (self.read, 2),
            (self.drop, 2),
            (self.tie, 4),
            (self.collect, 3),
        ]
        self._base = device.statistics().memory.used

    # --- steps --------------------------------------------------------------------------------

    async def warm_up(self) -> None:
        """Do each thing once, then leave what there is by now out of collections."""
        await self.put()
        for step, _ in self.choices:
            await step()
        collect_garbage()
        gc.freeze()

    async def step(self) -> str:
        """Do one thing and check everything; return its name."""
        functions, weights = zip(*self.choices, strict=True)
        (function,) = self.chance.choices(functions, weights)
        name: str = function.__name__
        if len(self.handles) >= MOST and name not in ("drop", "tie", "collect"):
            function, name = self.tie, "tie"
        await function()
        self.steps[name] += 1
        await self.check()
        return name

    def add(self, thing: Any, life: Life, kind: str, **more: Any) -> None:
        self.handles.append(Handle(thing, life, kind, **more))

    def some(self, *kinds: str, usable: bool = True) -> Handle | None:
        """One of the handles of these kinds, of a buffer that is not freed."""
        found = [
            each
            for each in self.handles
            if each.kind in kinds and (each.life.piece is not None or not usable)
        ]
        return self.chance.choice(found) if found else None

    def new_life(self, *, sealed: bool = False) -> tuple[np.ndarray[Any, Any], Life]:
        self._number += 1
        length = self.chance.choice(SIZES)
        content = np.full(length, float(self._number))
        piece = Piece(round_size(content.nbytes))
        return content, Life(float(self._number), length, sealed, piece)

    async def put(self) -> None:
        content, life = self.new_life(sealed=self.chance.random() < 0.3)
        ref = await self.device.put(content, sealed=life.sealed)
        self.add(ref, life, "ref")
        if self.chance.random() < 0.3:
            self.add(ref[: max(1, life.length // 2)], life, "view")

    async def copy_in_batch(self) -> None:
        source = self.some("ref")
        if source is None:
            return
        async with self.device.batch() as batch:
            copy = batch.copy(source.thing)
            batch.copy(copy)  # dropped at once
        life = source.life
        piece = Piece(round_size(8 * life.length))
        self.add(copy, Life(life.value, life.length, False, piece), "ref")

    async def seal(self) -> None:
        source = self.some("ref")
        if source is None or source.life.sealed:
            return
        life = source.life
        try:
            await self.device.seal(source.thing)
        except ValueError:
            assert self.holders(life), "seal was refused without a hold"
        else:
            assert not self.holders(life), "seal moved what is held"
            life.sealed, life.piece = True, Piece(round_size(8 * life.length))

    async def share(self) -> None:
        source = self.some("ref")
        if source is None:
            return
        life, alone = source.life, Piece(least_slab(8 * source.life.length))
        shared = await self.device.share(source.thing)
        if not life.sealed:
            own = Life(life.value, life.length, False, alone)
            self.add(shared, own, "shared copy")
            return
        assert life.piece is not None
        if life.piece.size < alone.size:  # moved alone, now or earlier
            life.piece = alone
            for kept in self.holders(life):
                kept.add(alone)
        self.add(shared, life, "shared")

    async def free(self) -> None:
        found = self.some("ref")
        if found is not None:
            await self.device.free(found.thing)
            found.life.piece = None

    async def export(self) -> None:
        found = self.some("ref")
        if found is not None:
            export = await self.device.export(found.thing)
            self.add(export, found.life, "export", kept=kept_of(found.life))

    async def array(self) -> None:
        """An array of an export holds as it does, without the ref."""
        found = self.some("export")
        if found is not None:
            self.add(found.thing.numpy(), found.life, "array", kept=found.kept)

    async def hold(self) -> None:
        found = self.some("ref")
        if found is not None:
            hold = Hold(found.thing.block)
            self.add(hold, found.life, "hold", block=False, kept=kept_of(found.life))

    async def release(self) -> None:
        found = self.some("hold", usable=False)
        if found is not None:
            found.thing.release()
            if self.chance.random() < 0.5:
                found.thing.release()
            self.handles.remove(found)

    async def snapshot(self) -> None:
        found = self.some("ref")
        if found is not None:
            snapshot = await self.device.snapshot([found.thing])
            await snapshot.wait()  # until then the copy keeps its memory
            life = Life(found.life.value, found.life.length, True, None)
            self.add(snapshot, life, "snapshot", block=False)

    async def read(self) -> None:
        """Whatever can still be read has its content."""
        for each in self.chance.sample(self.handles, min(3, len(self.handles))):
            if each.kind == "snapshot":
                (content,) = await each.thing.arrays()
            elif each.kind == "array":
                content = each.thing
            elif each.kind in ("ref", "view") and each.life.piece is not None:
                content = await self.device.get(each.thing)
            else:
                continue
            assert (content == each.life.value).all(), (each.kind, each.life.value, content)

    async def drop(self) -> None:
        if self.handles:
            self.handles.remove(self.chance.choice(self.handles))

    async def tie(self) -> None:
        """Tie some of what there is into a cycle, which only the collector can end."""
        count = self.chance.randint(1, max(1, len(self.handles) // 2))
        taken = self.chance.sample(self.handles, min(count, len(self.handles)))
        for each in taken:
            self.handles.remove(each)
        saved = self.handles if self.chance.random() < 0.25 else None
        self.knots.append(Knot(taken, saved))
        del taken

    async def collect(self) -> None:
        """Let threads drop the cycles and collect, while the loop works on."""
        knots, self.knots = self.knots, []

        def work() -> None:
            with suppress(IndexError):
                while True:
                    knots.pop()
                    gc.collect(self.chance.randint(0, 2))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        content, life = self.new_life()
        self.add(await self.device.put(content), life, "ref")
        for thread in threads:
            await trio.to_thread.run_sync(thread.join)

    # --- the model ----------------------------------------------------------------------------

    def holders(self, life: Life) -> list[set[Piece]]:
        """Return what each hold of a buffer keeps."""
        return [
            each.kept
            for each in alive(self.handles, self.knots)
            if each.life is life and each.kept is not None
        ]

    async def check(self) -> None:
        """Compare the device with the model, once no op in flight has a buffer."""
        await settled(self.device)
        collect_garbage()
        handles = alive(self.handles, self.knots)
        pieces = in_use(handles)
        core = self.device.core
        await core.exports.sweep()
        used = self.device.statistics().memory.used - self._base
        assert used == sum(piece.size for piece in pieces), (used, [p.size for p in pieces])
        snapshots = sum(least_slab(8 * e.life.length) for e in handles if e.kind == "snapshot")
        pinned = self.device.pinned.statistics().over_limit
        assert pinned == snapshots, (pinned, snapshots)
        self.check_addresses(handles)

    def check_addresses(self, handles: list[Handle]) -> None:
        """No two pieces of memory that something keeps overlap."""
        spans = spans_of(handles)
        end = 0
        for address, size in sorted(spans):
            assert address >= end, "two buffers share memory"
            end = address + size
        starts = {address for address, _ in spans}
        self.reused += len(starts & self._seen)
        self._seen |= starts


async def live(steps: int, seed: int, report: Callable[[str], None] | None = None) -> Lives:
    """Take ``steps`` random steps on a device of its own; raises at the first fault."""
    async with open_device(0, backend="cpu", isolation="thread", memory_limit=1 << 30) as device:
        lives = Lives(device, seed)
        try:
            await lives.warm_up()
            for number in range(1, steps + 1):
                name = await lives.step()
                if report is not None and number % 5000 == 0:
                    report(f"{number} steps, {name}")
        except AssertionError as error:
            error.add_note(f"seed {seed}: {dict(lives.steps)}")
            raise
        finally:
            gc.unfreeze()
        lives.handles.clear()
        lives.knots.clear()
        collect_garbage()
        lives.handles.clear()  # what was revived
        await lives.check()
    return lives


def main() -> None:
    """Take many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lives = trio.run(live, given.steps, given.seed, print)
    sys.stdout.write(f"{sum(lives.steps.values())} steps, 0 faults: {dict(lives.steps)}\n")


if __name__ == "__main__":
    main()
