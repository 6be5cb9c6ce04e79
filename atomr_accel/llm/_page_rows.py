"""Pages of the slices of a step, kept from one step to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._steps import StepSlice

Ints = npt.NDArray[np.int64]

_NONE: Final[tuple[tuple[int, ...], npt.NDArray[np.int32]]] = ((), np.zeros(0, np.int32))
"""Pages of a sequence that is not known."""


@final
class PageRows:
    """The pages that each slice of the last step used: first those it only read, then others.

    A step mostly has the slices of the one before, one token further, so `update` looks only at
    pages that come or go.

    Attributes:
        table: the pages of each row, and zeros after them.
    """

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._given: list[tuple[int, ...]] = []
        # Rows move when sequences come and go, and their pages stay the same.
        self._known: dict[int, tuple[tuple[int, ...], npt.NDArray[np.int32]]] = {}
        none = np.zeros(0, np.int64)
        self._read = self._used = self._proven = none  # numbers of pages of each row
        self._readers = np.zeros(pages, np.int64)
        self.table: npt.NDArray[np.int32] = np.zeros((0, 0), np.int32)

    def update(self, slices: Sequence[StepSlice], read: Ints, used: Ints) -> None:
        """Take the slices of the next step.

        Args:
            slices: the slices.
            read: for each, how many pages it only reads.
            used: for each, how many pages it reads or writes.

        Raises:
            ValueError: a slice has too few pages, or one that does not exist.
        """
        given, before = [each.pages for each in slices], self._given
        if given == before and (read == self._read).all() and (used == self._used).all():
            return
        number, common = len(given), min(len(given), len(before))
        old = [_resized(each, number) for each in (self._read, self._used, self._proven)]
        # Rows go on if they have the pages that they had, and perhaps more.
        anew = (used < old[1]) | (read < old[0])
        anew[common:] = True
        for at, (pages, pages_before) in enumerate(zip(given, before, strict=False)):
            if pages is not pages_before:
                self._array(slices[at], int(used[at]))  # if all of them exist
                anew[at] |= pages[: len(pages_before)] != pages_before
        read_before, used_before, proven = (np.where(anew, 0, each) for each in old)
        writing = [
            (at, self._array(slices[at], int(used[at])))
            for at in np.flatnonzero(used > used_before).tolist()
        ]
        for at, array in writing:
            if len(array) < used[at]:
                raise self._wrong_pages(given[at], int(used[at]))
        gone = np.append(np.flatnonzero(anew[:common]), np.arange(number, len(before)))
        gone = gone[self._read[gone] > 0]
        np.subtract.at(self._readers, self._of(gone, 0 * gone, self._read[gone])[1], 1)
        self._make_room(number, int(used.max()))
        self.table[:number][anew] = 0
        for at, array in writing:
            self.table[at, used_before[at] : used[at]] = array[used_before[at] : used[at]]
        grown = np.flatnonzero(read > read_before)
        np.add.at(self._readers, self._of(grown, read_before[grown], read[grown])[1], 1)
        self._given, self._read, self._used, self._proven = given, read, used, proven
        if len(self._known) > 2 * number:
            kept = {each.sequence for each in slices}
            self._known = {key: each for key, each in self._known.items() if key in kept}

    @property
    def proven(self) -> bool:
        """True if all pages that rows only read are known to be filled."""
        return self._proven is self._read

    def unproven(self) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Return the pages that rows only read, and that are not known to be filled.

        Returns:
            for each the row, and the page.
        """
        rows = np.flatnonzero(self._proven < self._read)
        return self._of(rows, self._proven[rows], self._read[rows])

    def prove(self) -> None:
        """Take note that all pages that rows only read are filled."""
        self._proven = self._read

    def doubt(self) -> None:
        """Take note that pages are perhaps not filled any more."""
        self._proven = np.zeros_like(self._read)

    def read_among(self, pages: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return for each page whether a row only reads it."""
        return self._readers[pages] > 0

    def _of(self, rows: Ints, starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Return pages of rows, from a place to another, with the row of each."""
        owners, places = spread(ends - starts)
        return rows[owners], self.table[rows[owners], places + starts[owners]]

    def _make_room(self, number: int, width: int) -> None:
        if number > self.table.shape[0] or width > self.table.shape[1]:
            height, columns = (
                max(there, 1 << (wanted - 1).bit_length())
                for there, wanted in zip(self.table.shape, (number, width), strict=True)
            )
            table = np.zeros((height, columns), np.int32)
            table[: self.table.shape[0], : self.table.shape[1]] = self.table
            self.table = table

    def _array(self, each: StepSlice, used: int) -> npt.NDArray[np.int32]:
        """Return the pages of a slice, all of which exist."""
        pages = each.pages
        before, array = self._known.get(each.sequence, _NONE)
        if before is not pages:
            same = len(before) if pages[: len(before)] == before else 0
            added = pages[same:]
            if added and not 0 <= min(added) <= max(added) < self._pages:
                raise self._wrong_pages(pages, used)
            array = np.concatenate((array[:same], np.array(added, np.int32)))
            self._known[each.sequence] = pages, array
        return array

    def _wrong_pages(self, pages: tuple[int, ...], used: int) -> ValueError:
        return ValueError(
            f"a slice that ends in its page {used} must have {used} pages from 0 to "
            f"{self._pages - 1}, not {pages}"
        )


def _resized(numbers: Ints, length: int) -> Ints:
    """Return the first numbers, or all with zeros after them."""
    resized = np.zeros(length, np.int64)
    resized[: len(numbers)] = numbers[:length]
    return resized


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Return for each thing its owner and its place, where each owner has one at least."""
    owners, total = np.arange(len(counts)), int(counts.sum())
    if total == len(counts):  # one each, as in a step of decoding
        return owners, np.zeros(total, np.int64)
    return owners.repeat(counts), np.arange(total) - (counts.cumsum() - counts).repeat(counts)
