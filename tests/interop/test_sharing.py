"""Rights of the receiver of a shared buffer, as another user of the system."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, SharedBuffer
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import shared_fd

from ..harness import ROOT, SECOND, cpu_only, descriptors, on_shared, opened, same_bits, used_by

STRANGER = """if True:
    import fcntl, mmap, os, socket, sys, trio, numpy as np
    from atomr_accel import SharedBuffer, open_device

    sock, backend, uid = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])

    def tries(name, function, *args):
        try:
            function(*args)
        except (OSError, ValueError) as error:
            print(name, "refused")
        else:
            print(name, "DONE")

    def protect(fd):
        import ctypes
        view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        at = np.frombuffer(view, np.uint8).ctypes.data
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), 4096, 3):
            raise OSError

    async def main():
        async with open_device(0, backend=backend, isolation="thread") as device:
            await device.get(await device.put(np.ones(3)))  # imports all it needs
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            print("uid", os.getuid() == (uid or os.getuid()))
            data, (fd,), _, _ = socket.recv_fds(sock, 4096, 1)
            if backend == "cpu":
                again = f"/proc/self/fd/{fd}"
                everything = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
                print("secret" if b"unshared" in everything else "alone")
                tries("map", mmap.mmap, fd, 0)
                tries("protect", protect, fd)
                tries("write", os.pwrite, fd, b"x", 0)
                tries("shrink", os.ftruncate, fd, 0)
                tries("grow", os.ftruncate, fd, 1 << 30)
                tries("unlock", fcntl.fcntl, fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
                tries("again", lambda: mmap.mmap(os.open(again, os.O_RDWR), 0))
                tries("punch", lambda: os.posix_fallocate(fd, 0, 1 << 30))
            with SharedBuffer(fd, data) as shared:
                ref = await device.adopt(shared)
            print("sum", (await device.get(ref)).sum(), ref.sealed)
    trio.run(main)
"""


def _another_user() -> int:
    if os.getuid() != 0:
        pytest.skip("only the superuser can become another user")
    return 65534


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
async def test_another_user_has_what_was_shared_and_no_more(sealed: bool) -> None:
    uid = _another_user()
    ours, theirs = socket.socketpair()
    async with opened(max_restarts=9) as device:
        unshared = [
            await device.put(np.frombuffer(b"unshared" * 8, np.uint8), sealed=sealed)
            for _ in range(2)
        ]
        await device.free(unshared.pop())  # nor what was there before
        weights = await device.put(np.arange(9.0), sealed=sealed)
        command = [sys.executable, "-c", STRANGER, str(theirs.fileno()), device.backend, str(uid)]
        other = await trio.to_thread.run_sync(
            lambda: subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, cwd=ROOT
            )
        )
        theirs.close()
        with await device.share(weights) as shared:
            socket.send_fds(ours, [shared.description], [shared.fd])
            out, _ = await trio.to_thread.run_sync(other.communicate)
        ours.close()
        said = out.decode()
        assert "uid True" in said
        assert f"sum 36.0 {sealed}" in said
        if device.backend == "cpu":
            assert said.count("refused") == 8, said
            assert "alone" in said
        assert "DONE" not in said
        assert same_bits(await device.get(weights), np.arange(9.0))
        assert bytes(await device.get(unshared[0])) == b"unshared" * 8
        await poison(device)
        if sealed:
            assert same_bits(await device.get(weights), np.arange(9.0))


@cpu_only
@on_shared
async def test_the_slab_of_a_shared_buffer_has_nothing_else_in_it(device: Device) -> None:
    old = await device.put(np.full(4000, 0x5A, np.uint8), sealed=True)
    await device.free(old)  # what the next one gets, which is smaller
    ref = await device.put(np.full(3990, 1, np.uint8), sealed=True)
    other = await device.put(np.full(100, 0x5A, np.uint8), sealed=True)
    with await device.share(ref) as shared:
        content = np.fromfile(f"/proc/self/fd/{shared.fd}", np.uint8)
    assert (content[:3990] == 1).all()
    assert not content[3990:].any()
    assert same_bits(await device.get(ref), np.full(3990, 1, np.uint8))
    assert same_bits(await device.get(other), np.full(100, 0x5A, np.uint8))


@on_shared
async def test_a_buffer_without_memory_is_not_shared(device: Device) -> None:
    async with device.batch() as batch:
        ref = batch.put(np.ones(1 << 18))
        for view in (ref, ref[1:], ref[::2]):
            with pytest.raises(RuntimeError, match="no memory yet: its batch"):
                await device.share(view)
    with await device.share(ref) as shared:
        assert same_bits(await device.get(await device.adopt(shared)), np.ones(1 << 18))


@on_shared
async def test_sharing_again_shares_the_same_memory(device: Device) -> None:
    ref = await device.put(np.arange(1000), sealed=True)
    half = ref[500:]
    used = used_by(device)
    with await device.share(ref) as one:
        after = used_by(device)
        with await device.share(half) as two:
            assert os.fstat(one.fd).st_ino == os.fstat(two.fd).st_ino
        assert used_by(device) == after >= used
    assert same_bits(await device.get(half), np.arange(500, 1000))


@on_shared
async def test_a_plain_buffer_is_shared_as_it_is_now(device: Device) -> None:
    ref = await device.put(np.arange(1000))
    with await device.share(ref[10:]) as shared:
        await device.fill(ref, 0)
        copy = await device.adopt(shared)
        assert same_bits(await device.get(copy), np.arange(10, 1000))
        assert not copy.sealed
        await device.fill(copy, 1)
        again = await device.adopt(shared)
        assert same_bits(await device.get(again), np.arange(10, 1000))


@cpu_only
@on_shared
async def test_arrays_made_before_sharing_stay_good(device: Device) -> None:
    ref = await device.put(np.arange(1000), sealed=True)
    before = np.asarray(await device.export(ref))
    with await device.share(ref) as shared:
        theirs = await device.adopt(shared)
        filler = await device.put(np.zeros(1000), sealed=True)  # takes no memory of others
        assert same_bits(before, np.arange(1000))
        assert same_bits(np.asarray(await device.export(ref)), np.arange(1000))
        assert same_bits(await device.get(theirs), np.arange(1000))
        assert not (await device.get(filler)).any()
    del before
    await device.core.exports.sweep()


async def test_shared_buffers_survive_faults_of_both(tmp_path: Path) -> None:
    del tmp_path
    async with opened(max_restarts=9) as one, opened(SECOND, max_restarts=9) as two:
        ref = await one.put(np.arange(1000), sealed=True)
        with await one.share(ref) as shared:
            there = await two.adopt(shared)
        await kill_host(one)
        await kill_host(two)
        for device, each in ((one, ref), (two, there)):
            assert same_bits(await device.get(each), np.arange(1000))
        await one.free(ref)
        assert same_bits(await two.get(there), np.arange(1000))


@cpu_only
@on_shared
async def test_a_file_that_may_shrink_is_not_adopted(device: Device) -> None:
    """Its owner could truncate it later, which would end the host."""
    ref = await device.put(np.arange(1000), sealed=True)
    with await device.share(ref) as shared:
        description = shared.description
        size = os.fstat(shared.fd).st_size
    fd = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    with SharedBuffer(fd, description) as loose, pytest.raises(ValueError, match="truncated"):
        await device.adopt(loose)
    small = shared_fd(size - 4096, "small")
    refused = pytest.raises(ValueError, match=f"has {size - 4096} bytes, not the {size}")
    with SharedBuffer(small, description) as shared, refused:
        await device.adopt(shared)
    reader, writer = os.pipe()
    os.close(writer)
    with SharedBuffer(reader, description) as pipe, pytest.raises(ValueError, match="has 0 bytes"):
        await device.adopt(pipe)


def _host_descriptors(device: Device) -> int:
    pid = device.statistics().host_pid
    return descriptors() if pid is None else len([*Path(f"/proc/{pid}/fd").iterdir()])


@on_shared
async def test_adopting_and_letting_go_holds_no_descriptors(device: Device) -> None:
    ref = await device.put(np.arange(4), sealed=True)
    snapshot = await device.put(np.arange(4))

    async def round_trip() -> None:
        for each in (ref, snapshot):
            with await device.share(each) as shared:
                await device.get(await device.adopt(shared))

    for _ in range(3):
        await round_trip()
    before = descriptors(), _host_descriptors(device), used_by(device)
    for _ in range(20):
        await round_trip()
    assert (descriptors(), _host_descriptors(device), used_by(device)) == before


@pytest.mark.parametrize("isolation", ["thread"])
async def test_many_adopted_arrays_are_let_go_of_at_once(isolation: Any) -> None:
    """A list of their numbers may be longer than a control message."""
    async with opened(isolation=isolation) as device:
        array = np.ones(4)
        refs = [await device.adopt(array) for _ in range(3000)]
        # On a GPU they are copies, and what is still on its way there holds its buffer.
        await device.get(refs[-1])
        refs.clear()
        await device.trim()
        assert device.statistics().memory.slabs == 0
        assert (await device.get(await device.put(array))).sum() == 4


def test_the_seals_of_shared_files() -> None:
    fd = shared_fd(4096, "test")
    try:
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        mmap.mmap(fd, 4096)[0] = 1
    finally:
        os.close(fd)


async def test_a_descriptor_that_is_none_is_not_a_lack_of_memory() -> None:
    async with opened() as device:
        ref = await device.put(np.ones(3), sealed=True)
        with await device.share(ref) as shared:
            fd = fcntl.fcntl(shared.fd, fcntl.F_DUPFD_CLOEXEC, 500)  # nobody else has that soon
            broken = SharedBuffer(fd, shared.description)
            os.close(fd)
            with pytest.raises(OSError, match="Bad file descriptor"):
                await device.adopt(broken)
            del broken  # and nothing is printed
            collect_garbage()
