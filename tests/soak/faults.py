"""A device whose context ends in every way there is, under a load that checks every answer.

``python -m tests.soak.faults --seconds 600`` adds faults to ``kills``. It kills hosts, at work and
on standby. Kernels end contexts by illegal and misaligned addresses, traps and assertions, and some
run until the device's ``op_deadline``. A hot standby takes over each time. In the end nothing may
be left: processes, wherever they are by then, descriptors, threads, shared files, and memory of the
device as its driver counts it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import os
import random
import secrets
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Final, get_args

import trio

from atomr_accel import Device, GpuRefStale, Standby
from atomr_accel.testing import hang, kill_host, poison
from atomr_accel.testing._faults import FaultName

from .kills import FAULTS, Report, kill, soak

MARK: Final = "ATOMR_SOAK"
"""An environment variable by which processes that this one has started are found again."""

DEADLINE: Final = 10.0
"""Seconds after which an op that never ends is ended."""

SLACK: Final = 64
"""MiB by which a driver's count of memory in use may differ."""

KINDS: Final = (*get_args(FaultName), "kill any", "kill any", "kill the host")


class Harm:
    """Ends contexts in turn, and now and then by an op that never ends."""

    def __init__(self) -> None:
        self._hangs = itertools.cycle([*[False] * 60, True])

    async def __call__(self, device: Device, chance: random.Random) -> str | None:
        """Do one thing, and return its name."""
        kind = "hang" if next(self._hangs) else chance.choice(KINDS)
        with contextlib.suppress(*FAULTS, GpuRefStale):
            if kind == "hang":
                await hang(device)
            elif kind == "kill the host":
                await kill_host(device)
            elif kind == "kill any":
                return await kill(device, chance)
            else:
                await poison(device, kind)  # type: ignore[arg-type]
        return kind


def marked() -> list[str]:
    """Processes that this one has started, whatever their present parent."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) != os.getpid() and mark in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
    return found


def shared() -> int:
    """Files in shared memory that this process maps, and those in /dev/shm of this package."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in maps if "atomr" in line and "memfd" in line}
    return len(mapped) + len([*Path("/dev/shm").glob("*atomr*")])


def threads() -> int:
    """Threads but for those that trio keeps for a while."""
    return sum("trio" not in thread.name.lower() for thread in threading.enumerate())


async def used(backend: str) -> int:
    """Return the first GPU's memory in use, in MiB, as its driver reports it; 0 without a GPU."""
    if backend != "cuda":
        await trio.lowlevel.checkpoint()
        return 0
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = await trio.run_process(command, capture_stdout=True)
    return int(done.stdout.split()[0])


def locked() -> int:
    """KiB of this process's memory that are page-locked."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPin"))


async def settled() -> None:
    """Wait until killed processes are reaped and the driver has freed their memory."""
    with trio.move_on_after(10):
        while marked():  # noqa: ASYNC110 (nothing says when a grandchild is gone)
            await trio.sleep(0.05)


async def check(seconds: float, tasks: int, seed: int, backend: str, turns: int) -> Report:
    """Soak for a number of seconds, and look for leftovers."""
    # What the first device loads stays, so it is not counted: imports, contexts' own threads.
    hot = Standby(hot=1)
    await soak(2, 4, seed=seed, backend=backend, standby=hot, turns=turns, op_deadline=DEADLINE)
    await settled()
    before = {"shared files": shared(), "threads": threads(), "locked KiB": locked()}
    memory = await used(backend)
    report = await soak(
        10**9,
        tasks,
        seed=seed,
        backend=backend,
        seconds=seconds,
        turns=turns,
        standby=hot,
        harm=Harm(),
        op_deadline=DEADLINE,
    )
    await settled()
    gc.collect()
    after = {"shared files": shared(), "threads": threads(), "locked KiB": locked()}
    report.left += [
        f"{after[what] - count} {what}" for what, count in before.items() if after[what] > count
    ]
    report.left += [f"process {each}" for each in marked()]
    if (more := await used(backend) - memory) > SLACK:
        report.left.append(f"{more} MiB of the GPU")
    return report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--turns", type=int, default=200, help="of the loop, between harms")
    words = parser.parse_args()
    os.environ[MARK] = secrets.token_hex(8)
    logging.disable(logging.CRITICAL)  # a line for each restart
    arguments = (words.seconds, words.tasks, words.seed, words.backend, words.turns)
    report = trio.run(partial(check, *arguments))
    print(f"seed {words.seed}, backend {words.backend}\n{report}")
    sys.exit(not report.good)


if __name__ == "__main__":
    main()
