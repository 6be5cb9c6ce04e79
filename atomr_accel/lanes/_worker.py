"""A lane: one thread that turns requests into device work and reports what is done.

It launches requests in the order in which they came, except that one whose dependencies
on other lanes are not launched yet is put aside, with whatever depends on it. Work that
is queued on the device is watched by polling while there is something to gain from it,
then by waiting; both see the device's errors.
"""

from __future__ import annotations

import contextlib
import operator
import os
import select
import socket
import time
from collections import deque
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ._protocol import StickyFault
from ._wire import (
    Fault,
    Frames,
    Message,
    Reply,
    Value,
    Withdrawn,
    append_frame,
    encoder,
    pack_exception,
)

if TYPE_CHECKING:
    from ._protocol import Executor, HostContext, Stream

Request = tuple[int, tuple[tuple[int, int], ...], Message]

_RECEIVE: Final = 1 << 18
_GROUP: Final = 8
"""Launches that share one completion token while requests come in bunches."""

_POLL_SECONDS: Final = 1e-3
"""How long to poll work in flight before waiting in the kernel."""

_LINGER_SECONDS: Final = 60e-6
"""How long to look for the next request before sleeping: waking up costs as much."""

_NAP_SECONDS: Final = 200e-6


@final
class Lane:
    """The host's half of a lane.

    Args:
        index: the lane's number in dependencies.
        sock: the lane's socket; its other end is the program's.
        lanes: all lanes of this host by number, this one included.
        spin: whether the thread may poll: in a process of its own it may, inside the
            user's process it would take the GIL from the program.
    """

    def __init__(
        self, index: int, sock: socket.socket, lanes: dict[int, Lane], *, spin: bool
    ) -> None:
        self._index = index
        self._sock = sock
        self._lanes = lanes
        self._spin = spin
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._poll.register(self._wake_reader, select.POLLIN)
        self._frames = Frames()
        self._out = bytearray()
        self._seen = 0
        self._aside: dict[int, Request] = {}
        self._watchers: set[Lane] = set()
        self._unmarked: list[tuple[int, Any]] = []
        self._in_flight: deque[tuple[list[tuple[int, Any]], Any]] = deque()
        self._done: list[int] = []
        self._stream: Stream

    def run(self, context: HostContext, stream: Stream, executor: Executor) -> None:
        """Serve until the program closes the socket or the context fails."""
        self._stream = stream
        self._context = context
        self._handlers = {Withdrawn: lambda _: None, **executor.handlers}
        union = reduce(operator.or_, self._handlers)
        self._decode = msgspec.msgpack.Decoder(
            tuple[int, tuple[tuple[int, int], ...], union]
        ).decode
        try:
            self._serve()
        except StickyFault as fault:
            self._report(fault)
        except ConnectionError:
            pass  # the program is gone, or has given this context up
        finally:
            with contextlib.suppress(StickyFault):
                executor.close()
                stream.close()
            self._notify()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            self._sock.close()

    def _serve(self) -> None:
        while True:
            if not self._wait():
                continue
            data = self._receive()
            if data is None:
                return
            for frame in self._frames.feed(data):
                self._accept(self._decode(frame))
            if self._aside:
                self._retry()
            self._mark()
            self._reap()
            self._flush()

    # --- waiting ----------------------------------------------------------------------

    def _wait(self) -> bool:
        """Whether there is something to read; reports what finishes meanwhile."""
        if not self._in_flight:
            if self._poll.poll(0):
                return True
            if self._spin:
                until = time.perf_counter() + _LINGER_SECONDS
                while time.perf_counter() < until:
                    if self._poll.poll(0):
                        return True
            self._poll.poll()
            return True
        until = time.perf_counter() + _POLL_SECONDS
        while self._in_flight:
            if self._reap():
                self._flush()
                until = time.perf_counter() + _POLL_SECONDS
            elif not self._spin:
                # Inside the user's process: sleep without the GIL until the oldest is
                # done. New requests wait as long; that is the price of no polling.
                self._stream.wait(self._in_flight[0][1])
            elif time.perf_counter() > until:
                if select.select([self._sock, self._wake_reader], [], [], _NAP_SECONDS)[0]:
                    return True
                continue
            if self._poll.poll(0):
                return True
        return False

    def _receive(self) -> bytes | None:
        """What the program sent; empty after a mere wake-up, None at the end."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        try:
            data = self._sock.recv(_RECEIVE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        return data or None

    # --- launching --------------------------------------------------------------------

    def launched(self, seq: int) -> bool:
        """Whether the op ``seq`` of this lane has been launched (asked by other lanes)."""
        return seq <= self._seen and seq not in self._aside

    def _accept(self, request: Request) -> None:
        seq, dependencies, _ = request
        if dependencies and not self._ready(dependencies):
            self._aside[seq] = request
        else:
            self._launch(request)
        self._seen = seq
        if self._watchers:
            self._notify()

    def _ready(self, dependencies: tuple[tuple[int, int], ...]) -> bool:
        for index, seq in dependencies:
            lane = self._lanes[index]
            if lane.launched(seq):
                continue
            if lane is self:
                return False
            # Register first, then look again: the other lane may launch in between.
            lane._watchers.add(self)
            if not lane.launched(seq):
                return False
        return True

    def _retry(self) -> None:
        for seq, request in list(self._aside.items()):
            if self._ready(request[1]):
                self._launch(request)
                del self._aside[seq]
        if self._watchers:
            self._notify()

    def _notify(self) -> None:
        watchers, self._watchers = self._watchers, set()
        for lane in watchers:
            with contextlib.suppress(OSError):
                os.write(lane._wake_writer, b"w")

    def _launch(self, request: Request) -> None:
        seq, dependencies, message = request
        try:
            for index, _ in dependencies:
                if index != self._index:
                    self._mark()  # what is launched before must not wait for it too
                    self._stream.follow(self._lanes[index]._stream)
            value = self._handlers[type(message)](message)
        except StickyFault:
            self._unmarked.insert(0, (seq, None))
            raise
        except Exception as error:
            # A library that fails may be the first to notice a fault of the context.
            try:
                self._context.check()
            except StickyFault:
                self._unmarked.insert(0, (seq, None))
                raise
            append_frame(self._out, pack_exception(seq, error))
            return
        self._unmarked.append((seq, value))
        if len(self._unmarked) >= _GROUP:
            self._mark()

    # --- completing -------------------------------------------------------------------

    def _mark(self) -> None:
        if self._unmarked:
            token = self._stream.mark()
            group, self._unmarked = self._unmarked, []
            if token is None:
                self._complete(group)
            else:
                self._in_flight.append((group, token))

    def _reap(self) -> bool:
        """Collect what has finished; whether there was anything."""
        any_finished = False
        while self._in_flight:
            group, token = self._in_flight[0]
            if not self._stream.finished(token):
                break
            self._in_flight.popleft()
            self._stream.release(token)
            self._complete(group)
            any_finished = True
        return any_finished

    def _complete(self, group: list[tuple[int, Any]]) -> None:
        for seq, value in group:
            if value is None:
                self._done.append(seq)
            else:
                append_frame(self._out, Value(seq, msgspec.Raw(encoder.encode(value))))

    def _flush(self) -> None:
        if self._done:
            append_frame(self._out, self._done)
            self._done = []
        if self._out:
            self._sock.sendall(self._out)
            self._out.clear()

    def _report(self, fault: StickyFault) -> None:
        suspects = self._in_flight[0][0] if self._in_flight else self._unmarked
        seq = suspects[0][0] if suspects else 0
        self._flush_quietly(
            Fault(
                seq=seq, status=fault.status, status_name=fault.status_name, message=str(fault)
            )
        )

    def _flush_quietly(self, reply: Reply) -> None:
        append_frame(self._out, reply)
        with contextlib.suppress(OSError):
            self._flush()
