"""Checkpoints of step graphs in SQLite, and in memory."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from ._errors import FilesDamaged, FilesFailed, FilesForeign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARK: Final = 0x61746173
"""SQLite's ``application_id`` of checkpoints: "atas"."""


class SavedStep(msgspec.Struct, frozen=True):
    """A run after a step, in the form for the file.

    Attributes:
        step: the number of steps so far.
        state: the encoded state.
        active: the nodes of the next step; none if the run has ended.
        arrived: nodes that have arrived at joins, by the join's number.
        updates: encoded updates of active nodes that are done already.
        asked: questions of active nodes, by their names, encoded.
        answers: encoded answers so far, by node.
    """

    step: int
    state: bytes
    active: list[str]
    arrived: dict[int, list[str]] = {}
    updates: dict[str, bytes] = {}
    asked: dict[str, bytes] = {}
    answers: dict[str, list[bytes]] = {}


class CheckpointTable:
    """Saved steps by thread. Its functions wait, and belong in a worker thread.

    Args:
        path: a file, made if it is missing; None keeps them in memory.

    Raises:
        FilesForeign: another program's file.
        FilesDamaged: it cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path: Final = ":memory:" if path is None else path
        with self._told():
            self._connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False
            )
            try:
                (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
                (tables,) = self._connection.execute(
                    "SELECT count(*) FROM sqlite_master"
                ).fetchone()
                if mark not in {0, _MARK} or (tables and mark != _MARK):
                    raise FilesForeign(f"{path} is a file of another program")
                self._connection.executescript(
                    f"PRAGMA application_id = {_MARK}; PRAGMA journal_mode = WAL;"
                    "PRAGMA synchronous = FULL;"
                    "CREATE TABLE IF NOT EXISTS steps (thread TEXT, step INTEGER,"
                    " data BLOB NOT NULL, PRIMARY KEY (thread, step)) WITHOUT ROWID;"
                )
            except BaseException:
                self._connection.close()
                raise

    def save(self, thread: str, saved: SavedStep) -> None:
        """Keep a step, durably; later ones of its thread are forgotten."""
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute(
                    "DELETE FROM steps WHERE thread = ? AND step > ?", (thread, saved.step)
                )
                self._connection.execute(
                    "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)",
                    (thread, saved.step, msgspec.msgpack.encode(saved)),
                )
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def load(self, thread: str, step: int | None = None) -> SavedStep | None:
        """Return a step of a thread, by default the last one; None if there is none."""
        with self._told():
            row = self._connection.execute(
                "SELECT data FROM steps WHERE thread = ? AND step = coalesce(?, step)"
                " ORDER BY step DESC LIMIT 1",
                (thread, step),
            ).fetchone()
        return None if row is None else self._decoded(row[0])

    def history(self, thread: str) -> list[SavedStep]:
        """Return all steps of a thread, in their order."""
        with self._told():
            rows = self._connection.execute(
                "SELECT data FROM steps WHERE thread = ? ORDER BY step", (thread,)
            ).fetchall()
        return [self._decoded(data) for (data,) in rows]

    def forget(self, thread: str) -> None:
        """Forget all steps of a thread."""
        with self._told():
            self._connection.execute("DELETE FROM steps WHERE thread = ?", (thread,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _decoded(self, data: bytes) -> SavedStep:
        try:
            return msgspec.msgpack.decode(data, type=SavedStep)
        except msgspec.MsgspecError as error:
            raise FilesDamaged(f"a step in {self._path} cannot be read: {error}") from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code == sqlite3.SQLITE_NOTADB:
                raise FilesForeign(f"{self._path} is not a file of checkpoints") from error
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT}:
                raise FilesDamaged(f"{self._path} cannot be read: {error}") from error
            raise FilesFailed(f"{self._path} cannot be used now: {error}") from error
