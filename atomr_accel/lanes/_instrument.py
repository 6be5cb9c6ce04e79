"""Hooks for whoever watches devices from outside: what happens to ops, memory and contexts."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Literal, Protocol, final

import msgspec

from ..actors import Instrument
from ..actors._instrument import Instruments

if TYPE_CHECKING:
    from .._errors import ContextPoisoned, DeviceLost, OutOfMemory

Outcome = Literal["done", "failed", "withdrawn", "lost"]
"""How an op ends: it was executed; it raised an error of its own; its caller was cancelled before
it was sent; or its context failed, or its device was closed, while it was in flight."""


@final
class OpTimes(msgspec.Struct, gc=False):
    """When what happened to an op, in nanoseconds of ``time.monotonic_ns``.

    All processes of a machine have that clock in common. What is not known is 0. What hosts tell is
    known only where an instrument has asked for that (``DeviceInstrument.timed``).

    Attributes:
        submitted: the program has put it in its order.
        sent: it was handed to the socket of its lane.
        launched: its lane has begun to launch it (told by the host).
        started: the device has begun to execute it (measured by the device).
        ended: the device has executed it (likewise).
        found: its lane has found it done (told by the host).
        answered: the program has learnt of its end.
        stream: no time, but tells the streams of a device apart: that in which it was launched.
            0 where it is its lane's own.
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
        """How long the device has executed it; None where that was not measured."""
        return (self.ended - self.started) * 1e-9 if self.ended else None


Row = tuple[int, int, int, int, int]
"""What a host tells of an op: when it was launched, began, ended and was found done, or zeros; and
the number of its stream."""

_NUMBERS: Final = 6
"""Of an op, in ``wire.Times``."""


@final
class Measured:
    """What a host tells of ops that it is about to answer: read where somebody looks.

    Args:
        packed: as ``wire.Times`` has it.

    Raises:
        ValueError: it is not what ``wire.Times`` has.
    """

    __slots__ = ("_numbers", "_rows")

    def __init__(self, packed: bytes) -> None:
        self._numbers = memoryview(packed).cast("q")
        self._rows: dict[int, Row] | None = None
        if not self._numbers or len(self._numbers) % _NUMBERS:
            raise ValueError(f"{len(self._numbers)} numbers are not {_NUMBERS} for each op")

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last of the ops."""
        return self._numbers[0], self._numbers[-_NUMBERS]

    @property
    def rows(self) -> dict[int, Row]:
        """What it tells, by op."""
        if self._rows is None:
            numbers = array("q", self._numbers.tobytes())
            seqs, *columns = (numbers[at::_NUMBERS] for at in range(_NUMBERS))
            self._rows = dict(zip(seqs, zip(*columns, strict=True), strict=True))
            if min(map(min, columns[:-1])) < 0:  # which no clock shows
                self._rows = dict.fromkeys(seqs, UNMEASURED)
        return self._rows


UNMEASURED: Final[Row] = (0, 0, 0, 0, 0)


def op_times(submitted: int, sent: int, answered: int, row: Row = UNMEASURED) -> OpTimes:
    """The times of an op."""
    launched, started, ended, found, stream = row
    return OpTimes(submitted, sent, launched, started, ended, found, answered, stream)


class WatchedDevice(Protocol):
    """What instruments are told of a device by."""

    @property
    def name(self) -> str:
        """Such as ``"cuda:0"``."""

    @property
    def path(self) -> str:
        """Its place in the tree of actors, such as ``"/gpu-0"``, by which it is unique."""

    @property
    def generation(self) -> int:
        """The present generation."""


class WatchedOp(Protocol):
    """What instruments are told of an op by. Do not keep it: it keeps its buffers."""

    @property
    def seq(self) -> int:
        """Its place in the device's program order, by which it is known."""

    @property
    def name(self) -> str:
        """What it is called, such as ``"blas.gemm"``."""

    @property
    def lane(self) -> str:
        """The lane that executes it."""

    @property
    def device(self) -> WatchedDevice:
        """Its device."""

    @property
    def dependencies(self) -> tuple[tuple[int, int], ...]:
        """``(lane number, seq)`` of the ops that were in flight and come before it."""

    @property
    def nbytes(self) -> int:
        """How many bytes it copies or fills, if it is of the memory lane; otherwise 0."""

    @property
    def times(self) -> OpTimes | None:
        """When what happened to it so far; None if nobody took times when it was submitted."""

    @property
    def error(self) -> Exception | None:
        """What it failed with, once it has."""


@final
class FinishedOps(msgspec.Struct, eq=False):
    """Ops that are over, as instruments are told of them together. It may be kept.

    What is told of each is in lists of equal length, in the order in which they ended. Times are
    nanoseconds of ``time.monotonic_ns``, as those of ``OpTimes``.

    If all that instruments want are samples (``DeviceInstrument.sampled``), about one op in 17 is
    in the lists while more than 16 are in flight in their lane, or it is sent 20,000 a second.

    Attributes:
        device: theirs.
        lane: the lane that has executed them.
        name: what they are called, such as ``"blas.gemm"``.
        outcome: how all of them ended.
        seqs: their places in the device's program order.
        submitted: when each was put in that order.
        sent: when each was handed to the socket of its lane; 0 where nobody watched just then.
        answered: when the program has learnt of the end of each.
        measured: what hosts tell of these and others, which ``rows`` and ``times`` read; empty
            where nobody has asked.
        nbytes: how many bytes they have copied or filled in all, if they are of the memory lane;
            otherwise 0.
        untimed: the places of further ops that ended so, whose times were not taken.
    """

    device: WatchedDevice
    lane: str
    name: str
    outcome: Outcome
    seqs: list[int] = []
    submitted: list[int] = []
    sent: list[int] = []
    answered: list[int] = []
    measured: list[Measured] = []
    nbytes: int = 0
    untimed: list[int] = []

    @property
    def rows(self) -> dict[int, Row]:
        """What hosts tell, by op; also of others."""
        return {seq: row for each in self.measured for seq, row in each.rows.items()}

    @property
    def times(self) -> list[OpTimes]:
        """When what happened to each."""
        rows = self.rows
        own = [rows.get(seq, UNMEASURED) for seq in self.seqs]
        return [*map(op_times, self.submitted, self.sent, self.answered, own)]


class WatchedTransfer(Protocol):
    """What instruments are told of a long transfer by."""

    @property
    def name(self) -> str:
        """``"put"`` or ``"get"``."""

    @property
    def nbytes(self) -> int:
        """How many bytes it moves in all."""

    @property
    def done(self) -> int:
        """How many of them have arrived."""


class Phases(Protocol):
    """How long a context took to come up, in seconds."""

    @property
    def total(self) -> float:
        """From starting its host to serving."""

    @property
    def open(self) -> float:
        """Until the device was opened: process, imports, context; next to nothing if prepared."""

    @property
    def remap(self) -> float:
        """Mapping the sealed slabs again."""

    @property
    def lanes(self) -> float:
        """Starting the lanes in use, and the round trip that proves it good."""


class DeviceInstrument(Instrument, hooks=True):
    """Base of instruments that are told what happens on devices, too.

    Override what you want to know, as of ``Instrument``, which this extends; the same holds for
    it. What is called for each op should take less than a microsecond. Ops of the package's own,
    such as the round trip that proves a context good, are told of like any others.

    Attributes:
        timed: whether hosts are to tell when ops were launched, executed and found done, while
            this instrument is told. That costs them some microseconds an op.
        ranges: whether hosts are to mark launches as ranges of NVTX meanwhile.
        sampled: whether the times of some ops will do where there are many: see
            ``FinishedOps.untimed``; and whether ``System.tell_instruments`` is called whenever what
            is done matters. Where another instrument wants all, all are told as ever.
    """

    timed: bool = False
    ranges: bool = False
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
        """Ops of one name are over: told of some dozens at a time, if so many are in flight.

        That takes a fraction of ``op_finished``. What is done is told of as soon as its lane has
        nothing in flight, or somebody calls ``System.tell_instruments``; of others at once.
        """

    # --- data and memory ---------------------------------------------------------------------

    def transfer_started(self, device: WatchedDevice, transfer: WatchedTransfer) -> None:
        """A transfer has begun that takes several ops."""

    def transfer_finished(
        self, device: WatchedDevice, transfer: WatchedTransfer, failure: BaseException | None
    ) -> None:
        """It is over, by a failure, by cancellation, or without either."""

    def slab_added(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """The device's memory has grown."""

    def slab_removed(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """The device's memory has shrunk."""

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        """There was no room for something; its caller is told."""

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


class Told(WatchedDevice, Protocol):
    """A device whose ports know whom to tell."""

    @property
    def instruments(self) -> Instruments:
        """Those of its system."""


@final
class _Nobody:
    """The device of a port of which nobody is told."""

    name: str = ""
    path: str = ""
    generation: int = 0
    instruments: Final = Instruments()


NOBODY: Final[Told] = _Nobody()
