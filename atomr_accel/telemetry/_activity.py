"""Kernels, copies and calls of the driver, as CUPTI records them in a device's host."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final, get_args

import msgspec
import trio

from .._errors import ContextPoisoned, DeviceLost, GpuRefStale, said_of
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..device import Device
from ..lanes import DeviceInstrument
from ..libraries.activity.lane import starting, stopping, taking
from ..ops import perform
from ..wire.activity import ActivityKind, ActivityRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from ..lanes import FinishedOps

_EVERY_SECONDS: Final = 0.25
_KEPT: Final = 100_000
_NAMES: Final = 1 << 17
"""Ops whose names are known."""


@dataclass(frozen=True, slots=True)
class ActivityStatistics:
    """Counts of an activity trace.

    Attributes:
        records: the records that have arrived.
        lost: records that were dropped, because the host had too many.
        interrupted: how often a host ended, with the records of its last quarter of a second.
    """

    records: int
    lost: int
    interrupted: int


@final
class ActivityTrace(DeviceInstrument):
    """Activities of a device while its block is open, which ``activity`` gives."""

    correlated = True

    def __init__(self, device: Device, kinds: tuple[ActivityKind, ...]) -> None:
        self._device: Final = device
        self._kinds: Final = kinds
        self._kept: Final[deque[ActivityRecord]] = deque(maxlen=_KEPT)
        self._names: Final[dict[int, str]] = {}
        self._generation = 0
        self._count = self._lost = self._interrupted = 0

    @property
    def records(self) -> list[ActivityRecord]:
        """The latest records, at most 100,000, in the order in which they arrived."""
        return [*self._kept]

    def statistics(self) -> ActivityStatistics:
        """A snapshot of the counts."""
        return ActivityStatistics(self._count, self._lost, self._interrupted)

    def ops_finished(self, ops: FinishedOps) -> None:
        """Note names of ops."""
        if ops.device is self._device.core:
            names = self._names
            names.update(dict.fromkeys(ops.seqs, ops.name))
            while len(names) > _NAMES:
                del names[next(iter(names))]

    async def start(self) -> None:
        """Have the present host record."""
        generation = self._device.generation
        await perform(self._device.core, starting(self._kinds))
        self._generation = generation

    async def run(self) -> None:
        """Take records at intervals, and have later hosts record, too."""
        while True:
            await trio.sleep(_EVERY_SECONDS)
            try:
                if self._generation != self._device.generation:
                    await self.start()
                await self._take()
            except (ContextPoisoned, GpuRefStale):
                self._interrupted += 1
            except DeviceLost:
                return  # its own ops say so

    async def finish(self) -> None:
        """End recording, and take the last records."""
        with trio.CancelScope(shield=True):
            try:
                await perform(self._device.core, stopping())
                await self._take()
            except (ContextPoisoned, GpuRefStale):
                self._interrupted += 1
            except DeviceLost:
                pass

    async def _take(self) -> None:
        more = True
        while more:
            page = await perform(self._device.core, taking())
            self._device.system.tell_instruments()  # which names the ops that are over
            records = [
                msgspec.structs.replace(each, op_name=self._names.get(each.op, ""))
                for each in page.records
            ]
            self._kept.extend(records)
            self._count += len(records)
            self._lost += page.lost
            if records:
                core = self._device.core
                core.instruments("activity_recorded", core, records)
            more = page.more


@opens
async def activity(
    device: Device, *, kinds: Iterable[ActivityKind] = ("kernels", "copies", "fills")
) -> AsyncIterator[ActivityTrace]:
    """Have CUPTI record what the device does, for the length of a block.

    ::

        async with trace(device, "run.pftrace"), activity(device) as found:
            ...

    The records join the timeline of a ``trace`` around the block: below each stream of CUPTI's,
    kernels and copies lie under their ops. ``found.records`` has the latest ones. Hosts name the op
    of each launch to CUPTI, so each record has its number. Recording costs some microseconds per
    launch, because CUPTI has to note the driver's calls, too.

    It begins again in the next host after a fault. Kernels that are still running at the end of the
    block are left out.

    Args:
        device: the device to watch.
        kinds: what to record: ``"kernels"``, ``"copies"``, ``"fills"``, and ``"calls"`` of the
            driver and the runtime.

    Raises:
        LibraryError: another tool holds CUPTI, or it refuses.
        LibraryMissing: cupti-python is not installed.
        Unsupported: the device is not on CUDA.
    """
    if not isinstance(device, Device):
        raise TypeError(f"device must be a Device, not {said_of(device)}; open one")
    session = ActivityTrace(device, _checked(kinds))
    await session.start()
    try:
        async with PlainNursery() as nursery:
            try:
                with device.system.instrumented(session):
                    nursery.start_soon(session.run, name="activity")
                    try:
                        yield session
                    finally:
                        device.system.tell_instruments()  # of names, while they are wanted
            finally:
                nursery.cancel_scope.cancel()
    finally:
        await session.finish()


def _checked(kinds: Any) -> tuple[ActivityKind, ...]:
    given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    known = get_args(ActivityKind)
    if not given or any(each not in known for each in given):
        raise ValueError(
            f"kinds must be some of {', '.join(map(repr, known))}, not {given!r}; leave it out for "
            "kernels, copies and fills"
        )
    return tuple(dict.fromkeys(given))
