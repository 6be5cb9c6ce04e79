"""Two layers in fp8: bias and GELU in the product itself, the result in fp8 with its amax."""

import warnings

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, GpuRef, Unsupported, open_device

E4M3 = ml_dtypes.float8_e4m3fn
LARGEST = 448.0


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation, which the device computes too."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


async def main() -> None:
    """A layer whose output is the next one's input, without a detour through wide types."""
    rng = np.random.default_rng()
    x = (rng.standard_normal((64, 256)) / 4).astype(E4M3)
    w1 = (rng.standard_normal((512, 256)) / 4).astype(E4M3)
    w2 = (rng.standard_normal((128, 512)) / 4).astype(E4M3)
    b1 = rng.standard_normal(512).astype(ml_dtypes.bfloat16)
    b2 = rng.standard_normal(128).astype(ml_dtypes.bfloat16)
    # The scale of the hidden layer is a guess; amax tells how good it was.
    up, down = np.float32(LARGEST / 16), np.float32(16 / LARGEST)

    async with open_device(0) as device:

        async def put(array: np.ndarray) -> GpuRef:
            return await device.put(array)

        try:
            hidden, _, _, amax = await device.blaslt.matmul_extra(
                await put(x),
                await put(w1),
                trans_b=True,
                bias=await put(b1),
                epilogue="gelu_bias",
                dtype=E4M3,
                scale_out=await put(np.asarray(up)),
                amax=True,
            )
        except Unsupported as why:
            print(f"fp8 matmul on {device.backend}: {why}")
            return
        y = await device.blaslt.matmul(
            hidden,
            await put(w2),
            trans_b=True,
            scale_a=await put(np.asarray(down)),
            bias=await put(b2),
        )
        assert amax is not None
        largest = float(await device.get(amax))
        got = (await device.get(y)).astype(np.float64)
    wide = [each.astype(np.float64) for each in (x, w1, w2, b1, b2)]
    exact = gelu(wide[0] @ wide[1].T + wide[3])
    assert abs(largest - np.abs(exact).max()) < 0.01 * largest
    assert largest * up <= LARGEST, "the guess was too small"
    expected = exact @ wide[2].T + wide[4]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error < 0.05, error
    print(
        f"fp8 matmul on {device.backend}: {hidden.dtype} {hidden.shape} in between, amax "
        f"{largest:.2f}; the result is right to {error:.1e}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
