"""Copies from one GPU to another, next to ``cuMemcpyPeerAsync`` in a process of its own.

Eight copies are in flight at a time, ours as tasks, the driver's in one stream. The buffers of ours
are new ones, as ``Device.copy`` makes them. Without two GPUs there are only our own numbers, of the
CPU backend.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from typing import Final

import numpy as np
import trio
from measuring import open_ranks, seconds_in_flight
from side_by_side import parser_of_lines, wanted

from atomr_accel import CpuFallbackWarning

SIZES: Final = {"1 MiB": 1 << 20, "64 MiB": 1 << 26, "1 GiB": 1 << 30}
ON_CPU: Final = {"1 MiB": 1 << 20}
AT_ONCE: Final = 8
ROUNDS: Final = 3
GOALS: Final = {"1 MiB": 0.9, "64 MiB": 0.98, "1 GiB": 0.98}

RIVAL: Final = """
import json, sys, time
from cuda.bindings import driver

def check(made):
    status, *values = made
    assert not status, status
    return values[0] if values else None

check(driver.cuInit(0))
contexts, pointers = [], []
sizes = json.loads(sys.argv[1])
for n in range(2):
    contexts.append(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(n)))))
    check(driver.cuCtxSetCurrent(contexts[n]))
    pointers.append(check(driver.cuMemAlloc(max(sizes))))
for n in (1, 0):  # the source is current in the end
    check(driver.cuCtxSetCurrent(contexts[n]))
    check(driver.cuCtxEnablePeerAccess(contexts[1 - n], 0))
stream = check(driver.cuStreamCreate(1))
found = []
for size in sizes:
    copies = max(8, min(400, (4 << 30) // size))
    taken = []
    for _ in range(4):
        begun = time.perf_counter()
        for _ in range(copies):
            check(driver.cuMemcpyPeerAsync(
                pointers[1], contexts[1], pointers[0], contexts[0], size, stream))
        check(driver.cuStreamSynchronize(stream))
        taken.append((time.perf_counter() - begun) / copies)
    found.append(min(taken[1:]))
print(json.dumps(found))
"""


def by_driver(sizes: dict[str, int]) -> dict[str, float]:
    """Return the seconds of the driver's copy by size; none without its bindings."""
    if importlib.util.find_spec("cuda") is None:
        return {}
    command = [sys.executable, "-c", RIVAL, json.dumps([*sizes.values()])]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if told.returncode:
        print(f"cuMemcpyPeerAsync: {told.stderr.strip().splitlines()[-1]}")
        return {}
    return dict(zip(sizes, json.loads(told.stdout), strict=True))


async def main(only: list[str]) -> None:
    """Measure and print."""
    async with open_ranks(2) as (source, target):
        print(f"{source.info.name}, backend {source.backend}", flush=True)
        on_cuda = source.backend == "cuda"
        sizes = {
            name: size
            for name, size in (SIZES if on_cuda else ON_CPU).items()
            if wanted(name, only)
        }
        theirs = by_driver(sizes) if on_cuda else {}
        for name, nbytes in sizes.items():
            data = await source.zeros(nbytes, np.uint8)
            each = max(1, min(50, (4 << 30) // nbytes // AT_ONCE))
            ours = min(
                [
                    await seconds_in_flight(lambda data=data: target.copy(data), AT_ONCE, each)
                    for _ in range(ROUNDS + 1)
                ][1:]
            )
            line = f"{name:8} here {nbytes / ours / 1e9:7.1f} GB/s"
            if name in theirs:
                line += f", cuMemcpyPeerAsync {nbytes / theirs[name] / 1e9:7.1f} GB/s"
                line += f", ratio {theirs[name] / ours:.2f} (goal at least {GOALS[name]})"
            print(line, flush=True)
            await source.free(data)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main, parser_of_lines(__doc__).parse_args().only)
