"""HTTP/1.1 on trio: h11 does the protocol, and this module the sockets, limits and deadlines.

While a request is answered its connection is watched. When the client closes it, or takes nothing
for too long, the task that answers is cancelled at once.

A client that only ends its sending still gets its answer. TCP tells both ends alike, until
something is sent: the system of a client that has closed its connection resets it then.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import trio

from ..actors.nursery import PlainNursery
from ._openai import ApiError

if TYPE_CHECKING:
    from h11 import Request

_log: Final = logging.getLogger("atomr_accel.llm")

Headers = Sequence[tuple[str, str]]

_READ: Final = 1 << 16
_MOST_AHEAD: Final = 1 << 16
"""Bytes that a client may send ahead of its answer before they are no longer read."""
_SEND_BUFFER: Final = 1 << 16
"""Bytes that the system keeps for a client. With more, a slow one would be noticed late."""
_LINGER: Final = 1.0
"""Seconds for a client to take a refusal while it is still sending."""
_GRACE: Final = 0.2
"""Seconds from the end of a client's sending until it is asked whether it is still there.

It is asked again after twice that time, and so on.
"""
_CHUNKED: Final = b"\r\ntransfer-encoding: chunked\r\n"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: 0\r\nx-request-id: %b\r\n\r\n"
)
_ID: Final = "x-request-id"


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of a server of a language model.

    After status 408, 413 and 431 the connection is closed.

    Attributes:
        requests: choices that are generated or wait at a time; more get status 429.
        requests_per_key: the same for one key; None for no such limit.
        choices: the most choices of one request: its prompts times ``n``.
        connections: connections that are open at a time; more get status 503 and are closed.
        body: bytes of a request's body; larger ones get status 413.
        headers: bytes of a request's headers; larger ones get status 431.
        read_seconds: time for a request to arrive, headers and body each; slower ones get 408.
        idle_seconds: time that a connection may wait for its next request.
        write_seconds: time after which a client that takes nothing counts as gone.
    """

    requests: int = 1024
    requests_per_key: int | None = None
    choices: int = 128
    connections: int = 4096
    body: int = 8 << 20
    headers: int = 16 << 10
    read_seconds: float = 20.0
    idle_seconds: float = 75.0
    write_seconds: float = 20.0

    def __post_init__(self) -> None:
        for name in ("requests", "choices", "connections", "body", "headers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        if self.requests_per_key is not None and self.requests_per_key < 1:
            raise ValueError(f"requests_per_key must be at least 1, not {self.requests_per_key!r}")
        for name in ("read_seconds", "idle_seconds", "write_seconds"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be above zero, not {value!r}")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request.

    Attributes:
        method: such as ``"GET"``.
        path: without the query.
        headers: values by name, in lower case; of a repeated name, all, after commas.
        body: its bytes.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ClientGone(Exception):
    """The client has closed its connection, or takes nothing."""


Handler = Callable[["HttpExchange"], Awaitable[None]]
"""A function that answers a request."""


@final
class HttpExchange:
    """A request and its answer. What sends to the client raises ``ClientGone`` if that is gone.

    Attributes:
        request: the request.
        id: a name for it, which logs and the client have: the client's own, or a new one.
        key: whose request it is.
        begun: whether the answer has begun.
        finished: whether it was sent to its end.
    """

    def __init__(self, connection: _HttpConnection, request: HttpRequest) -> None:
        self._connection: Final = connection
        self.request: Final = request
        self.id: Final = _request_id(request.headers.get(_ID, ""))
        self.key = ""
        self.begun = False
        self.finished = False
        self._head = b""
        self._chunked = False
        self._streams = False  # whether its events may have a comment among them

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        h11 = self._connection.h11
        sized = [*headers, ("content-length", str(len(body)))]
        data = self._connection.head(status, sized)
        if self.request.method != "HEAD":
            data += self._connection.machine.send(h11.Data(data=body)) or b""
        self.begun = True
        await self._end(data)

    async def probe(self) -> None:
        """Send what a client passes over; its system resets the connection if it is gone."""
        if self._streams:
            await self.tell(b":\n\n")  # a comment among server-sent events
        elif not self.begun and self._connection.machine.their_http_version == b"1.1":
            # Any number of these may come before an answer. Clients of 1.0 know none.
            await self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin server-sent events. The head is sent with the next part."""
        self._head = self._connection.head(status, headers)
        self._chunked = _CHUNKED in self._head.lower()  # as h11 has it for the client's version
        self.begun = self._streams = True
        await trio.lowlevel.checkpoint()

    async def tell(self, data: bytes) -> None:
        """Send a part of an answer that has begun; not an empty one, which would end it."""
        if self._chunked:  # h11 does the same, and takes longer for it than all else of this
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        await self._connection.send(data)

    async def end(self) -> None:
        """End an answer that has begun."""
        self._streams = False
        head, self._head = self._head, b""
        await self._end(head)

    async def _end(self, data: bytes) -> None:
        connection = self._connection
        data += connection.machine.send(connection.h11.EndOfMessage()) or b""
        await connection.send(data)
        self.finished = True


@final
class _HttpConnection:
    """A connection, from its first byte to its last.

    Attributes:
        idle: a scope to cancel while no request has begun.
    """

    def __init__(self, stream: trio.SocketStream, front: HttpFront) -> None:
        import h11

        self.h11: Final = h11
        self._stream: Final = stream
        self._front: Final = front
        self._limits: Final = front.limits
        self.machine: Final = h11.Connection(
            h11.SERVER, max_incomplete_event_size=front.limits.headers
        )
        self.idle: trio.CancelScope | None = None
        self._given_id = ""  # of the request that is read
        self._sending = False  # whether the client is waited for

    async def serve(self) -> None:
        """Answer one request after the other."""
        h11 = self.h11
        try:
            while await self._serve_one():
                if self._front.draining or self.machine.our_state is h11.MUST_CLOSE:
                    break
                if self.machine.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    break
                self.machine.start_next_cycle()
        except (ClientGone, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except h11.LocalProtocolError:  # the answer broke off, which closing tells the client
            pass

    async def _serve_one(self) -> bool:
        try:
            request = await self._read()
        except ApiError as error:
            await self._refuse(error)
            return False
        if request is None:
            return False
        exchange = HttpExchange(self, request)
        async with PlainNursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope, exchange)
            await self._front.handle(exchange)
            nursery.cancel_scope.cancel()
        return exchange.finished

    async def _read(self) -> HttpRequest | None:
        """Return the next request, or None after the last one."""
        h11 = self.h11
        head: Request | None = None
        self._given_id = ""
        body: list[bytes] = []
        size = 0
        if not self.machine.trailing_data[0]:
            came = await self._wait()
            self.idle = None
            if not came:
                return None
        with trio.move_on_after(self._limits.read_seconds) as scope:
            while True:
                event = self._next()
                if event is h11.NEED_DATA:
                    if self.machine.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self.send(self.machine.send(go_on) or b"")
                    if not await self._receive():
                        return None
                elif isinstance(event, h11.Request):
                    head = event
                    given = [value for name, value in head.headers if name == _ID.encode()]
                    self._given_id = b", ".join(given).decode("latin-1")
                    self._check(head)
                    scope.deadline = trio.current_time() + self._limits.read_seconds
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                    size += len(event.data)
                    if size > self._limits.body:
                        raise self._too_large(size)
                elif isinstance(event, h11.EndOfMessage):
                    assert head is not None
                    return _made(head, b"".join(body))
                else:  # closed, or paused for what comes after an answer that there is none of
                    return None
        raise ApiError(408, f"a request must arrive within {self._limits.read_seconds:g} seconds")

    async def _wait(self) -> bool:
        """Wait for the first bytes of a request; return False if none come."""
        self.idle = trio.CancelScope(deadline=trio.current_time() + self._limits.idle_seconds)
        with self.idle:
            return await self._receive()
        return False

    async def _receive(self) -> bool:
        """Take some bytes; return False at their end."""
        data = await self._stream.receive_some(_READ)
        self.machine.receive_data(data)
        return bool(data)

    def _next(self) -> object:
        try:
            return self.machine.next_event()
        except self.h11.RemoteProtocolError as error:
            status = error.error_status_hint
            if status == 431:
                raise self._too_many() from None
            raise ApiError(status, f"the request must be HTTP/1.1: {error}") from None

    def _check(self, head: Request) -> None:
        """Refuse a version, and a body by its length, before it is read."""
        if head.http_version not in (b"1.0", b"1.1"):
            version = head.http_version.decode("ascii")
            raise ApiError(505, f"the request must be HTTP/1.1, not {version}")
        # The target's length counts too; h11 holds the limit where the end has not come yet.
        size = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
        if size > self._limits.headers:
            raise self._too_many()
        for name, value in head.headers:
            if name == b"content-length" and int(value) > self._limits.body:
                raise self._too_large(int(value))

    def _too_many(self) -> ApiError:
        return ApiError(431, f"headers must have at most {self._limits.headers} bytes")

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            413, f"the body must have at most {self._limits.body} bytes, not {size} or more"
        )

    async def _refuse(self, error: ApiError) -> None:
        """Answer a request that was not read to its end, and close."""
        h11 = self.h11
        if self.machine.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = error.body()
        headers = [
            ("content-type", "application/json"),
            ("connection", "close"),
            ("content-length", str(len(body))),
            (_ID, _request_id(self._given_id)),
        ]
        data = self.head(error.status, headers)
        data += self.machine.send(h11.Data(data=body)) or b""
        data += self.machine.send(h11.EndOfMessage()) or b""
        await self.send(data)
        await _linger(self._stream)

    async def _watch(self, scope: trio.CancelScope, exchange: HttpExchange) -> None:
        """Cancel the answer when the client is gone."""
        ahead = 0
        try:
            while ahead <= _MOST_AHEAD:
                data = await self._stream.receive_some(_READ)
                if not data:
                    await self._watch_silent(exchange)
                    break
                ahead += len(data)
                self.machine.receive_data(data)
            else:
                return
        except (trio.BrokenResourceError, ClientGone):
            pass
        scope.cancel()

    async def _watch_silent(self, exchange: HttpExchange) -> None:
        """Return when a client that has ended its sending is gone."""
        # Beside an end of sending, which stays readable, only errors and hang-ups are waited for.
        with select.epoll() as events:
            events.register(self._stream.socket.fileno(), 0)
            grace = _GRACE
            while True:
                with trio.move_on_after(grace):
                    await trio.lowlevel.wait_readable(events.fileno())
                    return
                if not self._sending:  # which tells as much
                    await exchange.probe()
                grace *= 2

    def head(self, status: int, headers: Headers) -> bytes:
        """Return the head of an answer."""
        kept = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
        if self._front.draining:
            kept.append((b"connection", b"close"))
        reason = _REASONS.get(status, "").encode()
        made = self.h11.Response(status_code=status, headers=kept, reason=reason)
        return self.machine.send(made) or b""

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            sent = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ClientGone from error
        if sent == len(data):  # as a rule: a deadline would cost more than the write
            return
        self._sending = True
        with trio.move_on_after(self._limits.write_seconds) as scope:
            try:
                await self._stream.send_all(memoryview(data)[sent:])
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ClientGone from error
            finally:
                self._sending = False
        if scope.cancelled_caught:
            raise ClientGone


async def _linger(stream: trio.SocketStream) -> None:
    """Let a client take its answer: closing with bytes unread would have the system drop it."""
    with trio.move_on_after(_LINGER), suppress(trio.BrokenResourceError):
        await stream.send_eof()
        while await stream.receive_some(_READ):
            pass


def _request_id(given: str) -> str:
    """Return a client's own id, if it can be repeated, or a new one."""
    if 0 < len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return f"req_{secrets.token_hex(16)}"


def _made(head: Request, body: bytes) -> HttpRequest:
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    path, _, _ = head.target.decode("ascii", "replace").partition("?")
    return HttpRequest(head.method.decode("ascii"), path, headers, body)


@final
class HttpFront:
    """A server of HTTP.

    Args:
        handle: answers a request. An error is logged, and ends the connection.
        limits: of connections and requests.

    Attributes:
        draining: whether no further requests are taken.
        connections: connections that are open.
    """

    def __init__(self, handle: Handler, limits: ServerLimits) -> None:
        self.handle: Final = handle
        self.limits: Final = limits
        self.draining = False
        self._open: Final[set[_HttpConnection]] = set()
        self._empty = trio.Event()
        self._accepting = trio.CancelScope()
        self._all = trio.CancelScope()

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._open)

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until cancelled, or drained."""
        with self._all:
            async with PlainNursery() as answering:
                with self._accepting:
                    await trio.serve_listeners(
                        self._serve, list(listeners), handler_nursery=answering
                    )

    async def drain(self) -> None:
        """Take no more connections and requests, and wait until those in progress are answered."""
        self.draining = True
        self._accepting.cancel()
        for connection in self._open:
            if connection.idle is not None:
                connection.idle.cancel()
        while self._open:
            self._empty = trio.Event()
            await self._empty.wait()
        await trio.lowlevel.checkpoint()

    def cut_off(self) -> None:
        """Close all connections at once."""
        self.draining = True
        self._all.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            if len(self._open) >= self.limits.connections or self.draining:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(_FULL % _request_id("").encode())
                await _linger(stream)
                return
            with suppress(OSError):  # the client may have gone already
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            connection = _HttpConnection(stream, self)
            self._open.add(connection)
            try:
                await connection.serve()
            except Exception:  # noqa: BLE001 (logged: others go on)
                _log.exception("a connection has failed")
            finally:
                self._open.discard(connection)
                if not self._open:
                    self._empty.set()


_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
