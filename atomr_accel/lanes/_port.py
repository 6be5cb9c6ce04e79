"""The program's half of a lane: it submits ops and answers each exactly once.

The outbox of a port is the mailbox of a library's lane, and the port's ``run`` is its task. A
message goes from the caller straight to the socket, and its answer straight back. A detour through
another task would cost as much as the kernel. The task notices the end of the lane, and waits when
the socket is full.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import socket
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import trio

from ..wire import (
    RECEIVED_BYTES,
    WITHDRAWN,
    CallWithTemplate,
    Failure,
    Fault,
    Frames,
    MultiFrame,
    ProtocolViolation,
    Reply,
    Times,
    Value,
    append_frame,
    too_large,
    unpack_exception,
)
from ._finished import DoneOps
from ._interrupts import uninterrupted
from ._loop_flusher import LoopFlusher
from ._op import UNWATCHED, MessageTemplate, Op
from ._switch_interval import restore_switch_interval, shorten_switch_interval
from .instrument import NOBODY, InstrumentedDevice, MeasuredTimes

if TYPE_CHECKING:
    from collections.abc import Callable

_RECEIVING: Final = int(socket.MSG_DONTWAIT)
_SENDING: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_SEND_HIGH: Final = 1 << 18
"""Approximate limit of bytes that are encoded ahead. An op that is not encoded can be withdrawn."""

_MOST_IN_FRAME: Final = 64
"""Ops of a frame: a lane begins when it has the whole frame."""

_ALL_TIMED: Final = 16
"""Ops in flight above which a lane is busy, and a sampling instrument gets the times of some
only."""

_HURRIED: Final = 50_000
"""Nanoseconds per op below which a lane is busy too, as with a device that outruns the program."""

_ONE_IN: Final = 17
"""Share of frames in a busy lane after which submitted ops are timed: one in this many. A prime,
because the period of a repeating program is usually a round number."""

FRAME_SECONDS: Final = 300.0
"""Limit of the wait for the rest of a frame; a host that exceeds it has broken the protocol."""

_AGAIN_SECONDS: Final = 2.0
"""Second wait for the rest of a frame. If the whole program was stopped, its host was stopped too
and needs time to send the rest."""

_MOST_FAILED: Final = 256
"""Ops answered at a time when their context has failed, in a fraction of a millisecond."""

_MOST_RECENT: Final = 16
"""Answered ops of a lane that the report of a fault names."""

_WINDOW: Final = 1024
"""Limit of the ops that a host has at a time; the rest wait here, and can be withdrawn."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Counters of a lane.

    Attributes:
        name: the lane's name.
        submitted: ops ever submitted.
        completed: ops answered with a result.
        failed: ops answered with an error.
        in_flight: ops not answered yet, including queued ones.
        queued: ops in flight that the host does not have yet, because its window or the socket is
            full.
        frames_sent: frames sent; ``submitted / frames_sent`` shows how well ops coalesce.
    """

    name: str
    submitted: int
    completed: int
    failed: int
    in_flight: int
    queued: int
    frames_sent: int


@final
@uninterrupted
class Port:
    """A lane as the program sees it, for one incarnation of its context.

    Args:
        name: the lane's name.
        index: its number in dependencies.
        sock: the program's end of its socket, non-blocking.
        in_flight: the device's ops in flight by sequence number, shared by its lanes.
        device: the device of the lane, for instruments.
        low_latency: whether to send and receive between the turns of trio's loop, with a short
            switch interval of the interpreter; otherwise its tasks do that.

    Attributes:
        reports: whether the host was asked to report its times, to mark ranges, and to tell CUPTI
            of ops.
        load: number of ops that are submitted and not answered.
        recent: the last ops that the host has answered: place, name and lane.
        due: tasks whose ops were answered since the last turn, less the ops submitted in this one:
            at zero all tasks that are likely to submit have done so.
    """

    def __init__(
        self,
        name: str,
        index: int,
        sock: socket.socket,
        in_flight: dict[int, Op],
        *,
        device: InstrumentedDevice = NOBODY,
        low_latency: bool = True,
    ) -> None:
        self._low_latency = low_latency
        self.device: InstrumentedDevice = device
        self.reports: tuple[bool, bool, bool] = (False, False, False)
        self._instruments = device.instruments
        self._timing = self._instruments.each_op  # whether ``submit`` reads the clock
        self._crowd = 0
        self._sent = self._sent_from = 0
        self._hurried = False
        self._done = DoneOps(device, name, in_flight)
        self._received = 0
        self.name = name
        self.recent: Final[deque[tuple[int, str, str]]] = deque(maxlen=_MOST_RECENT)
        self.index = index
        self._sock = sock
        self._in_flight = in_flight
        self._outbox: deque[Op] = deque()
        self._prepared: dict[int, MessageTemplate] = {}
        self._buffer = bytearray()
        self._flusher: LoopFlusher | None = None
        self._sends_soon = False
        self._polled = False
        self.due: int = 0
        self._full = trio.Event()
        self._failure: BaseException | None = None
        self.load: int = 0
        self._submitted = 0
        self._completed = 0
        self._failed = 0
        self._frames = 0
        self._on_fault: Callable[[Fault], None]
        self._frames_in = Frames()
        self._cut = trio.Event()
        self._oldest: Op | None = None
        self._oldest_since = 0.0
        self._ended = False
        self._make_error: Callable[[Op], Exception] | None = None
        self._handing_over = False
        self._over = trio.Event()
        self._decode = msgspec.msgpack.Decoder(Reply).decode

    def submit(self, op: Op) -> None:
        """Queue an op in program order without blocking. After ``end`` the op fails at once."""
        seq = op.seq
        in_flight = self._in_flight
        # Ops that touch the same memory keep their order across lanes: read after write,
        # write after read, write after write. Within a lane the dependency matters if the
        # lane has set the earlier op aside.
        before: int | set[int] = 0
        for block in op.reads:
            writer = block.writer
            if writer:
                before = _with(before, writer) if before else writer
            readers = block.readers
            if readers is None:
                block.readers = {seq}
            else:
                readers.add(seq)
        for block in op.writes:
            writer, readers = block.writer, block.readers
            if readers:  # which come after the writer themselves
                for reader in readers:
                    if reader != seq:
                        before = _with(before, reader)
                readers.clear()  # ops after this one are after them too
            elif writer and writer != seq:
                before = _with(before, writer) if before else writer
            block.writer = seq
        if not isinstance(before, int):
            op.dependencies = tuple([(in_flight[each].port.index, each) for each in before])
        elif before:
            op.dependencies = ((in_flight[before].port.index, before),)
        if not in_flight and self._low_latency:
            shorten_switch_interval()
        in_flight[seq] = op
        self._submitted += 1
        self.load += 1
        if self._timing:
            op.submitted_at = monotonic_ns()
            if "op_submitted" in self._instruments.methods:
                self._instruments("op_submitted", op)
        if self._make_error is not None:
            self.fail(op, self._make_error)
            return
        self._outbox.append(op)
        if self.load == 1 and not self._buffer:
            self._encode_what_fits()  # the lane is idle: latency counts
            self.push()
            if not self._buffer:
                return
        # The lane is busy: let the other tasks that are about to run submit too, and send
        # all of it at once. Those are mostly the ones whose ops have been answered.
        self.due -= 1
        if not self.due:
            self.send()
            if not self._buffer:
                return
        if not self._sends_soon:
            self._send_soon()

    def end(self, make_error: Callable[[Op], Exception]) -> None:
        """Stop sending ops and receiving answers. ``fail`` then answers the ops in flight.

        Args:
            make_error: makes the errors of ops that are submitted later.
        """
        self._ended = True
        self._make_error = make_error
        self._outbox.clear()
        self._buffer.clear()
        self.tell_done()

    def fail(self, op: Op, make_error: Callable[[Op], Exception]) -> None:
        """Answer an op in flight on this port with an error; call ``end`` first."""
        op._make_error = make_error
        if self._instruments.each_op:
            self._tell_finished(op)
        self._settle(op)
        self._wake(op)

    def watch(self) -> None:
        """Adapt to a change of the instruments."""
        self._timing = self._instruments.each_op

    def overdue(self, now: float, deadline: float) -> Op | None:
        """Return the op at the head of this lane if it has been there for ``deadline`` seconds.

        Only the time in which the op could run counts. It starts again whenever the head changes,
        and while the head depends on another lane's op.
        """
        head = None
        if self.load:
            ours = (op for op in self._in_flight.values() if op.port is self and op.sent)
            head = next(ours, None)
        if head is not self._oldest or head is None:
            self._oldest, self._oldest_since = head, now
        elif any(seq in self._in_flight for _, seq in head.dependencies):
            self._oldest_since = now
        elif now - self._oldest_since >= deadline:
            return head
        return None

    def statistics(self) -> LaneStatistics:
        """Return a snapshot of the counters."""
        return LaneStatistics(
            name=self.name,
            submitted=self._submitted,
            completed=self._completed,
            failed=self._failed,
            in_flight=self.load,
            queued=len(self._outbox),
            frames_sent=self._frames,
        )

    async def run(self, on_fault: Callable[[Fault], None]) -> None:
        """Carry ops to the host and answers back until the socket ends.

        Args:
            on_fault: called when the host reports a sticky fault; the port does nothing more
                afterwards.
        """
        self._on_fault = on_fault
        if self._low_latency:
            self._flusher = LoopFlusher.join(self)
        if self._frames_in.rest:
            self._cut.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._see_frames_complete)
                while not self._ended:
                    await trio.lowlevel.wait_readable(self._sock)
                    if self._failure is not None:
                        raise self._failure
                    if not self._polled:
                        self._receive()
                    self._polled = False
                nursery.cancel_scope.cancel()
        finally:
            if self._flusher is not None:
                self._flusher.leave(self)
            if self._handing_over:
                self._flusher, self._sends_soon = None, False
            else:
                self.close()

    def hand_over(self) -> None:
        """Prepare for the end of ``run`` in this task, because another task continues it."""
        self._handing_over = True

    def move_to(self, in_flight: dict[int, Op], device: InstrumentedDevice = NOBODY) -> None:
        """Become a lane of another device, together with the ops in flight.

        Args:
            in_flight: the ops of that device. The ops in flight on this port are younger.
            device: that device.
        """
        self._handing_over = False
        ours = [op for op in self._in_flight.values() if op.port is self]
        if ours and not in_flight and self._low_latency:
            shorten_switch_interval()
        for op in ours:
            in_flight[op.seq] = op
            del self._in_flight[op.seq]
        if ours and not self._in_flight and self._low_latency:
            restore_switch_interval()
        self._in_flight = in_flight
        self.device, self._instruments = device, device.instruments
        self._done = DoneOps(device, self.name, in_flight)
        self.watch()
        if self._timing:
            for op in ours:
                op.submitted_at, op.sent_at, op.measured = monotonic_ns(), 0, None
                self._instruments("op_submitted", op)
            sent, now = [op for op in ours if op.sent], monotonic_ns()
            for op in sent:
                op.sent_at = now
            self._tell_sent(sent)

    def close(self) -> None:
        """End the lane, after its ``run`` has ended."""
        self._ended = True
        self._over.set()
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def hang_up(self) -> None:
        """Everything was answered, and nothing more comes: let the host end the lane."""
        self._handing_over = False  # no other task continues it, so its task closes it
        with contextlib.suppress(OSError):  # it is dying
            self._sock.shutdown(socket.SHUT_WR)

    async def wait_ended(self) -> None:
        """Wait until the host has ended the lane, or is gone."""
        await self._over.wait()

    async def _write(self) -> None:
        """Send the remaining bytes whenever the socket was full."""
        self.send()
        while True:
            while self._buffer:
                await trio.lowlevel.wait_writable(self._sock)
                self.send()
            self._full = trio.Event()
            await self._full.wait()
            if self._failure is not None:
                raise self._failure
            if not self._low_latency:  # woken to send, in the turn after the submission
                self.due = 0
                self.send()

    async def _see_frames_complete(self) -> None:
        """Report a frame that stays incomplete as a fault; sleep while all are complete."""
        frames = self._frames_in
        while True:
            await self._cut.wait()
            self._cut = trio.Event()
            cut = frames.cut
            for seconds in (FRAME_SECONDS, _AGAIN_SECONDS):
                if frames.rest and frames.cut == cut:
                    await trio.sleep(seconds)
            if frames.rest and frames.cut == cut:
                self._violated(f"{len(frames.rest)} bytes of a frame came, and not the rest of it")

    def wake_writer(self) -> None:
        """Have the port's task wait for room in the socket."""
        self._full.set()

    # --- between turns of the loop ----------------------------------------------------

    def _send_soon(self) -> None:
        if not self._low_latency:
            self.wake_writer()
        elif self._flusher is not None and not self._sends_soon and not self._ended:
            self._sends_soon = True
            self._flusher.send_soon(self)

    def flush(self) -> bool:
        """Send queued ops between two turns; return True if all encoded bytes are sent.

        The loop has already decided how long it sleeps, so this must not wake a task. If answers
        would make room, they are in the socket, and end that sleep themselves.
        """
        self._sends_soon = False
        self.due = 0
        try:
            self._encode_what_fits()
            self.push()
        except BaseException as error:  # noqa: BLE001 (no task runs now; the port's raises it)
            self._failure = error
            return False
        return not self._buffer

    def poll_replies(self) -> None:
        """Receive answers between two turns. Answers in the socket also wake the port's task."""
        self._polled = True
        try:
            self._receive()
        except BaseException as error:  # noqa: BLE001 (as above)
            self._failure = error

    def take_answers(self) -> None:
        """Receive pending answers for a caller that needs the memory they free; never blocks."""
        if self.load:
            self._receive()

    def take_last_answers(self) -> None:
        """Receive all answers that a host sent before its context ended; never blocks."""
        while self.load and self._receive():
            pass

    def send(self) -> None:
        """Encode queued ops and send them as far as the socket takes them; never blocks."""
        self.encode()
        self.push()

    def encode(self) -> None:
        """Encode queued ops for ``push``, as far as the host's window has room."""
        if self._outbox and self.load - len(self._outbox) >= _WINDOW:
            # A batch queues ops without awaiting, so the answers that have arrived meanwhile
            # are still in the socket. They make room, or the device would run dry.
            self._receive()
        self._encode_what_fits()

    def _encode_what_fits(self) -> None:
        # The rest of the window that the host has is room for further ops.
        room = _WINDOW - (self.load - len(self._outbox))
        while self._outbox and room > 0 and len(self._buffer) < _SEND_HIGH:
            most = min(room, _MOST_IN_FRAME)
            room -= self._encode_together(most) or self._encode_one_by_one(most)

    def push(self) -> None:
        """Send encoded bytes as far as the socket takes them."""
        buffer = self._buffer
        if not buffer:
            return
        try:
            sent = self._sock.send(buffer, _SENDING)
        except BlockingIOError:
            return
        except OSError:
            # The host is dying; the context's task will see it and answer everything.
            buffer.clear()
            return
        self._frames += 1
        del buffer[:sent]

    def _encode_together(self, most: int) -> int:
        """Encode the first queued ops into a frame, up to a bulky one; return their number."""
        outbox, prepared = self._outbox, self._prepared
        ops = [*outbox] if len(outbox) <= most else [*itertools.islice(outbox, most)]
        payloads: list[object] = []
        for op in ops:
            payload: Any = op.payload
            if payload is None:
                payload = op.message
                if payload.bulky:
                    break
            elif prepared.get(payload.number) is not op.message:
                payload = self._request(op)
            payloads.append((op.seq, op.dependencies, payload))
        count = len(payloads)
        if not count:
            return 0
        try:
            append_frame(self._buffer, payloads)
        except Exception:  # noqa: BLE001 (then one by one, to find out which)
            prepared.clear()  # templates among these were not sent
            return 0
        if count == len(outbox):
            outbox.clear()
        else:
            del ops[count:]
            for _ in ops:
                outbox.popleft()
        watched = self._instruments.each_op
        now = monotonic_ns() if watched else 0
        for op in ops:
            op.sent = True
            op.sent_at = now
        if watched:
            self._tell_sent(ops)
        return count

    def _encode_one_by_one(self, most: int) -> int:
        """Encode a frame of the first queued ops; return their number. Withdraw unsendable ops."""
        buffer, outbox = self._buffer, self._outbox
        frame = MultiFrame(buffer)
        while outbox and frame.count < most and len(buffer) < _SEND_HIGH:
            op = outbox.popleft()
            op.sent = True
            if self._instruments.each_op:
                op.sent_at = monotonic_ns()
                self._tell_sent([op])
            try:
                frame.append((op.seq, op.dependencies, self._request(op)))
            except Exception as error:  # noqa: BLE001 (what encodes is up to the libraries)
                # Keep its place, because others may be ordered after it.
                too_wide = isinstance(error, OverflowError)
                op._error = too_large(op.name) if too_wide else error
                self._prepared.clear()  # a template of it was not sent
                frame.append((op.seq, op.dependencies, WITHDRAWN))
        frame.close()
        return frame.count

    def _request(self, op: Op) -> object:
        """Return the request to send for an op, with its template if the host lacks it."""
        payload, template = op.payload, op.message
        if payload is None or type(template) is not MessageTemplate:
            return template
        prepared = self._prepared
        if prepared.get(payload.number) is template:
            return payload
        prepared[payload.number] = template
        return CallWithTemplate(payload.number, template.encoded, payload.addresses)

    def _receive(self) -> bool:
        """Receive pending answers and hand them out; return False if there were none."""
        if self._ended:
            return False
        try:
            data = self._sock.recv(RECEIVED_BYTES, _RECEIVING)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._ended = not data
        if not data:
            return False
        outermost = not self._received  # a hook may submit, which may receive
        if outermost and self._instruments.each_op:
            self._received = monotonic_ns()
        try:
            self._take(data)
        except ProtocolViolation as violation:
            self._violated(str(violation))
        else:
            if self._frames_in.rest:
                self._cut.set()
        finally:
            if outermost:
                received, self._received = self._received, 0
                if self._done.waiting:
                    self._done.answer(received, idle=not self.load)
        return True

    def _violated(self, why: str) -> None:
        """End the context, because the host has broken the protocol."""
        self._ended = True
        why = f"the host broke the protocol of lane {self.name}: {why}"
        suspects = tuple(op.seq for op in self._in_flight.values() if op.port is self)[:1]
        self._on_fault(Fault(suspects, errno.EPROTO, "protocol violation", why))

    def _take(self, data: bytes) -> None:
        """Hand out the answers that ``data`` completes.

        Bad data from a host can at worst end its context.
        """
        in_flight = self._in_flight
        note, own_name = self.recent.append, self.name
        for frame in self._frames_in.feed(data):
            if self._ended:  # an answer has ended it: all other ops are answered too
                return
            try:
                reply = self._decode(frame)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolViolation(f"a reply cannot be read: {error}") from error
            if type(reply) is list:
                watched = self._instruments.each_op
                together = watched and self._received and self._done.wanted()
                name = ""
                for seq in reply:
                    op = in_flight.get(seq)
                    if op is None or op.port is not self or not op.sent:
                        raise ProtocolViolation(f"op {seq} was answered, which is not in flight")
                    if op.message.returns is not None and op._error is None:
                        raise ProtocolViolation(f"{op.name} was answered without its value")
                    if op._error is not None:  # it could not be encoded; its place was kept
                        self._failed += 1
                        self._answer(op, None, op._error)
                        if self._is_over():
                            return
                        continue
                    self._completed += 1
                    if watched:
                        if together and op.message is not WITHDRAWN:
                            if op.name is not name:
                                name = op.name
                                alike = self._done.of(name)
                                seqs, untimed = alike.seqs, alike.untimed
                                submitted, sent = alike.submitted, alike.sent
                            if op.submitted_at < 0:
                                untimed.append(seq)
                            elif op.submitted_at != UNWATCHED:
                                seqs.append(seq)
                                submitted.append(op.submitted_at)
                                sent.append(op.sent_at)
                        else:
                            self._tell_finished(op)
                    note((seq, op.name, own_name))
                    self._settle(op)
                    if op.task is not None:
                        self._wake(op)
            elif type(reply) is Value:
                op = self._answered_by(reply.seq)
                value = _value_of(op, reply)
                self._completed += 1
                self._answer(op, value, None)
            elif type(reply) is Failure:
                op = self._answered_by(reply.seq)
                answer = unpack_exception(reply, pickles=op.message.pickles)
                self._failed += 1
                self._answer(op, None, answer)
            elif type(reply) is Times:
                self._note_times(reply)
            elif type(reply) is Fault:
                self._ended = True
                self._on_fault(reply)
                return
        if self._outbox:
            self._send_soon()

    def _note_times(self, reply: Times) -> None:
        """Keep the times that the host sent for ops that it is about to answer."""
        in_flight = self._in_flight
        try:
            measured = MeasuredTimes(reply.ops)
        except (TypeError, ValueError) as error:
            raise ProtocolViolation(f"times cannot be read: {error}") from error
        if self._done.wanted():
            self._done.measure(measured)
            return
        for seq in measured.rows:
            op = in_flight.get(seq)
            if op is None or op.port is not self or not op.sent:
                raise ProtocolViolation(f"times of op {seq} were told, which is not in flight")
            op.measured = measured

    def _answered_by(self, seq: int) -> Op:
        op = self._in_flight.get(seq)
        if op is None or op.port is not self or not op.sent:
            raise ProtocolViolation(f"op {seq} was answered, which is not in flight")
        return op

    # --- instruments ------------------------------------------------------------------

    def _tell_sent(self, ops: list[Op]) -> None:
        if "op_sent" in self._instruments.methods:
            for op in ops:
                if op.submitted_at > 0:  # else no instrument watched yet
                    self._instruments("op_sent", op)
        if self._instruments.sampled:  # decide whether the next ops are timed
            # A lane that has run dry is not idle yet: of many ops the first is sent alone.
            self._crowd = max(self.load, self._crowd >> 1)
            self._sent += len(ops)
            if self._sent >= _MOST_IN_FRAME:
                now = ops[-1].sent_at
                self._hurried = now - self._sent_from < self._sent * _HURRIED
                self._sent, self._sent_from = 0, now
            busy = self._crowd > _ALL_TIMED or self._hurried
            self._timing = not busy or not self._frames % _ONE_IN

    def _tell_finished(self, op: Op) -> None:
        if op.submitted_at == UNWATCHED:
            return
        op.answered_at = self._received or monotonic_ns()
        methods = self._instruments.methods
        outcome = op.outcome  # which changes once the error is created
        if "op_finished" in methods and op.submitted_at > 0:
            self._instruments("op_finished", op, outcome)
        if "ops_finished" in methods:
            self._done.tell_of(op, outcome)

    def tell_done(self) -> None:
        """Report all unreported finished ops, unless answers are just being handled."""
        if self._done.waiting and not self._received:
            self._done.tell()

    def _is_over(self) -> bool:
        return self._ended

    def _answer(self, op: Op, value: Any, error: Exception | None) -> None:
        op.value, op._error = value, error
        self.recent.append((op.seq, op.name, self.name))
        if self._instruments.each_op:
            self._tell_finished(op)
        self._settle(op)
        self._wake(op)

    def _wake(self, op: Op) -> None:
        """Wake the caller of a settled op, if one waits."""
        if op.task is not None:
            if self._flusher is not None:
                self._flusher.wake(op)
            else:
                op.wake()

    def _settle(self, op: Op) -> None:
        """Release the buffers of an op that is over."""
        seq, in_flight = op.seq, self._in_flight
        del in_flight[seq]
        if not in_flight and self._low_latency:
            restore_switch_interval()
        self.load -= 1
        for block in op.reads:
            readers = block.readers
            if readers is not None:
                readers.discard(seq)
            if block.retired:
                block.settle()
        for block in op.writes:
            if block.writer == seq:
                block.writer = 0
            if block.retired:
                block.settle()
        op.reads = op.writes = ()
        op.message, op.payload = WITHDRAWN, None  # it may hold buffers
        op.answered = True
        if op.on_answer is not None:
            on_answer, op.on_answer = op.on_answer, None  # it may hold the op and other objects
            on_answer()


def _with(before: int | set[int], seq: int) -> int | set[int]:
    """Add an op to the ops that must finish first."""
    if not before or before == seq:
        return seq
    if isinstance(before, int):
        return {before, seq}
    before.add(seq)
    return before


def _value_of(op: Op, reply: Value) -> Any:
    """Return the value of a reply, decoded as the type that the op's message names."""
    if op.message.returns is None:
        raise ProtocolViolation(f"{op.name} was answered with a value, but has no `returns`")
    try:
        return _decoder_of(op.message.returns)(reply.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"the answer to {op.name} cannot be read: {error}") from error


def fail_some(in_flight: dict[int, Op], make_error: Callable[[Op], Exception]) -> None:
    """Answer the oldest ops in flight with errors, as many as a turn of the loop has time for.

    Call ``end`` on their ports first.
    """
    for op in list(itertools.islice(in_flight.values(), _MOST_FAILED)):
        op.port.fail(op, make_error)


@functools.cache
def _decoder_of(kind: Any) -> Callable[[msgspec.Raw], Any]:
    return msgspec.msgpack.Decoder(kind).decode
