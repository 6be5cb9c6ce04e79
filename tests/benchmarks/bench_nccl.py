"""Collectives: the table of nccl-tests, next to ``torch.distributed`` on the same GPUs.

Bus bandwidth is what nccl-tests calls so: bytes over time, by 2 (n - 1) / n for all_reduce and by
(n - 1) / n for all_gather and reduce_scatter. Without two GPUs there are only our own numbers, of
the CPU backend. What a death costs is measured, too.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from measuring import AT_ONCE, open_ranks, seconds_in_flight, told_by_torch
from side_by_side import parser_of_lines, wanted

from atomr_accel import CpuFallbackWarning, GpuRefStale, WorldBroken
from atomr_accel.testing import kill_host
from atomr_accel.worlds import open_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import GpuRef
    from atomr_accel.worlds import World

RANKS: Final = 2
KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter")
ON_CPU: Final = (8, 1 << 16, 1 << 20)
ON_CUDA: Final = (8, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30)
SECONDS: Final = 0.15
"""For each figure."""

TOGETHER: Final = 32
"""Collectives in a batch, and in a recording."""

RIVAL: Final = """
import json, os, sys, time, torch, torch.distributed as dist
rank, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", rank=rank, world_size=2)
found = {}
for kind in ("all_reduce", "all_gather", "reduce_scatter"):
    for nbytes in sizes:
        count = max(2, nbytes // 4)
        x = torch.ones(count, device="cuda")
        part = torch.ones(count // 2, device="cuda")
        call = {
            "all_reduce": lambda: dist.all_reduce(x),
            "all_gather": lambda: dist.all_gather_into_tensor(x, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
        }[kind]
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        repeats = max(5, min(200, int(4e9 // max(nbytes, 1 << 22))))
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
            if nbytes <= 8:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        found[f"{kind} {nbytes}"] = (time.perf_counter() - begun) / repeats
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


async def seconds(call: Callable[[], Awaitable[object]], at_once: int) -> float:
    """Return the seconds that a call takes with ``at_once`` calls in flight."""
    await call()
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < SECONDS or not done:
        await seconds_in_flight(call, at_once, 1)
        done += at_once
    return spent / done if done else spent


async def one_row(world: World, kind: str, nbytes: int) -> tuple[float, float, float]:
    """Seconds of one of our collectives, in which ``nbytes`` is the larger side.

    Returns:
        Seconds of one that is awaited, of one in a batch, and of one in a replay.
    """
    count = max(2, nbytes // 4)
    whole: list[GpuRef] = [await d.full(count, 1.0, np.float32) for d in world.devices]
    rows = [ref.reshape((RANKS, count // RANKS)) for ref in whole]
    parts = [await d.full(count // RANKS, 1.0, np.float32) for d in world.devices]
    calls: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda on: on.all_reduce(whole, out=whole),
        "all_gather": lambda on: on.all_gather(parts, out=rows),
        "reduce_scatter": lambda on: on.reduce_scatter(rows, out=parts),
    }
    call = calls[kind]

    async def batch() -> None:
        async with world.batch() as batch:
            for _ in range(TOGETHER):
                call(batch)

    async with world.record() as recording:
        for _ in range(TOGETHER):
            call(recording)
    return (
        await seconds(lambda: call(world), 1 if nbytes <= 8 else 8),
        await seconds(batch, 1) / TOGETHER,
        await seconds(recording.replay, 1) / TOGETHER,
    )


async def deaths(world: World) -> tuple[float, float]:
    """Return the median seconds until callers learn of a kill, and until the world is back."""
    told, back = [], []
    begun = 0.0  # when the host of this round was killed

    async def call(x: list[GpuRef]) -> None:
        try:
            while True:
                await world.all_reduce(x, out=x)
        except WorldBroken:
            told.append(time.perf_counter() - begun)
        except GpuRefStale:
            pass  # it came between two ops

    for _ in range(3):
        x = [await d.full(1 << 20, 1.0, np.float32) for d in world.devices]
        async with world.watch() as epochs, trio.open_nursery() as nursery:
            nursery.start_soon(call, x)
            await trio.sleep(0.05)
            begun = time.perf_counter()
            await kill_host(world.devices[1])
            await anext(epochs)
            back.append(time.perf_counter() - begun)
    return statistics.median(told or [np.nan]), statistics.median(back)


async def main(only: list[str]) -> None:
    """Print the table."""
    async with (
        open_ranks(RANKS, backoff=AT_ONCE) as devices,
        open_world(devices) as world,
    ):
        sizes = ON_CUDA if devices[0].backend == "cuda" else ON_CPU
        print(f"{devices[0].info.name}, backend {devices[0].backend}", flush=True)
        others = told_by_torch(RIVAL, RANKS, sizes, seconds=60) if sizes is ON_CUDA else None
        print(
            f"{'':15} {'bytes':>11} {'us':>9} {'GB/s bus':>9} {'torch us':>9} {'ratio':>6} "
            f"{'batch us':>9} {'ratio':>6} {'replay us':>9} {'ratio':>6}"
        )
        for kind in KINDS:
            for nbytes in sizes:
                if not wanted(f"{kind} {nbytes}", only):
                    continue
                ours, batched, replayed = await one_row(world, kind, nbytes)
                factor = (2 if kind == "all_reduce" else 1) * (RANKS - 1) / RANKS
                theirs = (others or {}).get(f"{kind} {nbytes}")
                rate = nbytes * factor / ours / 1e9
                line = f"{kind:15} {nbytes:11} {ours * 1e6:9.1f} {rate:9.2f} "
                line += f"{theirs * 1e6:9.1f} {theirs / ours:6.2f}" if theirs else " " * 16
                for each in (batched, replayed):
                    line += f" {each * 1e6:9.1f} "
                    line += f"{theirs / each:6.2f}" if theirs else " " * 6
                print(line, flush=True)
        if wanted("a rank is killed", only):
            told, back = await deaths(world)
            print(
                f"a rank is killed: told after {told:.3f} s, the world is back after {back:.3f} s"
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main, parser_of_lines(__doc__).parse_args().only)
