"""Explicit events, for measuring time on the device."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, final

import trio

from ..._errors import EventStale
from ...lanes import uninterrupted
from ...wire import Elapsed, ForgetEvent, RecordEvent
from ..core import MEMORY_LANE

if TYPE_CHECKING:
    from ...lanes import Op
    from ...memory import Kept
    from ..core import DeviceCore

_numbers: Final = itertools.count(1)


@final
@uninterrupted
class Event:
    """A point in the work of one lane. Made by ``device.event()``.

    Events are not needed for correctness, because ops on the same memory are always ordered.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._number = next(_numbers)
        self._op: Op | None = None
        self._done = trio.Event()
        self._kept: Kept | None = None

    async def record(self, lane: str = "blas") -> None:
        """Set the point after all ops submitted to ``lane`` so far (``cuEventRecord``).

        Recording again moves the point. This does not wait for the work.

        Args:
            lane: the name of a lane that was used before, such as ``"blas"``, ``"fft"`` or
                ``"kernels"``.

        Raises:
            ValueError: the lane is not running.
        """
        await self._core.ready()
        port = self._core.ports.get(lane)
        if port is None:
            running = ", ".join(self._core.ports)
            raise ValueError(f"no lane {lane!r} is running; running are: {running}")
        if self._kept is None or self._kept.epoch is not self._core.memory.epoch:
            message = ForgetEvent(self._number)
            self._kept = self._core.keep(MEMORY_LANE, "event.forget", message)
        # As read, not written: recording on another lane does not wait for this one.
        self._op = self._core.submit(port, "event.record", RecordEvent(self._number), (self._kept,))
        self._done = trio.Event()
        self._op.when_answered(self._done.set)

    def query(self) -> bool:
        """Return True if the work before the point is done (``cuEventQuery``).

        Raises:
            RuntimeError: the event was not recorded.
        """
        return self._recorded().answered

    async def wait(self) -> None:
        """Wait until the work before the point is done (``cuEventSynchronize``).

        Raises:
            RuntimeError: the event was not recorded.
            ContextPoisoned: the device failed before that.
        """
        op = self._recorded()
        # Not by ``op.wait``, which is for one task: it withdraws the op if the task is cancelled.
        await self._done.wait()
        op.result()

    async def elapsed(self, end: Event) -> float:
        """Return the time on the device from this point to ``end`` (``cuEventElapsedTime``).

        Waits for both.

        Args:
            end: another event of this device.

        Returns:
            Milliseconds.

        Raises:
            ValueError: ``end`` is an event of another device.
            RuntimeError: one of them is not recorded.
            EventStale: the generation in which one was recorded is over.
            ContextPoisoned: the device failed before one of them.
        """
        if not isinstance(end, Event):
            raise TypeError(f"end must be an event, as device.event makes them, not {end!r}")
        if end._core is not self._core:
            raise ValueError(
                f"end is an event of {end._core.name}, and this one is of {self._core.name}"
            )
        port = None
        while port is None:
            await self.wait()
            await end.wait()
            both = [event._kept for event in (self, end) if event._kept is not None]
            if any(kept.epoch is not self._core.memory.epoch for kept in both):
                raise EventStale("an event does not outlive its generation; record it again")
            port = self._core.ports.get(MEMORY_LANE)
            if port is None:  # the device has failed, and the next generation has not begun
                await self._core.ready()
        message = Elapsed(self._number, end._number)
        op = self._core.submit(port, "event.elapsed", message, both)
        milliseconds: float = await op.wait()
        return milliseconds

    def _recorded(self) -> Op:
        if self._op is None:
            raise RuntimeError("this event was not recorded yet; await event.record()")
        return self._op
