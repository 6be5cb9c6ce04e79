"""Use of a device's memory by slab, coarse enough to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from ..wire import SLAB_SHIFT

if TYPE_CHECKING:
    from ._allocator import Allocator
    from .map import MemoryMap

_MOST_HOLES: Final = 4096
"""Holes of a pool that are looked at. Of a memory with more of them the smallest count as used."""


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """A slab at one moment.

    Attributes:
        id: its number, unique in the device.
        nbytes: its size.
        kind: ``"plain"``; ``"sealed"`` or ``"durable"``, which survive rebuilds; or ``"stale"``,
            which is kept for refs of older generations.
        used: bytes that are not free.
        cells: the slab in equal parts: the share of each part that is used, from 0 to 1.
    """

    id: int
    nbytes: int
    kind: Literal["plain", "sealed", "durable", "stale"]
    used: int
    cells: tuple[float, ...]


def layout(memory: MemoryMap, *, most: int, cells: int) -> list[SlabLayout]:
    """Return the slabs of a device, oldest first.

    Args:
        memory: the device's map.
        most: number of slabs to return at most; the largest are chosen.
        cells: number of parts that each slab is divided into.
    """
    slabs = sorted(memory._slabs.values(), key=lambda slab: -slab.nbytes)[:most]
    free = {slab.id: [0.0] * cells for slab in slabs}  # bytes, by parts
    size = {slab.id: slab.nbytes for slab in slabs}
    pools: dict[int, Allocator] = {id(pool): pool for pool in memory._pool_of.values()}
    for pool in pools.values():
        for nbytes, address in islice(pool.holes(), _MOST_HOLES):
            slab = address >> SLAB_SHIFT
            if slab in free:
                begin = address - (slab << SLAB_SHIFT)
                _add(free[slab], begin, begin + nbytes, size[slab] / cells)
    stale = {id(pool) for pool in memory._stale}
    return [
        SlabLayout(
            id=slab.id,
            nbytes=slab.nbytes,
            kind="stale"
            if id(memory._pool_of[slab.id]) in stale
            else "sealed"
            if slab.sealed
            else "durable"
            if slab.durable
            else "plain",
            used=slab.nbytes - round(sum(free[slab.id])),
            cells=tuple(_used(part * cells / slab.nbytes) for part in free[slab.id]),
        )
        for slab in sorted(slabs, key=lambda slab: slab.id)
    ]


def _used(free: float) -> float:
    """Return the share that is used, without rounding errors near 0 and 1."""
    return min(1.0, max(0.0, round(1 - free, 9)))


def _add(parts: list[float], begin: int, end: int, width: float) -> None:
    """Count the bytes from ``begin`` to ``end`` in the parts that they lie in."""
    first, last = int(begin / width), min(int(end / width), len(parts) - 1)
    if first >= last:
        parts[min(first, last)] += end - begin
        return
    parts[first] += (first + 1) * width - begin
    for part in range(first + 1, last):
        parts[part] += width
    parts[last] += end - last * width
