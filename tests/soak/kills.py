"""A device whose host is killed all the time, under a load that checks every answer.

``python -m tests.soak.kills --kills 5000`` runs tasks that put, compute, batch, run functions and
fetch, while hosts are killed between any two turns of the loop: at work, starting, on standby.
Under thread isolation, where a fault is final, a device is opened for each of them instead.

These counts must be zero in the end: missing answers, functions that ran twice, answered functions
that did not run, wrong values, and errors unrelated to the fault. The same holds for leftover
processes, descriptors, threads and memory.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefStale,
    Standby,
    open_device,
)
from atomr_accel.actors import Backoff
from atomr_accel.lanes import Isolation
from atomr_accel.testing import poison
from atomr_accel.testing.garbage import collect_garbage

SIDE: Final = 16
PATIENCE: Final = 60
"""Seconds after which an answer counts as lost."""

PROGRESS: Final = 60
"""Seconds after which a line says how it goes."""

_WARM: Final = Standby(warm=1)

FAULTS: Final = (ContextPoisoned, GpuRefStale)


Harm = Callable[["Device", random.Random], Awaitable["str | None"]]
"""Harms a device under load, and returns a word for the harm, or None without an effect."""


@dataclass
class Report:
    """Counts of a soak."""

    kills: int = 0
    generations: int = 0
    asked: int = 0
    answered: int = 0
    failed_by_fault: int = 0
    lost: int = 0
    twice: int = 0
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    harm: Counter[str] = field(default_factory=Counter)
    harmless: list[str] = field(default_factory=list)
    longest: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Return whether nothing was lost, doubled, wrong or left, and all harm had its effect."""
        return not (self.lost or self.twice or self.wrong or self.left or self.harmless)

    @property
    def so_far(self) -> str:
        """A line while it goes on."""
        return (
            f"harm {dict(self.harm)}, without effect {len(self.harmless)}, "
            f"asked {self.asked}, answered {self.answered}, by the fault {self.failed_by_fault}, "
            f"lost {self.lost}, wrong {len(self.wrong)}"
        )

    def __str__(self) -> str:
        longest = ", ".join(f"{1e3 * held:.1f} ({what})" for held, what in self.longest[:3])
        lines = [
            *([f"harm {dict(self.harm)}"] if len(self.harm) > 2 else []),
            f"kills {self.kills}, generations {self.generations}, {self.seconds:.0f} s",
            f"asked {self.asked}, answered {self.answered}, by the fault {self.failed_by_fault}",
            f"lost {self.lost}, double {self.twice}, wrong {len(self.wrong)}, left {self.left}",
            f"the loop was held for at most {longest} ms of processor time",
            *([f"harm without effect {len(self.harmless)}"] if self.harmless else []),
            *self.harmless[:10],
            *self.wrong[:10],
        ]
        return "\n".join(lines)


class LoopFlusher(trio.abc.Instrument):
    """Holds the loop for a time, and signals after a number of its turns.

    A hold is a step of one task, or what happens between two of them. Without what the
    interpreter's garbage collector takes: a full collection walks all objects that the program
    and its libraries have, some 30 ms where SciPy is among them.
    """

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = []
        self._since = time.thread_time()
        self._collecting = 0.0
        self._collected = 0.0
        self._left = 0
        self._due: trio.Event | None = None

    async def wait(self, turns: int) -> None:
        """Return after a number of turns."""
        self._left, self._due = turns, trio.Event()
        await self._due.wait()

    def __enter__(self) -> LoopFlusher:
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self._collection)
        return self

    def __exit__(self, *_error: object) -> None:
        gc.callbacks.remove(self._collection)
        trio.lowlevel.remove_instrument(self)

    def _collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def _note(self, what: str) -> None:
        now = time.thread_time()
        held = now - self._since - self._collected
        if held > 0.5e-3:
            self.longest = sorted([*self.longest, (held, what)], reverse=True)[:10]
        self._since, self._collected = time.thread_time(), 0.0

    def after_io_wait(self, _timeout: float) -> None:
        self._since, self._collected = time.thread_time(), 0.0
        if self._due is not None:
            self._left -= 1
            if self._left <= 0:
                self._due.set()
                self._due = None

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._note("between steps")

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._note(task.name)

    def before_io_wait(self, _timeout: float) -> None:
        self._note("between steps")


def add(path: str, number: int, x: Any) -> float:
    """Leave a mark that the function has run; ``run`` calls it."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, number.to_bytes(8, "little"))
    finally:
        os.close(fd)
    return float(np.asarray(x).sum()) if isinstance(x, np.ndarray) else float(number)


@dataclass(frozen=True)
class Most:
    """Limit of a soak: a number of kills, or a time.

    Attributes:
        kills: largest number of kills.
        until: by ``time.monotonic``.
        turns: of the loop between two kills.
    """

    kills: int
    until: float
    turns: int

    def reached(self, kills: int) -> bool:
        """Return whether the limit is reached."""
        return kills >= self.kills or time.monotonic() >= self.until


class Load:
    """The tasks of one program, and their findings."""

    def __init__(self, device: Device, report: Report, seed: int, marks: str, first: int) -> None:
        self._device = device
        self._report = report
        self._seed = seed
        self._marks = marks
        self._next = first
        self.acknowledged: set[int] = set()
        self.stopped = False

    async def prepare(self) -> None:
        """Weights that survive everything."""
        self._weights = np.random.default_rng(self._seed).integers(-3, 4, (SIDE, SIDE))
        self._weights = self._weights.astype(np.float32)
        while True:
            with suppress(*FAULTS):
                self._sealed = await self._device.put(self._weights, sealed=True)
                return

    async def task(self, number: int) -> None:
        """Call one thing after another, and check the answers."""
        chance = random.Random(f"{self._seed}:{number}")
        kinds: tuple[Callable[[random.Random], Awaitable[bool]], ...] = (
            self._round_trip,
            self._product,
            self._batch,
            self._run,
            self._sealed_is_whole,
            self._fill,
        )
        report = self._report
        while not self.stopped:
            kind = chance.choice(kinds)
            report.asked += 1
            report.calls[kind.__name__] += 1
            with trio.move_on_after(PATIENCE) as patience:
                try:
                    if not await kind(chance):
                        report.wrong.append(f"{kind.__name__} of task {number}: another value")
                except FAULTS:
                    report.failed_by_fault += 1
                except DeviceLost:
                    report.failed_by_fault += 1
                    report.answered += 1
                    return
                except Exception as error:  # noqa: BLE001 (that is what is counted)
                    report.wrong.append(f"{kind.__name__} of task {number}: {error!r}")
                except BaseException:
                    # Cancelled, perhaps in a group: a device that is lost takes its block along.
                    # Or it was never answered.
                    report.answered += not patience.cancel_called
                    raise
            if patience.cancelled_caught:
                report.lost += 1
            else:
                report.answered += 1

    def _array(self, chance: random.Random) -> np.ndarray[Any, Any]:
        values = np.random.default_rng(chance.getrandbits(32)).integers(-9, 10, (SIDE, SIDE))
        return values.astype(np.float32)

    async def _round_trip(self, chance: random.Random) -> bool:
        rows = chance.choice((1, SIDE, 40_000))
        array = np.full((rows, SIDE), chance.randrange(100), np.float32)
        ref = await self._device.put(array)
        return bool((await self._device.get(ref) == array).all())

    async def _product(self, chance: random.Random) -> bool:
        array = self._array(chance)
        ref = await self._device.put(array)
        product = await self._device.blas.gemm(ref, self._sealed)
        return bool((await self._device.get(product) == array @ self._weights).all())

    async def _batch(self, chance: random.Random) -> bool:
        array = self._array(chance)
        async with self._device.batch() as batch:
            ref: GpuRef = batch.put(array)
            for _ in range(chance.randrange(1, 4)):
                ref = batch.blas.gemm(ref, self._sealed)
                array = array @ self._weights
            found = batch.get(ref)
        return bool((found.value == array).all())

    async def _run(self, chance: random.Random) -> bool:
        number = self._next = self._next + 1
        array = self._array(chance)
        ref = await self._device.put(array)
        result = await self._device.run(add, self._marks, number, ref)
        self.acknowledged.add(number)
        return bool(result == (array.sum() if self._device.backend == "cpu" else number))

    async def _sealed_is_whole(self, _chance: random.Random) -> bool:
        return bool((await self._device.get(self._sealed) == self._weights).all())

    async def _fill(self, chance: random.Random) -> bool:
        value = chance.randrange(100)
        ref = await self._device.full((SIDE,), value, np.float32)
        other = await self._device.copy(ref)
        await self._device.fill(ref, -1)
        return bool((await self._device.get(other) == value).all())


def children() -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    for path in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (path / "children").read_text().split())
    return found


def held() -> dict[str, int]:
    """Return the counts that a device must give back."""
    return {
        "processes": len(children()),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": sum(thread.name.startswith("lane") for thread in threading.enumerate()),
    }


def check_marks(report: Report, marks: str, acknowledged: set[int]) -> None:
    """Compare the functions that ran with the answers."""
    found = Counter(np.fromfile(marks, "<u8").tolist()) if Path(marks).exists() else Counter[int]()
    report.twice += sum(count > 1 for count in found.values())
    missing = len([number for number in acknowledged if number not in found])
    if missing:
        report.wrong.append(f"{missing} functions were answered and have not run")


async def kill(device: Device, chance: random.Random) -> str | None:
    """Kill one of the hosts, or end the context by a fault; return how, or None without a host."""
    alive = children()
    if not alive:
        await trio.lowlevel.checkpoint()
        return None
    if chance.random() < 0.9:
        # Nothing is awaited in between, so it is ours still, though it may be dying.
        with suppress(ProcessLookupError):
            os.kill(chance.choice(alive), signal.SIGKILL)
        await trio.lowlevel.checkpoint()
        return "kill"
    with suppress(*FAULTS):
        await poison(device)
    return "fault"


async def soak_processes(
    report: Report,
    turns: LoopFlusher,
    most: Most,
    tasks: int,
    seed: int,
    backend: str,
    marks: str,
    harm: Harm = kill,
    **options: Any,
) -> None:
    """Do harm to hosts while tasks go on."""
    chance = random.Random(seed)
    async with open_device(
        0,
        backend=backend,
        max_restarts=10**9,
        backoff=Backoff(initial=0.0, base=0.0),
        **options,
    ) as device:
        load = Load(device, report, seed, marks, 0)
        await load.prepare()
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(load.task, number)
            begun = told = time.monotonic()
            while not most.reached(report.kills):
                await turns.wait(chance.randrange(most.turns) + 1)
                if (now := time.monotonic()) - told >= PROGRESS:
                    told = now
                    print(f"{now - begun:.0f} s: {report.so_far}", flush=True)
                try:
                    how = await harm(device, chance)
                except AssertionError as error:
                    report.harmless.append(f"generation {device.generation}: {error}")
                    continue
                if how is None:
                    continue
                report.kills += 1
                report.harm[how] += 1
                if report.kills % 500 == 0:
                    print(f"{report.kills} kills, generation {device.generation}", flush=True)
            load.stopped = True
        report.generations = device.generation
        check_marks(report, marks, load.acknowledged)
        sealed = load._sealed
        del load
        collect_garbage()
        while device.statistics().in_flight:
            await trio.lowlevel.checkpoint()
        await device.trim()  # of thousands that are dropped, all are free then
        workspaces = (device.blaslt, device.cub, device.dnn, device.fft)
        used = device.statistics().memory.used
        used -= sum(library.statistics().workspace for library in workspaces)
        if used > sealed.nbytes:
            report.left.append(f"{used - sealed.nbytes} bytes of the device")
        if pinned := device.statistics().pinned.used:
            report.left.append(f"{pinned} bytes of page-locked memory")


async def soak_threads(
    report: Report, turns: LoopFlusher, most: Most, tasks: int, seed: int, backend: str, marks: str
) -> None:
    """Open devices that share this process, and lose each by a fault."""
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    for kill in itertools.count():
        if most.reached(kill):
            break
        try:
            async with open_device(0, backend=backend, isolation="thread") as device:
                load = Load(device, report, seed + kill, marks, kill << 32)
                load.acknowledged = acknowledged
                await load.prepare()
                async with trio.open_nursery() as nursery:
                    for number in range(tasks):
                        nursery.start_soon(load.task, number)
                    await turns.wait(chance.randrange(most.turns) // 5 + 1)
                    with suppress(ContextPoisoned, DeviceLost):
                        await poison(device)
                    load.stopped = True
        except DeviceLost:
            report.generations += 1
        report.kills += 1
    check_marks(report, marks, acknowledged)


async def soak(
    kills: int,
    tasks: int = 64,
    *,
    seed: int = 0,
    backend: str = "cpu",
    isolation: Isolation = "process",
    seconds: float = math.inf,
    turns: int = 200,
    standby: Standby = _WARM,
    harm: Harm = kill,
    **options: Any,
) -> Report:
    """Run one soak, and count the leftovers."""
    report = Report()
    begun = time.monotonic()
    before = held()
    with tempfile.TemporaryDirectory() as folder:
        hosts = partial(soak_processes, harm=harm, standby=standby, **options)
        body: Callable[..., Awaitable[None]] = hosts if isolation == "process" else soak_threads
        with LoopFlusher() as watch:
            most = Most(kills, begun + seconds, turns)
            try:
                await body(report, watch, most, tasks, seed, backend, str(Path(folder) / "marks"))
            except Exception as error:  # noqa: BLE001 (the report is wanted all the same)
                report.wrong.append("".join(traceback.format_exception(error)))
        report.longest = watch.longest
    collect_garbage()
    after = held()
    report.left += [
        f"{after[what] - count} {what}" for what, count in before.items() if after[what] > count
    ]
    report.lost += report.asked - report.answered
    report.seconds = time.monotonic() - begun
    return report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5000)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--isolation", choices=["process", "thread"], default="process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--turns", type=int, default=200, help="of the loop, between kills")
    parser.add_argument("--standby", choices=["hot", "warm"], default="warm")
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    report = trio.run(
        partial(
            soak,
            words.kills,
            words.tasks,
            seed=words.seed,
            backend=words.backend,
            isolation=words.isolation,
            seconds=words.seconds,
            turns=words.turns,
            standby=_WARM if words.standby == "warm" else Standby(hot=1),
        )
    )
    print(report)
    sys.exit(not report.good)


if __name__ == "__main__":
    main()
