"""Contents and fate of a journal: bounds, full disks, kills, damage."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Unsupported
from atomr_accel.replay import (
    SCHEMA,
    JournalDamaged,
    JournalError,
    JournalFull,
    Record,
    SqliteStorage,
    Stored,
    open_journal,
    read_journal,
    replay_journal,
    state_at,
)
from atomr_accel.replay._entries import CallEntry, DroppedEntry, End, Opaque, decode, encode
from atomr_accel.replay._storage import START, check_chain, digest_of
from atomr_accel.replay._writer import JournalWriter, WaitingEntry

from ..harness import ROOT, cancelled_at, cpu_only, interrupted_at, opened, settled
from ..seeds import draw
from .programs import SOURCE, gelu, scaled


def rows(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return [data for (data,) in connection.execute("SELECT data FROM records ORDER BY number")]


# --- what is noted -------------------------------------------------------------------------


async def test_public_calls_are_noted_with_public_arguments(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        weights = await device.put(np.eye(2, dtype=np.float32))
        async with open_journal(device, path) as journal:
            x = await device.put(np.ones((2, 2), np.float32))
            y = await device.blas.gemm(x, weights, alpha=2.0)
            kernel = await device.nvrtc.compile(SOURCE, "scaled", cpu=scaled)
            await kernel.launch(1, 4, x, 0.5, y)
            await device.rng.default_rng(1).normal(size=3)
            await device.fuse(gelu)(y)
            await device.get(y.T)
            async with device.batch() as batch:
                batch.launch(kernel, 1, 4, x, 0.5, batch.zeros((2, 2), np.float32))
            async with device.record(x) as recorded:
                recorded.copy(x)
            await recorded.replay(y)
            await device.blas.ref.ask(device.requests.blas.nrm2(x.reshape(-1)))
            with pytest.raises(ValueError, match="inner dimensions"):
                await device.blas.gemm(x, x[:1])
            assert journal.position == 17
            await journal.flush()
            assert len(rows(path)) > 17
    lines = await read_journal(path)
    text = "\n".join(lines)
    for wanted in (
        "1 device.put(<float32 (2, 2)>) -> #1",
        "2 blas.gemm(#1, #2, alpha=2.0) -> #3",
        "4 #4.launch(1, 4, #1, 0.5, #3",
        "normal(size=3) ->",
        ".__call__(#3) ->",
        "device.get(#3[2x2 at 0])",
        "device.batch() ->",
        "device.record(#1) ->",
        "device.copy(#1, None) in #",
        ".replay(#3)",
        "blas.nrm2(#1",
        "17 blas.gemm(#1, #1[1x2 at 0]) raised ValueError: the inner dimensions differ",
    ):
        assert wanted in text, f"{wanted} is not in\n{text}"


async def test_journal_notes_nothing_after_its_block_nor_of_other_devices(tmp_path: Path) -> None:
    async with opened(isolation="thread") as device, opened(isolation="thread") as other:
        async with open_journal(device, tmp_path / "journal") as journal:
            await other.put(np.ones(1))
            assert journal.position == 0
            await device.put(np.ones(1))  # so that there is memory
            with pytest.raises(JournalError, match="has a journal already"):
                async with open_journal(device, tmp_path / "second"):
                    pass
            batch = device.batch()
            await batch.__aenter__()
            batch.put(np.ones(1))
        batch.put(np.ones(1))
        await batch.__aexit__(None, None, None)
        assert journal.position == 3
        assert device.core.recorder is None
        with pytest.raises(FileExistsError):
            async with open_journal(device, tmp_path / "journal"):
                pass
        with pytest.raises(Unsupported, match="PostgresStorage"):
            open_journal(device, "postgresql://localhost/journals")
    assert not (tmp_path / "second").exists()


async def test_buffers_dropped_by_the_program_are_dropped_in_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device, open_journal(device, path):
        for _ in range(3):
            await device.put(np.ones(2))
            await settled(device)
    dropped = [entry for entry in map(decode, rows(path)) if isinstance(entry, DroppedEntry)]
    assert [entry.ids for entry in dropped] == [(1,), (2,)]


async def test_an_array_is_noted_as_it_was_when_it_was_given(tmp_path: Path) -> None:
    """The array belongs to the program again once the call is over."""
    path = tmp_path / "journal"
    large = np.zeros(1 << 18)  # 2 MiB
    small = np.zeros(4)
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            x, y = await device.put(large), await device.put(small)
            large[:], small[:] = 1, 1
            got = await device.get(x)
            got[:] = 2
            async with device.batch() as batch:
                z = batch.put(small)
            small[:] = 3
        assert (await replay_journal(path, device)).same
        refs = await state_at(path, 3, device)
        assert [float((await device.get(ref)).max()) for ref in refs.values()] == [0.0, 0.0]
    del x, y, z


# --- bounds --------------------------------------------------------------------------------


async def test_a_full_journal_refuses_calls_before_anything_is_done(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, most_entries=12) as journal:
            x = await device.put(np.zeros(1))
            with pytest.raises(JournalFull, match="nothing was called"):
                for _ in range(100):
                    await device.fill(x, 1)
                    filled = journal.position
            with pytest.raises(JournalFull):
                await device.fill(x, 2)
            assert journal.position == filled
        assert (await device.get(x)).tolist() == [1]
    assert 8 <= len(rows(path)) <= 16  # the last call is noted whole


@pytest.mark.parametrize("bound", [{"most_entries": 40}, {"most_bytes": 20_000}])
async def test_a_full_journal_drops_the_oldest_entries(
    tmp_path: Path, bound: dict[str, Any]
) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True, when_full="drop", **bound) as journal:
            lost = await device.put(np.zeros(1))
            for number in range(100):
                x = await device.put(np.full(100, number, np.float64))
                await device.fill(lost, 1)
                if number % 10 == 0:
                    await journal.flush()
            await device.get(x)
        report = await replay_journal(path, device)
    assert not report.complete
    assert report.differences == []
    assert all("fill" in each.text for each in report.skipped)
    with closing(sqlite3.connect(path)) as connection:
        contents = [data for (data,) in connection.execute("SELECT data FROM contents")]
    assert len(rows(path)) <= bound.get("most_entries", 1000) + 1
    assert sum(map(len, [*rows(path)[1:], *contents])) <= bound.get("most_bytes", 10**9) + 500


@pytest.mark.parametrize(
    ("bounds", "error", "told"),
    [
        ({"most_entries": "10"}, TypeError, "most_entries must be a whole number"),
        ({"most_bytes": 0}, ValueError, "most_bytes must be a whole number of at least 1, not 0"),
        ({"contents": 1}, TypeError, "contents must be True or False, not 1"),
        ({"results": "yes"}, TypeError, "results must be True or False, not 'yes'"),
        ({"when_full": "wrap"}, ValueError, 'when_full must be "refuse" or "drop"'),
    ],
)
async def test_bounds_that_are_none_are_refused(
    tmp_path: Path, bounds: dict[str, Any], error: type[Exception], told: str
) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(error, match=told):
            open_journal(device, tmp_path / "journal", **bounds)
    assert not (tmp_path / "journal").exists()


async def test_buffer_dropped_at_once_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        most = 1 << 20
        async with open_journal(device, path, contents=True, when_full="drop", most_bytes=most):
            for number in range(200):  # 16 MB, in few transactions
                await device.put(np.full(10_000, number, np.float64))
    assert path.stat().st_size < 1.2 * most


@cpu_only
async def test_a_function_of_which_the_source_cannot_be_cut_out_is_called(tmp_path: Path) -> None:
    made = importlib.util.spec_from_file_location("edited", tmp_path / "edited.py")
    assert made is not None
    assert made.loader is not None
    (tmp_path / "edited.py").write_text("import os\n\n\ndef add(x):\n    x += 1\n")
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    (tmp_path / "edited.py").write_text("#\n#\n#\nx = (\n")  # as somebody is writing there
    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal"):
            x = await device.put(np.zeros(3))
            await device.run(module.add, x)
        assert (await device.get(x)).tolist() == [1, 1, 1]


class Slow:
    """A storage that waits for permission before each write."""

    def __init__(self) -> None:
        self.may = trio.Event()
        self.appended: list[Stored] = []

    @asynccontextmanager
    async def open(self, *, create: bool) -> AsyncIterator[None]:
        yield

    async def append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        await self.may.wait()
        self.appended += records

    async def records(self) -> list[Record]:
        return [each.record for each in self.appended]

    async def content(self, key: bytes) -> bytes | None:
        return None


async def test_calls_wait_where_writing_is_far_behind_and_other_tasks_do_not() -> None:
    storage = Slow()
    async with opened(isolation="thread") as device, open_journal(device, storage):
        x = await device.zeros(1)
        done = 0

        async def task() -> None:
            nonlocal done
            for _ in range(30):
                await device.fill(x, 1)
                done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(task)
            while done < 2000:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert done < 2200
            storage.may.set()  # which wakes them all
        assert done == 3000
    assert len(storage.appended) > 6000
    assert len(await read_journal(storage)) == 3001


async def test_calls_of_others_go_on_unrecorded_wherever_the_journal_is_left(
    tmp_path: Path,
) -> None:
    names = itertools.count()
    async with opened(isolation="thread") as device:

        async def journal(
            leave: trio.Event, left: trio.Event, *, task_status: trio.TaskStatus[None]
        ) -> None:
            async with open_journal(device, tmp_path / str(next(names)), results=True):
                task_status.started()
                await leave.wait()
            left.set()

        for make in (
            lambda x: partial(device.get, x),
            lambda x: partial(device.fill, x, 7),
            lambda x: partial(device.copy, x),
        ):
            for step in itertools.count(1):
                x = await device.put(np.arange(4.0))  # older than the journal
                leave, left = trio.Event(), trio.Event()
                async with trio.open_nursery() as nursery:
                    await nursery.start(journal, leave, left)

                    async def end(leave: trio.Event = leave, left: trio.Event = left) -> None:
                        leave.set()
                        await left.wait()

                    more, got = await interrupted_at(step, make(x), end)
                    leave.set()
                assert device.core.recorder is None
                if isinstance(got, np.ndarray):
                    assert got.tolist() == [0, 1, 2, 3]
                if not more:
                    break
            assert step > 1


# --- what goes wrong -----------------------------------------------------------------------


async def test_a_full_disk_ends_the_journal_and_not_the_program(tmp_path: Path) -> None:
    """SQLite reports the largest size of a database as it reports a full disk."""
    path = tmp_path / "journal"
    storage = SqliteStorage(path)
    async with opened(isolation="thread") as device:
        with pytest.raises(JournalError, match=r"ended early, at OperationalError.*full"):
            async with open_journal(device, storage, contents=True) as journal:
                x = await device.put(np.zeros(1))
                await journal.flush()
                assert storage._connection is not None
                storage._connection.execute("PRAGMA max_page_count = 20")
                while journal.error is None:
                    await device.put(np.random.default_rng().random(4096))
                await device.fill(x, 1)
                with pytest.raises(JournalError):
                    await journal.flush()
        assert (await device.get(x)).tolist() == [1]
        assert (await read_journal(path))[0] == "1 device.put(<float64 (1,)>) -> #1"
        assert not (await replay_journal(path, device)).complete


async def test_a_journal_that_cannot_be_begun_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with opened(isolation="thread") as device:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            with pytest.raises(JournalError, match="cannot be written"):
                async with open_journal(device, path):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not any(os.scandir(tmp_path))
        async with open_journal(device, path):
            modes = {entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
    assert modes == {0o600}
    assert await read_journal(path) == []


async def test_opening_ends_wherever_it_is_cancelled(tmp_path: Path) -> None:
    """Either no journal is left, or a complete one without calls."""
    found = []
    async with opened(isolation="thread") as device:
        for step in itertools.count(1):
            path = tmp_path / str(step)

            async def journal(path: Path = path) -> None:
                async with open_journal(device, path):
                    pass

            if not await cancelled_at(step, journal):
                break
            assert device.core.recorder is None
            if found_there := path.exists():
                assert await read_journal(path) == []
            found.append(found_there)
    assert found[0] is False
    assert len(found) > 1
    left = {name.partition("-")[0] for name in names_in(tmp_path)}
    assert left == {str(at) for at, there in enumerate([*found, True], 1) if there}


async def test_opening_what_never_opens_can_be_cancelled() -> None:
    class Shut(Slow):
        """A storage that waits for a server that says nothing."""

        @asynccontextmanager
        async def open(self, *, create: bool) -> AsyncIterator[None]:
            async with super().open(create=create):
                await trio.Event().wait()
                yield

    async with opened(isolation="thread") as device:

        async def journal() -> None:
            async with open_journal(device, Shut()):
                raise NotImplementedError

        assert await cancelled_at(1, journal)
        async with open_journal(device, storage := Slow()):
            storage.may.set()
    assert await read_journal(storage) == []


async def test_a_journal_that_ended_before_its_first_record_says_so(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "journal")
    async with storage.open(create=True):
        pass
    with pytest.raises(JournalError, match="ended before anything was written"):
        await read_journal(storage)


async def test_an_error_of_the_program_is_not_hidden_by_one_of_the_journal(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "journal")
    async with opened(isolation="thread") as device:
        with pytest.raises(LookupError, match=r"^mine$"):
            async with open_journal(device, storage):
                connection, storage._connection = storage._connection, None
                raise LookupError("mine")
        assert connection is not None
        connection.close()


KILLED = """
import os, sys, trio
import numpy as np
from atomr_accel import open_device
from atomr_accel.replay import open_journal

async def main():
    async with open_device(0, backend="cpu", isolation="thread") as device:
        async with open_journal(device, sys.argv[1], contents=True, results=True) as journal:
            x = await device.put(np.arange(4.0))
            for _ in range(20):
                await device.evaluate(x + 1, out=x)
            await journal.flush()
            os.write(1, b"now")
            while True:
                await device.evaluate(x + 1, out=x)

trio.run(main)
"""


@pytest.mark.slow
async def test_the_journal_of_a_program_that_is_killed_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    command = [sys.executable, "-c", KILLED, str(path)]
    places = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    async with process.stdout:
        told = await process.stdout.receive_some()
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    assert told == b"now"
    assert len(await read_journal(path)) >= 21
    async with opened(isolation="thread") as device:
        report = await replay_journal(path, device)
    assert report.same, report
    assert not report.complete
    assert report.compared >= 21


async def recorded(path: Path) -> None:
    async with (
        opened(isolation="thread") as device,
        open_journal(device, path, contents=True, results=True),
    ):
        x = await device.put(np.arange(64.0))
        for _ in range(5):
            await device.fill(x, 3)


async def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await recorded(path)
    good = path.read_bytes()
    count = len(rows(path))

    async def damaged(statement: str, *values: object) -> JournalDamaged:
        path.write_bytes(good)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement, values)
        with pytest.raises(JournalDamaged) as caught:
            async with opened(isolation="thread") as device:
                await replay_journal(path, device)
        return caught.value

    other = encode(CallEntry(7, "device", "trim"))
    changed = await damaged("UPDATE records SET data = ? WHERE number = 4", other)
    assert (changed.record, str(changed)) == (4, "record 4 is not what was written")
    assert (await damaged("DELETE FROM records WHERE number = 3")).record == 3
    assert (await damaged("UPDATE records SET data = x'81' WHERE number = 2")).record == 2
    assert (
        await damaged("INSERT INTO records VALUES (?, x'', x'', x'')", count + 5)
    ).record == count
    assert "array" in str(await damaged("UPDATE contents SET data = zeroblob(length(data))"))
    assert "missing" in str(await damaged("DELETE FROM contents"))
    assert (await damaged("UPDATE records SET data = 'text' WHERE number = 5")).record == 5
    assert "array" in str(await damaged("UPDATE contents SET data = 'text'"))
    bad = b"\x81\xa1a\xa1\xff"  # a map with text that is no UTF-8
    assert (await damaged("UPDATE records SET data = ? WHERE number = 0", bad)).record == 0
    path.write_bytes(good[:4096] + b"\xff" * (len(good) - 4096))
    with pytest.raises(JournalDamaged, match="cannot be read"):
        await read_journal(path)


async def test_whatever_is_in_the_file_is_an_error_of_journals(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await recorded(path)
    good, rng = path.read_bytes(), random.Random(draw())
    for content in (b"", b"hello\n" * 1000, rng.randbytes(5000)):
        path.write_bytes(content)
        with pytest.raises(JournalError):
            await read_journal(path)
    lines: set[int] = set()
    for _ in range(20):
        changed = bytearray(good)
        changed[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        for content in (bytes(changed), good[: rng.randrange(1, len(good))]):
            path.write_bytes(content)
            with contextlib.suppress(JournalError):
                lines.add(len(await read_journal(path)))
    assert lines <= {6}


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


@pytest.mark.parametrize("where", ["missing/journal", "file/journal", "n" * 300])
async def test_a_file_that_cannot_be_begun_is_a_journal_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    async with opened(isolation="thread") as device:
        with pytest.raises(JournalError, match="cannot be written"):
            async with open_journal(device, tmp_path / where):
                pass
        with pytest.raises(FileExistsError):
            async with open_journal(device, tmp_path / "file"):
                pass
    assert names_in(tmp_path) == ["file"]


async def test_without_a_thread_no_journal_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with opened(isolation="thread") as device:
        monkeypatch.setattr(trio.to_thread, "run_sync", none)
        with pytest.raises(JournalError, match="cannot be opened: a worker thread"):
            async with open_journal(device, tmp_path / "journal"):
                pass
        monkeypatch.undo()
    assert names_in(tmp_path) == []


async def test_invalid_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with pytest.raises(FileNotFoundError):
        await read_journal(path)
    with pytest.raises(JournalError, match="it is no file"):
        await read_journal(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE cats (name)")
    with pytest.raises(JournalError, match="is no journal"):
        await read_journal(path)
    path.unlink()
    await recorded(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(JournalError, match=f"of version {SCHEMA + 1}, and this reads {SCHEMA}"):
        await read_journal(path)


def chained(datas: list[bytes], first: int = 0, before: bytes = START) -> list[Record]:
    records = []
    for number, data in enumerate(datas, first):
        digest = digest_of(before, number, data)
        records.append(Record(number, before, digest, data))
        before = digest
    return records


@given(st.lists(st.binary(max_size=8), min_size=2, max_size=8), st.data())
def test_the_chain_tells_of_every_change(datas: list[bytes], data: st.DataObject) -> None:
    records = chained(datas)
    check_chain(records, dropping=False)
    at = data.draw(st.integers(0, len(records) - 1))
    other = data.draw(st.binary(max_size=8))
    if other != records[at].data:
        with pytest.raises(JournalDamaged):
            check_chain(
                [*records[:at], records[at]._replace(data=other), *records[at + 1 :]],
                dropping=False,
            )
    if at < len(records) - 1:
        with pytest.raises(JournalDamaged):
            check_chain([*records[:at], *records[at + 1 :]], dropping=False)


def test_dropping_may_take_the_oldest_and_nothing_else() -> None:
    records = chained([b"header", b"a", b"b", b"c", b"d"])
    check_chain([records[0], *records[3:]], dropping=True)
    with pytest.raises(JournalDamaged):
        check_chain([records[0], *records[3:]], dropping=False)
    with pytest.raises(JournalDamaged):
        check_chain([records[0], records[1], *records[3:]], dropping=True)


def test_unrecordable_value_is_opaque() -> None:
    entry = CallEntry(1, "device", "run", (Opaque("<thing>"),))
    assert decode(encode(entry)) == entry
    with pytest.raises(msgspec.MsgspecError):
        decode(b"\x81")


async def test_a_call_with_an_opaque_argument_is_skipped_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    class Thing:
        """An object that a journal cannot recreate."""

    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            x = await device.put(np.zeros(1))
            await device.run(repr, Thing())
            await device.get(x)
        report = await replay_journal(path, device)
    assert [each.call for each in report.skipped] == [2]
    assert "Thing" in report.skipped[0].reason
    assert report.differences == []


async def test_entry_being_written_counts_once() -> None:
    class Held:
        """A storage that writes when it is let."""

        def __init__(self) -> None:
            self.begun, self.let = trio.Event(), trio.Event()

        @asynccontextmanager
        async def open(self, *, create: bool) -> AsyncIterator[None]:
            yield

        async def append(self, *_: Any) -> None:
            self.begun.set()
            await self.let.wait()

    storage: Any = Held()
    writer = JournalWriter(
        storage, contents=False, most_entries=100, most_bytes=1 << 30, when_full="refuse"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for number in range(60):
            writer.add(WaitingEntry(End(number)))
        await storage.begun.wait()
        writer.require_room()
        for number in range(60, 100):
            writer.add(WaitingEntry(End(number)))
        with pytest.raises(JournalFull, match="100 entries of 100"):
            writer.require_room()
        storage.let.set()
        await writer.drained()
        with pytest.raises(JournalFull, match="100 entries of 100"):
            writer.require_room()
        writer.close(100)
