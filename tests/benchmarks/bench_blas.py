"""Products against PyTorch and CuPy: bf16 and fp8 at 8192, sgemm, many small ones.

Throughput: products are queued in a batch and timed until the last has finished, here by
``device.batch``, there by a loop that synchronizes at its end. Rivals run in this process,
one after the other with ours; those that are not installed are left out. Without a GPU
sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Unsupported, open_device

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

ROUNDS = 5
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass
class Row:
    """A line of the table.

    Attributes:
        name: what was multiplied.
        operations: floating-point operations of one product.
        ours: seconds of one product.
        theirs: seconds of one product by rival.
        goal: the least ratio of our speed to that of the rival named.
    """

    name: str
    operations: float
    ours: float
    theirs: dict[str, float]
    goal: tuple[str, float] | None = None

    def lines(self) -> list[str]:
        """What to print: one line for each rival, or one without."""
        ours = f"{self.name:34} {self.operations / self.ours / 1e12:9.2f} TFLOP/s"
        lines = []
        for rival, seconds in self.theirs.items():
            ratio = f"{seconds / self.ours:5.2f}"
            goal = f"  (goal >= {self.goal[1]})" if self.goal and self.goal[0] == rival else ""
            rate = self.operations / seconds / 1e12
            lines.append(f"{ours}   {rival} {rate:9.2f}   {ratio}{goal}")
        return lines or [ours]


def there(name: str) -> bool:
    """Whether a rival is installed."""
    return importlib.util.find_spec(name) is not None


async def seconds_of(queue: Callable[[int], Awaitable[None]], repeats: int) -> float:
    """Seconds of one of ``repeats`` products that are queued at once; the median round."""
    await queue(2)
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        await queue(repeats)
        rounds.append((time.perf_counter() - start) / repeats)
    return statistics.median(rounds)


def seconds_of_loop(call: Callable[[], object], wait: Callable[[], object], repeats: int) -> float:
    """The same of a rival."""
    call()
    wait()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        wait()
        rounds.append((time.perf_counter() - start) / repeats)
    return statistics.median(rounds)


async def ours(
    device: Device, library: str, method: str, repeats: int, *refs: Any, **more: Any
) -> float:
    """Seconds of one of our products, queued in a batch."""
    await getattr(getattr(device, library), method)(*refs, **more)

    async def queue(count: int) -> None:
        async with device.batch() as batch:
            call = getattr(getattr(batch, library), method)
            for _ in range(count):
                call(*refs, **more)

    return await seconds_of(queue, repeats)


async def bf16(device: Device, size: int, repeats: int) -> Row:
    """A square product in bfloat16, by BLASLt."""
    rng = np.random.default_rng()
    hosts = [rng.random((size, size), dtype=np.float32).astype(BFLOAT16) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    mine = await ours(device, "blaslt", "matmul", repeats, a, b, autotune=True)
    theirs = {}
    if there("torch") and device.backend == "cuda":
        import torch

        c, d = (torch.rand(size, size, device="cuda").bfloat16() for _ in range(2))
        out = torch.empty_like(c)
        theirs["torch"] = seconds_of_loop(
            lambda: torch.mm(c, d, out=out), torch.cuda.synchronize, repeats
        )
    return Row(f"bf16 matmul {size}", 2.0 * size**3, mine, theirs, ("torch", 0.98))


async def fp8(device: Device, size: int, repeats: int) -> Row | None:
    """A square product in fp8 with a scale for each tensor, to bfloat16."""
    rng = np.random.default_rng()
    hosts = [rng.random((size, size), dtype=np.float32).astype(E4M3) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    one = await device.put(np.asarray(np.float32(1)))
    try:
        mine = await ours(
            device,
            "blaslt",
            "matmul",
            repeats,
            a,
            b,
            trans_b=True,
            scale_a=one,
            scale_b=one,
            autotune=True,
        )
    except Unsupported as error:
        print(f"fp8 is left out: {error}")
        return None
    theirs = {}
    if there("torch") and device.backend == "cuda":
        import torch

        c, d = (torch.rand(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device="cuda")
        multiply = torch._scaled_mm

        def call() -> object:
            return multiply(c, d.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

        theirs["torch"] = seconds_of_loop(call, torch.cuda.synchronize, repeats)
    return Row(f"fp8 matmul {size}", 2.0 * size**3, mine, theirs, ("torch", 0.98))


async def sgemm(device: Device, size: int, repeats: int) -> Row:
    """A square product in float32."""
    rng = np.random.default_rng()
    hosts = [rng.random((size, size), dtype=np.float32) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    mine = await ours(device, "blas", "gemm", repeats, a, b)
    return Row(f"sgemm {size}", 2.0 * size**3, mine, rivals(device, (size, size), repeats))


async def batched(device: Device, count: int, size: int, repeats: int) -> Row:
    """Many small products in float32, in one call."""
    rng = np.random.default_rng()
    hosts = [rng.random((count, size, size), dtype=np.float32) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    mine = await ours(device, "blas", "matmul", repeats, a, b)
    theirs = rivals(device, (count, size, size), repeats)
    return Row(f"sgemm {count} x {size}", 2.0 * count * size**3, mine, theirs)


def rivals(device: Device, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """The same product in float32 by whoever is installed."""
    theirs: dict[str, float] = {}
    if device.backend != "cuda":
        return theirs
    if there("cupy"):
        import cupy

        a, b = (cupy.random.random(shape, dtype=np.float32) for _ in range(2))
        out = cupy.empty(shape, np.float32)
        theirs["cupy"] = seconds_of_loop(
            lambda: cupy.matmul(a, b, out=out),
            cupy.cuda.get_current_stream().synchronize,
            repeats,
        )
        del a, b, out
        cupy.get_default_memory_pool().free_all_blocks()
    if there("torch"):
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        c, d = (torch.rand(*shape, device="cuda") for _ in range(2))
        e = torch.empty_like(c)
        theirs["torch"] = seconds_of_loop(
            lambda: torch.matmul(c, d, out=e), torch.cuda.synchronize, repeats
        )
    return theirs


async def run() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with open_device(0) as device:
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        gpu = device.backend == "cuda"
        large, repeats = (8192, 30) if gpu else (256, 5)
        rows = [await bf16(device, large, repeats), await fp8(device, large, repeats)]
        singles = ((256, 1000), (1024, 300), (4096, 30)) if gpu else ((256, repeats),)
        rows += [await sgemm(device, size, count) for size, count in singles]
        many = ((1000, 32, 200), (256, 256, 50)) if gpu else ((100, 16, repeats),)
        rows += [await batched(device, *sizes) for sizes in many]
    for row in rows:
        if row is not None:
            print(*row.lines(), sep="\n")


def main() -> None:
    """Run the benchmark."""
    trio.run(run)


if __name__ == "__main__":
    main()
