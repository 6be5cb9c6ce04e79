"""Digests of the rows of a durable cache, and the rows that a sequence keeps after a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ....memory import BlockView, RowDigests
from ....ops import Request, Submission, require_readable
from ...digests.lane import DIGESTS
from ...digests.wire.digest import sums_of
from ...digests.wire.messages import SUM_ROWS, Digest, RowRange, RowSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ....arrays import GpuRef
    from ....memory import Epoch, MemoryMap, Rows
    from ....ops import Preparer
    from .sequences import PagedSequence

_MOST_ROWS: Final = 1 << 17
"""Rows that one op compares one by one at most, for an answer of 2 MiB."""

_MOST_SUMMED: Final = 1 << 26
"""Rows whose sums one op compares at most, for a message of 16 MiB and an answer of 4 MiB."""

_PIECE: Final = 1 << 19
"""Number of rows in a step of the program's sums; its temporary arrays stay in the CPU's cache."""

_NO_ROWS: Final[Rows] = np.empty(0, np.intp)


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


Held = tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[np.intp]]]
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
        self.epoch: Epoch = memory.epoch
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

    def scan(self, memory: MemoryMap, held: Mapping[int, PagedSequence]) -> CacheScan:
        """Return a comparison of all rows of sequences with their digests."""
        layers, count, size = self._shape
        filled = np.zeros((layers, count), np.int32)
        counts = np.array([len(each.pages) for each in held.values()], np.intp)
        ends = np.cumsum(counts)
        pages = np.fromiter(
            chain.from_iterable(each.pages for each in held.values()), np.intp, counts.sum()
        )
        lengths = np.array([each.lengths for each in held.values()], np.intp).reshape(-1, layers)
        places = np.arange(len(pages)) - np.repeat(ends - counts, counts)
        for used, of_layer in zip(filled, lengths.T, strict=True):
            own = np.clip(np.repeat(of_layer, counts) - size * places, 0, size)
            np.maximum.at(used, pages, own.astype(np.int32))
        each_pages = np.split(pages, ends)  # the last part is empty
        kept = dict(zip(held, zip(each_pages, lengths, strict=False), strict=True))
        return CacheScan(memory.epoch, self._refs, self._states, kept, filled)

    def scan_pages(self, memory: MemoryMap, filled: Any) -> CacheScan:
        """Return a comparison of the first rows of pages, ``filled`` of each."""
        in_layers = np.broadcast_to(np.asarray(filled), self._shape[:2])
        return CacheScan(memory.epoch, self._refs, self._states, {}, in_layers)


def say_rows(refs: Iterable[GpuRef], rows: Rows) -> None:
    """Note in views of a cache which rows the op writes that gets them."""
    for ref in refs:
        assert isinstance(ref.block, BlockView)
        ref.block.rows = rows


@final
class CacheScan:
    """A comparison of rows with their digests.

    Sums of digests are compared first, and single rows where these differ.

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
        filled: np.ndarray[Any, Any],
    ) -> None:
        self.epoch: Final = epoch
        self.held: Final = held
        self._refs, self._states = refs, states
        self._shape: Final = refs[0].shape[:3]
        places = np.arange(self._shape[2], dtype=np.int32)
        self._used: Final = (places < filled.astype(np.int32)[..., None]).reshape(-1)
        self._lost: Final = np.zeros(len(self._used), np.bool_)
        self._changed: Final = np.zeros(len(self._used), np.bool_)
        self._doubtful: Final[list[Rows]] = []

    def requests(self) -> Iterator[Request[bool]]:
        """Yield the requests that compare all rows, each after those before it have an answer."""
        for first in range(0, len(self._used), _MOST_SUMMED):
            yield Request(DIGESTS, "dnn.kv_verify", partial(self._sum, first))
        for rows in self._doubtful:
            for at in range(0, len(rows), _MOST_ROWS):
                part = rows[at : at + _MOST_ROWS]
                yield Request(DIGESTS, "dnn.kv_verify_rows", partial(self._compare, part))

    def _sum(self, first: int, _preparer: Preparer) -> Submission[bool]:
        # What is known now is compared: ops that come later may write.
        last = min(first + _MOST_SUMMED, len(self._used))
        known = [self._known(state, first, last) for state in self._states]
        expected = [sums for _, sums, _ in known]

        def finish(found: bytes) -> bool:
            differ = (np.frombuffer(found, "<u8").reshape(2, -1) != expected).any(0)
            for _, _, lost in known:
                self._lost[lost] = True
            begins = first + np.flatnonzero(differ) * SUM_ROWS
            rows = (begins[:, None] + np.arange(SUM_ROWS)).reshape(-1)
            rows = rows[rows < last]
            self._doubtful.append(rows[self._used[rows]])
            return True

        sums = [
            RowSums(ref.block.address + first * state.row_bytes, state.row_bytes, mask)
            for ref, state, (mask, _, _) in zip(self._refs, self._states, known, strict=True)
        ]
        blocks = [ref.block for ref in self._refs]
        return Submission(Digest((), (), tuple(sums)), blocks, (), finish=finish)

    def _known(
        self, state: RowDigests, first: int, last: int
    ) -> tuple[bytes, np.ndarray[Any, np.dtype[np.uint64]], Rows]:
        """Return the mask of rows that are used and proven, their sums, and the rows not proven."""
        masks, sums, lost = [], [], [_NO_ROWS]
        for at in range(first, last, _PIECE):
            end = min(at + _PIECE, last)
            known, asked = state.part(at, end)
            used = self._used[at:end]
            unproven = used & ~asked
            if unproven.any():
                rows = at + np.flatnonzero(unproven)
                lost.append(rows[~state.pending(rows)])
            asked &= used
            if short := -len(asked) % SUM_ROWS:
                known, asked = np.pad(known, (0, short)), np.pad(asked, (0, short))
            masks.append(np.packbits(asked, bitorder="little"))
            sums.append(sums_of(known, masks[-1]))
        return np.concatenate(masks).tobytes(), np.concatenate(sums), np.concatenate(lost)

    def _compare(self, rows: Rows, _preparer: Preparer) -> Submission[bool]:
        known = [(each.known(rows), each.proven(rows), each.pending(rows)) for each in self._states]

        def finish(found: bytes) -> bool:
            digests = np.frombuffer(found, "<u8").reshape(2, -1)
            for (expected, proven, pending), actual in zip(known, digests, strict=True):
                same = expected == actual
                self._lost[rows] |= ~((proven & same) | pending)
                self._changed[rows] |= proven & ~same
            return True

        ranges = [
            RowRange.of(ref.block.address, state.row_bytes, rows)
            for ref, state in zip(self._refs, self._states, strict=True)
        ]
        blocks = [ref.block for ref in self._refs]
        return Submission(Digest((), tuple(ranges)), blocks, (), finish=finish)

    def first_lost(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return for each page the first used row that is lost in any layer, or its size."""
        _, pages, size = self._shape
        first = np.full(pages, size, np.int64)
        rows = np.flatnonzero(self._lost)
        np.minimum.at(first, rows // size % pages, rows % size)
        return first

    @cached_property
    def _with_loss(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which pages have lost rows, once all requests have an answer."""
        return self.first_lost() < self._shape[2]

    def kept(self, sequence: int) -> tuple[int | None, bool]:
        """Return the first row of a sequence that is not proven, and whether it has changed.

        Returns:
            The row's place in the sequence; None if all rows are proven.
        """
        pages, lengths = self.held[sequence]
        if not self._with_loss[pages].any():
            return None, False
        layers = len(lengths)
        bad = self._lost.reshape(self._shape)[:, pages].reshape(layers, -1)
        bad &= np.arange(bad.shape[1]) < lengths[:, None]
        places = np.flatnonzero(bad.any(0))
        if not len(places):
            return None, False
        first = int(places[0])
        changed = self._changed.reshape(self._shape)[:, pages].reshape(layers, -1)
        return first, bool(changed[bad[:, first], first].any())
