"""Many small matrices of low rank under noise: one call for all their SVDs, and the noise goes.

A matrix in which something is not a number shows what becomes of one that fails.
"""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, LinAlgError, open_device

COUNT, SIZE, RANK = 512, 32, 3
NOISE = 0.05


async def main() -> None:
    """Decompose, keep the largest singular values, compose; check each against NumPy."""
    rng = np.random.default_rng()
    left, right = (rng.standard_normal((COUNT, SIZE, RANK)) for _ in range(2))
    clean = (left @ right.swapaxes(-1, -2)).astype(np.float32)
    noisy = clean + NOISE * rng.standard_normal(clean.shape, np.float32)

    async with open_device(0) as device:
        a = await device.put(noisy)
        u, s, vh = await device.linalg.svd(a, full_matrices=False)
        values = await device.get(s)
        exact = np.linalg.svd(noisy.astype(np.float64), compute_uv=False)
        assert np.abs(values - exact).max() < 1e-5 * exact.max()

        # A product of views and an expression: nothing but the result goes back.
        scaled = await device.evaluate(u[..., :RANK] * s[:, None, :RANK])
        made = await device.get(await device.blas.matmul(scaled, vh[:, :RANK]))
        before, after = np.std(noisy - clean), np.std(made - clean)
        assert after < before / 2, (before, after)

        noisy[7, 3, 3] = np.nan
        try:
            await device.linalg.svd(await device.put(noisy))
        except LinAlgError as error:
            assert error.index == 7  # noqa: PT017 - and the device goes on
        ranks = await device.get(await device.linalg.matrix_rank(a, tol=SIZE * NOISE))
        assert (ranks == RANK).all()
        print(
            f"solver_svd_batched on {device.backend}: {COUNT} matrices of rank {RANK}; "
            f"noise from {before:.3f} to {after:.3f}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
