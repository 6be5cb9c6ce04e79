"""A spatial index: points in a uniform grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from ..actors.util import check_instance
from ..device import Device
from ._checks import array_of, number, whole
from ._kernels import KernelSet
from .wire.spatial import MOST, SPATIAL

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

_MOST_CELLS: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class SpatialIndexStatistics:
    """A spatial index at one moment.

    Attributes:
        points: number of points.
        cells: number of cells.
        cell: length of a cell's side.
        builds: how often the grid was made: once, and after each fault.
        queries: points and rays that were asked about.
    """

    points: int
    cells: int
    cell: float
    builds: int
    queries: int


class SpatialIndex:
    """Points in a uniform grid; ``await SpatialIndex.build(device, points)`` makes one.

    Answers are exact: distances are computed in float64 of float32 coordinates. The program keeps
    the points, so after a fault the grid is made again. Several tasks may ask at a time. If the
    device does not come back, they get ``ContextPoisoned`` or ``DeviceLost``.
    """

    def __init__(self, device: Device, points: Array, cell: float, kernels: KernelSet) -> None:
        self.device: Final = device
        self._points: Final = points
        self._launch: Final = kernels.launch
        low, high = points.min(0).astype(np.float64), points.max(0).astype(np.float64)
        extent = high - low
        axes = points.shape[1]
        if not cell:  # about two points in a cell
            filled = extent[extent > 0]
            volume = float(np.prod(filled)) if filled.size else 1.0
            cell = (2 * volume / len(points)) ** (1 / max(1, filled.size)) or 1.0
        most = min(_MOST_CELLS, max(64, 4 * len(points)))
        while math.prod(int(n) for n in np.minimum(extent // cell + 1, 2.0**40)) > most:
            cell *= 1.25
        self.cell: Final = float(cell)
        """Length of a cell's side; larger than asked for if there would be too many cells."""
        size = np.ones(3, np.int32)
        size[:axes] = (extent // cell).astype(np.int64) + 1
        self._size = size
        self._box = np.zeros(4)
        self._box[:axes], self._box[3] = low, cell
        self._cells: Final = math.prod(map(int, size))
        self._generation = 0
        self._lock = trio.Lock()
        self._builds = self._queries = 0

    @classmethod
    async def build(cls, device: Device, points: object, *, cell: float = 0.0) -> SpatialIndex:
        """Build an index.

        Args:
            device: the device.
            points: float32 of shape (n, 2) or (n, 3), at least one.
            cell: length of a cell's side; by default such that a cell has about two points. The
                number of cells is at most four times that of points, and at least 64.
        """
        check_instance("device", device, Device)
        made = array_of(points, "points", (None, None))
        if made.shape[1] not in {2, 3} or not len(made) or len(made) >= 2**30:
            raise ValueError(f"points must have shape (n, 2) or (n, 3), not {made.shape}")
        side = number(cell, "cell", 0.0)
        index = cls(device, made.copy(), side, await KernelSet.load(device, SPATIAL))
        await device.retry(index._ready)
        return index

    async def nearest(self, queries: object, k: int = 1) -> tuple[Array, Array]:
        """Find the ``k`` nearest points.

        Args:
            queries: float32 of shape (m, 2) or (m, 3), as the points.
            k: number of neighbours, from 1 to 64.

        Returns:
            Distances, float64 of shape (m, k), in ascending order, infinite beyond
            the last point; and indices of points, int32, -1 there. Of equally distant points
            any may come last.

        Raises:
            ContextPoisoned, DeviceLost: the device does not come back.
        """
        asked, count = self._asked(queries, "queries"), whole(k, "k", 1, MOST)

        async def ask() -> tuple[Array, Array]:
            await self._ready()
            m = len(asked)
            given = await self.device.put(asked)
            async with self.device.batch() as batch:
                far, which = batch.empty((m, count), np.float64), batch.empty((m, count), np.int32)
                self._launch(batch, "nearest", m, far, which, given, *self._grid(m), count)
            return await self.device.get(far), await self.device.get(which)

        if not len(asked):
            return np.zeros((0, count)), np.zeros((0, count), np.int32)
        return await self.device.retry(ask)

    async def within(self, queries: object, radius: float) -> tuple[Array, Array]:
        """Find all points within a radius, the radius included.

        Args:
            queries: float32 of shape (m, 2) or (m, 3), as the points.
            radius: the radius.

        Returns:
            Offsets, int64 of shape (m + 1,), and indices, int32: those of query ``i`` are
            ``indices[offsets[i]:offsets[i + 1]]``, in an order that is always the same.
        """
        asked, reach = self._asked(queries, "queries"), number(radius, "radius", 0.0)

        async def ask() -> tuple[Array, Array]:
            await self._ready()
            m = len(asked)
            given = await self.device.put(asked)
            async with self.device.batch() as batch:
                counts = batch.empty(m, np.int32)
                self._launch(batch, "within", m, counts, None, given, *self._grid(m), reach)
            sums = np.zeros(m + 1, np.int64)
            np.cumsum(await self.device.get(counts), out=sums[1:])
            if not sums[-1]:
                return sums, np.zeros(0, np.int32)
            offsets = await self.device.put(sums)
            async with self.device.batch() as batch:
                found = batch.empty(int(sums[-1]), np.int32)
                self._launch(batch, "within", m, found, offsets, given, *self._grid(m), reach)
            return sums, await self.device.get(found)

        if not len(asked):
            return np.zeros(1, np.int64), np.zeros(0, np.int32)
        return await self.device.retry(ask)

    async def cast(self, origins: object, directions: object, radius: float) -> tuple[Array, Array]:
        """Find the first point that each ray passes at ``radius`` or less.

        Args:
            origins: float32 of shape (m, 2) or (m, 3), as the points.
            directions: the same; their lengths do not matter, but are not 0.
            radius: radius of a ball around each point, at most ``cell``.

        Returns:
            Distances to where rays enter balls, float64, 0 inside of one, infinite if none is met;
            and indices of points, int32, -1 then.
        """
        begin, way = self._asked(origins, "origins"), self._asked(directions, "directions")
        if begin.shape != way.shape:
            raise ValueError(f"directions must have shape {begin.shape}, not {way.shape}")
        if not np.square(way.astype(np.float64)).sum(1).all():
            raise ValueError("directions must be longer than 0")
        reach = number(radius, "radius", 0.0, self.cell)

        async def ask() -> tuple[Array, Array]:
            await self._ready()
            m = len(begin)
            given = await self.device.put(begin), await self.device.put(way)
            async with self.device.batch() as batch:
                far, which = batch.empty(m, np.float64), batch.empty(m, np.int32)
                self._launch(batch, "cast", m, far, which, *given, *self._grid(m), reach)
            return await self.device.get(far), await self.device.get(which)

        if not len(begin):
            return np.zeros(0), np.zeros(0, np.int32)
        return await self.device.retry(ask)

    def statistics(self) -> SpatialIndexStatistics:
        """Return numbers of the index."""
        return SpatialIndexStatistics(
            len(self._points), self._cells, self.cell, self._builds, self._queries
        )

    async def _ready(self) -> None:
        """Make the grid, unless it is there."""
        async with self._lock:
            if self._generation == self.device.generation:
                return
            generation, n = self.device.generation, len(self._points)
            points = await self.device.put(self._points)
            box, size = await self.device.put(self._box), await self.device.put(self._size)
            async with self.device.batch() as batch:
                keys, order = batch.empty(n, np.int32), batch.empty(n, np.int32)
                starts = batch.empty(self._cells + 1, np.int32)
                axes = self._points.shape[1]
                self._launch(batch, "cells_of", n, keys, order, points, box, size, n, axes)
                keys, order = batch.cub.sort_pairs(keys, order)
                self._launch(batch, "bounds", n + 1, starts, keys, n, self._cells)
            self._buffers = points, order, starts, box, size
            self._generation = generation
            self._builds += 1

    def _grid(self, count: int) -> tuple[Any, ...]:
        self._queries += count
        return (*self._buffers, count, self._points.shape[1])

    def _asked(self, value: object, name: str) -> Array:
        return array_of(value, name, (None, self._points.shape[1]))
