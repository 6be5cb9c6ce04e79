"""Times at which a lane's ops were launched, executed and found done, if wanted."""

from __future__ import annotations

import contextlib
import time
from array import array
from typing import TYPE_CHECKING, Any, final

from ..wire import StickyFault, Times
from ..wire.activity import OP_RANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..wire import Message, ReportTimes
    from ..wire.interface import Stopwatch, Stream


@final
class _NvtxRanges:
    """Marks launches for profilers."""

    def __init__(self) -> None:
        import nvtx

        self._domain: Any = nvtx.get_domain("atomr_accel")

    def begin(self, kind: str, _seq: int) -> None:
        self._domain.push_range(self._domain.get_event_attributes(message=kind))

    def end(self) -> None:
        self._domain.pop_range()


@final
class _CorrelationRanges:
    """Tells CUPTI the op of each launch."""

    def __init__(self) -> None:
        from cupti import cupti

        self._kind: Any = getattr(cupti.ExternalCorrelationKind, OP_RANGES)
        self._push: Any = cupti.activity_push_external_correlation_id
        self._pop: Any = cupti.activity_pop_external_correlation_id
        self._refusal: type[Exception] = cupti.cuptiError

    def begin(self, _kind: str, seq: int) -> None:
        with contextlib.suppress(self._refusal):  # ops run without it
            self._push(self._kind, seq)

    def end(self) -> None:
        with contextlib.suppress(self._refusal):
            self._pop(self._kind)


_Marks = tuple["_NvtxRanges | _CorrelationRanges", ...]


@final
class LaneTimes:
    """Notes the times of a lane's ops, from their launch until they are found done.

    Args:
        kind_of: returns the name of a request.
    """

    __slots__ = ("_done", "_kind_of", "_launches", "_marks", "_timed", "_watches")

    def __init__(self, kind_of: Callable[[Message], str]) -> None:
        self._kind_of = kind_of
        self._timed = False
        self._marks: _Marks = ()
        self._watches: dict[Stream, tuple[int, Stopwatch | None]] = {}
        self._launches: dict[int, _Launch] = {}
        self._done = array("q")

    def report(self, asked: ReportTimes) -> None:
        """Note the times of later ops, and mark them for a profiler, or stop.

        Noted times are still sent.
        """
        self._timed = asked.wanted
        wanted = ((asked.ranges, _NvtxRanges), (asked.correlated, _CorrelationRanges))
        known = {type(each): each for each in self._marks}
        self._marks = tuple(known.get(kind) or kind() for asks, kind in wanted if asks)

    def begin(self, stream: Stream, message: Message, seq: int) -> _Launch | None:
        """Begin a launch in a stream, of the op ``seq`` and others like it."""
        marks = self._marks
        if marks:
            kind = self._kind_of(message)
            for each in marks:
                each.begin(kind, seq)
            if not self._timed:
                return 0, 0, None, None, marks
        elif not self._timed:
            return None
        known = self._watches.get(stream)
        if known is None:
            queue = stream.queue
            make = getattr(stream, "stopwatch", None)  # backends of others may have none
            known = queue if isinstance(queue, int) else 0, None if make is None else make()
            self._watches[stream] = known
        number, watch = known
        at, begun = time.monotonic_ns(), None
        if watch is not None and (begun := _tried(watch.start)) is None:
            watch = None
        return at, number, watch, begun, marks

    def end(self, launch: _Launch, seqs: Iterable[int]) -> None:
        """End a launch that succeeded."""
        at, number, watch, begun, marks = launch
        for each in reversed(marks):
            each.end()
        if at:
            token = None if watch is None else _tried(watch.stop, begun)
            launch = at, number, None if token is None else watch, [token], ()
            for seq in seqs:
                self._launches[seq] = launch

    def fail(self, launch: _Launch) -> None:
        """End a launch that failed."""
        _, _, watch, begun, marks = launch
        for each in reversed(marks):
            each.end()
        if watch is not None:
            watch.drop(begun)

    def note(self, seqs: Iterable[int]) -> None:
        """Note the times of ops that are done."""
        found = time.monotonic_ns()
        launches = self._launches
        for seq in seqs:
            launch = launches.pop(seq, None)
            if launch is None:
                continue
            at, number, watch, measured, _ = launch
            if watch is None:
                started = ended = 0
            else:
                if len(measured) == 1:  # the first of those that were launched together
                    measured[:] = _tried(watch.read, measured[0]) or (0, 0)
                started, ended = measured
            self._done.extend((seq, at, started, ended, found, number))

    def take(self) -> Times | None:
        """Return the times of finished ops, to be sent before their answers, or None."""
        if not self._done:
            return None
        done, self._done = self._done, array("q")
        return Times(done.tobytes())


def _tried(measure: Callable[..., Any], *args: Any) -> Any:
    """Return a stopwatch's result, or None if it fails, because ops run without it."""
    try:
        return measure(*args)
    except StickyFault:
        raise
    except Exception:  # noqa: BLE001 (no room for an event, say)
        return None


_Launch = tuple[int, int, "Stopwatch | None", Any, _Marks]
"""A launch: its time (0 if times are not wanted), its stream's number, its stopwatch, the token of
its begin, and the open ranges. Once launched, the token is a list that holds the token of
begin and end."""
