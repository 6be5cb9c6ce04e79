"""Whole numbers that a step needs on a device, and what the pages of a cache have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from .._errors import GpuRefStale
from ._steps import StepChoices

if TYPE_CHECKING:
    from ._steps import StepWork

Ints = npt.NDArray[np.int64]

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
    """Pages that slices read and write, all in one.

    Attributes:
        starts: first position of each slice.
        lengths: number of tokens of each slice.
        pages: the pages of each slice up to its end, one slice after the other.
        owners: the slice of each of these.
        places: its place among the slice's pages.
        written: whether the slice writes to it.
    """

    starts: Ints
    lengths: Ints
    pages: npt.NDArray[np.int32]
    owners: Ints
    places: Ints
    written: npt.NDArray[np.bool_]


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
        # Sequences of one step are those of the last one, as a rule, and their pages are the same.
        self._known: dict[int, tuple[tuple[int, ...], npt.NDArray[np.int32]]] = {}

    @property
    def filled(self) -> Ints:
        """The number of positions of each page that the cache has."""
        return self._filled.copy()

    def keep(self, kept: Ints) -> None:
        """Take note of the positions of each page that the cache has kept."""
        np.minimum(self._filled, kept, out=self._filled)

    def lose(self) -> None:
        """Take note that the cache has lost its content."""
        self._filled[:] = 0

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
        counts = -(-(starts + lengths) // size)
        parts = []
        known, self._known = self._known, {}
        for each, count in zip(work.slices, counts.tolist(), strict=True):
            kept = known.get(each.sequence)
            if kept is None or kept[0] is not each.pages:
                kept = each.pages, self._checked_pages(each.pages, count)
            elif len(each.pages) < count:
                self._checked_pages(each.pages, count)
            self._known[each.sequence] = kept
            parts.append(kept[1][:count])
        pages = np.concatenate(parts)
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(pages)) - np.repeat(np.cumsum(counts) - counts, counts)
        written = places >= (starts // size)[owners]
        times = np.bincount(pages[written], minlength=self._pages)
        bad = times[pages] != written
        if bad.any():
            raise ValueError(
                f"page {pages[int(bad.argmax())]} must not be written by a slice, and used by "
                "another or twice"
            )
        return PageUse(starts, lengths, pages, owners, places, written)

    def _checked_pages(self, pages: tuple[int, ...], count: int) -> npt.NDArray[np.int32]:
        made = np.array(pages, np.int64)
        if len(made) < count or (made < 0).any() or (made >= self._pages).any():
            raise ValueError(
                f"a slice that ends in its page {count} must have {count} pages from 0 to "
                f"{self._pages - 1}, not {pages}"
            )
        return made.astype(np.int32)

    def check_filled(self, use: PageUse, work: StepWork) -> None:
        """Check that the cache has all positions before the slices."""
        size = self._page_size
        before = np.minimum(use.starts[use.owners] - use.places * size, size)
        missing = self._filled[use.pages] < before
        if missing.any():
            each = work.slices[int(use.owners[int(missing.argmax())])]
            raise GpuRefStale(
                f"positions before {each.start} of sequence {each.sequence} must be in the "
                "cache; compute the sequence from its beginning"
            )

    def touch(self, use: PageUse, *, done: bool) -> None:
        """Note pages that are written: they have the content before a step, or the one after it."""
        ends = use.starts + use.lengths if done else use.starts
        left = ends[use.owners] - use.places * self._page_size
        filled = np.clip(left, 0, self._page_size)
        self._filled[use.pages[use.written]] = filled[use.written]

    def inputs(self, use: PageUse, work: StepWork, choices: StepChoices | None) -> StepInputs:
        """Return the numbers of a step.

        Args:
            use: the step's pages.
            work: the step.
            choices: for each row of logits, how to choose its token; None for the largest logits.
        """
        slices, lengths, size = work.slices, use.lengths, self._page_size
        owners = np.repeat(np.arange(len(slices)), lengths)
        firsts = np.cumsum(lengths) - lengths
        positions = np.arange(len(owners)) + (use.starts - firsts)[owners]
        columns = 1 << int(use.places.max()).bit_length()  # few sizes, so few recordings
        sequences = 1 << (len(slices) - 1).bit_length()
        tables = np.zeros((sequences, columns), np.int32)
        tables[use.owners, use.places] = use.pages
        total, places = self._placed(positions)
        rows = np.zeros((4, total), np.int32)
        rows[1:3] = -1
        rows[0, places] = self._tokens(work)
        rows[1, places] = positions
        rows[2, places] = tables[owners, positions // size] * size + positions % size
        rows[3, places] = owners
        wanted = np.array([each.every for each in slices])[owners]
        wanted[firsts + lengths - 1] |= [each.sample for each in slices]
        ends = np.flatnonzero(wanted)
        samples, sampled = self._placed(positions[ends])
        chosen = np.zeros(samples, np.int32)
        chosen[sampled] = places[ends]
        kinds = np.zeros((samples, CHOICE_INTS // 2), np.float64)
        if choices is not None:
            kinds[sampled] = choices
        numbers = [rows.ravel(), chosen, kinds.ravel().view(np.int32), tables.ravel()]
        single = len(owners) == len(slices)
        return StepInputs(np.concatenate(numbers), total, samples, columns, single, places, sampled)

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
