"""Memory that the program and the host share, through which arrays travel.

The program copies into a piece and tells the host its offset; the host has the same
memory mapped, page-locked where there is a GPU, and moves it at the speed of the bus.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final, final

import numpy as np
import trio

from ..host import shared_fd
from ..memory import Allocator, round_size

CHUNK: Final = 8 << 20
"""Bytes a large transfer moves at a time."""

_CAPACITY: Final = 64 << 20


@final
class Staging:
    """A bounded pool of pieces; when it is used up, ``acquire`` waits."""

    def __init__(self) -> None:
        self.nbytes = _CAPACITY
        self.fd = shared_fd(_CAPACITY, "atomr-staging")
        self._mmap = mmap.mmap(self.fd, _CAPACITY)
        self._bytes = np.frombuffer(self._mmap, dtype=np.uint8)
        self._pool = Allocator()
        self._pool.add_slab(0, _CAPACITY)
        self._waiting = trio.lowlevel.ParkingLot()

    async def acquire(self, nbytes: int) -> Piece:
        """A piece of at least ``nbytes``, which must not exceed ``CHUNK``."""
        while (piece := self.try_acquire(nbytes)) is None:
            await self._waiting.park()
        return piece

    def try_acquire(self, nbytes: int) -> Piece | None:
        """Like ``acquire``, but None where that would wait."""
        size = round_size(nbytes)
        offset = self._pool.allocate(size)
        return None if offset is None else Piece(self, offset, size)

    def release(self, offset: int, size: int) -> None:
        """Take a piece back."""
        self._pool.free(offset, size)
        if self._waiting:
            self._waiting.unpark_all()

    def view(self, offset: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The bytes of a piece."""
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        """Give the memory up; views that are still held keep it mapped."""
        os.close(self.fd)
        del self._bytes
        with contextlib.suppress(BufferError):
            self._mmap.close()


@final
class Piece:
    """A piece of staging memory, released once by whoever is done with it last."""

    __slots__ = ("_staging", "offset", "size")

    def __init__(self, staging: Staging, offset: int, size: int) -> None:
        self._staging = staging
        self.offset = offset
        self.size = size

    def view(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The first ``nbytes`` of the piece."""
        return self._staging.view(self.offset, nbytes)

    def release(self) -> None:
        """Give the piece back."""
        self._staging.release(self.offset, self.size)
