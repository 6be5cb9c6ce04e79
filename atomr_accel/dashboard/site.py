"""Servers of pages, which listen for the length of a block."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..telemetry.host_header import host_names
from ..wire.options import count

_log: Final = logging.getLogger("atomr_accel.dashboard")

_STUCK_MS: Final = 10_000
"""Milliseconds after which a page that receives no data counts as gone."""

_GRACE: Final = 1.0
"""Seconds that answers may still take when the block is left."""


_LARGEST_MESSAGE: Final = 1 << 16
"""Bytes of a message that a page may send through a WebSocket."""


@dataclass(frozen=True, slots=True)
class Site:
    """A server that listens.

    Attributes:
        address: the page's address, without the token.
        token: the token that requests need.
    """

    address: str
    token: str = field(repr=False)


@asynccontextmanager
async def open_site(
    what: str,
    package: str,
    routes: Callable[[str], list[Any]],
    *,
    host: str,
    port: int,
    public: bool,
    names: Iterable[str],
) -> AsyncIterator[Site]:
    """Serve a page until the block is left.

    The files ``index.html``, ``style.css`` and ``page.js`` need no token; all else does, WebSockets
    included. A page that takes no data is given up after ten seconds. ``port`` 0 is a free one, and
    ``public`` allows a ``host`` that other machines reach. Browsers may use addresses,
    ``localhost`` and ``names``.
    """
    port = count(port, "port", 0, 65535)
    _check_host(what, host, public=public)
    token = secrets.token_urlsafe(32)
    try:
        from hypercorn.config import Config

        from ._connections import Server
        from ._guard import Guard

        app = Guard(package, routes(token), token, host_names(names))
    except ModuleNotFoundError as error:
        raise LibraryMissing(
            f"a {what} needs {error.name}: {install_command('dashboard')}",
            library=str(error.name),
        ) from error
    config = Config()
    config.errorlog = _log
    config.graceful_timeout = _GRACE
    config.include_server_header = False
    config.websocket_max_message_size = _LARGEST_MESSAGE
    with _listen(host, port) as listener:
        async with PlainNursery() as serving:
            left = trio.Event()
            serving.start_soon(Server(app, config).run, listener, left)
            try:
                yield Site(_address(listener), token)
            finally:
                left.set()


def _check_host(what: str, host: str, *, public: bool) -> None:
    check_instance(f"a {what}'s host", host, str)
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ValueError(
            f"a {what}'s host must be an address of this machine, or 'localhost', not {host!r}"
        ) from None
    if not local and not public:
        raise ValueError(
            f"other machines reach {host}, and what a {what} tells is not encrypted; leave it "
            "at 127.0.0.1 and use a tunnel (ssh -L), or say public=True"
        )


def _listen(host: str, port: int) -> socket.socket:
    address = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    # The connections have it from the listener. Hypercorn waits, whatever happens, until all it
    # sends is taken: without this a page that takes nothing would hold up the end of the block.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_MS)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
