"""Page-locked memory that the program and the host share, through which arrays travel.

The memory consists of arenas: files that the program and the host both map. With a GPU, the host
page-locks them. Arenas have addresses like slabs, but they and their content outlive every host.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import trio

from .._errors import AccelError
from ..memory import Allocator, round_size
from ..wire import OFFSET_MASK, SLAB_SHIFT, map_file, numpy_at, shared_fd

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK: Final = 8 << 20
"""Bytes a large transfer of ordinary memory moves at a time. Each chunk costs the program a message
and its answer: with an H200 and 8 threads, putting 8 MiB at a time is twice as fast as 4 MiB."""

STAGING_BYTES: Final = 144 << 20
"""Size of the memory through which ordinary arrays travel: a large one takes up to 128 MiB."""

_PAGE: Final = 4096
_ARENA_BYTES: Final = 64 << 20
_GRANULARITY: Final = 2 << 20
"""Arenas are multiples of this, which is the size of a huge page."""

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


@final
class Arena:
    """One shared file.

    Attributes:
        id: its number, which differs from those of the device's slabs.
        nbytes: its size.
        fd: its descriptor.
        bytes: its content.
        base: its address in this process.
        host: the host that also maps it.
        pieces: the number of its pieces in use.
        left: its pieces that were released while arrays of them were still held.
    """

    __slots__ = ("_mmap", "base", "bytes", "fd", "host", "id", "left", "nbytes", "pieces")

    def __init__(self, number: int, nbytes: int) -> None:
        self.id: Final = number
        self.nbytes: Final = nbytes
        self.fd: Final = shared_fd(nbytes, "atomr-pinned")
        try:
            self._mmap = map_file(self.fd, nbytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.bytes: Bytes = np.frombuffer(self._mmap, dtype=np.uint8)
        self.base: int = self.bytes.__array_interface__["data"][0]
        self.host: object = None
        self.pieces: int = 0
        self.left: set[Piece] = set()

    def close(self) -> None:
        """Give the memory up; pieces and arrays that are still held keep it mapped."""
        os.close(self.fd)
        if not self.pieces:
            self.unmap()

    def unmap(self) -> None:
        """Let go of the mapping, which arrays may keep.

        Pieces that are lent know their arena for longer than that, so it must not know the mapping.
        """
        del self.bytes
        with contextlib.suppress(BufferError):
            self._mmap.close()
        del self._mmap


@dataclass(frozen=True, slots=True)
class PinnedStatistics:
    """State of a pool of page-locked memory at one moment, in bytes.

    Attributes:
        limit: the most that the pool may hold, without ``over_limit``.
        capacity: the memory that the pool holds.
        used: memory that is handed out or still in use by the device.
        over_limit: the part of ``used`` in arrays larger than the limit, which have memory of their
            own.
        largest_free: the largest array that needs no waiting and no more memory.
        arenas: the number of shared files, and so of descriptors.
        waiting: the number of tasks that wait for memory.
    """

    limit: int
    capacity: int
    used: int
    over_limit: int
    largest_free: int
    arenas: int
    waiting: int


@final
class PinnedPool:
    """A bounded pool of pieces of arenas. A task that finds it used up waits in line.

    If arrays of a piece are still held when it is released, the piece is handed out again once they
    are gone. The pool does not wait for that: if memory is short, it gives up their arena, and the
    arrays keep it as ordinary memory.

    Args:
        limit: the most bytes that the pool may hold.
        new_id: returns numbers for arenas.
        gave_up: called when ``unmapped`` has grown.

    Attributes:
        unmapped: arenas that were given up here while hosts still map them: their numbers, and the
            hosts.
        returned: numbers of pieces whose last array is gone, appended by the thread that dropped
            it.
    """

    def __init__(
        self, limit: int, new_id: Callable[[], int], gave_up: Callable[[], None] = lambda: None
    ) -> None:
        self.limit: Final = max(_PAGE, limit // _PAGE * _PAGE)
        self._new_id = new_id
        self._gave_up = gave_up
        self._pool = Allocator()
        self._arenas: dict[int, Arena] = {}
        self._bases: list[int] = []
        self._by_base: dict[int, Arena] = {}
        self.unmapped: list[tuple[int, object]] = []
        self.returned: deque[int] = deque()
        self._lent: dict[int, Piece] = {}
        self._numbers = itertools.count()
        self._line = trio.StrictFIFOLock()
        self._room = trio.Event()
        self._over_limit = 0
        self._over: AccelError | None = None

    @property
    def has_any(self) -> bool:
        """True if the pool has any memory."""
        return bool(self._bases)

    def has(self, arena: Arena) -> bool:
        """Return True if the pool has not given up this arena."""
        return arena.id in self._arenas

    def reserve(self) -> Arena:
        """Return the only arena, which takes all memory of the pool."""
        if not self._arenas:
            arena = self._add_arena(self.limit)
            self._pool.add_slab(arena.id, arena.nbytes)
        (arena,) = self._arenas.values()
        return arena

    def try_acquire(self, nbytes: int) -> Piece | None:
        """Return a piece, or None if that would need to wait, or jump the line."""
        if self._line.locked():
            return None
        return self._take(nbytes)

    async def acquire(self, nbytes: int) -> Piece:
        """Return a piece of at least ``nbytes``, which must not exceed the limit."""
        async with self._line:
            while (piece := self._take(nbytes)) is None:
                # Only the first in line waits here, so each wake-up is useful.
                self._room = trio.Event()
                await self._room.wait()
            return piece

    def acquire_dedicated(self, nbytes: int) -> Piece:
        """Return a piece with an arena of its own, outside the limit; they end together."""
        self._require_open()
        arena = self._add_arena(round_arena(nbytes))
        arena.pieces = 1
        self._over_limit += arena.nbytes
        return Piece(self, arena, arena.id << SLAB_SHIFT, arena.nbytes, dedicated=True)

    def address_of(self, pointer: int) -> int | None:
        """Return the address for a pointer of this process; None if it is outside the pool."""
        at = bisect.bisect_right(self._bases, pointer) - 1
        if at < 0:
            return None
        arena = self._by_base[self._bases[at]]
        offset = pointer - arena.base
        return arena.id << SLAB_SHIFT | offset if offset < arena.nbytes else None

    def trim(self) -> None:
        """Give up arenas without pieces in use; arrays of released pieces may still be held."""
        self._collect()
        for arena in self._arenas.values():
            if not arena.pieces:
                for piece in arena.left:
                    self._pool.free(piece.address, piece.size)
                arena.left.clear()
        for number in self._pool.empty_slabs():
            self._pool.remove_slab(number)
            self._drop_arena(number)

    def lend(self, piece: Piece) -> _Lent:
        """Return the object that the array of a piece keeps alive."""
        number = next(self._numbers)
        self._lent[number] = piece
        return _Lent(piece, number, self.returned)

    def statistics(self) -> PinnedStatistics:
        """Return a snapshot of the pool."""
        self._collect()
        waiting = self._line.statistics()
        left = sum(piece.size for arena in self._arenas.values() for piece in arena.left)
        return PinnedStatistics(
            limit=self.limit,
            capacity=self._pool.capacity + self._over_limit,
            used=self._pool.in_use - left + self._over_limit,
            over_limit=self._over_limit,
            largest_free=self._pool.largest_free,
            arenas=len(self._arenas),
            waiting=waiting.tasks_waiting + int(waiting.locked),
        )

    def close(self, over: AccelError) -> None:
        """Give everything up; arrays that are still held keep their memory mapped.

        Args:
            over: the reason, raised in tasks that wait and in later calls.
        """
        self._over = over
        for number in list(self._arenas):
            self._drop_arena(number)
        self._room.set()

    def _require_open(self) -> None:
        if self._over is not None:
            raise type(self._over)(str(self._over)) from self._over.__cause__

    def _take(self, nbytes: int) -> Piece | None:
        self._require_open()
        self._collect()
        size = round_size(nbytes)
        address = self._pool.allocate(size)
        if address is None:
            room = self.limit - self._pool.capacity
            if size > room:
                # The free memory may lie in arenas that are each too small.
                self.trim()
                room = self.limit - self._pool.capacity
                if size > room:
                    return None
            wanted = max(round_arena(size), min(_ARENA_BYTES, room))
            arena = self._add_arena(min(wanted, room))
            self._pool.add_slab(arena.id, arena.nbytes)
            address = self._pool.allocate(size)
            assert address is not None
        arena = self._arenas[address >> SLAB_SHIFT]
        arena.pieces += 1
        return Piece(self, arena, address, size)

    def _add_arena(self, nbytes: int) -> Arena:
        arena = Arena(self._new_id(), nbytes)
        self._arenas[arena.id] = arena
        self._by_base[arena.base] = arena
        bisect.insort(self._bases, arena.base)
        return arena

    def _drop_arena(self, number: int) -> None:
        arena = self._arenas.pop(number)
        del self._by_base[arena.base]
        self._bases.remove(arena.base)
        arena.close()
        if arena.host is not None:
            self.note_unmapped(number, arena.host)

    def note_unmapped(self, number: int, host: object) -> None:
        """Note that an arena was given up here, and is still mapped by a host."""
        self.unmapped.append((number, host))
        self._gave_up()

    def _give_back(self, piece: Piece) -> None:
        self._collect()
        arena = piece.arena
        arena.pieces -= 1
        if piece.dedicated:
            self._over_limit -= piece.size
        if arena.id not in self._arenas:  # the pool was closed meanwhile
            if not arena.pieces:
                arena.unmap()
        elif piece.dedicated:
            self._drop_arena(arena.id)
        else:
            if piece.lent:
                arena.left.add(piece)
            else:
                self._pool.free(piece.address, piece.size)
            self._room.set()

    def _collect(self) -> None:
        """Free pieces whose last array is gone."""
        while self.returned:
            piece = self._lent.pop(self.returned.popleft())
            piece.lent = False
            if piece in piece.arena.left:
                piece.arena.left.remove(piece)
                self._pool.free(piece.address, piece.size)


@final
class _Lent:
    """Owner of the memory of a piece, kept alive by its array and all views."""

    __slots__ = ("_mapped", "_number", "_returned")

    def __init__(self, piece: Piece, number: int, returned: deque[int]) -> None:
        # Not the piece, which knows its pool and that its device: the garbage collector does not
        # see what NumPy's arrays keep alive, and an array may be where the device can be found.
        self._number: Final = number
        self._returned: Final = returned
        self._mapped: Final = piece.arena.bytes  # also after the arena is given up

    def __del__(self) -> None:
        # The last view may be dropped in any thread, between any two instructions.
        self._returned.append(self._number)


def round_arena(nbytes: int) -> int:
    """``nbytes`` as the size of an arena."""
    return max(_GRANULARITY, -(-nbytes // _GRANULARITY) * _GRANULARITY)


@final
class Piece:
    """A piece of page-locked memory.

    Its owner releases it once, and every op that uses it ``hold``s it meanwhile: the memory
    is handed out again after the last of them.

    Attributes:
        arena: its arena.
        address: its address, for the host.
        size: its size.
        released: whether its owner is done with it.
        dedicated: whether it is the only one of its arena, and does not count to the limit.
        lent: whether arrays from ``array`` may still be held.
    """

    __slots__ = ("_holds", "_pool", "address", "arena", "dedicated", "lent", "released", "size")

    def __init__(
        self, pool: PinnedPool, arena: Arena, address: int, size: int, *, dedicated: bool = False
    ) -> None:
        self._pool = pool
        self.arena: Final = arena
        self.address: Final = address
        self.size: Final = size
        self.released: bool = False
        self.dedicated: Final = dedicated
        self.lent: bool = False
        self._holds = 0

    def view(self, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of the piece."""
        offset = self.address & OFFSET_MASK
        return self.arena.bytes[offset : offset + nbytes]

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return the piece as an array; it is not reused while the array or a view is held."""
        self.lent = True
        pointer = self.arena.base + (self.address & OFFSET_MASK)
        return numpy_at(pointer, shape, dtype, owner=self._pool.lend(self))

    @property
    def held(self) -> bool:
        """True if an op uses the piece, or a host that was killed still may."""
        return self._holds > 0

    def hold(self) -> None:
        """Keep it until ``drop``."""
        self._holds += 1

    def drop(self) -> None:
        """End the effect of one ``hold``."""
        self._holds -= 1
        if self.released and not self._holds:
            self._pool._give_back(self)

    def release(self) -> None:
        """Give the piece back; once only, whoever else does so."""
        if self.released:
            return
        self.released = True
        if not self._holds:
            self._pool._give_back(self)
