"""Approximate search on the device: vectors in lists by their nearest center, and few lists read.

Centers are trained by Lloyd's algorithm, from products and reductions. Lists are read in windows of
one width, so that their products fill one array. A window may reach into the
next list, or back into the last one. Those rows, and rows that do not count any more, are excluded
by penalties of infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..device.data.transfer import in_worker
from ..wire.options import count, whole
from ._exact import DeviceRows, SearchedRows, half_squares, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .. import Device, GpuRef
    from ._exact import Found, SeenRows
    from ._store import Metric, VectorRows

_FLOAT32: Final = np.dtype(np.float32)
_ROUNDS: Final = 10
_SAMPLE: Final = 128
"""Vectors that centers are trained from, for each list."""
_LEAST: Final = 4
"""Vectors for each list that a segment must have; smaller ones are searched exactly."""
_NARROWEST: Final = 64
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedLists:
    """Approximate search on the device: ``approximate=`` of `open_vector_index`.

    Each vector is in the list of its nearest center, and a query reads the lists of the nearest
    centers alone. Centers are trained on the device by the first search that needs them, from the
    vectors that are there, and again when four times as many are.

    Attributes:
        lists: the number of lists. The square root of the number of vectors is a good start.
        probes: lists that a query reads; more of them find more of the nearest vectors. A search
            may say otherwise.
        seed: the same seed and the same vectors make the same lists, on one kind of device.
    """

    lists: int
    probes: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        count(self.lists, "lists")
        if count(self.probes, "probes") > self.lists:
            raise ValueError(f"probes must be at most {self.lists}, the lists, not {self.probes}")
        whole(self.seed, "seed", 0)


class ListCenters:
    """Centers of lists, trained when they are needed.

    ``workspace`` bounds the bytes of products at a time.
    """

    def __init__(self, options: InvertedLists, metric: Metric, workspace: int) -> None:
        self.options: Final = options
        self.made = 0
        self._metric: Final[Metric] = metric
        self._step: Final = max(1, workspace // (16 * options.lists))
        self._rows = 0
        self._centers: TrainedCenters | None = None

    def takes(self, rows: VectorRows) -> bool:
        """Return whether the rows of a segment are read by lists."""
        return rows.count >= _LEAST * self.options.lists

    def centers_for(self, rows: VectorRows) -> TrainedCenters | None:
        """Return the centers by which rows are read, or None if they are read as a whole."""
        return self._centers if self.takes(rows) else None

    async def prepare(self, device: Device, segments: Sequence[VectorRows]) -> bool:
        """Train centers, if that is due. Return whether they are new."""
        total = sum(rows.count for rows in segments)
        if not total or total < 4 * self._rows:
            return False
        rng = np.random.default_rng(self.options.seed)
        sample = await in_worker(_sampled, segments, self._metric, rng, self.options.lists)
        made = await self._train(device, sample, rng)
        self._centers = TrainedCenters(made, self._metric, self._step)
        self._rows = total
        self.made += 1
        return True

    async def _train(
        self, device: Device, sample: NDArray[np.float32], rng: np.random.Generator
    ) -> NDArray[np.float32]:
        lists = self.options.lists
        made = sample[np.sort(rng.choice(len(sample), lists, replace=False))]
        there = await device.put(sample)
        numbers = await device.put(np.arange(lists))
        zeros = np.zeros((lists, sample.shape[1]), np.float32)
        for _ in range(_ROUNDS):
            counted: list[Any] = []
            async with device.batch() as batch:
                centers, halves, sums = map(batch.put, (made, half_squares(made), zeros))
                for start in range(0, len(sample), self._step):
                    some = there[start : start + self._step]
                    labels = _nearest(batch, some, centers, halves)
                    hot = batch.evaluate(
                        np.where(
                            np.equal(labels[:, None], numbers[None, :]),
                            np.float32(1),
                            np.float32(0),
                        )
                    )
                    batch.blas.gemm(hot, some, trans_a=True, beta=1.0, out=sums)
                    counted.append(batch.get(batch.array.sum(hot, 0)))
                total = batch.get(sums)
            counts = np.stack([each.value for each in counted])
            sizes = counts.sum(axis=0, dtype=np.float64, keepdims=True).T
            # A center without vectors begins anew at one of them.
            anew = sample[rng.choice(len(sample), lists, replace=False)]
            made = np.where(sizes > 0, total.value / np.maximum(sizes, 1), anew).astype(np.float32)
        return made


class TrainedCenters:
    """Centers that do not change any more.

    Args:
        centers: float32 (lists, d).
        metric: how vectors are compared.
        step: vectors or queries that are compared with them at a time.
    """

    def __init__(self, centers: NDArray[np.float32], metric: Metric, step: int) -> None:
        self.lists: Final = len(centers)
        self._centers: Final = centers
        self._metric: Final[Metric] = metric
        self._step: Final = step
        self._there: tuple[GpuRef, GpuRef] | None = None

    async def _on_device(self, device: Device) -> tuple[GpuRef, GpuRef]:
        """Return the centers, and half the squares of their lengths."""
        if self._there is None or any(ref.is_stale for ref in self._there):
            self._there = (
                await device.put(self._centers),
                await device.put(half_squares(self._centers)),
            )
        return self._there

    async def labels(self, device: Device, rows: VectorRows) -> NDArray[np.int64]:
        """Return the list of each row, int64 (n,)."""
        found = []
        for begin in range(0, rows.count, _PIECE):
            piece = await in_worker(_prepared_wide, rows, begin, self._metric)
            centers, halves = await self._on_device(device)
            async with device.batch() as batch:
                some = batch.put(piece)
                later = [
                    batch.get(_nearest(batch, some[start : start + self._step], centers, halves))
                    for start in range(0, len(piece), self._step)
                ]
            found += [each.value for each in later]
        return np.concatenate(found)

    async def probed(self, device: Device, queries: NDArray[Any], probes: int) -> NDArray[np.int64]:
        """Return the lists that queries read, int64 (m, probes)."""
        centers, halves = await self._on_device(device)
        wide, later = queries.astype(np.float32), []
        async with device.batch() as batch:
            for start in range(0, len(wide), self._step):
                some = batch.put(wide[start : start + self._step])
                scores: Any = batch.blas.gemm(some, centers, trans_b=True)
                if self._metric != "dot":
                    scores = scores - halves[None, :]
                later.append(batch.get(batch.array.topk(scores, probes)[1]))
        return np.concatenate([each.value for each in later])


def _nearest(batch: Any, some: GpuRef, centers: GpuRef, halves: GpuRef) -> GpuRef:
    scores = batch.blas.gemm(some, centers, trans_b=True)
    nearest: GpuRef = batch.array.argmax(scores - halves[None, :], axis=1)
    return nearest


def _sampled(
    segments: Sequence[VectorRows], metric: Metric, rng: np.random.Generator, lists: int
) -> NDArray[np.float32]:
    """Return vectors to train from, those that were deleted included. It may take long."""
    total = sum(rows.count for rows in segments)
    chosen = np.sort(rng.choice(total, min(total, _SAMPLE * lists), replace=False))
    made, before = [], 0
    for rows in segments:
        here = chosen[(chosen >= before) & (chosen < before + rows.count)] - before
        made.append(prepared(rows.vectors[here], metric).astype(np.float32))
        before += rows.count
    return np.concatenate(made)


def _prepared_wide(rows: VectorRows, begin: int, metric: Metric) -> NDArray[np.float32]:
    piece = rows.vectors[begin : min(begin + _PIECE, rows.count)]
    return prepared(piece, metric).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ListWindows:
    """Windows of one width, in which lists are read.

    Attributes:
        width: rows of each.
        starts: int64 (w,), the first row of each.
        first: int64 (lists + 1,), the first window of each list; lists without rows have none.
        valid: bool (w, width), false for rows of other lists.
    """

    width: int
    starts: NDArray[np.int64]
    first: NDArray[np.int64]
    valid: NDArray[np.bool_]


def windows_of(labels: NDArray[np.int64], lists: int) -> ListWindows:
    """Cut lists into windows.

    Args:
        labels: int64 (n,), ascending: the list of each row.
        lists: their number.
    """
    n = len(labels)
    width = min(n, max(_NARROWEST, n // lists))
    sizes = np.bincount(labels, minlength=lists)
    begin = np.cumsum(sizes) - sizes
    windows = -(-sizes // width)
    first = np.concatenate([[0], np.cumsum(windows)])
    of_list = np.repeat(np.arange(lists), windows)
    wanted = begin[of_list] + width * (np.arange(len(of_list)) - first[of_list])
    starts = np.minimum(wanted, n - width)
    at = starts[:, None] + np.arange(width)
    end = np.minimum(wanted + width, (begin + sizes)[of_list])
    return ListWindows(width, starts, first, (at >= wanted[:, None]) & (at < end[:, None]))


@dataclass(frozen=True, slots=True)
class SearchedLists:
    """Lists of the rows of one search.

    Attributes:
        windows: where they are.
        penalties: float32 (w, width), on the device, subtracted from the products of windows.
    """

    windows: ListWindows
    penalties: GpuRef
    centers: TrainedCenters


class ListedRows(DeviceRows):
    """The device's copy of a segment's rows, by list."""

    def __init__(self, rows: VectorRows, metric: Metric, centers: TrainedCenters) -> None:
        super().__init__(rows, metric)
        self._centers: Final = centers
        self._order: NDArray[np.int64] | None = None
        self._halves: NDArray[np.float32] | None = None
        self._changes = -1
        self._penalties: GpuRef | None = None

    async def ready(self, device: Device, seen: SeenRows) -> SearchedRows:
        """Return the rows for a search."""
        rows, metric = self.rows, self._metric
        if self._order is None:
            labels = await self._centers.labels(device, rows)
            order = np.argsort(labels, kind="stable")
            self._windows = windows_of(labels[order], self._centers.lists)
            self._order = order
        order = self._order
        if self._vectors is None or self._is_stale():
            ordered = await in_worker(lambda: prepared(rows.vectors[order], metric))
            minus = None
            if metric == "l2":
                self._halves = await in_worker(half_squares, ordered)
                minus = await self._put(device, self._halves)
            self._vectors, self._minus = await self._put(device, ordered), minus
            self.uploads += 1
        mask = None if seen.mask is None else seen.mask[order]
        if self._penalties is None or self._penalties.is_stale or self._changes != seen.changes:
            made = await in_worker(_penalties, self._windows, self._halves, mask)
            self._penalties, self._changes = await device.put(made), seen.changes
        lists = SearchedLists(self._windows, self._penalties, self._centers)
        return SearchedRows(rows, self._vectors, self._minus, mask, rows.ids[order], order, lists)


def _penalties(
    windows: ListWindows, halves: NDArray[np.float32] | None, mask: NDArray[np.bool_] | None
) -> NDArray[np.float32]:
    at = windows.starts[:, None] + np.arange(windows.width)
    valid = windows.valid if mask is None else windows.valid & mask[at]
    return np.where(valid, np.float32(0) if halves is None else halves[at], np.float32(np.inf))


async def search_lists(
    device: Device,
    parts: Sequence[SearchedRows],
    queries: NDArray[Any],
    probes: int,
    k: int,
    workspace: int,
) -> list[Found]:
    """Find rows with large products with each query, in some lists.

    Queries are (m, d), and each reads ``probes`` lists. ``workspace`` bounds the bytes of products
    at a time.

    Returns:
        Products and rows of each part.
    """
    found: list[Found] = []
    probed = np.empty((len(queries), 0), np.int64)
    for part in parts:
        assert part.lists is not None
        if not found:
            probed = await part.lists.centers.probed(device, queries, probes)
        windows = part.lists.windows
        counts = (windows.first[1:] - windows.first[:-1])[probed].sum(axis=1)
        # Products, penalties and their differences have as many elements.
        most = max(1, workspace // (12 * windows.width))
        batches = np.cumsum(counts) // most
        cuts = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), len(queries)]
        each = [
            await _search_windows(
                device, part.vectors, part.lists, queries[start:end], probed[start:end], k
            )
            for start, end in pairwise(cuts)
        ]
        width = max(values.shape[1] for values, _ in each)
        found.append(
            (
                np.concatenate([_wider(values, width, -np.inf) for values, _ in each]),
                np.concatenate([_wider(rows, width, 0) for _, rows in each]),
            )
        )
    return found


def _wider(array: NDArray[Any], width: int, fill: float) -> NDArray[Any]:
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=fill) if missing else array


async def _search_windows(
    device: Device,
    vectors: GpuRef | None,
    lists: SearchedLists,
    queries: NDArray[Any],
    probed: NDArray[np.int64],
    k: int,
) -> Found:
    windows = lists.windows
    m, width = len(queries), windows.width
    assert vectors is not None
    query, window = _pairs(probed, windows)
    if not len(query):
        return np.empty((m, 0), np.float32), np.empty((m, 0), np.int64)
    by_window = np.argsort(window, kind="stable")
    query, window = query[by_window], window[by_window]
    cuts = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(window)]
    scores: Any = await device.empty((len(query), width), _FLOAT32)
    async with device.batch() as batch:
        asked = batch.put(np.ascontiguousarray(queries))
        some = batch.array.take(asked, batch.put(query), 0, mode="clip")
        for start, end in pairwise(cuts):
            row = int(windows.starts[window[start]])
            batch.blas.gemm(
                some[start:end], vectors[row : row + width], trans_b=True, dtype=_FLOAT32,
                out=scores[start:end],
            )  # fmt: skip
        minus = batch.array.take(lists.penalties, batch.put(window), 0, mode="clip")
        values, places = batch.array.topk(scores - minus, min(k, width))
        later = batch.get(values), batch.get(places)
    value, place = later[0].value, later[1].value
    return await in_worker(_by_query, query, value, place + windows.starts[window][:, None], m, k)


def _pairs(
    probed: NDArray[np.int64], windows: ListWindows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each query with each window that it reads."""
    lists = probed.reshape(-1)
    begin, sizes = windows.first[lists], windows.first[lists + 1] - windows.first[lists]
    ends = np.cumsum(sizes)
    inside = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
    query = np.repeat(np.arange(len(lists)) // probed.shape[1], sizes)
    return query, np.repeat(begin, sizes) + inside


def _by_query(
    query: NDArray[np.int64],
    values: NDArray[np.float32],
    rows: NDArray[np.int64],
    m: int,
    k: int,
) -> Found:
    """Join the results of the windows of each query, and keep its best ``k``."""
    order = np.argsort(query, kind="stable")
    query, values, rows = query[order], values[order], rows[order]
    sizes = np.bincount(query, minlength=m)
    slot = np.arange(len(query)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shape = (m, int(sizes.max()), values.shape[1])
    joined, at = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
    joined[query, slot], at[query, slot] = values, rows
    flat, places = joined.reshape(m, -1), at.reshape(m, -1)
    if flat.shape[1] > k:
        best = np.argpartition(-flat, k - 1, axis=1)[:, :k]
        flat, places = np.take_along_axis(flat, best, 1), np.take_along_axis(places, best, 1)
    best = np.argsort(-flat, axis=1, kind="stable")
    return np.take_along_axis(flat, best, 1), np.take_along_axis(places, best, 1)
