"""Serve a model: requests come one by one, the device sees batches, and a fault loses none."""

import warnings

import numpy as np
import trio
from numpy.typing import NDArray

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.patterns import open_batcher
from atomr_accel.testing import poison


async def main() -> None:
    """A layer, 200 clients, and a kernel that faults in the middle."""
    rng = np.random.default_rng(7)
    host_w = rng.standard_normal((256, 64), dtype=np.float32)
    async with open_device(0) as device:
        weights = await device.put(host_w, sealed=True)  # uploaded once: it survives faults

        faults = [poison]  # for the first batch

        async def infer(rows: list[NDArray[np.float32]]) -> NDArray[np.float32]:
            x = await device.put(np.stack(rows))
            if faults:
                await faults.pop()(device)  # a kernel writes to an illegal address
            return await device.get(await device.dnn.relu(await device.blas.gemm(x, weights)))

        async with open_batcher(infer, max_size=32) as model, trio.open_nursery() as nursery:

            async def client(row: NDArray[np.float32]) -> None:
                expected = np.maximum(row @ host_w, 0)
                np.testing.assert_allclose(await model(row), expected, rtol=1e-2, atol=1e-2)

            for row in rng.standard_normal((200, 256), dtype=np.float32):
                nursery.start_soon(client, row)

        seen = model.statistics()
        assert (seen.answered, seen.faults) == (200, 1)
        print(f"{seen.answered} requests in {seen.batches} batches, the largest of {seen.largest}")
        print(f"{seen.faults} of {seen.calls} calls ended in a fault, and no request did")
        print(f"the device is in generation {device.generation}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
