"""A kernel of one's own for several dtypes, compiled at run time and held against NumPy.

One source is a module: two instances of a template and a constant that they share, which the
program reads and writes as a buffer.
"""

import numpy as np
import trio

from atomr_accel import CompileOptions, open_device
from atomr_accel.testing import compare

SOURCE = """
__constant__ float slope;  // of what is negative

template <typename T>
__global__ void leaky_relu(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > T(0) ? x[i] : T(slope) * x[i];
}
"""


def leaky_relu(x: np.ndarray, y: np.ndarray, n: int, slope: np.ndarray) -> None:
    """Compute the kernel's result, for the CPU and for comparisons."""
    y[:n] = np.where(x[:n] > 0, x[:n], slope.astype(x.dtype) * x[:n])


async def main() -> None:
    """Compile, compare, launch, and change the constant."""
    async with open_device(0) as device:
        module = await device.nvrtc.compile_module(
            SOURCE,
            ["leaky_relu<float>", "leaky_relu<double>"],
            cpu={"leaky_relu": leaky_relu},
            options=CompileOptions(use_fast_math=True),
            variables={"slope": np.array(0.1, np.float32)},
        )
        for name in module.names:
            kernel = await module.kernel(name)
            x = np.linspace(-1, 1, 5000, dtype="f4" if "float" in name else "f8")
            found = await compare(device, kernel, None, 256, x, x, 5000, elements=5000)
            print(f"{name}: apart by {max(found.differences.values()):.1e} at most")

        kernel = await module.kernel("leaky_relu<float>")
        x = np.linspace(-1, 1, 1001, dtype=np.float32)
        inputs, outputs = await device.put(x), await device.zeros(1001, np.float32)
        slope = await module.variable("slope")
        await device.fill(slope, 0.5)
        await kernel.launch(None, 256, inputs, outputs, 1001, elements=1001)
        expected = np.where(x > 0, x, x / 2)
        np.testing.assert_allclose(await device.get(outputs), expected, rtol=1e-6)
        print("with another slope: right")


if __name__ == "__main__":
    trio.run(main)
