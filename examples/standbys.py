"""Hot standbys: other hosts are ready with kernels and weights before a fault happens."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, Standby, open_device
from atomr_accel.testing import poison, standby_ready


async def warm_up(device: Device) -> None:
    """Call what the program calls, so that a standby prepares it."""
    x = await device.zeros((8, 64), np.float32)
    await device.blas.gemm(x, x, trans_b=True)


async def main() -> None:
    """Fault twice in a row, with two standbys."""
    async with open_device(0, standby=Standby(hot=2, warm_up=warm_up)) as device:
        weights = await device.put(np.ones((64, 64), np.float32), sealed=True)
        await standby_ready(device)
        for number in (1, 2):
            await poison(device)
            begun = trio.current_time()
            x = await device.put(np.ones((8, 64), np.float32))
            y = await device.get(await device.blas.gemm(x, weights))
            took = trio.current_time() - begun
            assert (y == 64).all()
            print(f"fault {number}: generation {device.generation} answers after {took:.3f} s")
        assert device.generation == 3


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
