"""The built-in ways of giving streams to lanes: see ``StreamAllocator``."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..wire import OpenLane


@final
class SharedStreams:
    """Lanes of one priority in one thread share streams, so a chain of ops stays in its stream."""

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        """Name a stream by priority and slot, but none of a lane that has its own thread."""
        return None if lane.thread == lane.name else (priority, slot)


@final
class OwnStreams:
    """Each lane has streams of its own."""

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        """Return None."""
        del lane, slot, priority
        return None


@final
class PooledStreams:
    """All lanes share some streams.

    Args:
        size: number of streams.
    """

    def __init__(self, size: int = 4) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"size must be an int of at least 1, not {size!r}")
        self._size = size

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        """Name the next stream in turn. Lanes begin with different ones."""
        del priority
        return (lane.index + slot) % self._size


@final
class SingleStream:
    """All lanes share one stream."""

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        """Return the name of the only stream."""
        del lane, slot, priority
        return 0
