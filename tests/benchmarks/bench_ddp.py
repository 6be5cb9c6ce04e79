"""A data-parallel step next to torch's DistributedDataParallel, on the same two GPUs.

Both do the same: products of matrices forward and backward, in bfloat16, and all gradients, 1 GiB,
averaged over the ranks in buckets, while those of earlier layers are still computed. Then the same
without the other rank, which tells how much of the communication is hidden. On the CPU backend
there are only our own numbers, for a small model.

    python tests/benchmarks/bench_ddp.py
"""

from __future__ import annotations

import statistics
import time
import warnings
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import ml_dtypes
import numpy as np
import trio
from measuring import open_ranks, told_by_torch

from atomr_accel import CpuFallbackWarning
from atomr_accel.worlds import open_world

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef
    from atomr_accel.worlds import World

RANKS: Final = 2
BUCKET_LAYERS: Final = 4
SECONDS: Final = 6.0
"""For each of the two."""


class Size(NamedTuple):
    """A model: ``layers`` matrices of ``width`` squared, and ``rows`` samples on each rank."""

    width: int
    layers: int
    rows: int
    dtype: str


ON_CPU: Final = Size(64, 8, 64, "float32")
ON_CUDA: Final = Size(4096, 32, 8192, "bfloat16")
"""32 gradients of 32 MiB."""

RIVAL: Final = """
import json, sys, time, torch, torch.distributed as dist
rank, (width, layers, rows, _) = int(sys.argv[1]), json.loads(sys.argv[2])
bucket, seconds = json.loads(sys.argv[3])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", rank=rank, world_size=2)
linear = lambda: torch.nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16)
model = torch.nn.Sequential(*[linear() for _ in range(layers)])
ddp = torch.nn.parallel.DistributedDataParallel(
    model, device_ids=[rank], bucket_cap_mb=bucket * width * width * 2 / 2**20,
    gradient_as_bucket_view=True,
)
x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
slope = torch.full((rows, width), 1e-3, device="cuda", dtype=torch.bfloat16)
found = {}
for name, module in ("alone", model), ("together", ddp):
    times = []
    begun = time.perf_counter()
    for number in range(100):
        torch.cuda.synchronize()
        at = time.perf_counter()
        module(x).backward(slope)
        torch.cuda.synchronize()
        if number >= 5:
            times.append(time.perf_counter() - at)
        model.zero_grad()
        x.grad = None
        go_on = torch.tensor(float(time.perf_counter() - begun < seconds), device="cuda")
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
        if not go_on and times:
            break
    found[name] = sorted(times)[len(times) // 2]
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


class Replica:
    """The model on one device; a bucket of gradients is one buffer."""

    def __init__(self, device: Device, size: Size) -> None:
        self.device, self.size = device, size

    async def open(self) -> None:
        """Make weights, gradients, and a batch."""
        width, layers, rows, name = self.size
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        rng = np.random.default_rng(0)
        square = (rng.standard_normal((width, width)) / width**0.5).astype(dtype)
        one = await self.device.put(square)
        self.weights = [one, *[await self.device.copy(one) for _ in range(layers - 1)]]
        self.gradients = [
            await self.device.empty((BUCKET_LAYERS, width, width), dtype)
            for _ in range(layers // BUCKET_LAYERS)
        ]
        self.x = await self.device.put(rng.standard_normal((rows, width)).astype(dtype))
        self.slope = await self.device.full((rows, width), 1e-3, dtype)


async def one_step(world: World, replicas: list[Replica], *, together: bool) -> None:
    """Forward, backward, and the average of all gradients."""
    layers = replicas[0].size.layers

    async def average(bucket: int) -> None:
        parts = [each.gradients[bucket] for each in replicas]
        await world.all_reduce(parts, "avg", out=parts)

    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        batches = [await stack.enter_async_context(each.device.batch()) for each in replicas]
        values: list[list[GpuRef]] = [[each.x] for each in replicas]
        for batch, each, computed in zip(batches, replicas, values, strict=True):
            for weight in each.weights:
                computed.append(batch.blas.gemm(computed[-1], weight))
        slopes = [each.slope for each in replicas]
        for layer in reversed(range(layers)):
            bucket, place = divmod(layer, BUCKET_LAYERS)
            for at, (batch, each) in enumerate(zip(batches, replicas, strict=True)):
                gradient = each.gradients[bucket][place]
                batch.blas.gemm(values[at][layer], slopes[at], trans_a=True, out=gradient)
                slopes[at] = batch.blas.gemm(slopes[at], each.weights[layer], trans_b=True)
            if together and not place:
                nursery.start_soon(average, bucket)
                await trio.lowlevel.checkpoint()  # so that it is called now


async def ours(world: World, size: Size) -> dict[str, float]:
    """Seconds of a step, alone and together."""
    replicas = [Replica(device, size) for device in world.devices]
    for each in replicas:
        await each.open()
    found = {}
    for name in ("alone", "together"):
        times: list[float] = []
        begun = time.perf_counter()
        for number in range(100):
            at = time.perf_counter()
            await one_step(world, replicas, together=name == "together")
            if number >= 5:
                times.append(time.perf_counter() - at)
            if time.perf_counter() - begun > SECONDS / 2 and times:
                break
        found[name] = statistics.median(times)
    return found


async def main() -> None:
    """Print both."""
    async with open_ranks(RANKS) as devices, open_world(devices) as world:
        size = ON_CUDA if devices[0].backend == "cuda" else ON_CPU
        measured = await ours(world, size)
    how = [BUCKET_LAYERS, SECONDS / 2]
    others = told_by_torch(RIVAL, RANKS, size, how, seconds=90) if size is ON_CUDA else None
    dtype = np.dtype(getattr(ml_dtypes, size.dtype, size.dtype))
    mebibytes = size.layers * size.width**2 * dtype.itemsize / 2**20
    print(f"{RANKS} ranks, {mebibytes:g} MiB of gradients, {size}")
    print(f"{'':10} {'ms alone':>9} {'ms together':>12} {'hidden':>7}")
    for name, found in ("ours", measured), ("torch DDP", others):
        if found:
            alone, together = found["alone"], found["together"]
            print(f"{name:10} {alone * 1e3:9.2f} {together * 1e3:12.2f} {alone / together:7.2f}")
    if others:
        print(f"torch's time over ours: {others['together'] / measured['together']:.2f}")
    else:
        print("torch DDP: skipped")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
