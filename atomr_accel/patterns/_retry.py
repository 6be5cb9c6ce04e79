"""Retries and circuit breakers, which recognize a device's faults.

A fault of the device (`is_transient`) is independent of the request: the device is being rebuilt,
and the request can succeed on the next generation. Any other error that a function raises is its
answer. All patterns use this module to distinguish the two.
"""

from __future__ import annotations

import enum
import functools
import math
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar, TypeVarTuple, final

import trio

from .._errors import (
    ContextPoisoned,
    DeviceLost,
    EarlierErrors,
    GpuRefStale,
    KernelHung,
    is_awaitable,
    said_of,
)
from ..actors import Backoff
from ..actors.util import check_instance
from ..wire.options import count, real, set_fields
from ._errors import CircuitOpen, RankFailed
from ._observer import Observer, guarded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def is_transient(error: BaseException) -> bool:
    """Return True if an error is only a device's fault, so that the call may succeed next time.

    This is `ContextPoisoned`, which the fault itself raises, and `GpuRefStale`, which later uses of
    its refs raise; a group of only these; or a `RankFailed` that one of these caused. A buffer that
    was stale from the start stays stale: the number of attempts bounds that cost. A `KernelHung` of
    the op that hangs itself (``error.culprit``) is the request's, because it would hang again.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_transient, error.exceptions))
    if isinstance(error, RankFailed):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, KernelHung) and error.culprit:
        return False
    return isinstance(error, (ContextPoisoned, GpuRefStale))


def is_device_fault(error: BaseException) -> bool:
    """Return True if an error is the device's, not the request's. This includes `DeviceLost`."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_device_fault, error.exceptions))
    return isinstance(error, (DeviceLost, RankFailed)) or is_transient(error)


@final
class RetryBudget:
    """Limit on the retries of all calls, as a fraction of the calls.

    Retries help where few calls fail; where all do, they multiply the load that is too much
    already. A budget begins full. Each call that is made adds ``ratio`` to it, up to ``reserve``,
    and each retry takes one. So there are never more retries than ``reserve + ratio * calls``.
    Several `Retry` may share one.

    Args:
        ratio: what a call adds.
        reserve: the maximum of retries it holds, and the initial number.
    """

    __slots__ = ("_left", "_ratio", "_reserve")

    def __init__(self, *, ratio: float = 0.1, reserve: float = 10.0) -> None:
        self._ratio = real(ratio, "ratio", least=0)
        self._reserve = self._left = real(reserve, "reserve", least=0)

    @property
    def left(self) -> float:
        """Retries that are left. Each retry takes one."""
        return self._left

    def called(self) -> None:
        """A call is being made for the first time."""
        self._left = min(self._left + self._ratio, self._reserve)

    def take(self) -> bool:
        """Take one retry, if there is one left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Calls a function again when it fails for a reason that may be gone the next time.

    ``await retry(function, x)`` calls ``function(x)`` until it returns, at most ``attempts`` times.
    The last error is raised unchanged, with notes about the earlier ones. The earlier errors
    themselves are released, so the next attempt can use the memory of their attempts.
    ``@retry.around`` decorates a function to do this itself. An error is raised at once if the next
    attempt could not begin before the caller's deadline.

    Attributes:
        attempts: how often a function is called at most.
        backoff: how long to wait before each further attempt. The first is made at once unless
            ``initial`` says otherwise: a device's next op waits for the rebuild by itself.
        retriable: which errors are worth another attempt; by default those of a device's fault.
        budget: bounds all retries together.
    """

    attempts: int = 3
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0.5))
    retriable: Callable[[Exception], bool] = is_transient
    budget: RetryBudget | None = None

    def __post_init__(self) -> None:
        set_fields(self, attempts=count(self.attempts, "attempts"))
        check_instance("backoff", self.backoff, Backoff)
        if not callable(self.retriable):
            raise TypeError(f"retriable must be a function of an exception, not {self.retriable!r}")
        if self.budget is not None:
            check_instance("budget", self.budget, RetryBudget)

    async def __call__(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call ``function`` with ``args``, again where that may help, and return its result."""
        _check_function("retry", function)
        if self.budget is not None:
            self.budget.called()
        earlier = EarlierErrors()
        while True:
            try:
                return await _awaited("Retry", function, *args)
            except Exception as error:
                delay = self.delay(error, len(earlier) + 1)
                if delay is None:
                    earlier.tell(error)
                    raise
                earlier.add(error)
            await trio.sleep(delay)

    def around(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Make a function that is called again by itself: a decorator."""
        _check_function("retry.around", function)

        @functools.wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self(functools.partial(function, *args, **kwargs))

        return retried

    def delay(self, error: Exception, attempt: int) -> float | None:
        """Seconds to wait after the attempt of that number failed; None if it was the last.

        It is for code that makes the attempts itself. Each call takes one from the budget.

        Args:
            error: what the attempt raised.
            attempt: its number, counted from 1.
        """
        if count(attempt, "attempt") >= self.attempts or not self.retriable(error):
            return None
        delay = self.backoff.delay(attempt)
        if trio.current_time() + delay >= trio.current_effective_deadline():
            error.add_note(
                f"the caller's deadline leaves no time to wait {delay:.3g} s and try again"
            )
            return None
        if self.budget is not None and not self.budget.take():
            error.add_note("the budget of retries is used up")
            return None
        return delay


class CircuitState(enum.Enum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    """All calls pass."""
    OPEN = "open"
    """No call passes, for a while."""
    HALF_OPEN = "half_open"
    """A few calls pass, and their outcomes decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitStatistics:
    """Statistics of a circuit breaker, at one moment.

    Attributes:
        state: whether calls pass.
        outcomes: outcomes in the window.
        failures: outcomes in the window that count as failures.
        refused: calls refused so far.
        opened: number of times that it has opened so far.
        retry_in: seconds until the next call passes; zero unless it is open.
    """

    state: CircuitState
    outcomes: int
    failures: int
    refused: int
    opened: int
    retry_in: float


@final
class CircuitBreaker:
    """Stops calls that fail too often, and tries again after a while.

    ``await breaker(function, x)`` calls ``function(x)`` and notes the outcome; ``with
    breaker.attempt():`` does so for a block, and ``@breaker.around`` for a function. When at least
    ``minimum`` outcomes are in the window and the fraction of failures reaches ``threshold``, the
    circuit opens: calls raise `CircuitOpen`, which says when the next is let through. Then it is
    half open: ``probes`` calls at a time are tried. When that many have succeeded it closes, with
    an empty window; if one fails it opens again.

    Calls that were let through before the circuit last opened or closed change nothing any more.
    A cancelled call has no outcome.

    Args:
        window: the number of latest outcomes that count.
        within: the seconds for which an outcome counts.
        minimum: with fewer outcomes the circuit stays closed.
        threshold: the fraction of failures at which it opens, above 0 and at most 1.
        probes: the number of calls that decide in the half-open state.
        backoff: the time for which it stays open: ``delay(n)`` when it opens for the ``n``-th time
            without having closed.
        counts: returns whether an error counts as a failure; by default, errors of the device do.
            Others are answers, and count as successes.
        observer: receives changes of the state.
    """

    __slots__ = (
        "_backoff", "_counts", "_failures", "_in_row", "_minimum", "_observer", "_opened",
        "_outcomes", "_phase", "_probes", "_probing", "_refused", "_reopens_at", "_state",
        "_successes", "_threshold", "_window", "_within",
    )  # fmt: skip

    def __init__(
        self,
        *,
        window: int = 20,
        within: float = 60.0,
        minimum: int = 5,
        threshold: float = 0.5,
        probes: int = 1,
        backoff: Backoff | None = None,
        counts: Callable[[Exception], bool] = is_device_fault,
        observer: Observer | None = None,
    ) -> None:
        self._window = count(window, "window")
        self._within = real(within, "within", above=0, infinity=True)
        self._minimum = count(minimum, "minimum")
        if self._minimum > self._window:
            raise ValueError(
                f"minimum must be at most the window of {window} outcomes, not {minimum}"
            )
        self._threshold = real(threshold, "threshold", above=0, most=1)
        self._probes = count(probes, "probes")
        if backoff is None:
            backoff = Backoff(initial=1.0, base=2.0, maximum=30.0, jitter=0.1)
        check_instance("backoff", backoff, Backoff)
        if not callable(counts):
            raise TypeError(f"counts must be a function of an exception, not {counts!r}")
        self._backoff = backoff
        self._counts = counts
        self._observer = guarded(observer)
        self._state = CircuitState.CLOSED
        self._phase = 0
        self._outcomes: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._probing = self._successes = 0
        self._reopens_at = -math.inf
        self._in_row = self._opened = self._refused = 0

    @property
    def state(self) -> CircuitState:
        """State of the breaker now."""
        if self._state is CircuitState.OPEN and trio.current_time() >= self._reopens_at:
            return CircuitState.HALF_OPEN
        return self._state

    def statistics(self) -> CircuitStatistics:
        """A snapshot."""
        self._forget(trio.current_time())
        return CircuitStatistics(
            state=self.state,
            outcomes=len(self._outcomes),
            failures=self._failures,
            refused=self._refused,
            opened=self._opened,
            retry_in=self._retry_in(),
        )

    async def __call__(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call ``function`` with ``args`` and note the outcome.

        Raises:
            CircuitOpen: it was not called.
        """
        _check_function("breaker", function)
        with self.attempt():
            return await _awaited("CircuitBreaker", function, *args)

    def around(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Make a function whose calls go through the breaker: a decorator."""
        _check_function("breaker.around", function)

        @functools.wraps(function)
        async def broken(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self(functools.partial(function, *args, **kwargs))

        return broken

    def attempt(self) -> AbstractContextManager[None]:
        """``with breaker.attempt():`` is one call: how the block ends is its outcome.

        Raises:
            CircuitOpen: by the ``with``; the block was not begun.
        """
        return _Attempt(self)

    def would_admit(self) -> bool:
        """Return True if a call made now would pass."""
        state = self.state
        return state is CircuitState.CLOSED or (
            state is CircuitState.HALF_OPEN
            and (self._state is CircuitState.OPEN or self._probing + self._successes < self._probes)
        )

    def _begin(self) -> int:
        """Let a call through, and say in which phase, or raise `CircuitOpen`."""
        if not self.would_admit():
            self._refused += 1
            retry_in = self._retry_in()
            when = (
                f"the next try is in {retry_in:.3g} s"
                if retry_in
                else "a try is being made just now"
            )
            raise CircuitOpen(f"too much has failed of late; {when}", retry_in=retry_in)
        if self._state is CircuitState.OPEN:
            self._change(CircuitState.HALF_OPEN)
        if self._state is CircuitState.HALF_OPEN:
            self._probing += 1
        return self._phase

    def _ended(self, phase: int, failure: bool | None) -> None:
        """A call of that phase has ended: well, in a failure, or (None) without an outcome."""
        if phase != self._phase:
            return
        if self._state is CircuitState.HALF_OPEN:
            self._probing -= 1
            if failure:
                self._open()
            elif failure is False:
                self._successes += 1
                if self._successes == self._probes:
                    self._in_row = 0
                    self._change(CircuitState.CLOSED)
        elif failure is not None:
            now = trio.current_time()
            self._outcomes.append((now, failure))
            self._failures += failure
            self._forget(now)
            seen = len(self._outcomes)
            if failure and seen >= self._minimum and self._failures >= self._threshold * seen:
                self._open()

    def _forget(self, now: float) -> None:
        """Drop outcomes that have left the window."""
        outcomes = self._outcomes
        while outcomes and (len(outcomes) > self._window or outcomes[0][0] <= now - self._within):
            self._failures -= outcomes.popleft()[1]

    def _open(self) -> None:
        self._in_row += 1
        self._opened += 1
        self._reopens_at = trio.current_time() + self._backoff.delay(self._in_row)
        self._change(CircuitState.OPEN)

    def _change(self, state: CircuitState) -> None:
        self._state = state
        self._phase += 1
        self._probing = self._successes = 0
        self._outcomes.clear()
        self._failures = 0
        if self._observer is not None:
            self._observer.circuit_changed(state)

    def _retry_in(self) -> float:
        if self._state is not CircuitState.OPEN:
            return 0.0
        return max(0.0, self._reopens_at - trio.current_time())


@final
class _Attempt(AbstractContextManager[None]):
    """One call through a breaker."""

    __slots__ = ("_breaker", "_phase")

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> None:
        self._phase = self._breaker._begin()

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure: bool | None = False
        if error is not None:
            failure = None
            if isinstance(error, Exception):
                failure = bool(self._breaker._counts(error))
        self._breaker._ended(self._phase, failure)


def _check_function(what: str, function: object) -> None:
    if not callable(function):
        raise TypeError(
            f"{what} takes an async function and its arguments, not {said_of(function)}: "
            f"write `{what}(function, x)`"
        )


async def _awaited(what: str, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    made = function(*args)
    if not is_awaitable(made):
        raise TypeError(f"{what} takes an async function; {function!r} returned {made!r}")
    return await made
