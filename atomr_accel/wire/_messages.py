"""What travels between the program and a host.

A lane's socket carries frames: four bytes of length, then msgpack. Requests are
``(sequence number, dependencies, message)``; a reply is a list of the sequence numbers
that are done, or a ``Value``, ``Failure`` or ``Fault``. Every request is named by exactly
one reply, unless its host dies.

The control socket carries one request and one reply at a time, with descriptors.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import traceback
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, final

import cloudpickle
import msgspec

from .. import _errors
from .._errors import AccelError, RemoteError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = 4

PAYLOAD_BYTES: Final = 32 << 20
"""Largest request, and largest reply."""

FRAME_BYTES: Final = PAYLOAD_BYTES + (1 << 20)
"""Largest frame: it may hold some small requests before a large one."""

_TEXT: Final = 1 << 18
"""Characters of an error's message, and of its traceback."""

_PICKLED: Final = 1 << 20
"""Bytes of a pickled error."""

MOST_MODULES: Final = 1 << 14
"""Modules that a host names: large frameworks have some thousands."""

MODULE_NAME: Final = 256
"""Characters of a module's name."""

_ModuleName = Annotated[str, msgspec.Meta(max_length=MODULE_NAME)]


class ProtocolViolation(Exception):
    """The other side has sent what it must not: nothing more can be believed of it."""


def _plain(value: Any) -> Any:
    """What stands for a value that msgpack does not know.

    NumPy's scalars, and addresses that become known only now (``memory.LateAddress``).
    """
    item = getattr(value, "item", None)
    return operator.index(value) if item is None else item()


encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


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
    """What callers of ``name`` get for whole numbers that no message carries."""
    return ValueError(
        f"{name}: a whole number among its arguments, or a size that follows from them, takes "
        "more than 64 bits; give smaller ones"
    )


_Plain = str | int | float | bool | None


class StickyFault(Exception):
    """The context is beyond repair: every further call would report this again.

    Attributes:
        status: the driver's status code.
        status_name: its name.
    """

    def __init__(self, message: str, *, status: int, status_name: str) -> None:
        super().__init__(message)
        self.status = status
        self.status_name = status_name


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what a lane executes: a tagged tuple of plain values.

    Buffers are addresses in the device's address space; the host alone knows pointers.
    """

    required: ClassVar[bool] = False
    """Whether it is executed even if nobody waits for it any more."""

    everywhere: ClassVar[bool] = False
    """Whether every stream of its lane executes it, because each may hold what it is about."""

    returns: ClassVar[Any] = None
    """The type of its value, which is checked on arrival; None if it is only done."""

    lasting: ClassVar[bool] = False
    """Whether what it prepares depends on nothing else, so that another host may do it, too."""

    bulky: ClassVar[bool] = False
    """Whether it may be large, so that it is not encoded long before it is sent."""

    pickles: ClassVar[bool] = False
    """Whether what it raises may come as a pickle: it calls functions of the program."""


class Withdrawn(Message, frozen=True):
    """An op whose caller was cancelled before it was sent: only its place is left."""


WITHDRAWN: Final = Withdrawn()


PLACE: Final = 1 << 62
"""What stands for an address in a template, together with the address's number."""

MOST_TEMPLATES: Final = 1 << 12
"""How many templates of messages a lane keeps."""


_Address = Annotated[int, msgspec.Meta(ge=0)]


class CallWithTemplate(Message, frozen=True):
    """A call, and its message as a template for others, which differ in addresses alone.

    Attributes:
        number: what ``CallByTemplate`` names the template by, below ``MOST_TEMPLATES``; it replaces
            what had that.
        message: encoded, with ``PLACE | i`` for the i-th address.
        addresses: those of this call.
    """

    number: int
    message: msgspec.Raw
    addresses: tuple[_Address, ...]


class CallByTemplate(Message, frozen=True):
    """A call by a message that came with an earlier one.

    Attributes:
        number: which.
        addresses: those of this call.
    """

    number: int
    addresses: tuple[_Address, ...]


class RecordEvent(Message, frozen=True):
    """Note the time when all ops before it on its lane are done; any lane takes it."""

    event: int


class ForgetEvent(Message, frozen=True):
    """Release what recording an event has made; any lane takes it."""

    event: int


class Elapsed(Message, frozen=True):
    """Milliseconds from one recorded event to another; any lane takes it."""

    returns: ClassVar[Any] = float

    start: int
    end: int


class CloseLane(Message, frozen=True):
    """The last op of a lane, which ends with its socket then; no other lane waits for it."""

    required: ClassVar[bool] = True


# --- of the memory lane, which every host has: sizes and addresses in bytes ----------------


class Copy(Message, frozen=True):
    """Copy from one address to another."""

    to: int
    source: int
    nbytes: int


class Fill(Message, frozen=True):
    """Repeat an element, given as its bytes, all over a buffer."""

    address: int
    nbytes: int
    element: bytes


class Prefetch(Message, frozen=True):
    """Move managed memory to the device, or to the host."""

    address: int
    nbytes: int
    to_device: bool


class Advise(Message, frozen=True):
    """Tell how managed memory is going to be used: one of ``ADVICE``."""

    address: int
    nbytes: int
    advice: str


class Attach(Message, frozen=True):
    """Say who may access a slab of managed memory: ``"global"``, ``"host"`` or ``"single"``."""

    address: int
    to: str


class Unprotect(Message, frozen=True):
    """Let this lane write to a sealed slab, through a second mapping of its own.

    Everybody else keeps seeing it read-only. Counted: as many ``Protect`` end it.
    """

    required: ClassVar[bool] = True

    slab: int


class Protect(Message, frozen=True):
    """End what ``Unprotect`` began, after all copies before it are done."""

    required: ClassVar[bool] = True

    slab: int


class Probe(Message, frozen=True):
    """Move a pattern to the device and back: is the context good?"""

    returns: ClassVar[Any] = bytes

    pattern: bytes


# --- answers ------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, tag=True):
    """An op is done and returns something."""

    seq: int
    value: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag=True):
    """An op failed; the lane goes on.

    Attributes:
        seq: the op.
        kind: the name of the exception's class.
        message: what it says.
        fields: the attributes of an error of this package.
        traceback: where it comes from.
        args: what a builtin one is made with, if that is more than its message.
        pickled: the exception, if it does not travel by name.
    """

    seq: int
    kind: str
    message: str
    fields: dict[str, int | str]
    traceback: str
    args: tuple[_Plain, ...] | None = None
    pickled: bytes = b""


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The context is gone for good; nothing more comes from this host."""

    seq: int
    status: int
    status_name: str
    message: str


Reply = list[int] | Value | Failure | Fault


def append_frame(buffer: bytearray, payload: object) -> None:
    """Encode ``payload`` at the end of ``buffer``; if that fails the buffer is as it was."""
    start = len(buffer)
    buffer += b"\0\0\0\0"
    _append(buffer, payload, start)
    buffer[start : start + HEADER] = (len(buffer) - start - HEADER).to_bytes(HEADER, "little")


def _append(buffer: bytearray, payload: object, start: int) -> None:
    """Encode ``payload`` at the end of ``buffer``, or cut that to ``start``."""
    end = len(buffer)
    try:
        encoder.encode_into(payload, buffer, end)
        if len(buffer) - end > PAYLOAD_BYTES:
            raise ValueError(f"a message may take {PAYLOAD_BYTES} bytes, not {len(buffer) - end}")
    except BaseException:
        del buffer[start:]
        raise


_COUNT: Final = 3
"""Bytes of a msgpack array's head with a count of 16 bits."""


@final
class MultiFrame:
    """A frame of many payloads at the end of a buffer: cheaper to read than a frame of each.

    Args:
        buffer: where it grows; until ``close`` nobody else writes there.
    """

    __slots__ = ("_buffer", "_start", "count")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._start = len(buffer)
        self.count: int = 0
        buffer += b"\0" * (HEADER + _COUNT)

    def append(self, payload: object) -> None:
        """Encode ``payload``; if that fails the frame is as it was."""
        buffer = self._buffer
        _append(buffer, payload, len(buffer))
        self.count += 1

    def extend(self, payloads: list[object]) -> None:
        """Encode several small ones, in less time; if that fails the frame is as it was."""
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
    """Cuts a stream of bytes into frames, however it arrives.

    Args:
        most: bytes that a frame may take.

    Attributes:
        cut: how many frames have come in pieces; tells one that is not complete from another.
    """

    __slots__ = ("_most", "_rest", "_wanted", "cut")

    def __init__(self, most: int = FRAME_BYTES) -> None:
        self._most = most
        # A frame that is not complete is collected in one place: each byte is copied once.
        self._rest = bytearray()
        self._wanted = HEADER
        self.cut: int = 0

    @property
    def begun(self) -> int:
        """How much has come of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray) -> Iterator[memoryview]:
        """The frames that ``data`` completes.

        Raises:
            ProtocolViolation: one is announced that is larger than any may be.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data, self._rest = self._rest, bytearray()
        view = memoryview(data)
        at, end = 0, len(data)
        while at + HEADER <= end:
            nbytes = int.from_bytes(view[at : at + HEADER], "little")
            if nbytes > self._most:
                raise ProtocolViolation(
                    f"a frame of {nbytes} bytes was announced, of at most {self._most}"
                )
            stop = at + HEADER + nbytes
            if stop > end:
                self._wanted = stop - at
                break
            yield view[at + HEADER : stop]
            at = stop
        else:
            self._wanted = HEADER
        if at < end:
            self._rest += view[at:]
            self.cut += 1


# --- errors ------------------------------------------------------------------------------


# These two mean something else where they are raised: the end of an iterator.
_NEVER: Final = (StopIteration, StopAsyncIteration)

_KINDS: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (*vars(builtins).values(), *vars(_errors).values())
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, (*_NEVER, BaseExceptionGroup))
}
"""What may come by name: errors of this package, and builtin ones."""


def pack_exception(seq: int, error: BaseException, *, pickles: bool = False) -> Failure:
    """An exception of the host as a reply.

    Args:
        seq: the op that it answers.
        error: any exception, whatever is wrong with it.
        pickles: whether it may travel as a pickle if it cannot by name.
    """
    kind = _encodable(type(error).__name__)
    where = _traceback_of(error)
    with contextlib.suppress(Exception):  # a program may have put anything into it
        if _KINDS.get(kind) is type(error):
            fields, args = _plain_parts(error)
            match args:
                case (str(message),):
                    return Failure(seq, kind, _encodable(message), fields, where)
                case _:
                    return Failure(seq, kind, "", fields, where, args)
    if pickles and (pickled := _pickle(error)):
        return Failure(seq, kind, _text_of(error), {}, where, None, pickled)
    return Failure(seq, "RemoteError", f"{kind}: {_text_of(error)}", {"type_name": kind}, where)


def _plain_parts(error: BaseException) -> tuple[dict[str, int | str], tuple[_Plain, ...]]:
    """The attributes and arguments that are all there is to it.

    Raises:
        Exception: there is more.
    """
    if isinstance(error, AccelError):
        if [*map(type, error.args)] != [str]:
            raise TypeError("there is more to it than a message")
        plain = {
            name: _encodable(value) if isinstance(value, str) else value
            for name, value in error.fields().items()
        }
        encoded = encoder.encode(plain)
        return msgspec.msgpack.decode(encoded, type=dict[str, int | str]), error.args
    reduced = error.__reduce__()
    if isinstance(reduced, str) or any(more and set(more) - {"__notes__"} for more in reduced[2:]):
        raise TypeError("it has attributes")
    args: tuple[Any, ...] = reduced[1]
    if [*map(type, args)] != [str]:
        if len(encoder.encode(args)) > _TEXT:
            raise ValueError("it is too large")
        if [*map(type, args)] != [*map(type, msgspec.convert(args, tuple[_Plain, ...]))]:
            raise TypeError("it has arguments that are not plain")
    return {}, args


def _pickle(error: BaseException) -> bytes:
    """An exception as a pickle; empty if it cannot travel."""
    if not isinstance(error, Exception):  # it would end more than a call where it is raised
        return b""
    try:
        pickled: bytes = cloudpickle.dumps(error)
    except BaseException:  # noqa: BLE001 (what it does is up to the program)
        return b""
    return pickled if len(pickled) <= _PICKLED else b""


def _text_of(error: BaseException) -> str:
    try:
        return _encodable(str(error))
    except BaseException as broken:  # noqa: BLE001 (what it raises is up to the program)
        return f"(no message: {type(broken).__name__} in __str__)"


def _traceback_of(error: BaseException) -> str:
    try:
        return _encodable("".join(traceback.format_exception(error)))
    except BaseException as broken:  # noqa: BLE001 (as above)
        return f"(no traceback: {type(broken).__name__} while it was formatted)"


def _encodable(text: str) -> str:
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]}... ({len(text) - _TEXT} more characters)"
    return text.encode(errors="backslashreplace").decode()


def unpack_exception(failure: Failure, *, pickles: bool = False) -> Exception:
    """The exception that a reply stands for.

    One that is no error of this package has the host's traceback as a note.

    Args:
        failure: the reply.
        pickles: whether it may be a pickle: it answers a call of the program's own functions.

    Raises:
        ProtocolViolation: no host sends this.
    """
    if failure.pickled:
        if not pickles:
            raise ProtocolViolation("an error came as a pickle, where none is read")
        return _unpickle(failure)
    kind = _KINDS.get(failure.kind)
    wanted = getattr(kind, "_fields", ())
    if kind is None or failure.fields.keys() != set(wanted):
        raise ProtocolViolation(f"there is no error {failure.kind!r} with {[*failure.fields]}")
    args = (failure.message,) if failure.args is None else failure.args
    try:
        error = kind(*args, **failure.fields)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise ProtocolViolation(f"{failure.kind} is not made with {args}") from wrong
    if not isinstance(error, AccelError) or kind is RemoteError:
        error.add_note(_note_of(failure))
    return error


def _unpickle(failure: Failure) -> Exception:
    try:
        error = cloudpickle.loads(failure.pickled)
        if isinstance(error, Exception) and not isinstance(error, _NEVER):
            error.add_note(_note_of(failure))
            return error
    except Exception:  # noqa: BLE001, S110 - its class may exist only in the host
        pass
    remote = RemoteError(f"{failure.kind}: {failure.message}", type_name=failure.kind)
    remote.add_note(_note_of(failure))
    return remote


def _note_of(failure: Failure) -> str:
    return f"In the host:\n{failure.traceback}"


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
        strategy: ``"shared"``: each lane has several, those of one number and priority are
            the same in all lanes; ``"per_actor"``: each lane has streams of its own;
            ``"pooled"``: lanes share ``pool`` streams; ``"single"``: all share one.
        pool: how many streams a pool has.
        priorities: stream priority by lane name; lower runs first, 0 is the default.
        completion: ``"polled"``, ``"blocking"``, ``"hybrid"`` or ``"callback"``.
        group: how many launches may share one completion token, and so one answer.
        track_each_op: whether ops of a group that takes long are answered one by one.
        deterministic: whether results must not depend on what else is in flight, nor on time.
    """

    strategy: str = "shared"
    pool: int = 4
    priorities: dict[str, int] = {}
    completion: str = "hybrid"
    group: int = 8
    track_each_op: bool = False
    deterministic: bool = False


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The device is there."""

    info: DeviceInfo


class AskFree(msgspec.Struct, frozen=True, tag=True):
    """Ask how much memory of the device is free."""


class Free(msgspec.Struct, frozen=True, tag=True):
    """Bytes of the device's memory that are free, whoever has the others."""

    nbytes: int


class Preload(msgspec.Struct, frozen=True, tag=True):
    """Import classes, and call their ``preload`` where they have one."""

    references: list[str]


class Import(msgspec.Struct, frozen=True, tag=True):
    """Begin to import modules, as far as that can be done.

    The descriptor that comes along is closed when it is. Meanwhile other requests are answered.
    """

    modules: list[str]


class Imported(msgspec.Struct, frozen=True, tag=True):
    """Ask which modules functions of the program have imported."""


class Modules(msgspec.Struct, frozen=True, tag=True):
    """Names of modules, those first that others need."""

    names: Annotated[list[_ModuleName], msgspec.Meta(max_length=MOST_MODULES)]


class OpenLane(msgspec.Struct, frozen=True):
    """A lane to be started.

    Attributes:
        name: the lane's name.
        index: its number in dependencies.
        executor: ``module:class`` of what executes its messages.
        max_streams: how many of them may run side by side.
        thread: the name of the thread that runs it, with all others of that name.
    """

    name: str
    index: int
    executor: str
    max_streams: int
    thread: str


class OpenLanes(msgspec.Struct, frozen=True, tag=True):
    """Start lanes, side by side, on the sockets that come along in the same order."""

    lanes: list[OpenLane]


class LanesOpened(msgspec.Struct, frozen=True, tag=True):
    """Lanes are started, but for some.

    Attributes:
        failed: why those are not, by name, in the order in which they failed.
    """

    failed: dict[str, Failure | Fault]


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
        backend: its backend's name, such as ``"cuda"``.
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
    | OpenLanes
    | CreateSlab
    | CreateManaged
    | MapSlab
    | MapPinned
    | MapPointer
    | UnmapSlabs
    | Import
    | Imported
    | AskFree
)
ControlReply = Opened | LanesOpened | Modules | Free | Done | Failure | Fault

_BRING_DESCRIPTOR: Final = (Open, MapSlab, MapPinned, Import)


def brings(request: ControlRequest) -> int:
    """How many descriptors come along with a request."""
    if isinstance(request, OpenLanes):
        return len(request.lanes)
    return int(isinstance(request, _BRING_DESCRIPTOR))


FETCH_DESCRIPTOR: Final = (CreateSlab,)
"""The requests whose reply may bring one."""


def find_class(what: str, reference: str, where: str = "the host") -> Any:
    """The class that a backend or a library names as ``module:class``.

    Args:
        what: what it is, for errors.
        reference: its name.
        where: which process looks for it, for errors.

    Raises:
        Unsupported: it is not there.
    """
    try:
        found = resolve_name(reference)
        if not callable(found):
            raise TypeError(f"it is a {type(found).__name__}, not a class")
    except (AccelError, OSError, MemoryError):
        raise  # says itself what is missing, or may be had the next time
    except Exception as error:
        raise Unsupported(
            f"{what}, {reference!r}, cannot be loaded in {where}: {type(error).__name__}: "
            f"{error}; reinstall or update the package that names it"
        ) from error
    return found
