"""A client of a viewer's WebSocket that does no more than a test says."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)

from atomr_accel.realtime import Viewer


class Socket:
    """An end of a WebSocket.

    Attributes:
        status: the status of the answer to the request: 101 if it is open.
        code: the code by which the other end has closed it.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._ends = WSConnection(ConnectionType.CLIENT)
        self.status = 0
        self.code: int | None = None

    async def begin(self, host: str, target: str, headers: list[tuple[bytes, bytes]]) -> None:
        await self._stream.send_all(
            self._ends.send(Request(host=host, target=target, extra_headers=headers))
        )
        while not self.status:
            await self._receive()
            for event in self._ends.events():
                if isinstance(event, AcceptConnection):
                    self.status = 101
                    return
                if isinstance(event, RejectConnection):
                    self.status = event.status_code

    async def _receive(self) -> None:
        data = await self._stream.receive_some()
        self._ends.receive_data(data or None)

    async def next(self) -> Any:
        """Return the next message: JSON, or a picture; None at the end."""
        parts: list[Any] = []
        while True:
            for event in self._ends.events():
                if isinstance(event, (TextMessage, BytesMessage)):
                    parts.append(event.data)
                    if event.message_finished:
                        return _made(parts)
                elif isinstance(event, CloseConnection):
                    self.code = int(event.code)
                    return None
                elif isinstance(event, Ping):
                    await self._stream.send_all(self._ends.send(event.response()))
            await self._receive()

    async def until(self, kind: str) -> Any:
        """Return the next message of a kind; ``picture`` is one."""
        while (message := await self.next()) is not None:
            if kind == ("picture" if isinstance(message, np.ndarray) else message["kind"]):
                return message
        raise AssertionError(f"it was closed ({self.code}) without {kind}")

    async def send(self, message: object) -> None:
        """Send JSON, or bytes."""
        data = message if isinstance(message, (bytes, str)) else json.dumps(message)
        event = BytesMessage(data) if isinstance(data, bytes) else TextMessage(data)
        await self._stream.send_all(self._ends.send(event))


def _made(parts: list[Any]) -> Any:
    if isinstance(parts[0], str):
        return json.loads("".join(parts))
    whole = b"".join(map(bytes, parts))
    width, height = struct.unpack("<II", whole[:8])
    return np.frombuffer(whole[8:], np.uint8).reshape(height, width, 3)


@asynccontextmanager
async def connected(
    viewer: Viewer, *, token: str | None = None, host: str | None = None, origin: str | None = None
) -> AsyncIterator[Socket]:
    """Ask for a viewer's WebSocket, for the length of a block."""
    own = viewer.address.removeprefix("http://").rstrip("/")
    query = f"?token={viewer.token if token is None else token}" if token != "" else ""
    headers = [] if origin is None else [(b"Origin", origin.encode())]
    async with await trio.open_tcp_stream("127.0.0.1", int(own.rpartition(":")[2])) as stream:
        socket = Socket(stream)
        await socket.begin(host or own, f"/scene{query}", headers)
        yield socket
