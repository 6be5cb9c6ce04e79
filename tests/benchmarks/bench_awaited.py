"""Stages of an awaited op, in the program and in its host, on one clock.

Products of 256 x 256 are awaited one by one. ``time.monotonic_ns`` is read at each stage in both
processes, which share that clock. Instruments report most of these moments. The others come from
the host, which loads its readings through ``sitecustomize`` (see ``timeline.py``), and from an
instrument of trio. Stages follow each other, so the last column, a mean over the fifth of the ops
around the median, adds up to the whole. Rounds without readings alternate with the others and show
their cost.

    python tests/benchmarks/bench_awaited.py                 # on a GPU, or without one on the CPU
    python tests/benchmarks/bench_awaited.py --backend cpu --size 8
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import trio
from side_by_side import open_first
from timeline import patch_hosts

from atomr_accel import CpuFallbackWarning, DeviceInstrument
from atomr_accel.backends import cuda

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import FinishedOps
    from atomr_accel.lanes import OpTimes

ROUNDS: Final = 10
PASSED_OVER: Final = 20
"""Ops at the beginning of a round that do not count."""

DTYPES: Final = {"cpu": "float32", "cuda": "float16"}
_FILE: Final = "ATOMR_AWAITED"

STAGES: Final = (
    ("program", "find the template, get a place in the order"),
    ("program", "until trio's loop has had its turn, encode"),
    ("both", "send, until the host's thread is awake"),
    ("host", "receive, decode"),
    ("host", "accept"),
    ("host", "launch: the executor and its library"),
    ("device", "until the device has ended, after the launch"),
    ("host", "until the host has seen the end"),
    ("host", "complete the op, encode the answer"),
    ("both", "send, until trio's loop is awake and has received"),
    ("program", "decode the answer, settle the op, wake its task"),
    ("program", "until the task runs"),
)
"""The process and the content of each stage."""


# --- in the host ----------------------------------------------------------------------------


def in_host() -> None:
    """Note the times at which this host receives, launches and answers ops."""
    from atomr_accel.host import _lane
    from atomr_accel.host._times import LaneTimes

    module: Any = _lane
    lane, times = module.Lane, cast("Any", LaneTimes)
    append, receive, flush, end = module.append_frame, lane.receive, lane.flush, times.end
    now = time.monotonic_ns
    received: dict[int, tuple[int, int]] = {}
    launched: dict[int, int] = {}
    lines: list[str] = []
    fd = os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def timed_receive(self: Any) -> Any:
        begun = now()
        requests = receive(self)
        if requests and self._times is not None:
            both = begun, now()
            received.update((request[0], both) for request in requests)
        return requests

    def timed_end(self: Any, launch: Any, seqs: Any) -> None:
        at = now()
        end(self, launch, seqs)
        if launch[0]:
            launched.update(dict.fromkeys(seqs, at))

    def timed_append(out: bytearray, message: object) -> None:
        append(out, message)
        if type(message) is list:  # the answered ops; the answer is sent next
            at = now()
            for seq in message:
                begun, decoded = received.pop(seq, (0, 0))
                ended = launched.pop(seq, 0)
                if begun and ended:
                    lines.append(f"{seq} {begun} {decoded} {ended} {at}\n")

    def timed_flush(self: Any) -> None:
        number = len(lines)
        flush(self)
        if number == len(lines) and lines:  # in rounds without readings
            os.write(fd, "".join(lines).encode())
            lines.clear()

    lane.receive, lane.flush, times.end = timed_receive, timed_flush, timed_end
    module.append_frame = timed_append


# --- in the program -------------------------------------------------------------------------


class Readings(DeviceInstrument):
    """Times of products."""

    timed = True

    def __init__(self) -> None:
        self._finished: list[FinishedOps] = []

    def ops_finished(self, ops: FinishedOps) -> None:
        """Keep them; decoding them now would delay the program."""
        self._finished.append(ops)

    @property
    def ops(self) -> list[tuple[int, OpTimes]]:
        """Sequence numbers and times, in their order."""
        return sorted(
            row
            for ops in self._finished
            if ops.name == "blas.gemm"
            for row in zip(ops.seqs, ops.times, strict=True)
        )


class Wakes(trio.abc.Instrument):
    """The last time at which a task was scheduled."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.at = 0
        self._task = task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Note the time."""
        if task is self._task:
            self.at = time.monotonic_ns()


async def plain(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Microseconds of awaited calls."""
    found = []
    for _ in range(count + PASSED_OVER):
        begun = time.monotonic_ns()
        await call()
        found.append((time.monotonic_ns() - begun) / 1e3)
    return found[PASSED_OVER:]


async def read(
    call: Callable[[], Awaitable[object]], count: int, wakes: Wakes
) -> list[tuple[int, int, int]]:
    """Times at which calls began, their tasks were scheduled, and calls returned."""
    found = []
    for _ in range(count + PASSED_OVER):
        begun = time.monotonic_ns()
        await call()
        ended = time.monotonic_ns()
        found.append((begun, wakes.at, ended))
    return found


def stages(
    ends: tuple[int, int, int], times: OpTimes, told: tuple[int, int, int, int]
) -> list[float]:
    """Microseconds of each stage, none of which is negative.

    Args:
        ends: the program's readings.
        times: the instrument's.
        told: the host's.
    """
    begun, woken, returned = ends
    received, decoded, launched, sent = told
    order = (
        *(begun, times.submitted, times.sent, received, decoded, times.launched, launched),
        *(times.ended, times.found, sent, times.answered, woken, returned),
    )
    moments = [begun]
    for moment in order[1:]:  # the device may have ended before its launch has returned
        moments.append(min(max(moments[-1], moment), returned))
    return [(after - before) / 1e3 for before, after in itertools.pairwise(moments)]


def table(rows: list[list[float]]) -> list[str]:
    """Lines to print: medians, 90th percentiles, and means around the median."""
    totals = [sum(row) for row in rows]
    usual = sorted(rows, key=sum)
    fifth = usual[len(usual) * 2 // 5 : max(len(usual) * 3 // 5, len(usual) * 2 // 5 + 1)]

    def line(where: str, what: str, values: list[float], mean: float) -> str:
        low, high = statistics.median(values), np.quantile(values, 0.9)
        return f"{where:8}{what:48}  {low:8.1f} us {high:8.1f} us {mean:8.1f} us"

    lines = [
        line(where, what, [row[at] for row in rows], statistics.fmean(row[at] for row in fifth))
        for at, (where, what) in enumerate(STAGES)
    ]
    return [*lines, line("", "all", totals, statistics.fmean(map(sum, fifth)))]


@dataclass
class Measured:
    """Readings of awaited ops, in their order.

    Attributes:
        ends: the program's.
        times: sequence numbers, and the instrument's.
        unread: microseconds of other ops, without readings.
    """

    ends: list[tuple[int, int, int]] = field(default_factory=list)
    times: list[tuple[int, OpTimes]] = field(default_factory=list)
    unread: list[float] = field(default_factory=list)


async def measure(backend: str, size: int, ops: int) -> Measured:
    """Await products, in rounds with and without readings."""
    measured = Measured()
    async with open_first(backend=backend, standby=None) as device:
        a = await device.put(np.eye(size, dtype=DTYPES[backend]))
        out = await device.empty(a.shape, a.dtype)

        def call() -> Awaitable[object]:
            return device.blas.gemm(a, a, out=out)

        each = max(1, ops // ROUNDS)
        await plain(call, each)
        for _ in range(ROUNDS):
            measured.unread += await plain(call, each)
            readings, wakes = Readings(), Wakes(trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(wakes)
            with device.system.instrumented(readings):
                ends = await read(call, each, wakes)
                device.system.tell_instruments()
            trio.lowlevel.remove_instrument(wakes)
            if len(times := readings.ops) != len(ends):
                raise RuntimeError(f"{len(times)} ops were reported, not {len(ends)}")
            measured.ends += ends[PASSED_OVER:]
            measured.times += times[PASSED_OVER:]
        await plain(call, 1)  # the host then writes its last readings
    return measured


def show(measured: Measured, told: str) -> None:
    """Print the table.

    Args:
        measured: the program's readings.
        told: the host's lines.
    """
    of_host: dict[int, tuple[int, int, int, int]] = {}
    for line in told.splitlines():
        seq, begun, decoded, ended, sent = map(int, line.split())
        of_host[seq] = begun, decoded, ended, sent
    rows, device_us = [], []
    for ends, (seq, times) in zip(measured.ends, measured.times, strict=True):
        if seq in of_host and times.found:
            rows.append(stages(ends, times, of_host[seq]))
            device_us.append((times.device_seconds or 0.0) * 1e6)
    low, high = statistics.median(measured.unread), np.quantile(measured.unread, 0.9)
    print(f"{'':56}  {'median':>11} {'90 %':>11} {'mean':>11}   {len(rows)} ops")
    print(*table(rows), sep="\n")
    print(f"{'device':8}{'of these it executes':48}  {statistics.median(device_us):8.1f} us")
    print(f"{'':8}{'all, without readings':48}  {low:8.1f} us {high:8.1f} us")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = "cpu" if cuda.why_absent() else "cuda"
    parser.add_argument("--backend", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--ops", type=int, default=1000)
    given = parser.parse_args()
    warnings.simplefilter("ignore", CpuFallbackWarning)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[_FILE] = str(folder / "times")
        patch_hosts(folder, "bench_awaited")
        measured = trio.run(measure, given.backend, given.size, given.ops)
        print(f"gemm {given.size} x {given.size} {DTYPES[given.backend]}, each awaited")
        show(measured, (folder / "times").read_text())


if __name__ == "__main__":
    main()
