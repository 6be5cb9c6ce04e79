"""A device whose work finishes when a test says so, and lanes that run on it."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from atomr_accel.host._lane import Lane
from atomr_accel.host._launcher import Launcher
from atomr_accel.host._slots import StreamSlot
from atomr_accel.host.completion import (
    BlockingCompletion,
    CallbackCompletion,
    HybridCompletion,
    PolledCompletion,
)
from atomr_accel.wire import (
    Address,
    Failure,
    Fault,
    Frames,
    Message,
    MultiFrame,
    Reply,
    StickyFault,
    Value,
)
from atomr_accel.wire.blackbox import BOX_BYTES, BlackBox
from atomr_accel.wire.interface import CompletionStrategy, Fusion, Later

SECONDS: Final = 20.0
"""Nothing takes this long; a test that waits longer has found a hang."""


def _fault() -> StickyFault:
    return StickyFault("a fault", status=700, status_name="ILLEGAL")


class Work(Message, frozen=True):
    """Work for the device, which finishes later.

    Attributes:
        op: its number.
        value: the result.
        key: ops with equal keys may be launched together; -1 for none.
    """

    op: Address
    value: Any = None
    key: int = -1


class Fail(Message, frozen=True):
    """A call that the library refuses: it puts no work on the device."""

    op: Address


class Break(Message, frozen=True):
    """A call in which the library notices that the context has failed."""

    op: Address


class Drop(Message, frozen=True):
    """Something that every way may hold is not needed any more."""

    everywhere: ClassVar[bool] = True

    op: int


class Stay(Message, frozen=True):
    """A call that waits for another device, until the test finishes it."""

    waits: ClassVar[bool] = True

    op: int


class Odd(Message, frozen=True):
    """A call whose result cannot be sent."""

    op: int


class Ask(Message, frozen=True):
    """Work that the device has an answer to, or an error, once it is done."""

    op: int
    value: Any = None


_numbers = itertools.count()

Place = tuple["FakeStream", int]
"""A number of ops of a stream."""


@dataclass(eq=False)
class FakeStream:
    """Work in order; some of it after work of other streams.

    Attributes:
        ops: the queued ops.
        after: for each of them, the places that it waits for besides its predecessor.
        edges: what later work waits for.
        done: how many have finished.
        signals: descriptors to close after a number of finished ops.
        marked: tokens that were given out, and those that came back.
        dropped: the numbers that its executor dropped.
    """

    device: FakeDevice
    ops: list[int] = field(default_factory=list)
    after: list[set[Place]] = field(default_factory=list)
    edges: set[Place] = field(default_factory=set)
    done: int = 0
    signals: list[tuple[int, set[Place], int]] = field(default_factory=list)
    marked: Counter[int] = field(default_factory=Counter)
    released: Counter[int] = field(default_factory=Counter)
    closed: bool = False
    dropped: list[int] = field(default_factory=list)

    @property
    def queue(self) -> int:
        return id(self)

    def launch(self, op: int) -> None:
        """Queue work."""
        with self.device.changed:
            self.ops.append(op)
            self.after.append(set(self.edges))
            self.device.changed.notify_all()

    def mark(self) -> Any:
        with self.device.changed:
            if self.device.failed:
                raise _fault()
            token = (self, len(self.ops), frozenset(self.edges), next(_numbers))
            if self._finished(token):
                return None
            self.marked[len(self.ops)] += 1
            return token

    def finished(self, token: Any) -> bool:
        with self.device.changed:
            if self.device.failed:
                raise _fault()
            return self._finished(token)

    def _finished(self, token: Any) -> bool:
        count, edges = token[1:3]
        return self.done >= count and all(stream.done >= n for stream, n in edges)

    def wait(self, token: Any) -> None:
        with self.device.changed:
            assert self.device.changed.wait_for(
                lambda: self.device.failed or self._finished(token), SECONDS
            )

    def release(self, token: Any) -> None:
        self.released[token[1]] += 1

    def signal(self) -> int:
        reader, writer = os.pipe()
        with self.device.changed:
            self.signals.append((len(self.ops), set(self.edges), writer))
            self.device.fire()
        return reader

    def timestamp(self, event: int) -> None:
        raise NotImplementedError

    def follow(self, other: FakeStream) -> None:
        with self.device.changed:
            self.edges |= {(other, len(other.ops)), *other.edges}

    def close(self) -> None:
        self.closed = True


class FakeDevice:
    """All streams of some lanes.

    Attributes:
        finished: ops in the order in which the test has finished them.
        failed: whether every call reports a fault.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.streams: list[FakeStream] = []
        self.finished: list[int] = []
        self.failed = False

    def check(self) -> None:
        if self.failed:
            raise _fault()

    def fail(self) -> None:
        """From now on every call reports a fault."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()

    def launched(self) -> list[int]:
        """Ops that were launched, finished or not."""
        return [op for stream in self.streams for op in stream.ops]

    def eligible(self) -> dict[int, FakeStream]:
        """The ops that a device could finish next."""
        heads = {}
        for stream in self.streams:
            if stream.done < len(stream.ops) and all(
                other.done >= count for other, count in stream.after[stream.done]
            ):
                heads[stream.ops[stream.done]] = stream
        return heads

    def finish(self, op: int) -> None:
        """Finish an op that is eligible."""
        with self.changed:
            self.eligible()[op].done += 1
            self.finished.append(op)
            self.fire()
            self.changed.notify_all()

    def let_go(self, op: int) -> None:
        """Finish an op that waits for another device."""
        with self.changed:
            self.finished.append(op)
            self.changed.notify_all()

    def finish_all(self) -> None:
        """Finish whatever was launched."""
        with self.changed:
            for stream in self.streams:
                stream.done = len(stream.ops)
            self.fire()
            self.changed.notify_all()

    def fire(self) -> None:
        """Signal the ops that have finished."""
        for stream in self.streams:
            for entry in list(stream.signals):
                count, edges, writer = entry
                if stream._finished((stream, count, edges, writer)):
                    stream.signals.remove(entry)
                    os.close(writer)

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until the lanes have done something."""
        with self.changed:
            assert self.changed.wait_for(predicate, SECONDS), "the lanes do not get on"


class FakeExecutor:
    """Puts work on a fake stream."""

    def __init__(
        self,
        stream: FakeStream,
        launched: Callable[[int], bool],
        *,
        most: int,
        close_fails: bool,
    ) -> None:
        self._stream = stream
        self._launched = launched
        self._close_fails = close_fails
        self.handlers = {Work: self._work, Fail: self._fail, Break: self._break, Odd: self._odd}
        self.handlers[Ask] = self._ask
        self.handlers[Stay] = self._stay
        self.handlers[Drop] = lambda message: stream.dropped.append(message.op)
        self.fusions = {
            Work: Fusion(lambda work: work.key if work.key >= 0 else None, self._together, most)
        }

    def close(self) -> None:
        if self._close_fails:
            raise RuntimeError("the library cannot close its handle")

    def _work(self, message: Work) -> Any:
        # Whoever asks must not be told that it was launched before it was.
        assert not self._launched(message.op)
        self._stream.launch(message.op)
        return message.value

    def _together(self, messages: list[Work]) -> None:
        assert len(messages) > 1
        assert not any(self._launched(message.op) for message in messages)
        for message in messages:
            self._stream.launch(message.op)

    def _fail(self, message: Fail) -> None:
        raise ValueError(f"op {message.op} is refused")

    def _break(self, message: Break) -> None:
        self._stream.device.fail()
        raise RuntimeError("something is wrong")

    def _ask(self, message: Ask) -> Later:
        self._stream.launch(message.op)

        def read() -> Any:
            if message.value is None:
                raise ValueError(f"op {message.op} has no answer")
            return message.value

        return Later(read)

    def _stay(self, message: Stay) -> None:
        device = self._stream.device
        device.wait_for(lambda: message.op in device.finished)

    def _odd(self, message: Odd) -> object:
        return object()


STRATEGIES: Final[dict[str, Callable[[], CompletionStrategy]]] = {
    "polled": PolledCompletion,
    "hybrid": HybridCompletion,
    "blocking": BlockingCompletion,
    "callback": CallbackCompletion,
}


def new_record() -> memoryview:
    """Return words in which the thread of a launcher notes its ops."""
    return BlackBox(bytearray(BOX_BYTES)).record(1)


class Lanes:
    """Lanes in threads, and the program's ends of their sockets."""

    def __init__(
        self,
        device: FakeDevice,
        count: int,
        *,
        max_streams: int = 1,
        most: int = 4,
        completion: str = "polled",
        close_fails: bool = False,
        track_each_op: bool = False,
        shared: bool = False,
        fills_streams: bool = False,
    ) -> None:
        self.device = device
        self._lanes: dict[int, Lane] = {}
        self._socks: list[socket.socket] = []
        self._frames = [Frames() for _ in range(count)]
        self._decode = msgspec.msgpack.Decoder(Reply).decode
        context: Any = device
        launchers = [
            Launcher(STRATEGIES[completion](), idle_spin=False, record=new_record())
            for _ in range(1 if shared else count)
        ]
        streams: dict[int, FakeStream] = {}
        asked: set[tuple[int, int]] = set()

        def new_slot(lane: Lane, number: int) -> StreamSlot:
            assert (lane.index, number) not in asked, "the host would give the same slot again"
            asked.add((lane.index, number))
            stream = streams.get(number) if shared else None
            if stream is None:
                stream = streams[number] = FakeStream(device)
                with device.changed:
                    device.streams.append(stream)
            executor: Any = FakeExecutor(stream, lane.launched, most=most, close_fails=close_fails)
            executor.fills_streams = fills_streams
            return StreamSlot(context, stream, executor)

        def make(index: int, sock: socket.socket) -> Lane:
            launcher = launchers[0 if shared else index]
            lane = self._lanes[index] = Lane(
                index,
                sock,
                self._lanes,
                launcher,
                track_each_op=track_each_op,
            )
            names = [number if shared else None for number in range(max_streams)]
            lane.open(context, partial(new_slot, lane), names)
            return lane

        for index in range(count):
            ours, theirs = socket.socketpair()
            ours.settimeout(SECONDS)
            self._socks.append(ours)
            launchers[0 if shared else index].open(partial(make, index, theirs))
        for launcher in launchers:  # so that all lanes are there before the first op comes
            launcher._open_lanes()
        self.threads = [threading.Thread(target=launcher.run) for launcher in launchers]
        for thread in self.threads:
            thread.start()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self.device.finish_all()  # nobody may be left waiting for it
        self.hang_up()
        self.device.finish_all()
        assert all(stream.closed for stream in self.device.streams)

    def hang_up(self) -> None:
        """Close the program's ends, and wait until the lanes have ended."""
        for sock in self._socks:
            sock.close()
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def send(self, lane: int, *requests: tuple[int, Iterable[tuple[int, int]], Message]) -> None:
        """Send requests to a lane, as one bunch."""
        buffer = bytearray()
        bunch = MultiFrame(buffer)
        for request in requests:
            bunch.append(request)
        bunch.close()
        self._socks[lane].sendall(buffer)

    def send_raw(self, lane: int, data: bytes) -> None:
        """Send bytes to a lane."""
        self._socks[lane].sendall(data)

    def replies(self, lane: int) -> Iterator[tuple[int, Any]]:
        """Sequence numbers with None, a value, a Failure or a Fault, until the lane ends."""
        while data := self._socks[lane].recv(1 << 16):
            for frame in self._frames[lane].feed(data):
                reply = self._decode(frame)
                if isinstance(reply, list):
                    yield from ((seq, None) for seq in reply)
                elif isinstance(reply, Value):
                    yield reply.seq, msgspec.msgpack.decode(reply.value)
                elif isinstance(reply, Failure):
                    yield reply.seq, reply
                elif isinstance(reply, Fault):
                    yield next(iter(reply.suspects), 0), reply
