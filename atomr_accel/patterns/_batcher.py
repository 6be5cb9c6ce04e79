"""Batchers: they call a function of a list once for many requests of one item."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
)
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Generic, TypeVar, Unpack, final, overload

import outcome
import trio

from ..actors import Overflow, Place, Service, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import (
    NoPublicConstructor,
    check_instance,
    check_member,
)
from ..wire.options import count, real, set_fields, several, whole
from ._errors import Closed, Dropped, Overloaded, elsewhere
from ._halving import BatchRun, is_for_one, refuse_own
from ._observer import Observer, guarded
from ._queue import Entry, Heap, QueuedRequest, QueuePlace, RequestBucket
from ._retry import Retry

In = TypeVar("In")
Out = TypeVar("Out")
Key = TypeVar("Key", bound=Hashable)

_SILENCE = 4
"""Bound of the wait with ``adaptive``, in average gaps between two arrivals."""

_IDLE_BUCKETS = 256
"""Empty buckets that are kept, because they hold the statistics of their arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStatistics:
    """Statistics of a batcher, at one moment.

    Every submitted request counts in one of ``queued``, ``outside``, ``running``, ``answered``,
    ``failed``, ``refused`` and ``withdrawn``.

    Attributes:
        submitted: requests so far.
        queued: requests that wait for a batch.
        outside: requests that wait for room in the queue.
        running: requests in batches that have begun.
        answered: requests that got a result.
        failed: requests that raised an error of the function.
        refused: requests that raised `Overloaded`, `Dropped` or `Closed`.
        withdrawn: requests whose callers were cancelled.
        in_flight: batches, not requests, that have begun and are not answered.
        batches: batches so far.
        largest: requests in the largest batch so far.
        calls: calls of the function so far: batches, retries and halves.
        faults: calls that a device's fault ended.
        abandoned: calls that were cancelled because all their callers had left.
        seconds: average duration of a batch in seconds. Each new batch has a weight of an eighth.
    """

    submitted: int = 0
    queued: int = 0
    outside: int = 0
    running: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    withdrawn: int = 0
    in_flight: int = 0
    batches: int = 0
    largest: int = 0
    calls: int = 0
    faults: int = 0
    abandoned: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Options that can be changed while a batcher runs."""

    max_size: int
    max_wait: float
    max_in_flight: int
    capacity: int
    preferred_sizes: tuple[int, ...]
    adaptive: bool

    def __post_init__(self) -> None:
        counts = {
            name: count(getattr(self, name), name)
            for name in ("max_size", "max_in_flight", "capacity")
        }
        max_wait = real(self.max_wait, "max_wait", least=0, infinity=True)
        check_instance("adaptive", self.adaptive, bool)
        sizes = {
            whole(size, "a preferred size", 1, counts["max_size"]) for size in self.preferred_sizes
        }
        set_fields(self, **counts, max_wait=max_wait, preferred_sizes=tuple(sorted(sizes)))

    @property
    def target(self) -> int:
        """Number of requests with which a batch is full."""
        return self.preferred_sizes[-1] if self.preferred_sizes else self.max_size

    def size(self, waiting: int) -> int:
        """Return the size of the next batch, for this number of waiting requests."""
        at = bisect.bisect_right(self.preferred_sizes, waiting)
        return self.preferred_sizes[at - 1] if at else min(waiting, self.max_size)


def _urgency(priority: float) -> float:
    """Return minus a priority, a number that compares with all others."""
    if type(priority) is int:  # such as nanoseconds, which a float would round
        return -priority
    return -real(priority, "priority", infinity=True)


@final
class Batcher(Service, Generic[In, Out], metaclass=NoPublicConstructor):
    """Collects requests into batches, as `open_batcher` returns it.

    ``await batcher(item)`` makes one request. Once the block was left, methods raise `Closed`.
    """

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
        self._order = itertools.count()
        self._buckets: dict[Hashable, RequestBucket] = {}
        self._outside = Heap(QueuePlace.OUTSIDE)
        self._queued = 0
        self._taken = 0
        self._counts = dict.fromkeys(
            ("submitted", "answered", "failed", "refused", "withdrawn", "batches", "calls",
             "faults", "abandoned", "largest"), 0,
        )  # fmt: skip
        self._seconds = 0.0
        self._running = 0
        self._suspects = 0
        self._callers: set[trio.lowlevel.Task] = set()
        self._alone = trio.Lock()
        self._quiet: trio.Event | None = None
        self._left_over: list[QueuedRequest] = []
        self._all_answered = trio.Event()
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

        Waiting requests of the highest priority go first. Among these, the request whose caller has
        the earliest deadline goes first. (Deadlines are scopes, as in ``trio.fail_after``.) If you
        are cancelled, the request is withdrawn. A batch that has begun continues for the other
        callers, and is cancelled once all of them have left.

        The deadline is read once, when you ask. A deadline that is set or moved later still cancels
        you, but does not change the order.

        Raises:
            TypeError: the priority is not a real number, or the key that ``bucket`` returned cannot
                be hashed and compared.
            ValueError: the priority is NaN.
            Overloaded: the queue is full, and its policy is to reject.
            Dropped: the queue was full, and this was its oldest request.
            WrongResults: the function returned too few or too many results.
            RuntimeError: the batcher lives in the trio run of another thread; or its own function
                asks, or a task that the function has started and waits for.
        """
        if get_ident() != self._thread:
            raise elsewhere("batcher", "run(batcher, ...)")
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise self._refusal(self._closed_by)
        refuse_own(self._callers)
        urgency = _urgency(priority)
        bucket = self._bucket_for(item)
        now = trio.current_time()
        request = QueuedRequest(item, bucket, trio.lowlevel.current_task(), now)
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
        """Change options of `open_batcher`. Options that are not given keep their values.

        Batches that have begun are not affected, and no waiting request is refused. If this raises,
        nothing has changed.
        """
        if get_ident() != self._thread:
            raise elsewhere("batcher", "run_sync(partial(batcher.tune, ...))")
        if preferred_sizes is not None:
            preferred_sizes = several(preferred_sizes, "preferred_sizes")
        given = {
            "max_size": max_size, "max_wait": max_wait, "max_in_flight": max_in_flight,
            "capacity": capacity, "adaptive": adaptive,
            "preferred_sizes": preferred_sizes,
        }  # fmt: skip
        changed = {name: value for name, value in given.items() if value is not None}
        self._settings = replace(self._settings, **changed)  # type: ignore[arg-type]
        self._let_in()
        self._wake()

    def statistics(self) -> BatcherStatistics:
        """Return the statistics of this moment."""
        return BatcherStatistics(
            queued=self._queued,
            outside=self._outside.live,
            running=self._taken,
            in_flight=self._running,
            seconds=self._seconds,
            **self._counts,
        )

    # --- requests come and go ----------------------------------------------------------

    def _bucket_for(self, item: In) -> RequestBucket:
        """Return the bucket of an item.

        The key is looked up only here, in the caller's task, because the key's methods belong to
        the program and may raise.
        """
        key = None if self._bucket_of is None else self._bucket_of(item)
        try:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = RequestBucket(key)
        except Exception as error:
            raise TypeError(
                f"bucket must return what can be hashed and compared, not {type(key).__name__}"
            ) from error
        return bucket

    def _make_room(self, request: QueuedRequest) -> bool:
        """Return True if there is room now, else False: the request has to wait outside."""
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
        """Put a request into the queue, and wake the task that forms batches if it has to look."""
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

    def _withdraw(self, request: QueuedRequest) -> None:
        """Withdraw a request whose caller was cancelled."""
        place = request.place
        if place is QueuePlace.TAKEN:
            self._end(request, None, "withdrawn")
            if request.part is not None:  # else its batch has not started yet
                request.part.left()
        elif place is QueuePlace.QUEUED:
            self._leave_queue(request)
            self._end(request, None, "withdrawn")
            self._let_in()
        else:
            self._end(request, None, "withdrawn")
            self._outside.left()
            self._leave_outside(request)

    def _leave_outside(self, request: QueuedRequest) -> None:
        request.bucket.outside -= 1
        self._tidy(request.bucket)

    def _leave_queue(self, request: QueuedRequest) -> None:
        bucket = request.bucket
        request.place = QueuePlace.OUTSIDE
        self._queued -= 1
        bucket.left()
        self._tidy(bucket)

    def _let_in(self) -> None:
        """Admit requests that wait outside, as far as there is room."""
        while self._outside.live and self._queued < self._settings.capacity:
            self._admit(self._outside.pop(), trio.current_time())

    def _tidy(self, bucket: RequestBucket) -> None:
        if not (bucket.heap.live or bucket.outside) and len(self._buckets) > _IDLE_BUCKETS:
            with suppress(Exception):  # a bucket whose key is not found any more stays
                del self._buckets[bucket.key]

    def _end(
        self, request: QueuedRequest, error: Exception | None, count: str, *, wake: bool = True
    ) -> None:
        """End a request without a result: with an error, or because its caller left."""
        if request.place is QueuePlace.TAKEN:
            self._taken -= 1
        request.place = QueuePlace.ENDED
        self._counts[count] += 1
        if self._observer is not None:
            seconds = trio.current_time() - request.arrived
            if error is None:
                self._observer.withdrawn(request.item, seconds)
            else:
                self._observer.failed(request.item, error, seconds)
        if error is not None and wake:
            trio.lowlevel.reschedule(request.task, outcome.Error(error))

    def _refusal(self, cause: BaseException | None) -> Closed:
        text = "the batcher is closed: its block was left, or its actor has ended"
        error = Closed(text if self._closing else "the batcher failed, and is started again")
        error.__cause__ = cause
        return error

    # --- batches are formed ------------------------------------------------------------

    def _due(self, bucket: RequestBucket) -> float:
        """Return the time at which a bucket's requests go if no more arrive before."""
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

    def _next(self, now: float) -> tuple[RequestBucket | None, float]:
        """Return the bucket whose batch is due, or None and the time of the first due one."""
        first: RequestBucket | None = None
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
        """Form batches until the block is left and all requests are answered."""
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
        """Wake the task that forms batches.

        Many reasons in one turn of the scheduler wake it once.
        """
        if self._parked:
            self._woken_otherwise(None)
            trio.lowlevel.reschedule(self._former)

    def _begin(self, bucket: RequestBucket) -> None:
        requests = bucket.take(self._settings.size(bucket.heap.live))
        self._queued -= len(requests)
        self._taken += len(requests)
        self._tidy(bucket)
        self._running += 1
        counts = self._counts
        counts["batches"] += 1
        counts["largest"] = max(counts["largest"], len(requests))
        self._let_in()
        self._nursery.start_soon(BatchRun(self, bucket.key, requests).run)

    # --- one life after the other ------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Form and run batches until all requests are answered after `finish`."""
        self._running = self._suspects = 0
        self._alone = trio.Lock()
        self._refuse(self._left_over, None)  # of a life that was cancelled for this one
        try:
            async with PlainNursery() as nursery:
                self._nursery = nursery
                self._thread = get_ident()
                await nursery.start(self._form)
                task_status.started()
        except Exception as error:
            # Requests in the queue wait for the next life; those in batches had theirs.
            self._refuse(self._left_over, error)
            raise
        self._all_answered.set()

    async def call(self, item: In, **options: Any) -> Out:
        """Ask for the item of a `Call`, with its options. See `ask`."""
        return await self.ask(item, **options)

    async def finish(self) -> None:
        """Take no more requests, and wait until all are answered."""
        self._closing = True
        self._wake()
        await self._all_answered.wait()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse the requests that still wait: no batch will be formed."""
        self._closing = True
        self._closed_by = self._closed_by or cause
        self._all_answered.set()
        rest = self._left_over
        while self._outside.live:
            rest.append(self._outside.pop()[3])
        for bucket in self._buckets.values():
            taken = bucket.take(bucket.heap.live)
            self._queued -= len(taken)
            self._taken += len(taken)
            rest += taken
        self._refuse(rest, self._closed_by)

    def depth(self) -> int:
        """Requests that wait or are in batches."""
        return self._queued + self._outside.live + self._taken

    def _refuse(self, requests: list[QueuedRequest], cause: BaseException | None) -> None:
        for request in requests:
            if request.place is not QueuePlace.ENDED:
                self._end(request, self._refusal(cause), "refused")
        requests.clear()


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
    **place: Unpack[Place],
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
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Batcher[In, Out]]: ...


@opens
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
    **place: Unpack[Place],
) -> AsyncIterator[Batcher[In, Out]]:
    """Collect requests, and call a function of a list for many at a time.

    Use ``async with open_batcher(function, max_size=32) as batcher:``, and call ``await
    batcher(item)`` from any number of tasks. Leaving the block waits until all requests are
    answered. An exception or a cancellation that leaves the block cancels the batches, and their
    callers get `Closed`.

    A batch begins when one of the ``max_in_flight`` places is free and one of these is true:

    - It is full.
    - Its oldest request has waited ``max_wait`` seconds.
    - The earliest deadline among its requests, regardless of priority, leaves twice the average
      duration of a batch. Before the first batch has ended, any deadline starts a batch at once.

    Requests collect while no place is free. So even ``max_wait=0`` forms batches under load.

    **When a batch fails,** by a fault of the device or any other error, its requests are asked
    again in halves. A half that fails is halved again, until each failing request has failed alone
    and gets the error. The others get their results. For ``n`` requests that takes at most ``2 * n
    - 1`` calls in addition to retries; for one failing request, two calls of each size. After a
    fault of the device no other batch runs until the failing requests are found, because such a
    fault ends all batches. Each fault is one of the restarts that ``open_device(max_restarts=...)``
    limits. Requests may therefore be asked more than once, so the function must tolerate repeated
    calls for the same item.

    **The function must not ask its own batcher,** because its batch holds a place until it returns.
    With ``max_in_flight=1`` the batch would wait for itself forever. With more places, as many such
    batches would block each other. So asking raises ``RuntimeError`` there, and in tasks that the
    function has started and waits for.

    Args:
        function: an async function of a list. It returns one result for each item, in the same
            order. A result that is an exception is raised in the task that asked for that item.
            With ``bucket``, the function gets the bucket as its second argument.
        max_size: the maximum number of requests in a batch.
        max_wait: the maximum number of seconds that a request waits for others while a place is
            free.
        max_in_flight: the maximum number of batches that run at the same time.
        preferred_sizes: sizes that suit the function. A batch is full at the largest. A batch that
            is due takes the largest size for which there are enough requests.
        adaptive: whether to wait only as long as more requests are likely. The batcher keeps an
            average of the time between two arrivals in each bucket. If that average is ``max_wait``
            or more, a request does not wait. Otherwise a batch begins when no request has arrived
            for four times the average. ``max_wait`` stays the bound.
        bucket: returns the key of an item. Requests with equal keys may share a batch. See
            `by_length`.
        capacity: the maximum number of waiting requests. When the queue is full, a batch begins
            without waiting for more.
        overflow: the action for a request that finds no room: wait for room, raise `Overloaded`, or
            have the oldest request raise `Dropped`.
        retry: the number of times that a whole batch, and a single request, is tried before its
            error counts. By default twice after a fault of the device, and once otherwise.
        halve: returns whether the batch is halved after an error. Otherwise all requests of the
            batch get the error. If this function raises, they get that exception. By default, a
            batch is halved unless the error would affect any part of it.
        observer: receives the events of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the batcher an actor. It is
            ``/generate`` with ``system=system, name="generate"``, and answers ``Call(item)``.
    """
    if not callable(function):
        raise TypeError(
            f"argument of open_batcher must be an async function of a list, not {function!r}"
        )
    if bucket is not None and not callable(bucket):
        raise TypeError(f"bucket must be a function of an item, not {bucket!r}")
    if not callable(halve):
        raise TypeError(f"halve must be a function of an exception, not {halve!r}")
    check_member("overflow", overflow, Overflow)
    retry = Retry(attempts=2) if retry is None else retry
    check_instance("retry", retry, Retry)
    settings = _Settings(
        max_size=max_size,
        max_wait=max_wait,
        max_in_flight=max_in_flight,
        capacity=capacity,
        preferred_sizes=several(preferred_sizes, "preferred_sizes"),
        adaptive=adaptive,
    )
    kind: type[Batcher[In, Out]] = Batcher
    batcher = kind.construct(
        function, settings, bucket=bucket, overflow=overflow, retry=retry, halve=halve,
        observer=observer,
    )  # fmt: skip
    return _opened(batcher, place)


async def _opened(batcher: Batcher[In, Out], place: Place) -> AsyncIterator[Batcher[In, Out]]:
    async with serving(batcher, **place):
        yield batcher
