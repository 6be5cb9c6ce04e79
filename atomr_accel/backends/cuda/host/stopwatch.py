"""Times of ops on the device, measured by its own clock and converted to the host's.

An event in a stream records the device's time when all work before it is done. An op therefore
lasts from the event before it to the event after it. Ops of a stream follow each other, so the
event after an unfinished op is also the event before the next op. Events on a separate stream
compare the two clocks now and then, because the clocks drift and the driver returns differences in
single precision.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, final

from .driver import NOT_READY, check, driver

if TYPE_CHECKING:
    from collections.abc import Callable

_ANCHOR_NS: Final = 2_000_000_000
"""Time for which one comparison of the clocks is used. Differences are exact to about 0.1 us
then."""

_TRIES: Final = 3
"""Largest number of comparisons of the clocks. It ends early if one is as quick as the best so
far."""


def _new_event() -> Any:
    return check("cuEventCreate", driver.cuEventCreate(0))


@final
class _Anchor:
    """An event, its time on the host's clock, and the number of marks that refer to it."""

    __slots__ = ("at", "event", "users")

    def __init__(self, event: Any, at: int) -> None:
        self.event: Final = event
        self.at: Final = at
        self.users: int = 0


@final
class DeviceClock:
    """The device's clock held against ``time.monotonic_ns``, for all threads of the host."""

    def __init__(self) -> None:
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream: Final = check("cuStreamCreate", driver.cuStreamCreate(flags))
        self._lock: Final = threading.Lock()
        self._anchors: list[_Anchor] = []  # the last one serves

    def take(self) -> _Anchor:
        """An anchor that is not old, for a mark that is made now."""
        with self._lock:
            anchors = self._anchors
            if not anchors or time.monotonic_ns() - anchors[-1].at > _ANCHOR_NS:
                anchors.append(self._compare())
            anchors[-1].users += 1
            return anchors[-1]

    def release(self, anchor: _Anchor) -> None:
        """Release an anchor for a mark that is gone."""
        with self._lock:
            anchor.users -= 1
            for old in [old for old in self._anchors[:-1] if not old.users]:
                self._anchors.remove(old)
                check("cuEventDestroy", driver.cuEventDestroy(old.event))

    def close(self) -> None:
        """Destroy the events and the stream."""
        for anchor in self._anchors:
            check("cuEventDestroy", driver.cuEventDestroy(anchor.event))
        check("cuStreamDestroy", driver.cuStreamDestroy(self._stream))

    def _compare(self) -> _Anchor:
        event = _new_event()
        quickest = 0
        for _ in range(_TRIES):
            before = time.monotonic_ns()
            check("cuEventRecord", driver.cuEventRecord(event, self._stream))
            check("cuEventSynchronize", driver.cuEventSynchronize(event))
            after = time.monotonic_ns()
            if after - before <= quickest:  # the event holds the last one
                break
            quickest = min(quickest or after - before, after - before)
        return _Anchor(event, (before + after) // 2)


@final
class _TimeMark:
    """A point in a stream's work."""

    __slots__ = ("anchor", "event", "users")

    def __init__(self, event: Any, anchor: _Anchor) -> None:
        self.event: Final = event
        self.anchor: Final = anchor
        self.users: int = 1


@final
class CudaStopwatch:
    """Measures what one stream executes, for all lanes that use it, each in a thread of its own."""

    def __init__(self, clock: Callable[[], DeviceClock], stream: Any) -> None:
        self._clock = clock
        self._stream = stream
        self._lock: Final = threading.Lock()
        self._events: list[Any] = []
        self._last: _TimeMark | None = None

    def start(self) -> _TimeMark:
        """Return the start of the next work: the end of the queued work, or now."""
        with self._lock:
            last = self._last
            if last is not None:
                (status,) = driver.cuEventQuery(last.event)
                if status == NOT_READY:
                    last.users += 1
                    return last
            return self._mark()

    def stop(self, begun: _TimeMark) -> tuple[_TimeMark, _TimeMark]:
        """From there to where it ends: here."""
        with self._lock:
            end = self._mark()
            if self._last is not None:
                self._drop(self._last)
            end.users += 1
            self._last = end
            return begun, end

    def drop(self, mark: _TimeMark) -> None:
        """One fewer wants to know when that is."""
        with self._lock:
            self._drop(mark)

    def read(self, token: tuple[_TimeMark, _TimeMark]) -> tuple[int, int]:
        """When the device was there, in nanoseconds of ``time.monotonic_ns``."""
        begun, end = token
        started = begun.anchor.at + _elapsed(begun.anchor.event, begun.event)
        ended = started + _elapsed(begun.event, end.event)
        with self._lock:
            self._drop(begun)
            self._drop(end)
        return started, ended

    def close(self) -> None:
        """Destroy the events: the stream is about to be."""
        with self._lock:
            if self._last is not None:
                self._drop(self._last)
                self._last = None
            for event in self._events:
                check("cuEventDestroy", driver.cuEventDestroy(event))
            self._events.clear()

    def _drop(self, mark: _TimeMark) -> None:
        mark.users -= 1
        if not mark.users:
            self._events.append(mark.event)
            self._clock().release(mark.anchor)

    def _mark(self) -> _TimeMark:
        anchor = self._clock().take()  # before the event, which is compared with it
        event = self._events.pop() if self._events else _new_event()
        check("cuEventRecord", driver.cuEventRecord(event, self._stream))
        return _TimeMark(event, anchor)


def _elapsed(start: Any, end: Any) -> int:
    """Nanoseconds from one event to another (``cuEventElapsedTime``)."""
    milliseconds: float = check("cuEventElapsedTime", driver.cuEventElapsedTime(start, end))
    return max(0, int(milliseconds * 1e6))
