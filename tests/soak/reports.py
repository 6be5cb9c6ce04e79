"""Faults whose reports must name the right kernel, and the cost of keeping their notes.

``python -m tests.soak.reports --faults 100`` ends contexts by four kinds of faults in kernels of
NVRTC sources, in ops of this package, in functions that use torch, and in recordings, next to tasks
that ask for products. Each report must name the op. It prints how many did, how long after the
fault was detected the caller had the report, and how often the suspect was certain. First comes
the cost of the notes that hosts make of each op. On the CPU backend faults are simulated, those of
torch, too.

``--backend cuda`` needs a card. The exit status says whether all reports were right.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, get_args

import numpy as np
import trio

from atomr_accel import (
    ContextPoisoned,
    CpuFallbackWarning,
    Device,
    GpuRefStale,
    Standby,
    open_device,
)
from atomr_accel.testing import standby_ready
from atomr_accel.testing._faults import FAULTS, FaultName, simulate, source_of
from atomr_accel.wire.blackbox import BOX_BYTES, CURRENT, SEQ, BlackBox, note_thread

LIMIT: Final = 0.05
"""Seconds within which the first report has to be there."""

SIDE: Final = 256


class Trial(NamedTuple):
    """A fault to come.

    Attributes:
        name: the op that the report has to name.
        run: causes it.
        node: whether the report has to tell of the recording.
    """

    name: str
    run: Callable[[], Awaitable[object]]
    node: bool = False


async def _kernel(device: Device, fault: FaultName) -> Any:
    return await device.nvrtc.compile(source_of(fault), "fault", cpu=partial(simulate, fault))


async def in_source(device: Device, fault: FaultName) -> Trial:
    """A kernel of an NVRTC source."""
    kernel = await _kernel(device, fault)
    return Trial("kernel fault", partial(kernel.launch, 1, 1, 0))


async def in_batch(device: Device, fault: FaultName) -> Trial:
    """A kernel of an NVRTC source among ops of this package."""
    kernel = await _kernel(device, fault)
    x = await device.put(np.eye(SIDE, dtype=np.float32))

    async def run() -> None:
        async with device.batch() as batch:
            for _ in range(3):
                x2 = batch.blas.gemm(x, x)
            batch.launch(kernel, 1, 1, 0)
            for _ in range(3):
                batch.blas.gemm(x2, x)

    return Trial("kernel fault", run)


async def in_package(device: Device, fault: FaultName) -> Trial:
    """A kernel of this package, which reads far beyond a buffer."""
    del fault  # an index out of range is what such kernels can do
    x = await device.put(np.ones(4, np.float32))
    far = 2**40 if device.backend == "cuda" else 2**20
    at = await device.put(np.array([1, far], np.int64))
    return Trial("sparse.gather", partial(device.sparse.gather, x, at))


def torch_fault(kind: FaultName) -> None:
    """In the host: end the context by torch, or stand in for that."""
    try:
        import torch
    except ImportError:
        simulate(kind, None)
        return
    if not torch.cuda.is_available():
        simulate(kind, None)
        return
    x = torch.ones(4, device="cuda")
    x[torch.tensor([2**20], device="cuda")]  # torch asserts on the device
    torch.cuda.synchronize()


async def in_torch(device: Device, fault: FaultName) -> Trial:
    """A function that uses torch."""
    return Trial("run torch_fault", partial(device.run, torch_fault, fault, lane="torch"))


async def in_recording(device: Device, fault: FaultName) -> Trial:
    """A kernel among the ops of a recording."""
    kernel = await _kernel(device, fault)
    x = await device.put(np.ones(4, np.float32))
    async with device.record(x) as recording:
        recording.blas.scal(2.0, x)
        recording.launch(kernel, 1, 1, 0)
        recording.blas.scal(2.0, x)
    return Trial("recording.replay", partial(recording.replay, x), node=True)


PLACES: Final[tuple[Callable[[Device, FaultName], Awaitable[Trial]], ...]] = (
    in_source,
    in_batch,
    in_package,
    in_torch,
    in_recording,
)


async def products(device: Device) -> None:
    """Ask for products until cancelled."""
    while True:
        with suppress(ContextPoisoned, GpuRefStale):
            x = await device.put(np.eye(SIDE, dtype=np.float32))
            for _ in range(20):
                await device.blas.gemm(x, x)


class Tally:
    """Counts of the reports of one place."""

    def __init__(self) -> None:
        self.right = self.certain = self.nodes = self.faults = 0
        self.delays: list[float] = []
        self.wrong: Counter[str] = Counter()

    def add(self, trial: Trial, error: ContextPoisoned, now: float) -> None:
        """Count a report, which the caller had at a time."""
        self.faults += 1
        report = error.report
        if report is None or report.op is None:
            self.wrong["no op"] += 1
            return
        self.delays.append(now - report.at)
        self.certain += report.certain
        self.nodes += report.node is not None
        if report.op.name == trial.name and (report.node is not None) == trial.node:
            self.right += 1
        else:
            self.wrong[report.op.name] += 1

    def __str__(self) -> str:
        delays = [each * 1e3 for each in self.delays] or [float("nan")]
        said = (
            f"{self.right} of {self.faults} right, {self.certain} certain, {self.nodes} with a node"
            f"; report after {statistics.median(delays):.1f} ms, at most {max(delays):.1f} ms"
        )
        return said + (f"; wrong: {dict(self.wrong)}" if self.wrong else "")


def note_seconds() -> float:
    """Return the time that a thread of a host takes to note an op that it launches."""
    note_thread(BlackBox(bytearray(BOX_BYTES)).record(1))
    count = 200_000
    begun = time.perf_counter()
    for number in range(count):
        CURRENT.words[SEQ] = number
    return (time.perf_counter() - begun) / count


async def cost(device: Device) -> None:
    """Print the share of notes in the time of small ops that go together."""
    x = await device.put(np.eye(SIDE, dtype=np.float32))
    count, times = 500, []
    for _ in range(5):
        begun = time.perf_counter()
        async with device.batch() as batch:
            for _ in range(count):
                batch.blas.gemm(x, x)
        times.append((time.perf_counter() - begun) / count)
    op, note = statistics.median(times), note_seconds()
    print(f"    a note takes {note * 1e9:.0f} ns, {note / op:.2%} of an op of {op * 1e6:.1f} us")


async def soak(faults: int, backend: str, hot: int, seconds: float, beside: int) -> bool:
    """Cause faults in turn, and return whether all reports were right and in time."""
    tallies = {place.__name__: Tally() for place in PLACES}
    kinds = get_args(FaultName)
    assert set(kinds) == set(FAULTS)
    wanted = Standby(hot=hot) if hot else Standby()
    async with open_device(0, backend=backend, standby=wanted, max_restarts=10**6) as device:
        print(f"backend {device.backend}, {device.info.name}, {beside} tasks beside")
        await cost(device)
        begun = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(beside):
                nursery.start_soon(products, device)
            for number in range(faults):
                if time.monotonic() - begun > seconds:
                    print(f"    stopped after {seconds:g} s and {number} faults")
                    break
                if hot:
                    await standby_ready(device, 1)
                place = PLACES[number % len(PLACES)]
                kind = kinds[number // len(PLACES) % len(kinds)]
                trial = await _prepared(device, place, kind)
                try:
                    await trial.run()
                except ContextPoisoned as error:
                    tallies[place.__name__].add(trial, error, time.time())
                else:
                    tallies[place.__name__].wrong["no fault"] += 1
                    tallies[place.__name__].faults += 1
            nursery.cancel_scope.cancel()
    for name, tally in tallies.items():
        print(f"    {name:13} {tally}")
    late = sum(each > LIMIT for tally in tallies.values() for each in tally.delays)
    done = sum(tally.faults for tally in tallies.values())
    right = sum(tally.right for tally in tallies.values())
    print(f"    all           {right} of {done} right, {late} later than {LIMIT * 1e3:g} ms")
    return right == done and not late


async def _prepared(
    device: Device, place: Callable[[Device, FaultName], Awaitable[Trial]], kind: FaultName
) -> Trial:
    """Prepare a fault, again if the context ends meanwhile."""
    while True:
        try:
            return await place(device, kind)
        except (ContextPoisoned, GpuRefStale):
            await trio.lowlevel.checkpoint()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--backend", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--hot", type=int, default=2, help="standbys")
    parser.add_argument("--seconds", type=float, default=600, help="after which no fault follows")
    parser.add_argument("--beside", type=int, default=2, help="tasks that ask for products")
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    warnings.simplefilter("ignore", CpuFallbackWarning)
    arguments = (words.faults, words.backend, words.hot, words.seconds, words.beside)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(not trio.run(soak, *arguments))


if __name__ == "__main__":
    main()
