"""Calls that run in the tasks of their callers: admission, count and shutdown."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import trio

from .._errors import check_awaitable, said_of
from ..actors import Place, Service, serving
from ._errors import Closed, Refused, elsewhere
from ._observer import Observer, guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

Out = TypeVar("Out")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Fields that statistics of patterns have in common. Each describes them by its own words."""

    submitted: int
    running: int
    answered: int
    failed: int
    refused: int
    withdrawn: int


class RequestTally:
    """Counts the requests of a pattern by outcome, and reports them to its observer."""

    __slots__ = ("answered", "failed", "observer", "refused", "submitted", "withdrawn")

    def __init__(self, observer: Observer | None) -> None:
        self.observer: Observer | None = guarded(observer)
        self.submitted: int = 0
        self.answered: int = 0
        self.failed: int = 0
        self.refused: int = 0
        self.withdrawn: int = 0

    @property
    def in_progress(self) -> int:
        """Requests that are still open."""
        return self.submitted - self.answered - self.failed - self.refused - self.withdrawn

    def counts(self) -> dict[str, int]:
        """Return the fields of `RequestCounts`."""
        names = ("submitted", "answered", "failed", "refused", "withdrawn")
        return {"running": self.in_progress, **{name: getattr(self, name) for name in names}}

    def submit(self, item: object) -> float:
        """Count a new request, and return the time, which its end needs."""
        self.submitted += 1
        if self.observer is not None:
            self.observer.submitted(item)
        return trio.current_time()

    def start(self, item: object) -> None:
        """Report that a function is about to be called for a request."""
        if self.observer is not None:
            self.observer.started((item,))

    def retry(self, item: object, error: Exception) -> None:
        """Report that a request failed and is asked again."""
        if self.observer is not None:
            self.observer.retried((item,), error)

    def answer(self, item: object, began: float) -> None:
        """Count a request that has a result."""
        self.answered += 1
        if self.observer is not None:
            self.observer.answered(item, trio.current_time() - began)

    def fail(self, item: object, error: BaseException, began: float) -> None:
        """Count a request that has an error."""
        if isinstance(error, Refused):
            self.refused += 1
        else:
            self.failed += 1
        if self.observer is not None:
            self.observer.failed(item, error, trio.current_time() - began)

    def withdraw(self, item: object, began: float) -> None:
        """Count a request whose caller has left."""
        self.withdrawn += 1
        if self.observer is not None:
            self.observer.withdrawn(item, trio.current_time() - began)


class CallsInProgress:
    """The calls in progress of one pattern.

    Each call runs in its caller's task, so the caller's deadlines, cancellation and context
    variables apply to all of it, and no part of it outlives the caller. This class refuses calls
    once the pattern closes, waits for those in progress, and ends them if the pattern cannot
    continue.
    """

    def __init__(self, what: str, observer: Observer | None) -> None:
        self.tally: RequestTally = RequestTally(observer)
        self._what = what
        self._thread = get_ident()
        self._scopes: set[trio.CancelScope] = set()
        self._closing = False
        self._why: BaseException | None = None
        self._idle = trio.Event()

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def closing(self) -> bool:
        """True if further calls are refused."""
        return self._closing

    def one(self, item: object) -> _CallInProgress:
        """Return a context manager for one call, which also counts the call.

        Raises:
            Closed: the pattern takes no more calls; or, on leaving, it was closed without waiting.
        """
        return _CallInProgress(self, item)

    def check(self) -> None:
        """Raise unless the pattern can be used here and now.

        Raises:
            Closed: the pattern takes no more calls.
            RuntimeError: the pattern belongs to another thread.
        """
        self.check_thread()
        if self._closing:
            raise self.closed()

    def check_thread(self, call: str | None = None) -> None:
        """Raise `RuntimeError` in another thread than the pattern's; the message names ``call``."""
        if get_ident() != self._thread:
            raise elsewhere(self._what, call or f"run({self._what}, ...)")

    def refuse(self) -> None:
        """Take no further calls."""
        self._closing = True

    async def close(self) -> None:
        """Take no further calls, and wait until none is in progress."""
        self._closing = True
        if self._scopes:
            await self._idle.wait()

    def end(self, why: BaseException | None) -> None:
        """Take no further calls, and end those in progress: their callers get ``Closed``."""
        self._closing = True
        if not isinstance(why, trio.Cancelled):
            self._why = self._why or why
        for scope in self._scopes:
            scope.cancel()

    def closed(self, when: str = "is closed: its block was left, or its actor has ended") -> Closed:
        """Return the error that callers get."""
        error = Closed(f"the {self._what} {when}")
        error.__cause__ = self._why
        return error


class _CallInProgress:
    __slots__ = ("_began", "_calls", "_item", "_scope")

    def __init__(self, calls: CallsInProgress, item: object) -> None:
        self._calls = calls
        self._item = item

    def __enter__(self) -> None:
        calls = self._calls
        calls.check()
        self._began = calls.tally.submit(self._item)
        self._scope = trio.CancelScope()
        self._scope.__enter__()
        calls._scopes.add(self._scope)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        calls, scope = self._calls, self._scope
        calls._scopes.discard(scope)
        if not calls._scopes:
            calls._idle.set()
            calls._idle = trio.Event()
        try:
            scope.__exit__(kind, error, traceback)
        except BaseException as rest:  # of a group, without what the scope has caught
            self._count(rest)
            raise
        if scope.cancelled_caught:
            closed = calls.closed("was closed before it had answered")
            self._count(closed)
            raise closed from closed.__cause__
        self._count(error)

    def _count(self, error: BaseException | None) -> None:
        tally = self._calls.tally
        if error is None:
            tally.answer(self._item, self._began)
        elif isinstance(error, Exception):
            tally.fail(self._item, error, self._began)
        else:
            tally.withdraw(self._item, self._began)


@trio.lowlevel.disable_ki_protection
async def unprotected(function: Callable[[*Ts], Awaitable[Out]], *args: *Ts) -> Out:
    """Call a function of the program from code that keeps Ctrl+C away from itself."""
    made = function(*args)
    check_awaitable(said_of(function), made)
    return await made


class NoEnd:
    """``with NoEnd("a model"):`` around functions of the program, in an ``__anext__``.

    One of them that raises `StopAsyncIteration`, such as by an ``anext`` of its own, would end the
    loop as if that had been all. As in async generators (PEP 525) it is a `RuntimeError`.
    """

    __slots__ = ("_who",)

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, StopAsyncIteration):
            said = f"{self._who} raised StopAsyncIteration"
            raise RuntimeError(said) from error  # noqa: TRY004 (no argument is)


class InCallers(Service):
    """Base of patterns whose calls run in the tasks of their callers.

    Calls have no need of a life of the service: those in progress, and new ones, go on while it is
    started again. Patterns with tasks of their own have more to say. Once the block was left, calls
    raise `Closed`.
    """

    _calls: CallsInProgress

    async def call(self, item: Any, **options: Any) -> Any:
        """Answer a `Call`: as a call of this object, or of its ``ask`` if it has one."""
        ask: Any = getattr(self, "ask", self)
        return await ask(item, **options)

    async def finish(self) -> None:
        """Take no more calls, and wait for those in progress."""
        await self._calls.close()

    def ended(self, cause: BaseException | None) -> None:
        """End the calls in progress: their callers get `Closed`."""
        self._calls.end(cause)

    def depth(self) -> int:
        """Calls in progress."""
        return len(self._calls)


_S = TypeVar("_S", bound=InCallers)


@asynccontextmanager
async def serving_callers(pattern: _S, place: Place) -> AsyncIterator[_S]:
    """The block of a pattern, which it leaves when all callers have left it."""
    try:
        async with serving(pattern, **place):
            yield pattern
    finally:
        with trio.CancelScope(shield=True):  # nothing is closed that they still use
            await pattern._calls.close()
