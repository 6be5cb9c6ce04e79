"""Ops in flight, batches, recordings and completion, each against doing it by hand.

The rivals are measured in the same run: tight synchronous loops of CuPy and PyTorch, which
wait once at their end, and a CUDA graph captured by hand. What is not installed is left out;
without a GPU there are only our own numbers, of the CPU backend.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.backends import cuda
from atomr_accel.device._device import Completion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from atomr_accel import Device

ON_CUDA: Final = cuda.why_absent() is None
SCALE: Final = 1 if ON_CUDA else 50
"""The CPU backend gets so much less to do."""

SIZES: Final = (64, 256, 1024) if ON_CUDA else (64,)
USUAL: Final = 256 if ON_CUDA else 64
IN_FLIGHT: Final = (64, 256)
BATCH: Final = 1000
STEPS: Final = 100
THREADS: Final = 256

ADD: Final = f"""
    extern "C" __global__ void add(float* x, float value) {{
        x[blockIdx.x * {THREADS} + threadIdx.x] += value;
    }}
"""


def add(x: Any, value: Any) -> None:
    """What ``ADD`` does."""
    x += value


# --- measuring -----------------------------------------------------------------------------


async def latency(call: Callable[[], Awaitable[object]], repeats: int) -> float:
    """Median seconds of one awaited call."""
    for _ in range(repeats // 5):
        await call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        await call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


async def throughput(
    call: Callable[[], Awaitable[object]], total: int, in_flight: int, attempts: int = 3
) -> float:
    """Calls per second with so many tasks calling in a loop; the best attempt."""
    each = max(1, total // in_flight)

    async def worker() -> None:
        for _ in range(each):
            await call()

    best = 0.0
    for _ in range(attempts):
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(worker)
        best = max(best, each * in_flight / (time.perf_counter() - start))
    return best


def tight(step: Callable[[], object], finish: Callable[[], object], total: int) -> float:
    """Calls per second of a loop that waits at its end; the best of five, the first to warm up."""
    best = 0.0
    for attempt in range(6):
        start = time.perf_counter()
        for _ in range(total):
            step()
        finish()
        if attempt:
            best = max(best, total / (time.perf_counter() - start))
    return best


class Rival:
    """A library in a tight loop in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: Any = importlib.import_module(name)

    def arrays(self, size: int) -> tuple[Any, Any]:
        """Two float32 matrices on the device."""
        host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        if self.name == "torch":
            self.module.backends.cuda.matmul.allow_tf32 = False
            return self.module.tensor(host[0]).cuda(), self.module.tensor(host[1]).cuda()
        return self.module.asarray(host[0]), self.module.asarray(host[1])

    def finish(self) -> None:
        """Wait for everything."""
        if self.name == "torch":
            self.module.cuda.synchronize()
        else:
            self.module.cuda.get_current_stream().synchronize()

    def products(self, size: int, total: int) -> float:
        """Products per second."""
        a, b = self.arrays(size)
        return tight(lambda: a @ b, self.finish, total)


def rivals() -> list[Rival]:
    """Those that are here, the faster one last."""
    found = [Rival(name) for name in ("cupy", "torch") if importlib.util.find_spec(name)]
    return found if ON_CUDA else []


Row = tuple[str, str, str, str]


def compared(name: str, ours: float, theirs: list[tuple[str, float]], goal: str) -> Iterator[Row]:
    """Lines of the table: our rate against each rival's; the goal holds against the last."""
    text = f"{ours:,.0f}/s"
    if not theirs:
        yield name, text, "", ""
    for at, (rival, rate) in enumerate(theirs):
        last = at == len(theirs) - 1
        yield (
            name,
            text,
            f"{rival} {rate:,.0f}/s",
            f"{ours / rate:.2f}{f' ({goal})' if last else ''}",
        )


# --- what is measured ----------------------------------------------------------------------


async def in_flight(device: Device) -> list[Row]:
    """64 and 256 products in flight at each size."""
    rows: list[Row] = []
    for size in SIZES:
        host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        a, b = await device.put(host[0]), await device.put(host[1])
        total = (3200 if size > 256 else 32000) // SCALE
        theirs = [(f"tight {rival.name}", rival.products(size, total)) for rival in rivals()]
        for count in IN_FLIGHT:
            rate = await throughput(lambda a=a, b=b: device.blas.gemm(a, b), total, count)  # type: ignore[misc]
            rows += compared(f"gemm {size}, {count} in flight", rate, theirs, "goal >= 1.0")
    return rows


async def batches(device: Device) -> list[Row]:
    """A batch of small products."""
    rows: list[Row] = []
    for size in SIZES[:2]:
        host = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
        a, b = await device.put(host[0]), await device.put(host[1])
        best = 0.0
        for _ in range(6):
            start = time.perf_counter()
            async with device.batch() as batch:
                gemm = batch.blas.gemm
                kept = [gemm(a, b) for _ in range(BATCH)]
            best = max(best, BATCH / (time.perf_counter() - start))
            del kept, gemm, batch
        theirs = [(f"tight {rival.name}", rival.products(size, BATCH)) for rival in rivals()]
        rows += compared(f"batch of {BATCH:,} gemm {size}", best, theirs, "goal >= 1.5")
    return rows


class Graph:
    """``STEPS`` kernels captured by hand into a CUDA graph of this process."""

    def __init__(self, elements: int) -> None:
        import ctypes

        from atomr_accel.backends.cuda._driver import check, driver
        from atomr_accel.libraries.nvrtc._compiler import compile_cubin

        self._check, self._driver = check, driver
        check("cuInit", driver.cuInit(0))
        gpu = check("cuDeviceGet", driver.cuDeviceGet(0))
        context = check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(gpu))
        check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
        which = driver.CUdevice_attribute
        capability = tuple(
            check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, gpu))
            for attribute in (
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        image, name, _ = compile_cubin(ADD, "add", (), capability)
        module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
        function = check("cuModuleGetFunction", driver.cuModuleGetFunction(module, name.encode()))
        memory = check("cuMemAlloc", driver.cuMemAlloc(4 * elements))
        self.stream = check("cuStreamCreate", driver.cuStreamCreate(1))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check("cuStreamBeginCapture", driver.cuStreamBeginCapture(self.stream, mode))
        for _ in range(STEPS):
            arguments = ((int(memory), 1.0), (ctypes.c_void_p, ctypes.c_float))
            check(
                "cuLaunchKernel",
                driver.cuLaunchKernel(
                    function,
                    *(elements // THREADS, 1, 1),
                    *(THREADS, 1, 1),
                    0,
                    self.stream,
                    arguments,
                    0,
                ),
            )
        graph = check("cuStreamEndCapture", driver.cuStreamEndCapture(self.stream))
        self.executable = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))

    def launch(self) -> None:
        """Replay it."""
        self._check("cuGraphLaunch", self._driver.cuGraphLaunch(self.executable, self.stream))

    def finish(self) -> None:
        """Wait for the stream."""
        self._check("cuStreamSynchronize", self._driver.cuStreamSynchronize(self.stream))

    def latency(self, repeats: int) -> float:
        """Median seconds of a launch that is waited for."""
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.launch()
            self.finish()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)


async def recordings(device: Device) -> list[Row]:
    """A recorded program of ``STEPS`` kernels against the same graph by itself."""
    rows: list[Row] = []
    for elements in (THREADS, 1 << 20):
        x = await device.zeros(elements, np.float32)
        kernel = await device.nvrtc.compile(ADD, "add", cpu=add)
        async with device.record() as program:
            for _ in range(STEPS):
                program.launch(kernel, elements // THREADS, THREADS, x, 1.0)
        await program.replay()
        took = await latency(program.replay, 500 // SCALE)
        rate = await throughput(program.replay, 1000 // SCALE, 8)
        name = f"replay of {STEPS} kernels, {elements:,}"
        if not ON_CUDA:
            rows.append((name, f"{took * 1e6:.0f} us", "", ""))
            continue
        graph = Graph(elements)
        alone, tight_rate = graph.latency(500), tight(graph.launch, graph.finish, 200)
        rows += [
            (
                f"{name}, awaited",
                f"{took * 1e6:.0f} us",
                f"cuGraphLaunch, waited for {alone * 1e6:.0f} us",
                f"{took / alone:.2f} (goal <= 1.1)",
            ),
            (
                f"{name}, 8 in flight",
                f"{rate:,.0f}/s",
                f"cuGraphLaunch, tight {tight_rate:,.0f}/s",
                f"{rate / tight_rate:.2f} (goal >= 0.9)",
            ),
        ]
    return rows


async def neighbours(device: Device) -> list[Row]:
    """What ops in flight do to other tasks, and what a computing thread does to ops."""
    host = np.random.default_rng(0).random((2, USUAL, USUAL), dtype=np.float32)
    a, b = await device.put(host[0]), await device.put(host[1])
    total = 64000 // SCALE
    delays: list[float] = []

    async def watch(period: float) -> None:
        while True:
            start = time.perf_counter()
            await trio.sleep(period)
            delays.append(time.perf_counter() - start - period)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, 1e-3)
        await trio.sleep(0.5)
        idle = max(delays)
        delays.clear()
        await throughput(lambda: device.blas.gemm(a, b), total, 64)
        nursery.cancel_scope.cancel()
    delays.sort()
    worst, usual = delays[-1], delays[len(delays) * 99 // 100]
    rows: list[Row] = [
        (
            "worst delay of another task",
            f"{worst * 1e3:.2f} ms",
            f"99 % under {usual * 1e3:.2f} ms, idle {idle * 1e3:.2f} ms",
            "(goal < 2 ms)",
        )
    ]

    quiet = await throughput(lambda: device.blas.gemm(a, b), total, 64)
    before = sys.getswitchinterval()
    for interval in (before, 1e-4):
        sys.setswitchinterval(interval)
        stop = threading.Event()
        busy = threading.Thread(target=_compute, args=(stop,), daemon=True)
        busy.start()
        try:
            loud = await throughput(lambda: device.blas.gemm(a, b), total // 8, 64, attempts=2)
        finally:
            stop.set()
            busy.join()
            sys.setswitchinterval(before)
        rows.append(
            (
                f"a thread computes, switching {interval * 1e3:.1f} ms",
                f"{loud:,.0f}/s",
                f"without it {quiet:,.0f}/s",
                f"{loud / quiet:.2f} (goal >= 0.5)",
            )
        )
    return rows


def _compute(stop: threading.Event) -> None:
    value = 1
    while not stop.is_set():
        for _ in range(10_000):
            value = (value * 16807) % 2147483647


async def strategies() -> list[Row]:
    """Each completion strategy."""
    rows: list[Row] = []
    for completion in get_args(Completion):
        async with open_device(0, completion=completion) as device:
            host = np.random.default_rng(0).random((2, USUAL, USUAL), dtype=np.float32)
            a, b = await device.put(host[0]), await device.put(host[1])
            took = await latency(lambda a=a, b=b, d=device: d.blas.gemm(a, b), 2000 // SCALE)  # type: ignore[misc]
            rate = await throughput(
                lambda a=a, b=b, d=device: d.blas.gemm(a, b),  # type: ignore[misc]
                32000 // SCALE,
                64,
            )
            rows.append(
                (f"completion {completion}", f"{took * 1e6:.1f} us", f"{rate:,.0f}/s in flight", "")
            )
    return rows


async def run() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with open_device(0) as device:
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        for measure in (in_flight, batches, recordings, neighbours):
            _show(await measure(device))
    _show(await strategies())


def _show(rows: list[Row]) -> None:
    for name, ours, them, ratio in rows:
        print(f"{name:42} {ours:>14}   {them:38} {ratio}", flush=True)


def main() -> None:
    """Run the benchmark."""
    trio.run(run)


if __name__ == "__main__":
    main()
