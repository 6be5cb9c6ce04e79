"""Time until a world is back: ranks die during all_reduce, by fault, kill and hang in turn.

For each death it measures three times: until waiting callers learn of it, until the world is whole
again, and until the next all_reduce has given the right sum. Times count from the death (for hangs:
from the device's ``op_deadline``, when they can be noticed). Afterwards it prints the memory,
descriptors and processes that have been leaked.

    python tests/benchmarks/bench_worlds_return.py          # 50 deaths on two GPUs; 9 on the CPU
    python tests/benchmarks/bench_worlds_return.py --deaths 6 --on-break shrink --standby hot

With ``--on-break shrink`` the world continues without the rank. It is resized once the rank is
back.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from measuring import AT_ONCE, open_ranks

from atomr_accel import (
    CpuFallbackWarning,
    GpuRefStale,
    KernelHung,
    Standby,
    WorldBroken,
)
from atomr_accel.testing import hang, kill_host, poison, standby_ready
from atomr_accel.worlds import open_world

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef
    from atomr_accel.worlds import World

STANDBYS: Final = {"none": None, "warm": Standby(warm=1), "hot": Standby(hot=1)}

RANKS: Final = 2
CALLERS: Final = 2
DEADLINE: Final = 0.5
"""The ``op_deadline`` of devices: a hang is noticed by it."""

ELEMENTS: Final = {"cuda": 1 << 26, "cpu": 1 << 18}
WARM: Final = 3 * RANKS
"""Deaths before leaks are counted, each kind on each rank, so that caches are full."""


@dataclass
class Death:
    """Outcome of one death, in seconds."""

    how: str
    told: float
    back: float
    right: float


async def blow(device: Device, how: str) -> None:
    """End a device's host; a hang is begun only."""
    if how == "fault":
        await poison(device)
    elif how == "kill":
        await kill_host(device)
    else:
        try:
            await hang(device)
        except KernelHung:
            return
        raise AssertionError("a kernel that hangs was not noticed")


async def ones(world: World, elements: int) -> list[GpuRef]:
    """Something to add up."""
    return [await device.full(elements, 1.0, np.float32) for device in world.devices]


async def one_death(world: World, victim: Device, how: str, elements: int) -> Death:
    """Have a rank die in the midst of all_reduce."""
    told: list[float] = []
    begun = math.inf
    whole = list(world.devices)

    async def call() -> None:
        x = await ones(world, elements)
        try:
            while True:
                await world.all_reduce(x, "avg", out=x)
        except (WorldBroken, GpuRefStale, ValueError):  # stale, or others now: between two ops
            told.append(time.perf_counter() - begun)

    async with world.watch() as epochs, trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(call)
        await trio.sleep(0.05)
        begun = time.perf_counter() + DEADLINE * (how == "hang")
        nursery.start_soon(blow, victim, how)
        await anext(epochs)
        back = time.perf_counter() - begun
    if world.size < len(whole):
        await world.resize(whole)
    while True:  # a device may still be on its way, if the world has gone on without it
        try:
            total = await world.all_reduce(await ones(world, elements))
            found = [await d.get(ref) for d, ref in zip(world.devices, total, strict=True)]
            break
        except (GpuRefStale, WorldBroken):
            continue
    assert all((each == world.size).all() for each in found)
    return Death(how, max(told), back, time.perf_counter() - begun)


def left(devices: list[Device]) -> dict[str, int]:
    """Return the numbers that should be the same before and after."""
    memory = sum(device.statistics().memory.used for device in devices)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return {
        "bytes in use": memory,
        "descriptors": len([*Path("/proc/self/fd").iterdir()]),
        "processes": len(children),
        "mappings of worlds": maps.count("atomr-world"),
        "ops in flight": sum(device.statistics().in_flight for device in devices),
    }


async def settled(devices: list[Device], *, standby: bool) -> None:
    """Wait until all pending work is done."""
    for device in devices:
        await device.get(await device.put(0.0))
        if standby:
            await standby_ready(device)
        await device.core.reaper.reap_all()
        await device.trim()


def row(name: str, deaths: list[Death]) -> str:
    """Medians and the worst."""
    cells = []
    for what in ("told", "back", "right"):
        found = sorted(getattr(death, what) for death in deaths)
        cells.append(f"{statistics.median(found):8.3f} {found[-1]:8.3f}")
    return f"{name:7} {len(deaths):4} " + "   ".join(cells)


async def main(arguments: argparse.Namespace) -> int:
    """Print the table; 1 if something is left."""
    options: dict[str, Any] = {
        "backoff": AT_ONCE,
        "max_restarts": 10_000,
        "op_deadline": DEADLINE,
        "standby": STANDBYS[arguments.standby],
    }
    async with (
        open_ranks(RANKS, **options) as devices,
        open_world(devices, on_break=arguments.on_break) as world,
    ):
        backend = devices[0].backend
        count = arguments.deaths or (50 if backend == "cuda" else 9)
        deaths: dict[str, list[Death]] = defaultdict(list)
        standby = options["standby"] is not None
        before: dict[str, int] = {}
        for number in range(WARM + count):
            await settled(devices, standby=standby)
            if number == WARM:
                before = left(devices)
            how = ("fault", "kill", "hang")[number % 3]
            victim = devices[number // 3 % RANKS]
            death = await one_death(world, victim, how, ELEMENTS[backend])
            if number >= WARM:
                deaths[how].append(death)
        await settled(devices, standby=standby)
        after = left(devices)
        said = world.statistics()
    print(f"{RANKS} ranks on {backend}, on_break={arguments.on_break}, standby={arguments.standby}")
    heads = (f"{what:>8} {'worst':>8}" for what in ("told", "back", "right"))
    print(f"{'seconds':12} " + "   ".join(heads))
    for how, found in deaths.items():
        print(row(how, found))
    print(row("all", [death for found in deaths.values() for death in found]))
    print(f"epoch {said.epoch}, {said.breaks} breaks, {said.completed} ops done")
    leaks = {what: (before[what], after[what]) for what in before if after[what] > before[what]}
    print(f"left over: {leaks or 'nothing'}")
    return 1 if leaks else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deaths", type=int, default=0)
    parser.add_argument("--on-break", choices=("wait", "shrink"), default="wait")
    parser.add_argument("--standby", choices=tuple(STANDBYS), default="none")
    sys.exit(trio.run(main, parser.parse_args()))
