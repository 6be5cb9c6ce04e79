"""Journals in PostgreSQL: rows of tables that journals share (package psycopg).

psycopg waits for the server by itself or in asyncio, so its calls are made in worker threads, as
SQLite's are.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.nursery import PlainNursery
from ..device.data.transfer import opened_in_thread
from ._entries import SCHEMA
from ._storage import JournalError, Record, Stored, check_name
from ._threaded import ThreadedStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

_LOCK: Final = 0x61746A6C
"""Key of the advisory lock held while tables are made: IF NOT EXISTS alone fails in a race."""

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS atomr_accel_journals (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        version integer NOT NULL
    )""",
    """
    CREATE TABLE IF NOT EXISTS atomr_accel_records (
        journal bigint NOT NULL REFERENCES atomr_accel_journals ON DELETE CASCADE,
        number bigint NOT NULL,
        before bytea NOT NULL,
        digest bytea NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (journal, number)
    )""",
    """
    CREATE TABLE IF NOT EXISTS atomr_accel_contents (
        journal bigint NOT NULL REFERENCES atomr_accel_journals ON DELETE CASCADE,
        hash bytea NOT NULL,
        data bytea NOT NULL,
        last bigint NOT NULL,
        PRIMARY KEY (journal, hash)
    )""",
)


@final
class PostgresStorage(ThreadedStorage):
    """A journal in a PostgreSQL server, such as one that outlives the program's machine.

    An append is a transaction. The tables are made where they are missing, in the first schema of
    the connection's search path, and are called ``atomr_accel_journals``, ``atomr_accel_records``
    and ``atomr_accel_contents``. Deleting a journal's row in the first deletes the journal.

    Calls wait for the server in a worker thread. One that is cancelled ends the connection, since
    the server may never answer. Without package psycopg ``open`` raises ``LibraryMissing``.

    Args:
        conninfo: a connection string or URL of libpq, such as ``"postgresql://host/database"``.
        name: the journal's name there.

    Raises:
        ValueError: a name that UTF-8 has no form for.
    """

    def __init__(self, conninfo: str, name: str) -> None:
        super().__init__()
        self._conninfo: Final = conninfo
        self._name: Final = check_name(name)
        self._journal = 0

    def __repr__(self) -> str:
        return f"PostgresStorage(..., {self._name!r})"  # a connection string may have a password

    async def _reach(self) -> None:
        self._connection = await opened_in_thread(self._connected)

    def _connected(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise LibraryMissing(
                f"journals in PostgreSQL need package psycopg: {install_command('postgres')}",
                library="psycopg",
            ) from error
        with self._errors_told("opened"):
            return psycopg.connect(self._conninfo, autocommit=True)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()  # nothing has begun, so nothing is ended
        waiting, interrupted = True, False

        async def interrupt_if_cancelled() -> None:
            nonlocal interrupted
            try:
                await trio.sleep_forever()
            finally:
                if waiting:
                    interrupted = True
                    self._hang_up()

        try:
            async with PlainNursery() as nursery:
                nursery.start_soon(interrupt_if_cancelled)
                try:
                    result = await super()._in_thread(function, *args)
                finally:
                    waiting = False
                    nursery.cancel_scope.cancel()
        except Exception:
            if interrupted:
                await trio.lowlevel.checkpoint_if_cancelled()
            raise
        return result

    def _hang_up(self) -> None:
        """End the connection, so that the thread that waits for the server continues."""
        with suppress(Exception), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _errors_told(self, what: str) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (psycopg.Error, TypeError, ValueError) as error:  # also for tables of others
            why = f"the journal {self._name!r} cannot be {what} in PostgreSQL: {error}"
            raise JournalError(why) from error

    def _create(self) -> None:
        with self._errors_told("opened"):
            self._journal = self._made()

    def _open(self) -> None:
        with self._errors_told("opened"):
            self._journal = self._found()

    def _unmake(self) -> None:
        self._opened().execute("DELETE FROM atomr_accel_journals WHERE id = %s", (self._journal,))

    def _made(self) -> int:
        connection = self._opened()
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for table in _TABLES:
                connection.execute(table)
            made = connection.execute(
                "INSERT INTO atomr_accel_journals (name, version) VALUES (%s, %s)"
                " ON CONFLICT (name) DO NOTHING RETURNING id",
                (self._name, SCHEMA),
            ).fetchone()
        if made is None:
            raise FileExistsError(f"there is a journal {self._name!r} in PostgreSQL already")
        return int(made[0])

    def _found(self) -> int:
        connection = self._opened()
        row = None
        if connection.execute("SELECT to_regclass('atomr_accel_journals')").fetchone()[0]:
            row = connection.execute(
                "SELECT id, version FROM atomr_accel_journals WHERE name = %s", (self._name,)
            ).fetchone()
        if row is None:
            raise FileNotFoundError(f"there is no journal {self._name!r} in PostgreSQL")
        journal, version = row
        if version != SCHEMA:
            raise JournalError(
                f"{self._name!r} is a journal of version {version}, and this reads {SCHEMA}"
            )
        return int(journal)

    def _append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        connection, journal = self._opened(), self._journal
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO atomr_accel_contents VALUES (%s, %b, %b, 0) ON CONFLICT DO NOTHING",
                [(journal, *item) for item in contents.items()],
            )
            cursor.executemany(
                "INSERT INTO atomr_accel_records VALUES (%s, %s, %b, %b, %b)",
                [(journal, *each.record) for each in records],
            )
            cursor.executemany(
                "UPDATE atomr_accel_contents SET last = %s WHERE journal = %s AND hash = %b",
                [(each.record.number, journal, key) for each in records for key in each.contents],
            )
            if first > 1:
                cursor.execute(
                    "DELETE FROM atomr_accel_records"
                    " WHERE journal = %s AND 0 < number AND number < %s",
                    (journal, first),
                )
                cursor.execute(
                    "DELETE FROM atomr_accel_contents WHERE journal = %s AND last < %s",
                    (journal, first),
                )

    def _records(self) -> list[Record]:
        with self._errors_told("read"):
            rows = self._opened().execute(
                "SELECT number, before, digest, data FROM atomr_accel_records"
                " WHERE journal = %s ORDER BY number",
                (self._journal,),
                binary=True,
            )
            return [Record(*row) for row in rows]

    def _content(self, key: bytes) -> bytes | None:
        with self._errors_told("read"):
            found = self._opened().execute(
                "SELECT data FROM atomr_accel_contents WHERE journal = %s AND hash = %b",
                (self._journal, key),
                binary=True,
            )
            row = found.fetchone()
        return row[0] if row is not None and isinstance(row[0], bytes) else None
