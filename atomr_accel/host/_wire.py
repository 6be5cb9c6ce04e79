"""What travels between the program and a host.

A lane's socket carries frames: four bytes of length, then msgpack. Requests are
``(sequence number, dependencies, message)``; a reply is a list of the sequence numbers
that are done, or a ``Value``, ``Failure`` or ``Fault``. Every request is named by exactly
one reply, unless its host dies.

The control socket carries one request and one reply at a time, with descriptors.
"""

from __future__ import annotations

import builtins
import operator
import traceback
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import cloudpickle
import msgspec

from .. import _errors
from .._errors import AccelError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = 4


def _plain(value: Any) -> Any:
    """What stands for a value that msgpack does not know.

    NumPy's scalars, and addresses that become known only now (``memory.LateAddress``).
    """
    item = getattr(value, "item", None)
    return operator.index(value) if item is None else item()


encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what a lane executes: a tagged tuple of plain values.

    Buffers are addresses in the device's address space; the host alone knows pointers.
    """

    required: ClassVar[bool] = False
    """Whether it is executed even if nobody waits for it any more."""

    everywhere: ClassVar[bool] = False
    """Whether every way of its lane executes it, because each may hold what it is about."""


class Withdrawn(Message, frozen=True):
    """An op whose caller was cancelled before it was sent: only its place is left."""


WITHDRAWN: Final = Withdrawn()


class RecordEvent(Message, frozen=True):
    """Note the time when all ops before it on its lane are done; any lane takes it."""

    event: int


class ForgetEvent(Message, frozen=True):
    """Release what recording an event has made; any lane takes it."""

    event: int


class Elapsed(Message, frozen=True):
    """Milliseconds from one recorded event to another; any lane takes it."""

    start: int
    end: int


class Value(msgspec.Struct, frozen=True, tag=True):
    """An op is done and returns something."""

    seq: int
    value: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag=True):
    """An op failed; the lane goes on."""

    seq: int
    kind: str
    message: str
    fields: dict[str, Any]
    traceback: str
    pickled: bytes = b""


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The context is gone for good; nothing more comes from this host."""

    seq: int
    status: int
    status_name: str
    message: str


Reply = list[int] | Value | Failure | Fault


def append_frame(buffer: bytearray, payload: object) -> None:
    """Encode ``payload`` at the end of ``buffer``."""
    start = len(buffer)
    buffer += b"\0\0\0\0"
    try:
        encoder.encode_into(payload, buffer, start + HEADER)
    except BaseException:
        del buffer[start:]
        raise
    buffer[start : start + HEADER] = (len(buffer) - start - HEADER).to_bytes(HEADER, "little")


_COUNT: Final = 3
"""Bytes of a msgpack array's head with a count of 16 bits."""


@final
class Bunch:
    """A frame of many payloads at the end of a buffer: cheaper to read than a frame of each.

    Args:
        buffer: where it grows; until ``close`` nobody else writes there.
    """

    __slots__ = ("_buffer", "_start", "count")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._start = len(buffer)
        self.count = 0
        buffer += b"\0" * (HEADER + _COUNT)

    def append(self, payload: object) -> None:
        """Encode ``payload``; if that fails the bunch is as it was."""
        buffer = self._buffer
        end = len(buffer)
        try:
            encoder.encode_into(payload, buffer, end)
        except BaseException:
            del buffer[end:]
            raise
        self.count += 1

    def close(self) -> None:
        """Write the heads."""
        nbytes = len(self._buffer) - self._start - HEADER
        heads = nbytes.to_bytes(HEADER, "little") + b"\xdc" + self.count.to_bytes(2, "big")
        self._buffer[self._start : self._start + len(heads)] = heads


class Frames:
    """Cuts a stream of bytes into frames, however it arrives."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The frames that ``data`` completes."""
        if self._rest:
            data = self._rest + data
        view = memoryview(data)
        at, end = 0, len(data)
        while at + HEADER <= end:
            stop = at + HEADER + int.from_bytes(view[at : at + HEADER], "little")
            if stop > end:
                break
            yield view[at + HEADER : stop]
            at = stop
        self._rest = data[at:]


def pack_exception(seq: int, error: BaseException) -> Failure:
    """An exception of the host as a reply."""
    kind, message = type(error).__name__, _text_of(error)
    fields, pickled = {}, b""
    if not _is_plain(error):
        try:
            pickled = cloudpickle.dumps(error)
        except Exception:  # noqa: BLE001 - it cannot travel
            kind, message, fields = "RemoteError", f"{kind}: {message}", {"type_name": kind}
    elif isinstance(error, AccelError):
        fields = error.fields()
    return Failure(
        seq=seq,
        kind=kind,
        message=message,
        fields=fields,
        traceback=_encodable("".join(traceback.format_exception(error))),
        pickled=pickled,
    )


def _is_plain(error: BaseException) -> bool:
    """Whether its type and message, and our own errors' fields, are all there is to it."""
    kind = type(error)
    home = _errors if isinstance(error, AccelError) else builtins
    return getattr(home, kind.__name__, None) is kind and [*map(type, error.args)] == [str]


def _text_of(error: BaseException) -> str:
    try:
        return _encodable(str(error.args[0]) if error.args else str(error))
    except Exception as broken:  # noqa: BLE001 (what it raises is up to the program)
        return f"(no message: {type(broken).__name__} in __str__)"


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def unpack_exception(failure: Failure) -> Exception:
    """The exception that a reply stands for, with the host's traceback as a note.

    An error of this package comes back as itself, a builtin one by name, any other by
    pickle: the host is this program's own child and runs this program's own functions.
    """
    error: Exception
    ours = getattr(_errors, failure.kind, None)
    if failure.pickled:
        error = _unpickle(failure)
    elif ours is not None:
        error = ours(failure.message, **failure.fields)
    else:
        error = getattr(builtins, failure.kind)(failure.message)
    if failure.pickled or ours in (None, RemoteError):
        error.add_note(f"In the host:\n{failure.traceback}")
    return error


def _unpickle(failure: Failure) -> Exception:
    try:
        error = cloudpickle.loads(failure.pickled)
    except Exception:  # noqa: BLE001 - its class may exist only in the host
        error = None
    if isinstance(error, Exception):
        return error
    return RemoteError(f"{failure.kind}: {failure.message}", type_name=failure.kind)


# --- control ---------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag=True):
    """First request: take the device. The descriptor of the staging memory comes along.

    Its address begins at 0: no slab has that number.
    """

    backend: str
    index: int
    staging_bytes: int
    plan: StreamPlan


class StreamPlan(msgspec.Struct, frozen=True):
    """How lanes get their streams and learn what is done.

    Attributes:
        strategy: ``"per_actor"``: each lane has streams of its own; ``"pooled"``: lanes
            share ``pool`` streams; ``"single"``: all share one.
        pool: how many streams a pool has.
        priorities: stream priority by lane name; lower runs first, 0 is the default.
        completion: ``"polled"``, ``"blocking"``, ``"hybrid"`` or ``"callback"``.
        group: how many launches may share one completion token, and so one answer.
        stepwise: whether ops of a group that takes long are answered one by one.
        deterministic: whether results must not depend on what else is in flight, nor on time.
    """

    strategy: str = "per_actor"
    pool: int = 4
    priorities: dict[str, int] = {}
    completion: str = "hybrid"
    group: int = 8
    stepwise: bool = False
    deterministic: bool = False


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The device is there."""

    info: DeviceInfo


class Preload(msgspec.Struct, frozen=True, tag=True):
    """Import classes, and call their ``preload`` where they have one."""

    references: list[str]


class OpenLane(msgspec.Struct, frozen=True, tag=True):
    """Start a lane on the socket that comes along.

    Attributes:
        name: the lane's name.
        index: its number in dependencies.
        executor: ``module:class`` of what executes its messages.
        ways: how many of them may run side by side.
    """

    name: str
    index: int
    executor: str
    ways: int


class CreateSlab(msgspec.Struct, frozen=True, tag=True):
    """Allocate and map a slab; the reply carries its descriptor."""

    id: int
    nbytes: int
    sealed: bool


class MapSlab(msgspec.Struct, frozen=True, tag=True):
    """Map a slab whose descriptor comes along, read-only if sealed."""

    id: int
    nbytes: int
    sealed: bool


class MapPinned(msgspec.Struct, frozen=True, tag=True):
    """Page-lock and map memory of the program whose descriptor comes along.

    It has an address like a slab; one that is mapped already stays as it is.
    """

    id: int
    nbytes: int


class MapPointer(msgspec.Struct, frozen=True, tag=True):
    """Give memory of this very process an address (under thread isolation)."""

    id: int
    pointer: int
    nbytes: int


class CreateManaged(msgspec.Struct, frozen=True, tag=True):
    """Allocate memory that moves between the device and the host by itself."""

    id: int
    nbytes: int


class UnmapSlabs(msgspec.Struct, frozen=True, tag=True):
    """Unmap slabs, and page-locked memory, that the program has given up."""

    ids: list[int]


class Done(msgspec.Struct, frozen=True, tag=True):
    """A control request is done."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """What a device says of itself.

    Attributes:
        name: the vendor's name of it.
        backend: ``"cuda"`` or ``"cpu"``.
        index: its index.
        total_memory: bytes.
        compute_capability: such as ``(9, 0)``; ``(0, 0)`` on the CPU.
        driver_version: such as 13000 for CUDA 13.0; 0 on the CPU.
        uuid: the vendor's identifier, or the empty string.
        exports_memory: whether memory can outlive its process.
    """

    name: str
    backend: str
    index: int
    total_memory: int
    compute_capability: tuple[int, int] = (0, 0)
    driver_version: int = 0
    uuid: str = ""
    exports_memory: bool = True


ControlRequest = (
    Open
    | Preload
    | OpenLane
    | CreateSlab
    | CreateManaged
    | MapSlab
    | MapPinned
    | MapPointer
    | UnmapSlabs
)
ControlReply = Opened | Done | Failure | Fault

BRING_DESCRIPTOR: Final = (Open, OpenLane, MapSlab, MapPinned)
"""The requests with which exactly one descriptor comes along; none does with others."""

FETCH_DESCRIPTOR: Final = (CreateSlab,)
"""The requests whose reply may bring one."""
