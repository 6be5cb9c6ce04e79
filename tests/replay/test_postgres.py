"""Journals in a real PostgreSQL, if one is installed (Debian: postgresql)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import LibraryMissing
from atomr_accel.replay import (
    JournalDamaged,
    JournalError,
    PostgresStorage,
    Record,
    Stored,
    open_journal,
    read_journal,
    replay_journal,
)

from ..harness import opened
from .servers import postgres_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("psycopg")
    with postgres_server() as where:
        yield where


def executed(where: str, statement: str, *values: Any) -> Any:
    """The first row of what a statement gives, if it gives any."""
    import psycopg

    with psycopg.connect(where) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchone() if cursor.description else None


async def test_a_journal_in_postgres_is_replayed(server: str) -> None:
    storage = partial(PostgresStorage, server)
    with pytest.raises(FileNotFoundError):  # there are no tables yet
        await read_journal(storage("run"))
    async with opened(isolation="thread") as device:
        async with open_journal(device, storage("run"), contents=True, results=True):
            x = await device.put(np.eye(3))
            for _ in range(50):
                await device.fill(x, 2)
            await device.get(await device.blas.gemm(x, x))
        with pytest.raises(FileExistsError):
            async with open_journal(device, storage("run")):
                pass
        report = await replay_journal(storage("run"), device)
        assert report.same, report
        assert report.calls == 53
    with pytest.raises(FileNotFoundError):
        await read_journal(storage("another"))
    executed(server, "DELETE FROM atomr_accel_records WHERE number = 6")
    with pytest.raises(JournalDamaged, match="record 6 is missing"):
        await read_journal(storage("run"))
    executed(server, "UPDATE atomr_accel_journals SET version = version + 1")
    with pytest.raises(JournalError, match="this reads"):
        await read_journal(storage("run"))
    executed(server, "DELETE FROM atomr_accel_journals WHERE name = 'run'")
    assert executed(server, "SELECT count(*) FROM atomr_accel_contents") == (0,)


async def test_the_oldest_entries_of_a_journal_in_postgres_are_dropped(server: str) -> None:
    storage = partial(PostgresStorage, server, "bounded")
    async with opened(isolation="thread") as device:
        journal = open_journal(device, storage(), contents=True, when_full="drop", most_entries=30)
        async with journal as opened_journal:
            for number in range(100):
                x = await device.put(np.full(10, number))
                await opened_journal.flush()
            await device.get(x)
        report = await replay_journal(storage(), device)
        assert not report.differences
        assert not report.skipped
        assert 5 < report.calls < 30
    assert executed(server, "SELECT count(*) FROM atomr_accel_records")[0] <= 31
    assert executed(server, "SELECT count(*) FROM atomr_accel_contents")[0] <= 20


async def test_an_append_is_all_or_nothing(server: str) -> None:
    storage = PostgresStorage(server, "whole")

    def stored(number: int) -> Stored:
        return Stored(Record(number, b"before", b"digest", b"data"), (b"key",))

    async with storage.open(create=True):
        await storage.append([stored(0)], {b"key": b"first"}, 1)
        with pytest.raises(Exception, match="duplicate key"):
            await storage.append([stored(1), stored(0)], {b"other": b"second"}, 1)
        await storage.append([stored(1)], {b"key": b"not the first any more"}, 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await storage.append([stored(2)], {}, 1)
        records = await storage.records()
        whole = [stored(number).record for number in range(3)]
        assert records in (whole[:2], whole)
        assert await storage.content(b"key") == b"first"
        assert await storage.content(b"other") is None
    with pytest.raises(JournalError, match="outside of the block"):
        await storage.records()


async def test_many_programs_may_make_journals_at_once(server: str) -> None:
    executed(server, "DROP TABLE IF EXISTS atomr_accel_records, atomr_accel_contents")
    executed(server, "DROP TABLE IF EXISTS atomr_accel_journals")
    made = []

    async def make(name: str) -> None:
        try:
            async with PostgresStorage(server, name).open(create=True):
                made.append(name)
        except FileExistsError:
            pass

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(make, f"journal {number // 2}")
    assert sorted(made) == [f"journal {number}" for number in range(4)]


async def test_a_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg")
    storage = PostgresStorage("host=/nowhere user=us password=secret", "run")
    assert "secret" not in repr(storage)
    with pytest.raises(JournalError, match="cannot be opened"):
        async with storage.open(create=True):
            pass


async def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(LibraryMissing, match=r"pip install .*\[postgres\]"):
        async with PostgresStorage("host=/nowhere", "run").open(create=False):
            pass


async def test_a_server_that_hangs_holds_nobody(server: str) -> None:
    import psycopg

    storage = PostgresStorage(server, "hung")
    async with storage.open(create=True):
        await storage.append([Stored(Record(0, b"before", b"digest", b"data"), ())], {}, 1)
        pid = storage._connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:
                record = Record(1, b"before", b"digest", b"data")
                nursery.start_soon(storage.append, [Stored(record, ())], {}, 1)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(psycopg.Error):
            await storage.append([], {}, 1)
    async with storage.open(create=False):
        assert [each.number for each in await storage.records()] in ([0], [0, 1])


async def test_connecting_to_what_never_answers_can_be_cancelled() -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        storage = PostgresStorage(f"host=127.0.0.1 port={listening.getsockname()[1]}", "run")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def enter() -> None:
                    async with storage.open(create=True):
                        raise NotImplementedError

                nursery.start_soon(enter)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert storage._connection is None


async def test_tables_of_others_are_an_error_of_journals(server: str) -> None:
    for line in (
        "CREATE SCHEMA others",
        "CREATE TABLE others.atomr_accel_journals (id text, name text, version integer)",
        "INSERT INTO others.atomr_accel_journals VALUES ('1', 'columns', 1), ('one', 'id', 1)",
        "INSERT INTO others.atomr_accel_journals VALUES (NULL, 'null', 1), ('2', 'version', NULL)",
        "CREATE TABLE others.atomr_accel_records (journal bigint, number text)",
    ):
        executed(server, line)
    theirs = f"{server} options='-csearch_path=others'"
    for name in ("columns", "id", "null", "version", "nul \0"):
        with pytest.raises(JournalError):
            await read_journal(PostgresStorage(theirs, name))
        with pytest.raises(JournalError):
            async with PostgresStorage(theirs, name).open(create=True):
                raise NotImplementedError
