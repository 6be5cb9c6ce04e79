"""Journals in files of SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from ._entries import SCHEMA
from ._storage import JournalDamaged, JournalError, Record, Stored
from ._threaded import ThreadedStorage

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

_MARK: Final = 0x61746A6C
"""SQLite's ``application_id`` of a journal: "atjl"."""

_OURS_ALONE: Final = 0o600
"""Mode for the owner alone, because the file may have the program's arrays. Its log gets it too."""

_NO_DAMAGE: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
"""SQLite errors of files that may be intact."""

_TABLES: Final = f"""
    PRAGMA application_id = {_MARK};
    PRAGMA user_version = {SCHEMA};
    PRAGMA journal_mode = WAL;
    CREATE TABLE records (
        number INTEGER PRIMARY KEY, before BLOB NOT NULL, digest BLOB NOT NULL, data BLOB NOT NULL
    );
    CREATE TABLE contents (hash BLOB PRIMARY KEY, data BLOB NOT NULL, last INTEGER NOT NULL);
"""


@final
class SqliteStorage(ThreadedStorage):
    """A journal in a file, with a write-ahead log next to it while it is open.

    Each append is a transaction (``synchronous=NORMAL``), and survives the end of the program.
    After a power failure the last transactions may be missing, as a whole. Only the owner can read
    the file (mode 0600).

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path: Final = Path(path)

    def __repr__(self) -> str:
        return f"SqliteStorage({str(self.path)!r})"

    def _create(self) -> None:
        try:
            self.path.touch(mode=_OURS_ALONE, exist_ok=False)
        except FileExistsError:
            raise
        except OSError as error:
            raise JournalError(f"{self.path} cannot be written: {error}") from error
        try:
            self._connection = _connected(self.path)
            self._connection.executescript(_TABLES)
        except sqlite3.Error as error:
            self._unmake()
            raise JournalError(f"{self.path} cannot be written: {error}") from error

    def _unmake(self) -> None:
        self._close()
        for left in ("", "-journal", "-wal", "-shm"):  # the name is free again
            self.path.with_name(self.path.name + left).unlink(missing_ok=True)

    def _open(self) -> None:
        if not self.path.exists():
            raise FileNotFoundError(f"there is no journal {self.path}")
        if not self.path.is_file():
            raise JournalError(f"{self.path} is no journal: it is no file")
        with _damage_told(self.path):
            self._connection = _connected(self.path)
            (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
            (schema,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._connection.execute("PRAGMA query_only = ON")
        if mark != _MARK:
            raise JournalError(f"{self.path} is no journal")
        if schema != SCHEMA:
            raise JournalError(
                f"{self.path} is a journal of version {schema}, and this reads {SCHEMA}"
            )

    def _append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        connection = self._opened()
        last = {key: each.record.number for each in records for key in each.contents}
        with closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                cursor.executemany(
                    "UPDATE contents SET last = ? WHERE hash = ?",
                    [(number, key) for key, number in last.items()],
                )
                if first > 1:  # before the others, which take the room that this leaves
                    cursor.execute("DELETE FROM records WHERE 0 < number AND number < ?", (first,))
                    cursor.execute("DELETE FROM contents WHERE last < ?", (first,))
                cursor.executemany(
                    "INSERT OR IGNORE INTO contents VALUES (?, ?, ?)",
                    [(key, data, last[key]) for key, data in contents.items()],
                )
                cursor.executemany(
                    "INSERT INTO records VALUES (?, ?, ?, ?)", [each.record for each in records]
                )
                cursor.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")
                raise

    def _records(self) -> list[Record]:
        with _damage_told(self.path):
            rows = self._opened().execute(
                "SELECT number, before, digest, data FROM records ORDER BY number"
            )
            return [Record(number, *map(_bytes, others)) for number, *others in rows]

    def _content(self, key: bytes) -> bytes | None:
        with _damage_told(self.path):
            found = self._opened().execute("SELECT data FROM contents WHERE hash = ?", (key,))
            row = found.fetchone()
        return None if row is None else _bytes(row[0])


def _bytes(value: object) -> bytes:
    """Return the value of a bytes column; for other types b"", which no digest matches."""
    return value if isinstance(value, bytes) else b""


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise JournalError(f"{path} is no journal") from error
        if code in _NO_DAMAGE:
            raise JournalError(f"{path} cannot be read now: {error}") from error
        raise JournalDamaged(f"{path} cannot be read: {error}", record=0) from error


def _connected(path: Path) -> sqlite3.Connection:
    # One call at a time, but each perhaps in another thread.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection
