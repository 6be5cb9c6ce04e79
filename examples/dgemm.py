"""A product in double precision, with BLAS's options and over batches."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Multiply, accumulate, broadcast; check each against NumPy."""
    rng = np.random.default_rng()
    host_a, host_b = rng.standard_normal((300, 200)), rng.standard_normal((200, 400))
    stack = rng.standard_normal((8, 50, 200))

    async with open_device(0) as device:
        a, b = await device.put(host_a), await device.put(host_b)
        c = await device.blas.gemm(a, b)
        await device.blas.gemm(a, b, out=c, alpha=0.5, beta=-1.0)  # c = 0.5 * a @ b - c
        error = np.abs(await device.get(c) + 0.5 * host_a @ host_b).max()
        assert error < 1e-11, error

        many = await device.blas.matmul(await device.put(stack), b)  # b for each of eight
        error = max(error, np.abs(await device.get(many) - stack @ host_b).max())
        assert error < 1e-11, error
        print(f"dgemm on {device.backend}: {c.shape} and {many.shape}, largest error {error:.1e}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
