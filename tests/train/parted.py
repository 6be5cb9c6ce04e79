"""Devices, data and checks for tests of trainers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import optree

from atomr_accel import Device, open_device, train

STEPS = 3


@asynccontextmanager
async def devices_of(count: int, *, process: bool = False) -> AsyncIterator[list[Device]]:
    """Devices of the CPU backend."""
    async with AsyncExitStack() as stack:
        isolation: Any = "process" if process else "thread"
        yield [
            await stack.enter_async_context(open_device(0, backend="cpu", isolation=isolation))
            for _ in range(count)
        ]


async def on_one_device(loss: Any, data: Any, params: Any, optimizer: Any) -> tuple[Any, Any]:
    """Losses and parameters of training a whole model."""
    async with (
        devices_of(1) as devices,
        train.open_data_parallel(
            devices, train.gradient_step(loss), params, optimizer, clip=1.0
        ) as trainer,
    ):
        return [made.loss async for made in trainer.run(data)], await trainer.params()


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
