"""SQLite files whose rows have checksums, as payloads, passages and checkpoints are kept."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from ..patterns import Closed
from ._errors import FilesDamaged, FilesFailed, FilesForeign, FilesInUse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AT_ONCE: Final = 500
"""Parameters of one statement; SQLite may allow no more than 999."""
_VERSION: Final = 2
_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}


def checksum(*values: Any) -> int:
    """Return the CRC-32 of a row's values, which belongs in a column of its own."""
    return zlib.crc32(msgspec.msgpack.encode(values))


class CheckedTables:
    """A SQLite file. Its functions wait, and belong in a worker thread, one at a time.

    Args:
        path: the file, made if it is missing; None keeps it in memory.
        old: whether the file must be there already.

    Raises:
        FilesForeign: another program's file, or one of another version.
        FilesDamaged: it cannot be read, or is missing.
        FilesInUse: it is open elsewhere, if only one block at a time may have it open.
        FilesFailed: the file system refused.
    """

    _mark: ClassVar[int]
    """SQLite's ``application_id`` of the file."""
    _what: ClassVar[str]
    _alone: ClassVar[bool]
    """True if one connection at a time may have the file open."""
    _synchronous: ClassVar[str] = "FULL"
    _schema: ClassVar[str]

    def __init__(self, path: Path | None, *, old: bool = False) -> None:
        self._path: Final = ":memory:" if path is None else path
        self._is_closed = False
        with self._told():
            self._connection = sqlite3.connect(
                self._path,
                timeout=0.0 if self._alone else 5.0,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._connection.create_function("checksum", -1, checksum, deterministic=True)
                self._prepare(old)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, old: bool) -> None:
        if self._alone:
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        mark, version, tables = (
            self._connection.execute(question).fetchone()[0]
            for question in (
                "PRAGMA application_id", "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )  # fmt: skip
        if not tables and old:
            raise FilesDamaged(f"{self._path} is empty or missing; restore it from a copy")
        if (tables and mark != self._mark) or mark not in {0, self._mark}:
            raise FilesForeign(f"{self._path} is a file of another program")
        if tables and version != _VERSION:
            raise FilesForeign(f"{self._path} is of version {version}, and this reads {_VERSION}")
        self._connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {self._synchronous};"
        )
        if not tables:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; PRAGMA application_id = {self._mark};"
                f"PRAGMA user_version = {_VERSION}; {self._schema} COMMIT;"
            )

    def close(self) -> None:
        """Close the file. Later calls are `Closed`."""
        self._is_closed = True
        self._connection.close()

    def _checked(self, check: int, *values: Any) -> None:
        """Compare a row with its checksum."""
        if checksum(*values) != check:
            raise FilesDamaged(f"a row in {self._path} does not fit its checksum")

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Do several statements, or none of them."""
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise errors of SQLite as those of files."""
        if self._is_closed:
            raise Closed(f"the block that had {self._what} open was left")
        try:
            yield
        except UnicodeDecodeError as error:  # SQLite's message quotes what it cannot read
            raise FilesDamaged(f"{self._path} cannot be read: {error}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code == sqlite3.SQLITE_NOTADB:
                raise FilesForeign(f"{self._path} is not a file of {self._what}") from error
            if code in _DAMAGED:
                raise FilesDamaged(f"{self._path} cannot be read: {error}") from error
            if code in _BUSY and self._alone:
                raise FilesInUse(f"{self._path} is open in another block or program") from error
            raise FilesFailed(f"{self._path} cannot be used now: {error}") from error
