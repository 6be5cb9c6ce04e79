"""Searches of a store's rows, by copies on the device, lists and graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from .._errors import said_of
from ..device.data.transfer import in_worker
from ..wire.options import count
from ._exact import (
    DeviceRows,
    Found,
    SearchedRows,
    SegmentOnDevice,
    TailOnDevice,
    lengths,
    merged,
    prepared,
    search_exactly,
    seen,
)
from ._inverted import InvertedLists, ListCenters, ListedRows, search_lists
from ._neighbors import NeighborGraph, SegmentGraphs
from ._vector_messages import Matches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .. import Device
    from ._store import VectorRows, VectorStore


class VectorSearcher:
    """Searches the rows of a store, all of one moment.

    ``workspace`` bounds the bytes of products at a time.
    """

    def __init__(
        self,
        device: Device,
        store: VectorStore,
        approximate: InvertedLists | NeighborGraph | None,
        workspace: int,
    ) -> None:
        self._device: Final = device
        self._store: Final = store
        self._workspace: Final = workspace
        self._copies: dict[VectorRows, DeviceRows] = {}
        self._copying: Final = trio.Lock()
        self._uploads = 0
        self._lists: ListCenters | None = None
        self._graphs: SegmentGraphs | None = None
        if isinstance(approximate, InvertedLists):
            self._lists = ListCenters(approximate, store.metric, workspace)
        elif isinstance(approximate, NeighborGraph):
            self._graphs = SegmentGraphs(device, approximate, store.metric, store.dtype)
        elif approximate is not None:
            raise TypeError(
                f"approximate must be InvertedLists or a NeighborGraph, not {said_of(approximate)}"
            )

    @property
    def uploads(self) -> int:
        """Copies of rows that began anew."""
        return self._uploads + sum(each.uploads for each in self._copies.values())

    @property
    def trained(self) -> int:
        """Count of lists and graphs that were made."""
        return sum(each.made for each in (self._lists, self._graphs) if each is not None)

    def as_probes(self, given: Any) -> int | None:
        """Return how much each query reads, or None for everything."""
        if self._lists is not None:
            lists = self._lists.options.lists
            probes = self._lists.options.probes if given is None else count(given, "probes")
            if probes > lists:
                raise ValueError(f"probes must be at most {lists}, the lists, not {probes}")
            return None if probes == lists else probes
        if self._graphs is not None:
            wanted = self._graphs.options.probes if given is None else given
            return count(wanted, "probes", most=1 << 20)
        if given is not None:
            raise ValueError("probes must be None for an index without approximate=, not a number")
        return None

    def keep(self) -> None:
        """Forget copies of rows that the store has no more."""
        kept = {*self._store.segments, self._store.tail}
        self._forget([rows for rows in self._copies if rows not in kept])
        if self._graphs is not None:
            self._graphs.keep(kept)

    def _forget(self, those: list[VectorRows]) -> None:
        for rows in those:
            self._uploads += self._copies.pop(rows).uploads

    async def search(
        self, queries: NDArray[Any], k: int, allowed: NDArray[np.int64] | None, probes: int | None
    ) -> Matches:
        """Find the nearest vectors of queries.

        ``allowed`` are the ids to choose from, ``probes`` how much each query reads; None stands
        for everything.
        """
        m, metric = len(queries), self._store.metric
        ids = np.full((m, k), -1, np.int64)
        scores = np.full((m, k), np.nan, np.float32)
        asked = await in_worker(prepared, queries, metric)
        parts, found = await self._parts(allowed, asked, k, None if allowed is not None else probes)
        if not (parts or found) or not m:
            return Matches(ids, scores)
        device, room, rest = self._device, self._workspace, parts
        if probes is not None and allowed is None:
            listed = [part for part in parts if part.lists is not None]
            rest = [part for part in parts if part.lists is None]
            results = await search_lists(device, listed, asked, probes, k, room)
            found += zip(listed, results, strict=True)
        found += zip(rest, await search_exactly(device, rest, asked, k, room), strict=True)
        every = [part for part, _ in found]
        keys, products, numbers, rows = await in_worker(
            merged, every, [each for _, each in found], k
        )
        if metric == "l2":
            products = await in_worker(_distances, every, queries, keys, numbers, rows)
            order = np.argsort(products, axis=1, kind="stable")
            keys = np.take_along_axis(keys, order, 1)
            products = np.take_along_axis(products, order, 1)
        width = keys.shape[1]
        ids[:, :width] = keys
        scores[:, :width] = np.where(keys < 0, np.nan, products)
        return Matches(ids, scores)

    async def _parts(
        self, allowed: NDArray[np.int64] | None, queries: NDArray[Any], k: int, probes: int | None
    ) -> tuple[list[SearchedRows], list[tuple[SearchedRows, Found]]]:
        """Return all rows at one moment, on the device, and what graphs found in some of them."""
        store = self._store
        parts: list[SearchedRows] = []
        found: list[tuple[SearchedRows, Found]] = []
        async with self._copying:
            if self._lists is not None:
                large = [rows for rows in store.segments if self._lists.takes(rows)]
                if await self._lists.prepare(self._device, large):
                    self._forget([rows for rows in large if rows in self._copies])
            tail = store.tail
            moment = [each for each in map(seen, (*store.segments, tail)) if each is not None]
            for each in moment:
                graphs = None if each.rows is tail or probes is None else self._graphs
                if graphs is not None and probes is not None and graphs.takes(each.rows):
                    part = SearchedRows(each.rows, None, None, each.mask, each.ids)
                    found.append((part, await graphs.search(each, queries, k, probes)))
                    continue
                if each.rows not in self._copies:
                    self._copies[each.rows] = self._copy_of(each.rows, is_tail=each.rows is tail)
                parts.append(await self._copies[each.rows].ready(self._device, each))
            self.keep()
        return parts if allowed is None else _filtered(parts, allowed), found

    def _copy_of(self, rows: VectorRows, *, is_tail: bool) -> DeviceRows:
        metric = self._store.metric
        if is_tail:
            return TailOnDevice(rows, metric)
        centers = None if self._lists is None else self._lists.centers_for(rows)
        return (
            SegmentOnDevice(rows, metric) if centers is None else ListedRows(rows, metric, centers)
        )


def _filtered(parts: list[SearchedRows], allowed: NDArray[np.int64]) -> list[SearchedRows]:
    """Leave out the rows whose ids are not allowed, and the parts without any."""
    kept = []
    for part in parts:
        mask = np.isin(part.ids, allowed)
        if part.mask is not None:
            mask &= part.mask
        if mask.any():
            kept.append(replace(part, mask=mask))
    return kept


def _distances(
    parts: list[SearchedRows],
    queries: NDArray[Any],
    ids: NDArray[np.int64],
    numbers: NDArray[np.int32],
    rows: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Return distances of found rows, from the vectors; infinite for missing ones."""
    made = np.full(ids.shape, np.inf, np.float32)
    for number, part in enumerate(parts):
        query, at = np.nonzero((numbers == number) & (ids >= 0))
        near = part.stored(rows[query, at]).astype(np.float64)
        made[query, at] = lengths(near - queries[query].astype(np.float64))
    return made
