"""A lane: one thread that turns requests into device work and reports what is done.

It launches requests in the order in which they came, except that one whose dependencies
are not launched yet is put aside. A lane has one or more ways, each a stream with an
executor of its own: ops that do not depend on each other spread over them and run
concurrently, the others follow each other's streams. Work that is queued on the device is
watched by polling while there is something to gain from it, then with naps or by waiting;
each way sees the device's errors.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import random
import select
import socket
import time
from collections import deque
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..wire import (
    CloseLane,
    Elapsed,
    Failure,
    Fault,
    ForgetEvent,
    Frames,
    Message,
    ProtocolViolation,
    RecordEvent,
    StickyFault,
    Value,
    append_frame,
    encoder,
)
from ..wire._messages import Withdrawn, pack_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ._protocol import Executor, Fusion, HostContext, Stream

Request = tuple[int, tuple[tuple[int, int], ...], Message]

_RECEIVE: Final = 1 << 18
_POLL_SECONDS: Final = 1e-3
"""How long to poll work in flight before napping between polls."""

_LONGEST_NAP: Final = 200e-6

_NAP_SHARE: Final = 1 / 32
"""How long a nap is, as a share of the time without news: an end is seen late by about that."""

_LOOK_MILLISECONDS: Final = 20

_STEP_SECONDS: Final = 10e-3
"""Without news for so long, ops of a group are answered one by one where somebody watches."""

_LINGER_SECONDS: Final = 100e-6
"""How long an idle lane looks for the next request before it sleeps: waking costs as much."""


@final
class Group:
    """Ops that are answered together, once the device is done with them.

    Attributes:
        ops: their numbers and results, in order.
        token: tells when all are done.
        steps: tokens of some of them, with how many ops are done by then.
        since: when the last of these was reached, or when the group was complete.
    """

    __slots__ = ("gone", "ops", "since", "steps", "token")

    def __init__(self, ops: list[tuple[int, Any]], token: Any, steps: deque[tuple[int, Any]]):
        self.ops = ops
        self.token = token
        self.steps = steps
        self.since = time.perf_counter() if steps else 0.0
        self.gone = 0

    def take(self, count: int) -> list[tuple[int, Any]]:
        """The ops that are done when ``count`` are, without those taken before."""
        taken, self.ops = self.ops[: count - self.gone], self.ops[count - self.gone :]
        self.gone = count
        self.since = time.perf_counter()
        return taken


@final
class StreamSlot:
    """A stream, its executor, and what is queued there.

    Args:
        fuse: whether ops that come together may be launched together.

    Attributes:
        unmarked: launched ops with their results, not in a group yet.
        steps: tokens of some of them, with how many of them are done by then.
        in_flight: groups of ops, in order.
    """

    __slots__ = ("executor", "fusions", "handlers", "in_flight", "steps", "stream", "unmarked")

    def __init__(
        self, context: HostContext, stream: Stream, executor: Executor, *, fuse: bool = True
    ) -> None:
        self.stream = stream
        self.executor = executor
        self.fusions: Mapping[type, Fusion] = getattr(executor, "fusions", {}) if fuse else {}
        self.handlers = {
            Withdrawn: _nothing,
            _Malformed: _refuse,
            RecordEvent: lambda message: stream.timestamp(message.event),
            ForgetEvent: lambda message: context.forget_event(message.event),
            Elapsed: lambda message: context.elapsed(message.start, message.end),
            **executor.handlers,
        }
        self.unmarked: list[tuple[int, Any]] = []
        self.steps: deque[tuple[int, Any]] = deque()
        self.in_flight: deque[Group] = deque()


@final
class Lane:
    """The host's half of a lane.

    Args:
        index: the lane's number in dependencies.
        sock: the lane's socket; its other end is the program's.
        lanes: all lanes of this host by number, this one included.
        completion: how to learn what is done: ``"polled"`` asks all the time,
            ``"hybrid"`` asks for a millisecond, then naps in between, ``"blocking"``
            sleeps until the oldest is done and takes new requests only then,
            ``"callback"`` has the driver close a descriptor. The first two take the GIL
            again and again: not for the user's process.
        group: how many launches share one completion token, and go to one way, when many
            come at once.
        idle_spin: whether an idle lane may look for requests for a moment before it sleeps.
        track_each_op: whether ops of a group that takes long are answered one by one: somebody
            watches how long each takes.
    """

    def __init__(
        self,
        index: int,
        sock: socket.socket,
        lanes: dict[int, Lane],
        *,
        completion: str,
        idle_spin: bool,
        group: int = 8,
        track_each_op: bool = False,
    ) -> None:
        self._index = index
        self._sock = sock
        self._lanes = lanes
        self._completion = completion
        self._idle_spin = idle_spin
        self._group = group
        self._track_each_op = track_each_op
        self._flushed = 0.0
        self._signals: dict[Any, int] = {}
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        self._polled = poll
        self._poll = poll.poll
        self._own = (sock.fileno(), self._wake_reader)
        self._frames = Frames()
        self._out = bytearray()
        self._done: list[int] = []
        self._accepted = 0
        self._seen = 0
        self._aside: dict[int, Request] = {}
        self._together: list[tuple[int, Any]] = []
        self._key: Hashable = None
        self._slot_of: dict[int, StreamSlot] = {}
        self._watchers: set[Lane] = set()
        self._slots: list[StreamSlot] = []
        self._delay = _delay_of(index)

    def run(
        self,
        context: HostContext,
        new_slot: Callable[[], StreamSlot],
        first: StreamSlot,
        max_streams: int,
    ) -> None:
        """Serve until the program closes the socket or the context fails.

        Args:
            context: the device.
            new_slot: makes a further way, in this thread.
            first: the first way.
            max_streams: how many there may be; the others are made when they are useful.
        """
        self._context = context
        self._new_way = new_slot
        self._most_ways = max_streams
        self._process = os.getpid()
        self._way = self._add_way(first)
        union = reduce(operator.or_, first.handlers)
        request = tuple[int, tuple[tuple[int, int], ...], union]  # type: ignore[valid-type]
        self._decode = msgspec.msgpack.Decoder(list[request]).decode
        decode_message: Callable[[Any], Message] = msgspec.msgpack.Decoder(union).decode
        self._decode_message = decode_message
        try:
            self._serve()
        except StickyFault as fault:
            self._report(fault)
        except ProtocolViolation as violation:
            why = f"the program broke the protocol: {violation}"
            self._report(StickyFault(why, status=errno.EPROTO, status_name="protocol violation"))
        except ConnectionError:
            pass  # the program is gone, or has given this context up
        finally:
            # A context that has failed may answer anything to being closed, and the program
            # waits for the end of this socket.
            for slot in self._slots:
                for part in (slot.executor, slot.stream):
                    with contextlib.suppress(Exception):
                        part.close()
            self._notify()
            # Other lanes may still want to wake this one; the number may soon be another file's.
            writer, self._wake_writer = self._wake_writer, -1
            for fd in (writer, self._wake_reader, *self._signals.values()):
                os.close(fd)
            self._sock.close()

    def _serve(self) -> None:
        while True:
            self._wait()
            data = self._receive()
            if data is None:
                return
            for frame in self._frames.feed(data):
                for request in self._requests(frame):
                    self._accept(request)
            if self._together:
                self._launch_together()
            if self._aside:
                self._retry()
            self._mark(self._way)
            if self._reap() or self._done or self._out:
                self._flush()

    # --- waiting ----------------------------------------------------------------------

    def _wait(self) -> None:
        """Return when there is something to read; report what finishes until then."""
        poll, completion = self._poll, self._completion
        news = time.perf_counter()
        while self._slot_of and not poll(0):
            if self._reap():
                self._flush()
                news = time.perf_counter()
            elif completion == "blocking":
                slot = next(slot for slot in self._slots if slot.in_flight)
                group = slot.in_flight[0]
                slot.stream.wait(group.steps[0][1] if group.steps else group.token)
            elif completion == "callback":
                # The driver calls nothing after an error, so look now and then as well.
                if any(fd not in self._own for fd, _ in poll(_LOOK_MILLISECONDS)):
                    self._reap()
                    self._flush()
            elif completion == "hybrid" and (quiet := time.perf_counter() - news) > _POLL_SECONDS:
                select.select(self._own, [], [], min(quiet * _NAP_SHARE, _LONGEST_NAP))
        if self._slot_of:
            return
        if self._idle_spin:
            until = time.perf_counter() + _LINGER_SECONDS
            while time.perf_counter() < until:
                if poll(0):
                    return
        poll()

    def _receive(self) -> bytes | None:
        """What the program sent; empty after a mere wake-up, None at the end."""
        try:
            return self._sock.recv(_RECEIVE, socket.MSG_DONTWAIT) or None
        except BlockingIOError:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)
            return b""

    def _requests(self, frame: memoryview) -> list[Request]:
        """The requests of a frame; what none of the executors knows is refused."""
        try:
            return self._decode(frame)
        except msgspec.ValidationError:
            return self._one_by_one(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"a frame cannot be read: {error}") from error

    def _one_by_one(self, frame: memoryview) -> list[Request]:
        try:
            entries = _read_entries(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"a frame holds no requests: {error}") from error
        requests: list[Request] = []
        for seq, dependencies, raw in entries:
            message: Message
            try:
                message = self._decode_message(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = _Malformed(str(error))
            requests.append((seq, dependencies, message))
        return requests

    # --- launching --------------------------------------------------------------------

    def launched(self, seq: int) -> bool:
        """Whether the op ``seq`` of this lane has been launched (asked by other lanes)."""
        return seq <= self._seen and seq not in self._aside

    def _accept(self, request: Request) -> None:
        seq, dependencies, message = request
        if seq <= self._accepted:
            raise ProtocolViolation(f"op {seq} came after op {self._accepted}")
        self._accepted = seq
        fusion = None if dependencies else self._way.fusions.get(type(message))
        if fusion is not None:
            key = fusion.key(message)
            if key is not None:
                if self._together and (key != self._key or len(self._together) >= fusion.most):
                    self._launch_together()
                self._key = key
                self._together.append((seq, message))
                return
        if self._together:
            self._launch_together()
        if self._aside and type(message) is RecordEvent:
            # Its point comes after those too, although they are launched later.
            dependencies = (*dependencies, *((self._index, before) for before in self._aside))
            request = seq, dependencies, message
        if dependencies and not self._ready(dependencies):
            self._aside[seq] = request
        else:
            self._launch(request)
        self._seen = seq
        if self._watchers:
            self._notify()

    def _ready(self, dependencies: tuple[tuple[int, int], ...]) -> bool:
        for index, seq in dependencies:
            lane = self._lanes.get(index)
            # It is launched, or its lane was closed, which comes after all that was asked of it.
            if lane is None or (seq <= lane._seen and seq not in lane._aside):
                continue
            if lane is self:
                return False
            # Register first, then look again: the other lane may launch in between.
            lane._watchers.add(self)
            if not lane.launched(seq):
                return False
        return True

    def _retry(self) -> None:
        launched = False
        for seq, request in list(self._aside.items()):
            if self._ready(request[1]):
                self._launch(request)
                del self._aside[seq]
                launched = True
        # Not if nothing has changed: two lanes that watch each other would never rest.
        if launched and self._watchers:
            self._notify()

    def _notify(self) -> None:
        # Other threads add themselves meanwhile, so it stays the same set: whoever is not in
        # it yet looks afterwards, and sees what was launched before this. Each only once: one
        # that was woken may be back already, for what comes later.
        for lane in list(self._watchers):
            self._watchers.discard(lane)
            with contextlib.suppress(OSError):
                os.write(lane._wake_writer, b"w")

    def _launch_together(self) -> None:
        """Launch what was collected; it counts as launched only from here on."""
        together, self._together = self._together, []
        last = together[-1][0]
        if len(together) == 1:
            self._launch((last, (), together[0][1]))
        else:
            slot = self._way
            seqs = [seq for seq, _ in together]
            messages = [message for _, message in together]
            if self._delay is not None:
                self._delay()
            try:
                slot.fusions[type(messages[0])].run(messages)
            except BaseException as error:  # noqa: BLE001 - it is the answer
                self._fail(slot, seqs, error)
            else:
                for seq in seqs:
                    slot.unmarked.append((seq, None))
                    self._slot_of[seq] = slot
                self._settle(slot)
        self._seen = last
        if self._watchers:
            self._notify()

    def _launch(self, request: Request) -> None:
        seq, dependencies, message = request
        slot = self._way
        if dependencies:
            slot = self._follow(dependencies)
        if type(message) is RecordEvent:
            self._gather(slot)
        handler = self._on_all_ways if message.everywhere else slot.handlers[type(message)]
        if self._delay is not None:
            self._delay()
        try:
            value = handler(message)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            self._fail(slot, [seq], error, pickles=message.pickles)
            return
        slot.unmarked.append((seq, value))
        self._slot_of[seq] = slot
        if len(slot.unmarked) >= self._group:
            self._settle(slot)
        elif self._track_each_op:
            self._step(slot)

    def _on_all_ways(self, message: Message) -> None:
        for slot in self._slots:
            slot.handlers[type(message)](message)

    def _fail(
        self, slot: StreamSlot, seqs: list[int], error: BaseException, *, pickles: bool = False
    ) -> None:
        """Report a handler's failure for all ``seqs``, unless the context failed: raises that."""
        # A library that fails may be the first to notice a fault of the context.
        try:
            if isinstance(error, StickyFault):
                raise error
            self._context.check()
        except StickyFault:
            slot.unmarked[:0] = [(seq, None) for seq in seqs]
            raise
        # Its answer comes when that of a success would have come: after the ops that it
        # follows, in whose place its buffers name it.
        for seq in seqs:
            slot.unmarked.append((seq, pack_exception(seq, error, pickles=pickles)))
            self._slot_of[seq] = slot

    def _settle(self, slot: StreamSlot) -> None:
        """A group is complete: answer what is done before launching more.

        So the program prepares the next ops meanwhile, and what follows runs beside it.
        """
        self._mark(slot)
        if self._reap():
            self._flush()
        if slot is self._way and slot.in_flight:
            self._way = self._next_way()

    def _step(self, slot: StreamSlot) -> None:
        """Make it possible to answer what is launched so far before the group is done."""
        token = slot.stream.mark()
        if token is not None:
            slot.steps.append((len(slot.unmarked), token))
        elif not slot.steps:  # it is done
            group, slot.unmarked = slot.unmarked, []
            self._complete(group)
            if time.perf_counter() - self._flushed > _STEP_SECONDS:
                self._flush()

    def _follow(self, dependencies: tuple[tuple[int, int], ...]) -> StreamSlot:
        """The way for an op that must come after others, made to wait for them."""
        if len(dependencies) == 1:  # most come after one op, and on the same way
            index, seq = dependencies[0]
            slot = self._slot_of_op(index, seq)
            if slot is None or slot is self._way:
                return self._way
        max_streams = [self._slot_of_op(index, seq) for index, seq in dependencies]
        before = {slot for slot in max_streams if slot is not None}
        chosen = next((slot for slot in self._slots if slot in before), self._way)
        for slot in before - {chosen}:
            self._mark(chosen)  # what is launched there already need not wait
            chosen.stream.follow(slot.stream)
        return chosen

    def _slot_of_op(self, index: int, seq: int) -> StreamSlot | None:
        """Where an op is in flight, if it is and its lane was not closed."""
        lane = self._lanes.get(index)
        return None if lane is None else lane._slot_of.get(seq)

    def _gather(self, slot: StreamSlot) -> None:
        """Make a way wait for all others: what comes next there comes after everything."""
        for other in self._slots:
            if other is not slot and (other.in_flight or other.unmarked):
                slot.stream.follow(other.stream)

    def _next_way(self) -> StreamSlot:
        for slot in self._slots:
            if not slot.in_flight:
                return slot
        if len(self._slots) < self._most_ways:
            return self._add_way(self._new_way())
        return self._slots[(self._slots.index(self._way) + 1) % len(self._slots)]

    def _add_way(self, slot: StreamSlot) -> StreamSlot:
        slot.handlers[CloseLane] = self._close
        self._slots.append(slot)
        return slot

    def _close(self, _message: CloseLane) -> None:
        """Everything of this lane was answered: others need not look for it any more."""
        self._lanes.pop(self._index, None)

    # --- completing -------------------------------------------------------------------

    def _mark(self, slot: StreamSlot) -> None:
        if slot.unmarked:
            if slot.steps and slot.steps[-1][0] == len(slot.unmarked):
                _, token = slot.steps.pop()
            else:
                token = slot.stream.mark()
            group, slot.unmarked = slot.unmarked, []
            steps, slot.steps = slot.steps, deque()
            if self._completion == "callback" and token is not None:
                self._signals[token] = fd = slot.stream.signal()
                self._polled.register(fd, select.POLLIN)
            if token is None:
                self._release(slot, steps)
                self._complete(group)
            else:
                slot.in_flight.append(Group(group, token, steps))

    def _reap(self) -> bool:
        """Collect what has finished; whether there is anything to report."""
        for slot in self._slots:
            in_flight = slot.in_flight
            if slot.unmarked and slot is not self._way:
                self._mark(slot)
            while in_flight:
                group = in_flight[0]
                token = group.token
                if not slot.stream.finished(token):
                    if group.steps:
                        self._reap_steps(slot, group)
                    break
                in_flight.popleft()
                if token in self._signals:
                    fd = self._signals.pop(token)
                    self._polled.unregister(fd)
                    os.close(fd)
                slot.stream.release(token)
                self._release(slot, group.steps)
                self._complete(group.ops)
        return bool(self._done or self._out)

    def _reap_steps(self, slot: StreamSlot, group: Group) -> None:
        """Collect what has finished of a group that takes long."""
        if self._completion != "blocking" and time.perf_counter() - group.since < _STEP_SECONDS:
            return
        while group.steps and slot.stream.finished(group.steps[0][1]):
            count, token = group.steps.popleft()
            slot.stream.release(token)
            self._complete(group.take(count))

    @staticmethod
    def _release(slot: StreamSlot, steps: deque[tuple[int, Any]]) -> None:
        for _, token in steps:
            slot.stream.release(token)
        steps.clear()

    def _complete(self, group: list[tuple[int, Any]]) -> None:
        for seq, value in group:
            del self._slot_of[seq]
            if value is None:
                self._done.append(seq)
            elif type(value) is Failure:
                append_frame(self._out, value)
            else:
                try:
                    reply = Value(seq, msgspec.Raw(encoder.encode(value)))
                    append_frame(self._out, reply)
                except Exception as error:  # noqa: BLE001 (any value may come from a program)
                    append_frame(self._out, pack_exception(seq, error))

    def _flush(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)  # a function has forked; what is answered is up to the parent
        if self._done:
            append_frame(self._out, self._done)
            self._done = []
        if self._out:
            self._sock.sendall(self._out)
            self._out.clear()
            if self._track_each_op:
                self._flushed = time.perf_counter()

    def _report(self, fault: StickyFault) -> None:
        suspects = [slot.in_flight[0].ops[0][0] for slot in self._slots if slot.in_flight]
        suspects = suspects or [slot.unmarked[0][0] for slot in self._slots if slot.unmarked]
        reply = Fault(
            seq=min(suspects, default=0),
            status=fault.status,
            status_name=fault.status_name,
            message=str(fault),
        )
        append_frame(self._out, reply)
        with contextlib.suppress(OSError):
            self._flush()


_read_entries: Final = msgspec.msgpack.Decoder(
    list[tuple[int, tuple[tuple[int, int], ...], msgspec.Raw]]
).decode


class _Malformed(Message, frozen=True):
    """What is executed in the place of a message that no executor can read."""

    why: str


def _refuse(message: _Malformed) -> None:
    raise TypeError(message.why)


def _delay_of(index: int) -> Callable[[], None] | None:
    """What a lane does before each launch where ``testing.lane_delays`` is in force."""
    wanted = os.environ.get("ATOMR_LANE_DELAY")
    if not wanted:
        return None
    seed, most = wanted.split(":")
    seconds = int(most) * 1e-6
    numbers = random.Random(f"{seed}:{index}")  # noqa: S311 (not for secrets)

    def delay() -> None:
        if numbers.random() < 0.5:
            time.sleep(numbers.random() * seconds)

    return delay


def _nothing(_message: object) -> None:
    """What a withdrawn op does."""
