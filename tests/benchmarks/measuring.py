"""Tools of several benchmarks: times of calls, devices of ranks, and ``torch.distributed``.

``side_by_side.py`` compares ops with rivals'.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from atomr_accel import DeviceUnavailable, open_device
from atomr_accel.actors import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atomr_accel import Device

AT_ONCE: Final = Backoff(initial=0.0, base=0.0, maximum=0.0)
"""Restarts as if each fault were the first."""


async def median_of(
    call: Callable[[], Awaitable[object]], repeats: int, *, before: int = 1
) -> float:
    """Median seconds of an awaited call, after some that do not count."""
    samples = []
    for at in range(before + repeats):
        start = time.perf_counter()
        made = await call()
        if at >= before:
            samples.append(time.perf_counter() - start)
        del made  # before the next takes as much memory again
    return statistics.median(samples)


async def seconds_in_flight(call: Callable[[], Awaitable[object]], tasks: int, each: int) -> float:
    """Seconds of one call, where some tasks make calls in a loop."""

    async def task() -> None:
        for _ in range(each):
            await call()

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(task)
    return (time.perf_counter() - start) / (tasks * each)


@asynccontextmanager
async def open_ranks(count: int, **options: Any) -> AsyncIterator[list[Device]]:
    """Open a number of GPUs, or of devices of the CPU backend if there are too few GPUs."""
    async with AsyncExitStack() as stack:

        async def opened(backend: str) -> list[Device]:
            return [
                await stack.enter_async_context(open_device(n, backend=backend, **options))
                for n in range(count)
            ]

        try:
            devices = await opened("cuda")
        except DeviceUnavailable:
            await stack.aclose()
            devices = await opened("cpu")
        yield devices


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def told_by_torch(script: str, ranks: int, *arguments: object, seconds: float) -> Any:
    """Run a script of ``torch.distributed`` in a process for each rank.

    Args:
        script: the code; its arguments are the rank, and the others as JSON.
        ranks: number of processes.
        arguments: the other arguments of the script.
        seconds: time limit of a process.

    Returns:
        The last line of the first rank, from JSON; None without torch.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [json.dumps(each) for each in arguments]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), *words],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    told = [each.communicate(timeout=seconds)[0] for each in started]
    return json.loads(told[0].splitlines()[-1]) if told[0].strip() else None
