"""Timelines: the file's contents, for any end of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.actors import Actor, Message, handler
from atomr_accel.telemetry import trace
from atomr_accel.telemetry._recorder import _TrackRows
from atomr_accel.testing import poison
from tests.harness import opened
from tests.telemetry.timelines import read
from tests.telemetry.trace_processor import open_trace_processor

messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


class Add(Message[int]):
    k: int


class Adder(Actor):
    @handler
    async def add(self, message: Add) -> int:
        await trio.lowlevel.checkpoint()
        return message.k + 1


async def test_timeline_shows_lanes_and_ops(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    async with opened(backend="cpu") as device:
        a = await device.put(np.ones((8, 8), np.float32), sealed=True)
        await device.blas.gemm(a, a)
        async with trace(device, path):
            for _ in range(3):
                await device.blas.gemm(a, a)
            async with device.batch() as batch:
                for _ in range(20):
                    batch.blas.gemm(a, a)
            await device.put(np.ones(1 << 20, np.uint8))
            async with device.record(a) as recording:
                recording.blas.gemm(a, a)
            await recording.replay()
            await recording.replay()
            adder = await device.system.spawn(Adder, name="adder")
            async with trio.open_nursery() as nursery:
                for k in range(5):
                    nursery.start_soon(adder.ask, Add(k))
            await poison(device)
            await device.blas.gemm(a, a)
        assert not device.system._instruments.active
    timeline = read(path, messages)
    assert timeline.open == []
    gemms = timeline.named("blas.gemm", "lane blas")
    assert len(gemms) == 24
    assert all(one.depth == 0 and "device-0 (cpu:0" in one.track for one in gemms)
    assert Counter(one.flows for one in gemms if one.flows).most_common()[0][1] == 20
    assert timeline.named("queued", "lane blas")
    assert timeline.named("blas.gemm", "executing blas")
    replays = timeline.named("recording.replay", "lane recordings")
    assert len({one.flows for one in replays}) == 1
    assert len(replays) == 2
    (transfer,) = timeline.named("put 1.0 MiB")
    assert transfer.track.endswith("transfers")
    assert timeline.named("generation 1")
    assert timeline.named("generation 2")
    (rebuild,) = timeline.named("context of generation 2")
    assert [len(timeline.named(name, "rebuilds")) for name in ("open", "remap", "lanes")] == [1] * 3
    assert rebuild.end > rebuild.start
    faults = [told["why"] for _, name, told in timeline.instants if name.startswith("fault: ")]
    assert len(faults) == 1
    assert "generation 1" in faults[0]
    assert len(timeline.named("Add", "actors//adder")) >= 5
    asks = timeline.named("Add → /adder", "tasks/")
    assert len(asks) == 5
    assert any(timeline.counts.values())


@pytest.mark.slow
async def test_ops_that_do_not_finish_are_there(tmp_path: Path) -> None:
    path, fifo = tmp_path / "run.pftrace", tmp_path / "fifo"
    os.mkfifo(fifo)
    async with opened(backend="cpu") as device:
        with pytest.raises(ZeroDivisionError):
            async with trace(device.system, tmp_path / "other"):
                raise ZeroDivisionError
        with trio.CancelScope() as scope:
            async with trace(device, path, timed=False), trio.open_nursery() as nursery:
                nursery.start_soon(device.run, _hold, str(fifo))
                end = await trio.to_thread.run_sync(os.open, fifo, os.O_WRONLY)  # it has begun
                scope.cancel()
        os.close(end)
    timeline = read(path, messages)
    assert [(one.name, one.told) for one in timeline.open] == [
        ("run _hold", {"outcome": "not finished"})
    ]
    assert read(tmp_path / "other", messages).open == []


def _hold(path: str) -> None:
    with open(path, "rb") as held:  # noqa: PTH123 (hosts have no imports of this module)
        held.read()


_KILLED = """
    import pathlib, sys, trio, numpy as np
    from atomr_accel import open_device
    from atomr_accel.telemetry import trace

    async def main():
        async with open_device(0, backend="cpu") as device:
            a = await device.put(np.ones((4, 4), np.float32))
            async with trace(device, sys.argv[1]):
                for _ in range(5):
                    await device.blas.gemm(a, a)
                while b"blas.gemm" not in pathlib.Path(sys.argv[1]).read_bytes():
                    await trio.sleep(0)  # the writer has a thread of its own
                print("now", flush=True)
                await trio.sleep_forever()

    trio.run(main)
"""


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "now\n"
        program.send_signal(signal.SIGKILL)
    assert read(path, messages, cut=1 << 40).named("blas.gemm")


async def test_a_timeline_that_was_cut_off_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    async with opened(backend="cpu") as device, trace(device, path):
        await device.put(np.ones(10))
    size = path.stat().st_size
    for cut in range(0, size, 61):
        read(path, messages, cut=cut)


async def test_a_disk_that_is_full_ends_the_timeline_not_the_program(tmp_path: Path) -> None:
    async with opened(backend="cpu") as device:
        with pytest.raises(OSError, match="No space left"):
            async with trace(device, "/dev/full"):
                await device.put(np.ones(10))
        with pytest.raises(FileNotFoundError):
            async with trace(device, tmp_path / "no" / "folder"):
                pass
        await device.put(np.ones(10))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=40),
)
def test_rows_hold_slices_that_do_not_overlap(given: list[tuple[int, int]]) -> None:
    tracks = iter(range(100))
    rows = _TrackRows(lambda: next(tracks))
    placed: dict[int, list[tuple[int, int]]] = {}
    for start, length in given:
        track, moved = rows.place(start, start + length)
        assert moved - start in (0, 1)
        end = max(moved, start + length)
        assert all(moved > other_end or end < other for other, other_end in placed.get(track, []))
        placed.setdefault(track, []).append((moved, end))


@pytest.mark.slow
async def test_perfetto_opens_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    async with opened(backend="cpu") as device, trace(device, path):
        a = await device.put(np.ones((8, 8), np.float32))
        for _ in range(4):
            await device.blas.gemm(a, a)
        async with device.batch() as batch:
            for _ in range(5):
                a = batch.blas.gemm(a, a)
        adder = await device.system.spawn(Adder, name="adder")
        await adder.ask(Add(k=1))
        await poison(device)
        await device.put(np.ones(3))
    async with open_trace_processor(tmp_path / "browser") as processor:
        with trio.fail_after(60):
            await processor.load(path)
            ops = await processor.query(
                "select track.name, count(*), sum(dur > 0) from slice join track"
                " on slice.track_id = track.id"
                " where slice.name = 'blas.gemm' and depth = 0 group by track.name"
            )
            queued = await processor.query(
                "select count(*) from slice join slice as op on slice.parent_id = op.id"
                " where slice.name = 'queued' and op.name = 'blas.gemm'"
            )
            flows = await processor.query("select count(*) from flow")
            inside = await processor.query(
                "select count(*) from slice join slice as other using (track_id)"
                " where slice.ts < other.ts and other.ts < slice.ts + slice.dur"
                " and other.ts + other.dur > slice.ts + slice.dur and slice.depth = other.depth"
            )
            names = await processor.query(
                "select distinct slice.name from slice join track on slice.track_id = track.id"
                " where track.name in ('generations', 'rebuilds', '/adder')"
            )
            memory = await processor.query(
                "select max(value) from counter join track on counter.track_id = track.id"
                " where track.name = 'memory reserved'"
            )
            errors = await processor.query(
                "select name, value from stats where severity != 'info' and value > 0"
            )
    assert {count for _, count, _ in ops} == {9}  # in their lane, and executing
    assert len(ops) == 2
    assert all(count == lasting for _, count, lasting in ops)
    assert queued == [(9,)]
    assert flows[0][0] >= 4
    assert inside == [(0,)]
    assert {"generation 1", "generation 2", "Add", "context of generation 2"} <= {
        name for (name,) in names
    }
    assert any(name.startswith("fault: ") for (name,) in names)
    assert memory[0][0] > 0
    assert not errors
