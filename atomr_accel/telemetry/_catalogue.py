"""Metrics of the package in one table, from which exporters and documentation are made."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from operator import add
from typing import TYPE_CHECKING, Final, Literal, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

PREFIX: Final = "atomr_accel_"

_DECADES: Final = range(-6, 1)
SECONDS: Final = (*(m * 10.0**e for e in _DECADES for m in (1, 2.5, 5)), 10.0, 25.0, 50.0, 100.0)
"""Buckets of durations: from a microsecond to minutes."""

ITEMS: Final = tuple(float(1 << n) for n in range(13))
"""Buckets of sizes: powers of two up to 4096."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: its name without the prefix, and without the ``_total`` at the end of Prometheus's
            counters.
        kind: ``"counter"`` only grows, and starts again from 0 when its source restarts;
            ``"gauge"`` is a state; ``"histogram"`` counts durations or sizes by buckets.
        labels: the names of its labels.
        help: one sentence.
        bounds: the upper bounds of a histogram's buckets, inclusive; the last bucket has none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Name of the metric in Prometheus."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def unit(self) -> str:
        """Unit by the end of the name, in UCUM's terms, such as ``"s"`` or ``"By"``, or ``"1"``."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "1")


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric for some labels.

    Attributes:
        labels: the values of the labels, in the order of the metric's names.
        value: the value; for a histogram the sum of all observations.
        buckets: for a histogram the number of observations in each bucket; else empty.
    """

    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...] = ()


_UNITS: Final = {
    "bytes_per_second": "By/s",
    "seconds": "s",
    "bytes": "By",
    "watts": "W",
    "joules": "J",
    "celsius": "Cel",
    "hertz": "Hz",
}

_D: Final = ("system", "device")
_G: Final = ("gpu",)
_P: Final = ("pattern", "name", "part")
_S: Final = ("system", "path", "kind")

_TABLE: Final = (
    # --- ops, counted as they end ---
    Metric("ops", "counter", (*_D, "library", "outcome"), "Ops that have ended, by outcome."),
    Metric(
        "op_seconds",
        "histogram",
        (*_D, "library"),
        "Time from the submission of an op to its answer, if it is done.",
        SECONDS,
    ),
    Metric(
        "op_queued_seconds",
        "histogram",
        (*_D, "library"),
        "Time from the submission of an op until it was sent to the host, if it is done.",
        SECONDS,
    ),
    Metric(
        "op_device_seconds",
        "histogram",
        (*_D, "library"),
        "Time for which the device executed an op, if it is measured.",
        SECONDS,
    ),
    Metric("transferred_bytes", "counter", (*_D, "op"), "Bytes that ops of the memory lane moved."),
    Metric("batches", "counter", _D, "Batches that had ops."),
    Metric("batch_ops", "counter", _D, "Ops that were submitted in batches."),
    Metric("replays", "counter", _D, "Recordings that were replayed."),
    # --- a device at one moment ---
    Metric(
        "device_info",
        "gauge",
        (*_D, "name", "backend", "isolation", "model", "uuid"),
        "Always 1; the labels describe the device.",
    ),
    Metric("device_state", "gauge", (*_D, "state"), "1 for the device's present state, else 0."),
    Metric("generation", "gauge", _D, "The device's present generation."),
    Metric("ops_in_flight", "gauge", _D, "Ops that have not been answered."),
    Metric(
        "lane_ops", "gauge", (*_D, "lane", "state"), "Ops of a lane that are in flight or queued."
    ),
    Metric(
        "lane_frames",
        "counter",
        (*_D, "lane"),
        "Frames that a lane has sent, in the present generation.",
    ),
    Metric("memory_bytes", "gauge", (*_D, "state"), "The device's memory, by use."),
    Metric("memory_reserved_bytes", "gauge", _D, "All of the device's slabs."),
    Metric("memory_limit_bytes", "gauge", _D, "The limit for all slabs, if there is one."),
    Metric("memory_largest_free_bytes", "gauge", _D, "The largest free piece of plain memory."),
    Metric(
        "memory_fragmentation_ratio",
        "gauge",
        _D,
        "The share of plain free memory outside the largest free piece of its slab.",
    ),
    Metric("memory_slabs", "gauge", _D, "Slabs. Each has a file descriptor."),
    Metric("pinned_bytes", "gauge", (*_D, "state"), "Page-locked memory for arrays."),
    Metric("out_of_memory", "counter", _D, "Requests that found no memory."),
    Metric(
        "plan_builds",
        "counter",
        (*_D, "library", "source"),
        "Plans and kernels that were built, or loaded from disk.",
    ),
    Metric("cache_entries", "gauge", (*_D, "cache"), "Call templates or plans that are kept."),
    Metric("cache_limit", "gauge", (*_D, "cache"), "Largest number of entries of a cache."),
    Metric(
        "cache_lookups",
        "counter",
        (*_D, "cache", "result"),
        "Calls that found what they need prepared (hit), or did not (miss).",
    ),
    Metric("cache_evictions", "counter", (*_D, "cache"), "Entries that were dropped."),
    Metric("workspace_bytes", "gauge", (*_D, "library"), "Scratch memory that a library keeps."),
    # --- faults ---
    Metric("faults", "counter", (*_D, "status"), "Contexts that have failed, by status."),
    Metric(
        "recovery_seconds",
        "histogram",
        _D,
        "Time from a fault until the next context accepts ops.",
        SECONDS,
    ),
    Metric(
        "startup_seconds",
        "gauge",
        (*_D, "phase"),
        "Time that the present context took to start, by phase.",
    ),
    Metric(
        "standbys", "gauge", (*_D, "state"), "Standby hosts that are wanted, and that are ready."
    ),
    Metric("standbys_used", "counter", _D, "Standby hosts that have taken over."),
    Metric("standbys_died", "counter", _D, "Standby hosts that died early, or failed to start."),
    # --- actors ---
    Metric("actors", "gauge", ("system", "kind", "state"), "Actors, by class and state."),
    Metric("mailbox_messages", "gauge", ("system", "kind"), "Messages in mailboxes, by class."),
    Metric(
        "mailbox_messages_max",
        "gauge",
        ("system", "kind"),
        "Messages in the fullest mailbox of a class.",
    ),
    Metric("actor_restarts", "counter", ("system", "kind"), "Restarts of actors, by class."),
    Metric(
        "actor_stops",
        "counter",
        ("system", "kind", "how"),
        "Actors that have ended for good, with or without a failure.",
    ),
    Metric(
        "dead_letters", "counter", ("system",), "Messages without an answer that no actor handled."
    ),
    # --- services, by their place in the tree ---
    Metric("service_state", "gauge", (*_S, "state"), "1 for a service's present state, else 0."),
    Metric("service_restarts", "counter", _S, "Restarts of a service."),
    Metric("service_load", "gauge", _S, "Calls and messages that wait or are in progress."),
    Metric(
        "service_statistics",
        "gauge",
        (*_S, "part", "field"),
        "Numbers among the statistics of a service, and of its parts.",
    ),
    # --- GPUs, as NVML sees them ---
    Metric("gpu_info", "gauge", (*_G, "index", "model"), "Always 1; NVML's index and the model."),
    Metric("gpu_reading_age_seconds", "gauge", _G, "Age of the last reading of the GPU."),
    Metric("gpu_utilization_ratio", "gauge", _G, "Fraction of the time in which kernels ran."),
    Metric(
        "gpu_memory_utilization_ratio",
        "gauge",
        _G,
        "Fraction of the time in which memory was used.",
    ),
    Metric(
        "gpu_memory_bytes",
        "gauge",
        (*_G, "state"),
        "Memory of the GPU, by state, for all programs.",
    ),
    Metric("gpu_memory_total_bytes", "gauge", _G, "All memory of the GPU."),
    Metric("gpu_power_watts", "gauge", _G, "Power draw."),
    Metric("gpu_power_limit_watts", "gauge", _G, "Limit of the power draw."),
    Metric("gpu_energy_joules", "counter", _G, "Energy since the driver was loaded."),
    Metric("gpu_temperature_celsius", "gauge", (*_G, "sensor"), "Temperature of GPU and memory."),
    Metric("gpu_clock_hertz", "gauge", (*_G, "domain"), "Present clocks."),
    Metric("gpu_throttled", "gauge", (*_G, "reason"), "1 for each reason that limits the clocks."),
    Metric(
        "gpu_ecc_errors",
        "counter",
        (*_G, "kind", "since"),
        "Memory errors that ECC has found, since the driver was loaded or ever.",
    ),
    Metric(
        "gpu_row_remapping",
        "gauge",
        (*_G, "state"),
        "1 if a remapping of rows is pending, or has failed.",
    ),
    Metric("gpu_pcie_bytes_per_second", "gauge", (*_G, "direction"), "Traffic to the host."),
    Metric("gpu_pcie_replays", "counter", _G, "PCIe packets that were sent again."),
    Metric("gpu_pcie_link_generation", "gauge", _G, "Present generation of the PCIe link."),
    Metric("gpu_pcie_link_lanes", "gauge", _G, "Present width of the PCIe link."),
    Metric("gpu_nvlink_bytes", "counter", (*_G, "link", "direction"), "Data over an NVLink."),
    Metric("gpu_processes", "gauge", _G, "Processes with a context on the GPU."),
    Metric(
        "gpu_process_memory_bytes",
        "gauge",
        (*_G, "pid"),
        "Memory of a process, if NVML reports it.",
    ),
    Metric("gpu_mig_enabled", "gauge", _G, "1 if the GPU is divided by MIG."),
    Metric(
        "gpu_mig_memory_bytes",
        "gauge",
        (*_G, "instance", "state"),
        "Memory of a MIG instance.",
    ),
    Metric("gpu_xids", "counter", (*_G, "xid"), "Errors that the driver has reported."),
    # --- patterns ---
    Metric(
        "pattern_requests", "counter", (*_P, "outcome"), "Requests that have ended, by outcome."
    ),
    Metric(
        "pattern_requests_now", "gauge", (*_P, "state"), "Requests that have not ended, by state."
    ),
    Metric("pattern_events", "counter", (*_P, "event"), "Other events that a pattern counts."),
    Metric("pattern_state", "gauge", (*_P, "state"), "1 for the present state of a pattern."),
    Metric("pattern_seconds", "gauge", _P, "Duration of calls, as a pattern estimates it."),
    Metric(
        "pattern_request_seconds",
        "histogram",
        ("name", "outcome"),
        "Time from a request to its answer, for patterns with an observer.",
        SECONDS,
    ),
    Metric(
        "pattern_batch_items",
        "histogram",
        ("name",),
        "Requests in one call, for patterns with an observer.",
        ITEMS,
    ),
    Metric("pattern_retries", "counter", ("name",), "Calls that failed and were repeated."),
)

METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}
"""All metrics there are, by their names."""


@final
class Histogram:
    """Counts by buckets, and a sum.

    Args:
        bounds: upper bounds, inclusive.
        scale: what one is worth, in the metric's unit.

    Attributes:
        counts: by buckets.
        total: of all values.
    """

    __slots__ = ("bounds", "counts", "scale", "total")

    def __init__(self, bounds: Sequence[int], scale: float) -> None:
        self.bounds: Final = bounds
        self.scale: Final = scale
        self.counts: Final = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count a value, once or several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add_all(self, values: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Count many values with their number of times; for hundreds, faster than ``add``."""
        found = np.searchsorted(self.bounds, values)
        buckets = np.bincount(found, times, minlength=len(self.counts)).astype(np.int64)
        self.counts[:] = map(add, self.counts, buckets.tolist())
        self.total += int(values @ times)


@final
class MetricsSnapshot:
    """Values of metrics at one moment."""

    def __init__(self) -> None:
        self._points: Final[dict[str, dict[tuple[str, ...], Point]]] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value, unless it is None."""
        if value is not None:
            self._point(name, Point(labels, value))

    def add_one_of(self, name: str, value: str, among: Sequence[str], *labels: str) -> None:
        """Note a state: 1 for it, 0 for the others."""
        for state in among:
            self.add(name, float(state == value), *labels, state)

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add the counts of a histogram, unless it is empty."""
        if any(histogram.counts):
            total = histogram.total * histogram.scale
            self._point(name, Point(labels, total, tuple(histogram.counts)))

    def join(self, other: MetricsSnapshot) -> None:
        """Add all of another."""
        for name, points in other._points.items():
            for point in points.values():
                self._point(name, point)

    def _point(self, name: str, point: Point) -> None:
        assert len(point.labels) == len(METRICS[name].labels), name
        labels = tuple(map(_encodable, point.labels))
        points = self._points.setdefault(name, {})
        known = points.get(labels)
        if known is not None:  # such as two stages of one name: together they are what there is
            buckets = tuple(map(add, known.buckets, point.buckets))
            point = Point(labels, known.value + point.value, buckets)
        points[labels] = point if point.labels == labels else replace(point, labels=labels)

    def __iter__(self) -> Iterator[tuple[Metric, tuple[Point, ...]]]:
        """Metrics that have values, in the order of the catalogue."""
        for name, metric in METRICS.items():
            if name in self._points:
                yield metric, tuple(self._points[name].values())


def _encodable(label: str) -> str:
    """Return a label with lone surrogates escaped, because names of actors may have them."""
    return label if label.isascii() else label.encode("utf-8", "backslashreplace").decode()
