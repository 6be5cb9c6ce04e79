"""Patterns that do their work in the tasks of callers: their common behaviour."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.patterns import (
    CascadeStage,
    Closed,
    Observer,
    open_cascade,
    open_ensemble,
    open_hot_swap,
    open_pipeline,
    open_replica_pool,
)

from .worlds import Log

Opens = Callable[..., AbstractAsyncContextManager[Any]]


class Bad(Exception):
    """Raised by the function for an item."""


async def work(item: float) -> float:
    await trio.sleep(abs(item))
    if item < 0:
        raise Bad
    return item


def total(answers: list[float]) -> float:
    return sum(answers)


PATTERNS: dict[str, Opens] = {
    "pool": lambda **options: open_replica_pool(
        [lambda: nullcontext(work)], max_in_flight=9, **options
    ),
    "swap": lambda **options: open_hot_swap(lambda: nullcontext(work), **options),
    "pipeline": lambda **options: open_pipeline(work, **options),
    "cascade": lambda **options: open_cascade(CascadeStage(work), confidence=float, **options),
    "ensemble": lambda **options: open_ensemble(work, combine=total, **options),
}

every = pytest.mark.parametrize("name", PATTERNS)


@every
async def test_each_request_has_one_end(name: str, autojump_clock: trio.testing.MockClock) -> None:
    log = Log()
    async with trio.open_nursery() as nursery:
        with pytest.raises(ZeroDivisionError):
            async with PATTERNS[name](observer=log) as pattern:
                assert await pattern(1) == 1
                with pytest.raises(Bad):
                    await pattern(-2)
                with trio.move_on_after(0.5):
                    await pattern(3)
                statistics = pattern.statistics()

                async def late() -> None:
                    with pytest.raises(Closed) as info:
                        await pattern(4)
                    assert isinstance(info.value.__cause__, ZeroDivisionError)

                nursery.start_soon(late)
                await trio.testing.wait_all_tasks_blocked()
                raise ZeroDivisionError
    ends = [line for line in log.lines if line[0] in {"answered", "failed", "withdrawn"}]
    assert ends == [("answered", 1), ("failed", -2), ("withdrawn", 3), ("failed", 4)]
    assert set(log.ends().values()) == {1}
    assert (statistics.submitted, statistics.answered) == (3, 1)
    assert (statistics.failed, statistics.withdrawn, statistics.refused) == (1, 1, 0)
    assert pattern.statistics().refused == 1


@every
async def test_another_thread_is_told_how_to_ask(name: str) -> None:
    async with PATTERNS[name]() as pattern:

        def ask() -> None:
            with pytest.raises(RuntimeError, match=f"the {name} belongs to a trio.run of"):
                trio.run(pattern, 0)
            assert trio.from_thread.run(pattern, 0) == 0

        await trio.to_thread.run_sync(ask)
        assert pattern.statistics().submitted == 1


@every
async def test_cancelled_caller_asks_for_nothing(name: str) -> None:
    async with PATTERNS[name]() as pattern:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pattern(1)
        assert pattern.statistics().submitted == 0


@every
async def test_an_observer_that_fails_harms_nobody(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def submitted(self, item: object) -> None:
            raise Bad

    async with PATTERNS[name](observer=Broken()) as pattern:
        assert await pattern(0) == 0
    assert "failed and will not be called again" in caplog.text
