"""Requests that wait for a batch, in buckets, each in the order in which they are sent.

A withdrawn request is only marked, and skipped later: finding it in a heap would take longer than
all other work for it. A bucket in which most requests are marked removes these, so that they do
not accumulate.
"""

from __future__ import annotations

import bisect
import enum
import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..wire.options import count, several

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    import trio

    from ._halving import RequestSlice

In = TypeVar("In")

_SWEEP = 64


class QueuePlace(enum.Enum):
    """Place of a request."""

    OUTSIDE = "outside"
    """The request waits for room in the queue."""
    QUEUED = "queued"
    TAKEN = "taken"
    """The request is in a batch that has begun."""
    ENDED = "ended"
    """The request was answered, or withdrawn."""


class QueuedRequest:
    """One request, and the task that waits for its answer."""

    __slots__ = ("arrived", "bucket", "item", "part", "place", "task")

    def __init__(
        self, item: Any, bucket: RequestBucket, task: trio.lowlevel.Task, now: float
    ) -> None:
        self.item = item
        self.bucket = bucket
        self.task = task
        self.arrived = now
        self.place = QueuePlace.OUTSIDE
        self.part: RequestSlice | None = None


Entry: TypeAlias = tuple[float, float, int, QueuedRequest]
"""Minus the priority, the deadline, the number of the request: smaller goes first."""


class Heap:
    """Entries in order, without those whose request is elsewhere by now."""

    __slots__ = ("_entries", "_place", "live")

    def __init__(self, place: QueuePlace) -> None:
        self._place = place
        self._entries: list[Entry] = []
        self.live = 0

    def push(self, entry: Entry) -> None:
        """Add an entry. The caller marks its request as being here."""
        heapq.heappush(self._entries, entry)
        self.live += 1

    def top(self) -> Entry:
        """The first of all. There must be one."""
        while self._entries[0][3].place is not self._place:
            heapq.heappop(self._entries)
        return self._entries[0]

    def pop(self) -> Entry:
        """Take the first of all. There must be one."""
        self.top()
        self.live -= 1
        return heapq.heappop(self._entries)

    def left(self) -> None:
        """A request that was here has been marked as being elsewhere."""
        self.live -= 1
        if len(self._entries) > 2 * self.live + _SWEEP:
            self._entries = [entry for entry in self._entries if entry[3].place is self._place]
            heapq.heapify(self._entries)


class RequestBucket:
    """Requests that may share a batch.

    Attributes:
        gap: the time between arrivals: an average in which each next one has a weight of an
            eighth. The first counts as one after a pause.
        last: when the last one arrived.
        outside: how many requests are to come here and have not yet.
    """

    __slots__ = ("_arrivals", "_deadlines", "gap", "heap", "key", "last", "outside")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.heap = Heap(QueuePlace.QUEUED)
        self._arrivals: deque[QueuedRequest] = deque()
        self._deadlines: list[tuple[float, int, QueuedRequest]] = []
        self.outside = 0
        self.gap = math.inf
        self.last = -math.inf

    def add(self, entry: Entry) -> None:
        """Put a request here."""
        _, deadline, number, request = entry
        request.place = QueuePlace.QUEUED
        self._arrivals.append(request)
        self.heap.push(entry)
        if deadline != math.inf:
            heapq.heappush(self._deadlines, (deadline, number, request))

    def arrived(self, now: float, longest: float) -> None:
        """Note an arrival. A pause counts as ``longest``, or else a single one would for long."""
        gap = min(now - self.last, longest)
        self.last = now
        self.gap = gap if self.gap == math.inf else self.gap + (gap - self.gap) / 8

    def oldest(self) -> QueuedRequest:
        """The one that has been here the longest. There must be one."""
        arrivals = self._arrivals
        while arrivals[0].place is not QueuePlace.QUEUED:
            arrivals.popleft()
        return arrivals[0]

    def deadline(self) -> float:
        """The earliest deadline of those that are here, whatever their priorities."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].place is not QueuePlace.QUEUED:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else math.inf

    def take(self, count: int) -> list[QueuedRequest]:
        """Take the first requests, at most ``count``."""
        taken = [self.heap.pop()[3] for _ in range(min(count, self.heap.live))]
        for request in taken:
            request.place = QueuePlace.TAKEN
        self._swept()
        return taken

    def left(self) -> None:
        """A request that was here has been marked as being elsewhere."""
        self.heap.left()
        self._swept()

    def _swept(self) -> None:
        if not self.heap.live:
            self._arrivals.clear()
            self._deadlines.clear()
            return
        limit = 2 * self.heap.live + _SWEEP
        if len(self._arrivals) > limit:
            self._arrivals = deque(one for one in self._arrivals if one.place is QueuePlace.QUEUED)
        if len(self._deadlines) > limit:
            self._deadlines = [one for one in self._deadlines if one[2].place is QueuePlace.QUEUED]
            heapq.heapify(self._deadlines)


def by_length(
    bounds: Iterable[int],
    length: Callable[[In], int] = len,  # type: ignore[assignment]
) -> Callable[[In], int]:
    """Make a function that puts items of similar lengths into one bucket: for ``bucket=``.

    An item goes where the bound is the smallest that is not below its length. The batcher hands the
    bound to its function, which pads to it. So what pads wastes is bounded, and functions see no
    more shapes than there are bounds.

    Args:
        bounds: the lengths to pad to.
        length: the length of an item.

    Returns:
        A function from an item to its bound. It raises a `ValueError` for an item that is longer
        than all of them, at who asked.
    """
    ordered = sorted(count(bound, "a bound", 0) for bound in several(bounds, "bounds"))
    if not ordered:
        raise ValueError("bounds must be one length to pad to or more, not none")

    def bound_of(item: In) -> int:
        size = count(length(item), "the length of an item", 0)
        at = bisect.bisect_left(ordered, size)
        if at == len(ordered):
            raise ValueError(f"the item has length {size}, and the longest bucket {ordered[-1]}")
        return ordered[at]

    return bound_of
