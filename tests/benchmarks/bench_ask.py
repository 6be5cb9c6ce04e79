"""Asks by message: a request through the ref of a placed pattern beside its direct call.

The functions only let other tasks run, so that the rows show what the patterns and the messages
cost. Each number is the lowest of many short rounds, which take turns so that a busy moment of the
machine hits both alike, in time of the program's own thread: it does not wait for anything else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import trio

from atomr_accel.actors import Call, open_actor_system
from atomr_accel.patterns import (
    CascadeStage,
    open_batcher,
    open_cascade,
    open_ensemble,
    open_fair_share,
    open_hot_swap,
    open_pipeline,
    open_replica_pool,
)

ROUNDS = 300
REQUESTS = 50


async def work(item: float) -> float:
    await trio.lowlevel.checkpoint()
    return item


async def work_on_all(items: list[float]) -> list[float]:
    await trio.lowlevel.checkpoint()
    return items


def total(answers: list[float]) -> float:
    return sum(answers)


PATTERNS: dict[str, Callable[..., AbstractAsyncContextManager[Any]]] = {
    "batcher": lambda **place: open_batcher(work_on_all, max_size=8, **place),
    "replica pool": lambda **place: open_replica_pool([lambda: nullcontext(work)], **place),
    "hot swap": lambda **place: open_hot_swap(lambda: nullcontext(work), **place),
    "pipeline": lambda **place: open_pipeline(work, **place),
    "cascade": lambda **place: open_cascade(CascadeStage(work), confidence=float, **place),
    "ensemble": lambda **place: open_ensemble(work, combine=total, **place),
    "fair share": lambda **place: open_fair_share(work, capacity=8, tenant=str, **place),
}


async def microseconds(ask: Callable[[float], Awaitable[float]]) -> float:
    """Time of one request, of some in a row."""
    began = time.thread_time()
    for _ in range(REQUESTS):
        await ask(1.0)
    return (time.thread_time() - began) / REQUESTS * 1e6


async def measured(pattern: Any) -> tuple[float, float]:
    """Microseconds of a direct call, and of an ask through the ref."""

    async def by_ref(item: float) -> float:
        answer: float = await pattern.ref.ask(Call(item))
        return answer

    direct, asked = [], []
    for _ in range(ROUNDS):
        direct.append(await microseconds(pattern))
        asked.append(await microseconds(by_ref))
    return min(direct), min(asked)


async def main() -> None:
    print(f"{'pattern':<14} {'direct':>8} {'by ref':>8} {'more':>8}   us, lowest of {ROUNDS}")
    async with open_actor_system("bench") as system:
        for name, opens in PATTERNS.items():
            async with opens(system=system, name=name) as pattern:
                direct, asked = await measured(pattern)
            print(f"{name:<14} {direct:8.1f} {asked:8.1f} {asked - direct:8.1f}")


if __name__ == "__main__":
    trio.run(main)
