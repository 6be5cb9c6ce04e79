"""Fencing stores in databases: SQLite for one machine, PostgreSQL for many.

Both calls wait, so they are made in worker threads, one after the other.
"""

from __future__ import annotations

import json
import sqlite3
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.blocks import opens
from ..device.data.transfer import in_thread, opened_in_thread
from ._errors import StoreUnavailable
from ._processes import boot_id
from ._store import Snapshots, StoreEntry, StoreOfRows, StoreRow, differs

if TYPE_CHECKING:
    import os

T = TypeVar("T")

_POLL: Final = 0.02
"""Seconds between looks at a file, which does not announce its changes."""

_BUSY: Final = 5.0
"""Seconds until another process's transaction counts as stuck."""

_COLUMNS: Final = "key, value, version, holder, epoch, expires"


class _SqlRows:
    """Rows of a table, inside of a transaction.

    ``among`` is the condition of keys in a list, and ``listed`` makes its argument.

    Attributes:
        changed: keys whose watchers have something to see.
    """

    def __init__(
        self, cursor: Any, mark: str, among: str, listed: Callable[[list[str]], Any], now: float
    ) -> None:
        self._cursor = cursor
        self._mark = mark
        self._among = among
        self._listed = listed
        self._now = now
        self._found: dict[str, StoreRow] = {}
        self.changed: list[str] = []

    def now(self) -> float:
        """Return the time at which the transaction began."""
        return self._now

    def get(self, keys: Sequence[str]) -> dict[str, StoreRow]:
        """Return the rows of those keys that have one."""
        found = self._cursor.execute(
            f"SELECT {_COLUMNS} FROM atomr_accel_cluster WHERE key {self._among}",  # noqa: S608
            (self._listed([*keys]),),
        ).fetchall()
        self._found = {row[0]: StoreRow(*row) for row in found}
        return dict(self._found)

    def put(self, rows: Sequence[StoreRow]) -> None:
        """Write rows of different keys, which ``get`` has looked for."""
        self.changed += [row.key for row in rows if differs(self._found.get(row.key), row)]
        marks = ", ".join([self._mark] * 6)
        written = [
            (row.key, row.value, row.version, row.holder, row.epoch, row.expires) for row in rows
        ]
        statement = (
            f"INSERT INTO atomr_accel_cluster ({_COLUMNS}) VALUES ({marks})"  # noqa: S608
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version,"
            " holder = excluded.holder, epoch = excluded.epoch, expires = excluded.expires"
        )
        if len(written) == 1:
            self._cursor.execute(statement, written[0])
        elif written:
            self._cursor.executemany(statement, written)

    def scan(self, prefix: str) -> list[StoreRow]:
        """Return the rows whose keys begin with a prefix, in order."""
        found = self._cursor.execute(
            f"SELECT {_COLUMNS} FROM atomr_accel_cluster"  # noqa: S608
            f" WHERE key >= {self._mark} AND key < {self._mark} ORDER BY key",
            (prefix, prefix + "\U0010ffff"),
        ).fetchall()
        return [StoreRow(*row) for row in found]


def _scan(prefix: str) -> Callable[[_SqlRows], tuple[list[StoreRow], float]]:
    """Return a function that reads the rows whose keys begin with a prefix, and the time."""
    return lambda rows: (rows.scan(prefix), rows.now())


class _ThreadedStore(StoreOfRows):
    """A store of functions that wait. Those that begin with ``_`` run in a thread."""

    def __init__(self) -> None:
        self._limiter: Final = trio.CapacityLimiter(1)
        self._connection: Any = None

    async def _done(self, function: Callable[[_SqlRows], T], *, writes: bool = True) -> T:
        return await in_thread(partial(self._transact, function, writes), self._limiter)

    @asynccontextmanager
    async def _while_open(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(self._close, self._limiter)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @abstractmethod
    def _transact(self, function: Callable[[_SqlRows], T], writes: bool) -> T:
        """Run a function in a transaction."""


@final
class SqliteStore(_ThreadedStore):
    """A fencing store in a file, for nodes of one machine. `open_sqlite_store` opens one.

    Each call is a transaction that is on the disk when the call returns. Time is the machine's
    monotonic clock, so changes of the wall's clock do nothing; a restart of the machine ends all
    leases. Watchers look at the file 50 times a second.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path: Final = path

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    def _open(self) -> None:
        self.path.touch(mode=0o600)
        self._connection = connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS atomr_accel_cluster (key TEXT PRIMARY KEY, value BLOB,"
                " version INTEGER NOT NULL, holder TEXT, epoch INTEGER NOT NULL,"
                " expires REAL NOT NULL)"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS atomr_accel_boot (id TEXT NOT NULL)")
            boot = boot_id()
            if connection.execute("SELECT id FROM atomr_accel_boot").fetchone() != (boot,):
                connection.execute("DELETE FROM atomr_accel_boot")
                connection.execute("INSERT INTO atomr_accel_boot VALUES (?)", (boot,))
                connection.execute("UPDATE atomr_accel_cluster SET holder = NULL, expires = 0")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise

    def _opened(self) -> Any:
        if self._connection is None:
            raise StoreUnavailable(f"{self!r} is used outside of its block", maybe_done=False)
        return self._connection

    def _transact(self, function: Callable[[_SqlRows], T], writes: bool) -> T:
        connection = self._opened()
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                now = time.clock_gettime(time.CLOCK_MONOTONIC)
                among = "IN (SELECT value FROM json_each(?))"
                rows = _SqlRows(connection.cursor(), "?", among, json.dumps, now)
                result = function(rows)
                committing = writes
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                    committing = False
                raise
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"{self.path} does not answer: {error}", maybe_done=committing
            ) from error
        return result

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[tuple[StoreEntry, ...]]]:
        """Watch keys; see `FencingStore`."""
        seen = -1

        def version() -> int:
            # Changes by this connection itself do not count in data_version.
            connection: sqlite3.Connection = self._opened()
            try:
                (other,) = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise StoreUnavailable(f"{self.path} does not answer: {error}") from error
            return int(other) + connection.total_changes

        def look() -> tuple[int, tuple[list[StoreRow], float]]:
            before = version()
            return before, self._transact(_scan(prefix), writes=False)

        async def read() -> tuple[list[StoreRow], float]:
            nonlocal seen
            seen, found = await in_thread(look, self._limiter)
            return found

        async def wait() -> None:
            while await in_thread(version, self._limiter) == seen:  # noqa: ASYNC110 (files are silent)
                await trio.sleep(_POLL)

        yield Snapshots(read, wait)


@opens
async def open_sqlite_store(path: str | os.PathLike[str]) -> AsyncIterator[SqliteStore]:
    """Open a fencing store in a file, which is made if it is missing.

    Only its owner can read the file (mode 0600).

    Args:
        path: the file, on a disk of this machine.

    Raises:
        StoreUnavailable: the file cannot be opened, or has other content.
    """
    store = SqliteStore(Path(path))
    try:
        await in_thread(store._open, store._limiter)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}", maybe_done=False) from error
    async with store._while_open():
        yield store


_IDLE: Final = 500
"""Milliseconds until the server ends a transaction of a program that is stopped, and has the lock.

It also ends that session: the next call makes another one.
"""

_LOCK: Final = 0x61746163
"""Key of the advisory lock of transactions that write."""

_NOTICE: Final = 200
"""Length of the part of a changed key in a notice, in characters."""

_NOTIFY: Final = "SELECT pg_notify('atomr_accel_cluster', key) FROM unnest(%s::text[]) AS key"

_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::double precision"


@final
class PostgresStore(_ThreadedStore):
    """A fencing store in a PostgreSQL server. `open_postgres_store` opens one.

    Each call is a transaction, and time is the server's. A lost connection is made again by the
    next call. Watchers hear of changes by ``LISTEN``.
    """

    def __init__(self, conninfo: str) -> None:
        super().__init__()
        self._conninfo: Final = conninfo

    def __repr__(self) -> str:
        return "PostgresStore(...)"  # a connection string may have a password

    def _connected(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise LibraryMissing(
                f"stores in PostgreSQL need package psycopg: {install_command('cluster')}",
                library="psycopg",
            ) from error
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            connection.execute(f"SET idle_in_transaction_session_timeout = {_IDLE}")
            return connection
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"PostgreSQL does not answer: {error}", maybe_done=False
            ) from error

    def _open(self) -> None:
        self._connection = connection = self._connected()
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(
                'CREATE TABLE IF NOT EXISTS atomr_accel_cluster (key text COLLATE "C" PRIMARY KEY,'
                " value bytea, version bigint NOT NULL, holder text, epoch bigint NOT NULL,"
                " expires double precision NOT NULL)"
            )

    def _transact(self, function: Callable[[_SqlRows], T], writes: bool) -> T:
        import psycopg

        committing = False
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connected()
            connection = self._connection
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                if writes:
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                (now,) = cursor.execute(_NOW).fetchone()
                rows = _SqlRows(cursor, "%s", "= ANY(%s)", list, now)
                result = function(rows)
                if rows.changed:
                    names = [key[:_NOTICE] for key in rows.changed]
                    cursor.execute(_NOTIFY, (names,))
                committing = writes
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"PostgreSQL does not answer: {error}", maybe_done=committing
            ) from error
        return result

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[tuple[StoreEntry, ...]]]:
        """Watch keys; see `FencingStore`."""
        listener: Any = None
        mine = trio.CapacityLimiter(1)

        async def read() -> tuple[list[StoreRow], float]:
            return await self._done(_scan(prefix), writes=False)

        async def wait() -> None:
            nonlocal listener
            if listener is None:  # most reads are never followed by another one
                listener = await self._listening()
                return  # to read what has changed before
            while True:
                await trio.lowlevel.wait_readable(listener.fileno())
                if await in_thread(partial(_drain, listener, prefix), mine):
                    return

        try:
            yield Snapshots(read, wait)
        finally:
            if listener is not None:
                listener.close()

    async def _listening(self) -> Any:
        def connect() -> Any:
            connection = self._connected()
            try:
                connection.execute("LISTEN atomr_accel_cluster")
            except BaseException:
                connection.close()
                raise
            return connection

        return await opened_in_thread(connect)


def _drain(listener: Any, prefix: str) -> bool:
    """Take what the server has sent, and return whether a key with the prefix has changed."""
    import psycopg

    seen = False
    try:
        for notice in listener.notifies(timeout=0):
            start = prefix[:_NOTICE]
            seen = seen or notice.payload.startswith(start)
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL does not answer: {error}") from error
    return seen


@opens
async def open_postgres_store(conninfo: str) -> AsyncIterator[PostgresStore]:
    """Open a fencing store in a PostgreSQL server. Its table is made if it is missing.

    Args:
        conninfo: a connection string or URL of libpq, such as ``"postgresql://host/database"``.

    Raises:
        StoreUnavailable: the server does not answer.
        LibraryMissing: package psycopg is not installed.
    """
    store = PostgresStore(conninfo)
    await in_thread(store._open, store._limiter, abandon=True)
    async with store._while_open():
        yield store
