"""A timeline of ops, a fault and a rebuild, which https://ui.perfetto.dev shows."""

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.telemetry import trace
from atomr_accel.testing import poison


async def main(path: Path) -> None:
    """Trace products before and after a fault."""
    rng = np.random.default_rng()
    async with open_device(0) as device:
        weights = await device.put(rng.standard_normal((256, 256)), sealed=True)
        async with trace(device, path):
            for fault in (True, False):
                x = await device.put(rng.standard_normal((64, 256)))
                async with device.batch() as batch:
                    for _ in range(10):
                        x = batch.blas.gemm(x, weights)
                if fault:
                    await poison(device)
        assert device.generation == 2


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/run.pftrace")
        trio.run(main, file)
        size = file.stat().st_size
    assert size > 1000
    print(f"{file.name} has {size / 1e3:.0f} kB: open it in https://ui.perfetto.dev")
