"""A lane, which launches requests in their order and answers them.

It launches requests in the order in which they came, but sets one aside until its dependencies are
launched. A lane has one or more slots, each a stream with an executor of its own. Ops that do not
depend on each other spread over the slots and run concurrently. An op that depends on an op of
another stream waits for that stream. The launcher decides which thread runs the lane, and when it
checks for finished ops.
"""

from __future__ import annotations

import contextlib
import operator
import os
import random
import socket
import time
from collections import deque
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..wire import (
    RECEIVED_BYTES,
    CallByTemplate,
    CallWithTemplate,
    CloseLane,
    Failure,
    Fault,
    Frames,
    Message,
    ProtocolViolation,
    RecordEvent,
    ReportTimes,
    StickyFault,
    Value,
    append_frame,
    encoder,
)
from ..wire.blackbox import SEQ
from ..wire.failures import as_out_of_memory, pack_exception
from ..wire.interface import Later
from ._slots import OpGroup, StreamSlot
from .templates import HostTemplate, Malformed, Templates

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..wire.interface import HostContext
    from ._launcher import Launcher
    from ._times import LaneTimes

Request = tuple[int, tuple[tuple[int, int], ...], Message]

_NO_STEPS: Final[deque[tuple[int, Any]]] = deque()
STEP_SECONDS: Final = 10e-3
"""Time without news after which ops of a group are answered one by one, if ops are tracked."""


def _read(seq: int, later: Later) -> Any:
    """Return the device's value for an op that is done."""
    try:
        return later.read()
    except BaseException as error:  # noqa: BLE001 - it is the answer
        return pack_exception(seq, error)


@final
class Lane:
    """The host's half of a lane.

    Args:
        index: the lane's number in dependencies.
        sock: the lane's socket; its other end is the program's.
        lanes: all lanes of this host by number, this one included.
        launcher: the launcher whose thread runs the lane.
        group: number of launches that share one completion token, and go to one slot, when many
            come at once.
        track_each_op: whether ops of a group that takes long are answered one by one, because the
            program checks how long each takes.

    Attributes:
        sock: the lane's socket.
        slots: its slots, in the order in which they were made.
        streams: the name of the stream of each slot, by number.
        templates: the call templates of the lane.
        launches: the slots of ops that are launched and not answered, by number.
        aside: requests that wait until other ops are launched, by number.
    """

    def __init__(
        self,
        index: int,
        sock: socket.socket,
        lanes: dict[int, Lane],
        launcher: Launcher,
        *,
        group: int = 8,
        track_each_op: bool = False,
    ) -> None:
        self.index: Final = index
        self.sock: Final = sock
        self.slots: Final[list[StreamSlot]] = []
        self._lanes = lanes
        self._launcher = launcher
        self._record = launcher.record
        self._group = self._together_most = group
        self._fills_streams = False
        self._track_each_op = track_each_op
        self._flushed = 0.0
        self._frames = Frames()
        self._out = bytearray()
        self._done: list[int] = []
        self._accepted = 0
        self._seen = 0
        self.aside: Final[dict[int, Request]] = {}
        self.launches: Final[dict[int, StreamSlot]] = {}
        self._together: list[tuple[int, Any]] = []
        self._key: Hashable = None
        self._watchers: set[Launcher] = set()
        self._delay = _delay_of(index)
        self._times: LaneTimes | None = None
        self._may_plan: Final = not track_each_op and self._delay is None
        self._plans = self._may_plan

    def open(
        self,
        context: HostContext,
        new_slot: Callable[[int], StreamSlot],
        streams: Sequence[Hashable],
    ) -> None:
        """Take the first slot, in the thread that is to run the lane.

        Args:
            context: the device.
            new_slot: returns the slot of a number, and makes the context current in this thread.
            streams: the name of each slot's stream, different from each other; None for one that
                no other slot has. Slots but the first are made when they are useful.
        """
        self._context = context
        self._new_slot = new_slot
        self._most_slots = len(streams)
        self.streams: Sequence[Hashable] = streams
        self._named = {name: slot for slot, name in enumerate(streams) if name is not None}
        self._slot = first = self._add_slot(0)
        self._fills_streams = getattr(first.executor, "fills_streams", False)
        calls = CallWithTemplate | CallByTemplate
        union = reduce(operator.or_, first.handlers, calls)
        request = tuple[int, tuple[tuple[int, int], ...], union]  # type: ignore[valid-type]
        self._decode = msgspec.msgpack.Decoder(list[request]).decode
        decode_message: Callable[[Any], Message] = msgspec.msgpack.Decoder(union).decode
        self._decode_message = decode_message
        self.templates: Templates = Templates(decode_message)

    def close(self) -> None:
        """Release everything. A context that has failed may answer anything to that."""
        for slot in self.slots:
            for part in (slot.executor, slot.stream):
                with contextlib.suppress(Exception):
                    part.close()
        self._notify()
        with contextlib.suppress(OSError):  # the program may be gone
            # A function may have forked: its child's copy would keep the connection open.
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    # --- receiving --------------------------------------------------------------------

    def receive(self) -> list[Request] | None:
        """Return the requests that have arrived, or None at the end."""
        try:
            data = self.sock.recv(RECEIVED_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None  # the program is gone, or has given this context up
        if not data:
            return None
        requests: list[Request] = []
        for frame in self._frames.feed(data):
            try:
                requests += self._decode(frame)
            except msgspec.ValidationError:
                requests += self._one_by_one(frame)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolViolation(f"a frame cannot be read: {error}") from error
        if self._fills_streams:  # a few that have come together overlap, too
            self._together_most = min(self._group, -(-len(requests) // self._most_slots) or 1)
        return requests

    def _one_by_one(self, frame: memoryview) -> list[Request]:
        """The requests of a frame, of which the executors do not know all: those are refused."""
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
                message = Malformed(str(error))
            requests.append((seq, dependencies, message))
        return requests

    # --- launching --------------------------------------------------------------------

    def launched(self, seq: int) -> bool:
        """Return True if the op ``seq`` of this lane has been launched (called by other lanes)."""
        return seq <= self._seen and seq not in self.aside

    def accept(self, request: Request, *, alone: bool = False) -> None:
        """Launch a request, or set it aside for now.

        Args:
            request: the request.
            alone: whether it came without others that might be launched together with it.
        """
        seq, dependencies, message = request
        if seq <= self._accepted:
            raise ProtocolViolation(f"op {seq} came after op {self._accepted}")
        self._accepted = seq
        if (
            dependencies
            and isinstance(message, CallByTemplate)
            and self._plans
            and not self._together
        ):
            slot = self._behind(dependencies)
            if slot is not None:
                template = self.templates.find(message)
                make = template.calls.get(slot) or slot.prepare_call(template)
                self.launches[seq] = slot
                self._launcher.plan((self, slot, seq, make, message.addresses))
                return
        if self._launcher.planned:
            self._launcher.launch_planned()
        kind = type(message)
        fusion = None
        if kind is CallByTemplate or kind is CallWithTemplate:
            call: Any = message
            if kind is CallWithTemplate:
                self._keep_template(call)
            if not dependencies and not alone:
                template = self.templates.find(call)
                fusion = self._slot.fusions.get(template.kind)
                if fusion is not None:
                    message = template.filled(call.addresses)
        elif not dependencies and not alone:
            fusion = self._slot.fusions.get(kind)
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
        if self.aside and kind is RecordEvent:
            # Its point comes after those too, although they are launched later.
            dependencies = (*dependencies, *((self.index, before) for before in self.aside))
            request = seq, dependencies, message
        if dependencies and not self._ready(dependencies):
            if isinstance(message, CallByTemplate):
                self.templates.find(message)  # a missing one is a violation now, not later
            self.aside[seq] = request
        else:
            self._launch(request)
        self._seen = seq
        if self._watchers:
            self._notify()

    def _behind(self, dependencies: tuple[tuple[int, int], ...]) -> StreamSlot | None:
        """Return the slot whose stream already orders an op after its dependencies, or None.

        The dependencies may be planned only, because a thread makes its calls in the planned order.
        """
        found: StreamSlot | None = None
        for index, before in dependencies:
            lane = self._lanes.get(index)
            if lane is None:
                continue  # it was closed, which comes after all that was asked of it
            if lane._launcher is not self._launcher:
                return None
            slot = lane.launches.get(before)
            if slot is None:
                if before > lane._accepted or before in lane.aside:
                    return None
            elif found is None:
                found = slot
            elif found.stream.queue != slot.stream.queue:
                return None
        if found is None:
            return self._slot
        return found if found.lane is self else self._beside(found)

    def launch_planned(
        self,
        slot: StreamSlot,
        seq: int,
        call: Callable[[Sequence[int]], Any],
        addresses: Sequence[int],
    ) -> None:
        """Make a call that was planned."""
        self._record[SEQ] = seq
        try:
            value = call(addresses)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            self._fail(slot, [seq], error)
        else:
            slot.unmarked.append((seq, value))
        self._seen = seq
        if self._watchers:
            self._notify()
        if len(slot.unmarked) >= self._group:
            self._settle(slot)

    def _keep_template(self, request: CallWithTemplate) -> None:
        """Keep the template of a call for later calls with the same signature."""
        former = self.templates.add(request)
        if former is not None:
            for seq, (_, dependencies, message) in self.aside.items():
                if (
                    isinstance(message, (CallWithTemplate, CallByTemplate))
                    and message.number == request.number
                ):
                    self.aside[seq] = seq, dependencies, former.filled(message.addresses)

    def _ready(self, dependencies: tuple[tuple[int, int], ...]) -> bool:
        for index, seq in dependencies:
            lane = self._lanes.get(index)
            # The dependency is launched, or its lane was closed, which comes after all ops of that
            # lane.
            if lane is None or (seq <= lane._seen and seq not in lane.aside):
                continue
            if lane._launcher is self._launcher:
                return False
            # Register first, then look again: the other lane may launch in between.
            lane._watchers.add(self._launcher)
            if not lane.launched(seq):
                return False
        return True

    def end_pass(self) -> None:
        """Launch the ops held back to go together, now that all present requests are accepted."""
        if self._together:
            self._launch_together()

    def retry(self, seq: int) -> bool:
        """Launch a request that was set aside and return True, unless it must still wait."""
        request = self.aside[seq]
        if not self._ready(request[1]):
            return False
        self._launch(request)
        del self.aside[seq]
        if self._watchers:
            self._notify()
        return True

    def _notify(self) -> None:
        # Other threads add themselves meanwhile, so the set must stay the same object. A thread
        # that is not in it yet looks afterwards, and sees the launches before this. Each is
        # notified once only: one that was woken may be back already, for a later op.
        for launcher in list(self._watchers):
            self._watchers.discard(launcher)
            launcher.wake()

    def _launch_together(self) -> None:
        """Launch the collected ops. They count as launched only from here on."""
        together, self._together = self._together, []
        last = together[-1][0]
        if len(together) == 1:
            self._launch((last, (), together[0][1]))
        else:
            slot = self._slot
            seqs = [seq for seq, _ in together]
            messages = [message for _, message in together]
            if self._delay is not None:
                self._delay()
            times = self._times
            begun = None if times is None else times.begin(slot.stream, messages[0], seqs[0])
            self._record[SEQ] = seqs[0]
            try:
                slot.fusions[type(messages[0])].run(messages)
            except BaseException as error:  # noqa: BLE001 - it is the answer
                if times is not None and begun is not None:
                    times.fail(begun)
                self._fail(slot, seqs, error)
            else:
                if times is not None and begun is not None:
                    times.end(begun, seqs)
                for seq in seqs:
                    slot.unmarked.append((seq, None))
                    self.launches[seq] = slot
                self._settle(slot)
        self._seen = last
        if self._watchers:
            self._notify()

    def _launch(self, request: Request) -> None:
        seq, dependencies, message = request
        slot = self._follow(dependencies) if dependencies else self._slot
        template: HostTemplate | None = None
        handler: Callable[[Any], Any] | None = None
        if type(message) is CallByTemplate or type(message) is CallWithTemplate:  # most are
            template = self.templates.find(message)
            given: Any = message.addresses
            handler = template.calls.get(slot)
        else:
            handler, given = self._handler_of(message, slot), message
        if self._delay is not None:
            self._delay()
        times = self._times
        begun = None if times is None else times.begin(slot.stream, message, seq)
        self._record[SEQ] = seq
        try:
            if handler is None:
                assert template is not None
                handler = slot.prepare_call(template)
            value = handler(given)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            if times is not None and begun is not None:
                times.fail(begun)
            self._fail(slot, [seq], error, pickles=message.pickles)
            return
        if times is not None and begun is not None:
            times.end(begun, (seq,))
        slot.unmarked.append((seq, value))
        self.launches[seq] = slot
        # Ops that follow each other do not overlap.
        if len(slot.unmarked) >= (self._group if dependencies else self._together_most):
            self._settle(slot)
        elif self._track_each_op:
            self._step(slot)

    def _handler_of(self, message: Message, slot: StreamSlot) -> Callable[[Any], Any]:
        """Return the function that executes a message in a slot, and make the slot ready for it."""
        if message.waits:
            self.mark()
            if self.reap():
                self.flush()
        if type(message) is RecordEvent:
            self._gather(slot)
        return self._in_all_slots if message.everywhere else slot.handlers[type(message)]

    def _in_all_slots(self, message: Message) -> None:
        for slot in self.slots:
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
            # Where work is done once it is queued, the ops before have ended well. Elsewhere one of
            # them may have caused the fault, and this one is the first to notice.
            at = 0 if slot.stream.queue is None else len(slot.unmarked)
            slot.unmarked[at:at] = [(seq, None) for seq in seqs]
            raise
        if not pickles:  # the failure is not in a function of the program
            error = as_out_of_memory(error, "the host")
        # Its answer comes when that of a success would have come: after the ops that it
        # follows, in whose place its buffers name it.
        for seq in seqs:
            slot.unmarked.append((seq, pack_exception(seq, error, pickles=pickles)))
            self.launches[seq] = slot

    def _settle(self, slot: StreamSlot) -> None:
        """Close a complete group, and answer finished ops before launching more.

        The program then prepares its next ops meanwhile, and they run next to this group.
        """
        self._mark(slot)
        # Few answers are not worth a turn of the program's loop while there is more to launch.
        if self.reap() and (self._out or len(self._done) >= 2 * self._group):
            self.flush()
        if slot is self._slot and slot.in_flight:
            self._slot = self._next_slot()

    def _step(self, slot: StreamSlot) -> None:
        """Make it possible to answer the launched ops of a group before the group is done."""
        token = slot.stream.mark()
        if token is not None:
            slot.steps.append((len(slot.unmarked), token))
        elif not slot.steps:  # it is done
            group, slot.unmarked = slot.unmarked, []
            self._complete(group)
            if time.perf_counter() - self._flushed > STEP_SECONDS:
                self.flush()

    def _follow(self, dependencies: tuple[tuple[int, int], ...]) -> StreamSlot:
        """Return a slot for an op with dependencies, made to wait for them."""
        if len(dependencies) == 1:  # most come after one op, in the same slot or stream
            [(index, before)] = dependencies
            lane = self._lanes.get(index)
            slot = None if lane is None else lane.launches.get(before)
            if slot is None:
                return self._slot
            if slot.lane is self:
                return slot
            beside = self._beside(slot)
            if beside is not None:
                return beside
            slots = {slot}
        else:
            lanes = [(self._lanes.get(index), before) for index, before in dependencies]
            found = [lane.launches.get(before) for lane, before in lanes if lane is not None]
            slots = {slot for slot in found if slot is not None}
        # Behind one of them in its stream it need not wait for that one.
        there = (self._beside(slot) for slot in slots)
        chosen = next((slot for slot in there if slot is not None), self._slot)
        queue = chosen.stream.queue
        for slot in slots:
            if slot.stream.queue != queue:
                self._mark(chosen)  # ops launched there already need not wait
                chosen.stream.follow(slot.stream)
        return chosen

    def _beside(self, slot: StreamSlot) -> StreamSlot | None:
        """The lane's slot with the stream of another one's, or that slot if it is the lane's."""
        queue = slot.stream.queue
        for ours in self.slots:
            if ours.stream.queue == queue:
                return ours
        there = slot.lane
        number = None if there is None else self._named.get(there.streams[slot.number])
        if number is not None and number < self._most_slots:
            return self._try_slot(number)
        return None

    def _gather(self, slot: StreamSlot) -> None:
        """Make a slot wait for all others, so that later work in it comes after everything."""
        for other in self.slots:
            if other is not slot and (other.in_flight or other.unmarked):
                slot.stream.follow(other.stream)

    def _next_slot(self) -> StreamSlot:
        for slot in self.slots:
            if not slot.in_flight:
                return slot
        count = len(self.slots)
        if count < self._most_slots:
            # An op may have needed the slot of a later number, to follow one of another lane.
            there = {slot.number for slot in self.slots}
            further = self._try_slot(min({*range(self._most_slots)}.difference(there)))
            if further is not None:
                return further
        return self.slots[(self.slots.index(self._slot) + 1) % len(self.slots)]

    def _try_slot(self, number: int) -> StreamSlot | None:
        """Return a further slot, or None if the library has too little room for one."""
        try:
            return self._add_slot(number)
        except StickyFault:
            raise
        except Exception:  # noqa: BLE001 (the library has no room for another handle)
            self._most_slots = len(self.slots)
            return None

    def _add_slot(self, number: int) -> StreamSlot:
        slot = self._new_slot(number)
        slot.lane, slot.number = self, number
        slot.handlers[CloseLane] = self._close
        slot.handlers[ReportTimes] = self._report_times
        self.slots.append(slot)
        return slot

    def _close(self, _message: CloseLane) -> None:
        """End the lane, because all its ops are answered.

        Other lanes need not look for them any more.
        """
        self._lanes.pop(self.index, None)

    def _kind_of(self, message: Message) -> str:
        """Return the type of a request, for messages."""
        if isinstance(message, (CallByTemplate, CallWithTemplate)):
            return self.templates.find(message).kind.__name__
        return type(message).__name__

    def _report_times(self, message: ReportTimes) -> None:
        """Begin or stop noting the times of ops."""
        if self._times is None:
            from ._times import LaneTimes  # most hosts never need it

            self._times = LaneTimes(self._kind_of)
        self._times.report(message)
        noted = message.wanted or message.ranges or message.correlated
        self._plans = self._may_plan and not noted

    # --- completing -------------------------------------------------------------------

    def mark(self) -> None:
        """Close the group of the last launches, even if it is not full."""
        self._mark(self._slot)
        if self._fills_streams and self._slot.in_flight:
            self._slot = self._next_slot()

    @property
    def answers(self) -> bool:
        """True if answers are waiting to be sent."""
        return bool(self._done or self._out)

    def _mark(self, slot: StreamSlot) -> None:
        if slot.unmarked:
            if slot.steps and slot.steps[-1][0] == len(slot.unmarked):
                _, token = slot.steps.pop()
            else:
                token = slot.stream.mark()
            group, slot.unmarked = slot.unmarked, []
            steps = _NO_STEPS
            if slot.steps:
                steps, slot.steps = slot.steps, deque()
            if token is None:
                if steps:
                    self._release(slot, steps)
                self._complete(group)
            else:
                if self._launcher.signals is not None:
                    self._launcher.expect(slot.stream, token)
                slot.in_flight.append(OpGroup(group, token, steps))

    def reap(self) -> bool:
        """Collect finished ops; return True if there are answers to send."""
        for slot in self.slots:
            in_flight = slot.in_flight
            if slot.unmarked and slot is not self._slot:
                self._mark(slot)
            while in_flight:
                group = in_flight[0]
                token = group.token
                if not slot.stream.finished(token):
                    if group.steps:
                        self._reap_steps(slot, group)
                    break
                in_flight.popleft()
                if self._launcher.signals is not None:
                    self._launcher.seen(token)
                slot.stream.release(token)
                if group.steps:
                    self._release(slot, group.steps)
                self._complete(group.ops)
        return bool(self._done or self._out)

    def _reap_steps(self, slot: StreamSlot, group: OpGroup) -> None:
        """Collect finished ops of a group that takes long."""
        if self._launcher.polls and time.perf_counter() - group.since < STEP_SECONDS:
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
        if self._times is not None:
            self._times.note(seq for seq, _ in group)
        launches, done = self.launches, self._done
        for seq, result in group:
            del launches[seq]
            if result is None:
                done.append(seq)
            else:
                self._answer(seq, result)

    def _answer(self, seq: int, result: Any) -> None:
        """Add an op's value to the answers that are sent next."""
        value = _read(seq, result) if type(result) is Later else result
        if value is None:
            self._done.append(seq)
            return
        self._tell_times()
        if type(value) is Failure:
            append_frame(self._out, value)
        else:
            try:
                reply = Value(seq, msgspec.Raw(encoder.encode(value)))
                append_frame(self._out, reply)
            except Exception as error:  # noqa: BLE001 (any value may come from a program)
                append_frame(self._out, pack_exception(seq, error))

    def flush(self) -> None:
        """Send the answers that there are."""
        if os.getpid() != self._launcher.process:
            os._exit(0)  # a function has forked; the parent sends the answers
        if self._done:
            if self._times is not None:
                self._tell_times()
            append_frame(self._out, self._done)
            self._done = []
        if self._out:
            self.sock.sendall(self._out)
            self._out.clear()
            if self._track_each_op:
                self._flushed = time.perf_counter()

    def _tell_times(self) -> None:
        """Add the times of the ops whose answers come next."""
        times = None if self._times is None else self._times.take()
        if times is not None:
            append_frame(self._out, times)

    def suspects(self) -> tuple[int, ...]:
        """Return the ops of the host that may have ended the context, see ``Fault``.

        Each stream executes its ops in order, so none but the oldest has begun. Other threads
        continue meanwhile.
        """
        ours: set[int] = set()
        others: set[int] = set()
        for lane in [*self._lanes.values()]:
            found = ours if lane._launcher is self._launcher else others
            found.add(lane._launcher.launching())
            for slot in [*lane.slots]:
                groups = [*slot.in_flight]
                found.update([seq for seq, _ in (groups[0].ops if groups else slot.unmarked)[:1]])
        return (*sorted(ours - {0}), *sorted(others - ours - {0}))

    def flush_prints(self) -> None:
        """Have the output of kernels, and failed asserts, written before the fault is reported."""
        flush = getattr(self._context, "flush", None)
        if flush is not None:
            flush()

    def report(self, fault: StickyFault, suspects: tuple[int, ...]) -> None:
        """Report to the program that the context has failed, probably because of an op."""
        reply = Fault(
            suspects=suspects,
            status=fault.status,
            status_name=fault.status_name,
            message=str(fault),
        )
        append_frame(self._out, reply)
        with contextlib.suppress(OSError):
            self.flush()


_read_entries: Final = msgspec.msgpack.Decoder(
    list[tuple[int, tuple[tuple[int, int], ...], msgspec.Raw]]
).decode


def _delay_of(index: int) -> Callable[[], None] | None:
    """Return the delay before each launch of a lane if ``testing.lane_delays`` is in force."""
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
