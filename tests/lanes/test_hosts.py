"""The program's hold on a host: requests are answered or the host ends, and its end is seen."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.lanes import HostDied, HostHandle, Isolation, _spawn, _spawner, start_host
from atomr_accel.wire import (
    AskFree,
    ControlRequest,
    CreateSlab,
    Import,
    MapSlab,
    Message,
    Open,
    Preload,
    StreamPlan,
    UnmapSlabs,
    encoder,
    shared_fd,
)
from atomr_accel.wire.channel import receive, send
from atomr_accel.wire.control import Done
from tests.harness import SECONDS, descriptors, no_descriptors


class Silent:
    """A process that nothing ends: neither does it answer."""

    pid = 12345
    returncode: int | None = None

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        return self.returncode


class Peer:
    """The other end of a host's control socket, in the hands of a test."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.ended, self.pidfd = socket.socketpair()
        self.process = cast("Any", Silent())
        self.host = HostHandle(ours, process=self.process, pidfd=self.pidfd.detach())

    def hear(self) -> ControlRequest:
        body, fds = receive(self.sock).take()
        assert not fds
        request: ControlRequest = msgspec.msgpack.decode(body, type=ControlRequest)
        return request

    def answer(self, *fds: int) -> None:
        send(self.sock, encoder.encode(Done()), fds)

    def end(self, code: int = -9) -> None:
        self.process.returncode = code
        self.ended.close()

    def close(self) -> None:
        self.sock.close()
        self.ended.close()
        self.host._control.close()
        if self.host._pidfd >= 0:
            os.close(self.host._pidfd)


@pytest.fixture
def peer() -> Iterator[Peer]:
    before = descriptors()
    peer = Peer()
    yield peer
    peer.close()
    assert descriptors() == before


class Jumping:
    """Time passes as soon as nothing happens."""

    def run(self, function: Callable[[], Any]) -> None:
        trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("part", [b"", b"\x09", b"\x09\0\0\0\0\0\0\0", b"\x09\0\0\0\0\0\0\0half"])
def test_a_host_that_does_not_answer_is_killed(part: bytes, peer: Peer) -> None:
    """Half an answer is none."""

    async def main() -> None:
        begun = trio.current_time()
        if part:
            peer.sock.send(part)
        with pytest.raises(HostDied, match="was killed, because it did not answer Preload"):
            await peer.host.request(Preload([]))
        bound = _spawn.ANSWER_SECONDS + _spawn.GRACE_SECONDS
        assert trio.current_time() - begun == pytest.approx(bound)
        assert peer.process.kills == 1
        with pytest.raises(HostDied):
            await peer.host.request(Preload([]))

    Jumping().run(main)


def test_cancelled_start_returns_soon(peer: Peer) -> None:
    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await peer.host.request(Preload([]))
        assert scope.cancelled_caught
        assert trio.current_effective_deadline() == float("inf")
        assert peer.process.kills == 1

    Jumping().run(main)


async def test_a_request_is_followed_to_its_reply(peer: Peer) -> None:
    got: list[tuple[object, int]] = []
    fd = peer.sock.fileno()

    async def ask() -> None:
        with scope:
            got.append(await peer.host.request(CreateSlab(1, 2, sealed=False)))

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert peer.hear() == CreateSlab(1, 2, sealed=False)
        peer.answer(fd)
    [(reply, received)] = got
    assert reply == Done()
    assert os.fstat(received).st_ino == os.fstat(fd).st_ino
    os.close(received)
    assert not peer.process.kills


async def test_required_lane_is_requested_by_cancelled_callers_too(peer: Peer) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            await peer.host.request(Preload(["not this"]))
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(peer.host.request, Preload(["nor this"]))
            await trio.testing.wait_all_tasks_blocked()
            send(peer.sock, encoder.encode(Done()))
        send(peer.sock, encoder.encode(Done()))
        await peer.host.request(UnmapSlabs([1]), required=True)
    assert [peer.hear(), peer.hear()] == [Preload(["nor this"]), UnmapSlabs([1])]
    assert not peer.process.kills


def test_required_lane_delays_no_caller(peer: Peer) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def first() -> None:
                with pytest.raises(HostDied):
                    await peer.host.request(Preload([]))

            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
            with trio.move_on_after(1) as scope:
                await peer.host.request(UnmapSlabs([1]), required=True)
            assert scope.cancelled_caught
            assert trio.current_time() - begun == pytest.approx(1 + _spawn.GRACE_SECONDS)

    Jumping().run(main)
    assert peer.process.kills


def test_ctrl_c_waits_until_what_was_made_has_its_place(peer: Peer) -> None:
    got: list[tuple[object, int]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            got.append(await peer.host.request(Preload([])))
            await trio.sleep_forever()

    @trio.lowlevel.enable_ki_protection  # so that it goes to the main task, which waits
    async def interrupt() -> None:
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked()
            peer.answer()

    with pytest.RaisesGroup(KeyboardInterrupt):
        trio.run(main)
    assert got == [(Done(), -1)]
    assert not peer.process.kills


async def test_the_end_is_seen_though_the_socket_stays_open(peer: Peer) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.host.wait_ended)
        nursery.start_soon(peer.host.wait_ended)

        async def ask() -> None:
            with pytest.raises(HostDied):
                await peer.host.request(Preload([]))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        peer.end(-11)
    assert await peer.host.wait_ended() == -11
    assert peer.host.ended


def test_a_host_that_does_not_end_is_left_to_itself(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        assert await peer.host.close(terminating=True) is None

    Jumping().run(main)
    assert peer.process.kills == 1
    assert not peer.host.ended
    assert "has not ended after" in caplog.text


async def test_nonsense_ends_the_host(peer: Peer) -> None:
    async def speak() -> None:
        await trio.testing.wait_all_tasks_blocked()
        peer.hear()
        send(peer.sock, b"\xc1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        with pytest.raises(HostDied, match="because it answered Preload with"):
            await peer.host.request(Preload([]))
    assert peer.process.kills == 1


@pytest.mark.parametrize("request_", [Preload([]), CreateSlab(1, 2, sealed=False)])
async def test_descriptors_nobody_asked_for_end_the_host(
    peer: Peer, request_: ControlRequest
) -> None:
    async def speak() -> None:
        await trio.testing.wait_all_tasks_blocked()
        peer.hear()
        peer.answer(*[peer.sock.fileno()] * (1 + isinstance(request_, CreateSlab)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        with pytest.raises(HostDied, match="descriptors uncalled for"):
            await peer.host.request(request_)


async def test_a_descriptor_without_room_here_is_an_error(peer: Peer) -> None:
    async def speak() -> None:
        await trio.testing.wait_all_tasks_blocked()
        peer.hear()
        peer.answer(peer.sock.fileno())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        with no_descriptors(), pytest.raises(OSError, match="Too many open files") as info:
            await peer.host.request(CreateSlab(1, 2, sealed=False))
    assert info.value.errno == errno.EMFILE
    assert not peer.process.kills


async def test_a_descriptor_without_room_there_is_an_error() -> None:
    """The host says so, and serves on."""
    host = await start_host("thread")
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            await host.request(MapSlab(1, 4096, sealed=False), fd)
        await host.request(Preload([]))
    finally:
        os.close(fd)
        await host.close()


async def test_slabs_are_mapped_while_staging_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = threading.Event()
    lock, share = CpuContext.map_pinned, CpuContext.map_slab

    def locked(context: CpuContext, *given: Any) -> None:
        assert mapped.wait(SECONDS)
        lock(context, *given)

    def shared(context: CpuContext, *given: Any, sealed: bool) -> None:
        share(context, *given, sealed=sealed)
        mapped.set()

    monkeypatch.setattr(CpuContext, "map_pinned", locked)
    monkeypatch.setattr(CpuContext, "map_slab", shared)
    name = f"{CpuContext.__module__}:{CpuContext.__name__}"
    fd = shared_fd(4096, "memory")
    host = await start_host("thread")
    try:
        await host.request(Open(name, 0, 4096, StreamPlan()), fd)
        await host.request(MapSlab(1, 4096, sealed=True), fd)
        await host.request(AskFree())  # which waits for both
        assert mapped.is_set()
    finally:
        mapped.set()
        os.close(fd)
        await host.close()


async def test_message_types_are_resolved_before_a_device_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "Wanted", int)

    class Told(Message, frozen=True):
        value: Wanted  # type: ignore[name-defined]  # noqa: F821

    host = await start_host("thread")
    await host.request(Preload([]))
    await host.close()
    monkeypatch.delitem(globals(), "Wanted")
    assert msgspec.msgpack.decode(encoder.encode(Told(3)), type=Told) == Told(3)


async def test_requests_may_be_long(isolation: Isolation) -> None:
    host = await start_host(isolation)
    try:
        with pytest.raises(AttributeError):  # it has read all of it, and has no device
            await host.request(UnmapSlabs(list(range(500_000))))
        assert await host.request(Preload([])) == (Done(), -1)
    finally:
        await host.close()


@pytest.mark.parametrize("error", [None, errno.ENOSYS])
async def test_an_end_is_seen_without_pidfd(
    monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    def absent(pid: int) -> int:
        raise OSError(error, "not here")

    if error is None:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", absent)
    host = await start_host("process")
    await host.request(Preload([]))
    host.kill()
    assert await host.wait_ended() == -signal.SIGKILL
    assert await host.close() == -signal.SIGKILL


async def test_a_process_that_cannot_be_watched_for_want_of_descriptors_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = descriptors()
    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="Too many open files"):
        await start_host("process")
    assert descriptors() == before


async def test_a_process_that_no_thread_can_watch_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def none(pid: int) -> None:
        pids.append(pid)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    await (await start_host("process")).close()  # what is made once is there
    before = descriptors()
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(_spawn, "_watched", none)
    with pytest.raises(OSError, match="temporarily unavailable"):
        await start_host("process")
    assert descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.parametrize("left", range(5))
async def test_out_of_descriptors_no_host_starts_and_nothing_is_left(
    isolation: Isolation, left: int
) -> None:
    before = descriptors()
    try:
        with no_descriptors(left):
            host = await start_host(isolation)
    except OSError as error:
        assert error.errno == errno.EMFILE  # noqa: PT017 (or there is room enough)
    else:
        await host.close()
    assert descriptors() == before


async def test_hosts_start_with_the_terminals_interrupt_blocked() -> None:
    """Until it has said that it ignores it, the signal would end it."""
    reader, writer = os.pipe()
    command = ("grep", "SigBlk", "/proc/self/status")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", partial(subprocess.Popen, stdout=writer))
        process, pidfd = await _spawner.spawner.spawn(command, ())
    os.close(writer)
    with os.fdopen(reader) as file:
        blocked = int(file.read().split()[1], 16)
    process.wait()
    os.close(pidfd)
    assert blocked & 1 << (signal.SIGINT - 1)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_a_descriptor_that_is_closed_while_a_request_waits_is_sent_all_the_same() -> None:
    host = await start_host("thread")
    ours, theirs = os.pipe()
    try:
        async with trio.open_nursery() as nursery, host.quiet():
            nursery.start_soon(host.request, Import([]), theirs)
            await trio.testing.wait_all_tasks_blocked()
            os.close(theirs)
            other = os.open(os.devnull, os.O_RDONLY)
            assert other == theirs  # the number is another file's
        await trio.lowlevel.wait_readable(ours)  # the host has closed its end
        os.close(other)
    finally:
        os.close(ours)
        await host.close()


async def test_a_thread_that_is_killed_ends() -> None:
    host = await start_host("thread")
    host.kill()
    await host.wait_ended()
    assert host.ended
