"""Opening and leaving a pattern ends wherever it is cancelled: no task outlives who began it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from atomr_accel.patterns import open_batcher, open_fair_share, open_hot_swap, open_replica_pool

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
