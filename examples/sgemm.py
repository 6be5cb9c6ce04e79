"""A product in single precision, one by one and as a batch with one wait."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Multiply, transpose and accumulate; check each against NumPy in double precision."""
    rng = np.random.default_rng()
    host_a = rng.standard_normal((256, 384), dtype=np.float32)
    host_b = rng.standard_normal((384, 128), dtype=np.float32)
    expected = host_a.astype(np.float64) @ host_b

    async with open_device(0) as device:
        a, b = await device.put(host_a), await device.put(host_b)
        c = await device.blas.gemm(a, b)
        error = np.abs(await device.get(c) - expected).max()

        async with device.batch() as batch:
            gram = batch.blas.gemm(a, a, trans_a="T")  # a.T @ a
            batch.blas.gemm(a, b, out=c, alpha=2.0, beta=1.0)  # c = 2 a @ b + c
        error = max(error, np.abs(await device.get(c) - 3 * expected).max())
        wanted = host_a.T.astype(np.float64) @ host_a
        error = max(error, np.abs(await device.get(gram) - wanted).max())
        print(f"sgemm on {device.backend}: {c.shape} and {gram.shape}, largest error {error:.1e}")
    assert error < 1e-2, error


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
