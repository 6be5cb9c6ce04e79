"""Approximate search on the CPU backend: graphs of neighbours by ``usearch``, one a segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .._errors import Unsupported
from ..device.data.transfer import in_worker
from ..wire.options import count
from ._exact import half_squares, lengths, prepared

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from .. import Device
    from ._exact import Found, SeenRows
    from ._store import Metric, VectorRows

_LEAST: Final = 1024
"""Rows that a segment must have; smaller ones are searched exactly."""

_ALONE: Final = 1000
"""Rows that are added one by one. Threads do not link rows that they add at the same time, which
costs a small graph recall: built by 8 threads, one of 2,500 rows found 0.945 instead of 0.998."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborGraph:
    """Approximate search by ``usearch``, on the CPU backend: for `open_vector_index`.

    Each segment has a graph in which vectors know near ones. The first search that needs it builds
    it, in the memory of the program.

    Attributes:
        links: neighbours that each vector knows.
        effort: candidates that are compared when a vector is added.
        probes: candidates that a query keeps; more of them find more of the nearest vectors. A
            search may say otherwise.
    """

    links: int = 16
    effort: int = 128
    probes: int = 64

    def __post_init__(self) -> None:
        for name in ("links", "effort", "probes"):
            count(getattr(self, name), name, most=1 << 20)


class SegmentGraphs:
    """Graphs of segments."""

    def __init__(
        self, device: Device, options: NeighborGraph, metric: Metric, dtype: np.dtype[Any]
    ) -> None:
        if device.backend != "cpu":
            raise Unsupported(
                f"a NeighborGraph must be of a device of backend 'cpu', not {device.backend!r}; "
                "use InvertedLists there"
            )
        from usearch.index import Index

        self.options: Final = options
        self.made = 0
        self._make: Final = Index
        self._metric: Final = metric
        self._kind: Final = "f16" if dtype == np.float16 else "f32"
        self._graphs: dict[VectorRows, tuple[Any, NDArray[np.bool_]]] = {}

    def takes(self, rows: VectorRows) -> bool:
        """Return whether the rows of a segment have a graph."""
        return rows.count >= _LEAST

    def keep(self, rows: Collection[VectorRows]) -> None:
        """Forget the graphs of all other rows."""
        self._graphs = {each: graph for each, graph in self._graphs.items() if each in rows}

    async def search(self, seen: SeenRows, queries: NDArray[Any], k: int, probes: int) -> Found:
        """Find rows with large products with each query.

        One task at a time may search, with rows that were seen after those of the last one. Queries
        are (m, d); ``probes`` candidates are kept for each.
        """
        if seen.rows not in self._graphs:
            made = await in_worker(self._built, seen)
            self._graphs[seen.rows] = (made, np.ones(seen.count, np.bool_))
            self.made += 1
        graph, there = self._graphs[seen.rows]

        def search() -> Found:
            if seen.mask is not None:
                gone = np.flatnonzero(there & ~seen.mask)
                if len(gone):
                    graph.remove(gone.astype(np.uint64))
                    there[gone] = False
            graph.expansion_search = max(probes, k)
            asked = queries
            if self._metric == "dot":
                asked = np.pad(queries, ((0, 0), (0, 1)))
            found = graph.search(asked, min(k, int(there.sum())))
            counts = np.atleast_1d(getattr(found, "counts", len(found)))
            rows = np.asarray(found.keys).astype(np.int64).reshape(len(queries), -1)
            valid = np.arange(rows.shape[1]) < counts[:, None]
            rows = np.where(valid, rows, 0)
            values = _products(seen, self._metric, queries, rows)
            return np.where(valid, values, np.float32(-np.inf)), rows

        return await in_worker(search)

    def _built(self, seen: SeenRows) -> Any:
        vectors = prepared(seen.vectors, self._metric)
        if self._metric == "dot":
            vectors = _of_one_length(vectors)
        graph = self._make(
            ndim=vectors.shape[1],
            metric="ip" if self._metric == "cosine" else "l2sq",
            dtype=self._kind,
            connectivity=self.options.links,
            expansion_add=self.options.effort,
        )
        keys = np.arange(seen.count, dtype=np.uint64)
        graph.add(keys[:_ALONE], vectors[:_ALONE], threads=1)
        graph.add(keys[_ALONE:], vectors[_ALONE:])
        return graph


def _of_one_length(vectors: NDArray[Any]) -> NDArray[Any]:
    """Add a number to each vector, so that the nearest one has the largest product.

    Links are of little use between vectors that are long but not near to each other.
    """
    squares = lengths(vectors).astype(np.float64) ** 2
    more = np.sqrt(squares.max() - squares).astype(vectors.dtype)
    return np.concatenate([vectors, more[:, None]], axis=1)


def _products(
    seen: SeenRows, metric: Metric, queries: NDArray[Any], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return what exact search ranks rows by."""
    made = np.empty(rows.shape, np.float32)
    for number, (query, at) in enumerate(zip(queries, rows, strict=True)):
        near = prepared(seen.vectors[at], metric)
        made[number] = near.astype(np.float32) @ query.astype(np.float32)
        if metric == "l2":
            made[number] -= half_squares(near)
    return made
