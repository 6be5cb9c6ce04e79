"""Each rank has a part of a bfloat16 matrix; all get all of it, and multiply by it."""

import warnings
from contextlib import AsyncExitStack

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, open_device
from atomr_accel.worlds import World, open_world

ROWS, WIDTH = 16, 64


async def multiply(world: World) -> None:
    """Rows of a weight are spread over the ranks; one all_gather brings them together."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((world.size * ROWS, WIDTH)).astype(ml_dtypes.bfloat16)
    parts = np.split(weight, world.size)
    x = [await d.put(part) for d, part in zip(world.devices, parts, strict=True)]
    whole = await world.all_gather(x)
    for device, ref in zip(world.devices, whole, strict=True):
        got = (await device.get(ref)).reshape(weight.shape)
        assert (got == weight).all()
        product = await device.blas.gemm(ref.reshape(weight.shape), ref.reshape(weight.shape).T)
        assert product.shape == (len(weight), len(weight))
    print(f"{world.size} ranks have all {weight.nbytes} bytes")


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
        await multiply(await stack.enter_async_context(open_world(devices)))


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
