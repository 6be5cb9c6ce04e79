"""Items from trio's streams, and into them: lines, and frames with a length before each.

A pipeline reads an async iterable and returns one. These functions turn the bytes of sockets,
pipes and processes into async iterables, and back. Reading a file by lines needs none of them,
because ``trio.open_file`` returns an async iterable.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final, Protocol, Self

import trio

from ..wire.options import count
from ._errors import MalformedStream

_HEADER: Final = 4
_LONGEST: Final = 1 << 20


class AsyncWriter(Protocol):
    """A destination of lines, such as a stream or a file of ``trio.open_file(..., "wb")``."""

    async def write(self, data: bytes, /) -> object:
        """Write all of it."""


class _Received:
    """Bytes that were received and not yet taken.

    It is a class because the first cancellation would end a generator. So it can be read again
    after a cancellation, and by another loop after one that was left.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, max_length: int) -> None:
        self._stream = stream
        self._max_length = count(max_length, "max_length", 0)
        self._buffer = bytearray()

    def __aiter__(self) -> Self:
        return self

    async def _more(self) -> bool:
        """Receive more. Return False if the stream has ended."""
        chunk = await self._stream.receive_some()
        self._buffer += chunk
        return bool(chunk)

    def _take(self, length: int) -> bytes:
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken


class _Lines(_Received):
    _searched = 0

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        buffer = self._buffer
        while (end := buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(buffer)
            if self._searched > self._max_length + 1:  # one may be the \r of a line that just fits
                raise _too_long("line", self._max_length)
            if not await self._more():
                if not buffer:
                    raise StopAsyncIteration
                end = len(buffer)
                break
        self._searched = 0
        line = self._take(end + 1)
        if line.endswith(b"\n"):
            line = line[:-1].removesuffix(b"\r")
        if len(line) > self._max_length:
            raise _too_long("line", self._max_length)
        return line


class _StreamFrames(_Received):
    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        buffer = self._buffer
        wanted = _HEADER
        if await self._filled(_HEADER):
            length = int.from_bytes(buffer[:_HEADER], "big")
            if length > self._max_length:
                raise _too_long("frame", self._max_length)
            wanted += length
            if await self._filled(wanted):
                return self._take(wanted)[_HEADER:]
        elif not buffer:
            raise StopAsyncIteration
        raise MalformedStream(f"the stream ended after {len(buffer)} of {wanted} bytes of a frame")

    async def _filled(self, wanted: int) -> bool:
        while len(self._buffer) < wanted:
            if not await self._more():
                return False
        return True


def receive_lines(
    stream: trio.abc.ReceiveStream, *, max_length: int = _LONGEST
) -> AsyncIterator[bytes]:
    r"""Read the lines of a stream, without the final ``\n`` or ``\r\n`` of each.

    Text after the last line break is a line, too, unless it is empty. If you are cancelled
    while you wait for a line, nothing is lost, and the next one asked for is that line.

    Args:
        stream: where the bytes come from. It stays open.
        max_length: how many bytes a line may have.

    Raises:
        MalformedStream: in the loop: a line is longer than that.
    """
    return _Lines(stream, max_length)


async def send_lines(stream: trio.abc.SendStream | AsyncWriter, lines: AsyncIterable[bytes]) -> int:
    r"""Write lines as they come, with a ``\n`` after each.

    Args:
        stream: a stream, or a file opened by ``trio.open_file(path, "wb")``. It stays open.
        lines: without their ends, and with no line break inside.

    Returns:
        How many they were.

    Raises:
        ValueError: a line has a line break in it, and would be read as two.
    """
    write = stream.write if hasattr(stream, "write") else stream.send_all
    count = 0
    async for line in lines:
        if b"\n" in line:
            raise ValueError(f"a line must have no line break inside, not {line[:80]!r}")
        await write(line + b"\n")
        count += 1
    return count


def receive_frames(
    stream: trio.abc.ReceiveStream, *, max_length: int = _LONGEST
) -> AsyncIterator[bytes]:
    """Read the frames of a stream: four bytes of length, big-endian, then the bytes.

    If you are cancelled while you wait for a frame, nothing is lost, and the next one asked for is
    that frame.

    Args:
        stream: where the bytes come from. It stays open.
        max_length: how many bytes a frame may have. No memory is taken for longer ones.

    Raises:
        MalformedStream: in the loop: a frame is longer than that, or the stream ends inside one.
    """
    return _StreamFrames(stream, max_length)


async def send_frames(stream: trio.abc.SendStream, frames: AsyncIterable[bytes]) -> int:
    """Write frames as they come: four bytes of length, big-endian, and the bytes.

    Args:
        stream: where to. It stays open.
        frames: what to write.

    Returns:
        How many they were.
    """
    count = 0
    async for frame in frames:
        await stream.send_all(len(frame).to_bytes(_HEADER, "big") + frame)
        count += 1
    return count


def _too_long(what: str, limit: int) -> MalformedStream:
    return MalformedStream(
        f"a {what} has more than the {limit} bytes allowed; max_length= allows longer ones"
    )
