"""A system of actors and its devices at one moment, as an object for JSON.

::

    at          seconds since 1970
    program     pid, command, python, version, started
    system      name, actors, dead_letters
    actors      by path: kind, state, restarts, depth and, of devices and their parts, generation
    devices     by path: name, backend, isolation, info, and what Device.statistics() tells, lanes
                by name and transfers by number; memory.slabs are by number: nbytes, kind, used and
                cells, a digit for how full each part of the slab is
    curves      by path of a device, by number, one each second: a list of what POINT names
    events      by number: at, kind, path, text, and of devices generation

Nothing in it is null but in the lists of curves: what is not known is left out.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from .. import __version__
from ..device import System
from ..memory._layout import layout
from ._history import shortened

if TYPE_CHECKING:
    from ..actors import ActorSystem
    from ..actors._cell import Cell
    from ..device import Device
    from ..wire import DeviceInfo
    from ._patch import Json

SLABS: Final = 64
CELLS: Final = 48

_AT_ONCE: Final = 64
"""Actors that are looked at in one turn of trio's loop, in a fraction of a millisecond."""


class Observer:
    """Looks at a system, and keeps what has not changed since it last did.

    Attributes:
        program: what there is to tell of the program.
    """

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
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
        """The devices in the system."""
        return self._system.devices if isinstance(self._system, System) else ()

    def system(self, actors: int) -> dict[str, Json]:
        """The system, which has so many actors."""
        return {
            "name": self._system.name,
            "actors": actors,
            "dead_letters": self._system._lost,
        }

    async def actors(self) -> tuple[dict[str, Json], float]:
        """All actors, parents first, and the seconds of processor time that it took.

        Other tasks run in between, so it is not all of one moment.
        """
        before = self._actors
        now: dict[str, Json] = {}
        todo: list[Cell] = [*reversed(self._system._root.children.values())]
        seconds = 0.0
        while todo:
            begun = time.thread_time()
            for _ in range(min(len(todo), _AT_ONCE)):
                cell = todo.pop()
                todo += reversed(cell.children.values())
                now[cell.path] = _kept(before.get(cell.path), _actor(cell))
            seconds += time.thread_time() - begun
            await trio.lowlevel.checkpoint()
        self._actors = now
        return now, seconds

    def states_of_devices(self) -> dict[str, Json]:
        """All devices."""
        before = self._devices
        self._devices = {
            device.ref.path: _kept(before.get(device.ref.path), self._device(device))
            for device in self.devices
        }
        return self._devices

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
            for slab in layout(device._core.memory, most=SLABS, cells=CELLS)
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
        if statistics.last_fault is not None:
            state["last_fault"] = shortened(statistics.last_fault)
        if statistics.host_pid is not None:
            state["host_pid"] = statistics.host_pid
        if statistics.startup is not None:
            state["startup"] = _plain(statistics.startup)
        if statistics.standby is not None:
            state["standby"] = _plain(statistics.standby)
        return state


def _kept(before: Json | None, now: Json) -> Json:
    """The state before, if nothing has changed: see ``merge_patch``."""
    return before if before is not None and before == now else now


def command() -> str:
    """The program's command line."""
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


def _digit(part: float) -> str:
    """How full a part is, from 0 (free) to 9; whatever is neither free nor full is between."""
    if part <= 0:
        return "0"
    return "9" if part >= 1 else str(1 + min(7, int(part * 8)))


def _plain(statistics: Any) -> dict[str, Json]:
    """Statistics as an object for JSON, without what is not known."""
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
