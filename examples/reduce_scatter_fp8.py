"""Gradients in fp8, scaled before they are added up; each rank keeps its part, one dies."""

import warnings
from contextlib import AsyncExitStack

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, WorldBroken, open_device
from atomr_accel.testing import kill_host
from atomr_accel.worlds import World, open_world

WIDTH = 256


async def step(world: World) -> list[np.ndarray]:
    """Each rank's gradients, of which it keeps the sum of its own row."""
    gradients = [
        np.full((world.size, WIDTH), rank + 1, ml_dtypes.float8_e4m3fn)
        for rank in range(world.size)
    ]
    x = [await d.put(g) for d, g in zip(world.devices, gradients, strict=True)]
    rows = await world.reduce_scatter(x, scale=1 / world.size)
    return [await d.get(row) for d, row in zip(world.devices, rows, strict=True)]


async def main() -> None:
    """Two GPUs, or two devices of the CPU backend."""
    async with AsyncExitStack() as stack:
        try:
            devices = [
                await stack.enter_async_context(open_device(index, backend="cuda"))
                for index in range(2)
            ]
        except DeviceUnavailable:
            devices = [
                await stack.enter_async_context(open_device(0, backend="cpu")) for _ in range(2)
            ]
        world = await stack.enter_async_context(open_world(devices))
        for row in await step(world):
            assert (row.astype(np.float32) == 1.5).all()
        await kill_host(devices[1])
        while True:
            try:
                rows = await devices[1].retry(step, world)
            except WorldBroken as error:
                print(f"told: {error}")
            else:
                break
        assert (rows[1].astype(np.float32) == 1.5).all()
        print(f"the same in epoch {world.epoch}, after a rank has died")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
