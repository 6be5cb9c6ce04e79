"""Journals in a real Redis, if one is installed (Debian: redis-server)."""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
import trio

from atomr_accel.replay import (
    JournalDamaged,
    JournalError,
    RedisStorage,
    open_journal,
    read_journal,
    replay_journal,
)

from ..harness import cancelled_at, opened
from .servers import redis_server

coredis = pytest.importorskip("coredis")
pytestmark = pytest.mark.filterwarnings("default")  # coredis has some of its own


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as address:
        yield address


async def test_a_journal_in_redis_is_replayed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.replay._redis._PAGE", 20)
    name = f"journal-{uuid.uuid4()}"
    async with opened(isolation="thread") as device:
        async with open_journal(device, RedisStorage(url, name), contents=True, results=True):
            x = await device.put(np.eye(3))
            for _ in range(50):
                await device.fill(x, 2)
            await device.get(await device.blas.gemm(x, x))
        with pytest.raises(FileExistsError):
            async with open_journal(device, RedisStorage(url, name)):
                pass
        report = await replay_journal(RedisStorage(url, name), device)
        assert report.same, report
        assert report.calls == 53
    async with coredis.Redis.from_url(url) as client:
        await client.xdel(f"{name}:records", ["7-0"])
    with pytest.raises(JournalDamaged, match="record 6 is missing"):
        await read_journal(RedisStorage(url, name))
    with pytest.raises(FileNotFoundError):
        await read_journal(RedisStorage(url, "no-such-journal"))


async def test_the_oldest_entries_of_a_journal_in_redis_are_dropped(url: str) -> None:
    name = f"journal-{uuid.uuid4()}"
    async with opened(isolation="thread") as device:
        journal = open_journal(
            device, RedisStorage(url, name), contents=True, when_full="drop", most_entries=30
        )
        async with journal as opened_journal:
            for number in range(100):
                x = await device.put(np.full(10, number))
                await opened_journal.flush()
            await device.get(x)
        report = await replay_journal(RedisStorage(url, name), device)
        assert not report.differences
        assert not report.skipped
        assert 5 < report.calls < 30
    async with coredis.Redis.from_url(url) as client:
        assert await client.xlen(f"{name}:records") <= 31
        assert await client.hlen(f"{name}:contents") <= 20


async def test_one_of_many_programs_creates_the_journal(url: str) -> None:
    name = f"journal-{uuid.uuid4()}"
    made, refused, all_have_tried = [], [], trio.Event()

    async def make(number: int) -> None:
        try:
            async with RedisStorage(url, name).open(create=True):
                made.append(number)
                await all_have_tried.wait()  # before anything is written
        except FileExistsError:
            refused.append(number)
        if len(made) + len(refused) == 8 or len(refused) == 7:
            all_have_tried.set()

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(make, number)
    assert len(made) == 1
    assert len(refused) == 7
    with pytest.raises(JournalError, match="it is empty"):
        await read_journal(RedisStorage(url, name))


async def test_a_journal_that_is_not_made_leaves_nothing(url: str) -> None:
    for step in itertools.count(1):
        name, opened_it = f"journal-{uuid.uuid4()}", False

        async def make(name: str = name) -> None:
            nonlocal opened_it
            async with RedisStorage(url, name).open(create=True):
                opened_it = True

        more = await cancelled_at(step, make)
        if not opened_it:
            with pytest.raises(FileNotFoundError):
                await read_journal(RedisStorage(url, name))
        if not more:
            break
    assert opened_it


@pytest.mark.parametrize("create", [True, False])
async def test_a_server_that_is_not_there_is_an_error_of_journals(create: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"redis://127.0.0.1:{port}", "unix:///nowhere/redis.sock"):
        with pytest.raises(JournalError, match="cannot be opened in Redis"):
            async with RedisStorage(address, "run").open(create=create):
                raise NotImplementedError


async def test_foreign_data_is_a_journal_error(url: str) -> None:
    async with coredis.Redis.from_url(url) as client:
        await client.set("text:records", "hello")
        await client.xadd("fields:records", field_values={"a": "b"})
        fields = {"before": b"", "digest": b"", "data": b""}
        await client.xadd("place:records", field_values=fields, identifier="5-3")
        await client.lpush("list:records", ["a"])
    for name in ("text", "fields", "place", "list"):
        with pytest.raises(JournalError):
            await read_journal(RedisStorage(url, name))
        with pytest.raises(FileExistsError):
            async with RedisStorage(url, name).open(create=True):
                raise NotImplementedError


async def test_errors_of_the_block_stay_what_they_are(url: str) -> None:
    error = coredis.exceptions.RedisError("of the program")
    with pytest.raises(coredis.exceptions.RedisError) as raised:
        async with RedisStorage(url, f"journal-{uuid.uuid4()}").open(create=True):
            raise error
    assert raised.value is error


async def test_a_cancelled_program_has_its_journal(url: str) -> None:
    name = f"journal-{uuid.uuid4()}"
    async with opened(isolation="thread") as device:
        with trio.CancelScope() as scope:
            async with open_journal(device, RedisStorage(url, name)):
                await device.put(np.ones(3))
                scope.cancel()
        report = await replay_journal(RedisStorage(url, name), device, inputs={})
    assert report.complete


@pytest.mark.parametrize("url", ["nonsense://", "redis://", "localhost", "http://localhost"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must begin with"):
        RedisStorage(url, "run")


@pytest.mark.parametrize("name", [b"run", 5, "\udce9"])
def test_a_name_that_is_none_is_refused(name: object) -> None:
    with pytest.raises((TypeError, ValueError), match="name must be"):
        RedisStorage("redis://localhost", name)  # type: ignore[arg-type]
