"""Buffers across devices, generations and processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefSealed,
    GpuRefStale,
    SharedBuffer,
)
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage

from ..array_samples import noise
from ..harness import (
    ROOT,
    SECOND,
    cancelled_at,
    cpu_only,
    descriptors,
    on_shared,
    opened,
    same_bits,
    settled,
    used_by,
)

SIZES = [0, 1, 1000, (1 << 20) - 1, 1 << 20, 9 << 20]


# --- between devices --------------------------------------------------------------------------


async def test_copies_between_devices() -> None:
    async with opened(max_restarts=9) as one, opened(SECOND, isolation="thread") as two:
        for nbytes in SIZES:
            array = noise(nbytes)
            ref = await one.put(array)
            there = await two.copy(ref)
            assert there.device == two.name
            assert same_bits(await two.get(there), array)
            back = await one.put(np.zeros_like(array))
            assert await one.copy(there, back) is back
            assert same_bits(await one.get(back), array)
            part = await one.copy(there[nbytes // 3 :])
            assert same_bits(await one.get(part), array[nbytes // 3 :])
        sealed = await one.put(np.arange(10), sealed=True)
        copy = await two.copy(sealed)
        await two.fill(copy, 1)
        with pytest.raises(GpuRefSealed):
            await one.copy(copy, sealed)
        with pytest.raises(
            ValueError, match=r"dst must be on .*:0.*, where the op runs, not on .*:0"
        ):
            await two.copy(copy, sealed)
        with pytest.raises(
            ValueError, match=r"dst must have the shape of src, \(3,\), not \(10,\)"
        ):
            await two.copy(await one.zeros(3), copy)
        for device in (one, two):
            assert device.core.staging._pool.in_use == 0
        await poison(one)
        with pytest.raises(GpuRefStale):
            await two.copy(ref)


async def test_copies_in_both_directions_at_once() -> None:
    async with opened() as one, opened(SECOND) as two, trio.open_nursery() as nursery:
        arrays = [noise(3 << 20, seed) for seed in range(6)]

        async def copy(source: Device, target: Device, array: np.ndarray[Any, Any]) -> None:
            from atomr_accel.device.interop import _sharing as _between

            # By way of the host, both take pieces of both devices' staging memory.
            ref = await source.put(array)
            there = await target.empty(array.shape, array.dtype)
            await _between._by_way_of_the_host(source.core, ref, target.core, there)
            assert same_bits(await target.get(there), array)

        for array in arrays:
            nursery.start_soon(copy, one, two, array)
            nursery.start_soon(copy, two, one, array)


@pytest.mark.parametrize("nbytes", [1000, 9 << 20])
async def test_a_cancelled_copy_between_devices_leaves_nothing(nbytes: int) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        array = noise(nbytes)
        ref = await one.put(array)
        await two.copy(ref)
        slabs = two.statistics().memory.slabs
        step = 1
        while await cancelled_at(step, lambda: two.copy(ref)):
            step += 1
            for device in (one, two):
                await settled(device)
                assert device.core.staging._pool.in_use == 0
        two.core.memory.collect(1000)
        assert used_by(two) == 0
        assert two.statistics().memory.slabs == slabs
        assert same_bits(await one.get(ref), array)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_fault_in_the_middle_of_a_copy_between_devices(which: str) -> None:
    array = noise(9 << 20)
    async with opened(max_restarts=9) as one, opened(SECOND, max_restarts=9) as two:
        sealed = await one.put(array, sealed=True)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poison, one if which == "source" else two)
                try:
                    copy = await two.copy(sealed)
                except ContextPoisoned:
                    continue
            if not copy.is_stale:
                assert same_bits(await two.get(copy), array)
        copy = await two.copy(sealed)
        assert same_bits(await two.get(copy), array)


async def test_memory_of_a_closed_device_cannot_be_copied() -> None:
    async with opened() as two:
        async with opened(SECOND, isolation="thread") as one:
            sealed = await one.put(np.arange(3), sealed=True)
            plain = await one.put(np.arange(3))
        for ref, error in ((sealed, DeviceLost), (plain, GpuRefStale)):
            with pytest.raises(error, match="is closed: its 'async with' block was left"):
                await two.copy(ref)


# --- from a generation that is over -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("blow", [poison, kill_host])
async def test_memory_left_by_a_fault_can_be_salvaged(blow: Any) -> None:
    async with opened(max_restarts=9) as device:
        array = noise(5 << 20)
        ref = await device.put(array)
        assert same_bits(await device.salvage(ref), array)
        await blow(device)
        with pytest.raises(GpuRefStale):
            await device.get(ref)
        assert same_bits(await device.salvage(ref), array)
        assert same_bits(await device.salvage(ref[1000:2000]), array[1000:2000])
        await blow(device)
        assert same_bits(await device.salvage(ref), array)  # of the generation before the last
        other = await device.put(array)
        await device.free(other)
        with pytest.raises(GpuRefStale, match="was freed"):
            await device.salvage(other)
        await device.trim()
        with pytest.raises(GpuRefStale, match="given up"):
            await device.salvage(ref)
        with pytest.raises(TypeError, match="must be a GpuRef"):
            await device.salvage(array)  # type: ignore[arg-type]
        slabs = device.statistics().memory.slabs
        del ref
        collect_garbage()
        assert device.statistics().memory.slabs <= slabs


async def test_a_cancelled_salvage_leaves_nothing() -> None:
    async with opened(max_restarts=9) as device:
        array = noise(3 << 20)
        ref = await device.put(array)
        await poison(device)
        await device.salvage(ref)
        collect_garbage()
        before = descriptors()
        step = 1
        while await cancelled_at(step, lambda: device.salvage(ref)):
            step += 1
            await settled(device)
        assert descriptors() <= before  # less where the host that was killed is gone only now
        assert same_bits(await device.salvage(ref), array)


# --- between processes ------------------------------------------------------------------------

OTHER = """if True:
    import sys, socket, trio, numpy as np
    from atomr_accel import open_device, SharedBuffer
    sock = socket.socket(fileno=int(sys.argv[1]))
    async def main():
        async with open_device(0, backend=sys.argv[2]) as device:
            for _ in range(2):
                data, fds, _, _ = socket.recv_fds(sock, 4096, 1)
                with SharedBuffer(fds[0], data) as shared:
                    ref = await device.adopt(shared)
                host = await device.get(ref)
                assert ref.sealed == (host.dtype == np.float32), ref
                print(host.dtype, host.shape, host.sum())
    trio.run(main)
"""


@pytest.mark.slow
async def test_another_process_opens_a_shared_buffer() -> None:
    ours, theirs = socket.socketpair()
    async with opened() as device:
        command = [sys.executable, "-c", OTHER, str(theirs.fileno()), device.backend]
        other = await trio.to_thread.run_sync(
            lambda: subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, cwd=ROOT
            )
        )
        theirs.close()
        weights = await device.put(np.arange(1 << 18, dtype=np.float32), sealed=True)
        plain = await device.put(np.arange(100).reshape(20, 5))
        with await device.share(weights) as one, await device.share(plain[10:]) as two:
            assert (one.sealed, two.sealed) == (True, False)
            assert two.shape == (10, 5)
            assert two.dtype == np.int64
            for shared in (one, two):
                socket.send_fds(ours, [shared.description], [shared.fd])
                await trio.lowlevel.checkpoint()
            out, _ = await trio.to_thread.run_sync(other.communicate)
        ours.close()
    expected = [f"float32 {(1 << 18,)}", f"int64 (10, 5) {np.arange(50, 100).sum()}"]
    assert all(line in out.decode() for line in expected), out


def open_files() -> set[tuple[str, int]]:
    """The descriptors of this process, and their files."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add((path.name, path.stat().st_ino))
    return found


@on_shared
async def test_a_sealed_shared_buffer_is_the_same_memory(device: Device) -> None:
    collect_garbage()
    await device.trim()
    before = open_files()
    ref = await device.put(np.arange(1000.0), sealed=True)
    with await device.share(ref[100:]) as shared:
        used = device.statistics().memory.used
        again = await device.adopt(SharedBuffer(os.dup(shared.fd), shared.description))
    assert again.sealed
    assert same_bits(await device.get(again), np.arange(100.0, 1000.0))
    with pytest.raises(GpuRefSealed):
        await device.fill(again, 1)
    assert device.statistics().memory.used > used
    with pytest.raises(ValueError, match="was closed"):
        await device.adopt(shared)
    del again
    await device.free(ref)
    del shared
    await device.trim()
    # Others may close meanwhile what is theirs, such as arrays that tests before have exported.
    assert not open_files() - before


@pytest.mark.slow
@cpu_only
async def test_shared_memory_survives_a_rebuild_of_the_other_device() -> None:
    async with opened() as one, opened(SECOND, max_restarts=9) as two:
        ref = await one.put(np.arange(1000), sealed=True)
        with await one.share(ref) as shared:
            there = await two.adopt(shared)
            await poison(two)
            assert same_bits(await two.get(there), np.arange(1000))
            copy = await two.copy(there)
            assert same_bits(await two.get(copy), np.arange(1000))


@on_shared
async def test_a_description_is_not_believed(device: Device) -> None:
    ref = await device.put(np.arange(100))
    with await device.share(ref) as shared:
        good = msgspec.msgpack.decode(shared.description)
        slab_bytes, _, shape, dtype, sealed = good[2:]
        wrong: list[tuple[object, str]] = [
            (good[:-1], "describes no shared buffer"),
            ([*good[:4], [1 << 40], dtype, sealed], "does not lie in"),
            ([*good[:4], [-1, -100], dtype, sealed], "does not lie in"),
            ([*good[:3], -8, shape, dtype, sealed], "does not lie in"),
            ([*good[:3], slab_bytes, shape, dtype, sealed], "does not lie in"),
            ([*good[:2], 1 << 60, *good[3:]], "does not lie in"),
            ([*good[:5], "object", sealed], "there is no dtype 'object'"),
        ]
        for content, message in wrong:
            with pytest.raises(ValueError, match=message):
                SharedBuffer(shared.fd, msgspec.msgpack.encode(content))
        assert os.fstat(shared.fd).st_size >= 0  # refused, so not taken either
        elsewhere = msgspec.msgpack.encode(["other", *good[1:]])
        with pytest.raises(
            ValueError,
            match="the device must have the backend of the shared buffer, 'other', which",
        ):
            await device.adopt(SharedBuffer(os.dup(shared.fd), elsewhere))
    await device.trim()


async def test_a_ref_that_never_had_memory_cannot_be_salvaged() -> None:
    async with opened(max_restarts=9, memory_limit=16 << 20) as device:
        late = device.core.memory.promise()
        ref = GpuRef(late, (3,), np.dtype(np.float32), 12)
        await poison(device)
        for view in (ref, ref[1:]):
            with pytest.raises(GpuRefStale, match="never had any memory"):
                await device.salvage(view)
