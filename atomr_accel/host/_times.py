"""When a lane's ops were launched, executed and found done, for those who want to know."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ..wire import Times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._protocol import Stream


class Stopwatch(Protocol):
    """Measures what a stream executes, in nanoseconds of ``time.monotonic_ns``."""

    def start(self) -> Any:
        """Work is about to be queued: a token of where it begins."""

    def stop(self, begun: Any) -> Any:
        """It was queued: a token of where it begins and ends."""

    def drop(self, begun: Any) -> None:
        """It was not queued, or nobody asks any more."""

    def read(self, token: Any) -> tuple[int, int]:
        """When it began and ended, once it has."""


@final
class _Launch:
    """Ops that were launched together."""

    __slots__ = ("at", "measured", "stream", "token", "watch")

    def __init__(self, at: int, stream: int, watch: Stopwatch | None, token: Any) -> None:
        self.at: Final = at
        self.stream: Final = stream
        self.watch: Final = watch
        self.token = token
        self.measured: tuple[int, int] | None = None

    def read(self) -> tuple[int, int]:
        """When the device began and ended them; zeros where it does not tell."""
        if self.measured is None:
            self.measured = (0, 0) if self.watch is None else self.watch.read(self.token)
        return self.measured


@final
class LaneTimes:
    """Notes the times of a lane's ops, from their launch until they are found done.

    Attributes:
        wanted: whether those of further ops are; what is noted is told in any case.
    """

    def __init__(self) -> None:
        self.wanted = True
        self._launches: dict[int, _Launch] = {}

    def begin(self, stream: Stream) -> _Launch | None:
        """Ops are about to be launched in a stream."""
        if not self.wanted:
            return None
        stopwatch = getattr(stream, "stopwatch", None)  # backends of others may have none
        watch: Stopwatch | None = None if stopwatch is None else stopwatch()
        begun = None if watch is None else watch.start()
        queue = stream.queue
        number = queue if isinstance(queue, int) else 0
        return _Launch(time.monotonic_ns(), number, watch, begun)

    def end(self, launch: _Launch, seqs: Iterable[int]) -> None:
        """They were launched."""
        if launch.watch is not None:
            launch.token = launch.watch.stop(launch.token)
        for seq in seqs:
            self._launches[seq] = launch

    def fail(self, launch: _Launch) -> None:
        """They were not."""
        if launch.watch is not None:
            launch.watch.drop(launch.token)

    def take(self, seqs: Iterable[int]) -> Times | None:
        """What is known of ops that are done; None where that is nothing."""
        found = time.monotonic_ns()
        rows = []
        for seq in seqs:
            launch = self._launches.pop(seq, None)
            if launch is not None:
                rows.append((seq, launch.at, *launch.read(), found, launch.stream))
        return Times(rows) if rows else None
