"""Pi by throwing darts, with a fault in the middle that the sequence does not notice."""

import math
import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, open_device
from atomr_accel.testing import poison

ROUNDS, DARTS = 8, 1 << 20


async def count_hits(device: Device, seed: int, *, fault_after: int | None = None) -> int:
    """Return the number of darts at the square from -1 to 1 that hit its circle."""
    rng = device.rng.default_rng(seed)
    hits = 0
    for number in range(ROUNDS):
        darts = await device.get(await rng.uniform(-1, 1, (2, DARTS), dtype=np.float32))
        assert darts.min() >= -1
        assert darts.max() <= 1
        hits += int(np.count_nonzero((darts**2).sum(axis=0) < 1))
        if number == fault_after:
            await poison(device)  # on a GPU: a kernel that writes where it must not
    return hits


async def main() -> None:
    """Throw the same darts twice, once across a rebuild; both must agree, and be right."""
    async with open_device(0) as device:
        hits = await count_hits(device, seed=2024)
        again = await count_hits(device, seed=2024, fault_after=ROUNDS // 2)
        assert device.generation == 2
        assert again == hits, (again, hits)
        estimate = 4 * hits / (ROUNDS * DARTS)
        sigma = math.sqrt(math.pi * (4 - math.pi) / (ROUNDS * DARTS))
        assert abs(estimate - math.pi) < 5 * sigma, estimate
        print(
            f"rng_uniform on {device.backend}: pi is {estimate:.4f} +- {sigma:.4f}, "
            f"the same across a fault"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
