"""Power iteration: the largest eigenvalue of a symmetric matrix, without leaving the device."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Multiply by the matrix again and again; vectors and scalars stay where they are."""
    rng = np.random.default_rng()
    half = rng.standard_normal((500, 500))
    host = half @ half.T / 500

    async with open_device(0) as device:
        a = await device.put(host)
        x = await device.put(rng.standard_normal(500))
        value, products = 0.0, 0
        while products < 2000:
            y = await device.blas.gemv(a, x)
            before, value = value, float(await device.get(await device.blas.nrm2(y)))
            x = await device.blas.scal(1.0 / value, y)
            products += 1
            if abs(value - before) < 1e-12 * value:
                break
        expected = np.linalg.eigvalsh(host)[-1]
        assert abs(value - expected) < 1e-6 * expected, (value, expected)
        print(
            f"gemv on {device.backend}: largest eigenvalue {value:.9f} after {products} "
            f"products, NumPy has {expected:.9f}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
