"""Cost of watching: 64 products in flight, and a question to an actor, watched and unwatched.

All contenders run in turns in one process, in another order each round, so that a busy moment of
the machine hits all alike. Prints the median time of each, and the median of its ratios to the
unwatched run of the same round; the second unwatched run shows how much of a ratio is noise. The
goals: only noise for an instrument that overrides few methods, 3 % for metrics, and 10 % for a
timeline.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from bench_actors import Add, Counter
from measuring import seconds_in_flight
from side_by_side import parser_of_lines, wanted

from atomr_accel import DeviceInstrument, open_device
from atomr_accel.backends import cuda
from atomr_accel.telemetry import Metrics, trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from atomr_accel import Device, FinishedOps, WatchedOp
    from atomr_accel.actors import ActorRef
    from atomr_accel.lanes import Outcome

IN_FLIGHT: Final = 64
OPS: Final = 2560
ASKS: Final = 400
ROUNDS: Final = 25


class Faults(DeviceInstrument):
    """An instrument that listens for rare events."""

    def fault(self, device: object, fault: object) -> None:
        """Nothing."""


class Ops(DeviceInstrument):
    """Listens to all of each op, and does nothing."""

    def op_submitted(self, op: WatchedOp) -> None:
        """Nothing."""

    def op_sent(self, op: WatchedOp) -> None:
        """Nothing."""

    def op_finished(self, op: WatchedOp, outcome: Outcome) -> None:
        """Nothing."""


class Together(DeviceInstrument):
    """An instrument that takes some dozens of ops at a time."""

    def __init__(self) -> None:
        self.groups = self.ops = 0

    def ops_finished(self, ops: FinishedOps) -> None:
        """Count them."""
        self.groups += 1
        self.ops += len(ops.seqs)


class Timed(Ops):
    """Has hosts tell their times as well."""

    timed = True


async def gemms(device: Device, a: Any) -> float:
    """Seconds for an op, with ``IN_FLIGHT`` at a time."""
    return await seconds_in_flight(lambda: device.blas.gemm(a, a), IN_FLIGHT, OPS // IN_FLIGHT)


async def asks(counter: ActorRef) -> float:
    """Seconds for a question and its answer."""
    message = Add(k=1)
    begun = time.perf_counter()
    for _ in range(ASKS):
        await counter.ask(message)
    return (time.perf_counter() - begun) / ASKS


@asynccontextmanager
async def entered(manager: AbstractContextManager[object]) -> AsyncIterator[None]:
    """A context manager as an asynchronous one."""
    with manager:
        yield


@contextmanager
def contenders(device: Device) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield the contenders by name: context managers, made anew for each round."""
    with tempfile.TemporaryDirectory() as folder:
        path, together = Path(folder) / "run.pftrace", Together()
        yield {
            "nobody": nullcontext,
            "nobody again": nullcontext,
            "faults only": lambda: entered(device.system.instrumented(Faults())),
            "every op": lambda: entered(device.system.instrumented(Ops())),
            "some ops at a time": lambda: entered(device.system.instrumented(together)),
            "with hosts' times": lambda: entered(device.system.instrumented(Timed())),
            "metrics": lambda: entered(Metrics().observe(device.system)),
            "metrics, every op": lambda: entered(Metrics().observe(device.system, every_op=True)),
            "timeline, untimed": lambda: trace(device, path, timed=False),
            "timeline": lambda: trace(device, path),
        }


async def main(only: list[str]) -> None:
    """Measure, and print."""
    backend = "cuda" if cuda.why_absent() is None else "cpu"
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {"op": {}, "ask": {}}
    chance = random.Random(1)
    async with open_device(0, backend=backend) as device:
        counter = await device.system.spawn(Counter)
        a = await device.put(np.ones((64, 64), np.float32))
        await gemms(device, a)
        with contenders(device) as every:
            named = {name: each for name, each in every.items() if wanted(name, ["nobody", *only])}
            for _ in range(ROUNDS):
                for name in chance.sample([*named], len(named)):
                    async with named[name]():
                        for what, number, run in (
                            ("op", OPS, gemms(device, a)),
                            ("ask", ASKS, asks(counter)),
                        ):
                            worked = time.process_time()
                            seconds = await run
                            worked = (time.process_time() - worked) / number
                            taken[what].setdefault(name, []).append((seconds, worked))
    print(f"{backend}, Python {sys.version.split()[0]}, {IN_FLIGHT} products of 64 x 64 in flight")
    print("us each, and what of that is the program's processor time, with ratios to nobody's")
    for what, by_name in taken.items():
        for name in named:
            told = ""
            for part in range(2):
                own = [times[part] for times in by_name[name]]
                others = [times[part] for times in by_name["nobody"]]
                ratio = statistics.median(map(truediv, own, others))
                told += f"{statistics.median(own) * 1e6:9.2f} ({ratio:.3f})"
            print(f"{what:>4} {name:>20}{told}")


if __name__ == "__main__":
    trio.run(main, parser_of_lines(__doc__).parse_args().only)
