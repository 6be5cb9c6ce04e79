"""Counts that are updated as events happen: ops, faults, restarts. Plain integers in trio's thread.

Ops arrive by the hundred thousand a second. Their times are therefore collected, and sorted into
histograms some thousand at a time. In a busy lane the timed ops stand for the others
(``DeviceInstrument.sampled``).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, final

import numpy as np

from .. import DeviceInstrument
from ..lanes.instrument import UNMEASURED
from ._catalogue import SECONDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from .. import (
        ContextPoisoned,
        FinishedOps,
        OutOfMemory,
        WatchedDevice,
        WatchedOp,
    )
    from ..actors import ActorRef
    from ..lanes import Outcome, Phases
    from ._catalogue import MetricsSnapshot

NANOSECONDS: Final = tuple(round(bound * 1e9) for bound in SECONDS)

_MOST_UNSORTED: Final = 4096
"""Ops of a library whose times are kept: about a megabyte."""

_MOST_NAMES: Final = 4096
"""Most names of ops in the look-up table, because programs may make functions without end."""

_MOST_BATCHES: Final = 1024
"""Batches that are open at the same time, more or less."""


def durations() -> Histogram:
    """Return an empty histogram of nanoseconds."""
    return Histogram(NANOSECONDS, 1e-9)


@final
class LibraryTally:
    """Counts of the ops of one library on one device.

    Attributes:
        outcomes: the number of ops by outcome.
        answered: times from submission to answer, of successful ops.
        queued: times from submission to the socket, of successful ops.
        executed: times of execution on the device, of successful ops.
    """

    __slots__ = ("_number", "_unsorted", "_untimed", "answered", "executed", "outcomes", "queued")

    def __init__(self) -> None:
        self.outcomes: Final[dict[Outcome, int]] = {
            "done": 0,
            "failed": 0,
            "withdrawn": 0,
            "lost": 0,
        }
        self.answered: Final = durations()
        self.queued: Final = durations()
        self.executed: Final = durations()
        self._unsorted: Final[list[tuple[FinishedOps, int]]] = []
        self._number = self._untimed = 0

    def add(self, ops: FinishedOps) -> None:
        """Some more."""
        timed = len(ops.seqs)
        untimed = len(ops.untimed)
        self.outcomes[ops.outcome] += timed + untimed
        if ops.outcome == "done":
            self._untimed += untimed
            if timed:  # which stand for those before as well
                self._unsorted.append((ops, timed + self._untimed))
                self._untimed = 0
                self._number += timed
                if self._number > _MOST_UNSORTED:
                    self.sort()

    def sort(self) -> None:
        """Bring the histograms up to date."""
        if self._unsorted:
            number = self._number
            unsorted = [ops for ops, _ in self._unsorted]
            submitted = _joined((ops.submitted for ops in unsorted), number)
            sent = _joined((ops.sent for ops in unsorted), number)
            answered = _joined((ops.answered for ops in unsorted), number)
            shares = [_shares(of, len(ops.seqs)) for ops, of in self._unsorted]
            each = _joined(shares, number)
            self.answered.add_all(answered - submitted, each)
            known = sent > 0  # else no instrument watched then
            self.queued.add_all((sent - submitted)[known], each[known])
            for ops, of in zip(unsorted, shares, strict=True):
                if ops.measured:
                    self._add_executed(ops, of)
            self._unsorted.clear()
            self._number = 0

    def _add_executed(self, ops: FinishedOps, shares: list[int]) -> None:
        rows = ops.rows
        for seq, share in zip(ops.seqs, shares, strict=True):
            _, started, ended, _, _ = rows.get(seq, UNMEASURED)
            if ended:
                self.executed.add(ended - started, share)


def _joined(parts: Iterable[Iterable[int]], number: int) -> NDArray[np.int64]:
    return np.fromiter(itertools.chain.from_iterable(parts), np.int64, number)


def _shares(of: int, among: int) -> list[int]:
    """Return the number of ops that each of ``among`` timed ops stands for; the sum is ``of``."""
    share, left = divmod(of, among)
    return [share + 1] * left + [share] * (among - left)


@final
class DeviceTally:
    """Counts of one device.

    Attributes:
        names: tallies of libraries by the name of an op.
    """

    def __init__(self) -> None:
        self.names: Final[dict[str, LibraryTally]] = {}
        self.libraries: Final[dict[str, LibraryTally]] = {}
        self.moved: Final[Counter[str]] = Counter()
        self.faults: Final[Counter[str]] = Counter()
        self.recoveries: Final = durations()
        self.batches = self.batch_ops = self.replays = self.out_of_memory = 0
        self._open: Final[OrderedDict[int, None]] = OrderedDict()
        self._failed_at: int | None = None

    def meet(self, name: str, lane: str) -> LibraryTally:
        """Return the tally for ops of a new name."""
        if len(self.names) >= _MOST_NAMES:
            self.names.clear()
        library = library_of(name, lane)
        self.names[name] = tally = self.libraries.setdefault(library, LibraryTally())
        return tally

    def note_batch(self, batch: int) -> None:
        """One more op of a batch."""
        self.batch_ops += 1
        if batch not in self._open:
            self.batches += 1
            self._open[batch] = None
            if len(self._open) > _MOST_BATCHES:
                self._open.popitem(last=False)

    def note_fault(self, status: str) -> None:
        """Count a fault. The time of an outage runs from its first fault until a context is up."""
        self.faults[status] += 1
        if self._failed_at is None:
            self._failed_at = time.monotonic_ns()

    def note_ready(self) -> None:
        """Count the duration of an outage, if one ends with this context."""
        if self._failed_at is not None:
            self.recoveries.add(time.monotonic_ns() - self._failed_at)
            self._failed_at = None

    def take(self, snapshot: MetricsSnapshot, *labels: str) -> None:
        """Add all counts to a snapshot."""
        for library, tally in self.libraries.items():
            tally.sort()
            for outcome, count in tally.outcomes.items():
                snapshot.add("ops", count, *labels, library, outcome)
            snapshot.add_histogram("op_seconds", tally.answered, *labels, library)
            snapshot.add_histogram("op_queued_seconds", tally.queued, *labels, library)
            snapshot.add_histogram("op_device_seconds", tally.executed, *labels, library)
        for op, nbytes in self.moved.items():
            snapshot.add("transferred_bytes", nbytes, *labels, op)
        for status, count in self.faults.items():
            snapshot.add("faults", count, *labels, status)
        snapshot.add_histogram("recovery_seconds", self.recoveries, *labels)
        for name in ("batches", "batch_ops", "replays", "out_of_memory"):
            snapshot.add(name, getattr(self, name), *labels)


def library_of(name: str, lane: str) -> str:
    """Return the library of an op: ``"blas"`` for ``"blas.gemm"``; else the lane's kind."""
    library, dot, _ = name.partition(" ")[0].partition(".")
    return library if dot else lane.partition(".")[0]


@final
class SystemTally(DeviceInstrument):
    """Counts events of a system's devices and actors.

    Args:
        wanted: returns True for devices to count.
        timed: whether hosts measure how long the device executes ops.
        every_op: whether to take the times of all ops, even in a busy lane.

    Attributes:
        devices: the counts of each device.
        restarts: the restarts of actors, by class.
        stops: the stops of actors, by class and ``"failure"`` or ``"normal"``.
    """

    def __init__(
        self, wanted: Callable[[WatchedDevice], bool], *, timed: bool, every_op: bool = False
    ) -> None:
        self.timed = timed
        self.sampled = not every_op
        self._wanted: Final = wanted
        self._tallies: Final[dict[WatchedDevice, DeviceTally]] = {}
        self.devices: Final[dict[WatchedDevice, DeviceTally]] = {}
        self.restarts: Final[Counter[str]] = Counter()
        self.stops: Final[Counter[tuple[str, str]]] = Counter()

    def of(self, device: WatchedDevice) -> DeviceTally:
        """Return the tally of a device; ``devices`` keeps only those of wanted devices."""
        tally = self._tallies.get(device)
        if tally is None:
            tally = self._tallies[device] = DeviceTally()
            if self._wanted(device):
                self.devices[device] = tally
        return tally

    def forget(self, gone: Callable[[WatchedDevice], bool]) -> None:
        """Drop the tallies of devices that are gone."""
        for device in [device for device in self._tallies if gone(device)]:
            del self._tallies[device]
            self.devices.pop(device, None)

    # --- called for ops ------------------------------------------------------------------

    def ops_finished(self, ops: FinishedOps) -> None:
        """Count finished ops; they report all times, so this class needs no earlier hooks."""
        tally = self._tallies.get(ops.device) or self.of(ops.device)
        library = tally.names.get(ops.name) or tally.meet(ops.name, ops.lane)
        library.add(ops)
        if ops.lane == "memory" and ops.outcome == "done":
            tally.moved[ops.name] += ops.nbytes

    def op_in_batch(self, op: WatchedOp, batch: int) -> None:
        """Count it and its batch."""
        self.of(op.device).note_batch(batch)

    def op_replays(self, op: WatchedOp, recording: int) -> None:
        """Count it."""
        self.of(op.device).replays += 1

    # --- rare events ---------------------------------------------------------------------

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        """Count it."""
        self.of(device).out_of_memory += 1

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """Count it, and begin to wait."""
        self.of(device).note_fault(fault.status_name)

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        """Count the end of an outage."""
        self.of(device).note_ready()

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Count it by its class."""
        self.restarts[ref.kind] += 1

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Count it by its class."""
        self.stops[ref.kind, "normal" if cause is None else "failure"] += 1
