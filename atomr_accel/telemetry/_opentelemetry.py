"""Metrics for OpenTelemetry, as instruments that are read when its reader collects."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Final, final

from .. import __version__
from ._catalogue import METRICS, Metric, Point
from ._metrics import require_metrics
from ._packages import package

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from opentelemetry.metrics import MeterProvider

    from ._metrics import Metrics

_SCOPE: Final = "atomr_accel"

_FRESH_SECONDS: Final = 0.2
"""Seconds for which collected values are reused, because instruments are read one by one."""


def export_to_opentelemetry(metrics: Metrics, provider: MeterProvider | None = None) -> None:
    """Make OpenTelemetry instruments of all metrics there are, once for a provider.

    Their names are those of the catalogue after ``atomr_accel.``. They are observable: a reader
    that collects has them read in trio's thread, and nothing is done in between. Of a histogram,
    which cannot be observable, there are three counters: ``.bucket``, cumulative with the attribute
    ``le`` as in Prometheus, ``.sum`` and ``.count``.

    Args:
        metrics: what to export.
        provider: whose instruments they are to be; by default, the global one.

    Raises:
        LibraryMissing: opentelemetry-api is not installed.
    """
    require_metrics(metrics)
    api = package("opentelemetry.metrics", "opentelemetry-api")
    meter = (provider or api.get_meter_provider()).get_meter(_SCOPE, __version__)
    source = _Source(metrics)
    for metric in METRICS.values():
        name = f"{_SCOPE}.{metric.name}"
        if metric.kind == "histogram":
            for part, make, unit in (
                (".bucket", _buckets, "1"),
                (".count", _count, "1"),
                (".sum", _value, metric.unit),
            ):
                meter.create_observable_counter(
                    name + part, [_callback(api, source, metric, make)], unit, metric.help
                )
        else:
            create = {
                "counter": meter.create_observable_counter,
                "gauge": meter.create_observable_gauge,
            }[metric.kind]
            create(name, [_callback(api, source, metric, _value)], metric.unit, metric.help)


@final
class _Source:
    """The metrics, collected once for all instruments that are read at one time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._lock = threading.Lock()
        self._points: dict[str, tuple[Point, ...]] = {}
        self._at = -1.0

    def points(self, metric: Metric) -> tuple[Point, ...]:
        with self._lock:
            if time.monotonic() - self._at > _FRESH_SECONDS:
                self._points = {one.name: points for one, points in self._metrics.collect()}
                self._at = time.monotonic()
            return self._points.get(metric.name, ())


def _callback(api: ModuleType, source: _Source, metric: Metric, make: Any) -> Any:
    def observe(_options: object) -> Iterable[Any]:
        for point in source.points(metric):
            attributes = dict(zip(metric.labels, point.labels, strict=True))
            for value, more in make(metric, point):
                yield api.Observation(value, {**attributes, **more})

    return observe


def _value(_metric: Metric, point: Point) -> Iterator[tuple[float, dict[str, str]]]:
    yield point.value, {}


def _count(_metric: Metric, point: Point) -> Iterator[tuple[float, dict[str, str]]]:
    yield sum(point.buckets), {}


def _buckets(metric: Metric, point: Point) -> Iterator[tuple[float, dict[str, str]]]:
    bounds = (*map(repr, metric.bounds), "+Inf")
    for bound, count in zip(bounds, itertools.accumulate(point.buckets), strict=True):
        yield count, {"le": bound}
