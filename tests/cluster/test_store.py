"""Fencing stores: holders, epochs, and effects that count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.cluster import (
    EpochOver,
    MemoryStore,
    StoreLease,
    StoreUnavailable,
    VersionConflict,
    _sql_store,
    open_postgres_store,
    open_sqlite_store,
)
from tests.harness import program
from tests.replay.servers import postgres_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as conninfo:
        yield conninfo


@asynccontextmanager
async def memory_store() -> AsyncIterator[MemoryStore]:
    yield MemoryStore()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return memory_store
    if request.param == "sqlite":
        return partial(open_sqlite_store, tmp_path / "store")
    return partial(open_postgres_store, request.getfixturevalue("postgres"))


@program
async def _holders(opening: Any) -> None:
    async with opening() as store:
        one, two = await store.lease(["h/a", "h/b"], "x", 60.0)
        assert (one.holder, two.holder) == ("x", "x")
        (again,) = await store.lease(["h/a"], "x", 60.0)
        assert again.epoch == one.epoch
        (other,) = await store.lease(["h/a"], "y", 60.0)
        assert (other.holder, other.epoch) == ("x", one.epoch)
        assert await store.renew([one, StoreLease("h/b", "y", 1, 1.0)], 60.0) == [True, False]
        assert await store.renew([one], 0.0) == [True]
        (taken,) = await store.lease(["h/a"], "y", 60.0)
        assert (taken.holder, taken.epoch) == ("y", one.epoch + 1)
        assert await store.renew([one], 60.0) == [False]
        with pytest.raises(EpochOver):
            await store.compare_and_set("h/v", b"old", version=0, fence=one)
        version = await store.compare_and_set("h/v", b"new", version=0, fence=taken)
        with pytest.raises(VersionConflict) as caught:
            await store.compare_and_set("h/v", b"late", version=0, fence=taken)
        assert caught.value.version == version
        async with store.watch("h/v") as snapshots:
            ((entry,)) = await anext(snapshots)
            assert (entry.value, entry.version) == (b"new", version)
            await store.compare_and_set("h/v", None, version=version)
            (entry,) = await anext(snapshots)
            assert entry.value is None
        with pytest.raises(ValueError, match="seconds must be a finite number"):
            await store.lease(["h/a"], "x", -1.0)


def test_a_lease_has_one_holder_and_fences_the_others(opening: Any) -> None:
    _holders(opening)


@program
async def _seen(opening: Any) -> None:
    async with opening() as store, store.watch("w/") as snapshots:
        assert await anext(snapshots) == ()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.lease, ["w/1"], "x", 0.05)
        async for (entry,) in snapshots:
            assert (entry.key, entry.epoch) == ("w/1", 1)
            if entry.holder is None:  # it has expired, and nothing was written
                break
            assert entry.holder == "x"
        (lease,) = await store.lease(["w/1"], "y", 60.0)
        assert lease.epoch == 2


def test_watchers_see_changes_and_expiry(opening: Any) -> None:
    _seen(opening)


@program
async def _kept(path: Path) -> None:
    async with open_sqlite_store(path) as store, open_sqlite_store(path) as other:
        (lease,) = await store.lease(["k"], "x", 60.0)
        await other.compare_and_set("v", b"1", version=0, fence=lease)
    async with open_sqlite_store(path) as store:
        (lease,) = await store.lease(["k"], "y", 60.0)
        assert lease.holder == "x"
        async with store.watch("v") as snapshots:
            assert [entry.value for entry in await anext(snapshots)] == [b"1"]
    with pytest.raises(StoreUnavailable, match="outside of its block"):
        await store.lease(["k"], "y", 60.0)


def test_a_file_keeps_leases_and_values(tmp_path: Path) -> None:
    _kept(tmp_path / "store")


@program
async def _no_store(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with open_sqlite_store(path):
            pass


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no database " * 1000)
    _no_store(path)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "renew", "release", "set", "wait"]),
        st.sampled_from("xyz"),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_effects_of_old_epochs_never_count(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens, the accepted writers' epochs never fall, and an epoch has one holder."""

    async def run() -> None:
        store = MemoryStore()
        leases: dict[str, StoreLease] = {}
        holders: dict[int, str] = {}
        epochs, version = [], 0
        for what, who, number in steps:
            if what == "lease":
                (lease,) = await store.lease(["k"], who, float(number))
                assert holders.setdefault(lease.epoch, lease.holder or "") == lease.holder
                if lease.holder == who:
                    leases[who] = lease
            elif what == "wait":
                await trio.sleep(number)
            elif who in leases and what == "set":
                try:
                    version = await store.compare_and_set(
                        "v", b"", version=version, fence=leases[who]
                    )
                    epochs.append(leases[who].epoch)
                except EpochOver:
                    newest = max(holders)
                    assert leases[who].epoch <= newest
            elif who in leases:
                await store.renew([leases[who]], 0.0 if what == "release" else float(number))
        assert epochs == sorted(epochs)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@program
async def _stopped(conninfo: str) -> None:
    async with open_postgres_store(conninfo) as one, open_postgres_store(conninfo) as other:
        # As if this program were stopped in the midst of a transaction.
        one._connection.execute("BEGIN")
        one._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_sql_store._LOCK,))
        assert await other.compare_and_set("after", b"1", version=0) == 1
        with pytest.raises(StoreUnavailable):
            await one.lease(["after"], "one", 1.0)
        (lease,) = await one.lease(["after"], "one", 1.0)
        assert lease.holder == "one"


@pytest.mark.slow
def test_a_program_that_is_stopped_does_not_hold_up_others(postgres: str) -> None:
    _stopped(postgres)
