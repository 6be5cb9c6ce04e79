"""Records of CUPTI, by its activity API: kernels, copies, fills and calls of the driver.

CUPTI fills buffers and hands over the records of each, in a thread of its own or in a flush. They
are noted there and sent when the program asks. Its clock is compared with the program's each time.

A launch of an op is a range of external correlation in the thread of its lane (``host/_times``).
CUPTI then tells the op of each call of the driver, and a kernel has the number of its call.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import LibraryError, LibraryMissing
from ...._install import install_command
from ....wire.activity import OP_RANGES, ActivityRecord
from ..wire.messages import (
    ActivityPage,
    StartActivity,
    StopActivity,
    TakeActivity,
)

try:
    from cupti import cupti
except ImportError as _missing:
    raise LibraryMissing(
        f"activity tracing needs cupti-python, which cannot be imported ({_missing}); "
        f"{install_command('activity')}",
        library="cupti-python",
    ) from _missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ....wire.activity import ActivityKind

_KINDS: Final[dict[ActivityKind, tuple[str, ...]]] = {
    "kernels": ("CONCURRENT_KERNEL",),
    "copies": ("MEMCPY", "MEMCPY2"),
    "fills": ("MEMSET",),
    "calls": (),
}
_ALWAYS: Final = ("DRIVER", "RUNTIME", "EXTERNAL_CORRELATION")
"""CUPTI tells of ops by the calls of the driver only."""

_BUFFER_BYTES: Final = 8 << 20
_PAGE: Final = 4096
_MOST: Final = 1 << 18
"""Records that wait to be taken; older ones are dropped."""
_MOST_CALLS: Final = 1 << 18
"""Calls of the driver whose ops are known."""
_LONGEST_NAME: Final = 512
_HELD_BY_OTHERS: Final = 39
"""``CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED``"""
_FORCED: Final = 1
"""``CUPTI_ACTIVITY_FLAG_FLUSH_FORCED``"""


class _CuptiNote:
    """A record of CUPTI, whose op may be unknown until later.

    Attributes:
        late: whether it has been waiting for its op already.
    """

    __slots__ = ("call", "end", "kind", "late", "name", "nbytes", "start", "stream")

    def __init__(
        self, kind: ActivityKind, name: str, record: Any, stream: int, nbytes: int = 0
    ) -> None:
        self.kind, self.name, self.stream, self.nbytes = kind, name, stream, nbytes
        self.start, self.end = int(record.start), int(record.end)
        self.call = int(record.correlation_id)
        self.late = False


@final
class CuptiRecords:
    """Executes the messages of activity tracing."""

    def __init__(self, context: Any, stream: Any) -> None:
        del context, stream
        self._subscriber: Any = None
        self._enabled: list[Any] = []
        self._notes: deque[_CuptiNote] = deque()
        self._ops: dict[int, int] = {}
        self._lost = 0
        self._readers: dict[int, Callable[[Any], _CuptiNote]] = {}
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            StartActivity: self._start,
            TakeActivity: self._take,
            StopActivity: self._stop,
        }

    def close(self) -> None:
        """End recording."""
        self._end()

    def _start(self, message: StartActivity) -> None:
        if self._subscriber is not None:
            raise LibraryError(
                "CUPTI is used by another activity() of this device; end it first",
                library="cupti",
                call="subscribe",
                status=_HELD_BY_OTHERS,
                status_name="ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            )
        self._notes.clear()
        self._ops.clear()
        self._lost = 0
        self._readers = self._readers_of(message.kinds)
        self._subscriber = _called("subscribe", _nothing, None)
        try:
            _called("activity_register_callbacks", _buffer, self._completed)
            for name in (*_ALWAYS, *itertools.chain(*(_KINDS[kind] for kind in message.kinds))):
                kind = getattr(cupti.ActivityKind, name)
                _called("activity_enable", kind)
                self._enabled.append(kind)
        except BaseException:
            self._end()
            raise

    def _stop(self, _message: StopActivity) -> None:
        if self._subscriber is not None:
            try:
                _called("activity_flush_all", _FORCED)
            finally:
                self._end()

    def _end(self) -> None:
        """Give CUPTI back, whatever it answers to that."""
        enabled, self._enabled = self._enabled, []
        for kind in enabled:
            _tried("activity_disable", kind)
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            _tried("unsubscribe", subscriber)

    def _take(self, _message: TakeActivity) -> ActivityPage:
        running = self._subscriber is not None
        if running:
            _called("activity_flush_all", 0)
        ahead = _ahead() if self._notes else 0
        records: list[ActivityRecord] = []
        waiting: list[_CuptiNote] = []
        while self._notes and len(records) < _PAGE:
            note = self._notes.popleft()
            op = self._ops.get(note.call, 0)
            if not op and running and not note.late:
                note.late = True
                waiting.append(note)
                continue
            start, end = note.start - ahead, note.end - ahead
            records.append(
                ActivityRecord(note.kind, note.name, start, end, op, "", note.stream, note.nbytes)
            )
        more = bool(self._notes)
        self._notes.extendleft(reversed(waiting))
        lost, self._lost = self._lost, 0
        return ActivityPage(records, more, lost)

    # --- what CUPTI calls, in threads of its own, too ------------------------------------------

    def _completed(self, records: Iterable[Any]) -> None:
        """Note the records of a buffer; these objects are CUPTI's again afterwards."""
        correlation = int(cupti.ActivityKind.EXTERNAL_CORRELATION)
        ours, ops, readers = int(_ours()), self._ops, self._readers
        for record in records:
            kind = int(record.kind)
            if kind == correlation:
                if int(record.external_kind) == ours:
                    ops[int(record.correlation_id)] = int(record.external_id)
                continue
            read = readers.get(kind)
            if read is not None and record.end:  # one that is not over has no end
                self._notes.append(read(record))
        while len(self._notes) > _MOST:
            self._notes.popleft()
            self._lost += 1
        while len(ops) > _MOST_CALLS:
            del ops[next(iter(ops))]

    @staticmethod
    def _readers_of(kinds: tuple[ActivityKind, ...]) -> dict[int, Callable[[Any], _CuptiNote]]:
        found: dict[int, Callable[[Any], _CuptiNote]] = {}
        known = cupti.ActivityKind
        if "kernels" in kinds:
            found[int(known.CONCURRENT_KERNEL)] = _kernel
        if "copies" in kinds:
            found[int(known.MEMCPY)] = found[int(known.MEMCPY2)] = _copy
        if "fills" in kinds:
            found[int(known.MEMSET)] = _fill
        if "calls" in kinds:
            found[int(known.DRIVER)] = _call_of(cupti.CallbackDomain.DRIVER_API)
            found[int(known.RUNTIME)] = _call_of(cupti.CallbackDomain.RUNTIME_API)
        return found


def _kernel(record: Any) -> _CuptiNote:
    return _CuptiNote("kernels", str(record.name)[:_LONGEST_NAME], record, int(record.stream_id))


def _copy(record: Any) -> _CuptiNote:
    direction = cupti.ActivityMemcpyKind(int(record.copy_kind)).name
    return _CuptiNote(
        "copies", f"copy {direction}", record, int(record.stream_id), int(record.bytes)
    )


def _fill(record: Any) -> _CuptiNote:
    return _CuptiNote("fills", "fill", record, int(record.stream_id), int(record.bytes))


def _call_of(domain: Any) -> Callable[[Any], _CuptiNote]:
    names: dict[int, str] = {}

    def call(record: Any) -> _CuptiNote:
        number = int(record.cbid)
        name = names.get(number)
        if name is None:
            name = names[number] = str(cupti.get_callback_name(domain, number))
        return _CuptiNote("calls", name[:_LONGEST_NAME], record, int(record.thread_id))

    return call


def _buffer() -> tuple[int, int]:
    """Bytes of a further buffer, and the number of its records, which is not limited."""
    return _BUFFER_BYTES, 0


def _nothing(*_: object) -> None:
    """Do nothing: to subscribe takes a function, and no callbacks are enabled."""


def _ours() -> Any:
    return getattr(cupti.ExternalCorrelationKind, OP_RANGES)


def _ahead() -> int:
    """Nanoseconds by which CUPTI's clock is ahead of ``time.monotonic_ns``."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        there = int(cupti.get_timestamp())
        after = time.monotonic_ns()
        tries.append((after - before, there - (before + after) // 2))
    return min(tries)[1]


def _called(name: str, *args: Any) -> Any:
    """Return what a function of CUPTI gives."""
    try:
        return getattr(cupti, name)(*args)
    except RuntimeError as error:  # which the package raises when it looks for the function
        raise LibraryMissing(
            f"cupti-python does not find {name} of CUPTI ({error}); install nvidia-cuda-cupti of "
            "the driver's release",
            library="cupti",
        ) from error
    except cupti.cuptiError as error:
        status = int(getattr(error, "status", 0))
        said = str(error)
        if name == "subscribe" and (status == _HELD_BY_OTHERS or "MULTIPLE_SUBSCRIBERS" in said):
            said = (
                f"CUPTI is held by another tool ({said}), such as Nsight Systems or PyTorch's "
                "profiler; end that first"
            )
        else:
            said = f"CUPTI refused {name}: {said}"
        raise LibraryError(
            said, library="cupti", call=name, status=status, status_name=str(error)
        ) from error


def _tried(name: str, *args: Any) -> None:
    with contextlib.suppress(cupti.cuptiError):  # it has let go already
        getattr(cupti, name)(*args)
