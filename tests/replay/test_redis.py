"""Journals in Redis, where a server is: ``ATOMR_TEST_REDIS=redis://localhost:6379``."""

from __future__ import annotations

import os
import uuid

import numpy as np
import pytest

from atomr_accel.replay import JournalDamaged, RedisStorage, open_journal, read_journal, replay

from ..harness import opened, program

coredis = pytest.importorskip("coredis")
URL = os.environ.get("ATOMR_TEST_REDIS", "")
pytestmark = [
    pytest.mark.skipif(not URL, reason="needs a Redis server, named by ATOMR_TEST_REDIS"),
    pytest.mark.filterwarnings("default"),  # coredis has some of its own
]


def storage(name: str) -> RedisStorage:
    return RedisStorage(URL, name)


@program
async def test_a_journal_in_redis_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.replay._redis._PAGE", 20)
    name = f"journal-{uuid.uuid4()}"
    async with opened(isolation="thread") as device:
        async with open_journal(device, storage(name), contents=True, results=True):
            x = await device.put(np.eye(3))
            for _ in range(50):
                await device.fill(x, 2)
            await device.get(await device.blas.gemm(x, x))
        with pytest.raises(FileExistsError):
            async with open_journal(device, storage(name)):
                pass
        report = await replay(storage(name), device)
        assert report.same, report
        assert report.calls == 53
    async with coredis.Redis.from_url(URL) as client:
        await client.xdel(f"{name}:records", ["7-0"])
    with pytest.raises(JournalDamaged, match="record 6 is missing"):
        await read_journal(storage(name))
    with pytest.raises(FileNotFoundError):
        await read_journal(storage("no-such-journal"))


@program
async def test_the_oldest_entries_of_a_journal_in_redis_are_dropped() -> None:
    name = f"journal-{uuid.uuid4()}"
    async with opened(isolation="thread") as device:
        journal = open_journal(
            device, storage(name), contents=True, when_full="drop", most_entries=30
        )
        async with journal as opened_journal:
            for number in range(100):
                x = await device.put(np.full(10, number))
                await opened_journal.flush()
            await device.get(x)
        report = await replay(storage(name), device)
        assert not report.differences
        assert not report.skipped
        assert 5 < report.calls < 30
    async with coredis.Redis.from_url(URL) as client:
        assert await client.xlen(f"{name}:records") <= 31
        assert await client.hlen(f"{name}:contents") <= 20
