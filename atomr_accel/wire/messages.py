"""Messages of a lane's socket.

A lane's socket carries frames: four bytes of length, then msgpack. Requests are ``(sequence number,
dependencies, message)``; a reply is a list of the sequence numbers that are done, or a ``Value``,
``Failure`` or ``Fault``. Every request is answered by exactly one of these, unless its host dies.
``Times`` may come before.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, final

import msgspec

from .._errors import said_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEADER: Final = 4

PAYLOAD_BYTES: Final = 32 << 20
"""Largest request, and largest reply."""

FRAME_BYTES: Final = PAYLOAD_BYTES + (1 << 20)
"""Largest frame: it may hold some small requests before a large one."""

RECEIVED_BYTES: Final = 1 << 16
"""Taken from a lane's socket at a time. Python allocates as much for each, and from 128 KiB on
the C library maps and unmaps that: more system calls than the one that receives."""


class ProtocolViolation(Exception):
    """The other side has sent an invalid message, so nothing more from it can be trusted."""


def plain(value: Any) -> Any:
    """Return the number for a value that msgpack does not know.

    It is called for NumPy's scalars, and for addresses that become known only now
    (``memory.LateAddress``).
    """
    item = getattr(value, "item", None)
    if item is not None:
        return item()
    if not hasattr(value, "__index__"):
        raise TypeError(f"a message must hold plain values, not {said_of(value)}; convert it first")
    return operator.index(value)


encoder: Final = msgspec.msgpack.Encoder(enc_hook=plain)


def encode(value: object, name: str) -> bytes:
    """A part of a message, for the op ``name``; equal ones give the same bytes.

    Raises:
        ValueError: a number in it takes more than 64 bits.
    """
    try:
        return encoder.encode(value)
    except OverflowError:
        raise too_large(name) from None


def too_large(name: str) -> ValueError:
    """Return the error for whole numbers in a call of ``name`` that do not fit in a message."""
    return ValueError(
        f"{name}: a whole number among its arguments, or a size that follows from them, takes "
        "more than 64 bits; give smaller ones"
    )


Plain = str | int | float | bool | None
"""Types of the arguments of an error."""


class StickyFault(Exception):
    """The context is beyond repair: every further call would report this again.

    Attributes:
        status: the driver's status code.
        status_name: its name.
        seq: the op that has caused it; 0 if that is unknown.
    """

    def __init__(self, message: str, *, status: int, status_name: str, seq: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.status_name = status_name
        self.seq = seq


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what a lane executes: a tagged tuple of plain values.

    Buffers are addresses in the device's address space; the host alone knows pointers.
    """

    required: ClassVar[bool] = False
    """True if it is executed even if its caller does not wait any more for it."""

    everywhere: ClassVar[bool] = False
    """True if every stream of its lane executes it, because each may hold the object."""

    returns: ClassVar[Any] = None
    """The type of its value, which is checked on arrival; None if it has no value."""

    lasting: ClassVar[bool] = False
    """True if it prepares an object that depends on nothing else. A standby may prepare it, too."""

    bulky: ClassVar[bool] = False
    """True if it may be large. Large messages are encoded only shortly before they are sent."""

    waits: ClassVar[bool] = False
    """True if it may wait for other devices, or may take long because it calls functions of the
    program. Finished ops are then answered first."""

    pickles: ClassVar[bool] = False
    """True if its error may come as a pickle, because it calls functions of the program."""

    unchecked: ClassVar[bool] = False
    """True if no check of its caller keeps it in bounds, because it runs code of the program on the
    device, or takes indices from buffers. A fault is probably due to such an op."""


class Withdrawn(Message, frozen=True):
    """Stands for an op whose caller was cancelled before it was sent."""


WITHDRAWN: Final = Withdrawn()


CHUNK_BYTES: Final = 1 << 16
"""Bytes of a durable buffer that one digest covers. The last chunk may be shorter."""

PLACE: Final = 1 << 62
"""Placeholder for an address in a template; the address's number is added to it."""

_FILLED: Final = "filled in by calls"

Address: TypeAlias = Annotated[int, _FILLED]
"""An address in a message, possibly of scratch memory, or 0 for none.

Message types annotate all their addresses with it, also those inside tuples. Call templates have
places in these fields and nowhere else.
"""

Word: TypeAlias = Annotated[int, _FILLED]
"""Four bytes of a number in an expression, which calls with one signature may vary."""

MOST_TEMPLATES: Final = 1 << 12
"""Largest number of call templates that a lane keeps."""


_Filled = Annotated[int, msgspec.Meta(ge=0)]


def filled_fields(value: object) -> list[Any]:
    """Return the values of a message's ``Address`` and ``Word`` fields, in the order of encoding.

    Fields of structs inside the message are included.
    """
    found: list[Any] = []
    _collect(value, False, found)
    return found


def _collect(value: object, filled: bool, found: list[Any]) -> None:
    if isinstance(value, msgspec.Struct):
        declared = _declared(type(value))
        for name in value.__struct_fields__:
            _collect(getattr(value, name), name in declared, found)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect(each, filled, found)
    elif filled and value is not None:
        found.append(value)


@functools.cache
def _declared(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of a struct's fields whose annotations contain ``Address`` or ``Word``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _is_filled(hint))


def _is_filled(hint: object) -> bool:
    if _FILLED in getattr(hint, "__metadata__", ()):
        return True
    return any(map(_is_filled, typing.get_args(hint)))


class CallWithTemplate(Message, frozen=True, gc=False):
    """A call, and its message as a template for later calls that differ only in addresses.

    Attributes:
        number: the template's number for ``CallByTemplate``, below ``MOST_TEMPLATES``. It replaces
            an earlier template of that number.
        message: the encoded message, with ``PLACE | i`` for the i-th address.
        addresses: the addresses of this call, and the words of the numbers in its expressions.
    """

    number: int
    message: msgspec.Raw
    addresses: tuple[_Filled, ...]


class CallByTemplate(Message, frozen=True, gc=False):
    """A call by the template of an earlier one.

    Attributes:
        number: the template's number.
    """

    number: int
    addresses: tuple[_Filled, ...]


class RecordEvent(Message, frozen=True):
    """Record the time when all ops before it on its lane are done. All lanes accept it."""

    event: int


class ForgetEvent(Message, frozen=True):
    """Release what recording an event has made; any lane takes it."""

    event: int


class Elapsed(Message, frozen=True):
    """Milliseconds from one recorded event to another; any lane takes it."""

    returns: ClassVar[Any] = float

    start: int
    end: int


class ReportTimes(Message, frozen=True):
    """Begin or stop sending ``Times`` from here on. All lanes accept it.

    Attributes:
        wanted: whether to send them.
        ranges: whether to mark launches with NVTX ranges.
        correlated: whether to tell CUPTI the op of each launch.
    """

    required: ClassVar[bool] = True

    wanted: bool
    ranges: bool = False
    correlated: bool = False


class CloseLane(Message, frozen=True):
    """The last op of a lane, which ends with its socket then; no other lane waits for it."""

    required: ClassVar[bool] = True


# --- of the memory lane, which every host has: sizes and addresses in bytes ----------------


class Copy(Message, frozen=True):
    """Copy from one address to another."""

    to: Address
    source: Address
    nbytes: int


class Fill(Message, frozen=True):
    """Repeat an element, given as its bytes, all over a buffer."""

    address: Address
    nbytes: int
    element: bytes


class Prefetch(Message, frozen=True):
    """Move managed memory to the device, or to the host."""

    address: Address
    nbytes: int
    to_device: bool


class Advise(Message, frozen=True):
    """Advise the driver on the use of managed memory: one of ``ADVICE``."""

    address: Address
    nbytes: int
    advice: str


class Attach(Message, frozen=True):
    """Restrict access to a slab of managed memory: ``"global"``, ``"host"`` or ``"single"``."""

    address: Address
    to: str


class Unprotect(Message, frozen=True):
    """Let this lane write to a sealed slab, through a second mapping of its own.

    All other mappings stay read-only. Calls are counted: each needs a ``Protect``.
    """

    required: ClassVar[bool] = True

    slab: int


class Protect(Message, frozen=True):
    """End an ``Unprotect``, after all copies before it are done."""

    required: ClassVar[bool] = True

    slab: int


class Probe(Message, frozen=True):
    """Check the context by moving a pattern to the device and back."""

    returns: ClassVar[Any] = bytes

    pattern: bytes


# --- answers ------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, tag=True):
    """The value of an op that is done."""

    seq: int
    value: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The error of an op, after which the lane continues.

    Attributes:
        seq: the op.
        kind: the name of the exception's class.
        message: the text of the exception.
        fields: the attributes of an error of this package.
        traceback: the host's traceback.
        args: the arguments of a builtin exception, if it has more than its message.
        pickled: the pickled exception, if it is not sent by name.
    """

    seq: int
    kind: str
    message: str
    fields: dict[str, int | str]
    traceback: str
    args: tuple[Plain, ...] | None = None
    pickled: bytes = b""


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The context has ended for good, and this host sends nothing more.

    Attributes:
        suspects: the ops that may have ended it: the oldest unfinished one of each stream, and
            those that threads were launching. The ops of the thread that sends this come first;
            among these, and among the others, the oldest.
        status: the driver's status code.
        status_name: its name.
        message: the fault in words.
    """

    suspects: tuple[int, ...]
    status: int
    status_name: str
    message: str


class Times(msgspec.Struct, frozen=True, tag=True):
    """Times at which ops were launched, executed and found done. They come before their answers.

    A lane sends them if it was asked to (``ReportTimes``).

    Attributes:
        ops: six int64 for each op, in the machine's byte order. They are its sequence number, the
            time of its launch, the times when the device began and ended it (or zeros), and the
            time when its lane found it done. The last one identifies the stream. Times are
            nanoseconds of ``time.monotonic_ns``.
    """

    ops: bytes


Reply = list[int] | Value | Failure | Fault | Times


def append_frame(buffer: bytearray, payload: object) -> None:
    """Encode ``payload`` at the end of ``buffer``. If that fails, the buffer is unchanged."""
    start = len(buffer)
    begin = start + HEADER
    buffer += b"\0\0\0\0"
    try:
        encoder.encode_into(payload, buffer, begin)
        nbytes = len(buffer) - begin
        if nbytes > PAYLOAD_BYTES:
            raise ValueError(f"a message may take {PAYLOAD_BYTES} bytes, not {nbytes}")
    except BaseException:
        del buffer[start:]
        raise
    buffer[start:begin] = nbytes.to_bytes(HEADER, "little")


_COUNT: Final = 3
"""Bytes of a msgpack array's head with a count of 16 bits."""


@final
class MultiFrame:
    """A frame of many payloads at the end of a buffer, cheaper to read than a frame for each.

    Args:
        buffer: the buffer that the frame grows in. Until ``close`` it must not be used otherwise.
    """

    __slots__ = ("_buffer", "_start", "count")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._start = len(buffer)
        self.count: int = 0
        buffer += b"\0" * (HEADER + _COUNT)

    def append(self, payload: object) -> None:
        """Encode ``payload``. If that fails, the frame is unchanged."""
        buffer = self._buffer
        end = len(buffer)
        try:
            encoder.encode_into(payload, buffer, end)
            if len(buffer) - end > PAYLOAD_BYTES:
                raise ValueError(
                    f"a message may take {PAYLOAD_BYTES} bytes, not {len(buffer) - end}"
                )
        except BaseException:
            del buffer[end:]
            raise
        self.count += 1

    def extend(self, payloads: list[object]) -> None:
        """Encode several small payloads in less time. If that fails, the frame is unchanged."""
        buffer = self._buffer
        end = len(buffer)
        try:
            encoder.encode_into(payloads, buffer, end)
            head = 1 if buffer[end] < 0xDC else _COUNT  # of the list, which is the frame's
            if len(buffer) - end > PAYLOAD_BYTES:
                raise ValueError(f"messages of {len(buffer) - end} bytes")
        except BaseException:
            del buffer[end:]
            raise
        del buffer[end : end + head]
        self.count += len(payloads)

    def close(self) -> None:
        """Write the heads."""
        nbytes = len(self._buffer) - self._start - HEADER
        heads = nbytes.to_bytes(HEADER, "little") + b"\xdc" + self.count.to_bytes(2, "big")
        self._buffer[self._start : self._start + len(heads)] = heads


class Frames:
    """Cuts a stream of bytes into frames.

    Args:
        most: largest size of a frame in bytes.

    Attributes:
        cut: number of frames that have arrived in parts, which identifies an incomplete one.
        rest: the bytes that have arrived of an incomplete frame.
    """

    __slots__ = ("_most", "_ready", "_violation", "_wanted", "cut", "rest")

    def __init__(self, most: int = FRAME_BYTES) -> None:
        self._most = most
        # A frame that is not complete is collected in one place: each byte is copied once.
        self.rest: bytearray = bytearray()
        self._wanted = HEADER
        self._ready: deque[memoryview] = deque()
        self._violation: str | None = None
        self.cut: int = 0

    def feed(self, data: bytes | bytearray) -> Iterable[memoryview]:
        """Return the frames that ``data`` completes.

        The caller may feed more data between two frames. Frames still come in order, each once.

        Raises:
            ProtocolViolation: a frame is announced that is larger than the limit.
        """
        if self.rest:
            self.rest += data
            if len(self.rest) < self._wanted:
                return self._whole()
            data, self.rest = self.rest, bytearray()
        elif (
            not self._ready
            and len(data) == HEADER + int.from_bytes(data[:HEADER], "little")
            and len(data) <= HEADER + self._most
        ):
            return (memoryview(data)[HEADER:],)  # one that is complete, as most are
        self._cut(data)
        return self._whole()

    def _whole(self) -> Iterator[memoryview]:
        while self._ready:
            yield self._ready.popleft()
        if self._violation is not None:
            raise ProtocolViolation(self._violation)

    def _cut(self, data: bytes | bytearray) -> None:
        """Cut off the complete frames and keep the rest, before any frame is returned."""
        view = memoryview(data)
        at, end = 0, len(data)
        while at + HEADER <= end:
            nbytes = int.from_bytes(view[at : at + HEADER], "little")
            if nbytes > self._most:
                self._violation = (
                    f"a frame of {nbytes} bytes was announced, of at most {self._most}"
                )
                return
            stop = at + HEADER + nbytes
            if stop > end:
                self._wanted = stop - at
                break
            self._ready.append(view[at + HEADER : stop])
            at = stop
        else:
            self._wanted = HEADER
        if at < end:
            self.rest += view[at:]
            self.cut += 1
