"""Asking again, and asking no more."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TypeAlias, assert_type
from unittest.mock import Mock

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, DeviceLost, GpuRefStale
from atomr_accel.actors import Backoff
from atomr_accel.patterns import (
    CachedText,
    CascadeStage,
    CircuitBreaker,
    CircuitOpen,
    CircuitState,
    Hedge,
    Logits,
    Observer,
    QuorumMissed,
    Retry,
    RetryBudget,
    Tokens,
    is_device_fault,
    is_transient,
    open_batcher,
    open_cascade,
    open_ensemble,
    open_replica_pool,
    open_speculative,
)

from ..harness import on_mock_clock, run_on_mock_clock
from .worlds import poisoned

pytestmark = pytest.mark.clock("mock")


def test_a_fault_of_the_device_is_told_from_other_errors() -> None:
    stale, lost = GpuRefStale("stale"), DeviceLost("lost")
    assert is_transient(poisoned())
    assert is_transient(stale)
    assert is_transient(ExceptionGroup("both", [poisoned(), ExceptionGroup("in", [stale])]))
    assert not is_transient(ExceptionGroup("mixed", [poisoned(), ValueError()]))
    assert not is_transient(lost)
    assert not is_transient(ValueError())
    assert is_device_fault(lost)
    assert is_device_fault(ExceptionGroup("mixed", [poisoned(), ValueError()]))
    assert not is_device_fault(ValueError())


class Flaky:
    """Fails a number of times, each time at once, then doubles its argument."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = [*errors]
        self.times: list[float] = []

    async def __call__(self, x: int) -> int:
        self.times.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        return 2 * x


async def test_call_ended_by_a_fault_is_tried_again() -> None:
    flaky = Flaky(poisoned(), GpuRefStale("stale"))
    retry = Retry(attempts=3, backoff=Backoff(initial=0, base=2, factor=3))
    assert assert_type(await retry(flaky, 4), int) == 8
    start = flaky.times[0]
    assert [time - start for time in flaky.times] == [0, 0, 2]


async def test_an_error_of_the_function_is_its_answer() -> None:
    flaky = Flaky(ValueError("no"))
    with pytest.raises(ValueError, match=r"^no$"):
        await Retry(attempts=5)(flaky, 1)
    assert len(flaky.times) == 1
    again = Retry(attempts=2, retriable=lambda error: isinstance(error, ValueError))
    assert await again(Flaky(ValueError()), 1) == 2


async def test_the_last_error_is_raised_and_tells_of_those_before() -> None:
    flaky = Flaky(GpuRefStale("first"), GpuRefStale("second"))
    with pytest.raises(GpuRefStale, match="second") as info:
        await Retry(attempts=2)(flaky, 1)
    assert info.value.__notes__ == ["attempt 1 ended with GpuRefStale('first')"]


Ask: TypeAlias = Callable[[int], Awaitable[object]]


class Told(GpuRefStale):
    """A fault that may be referred to weakly."""


class OnDevice:
    """Device memory that an attempt holds."""


class Holding:
    """Fails once while it holds an object, and then checks that nothing refers to that."""

    def __init__(self) -> None:
        self.held: list[weakref.ref[OnDevice]] = []

    async def __call__(self, *_args: object) -> int:
        await trio.sleep(1)
        return self._attempt()

    def _attempt(self) -> int:
        """Run outside the frame that has slept, which trio's scopes may keep on Python 3.12."""
        assert not any(held() for held in self.held), "the attempt before still holds it"
        mine = OnDevice()
        self.held.append(weakref.ref(mine))
        if len(self.held) == 1:
            raise poisoned()
        return len(self.held)

    async def all(self, items: list[object]) -> list[int]:
        return [await self() for _ in items]

    async def logits(self, tokens: Tokens, _parents: Tokens) -> Logits:
        await self()
        return np.zeros((tokens.size, 3))


async def by_retry(holding: Holding) -> None:
    await Retry()(holding)


async def by_batcher(holding: Holding) -> None:
    async with open_batcher(holding.all, max_size=2) as batcher:
        await batcher("x")


async def by_pool(holding: Holding) -> None:
    async with open_replica_pool([lambda: nullcontext(holding)] * 2) as pool:
        await pool.ask("x", idempotent=True)


async def by_hedge(holding: Holding) -> None:
    hedge = Hedge(quantile=0.5, share=1.0, minimum=1)
    async with open_replica_pool([lambda: nullcontext(holding)] * 2, hedge=hedge) as pool:
        await pool.ask("x", idempotent=True)


async def by_decoder(holding: Holding) -> None:
    async def prefill(_tokens: Tokens) -> CachedText[Logits]:
        await trio.lowlevel.checkpoint()
        text = Mock(CachedText)
        text.forward = holding.logits
        return text

    async with open_speculative(prefill, None) as decoder:
        await anext(decoder.generate([1]))


@pytest.mark.parametrize("by", [by_retry, by_batcher, by_pool, by_hedge, by_decoder])
def test_the_next_attempt_has_what_the_one_before_had(
    by: Callable[[Holding], Awaitable[None]],
) -> None:
    """Without waiting for garbage to be collected."""

    async def main() -> None:
        holding = Holding()
        await by(holding)
        assert len(holding.held) == 2
        assert not any(held() for held in holding.held)

    gc.disable()
    try:
        run_on_mock_clock(main)
    finally:
        gc.enable()


@asynccontextmanager
async def retried(function: Flaky) -> AsyncIterator[Ask]:
    yield Retry().around(function)


@asynccontextmanager
async def hedged(function: Flaky) -> AsyncIterator[Ask]:
    hedge = Hedge(quantile=0.5, share=1.0, minimum=1)
    async with open_replica_pool([lambda: nullcontext(function)] * 2, hedge=hedge) as pool:
        yield partial(pool.ask, idempotent=True)


@asynccontextmanager
async def cascaded(function: Flaky) -> AsyncIterator[Ask]:
    stages = [CascadeStage(function)] * 2
    async with open_cascade(*stages, confidence=float) as cascade:
        yield cascade


@pytest.mark.parametrize(
    "opened",
    [
        retried,
        hedged,
        cascaded,
        lambda function: open_ensemble(function, function, combine=len, quorum=1),
        lambda function: open_ensemble(function, function, combine=len),
    ],
)
def test_an_error_that_was_handled_is_gone(
    opened: Callable[[Flaky], AbstractAsyncContextManager[Ask]],
) -> None:
    async def main() -> None:
        flaky = Flaky(*(Told() for _ in range(9)))
        left = [*map(weakref.ref, flaky.errors)]
        async with opened(flaky) as ask:
            with pytest.raises((Told, QuorumMissed)):
                await ask(1)
            gone = [error() is None for error in left]
            assert gone == [True] * (9 - len(flaky.errors)) + [False] * len(flaky.errors)

    gc.disable()
    try:
        run_on_mock_clock(main)
    finally:
        gc.enable()


async def test_an_error_that_is_raised_again_is_told_once() -> None:
    class Mute(GpuRefStale):
        def __repr__(self) -> str:
            raise OSError

    error = Mute("one for all")
    for _ in range(2):
        with pytest.raises(GpuRefStale):
            await Retry(attempts=3)(Flaky(error, error, error), 1)
    assert [note[:25] for note in error.__notes__] == [
        "attempt 1 ended with <tes",
        "attempt 2 ended with <tes",
    ]


async def test_a_decorator_keeps_the_signature() -> None:
    failures = [poisoned()]

    @Retry(attempts=2).around
    async def double(x: int, *, plus: int = 0) -> int:
        """Twice as much."""
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        return 2 * x + plus

    assert assert_type(await double(3, plus=1), int) == 7
    assert double.__doc__ == "Twice as much."

    @CircuitBreaker().around
    async def triple(x: int) -> int:
        await trio.lowlevel.checkpoint()
        return 3 * x

    assert assert_type(await triple(3), int) == 9


async def test_retry_does_not_sleep_past_a_deadline() -> None:
    retry = Retry(attempts=5, backoff=Backoff(initial=1.0, base=10.0))
    flaky = Flaky(*[poisoned() for _ in range(5)])
    with trio.fail_after(5), pytest.raises(ContextPoisoned) as info:
        await retry(flaky, 1)
    assert len(flaky.times) == 2
    assert "deadline leaves no time" in info.value.__notes__[0]


async def test_cancellation_ends_a_wait() -> None:
    retry = Retry(attempts=2, backoff=Backoff(initial=10.0))
    flaky = Flaky(poisoned(), poisoned())
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retry, flaky, 1)
            await trio.sleep(1)
            scope.cancel()
    assert scope.cancelled_caught
    assert len(flaky.times) == 1


@given(
    calls=st.lists(st.integers(0, 4), max_size=30),
    ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    reserve=st.integers(0, 5),
)
def test_a_budget_bounds_all_retries(calls: list[int], ratio: float, reserve: int) -> None:
    budget = RetryBudget(ratio=ratio, reserve=reserve)
    attempts: list[int] = []

    @on_mock_clock
    async def main() -> None:
        retry = Retry(attempts=4, backoff=Backoff(base=0), budget=budget)
        for failures in calls:
            flaky = Flaky(*[poisoned() for _ in range(failures)])
            try:
                await retry(flaky, 1)
            except ContextPoisoned:
                assert len(flaky.times) == 4 or budget.left < 1
            attempts.append(len(flaky.times))

    main()
    assert sum(attempts) - len(calls) <= reserve + ratio * len(calls) + 1e-9
    assert 0 <= budget.left <= reserve


def test_retry_refuses_invalid_options() -> None:
    with pytest.raises(ValueError, match="attempts must be a whole number of at least 1, not 0"):
        Retry(attempts=0)
    with pytest.raises(TypeError, match="backoff must be an instance of Backoff"):
        Retry(backoff=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="minimum must be at most the window of 3 outcomes"):
        CircuitBreaker(window=3, minimum=4)
    with pytest.raises(ValueError, match="threshold"):
        CircuitBreaker(threshold=0)
    with pytest.raises(ValueError, match="reserve"):
        RetryBudget(reserve=-1)


async def test_a_coroutine_is_no_function() -> None:
    async def one() -> int:
        return 1

    with pytest.raises(TypeError, match=r"did you forget `await` before one\(...\)"):
        await Retry()(one())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes an async function"):
        await Retry()(lambda: 3)  # type: ignore[arg-type, return-value]


# --- circuit breakers ------------------------------------------------------------------


async def call(breaker: CircuitBreaker, error: Exception | None = None) -> None:
    async def function() -> None:
        await trio.lowlevel.checkpoint()
        if error is not None:
            raise error

    await breaker(function)


def state_of(breaker: CircuitBreaker) -> CircuitState:
    """Type checkers do not know that it changes."""
    return breaker.state


async def test_a_circuit_opens_and_says_when_it_tries_again() -> None:
    states: list[CircuitState] = []

    class States(Observer):
        def circuit_changed(self, state: CircuitState) -> None:
            states.append(state)

    breaker = CircuitBreaker(minimum=2, backoff=Backoff(initial=3.0, base=4.0), observer=States())
    for _ in range(2):
        with pytest.raises(ContextPoisoned):
            await call(breaker, poisoned())
    assert state_of(breaker) is CircuitState.OPEN
    await trio.sleep(1)
    with pytest.raises(CircuitOpen, match="the next try is in 2 s") as info:
        await call(breaker)
    assert info.value.retry_in == 2
    assert breaker.statistics().refused == 1

    await trio.sleep(2)  # half open, and fails once more
    assert breaker.would_admit()
    with pytest.raises(ContextPoisoned):
        await call(breaker, poisoned())
    assert breaker.statistics().retry_in == 4

    await trio.sleep(4)
    assert not breaker.statistics().outcomes
    await call(breaker)
    assert state_of(breaker) is CircuitState.CLOSED
    opened, half, closed = CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED
    assert states == [opened, half, opened, half, closed]


async def test_users_errors_are_answers() -> None:
    breaker = CircuitBreaker(minimum=1, threshold=0.05)
    for _ in range(10):
        with pytest.raises(ValueError, match=r"^mine$"):
            await call(breaker, ValueError("mine"))
    assert state_of(breaker) is CircuitState.CLOSED
    assert breaker.statistics().outcomes == 10
    with pytest.raises(DeviceLost):
        await call(breaker, DeviceLost("gone"))
    assert state_of(breaker) is CircuitState.OPEN


async def test_while_a_try_is_made_others_are_refused() -> None:
    breaker = CircuitBreaker(minimum=1, backoff=Backoff(initial=1.0))
    with pytest.raises(ContextPoisoned):
        await call(breaker, poisoned())
    await trio.sleep(1)
    with trio.CancelScope() as scope, breaker.attempt():
        assert not breaker.would_admit()
        with pytest.raises(CircuitOpen, match="a try is being made") as info, breaker.attempt():
            pass
        assert info.value.retry_in == 0
        scope.cancel()
        await trio.sleep_forever()
    assert state_of(breaker) is CircuitState.HALF_OPEN  # a cancelled try has no outcome
    await call(breaker)
    assert state_of(breaker) is CircuitState.CLOSED


async def test_old_outcomes_are_forgotten() -> None:
    breaker = CircuitBreaker(window=3, minimum=3, threshold=1.0, within=10.0)
    for error in (poisoned(), poisoned(), None, poisoned()):
        with suppress(ContextPoisoned):
            await call(breaker, error)
    assert breaker.statistics().outcomes == 3
    assert breaker.statistics().failures == 2
    await trio.sleep(10)
    assert breaker.statistics().outcomes == 0


async def test_calls_from_before_it_opened_change_nothing() -> None:
    breaker = CircuitBreaker(minimum=1, backoff=Backoff(initial=1.0))
    late = breaker.attempt()
    late.__enter__()
    with pytest.raises(ContextPoisoned):
        await call(breaker, poisoned())
    await trio.sleep(1)
    probe = breaker.attempt()
    probe.__enter__()
    late.__exit__(None, None, None)
    assert state_of(breaker) is CircuitState.HALF_OPEN
    probe.__exit__(None, None, None)
    assert state_of(breaker) is CircuitState.CLOSED


class Model:
    """A breaker with a window of outcomes, said as plainly as can be."""

    def __init__(self, *, window: int, minimum: int, probes: int) -> None:
        self.window, self.minimum, self.probes = window, minimum, probes
        self.outcomes: list[bool] = []
        self.open_until: float | None = None
        self.good = 0

    def admits(self, now: float) -> bool:
        return self.open_until is None or now >= self.open_until

    def ended(self, now: float, *, failure: bool) -> None:
        if self.open_until is not None:  # one of the tries that decide
            self.good = 0 if failure else self.good + 1
            if failure:
                self.open_until = now + 2
            elif self.good == self.probes:
                self.open_until, self.good = None, 0
            return
        self.outcomes = [*self.outcomes, failure][-self.window :]
        bad = sum(self.outcomes)
        if failure and len(self.outcomes) >= self.minimum and 2 * bad >= len(self.outcomes):
            self.open_until, self.outcomes = now + 2, []


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    window=st.integers(1, 5),
    probes=st.integers(1, 3),
    data=st.data(),
)
def test_one_call_at_a_time_does_as_the_model(
    steps: list[tuple[int, bool]], window: int, probes: int, data: st.DataObject
) -> None:
    minimum = data.draw(st.integers(1, window))

    @on_mock_clock
    async def main() -> None:
        backoff = Backoff(initial=2, base=2, factor=1)
        breaker = CircuitBreaker(
            window=window, minimum=minimum, probes=probes, backoff=backoff, within=math.inf
        )
        model = Model(window=window, minimum=minimum, probes=probes)
        for pause, failure in steps:
            await trio.sleep(pause)
            now = trio.current_time()
            try:
                await call(breaker, poisoned() if failure else None)
            except CircuitOpen:
                assert not model.admits(now)
            except ContextPoisoned:
                assert model.admits(now)
                model.ended(now, failure=True)
            else:
                assert model.admits(now)
                model.ended(now, failure=False)

    main()


async def test_jitter_is_repeatable() -> None:
    def delays(seed: int) -> list[float]:
        backoff = Backoff(initial=1.0, jitter=1.0, rng=random.Random(seed).random)
        retry = Retry(attempts=9, backoff=backoff)
        return [retry.delay(poisoned(), attempt) or 0.0 for attempt in range(1, 9)]

    assert delays(3) == delays(3) != delays(4)
