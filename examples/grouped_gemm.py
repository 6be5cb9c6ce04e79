"""Experts of a layer by one kernel: unequal groups of rows, each with a matrix of its own."""

import warnings

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, LibraryMissing, Unsupported, open_device

BFLOAT16 = ml_dtypes.bfloat16
TOKENS, WIDTH, HIDDEN, EXPERTS = 200, 64, 128, 8


async def main() -> None:
    """Sort tokens by expert, multiply, and compare with a loop over experts."""
    rng = np.random.default_rng()
    expert = np.sort(rng.integers(0, EXPERTS, TOKENS))
    sizes = np.bincount(expert, minlength=EXPERTS).tolist()
    tokens = rng.standard_normal((TOKENS, WIDTH)).astype(BFLOAT16)
    weights = (rng.standard_normal((EXPERTS, WIDTH, HIDDEN)) / 8).astype(BFLOAT16)
    wide = [each.astype(np.float64) for each in weights]
    products = np.stack(
        [token @ wide[at] for token, at in zip(tokens.astype(np.float64), expert, strict=True)]
    )

    async with open_device(0) as device:
        a, b = await device.put(tokens), await device.put(weights)
        try:
            y = await device.cutlass.matmul_grouped(
                a, b, sizes, epilogue=device.cutlass.accumulator.relu()
            )
        except (LibraryMissing, Unsupported) as why:
            print(f"CUTLASS on {device.backend}: {why}")
            return
        got = (await device.get(y)).astype(np.float64)
    np.testing.assert_allclose(got, np.maximum(products, 0), rtol=1e-2, atol=1e-2)
    print(f"grouped products by CUTLASS on {device.backend}: groups of {sizes} rows: right")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
