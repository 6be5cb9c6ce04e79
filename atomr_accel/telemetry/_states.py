"""States that are read at collection: those of devices, actors, GPUs and patterns."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ..actors import ChildState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .. import Device
    from ..actors import ActorSystem, ActorTree
    from ._catalogue import MetricsSnapshot
    from ._gpu_readings import GpuMemory, GpuReading
    from .nvml import NvmlMonitor

# --- devices -------------------------------------------------------------------------------

_STATES: Final = ("ready", "rebuilding", "lost")

_PLANS: Final = {
    "built": ("plan_builds", ("built",)),
    "builds": ("plan_builds", ("built",)),
    "loaded": ("plan_builds", ("disk",)),
    "found": ("plan_builds", ("disk",)),
    "tuned": ("plan_builds", ("tuned",)),
    "workspace": ("workspace_bytes", ()),
}
"""Metric for a field of a library's statistics, with its labels besides the library's."""

_LIBRARIES: Final = ("blaslt", "cub", "cutlass", "dnn", "fft", "nvrtc")


def take_device(snapshot: MetricsSnapshot, device: Device, *labels: str) -> None:
    """Add the state of a device to a snapshot."""
    now = device.statistics()
    snapshot.add(
        "device_info",
        1,
        *labels,
        device.name,
        device.backend,
        device.isolation,
        device.info.name,
        device.info.uuid,
    )
    snapshot.add_one_of("device_state", now.state, _STATES, *labels)
    snapshot.add("generation", now.generation, *labels)
    snapshot.add("ops_in_flight", now.in_flight, *labels)
    for lane in now.lanes:
        snapshot.add("lane_ops", lane.in_flight, *labels, lane.name, "in_flight")
        snapshot.add("lane_ops", lane.queued, *labels, lane.name, "queued")
        snapshot.add("lane_frames", lane.frames_sent, *labels, lane.name)
    memory = now.memory
    for state, nbytes in (
        ("free", memory.free),
        ("sealed", memory.sealed),
        ("stale", memory.stale),
        ("plain", memory.used - memory.sealed - memory.stale),
    ):
        snapshot.add("memory_bytes", nbytes, *labels, state)
    snapshot.add("memory_reserved_bytes", memory.capacity, *labels)
    snapshot.add("memory_limit_bytes", memory.limit, *labels)
    snapshot.add("memory_largest_free_bytes", memory.largest_free, *labels)
    snapshot.add("memory_fragmentation_ratio", memory.fragmentation, *labels)
    snapshot.add("memory_slabs", memory.slabs, *labels)
    snapshot.add("pinned_bytes", now.pinned.used, *labels, "used")
    snapshot.add("pinned_bytes", now.pinned.capacity - now.pinned.used, *labels, "free")
    if now.startup is not None:
        for phase in ("total", "open", "remap", "lanes"):
            snapshot.add("startup_seconds", getattr(now.startup, phase), *labels, phase)
    if now.standby is not None:
        snapshot.add("standbys", now.standby.kept, *labels, "wanted")
        snapshot.add("standbys", now.standby.ready, *labels, "ready")
        snapshot.add("standbys_used", now.standby.used, *labels)
        snapshot.add("standbys_died", now.standby.died, *labels)
    for cache in now.caches.values():
        snapshot.add("cache_entries", cache.entries, *labels, cache.name)
        snapshot.add("cache_limit", cache.limit, *labels, cache.name)
        snapshot.add("cache_lookups", cache.hits, *labels, cache.name, "hit")
        snapshot.add("cache_lookups", cache.misses, *labels, cache.name, "miss")
        snapshot.add("cache_evictions", cache.evictions, *labels, cache.name)
    for library in _LIBRARIES:
        _take_plans(snapshot, getattr(device, library).statistics(), library, *labels)


def _take_plans(snapshot: MetricsSnapshot, statistics: Any, library: str, *labels: str) -> None:
    if library == "nvrtc":  # it tells how many of all were found
        built = statistics.kernels - statistics.found
        snapshot.add("plan_builds", built, *labels, library, "built")
    for field in fields(statistics):
        if field.name in _PLANS:
            metric, more = _PLANS[field.name]
            snapshot.add(metric, getattr(statistics, field.name), *labels, library, *more)


# --- actors --------------------------------------------------------------------------------


def take_actors(snapshot: MetricsSnapshot, system: ActorSystem, name: str) -> None:
    """Add the actors of a system to a snapshot, by their classes, and each service.

    Classes are not many, nor are services. Parts of devices, such as recordings, may be.
    """
    numbers: Counter[tuple[str, str]] = Counter()
    messages: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for actor in _actors(system.tree()):
        numbers[actor.kind, actor.state.value] += 1
        messages[actor.kind] += actor.depth
        most[actor.kind] = max(most[actor.kind], actor.depth)
        if actor.service is not None and actor.generation is None:
            _take_service(snapshot, actor, name)
    for (kind, state), number in numbers.items():
        snapshot.add("actors", number, name, kind, state)
    for kind, number in messages.items():
        snapshot.add("mailbox_messages", number, name, kind)
        snapshot.add("mailbox_messages_max", most[kind], name, kind)
    snapshot.add("dead_letters", system.statistics().dead_letters, name)


def _take_service(snapshot: MetricsSnapshot, actor: ActorTree, name: str) -> None:
    labels = (name, actor.path, actor.kind)
    states = [state.value for state in ChildState]
    snapshot.add_one_of("service_state", actor.state.value, states, *labels)
    snapshot.add("service_restarts", actor.restarts, *labels)
    snapshot.add("service_load", actor.depth, *labels)
    _take_numbers(snapshot, actor.service, *labels, "")


def _take_numbers(snapshot: MetricsSnapshot, statistics: object, *labels: str) -> None:
    """Add the numbers among the fields of a dataclass, and of the dataclasses in it."""
    if not is_dataclass(statistics):
        return
    *whole, part = labels
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if isinstance(value, bool | int | float):
            if not math.isnan(value):  # nothing is known yet
                snapshot.add("service_statistics", float(value), *labels, field.name)
        elif not part:
            for at, one in _members(value):
                named = getattr(one, "name", None) or getattr(one, "path", None) or at
                _take_numbers(snapshot, one, *whole, str(named))


def _members(value: object) -> Iterable[tuple[object, object]]:
    """Return the parts that a field has, each with what tells it from the others."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, tuple | list) else ()


def _actors(root: ActorTree) -> Iterator[ActorTree]:
    todo = [*root.children]
    while todo:
        actor = todo.pop()
        todo += actor.children
        yield actor


# --- GPUs ----------------------------------------------------------------------------------

_DOMAINS: Final = ("graphics", "sm", "memory", "video")


def take_gpus(snapshot: MetricsSnapshot, monitor: NvmlMonitor) -> None:
    """Add the last readings of all GPUs to a snapshot, and the Xids so far."""
    now = time.monotonic()
    for reading in monitor.readings:
        snapshot.add("gpu_reading_age_seconds", now - reading.at, reading.uuid)
        _take_gpu(snapshot, reading)
    for (uuid, number), count in monitor.xid_counts.items():
        snapshot.add("gpu_xids", count, uuid, str(number))


def _take_gpu(snapshot: MetricsSnapshot, gpu: GpuReading) -> None:
    uuid = gpu.uuid
    snapshot.add("gpu_info", 1, uuid, str(gpu.index), gpu.name)
    if gpu.utilization is not None:
        snapshot.add("gpu_utilization_ratio", gpu.utilization.gpu, uuid)
        snapshot.add("gpu_memory_utilization_ratio", gpu.utilization.memory, uuid)
    if gpu.memory is not None:
        snapshot.add("gpu_memory_total_bytes", gpu.memory.total, uuid)
        _take_memory(snapshot, "gpu_memory_bytes", gpu.memory, uuid)
    snapshot.add("gpu_power_watts", gpu.power, uuid)
    snapshot.add("gpu_power_limit_watts", gpu.power_limit, uuid)
    snapshot.add("gpu_energy_joules", gpu.energy, uuid)
    snapshot.add("gpu_temperature_celsius", gpu.temperature, uuid, "gpu")
    snapshot.add("gpu_temperature_celsius", gpu.memory_temperature, uuid, "memory")
    if gpu.clocks is not None:
        for domain in _DOMAINS:
            snapshot.add("gpu_clock_hertz", getattr(gpu.clocks, domain), uuid, domain)
    for reason in gpu.throttled or ():
        snapshot.add("gpu_throttled", 1, uuid, reason)
    if gpu.ecc is not None:
        ecc = gpu.ecc
        snapshot.add("gpu_ecc_errors", ecc.corrected, uuid, "corrected", "driver")
        snapshot.add("gpu_ecc_errors", ecc.uncorrected, uuid, "uncorrected", "driver")
        snapshot.add("gpu_ecc_errors", ecc.corrected_ever, uuid, "corrected", "ever")
        snapshot.add("gpu_ecc_errors", ecc.uncorrected_ever, uuid, "uncorrected", "ever")
        snapshot.add("gpu_row_remapping", _flag(ecc.remapping_pending), uuid, "pending")
        snapshot.add("gpu_row_remapping", _flag(ecc.remapping_failed), uuid, "failed")
    if gpu.pcie is not None:
        snapshot.add("gpu_pcie_bytes_per_second", gpu.pcie.sent, uuid, "sent")
        snapshot.add("gpu_pcie_bytes_per_second", gpu.pcie.received, uuid, "received")
        snapshot.add("gpu_pcie_replays", gpu.pcie.replays, uuid)
        snapshot.add("gpu_pcie_link_generation", gpu.pcie.generation, uuid)
        snapshot.add("gpu_pcie_link_lanes", gpu.pcie.width, uuid)
    for link in gpu.nvlinks or ():
        snapshot.add("gpu_nvlink_bytes", link.sent, uuid, str(link.link), "sent")
        snapshot.add("gpu_nvlink_bytes", link.received, uuid, str(link.link), "received")
    if gpu.processes is not None:
        snapshot.add("gpu_processes", len(gpu.processes), uuid)
        memory: dict[int, int] = {}  # of a process in several MIG instances, all of it
        for process in gpu.processes:
            if process.used is not None:
                memory[process.pid] = memory.get(process.pid, 0) + process.used
        for pid, nbytes in memory.items():
            snapshot.add("gpu_process_memory_bytes", nbytes, uuid, str(pid))
    if gpu.mig is not None:
        snapshot.add("gpu_mig_enabled", float(gpu.mig.enabled), uuid)
        for part in gpu.mig.instances:
            if part.memory is not None:
                _take_memory(snapshot, "gpu_mig_memory_bytes", part.memory, uuid, part.uuid)


def _take_memory(snapshot: MetricsSnapshot, metric: str, memory: GpuMemory, *labels: str) -> None:
    snapshot.add(metric, memory.used, *labels, "used")
    snapshot.add(metric, memory.free, *labels, "free")
    snapshot.add(metric, memory.reserved, *labels, "reserved")


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)


# --- patterns ------------------------------------------------------------------------------

_OUTCOMES: Final = ("answered", "failed", "refused", "withdrawn", "finished", "accepted")
_NOW: Final = ("queued", "outside", "running", "waiting", "serving", "in_progress", "in_flight")
_EVENTS: Final = (
    "abandoned",
    "answers",
    "asked",
    "asked_again",
    "asked_elsewhere",
    "batches",
    "calls",
    "compared",
    "copies",
    "drafted",
    "dropped_choices",
    "ejections",
    "errors",
    "faults",
    "granted",
    "hedged",
    "hedges_won",
    "kept",
    "lives",
    "load",
    "mismatches",
    "opened",
    "out_of_time",
    "over_budget",
    "prefills",
    "promoted",
    "retries",
    "rolled_back",
    "steps",
    "stragglers",
    "submitted",
    "tokens",
)
_PATTERN_FIELDS: Final = {
    **dict.fromkeys(_OUTCOMES, "pattern_requests"),
    **dict.fromkeys(_NOW, "pattern_requests_now"),
    **dict.fromkeys(_EVENTS, "pattern_events"),
    "seconds": "pattern_seconds",
}
"""Metrics by field of a pattern's statistics; the name of the field is the last label."""

_UNMEASURED: Final = frozenset(
    {"balance_loss", "capacity", "concurrency", "cost", "failures", "largest", "outcomes"}
    | {"retry_in", "share", "weight", "work", "z_loss"}
)
"""Fields without a metric: settings, means, and counts in units of the program's own."""


def take_pattern(snapshot: MetricsSnapshot, statistics: Any, pattern: str, name: str) -> None:
    """Add the statistics of a pattern to a snapshot, and those of its parts."""
    _take_fields(snapshot, statistics, pattern, name, "")


def _take_fields(snapshot: MetricsSnapshot, statistics: Any, *labels: str) -> None:
    *whole, _part = labels
    for field in _names(statistics):
        value = getattr(statistics, field)
        metric = _PATTERN_FIELDS.get(field)
        if isinstance(value, Enum):
            states = [str(state.value) for state in type(value)]
            snapshot.add_one_of("pattern_state", str(value.value), states, *labels)
        elif isinstance(value, tuple):
            for at, one in enumerate(value):
                if not isinstance(one, int | float):
                    named = getattr(one, "name", None) or getattr(one, "path", None)
                    _take_fields(snapshot, one, *whole, named or str(at))
                elif metric is not None:  # by members, which have no names
                    snapshot.add(metric, one, *whole, str(at), field)
        elif metric == "pattern_seconds":
            if not math.isnan(value):  # nothing is known yet
                snapshot.add(metric, value, *labels)
        elif metric is not None:
            snapshot.add(metric, value, *labels, field)


def _names(statistics: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(statistics))
