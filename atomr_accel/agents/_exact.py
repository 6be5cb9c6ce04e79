"""Exact search on the device: a product, and the largest of each row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .._errors import Unsupported
from ..device.data.transfer import in_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .. import Device, GpuRef
    from ._inverted import SearchedLists
    from ._store import Metric, VectorRows

_FLOAT32: Final = np.dtype(np.float32)
_PIECE: Final = 1 << 16
"""Rows that the program prepares at once."""


def prepared(vectors: NDArray[Any], metric: Metric) -> NDArray[Any]:
    """Return vectors as the device has them: for cosines of length one. It may take long."""
    if metric != "cosine":
        return np.ascontiguousarray(vectors)
    made = np.empty(vectors.shape, vectors.dtype)
    for start in range(0, len(vectors), _PIECE):
        piece = vectors[start : start + _PIECE].astype(np.float32)
        made[start : start + _PIECE] = piece / lengths(piece)[:, None]
    return made


def lengths(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Return the lengths of vectors, float32 (n,), without overflow in between."""
    wide = vectors.astype(np.float64)
    found: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", wide, wide)).astype(np.float32)
    return found


def half_squares(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Return half the squares of the lengths of vectors, float32 (n,)."""
    made = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _PIECE):
        piece = vectors[start : start + _PIECE].astype(np.float64)
        made[start : start + _PIECE] = np.einsum("ij,ij->i", piece, piece) / 2
    return made


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Rows that a search reads, at the moment when it began.

    Attributes:
        rows: the rows of the store.
        count: how many of them there were.
        mask: bool (count,), false for rows that did not count; None if all did.
        ids: int64 (count,).
        vectors: (count, d).
        changes: the number of changes of the mask until then.
    """

    rows: VectorRows
    count: int
    mask: NDArray[np.bool_] | None
    ids: NDArray[np.int64]
    vectors: NDArray[Any]
    changes: int


def seen(rows: VectorRows) -> SeenRows | None:
    """Return what there is of rows now, or None if there is nothing."""
    count = rows.count
    mask = rows.live[:count].copy() if rows.dead else None
    if not count or (mask is not None and not mask.any()):
        return None
    return SeenRows(rows, count, mask, rows.ids[:count], rows.vectors[:count], rows.changes)


@dataclass(frozen=True, slots=True)
class SearchedRows:
    """Rows of one search, on the device.

    Attributes:
        rows: the rows of the store.
        vectors: (n, d), on the device; None for rows that a graph has searched.
        minus: float32 (n,), subtracted from the products; None for metrics without.
        mask: bool (n,), false for rows to leave out; None if all count.
        ids: int64 (n,).
        order: int64 (n,), the row of the store that each of these is; None for the same.
        lists: how to read them by lists, if they are in that order.
    """

    rows: VectorRows
    vectors: GpuRef | None
    minus: GpuRef | None
    mask: NDArray[np.bool_] | None
    ids: NDArray[np.int64]
    order: NDArray[np.int64] | None = None
    lists: SearchedLists | None = None

    def stored(self, at: NDArray[np.int64]) -> NDArray[Any]:
        """Return vectors as the store has them."""
        vectors: NDArray[Any] = self.rows.vectors[at if self.order is None else self.order[at]]
        return vectors


class DeviceRows(ABC):
    """The device's copy of rows: made when it is first asked for, and again after a fault."""

    def __init__(self, rows: VectorRows, metric: Metric) -> None:
        self.rows: Final = rows
        self.uploads = 0
        self._metric: Final = metric
        self._vectors: GpuRef | None = None
        self._minus: GpuRef | None = None

    @abstractmethod
    async def ready(self, device: Device, seen: SeenRows) -> SearchedRows:
        """Return the seen rows for a search."""

    def _is_stale(self) -> bool:
        return any(ref is not None and ref.is_stale for ref in (self._vectors, self._minus))

    async def _put(self, device: Device, array: NDArray[Any]) -> GpuRef:
        """Copy rows that do not change any more, so that they survive faults where possible."""
        try:
            return await device.put(array, sealed=True)
        except Unsupported:  # memory that cannot be sealed is copied again after a fault
            return await device.put(array)


class SegmentOnDevice(DeviceRows):
    """The device's copy of a sealed segment, in its order."""

    async def ready(self, device: Device, seen: SeenRows) -> SearchedRows:
        """Return the rows for a search."""
        if self._vectors is None or self._is_stale():
            made = await in_worker(prepared, seen.vectors, self._metric)
            minus = None
            if self._metric == "l2":
                minus = await self._put(device, await in_worker(half_squares, seen.vectors))
            self._vectors, self._minus = await self._put(device, made), minus
            self.uploads += 1
        return SearchedRows(self.rows, self._vectors, self._minus, seen.mask, seen.ids)


class TailOnDevice(DeviceRows):
    """The device's copy of the tail, which has room for more rows."""

    _there = 0

    async def ready(self, device: Device, seen: SeenRows) -> SearchedRows:
        """Copy rows that were added, and return those for a search."""
        room, end = len(self.rows.ids), seen.count
        if self._vectors is None or self._is_stale() or len(self._vectors) < room:
            minus = await device.empty(room, _FLOAT32) if self._metric == "l2" else None
            shape = (room, seen.vectors.shape[1])
            self._vectors, self._minus = await device.empty(shape, seen.vectors.dtype), minus
            self._there = 0
            self.uploads += 1
        start = self._there
        if start < end:
            new = seen.vectors[start:end]
            await device.put(prepared(new, self._metric), out=self._vectors[start:end])
            if self._minus is not None:
                await device.put(half_squares(new), out=self._minus[start:end])
            self._there = end
        minus = None if self._minus is None else self._minus[:end]
        return SearchedRows(self.rows, self._vectors[:end], minus, seen.mask, seen.ids)


Found = tuple["NDArray[np.float32]", "NDArray[np.int64]"]
"""Products and rows, (m, w) each, of one part; a product of ``-inf`` marks a missing row."""


async def search_exactly(
    device: Device,
    parts: Sequence[SearchedRows],
    queries: NDArray[Any],
    k: int,
    workspace: int,
) -> list[Found]:
    """Find the rows with the largest products with each query.

    ``workspace`` bounds the bytes of products at a time.

    Returns:
        Products and rows of each part.
    """
    total = sum(len(part.ids) for part in parts)
    step = max(1, workspace // (4 * max(total, 1)))
    found: list[list[Found]] = [[] for _ in parts]
    masks = [None if part.mask is None else await device.put(part.mask) for part in parts]
    for start in range(0, len(queries) if parts else 0, step):
        later = []
        async with device.batch() as batch:
            some = batch.put(np.ascontiguousarray(queries[start : start + step]))
            for part, mask in zip(parts, masks, strict=True):
                assert part.vectors is not None
                scores: Any = batch.blas.gemm(some, part.vectors, trans_b=True, dtype=_FLOAT32)
                if part.minus is not None:
                    scores = scores - part.minus[None, :]
                if mask is not None:
                    scores = np.where(mask[None, :], scores, np.float32(-np.inf))
                values, places = batch.array.topk(scores, min(k, len(part.ids)))
                later.append((batch.get(values), batch.get(places)))
        for each, (value, place) in zip(found, later, strict=True):
            each.append((value.value, place.value))
    return [
        (np.concatenate([v for v, _ in each]), np.concatenate([p for _, p in each]))
        for each in found
    ]


def merged(
    parts: Sequence[SearchedRows], found: Sequence[Found], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
    """Merge the best rows of each part; of equal ones, earlier parts come first.

    Returns:
        Ids int64, products float32, the number of the part, and the row in it, each (m, k), by
        descending products. If fewer were found, the rest of ids is -1, and of products ``-inf``.
    """
    values = np.concatenate([value for value, _ in found], axis=1)
    rows = np.concatenate([row for _, row in found], axis=1)
    ids = np.concatenate(
        [part.ids[row] for part, (_, row) in zip(parts, found, strict=True)], axis=1
    )
    widths = [value.shape[1] for value, _ in found]
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), widths)
    if len(parts) == 1:
        order = np.broadcast_to(np.arange(values.shape[1]), values.shape)[:, :k]
    else:
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    values, rows, ids = (np.take_along_axis(each, order, 1) for each in (values, rows, ids))
    return np.where(np.isneginf(values), -1, ids), values, numbers[order], rows
