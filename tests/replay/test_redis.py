"""Journals in a real Redis, where one is installed (Debian: redis-server)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

from atomr_accel.replay import JournalDamaged, RedisStorage, open_journal, read_journal, replay

from ..harness import opened, program
from .servers import redis_server

if TYPE_CHECKING:
    from collections.abc import Iterator

coredis = pytest.importorskip("coredis")
pytestmark = pytest.mark.filterwarnings("default")  # coredis has some of its own


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as address:
        yield address


@program
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
        report = await replay(RedisStorage(url, name), device)
        assert report.same, report
        assert report.calls == 53
    async with coredis.Redis.from_url(url) as client:
        await client.xdel(f"{name}:records", ["7-0"])
    with pytest.raises(JournalDamaged, match="record 6 is missing"):
        await read_journal(RedisStorage(url, name))
    with pytest.raises(FileNotFoundError):
        await read_journal(RedisStorage(url, "no-such-journal"))


@program
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
        report = await replay(RedisStorage(url, name), device)
        assert not report.differences
        assert not report.skipped
        assert 5 < report.calls < 30
    async with coredis.Redis.from_url(url) as client:
        assert await client.xlen(f"{name}:records") <= 31
        assert await client.hlen(f"{name}:contents") <= 20
