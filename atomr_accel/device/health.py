"""Health of a device: whether it lives, whether it answers, and the things that it lacks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from ..wire import Probe
from ..wire.options import real
from .core import MEMORY_LANE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..lanes import Op
    from .core import DeviceCore

_FULL: Final = 0.95
"""Share of the limit above which memory is short."""

_SHORTAGE_SECONDS: Final = 60.0
"""Time for which a request that found no memory counts."""


class WatchedGpus(Protocol):
    """Readings of GPUs, such as those of ``telemetry.open_nvml``."""

    @property
    def readings(self) -> Sequence[Any]:
        """The last readings: each has ``uuid``, ``memory`` and ``ecc``."""


@dataclass(frozen=True, slots=True)
class Health:
    """A device's health at one moment, for the probes of an orchestrator.

    Attributes:
        live: whether the device is there, or on its way back. If not, only another program helps.
        ready: whether it answers: a real op has finished within the seconds asked for.
        degraded: whether it lacks something: a standby, memory, or sound memory cells.
        reasons: the reasons, in words, why it is not live, not ready, or degraded.
    """

    live: bool
    ready: bool
    degraded: bool
    reasons: tuple[str, ...]


@final
class HealthCheck:
    """Checks the health of one device."""

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._looked = self._finished = -math.inf
        self._completed = (0, 0)
        self._probe: Op | None = None
        self._answered = trio.Event()

    async def check(self, within: float, gpus: WatchedGpus | None) -> Health:
        """Implement ``Device.health``."""
        within = real(within, "within", above=0)
        unready = await self._unready(within)
        if self._core.lifecycle.state == "lost":
            over = f"{self._core.name} {self._core.memory.over}"
            return Health(live=False, ready=False, degraded=False, reasons=(over,))
        lacks = lacks_of(self._core, gpus)
        return Health(
            live=True,
            ready=unready is None,
            degraded=bool(lacks),
            reasons=lacks if unready is None else (unready, *lacks),
        )

    async def _unready(self, within: float) -> str | None:
        """Return the reason why the device does not answer; None if it does."""
        reason = self._not_serving()
        if reason is None and not self._has_answered(within):
            with trio.move_on_after(within):
                if await self._ask():
                    self._look()
                    self._finished = self._looked
                    return None
                return self._not_serving() or "its context has just failed"
            oldest = next((op for op in self._core.in_flight.values() if op.sent), None)
            waits = "" if oldest is None else f"; the oldest in flight is {oldest.name!r}"
            return self._not_serving() or f"no op has finished for {within:g} s{waits}"
        await trio.lowlevel.checkpoint()
        return reason

    def _not_serving(self) -> str | None:
        core = self._core
        if core.lifecycle.state != "rebuilding":
            return None
        fault = core.lifecycle.last_fault
        return "it is being rebuilt" + ("" if fault is None else f": {fault}")

    def _has_answered(self, within: float) -> bool:
        """Return True if an op has finished lately, as far as the program has seen."""
        before, completed = self._looked, self._completed
        self._look()
        if completed[0] == self._completed[0] and completed[1] < self._completed[1]:
            self._finished = before  # or later
        return self._looked - self._finished <= within

    def _look(self) -> None:
        """Note the number of ops that have finished so far."""
        completed = sum(port.statistics().completed for port in self._core.ports.values())
        self._looked, self._completed = trio.current_time(), (self._core.generation, completed)

    async def _ask(self) -> bool:
        """Have the device write and read; return True once it has. All checks share one op."""
        probe = self._probe
        if probe is None or probe.answered:
            port = self._core.ports.get(MEMORY_LANE)
            if port is None:
                await trio.lowlevel.checkpoint()
                return False
            self._answered = trio.Event()
            probe = self._probe = self._core.submit(port, "probe", Probe(os.urandom(16)))
            probe.when_answered(self._answered.set)
        await self._answered.wait()
        return probe.succeeded


def lacks_of(core: DeviceCore, gpus: WatchedGpus | None = None) -> tuple[str, ...]:
    """Return the reasons why a device is degraded; it may work all the same."""
    return (*_lacks(core), *_lacks_of_gpus(core, gpus))


def _lacks(core: DeviceCore) -> Iterator[str]:
    if core.standby is not None:
        standby = core.standby.statistics()
        if standby.ready < standby.kept:
            yield f"{standby.ready} of {standby.kept} standbys are ready ({standby.state})"
    memory = core.memory.statistics()
    if memory.limit is not None and memory.used > _FULL * memory.limit:
        yield f"{memory.used} of {memory.limit} bytes of memory_limit are in use"
    if trio.current_time() - core.refused_at <= _SHORTAGE_SECONDS:
        yield f"a request found no memory in the last {_SHORTAGE_SECONDS:g} s"


def _lacks_of_gpus(core: DeviceCore, gpus: WatchedGpus | None) -> Iterator[str]:
    uuid = "" if core.info is None else core.info.uuid.replace("-", "")
    for reading in gpus.readings if gpus is not None and uuid else ():
        if reading.uuid.removeprefix("GPU-").replace("-", "") == uuid:
            yield from _lacks_of_gpu(reading)


def _lacks_of_gpu(reading: Any) -> Iterator[str]:
    memory, ecc = reading.memory, reading.ecc
    if memory is not None and memory.used > _FULL * memory.total:
        yield f"{memory.free} of {memory.total} bytes of the GPU's memory are free"
    if ecc is None:
        return
    if ecc.uncorrected:
        yield f"ECC has found {ecc.uncorrected} uncorrected errors since the driver was loaded"
    if ecc.remapping_pending:
        yield "rows of the GPU's memory wait for a reset to be remapped"
    if ecc.remapping_failed:
        yield "a row of the GPU's memory could not be remapped"
