"""An fp8 product with a scale for each tensor: how to quantize, multiply and check."""

import warnings

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Unsupported, open_device

E4M3 = ml_dtypes.float8_e4m3fn
LARGEST = 448.0


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in fp8, and what to multiply them by to get ``x`` back."""
    scale = np.float32(np.abs(x).max() / LARGEST)
    return (x / scale).astype(E4M3), np.asarray(scale)


async def main() -> None:
    """Multiply in fp8, and compare with what the same rounded numbers give in float64."""
    rng = np.random.default_rng()
    x = rng.standard_normal((256, 512)) * 3.0
    w = rng.standard_normal((128, 512)) * 0.05  # (n, k): fp8 multiplies a @ b.T
    x8, x_scale = quantize(x)
    w8, w_scale = quantize(w)

    async with open_device(0) as device:
        try:
            y = await device.blaslt.matmul(
                await device.put(x8),
                await device.put(w8),
                trans_b=True,
                scale_a=await device.put(x_scale),
                scale_b=await device.put(w_scale),
                dtype=np.float32,
            )
        except Unsupported as why:
            print(f"fp8 gemm on {device.backend}: {why}")
            return
        got = await device.get(y)
    exact = (x8.astype(np.float64) * x_scale) @ (w8.astype(np.float64) * w_scale).T
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert error < 2e-3, error
    lost = np.abs(exact - x @ w.T).max() / np.abs(exact).max()
    print(
        f"fp8 gemm on {device.backend}: {y.shape}, {y.dtype}; the product is right to "
        f"{error:.1e}, quantizing cost {lost:.1e}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
