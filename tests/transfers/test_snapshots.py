"""Snapshots: one point of the program's order, kept on the host, on a peer, or in a file."""

from __future__ import annotations

import fcntl
import random
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale, Snapshot, Unsupported
from atomr_accel._dtypes import DTYPES
from atomr_accel.device.contexts._reaper import Reaper
from atomr_accel.device.data import _snapshot, _snapshot_file
from atomr_accel.lanes import HostDied
from atomr_accel.replay import open_journal, replay_journal
from atomr_accel.testing import kill_host
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import UnmapSlabs

from ..array_samples import random_bits
from ..harness import SECOND, Gate, cancelled_at, descriptors, opened, same_bits, settled, used_by

SHAPES = [(), (3,), (0, 4), (2, 3, 5), (1000,)]


def arrays() -> list[np.ndarray[Any, Any]]:
    """One of every dtype, in shapes of all sorts."""
    return [
        random_bits(SHAPES[number % len(SHAPES)], dtype, number)
        for number, dtype in enumerate(DTYPES.values())
    ]


def assert_alone(path: Path) -> None:
    """Check that the folder contains only this file."""
    assert [*path.parent.iterdir()] == [path]


async def assert_holds(device: Device, refs: list[GpuRef], want: list[Any]) -> None:
    for ref, array in zip(refs, want, strict=True):
        assert ref.device == device.name
        assert same_bits(await device.get(ref), array)


async def test_every_dtype_comes_back_from_everywhere(tmp_path: Path) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        want = arrays()
        refs = [await one.put(array) for array in want]
        on_host = await one.snapshot(refs)
        on_peer = await one.snapshot(refs, to=two)
        for ref in refs:
            await one.fill(ref, 0)
        await on_host.save(tmp_path / "snapshot")
        in_file = await Snapshot.load(tmp_path / "snapshot")
        for snapshot, place in ((on_host, "host"), (on_peer, two.name), (in_file, "host")):
            for device in (one, two):
                made = await device.restore(snapshot)
                await assert_holds(device, made, want)
                for ref in made:
                    await device.fill(ref, 0)
                assert await device.restore(snapshot, out=made) == made
                await assert_holds(device, made, want)
            said = snapshot.statistics()
            assert (said.state, said.place, len(snapshot)) == ("complete", place, len(want))
            assert said.moved == said.nbytes == snapshot.nbytes == sum(a.nbytes for a in want)
        assert all(same_bits(*pair) for pair in zip(await on_host.arrays(), want, strict=True))
    assert_alone(tmp_path / "snapshot")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_all_buffers_are_as_they_were_at_one_point_of_the_order(
    gate: Gate, elsewhere: bool
) -> None:
    chance = random.Random(elsewhere)
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        hold = await gate.kernel(one)
        refs = [await one.zeros(16, np.float32) for _ in range(3)]
        values = [0.0] * 3
        taken: list[tuple[list[float], Snapshot]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, refs[0])  # so that nothing has happened yet
            await trio.testing.wait_all_tasks_blocked()
            values[0] += 1
            for number in range(2, 30):
                if chance.random() < 0.3:
                    snapshot = await one.snapshot(refs, to=two if elsewhere else None)
                    assert snapshot.statistics().state == "moving"
                    taken.append((list(values), snapshot))
                else:
                    at = chance.randrange(3)
                    nursery.start_soon(one.fill, refs[at], number)
                    values[at] = float(number)
                    await trio.testing.wait_all_tasks_blocked()
            gate.open()
        assert len(taken) > 3
        for expected, snapshot in taken:
            made = await one.restore(snapshot)
            assert [(await one.get(ref))[0] for ref in made] == expected


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_complete_snapshot_survives_both_devices_and_another_does_not(
    gate: Gate, elsewhere: bool
) -> None:
    async with opened(max_restarts=9) as one, opened(SECOND, max_restarts=9) as two:
        to = two if elsewhere else None
        want = [np.arange(1 << 18, dtype=np.float32), np.arange(3.0)]
        refs = [await one.put(array) for array in want]
        snapshot = await one.snapshot(refs, to=to)
        await snapshot.wait()
        hold = await gate.kernel(one)
        async with trio.open_nursery() as nursery:

            async def fault() -> None:
                with pytest.raises(ContextPoisoned):
                    await hold(refs[0])

            nursery.start_soon(fault)
            await trio.testing.wait_all_tasks_blocked()
            lost = await one.snapshot(refs, to=to)
            await kill_host(one)
            await kill_host(two)
            for _ in range(2):  # it says so as often as it is asked
                with pytest.raises(ContextPoisoned, match="op 'snapshot' did not finish"):
                    await one.restore(lost)
            assert lost.statistics().state == "failed"
            gate.open()
        with pytest.raises(GpuRefStale):
            await one.restore(snapshot, out=refs)
        await assert_holds(one, await one.restore(snapshot), want)
        await assert_holds(two, await two.restore(snapshot), want)


@pytest.mark.slow
async def test_a_peer_that_fails_meanwhile_takes_the_snapshot_with_it(gate: Gate) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, max_restarts=9) as two:
        hold = await gate.kernel(one)
        x = await one.zeros(1 << 18, np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, x)
            await trio.testing.wait_all_tasks_blocked()
            snapshot = await one.snapshot([x], to=two)
            await kill_host(two)
            gate.open()
        with pytest.raises(ContextPoisoned, match=re.escape(two.name)):
            await snapshot.wait()
        assert one.generation == 1
        await settled(one)
        del snapshot
        again = await one.snapshot([x], to=two)
        assert (await two.get((await two.restore(again))[0]))[0] == 1


async def test_the_memory_of_a_snapshot_goes_with_it_or_earlier() -> None:
    async with opened(isolation="thread") as device:
        refs = [await device.put(np.arange(1000.0))]

        def used() -> int:
            collect_garbage()
            return device.pinned.statistics().used

        snapshot = await device.snapshot(refs)
        seen = (await snapshot.arrays())[0]
        assert not seen.flags.writeable
        assert used() > 0
        again = await device.snapshot(refs, out=snapshot)
        assert again is snapshot
        before = used()
        with await device.snapshot(refs) as other:
            await other.wait()
            assert used() == 2 * before
        assert used() == before
        for call in (other.wait, other.arrays, lambda: device.restore(other)):
            with pytest.raises(ValueError, match="was closed"):
                await call()
        assert other.statistics().state == "closed"
        del snapshot, again
        assert used() == 0
        assert seen[999] == 999  # it is whose who holds it
        last = await device.snapshot(refs)
        await last.wait()
    assert (await last.arrays())[0][7] == 7  # whatever becomes of the device
    last.close()


@pytest.mark.parametrize("moving", [False, True])
async def test_a_closed_snapshot_keeps_no_memory_of_its_peer(gate: Gate, moving: bool) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        hold = await gate.kernel(one)
        x = await one.zeros(1 << 18, np.float32)
        before = two.statistics().memory.used
        async with trio.open_nursery() as nursery:
            if moving:
                nursery.start_soon(hold, x)
                await trio.testing.wait_all_tasks_blocked()
            snapshot = await one.snapshot([x], to=two)
            assert two.statistics().memory.used == before + x.nbytes
            if not moving:
                await snapshot.wait()
            snapshot.close()
            gate.open()
        await one.get(x)  # the snapshot's copies were first
        assert snapshot.statistics().state == "closed"
        assert two.statistics().memory.used == before


async def test_memory_is_used_again_when_nothing_else_uses_it(gate: Gate) -> None:
    async with opened(isolation="thread") as device:
        hold = await gate.kernel(device)
        x = await device.zeros(4, np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, x)
            await trio.testing.wait_all_tasks_blocked()
            snapshot = await device.snapshot([x])
            with pytest.raises(ValueError, match="still being taken"):
                await device.snapshot([x], out=snapshot)
            gate.open()
        await snapshot.wait()
        hold = await gate.kernel(device)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, x)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await device.restore(snapshot, out=[x])
            nursery.start_soon(lambda: device.restore(snapshot, out=[x]))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ValueError, match="or restored"):
                await device.snapshot([x], out=snapshot)
            gate.open()
        await device.snapshot([x], out=snapshot)


async def test_snapshot_refuses_invalid_options() -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        x = await one.zeros((2, 3))
        snapshot = await one.snapshot([x])
        on_peer = await one.snapshot([x], to=two)
        freed = await one.zeros(3)
        await one.free(freed)
        nothing: Any = x
        wrong: list[tuple[Any, type[Exception], str]] = [
            (lambda: one.snapshot(nothing), TypeError, "iter"),
            (lambda: one.snapshot([x], to=nothing), TypeError, "an open device"),
            (lambda: one.snapshot([x], out=nothing), TypeError, "a Snapshot"),
            (lambda: one.snapshot([x], to=one), ValueError, "would be lost with it"),
            (lambda: one.snapshot([x.T]), ValueError, "contiguous"),
            (lambda: one.snapshot([x, freed]), GpuRefStale, "freed"),
            (lambda: two.snapshot([x]), ValueError, "ref 0"),
            (lambda: one.snapshot([x[0]], out=snapshot), ValueError, "other shapes"),
            (lambda: one.snapshot([x], out=on_peer), ValueError, "in host memory"),
            (lambda: one.restore(nothing), TypeError, "a Snapshot"),
            (lambda: one.restore(snapshot, out=[]), ValueError, "of 1 buffers"),
            (lambda: one.restore(snapshot, out=[x[0]]), ValueError, "shape"),
            (on_peer.arrays, Unsupported, "no array of it"),
        ]
        for call, error, said in wrong:
            with pytest.raises(error, match=said):
                await call()
        for to in (None, two):
            nothing_at_all = await one.snapshot([], to=to)
            assert (await one.restore(nothing_at_all), nothing_at_all.nbytes) == ([], 0)
        assert await one.snapshot([], out=await one.snapshot([])) is not None
        turned = await one.zeros((3, 2))
        await one.restore(snapshot, out=[turned.T])
        assert not (await one.get(turned)).any()


async def test_without_a_path_a_peer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        x = await one.zeros(3)
        windows: Any = one.core.windows
        windows._refused.add(two.core.memory)
        with pytest.raises(Unsupported, match="cannot write to the memory"):
            await one.snapshot([x], to=two)
        assert used_by(two) == 0
        monkeypatch.setattr(_snapshot, "_CHUNK", 8)  # in several pieces
        (made,) = await two.restore(await one.snapshot([x]))
        assert (await two.get(made)).tolist() == [0.0] * 3


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_whoever_is_cancelled_leaves_nothing(elsewhere: bool) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        refs = [await one.put(np.arange(9.0)), await one.put(np.arange(5))]
        to = two if elsewhere else None

        async def there_and_back() -> None:
            await one.restore(await one.snapshot(refs, to=to))

        used = used_by(one)
        step = 1
        while await cancelled_at(step, there_and_back):
            step += 1
            await settled(one)
            await settled(two)
        assert step > 3
        collect_garbage()
        for device in (one, two):
            device.core.memory.collect(1000)
        assert (used_by(one), used_by(two)) == (used, 0)
        assert one.pinned.statistics().used == 0


async def test_a_journal_notes_what_is_restored(tmp_path: Path) -> None:
    async with opened(isolation="thread") as device:
        refs = [await device.put(np.arange(4.0))]
        snapshot = await device.snapshot(refs)
        async with open_journal(device, tmp_path / "journal", contents=True, results=True):
            made = await device.restore(snapshot)
            await device.fill(refs[0], 1)
            await device.restore(snapshot, out=refs)
            await device.blas.axpy(made[0], refs[0])
            assert (await device.get(refs[0])).tolist() == [0, 2, 4, 6]
        report = await replay_journal(tmp_path / "journal", device)
        assert report.compared
        assert not report.skipped
        assert not report.differences


# --- files -----------------------------------------------------------------------------------


def test_a_file_that_was_cut_off_or_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    _snapshot_file.write_arrays(path, [np.arange(100), np.array(1.5), np.zeros((0, 3))])
    whole = path.read_bytes()
    chance = random.Random(0)
    for _ in range(50):
        path.write_bytes(whole[: chance.randrange(4096 + 800)])
        with pytest.raises(ValueError, match="no complete snapshot"):
            _snapshot_file.read_arrays(path)
    said = [*range(20), *range(4096, 4096 + 800, 37), 8192]
    for at in said:
        changed = bytearray(whole)
        changed[at] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="no complete snapshot"):
            _snapshot_file.read_arrays(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot"
    _snapshot_file.write_arrays(path, [np.arange(3)])

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        _snapshot_file.write_arrays(path, [np.arange(4)])
    assert_alone(path)
    assert _snapshot_file.read_arrays(path)[0].tolist() == [0, 1, 2]


async def test_restored_snapshot_is_taken_anew_only_afterwards(gate: Gate) -> None:
    """The source may be another device that has submitted nothing yet."""
    async with opened(isolation="thread") as one, opened(isolation="thread") as other:
        nbytes = 1 << 22
        refs = [await one.zeros(nbytes, np.uint8) for _ in range(2)]
        snapshot = await one.snapshot(refs)
        await snapshot.wait()
        for ref in refs:
            await one.fill(ref, 7)
        restored: list[GpuRef] = []

        async def restore() -> None:
            restored.extend(await other.restore(snapshot))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restore)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            with pytest.raises(ValueError, match="or restored"):
                await one.snapshot(refs, out=snapshot)
        for ref in restored:
            assert not (await other.get(ref)).any()
        await one.snapshot(refs, out=snapshot)


async def test_memory_is_not_used_again_before_a_killed_host_has_ended() -> None:
    class Host:
        """Host whose identity the reaper compares."""

    class Answered:
        """A copy that its host's end has answered."""

        error = HostDied("it was killed")

        def when_answered(self, callback: Any) -> None:
            callback()

        async def wait(self) -> None:
            raise self.error

    reaper, host, released = Reaper(), Host(), trio.Event()
    moves = _snapshot._Moves()
    core: Any = SimpleNamespace(reaper=reaper)
    anything: Any = host
    copy: Any = Answered()
    moves.add(core, anything, copy, 1, released.set)
    moves.all()
    memory: Any = object()
    snapshot = Snapshot([], moves=moves, memory=memory)
    with pytest.raises(ValueError, match="still being taken"):
        snapshot._require_idle()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def waits() -> None:
            with pytest.raises(HostDied):
                await snapshot.wait()
            assert released.is_set()

        await trio.testing.wait_all_tasks_blocked()
        reaper._reaped(anything)
    snapshot._require_idle()


async def test_memory_is_not_used_again_while_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = _snapshot_file.write_arrays

    def slowly(*args: Any) -> None:
        go_on.wait()
        write(*args)

    monkeypatch.setattr(_snapshot, "write_arrays", slowly)
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones(4))
        snapshot = await device.snapshot([x])
        await snapshot.wait()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(snapshot.save, tmp_path / "x")
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(ValueError, match="out is still being taken, saved or restored"):
                    await device.snapshot([x], out=snapshot)
                go_on.set()
        finally:
            go_on.set()
        await device.snapshot([x], out=snapshot)


@pytest.mark.parametrize("held", [False, True])
async def test_a_host_unmaps_the_memory_of_a_snapshot_that_is_closed_early(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(isolation="thread") as device:
        context = device.core.serving
        assert context is not None
        request, unmapped = context.host.request, trio.Event()

        async def noted(message: Any, *fds: int, **options: Any) -> Any:
            answer = await request(message, *fds, **options)
            if isinstance(message, UnmapSlabs):
                unmapped.set()
            return answer

        monkeypatch.setattr(context.host, "request", noted)
        snapshot = await device.snapshot([await device.put(np.ones(4))])
        if held:
            snapshot.close()
        del snapshot
        collect_garbage()
        await unmapped.wait()


async def test_closed_snapshots_keep_no_descriptors() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones(4))
        counts = []
        for _ in range(3):
            snapshot = await device.snapshot([x])
            await snapshot.wait()
            snapshot.close()
            await device.pinned._unmap(await device.core.ready())
            counts.append(descriptors())
        assert counts == counts[:1] * 3


def test_a_file_that_a_killed_program_has_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    stale, alive, other = (
        tmp_path / name
        for name in (".x.12345678.partial", ".x.abcdefgh.partial", ".y.12345678.partial")
    )
    for path in (stale, alive, other):
        path.write_bytes(b"begun")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _snapshot_file.write_arrays(tmp_path / "x", [np.ones(3)])
    assert {*tmp_path.iterdir()} == {tmp_path / "x", alive, other}
