"""``open_dashboard``: serve the page for the length of a block."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors import ActorSystem
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import count
from ._feed import Feed
from ._running import RunningDashboard, announced, running, started_at
from ._state import command

if TYPE_CHECKING:
    from ..telemetry import HasStatistics, NvmlMonitor

_log: Final = logging.getLogger("atomr_accel.dashboard")

_STUCK_MS: Final = 10_000
"""Milliseconds after which a page that receives no data counts as gone."""

_GRACE: Final = 1.0
"""Seconds that answers may still take when the block is left."""


@final
class Dashboard(metaclass=NoPublicConstructor):
    """A dashboard that is open. `open_dashboard` makes one.

    Attributes:
        url: the page's address, with the token. The token is in the fragment, which browsers do not
            send, so it does not get into logs.
        address: the same without the token, such as ``"http://127.0.0.1:40123/"``.
        token: the token for requests to ``/state`` and ``/events``, as ``Authorization: Bearer
            TOKEN`` or as the query ``token``.
    """

    _made_by = "open_dashboard(system)"

    def __init__(self, address: str, token: str) -> None:
        self.address: Final = address
        self.token: Final = token
        self.url: Final = f"{address}#{token}"

    def __repr__(self) -> str:
        return f"<Dashboard {self.address}>"  # tokens do not belong in logs


@opens
async def open_dashboard(
    system: ActorSystem,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    public: bool = False,
    names: Iterable[str] = (),
    announce: bool = True,
    nvml: NvmlMonitor | None = None,
    patterns: Mapping[str, HasStatistics] | None = None,
) -> AsyncIterator[Dashboard]:
    """Serve a live page about a system and its devices until the block is left.

    The page only shows the system, and cannot change it. Its server is a task of this ``trio.run``,
    with at most 64 connections. Beyond that, a new connection replaces the oldest one that is not
    being sent data of the program.

    Args:
        system: the system to show, from `open_system`, or ``device.system`` of `open_device`.
        host: the address to listen on. By default, only programs on this machine reach it.
        port: the port; 0 for a free one.
        public: allow a ``host`` that other machines reach. The data and the token then cross the
            network without encryption; a tunnel, such as ``ssh -L``, is better.
        names: host names that browsers may use, besides ``localhost`` and addresses.
        announce: whether `running` lists it.
        nvml: a monitor from `open_nvml` of ``atomr_accel.telemetry``, to show readings of GPUs, and
            Xids as events.

        patterns: patterns to show by name, such as ``{"generate": batcher}``: objects whose
            ``statistics()`` returns a dataclass.

    Raises:
        TypeError: a pattern has no ``statistics()`` that returns a dataclass.
        LibraryMissing: Starlette or Hypercorn is not installed.
        ValueError: other machines reach ``host``, and ``public`` is False.
        OSError: the port is taken.
    """
    check_instance("a dashboard's system", system, ActorSystem)
    port = count(port, "port", 0, 65535)
    _check_host(host, public=public)
    _check_patterns(patterns or {})
    try:
        from hypercorn.config import Config

        from ._connections import Server
        from ._web import application
    except ModuleNotFoundError as error:
        raise LibraryMissing(
            f"a dashboard needs {error.name}: {install_command('dashboard')}",
            library=str(error.name),
        ) from error
    token = secrets.token_urlsafe(32)
    feed = Feed(system, nvml, patterns)
    others = None if public else running
    app: Any = application(feed, token, frozenset(name.lower() for name in names), others)
    config = Config()
    config.errorlog = _log
    config.graceful_timeout = _GRACE
    config.include_server_header = False
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(host, port))
        dashboard = Dashboard.construct(_address(listener), token)
        if announce:
            _announce(stack, system, dashboard)
        stack.enter_context(system.instrumented(feed.history))
        async with PlainNursery() as nursery:
            nursery.start_soon(feed.run)
            left = trio.Event()
            async with PlainNursery() as serving:
                serving.start_soon(Server(app, config).run, listener, left)
                try:
                    yield dashboard
                finally:
                    feed.close()
                    left.set()
            nursery.cancel_scope.cancel()


def _check_host(host: str, *, public: bool) -> None:
    check_instance("a dashboard's host", host, str)
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ValueError(
            f"a dashboard's host must be an address of this machine, or 'localhost', not {host!r}"
        ) from None
    if not local and not public:
        raise ValueError(
            f"other machines reach {host}, and what a dashboard tells is not encrypted; leave it "
            "at 127.0.0.1 and use a tunnel (ssh -L), or say public=True"
        )


def _check_patterns(patterns: Mapping[str, HasStatistics]) -> None:
    for name, pattern in patterns.items():
        check_instance("a pattern's name", name, str)
        read = None if isinstance(pattern, type) else getattr(pattern, "statistics", None)
        if not callable(read) or not is_dataclass(read()):
            raise TypeError(
                f"pattern {name!r} must have statistics() that return a dataclass, as a batcher "
                f"has, not {pattern!r}"
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


def _announce(stack: ExitStack, system: ActorSystem, dashboard: Dashboard) -> None:
    pid = os.getpid()
    ours = RunningDashboard(
        pid=pid,
        started=started_at(pid) or 0,
        system=_in_unicode(system.name),
        command=_in_unicode(command()),
        url=dashboard.address,
        token=dashboard.token,
    )
    try:
        stack.enter_context(announced(ours))
    except OSError as error:  # the page is there all the same
        _log.warning("%r is not announced to other programs of this user: %s", dashboard, error)


def _in_unicode(text: str) -> str:
    """Return a text without the unpaired surrogates that stand for bytes of a command line."""
    return text.encode("utf-8", "replace").decode("utf-8")
