"""Devices, data and checks for tests of trainers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import optree
import trio

from atomr_accel import Device, System, open_device, open_system, train

STEPS = 3


@asynccontextmanager
async def devices_of(
    count: int, *, process: bool = False, **options: Any
) -> AsyncIterator[list[Device]]:
    """Devices of the CPU backend."""
    options |= {"backend": "cpu", "isolation": "process" if process else "thread"}
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_device(0, **options)) for _ in range(count)]


@asynccontextmanager
async def system_of_two() -> AsyncIterator[tuple[System, list[Device]]]:
    """A system, and two devices that it can lose."""
    async with open_system("test") as system:
        devices = [
            await system.spawn_device(0, backend="cpu", isolation="thread", name=name)
            for name in ("one", "other")
        ]
        yield system, devices


async def outcome(
    trainer: Any, data: Any, after: Callable[[int], Awaitable[object]] | None = None
) -> tuple[list[float], Any, train.TrainerStatistics]:
    """Losses, parameters and statistics of a run.

    Args:
        trainer: the trainer.
        data: batches.
        after: called after each step, with its number.
    """
    losses = []
    async for made in trainer.run(data):
        losses.append(made.loss)
        if after is not None:
            await after(made.number)
    return losses, await trainer.params(), trainer.statistics()


async def count_steps(trainer: Any, counts: list[int]) -> None:
    """Note the number of steps at each turn of the loop, until cancelled."""
    while True:
        await trio.lowlevel.checkpoint()
        counts.append(trainer.steps)


async def on_one_device(loss: Any, data: Any, params: Any, optimizer: Any) -> tuple[Any, Any]:
    """Losses and parameters of training a whole model."""
    async with (
        devices_of(1) as devices,
        train.open_data_parallel(
            devices, train.gradient_step(loss), params, optimizer, clip=1.0
        ) as trainer,
    ):
        losses, made, _ = await outcome(trainer, data)
        return losses, made


def points(rng: np.random.Generator) -> list[Any]:
    """Batches of a function to learn."""
    x = [rng.standard_normal((8, 4)).astype(np.float32) for _ in range(STEPS)]
    return [{"x": each, "y": np.sin(each.sum(1, keepdims=True))} for each in x]


def close(one: Sequence[float], other: Sequence[float], params: Any, others: Any) -> None:
    """Check that two runs are equal up to the rounding of float32."""
    np.testing.assert_allclose(one, other, rtol=2e-5)
    for a, b in zip(optree.tree_leaves(params), optree.tree_leaves(others), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def equal(one: Any, other: Any) -> None:
    """Check that losses and parameters of two runs are the same to the bit."""
    assert one[0] == other[0]
    for a, b in zip(optree.tree_leaves(one[1]), optree.tree_leaves(other[1]), strict=True):
        np.testing.assert_array_equal(a, b)
