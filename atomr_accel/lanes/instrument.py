"""Hooks for observers of devices: events of ops, memory and contexts."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Literal, Protocol, final

import msgspec

from ..actors import Instrument
from ..actors.instrument import Instruments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._errors import ContextPoisoned, DeviceLost, OutOfMemory
    from ..wire.activity import ActivityRecord

Outcome = Literal["done", "failed", "withdrawn", "lost"]
"""Outcome of an op: it was executed (``done``); it raised an error of its own (``failed``); its
caller was cancelled before it was sent (``withdrawn``). It is ``lost`` if its context failed, or
its device was closed, while it was in flight."""


@final
class OpTimes(msgspec.Struct, gc=False):
    """Times of the events of an op, in nanoseconds of ``time.monotonic_ns``.

    All processes of a machine share that clock. A time that is not known is 0. The times from hosts
    are known only if an instrument asks for them (``DeviceInstrument.timed``).

    Attributes:
        submitted: the program added the op to its order.
        sent: the op was handed to the socket of its lane.
        launched: the lane began to launch the op (reported by the host).
        started: the device began to execute the op (measured by the device).
        ended: the device finished the op (measured by the device).
        found: the lane found the op finished (reported by the host).
        answered: the program received the answer.
        stream: not a time, but the number of the stream in which the op was launched. 0 is the
            lane's own stream.
    """

    submitted: int = 0
    sent: int = 0
    launched: int = 0
    started: int = 0
    ended: int = 0
    found: int = 0
    answered: int = 0
    stream: int = 0

    @property
    def device_seconds(self) -> float | None:
        """Seconds of execution on the device; None if they were not measured."""
        return (self.ended - self.started) * 1e-9 if self.ended else None


Row = tuple[int, int, int, int, int]
"""Host times of an op: launched, started, ended and found, each 0 if unknown; and the number of its
stream."""

_NUMBERS: Final = 6
"""Numbers for each op in ``wire.Times``."""


@final
class MeasuredTimes:
    """Host times of ops that are about to be answered, decoded on first use.

    Args:
        packed: the field ``ops`` of ``wire.Times``.
    """

    __slots__ = ("_numbers", "_rows")

    def __init__(self, packed: bytes) -> None:
        self._numbers = memoryview(packed).cast("q")
        self._rows: dict[int, Row] | None = None
        if not self._numbers or len(self._numbers) % _NUMBERS:
            raise ValueError(f"{len(self._numbers)} numbers are not {_NUMBERS} for each op")

    @property
    def ends(self) -> tuple[int, int]:
        """First and last op, by sequence number."""
        return self._numbers[0], self._numbers[-_NUMBERS]

    @property
    def rows(self) -> dict[int, Row]:
        """Host times by sequence number."""
        if self._rows is None:
            numbers = array("q", self._numbers.tobytes())
            seqs, *columns = (numbers[at::_NUMBERS] for at in range(_NUMBERS))
            self._rows = dict(zip(seqs, zip(*columns, strict=True), strict=True))
            if min(map(min, columns[:-1])) < 0:  # which no clock shows
                self._rows = dict.fromkeys(seqs, UNMEASURED)
        return self._rows


UNMEASURED: Final[Row] = (0, 0, 0, 0, 0)


def op_times(submitted: int, sent: int, answered: int, row: Row = UNMEASURED) -> OpTimes:
    """Return the times of an op."""
    launched, started, ended, found, stream = row
    return OpTimes(submitted, sent, launched, started, ended, found, answered, stream)


class WatchedDevice(Protocol):
    """A device as instruments see it."""

    @property
    def name(self) -> str:
        """Name of the device, such as ``"cuda:0"``."""

    @property
    def path(self) -> str:
        """Place of the device in the tree of actors, such as ``"/device-0"``; it is unique."""

    @property
    def generation(self) -> int:
        """Present generation."""


class WatchedOp(Protocol):
    """An op as instruments see it. Do not keep it: it holds its buffers."""

    @property
    def seq(self) -> int:
        """Place of the op in the device's program order; it identifies the op."""

    @property
    def name(self) -> str:
        """Name of the op, such as ``"blas.gemm"``."""

    @property
    def lane(self) -> str:
        """Lane that executes the op."""

    @property
    def device(self) -> WatchedDevice:
        """Device of the op."""

    @property
    def dependencies(self) -> tuple[tuple[int, int], ...]:
        """``(lane number, seq)`` of the ops that were in flight and come before it."""

    @property
    def nbytes(self) -> int:
        """Bytes that an op of the memory lane copies or fills; 0 for other ops."""

    @property
    def times(self) -> OpTimes | None:
        """Times of the op so far; None if no instrument wanted times when it was submitted."""

    @property
    def error(self) -> Exception | None:
        """Error with which the op failed, if it did."""


@final
class FinishedOps(msgspec.Struct, eq=False):
    """Finished ops of one name and outcome, reported together. Instruments may keep this object.

    The lists have equal length and follow the order in which the ops ended. Times are in
    nanoseconds of ``time.monotonic_ns``, as in ``OpTimes``.

    If all instruments want samples only (``DeviceInstrument.sampled``), a busy lane lists about one
    op in 17. A lane is busy while it has more than 16 ops in flight or is sent more than 20,000 ops
    a second.

    Attributes:
        device: the device of the ops.
        lane: the lane that executed the ops.
        name: the name of the ops, such as ``"blas.gemm"``.
        outcome: the outcome of all of them.
        seqs: the places of the ops in the device's program order.
        submitted: the time at which each was added to that order.
        sent: the time at which each was handed to the socket of its lane; 0 if no instrument
            watched then.
        answered: the time at which the program received the answer of each.
        measured: the host times of these ops and of others, which ``rows`` and ``times`` read;
            empty if no instrument asked for them.
        nbytes: the bytes that ops of the memory lane copied or filled in all; 0 for other lanes.
        untimed: the places of further ops with this outcome, whose times were not taken.
    """

    device: WatchedDevice
    lane: str
    name: str
    outcome: Outcome
    seqs: list[int] = []
    submitted: list[int] = []
    sent: list[int] = []
    answered: list[int] = []
    measured: list[MeasuredTimes] = []
    nbytes: int = 0
    untimed: list[int] = []

    @property
    def rows(self) -> dict[int, Row]:
        """Host times by sequence number, including those of other ops."""
        return {seq: row for each in self.measured for seq, row in each.rows.items()}

    @property
    def times(self) -> list[OpTimes]:
        """Times of each op in ``seqs``."""
        rows = self.rows
        own = [rows.get(seq, UNMEASURED) for seq in self.seqs]
        return [*map(op_times, self.submitted, self.sent, self.answered, own)]


class WatchedTransfer(Protocol):
    """A long transfer as instruments see it."""

    @property
    def name(self) -> str:
        """``"put"`` or ``"get"``."""

    @property
    def nbytes(self) -> int:
        """Bytes that the transfer moves in all."""

    @property
    def done(self) -> int:
        """Bytes that have arrived."""


class Phases(Protocol):
    """Seconds that each step of building a context took."""

    @property
    def total(self) -> float:
        """Time from the start of the host until the context serves ops."""

    @property
    def open(self) -> float:
        """Time until the device is open: process, imports, context; nearly 0 with a standby."""

    @property
    def remap(self) -> float:
        """Mapping the sealed slabs again."""

    @property
    def lanes(self) -> float:
        """Starting the lanes in use, and the round trip that proves it good."""


class DeviceInstrument(Instrument, hooks=True):
    """Base of instruments that also observe devices.

    Override the hooks that you need, as with ``Instrument``; the rules of that class apply here
    too. A hook that is called for each op should take less than a microsecond. Internal ops, such
    as the round trip that checks a new context, are reported like any other op.

    Attributes:
        timed: whether hosts report when ops were launched, executed and found done while this
            instrument is installed. That costs them some microseconds per op.
        ranges: whether hosts mark launches as NVTX ranges while this instrument is installed.
        correlated: whether hosts tell CUPTI the op of each launch while it is installed.
        sampled: whether a busy lane may take the times of some ops only (see
            ``FinishedOps.untimed``). Such an instrument calls ``System.tell_instruments`` whenever
            it needs current numbers. If another instrument wants the times of all ops, all are
            taken.
    """

    timed: bool = False
    ranges: bool = False
    correlated: bool = False
    sampled: bool = False

    # --- ops: each is submitted, sent and finished once ------------------------------------

    def op_submitted(self, op: WatchedOp) -> None:
        """An op was put in the program's order, in the task of its caller."""

    def op_in_batch(self, op: WatchedOp, batch: int) -> None:
        """An op that was submitted just now belongs to the batch of this number."""

    def op_replays(self, op: WatchedOp, recording: int) -> None:
        """An op that was submitted just now replays the recording of this number."""

    def op_sent(self, op: WatchedOp) -> None:
        """An op was handed to the socket of its lane; it cannot be withdrawn any more."""

    def op_finished(self, op: WatchedOp, outcome: Outcome) -> None:
        """An op is over. It may not have been sent, if its context failed."""

    def ops_finished(self, ops: FinishedOps) -> None:
        """Some ops of one name and outcome are over; a busy lane reports some dozens at a time.

        This costs a fraction of ``op_finished``. Successful ops are reported when their lane has
        nothing in flight, or when ``System.tell_instruments`` is called. Other outcomes are
        reported at once.
        """

    def activity_recorded(self, device: WatchedDevice, records: Sequence[ActivityRecord]) -> None:
        """Kernels and other activities were recorded, see ``telemetry.activity``."""

    # --- data and memory ---------------------------------------------------------------------

    def transfer_started(self, device: WatchedDevice, transfer: WatchedTransfer) -> None:
        """A transfer has begun that takes several ops."""

    def transfer_finished(
        self, device: WatchedDevice, transfer: WatchedTransfer, failure: BaseException | None
    ) -> None:
        """A long transfer is over: complete, failed (``failure``) or cancelled."""

    def slab_added(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """The device's memory has grown."""

    def slab_removed(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """The device's memory has shrunk."""

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        """An allocation failed for lack of memory; its caller gets ``error``."""

    # --- faults and generations ----------------------------------------------------------------

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """A context has failed: it was that of ``fault.generation``."""

    def generation_began(self, device: WatchedDevice, generation: int) -> None:
        """Another generation has begun, right after a fault. Its context has yet to come up."""

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        """A context is up and takes ops: the device's first, or the next after a fault."""

    def standby_changed(self, device: WatchedDevice, state: str) -> None:
        """A standby host is farther prepared, or not so far: see ``StandbyStatistics.state``."""

    def device_lost(self, device: WatchedDevice, error: DeviceLost) -> None:
        """The device does not come back."""


class InstrumentedDevice(WatchedDevice, Protocol):
    """A device that also knows the instruments of its system."""

    @property
    def instruments(self) -> Instruments:
        """Instruments of the device's system."""


@final
class _Nobody:
    """A device without instruments, for ports that nothing observes."""

    name: str = ""
    path: str = ""
    generation: int = 0
    instruments: Final = Instruments()


NOBODY: Final[InstrumentedDevice] = _Nobody()
