"""Checkpoints of step graphs in SQLite, and in memory."""

from __future__ import annotations

import os
from typing import final

import msgspec

from ._errors import FilesDamaged, ThreadBusy
from ._tables import CheckedTables, checksum


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


@final
class CheckpointTable(CheckedTables):
    """Saved steps by thread; see `CheckedTables`. Several programs may have it open."""

    _mark = 0x61746173  # "atas"
    _what = "checkpoints"
    _alone = False
    _schema = (
        "CREATE TABLE IF NOT EXISTS steps (thread TEXT, step INTEGER, data BLOB NOT NULL,"
        " checked INTEGER NOT NULL, PRIMARY KEY (thread, step)) WITHOUT ROWID;"
        "CREATE TABLE IF NOT EXISTS runs (thread TEXT PRIMARY KEY, run BLOB NOT NULL);"
    )

    def begin(self, thread: str, saved: SavedStep | None = None) -> bytes:
        """Begin a run of a thread; those that other programs have of it keep nothing more.

        Args:
            thread: its name.
            saved: the step to begin with, in place of all that are kept; None to go on.

        Returns:
            The run, for `save`.
        """
        run = os.urandom(16)
        with self._change() as connection:
            connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (thread, run))
            if saved is not None:
                connection.execute("DELETE FROM steps WHERE thread = ?", (thread,))
                self._put(thread, saved)
        return run

    def save(self, thread: str, saved: SavedStep, run: bytes) -> None:
        """Keep a step, durably; later ones of its thread are forgotten."""
        with self._change() as connection:
            found = connection.execute("SELECT run FROM runs WHERE thread = ?", (thread,))
            if found.fetchone() != (run,):
                raise ThreadBusy(f"another program has the thread {thread!r} now")
            connection.execute(
                "DELETE FROM steps WHERE thread = ? AND step > ?", (thread, saved.step)
            )
            self._put(thread, saved)

    def _put(self, thread: str, saved: SavedStep) -> None:
        data = msgspec.msgpack.encode(saved)
        self._connection.execute(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?)",
            (thread, saved.step, data, checksum(thread, saved.step, data)),
        )

    def load(self, thread: str, step: int | None = None) -> SavedStep | None:
        """Return a step of a thread, by default the last one; None if there is none."""
        with self._told():
            row = self._connection.execute(
                "SELECT step, data, checked FROM steps WHERE thread = ?"
                " AND step = coalesce(?, step) ORDER BY step DESC LIMIT 1",
                (thread, step),
            ).fetchone()
        return None if row is None else self._decoded(thread, *row)

    def history(self, thread: str) -> list[SavedStep]:
        """Return all steps of a thread, in their order."""
        with self._told():
            rows = self._connection.execute(
                "SELECT step, data, checked FROM steps WHERE thread = ? ORDER BY step", (thread,)
            ).fetchall()
        if [step for step, *_ in rows] != [*range(len(rows))]:
            raise FilesDamaged(f"{self._path} lacks a step of the thread {thread!r}")
        return [self._decoded(thread, *row) for row in rows]

    def forget(self, thread: str) -> None:
        """Forget all steps of a thread."""
        with self._change() as connection:
            connection.execute("DELETE FROM steps WHERE thread = ?", (thread,))
            connection.execute("DELETE FROM runs WHERE thread = ?", (thread,))

    def _decoded(self, thread: str, step: int, data: bytes, check: int) -> SavedStep:
        self._checked(check, thread, step, data)
        return msgspec.msgpack.decode(data, type=SavedStep)
