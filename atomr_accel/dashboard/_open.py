"""``open_dashboard``: serve the page for the length of a block."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, final

from .._errors import said_of
from ..actors import ActorSystem
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import flag
from ._feed import Feed
from ._running import RunningDashboard, announced, running, started_at
from ._state import command
from .site import open_site

if TYPE_CHECKING:
    from ..telemetry import HasStatistics, NvmlMonitor

_log: Final = logging.getLogger("atomr_accel.dashboard")


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
    public, announce = flag(public, "public"), flag(announce, "announce")
    if patterns is not None:
        check_instance("patterns", patterns, Mapping)
    if nvml is not None and not hasattr(nvml, "watch_xids"):
        raise TypeError(f"nvml must be what open_nvml gives, not {said_of(nvml)}")
    _check_patterns(patterns or {})
    feed = Feed(system, nvml, patterns)

    def routes(token: str) -> list[Any]:
        from ._web import routes_of

        return routes_of(feed, token, None if public else running)

    async with PlainNursery() as nursery:
        with ExitStack() as stack:
            async with open_site(
                "dashboard", __package__, routes, host=host, port=port, public=public, names=names
            ) as site:
                dashboard = Dashboard.construct(site.address, site.token)
                if announce:
                    _announce(stack, system, dashboard)
                stack.enter_context(system.instrumented(feed.history))
                nursery.start_soon(feed.run)
                try:
                    yield dashboard
                finally:
                    feed.close()
        nursery.cancel_scope.cancel()


def _check_patterns(patterns: Mapping[str, HasStatistics]) -> None:
    for name, pattern in patterns.items():
        check_instance("a pattern's name", name, str)
        read = None if isinstance(pattern, type) else getattr(pattern, "statistics", None)
        if not callable(read) or not is_dataclass(read()):
            raise TypeError(
                f"pattern {name!r} must have statistics() that return a dataclass, as a batcher "
                f"has, not {pattern!r}"
            )


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
