"""``atomr-accel stress``: load, faults, and every result compared; then a verdict.

Clients compute with three libraries on sealed and plain buffers. They repeat each call that a fault
has interrupted, as a program would. One task breaks the device. All computations use small whole
numbers, which are exact in every order, so a result is right in every bit or it is wrong.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import trio

from .. import (
    AccelError,
    ContextPoisoned,
    DeviceLost,
    DeviceUnavailable,
    GpuRefStale,
    Standby,
    open_device,
)
from ..actors import Backoff
from ..testing import FAULTS, hang, kill_host, poison
from ..testing.garbage import collect_garbage
from ._documents import StressDocument
from ._errors import ExitCode, Refusal
from ._output import time_of
from ._unlogged import unlogged
from .host._kernels import scale, source_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from .. import Device, GpuRef
    from ..lanes import Isolation
    from ..testing import FaultName
    from ._output import CommandOutput

_ROWS, _DEPTH, _COLUMNS = 32, 48, 40
_LARGEST: Final = 8
"""Sums of products of whole numbers up to this are exact in float32, also in TF32."""
_HANG_SECONDS: Final = 3.0
"""Time after which an op counts as hung: all ops here take less than a twentieth of it."""
_TOLD: Final = 5
"""Number of unexpected errors to report."""
_PATIENCE: Final = 60.0
"""Seconds after which a device counts as lost."""

_STANDBYS: Final = {
    "auto": Standby(),
    "none": None,
    "warm": Standby(warm=1),
    "hot": Standby(hot=1),
    "parked": Standby(parked=1),
}


@dataclass(slots=True)
class EventTally:
    """Counts of events so far.

    Attributes:
        broken_at: the time of a fault that has no right result after it yet.
        breaking: whether a fault is being caused.
        unexplained: faults that the command did not cause.
        scope: ends load and faults when it is cancelled, or when the time is over.
    """

    rounds: int = 0
    wrong: int = 0
    broken: int = 0
    unexpected: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    broken_at: float | None = None
    breaking: bool = False
    unexplained: int = 0
    sealed_intact: bool = False
    leaked_bytes: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def right(self, generation: int, present: int) -> None:
        """Count a round that ended well, in the present generation or an earlier one."""
        self.rounds += 1
        if self.broken_at is not None and generation == present:
            self.recoveries.append(time.perf_counter() - self.broken_at)
            self.broken_at = None


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Load, break, compare, judge.

    Returns:
        ``OK`` if the verdict is ``"sound"``; ``WRONG`` if not.
    """
    if args.isolation == "thread" and not args.no_faults:
        raise Refusal(
            "a fault under --isolation thread is final; add --no-faults, or leave it at process",
            ExitCode.USAGE,
        )
    tally = EventTally()
    before = _descriptors()
    began = time.perf_counter()
    name = ""
    with out.progress("computing", args.seconds) as advance:
        try:
            with unlogged():
                name = trio.run(partial(_session, args, tally, advance))
        except DeviceUnavailable as error:
            raise Refusal(str(error)) from error
        except DeviceLost as error:
            tally.unexpected.append(f"the device was lost: {error}")
    seconds = time.perf_counter() - began
    collect_garbage()
    leaked = max(0, _descriptors() - before)
    reasons = judged(tally, leaked, faults=not args.no_faults)
    document = StressDocument(
        device=name or f"{args.backend}:{args.device}",
        isolation=args.isolation,
        seed=args.seed,
        seconds=seconds,
        rounds=tally.rounds,
        wrong=tally.wrong,
        broken=tally.broken,
        unexpected=tally.unexpected[:_TOLD],
        faults=dict(sorted(tally.faults.items())),
        recoveries=tally.recoveries,
        sealed_intact=tally.sealed_intact,
        leaked_bytes=tally.leaked_bytes,
        leaked_descriptors=leaked,
        verdict="unsound" if reasons else "sound",
        reasons=reasons,
    )
    _show(document, out)
    out.document(document)
    return ExitCode.WRONG if reasons else ExitCode.OK


def judged(tally: EventTally, leaked_descriptors: int, *, faults: bool) -> list[str]:
    """Why a device is unsound; nothing if it is sound."""
    reasons = {
        f"{tally.wrong} results were wrong": tally.wrong,
        f"{len(tally.unexpected)} errors that no fault explains": len(tally.unexpected),
        f"{tally.unexplained} faults that nobody has caused": tally.unexplained,
        "no result came": not tally.rounds,
        "sealed buffers have changed, or could not be read": not tally.sealed_intact,
        f"{tally.leaked_bytes} bytes of device memory were not given back": tally.leaked_bytes,
        f"{leaked_descriptors} file descriptors were not given back": leaked_descriptors,
        "no right result came after the last fault": tally.broken_at is not None,
        "the time was too short for a fault; make --seconds longer": faults and not tally.faults,
    }
    return [reason for reason, holds in reasons.items() if holds]


# --- a session -----------------------------------------------------------------------------


async def _session(
    args: argparse.Namespace, tally: EventTally, advance: Callable[[float], None]
) -> str:
    """Open the device, and do it all. Returns the device's name."""
    isolation: Isolation = "thread" if args.isolation == "thread" else "process"
    async with open_device(
        args.device,
        backend=args.backend,
        isolation=isolation,
        standby=None if isolation == "thread" else _STANDBYS[args.standby],
        # Any number of faults: the device must come back after each.
        max_restarts=1_000_000,
        backoff=Backoff(initial=0.0, base=0.0, maximum=0.0),
        op_deadline=None if args.no_faults else _HANG_SECONDS,
    ) as device:
        rng = np.random.default_rng(args.seed)
        data = rng.integers(-_LARGEST, _LARGEST, (_DEPTH, _COLUMNS)).astype("f4")
        weights = await device.put(data, sealed=True)
        used = await _used(device, partial(_warmed, device, weights, data))
        tally.scope.deadline = trio.current_time() + args.seconds
        with tally.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell_time, advance)
                for client in range(args.clients):
                    seeds = [args.seed, client]
                    nursery.start_soon(_client, device, weights, data, seeds, tally)
                if not args.no_faults:
                    nursery.start_soon(_breaker, device, args.seed, args.every, tally)
        caused = sum(tally.faults.values()) + tally.breaking
        # Whatever was going on is over; and the device has to be good for more.
        with trio.move_on_after(_PATIENCE):
            await device.retry(_round, device, weights, data, rng, tally, attempts=100)
            kept = await device.retry(device.get, weights, attempts=100)
            tally.sealed_intact = np.array_equal(kept, data)
            after = await _used(device, partial(_warmed, device, weights, data))
            tally.leaked_bytes = max(0, after - used)
            tally.unexplained = max(0, device.statistics().faults - caused)
        return device.name


async def _tell_time(advance: Callable[[float], None]) -> None:
    began = trio.current_time()
    while True:
        await trio.sleep(0.1)
        advance(trio.current_time() - began)


async def _warmed(device: Device, weights: GpuRef, data: np.ndarray[Any, Any]) -> None:
    """Do one round of each kind, so that libraries have allocated the memory that they keep."""
    await _round(device, weights, data, np.random.default_rng(0), EventTally())


async def _used(device: Device, warm: Callable[[], Awaitable[object]]) -> int:
    """Return the bytes in use, after libraries have warmed up and garbage is collected."""
    await device.retry(warm, attempts=100)
    collect_garbage()  # errors hold refs in cycles
    # Cancelled ops end and free their buffers without an event to wait for.
    while (now := device.statistics()).in_flight or now.memory.dropped:  # noqa: ASYNC110
        await trio.sleep(0.01)
    return now.memory.used


async def _client(
    device: Device,
    weights: GpuRef,
    data: np.ndarray[Any, Any],
    seeds: list[int],
    tally: EventTally,
) -> None:
    """Compute again and again; faults cost a round, and nothing else may."""
    rng = np.random.default_rng(seeds)
    while True:
        try:
            await _round(device, weights, data, rng, tally)
        except (ContextPoisoned, GpuRefStale):
            tally.broken += 1
        except DeviceLost:
            raise
        except AccelError as error:
            tally.unexpected.append(f"{type(error).__name__}: {error}")
            await trio.sleep(0.01)


async def _round(
    device: Device,
    weights: GpuRef,
    data: np.ndarray[Any, Any],
    rng: np.random.Generator,
    tally: EventTally,
) -> None:
    """Put, multiply by sealed weights, scale by a kernel, sort, get, and compare."""
    x = rng.integers(-_LARGEST, _LARGEST, (_ROWS, _DEPTH)).astype("f4")
    generation = device.generation
    kernel = await device.nvrtc.compile(source_of("scale"), "scale", cpu=scale)
    product = await device.blas.gemm(await device.put(x), weights)
    await kernel.launch(-(-product.size // 256), 256, product, product.size, 2.0)
    in_order = await device.array.sort(product.reshape(-1))
    expected = 2 * (x @ data)
    right = np.array_equal(await device.get(product), expected) and np.array_equal(
        await device.get(in_order), np.sort(expected, axis=None)
    )
    if right:
        tally.right(generation, device.generation)
    else:
        tally.wrong += 1


# --- what breaks it ------------------------------------------------------------------------


async def _breaker(device: Device, seed: int, every: float, tally: EventTally) -> None:
    """Break the device at times and in ways that follow from the seed."""
    chance = random.Random(seed)  # noqa: S311 (to be the same again)
    while True:
        await trio.sleep(min(chance.expovariate(1 / every), 5 * every))
        await _break(device, chance.choice(WAYS), tally)


WAYS: Final = (*FAULTS, "kill_host", "hang")
"""Ways to break a device: kernels by name, killing the host, and a hang."""


async def _break(device: Device, way: str, tally: EventTally) -> None:
    """Break a device in one way, and count that."""
    tally.breaking = True
    if way == "kill_host":
        await kill_host(device)
    elif way == "hang":
        with suppress(ContextPoisoned):  # it ends so
            await hang(device)
    else:
        await poison(device, cast("FaultName", way))
    tally.breaking = False
    tally.faults[way] += 1
    if tally.broken_at is None:
        tally.broken_at = time.perf_counter()


# --- for people ----------------------------------------------------------------------------


def _show(document: StressDocument, out: CommandOutput) -> None:
    faults = sum(document.faults.values())
    rows: list[tuple[str, str | int]] = [
        ("results", f"{document.rounds} right, {document.wrong} wrong"),
        ("rounds that faults ended", document.broken),
        ("faults", ", ".join(f"{n} {name}" for name, n in document.faults.items()) or "none"),
        ("sealed buffers", "intact" if document.sealed_intact else "not intact"),
        ("device memory not given back", f"{document.leaked_bytes} B"),
        ("descriptors not given back", document.leaked_descriptors),
    ]
    if document.recoveries:
        times = sorted(document.recoveries)
        middle, most = time_of(times[len(times) // 2]), time_of(times[-1])
        rows.insert(3, ("until the next right result", f"median {middle}, longest {most}"))
    out.table(
        f"{faults} faults in {document.seconds:.1f} s on {document.device}, seed {document.seed}",
        ("what", "seen"),
        rows,
    )
    for line in document.unexpected:
        out.line(f"unexpected: {line}", "bad")
    for reason in document.reasons:
        out.line(f"unsound: {reason}", "bad")
    if not document.reasons:
        out.line("sound", "good")


def _descriptors() -> int:
    """Return the number of descriptors of this process; 0 if it is unknown."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0
