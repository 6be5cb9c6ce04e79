"""Classes that hosts make for ``open_device(streams=...)`` and ``open_device(completion=...)``."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

from atomr_accel.backends import OpenLane, WorkInFlight


class Given:
    """Keeps its arguments."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


class ScatteredStreams:
    """Draws the stream of each slot from a few, which lanes of all threads share."""

    def __init__(self, seed: int, count: int) -> None:
        self._random = random.Random(seed)
        self._count = count

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        drawn = self._random.randrange(self._count + 1)
        return ("stream", drawn) if drawn else None


class ErraticCompletion:
    """Polls, naps, or sleeps in the driver, by chance."""

    sleeps = True
    signals = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def wait(self, work: WorkInFlight) -> None:
        assert work.quiet >= 0
        match self._random.randrange(4):
            case 0:
                work.nap(self._random.choice([0, 1e-6, 1e-3]))
            case 1:
                work.wait_for_oldest()


class FailingCompletion:
    """Has a bug."""

    sleeps = signals = False

    def wait(self, work: WorkInFlight) -> None:
        raise ZeroDivisionError("a bug in wait")


class UnfinishedCompletion:
    """Lacks ``wait``."""

    sleeps = signals = False


class FailingStreams:
    """Has a bug, or names streams by lists."""

    def __init__(self, *, lists: bool) -> None:
        self._lists = lists

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Any:
        if not self._lists:
            raise KeyError("a bug in stream_of")
        return [lane.name]
