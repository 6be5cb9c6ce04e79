"""A best-fit allocator over slabs, without any memory of its own.

It works with addresses, not pointers (see ``wire._address``).

Freed pieces go to bins by exact size first, because programs ask for the same sizes again and
again. They are coalesced with their neighbours only when a request finds neither a bin nor a
fitting hole, or when the bins have grown large.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from sortedcontainers import SortedList

from ..wire import SLAB_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIGNMENT: Final = 512
"""Alignment of blocks in bytes, enough for textures. Vendor libraries need less."""

_BINNED_SHARE: Final = 64
_BINNED_BYTES: Final = 256 << 20
_BINNED_MOST: Final = 2
_BINNED_PIECES: Final = 256
_BINNED_LARGEST: Final = 1 << 20
"""Limits of the bins, which keep freed pieces for reuse. Bins fragment memory, so all are emptied
when the small pieces in them exceed 1/64 of it, and also 256 MiB or half of a small memory. They
are emptied earlier if they hold more than 256 pieces, because emptying then takes long. Pieces
above 1 MiB count by their number only, because one of them could exceed the other limit. An
allocation that finds no hole empties all bins first."""


_NO_HOLE: Final = (0, -1)


@lru_cache(maxsize=4096)  # programs ask for the same sizes again and again
def round_size(nbytes: int) -> int:
    """``nbytes`` as the size of a block: a multiple of 512, at most 1/16 larger.

    Coarser steps for larger sizes make exact matches in the bins likely. Zero-size
    buffers take a block too, so that each has an address of its own.
    """
    step = ALIGNMENT
    if nbytes > 16 * ALIGNMENT:
        step = max(ALIGNMENT, 1 << (nbytes.bit_length() - 5))
    return max(ALIGNMENT, -(-nbytes // step) * step)


@final
class Allocator:
    """Hands out address ranges of its slabs; knows sizes, not contents."""

    def __init__(self) -> None:
        self._slabs: dict[int, int] = {}
        self._bins: dict[int, list[int]] = {}
        self._holes: SortedList[tuple[int, int]] = SortedList()  # (nbytes, address)
        # The largest of all, kept apart: it is the one that is mostly split, and then needs
        # no place among the others.
        self._largest = _NO_HOLE
        self._hole_at: dict[int, int] = {}  # address -> nbytes
        self._hole_ending: dict[int, int] = {}  # end -> address
        self._binned = 0
        self._binned_pieces = 0
        self._binned_large = 0  # how many, which count neither there nor there
        self._binned_limit = 0
        self.capacity: int = 0
        self.in_use: int = 0

    def add_slab(self, slab: int, nbytes: int) -> None:
        """Take a slab of ``nbytes`` (a multiple of 512) into use."""
        self._slabs[slab] = nbytes
        self._set_capacity(self.capacity + nbytes)
        self._add_hole(slab << SLAB_SHIFT, nbytes)

    def remove_slab(self, slab: int) -> None:
        """Forget a slab that ``empty_slabs`` named."""
        nbytes = self._slabs.pop(slab)
        self._remove_hole(slab << SLAB_SHIFT, nbytes)
        self._set_capacity(self.capacity - nbytes)

    def empty_slabs(self) -> list[int]:
        """Return the slabs without blocks in use."""
        self._coalesce()
        return [s for s, size in self._slabs.items() if self._hole_at.get(s << SLAB_SHIFT) == size]

    def allocate(self, size: int) -> int | None:
        """The address of ``size`` bytes (a value of ``round_size``), or None."""
        fitting = self._bins.get(size)
        if fitting:
            if size > _BINNED_LARGEST:
                self._binned_large -= 1
            else:
                self._binned -= size
                self._binned_pieces -= 1
            self.in_use += size
            return fitting.pop()
        hole = self._best_fit(size)
        if hole is None and (self._binned_pieces or self._binned_large):
            self._coalesce()
            hole = self._best_fit(size)
        if hole is None:
            return None
        nbytes, address = hole
        self.in_use += size
        if nbytes == size:
            self._remove_hole(address, nbytes)
            return address
        rest = (nbytes - size, address + size)
        if hole is self._largest and (not self._holes or rest > self._holes[-1]):
            self._largest = rest
            del self._hole_at[address]
            self._hole_at[rest[1]] = rest[0]
            self._hole_ending[address + nbytes] = rest[1]
        else:
            self._remove_hole(address, nbytes)
            self._add_hole(rest[1], rest[0])
        return address

    def free(self, address: int, size: int) -> None:
        """Give back what ``allocate`` handed out."""
        self.in_use -= size
        if size > _BINNED_LARGEST:
            self._binned_large += 1
        else:
            self._binned += size
            self._binned_pieces += 1
        fitting = self._bins.get(size)
        if fitting is None:
            self._bins[size] = [address]
        else:
            fitting.append(address)
        if (
            self._binned > self._binned_limit
            or self._binned_pieces > _BINNED_PIECES
            or self._binned_large > _BINNED_PIECES
        ):
            self._coalesce()

    @property
    def free_bytes(self) -> int:
        """Bytes not in use, in however many pieces."""
        return self.capacity - self.in_use

    @property
    def largest_free(self) -> int:
        """The largest size that ``allocate`` can serve now."""
        self._coalesce()
        return self._largest[0]

    @property
    def fragmentation(self) -> float:
        """The share of free memory that lies outside the largest hole of its slab."""
        self._coalesce()
        largest: dict[int, int] = {}
        for nbytes, address in chain([self._largest], reversed(self._holes)):
            largest.setdefault(address >> SLAB_SHIFT, nbytes)
            if len(largest) == len(self._slabs):  # there may be very many holes
                break
        return 1 - sum(largest.values()) / self.free_bytes if self.free_bytes else 0.0

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the free pieces as ``(nbytes, address)``, largest first.

        Allocate nothing meanwhile.
        """
        self._coalesce()
        if self._largest is not _NO_HOLE:
            yield self._largest
        yield from reversed(self._holes)

    def _set_capacity(self, nbytes: int) -> None:
        self.capacity = nbytes
        few = min(nbytes // _BINNED_MOST, _BINNED_BYTES)
        self._binned_limit = max(nbytes // _BINNED_SHARE, few)

    def _best_fit(self, size: int) -> tuple[int, int] | None:
        if self._largest[0] < size:
            return None
        index = self._holes.bisect_left((size, -1))
        return self._holes[index] if index < len(self._holes) else self._largest

    def _coalesce(self) -> None:
        if not (self._binned_pieces or self._binned_large):
            return
        # Pieces that were made in a row mostly lie in a row, and become one hole.
        binned = self._bins.items()
        pieces = sorted((address, size) for size, addresses in binned for address in addresses)
        self._bins.clear()
        self._binned = self._binned_pieces = self._binned_large = 0
        start = end = pieces[0][0]
        for address, size in pieces:
            if address != end:
                self._merge(start, end - start)
                start = address
            end = address + size
        self._merge(start, end - start)

    def _merge(self, address: int, size: int) -> None:
        # Slabs never touch in address space: each fills less than its 2**40 share.
        before = self._hole_ending.get(address)
        if before is not None:
            nbytes = self._hole_at[before]
            self._remove_hole(before, nbytes)
            address, size = before, size + nbytes
        after = self._hole_at.get(address + size)
        if after is not None:
            self._remove_hole(address + size, after)
            size += after
        self._add_hole(address, size)

    def _add_hole(self, address: int, nbytes: int) -> None:
        hole = (nbytes, address)
        if hole > self._largest:
            hole, self._largest = self._largest, hole
        if hole is not _NO_HOLE:
            self._holes.add(hole)
        self._hole_at[address] = nbytes
        self._hole_ending[address + nbytes] = address

    def _remove_hole(self, address: int, nbytes: int) -> None:
        if self._largest == (nbytes, address):
            self._largest = self._holes.pop() if self._holes else _NO_HOLE
        else:
            self._holes.remove((nbytes, address))
        del self._hole_at[address]
        del self._hole_ending[address + nbytes]
