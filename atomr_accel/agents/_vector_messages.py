"""Results of vector indexes, and the messages that they take as actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..actors import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Matches:
    """The nearest vectors, nearest first.

    Attributes:
        ids: int64 (k,), or (m, k) for m queries. Shorter for one query if there are fewer; for
            several, missing ids are -1.
        scores: float32, as many. Cosines or products, which descend, or distances, which ascend.
    """

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """A vector with its payload.

    Attributes:
        id: its id.
        vector: (d,), the inserted one in the dtype of the index.
        payload: the payload, or None.
    """

    id: int
    vector: NDArray[Any]
    payload: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIndexStatistics:
    """Statistics of a vector index, at one moment.

    Attributes:
        vectors: vectors that searches can find.
        dead: rows that were replaced or deleted, and take room until `VectorIndex.compact`.
        segments: sealed segments.
        tail: rows after the last segment.
        searches: queries that were answered.
        changes: inserts, updates and deletes that were acknowledged.
        unsealed: how often the file system refused a new segment. The tail stays, and the next
            change tries again.
        syncs: synchronizations of the log, each for one change or several.
        uploads: copies of rows to the device that began anew, because rows or the device were new.
        trained: how often lists or graphs for approximate search were made.
        waiting: calls that wait for their answer.
    """

    vectors: int
    dead: int
    segments: int
    tail: int
    searches: int
    changes: int
    unsealed: int
    syncs: int
    uploads: int
    trained: int
    waiting: int


class InsertVectors(Message[None]):
    """Insert vectors by message; see `VectorIndex.insert`."""

    ids: Any
    vectors: Any
    payloads: Any = None


class UpdateVectors(Message[None]):
    """Replace vectors by message; see `VectorIndex.update`."""

    ids: Any
    vectors: Any
    payloads: Any = None


class DeleteVectors(Message[None]):
    """Delete vectors by message; see `VectorIndex.delete`."""

    ids: Any


class SearchVectors(Message[Matches]):
    """Search by message; see `VectorIndex.search`."""

    query: Any
    k: int = 10
    where: Mapping[str, Any] | None = None
    probes: int | None = None


class GetVectors(Message[list[VectorEntry]]):
    """Look vectors up by message; see `VectorIndex.get`."""

    ids: Any
