"""One call for many requests: a function of a list becomes a function of one item."""

from __future__ import annotations

import bisect
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from threading import get_ident
from typing import Any, Generic, TypeVar, cast, final, overload

import outcome
import trio

from ..actors import Overflow
from ..actors._nursery import PlainNursery
from ..actors._util import (
    NoPublicConstructor,
    check_instance,
    check_member,
    check_number,
    check_whole,
)
from ._errors import Closed, Dropped, Overloaded, elsewhere
from ._halving import Run, is_for_one
from ._observer import Observer, guarded
from ._queue import Bucket, Entry, Heap, Place, Request
from ._retry import Retry

In = TypeVar("In")
Out = TypeVar("Out")
Key = TypeVar("Key", bound=Hashable)

_SILENCE = 4
"""With ``adaptive``, a batch waits no longer than so many times between two arrivals."""

_IDLE_BUCKETS = 256
"""So many empty buckets are kept for what they know of their arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStatistics:
    """A batcher at one moment.

    Every request that was submitted is in one of these: ``queued``, ``outside``, ``running``,
    ``answered``, ``failed``, ``refused``, ``dropped``.
    """

    submitted: int = 0
    """Requests so far."""
    queued: int = 0
    """Requests that wait for a batch."""
    outside: int = 0
    """Requests that wait for room in the queue."""
    running: int = 0
    """Requests in batches that have begun."""
    answered: int = 0
    """Requests that got a result."""
    failed: int = 0
    """Requests that got an error of the function's."""
    refused: int = 0
    """Requests that got a refusal: there was no room, or the block was left."""
    dropped: int = 0
    """Requests whose callers were cancelled."""
    in_flight: int = 0
    """Batches that have begun and are not answered."""
    batches: int = 0
    """Batches so far."""
    largest: int = 0
    """Requests in the largest batch so far."""
    calls: int = 0
    """Calls of the function so far: batches, and what was asked again."""
    faults: int = 0
    """Those of them that a device's fault ended."""
    abandoned: int = 0
    """Those of them that were cancelled because nobody waited any more."""
    seconds: float = 0.0
    """How long a batch takes: an average in which each next one has a weight of an eighth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What can be tuned while a batcher runs."""

    max_size: int
    max_wait: float
    max_in_flight: int
    capacity: int
    preferred_sizes: tuple[int, ...]
    adaptive: bool

    def __post_init__(self) -> None:
        for name in ("max_size", "max_in_flight", "capacity"):
            check_whole(name, getattr(self, name))
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        check_number("max_wait", self.max_wait)
        if not self.max_wait >= 0:
            raise ValueError(f"max_wait must be zero seconds or more, got {self.max_wait!r}")
        check_instance("adaptive", self.adaptive, bool)
        for size in self.preferred_sizes:
            check_whole("a preferred size", size)
            if not 1 <= size <= self.max_size:
                raise ValueError(
                    f"preferred sizes must be from 1 to max_size={self.max_size}, got {size}"
                )

    @property
    def target(self) -> int:
        """How many requests make a batch that waits for no more."""
        return self.preferred_sizes[-1] if self.preferred_sizes else self.max_size

    def size(self, waiting: int) -> int:
        """How many go, of so many that wait."""
        at = bisect.bisect_right(self.preferred_sizes, waiting)
        return self.preferred_sizes[at - 1] if at else min(waiting, self.max_size)


def _real(priority: object) -> float:
    """A priority as a number that compares with all others; raise if it is none."""
    check_number("priority", priority)
    # Of others, such as NumPy's, some do not negate: there, -uint8(1) is 255.
    number = priority if isinstance(priority, (int, float)) else float(cast("Any", priority))
    if not number <= math.inf:
        raise ValueError(f"priority must be a number, got {priority!r}")
    return number


@final
class Batcher(Generic[In, Out], metaclass=NoPublicConstructor):
    """What `open_batcher` gives: ``await batcher(item)`` is one request."""

    _made_by = "open_batcher"

    def __init__(
        self,
        function: Callable[..., Awaitable[Collection[Out | Exception]]],
        settings: _Settings,
        *,
        bucket: Callable[[In], Hashable] | None,
        overflow: Overflow,
        retry: Retry,
        halve: Callable[[Exception], bool],
        observer: Observer | None,
    ) -> None:
        self._function = function
        self._settings = settings
        self._bucket_of = bucket
        self._overflow = overflow
        self._retry = retry
        self._halve = halve
        self._observer = guarded(observer)
        self._order = count()
        self._buckets: dict[Hashable, Bucket] = {}
        self._outside = Heap(Place.OUTSIDE)
        self._queued = 0
        self._taken = 0
        self._counts = dict.fromkeys(
            ("submitted", "answered", "failed", "refused", "dropped", "batches", "calls", "faults",
             "abandoned", "largest"), 0,
        )  # fmt: skip
        self._seconds = 0.0
        self._running = 0
        self._suspects = 0
        self._alone = trio.Lock()
        self._quiet: trio.Event | None = None
        self._left_over: list[Request] = []
        self._closing = False
        self._closed_by: BaseException | None = None
        self._thread = get_ident()
        self._nursery: trio.Nursery
        self._former: trio.lowlevel.Task
        self._parked = False
        self._sleeps_until = -math.inf

    async def __call__(self, item: In) -> Out:
        """Ask for one item, at priority zero. See `ask`."""
        return await self.ask(item)

    @trio.lowlevel.enable_ki_protection
    async def ask(self, item: In, *, priority: float = 0) -> Out:
        """Ask for one item, and wait for its result.

        Of the requests that wait, those of the highest priority go first, and among these the one
        whose caller's deadline is the earliest. (Deadlines are scopes, as in ``trio.fail_after``.)
        If you are cancelled, the request is withdrawn. A batch that has begun goes on for the
        others; when nobody waits for it any more it is cancelled.

        The deadline is read once, when you ask. One that is set or moved later still cancels you,
        but it hastens nothing.

        Raises:
            TypeError: the priority is no real number, or ``bucket`` returned what cannot be hashed
                and compared.
            ValueError: the priority is NaN.
            Overloaded: the queue is full, and its policy is to reject.
            Dropped: it was full, and this was the oldest request in it.
            Closed: the block was left.
            WrongResults: the function returned too few or too many results.
            RuntimeError: the batcher lives in the trio run of another thread.
        """
        if get_ident() != self._thread:
            raise elsewhere("batcher", "run(batcher, ...)")
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise self._refusal()
        urgency = -_real(priority)
        bucket = self._bucket_for(item)
        now = trio.current_time()
        request = Request(item, bucket, trio.lowlevel.current_task(), now)
        deadline = trio.current_effective_deadline()
        entry = (urgency, deadline, next(self._order), request)
        bucket.outside += 1
        self._counts["submitted"] += 1
        if self._observer is not None:
            self._observer.submitted(item)
        if self._queued < self._settings.capacity or self._make_room(request):
            self._admit(entry, now)
        else:
            self._outside.push(entry)

        def withdraw(_: object) -> trio.lowlevel.Abort:
            self._withdraw(request)
            return trio.lowlevel.Abort.SUCCEEDED

        result: Out = await trio.lowlevel.wait_task_rescheduled(withdraw)
        return result

    def tune(
        self,
        *,
        max_size: int | None = None,
        max_wait: float | None = None,
        max_in_flight: int | None = None,
        capacity: int | None = None,
        preferred_sizes: Iterable[int] | None = None,
        adaptive: bool | None = None,
    ) -> None:
        """Change options of `open_batcher`; those not given stay as they are.

        Batches that have begun are not touched, and no request that waits is refused. If this
        raises, nothing has changed.

        Raises:
            RuntimeError: the batcher lives in the trio run of another thread.
        """
        if get_ident() != self._thread:
            raise elsewhere("batcher", "run_sync(partial(batcher.tune, ...))")
        given = {
            "max_size": max_size, "max_wait": max_wait, "max_in_flight": max_in_flight,
            "capacity": capacity, "adaptive": adaptive,
            "preferred_sizes": None if preferred_sizes is None else tuple(sorted(preferred_sizes)),
        }  # fmt: skip
        changed = {name: value for name, value in given.items() if value is not None}
        self._settings = replace(self._settings, **changed)  # type: ignore[arg-type]
        self._let_in()
        self._wake()

    def statistics(self) -> BatcherStatistics:
        """A snapshot."""
        return BatcherStatistics(
            queued=self._queued,
            outside=self._outside.live,
            running=self._taken,
            in_flight=self._running,
            seconds=self._seconds,
            **self._counts,
        )

    # --- requests come and go ----------------------------------------------------------

    def _bucket_for(self, item: In) -> Bucket:
        """The bucket of an item.

        It is looked for here only, in the caller: what keys do is the program's, and may fail.
        """
        key = None if self._bucket_of is None else self._bucket_of(item)
        try:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = Bucket(key)
        except Exception as error:
            raise TypeError(
                f"bucket must return what can be hashed and compared, got {type(key).__name__}"
            ) from error
        return bucket

    def _make_room(self, request: Request) -> bool:
        """Whether there is room after all; otherwise the request has to wait outside."""
        capacity = self._settings.capacity
        if self._overflow is Overflow.REJECT:
            error = Overloaded(
                f"{self._queued} requests wait already, and no more than {capacity} may",
                waiting=self._queued,
                capacity=capacity,
            )
            self._leave_outside(request)
            self._end(request, error, "refused", wake=False)
            raise error
        if self._overflow is Overflow.DROP_OLDEST:
            oldest = min(
                (bucket.oldest() for bucket in self._buckets.values() if bucket.heap.live),
                key=lambda one: one.arrived,
            )
            self._leave_queue(oldest)
            self._end(oldest, Dropped("a later request took its place in the queue"), "refused")
            return True
        return False

    def _admit(self, entry: Entry, now: float) -> None:
        """Put a request into the queue; wake the task that forms batches if it has to look."""
        bucket = entry[3].bucket
        bucket.outside -= 1
        settings = self._settings
        if settings.adaptive:
            bucket.arrived(now, 2 * settings.max_wait)
        bucket.add(entry)
        self._queued += 1
        live = bucket.heap.live
        if (
            self._sleeps_until != -math.inf
            and (
                live == 1
                or live >= settings.target
                or entry[1] != math.inf
                or self._queued >= settings.capacity
            )
            and self._due(bucket) < self._sleeps_until
        ):
            self._wake()

    def _withdraw(self, request: Request) -> None:
        """The caller was cancelled."""
        place = request.place
        if place is Place.TAKEN:
            self._end(request, None, "dropped")
            if request.part is not None:  # or its batch has not come to run yet
                request.part.left()
        elif place is Place.QUEUED:
            self._leave_queue(request)
            self._end(request, None, "dropped")
            self._let_in()
        else:
            self._end(request, None, "dropped")
            self._outside.left()
            self._leave_outside(request)

    def _leave_outside(self, request: Request) -> None:
        request.bucket.outside -= 1
        self._tidy(request.bucket)

    def _leave_queue(self, request: Request) -> None:
        bucket = request.bucket
        request.place = Place.OUTSIDE
        self._queued -= 1
        bucket.left()
        self._tidy(bucket)

    def _let_in(self) -> None:
        """Admit requests that wait outside, as far as there is room."""
        while self._outside.live and self._queued < self._settings.capacity:
            self._admit(self._outside.pop(), trio.current_time())

    def _tidy(self, bucket: Bucket) -> None:
        if not (bucket.heap.live or bucket.outside) and len(self._buckets) > _IDLE_BUCKETS:
            with suppress(Exception):  # one whose key is not found any more stays
                del self._buckets[bucket.key]

    def _end(
        self, request: Request, error: Exception | None, count: str, *, wake: bool = True
    ) -> None:
        """A request ends without a result: with an error, or because nobody waits for it."""
        if request.place is Place.TAKEN:
            self._taken -= 1
        request.place = Place.ENDED
        self._counts[count] += 1
        if self._observer is not None:
            seconds = trio.current_time() - request.arrived
            if error is None:
                self._observer.dropped(request.item, seconds)
            else:
                self._observer.failed(request.item, error, seconds)
        if error is not None and wake:
            trio.lowlevel.reschedule(request.task, outcome.Error(error))

    def _refusal(self) -> Closed:
        error = Closed("the batcher's block was left, so it takes no more requests")
        error.__cause__ = self._closed_by
        return error

    # --- batches are formed ------------------------------------------------------------

    def _due(self, bucket: Bucket) -> float:
        """When the requests in a bucket go, if none come until then."""
        settings = self._settings
        if (
            self._closing
            or bucket.heap.live >= settings.target
            or self._queued >= settings.capacity
        ):
            return -math.inf
        due = bucket.oldest().arrived + settings.max_wait
        if settings.adaptive:
            if bucket.gap >= settings.max_wait:
                return -math.inf
            due = min(due, bucket.last + _SILENCE * bucket.gap)
        latest = bucket.deadline() - 2 * self._seconds
        return due if due <= latest else latest if self._seconds else -math.inf

    def _next(self, now: float) -> tuple[Bucket | None, float]:
        """The bucket whose turn it is, or none and when the first one is due."""
        first: Bucket | None = None
        earliest = math.inf
        for bucket in self._buckets.values():
            if bucket.heap.live:
                due = self._due(bucket)
                if due > now:
                    earliest = min(earliest, due)
                elif first is None or bucket.heap.top() < first.heap.top():
                    first = bucket
        return first, earliest

    @trio.lowlevel.enable_ki_protection
    async def _form(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that forms batches, until the block is left and all is answered."""
        self._former = trio.lowlevel.current_task()
        task_status.started()  # it parks before anybody can ask
        while True:
            due = -math.inf
            if self._running < self._settings.max_in_flight and not self._suspects:
                bucket, due = self._next(trio.current_time())
                if bucket is not None:
                    self._begin(bucket)
                    continue
            if self._closing and not (self._queued or self._running or self._outside.live):
                return
            self._sleeps_until = due
            self._parked = True
            if math.isfinite(due):
                with trio.CancelScope(deadline=due):
                    await trio.lowlevel.wait_task_rescheduled(self._woken_otherwise)
            else:
                await trio.lowlevel.wait_task_rescheduled(self._woken_otherwise)

    def _woken_otherwise(self, _: object) -> trio.lowlevel.Abort:
        self._parked = False
        self._sleeps_until = -math.inf
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        """Have the task that forms batches look again; many reasons in one turn wake it once."""
        if self._parked:
            self._woken_otherwise(None)
            trio.lowlevel.reschedule(self._former)

    def _begin(self, bucket: Bucket) -> None:
        requests = bucket.take(self._settings.size(bucket.heap.live))
        self._queued -= len(requests)
        self._taken += len(requests)
        self._tidy(bucket)
        self._running += 1
        counts = self._counts
        counts["batches"] += 1
        counts["largest"] = max(counts["largest"], len(requests))
        self._let_in()
        self._nursery.start_soon(Run(self, bucket.key, requests).run)

    def _drain(self) -> None:
        self._closing = True
        self._wake()

    def _abandon(self, error: BaseException | None) -> None:
        """The nursery has ended: whoever still waits is told."""
        self._closing = True
        self._closed_by = error
        rest = self._left_over
        while self._outside.live:
            rest.append(self._outside.pop()[3])
        for bucket in self._buckets.values():
            taken = bucket.take(bucket.heap.live)
            self._queued -= len(taken)
            self._taken += len(taken)
            rest += taken
        for request in rest:
            if request.place is not Place.ENDED:
                self._end(request, self._refusal(), "refused")
        rest.clear()


@overload
def open_batcher(
    function: Callable[[list[In]], Awaitable[Collection[Out | Exception]]],
    *,
    max_size: int,
    max_wait: float = ...,
    max_in_flight: int = ...,
    preferred_sizes: Iterable[int] = ...,
    adaptive: bool = ...,
    bucket: None = ...,
    capacity: int = ...,
    overflow: Overflow = ...,
    retry: Retry | None = ...,
    halve: Callable[[Exception], bool] = ...,
    observer: Observer | None = ...,
) -> AbstractAsyncContextManager[Batcher[In, Out]]: ...


@overload
def open_batcher(
    function: Callable[[list[In], Key], Awaitable[Collection[Out | Exception]]],
    *,
    max_size: int,
    max_wait: float = ...,
    max_in_flight: int = ...,
    preferred_sizes: Iterable[int] = ...,
    adaptive: bool = ...,
    bucket: Callable[[In], Key],
    capacity: int = ...,
    overflow: Overflow = ...,
    retry: Retry | None = ...,
    halve: Callable[[Exception], bool] = ...,
    observer: Observer | None = ...,
) -> AbstractAsyncContextManager[Batcher[In, Out]]: ...


def open_batcher(
    function: Callable[..., Awaitable[Collection[Out | Exception]]],
    *,
    max_size: int,
    max_wait: float = 0.0,
    max_in_flight: int = 1,
    preferred_sizes: Iterable[int] = (),
    adaptive: bool = False,
    bucket: Callable[[In], Hashable] | None = None,
    capacity: int = 1024,
    overflow: Overflow = Overflow.WAIT,
    retry: Retry | None = None,
    halve: Callable[[Exception], bool] = is_for_one,
    observer: Observer | None = None,
) -> AbstractAsyncContextManager[Batcher[In, Out]]:
    """Collect requests, and call a function of a list for many at a time.

    ``async with open_batcher(function, max_size=32) as batcher:``, and then ``await batcher(item)``
    from as many tasks as there are. Leaving the block waits until all requests are answered; an
    exception or a cancellation that leaves it cancels the batches, and those who wait get `Closed`.

    A batch begins when it is full, or when its oldest request has waited ``max_wait`` seconds, or
    when the earliest deadline among its requests, whatever their priorities, leaves but twice the
    time that batches take on average (at once while that is unknown); and not before one of the
    ``max_in_flight`` places is free. While none is, requests collect. So ``max_wait=0`` makes
    batches, too, wherever it pays.

    **When a batch fails,** by a fault of the device or any other error, it is asked again in
    halves, and the half that fails in halves again, until each request that fails has failed
    alone. It gets the error; the others have their results. That is at most ``2 * n - 1`` calls
    for ``n`` requests beside the retries, and for one request that fails, two of each size. After
    a fault of the device nothing else runs until that is settled, since one request's fault takes
    down all. Each such fault is one of the restarts that ``open_device(max_restarts=...)`` bounds.
    Requests are asked more than once then, so the function must stand being called again for the
    same item.

    **The function must not ask its own batcher:** its batch has a place until it returns. With
    ``max_in_flight=1`` it would wait for itself for ever, and with more, so would as many batches.

    Args:
        function: an async function of a list, which returns as many results in the same order. A
            result that is an exception is raised at who asked for that item. With ``bucket``, it
            gets the bucket as its second argument.
        max_size: how many requests a batch has at most.
        max_wait: how many seconds a request waits for others at most while a place is free.
        max_in_flight: how many batches may run at a time.
        preferred_sizes: sizes that suit the function. A batch is full with the largest, and one
            that is due takes the largest there are requests for.
        adaptive: whether to wait only for as long as it seems to pay. The batcher keeps an average
            of the time between two arrivals, in each bucket. Where that is ``max_wait`` or more,
            a request does not wait. Otherwise a batch begins when nothing has arrived for four
            times the average. ``max_wait`` stays the bound.
        bucket: says which requests may share a batch: those for which it returns equal values. See
            `by_length`.
        capacity: how many requests wait at most. A full queue does not wait for more.
        overflow: what a request does that finds no room: wait for it, raise `Overloaded`, or have
            the oldest request raise `Dropped`.
        retry: how often the whole batch, and a request that is alone, are tried before an error is
            taken for theirs. By default twice after a fault of the device, and once otherwise.
        halve: which errors are looked for in halves. Others are for the whole batch: all of its
            requests get them; as they get what this raises, if it does. By default, all but those
            that no part of a batch would be spared.
        observer: is told what happens.
    """
    if not callable(function):
        raise TypeError(f"open_batcher takes an async function of a list, got {function!r}")
    if bucket is not None and not callable(bucket):
        raise TypeError(f"bucket must be a function of an item, got {bucket!r}")
    if not callable(halve):
        raise TypeError(f"halve must be a function of an exception, got {halve!r}")
    check_member("overflow", overflow, Overflow)
    retry = Retry(attempts=2) if retry is None else retry
    check_instance("retry", retry, Retry)
    settings = _Settings(
        max_size=max_size,
        max_wait=max_wait,
        max_in_flight=max_in_flight,
        capacity=capacity,
        preferred_sizes=tuple(sorted(preferred_sizes)),
        adaptive=adaptive,
    )
    kind: type[Batcher[In, Out]] = Batcher
    batcher = kind._create(
        function, settings, bucket=bucket, overflow=overflow, retry=retry, halve=halve,
        observer=observer,
    )  # fmt: skip
    return _opened(batcher)


@asynccontextmanager
async def _opened(batcher: Batcher[In, Out]) -> AsyncIterator[Batcher[In, Out]]:
    error: BaseException | None = None
    try:
        async with PlainNursery() as nursery:
            batcher._nursery = nursery
            batcher._thread = get_ident()
            await nursery.start(batcher._form)
            yield batcher
            batcher._drain()
    except BaseException as caught:
        error = caught
        raise
    finally:
        batcher._abandon(error)
        del error
