"""Recordings over time: generations and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...memory import Epoch


@dataclass(frozen=True, slots=True)
class RecordingStatistics:
    """A recording at one moment.

    Attributes:
        ops: the calls that it consists of; other recordings that it calls count once.
        replays: how often it was replayed so far.
        in_flight: the replays that are not finished.
        rebuilds: how often it was prepared again for a new generation.
        nbytes: bytes of the buffers that it has made.
    """

    ops: int
    replays: int
    in_flight: int
    rebuilds: int
    nbytes: int


@final
class RecordingLife:
    """A recording in one generation.

    Attributes:
        awaited: the epoch of its results until they have content.
        replays: how many were begun and have not failed.
    """

    __slots__ = ("awaited", "replays")

    def __init__(self, generation: int) -> None:
        self.awaited: Final = Epoch(
            generation,
            "it is a result of a recording, which executes nothing; await the recording's "
            "replay() first",
        )
        self.replays = 0
