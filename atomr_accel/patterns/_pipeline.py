"""Pipelines: stages that overlap, with bounded room between them and the order kept."""

from __future__ import annotations

import inspect
import math
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    Unpack,
    final,
    overload,
)

import trio

from ..actors import Place
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import count, set_fields
from ._calls import (
    CallsInProgress,
    InCallers,
    NoEnd,
    RequestTally,
    serving_callers,
    unprotected,
)
from ._errors import Closed

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from ._observer import Observer

In = TypeVar("In")
Out = TypeVar("Out")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_BETWEEN: Final = "failed, and is started again"


_MOST_TASKS: Final = 1 << 16
"""The largest concurrency of a stage: each has a task of its own from the start."""


# With slots ``Stage[...](...)`` would fail, on Python 3.11.
@dataclass(frozen=True)
class Stage(Generic[In, Out]):
    """One stage of a pipeline.

    Attributes:
        function: a coroutine function, or anything that is called like one, such as a ``Batcher``.
        concurrency: how many items may be in it at once. They leave in the order in which they
            came, so one that takes long holds up those behind it, and no more than these many.
        name: what statistics call it; by default, the function's name.
    """

    function: Callable[[In], Awaitable[Out]]
    concurrency: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a stage must be a coroutine function, not {self.function!r}")
        check_instance("name", self.name, str)
        set_fields(self, concurrency=count(self.concurrency, "concurrency", most=_MOST_TASKS))


AsStage: TypeAlias = Callable[[In], Awaitable[Out]] | Stage[In, Out]
"""A stage as callers give it: a coroutine function, or a ``Stage`` with options."""


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """One stage of a pipeline, at one moment.

    Attributes:
        name: the stage's name.
        concurrency: the maximum number of items that its function works on.
        waiting: items in the channel before it.
        in_progress: items that its function works on, and that wait for those before them to leave.
        finished: items that have left it with a result.
        failed: items that raised an error.
    """

    name: str
    concurrency: int
    waiting: int
    in_progress: int
    finished: int
    failed: int


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Statistics of a pipeline, at one moment. Each submitted item is in one count, or inside.

    Attributes:
        submitted: items so far.
        answered: items that got a result.
        failed: items that raised an error.
        refused: items that got ``Closed``, or another refusal by a stage.
        withdrawn: items whose callers were cancelled, and those of runs that were left early.
        in_progress: items inside the pipeline.
        stages: the stages in their order.
    """

    submitted: int
    answered: int
    failed: int
    refused: int
    withdrawn: int
    in_progress: int
    stages: tuple[StageStatistics, ...]


class _Ticket:
    """An item on its way through the stages, and then its result."""

    __slots__ = ("began", "deadline", "done", "error", "gone", "item", "scope", "tally", "value")

    def __init__(self, item: Any, deadline: float, tally: RequestTally | None = None) -> None:
        self.item: Any = item
        self.value: Any = item
        self.deadline: float = deadline
        self.tally: RequestTally | None = tally  # an item of a run; others are counted as calls
        self.began: float = 0.0 if tally is None else tally.submit(item)
        self.done: trio.Event = trio.Event()
        self.error: Exception | None = None
        self.gone: bool = False
        self.scope: trio.CancelScope | None = None

    def answer(self, error: Exception | None = None) -> None:
        """Set the result, or this error instead. The first one counts."""
        if self.gone or self.done.is_set():
            return
        self.error = error
        self.done.set()
        if self.tally is not None:
            if error is None:
                self.tally.answer(self.item, self.began)
            else:
                self.tally.fail(self.item, error, self.began)

    def withdraw(self) -> None:
        """Withdraw the item: its caller has left, so work on it is cancelled."""
        if self.gone or self.done.is_set():
            return
        self.gone = True
        if self.scope is not None:
            self.scope.cancel()
        if self.tally is not None:
            self.tally.withdraw(self.item, self.began)

    def result(self) -> Any:
        try:
            if self.error is not None:
                raise self.error
            return self.value
        finally:
            self.error = None  # its traceback has this frame in it


class _Station:
    """A stage at work: its channels, and whose turn it is to leave."""

    __slots__ = ("failed", "finished", "in_progress", "intake", "last", "receive", "send", "stage")

    def __init__(
        self,
        stage: Stage[Any, Any],
        receive: trio.MemoryReceiveChannel[_Ticket],
        send: trio.MemorySendChannel[_Ticket] | None,
    ) -> None:
        self.stage = stage
        self.receive = receive
        self.send = send
        self.finished = self.failed = 0
        self.begin()

    def begin(self) -> None:
        """Begin a life: the stage is idle, and the next item may leave at once."""
        self.intake = trio.Lock()
        self.last = trio.Event()
        self.last.set()
        self.in_progress = 0


@final
class Pipeline(InCallers, Generic[In, Out], metaclass=NoPublicConstructor):
    """Stages in a row, each of which works while the others do. ``open_pipeline`` makes one."""

    _made_by: ClassVar[str] = "open_pipeline(stage, ...)"

    def __init__(
        self,
        stages: tuple[Stage[Any, Any], ...],
        buffer: int,
        observer: Observer | None,
    ) -> None:
        self._nursery: trio.Nursery | None = None
        self._left_over: list[_Ticket] = []
        self._calls = CallsInProgress("pipeline", observer)
        self._tally = self._calls.tally
        self._runs: set[_RunState] = set()
        self._capacity = sum(stage.concurrency + buffer for stage in stages)
        self._entry, receive = trio.open_memory_channel[_Ticket](buffer)
        self._stations: list[_Station] = []
        for number, stage in enumerate(stages, 1):
            here, send = receive, None
            if number < len(stages):
                send, receive = trio.open_memory_channel[_Ticket](buffer)
            self._stations.append(_Station(stage, here, send))

    @trio.lowlevel.enable_ki_protection
    async def __call__(self, item: In) -> Out:
        """Send one item through all stages.

        Raises:
            Exception: what a stage raised for this item. Others are not concerned.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._calls.one(item):
            ticket = _Ticket(item, trio.current_effective_deadline())
            try:
                await self._entry.send(ticket)
                await ticket.done.wait()
            finally:
                ticket.withdraw()
            result: Out = ticket.result()
            return result

    def run(self, source: AsyncIterable[In]) -> PipelineRun[Out]:
        """Send all items of an async iterable through the stages.

        ``async for result in pipeline.run(source):`` gives the results in the order of the items.
        The source is read ahead as far as the pipeline has room, and no further: a consumer that
        is slow slows it down. An exception of a stage is raised in place of the item's result,
        after the results of the items before it, and ends the run. So does an exception of the
        source. A run that is left early, or dropped, ends as well: it reads no further, and its
        items in the stages are cancelled. The run closes a source that is an async generator when
        it ends; other sources, such as files, stay open.

        Raises:
            Closed: the pipeline's block was left; or the pipeline failed, and is not yet started
                again.
        """
        if not hasattr(source, "__aiter__"):
            raise TypeError(f"argument of a run must be an async iterable, not {source!r}")
        self._calls.check()
        if self._nursery is None:
            raise self._calls.closed(_BETWEEN)
        state = _RunState(self, self._capacity)
        self._runs.add(state)
        self._nursery.start_soon(self._feed, source, state, name="pipeline/source")
        kind: type[PipelineRun[Out]] = PipelineRun
        return kind.construct(state)

    def statistics(self) -> PipelineStatistics:
        """The pipeline and its stages at this moment."""
        return PipelineStatistics(
            submitted=self._tally.submitted,
            answered=self._tally.answered,
            failed=self._tally.failed,
            refused=self._tally.refused,
            withdrawn=self._tally.withdrawn,
            in_progress=self._tally.in_progress,
            stages=tuple(
                StageStatistics(
                    name=station.stage.name,
                    concurrency=station.stage.concurrency,
                    waiting=station.receive.statistics().current_buffer_used,
                    in_progress=station.in_progress,
                    finished=station.finished,
                    failed=station.failed,
                )
                for station in self._stations
            ),
        )

    # --- one life after the other

    @trio.lowlevel.enable_ki_protection
    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Work at the stages. Items in the channels between these outlast a life."""
        self._fail_rest(None)  # of a life that was cancelled for this one
        try:
            async with PlainNursery() as nursery:
                for station in self._stations:
                    station.begin()
                    name = f"pipeline/{station.stage.name}"
                    for _ in range(station.stage.concurrency):
                        nursery.start_soon(self._work, station, name=name)
                self._nursery = nursery
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # in the block: past its end the nursery refuses runs
        except Exception as error:
            self._fail_rest(error)
            raise

    def _fail_rest(self, cause: BaseException | None) -> None:
        """Fail the items that were in stages, and the runs, as the life of these has ended."""
        for ticket in self._left_over:
            ticket.answer(self._failed(cause))
        self._left_over.clear()
        for state in [*self._runs]:
            state.failure = self._failed(cause)
            state.close()

    def _failed(self, cause: BaseException | None) -> Closed:
        error = Closed(f"the pipeline {_BETWEEN}")
        error.__cause__ = cause
        return error

    async def finish(self) -> None:
        """Take no more items, end the runs, and wait for the calls in progress."""
        self._calls.refuse()
        self._end_runs()
        await super().finish()

    def ended(self, cause: BaseException | None) -> None:
        """End the runs and the calls in progress."""
        super().ended(cause)
        self._end_runs()
        self._left_over.clear()

    def depth(self) -> int:
        """Items inside the pipeline."""
        return self._tally.in_progress

    # --- the stages

    @trio.lowlevel.enable_ki_protection
    async def _work(self, station: _Station) -> None:
        """One of the hands of a stage.

        The hands take items in turn, and give them on in the turn in which they took them. Items
        that were withdrawn, or have failed, are not passed on.
        """
        while True:
            async with station.intake:
                ticket = await station.receive.receive()
                before, station.last = station.last, trio.Event()
                done = station.last
            station.in_progress += 1
            try:
                goes_on = not ticket.gone and await self._at(station, ticket)
                await before.wait()
                if goes_on and station.send is not None:
                    await station.send.send(ticket)
                elif goes_on:
                    ticket.answer()
            except BaseException:
                self._left_over.append(ticket)
                raise
            done.set()
            station.in_progress -= 1

    async def _at(self, station: _Station, ticket: _Ticket) -> bool:
        """Run the stage on an item. Return True if it gave a result."""
        if station is self._stations[0]:
            self._tally.start(ticket.item)
        ticket.scope = trio.CancelScope(deadline=ticket.deadline)
        try:
            with ticket.scope:
                ticket.value = await unprotected(station.stage.function, ticket.value)
                station.finished += 1
                return True
            # Its caller leaves at the same moment, unless it has put off its deadline since.
            ticket.answer(trio.TooSlowError("the deadline that it was sent with has passed"))
        except Exception as error:  # noqa: BLE001 (its caller's)
            station.failed += 1
            ticket.answer(error)
        finally:
            ticket.scope = None
        return False

    # --- runs

    @trio.lowlevel.enable_ki_protection
    async def _feed(self, source: AsyncIterable[Any], state: _RunState) -> None:
        with state.scope:
            try:
                try:
                    async for item in source:
                        ticket = _Ticket(item, math.inf, self._tally)
                        state.tickets.append(ticket)
                        await state.send.send(ticket)
                        await self._entry.send(ticket)
                except Exception as error:  # noqa: BLE001 (told in its turn)
                    failed = _Ticket(None, math.inf)
                    failed.answer(error)
                    await state.send.send(failed)
                state.send.close()
            finally:
                if state.closed:
                    state.withdraw()  # it may have been on its way here with one more
                if inspect.isasyncgen(source):
                    await source.aclose()

    def _end_runs(self) -> None:
        for state in [*self._runs]:
            state.close()


class _RunState:
    """State that both ends of a run share. It has no reference to the consumer's end."""

    __slots__ = (
        "closed",
        "consumer",
        "failure",
        "head",
        "pipeline",
        "receive",
        "scope",
        "send",
        "tickets",
    )

    def __init__(self, pipeline: Pipeline[Any, Any], capacity: int) -> None:
        self.pipeline: Pipeline[Any, Any] = pipeline
        self.scope: trio.CancelScope = trio.CancelScope()
        self.send: trio.MemorySendChannel[_Ticket]
        self.receive: trio.MemoryReceiveChannel[_Ticket]
        self.send, self.receive = trio.open_memory_channel[_Ticket](capacity)
        self.tickets: deque[_Ticket] = deque()
        self.head: _Ticket | None = None
        self.consumer: trio.CancelScope | None = None
        self.closed: bool = False
        self.failure: Closed | None = None  # of the pipeline, which ended the run

    def close(self) -> None:
        """End the run: stop reading its source, and withdraw its items from the stages."""
        self.scope.cancel()
        self.pipeline._runs.discard(self)
        self.withdraw()
        self.head = None
        self.closed = True
        if self.consumer is not None:
            self.consumer.cancel()
        self.send.close()  # last: the consumer is not to take it for the end of the source

    def withdraw(self) -> None:
        """Withdraw the run's items from the stages."""
        for ticket in self.tickets:
            ticket.withdraw()
        self.tickets.clear()

    def over(self) -> Exception:
        """Return the reason that no further result comes."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            return failure
        calls = self.pipeline._calls
        return calls.closed() if calls.closing else StopAsyncIteration()


@final
class PipelineRun(Generic[Out], metaclass=NoPublicConstructor):
    """The results of ``Pipeline.run``, in order: an async iterator.

    Leaving a loop early ends the run as soon as nothing refers to it. ``async with run:`` or
    ``await run.aclose()`` end it at once.
    """

    _made_by: ClassVar[str] = "pipeline.run(source)"

    def __init__(self, state: _RunState) -> None:
        self._state = state
        # A loop that is left tells nobody, and what it waited for is work that nobody wants.
        # The finalizer may run in any thread; the run is closed in that of the pipeline.
        token = trio.lowlevel.current_trio_token()
        self._dropped = weakref.finalize(self, _close_soon, token, state)
        self._dropped.atexit = False

    def __aiter__(self) -> PipelineRun[Out]:
        """The run itself."""
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> Out:
        """The next result.

        Raises:
            StopAsyncIteration: that was the last, or the run is over.
            trio.BusyResourceError: another task waits for the next result already.
            Exception: what a stage, or the source, has raised; a `StopAsyncIteration` as the cause
                of a `RuntimeError`.
        """
        state = self._state
        if state.consumer is not None:
            raise trio.BusyResourceError("another task waits for the next result of this run")
        if state.closed:
            await trio.lowlevel.checkpoint()
            raise state.over()
        try:
            with trio.CancelScope() as state.consumer:
                # If the caller is cancelled, the next call goes on where this one was.
                if state.head is None:
                    state.head = await state.receive.receive()
                await state.head.done.wait()
        except trio.EndOfChannel:
            self._end()
            raise StopAsyncIteration from None
        finally:
            state.consumer = None
        if state.closed:
            raise state.over()
        ticket, state.head = state.head, None
        assert ticket is not None
        if state.tickets and state.tickets[0] is ticket:
            state.tickets.popleft()
        if ticket.error is not None:
            self._end()
        with NoEnd("a stage"):
            result: Out = ticket.result()
        return result

    async def aclose(self) -> None:
        """End the run: also for a task that waits for its next result."""
        self._end()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> PipelineRun[Out]:
        """The run itself; leaving the block ends it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._dropped.detach()
        if not self._state.closed:
            self._state.close()


def _close_soon(token: trio.lowlevel.TrioToken, state: _RunState) -> None:
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(_close_dropped, state)


def _close_dropped(state: _RunState) -> None:
    if not state.closed:
        state.close()


@overload
def open_pipeline(
    first: AsStage[In, Out],
    /,
    *,
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Pipeline[In, Out]]: ...
@overload
def open_pipeline(
    first: AsStage[In, A],
    second: AsStage[A, Out],
    /,
    *,
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Pipeline[In, Out]]: ...
@overload
def open_pipeline(
    first: AsStage[In, A],
    second: AsStage[A, B],
    third: AsStage[B, Out],
    /,
    *,
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Pipeline[In, Out]]: ...
@overload
def open_pipeline(
    first: AsStage[In, A],
    second: AsStage[A, B],
    third: AsStage[B, C],
    fourth: AsStage[C, Out],
    /,
    *,
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Pipeline[In, Out]]: ...
@overload
def open_pipeline(
    first: AsStage[In, A],
    second: AsStage[A, B],
    third: AsStage[B, C],
    fourth: AsStage[C, D],
    fifth: AsStage[D, Out],
    /,
    *,
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[Pipeline[In, Out]]: ...
@opens
async def open_pipeline(
    *stages: AsStage[Any, Any],
    buffer: int = 1,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[Pipeline[Any, Any]]:
    """Open a pipeline of one stage or more.

    ``async with open_pipeline(decode, classify, encode) as pipeline:``, and then
    ``await pipeline(item)`` or ``async for result in pipeline.run(items)``.

    Each stage has tasks of its own, as many as its concurrency, and takes items from a trio
    memory channel. So the stages overlap, a stage that is slow holds back those before it, and no
    more items are inside than fit. Every stage sees the items in the order in which they came, and
    gives them on in it. Type checkers follow the types through five stages; a pipeline can be a
    stage of another.

    An item whose caller is cancelled, or is past its deadline, is not worked on any more. Leaving
    the block waits for the calls in progress and ends the runs. A block that is left by an
    exception or a cancellation ends the calls, too: their callers get ``Closed``.

    Args:
        stages: coroutine functions of one argument, or ``Stage`` objects, in their order.
        buffer: how many items may wait before each stage.
        observer: receives the outcomes of items.
        **place: ``system=``, ``name=`` and ``parent=``, which make the pipeline an actor. It
            answers ``Call(item)``.
    """
    if not stages:
        raise TypeError("a pipeline wants one stage or more")
    buffer = count(buffer, "buffer", 0)
    checked = tuple(_named(stage, number) for number, stage in enumerate(stages, 1))
    pipeline: Pipeline[Any, Any] = Pipeline.construct(checked, buffer, observer)
    async with serving_callers(pipeline, place):
        yield pipeline


def _named(stage: AsStage[Any, Any], number: int) -> Stage[Any, Any]:
    if not isinstance(stage, Stage):
        stage = Stage(stage)
    name = stage.name or getattr(stage.function, "__name__", "") or f"stage-{number}"
    return replace(stage, name=name)
