"""Ops in flight, batches, recordings, neighbours and completion, each against doing it by hand.

The rivals are tight synchronous loops of CuPy and PyTorch, which wait once after the last op, and a
CUDA graph captured by hand. They and we are measured in turns, in one run. Rivals that are missing
or fail to start are left out; without a GPU there are only our own numbers, of the CPU backend,
which runs fewer ops.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import numpy as np
import trio
from side_by_side import Rival, open_first, seconds_of, sides_of, there

from atomr_accel import open_device
from atomr_accel.backends import cuda
from atomr_accel.device._settings import Completion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from atomr_accel import Device

    Run = Callable[[int], Awaitable[None]]
    """A function that does this number of ops, and returns when all are done."""

ON_CUDA: Final = cuda.why_absent() is None
SCALE: Final = 1 if ON_CUDA else 20
ROUNDS: Final = 4
SIZES: Final = (64, 256, 1024) if ON_CUDA else (64,)
USUAL: Final = 256 if ON_CUDA else 64
IN_FLIGHT: Final = (64, 256)
BATCH: Final = 1000
STEPS: Final = 100
ELEMENTS: Final = (1 << 8, 1 << 20, 1 << 24) if ON_CUDA else (1 << 8,)
THREADS: Final = 256

ADD: Final = f"""
    extern "C" __global__ void add(float* x, float value) {{
        x[blockIdx.x * {THREADS} + threadIdx.x] += value;
    }}
"""


def add(x: Any, value: Any) -> None:
    """Add a value, as ``ADD`` does."""
    x += value


# --- measuring -----------------------------------------------------------------------------


class Goal(NamedTuple):
    """Bounds for a number: at least, or at most."""

    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        return f">= {self.least:g}" if self.most == math.inf else f"<= {self.most:g}"


@dataclass(frozen=True)
class Row:
    """A line of the table: what we do, what another does, and how much better that is."""

    name: str
    ours: str
    theirs: str = ""
    ratio: float | None = None
    goal: Goal | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = ""
        if self.goal is not None and self.ratio is not None:
            met = self.goal.least <= self.ratio <= self.goal.most
            verdict = f"{self.goal!s:8} {'met' if met else 'MISSED'}"
        return f"{self.name:38} {self.ours:>13}  {self.theirs:38} {ratio:>6}  {verdict}".rstrip()


async def contest(sides: dict[str, Run], count: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Return each contender's seconds per op: its best round, after one to warm up."""
    best: dict[str, float] = {}
    for attempt in range(rounds + 1):
        for name, run in sides.items():
            took = await seconds_of(run, count)
            if attempt:
                best[name] = min(took, best.get(name, took))
    return best


def flying(call: Callable[[], Awaitable[object]], in_flight: int) -> Run:
    """Return a run of ``in_flight`` tasks that call in a loop."""

    async def run(count: int) -> None:
        async def worker(share: int) -> None:
            for _ in range(share):
                await call()

        async with trio.open_nursery() as nursery:
            for n in range(in_flight):
                nursery.start_soon(worker, (count + n) // in_flight)

    return run


def tight(rival: Rival) -> Run:
    """Return a run of a loop that waits once, after its last call."""
    return sides_of(rival)[0]


def waited(rival: Rival) -> Run:
    """A loop that waits for each."""
    return sides_of(rival)[1]


def products(size: int) -> dict[str, Run]:
    """Return the installed rivals' products in float32."""
    host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
    found: dict[str, Run] = {}
    for name in ("cupy", "torch"):
        if ON_CUDA and there(name):
            try:
                found[f"tight {name}"] = tight(_product(importlib.import_module(name), host))
            except Exception as error:  # noqa: BLE001 (a rival that does not start)
                print(f"{name} is left out: {type(error).__name__}: {str(error)[:200]}")
    return found


def _product(library: Any, host: Any) -> Rival:
    if library.__name__ == "torch":
        library.backends.cuda.matmul.allow_tf32 = False
        a, b = (library.tensor(array, device="cuda") for array in host)
        wait = library.cuda.synchronize
    else:
        a, b = (library.asarray(array) for array in host)
        wait = library.cuda.get_current_stream().synchronize
    rival = Rival(lambda: a @ b, wait)
    rival.call()
    rival.wait()
    return rival


def rates(name: str, ours: float, theirs: dict[str, float], goal: float) -> Iterator[Row]:
    """Our rate against that of each rival; the goal holds against the last."""
    text = f"{1 / ours:,.0f}/s"
    if not theirs:
        yield Row(name, text)
    for at, (rival, took) in enumerate(theirs.items()):
        last = at == len(theirs) - 1
        yield Row(
            name, text, f"{rival} {1 / took:,.0f}/s", took / ours, Goal(goal) if last else None
        )


# --- measurements ------------------------------------------------------------------------


async def neighbours(device: Device) -> Iterator[Row]:
    """Measure what ops in flight cost other tasks, and what computing in Python costs ops."""
    host = np.random.default_rng(0).random((2, USUAL, USUAL), dtype=np.float32)
    a, b = await device.put(host[0]), await device.put(host[1])
    run = flying(lambda: device.blas.gemm(a, b), 64)
    count = 32000 // min(SCALE, 4)
    delays: list[float] = []

    async def watch(period: float) -> None:
        while True:
            start = time.perf_counter()
            await trio.sleep(period)
            delays.append(time.perf_counter() - start - period)

    await run(count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, 1e-3)
        await trio.sleep(0.5)
        idle = max(delays)
        delays.clear()
        quiet = min([await seconds_of(run, count) for _ in range(3)])
        nursery.cancel_scope.cancel()
    delays.sort()
    worst, usual = delays[-1], delays[len(delays) * 99 // 100]
    rows = [
        Row(
            "worst delay of another task, 64 in flight",
            f"{worst * 1e3:.2f} ms",
            f"99 % under {usual * 1e3:.2f} ms; idle {idle * 1e3:.2f} ms",
            worst * 1e3,
            Goal(most=2),
        )
    ]
    before = sys.getswitchinterval()
    # The usual interval is made short while ops are in flight; any other is the program's own.
    for interval, name in (
        (before, "a thread computes"),
        (4.9e-3, "a thread computes, switching every 4.9 ms"),
    ):
        stop = threading.Event()
        busy = threading.Thread(target=_compute, args=(stop.is_set,), daemon=True)
        sys.setswitchinterval(interval)
        busy.start()
        try:
            loud = min([await seconds_of(run, count // 8) for _ in range(3)])
        finally:
            stop.set()
            busy.join()
            sys.setswitchinterval(before)
        rows += rates(name, loud, {"without it": quiet}, 0.5)
    for share in (1e-4, 1e-3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_compute_task, share)
            loud = min([await seconds_of(run, count // 8) for _ in range(3)])
            nursery.cancel_scope.cancel()
        rows += rates(
            f"a task computes {share * 1e3:g} ms at a time", loud, {"without it": quiet}, 0.5
        )
    return iter(rows)


def _compute(stop: Callable[[], bool]) -> None:
    value = 1
    while not stop():
        for _ in range(1000):
            value = (value * 16807) % 2147483647


async def _compute_task(share: float) -> None:
    while True:
        end = time.perf_counter() + share
        value = 1
        while time.perf_counter() < end:
            for _ in range(100):
                value = (value * 16807) % 2147483647
        await trio.lowlevel.checkpoint()


class Graph:
    """``STEPS`` kernels captured by hand into a CUDA graph of this process."""

    def __init__(self, elements: int) -> None:
        from atomr_accel.backends.cuda.host.driver import check, driver
        from atomr_accel.executors.compiler import compile_cubin

        self._check, self._driver = check, driver
        check("cuInit", driver.cuInit(0))
        gpu = check("cuDeviceGet", driver.cuDeviceGet(0))
        context = check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(gpu))
        check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
        which = driver.CUdevice_attribute
        major, minor = (
            check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, gpu))
            for attribute in (
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        image, name, _ = compile_cubin(ADD, "add", (), (major, minor))
        module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
        function = check("cuModuleGetFunction", driver.cuModuleGetFunction(module, name.encode()))
        memory = check("cuMemAlloc", driver.cuMemAlloc(4 * elements))
        self.stream = check("cuStreamCreate", driver.cuStreamCreate(1))  # non-blocking
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check("cuStreamBeginCapture", driver.cuStreamBeginCapture(self.stream, mode))
        for _ in range(STEPS):
            arguments = ((int(memory), 1.0), (ctypes.c_void_p, ctypes.c_float))
            grid, block = (elements // THREADS, 1, 1), (THREADS, 1, 1)
            check(
                "cuLaunchKernel",
                driver.cuLaunchKernel(function, *grid, *block, 0, self.stream, arguments, 0),
            )
        graph = check("cuStreamEndCapture", driver.cuStreamEndCapture(self.stream))
        self.executable = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))

    def launch(self) -> None:
        """Replay it."""
        self._check("cuGraphLaunch", self._driver.cuGraphLaunch(self.executable, self.stream))

    def finish(self) -> None:
        """Wait for the stream."""
        self._check("cuStreamSynchronize", self._driver.cuStreamSynchronize(self.stream))


async def recordings(device: Device) -> Iterator[Row]:
    """A recording of ``STEPS`` kernels against the same graph by itself."""
    rows: list[Row] = []
    for elements in ELEMENTS:
        x = await device.zeros(elements, np.float32)
        kernel = await device.nvrtc.compile(ADD, "add", cpu=add)
        async with device.record() as recording:
            for _ in range(STEPS):
                recording.launch(kernel, elements // THREADS, THREADS, x, 1.0)
        await recording.replay()

        alone, many = flying(recording.replay, 1), flying(recording.replay, 8)
        ours = {"awaited": alone, "8 in flight": many}
        theirs: dict[str, tuple[str, Run]] = {}
        if ON_CUDA:
            graph = Rival((made := Graph(elements)).launch, made.finish)
            theirs = {
                "awaited": ("cuGraphLaunch, waited for", waited(graph)),
                "8 in flight": ("cuGraphLaunch, tight", tight(graph)),
            }
        for how, run in ours.items():
            sides = {"": run} | dict([theirs[how]] if how in theirs else [])
            took = await contest(sides, (200 if elements < 1 << 22 else 20) // min(SCALE, 10))
            mine = took.pop("")
            name, text = f"{STEPS} kernels, {elements:,}, {how}", f"{mine * 1e6:,.1f} us"
            if not took:
                rows.append(Row(name, text))
            for rival, other in took.items():
                against = f"{rival} {other * 1e6:,.1f} us"
                rows.append(Row(name, text, against, mine / other, Goal(most=1.1)))
    return iter(rows)


async def in_flight(device: Device) -> Iterator[Row]:
    """64 and 256 products in flight at each size."""
    rows: list[Row] = []
    for size in SIZES:
        host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        a, b = await device.put(host[0]), await device.put(host[1])
        call = lambda a=a, b=b: device.blas.gemm(a, b)  # noqa: E731
        ours = {f"gemm {size}, {count} in flight": flying(call, count) for count in IN_FLIGHT}
        took = await contest(ours | products(size), (3200 if size > 256 else 12800) // SCALE)
        theirs = {name: took[name] for name in took if name not in ours}
        for name in ours:
            rows += rates(name, took[name], theirs, 1.0)
    return iter(rows)


async def batches(device: Device) -> Iterator[Row]:
    """A batch of small products."""
    rows: list[Row] = []
    for size in SIZES[:2]:
        host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        a, b = await device.put(host[0]), await device.put(host[1])

        async def batch(count: int, a: Any = a, b: Any = b) -> None:
            async with device.batch() as batch:
                gemm = batch.blas.gemm
                for _ in range(count):
                    gemm(a, b)

        took = await contest({"": batch} | products(size), BATCH, 2 * ROUNDS)
        rows += rates(f"batch of {BATCH:,} gemm {size}", took.pop(""), took, 1.5)
    return iter(rows)


async def strategies() -> None:
    """Each completion strategy."""
    for completion in get_args(Completion):
        async with open_device(0, completion=completion, standby=None) as device:
            host = np.random.default_rng(0).random((2, USUAL, USUAL), dtype=np.float32)
            a, b = await device.put(host[0]), await device.put(host[1])
            call = lambda a=a, b=b, on=device: on.blas.gemm(a, b)  # noqa: E731
            alone = await contest({"": flying(call, 1)}, 1000 // SCALE)
            many = await contest({"": flying(call, 64)}, 12800 // SCALE)
        text = f"{1 / many['']:,.0f}/s with 64 in flight"
        print(Row(f"completion {completion}, one awaited", f"{alone[''] * 1e6:.1f} us", text))


async def run() -> None:
    """Measure and print."""
    begun = time.perf_counter()
    async with open_first() as device:
        print(f"{'what':38} {'here':>13}  {'the other':38} {'ratio':>6}  goal")
        # Rivals are imported last: another task's delays shall be ours, not those of
        # collecting their garbage.
        for measure in (neighbours, recordings, in_flight, batches):
            for row in await measure(device):
                print(row, flush=True)
    await strategies()
    print(f"in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    trio.run(run)
