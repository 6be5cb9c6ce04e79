"""The service: an actor beside the device, which asks the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from atomr_accel import System
from atomr_accel.actors import Message, Service, handler, serving


@dataclass(frozen=True)
class TotalsStatistics:
    """Counts of a service.

    Attributes:
        calls: answered calls.
    """

    calls: int


class Forget(Message[int]):
    """Set the count of calls to 0, and return the old one."""


class Totals(Service):
    """Answers arrays with the sum of the products of their rows."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._calls = 0

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Wait for calls."""
        task_status.started()
        await trio.sleep_forever()

    async def call(self, item: Any, **options: Any) -> float:
        """Answer an array; faults are the device's, and the call is made again after one."""
        del options

        async def total() -> float:
            x = await self._device.put(np.asarray(item))
            asked = await self._device.gram.ref.ask(self._device.requests.gram.total(x))
            return float(await self._device.get(asked))

        answer: float = await self._device.retry(total)
        self._calls += 1
        return answer

    @handler
    async def forget(self, message: Forget) -> int:
        """Answer a `Forget`."""
        del message
        await trio.lowlevel.checkpoint()
        calls, self._calls = self._calls, 0
        return calls

    def statistics(self) -> TotalsStatistics:
        """Return the counts."""
        return TotalsStatistics(self._calls)


def open_totals(device: Any, *, system: System, name: str = "totals") -> Any:
    """Open the service at the top of a system's tree, for the length of a block."""
    return serving(Totals(device), system=system, name=name)
