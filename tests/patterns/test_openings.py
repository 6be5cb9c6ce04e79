"""Opening and leaving a pattern ends wherever it is cancelled: no task outlives who began it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import trio

from atomr_accel.patterns import (
    CascadeStage,
    Closed,
    Stage,
    by_length,
    open_batcher,
    open_ensemble,
    open_fair_share,
    open_hot_swap,
    open_replica_pool,
)

from ..harness import cancelled_at


@asynccontextmanager
async def model() -> AsyncIterator[Callable[[int], Awaitable[int]]]:
    async def ask(item: int) -> int:
        return item

    await trio.lowlevel.checkpoint()
    yield ask
    await trio.lowlevel.checkpoint()


async def answers(items: list[int]) -> list[int]:
    return items


OPENERS: dict[str, Callable[[], Any]] = {
    "batcher": lambda: open_batcher(answers, max_size=4, max_wait=0.01),
    "fair share": lambda: open_fair_share(capacity=2),
    "hot swap": lambda: open_hot_swap(model),
    "replica pool": lambda: open_replica_pool([model, model]),
}


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
async def test_opening_ends_wherever_it_is_cancelled(opener: Callable[[], Any]) -> None:
    async def block() -> None:
        async with opener():
            await trio.lowlevel.checkpoint()

    for step in itertools.count(1):
        if not await cancelled_at(step, block):
            break
    assert step > 2


async def adds(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item + 1


async def doubles(items: list[int]) -> list[int]:
    await trio.lowlevel.checkpoint()
    return [2 * item for item in items]


def at_once(item: int) -> int:
    return item


three: Any = 3

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "weights": (
        partial(open_fair_share, capacity=1, weights=three),
        "weights must be an instance of",
    ),
    "budgets": (
        partial(open_fair_share, capacity=1, budgets=three),
        "budgets must be an instance of",
    ),
    "sizes": (
        partial(open_batcher, doubles, max_size=4, preferred_sizes=three),
        "preferred_sizes mu",
    ),
    "bounds": (partial(by_length, three), "bounds must be a list or another iterable, not 3"),
    "policy": (
        partial(open_replica_pool, [lambda: nullcontext(adds)], policy=three),
        "policy must have a method choose",
    ),
    "stage": (partial(Stage, adds, name=three), "name must be an instance of str"),
    "cascade": (partial(CascadeStage, adds, name=three), "name must be an instance of str"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_options_are_refused_in_terms_of_the_caller(name: str) -> None:
    opening, match = WRONG[name]
    with pytest.raises(TypeError, match=match):
        async with opening():
            pass


async def test_functions_of_the_other_kind_are_refused() -> None:
    once: Any = at_once
    async with open_fair_share(once, capacity=1, tenant=str) as share:
        with pytest.raises(TypeError, match="must be an async function, and returned int"):
            await share(1)
    combine: Any = doubles
    async with open_ensemble(adds, adds, combine=combine) as ensemble:
        with pytest.raises(TypeError, match="combine must be a function, not an async one"):
            await ensemble(1)


async def test_a_closed_pool_takes_no_replica() -> None:
    async with open_replica_pool([lambda: nullcontext(adds)]) as pool:
        with pytest.raises(TypeError, match="name must be an instance of str"):
            await pool.remove(["replica-1"])  # type: ignore[arg-type]
    with pytest.raises(Closed):
        await pool.add(lambda: nullcontext(adds))
