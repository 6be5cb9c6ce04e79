"""Ops that are withdrawn before they are sent, as those of cancelled callers are."""

from __future__ import annotations

from typing import final

from atomr_accel import DeviceInstrument, WatchedOp
from atomr_accel.lanes import Op


@final
class Withdrawer(DeviceInstrument):
    """An instrument that withdraws ops.

    Attributes:
        withdraws: the name of the ops; empty for none.
    """

    def __init__(self) -> None:
        self.withdraws = ""

    def op_submitted(self, op: WatchedOp) -> None:
        """An op is about to be queued."""
        if op.name == self.withdraws and isinstance(op, Op):
            op.withdraw()
