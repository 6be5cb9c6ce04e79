"""Devices of this node, used by other nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import trio

from .. import AccelError, GpuRef, GpuRefStale, Unsupported
from .._dtypes import as_dtype, native
from ..libraries.registry import catalogue
from ._sealed import SealedShelf

if TYPE_CHECKING:
    from .. import Device
    from ._peer import Holdings, MessageTurn

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
    array = np.asarray(native(array), order="C")
    content = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    head = [array.dtype.name, array.shape, content]
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(head))


def packed(value: Any, buffer_of: Any) -> Any:
    """Return a value that msgpack can encode.

    Args:
        value: numbers, text, arrays, buffers, and sequences and dicts of these.
        buffer_of: returns the `BufferNote` of a buffer, or None for other values.
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


class DeviceReport(msgspec.Struct, frozen=True, array_like=True):
    """A device's load.

    Attributes:
        ready: whether it can be used now.
        others: ops that are not answered yet, without those of the asker.
        free: bytes that may still be allocated.
    """

    ready: bool
    others: int
    free: int


def _load(device: Device, own: int) -> DeviceReport:
    found = device.statistics()
    total = device.info.total_memory
    limit = total if found.memory.limit is None else min(found.memory.limit, total)
    others = max(0, found.in_flight - own)
    return DeviceReport(found.state == "ready", others, max(0, limit - found.memory.used))


def _request(device: Device, call: DeviceCallBody) -> Any:
    """Return the request of a call."""
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


async def _fetched(shelf: SealedShelf, device: Device, digest: str) -> GpuRef:
    return await shelf.fetch(digest, device)


async def _withdrawn(shelf: SealedShelf, _device: Device, digest: str) -> None:
    await trio.lowlevel.checkpoint()
    shelf.withdraw(digest)


async def _forgotten(_shelf: SealedShelf, _device: Device, _ref: GpuRef) -> None:
    """Keep the buffer, which this node still offers, though its user needs it no more."""
    await trio.lowlevel.checkpoint()


_SHELVED: Final[dict[str, Any]] = {
    "offer": SealedShelf.offer,
    "fetch": _fetched,
    "withdraw": _withdrawn,
}
"""Calls about sealed buffers by digest, which are the node's and not the device's."""


async def answer_device(
    devices: Sequence[Device],
    shelf: SealedShelf,
    target: str,
    body: bytes,
    holdings: Holdings,
    turn: MessageTurn,
) -> bytes:
    """Do what another node asks of a device, and return the bytes of the answer."""
    index = int(target.removeprefix("device:"))
    if not 0 <= index < len(devices):
        raise LookupError(f"this node has {len(devices)} devices, and none of index {index}")
    device = devices[index]
    held: dict[int, GpuRef] = holdings.held.setdefault(target, {})

    async def free_all() -> None:
        refs = [ref for ref in held.values() if not shelf.keeps(ref)]
        held.clear()
        for ref in refs:
            with suppress(AccelError):  # it is stale, or the device is gone, and so is the buffer
                await device.free(ref)

    holdings.ends[target] = free_all

    def known(note: BufferNote) -> GpuRef:
        if note.number not in held:
            raise GpuRefStale("the buffer was freed, or its connection ended")
        return held[note.number]

    call = msgspec.msgpack.decode(body, type=DeviceCallBody, ext_hook=unpacker(known), strict=False)
    if call.name == "load":
        return msgspec.msgpack.encode(_load(device, holdings.busy[target]))
    before = {id(ref): number for number, ref in held.items()}
    shelved = _SHELVED.get(call.name)
    if call.name == "free" and any(map(shelf.keeps, call.args)):
        shelved = _forgotten
    request = _request(device, call) if shelved is None else None
    holdings.busy[target] += 1
    result: Any
    try:
        turn.taken()
        if shelved is None:
            result = await device.ref.ask(request)  # type: ignore[arg-type]
        else:
            result = await shelved(shelf, device, *call.args)
    finally:
        holdings.busy[target] -= 1
        if call.name == "free":  # also if it fails: the device has lost the buffer then
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
