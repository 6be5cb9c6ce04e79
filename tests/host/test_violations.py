"""Violations of the lane protocol by either side, and thousands of malformed frames."""

from __future__ import annotations

import errno
import os
import pickle
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, ClassVar, Final

import cloudpickle
import msgspec
import pytest

from atomr_accel import RemoteError
from atomr_accel.host._lane import Lane
from atomr_accel.host._launcher import Launcher
from atomr_accel.host._slots import StreamSlot
from atomr_accel.host.completion import PolledCompletion
from atomr_accel.lanes import Op, Port, fail_some
from atomr_accel.wire import (
    Failure,
    Fault,
    Frames,
    Message,
    MultiFrame,
    ProtocolViolation,
    Times,
    Value,
    append_frame,
    encoder,
    unpack_exception,
)
from atomr_accel.wire.failures import pack_exception
from atomr_accel.wire.messages import FRAME_BYTES, PAYLOAD_BYTES, Withdrawn

from ..fakes.lanes import FakeDevice, FakeExecutor, FakeStream, Work, new_record


def frame_of(*payloads: object) -> bytes:
    buffer = bytearray()
    for payload in payloads:
        append_frame(buffer, payload)
    return bytes(buffer)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


# --- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [FRAME_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_that_is_too_large_is_refused_when_it_is_announced(announced: int) -> None:
    frames = Frames()
    first, rest = frame_of("first"), announced.to_bytes(4, "little") + b"x" * 1000
    arrived = []
    with pytest.raises(ProtocolViolation, match=f"{announced} bytes"):
        for frame in frames.feed(first + rest):
            arrived.append(msgspec.msgpack.decode(frame))  # noqa: PERF401 (it raises)
    assert arrived == ["first"]


def test_oversized_frame_is_not_sent() -> None:
    buffer = bytearray(b"before")
    with pytest.raises(ValueError, match=f"may take {PAYLOAD_BYTES} bytes"):
        append_frame(buffer, bytes(PAYLOAD_BYTES))
    assert buffer == b"before"
    bunch = MultiFrame(buffer)
    bunch.append("small")
    with pytest.raises(ValueError, match="may take"):
        bunch.append(bytes(PAYLOAD_BYTES))
    bunch.append("another")
    bunch.close()
    [frame] = Frames().feed(buffer[6:])
    assert msgspec.msgpack.decode(frame) == ["small", "another"]


class Counting(bytearray):
    """Counts the bytes that are copied to it."""

    copied: ClassVar[int] = 0

    def __iadd__(self, more: Any) -> Any:  # type: ignore[misc]
        Counting.copied += len(more)
        return super().__iadd__(more)


def test_each_byte_of_a_large_frame_is_collected_once() -> None:
    whole = frame_of(bytes(4 << 20))
    frames = Frames()
    frames.rest = Counting()
    Counting.copied = 0
    arrived = []
    for at in range(0, len(whole), 1 << 16):
        arrived += list(frames.feed(whole[at : at + (1 << 16)]))
    assert [len(frame) for frame in arrived] == [len(whole) - 4]
    assert Counting.copied == len(whole)


# --- errors -------------------------------------------------------------------------------------


def failure(**changes: Any) -> Failure:
    plain = {"seq": 1, "kind": "ValueError", "message": "m", "fields": {}, "traceback": "t"}
    return Failure(**{**plain, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "eval", "message": "1/0"},
        {"kind": "exec"},
        {"kind": "print"},
        {"kind": "SystemExit"},
        {"kind": "KeyboardInterrupt"},
        {"kind": "StopIteration"},
        {"kind": "NoSuchError"},
        {"kind": "annotations"},
        {"kind": "Any"},
        {"kind": "UnicodeDecodeError"},
        {"kind": "ValueError", "fields": {"name": "x"}},
        {"kind": "LibraryError"},
        {"kind": "OutOfMemory", "fields": {"requested": 1, "surplus": 2}},
        {"pickled": pickle.dumps(ValueError("x"))},
    ],
)
def test_only_errors_of_the_table_come_by_name(changes: Any) -> None:
    with pytest.raises(ProtocolViolation):
        unpack_exception(failure(**changes))


class Hostile(Exception):
    """Raises from whatever is asked of it."""

    def __init__(self, raises: type[BaseException]) -> None:
        super().__init__(1, 2)
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises("in str")

    def __reduce__(self) -> Any:
        raise self.raises("in reduce")


class Own(Exception):
    """Known here only."""


class Bare(BaseException):
    """No Exception at all."""


@pytest.mark.parametrize("pickles", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        Hostile(ValueError),
        Hostile(KeyboardInterrupt),
        Hostile(SystemExit),
        Bare("bare"),
        SystemExit(3),
        GeneratorExit(),
        StopIteration(3),
        StopAsyncIteration(),
        RemoteError("odd", type_name=object()),  # type: ignore[arg-type]
        RemoteError("wide", type_name="x" * (2 << 20)),
        BaseExceptionGroup("group", [Bare("inside")]),
    ],
)
def test_any_exception_is_an_answer(error: BaseException, *, pickles: bool) -> None:
    packed = pack_exception(1, error, pickles=pickles)
    assert len(frame_of(packed)) < 3 << 20
    arrived = unpack_exception(packed, pickles=pickles)
    assert isinstance(arrived, RemoteError)
    if type(error) is not RemoteError:
        assert arrived.type_name == type(error).__name__


def test_errors_of_other_classes_arrive_as_themselves_only_where_pickles_are_read() -> None:
    for error in (Own("x"), KeyError((1, 2)), UnicodeDecodeError("utf-8", b"x", 0, 1, "why")):
        arrived = unpack_exception(pack_exception(1, error))
        assert isinstance(arrived, RemoteError)
        assert str(arrived) == f"{type(error).__name__}: {error}"
        arrived = unpack_exception(pack_exception(1, error, pickles=True), pickles=True)
        assert type(arrived) is type(error)
        assert arrived.args == error.args


@pytest.mark.parametrize(
    "error",
    [
        OSError(24, "Too many open files"),
        FileNotFoundError(2, "No such file", "/nowhere"),
        KeyError(3),
        KeyError(None),
        ValueError(),
        ValueError("a", 1, 2.5, True),
    ],
)
def test_builtin_errors_of_plain_arguments_need_no_pickle(error: Exception) -> None:
    arrived = unpack_exception(pack_exception(1, error))
    assert type(arrived) is type(error)
    assert (arrived.args, str(arrived)) == (error.args, str(error))


def test_an_error_does_not_take_more_than_a_frame() -> None:
    packed = pack_exception(1, ValueError("x" * (80 << 20)), pickles=True)
    arrived = unpack_exception(packed, pickles=True)
    assert isinstance(arrived, (ValueError, RemoteError))
    assert len(str(arrived)) < 1 << 20
    assert "more characters" in str(arrived)


# --- what a host sends --------------------------------------------------------------------------


class Ask(Message, frozen=True):
    """Returns numbers."""

    returns: ClassVar[Any] = list[int]


class Do(Message, frozen=True):
    """Returns nothing."""


class Call(Message, frozen=True):
    """Calls a function of the program's."""

    pickles: ClassVar[bool] = True


class Sock:
    """A socket that loses sent data, and receives data that the test sets."""

    def __init__(self) -> None:
        self.incoming: list[bytes] = []

    def send(self, data: bytearray, _flags: int = 0) -> int:
        return len(data)

    def recv(self, _size: int, _flags: int = 0) -> bytes:
        if not self.incoming:
            raise BlockingIOError
        return self.incoming.pop(0)


class Recording:
    """Two ports whose sockets a test plays; the second has op 5."""

    def __init__(self) -> None:
        self.in_flight: dict[int, Op] = {}
        self.answers: Counter[int] = Counter()
        self.faults: list[Fault] = []
        self.sock = Sock()
        self.ports = [Port("lane", 0, self.sock, self.in_flight)]  # type: ignore[arg-type]
        self.ports.append(Port("other", 1, Sock(), self.in_flight))  # type: ignore[arg-type]
        for port in self.ports:
            port._on_fault = self.faults.append
        for seq, message in enumerate((Do(), Do(), Ask(), Call(), Do()), 1):
            self._submit(self.ports[seq == 5], seq, message)
        self.ports[0].send()

    def _submit(self, port: Port, seq: int, message: Message) -> None:
        op = Op(port, seq, f"op{seq}", message, (), ())
        op.when_answered(lambda: self.answers.update([seq]))
        port.submit(op)

    def close(self) -> None:
        """Answer the remaining ops, as the context does."""
        for port in self.ports:
            port.end(lambda op: RuntimeError(op.name))
        while self.in_flight:
            fail_some(self.in_flight, lambda op: RuntimeError(op.name))

    def receive(self, data: bytes) -> None:
        self.sock.incoming.append(data)
        self.ports[0].poll_replies()
        error = self.ports[0]._failure
        assert error is None, error


def rows(*ops: tuple[int, ...]) -> bytes:
    return b"".join(number.to_bytes(8, sys.byteorder, signed=True) for op in ops for number in op)


EVERY_KIND: Final = (
    [1],
    [2, 4],
    Value(3, msgspec.Raw(encoder.encode([1, 2]))),
    failure(seq=4),
    pack_exception(4, KeyError(2), pickles=True),
    pack_exception(1, RemoteError("m", type_name="T")),
    Times(rows((1, 1, 2, 3, 4, 0), (2, 1, 0, 0, 5, -7), (4, -1, 2, 3, 4, 0))),
)


def test_valid_frame_is_accepted() -> None:
    with closing(Recording()) as program:
        program.receive(frame_of([1, 2], EVERY_KIND[2], EVERY_KIND[4]))
        assert program.answers == {1: 1, 2: 1, 3: 1, 4: 1}
        assert program.faults == []


WRONG: Final[dict[str, bytes]] = {
    "an unknown op": frame_of([987654]),
    "a negative op": frame_of([-1]),
    "an op of another lane": frame_of([5]),
    "an op twice": frame_of([1, 1]),
    "an op twice in two frames": frame_of([1], [1]),
    "a value of an unknown op": frame_of(Value(9, msgspec.Raw(b"\xc0"))),
    "a failure of an unknown op": frame_of(failure(seq=9)),
    "a failure of another lane's op": frame_of(failure(seq=5)),
    "times of an unknown op": frame_of(Times(rows((9, 1, 2, 3, 4, 0)))),
    "times of another lane's op": frame_of(Times(rows((5, 1, 2, 3, 4, 0)))),
    "times that are cut": frame_of(Times(rows((1, 1, 2, 3, 4)))),
    "times that are no numbers": frame_of(Times(b"123")),
    "no msgpack": framed(b"\xc1\xc1"),
    "an unknown reply": frame_of({"type": "Nonsense"}),
    "numbers that are none": frame_of([1.5]),
    "no frame": framed(b""),
    "a frame of 4 GiB": b"\xff\xff\xff\xff" + b"x" * 1000,
    "nests": framed(b"\x91" * 100_000),
    "a value that nests": framed(b"\x83\xa4type\xa5Value\xa3seq\x03\xa5value" + b"\x91" * 100_000),
    "text that is none": framed(b"\xa2\xff\xff"),
    "a value where none is returned": frame_of(Value(1, msgspec.Raw(b"\x01"))),
    "no value where one is returned": frame_of([3]),
    "a value of another type": frame_of(Value(3, msgspec.Raw(b"\xa1x"))),
    "code by name": frame_of(failure(seq=4, kind="eval", message="1")),
    "a pickle where none is read": frame_of(
        failure(seq=1, pickled=cloudpickle.dumps(ValueError()))
    ),
    "fields that do not fit": frame_of(failure(seq=4, kind="OutOfMemory", fields={"free": "x"})),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_invalid_frame_of_a_host_is_a_fault(data: bytes) -> None:
    with closing(Recording()) as program:
        program.receive(data)
        [fault] = program.faults
        assert (fault.status, fault.status_name) == (errno.EPROTO, "protocol violation")
        assert "broke the protocol of lane lane" in fault.message
        program.receive(frame_of([2]))  # nothing counts any more
        assert program.answers[2] == 0


def mutated(numbers: random.Random, data: bytes) -> bytes:
    """Something like ``data``."""
    changed = bytearray(data)
    for _ in range(numbers.randint(1, 3)):
        at = numbers.randrange(len(changed) + 1)
        match numbers.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([numbers.randrange(256)])
            case 1:
                del changed[at : at + numbers.randint(1, 4)]
            case 2:
                changed[at:at] = numbers.randbytes(numbers.randint(1, 8))
            case 3:
                changed += changed[: numbers.randint(0, len(changed))]
            case 4:
                changed[at:at] = numbers.choice((b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xcb\x7f\xf8"))
            case _:
                changed = bytearray(framed(bytes(changed[4:])))  # whole again
    return bytes(changed)


def rubbish(seed: int, whole: Iterable[bytes]) -> Callable[[], bytes]:
    numbers, frames = random.Random(seed), list(whole)

    def draw() -> bytes:
        if not numbers.randrange(10):
            return framed(numbers.randbytes(numbers.randint(0, 40)))
        return mutated(numbers, numbers.choice(frames))

    return draw


@pytest.mark.slow
def test_ten_thousand_wrong_frames_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(cloudpickle, "loads", read.append)
    whole = [frame_of(kind) for kind in EVERY_KIND]
    whole += [frame_of([2], kind) for kind in EVERY_KIND]
    whole.append(frame_of(Fault((1,), 700, "ILLEGAL", "why")))
    draw = rubbish(1, whole)
    program, ends = Recording(), 0
    for _ in range(10_000):
        program.receive(draw())
        assert max(program.answers.values(), default=0) <= 1
        assert program.answers.keys() | program.in_flight.keys() == {1, 2, 3, 4, 5}
        assert program.answers[5] == 0, "another lane's op was answered"
        if program.ports[0]._ended or program.ports[0]._frames_in.rest:
            assert len(program.faults) <= 1
            ends += len(program.faults)
            program.close()
            assert program.answers == dict.fromkeys(range(1, 6), 1)
            program = Recording()
        elif not program.in_flight.keys() - {5}:
            program.close()
            program = Recording()
    program.close()
    assert ends > 5_000
    assert len(read) < 1_000  # of op 4 alone, which calls a function of the program's


# --- what a program sends -----------------------------------------------------------------------


def serve(data: bytes) -> tuple[list[Any], FakeDevice]:
    """Have a lane read ``data`` and then the end; return its answers."""
    ours, theirs = socket.socketpair()
    device: Any = FakeDevice()
    lanes: dict[int, Lane] = {}
    launcher = Launcher(PolledCompletion(), idle_spin=False, record=new_record())

    def new_slot(_number: int) -> StreamSlot:
        stream = FakeStream(device)
        device.streams.append(stream)
        executor: Any = FakeExecutor(stream, lambda _op: False, most=4, close_fails=False)
        return StreamSlot(device, stream, executor)

    ours.sendall(data)
    ours.shutdown(socket.SHUT_WR)

    def make() -> Lane:
        lane = lanes[0] = Lane(0, theirs, lanes, launcher)
        lane.open(device, new_slot, [None])
        return lane

    launcher.open(make)
    launcher.run()
    with ours:
        answered = ours.recv(1 << 20)
    return [msgspec.msgpack.decode(frame) for frame in Frames().feed(answered)], device


def requests(*entries: tuple[int, list[tuple[int, int]], Message]) -> bytes:
    buffer = bytearray()
    bunch = MultiFrame(buffer)
    for entry in entries:
        bunch.append(entry)
    bunch.close()
    return bytes(buffer)


NO_REQUESTS: Final[dict[str, bytes]] = {
    "no msgpack": framed(b"\xc1"),
    "no list": frame_of("text"),
    "no request": frame_of([1, 2]),
    "an op twice": requests((1, [], Work(1)), (1, [], Work(1))),
    "an older op": requests((2, [], Work(2)), (1, [], Work(1))),
    "a frame of 4 GiB": b"\xff\xff\xff\xff" + b"x" * 1000,
    "nests": framed(b"\x91" * 100_000),
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_a_lane_ends_over_what_no_program_sends(data: bytes) -> None:
    answers, device = serve(data)
    assert answers[-1]["type"] == "Fault"
    assert answers[-1]["status_name"] == "protocol violation"
    assert len(device.launched()) <= 1


def test_op_that_depends_on_a_closed_lane_is_launched() -> None:
    _, device = serve(requests((7, [(5, 3)], Work(7))))
    assert device.launched() == [7]


def test_ten_thousand_wrong_frames_of_a_program() -> None:
    draw = rubbish(
        2,
        [
            requests((1, [], Work(1)), (2, [(0, 1)], Work(2, [1]))),
            requests((3, [(0, 2), (4, 2)], Work(3)), (4, [], Withdrawn())),
            requests((5, [], Work(5, None, 1)), (6, [], Work(6, None, 1))),
        ],
    )
    files, ends = len(os.listdir("/proc/self/fd")), 0  # noqa: PTH208 (names, not paths)
    for _ in range(2_000):
        answers, _ = serve(b"".join(draw() for _ in range(5)))
        ends += any(isinstance(answer, dict) and answer["type"] == "Fault" for answer in answers)
    assert ends > 1_000
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208 (as above)
