"""``open_dashboard``: serve the page for the length of a block."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors import ActorSystem
from ..actors._blocks import opens
from ..actors._nursery import PlainNursery
from ..actors._util import NoPublicConstructor, check_instance
from ._feed import Feed
from ._running import RunningDashboard, announced, started_at
from ._state import command

if TYPE_CHECKING:
    from ..telemetry import NvmlMonitor

_log: Final = logging.getLogger("atomr_accel.dashboard")

_STUCK_MS: Final = 10_000
"""A page that takes nothing for so long has gone, even if nobody has said so."""

_GRACE: Final = 1.0
"""Seconds that answers may still take when the block is left."""


@final
class Dashboard(metaclass=NoPublicConstructor):
    """A dashboard that is open. `open_dashboard` makes one.

    Attributes:
        url: the page's address, with the token. The token is in the fragment, which browsers do
            not send, so that it is in nobody's log.
        address: the same without the token, such as ``"http://127.0.0.1:40123/"``.
        token: what requests to ``/state`` and ``/events`` need, as ``Authorization: Bearer TOKEN``
            or as the query ``token``.
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
) -> AsyncIterator[Dashboard]:
    """Serve a live page about a system and its devices until the block is left.

    It shows, and changes nothing. Its server is a task of this ``trio.run``.

    Args:
        system: what to show: what `open_system` gives, or ``device.system`` of `open_device`.
        host: the address to listen at. By default none but programs on this machine reach it.
        port: the port; 0 for any that is free.
        public: allow a ``host`` that other machines reach. What goes over the network there,
            the token too, can be read on its way; a tunnel, such as ``ssh -L``, is better.
        names: host names by which browsers may call it, beside ``localhost`` and addresses.
        announce: have `running` tell of it.
        nvml: what `open_nvml` of ``atomr_accel.telemetry`` gives, to show what GPUs say of
            themselves, and Xids as events.

    Raises:
        LibraryMissing: Starlette or Hypercorn is not installed.
        ValueError: ``host`` is reached from other machines, and ``public`` is not said.
        OSError: the port is taken.
    """
    check_instance("a dashboard's system", system, ActorSystem)
    _check_host(host, public=public)
    try:
        from hypercorn.config import Config
        from hypercorn.trio import serve

        from ._web import application
    except ModuleNotFoundError as error:
        raise LibraryMissing(
            f"a dashboard needs {error.name}: {install_command('dashboard')}",
            library=str(error.name),
        ) from error
    token = secrets.token_urlsafe(32)
    feed = Feed(system, nvml)
    app: Any = application(feed, token, frozenset(name.lower() for name in names))
    config = Config()
    config.errorlog = _log
    config.graceful_timeout = _GRACE
    config.include_server_header = False
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(host, port))
        dashboard = Dashboard._create(_address(listener), token)
        if announce:
            _announce(stack, system, dashboard)
        stack.enter_context(system.instrumented(feed.history))
        async with PlainNursery() as nursery:
            nursery.start_soon(feed.run)
            left = trio.Event()

            async def serve_on() -> None:
                while not left.is_set():
                    # Hypercorn owns the descriptor that it is given.
                    config.bind = f"fd://{os.dup(listener.fileno())}"
                    try:
                        await serve(app, config, shutdown_trigger=left.wait, mode="asgi")
                    except Exception:  # noqa: BLE001 (logged: the program goes on)
                        _log.exception("%r has failed, and is served again", dashboard)
                        await trio.sleep(1)

            async with PlainNursery() as serving:
                serving.start_soon(serve_on)
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
            f"a dashboard's host is an address of this machine, or 'localhost', got {host!r}"
        ) from None
    if not local and not public:
        raise ValueError(
            f"other machines reach {host}, and what a dashboard tells is not encrypted; leave it "
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
    """A text without the unpaired surrogates that stand for bytes of a command line."""
    return text.encode("utf-8", "replace").decode("utf-8")
