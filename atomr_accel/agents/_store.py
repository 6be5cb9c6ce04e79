"""Vectors and payloads in a folder: sealed segments, and a tail that is written ahead.

    index.json       which files count, with the size and metric of vectors
    segment-3        ids, vectors, and the ids that it replaces or deletes in earlier segments
    tail-4           the log of all that came later
    payloads.sqlite  payloads by id; those of the tail are in the log, too

A change is in the log before it is acknowledged. Once the tail is long, its rows become a segment:
the segment is written, then ``index.json`` names it and a new log, and then the old log is removed.
So the files are whole at every moment. Functions that say so wait for files, and belong in a worker
thread; the others change memory, and belong in trio's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from ._errors import FilesDamaged, FilesForeign
from ._files import (
    FolderLock,
    WriteAheadLog,
    read_arrays,
    read_struct,
    write_arrays,
    write_struct,
    writes,
)
from ._payloads import PayloadTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

Metric = Literal["cosine", "dot", "l2"]
"""Measure of likeness: the cosine of the angle, the product, or the distance."""

_KIND: Final = "atomr-accel vector index 1"
_TAIL_ROWS: Final = 256


class VectorChange(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are set, or ids that are deleted: as in the log."""

    ids: list[int]
    vectors: bytes | None = None
    payloads: list[str | None] | None = None


class _Contents(msgspec.Struct, frozen=True):
    dimension: int
    metric: str
    dtype: str
    segments: tuple[str, ...]
    tail: str
    number: int


class VectorRows:
    """Rows that searches read: those of a sealed segment, or of the tail.

    Attributes:
        ids: int64 (n,), an id for each row.
        vectors: (n, d), read-only if the rows are sealed.
        live: bool (n,), false for rows that were replaced or deleted.
        count: rows that are filled; the arrays of a tail are longer.
        dead: how many of these are not live.
        changes: counts changes of ``live``.
    """

    def __init__(self, ids: NDArray[np.int64], vectors: NDArray[Any], *, count: int) -> None:
        self.ids = ids
        self.vectors = vectors
        self.live: NDArray[np.bool_] = np.ones(len(ids), np.bool_)
        self.count: int = count
        self.dead: int = 0
        self.changes: int = 0

    def kill(self, row: int) -> None:
        """Exclude a row from searches."""
        self.live[row] = False
        self.dead += 1
        self.changes += 1

    def append(self, ids: NDArray[np.int64], vectors: NDArray[Any]) -> None:
        """Add rows; longer arrays take the place of those that are full."""
        end = self.count + len(ids)
        if end > len(self.ids):
            room = max(end, 2 * len(self.ids))
            for name in ("ids", "vectors", "live"):
                old = getattr(self, name)
                new = np.ones((room, *old.shape[1:]), old.dtype)
                new[: self.count] = old[: self.count]
                setattr(self, name, new)
        self.ids[self.count : end] = ids
        self.vectors[self.count : end] = vectors
        self.count = end


class VectorStore:
    """Content of an index, in memory and in files.

    The folder is made if it is missing. Vectors are float32 or float16.
    """

    def __init__(self, folder: Path, dimension: int, metric: Metric, dtype: np.dtype[Any]) -> None:
        self.folder: Final = folder
        self.dimension: Final = dimension
        self.metric: Final = metric
        self.dtype: Final = dtype
        self.segments: list[VectorRows] = []
        self.tail: VectorRows = self._new_tail()
        self.syncs: int = 0
        self._names: list[str] = []
        self._number = 0
        self._where: dict[int, tuple[VectorRows, int]] = {}
        self._replaced: set[int] = set()
        self._log: WriteAheadLog
        self._payloads: PayloadTable
        self._lock: FolderLock

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: int) -> bool:
        return key in self._where

    def _new_tail(self) -> VectorRows:
        shape = (_TAIL_ROWS, self.dimension)
        return VectorRows(np.zeros(_TAIL_ROWS, np.int64), np.zeros(shape, self.dtype), count=0)

    # --- in a worker thread -----------------------------------------------------------------

    def open(self) -> None:
        """Read the files, or make new ones. It waits for files.

        Raises:
            ValueError: the files are of another dimension, metric or dtype.
        """
        with writes(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.folder)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        contents = self.folder / "index.json"
        new = not contents.exists()
        if new and any(not each.name.startswith(("payloads", "tail-")) for each in self._files()):
            raise FilesForeign(f"{self.folder} is a folder of other files; choose an empty one")
        if not new:
            found = read_struct(contents, _KIND, _Contents)
            self._check(found)
            self._names, self._number = [*found.segments], found.number
        self._payloads = PayloadTable(self.folder / "payloads.sqlite", old=not new)
        try:
            if new:
                self._payloads.synchronize()  # so that the file is there once index.json is
                self._log = WriteAheadLog(self.folder / "tail-0")
                self._log.create()
                self._write_contents(self._names, self._log.path.name, 0)
                return
            self._payloads.verify()
            for name in self._names:
                self._add_segment(read_arrays(self.folder / name))
            self._log = WriteAheadLog(self.folder / found.tail)
            self._log.open(self._again)
            self._remove_others()
        except BaseException:
            self._payloads.close()
            with suppress(AttributeError):
                self._log.close()
            raise

    def _check(self, found: _Contents) -> None:
        ours = {"dimension": self.dimension, "metric": self.metric, "dtype": self.dtype.name}
        for name, value in ours.items():
            there = getattr(found, name)
            if there != value:
                raise ValueError(f"{name} must be {there!r}, as in {self.folder}, not {value!r}")

    def _add_segment(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        try:
            ids, vectors, replaced = (arrays[name] for name in ("ids", "vectors", "replaced"))
        except KeyError as error:
            raise FilesDamaged(f"a segment in {self.folder} lacks its {error}") from None
        if vectors.shape != (len(ids), self.dimension) or vectors.dtype != self.dtype:
            raise FilesDamaged(f"a segment in {self.folder} is not of this index")
        for key in replaced.tolist():
            rows, row = self._where.pop(key, (None, 0))
            if rows is not None:
                rows.kill(row)
        segment = VectorRows(ids, vectors, count=len(ids))
        self.segments.append(segment)
        self._where.update((key, (segment, row)) for row, key in enumerate(ids.tolist()))

    def _again(self, body: bytes) -> None:
        """Do the changes of a frame of the log again."""
        try:
            changes = msgspec.msgpack.decode(body, type=list[VectorChange])
            self.apply(changes)
        except (msgspec.MsgspecError, ValueError) as error:
            raise FilesDamaged(f"{self._log.path} cannot be read: {error}") from error
        self._payloads.write(_payloads_of(changes))

    def _files(self) -> list[Path]:
        return [each for each in self.folder.iterdir() if not each.name.endswith(".unfinished")]

    def _remove_others(self) -> None:
        """Remove files of a step that the program's end cut off."""
        kept = {*self._names, self._log.path.name, "index.json"}
        for each in self.folder.iterdir():
            if each.name not in kept and each.name.startswith(("segment-", "tail-", "index.json")):
                each.unlink()

    def write_ahead(self, changes: Sequence[VectorChange]) -> None:
        """Make changes durable. It waits for files."""
        self._log.append(msgspec.msgpack.encode(changes))
        try:
            self._payloads.write(_payloads_of(changes))
        except BaseException:
            self._log.remove_last()
            raise
        self.syncs += 1

    def seal(self, ids: NDArray[np.int64], vectors: NDArray[Any], replaced: Iterable[int],
             *, alone: bool) -> str:  # fmt: skip
        """Write a segment, and begin a new log. It waits for files.

        Args:
            ids: int64 (n,).
            vectors: (n, d).
            replaced: ids of rows in earlier segments that do not count any more.
            alone: whether it takes the place of all earlier segments.

        Returns:
            Its name, for `sealed`.
        """
        number = self._number + 1
        name, tail = f"segment-{number}", WriteAheadLog(self.folder / f"tail-{number}")
        gone = np.fromiter(replaced, np.int64)
        try:
            write_arrays(self.folder / name, ids=ids, vectors=vectors, replaced=gone)
            self._payloads.synchronize()
            tail.create()
            self._write_contents([*([] if alone else self._names), name], tail.path.name, number)
        except BaseException:
            tail.close()
            for path in (self.folder / name, tail.path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise
        old, self._log, self._number = self._log, tail, number
        unused = [old.path, *((self.folder / each for each in self._names) if alone else ())]
        self._names = [*([] if alone else self._names), name]
        old.close()
        for path in unused:
            with suppress(OSError):  # removed when the folder is opened again
                path.unlink()
        return name

    def _write_contents(self, segments: Sequence[str], tail: str, number: int) -> None:
        contents = _Contents(
            self.dimension, self.metric, self.dtype.name, tuple(segments), tail, number
        )
        write_struct(self.folder / "index.json", _KIND, contents)

    def load(self, name: str) -> dict[str, NDArray[Any]]:
        """Map a file of arrays. It waits for files."""
        return read_arrays(self.folder / name)

    def write_payloads(self, changes: Sequence[tuple[int, str | None]]) -> None:
        """Write payloads of rows that become a segment at once. It waits for files."""
        self._payloads.write(changes)

    @property
    def payloads(self) -> PayloadTable:
        """The table of payloads, whose functions wait."""
        return self._payloads

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._payloads.close()
        self._lock.release()

    # --- in trio's thread -------------------------------------------------------------------

    def apply(self, changes: Sequence[VectorChange]) -> None:
        """Do changes in memory, once they are durable."""
        for change in changes:
            for key in change.ids:
                self._forget(key)
            if change.vectors is not None:
                start = self.tail.count
                vectors = np.frombuffer(change.vectors, self.dtype).reshape(-1, self.dimension)
                self.tail.append(np.array(change.ids, np.int64), vectors)
                self._where.update(
                    (key, (self.tail, row)) for row, key in enumerate(change.ids, start)
                )

    def _forget(self, key: int) -> None:
        rows, row = self._where.pop(key, (None, 0))
        if rows is not None:
            rows.kill(row)
            if rows is not self.tail:
                self._replaced.add(key)

    def sealing(self) -> tuple[NDArray[np.int64], NDArray[Any], set[int]]:
        """Return the arguments of `seal` for the tail."""
        live = self.tail.live[: self.tail.count]
        ids = self.tail.ids[: self.tail.count][live]
        return ids, self.tail.vectors[: self.tail.count][live], self._replaced

    def compacting(self) -> tuple[NDArray[np.int64], list[tuple[VectorRows, NDArray[np.intp]]]]:
        """Return the ids of all live rows, and where they are."""
        places = [
            (rows, np.flatnonzero(rows.live[: rows.count])) for rows in (*self.segments, self.tail)
        ]
        ids = [rows.ids[live] for rows, live in places]
        return np.concatenate(ids), places

    def sealed(self, arrays: Mapping[str, NDArray[Any]], *, alone: bool) -> None:
        """Use a segment in the place of the tail, and with ``alone`` of all earlier ones."""
        self.tail, self._replaced = self._new_tail(), set()
        ids, vectors = arrays["ids"], arrays["vectors"]
        segment = VectorRows(ids, vectors, count=len(ids))
        self.segments = [*([] if alone else self.segments), segment]
        self._where.update((key, (segment, row)) for row, key in enumerate(ids.tolist()))

    def place(self, key: int) -> tuple[VectorRows, int] | None:
        """Return where the row of an id is."""
        return self._where.get(key)


def _payloads_of(changes: Sequence[VectorChange]) -> list[tuple[int, str | None]]:
    last: dict[int, str | None] = {}
    for change in changes:
        texts = change.payloads or [None] * len(change.ids)
        last.update(zip(change.ids, texts, strict=True))
    return [*last.items()]
