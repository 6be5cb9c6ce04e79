"""Devices of this node, used by other nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from .. import AccelError, GpuRef, GpuRefStale, Unsupported
from .._dtypes import as_dtype
from ..libraries.registry import catalogue

if TYPE_CHECKING:
    from .. import Device
    from ._frames import AskFrame
    from ._peer import MessageTurn, Visit

METHODS: Final = frozenset(
    {"put", "get", "empty", "zeros", "full", "fill", "copy", "free", "statistics", "seal"}
)
"""Methods of a device that other nodes may call. None of them runs code that came along."""

_CODE: Final = frozenset({"run", "nvrtc", "cutlass", "recordings"})
"""Libraries that run code of the caller's."""

_serial = itertools.count(1)


class DeviceCallBody(msgspec.Struct, frozen=True, array_like=True):
    """A call of a device's method or library, such as ``"blas.gemm"``."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]


_ARRAY: Final = 1
_BUFFER: Final = 2
_TUPLE: Final = 3
_COMPLEX: Final = 4


class BufferNote(msgspec.Struct, frozen=True, array_like=True):
    """A buffer of a device, as the other side knows it."""

    number: int
    shape: tuple[int, ...]
    dtype: str


def packed_array(array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    """Return an array as an extension type of msgpack."""
    array = np.asarray(array, order="C")
    content = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    head = [array.dtype.name, array.shape, content]
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(head))


def packed(value: Any, buffer_of: Any) -> Any:
    """Return a value that msgpack can encode.

    Args:
        value: numbers, text, arrays, buffers, and sequences and dicts of these.
        buffer_of: returns the `BufferNote` of a buffer, or None for other values.

    Raises:
        Unsupported: a value of another type.
    """
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return value
    note = buffer_of(value)
    if note is not None:
        return msgspec.msgpack.Ext(_BUFFER, msgspec.msgpack.encode(note))
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.hasobject:
            raise Unsupported("arrays for another node must be of numbers, not of objects")
        return packed_array(np.asarray(value))
    if isinstance(value, complex):
        body = msgspec.msgpack.encode([value.real, value.imag])
        return msgspec.msgpack.Ext(_COMPLEX, body)
    if isinstance(value, (np.dtype, type)):
        return as_dtype(value).name
    if isinstance(value, list):
        return [packed(each, buffer_of) for each in value]
    if isinstance(value, tuple):
        body = msgspec.msgpack.encode([packed(each, buffer_of) for each in value])
        return msgspec.msgpack.Ext(_TUPLE, body)
    if isinstance(value, dict):
        return {str(name): packed(each, buffer_of) for name, each in value.items()}
    raise Unsupported(
        f"an argument for a device of another node must be plain, an array or a buffer of that "
        f"device, not {type(value).__name__}"
    )


def unpacker(buffer_of: Any) -> Any:
    """Return the hook that makes values of extension types.

    Args:
        buffer_of: returns what stands for a `BufferNote` here.
    """

    def hook(code: int, data: memoryview) -> Any:
        body = bytes(data)
        if code == _ARRAY:
            name, shape, content = msgspec.msgpack.decode(body, type=tuple[str, list[int], bytes])
            array = np.frombuffer(bytearray(content), as_dtype(name))
            return array.reshape(shape)
        if code == _BUFFER:
            return buffer_of(msgspec.msgpack.decode(body, type=BufferNote))
        if code == _TUPLE:
            return tuple(msgspec.msgpack.decode(body, ext_hook=hook))
        if code == _COMPLEX:
            return complex(*msgspec.msgpack.decode(body, type=tuple[float, float]))
        raise ValueError(f"an extension must be one of 1 to 4, not {code}")

    return hook


def _request(device: Device, call: DeviceCallBody) -> Any:
    """Return the request of a call.

    Raises:
        Unsupported: other nodes cannot call it.
    """
    library, _, method = call.name.rpartition(".")
    allowed = (
        method in METHODS
        if not library
        else library in catalogue().facades and library not in _CODE and not method.startswith("_")
    )
    if not allowed:
        raise Unsupported(f"{call.name} must be called on its own node, not from another one")
    owner = getattr(device.requests, library) if library else device.requests
    return getattr(owner, method)(*call.args, **call.kwargs)


async def answer_device(
    devices: Sequence[Device], frame: AskFrame, visit: Visit, turn: MessageTurn
) -> bytes:
    """Do what another node asks of a device, and return the bytes of the answer.

    Args:
        devices: the devices of this node.
        frame: the message.
        visit: the connection, which holds buffers of the other node.
        turn: of the message.
    """
    index = int(frame.target.removeprefix("device:"))
    if not 0 <= index < len(devices):
        raise LookupError(f"this node has {len(devices)} devices, and none of index {index}")
    device, target = devices[index], frame.target
    held: dict[int, GpuRef] = visit.held.setdefault(target, {})

    async def free_all() -> None:
        refs = [*held.values()]
        held.clear()
        for ref in refs:
            with suppress(AccelError):  # it is stale, or the device is gone, and so is the buffer
                await device.free(ref)

    visit.ends[target] = free_all

    def known(note: BufferNote) -> GpuRef:
        if note.number not in held:
            raise GpuRefStale("the buffer was freed, or its connection ended")
        return held[note.number]

    call = msgspec.msgpack.decode(
        frame.body, type=DeviceCallBody, ext_hook=unpacker(known), strict=False
    )
    request = _request(device, call)
    before = {id(ref): number for number, ref in held.items()}
    turn.taken()
    result = await device.ref.ask(request)
    if call.name == "free":
        for each in call.args:
            held.pop(before.get(id(each), 0), None)
    if call.name == "statistics":
        result = str(result)

    def noted(value: Any) -> BufferNote | None:
        if not isinstance(value, GpuRef):
            return None
        number = before.get(id(value))
        if number is None:
            number = next(_serial)
            held[number] = value
        return BufferNote(number, tuple(value.shape), value.dtype.name)

    return msgspec.msgpack.encode(packed(result, noted))
