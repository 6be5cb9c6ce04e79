"""``Metrics``: counters updated as events happen, and states read at collection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

import trio

from .. import Device, System
from .._errors import said_of
from ..actors import ActorSystem
from ..actors.blocks import enters
from ..actors.util import check_instance
from ..patterns import Observer
from ..wire.options import flag
from ._catalogue import ITEMS, Histogram, MetricsSnapshot
from ._states import take_actors, take_device, take_gpus, take_pattern
from ._tally import SystemTally, durations
from .nvml import NvmlMonitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .. import WatchedDevice
    from ._catalogue import Metric, Point

_log = logging.getLogger("atomr_accel.telemetry")

_PATIENCE: Final = 1.0
"""Seconds for which a collector in another thread waits for trio's."""

_Take = Callable[[MetricsSnapshot], None]


class HasStatistics(Protocol):
    """A pattern, or another object with statistics."""

    def statistics(self) -> object:
        """Return a snapshot: a dataclass."""


@final
class Metrics:
    """Counters and states of observed objects, for Prometheus or OpenTelemetry to collect.

    ::

        metrics = Metrics()
        with metrics.observe(system), metrics.observe(batcher, name="generate"):
            async with serve_prometheus(metrics, port=9464):
                ...

    All observed objects belong to one ``trio.run``, and are counted and read in its thread.
    `collect` may be called in any thread.
    """

    def __init__(self) -> None:
        self._sources: Final[dict[tuple[str, ...], _Take]] = {}
        self._last = MetricsSnapshot()
        self._thread = 0
        self._token: trio.lowlevel.TrioToken | None = None

    @enters
    def observe(
        self,
        what: Device | ActorSystem | NvmlMonitor | HasStatistics,
        *,
        name: str | None = None,
        timed: bool = False,
        every_op: bool = False,
    ) -> Iterator[None]:
        """Count and read an object for the length of a ``with`` block.

        Earlier events are not counted, and the counts are dropped when the block ends.

        Args:
            what: a device; a system, with its actors and all present and later devices; the GPUs
                that ``open_nvml`` watches; or a pattern with statistics, such as a batcher.
            name: the value of the label ``system``, or of ``name`` for patterns. By default the
                system's name, or the name of the pattern's class in small letters.
            timed: whether hosts measure how long the device executes each op, which costs them some
                microseconds per op. For devices and systems only.
            every_op: whether to take the times of each op. By default a busy lane times one op in
                17, which stands for the others in histograms. A lane is busy with more than 16 ops
                in flight, or above 20,000 ops a second. The number of ops is always exact.

        Raises:
            RuntimeError: called in another thread than the rest.
        """
        if name is not None:
            check_instance("a name", name, str)
        timed, every_op = flag(timed, "timed"), flag(every_op, "every_op")
        self._settle_here()
        with ExitStack() as stack:
            if isinstance(what, Device):
                key, take = self._device(what, name, stack, timed=timed, every_op=every_op)
            elif isinstance(what, ActorSystem):
                key, take = self._system(what, name, stack, timed=timed, every_op=every_op)
            elif isinstance(what, NvmlMonitor):
                key, take = ("gpus",), lambda snapshot: take_gpus(snapshot, what)
            elif not isinstance(what, type) and callable(getattr(what, "statistics", None)):
                key, take = _pattern(what, name)
            else:
                raise TypeError(
                    "argument of observe must be a device, a system, what open_nvml "
                    f"gives, or a pattern with statistics(), not {what!r}"
                )
            with self._source(key, take):
                yield

    @enters
    def observer(self, name: str) -> Iterator[Observer]:
        """An observer for patterns, which counts latencies and sizes of batches.

        ``with metrics.observer("generate") as observer:`` and then
        ``open_batcher(..., observer=observer)``.

        Args:
            name: the value of the label ``name``.
        """
        check_instance("a name", name, str)
        self._settle_here()
        tally = _PatternTally()
        with self._source(("observer", name), lambda snapshot: tally.take(snapshot, name)):
            yield tally

    def collect(self) -> Sequence[tuple[Metric, tuple[Point, ...]]]:
        """All metrics that have values, with these.

        In another thread than trio's it waits until trio's has read them. If that is busy for a
        second, they are those of the time before.
        """
        if not self._sources:
            return ()
        if threading.get_ident() == self._thread:
            self._take()
        elif self._token is not None:
            read = threading.Event()
            try:
                self._token.run_sync_soon(self._take_for, read)
            except trio.RunFinishedError:
                pass
            else:
                read.wait(_PATIENCE)
        return tuple(self._last)

    # --- sources -------------------------------------------------------------------------

    def _settle_here(self) -> None:
        token = trio.lowlevel.current_trio_token()
        if self._sources and token is not self._token:
            raise RuntimeError(
                "these metrics observe what belongs to another trio.run; make another Metrics here"
            )
        self._token, self._thread = token, threading.get_ident()

    @contextmanager
    def _source(self, key: tuple[str, ...], take: _Take) -> Iterator[None]:
        if key in self._sources:
            raise _taken(key)
        self._sources[key] = take
        try:
            yield
        finally:
            self._sources.pop(key, None)

    def _device(
        self,
        device: Device,
        name: str | None,
        stack: ExitStack,
        **wanted: bool,
    ) -> tuple[tuple[str, ...], _Take]:
        labels = (device.system.name if name is None else name, device.ref.path)
        if ("system", labels[0]) in self._sources:
            raise _taken(("system", labels[0]))
        tally = SystemTally(lambda one: one is device.core, **wanted)
        stack.enter_context(device.system.instrumented(tally))

        def take(snapshot: MetricsSnapshot) -> None:
            device.system.tell_instruments()
            tally.of(device.core).take(snapshot, *labels)
            take_device(snapshot, device, *labels)

        return ("device", *labels), take

    def _system(
        self,
        system: ActorSystem,
        name: str | None,
        stack: ExitStack,
        **wanted: bool,
    ) -> tuple[tuple[str, ...], _Take]:
        label = system.name if name is None else name
        for key in self._sources:
            if key[:2] == ("device", label):
                raise _taken(key)
        tally = SystemTally(lambda _: True, **wanted)
        stack.enter_context(system.instrumented(tally))

        def take(snapshot: MetricsSnapshot) -> None:
            system.tell_instruments()
            devices = system.devices if isinstance(system, System) else ()
            cores: set[WatchedDevice] = {device.core for device in devices}
            tally.forget(lambda device: device not in cores)
            for device in devices:
                tally.of(device.core).take(snapshot, label, device.ref.path)
                take_device(snapshot, device, label, device.ref.path)
            take_actors(snapshot, system, label)
            for kind, count in tally.restarts.items():
                snapshot.add("actor_restarts", count, label, kind)
            for (kind, how), count in tally.stops.items():
                snapshot.add("actor_stops", count, label, kind, how)

        return ("system", label), take

    def _take(self) -> None:
        snapshot = MetricsSnapshot()
        for key, take in list(self._sources.items()):
            part = MetricsSnapshot()
            try:
                take(part)
            except Exception:  # noqa: BLE001 (logged; the rest is still to be seen)
                _log.exception("%s cannot be read and is observed no more", " ".join(key))
                del self._sources[key]
            else:
                snapshot.join(part)
        self._last = snapshot

    def _take_for(self, read: threading.Event) -> None:
        self._take()
        read.set()


def _taken(key: tuple[str, ...]) -> ValueError:
    return ValueError(
        f"{' '.join(key)} is observed already; observe(..., name=...) gives one another name"
    )


def _pattern(what: HasStatistics, name: str | None) -> tuple[tuple[str, ...], _Take]:
    kind = type(what).__name__.lower()
    label = kind if name is None else name
    if not is_dataclass(what.statistics()):
        raise TypeError(f"statistics() of {what!r} are no dataclass")
    return ("pattern", kind, label), lambda snapshot: take_pattern(
        snapshot, what.statistics(), kind, label
    )


def require_metrics(metrics: object) -> None:
    """Raise a `TypeError` unless it is a ``Metrics``."""
    if not isinstance(metrics, Metrics):
        raise TypeError(
            f"metrics must be a Metrics, not {said_of(metrics)}; let one observe it: `metrics = "
            "Metrics()`, and `with metrics.observe(device):` around the block"
        )


@final
class _PatternTally(Observer):
    def __init__(self) -> None:
        self._seconds = {outcome: durations() for outcome in ("answered", "failed", "withdrawn")}
        self._items = Histogram([int(bound) for bound in ITEMS], 1)
        self._retries = 0

    def started(self, items: Sequence[object]) -> None:
        self._items.add(len(items))

    def retried(self, items: Sequence[object], error: Exception) -> None:
        self._retries += 1

    def answered(self, item: object, seconds: float) -> None:
        self._seconds["answered"].add(round(seconds * 1e9))

    def failed(self, item: object, error: BaseException, seconds: float) -> None:
        self._seconds["failed"].add(round(seconds * 1e9))

    def withdrawn(self, item: object, seconds: float) -> None:
        self._seconds["withdrawn"].add(round(seconds * 1e9))

    def take(self, snapshot: MetricsSnapshot, name: str) -> None:
        for outcome, histogram in self._seconds.items():
            snapshot.add_histogram("pattern_request_seconds", histogram, name, outcome)
        snapshot.add_histogram("pattern_batch_items", self._items, name)
        snapshot.add("pattern_retries", self._retries, name)
