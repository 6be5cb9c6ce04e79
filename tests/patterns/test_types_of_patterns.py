"""Type checkers know the input and output types of patterns: mypy checks them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import assert_type

import trio

from atomr_accel.patterns import (
    CascadeAnswer,
    CascadeStage,
    Shadow,
    Stage,
    open_cascade,
    open_ensemble,
    open_hot_swap,
    open_pipeline,
    open_replica_pool,
    open_speculative,
)

from .toy_models import ToyModel


async def length(word: str) -> int:
    await trio.lowlevel.checkpoint()
    return len(word)


async def half(number: int) -> float:
    await trio.lowlevel.checkpoint()
    return number / 2


@asynccontextmanager
async def replica() -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    yield length


async def words() -> AsyncIterator[str]:
    yield "four"


async def test_pattern_results_have_their_types() -> None:
    async with open_replica_pool([replica]) as pool:
        assert_type(await pool("four"), int)
        assert assert_type(await pool.ask("four", idempotent=True), int) == 4

    async with open_hot_swap(replica) as swap:
        assert assert_type(await swap("four"), int) == 4
        assert assert_type(await swap.load(lambda: nullcontext(length)), str) == "v2"

    async with open_pipeline(length, Stage(half, concurrency=2)) as pipeline:
        assert assert_type(await pipeline("four"), float) == 2.0
        async for result in pipeline.run(words()):
            assert assert_type(result, float) == 2.0

    async with open_speculative(ToyModel(1), None) as decoder:
        async for token in decoder.generate([1], max_tokens=1):
            assert assert_type(token, int) >= 0

    # A pattern is a function to the next.
    async with (
        open_replica_pool([lambda: open_pipeline(length)]) as pool,
        open_cascade(CascadeStage(pool), confidence=float) as cascade,
        open_ensemble(cascade, length, combine=lambda lengths: max(lengths)) as ensemble,
    ):
        assert_type(await cascade.ask("four"), CascadeAnswer[int])
        assert assert_type(await ensemble("four"), int) == 4


def test_generic_patterns_accept_their_types() -> None:
    def alike(_given: str, old: int, new: int) -> bool:
        return old == new

    assert Stage[str, int](length).function is length
    assert Shadow[str, int](alike).compare is alike
    assert CascadeStage[str, int](length).function is length
    assert CascadeAnswer[int](3, 1.0, "length", 1.0, ()).value == 3
