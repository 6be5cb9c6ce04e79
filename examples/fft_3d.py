"""Poisson's equation on a periodic cube, solved in Fourier space without leaving the device."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

SIZE = 64

SOURCE = """
// Divide by the eigenvalues of the Laplace operator: -k**2, and nothing for the mean.
extern "C" __global__ void invert(double2* spectrum, int size) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= size * size * size) return;
    double k2 = 0;
    for (int rest = at, axis = 0; axis < 3; ++axis, rest /= size) {
        int k = rest % size;
        if (k > size / 2) k -= size;
        k2 += (double)k * k;
    }
    double factor = k2 > 0 ? -1 / k2 : 0;
    spectrum[at].x *= factor;
    spectrum[at].y *= factor;
}
"""


def invert(spectrum: np.ndarray, size: np.int32) -> None:
    """Compute the kernel's result for the CPU backend."""
    k = np.fft.fftfreq(size, 1 / size)
    k2 = k[:, None, None] ** 2 + k[None, :, None] ** 2 + k[None, None, :] ** 2
    spectrum *= np.divide(-1, k2, out=np.zeros_like(k2), where=k2 > 0)


async def main() -> None:
    """Make a right side with a known solution, solve, and compare."""
    x = 2 * np.pi * np.arange(SIZE) / SIZE
    solution = np.sin(x)[:, None, None] * np.cos(2 * x)[None, :, None] * np.sin(3 * x)[None, None]
    right_side = -(1 + 4 + 9) * solution

    async with open_device(0) as device:
        kernel = await device.nvrtc.compile(SOURCE, "invert", cpu=invert)
        field = await device.put(right_side.astype(np.complex128))
        await device.fft.fftn(field, out=field)
        await kernel.launch(-(-(SIZE**3) // 256), 256, field, SIZE)
        await device.fft.ifftn(field, out=field)
        error = np.abs(await device.get(field) - solution).max()
        assert error < 1e-13, error
        print(f"fft_3d on {device.backend}: {SIZE}^3 points in place, largest error {error:.1e}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
