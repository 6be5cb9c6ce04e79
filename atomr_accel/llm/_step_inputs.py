"""Whole numbers that a step needs on a device, and what the pages of a cache have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from .._errors import GpuRefStale
from ._page_rows import Ints, PageRows, spread
from ._steps import StepChoices

if TYPE_CHECKING:
    from ._steps import StepWork

CHOICE_INTS: Final = 4
"""int32 numbers of a row of `StepChoices`."""


class RowPlan(NamedTuple):
    """Places of tokens among the rows of products.

    Attributes:
        total: number of rows, a multiple of a tile's.
        places: the row of each token.
    """

    total: int
    places: Ints


class StepInputs(NamedTuple):
    """Whole numbers of a step, in one buffer on the device.

    Attributes:
        numbers: int32: the token, position, slot and slice of each row, then rows to sample, then
            their choices, then the pages of slices.
        total: number of rows.
        samples: number of rows to sample, with padding.
        columns: pages of a slice.
        single: whether each slice is one token.
        places: the row of each token.
        sampled: for each row of logits that is wanted, its row among those.
    """

    numbers: npt.NDArray[np.int32]
    total: int
    samples: int
    columns: int
    single: bool
    places: Ints
    sampled: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of a step. Steps of one shape are the same ops on other numbers."""
        return self.total, self.samples, self.columns, int(self.single), len(self.numbers)

    @property
    def slots(self) -> Ints:
        """The place of each token in the cache: its page times ``page_size``, plus its row."""
        return self.numbers[2 * self.total : 3 * self.total][self.places].astype(np.int64)


class PageUse(NamedTuple):
    """Pages that slices read and write.

    Attributes:
        starts: first position of each slice.
        lengths: number of tokens of each slice.
        tables: the pages of each slice up to its end, and zeros after them.
        written: the pages that are written.
        owners: the slice of each of these.
        before: how many positions each of them has before the step.
        after: how many it has after the step.
    """

    starts: Ints
    lengths: Ints
    tables: npt.NDArray[np.int32]
    written: npt.NDArray[np.int32]
    owners: Ints
    before: Ints
    after: Ints


@final
class PagedSteps:
    """Steps of a paged cache: checks of them, and their numbers."""

    def __init__(
        self, *, pages: int, page_size: int, vocabulary: int, context: int, tile: int, fixed: bool
    ) -> None:
        self._pages: Final = pages
        self._page_size: Final = page_size
        self._vocabulary: Final = vocabulary
        self._context: Final = context
        self._tile: Final = tile
        self._fixed: Final = fixed
        self._filled: Final = np.zeros(pages, np.int64)
        self._rows: Final = PageRows(pages)

    @property
    def filled(self) -> Ints:
        """The number of positions of each page that the cache has."""
        return self._filled.copy()

    def keep(self, kept: Ints) -> None:
        """Take note of the positions of each page that the cache has kept."""
        np.minimum(self._filled, kept, out=self._filled)
        self._rows.doubt()

    def lose(self) -> None:
        """Take note that the cache has lost its content."""
        self._filled[:] = 0
        self._rows.doubt()

    def use(self, work: StepWork) -> PageUse:
        """Check that tokens, positions and pages exist, and that pages are written by one slice."""
        if not work.slices:
            raise ValueError("work must have one slice at least, not none")
        size = self._page_size
        starts = np.array([each.start for each in work.slices], np.int64)
        lengths = np.array([len(each.tokens) for each in work.slices], np.int64)
        wrong = (lengths < 1) | (starts < 0) | (starts + lengths > self._context)
        if wrong.any():
            each = work.slices[int(wrong.argmax())]
            raise ValueError(
                f"a slice must have tokens at positions from 0 to {self._context - 1}, not "
                f"{len(each.tokens)} from {each.start}"
            )
        rows = self._rows
        read = starts // size
        used = (starts + lengths + (size - 1)) // size
        rows.update(work.slices, read, used)
        tables = rows.table[: len(starts), : int(used.max())].copy()
        owners, places = spread(used - read)
        places += read[owners]
        written = tables[owners, places]
        ordered = np.sort(written)
        bad = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(bad):
            bad = written[rows.read_among(written)]
        if len(bad):
            raise ValueError(
                f"page {bad[0]} must not be written by a slice, and used by another or twice"
            )
        firsts = places * size
        before = np.maximum(starts[owners] - firsts, 0)
        after = np.minimum((starts + lengths)[owners] - firsts, size)
        return PageUse(starts, lengths, tables, written, owners, before, after)

    def check_filled(self, use: PageUse, work: StepWork) -> None:
        """Check that the cache has all positions before the slices."""
        rows = self._rows
        missing = use.owners[self._filled[use.written] < use.before]
        if not rows.proven:
            owners, pages = rows.unproven()
            missing = np.append(missing, owners[self._filled[pages] < self._page_size])
        if len(missing):
            each = work.slices[int(missing.min())]
            raise GpuRefStale(
                f"positions before {each.start} of sequence {each.sequence} must be in the "
                "cache; compute the sequence from its beginning"
            )
        rows.prove()

    def touch(self, use: PageUse, *, done: bool) -> None:
        """Note pages that are written: they have the content before a step, or the one after it."""
        self._filled[use.written] = use.after if done else use.before
        if self._rows.read_among(use.written).any():  # another step has begun meanwhile
            self._rows.doubt()

    def inputs(self, use: PageUse, work: StepWork, choices: StepChoices | None) -> StepInputs:
        """Return the numbers of a step.

        Args:
            use: the step's pages.
            work: the step.
            choices: for each row of logits, how to choose its token; None for the largest logits.
        """
        slices, lengths, size = work.slices, use.lengths, self._page_size
        owners, offsets = spread(lengths)
        positions = use.starts[owners] + offsets
        pages, inside = np.divmod(positions, size)
        number, used = use.tables.shape
        columns = 1 << (used - 1).bit_length()  # few sizes, so few recordings
        sequences = 1 << (number - 1).bit_length()
        total, places = self._placed(positions)
        wanted = np.array([each.every for each in slices])[owners]
        wanted[lengths.cumsum() - 1] |= [each.sample for each in slices]
        ends = np.flatnonzero(wanted)
        samples, sampled = self._placed(positions[ends])
        before = 4 * total + samples + CHOICE_INTS * samples
        numbers = np.zeros(before + sequences * columns, np.int32)
        rows = numbers[: 4 * total].reshape(4, total)
        rows[1:3] = -1
        rows[0, places] = self._tokens(work)
        rows[1, places] = positions
        rows[2, places] = use.tables[owners, pages] * np.int64(size) + inside
        rows[3, places] = owners
        numbers[4 * total :][sampled] = places[ends]
        if choices is not None:
            kinds = numbers[4 * total + samples : before].view(np.float64)
            kinds.reshape(samples, CHOICE_INTS // 2)[sampled] = choices
        numbers[before:].reshape(sequences, columns)[:number, :used] = use.tables
        single = len(owners) == number
        return StepInputs(numbers, total, samples, columns, single, places, sampled)

    def _tokens(self, work: StepWork) -> Ints:
        tokens = np.array([token for each in work.slices for token in each.tokens], np.int64)
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise ValueError(
                f"tokens must be from 0 to {self._vocabulary - 1}, not {tokens.min()} or "
                f"{tokens.max()}"
            )
        return tokens

    def _placed(self, positions: Ints) -> RowPlan:
        """Place tokens in tiles: with ``fixed`` each at the row that its position has in a tile."""
        tile = self._tile
        if not self._fixed:
            return RowPlan(-(-len(positions) // tile) * tile, np.arange(len(positions)))
        inside = positions % tile
        order = np.argsort(inside, kind="stable")
        counts = np.bincount(inside, minlength=tile)
        ranks = np.empty(len(positions), np.int64)
        ranks[order] = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return RowPlan(int(counts.max(initial=0)) * tile, ranks * tile + inside)
