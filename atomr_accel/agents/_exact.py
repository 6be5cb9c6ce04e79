"""Exact search on the device: a product, and the largest of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .._errors import Unsupported
from ..device.data.transfer import in_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .. import Device, GpuRef
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
class SearchedRows:
    """Rows of one search, at the moment when it began.

    Attributes:
        rows: the rows of the store.
        vectors: (n, d), on the device.
        minus: float32 (n,), subtracted from the products; None for metrics without.
        mask: bool (n,), false for rows to leave out; None if all count.
        ids: int64 (n,).
    """

    rows: VectorRows
    vectors: GpuRef
    minus: GpuRef | None
    mask: NDArray[np.bool_] | None
    ids: NDArray[np.int64]


class RowsOnDevice:
    """The device's copy of rows: made when it is first asked for, and again after a fault.

    Rows of segments are sealed, so that they survive faults. Where the platform cannot do that, and
    for the tail, they are copied again.

    Args:
        rows: what to copy.
        metric: how vectors are compared.
        sealed: whether the rows do not change any more.
    """

    def __init__(self, rows: VectorRows, metric: Metric, *, sealed: bool) -> None:
        self.rows: Final = rows
        self.uploads = 0
        self._metric: Final = metric
        self._sealed = sealed
        self._vectors: GpuRef | None = None
        self._minus: GpuRef | None = None
        self._there = 0

    async def ready(self, device: Device) -> SearchedRows | None:
        """Return the rows for a search, or None if there are none."""
        rows, count = self.rows, self.rows.count
        # What the search sees is taken before anything is awaited.
        mask = rows.live[:count].copy() if rows.dead else None
        ids, vectors = rows.ids[:count], rows.vectors[:count]
        if not count or (mask is not None and not mask.any()):
            return None
        if self._sealed:
            await self._all(device, vectors)
        else:
            await self._more(device, vectors)
        assert self._vectors is not None
        minus = None if self._minus is None else self._minus[:count]
        return SearchedRows(rows, self._vectors[:count], minus, mask, ids)

    async def _all(self, device: Device, vectors: NDArray[Any]) -> None:
        there = [ref for ref in (self._vectors, self._minus) if ref is not None]
        if there and not any(ref.is_stale for ref in there):
            return
        made = await in_worker(prepared, vectors, self._metric)
        found = await self._put(device, made)
        if self._metric == "l2":
            self._minus = await self._put(device, await in_worker(half_squares, vectors))
        self._vectors = found
        self.uploads += 1

    async def _put(self, device: Device, array: NDArray[Any]) -> GpuRef:
        if self._sealed:
            try:
                return await device.put(array, sealed=True)
            except Unsupported:
                """Memory that cannot be sealed is copied again after a fault."""
        return await device.put(array)

    async def _more(self, device: Device, vectors: NDArray[Any]) -> None:
        """Copy rows that were added. The buffers have room for more."""
        room = len(self.rows.ids)
        if self._vectors is None or self._vectors.is_stale or len(self._vectors) < room:
            shape = (room, vectors.shape[1])
            self._vectors = await device.empty(shape, vectors.dtype)
            self._minus = await device.empty(room, _FLOAT32) if self._metric == "l2" else None
            self._there = 0
            self.uploads += 1
        start, end = self._there, len(vectors)
        if start < end:
            new = vectors[start:end]
            await device.put(prepared(new, self._metric), out=self._vectors[start:end])
            if self._minus is not None:
                await device.put(half_squares(new), out=self._minus[start:end])
            self._there = end


async def search_exactly(
    device: Device,
    parts: Sequence[SearchedRows],
    queries: NDArray[Any],
    k: int,
    workspace: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
    """Find the rows with the largest products with each query.

    Args:
        device: the device.
        parts: the rows to search.
        queries: (m, d), as the device has vectors.
        k: how many rows to find.
        workspace: bytes of products at a time.

    Returns:
        Ids int64, products float32, the number of the part, and the row in it, each (m, k), by
        descending products. If fewer were found, the rest of ids is -1, and of products ``-inf``.
    """
    total = sum(len(part.ids) for part in parts)
    step = max(1, workspace // (4 * max(total, 1)))
    found = []
    masks = [None if part.mask is None else await device.put(part.mask) for part in parts]
    for start in range(0, len(queries), step):
        later = []
        async with device.batch() as batch:
            some = batch.put(np.ascontiguousarray(queries[start : start + step]))
            for part, mask in zip(parts, masks, strict=True):
                scores: Any = batch.blas.gemm(some, part.vectors, trans_b=True, dtype=_FLOAT32)
                if part.minus is not None:
                    scores = scores - part.minus[None, :]
                if mask is not None:
                    scores = np.where(mask[None, :], scores, np.float32(-np.inf))
                values, places = batch.array.topk(scores, min(k, len(part.ids)))
                later.append((batch.get(values), batch.get(places)))
        found.append(merged(parts, [(v.value, p.value) for v, p in later], k))
    ids, scores, numbers, rows = (np.concatenate(each) for each in zip(*found, strict=True))
    return ids, scores, numbers, rows


def merged(
    parts: Sequence[SearchedRows],
    found: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]],
    k: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
    """Merge the best rows of each part; of equal ones, earlier parts come first."""
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
