"""A system of actors and its devices at one moment, as an object for JSON.

::

    at          seconds since 1970
    program     pid, command, python, version, started
    system      name, actors, dead_letters
    actors      by path: kind, state, restarts, depth and, of devices and their parts, generation
    devices     by path: name, backend, isolation, info, the fields of Device.statistics(), report
                of the last fault as text, lacks (reasons why it is degraded), lanes by name and
                transfers by number; memory.slabs by number: nbytes, kind, used and cells, a digit
                for how full each part of the slab is; with NVML, gpu: busy (a share), power,
                power_limit, temperature, throttled
    patterns    by name, and services by path: kind, and the fields of their statistics(); of their
                parts, rows; terms: by field, and by "field.column" of parts, the meaning
    curves      by path of a device, by number, one each second: a list of the fields in POINT
    past        by path of a device, "10" and "300": the same for the last hour and the last day,
                with a point for each 10 and 300 seconds
    events      by number: at, kind, path, text, and of devices generation

Unknown values are left out; null occurs only in the lists of curves.
"""

from __future__ import annotations

import functools
import inspect
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from .. import __version__
from ..actors.util import describe
from ..device import System
from ..device.health import lacks_of
from ..memory.layout import layout
from ..telemetry.nvml import nvml_uuid
from ._history import shortened

if TYPE_CHECKING:
    from ..actors import ActorSystem
    from ..actors.cell import Cell
    from ..device import Device
    from ..telemetry import GpuReading, HasStatistics, NvmlMonitor
    from ..wire import DeviceInfo
    from ._patch import Json

PARTS: Final = 50
"""Parts of a pattern, such as tenants or replicas, that are shown."""

SERVICES: Final = 100
"""Services whose statistics are shown, those higher in the tree first."""

SLABS: Final = 64
CELLS: Final = 48

_AT_ONCE: Final = 64
"""Actors that are looked at in one turn of trio's loop, in a fraction of a millisecond."""


class SystemObserver:
    """Observes a system, and keeps the parts that have not changed since the last time.

    Attributes:
        program: the facts about the program.
    """

    def __init__(
        self,
        system: ActorSystem,
        nvml: NvmlMonitor | None = None,
        patterns: Mapping[str, HasStatistics] | None = None,
    ) -> None:
        self._system = system
        self._nvml = nvml
        self._patterns = dict(patterns or {})
        self._shown_patterns: dict[str, Json] = {}
        self._services: dict[str, Json] = {}
        self._actors: dict[str, Json] = {}
        self._devices: dict[str, Json] = {}
        self.program: Final[dict[str, Json]] = {
            "pid": os.getpid(),
            "command": command(),
            "python": platform.python_version(),
            "version": __version__,
            "started": round(time.time(), 3),
        }

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of the system."""
        return self._system.devices if isinstance(self._system, System) else ()

    def system(self, actors: int) -> dict[str, Json]:
        """Return the state of the system, with its number of actors."""
        return {
            "name": self._system.name,
            "actors": actors,
            "dead_letters": self._system.lost,
        }

    def path_of(self, uuid: str) -> str:
        """Return the path of the device with NVML's UUID; for other GPUs, the UUID."""
        paths = (device.ref.path for device in self.devices if _uuid(device) == uuid)
        return next(paths, uuid)

    async def actors(self) -> tuple[dict[str, Json], float]:
        """All actors, parents first, and the seconds of processor time that it took.

        It looks at their services, too. Other tasks run in between, so it is not all of one moment.
        """
        before, services_before = self._actors, self._services
        now: dict[str, Json] = {}
        services: dict[str, Json] = {}
        todo: list[Cell] = [*reversed(self._system.root.children.values())]
        seconds = 0.0
        while todo:
            begun = time.thread_time()
            for _ in range(min(len(todo), _AT_ONCE)):
                cell = todo.pop()
                if cell.parent.children.get(cell.name) is not cell:
                    continue  # it has gone meanwhile
                todo += reversed(cell.children.values())
                now[cell.path] = _kept(before.get(cell.path), _actor(cell))
                if len(services) < SERVICES and (service := cell.service()) is not None:
                    shown = _shown(cell.kind, service)
                    services[cell.path] = _kept(services_before.get(cell.path), shown)
            seconds += time.thread_time() - begun
            await trio.lowlevel.checkpoint()
        self._actors, self._services = now, services
        return now, seconds

    def states_of_devices(self) -> dict[str, Json]:
        """All devices."""
        before = self._devices
        self._devices = {
            device.ref.path: _kept(before.get(device.ref.path), self._device(device))
            for device in self.devices
        }
        return self._devices

    def patterns(self) -> dict[str, Json]:
        """Return the statistics of patterns by name, and of the services in the tree by path."""
        before = self._shown_patterns
        self._shown_patterns = {
            name: _kept(before.get(name), _shown(type(pattern).__name__, pattern.statistics()))
            for name, pattern in self._patterns.items()
        }
        return {**self._services, **self._shown_patterns}

    def _device(self, device: Device) -> dict[str, Json]:
        statistics = device.statistics()
        memory = _plain(statistics.memory)
        memory["slabs"] = {
            str(slab.id): {
                "nbytes": slab.nbytes,
                "kind": slab.kind,
                "used": slab.used,
                "cells": "".join(map(_digit, slab.cells)),
            }
            for slab in layout(device.core.memory, most=SLABS, cells=CELLS)
        }
        state: dict[str, Json] = {
            "name": device.name,
            "backend": device.backend,
            "isolation": device.isolation,
            "state": statistics.state,
            "generation": statistics.generation,
            "faults": statistics.faults,
            "in_flight": statistics.in_flight,
            "info": _plain_info(device.info),
            "memory": memory,
            "pinned": _plain(statistics.pinned),
            "lanes": {lane.name: _plain(lane) for lane in statistics.lanes},
            "transfers": {str(at): _plain(one) for at, one in enumerate(statistics.transfers)},
        }
        if self._nvml is not None:
            readings = {reading.uuid: reading for reading in self._nvml.readings}
            if (reading := readings.get(_uuid(device))) is not None:
                state["gpu"] = _plain_reading(reading)
        if statistics.last_fault is not None:
            state["last_fault"] = shortened(statistics.last_fault)
            fault = device.core.lifecycle.last_fault
            if fault is not None and fault.report is not None:
                state["report"] = str(fault.report)
        if lacks := lacks_of(device.core, self._nvml):
            state["lacks"] = shortened("; ".join(lacks))
        if statistics.host_pid is not None:
            state["host_pid"] = statistics.host_pid
        if statistics.startup is not None:
            state["startup"] = _plain(statistics.startup)
        if statistics.standby is not None:
            state["standby"] = _plain(statistics.standby)
        return state


def _kept(before: Json | None, now: Json) -> Json:
    """Return ``before`` if the two are equal, else ``now``: see ``merge_patch``."""
    return before if before is not None and before == now else now


def command() -> str:
    """Return the program's command line."""
    return shortened(" ".join(sys.orig_argv) or sys.executable)


def _actor(cell: Cell) -> dict[str, Json]:
    condition = cell.condition()
    actor: dict[str, Json] = {
        "kind": cell.kind,
        "state": condition.state.value,
        "restarts": condition.restarts,
        "depth": condition.depth,
    }
    if condition.generation is not None:
        actor["generation"] = condition.generation
    return actor


def _shown(kind: str, statistics: object) -> dict[str, Json]:
    """Return the statistics of a pattern or service: plain values, and parts as rows by name."""
    terms: dict[str, Json] = {}
    state: dict[str, Json] = {"kind": kind, "terms": terms}
    if isinstance(statistics, Exception):
        values: dict[str, object] = {"error": describe(statistics)}
    elif is_dataclass(statistics):
        values = {field.name: getattr(statistics, field.name) for field in fields(statistics)}
        terms.update(_terms(type(statistics)))
    else:
        values = {"statistics": statistics}
    for name, value in values.items():
        parts = _parts(value)
        if parts:
            state[name] = parts
            for part in {type(part) for part in _members(value)}:
                terms.update((f"{name}.{column}", text) for column, text in _terms(part).items())
        elif (simple := _simple(value)) is not None:
            state[name] = simple
    return state


def _terms(kind: type) -> Mapping[str, str]:
    """Return the meanings of a class's attributes, as its docstring has them."""
    return _explained(kind.__doc__ or "")


@functools.cache  # one entry for each class of statistics
def _explained(docstring: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    section = inspect.cleandoc(docstring).partition("\nAttributes:\n")[2].partition("\n\n")[0]
    for line in section.splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon and name.isidentifier() and line.startswith("    ") and line[4] != " ":
            found[name] = text
        elif found:
            found[next(reversed(found))] += f" {line.strip()}"
    return {name: text.replace("`", "").rstrip(".") for name, text in found.items()}


def _members(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, Mapping) else cast("Iterable[object]", value)


def _parts(value: object) -> dict[str, Json]:
    """Return the parts of a pattern by name, if a value is a collection of them."""
    parts: dict[str, Json] = {}
    members: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, tuple | list):
        members = list(enumerate(value))
    for at, member in members[:PARTS]:
        name = getattr(member, "name", None) or getattr(member, "path", None) or at
        if is_dataclass(member) and not isinstance(member, type):
            row = {f.name: _simple(getattr(member, f.name)) for f in fields(member)}
            parts[str(name)] = {key: cell for key, cell in row.items() if cell is not None}
        elif (simple := _simple(member)) is not None:
            parts[str(name)] = {"value": simple}
    return parts


def _simple(value: object) -> Json | None:
    """Return a value for JSON; None for types without a short form."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    if isinstance(value, bool | int):
        return value
    return shortened(value) if isinstance(value, str) else None


def _digit(part: float) -> str:
    """Return how full a part is, from 0 (free) to 9 (full); other values lie between."""
    if part <= 0:
        return "0"
    return "9" if part >= 1 else str(1 + min(7, int(part * 8)))


def _plain(statistics: Any) -> dict[str, Json]:
    """Return statistics as an object for JSON, without unknown values."""
    plain: dict[str, Json] = {}
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if is_dataclass(value):
            plain[field.name] = _plain(value)
        elif isinstance(value, float):
            plain[field.name] = round(value, 6)
        elif value is not None:
            plain[field.name] = value
    return plain


def _plain_reading(reading: GpuReading) -> dict[str, Json]:
    """Return the values of a GPU's reading that the page shows."""
    plain: dict[str, Json] = {}
    if reading.utilization is not None:
        plain["busy"] = round(reading.utilization.gpu, 3)
    for name in ("power", "power_limit", "temperature"):
        value = getattr(reading, name)
        if value is not None:
            plain[name] = round(value, 1)
    if reading.throttled is not None:
        plain["throttled"] = ", ".join(reading.throttled)
    return plain


def _uuid(device: Device) -> str:
    return nvml_uuid(device.info.uuid) if device.info.uuid else ""


def _plain_info(info: DeviceInfo) -> dict[str, Json]:
    major, minor = info.compute_capability
    return {
        "name": info.name,
        "index": info.index,
        "total_memory": info.total_memory,
        "compute_capability": f"{major}.{minor}",
        "driver_version": info.driver_version,
        "uuid": info.uuid,
    }
