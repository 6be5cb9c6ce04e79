"""Durations of recent requests."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sortedcontainers import SortedList

WINDOW: Final = 512


class Latencies:
    """The last durations, kept sorted, so that a quantile is a look-up."""

    __slots__ = ("_order", "_size", "_sorted")

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._order: deque[float] = deque()
        self._sorted: SortedList[float] = SortedList()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, seconds: float) -> None:
        """Add a duration, and drop the oldest one if the window is full."""
        if len(self._order) == self._size:
            self._sorted.remove(self._order.popleft())
        self._order.append(seconds)
        self._sorted.add(seconds)

    def quantile(self, share: float) -> float:
        """The least duration that at least this share of them does not exceed.

        Without any, nothing is known: ``nan``.
        """
        if not self._order:
            return math.nan
        rank = math.ceil(share * len(self._order)) - 1
        seconds: float = self._sorted[max(rank, 0)]
        return seconds
