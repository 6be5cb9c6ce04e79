"""Recordings in one generation of their device."""

from __future__ import annotations

from typing import Final, final

from ...memory import Epoch


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
