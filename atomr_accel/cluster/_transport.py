"""Connections between nodes: an interface, and TLS with certificates of both sides."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from ._errors import PeerRefused

if TYPE_CHECKING:
    import os

Handle = Callable[[trio.abc.Stream, frozenset[str] | None], Awaitable[None]]
"""Function that talks over a connection that came; it gets the names in the certificate, too."""

_MOST: Final = 1 << 18
"""Bytes that are read or encrypted at once, between two turns of trio."""

_RECORD: Final = 1 << 14
"""Most bytes of a record of TLS."""

_ANOTHER_NAME: Final = 62
"""OpenSSL's ``X509_V_ERR_HOSTNAME_MISMATCH``."""

_HANDSHAKE: Final = 5.0
"""Seconds that a handshake may take."""


class Transport(Protocol):
    """Maker of connections between nodes."""

    async def listen(self, handle: Handle, *, task_status: trio.TaskStatus[str]) -> None:
        """Take connections until cancelled; the status gets the address for others."""

    async def connect(self, node: str, address: str) -> trio.abc.Stream:
        """Return a connection to a node.

        Raises:
            OSError: there is none.
            PeerRefused: the other side is another node, or none of this cluster's.
        """


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """A node's certificate. ``atomr-accel node --make-certificates`` makes some.

    Attributes:
        authority: file of the certificate (PEM) by which all nodes of the cluster are signed.
        certificate: file of the node's certificate (PEM), whose alternative names include the
            node's name.
        key: file of its private key (PEM).
    """

    authority: str | os.PathLike[str]
    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]

    @classmethod
    def in_folder(cls, folder: str | os.PathLike[str], node: str) -> Credentials:
        """Return the credentials of a node in a folder that ``--make-certificates`` has filled."""
        place = Path(folder)
        return cls(place / "authority.pem", place / f"{node}.pem", place / f"{node}.key")

    def check(self, node: str) -> None:
        """Raise unless the certificate has the node's name, which others verify.

        Args:
            node: the node's name.

        Raises:
            OSError: the file cannot be read.
            ssl.SSLError: it has no certificate.
            ValueError: the certificate is of another node.
        """
        # In the standard library, only a handshake reads a certificate: one with itself.
        server, client = self.contexts()
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = client.wrap_bio(back, there, server_hostname=node)
        far = server.wrap_bio(there, back, server_side=True)
        for side in (near, far, near):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                if error.verify_code != _ANOTHER_NAME:
                    return  # others say what is wrong with it
                raise ValueError(
                    f"credentials must be those of node {node!r}, not {self.certificate} of "
                    "another node"
                ) from error

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts of a server and a client.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: a file has no certificate, or the key is another one's.
        """
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        return server, client


@final
class TlsStream(trio.abc.Stream):
    """TLS over a connection. It hands over all that has come at once, of many records.

    trio's own gives one record of 16 KiB at a time, and copies each several times, which is slow
    for large frames. The end of the stream may come without TLS saying so: frames tell whether
    they are complete. After a cancelled ``send_all`` it can only be closed.

    Args:
        stream: the connection, which passes into this one.
        context: certificates.
        node: the name of the other side for a client; None for a server.
    """

    def __init__(
        self, stream: trio.SocketStream, context: ssl.SSLContext, node: str | None = None
    ) -> None:
        plain = socket.socket(fileno=stream.socket.detach())
        try:
            plain.setblocking(False)
            self._tls = context.wrap_socket(
                plain,
                server_side=node is None,
                server_hostname=node,
                do_handshake_on_connect=False,
            )
        except BaseException:
            plain.close()
            raise
        self._buffer: Final = bytearray(_MOST)
        self._sending: Final = trio.StrictFIFOLock()

    async def _wait(self, error: OSError) -> None:
        """Wait until a call that has raised an error can be made again.

        Raises:
            trio.BrokenResourceError: it cannot.
            trio.ClosedResourceError: the stream was closed here.
        """
        if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
            reads = isinstance(error, ssl.SSLWantReadError)
            wait = trio.lowlevel.wait_readable if reads else trio.lowlevel.wait_writable
            await wait(self._tls)
        elif self._tls.fileno() < 0:
            raise trio.ClosedResourceError from None
        else:
            raise trio.BrokenResourceError from error

    async def do_handshake(self) -> None:
        """Agree on keys, and check certificates.

        Raises:
            trio.BrokenResourceError: the other side has gone, or refuses this one, or is refused.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                self._tls.do_handshake()
                return
            except OSError as error:
                await self._wait(error)

    def names(self) -> frozenset[str]:
        """Return the names in the other side's certificate."""
        found = self._tls.getpeercert()
        if not found:
            return frozenset()
        names: Any = found.get("subjectAltName", ())
        return frozenset(name for kind, name in names if kind == "DNS")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        async with self._sending:
            with memoryview(data) as view:
                at, turn = 0, _MOST  # between two turns of trio
                while at < len(view):
                    try:
                        at += self._tls.send(view[at : at + _MOST])
                    except OSError as error:
                        await self._wait(error)
                        turn = at + _MOST
                    else:
                        if at >= turn:
                            await trio.lowlevel.checkpoint()
                            turn = at + _MOST

    def send_nowait(self, data: bytearray) -> int:
        """Send as many bytes as there is room for, without a turn of trio; return their number.

        Call it only while ``send_all`` is not running, and send the rest by that.
        """
        with memoryview(data) as view:
            try:
                return self._tls.send(view[:_RECORD])
            except OSError:
                return 0  # send_all waits, or says what is wrong

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until there may be room."""
        await trio.lowlevel.wait_writable(self._tls)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return all bytes that have come, up to a number; none at the end."""
        most = _MOST if max_bytes is None else min(max_bytes, _MOST)
        size, waited = 0, False
        with memoryview(self._buffer) as view:
            while not size:
                try:
                    while size < most:
                        came = self._tls.recv_into(view[size:most])
                        size += came
                        if not came:
                            break
                    else:
                        came = 1
                    if not came and not size:
                        break
                except OSError as error:
                    if not size:
                        await self._wait(error)
                        waited = True
            data = bytes(view[:size])
        if not waited:
            await trio.lowlevel.checkpoint()
        return data

    async def aclose(self) -> None:
        """Close the connection; frames need no farewell."""
        if self._tls.fileno() >= 0:
            trio.lowlevel.notify_closing(self._tls)
            self._tls.close()
        await trio.lowlevel.checkpoint()


@final
class TlsTransport:
    """TLS 1.3 over TCP. Both sides show a certificate.

    Args:
        credentials: this node's.
        host: the address to listen on, also the one that others connect to.
        port: the port; 0 for a free one.
    """

    def __init__(self, credentials: Credentials, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server, self._client = credentials.contexts()
        self._host: Final = host
        self._port: Final = port

    async def listen(self, handle: Handle, *, task_status: trio.TaskStatus[str]) -> None:
        """Take connections until cancelled."""

        async def serve(stream: trio.SocketStream) -> None:
            secure = TlsStream(stream, self._server)
            try:
                with trio.fail_after(_HANDSHAKE):
                    await secure.do_handshake()
            except (trio.BrokenResourceError, trio.TooSlowError):
                await trio.aclose_forcefully(secure)  # of somebody without a certificate
                return
            except BaseException:
                await trio.aclose_forcefully(secure)
                raise
            try:
                await handle(secure, secure.names())
            finally:
                await trio.aclose_forcefully(secure)

        listeners = await trio.open_tcp_listeners(self._port, host=self._host)
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, serve, listeners)
            task_status.started(f"{self._host}:{port}")

    async def connect(self, node: str, address: str) -> trio.abc.Stream:
        """Return a connection to a node."""
        host, _, port = address.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        secure = TlsStream(stream, self._client, node)
        try:
            await secure.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(secure)
            cause = error.__cause__
            if isinstance(error, trio.BrokenResourceError) and isinstance(cause, ssl.SSLError):
                raise PeerRefused(f"{address} is not node {node!r}: {cause}") from error
            raise
        return secure
