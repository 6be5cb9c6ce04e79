"""One batch, from the call for all of its requests to the answer of the last."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

import outcome
import trio

from .._errors import (
    DeviceLost,
    DeviceUnavailable,
    EarlierErrors,
    Unsupported,
    is_awaitable,
    said_of,
)
from ..actors.context import stays
from ..actors.nursery import tasks_around
from ._errors import Refused, WrongResults
from ._queue import QueuedRequest, QueuePlace
from ._retry import is_transient

if TYPE_CHECKING:
    from ._batcher import Batcher


_AT_ONCE = 64
"""Callers that resume in one turn of the loop, so that other tasks of the program run too."""


_inside: Final[ContextVar[bool]] = stays(
    ContextVar("atomr_accel.patterns.in_a_batchers_function", default=False)
)
"""True in the functions of batchers and in tasks that these start."""


def refuse_own(callers: Set[trio.lowlevel.Task]) -> None:
    """Refuse a request that a batcher's function makes of its own batcher.

    Args:
        callers: the tasks in which the batcher calls its function.

    Raises:
        RuntimeError: this task is one of them, or was started in one and is awaited there.
    """
    if _inside.get() and any(task in callers for task, _ in tasks_around()):
        raise RuntimeError(
            "a batcher's function asks its own batcher, and would wait for ever: its batch has a "
            "place until it returns. Call the function itself, or ask another batcher"
        )


def is_for_one(error: Exception) -> bool:
    """Return True if a part of a batch may succeed after this error: the default of ``halve``.

    It is False if the device is lost for good, if something is not available at all, or if a
    pattern behind the function refused. Such an error applies to each request.
    """
    if isinstance(error, ExceptionGroup):
        return all(map(is_for_one, error.exceptions))
    return not isinstance(error, (DeviceLost, DeviceUnavailable, Unsupported, Refused))


@final
class RequestSlice:
    """The requests that one call is made for, and how many of their callers still wait."""

    __slots__ = ("requests", "scope", "waiting")

    def __init__(self, requests: list[QueuedRequest]) -> None:
        self.requests = requests
        self.waiting = len(requests)
        self.scope = trio.CancelScope()
        for request in requests:
            request.part = self

    def left(self) -> None:
        """One of the callers waits no more: if it was the last, there is nothing left to do."""
        self.waiting -= 1
        if not self.waiting:
            self.scope.cancel()


@final
class BatchRun:
    """One batch: its calls, until each of its requests has an answer."""

    __slots__ = ("_batcher", "_holds", "_key", "_requests", "_suspect")

    def __init__(
        self, batcher: Batcher[Any, Any], key: Hashable, requests: list[QueuedRequest]
    ) -> None:
        self._batcher = batcher
        self._key = key
        self._requests = requests
        self._suspect = False
        self._holds = False

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Ask for all; then, where that fails, for halves and their halves."""
        batcher = self._batcher
        try:
            todo = [self._requests]
            whole = True
            while todo:
                asked = waiting(todo.pop())
                if not asked:
                    continue
                error = await self._try(asked, again=whole or len(asked) == 1)
                whole = False
                left = waiting(asked)
                if error is None or not left:
                    continue
                final = error if len(asked) == 1 else self._unless_halved(error)
                if final is not None:
                    self._fail(left, final)
                    continue
                half = len(left) // 2
                todo += [left[half:], left[:half]]
                if batcher._observer is not None:
                    batcher._observer.retried([request.item for request in left], error)
        except BaseException:
            batcher._left_over += self._requests
            raise
        finally:
            self._end()

    def _unless_halved(self, error: Exception) -> Exception | None:
        """Return the error that a batch's requests get, or None if the batch is halved."""
        try:
            return None if self._batcher._halve(error) else error
        except Exception as raised:  # noqa: BLE001 (the program's function: it is answered)
            if raised is not error and raised.__context__ is None:
                raised.__context__ = error
            return raised

    def _end(self) -> None:
        batcher = self._batcher
        batcher._running -= 1
        if self._suspect:
            batcher._suspects -= 1
            if self._holds:
                batcher._alone.release()
        self._hush()
        batcher._wake()

    async def _try(self, asked: list[QueuedRequest], *, again: bool) -> Exception | None:
        """Have requests answered by a call, or by several: None, or the error of the last."""
        part = RequestSlice(asked)
        try:
            with part.scope:
                return await self._attempts(part, again=again)
        except Exception as error:  # noqa: BLE001 (raised beside a cancellation)
            return error
        self._batcher._counts["abandoned"] += 1
        return None  # nobody waits any more

    async def _attempts(self, part: RequestSlice, *, again: bool) -> Exception | None:
        batcher = self._batcher
        earlier = EarlierErrors()
        while True:
            if self._suspect:
                await self._be_alone()
                part.requests = waiting(part.requests)
            error = await self._call(part)
            if error is None:
                return None
            if is_transient(error):
                batcher._counts["faults"] += 1
                await self._be_alone()
            delay = batcher._retry.delay(error, len(earlier) + 1) if again else None
            if delay is None:
                earlier.tell(error)
                return error
            earlier.add(error)
            if batcher._observer is not None:
                items = [request.item for request in waiting(part.requests)]
                batcher._observer.retried(items, error)
            del error
            await trio.sleep(delay)
            part.requests = waiting(part.requests)

    async def _call(self, part: RequestSlice) -> Exception | None:
        batcher = self._batcher
        requests = part.requests
        items = [request.item for request in requests]
        batcher._counts["calls"] += 1
        if batcher._observer is not None:
            batcher._observer.started(items)
        began = trio.current_time()
        task = trio.lowlevel.current_task()
        batcher._callers.add(task)
        inside = _inside.set(True)
        try:
            if batcher._bucket_of is None:
                results = await _called(batcher._function, items)
            else:
                results = await _called(batcher._function, items, self._key)
        except Exception as error:  # noqa: BLE001 (it is answered)
            return error
        finally:
            _inside.reset(inside)
            batcher._callers.discard(task)
        try:
            answers = _one_for_each(len(requests), results)
        except WrongResults as error:
            self._fail(waiting(requests), error)
            return None
        seconds = trio.current_time() - began
        batcher._seconds += (seconds - batcher._seconds) / 8 if batcher._seconds else seconds
        await self._answer(requests, answers)
        return None

    async def _answer(self, requests: Sequence[QueuedRequest], results: Sequence[object]) -> None:
        for at in range(0, len(requests), _AT_ONCE):
            if at:
                await trio.lowlevel.cancel_shielded_checkpoint()
            self._answer_some(requests[at : at + _AT_ONCE], results[at : at + _AT_ONCE])

    def _answer_some(self, requests: Sequence[QueuedRequest], results: Sequence[object]) -> None:
        batcher = self._batcher
        observer = batcher._observer
        taken = QueuePlace.TAKEN
        answered = 0
        now = trio.current_time()
        for request, result in zip(requests, results, strict=True):
            if request.place is not taken:
                continue
            if isinstance(result, Exception):
                batcher._end(request, result, "failed")
                continue
            request.place = QueuePlace.ENDED
            answered += 1
            if observer is not None:
                observer.answered(request.item, now - request.arrived)
            trio.lowlevel.reschedule(request.task, outcome.Value(result))
        batcher._taken -= answered
        batcher._counts["answered"] += answered

    def _fail(self, requests: Sequence[QueuedRequest], error: Exception) -> None:
        """Answer with an error: several get an instance each, with one cause."""
        for request in requests:
            own = error if len(requests) == 1 else _own(error)
            self._batcher._end(request, own, "failed")

    # A fault takes down all that the device does, whoever caused it. So after one, batches are
    # asked again one at a time, and the verdict on a request that is alone is about that request.

    async def _be_alone(self) -> None:
        batcher = self._batcher
        if not self._suspect:
            self._suspect = True
            batcher._suspects += 1
            self._hush()
        if not self._holds:
            await batcher._alone.acquire()
            self._holds = True
        while batcher._running > batcher._suspects:
            batcher._quiet = trio.Event()
            await batcher._quiet.wait()

    def _hush(self) -> None:
        batcher = self._batcher
        if batcher._quiet is not None and batcher._running <= batcher._suspects:
            batcher._quiet.set()


def waiting(requests: Iterable[QueuedRequest]) -> list[QueuedRequest]:
    """Return the requests whose callers still wait."""
    return [request for request in requests if request.place is QueuePlace.TAKEN]


@trio.lowlevel.disable_ki_protection  # the function is the program's
async def _called(function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    made = function(*args)
    if not is_awaitable(made):
        raise TypeError(f"a batcher takes an async function; {function!r} returned {said_of(made)}")
    return await made


def _one_for_each(expected: int, results: Any) -> Sequence[object]:
    """Return a function's results if there is one for each item, or raise `WrongResults`."""
    listed: Sequence[object] | None = None
    if isinstance(results, list):
        listed = results
    elif isinstance(results, Collection) and not isinstance(results, (str, bytes, Mapping, Set)):
        listed = [*results]
    if listed is not None and len(listed) == expected:
        return listed
    what = type(results).__name__ if listed is None else f"{len(listed)} results"
    raise WrongResults(
        f"the function was given a list of {expected}, and should return a list of as many "
        f"results in the same order; it returned {what}",
        expected=expected,
        got=None if listed is None else len(listed),
    )


def _own(error: Exception) -> Exception:
    """Another instance of an error, whose cause is the error; or that, where none can be made.

    Each task that raises an instance adds to its traceback, so each gets its own.
    """
    try:
        own = type(error).__new__(type(error), *error.args)
        own.__dict__.update(error.__dict__)
    except Exception:  # noqa: BLE001 (whatever a program's class does)
        return error
    own.__cause__ = error
    return own
