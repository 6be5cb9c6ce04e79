"""A synchronous script: fit a line on a device, without ``async`` in the program's own code.

``python examples/script.py`` runs on a GPU, or on the CPU.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from atomr_accel import Device, GpuRef, open_blocking


async def fit(device: Device, x: GpuRef, y: GpuRef) -> np.ndarray[Any, Any]:
    """Solve the normal equations of ``x w = y``; all ops stay on the device."""
    async with device.batch() as batch:
        gram = batch.blas.gemm(x, x, trans_a="T")
        right = batch.blas.gemm(x, y, trans_a="T")
    return await device.get(await device.linalg.solve(gram, right))


def main() -> None:
    """Make noisy points, and find the line that they come from."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(-1, 1, 10_000), np.ones(10_000)], axis=1)
    y = x @ [[3.0], [0.5]] + rng.normal(0, 0.01, (10_000, 1))
    with open_blocking(0) as gpu:
        points = gpu.run(lambda device: device.put(x))
        values = gpu.run(lambda device: device.put(y))
        slope, offset = gpu.run(fit, points, values)[:, 0]
    print(f"slope {slope:.2f}, offset {offset:.2f}")
    assert np.allclose([slope, offset], [3.0, 0.5], atol=0.01)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
