"""Two devices serve one function; the host of one is killed in the middle, without an error."""

import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, open_device
from atomr_accel.patterns import open_replica_pool
from atomr_accel.testing import kill_host

devices: list[Device] = []
answered: Counter[int] = Counter()
in_the_middle = trio.Event()
weights = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)


@asynccontextmanager
async def replica() -> AsyncIterator[Callable[[np.ndarray], Awaitable[np.ndarray]]]:
    """A device of its own, with the weights on it: sealed, so they survive its faults."""
    # With several GPUs, each replica would open its own. Two contexts on one do as well.
    async with open_device(0) as device:
        number = len(devices)
        devices.append(device)
        sealed = await device.put(weights, sealed=True)

        async def multiply(x: np.ndarray) -> np.ndarray:
            product = await device.get(await device.blas.gemm(await device.put(x), sealed))
            answered[number] += 1
            if answered.total() == 50:
                in_the_middle.set()
            return product

        yield multiply


async def main() -> None:
    """Many clients ask; every answer is looked at."""
    async with open_replica_pool([replica, replica], max_in_flight=4) as pool:

        async def client(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(10):
                x = rng.standard_normal((8, 64), dtype=np.float32)
                y = await pool(x)
                np.testing.assert_allclose(y, x.astype(np.float64) @ weights, rtol=1e-3, atol=1e-3)

        async with trio.open_nursery() as nursery:
            for seed in range(20):
                nursery.start_soon(client, seed)
            await in_the_middle.wait()
            await kill_host(devices[0])
        statistics = pool.statistics()

    assert statistics.answered == 200
    assert statistics.failed == 0
    assert devices[0].generation + devices[1].generation > 2
    print(f"200 requests, 200 right answers: {answered[0]} from one device, {answered[1]} from the")
    print(f"other; {statistics.asked_elsewhere} were asked again after the kill")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
