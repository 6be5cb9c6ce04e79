"""Measure this package and its rivals in the same way, in turns.

Two things are measured of each op. Its *throughput*: many are queued, then the last one is
waited for. Our ops are queued by ``device.batch``, the rivals' by a loop that synchronizes once.
Its *latency*: one is asked for and waited for. Rounds of ours and theirs alternate, each begun by
another one, so that clocks and temperatures are the same for all, and medians are compared.
Results go to memory that is already allocated.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import statistics
import sys
import time
import warnings
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atomr_accel import CpuFallbackWarning, open_device

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from atomr_accel import Device

    Queue = Callable[[int], Coroutine[Any, Any, None]]

ROUNDS = 3
ROUND_SECONDS = 0.2
"""Least duration of a throughput round, so long that its start and end do not count."""

LONGEST = 2.0
"""Most seconds of a round, unless two ops take longer."""

MOST_QUEUED = 1000
"""Number of ops that a host takes at a time; a batch keeps the rest until its block is left."""

WARM_UPS = 5
WARM_SECONDS = 0.05
"""Most rounds before those that count, and their duration: they end once none is much faster."""

ALONE = 30
"""Number of ops in a round of latency."""


@dataclass(frozen=True)
class Rival:
    """A rival's version of the op.

    Attributes:
        call: queues one op.
        wait: returns when everything that was queued is done.
    """

    call: Callable[[], object]
    wait: Callable[[], object]


@dataclass(frozen=True)
class Pace:
    """Seconds of one op: in a queue of many, and alone."""

    queued: float
    alone: float


@dataclass
class Row:
    """A line of the table.

    Attributes:
        name: the name of the op.
        amount: the work of one op: operations, or bytes.
        unit: the unit of the speed: ``"TFLOP/s"`` or ``"GB/s"``.
        ours: our pace.
        theirs: the rivals' paces.
        goals: the least ratio of our speed to that of a rival.
    """

    name: str
    amount: float
    unit: str
    ours: Pace
    theirs: dict[str, Pace] = field(default_factory=dict)
    goals: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the lines to print: one for each rival, or one without rivals."""
        scale = {"TFLOP/s": 1e12, "GB/s": 1e9}[self.unit]
        speed = self.amount / self.ours.queued / scale
        start = f"{self.name:32} {self.ours.queued * 1e6:9.1f} us {speed:8.1f} {self.unit:7}"
        start += f" alone {self.ours.alone * 1e6:8.1f} us"
        lines = []
        for rival, pace in self.theirs.items():
            goal = f"(goal >= {self.goals[rival]})" if rival in self.goals else ""
            lines.append(
                f"{start} | {rival:8} {pace.queued * 1e6:9.1f} us"
                f"  ratio {pace.queued / self.ours.queued:5.2f} {goal:13}"
                f" alone {pace.alone * 1e6:8.1f} us  ratio {pace.alone / self.ours.alone:5.2f}"
            )
        return lines or [start]


@asynccontextmanager
async def open_first(**options: Any) -> AsyncIterator[Device]:
    """Open and print the first device, without warnings about fallbacks to the CPU."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with open_device(0, **options) as device:
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        yield device


def there(name: str) -> bool:
    """Return whether a rival is installed."""
    return importlib.util.find_spec(name) is not None


def cupy_of(device: Device) -> Any:
    """Return CuPy, or None without it or a GPU."""
    return importlib.import_module("cupy") if device.backend == "cuda" and there("cupy") else None


def torch_of(device: Device) -> Any:
    """Return PyTorch, or None without it or a GPU."""
    return importlib.import_module("torch") if device.backend == "cuda" and there("torch") else None


def show(row: Row) -> Row:
    """Print a row once it has been measured, and return it."""
    print(*row.lines(), sep="\n", flush=True)
    return row


async def compare(
    device: Device,
    call: Callable[[Any], Any],
    rivals: dict[str, Rival],
    *,
    together: bool = True,
) -> tuple[Pace, dict[str, Pace]]:
    """Measure an op and the rivals' versions of it.

    Args:
        device: ours.
        call: one op on its argument, which is the device (then it is awaited) or a batch.
        rivals: the others.
        together: whether a batch can have it; otherwise many are awaited one by one.
    """

    async def queued(count: int) -> None:
        async with device.batch() as batch:
            for _ in range(count):
                call(batch)

    async def alone(count: int) -> None:
        for _ in range(count):
            await call(device)

    sides: dict[str, tuple[Queue, Queue]] = {"": (queued if together else alone, alone)}
    sides |= {name: sides_of(rival) for name, rival in rivals.items()}
    counts: dict[str, int] = {}
    slowest = 0.0
    for name, (many, one) in sides.items():
        await one(1)  # plans, memory, clocks
        few = _within(ROUND_SECONDS, await seconds_of(one, 1), 8)
        await many(few)
        seconds = await seconds_of(many, few)
        for _ in range(WARM_UPS):
            before = seconds
            seconds = await seconds_of(many, max(few, _within(WARM_SECONDS, before, MOST_QUEUED)))
            if seconds > 0.9 * before:
                break
        slowest = max(slowest, seconds)
        counts[name] = max(few, _within(ROUND_SECONDS, seconds, MOST_QUEUED))
    # As many for everybody: enough for the fastest, and not too many for the slowest.
    count = _within(LONGEST, slowest, max(counts.values()))
    single = _within(LONGEST, slowest, ALONE)
    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    order = list(sides)
    for _ in range(ROUNDS):
        for name in order:
            samples[name][0].append(await seconds_of(sides[name][0], count))
        for name in order:
            samples[name][1].append(await seconds_of(sides[name][1], single))
        order.append(order.pop(0))
    paces = {
        name: Pace(statistics.median(many), statistics.median(one))
        for name, (many, one) in samples.items()
    }
    return paces.pop(""), paces


def _within(limit: float, seconds: float, most: int) -> int:
    """Count the ops that fit into a time: two at least, and ``most`` at most."""
    return min(most, max(2, int(limit / max(seconds, 1e-9))))


def sides_of(rival: Rival) -> tuple[Queue, Queue]:
    """Return two loops of a rival's ops: one waits after the last op, the other after each."""

    async def queued(count: int) -> None:
        for _ in range(count):
            rival.call()
        rival.wait()

    async def alone(count: int) -> None:
        for _ in range(count):
            rival.call()
            rival.wait()

    return queued, alone


def parser_of_lines(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option ``--only``, for ``wanted``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--only", action="append", default=[], help="how names begin", metavar="NAME"
    )
    return parser


def wanted(name: str, only: list[str]) -> bool:
    """Return whether a line is to be measured: its name begins with one of ``only``, if any."""
    return not only or name.startswith(tuple(only))


def geometric_mean(ratios: list[float]) -> float:
    """Return the geometric mean, or NaN of no ratios."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


async def seconds_of(run: Queue, count: int) -> float:
    """Return the seconds of one of ``count`` ops."""
    start = time.perf_counter()
    await run(count)
    return (time.perf_counter() - start) / count
