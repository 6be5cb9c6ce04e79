"""Metrics for Prometheus: a collector for its client, and a page to scrape."""

from __future__ import annotations

import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import trio

from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..wire.options import count
from ._metrics import require_metrics
from ._packages import package
from .host_header import MISDIRECTED, REFUSAL, host_names, is_here

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    import prometheus_client

    from ._catalogue import Metric, Point
    from ._metrics import Metrics

_log = logging.getLogger("atomr_accel.telemetry")

_PATH: Final = b"/metrics"
_RECEIVE: Final = 1 << 14
_MOST_CONNECTIONS: Final = 64
_FIRST_SECONDS: Final = 10.0
"""Seconds after which a connection without a request is closed."""

_IDLE_SECONDS: Final = 90.0
"""Seconds after which an idle connection is closed; most scrapes are less far apart."""

_TEXT: Final = [("Content-Type", "text/plain")]


@final
class PrometheusCollector:
    """Collector for a registry of prometheus_client: ``REGISTRY.register(...)``.

    Args:
        metrics: the metrics to collect, in any thread.
    """

    def __init__(self, metrics: Metrics) -> None:
        require_metrics(metrics)
        self._metrics: Final = metrics

    def describe(self) -> list[prometheus_client.Metric]:
        """Return an empty list, because the metrics depend on the observed objects."""
        return []

    def collect(self) -> Iterator[prometheus_client.Metric]:
        """All metrics that have values.

        Raises:
            LibraryMissing: prometheus_client is not installed.
        """
        core = package("prometheus_client.core", "prometheus-client")
        for metric, points in self._metrics.collect():
            yield _family(core, metric, points)


def _family(core: Any, metric: Metric, points: tuple[Point, ...]) -> Any:
    kinds = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    family = kinds[metric.kind](metric.full_name, metric.help, labels=metric.labels)
    for point in points:
        if metric.kind == "histogram":
            counts = itertools.accumulate(point.buckets)
            bounds = (*map(repr, metric.bounds), "+Inf")
            buckets = list(zip(bounds, counts, strict=True))
            family.add_metric(point.labels, buckets, sum_value=point.value)
        else:
            family.add_metric(point.labels, point.value)
    return family


# --- a page to scrape ----------------------------------------------------------------------


@opens
async def serve_prometheus(
    metrics: Metrics, *, host: str = "127.0.0.1", port: int = 0, names: Iterable[str] = ()
) -> AsyncIterator[int]:
    """Serve ``http://host:port/metrics`` for the length of an ``async with`` block.

    The server runs in the program's trio loop and answers scrapes only. All programs that reach the
    address can read the metrics, without password or encryption. Pages in a browser cannot, because
    a request must name this machine by an address, as ``localhost``, or by one of ``names``.

    It has at most 64 connections. Beyond that, a new connection replaces the one that has waited
    longest for a request.

    Args:
        metrics: the metrics to serve.
        host: the address to listen on. By default, only programs of this machine reach it.
        port: the port; 0 for a free one.
        names: host names that scrapers may use, besides ``localhost`` and addresses.

    Yields:
        The port.

    Raises:
        LibraryMissing: h11 or prometheus_client is not installed.
        OSError: the address cannot be listened on.
    """
    check_instance("host", host, str)
    port = count(port, "port", 0, 65535)
    page = _Page(metrics, host_names(names))
    async with PlainNursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host=host)
        nursery.start_soon(partial(trio.serve_listeners, page.serve, listeners))
        try:
            yield listeners[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()


@final
class _Page:
    def __init__(self, metrics: Metrics, names: frozenset[str]) -> None:
        self._names = names
        self._h11 = package("h11", "h11")
        self._exposition = package("prometheus_client.exposition", "prometheus-client")
        self._registry = package("prometheus_client", "prometheus-client").CollectorRegistry()
        self._registry.register(PrometheusCollector(metrics))
        self._connections = 0
        self._idle: dict[trio.CancelScope, None] = {}  # what waits for a request, longest first

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection, one after the other."""
        if self._connections >= _MOST_CONNECTIONS:
            if not self._idle:
                await trio.aclose_forcefully(stream)
                return
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.cancel()
        self._connections += 1
        h11 = self._h11
        try:
            connection = h11.Connection(h11.SERVER)
            seconds = _FIRST_SECONDS
            while connection.our_state is h11.IDLE:
                with trio.move_on_after(seconds) as scope:
                    await self._answer_next(connection, stream, scope)
                    if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
                        connection.start_next_cycle()
                if scope.cancelled_caught:
                    break
                seconds = _IDLE_SECONDS
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            pass  # the client has left
        except Exception:  # noqa: BLE001 (as below: it would end the server, and the program)
            _log.exception("a connection failed")
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _answer_next(
        self, connection: Any, stream: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        """Answer the next request; its body is ignored.

        Args:
            connection: h11's connection.
            stream: the stream of the connection.
            scope: cancelled while no request has arrived, to make room for another connection.
        """
        h11 = self._h11
        request = None
        try:
            self._idle[scope] = None
            try:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(_RECEIVE))
            finally:
                self._idle.pop(scope, None)
            if not isinstance(event, h11.Request):  # the connection is over
                return
            request = event
            status, headers, body = self._answer(request)
            while isinstance(connection.next_event(), h11.Data):
                pass
            if connection.their_state is not h11.DONE:
                headers = [*headers, ("Connection", "close")]  # the rest of it is not waited for
        except h11.RemoteProtocolError as error:
            status, headers, body = error.error_status_hint, [], b""
            if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
        headers = [*headers, ("Content-Length", str(len(body)))]
        sent = connection.send(h11.Response(status_code=status, headers=headers))
        if request is None or request.method != b"HEAD":
            sent += connection.send(h11.Data(data=body))
        await stream.send_all(sent + connection.send(h11.EndOfMessage()))

    def _answer(self, request: Any) -> tuple[int, list[tuple[str, str]], bytes]:
        hosts = [value.decode("latin-1") for name, value in request.headers if name == b"host"]
        if not is_here(hosts, self._names):
            return MISDIRECTED, _TEXT, f"{REFUSAL}\n".encode()
        if request.target.partition(b"?")[0] != _PATH:
            return 404, _TEXT, b"metrics are at /metrics\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, [("Allow", "GET, HEAD")], b""
        accepted = b",".join(value for name, value in request.headers if name == b"accept")
        try:
            encode, content_type = self._exposition.choose_encoder(accepted.decode("latin-1"))
            return 200, [("Content-Type", content_type)], encode(self._registry)
        except Exception:  # noqa: BLE001 (the program goes on)
            _log.exception("metrics cannot be told")
            return 500, _TEXT, b"see the log\n"
