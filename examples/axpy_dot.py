"""Conjugate gradients from level 1: axpy, dot, scal and copy, with one product a step."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Solve a symmetric positive definite system."""
    rng = np.random.default_rng()
    half = rng.standard_normal((400, 400))
    host_a, host_b = half @ half.T + 400 * np.eye(400), rng.standard_normal(400)

    async with open_device(0) as device:
        blas = device.blas
        a, r = await device.put(host_a), await device.put(host_b)
        x = await device.zeros((400,), np.float64)
        p = await blas.copy(r)
        before = float(await device.get(await blas.dot(r, r)))
        steps = 0
        while before > 1e-20 and steps < 400:
            product = await blas.symv(a, p)
            alpha = before / float(await device.get(await blas.dot(p, product)))
            await blas.axpy(p, x, a=alpha)  # x += alpha * p
            await blas.axpy(product, r, a=-alpha)
            now = float(await device.get(await blas.dot(r, r)))
            await blas.scal(now / before, p)
            await blas.axpy(r, p)
            before, steps = now, steps + 1
        error = np.abs(host_a @ await device.get(x) - host_b).max()
        assert error < 1e-8, error
        print(f"axpy, dot on {device.backend}: solved in {steps} steps, residual {error:.1e}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
