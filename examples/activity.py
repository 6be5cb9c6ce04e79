"""Kernels below the ops that launched them, in a timeline for https://ui.perfetto.dev.

CUPTI records them on a GPU, by the package cupti-python. Elsewhere the timeline has the ops alone.
"""

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, LibraryMissing, Unsupported, open_device
from atomr_accel.telemetry import activity, trace


async def work(device: Device) -> None:
    """Some products, one by one and in a batch."""
    x = await device.full((256, 256), 1 / 256, np.float32)
    for _ in range(3):
        await device.blas.gemm(x, x)
    async with device.batch() as batch:
        for _ in range(10):
            x = batch.blas.gemm(x, x)
    np.testing.assert_allclose(await device.get(x), 1 / 256, rtol=1e-4)


async def main(path: Path) -> None:
    """Trace products, with their kernels where there are any."""
    async with open_device(0) as device, trace(device, path):
        try:
            async with activity(device) as found:
                await work(device)
        except (LibraryMissing, Unsupported) as error:
            print(f"without kernels: {error}")
            await work(device)
        else:
            kernels = Counter(each.op_name for each in found.records if each.kind == "kernels")
            assert kernels["blas.gemm"] >= 13, kernels
            print(f"kernels by op: {dict(kernels)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/run.pftrace")
        trio.run(main, file)
        assert file.stat().st_size > 1000
