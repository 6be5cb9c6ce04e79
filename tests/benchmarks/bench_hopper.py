"""The tutorial's product for Hopper against BLASLt and PyTorch: bf16 and fp8 at 8192 and 4096.

Measured side by side, see ``side_by_side.py``. Without a GPU sizes are small, and only our own
numbers, of NumPy, are printed. ``bench_hopper.py plans`` also tries ways to cut the products.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import ml_dtypes
import numpy as np
import trio
from side_by_side import Pace, Rival, Row, compare, open_first, show, there

sys.path.append(str(Path(__file__).parents[2]))
from examples import hopper_gemm
from examples.hopper_gemm import Plan

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
GOAL = 0.9

PLANS = [
    Plan(group=8),
    Plan(group=16),
    Plan(stages=3),
    Plan(cluster=1),
    Plan(tile_n=128),
    Plan(tile_n=128, promote=4),
]


async def ours(
    device: Device, a: GpuRef, b: GpuRef, out: GpuRef, plan: Plan, rivals: dict[str, Rival]
) -> tuple[Pace, dict[str, Pace]]:
    """Launches of the kernel, in a batch or alone."""
    kernel = await hopper_gemm.build(device, a.dtype, plan)
    grid, arguments, options = hopper_gemm.launch(device, a, b, out, 1.0, plan)

    def call(on: Any) -> Any:
        launch = kernel.launch if on is device else partial(on.launch, kernel)
        return launch(grid, 384, *arguments, **options)

    pace, theirs = await compare(device, call, rivals)
    return pace, theirs


async def vendors(device: Device, a: GpuRef, b: GpuRef, out: GpuRef) -> Pace:
    """The pace of BLASLt on the same matrices."""
    options: dict[str, Any] = {"trans_b": True, "autotune": True}
    if a.dtype == E4M3:
        one = await device.put(np.asarray(np.float32(1)))
        options |= {"scale_a": one, "scale_b": one, "fast_accum": True}
    pace, _ = await compare(device, lambda on: on.blaslt.matmul(a, b, out=out, **options), {})
    return pace


def rival(dtype: np.dtype[Any], size: int) -> Rival:
    """Return PyTorch's product of the same size."""
    import torch

    kind = torch.float8_e4m3fn if dtype == E4M3 else torch.bfloat16
    a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    if dtype != E4M3:
        return Rival(lambda: torch.mm(a, b.t(), out=out), torch.cuda.synchronize)
    scale = torch.ones((), device="cuda")
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True, "out": out}
    multiply = partial(torch._scaled_mm, scale_a=scale, scale_b=scale, **options)
    return Rival(lambda: multiply(a, b.t()), torch.cuda.synchronize)


async def product(device: Device, dtype: np.dtype[Any], size: int, plans: list[Plan]) -> None:
    """A square product, by each plan."""
    rng = np.random.default_rng()
    hosts = [rng.standard_normal((size, size), np.float32).astype(dtype) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    out = await device.empty((size, size), BFLOAT16)
    gpu = device.backend == "cuda"
    rivals = {"torch": rival(dtype, size)} if gpu and there("torch") else {}
    for at, plan in enumerate(plans):
        pace, theirs = await ours(device, a, b, out, plan, rivals if at == 0 else {})
        if gpu and at == 0:
            theirs["blaslt"] = await vendors(device, a, b, out)
        name = f"{dtype.name} {size}" if at == 0 else f"{plan}"
        show(Row(name, 2.0 * size**3, "TFLOP/s", pace, theirs, dict.fromkeys(theirs, GOAL)))


async def run() -> None:
    """Measure and print."""
    cloudpickle.register_pickle_by_value(hopper_gemm)  # a host does not find examples
    async with open_first() as device:
        capability = device.info.compute_capability
        if capability not in ((0, 0), (9, 0)):
            print(f"compute capability {capability} has no wgmma")
            return
        plans = [Plan(), *(PLANS if "plans" in sys.argv else [])]
        for dtype in (BFLOAT16, E4M3):
            for size in (8192, 4096) if device.backend == "cuda" else (128,):
                await product(device, dtype, size, plans)


if __name__ == "__main__":
    trio.run(run)
