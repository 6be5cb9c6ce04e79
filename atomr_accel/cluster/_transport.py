"""Connections between nodes: an interface, and TLS with certificates of both sides."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

import trio

from ._errors import PeerRefused

if TYPE_CHECKING:
    import os

Handle = Callable[[trio.abc.Stream, frozenset[str] | None], Awaitable[None]]
"""Function that talks over a connection that came; it gets the names in the certificate, too."""

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
            secure = trio.SSLStream(stream, self._server, server_side=True)
            try:
                with trio.fail_after(_HANDSHAKE):
                    await secure.do_handshake()
            except (trio.BrokenResourceError, trio.TooSlowError):
                await trio.aclose_forcefully(stream)  # of somebody without a certificate
                return
            found = secure.getpeercert()["subjectAltName"]
            await handle(secure, frozenset(name for kind, name in found if kind == "DNS"))

        listeners = await trio.open_tcp_listeners(self._port, host=self._host)
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, serve, listeners)
            task_status.started(f"{self._host}:{port}")

    async def connect(self, node: str, address: str) -> trio.abc.Stream:
        """Return a connection to a node."""
        host, _, port = address.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        secure = trio.SSLStream(stream, self._client, server_hostname=node)
        try:
            await secure.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            cause = error.__cause__
            if isinstance(error, trio.BrokenResourceError) and isinstance(cause, ssl.SSLError):
                raise PeerRefused(f"{address} is not node {node!r}: {cause}") from error
            raise
        return secure
