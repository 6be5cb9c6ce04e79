"""One model on several devices: each has a part of the batch, and gradients are averaged over all.

While a bucket of gradients is on its way, those of earlier layers are computed. Each step changes
the weights, so they are not sealed: a snapshot brings them back after a fault.
"""

import warnings
from contextlib import AsyncExitStack

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, DeviceUnavailable, GpuRef, open_device
from atomr_accel.testing import kill_host
from atomr_accel.worlds import World, open_world

WIDTH, LAYERS, ROWS, STEPS, RATE = 32, 4, 64, 8, 0.02
SHAPE = (LAYERS, WIDTH, WIDTH)


class Replica:
    """The model on one device: products of matrices, one after the other.

    All weights are one buffer, and so are all gradients, so that one call adds up a bucket of them.
    """

    def __init__(self, device: Device, weights: GpuRef, gradients: GpuRef) -> None:
        self.device, self.weights, self.gradients = device, weights, gradients

    async def forward(self, x: GpuRef) -> list[GpuRef]:
        """Return the inputs of each layer, and the output of the last."""
        values = [x]
        for layer in range(LAYERS):
            values.append(await self.device.blas.gemm(values[-1], self.weights[layer]))
        return values

    async def update(self) -> None:
        """A step down the gradient."""
        await self.device.blas.axpy(self.gradients.ravel(), self.weights.ravel(), a=-RATE)


async def step(world: World, replicas: list[Replica], xs: list[GpuRef], ys: list[GpuRef]) -> float:
    """One step of all replicas; the loss before it."""
    values = [await each.forward(x) for each, x in zip(replicas, xs, strict=True)]
    slopes = []
    loss = 0.0
    for each, computed, y in zip(replicas, values, ys, strict=True):
        slopes.append(await each.device.evaluate((computed[-1] - y) / ROWS))
        loss += float((await each.device.get(slopes[-1]) ** 2).sum()) * ROWS / len(replicas)

    async def add_up(bucket: int) -> None:
        parts = [each.gradients[bucket] for each in replicas]
        await world.all_reduce(parts, "avg", out=parts)

    async with trio.open_nursery() as nursery:
        for layer in reversed(range(LAYERS)):
            for at, each in enumerate(replicas):
                blas = each.device.blas
                gradient, slope = each.gradients[layer], slopes[at]
                await blas.gemm(values[at][layer], slope, trans_a=True, out=gradient)
                slopes[at] = await blas.gemm(slope, each.weights[layer], trans_b=True)
            nursery.start_soon(add_up, layer)  # while the layers before it are computed
    for each in replicas:
        await each.update()
    return loss


async def train(world: World) -> None:
    """Learn a matrix, and lose a device on the way."""
    rng = np.random.default_rng(0)
    begin = np.eye(WIDTH) + rng.standard_normal(SHAPE) / (4 * WIDTH)
    batch = rng.standard_normal((world.size * ROWS, WIDTH))
    target = batch @ (np.eye(WIDTH) + rng.standard_normal((WIDTH, WIDTH)) / WIDTH)
    weights = await world.broadcast(await world.devices[0].put(begin))
    replicas = [
        Replica(device, ref, await device.zeros(SHAPE))
        for device, ref in zip(world.devices, weights, strict=True)
    ]
    losses = []
    snapshot = await replicas[0].device.snapshot([replicas[0].weights])
    for number in range(STEPS):
        if number == STEPS // 2:
            await snapshot.wait()
            async with world.watch() as epochs:
                await kill_host(world.devices[-1])  # its weights are gone, and the world is back
                await anext(epochs)
            for each in replicas:
                (each.weights,) = await each.device.restore(snapshot)
                each.gradients = await each.device.zeros(SHAPE)
        parts = zip(
            replicas, np.split(batch, world.size), np.split(target, world.size), strict=True
        )
        xs, ys = [], []
        for each, x, y in parts:
            xs.append(await each.device.put(x))
            ys.append(await each.device.put(y))
        losses.append(await step(world, replicas, xs, ys))
        await snapshot.wait()
        snapshot = await replicas[0].device.snapshot([replicas[0].weights], out=snapshot)
    final = [await each.device.get(each.weights) for each in replicas]
    assert all((one == final[0]).all() for one in final)  # all have the same model
    assert losses == sorted(losses, reverse=True)
    print(f"{world.size} devices, loss {losses[0]:.3f} to {losses[-1]:.3f}, one of them killed")


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
        await train(await stack.enter_async_context(open_world(devices)))


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
