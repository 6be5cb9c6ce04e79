"""Digests of the rows of a durable cache, and the rows that a sequence keeps after a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ....memory import BlockView, RowDigests
from ....ops import Request, Submission, require_readable
from ...digests.lane import DIGESTS
from ...digests.wire.messages import Digest, RowRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ....arrays import GpuRef
    from ....memory import Epoch, MemoryMap, Rows
    from ....ops import Preparer

_MOST_ROWS: Final = 1 << 17
"""Rows that one op verifies at most, for an answer of 2 MiB."""


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows that ops are about to write to a cache, behind those of sequences.

    Attributes:
        lengths: rows of the sequences before, int32 (sequences,).
        table: pages of the sequences, int32 (sequences, columns), those of new rows too.
    """

    lengths: np.ndarray[Any, np.dtype[np.int32]]
    table: np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class RecoveredSequence:
    """Tokens of a sequence that are proven, and those that it has lost.

    Attributes:
        length: number of tokens that it has now, counted in its longest layer.
        lost: number of tokens that it had more before.
        changed: whether bytes of the first lost token have changed that no op has written.
            Otherwise its write was in flight, or an op has written it that did not say so.
    """

    length: int
    lost: int
    changed: bool


Held = tuple[tuple[int, ...], tuple[int, ...]]
"""Pages of a sequence, and its lengths in the layers."""


@final
class CacheDigests:
    """Digests of the rows of a cache's keys and values.

    Args:
        memory: the map of the device's memory.
        k, v: the cache's memory that survives, (layers, pages, page_size, kv_heads, size).

    Attributes:
        epoch: the epoch in which all rows of sequences are known to be there.
    """

    def __init__(self, memory: MemoryMap, k: GpuRef, v: GpuRef) -> None:
        self._refs: Final = (k, v)
        self._shape: Final = k.shape[:3]
        self.epoch = memory.epoch
        states: list[RowDigests] = []
        for ref, name in ((k, "k"), (v, "v")):
            require_readable(ref, memory, name)
            states.append(RowDigests(rows := int(np.prod(self._shape)), ref.nbytes // rows))
            memory.make_durable(ref.block, states[-1])
        self._states: Final = (states[0], states[1])

    def new_rows(self, layers: Iterable[int], lengths: Any, new: int, table: Any) -> Rows:
        """Return the numbers of ``new`` rows behind those of sequences."""
        size = self._shape[2]
        places = np.asarray(lengths, np.intp)[:, None] + np.arange(new)
        in_layer = np.take_along_axis(table.astype(np.intp), places // size, 1) * size
        in_layer += places % size
        return self.in_layers(in_layer.ravel(), layers)

    def in_layers(self, rows: Rows, layers: Iterable[int] | None = None) -> Rows:
        """Return the numbers of rows, given those in a layer; by default in all layers."""
        count, pages, size = self._shape
        chosen = range(count) if layers is None else layers
        return np.concatenate([rows + layer * pages * size for layer in chosen])

    def in_pages(self, pages: Sequence[int]) -> Rows:
        """Return the numbers of all rows in pages, in all layers."""
        layers, most, size = self._shape
        firsts = (np.arange(layers)[:, None] * most + np.asarray(pages, np.intp)) * size
        return (firsts[..., None] + np.arange(size)).ravel()

    def proven(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows have digests that prove them."""
        keys, values = self._states
        return keys.proven(rows) & values.proven(rows)

    def doubtful(self, copies: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows in copies of pages that need a digest, because their sources lack one."""
        sources, targets = (self.in_pages([each[at] for each in copies]) for at in (0, 1))
        doubtful: Rows = targets[~self.proven(sources)]
        return doubtful

    def copied(self, copies: Sequence[tuple[int, int]]) -> None:
        """Note copies of pages, which have the digests of their sources."""
        sources, targets = (self.in_pages([each[at] for each in copies]) for at in (0, 1))
        for state in self._states:
            state.copy(sources, targets)

    def declare(self, rows: Rows) -> None:
        """Let all ops that write to the cache write these rows alone, until ``withdraw``."""
        for state in self._states:
            state.declare(rows)

    def withdraw(self, rows: Rows) -> None:
        """Undo ``declare``."""
        for state in self._states:
            state.withdraw(rows)

    def scan(self, memory: MemoryMap, held: Mapping[int, Held]) -> CacheScan:
        """Return a comparison of all rows of sequences with their digests."""
        return CacheScan(memory.epoch, self._refs, self._states, held, self._rows_of(held))

    def scan_pages(self, memory: MemoryMap, filled: Any) -> CacheScan:
        """Return a comparison of the first rows of pages, ``filled`` of each."""
        used = np.arange(self._shape[2]) < np.asarray(filled)[:, None]
        rows = self.in_layers(np.flatnonzero(used))
        return CacheScan(memory.epoch, self._refs, self._states, {}, rows)

    def _rows_of(self, held: Mapping[int, Held]) -> Rows:
        used = np.zeros(self._shape, np.bool_)
        for pages, lengths in held.values():
            for layer, length in enumerate(lengths):
                whole, rest = divmod(length, self._shape[2])
                used[layer, pages[:whole]] = True
                if rest:
                    used[layer, pages[whole], :rest] = True
        return np.flatnonzero(used)


def say_rows(refs: Iterable[GpuRef], rows: Rows) -> None:
    """Note in views of a cache which rows the op writes that gets them."""
    for ref in refs:
        assert isinstance(ref.block, BlockView)
        ref.block.rows = rows


@final
class CacheScan:
    """A comparison of rows with their digests, in parts.

    Attributes:
        epoch: the epoch in which it was begun.
        held: the sequences that it is about.
    """

    def __init__(
        self,
        epoch: Epoch,
        refs: tuple[GpuRef, GpuRef],
        states: Sequence[RowDigests],
        held: Mapping[int, Held],
        rows: Rows,
    ) -> None:
        self.epoch: Final = epoch
        self.held: Final = held
        self._refs, self._states, self._rows = refs, states, rows
        self._good = np.ones(refs[0].shape[:3], np.bool_)
        self._changed = np.zeros(refs[0].shape[:3], np.bool_)

    def requests(self) -> list[Request[bool]]:
        """Return the requests that compare all rows."""
        parts = range(0, len(self._rows), _MOST_ROWS)
        return [
            Request(
                DIGESTS, "dnn.kv_verify", partial(self._prepare, self._rows[at : at + _MOST_ROWS])
            )
            for at in parts
        ]

    def _prepare(self, rows: Rows, _preparer: Preparer) -> Submission[bool]:
        # What is known now is compared: ops that come later may write.
        known = [(each.known(rows), each.proven(rows), each.pending(rows)) for each in self._states]

        def finish(found: bytes) -> bool:
            digests = np.frombuffer(found, "<u8").reshape(2, -1)
            for (expected, proven, pending), actual in zip(known, digests, strict=True):
                same = expected == actual
                self._good.reshape(-1)[rows] &= (proven & same) | pending
                self._changed.reshape(-1)[rows] |= proven & ~same
            return True

        ranges = [
            RowRange.of(ref.block.address, state.row_bytes, rows)
            for ref, state in zip(self._refs, self._states, strict=True)
        ]
        blocks = [ref.block for ref in self._refs]
        return Submission(Digest((), tuple(ranges)), blocks, (), finish=finish)

    def first_lost(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return for each page the first row that is not proven in all layers, or its size."""
        good = np.pad(self._good.all(0), ((0, 0), (0, 1)))
        first: np.ndarray[Any, np.dtype[np.int64]] = np.argmin(good, axis=1).astype(np.int64)
        return first

    def kept(self, sequence: int) -> tuple[int | None, bool]:
        """Return the first row of a sequence that is not proven, and whether it has changed.

        Returns:
            The row's place in the sequence; None if all rows are proven.
        """
        pages, lengths = self.held[sequence]
        layers = len(lengths)
        bad = ~self._good[:, pages].reshape(layers, -1)
        bad &= np.arange(bad.shape[1]) < np.asarray(lengths)[:, None]
        places = np.flatnonzero(bad.any(0))
        if not len(places):
            return None, False
        first = int(places[0])
        return first, bool(self._changed[:, pages].reshape(layers, -1)[bad[:, first], first].any())
