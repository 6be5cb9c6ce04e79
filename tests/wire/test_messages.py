"""Frames, and exceptions that cross from the host to the program."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import OutOfMemory, RemoteError, _errors
from atomr_accel._errors import AccelError
from atomr_accel.lanes import describe_exit
from atomr_accel.wire import Failure, Frames, Reply, append_frame, unpack_exception
from atomr_accel.wire.failures import as_out_of_memory, pack_exception
from atomr_accel.wire.messages import encode

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@given(payloads=st.lists(plain, max_size=8), cuts=st.lists(st.integers(1, 50), min_size=1))
def test_frames_arrive_whole_however_they_are_split(payloads: list[Any], cuts: list[int]) -> None:
    buffer = bytearray()
    for payload in payloads:
        append_frame(buffer, payload)
    frames = Frames()
    arrived = []
    data = bytes(buffer)
    while data:
        cuts = cuts[1:] + cuts[:1]
        piece, data = data[: cuts[0]], data[cuts[0] :]
        arrived += [msgspec.msgpack.decode(frame) for frame in frames.feed(piece)]
    assert arrived == payloads


@given(
    payloads=st.lists(plain, max_size=8),
    cuts=st.lists(st.integers(1, 50), min_size=1),
    depth=st.integers(1, 4),
)
def test_frames_keep_their_order_when_more_is_fed_between_two_of_them(
    payloads: list[Any], cuts: list[int], depth: int
) -> None:
    """An answer makes the program ask, which receives frames that arrived meanwhile."""
    buffer = bytearray()
    for payload in payloads:
        append_frame(buffer, payload)
    frames, pieces, at = Frames(), [], 0
    for number in range(len(buffer)):
        if at < len(buffer):
            length = cuts[number % len(cuts)]
            pieces.append(bytes(buffer[at : at + length]))
            at += length
    arrived: list[Any] = []

    def receive(deeper: int) -> None:
        if pieces:
            for frame in frames.feed(pieces.pop(0)):
                arrived.append(msgspec.msgpack.decode(frame))
                if deeper:
                    receive(deeper - 1)

    while pieces:
        receive(depth)
    assert arrived == payloads


def test_numpy_scalars_and_indices_travel_as_plain_numbers() -> None:
    class Late:
        def __index__(self) -> int:
            return 12

    buffer = bytearray()
    append_frame(buffer, [np.float32(1.5), np.int64(-3), np.bool_(True), Late()])
    [frame] = Frames().feed(bytes(buffer))
    assert msgspec.msgpack.decode(frame) == [1.5, -3, True, 12]


@pytest.mark.parametrize("payload", [object(), [1, object()], {1: {2: 3j}}, "\ud800", 2**70])
def test_unencodable_message_leaves_nothing_in_the_buffer(payload: object) -> None:
    buffer = bytearray()
    append_frame(buffer, "before")
    length = len(buffer)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        append_frame(buffer, payload)
    append_frame(buffer, "after")
    decoded = [msgspec.msgpack.decode(frame) for frame in Frames().feed(bytes(buffer))]
    assert decoded == ["before", "after"]
    assert len(buffer) == length + 4 + 6


# --- exceptions ----------------------------------------------------------------------------


def travel(error: BaseException, *, pickles: bool = True) -> Exception:
    """Return the program's exception for one of its host, as its own functions raise it."""
    buffer = bytearray()
    append_frame(buffer, pack_exception(7, error, pickles=pickles))
    [frame] = Frames().feed(bytes(buffer))
    reply = msgspec.msgpack.decode(frame, type=Reply)
    assert isinstance(reply, Failure)
    assert reply.seq == 7
    return unpack_exception(reply, pickles=pickles)


OURS = [
    value
    for value in vars(_errors).values()
    if inspect.isclass(value) and issubclass(value, AccelError)
]
FIELDS: dict[str, Any] = {
    "library": "cublas",
    "generation": 3,
    "status": -9,
    "status_name": "NAME",
    "op": "blas.gemm",
    "requested": 1 << 40,
    "free": 5,
    "in_use": 6,
    "largest_free": 7,
    "call": "cublasGemmEx_64",
    "log": "kernel.cu(1): error",
    "type_name": "Peculiar",
    "index": 3,
    "info": -2,
    "rank": 1,
    "epoch": 2,
}


@pytest.mark.parametrize("cls", OURS)
def test_our_errors_keep_their_attributes(cls: type[AccelError]) -> None:
    wanted = {name: FIELDS[name] for name in cls._fields}
    error = travel(cls("what happened", **wanted))
    assert type(error) is cls
    assert str(error) == "what happened"
    assert error.fields() == wanted


def every_builtin() -> list[type[Exception]]:
    import builtins

    found = []
    for value in vars(builtins).values():
        if inspect.isclass(value) and issubclass(value, Exception):
            try:
                value("text")
            except TypeError:
                continue  # these take more, and are pickled
            found.append(value)
    return [cls for cls in dict.fromkeys(found) if cls not in (StopIteration, StopAsyncIteration)]


@settings(max_examples=300)
@given(cls=st.sampled_from(every_builtin()), text=st.text())
def test_builtin_exceptions_arrive_as_themselves(cls: type[Exception], text: str) -> None:
    error = travel(cls(text))
    assert type(error) is cls
    assert error.args == (text,)
    assert any("In the host" in note for note in error.__notes__)


args = st.lists(
    st.text() | st.integers() | st.none() | st.binary() | st.tuples(st.integers()), max_size=3
)


@given(args=args)
def test_any_arguments_arrive(args: list[Any]) -> None:
    error = travel(ValueError(*args))
    assert isinstance(error, ValueError)
    assert error.args == tuple(args)


class Theirs(AccelError):
    """A third party's error below ours."""


class LibraryError(Exception):
    """Nothing to do with ours of that name."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        return LibraryError, (self.code,)


def test_errors_that_are_called_like_ours_stay_what_they_are() -> None:
    error = travel(LibraryError(5))
    assert type(error).__name__ == "LibraryError"
    assert not isinstance(error, AccelError)
    assert getattr(error, "code", None) == 5
    assert isinstance(travel(Theirs("x")), AccelError)


class Locked(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("no")


class Broken(Exception):
    """Can be pickled and not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


@pytest.mark.parametrize("error", [Locked("secret"), Broken(1, 2)])
def test_unpicklable_value_is_named(error: Exception) -> None:
    arrived = travel(error)
    assert isinstance(arrived, RemoteError)
    assert arrived.type_name == type(error).__name__
    assert str(arrived) == f"{type(error).__name__}: {error}"
    assert arrived.__notes__


@pytest.mark.parametrize("code", [*range(-64, 0), 0, 1, 255])
def test_every_exit_code_can_be_told(code: int) -> None:
    assert describe_exit(code)


def test_exit_codes_in_words() -> None:
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-40) == "killed by signal 40"
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(None) == "its lane ended"


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (OSError(24, "Too many open files"), True),
        (OSError(2, "No such file"), False),
        (MemoryError("Unable to allocate"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (ImportError("libx.so: cannot allocate memory in static TLS block"), False),
        (ModuleNotFoundError("No module named 'x'"), False),
        (ValueError("no"), False),
    ],
)
def test_memory_error_of_an_op_is_out_of_memory(error: Exception, short: bool) -> None:
    told = as_out_of_memory(error, "the host")
    assert isinstance(told, OutOfMemory) is short
    assert told is error or told.__cause__ is error


@pytest.mark.parametrize("value", [np.dtype("float32"), object(), print])
def test_a_message_with_another_object_names_its_type(value: object) -> None:
    with pytest.raises(TypeError, match=f"plain values, not {type(value).__name__}; convert"):
        encode(value, "op")
