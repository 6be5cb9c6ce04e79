"""The program's map of one device's memory. It survives every crash of a host.

Memory comes in slabs: file descriptors held here, mapped by the host. Plain memory and
sealed memory lie in different slabs, because protection works on whole slabs.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from .._errors import OutOfMemory
from ..wire import PLACE, SLAB_SHIFT
from ._address import LateAddress
from ._allocator import Allocator, round_size
from ._at_end import AtEnd
from ._block import SLICE, Block, Epoch, block_at, piece_of
from ._scope import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._durable import DurableState
    from ._durable_rows import RowDigests

SLAB_BYTES: Final = 64 << 20
"""Least size of a slab that requests share."""

_LARGEST_SLAB: Final = 1 << 30
_GROWTH_SHARE: Final = 64
"""Divisor for the size of new slabs: 1/64 of the memory in use, because descriptors are limited."""

_COUNTED: Final = 8 * SLICE
"""Dropped blocks that are released to be counted as free: a snapshot is taken without a wait."""

_LIMIT_SHARE: Final = 16
"""Divisor of the limit: a shared slab takes at most 1/16 of it, to leave room for other slabs."""

GRANULARITY: Final = 2 << 20
"""Granularity of ``cuMemCreate`` in bytes, on every device so far."""

_LAST_SLAB: Final = (PLACE >> SLAB_SHIFT) - 1
"""The last number of a slab: numbers are not used twice, and messages tell addresses from places
by their size."""

_numbers: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Slab:
    """A file descriptor of device memory.

    Attributes:
        id: its number, unique in the device.
        nbytes: its size.
        fd: the descriptor, or -1 if the platform cannot export memory.
        sealed: whether the host maps it read-only.
        durable: whether it has durable buffers, which survive like sealed ones.

    Raises:
        ValueError: the slab is sealed or durable, but lacks the descriptor by which it survives.
    """

    id: int
    nbytes: int
    fd: int
    sealed: bool
    durable: bool = False

    def __post_init__(self) -> None:
        if (self.sealed or self.durable) and self.fd < 0:
            kind = "sealed" if self.sealed else "durable"
            raise ValueError(f"a {kind} slab survives its host by a descriptor, and has none")


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Use of a device's memory, in bytes.

    Attributes:
        capacity: all slabs together: what the device has given to this program.
        used: in use by live refs and ops in flight, sealed and durable ones included, and by
            ``dropped``.
        free: capacity less used.
        sealed: in use by sealed refs.
        largest_free: the largest plain buffer that fits without a new slab.
        slabs: number of slabs, hence of descriptors.
        stale: used by refs of older generations that are still held.
        fragmentation: the share of plain free memory that lies outside the largest free piece of
            its slab; 0.0 if each slab's free memory is in one piece.
        limit: the largest capacity; None without a ``memory_limit``.
        dropped: number of buffers without refs that still count as used. If thousands are dropped
            at once, each request for memory and each count frees some. All are freed before memory
            runs out.
    """

    capacity: int
    used: int
    free: int
    sealed: int
    largest_free: int
    slabs: int
    stale: int
    fragmentation: float
    limit: int | None
    dropped: int


@final
class MemoryMap:
    """Slabs, the blocks inside them, and the generation that decides which blocks are usable.

    After a rebuild, plain slabs of older generations stay for as long as stale refs hold blocks in
    them. No host maps them, and they are given up at once when memory is short.

    Attributes:
        device: the device's name.
        dropped: pieces whose last handle is gone, noted by the thread that dropped it.
        unmapped: slabs that are given up and that the host still has to unmap.
        epoch: the present generation's epoch.
        sealed_epoch: the epoch of sealed and durable blocks, which is always present.
        scopes: number of open memory scopes.
        limit: bytes that all slabs together may have, if there is a limit.
        owner: the device, for the layer that knows devices.
        number: a number that no other device has or had.
        index: the device's index among those of its backend.
        over: the reason why the device does not come back, once it does not.
        reserved: bytes of the limit that are not for slabs.
        has_durable: whether there may be durable blocks; asked before each op.
        durable_blocks: the durable blocks.
        sealed_changed: called when a sealed slab is added or removed.
        slab_changed: called with every slab that is added or removed.
    """

    owner: object

    def __init__(self, device: str, limit: int | None = None, *, index: int = 0) -> None:
        self.device: Final = device
        self.index: Final = index
        self.number: Final = next(_numbers)
        self.limit: Final = limit
        self.dropped: deque[tuple[int, int]] = deque()
        self.unmapped: list[int] = []
        self.epoch: Epoch = Epoch(0)
        self.sealed_epoch: Epoch = Epoch(0)
        self.scopes: int = 0
        self.over: str | None = None
        self._slabs: dict[int, Slab] = {}
        self._pool_of: dict[int, Allocator] = {}
        self._plain = Allocator()
        self._sealed = Allocator()
        self._durable = Allocator()
        self._dedicated: dict[int, object] = {}  # slabs of one buffer, with their objects
        self._stale: list[Allocator] = []
        self._slab_ids = itertools.count(1)
        self._whole: MemoryMap | None = None
        self.reserved: int = 0
        self.has_durable: bool = False
        self.durable_blocks: Final[weakref.WeakSet[Block]] = weakref.WeakSet()
        self.sealed_changed: Callable[[], None] = _nothing
        self.slab_changed: Callable[[Slab, bool], None] = _nothing
        self._changes: deque[tuple[Slab, bool]] = deque()  # that are still to be told

    @property
    def said(self) -> str:
        """The device's name in an error, which says if that device is over."""
        return self.device if self.over is None else f"{self.device}, which {self.over}"

    def shadow(self) -> MemoryMap:
        """A map for another host of the same device: all it has in common is sealed memory."""
        limit = self.limit
        if limit is not None:
            limit = max(0, limit - self.capacity - self.reserved)
        shadow = MemoryMap(self.device, limit, index=self.index)
        shadow.epoch = Epoch(self.generation)
        shadow.sealed_epoch = self.sealed_epoch
        shadow._slab_ids = self._slab_ids
        shadow._whole = self
        return shadow

    @property
    def generation(self) -> int:
        """The present generation; 0 before the first context is up."""
        return self.epoch.generation

    def bump(self) -> int:
        """Begin the next generation: every plain ref there is becomes stale."""
        self.epoch = Epoch(self.epoch.generation + 1)
        plain, self._plain = self._plain, Allocator()
        if plain.in_use:
            self._stale.append(plain)
        else:
            self._give_up(plain)
        for slab in [slab for slab in self._dedicated if not self._slabs[slab].sealed]:
            del self._dedicated[slab]
            self._stale.append(self._pool_of[slab])
        self.unmapped.clear()  # the next host never mapped them
        self._tell_changes()
        return self.epoch.generation

    def current(self, epoch: Epoch) -> bool:
        """Return True if blocks of ``epoch`` are usable."""
        return epoch is self.epoch or epoch is self.sealed_epoch

    def owners(self) -> list[object]:
        """Return what keeps adopted memory of this generation alive.

        ``bump`` lets go of it, but lanes in this process may use the memory until they have ended.
        """
        return [owner for owner in self._dedicated.values() if owner is not None]

    def awaits(self, epoch: Epoch) -> bool:
        """Return True if blocks of ``epoch`` become usable once they have content."""
        return epoch.lacking != "" and epoch.generation == self.generation and self.over is None

    def allocate(self, nbytes: int, *, sealed: bool = False, durable: bool = False) -> Block | None:
        """Return a block for ``nbytes``, or None if no slab has room.

        If it is None, call ``collect`` while ``dropped`` is not empty, then ``add_slab``.
        """
        size = round_size(nbytes)
        pool = self._sealed if sealed else self._durable if durable else self._plain
        address = None
        if self.dropped:
            former, room = self.dropped.popleft()
            if room == size and self._pool_of.get(former >> SLAB_SHIFT) is pool:
                address = former  # programs drop and make the same sizes again and again
            else:
                self.release(former, room)
                self.collect(SLICE - 1)
        if address is None:
            address = pool.allocate(size)
            if address is None:
                return None
        epoch = self.epoch
        piece = AtEnd(self.dropped, (address, size))
        block = Block(self, address, size, epoch, nbytes, epoch.generation, sealed, piece=piece)
        if self.scopes:
            note(self, block)
        return block

    def promise(self) -> Block:
        """Return a block without memory, whose address is set later; see ``provide``."""
        block = block_at(self, 0, 0)
        block.address = LateAddress(block)
        if self.scopes:
            note(self, block)
        return block

    def provide(self, block: Block, nbytes: int) -> bool:
        """Give a promised block its memory; False when no slab has the room."""
        found = self.allocate(nbytes)
        if found is None:
            return False
        block.move(found)
        block.nbytes = nbytes
        return True

    def shrink(self, block: Block, nbytes: int) -> None:
        """Keep the first ``nbytes`` of a block and free the rest. No op in flight may touch it."""
        size = round_size(nbytes)
        if block.epoch is self.epoch and size < block.size:
            self.release(block.address + size, block.size - size)
            block.size = size
            if block.piece is not None:
                block.piece.entry = block.address, size
        block.nbytes = nbytes

    def seal(self, block: Block) -> None:
        """Make a block of a sealed slab survive rebuilds, now that its content is there."""
        block.sealed = True
        block.epoch = self.sealed_epoch

    def make_durable(self, block: Block, state: DurableState | RowDigests) -> None:
        """Make a block of a durable slab survive rebuilds, as long as its digests prove it."""
        block.durable = state
        block.epoch = self.sealed_epoch
        self.durable_blocks.add(block)
        self.has_durable = True

    def lose(self, block: Block, why: str) -> None:
        """Make a durable block, or a sealed one, stale for good."""
        state = block.durable or block.digests
        if state is not None:
            state.lost = why
        if block.epoch is self.sealed_epoch:
            block.epoch = Epoch(block.generation)

    def rebind(self, block: Block, onto: Block) -> None:
        """Move ``block`` and all its views to the memory of ``onto``, which is sealed."""
        block.move(onto)
        self.seal(block)
        block.settle()

    def free(self, block: Block) -> None:
        """Refuse the block from now on, and release it after its last op."""
        block.epoch = None
        block.retire()

    def release(self, address: int, size: int) -> None:
        """Return a piece to its slab."""
        slab = address >> SLAB_SHIFT
        pool = self._pool_of.get(slab)
        if pool is None:  # the slab was given up while stale refs still held it
            return
        pool.free(address, size)
        if not pool.in_use and pool not in (self._plain, self._sealed, self._durable):
            if slab in self._dedicated:
                self._close(slab)
                self.unmapped.append(slab)
            else:
                self._stale.remove(pool)
                self._give_up(pool)
            self._tell_changes()

    def collect(self, most: int) -> None:
        """Release the blocks whose last ref was dropped, the first ``most`` of them."""
        dropped, release = self.dropped, self.release
        while dropped and most > 0:  # an instrument that hears of a slab may collect, too
            most -= 1
            release(*dropped.popleft())

    @property
    def capacity(self) -> int:
        """Bytes of all slabs together."""
        return sum(slab.nbytes for slab in self._slabs.values())

    @property
    def plain_capacity(self) -> int:
        """Bytes of the slabs that plain buffers share."""
        return self._plain.capacity

    @property
    def plain_free(self) -> int:
        """Bytes of plain slabs that are free, in any number of pieces."""
        return self._plain.capacity - self._plain.in_use

    @property
    def over_limit(self) -> int:
        """Bytes by which slabs and reserved memory exceed the limit, or 0."""
        if self.limit is None:
            return 0
        return max(0, self.capacity + self.reserved - self.limit)

    def growth(self, nbytes: int) -> int:
        """Return the size of the slab to make for a request that does not fit.

        Large requests have slabs of their own. Other requests share one.
        """
        least = least_slab(nbytes)
        shared = min(_LARGEST_SLAB, 1 << (self.capacity // _GROWTH_SHARE).bit_length())
        shared = max(SLAB_BYTES, shared)
        if self.limit is not None:  # plain and sealed buffers lie in different slabs
            share = self.limit // _LIMIT_SHARE // GRANULARITY * GRANULARITY
            shared = min(shared, max(GRANULARITY, share))
        return shared if least <= shared // 2 else least

    def slab_sizes(self, nbytes: int) -> list[int]:
        """Return slab sizes to try for a request that does not fit: ``growth``, then the least."""
        return self.affordable([self.growth(nbytes), least_slab(nbytes)])

    def affordable(self, sizes: list[int]) -> list[int]:
        """Return the ``sizes`` that the limit allows, largest first."""
        room = math.inf if self.limit is None else self.limit - self.capacity - self.reserved
        return sorted({size for size in sizes if size <= room}, reverse=True)

    def new_slab_id(self) -> int:
        """Return a number that no slab of this device has had.

        Raises:
            OutOfMemory: all numbers that fit in an address are used.
        """
        number = next(self._slab_ids)
        if number > _LAST_SLAB:
            raise OutOfMemory(
                f"{self.device} has had {_LAST_SLAB} slabs of memory, and has no addresses for "
                "more; close the device and open it again",
                requested=0,
            )
        return number

    def add_slab(self, slab: Slab) -> None:
        """Take a slab into use; the map owns its descriptor from now on."""
        pool = self._sealed if slab.sealed else self._durable if slab.durable else self._plain
        self._slabs[slab.id] = slab
        self._pool_of[slab.id] = pool
        pool.add_slab(slab.id, slab.nbytes)
        self._changes.append((slab, True))
        self._tell_changes()

    def add_dedicated(self, slab: Slab, owner: object = None, nbytes: int | None = None) -> Block:
        """Add a slab that holds a single buffer and is given up with it.

        Args:
            slab: the slab; if it is sealed it survives rebuilds.
            owner: an object to keep alive as long as the block.
            nbytes: bytes that were requested, if the slab is larger. If the slab is sealed, the
                block is still to be filled, and sealed then.
        """
        pool = Allocator()
        pool.add_slab(slab.id, slab.nbytes)
        address = pool.allocate(slab.nbytes)
        assert address is not None
        self._slabs[slab.id] = slab
        self._pool_of[slab.id] = pool
        self._dedicated[slab.id] = owner
        self._changes.append((slab, True))
        block = block_at(self, address, slab.nbytes)
        block.piece = piece_of(self, address, slab.nbytes)
        block.sealed = slab.sealed
        if nbytes is not None:
            block.nbytes = nbytes
        elif slab.sealed:
            self.seal(block)
        if self.scopes:
            note(self, block)
        self._tell_changes()
        return block

    def abandon(self) -> list[int]:
        """Give up all of a shadow's own slabs; what its host must unmap."""
        slabs = list(self._slabs)
        for slab in slabs:
            self._close(slab)
        self._plain, self._sealed, self._durable = Allocator(), Allocator(), Allocator()
        self._stale.clear()
        self.epoch = Epoch(self.generation)
        self._tell_changes()
        return slabs

    def surviving_slabs(self) -> list[Slab]:
        """The slabs a new host must map, oldest first; a shadow's only the sealed ones."""
        if self._whole is not None:
            return [slab for slab in self._whole._slabs.values() if slab.sealed]
        return [slab for slab in self._slabs.values() if slab.sealed or slab.durable]

    def is_own(self, block: Block) -> bool:
        """Return True if a block is all of its slab, which goes with it."""
        return block.address >> SLAB_SHIFT in self._dedicated

    def owner_of(self, block: Block) -> object:
        """Return the object that ``add_dedicated`` keeps alive as long as a block, or None."""
        address: object = block.address
        return self._dedicated.get(address >> SLAB_SHIFT) if isinstance(address, int) else None

    def has_slab(self, slab: int) -> bool:
        """Return True if a slab has not been given up."""
        return slab in self._slabs or (self._whole is not None and slab in self._whole._slabs)

    def slab_of(self, block: Block) -> Slab:
        """The slab a block lies in."""
        return self._slabs[block.address >> SLAB_SHIFT]

    def trim(self) -> None:
        """Give up what no usable ref needs; the host must unmap it then, see ``unmapped``."""
        self.collect(len(self.dropped))
        for pool in self._stale:
            self._give_up(pool)
        self._stale.clear()
        for pool in (self._plain, self._sealed, self._durable):
            for slab in pool.empty_slabs():
                pool.remove_slab(slab)
                self._close(slab)
                self.unmapped.append(slab)
        self._tell_changes()

    def close(self) -> None:
        """Close every descriptor: the memory is free once no host maps it either.

        Sealed blocks become stale now, too.
        """
        self.sealed_epoch = Epoch(self.generation)
        for slab in list(self._slabs):
            self._close(slab)
        self._tell_changes()

    def statistics(self) -> MemoryStatistics:
        """Return the use of the memory at this moment."""
        self.collect(_COUNTED)
        plain, sealed = self._plain, self._sealed
        stale = sum(pool.in_use for pool in self._stale)
        capacity = self.capacity
        own = {slab: self._pool_of[slab].in_use for slab in self._dedicated}
        used = plain.in_use + sealed.in_use + self._durable.in_use + stale + sum(own.values())
        return MemoryStatistics(
            capacity=capacity,
            used=used,
            free=capacity - used,
            sealed=sealed.in_use
            + sum(used for slab, used in own.items() if self._slabs[slab].sealed),
            largest_free=plain.largest_free,
            slabs=len(self._slabs),
            stale=stale,
            fragmentation=plain.fragmentation,
            limit=self.limit,
            dropped=len(self.dropped),
        )

    def _give_up(self, pool: Allocator) -> None:
        for slab in [slab for slab, owner in self._pool_of.items() if owner is pool]:
            self._close(slab)

    def _close(self, slab: int) -> None:
        del self._pool_of[slab]
        self._dedicated.pop(slab, None)
        given_up = self._slabs.pop(slab)
        if given_up.fd >= 0:
            os.close(given_up.fd)
        self._changes.append((given_up, False))

    def _tell_changes(self) -> None:
        """Report slabs that were added or removed, once the map is whole again.

        Instruments that hear of it may use the map, and so change it.
        """
        while self._changes:
            slab, added = self._changes.popleft()
            self.slab_changed(slab, added)
            if slab.sealed:
                self.sealed_changed()


def _nothing(*_args: object) -> None:
    """Ignore a change of the slabs."""


def least_slab(nbytes: int) -> int:
    """Bytes of a slab in which a block of ``nbytes`` has just enough room."""
    return -(-round_size(nbytes) // GRANULARITY) * GRANULARITY
