"""Digests of memory that is written row by row, as the program keeps them. No device and no I/O.

A cache of tokens is written in single rows, and loses single rows. So each row has a digest of its
own, and needs no check before a write: no digest covers bytes that an op has not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Rows = np.ndarray[Any, np.dtype[np.intp]]
"""Numbers of rows."""

_NO_ROWS: Final[Rows] = np.empty(0, np.intp)
_PROVEN: Final = -1
_UNKNOWN: Final = 0
_MOST_ASKED: Final = 2**31 - 2


@final
class DeclaredRows:
    """Rows that ops write which do not say themselves which rows they write.

    Attributes:
        rows: the rows.
        doubtful: whether one of these ops has not written, which may be the one that was to.
    """

    __slots__ = ("doubtful", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows: Final = rows
        self.doubtful = False


@final
class RowProof:
    """Digests of rows that were asked for.

    Attributes:
        rows: the rows, in the order of their digests.
        number: the number of the question, which the rows have until a later write.
        declared: what says that the op writes the rows, unless it does itself.
    """

    __slots__ = ("declared", "number", "rows")

    def __init__(self, rows: Rows, number: int, declared: Sequence[DeclaredRows] = ()) -> None:
        self.rows: Final = rows
        self.number: Final = number
        self.declared: Final = declared

    @property
    def count(self) -> int:
        """Number of digests."""
        return len(self.rows)


@final
class RowDigests:
    """Knowledge of a durable block: a digest of each row, and which rows are proven.

    Args:
        rows: number of rows.
        row_bytes: bytes of a row.

    Attributes:
        row_bytes: bytes of a row.
        lost: the reason why the block is not usable any more; empty while it is.
    """

    in_flight: Final = False
    """A write in flight loses rows, not the block."""

    __slots__ = ("_declared", "_known", "_marks", "_number", "lost", "row_bytes")

    def __init__(self, rows: int, row_bytes: int) -> None:
        self.row_bytes: Final = row_bytes
        self.lost: str = ""
        self._known = np.zeros(rows, "<u8")
        # Of each row: proven, unknown, or the number of the question that is going to prove it.
        self._marks = np.zeros(rows, np.int32)
        self._number = 0
        self._declared: list[DeclaredRows] = []

    def declare(self, rows: Rows) -> None:
        """Let all ops that write by the whole block, or by a view, write these rows alone."""
        self._marks[rows] = _UNKNOWN
        self._declared.append(DeclaredRows(rows))

    def withdraw(self, rows: Rows) -> None:
        """Undo ``declare``."""
        self._declared = [each for each in self._declared if each.rows is not rows]

    def proof_of(self, begin: int, end: int, rows: Rows | None) -> RowProof | None:
        """Note a write; return the proof to ask for.

        Args:
            begin: offset of the first byte that the op may write.
            end: offset behind the last one.
            rows: the rows that it writes; None if it does not say, and has those declared.

        Returns:
            The proof. None if nothing says which rows are written: then no row is proven any more
            that the bytes cover.
        """
        first, last = begin // self.row_bytes, -(-end // self.row_bytes)
        declared: list[DeclaredRows] = []
        if rows is None:
            declared = list(self._declared)
            within = [each.rows[(first <= each.rows) & (each.rows < last)] for each in declared]
            rows = np.concatenate(within) if within else _NO_ROWS
            if not len(rows):
                self._marks[first:last] = _UNKNOWN
        if not len(rows):
            return None
        self._number = self._number % _MOST_ASKED + 1
        self._marks[rows] = self._number
        return RowProof(rows, self._number, declared)

    def take(self, proof: RowProof, found: bytes) -> None:
        """Take the digests of a proof, except of rows that were written again since."""
        if any(each.doubtful for each in proof.declared):
            self.refuse(proof)
            return
        latest = self._marks[proof.rows] == proof.number
        rows = proof.rows[latest]
        self._known[rows] = np.frombuffer(found, "<u8")[latest]
        self._marks[rows] = _PROVEN

    def refuse(self, proof: RowProof) -> None:
        """Let a proof prove nothing, because its op was withdrawn or has failed.

        Other ops that write the same declared rows prove nothing either.
        """
        self._marks[proof.rows[self._marks[proof.rows] == proof.number]] = _UNKNOWN
        for each in proof.declared:
            each.doubtful = True

    def copy(self, sources: Rows, targets: Rows) -> None:
        """Note that an op copies rows. Copies of proven rows must have the same digests."""
        self._known[targets] = self._known[sources]
        proven = self._marks[sources] == _PROVEN
        self._marks[targets] = np.where(proven, _PROVEN, _UNKNOWN)

    def proven(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows have a digest that proves them."""
        return self._marks[rows] == _PROVEN  # type: ignore[no-any-return]

    def part(
        self, first: int, last: int
    ) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return the digests of rows that follow each other, and which of them prove the rows.

        The digests are no copy: the answers of later ops change them.
        """
        return self._known[first:last], self._marks[first:last] == _PROVEN

    def pending(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return of which rows the digest is on its way."""
        return self._marks[rows] > _UNKNOWN

    def known(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return a copy of the digests of rows."""
        return self._known[rows]

    def settle(self) -> None:
        """Forget proofs that a fault has left without an answer; their rows are unknown."""
        self._marks[self._marks > _UNKNOWN] = _UNKNOWN
