"""A layer in fp8 by CUTLASS: bias, activation and the scale for the next layer, in one kernel.

The first pass looks for the largest result; the second stores results in fp8, scaled so that they
fill its range. Both are epilogues, computed while the product is in registers.
"""

import warnings

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, LibraryMissing, Unsupported, open_device

E4M3 = ml_dtypes.float8_e4m3fn
LARGEST = 448.0


def quantize(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Numbers in fp8, and what to multiply them by to get ``x`` back."""
    scale = float(np.abs(x).max() / LARGEST)
    return (x / scale).astype(E4M3), scale


async def main() -> None:
    """Multiply in fp8, and compare with what the same rounded numbers give in float64."""
    rng = np.random.default_rng()
    x = rng.standard_normal((256, 512)) * 3.0
    w = rng.standard_normal((128, 512)) * 0.05  # (n, k): fp8 multiplies a @ b.T
    bias = rng.standard_normal(128).astype(np.float32)
    x8, x_scale = quantize(x)
    w8, w_scale = quantize(w)
    product = (x8.astype(np.float64) * x_scale) @ (w8.astype(np.float64) * w_scale).T + bias
    exact = product / (1 + np.exp(-product))

    async with open_device(0) as device:
        a, b, biases = await device.put(x8), await device.put(w8), await device.put(bias)
        largest = await device.empty((), np.float32)
        layer = device.cutlass.accumulator * (x_scale * w_scale) + biases
        layer = layer.silu()
        tile = (128, 128, 128)
        try:
            y = await device.cutlass.matmul(
                a, b, trans_b=True, epilogue=layer.amax(largest), dtype=np.float32, tile=tile
            )
        except (LibraryMissing, Unsupported) as why:
            print(f"CUTLASS on {device.backend}: {why}")
            return
        error = np.abs(await device.get(y) - exact).max() / np.abs(exact).max()
        assert error < 1e-2, error
        scale = float(await device.get(largest)) / LARGEST
        y8 = await device.cutlass.matmul(
            a, b, trans_b=True, epilogue=layer / scale, dtype=E4M3, tile=tile
        )
        got = (await device.get(y8)).astype(np.float64) * scale
    lost = np.abs(got - exact).max() / np.abs(exact).max()
    assert lost < 0.07, lost
    print(
        f"fp8 layer by CUTLASS on {device.backend}: {y8.shape}, {y8.dtype}; the layer is right to "
        f"{error:.1e}, its result in fp8 to {lost:.1e}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
