"""The protocol between nodes, without I/O: frames, their numbers and the window of messages.

A frame is a header of 9 bytes and a body. The header has the body's length (4 bytes), the
protocol's version (1 byte) and the frame's number (4 bytes), all big-endian. The body is a
msgpack array whose first item names the kind. Numbers count from zero on each side of a connection,
so that a lost, repeated or reordered frame ends the connection, and never goes unnoticed.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from ._errors import PeerRefused, ProtocolViolated

PROTOCOL: Final = 1
"""Version of the protocol, in each frame."""

HEADER: Final = struct.Struct(">IBI")

FRAME_LIMIT: Final = 64 << 20
"""Most bytes of a frame's body."""

WINDOW: Final = 256
"""Messages that a node takes from one connection before it has answered them."""

WATCHES: Final = 4096
"""Watches that a node takes from one connection, beside the window."""

WATCH: Final = "watch:"
"""First characters of the target of a watch: a message that is answered when an actor has ended."""

_NUMBERS: Final = 1 << 32


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all frames."""


class HelloFrame(Frame, frozen=True, tag="hello"):
    """First frame in both directions.

    Attributes:
        cluster: the cluster's name.
        node: the sender's name.
        life: tells this run of the node from others.
        messages: digests of the sender's messages, by name.
        window: messages that the sender takes before it has answered them.
    """

    cluster: str
    node: str
    life: str
    messages: dict[str, str]
    window: int


class AskFrame(Frame, frozen=True, tag="ask"):
    """A message that wants an answer, to an actor's path, an entity or a device."""

    id: int
    target: str
    key: str | None
    name: str
    body: bytes


class TellFrame(Frame, frozen=True, tag="tell"):
    """A message without an answer."""

    target: str
    name: str
    body: bytes


class CreditFrame(Frame, frozen=True, tag="credit"):
    """Told messages have left the window."""

    count: int


class ReplyFrame(Frame, frozen=True, tag="reply"):
    """An answer."""

    id: int
    body: bytes


class FailedFrame(Frame, frozen=True, tag="failed"):
    """An error in place of an answer."""

    id: int
    kind: str
    text: str
    fields: dict[str, Any]


class CancelFrame(Frame, frozen=True, tag="cancel"):
    """The asker wants no answer any more."""

    id: int


class PingFrame(Frame, frozen=True, tag="ping"):
    """A question whether the other side is alive."""


class PongFrame(Frame, frozen=True, tag="pong"):
    """The answer to it."""


AnyFrame = (
    HelloFrame
    | AskFrame
    | TellFrame
    | CreditFrame
    | ReplyFrame
    | FailedFrame
    | CancelFrame
    | PingFrame
    | PongFrame
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyFrame)


class NodeConnection:
    """One side of a connection: bytes in, frames out, and the other way round.

    Args:
        hello: the first frame of this side.
        asks: True for the side that sends messages, False for the side that answers them.
        limit: most bytes of a body.

    Attributes:
        peer: the first frame of the other side, once it has come.
    """

    def __init__(self, hello: HelloFrame, *, asks: bool, limit: int = FRAME_LIMIT) -> None:
        self._hello: Final = hello
        self._asks: Final = asks
        self._limit: Final = limit
        self._buffer = bytearray()
        self._sent = 0
        self._received = 0
        self._open: set[int] = set()
        self._watches: set[int] = set()
        self._told = 0
        self.peer: HelloFrame | None = None
        self.broken = False

    @property
    def room(self) -> int:
        """Messages that can be sent now."""
        if self.peer is None:
            return 0
        return self.peer.window - len(self._open) - self._told

    def greeting(self) -> bytearray:
        """Return the bytes to begin with."""
        return self._encoded(self._hello)

    def send(self, frame: Frame) -> bytearray:
        """Return the bytes of a frame."""
        if isinstance(frame, AskFrame) and len(self._watches) >= WATCHES and is_watch(frame):
            raise ValueError(f"watches of one node must be at most {WATCHES}; end some first")
        data = self._encoded(frame)
        if isinstance(frame, AskFrame):
            (self._watches if is_watch(frame) else self._open).add(frame.id)
        elif isinstance(frame, TellFrame):
            self._told += 1
        elif isinstance(frame, (ReplyFrame, FailedFrame)):
            self._open.discard(frame.id)
            self._watches.discard(frame.id)
        elif isinstance(frame, CreditFrame):
            self._told -= frame.count
        return data

    def _encoded(self, frame: Frame) -> bytearray:
        data = bytearray(HEADER.size)
        _ENCODER.encode_into(frame, data, HEADER.size)
        size = len(data) - HEADER.size
        if size > self._limit:
            raise ValueError(
                f"a frame must have at most {self._limit} bytes, not {size}; send less at once"
            )
        HEADER.pack_into(data, 0, size, PROTOCOL, self._sent)
        self._sent = (self._sent + 1) % _NUMBERS
        return data

    def receive(self, data: bytes | bytearray) -> list[Any]:
        """Take bytes, and return the frames that are complete.

        Raises:
            ProtocolViolated: the bytes are no frames, or frames that may not come now.
            PeerRefused: the other side is not one to talk to.
        """
        if self.broken:
            raise ProtocolViolated("the connection has ended because of an earlier frame")
        self._buffer += data
        frames: list[Any] = []
        try:
            while (frame := self._next()) is not None:
                self._check(frame)
                frames.append(frame)
        except BaseException:
            self.broken = True
            raise
        return frames

    def _next(self) -> Any:
        if len(self._buffer) < HEADER.size:
            return None
        size, version, number = HEADER.unpack_from(self._buffer)
        if version != PROTOCOL:
            raise PeerRefused(f"the other node speaks version {version}, and this one {PROTOCOL}")
        if size > self._limit:
            raise ProtocolViolated(f"a frame of {size} bytes came; the limit is {self._limit}")
        if number != self._received:
            raise ProtocolViolated(f"frame {number} came in place of frame {self._received}")
        end = HEADER.size + size
        if len(self._buffer) < end:
            return None
        self._received = (self._received + 1) % _NUMBERS
        try:
            with memoryview(self._buffer) as view, view[HEADER.size : end] as body:
                frame = _DECODER.decode(body)
            del self._buffer[:end]
            return frame
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolated(f"a frame cannot be read: {error}") from error

    def _check(self, frame: Frame) -> None:
        if self.peer is None:
            if not isinstance(frame, HelloFrame):
                raise ProtocolViolated(f"the first frame is a {type(frame).__name__}")
            self._greet(frame)
            return
        if isinstance(frame, (PingFrame, PongFrame)):
            return
        answers = isinstance(frame, (ReplyFrame, FailedFrame, CreditFrame))
        if isinstance(frame, HelloFrame) or answers != self._asks:
            raise ProtocolViolated(f"a {type(frame).__name__} came where none may come")
        if isinstance(frame, (ReplyFrame, FailedFrame)):
            if frame.id not in self._open and frame.id not in self._watches:
                raise ProtocolViolated(f"an answer to {frame.id} came, which is not asked")
            self._open.discard(frame.id)
            self._watches.discard(frame.id)
        elif isinstance(frame, CreditFrame):
            if not 0 < frame.count <= self._told:
                raise ProtocolViolated(f"credit for {frame.count} of {self._told} messages came")
            self._told -= frame.count
        elif isinstance(frame, (AskFrame, TellFrame)):
            if isinstance(frame, AskFrame):
                if frame.id in self._open or frame.id in self._watches:
                    raise ProtocolViolated(f"message {frame.id} came twice")
                (self._watches if is_watch(frame) else self._open).add(frame.id)
            else:
                self._told += 1
            if len(self._watches) > WATCHES or (len(self._open) + self._told > self._hello.window):
                raise ProtocolViolated(f"more than {self._hello.window} messages wait for answers")

    def _greet(self, hello: HelloFrame) -> None:
        ours = self._hello
        if hello.cluster != ours.cluster:
            raise PeerRefused(
                f"node {hello.node!r} is of cluster {hello.cluster!r}, and this one of "
                f"{ours.cluster!r}"
            )
        if hello.node == ours.node:
            raise PeerRefused(f"two nodes have the name {hello.node!r}")
        if hello.window < 1:
            raise ProtocolViolated(f"a window of {hello.window} messages came")
        for name, digest in hello.messages.items():
            if ours.messages.get(name, digest) != digest:
                raise PeerRefused(
                    f"message {name} has other fields on node {hello.node!r} than here: run the "
                    "same version of the program on both"
                )
        self.peer = hello


def is_watch(frame: AskFrame) -> bool:
    """Return whether a message waits for the end of an actor."""
    return frame.target.startswith(WATCH)
