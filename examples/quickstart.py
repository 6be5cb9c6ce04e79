"""The main job: compute, fault, recover. Runs on a GPU, or without one on the CPU."""

import warnings

import numpy as np
import trio

from atomr_accel import ContextPoisoned, CpuFallbackWarning, GpuRefSealed, GpuRefStale, open_device
from atomr_accel.testing import poison

SOURCE = """
extern "C" __global__ void scale(float* x, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""


def scale(x: np.ndarray, n: np.int32, factor: np.float32) -> None:
    """Compute the kernel's result for the CPU backend."""
    x.reshape(-1)[:n] *= factor


async def main() -> None:
    """Each step says its result and checks it."""
    rng = np.random.default_rng()
    host_x = rng.standard_normal((64, 512), dtype=np.float32)
    host_w = rng.standard_normal((512, 256), dtype=np.float32)
    expected = host_x.astype(np.float64) @ host_w

    async with open_device(0) as device:
        print(f"{device.info.name}: backend {device.backend}, generation {device.generation}")

        x = await device.put(host_x)
        weights = await device.put(host_w, sealed=True)  # read-only, survives faults
        y = await device.blas.gemm(x, weights)
        np.testing.assert_allclose(await device.get(y), expected, rtol=1e-3, atol=1e-3)
        print(f"gemm: {x.shape} @ {weights.shape} is right")

        kernel = await device.nvrtc.compile(SOURCE, "scale", cpu=scale)
        await kernel.launch(64, 256, y, y.size, 2.0)
        np.testing.assert_allclose(await device.get(y), 2 * expected, rtol=1e-3, atol=1e-3)
        print("kernel: twice that")

        async with device.batch() as batch:  # a nursery for GPU work: no await inside
            first = batch.blas.gemm(x, weights)
            second = batch.blas.gemm(x, weights, alpha=-1.0)
        total = await device.get(first) + await device.get(second)
        assert not total.any()
        print("batch: two products in one go")

        try:
            await device.blas.gemm(x, x, out=weights, trans_b=True)
        except (GpuRefSealed, ValueError) as error:
            print(f"refused in the caller: {error}")

        fault = await poison(device)  # on a GPU: a kernel that writes where it must not
        assert isinstance(fault, ContextPoisoned)
        print(f"fault: {fault.status_name}; the device is rebuilt by itself")
        try:
            await device.get(x)
        except GpuRefStale as error:
            print(f"stale: {error}")

        x = await device.put(host_x)
        y = await device.blas.gemm(x, weights)  # these weights were not uploaded again
        np.testing.assert_allclose(await device.get(y), expected, rtol=1e-3, atol=1e-3)
        assert device.generation == 2
        print(f"gemm: right again, in generation {device.generation}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
