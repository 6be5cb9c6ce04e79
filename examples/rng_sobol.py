"""An integral in eight dimensions: Sobol points get there with far fewer than random ones."""

import math
import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

DIMENSIONS, POINTS = 8, 1 << 16


def integrand(points: np.ndarray) -> np.ndarray:
    """A product whose integral over the unit cube is 1."""
    weights = 1 / np.arange(1, DIMENSIONS + 1) ** 2
    return np.asarray(np.prod(1 + weights * (points - 0.5), axis=1))


async def main() -> None:
    """Integrate with both kinds of points, and with both halves of the sequence."""
    async with open_device(0) as device:
        sobol = await device.get(await device.rng.sobol(POINTS, DIMENSIONS, scramble=True))
        random = await device.get(await device.rng.random((POINTS, DIMENSIONS)))
        errors = [abs(integrand(points).mean() - 1) for points in (sobol, random)]
        spread = integrand(random).std() / math.sqrt(POINTS)
        assert errors[0] < 1e-5, errors
        assert errors[1] < 5 * spread, errors

        generator = device.rng.default_rng(kind="scrambled_sobol32", dimensions=DIMENSIONS)
        halves = [await generator.random((POINTS // 2, DIMENSIONS)) for _ in range(2)]
        resumed = np.concatenate([await device.get(half) for half in halves])
        assert np.array_equal(resumed, sobol)
        print(
            f"rng_sobol on {device.backend}: {POINTS} points in {DIMENSIONS} dimensions, "
            f"error {errors[0]:.1e}; random ones: {errors[1]:.1e}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
