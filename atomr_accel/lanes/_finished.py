"""Reports of finished ops to instruments, collected so that a busy lane reports many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from .instrument import FinishedOps, InstrumentedDevice

if TYPE_CHECKING:
    from ._op import Op
    from .instrument import MeasuredTimes, Outcome

_TOGETHER: Final = 64
"""Number of collected ops at which a report is sent while other ops are in flight."""

_MEMORY_LANE: Final = "memory"
"""Lane whose ops are reported one by one, because an op forgets its size once it is settled."""


@final
class DoneOps:
    """Finished ops of a lane that instruments have not heard of yet.

    Attributes:
        waiting: whether there are ops or host times to report.
    """

    __slots__ = (
        "_by_name",
        "_device",
        "_in_flight",
        "_instruments",
        "_lane",
        "_measured",
        "waiting",
    )

    def __init__(self, device: InstrumentedDevice, lane: str, in_flight: dict[int, Op]) -> None:
        self._device = device
        self._lane = lane
        self._instruments = device.instruments
        self._in_flight = in_flight
        self._by_name: dict[str, FinishedOps] = {}
        self._measured: list[MeasuredTimes] = []
        self.waiting = False

    def wanted(self) -> bool:
        """Return True if finished ops are collected here instead of being reported at once."""
        methods = self._instruments.methods
        wanted = "ops_finished" in methods and "op_finished" not in methods
        return wanted and self._lane != _MEMORY_LANE

    def of(self, name: str) -> FinishedOps:
        """Return the collection to which finished ops of this name are added."""
        ops = self._by_name.get(name)
        if ops is None:
            ops = self._by_name[name] = FinishedOps(self._device, self._lane, name, "done")
            self.waiting = True
        return ops

    def measure(self, measured: MeasuredTimes) -> None:
        """Keep the times that a host sent for ops that it is about to answer."""
        self._measured.append(measured)
        self.waiting = True

    def answer(self, received: int, *, idle: bool) -> None:
        """Note when newly collected ops were answered, and report them if enough are waiting.

        Args:
            received: the time of the answers, in nanoseconds of ``time.monotonic_ns``.
            idle: whether the lane has nothing in flight.
        """
        number = 0
        for ops in self._by_name.values():
            ops.answered += [received] * (len(ops.seqs) - len(ops.answered))
            number += len(ops.seqs) + len(ops.untimed)
        if number >= _TOGETHER or (idle and not self._instruments.sampled):
            self.tell()

    def tell(self) -> None:
        """Report all collected ops."""
        by_name, self._by_name = self._by_name, {}
        measured, self._measured = self._measured, []
        self.waiting = False
        for each in measured[-1:]:
            if any(seq in self._in_flight for seq in each.ends):
                self.measure(each)  # some of its answers have yet to come
        for ops in by_name.values():
            if ops.seqs or ops.untimed:
                ops.measured = measured
                self._instruments("ops_finished", ops)

    def tell_of(self, op: Op, outcome: Outcome) -> None:
        """Report one op alone, at once."""
        ops = FinishedOps(self._device, self._lane, op.name, outcome)
        if op.submitted_at < 0:
            ops.untimed.append(op.seq)
        else:
            ops.seqs.append(op.seq)
            ops.submitted.append(op.submitted_at)
            ops.sent.append(op.sent_at)
            ops.measured = [each for each in self._measured if op.seq in each.rows]
            if op.measured is not None:
                ops.measured.append(op.measured)
            ops.answered.append(op.answered_at)
        ops.nbytes = op.nbytes if self._lane == _MEMORY_LANE else 0
        self._instruments("ops_finished", ops)
