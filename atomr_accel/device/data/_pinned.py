"""The pool of ``device.pinned``: page-locked arrays, which are transferred without another copy."""

from __future__ import annotations

import math
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, final

import numpy as np
import trio
from sortedcontainers import SortedDict

from ..._dtypes import as_dtype
from ..._errors import DeviceLost
from ...actors.blocks import opens
from ...arrays import as_shape
from ...lanes import HostDied, PinnedPool, uninterrupted
from ...memory import AtEnd, round_size
from ...wire import MapPinned, StickyFault, UnmapSlabs
from .._growth import MOST_UNMAPPED
from ..core import Shape
from ..waking_queue import WakingQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from numpy.typing import DTypeLike

    from ..._errors import AccelError
    from ...actors import ActorRef
    from ...lanes import HostHandle, Piece, PinnedStatistics
    from ..core import DeviceCore
    from ..parts import ServingContext

Oversize = Literal["refuse", "exceed"]


@final
@uninterrupted
class Pinned:
    """A bounded pool of page-locked memory, shared between the program and the host.

    ``put`` from such an array, and ``get`` into it, run at the speed of the bus. The array belongs
    to the program, so its content survives every fault.
    """

    def __init__(self, core: DeviceCore, limit: int) -> None:
        self._core = core
        # Addresses of pieces whose snapshots are gone. Those of `take` are never used twice.
        self._dropped: Final = WakingQueue(weakref.WeakMethod(self._collect))
        self._gave_up = trio.Event()
        self._unmapping: Final = trio.Lock()
        self._pool = PinnedPool(limit, core.memory.new_slab_id, self._note_given_up)
        self._pieces: SortedDict[int, Piece] = SortedDict()

    @opens
    def array(
        self, shape: Shape, dtype: DTypeLike = np.float64, *, oversize: Oversize = "refuse"
    ) -> AsyncIterator[np.ndarray[Any, Any]]:
        """Return a page-locked NumPy array for the length of an ``async with`` block.

        If the pool is used up, entering the block waits in line for memory. The array's initial
        content is undefined. After the block, ``put`` and ``get`` refuse the array until it is
        ordinary memory. Keeping it, or a view of it, is safe: its memory is reused only after the
        last of them is gone. Until then it stays page-locked without use, or becomes ordinary
        memory if the pool needs the room, which takes as long as page-locking other memory.

        Args:
            shape: its shape.
            dtype: its dtype.
            oversize: the action for arrays larger than the pool's limit: ``"refuse"`` them, or
                ``"exceed"`` the limit, with memory that is given back with the array.

        Returns:
            A context manager that gives the array, C-contiguous.

        Raises:
            ValueError: the array is larger than the pool's limit.
            AccelError: the device could not page-lock the memory. It is ``OutOfMemory`` if memory,
                descriptors or address space are short.
        """
        dtype = as_dtype(dtype)
        shape = as_shape(shape)
        if oversize not in ("refuse", "exceed"):
            raise ValueError(f"oversize must be 'refuse' or 'exceed', not {oversize!r}")
        nbytes = math.prod(shape) * dtype.itemsize
        over_limit = round_size(nbytes) > self._pool.limit
        if over_limit and oversize == "refuse":
            raise ValueError(
                f"{nbytes} bytes are more than the {self._pool.limit} that page-locked arrays of "
                f"{self._core.name} may take together; open it with a larger pinned_limit, or ask "
                f"for oversize='exceed'"
            )
        return self._array(shape, dtype, nbytes, over_limit=over_limit)

    async def _array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, *, over_limit: bool
    ) -> AsyncIterator[np.ndarray[Any, Any]]:
        with self._core.growth.room_for(nbytes):
            if over_limit:
                piece = self._pool.acquire_dedicated(nbytes)
            else:
                piece = await self._pool.acquire(nbytes)
        self._pieces[piece.address] = piece
        try:
            await self.mapped(piece.address)
            yield piece.array(shape, dtype)
        finally:
            del self._pieces[piece.address]
            piece.release()
        if self._pool.unmapped:
            with suppress(DeviceLost):  # its host has ended, and nothing is mapped any more
                await self._unmap(await self._core.ready())

    async def trim(self) -> None:
        """Give the memory that no array uses back to the system."""
        self._collect()
        self._pool.trim()
        await self._unmap(await self._core.ready())

    @property
    def ref(self) -> ActorRef:
        """Its place in the tree of actors, such as ``/device-0/pinned``.

        It answers ``GetStatistics``, and can be watched. It ends with the device.

        Raises:
            RuntimeError: the device is one that prepares a standby, which has no place.
        """
        ref = self._core.place.pinned
        if ref is None:
            raise RuntimeError("a device must be the program's own to have a ref, not a standby's")
        return ref

    def statistics(self) -> PinnedStatistics:
        """A snapshot of the pool."""
        self._collect()
        return self._pool.statistics()

    # --- for snapshots --------------------------------------------------------------------

    async def take(self, nbytes: int) -> Piece:
        """Return memory that does not count to the limit, until ``drop``."""
        self._collect()
        if self._pool.unmapped:
            await self._unmap(await self._core.ready())
        with self._core.growth.room_for(nbytes):
            piece = self._pool.acquire_dedicated(nbytes)
        self._pieces[piece.address] = piece
        return piece

    def drop(self, piece: Piece) -> None:
        """Give back what ``take`` has given, unless it was given back."""
        if self._pieces.get(piece.address) is piece:
            del self._pieces[piece.address]
        piece.release()

    def at_end(self, piece: Piece) -> AtEnd:
        """Return what gives back a piece of ``take`` when it is gone, unless it was given back."""
        return AtEnd(self._dropped, piece.address)

    def _collect(self) -> None:
        while self._dropped:
            piece = self._pieces.get(self._dropped.popleft())
            if piece is not None:
                self.drop(piece)

    # --- for transfers -------------------------------------------------------------------

    def find(self, data: np.ndarray[Any, Any]) -> int | None:
        """The address of page-locked data; None for ordinary memory."""
        if not self._pool.has_any:
            return None
        address = self._pool.address_of(data.__array_interface__["data"][0])
        if address is None:
            return None
        piece = self._piece_at(address)
        if piece is None or address + data.nbytes > piece.address + piece.size:
            raise ValueError(
                "the array lies in page-locked memory that was given back: "
                "its 'async with device.pinned.array(...)' block was left"
            )
        return address

    def piece_at(self, address: int) -> Piece:
        """Return the piece that contains an address from ``find``."""
        piece = self._piece_at(address)
        if piece is None:
            raise ValueError("a page-locked array was given back while it was on its way")
        return piece

    async def mapped(self, address: int) -> HostHandle:
        """Have the present host map the memory at an address, if needed, and return the host.

        The check that the host has mapped it is the last step, so the host is still the present
        one.
        """
        while True:
            context = self._core.context
            arena = self.piece_at(address).arena
            if context is not None and arena.host is context.host:
                return context.host
            context = await self._core.ready()
            arena = self.piece_at(address).arena  # it may have been given back meanwhile
            try:
                # One of its own, because the arena's may be closed before it is sent.
                fd = self._core.growth.another(arena.fd, arena.nbytes)
                try:
                    with self._core.growth.room_for(arena.nbytes):
                        await context.host.request(MapPinned(arena.id, arena.nbytes), fd)
                finally:
                    os.close(fd)
            except (HostDied, StickyFault):
                context.report_dead()
            else:
                if self._pool.has(arena):
                    arena.host = context.host
                else:
                    self._pool.note_unmapped(arena.id, context.host)

    async def keep_unmapping(self, context: ServingContext) -> None:
        """Have the host of a context unmap freed memory, for as long as the context serves."""
        while True:
            await self._gave_up.wait()
            self._gave_up = trio.Event()
            await self._unmap(context)

    def take_over(self, shadow: Pinned) -> None:
        """Have unmapped what a shadow has given up in the host that is this device's now."""
        for number, host in shadow._pool.unmapped:
            self._pool.note_unmapped(number, host)

    def _note_given_up(self) -> None:
        self._gave_up.set()

    def close(self, over: AccelError) -> None:
        """The device is closed; arrays that are still held keep their memory."""
        self._pool.close(over)

    def _piece_at(self, address: int) -> Piece | None:
        at = self._pieces.bisect_right(address) - 1
        if at < 0:
            return None
        piece: Piece = self._pieces.peekitem(at)[1]
        return piece if address < piece.address + piece.size else None

    async def _unmap(self, context: ServingContext) -> None:
        async with self._unmapping:  # whoever comes later knows that it is done
            unmapped, self._pool.unmapped = self._pool.unmapped, []
            numbers = [number for number, host in unmapped if host is context.host]
            try:
                for start in range(0, len(numbers), MOST_UNMAPPED):
                    some = numbers[start : start + MOST_UNMAPPED]
                    # They are noted nowhere else, so the host must unmap them, even if a task is
                    # cancelled.
                    await context.host.request(UnmapSlabs(some), required=True)
            except (HostDied, StickyFault):
                context.report_dead()
