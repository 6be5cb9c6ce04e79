"""Recorded steps give what queued ones give, to the bit, with faults and without."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio

from atomr_accel import open_device, train
from atomr_accel.testing import poison

from ..harness import BACKEND, sized
from .checks import loss, model, same


async def trained(
    *, recorded: bool, dtype: Any, shards: int, faults: int = 0, scaled: bool = False
) -> tuple[list[float], Any]:
    """Losses and parameters of some steps, in batches of two forms; faults come between steps."""
    rng = np.random.default_rng(1)
    params = {name: each.astype(dtype) for name, each in model(rng).items()}
    isolation: Any = "process" if faults else "thread"
    scale = train.LossScale(8.0, interval=2) if scaled else None
    async with (
        open_device(0, backend=BACKEND, isolation=isolation, deterministic=True) as device,
        train.open_data_parallel(
            [device],
            train.gradient_step(loss, recorded=recorded),
            params,
            train.AdamW(lr=0.01),
            shards=shards,
            clip=1.0,
            snapshot_every=2,
            loss_scale=scale,
        ) as trainer,
    ):
        losses = []
        for number in range(6):
            x = rng.standard_normal((8 + 8 * (number % 2), 3)).astype(dtype)
            y = np.sin(x.astype(np.float32).sum(1, keepdims=True)).astype(dtype)
            losses.append((await trainer.make_step({"x": x, "y": y})).loss)
            if number % 2 < faults:
                await poison(device)
        return losses, await trainer.params()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("shards", [1, 4])
def test_same_bits(dtype: Any, shards: int) -> None:
    run = partial(trained, dtype=dtype, shards=shards, scaled=shards == 4)
    same(trio.run(partial(run, recorded=False)), trio.run(partial(run, recorded=True)))


@pytest.mark.slow
@pytest.mark.parametrize("faults", range(1, sized(2, 3)))
def test_after_faults(faults: int) -> None:
    run = partial(trained, dtype=np.float32, shards=2)
    calm = trio.run(partial(run, recorded=False))
    same(calm, trio.run(partial(run, recorded=True, faults=faults)))


async def test_parameters_of_any_buffers() -> None:
    """Parameters may be views of one buffer, or not, and results are the caller's."""
    rng = np.random.default_rng(2)
    params = model(rng)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    async with open_device(0, backend=BACKEND, isolation="thread") as device:
        refs = {name: await device.put(each) for name, each in params.items()}
        batch = {"x": await device.put(x), "y": await device.put(x[:, :1])}
        step = train.gradient_step(loss, recorded=True)
        value, grads = await step(device, refs, batch)
        wanted, theirs = await train.grad(device, loss)(refs, batch)
        _, doubled = await step(device, refs, batch, scale=2.0)
        assert (await device.get(value)) == await device.get(wanted)
        for name in params:
            one = await device.get(grads[name])
            np.testing.assert_array_equal(one, await device.get(theirs[name]))
            np.testing.assert_array_equal(2 * one, await device.get(doubled[name]))
        others = {name: await device.put(2 * each) for name, each in params.items()}
        _, grads = await step(device, others, batch)
        _, theirs = await train.grad(device, loss)(others, batch)
        for name in params:
            np.testing.assert_array_equal(
                await device.get(grads[name]), await device.get(theirs[name])
            )
        with pytest.raises(TypeError, match="a batch of a recorded step must be refs, not float"):
            await step(device, refs, {"x": 1.0, "y": batch["y"]})
    with pytest.raises(TypeError, match="function must be callable"):
        train.gradient_step(3, recorded=True)  # type: ignore[arg-type]
