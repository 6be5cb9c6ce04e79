"""Messages of the control socket: framed, bounded, with the descriptors that they announce.

A message is a head and a body. The head holds the body's length and the number of descriptors that
come along. A descriptor can get lost on the way: the kernel drops those for which the receiver has
no room in its table. Receiving a message therefore fails unless all announced descriptors have
arrived, and every descriptor that is not wanted is closed.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_BYTES: Final = 1 << 26
"""Largest control message in bytes, in both directions. Most are tiny, but some list slabs."""

MOST_DESCRIPTORS: Final = 16
"""Largest number of descriptors that come along with one message."""

_HEAD: Final = struct.Struct("<II")

_PIECE: Final = 1 << 16

_ROOM: Final = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)

# Processes that the receiver starts meanwhile must not inherit the descriptors.
_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ProtocolError(ConnectionError):
    """The other end has sent an invalid message, so nothing more from it can be trusted."""


@final
class Outgoing:
    """A message on its way out.

    Args:
        body: the content of the message.
        fds: descriptors that go along; the caller still owns them.

    Attributes:
        begun: whether some of it is sent.
    """

    def __init__(self, body: bytes, fds: Sequence[int] = ()) -> None:
        if len(body) > MOST_BYTES:
            raise ValueError(
                f"a control message has at most {MOST_BYTES} bytes, this one has {len(body)}"
            )
        assert len(fds) <= MOST_DESCRIPTORS
        self.begun: bool = False
        self._rest = memoryview(_HEAD.pack(len(body), len(fds)) + body)
        self._fds = fds

    @property
    def complete(self) -> bool:
        """True if the whole message is sent."""
        return not self._rest

    def send(self, sock: socket.socket) -> None:
        """Send as many bytes as the socket accepts.

        Raises:
            BlockingIOError: the socket accepts none now.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._fds))]
        sent = sock.sendmsg([self._rest], rights if self._fds else ())
        self.begun = True
        self._fds = ()
        self._rest = self._rest[sent:]


@final
class Incoming:
    """A message that is being received."""

    def __init__(self) -> None:
        self._head = b""
        self._body = bytearray()
        self._length = 0
        self._announced = 0
        self._cut = False
        self._fds: list[int] = []

    @property
    def complete(self) -> bool:
        """True if the whole message has arrived."""
        return len(self._head) == _HEAD.size and len(self._body) == self._length

    def receive(self, sock: socket.socket) -> None:
        """Take the bytes that have arrived.

        Raises:
            BlockingIOError: no bytes have arrived.
            ConnectionError: the other side has closed the socket.
        """
        try:
            if len(self._head) < _HEAD.size:
                self._head += self._take(sock, _HEAD.size - len(self._head))
                if len(self._head) == _HEAD.size:
                    self._open()
            else:
                self._body += self._take(sock, min(self._length - len(self._body), _PIECE))
        except ConnectionError:
            self.drop()
            raise

    def drop(self) -> None:
        """Close the descriptors that have arrived, because the message is not needed any more."""
        fds, self._fds = self._fds, []
        close_all(fds)

    def take(self) -> tuple[bytearray, list[int]]:
        """Return the complete message's body and all descriptors that came along.

        Raises:
            OSError: this process had no room for them (``EMFILE``); none is kept.
            ProtocolError: the descriptors differ from the announced ones; none is kept.
        """
        fds, self._fds = self._fds, []
        if len(fds) != self._announced:
            close_all(fds)
            if self._cut and len(fds) < self._announced:
                raise OSError(
                    errno.EMFILE,
                    f"{os.strerror(errno.EMFILE)}: {self._announced} came along with a control "
                    f"message, and there was room for {len(fds)}",
                )
            raise ProtocolError(
                f"a control message announced {self._announced} descriptors and had {len(fds)}"
            )
        return self._body, fds

    def _open(self) -> None:
        self._length, self._announced = _HEAD.unpack(self._head)
        if self._length > MOST_BYTES or self._announced > MOST_DESCRIPTORS:
            raise ProtocolError(
                f"a control message of {self._length} bytes and {self._announced} descriptors "
                "was announced"
            )

    def _take(self, sock: socket.socket, most: int) -> bytes:
        data, ancillary, flags, _ = sock.recvmsg(most, _ROOM, _FLAGS)
        if flags & socket.MSG_CTRUNC:
            self._cut = True
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(rights[: len(rights) - len(rights) % numbers.itemsize])
                self._fds.extend(numbers)
        if not data:
            raise ConnectionResetError("the control socket was closed")
        return data


def send(sock: socket.socket, body: bytes, fds: Sequence[int] = ()) -> None:
    """Send a message over a blocking socket."""
    message = Outgoing(body, fds)
    while not message.complete:
        message.send(sock)


def receive(sock: socket.socket) -> Incoming:
    """Receive a message from a blocking socket."""
    message = Incoming()
    while not message.complete:
        message.receive(sock)
    return message


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
