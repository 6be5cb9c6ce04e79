"""Recent events of a system and the curves of its devices, in fixed space."""

from __future__ import annotations

import time
from operator import sub
from typing import TYPE_CHECKING, Final, final

from ..lanes import DeviceInstrument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._errors import ContextPoisoned, DeviceLost, OutOfMemory
    from ..actors import ActorRef
    from ..device import Device
    from ..lanes import FinishedOps, Phases, WatchedDevice
    from ..telemetry import Xid
    from ._patch import Json

EVENTS: Final = 200
POINTS: Final = 300
"""Points of a curve, one each second."""

COARSER: Final = {10: 360, 300: 288}
"""Points of the curves of the last hour and of the last day, by the seconds that a point covers."""

POINT: Final = ("at", "ops", "failed", "p50", "p99", "in_flight", "used")
"""Fields of a point of a curve. ``at`` is in seconds since 1970, ``ops`` are answers per second,
and ``failed`` are those with an error. ``p50`` and ``p99`` are the median and the 99th percentile
of the milliseconds from submission to answer, or null without ops. ``in_flight`` counts ops, and
``used`` is memory in bytes."""

LONGEST: Final = 400
"""Characters of a text, because the message of an error may be of any length."""

_MOST_LATENCIES: Final = 2048
"""Latencies kept per second; the first ones count."""

_TOLD_BY_DEVICES: Final = frozenset({"Context", "Standby", "Lane"})
"""Parts whose events the device reports itself, in more detail and sooner than their restarts."""


def shortened(text: str) -> str:
    """Return a text, cut to the length that is shown."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def described(error: BaseException) -> str:
    """Return a description of an error in one line or a few."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (the program's own class, which may do anything)
        text = "(it cannot be told)"
    return shortened(f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__)


class Ring:
    """The last of many values, under increasing numbers, as an object for JSON.

    A patch between two of its states adds new values and removes old ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._number = 0
        self._values: dict[str, Json] = {}

    def add(self, value: Json) -> None:
        """Add a value; the oldest makes room for it."""
        self._number += 1
        values = {**self._values, str(self._number): value}  # holders of the old dict keep it
        if len(values) > self._most:
            del values[next(iter(values))]
        self._values = values

    @property
    def values(self) -> dict[str, Json]:
        """All of them, oldest first. It is not changed any more."""
        return self._values


class _Coarser:
    """A curve whose points each summarize several points of the curve of seconds."""

    __slots__ = ("_pending", "_seconds", "points")

    def __init__(self, seconds: int, most: int) -> None:
        self._seconds = seconds
        self._pending: list[list[float | None]] = []
        self.points = Ring(most)

    def add(self, point: list[float | None]) -> None:
        """Add a point of one second; the last of a group makes a point of this curve."""
        self._pending.append(point)
        if len(self._pending) == self._seconds:
            self.points.add(summary(self._pending))
            self._pending = []


def summary(points: list[list[float | None]]) -> list[float | None]:
    """Summarize points of a curve as one.

    Rates are means. A peak must not disappear, so the 99th percentile, the ops in flight and the
    bytes in use are the largest. The median is the mean of the medians, weighted by ops.
    """
    at, ops, failed, p50, p99, in_flight, used = zip(*points, strict=True)
    weighed = [(m, n or 0.0) for m, n in zip(p50, ops, strict=True) if m is not None]
    weight = sum(n for _, n in weighed)
    return [
        at[-1],
        round(sum(n or 0.0 for n in ops) / len(points), 1),
        round(sum(n or 0.0 for n in failed) / len(points), 1),
        round(sum(m * n for m, n in weighed) / weight, 4) if weight else None,
        max((p for p in p99 if p is not None), default=None),
        max(n or 0.0 for n in in_flight),
        max(n or 0.0 for n in used),
    ]


class _Pulse:
    """The ops of one device since the last point of its curve."""

    __slots__ = ("coarser", "failed", "latencies", "ops", "points")

    def __init__(self) -> None:
        self.points = Ring(POINTS)
        self.coarser = {seconds: _Coarser(seconds, most) for seconds, most in COARSER.items()}
        self._begin()

    def _begin(self) -> None:
        self.ops = 0
        self.failed = 0
        self.latencies: list[int] = []

    def beat(self, seconds: float, in_flight: int, used: int) -> None:
        """Make a point of the last seconds."""
        latencies = sorted(self.latencies)
        point: list[float | None] = [
            round(time.time(), 1),
            round(self.ops / seconds, 1),
            round(self.failed / seconds, 1),
            _milliseconds(latencies, 0.5),
            _milliseconds(latencies, 0.99),
            in_flight,
            used,
        ]
        self.points.add(point)
        for curve in self.coarser.values():
            curve.add(point)
        self._begin()


def _milliseconds(latencies: list[int], share: float) -> float | None:
    if not latencies:
        return None
    return round(latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e-6, 4)


@final
class DashboardHistory(DeviceInstrument):
    """Events and curves of a system, kept with or without pages."""

    sampled = True

    def __init__(self) -> None:
        self._events = Ring(EVENTS)
        self._pulses: dict[str, _Pulse] = {}
        self._of: dict[WatchedDevice, _Pulse] = {}  # the same: paths take longer to be made
        self._beat_at = time.monotonic()

    @property
    def events(self) -> dict[str, Json]:
        """Events by number."""
        return self._events.values

    @property
    def curves(self) -> dict[str, Json]:
        """Points of each device's curve, by number."""
        return {path: pulse.points.values for path, pulse in self._pulses.items()}

    @property
    def past(self) -> dict[str, Json]:
        """Coarser curves of each device, by the seconds that a point covers."""
        return {
            path: {str(seconds): curve.points.values for seconds, curve in pulse.coarser.items()}
            for path, pulse in self._pulses.items()
        }

    def beat(self, devices: Iterable[Device]) -> None:
        """Add a point to the curves of these devices, and drop the curves of all others."""
        devices = list(devices)
        for device in devices:
            device.core.tell_done()
        now = time.monotonic()
        seconds, self._beat_at = max(now - self._beat_at, 1e-3), now
        pulses = {}
        for device in devices:
            core = device.core
            pulse = pulses[core.path] = self._pulses.get(core.path) or _Pulse()
            pulse.beat(seconds, len(core.in_flight), core.memory.statistics().used)
        self._pulses = pulses
        self._of.clear()

    def note_xid(self, path: str, xid: Xid) -> None:
        """Note an error that the driver has reported for the GPU of a device."""
        fault = "" if xid.fault is None else f", which explains the fault in {xid.fault.op}"
        self._note("xid", path, shortened(f"Xid {xid.number}: {xid.meaning}{fault}"))

    def _note(self, kind: str, path: str, text: str, generation: int | None = None) -> None:
        event: dict[str, Json] = {
            "at": round(time.time(), 3),
            "kind": kind,
            "path": path,
            "text": text,
        }
        if generation is not None:
            event["generation"] = generation
        self._events.add(event)

    # --- hooks -------------------------------------------------------------------------------

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Note it."""
        if ref.kind not in _TOLD_BY_DEVICES:
            why = "with a sibling" if cause is None else described(cause)
            self._note("restart", ref.path, why)

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Note it, if it failed."""
        if cause is not None and ref.kind not in _TOLD_BY_DEVICES:
            self._note("failure", ref.path, described(cause))

    def ops_finished(self, ops: FinishedOps) -> None:
        """Count them."""
        pulse = self._of.get(ops.device)
        if pulse is None:
            pulse = self._of[ops.device] = self._pulses.setdefault(ops.device.path, _Pulse())
        number = len(ops.seqs) + len(ops.untimed)
        pulse.ops += number
        if ops.outcome == "done":
            some = ops.submitted[: _MOST_LATENCIES - len(pulse.latencies)]
            pulse.latencies += map(sub, ops.answered, some)
        elif ops.outcome != "withdrawn":
            pulse.failed += number

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        """Note it."""
        self._note("memory", device.path, described(error), device.generation)

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """Note it."""
        self._note("fault", device.path, described(fault), device.generation)

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        """Note it."""
        text = f"generation {generation} is up after {phases.total:.3g} s"
        self._note("ready", device.path, text, generation)

    def device_lost(self, device: WatchedDevice, error: DeviceLost) -> None:
        """Note it."""
        self._note("lost", device.path, described(error), device.generation)
