"""Transforms against CuPy, and filling memory with random numbers against CuPy and memory.

Work is queued in a batch and timed until the last op has finished, here by
``device.batch``, there by a loop that synchronizes at its end; the median of five rounds.
How fast memory can be written is measured with a kernel that does nothing else. Without a
GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

ROUNDS = 5

WRITE = """
extern "C" __global__ void write(float4* out, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = make_float4(1, 2, 3, 4);
}
"""


def write(out: np.ndarray, count: np.int64) -> None:
    """What the kernel does, for the CPU backend."""
    out.reshape(-1)[: 4 * count] = 1


def call_on(library: str, method: str, *args: Any, **more: Any) -> None:
    """Queue an op on the batch that comes as the last of the arguments."""
    *rest, batch = args
    getattr(getattr(batch, library), method)(*rest, **more)


async def ours(device: Device, queue: Callable[[Any], object], repeats: int) -> float:
    """Seconds of one of ``repeats`` ops that a batch queues."""
    rounds = []
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        async with device.batch() as batch:
            for _ in range(repeats):
                queue(batch)
        if number:  # the first one makes plans and memory
            rounds.append((time.perf_counter() - start) / repeats)
    return statistics.median(rounds)


def theirs(call: Callable[[], object], repeats: int) -> float:
    """The same of CuPy."""
    import cupy

    synchronize = cupy.cuda.get_current_stream().synchronize
    call()
    synchronize()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize()
        rounds.append((time.perf_counter() - start) / repeats)
    return statistics.median(rounds)


def line(name: str, seconds: float, nbytes: float, other: float | None, goal: str) -> str:
    """A line of the table."""
    text = f"{name:30} {seconds * 1e6:10.1f} us {nbytes / seconds / 1e9:9.1f} GB/s"
    if other is None:
        return text
    return f"{text}   {other * 1e6:10.1f} us   {other / seconds:6.2f} {goal}"


async def transforms(device: Device, *, rival: bool) -> list[str]:
    """One complex transform of each size, and real, batched and strided ones."""
    gpu = device.backend == "cuda"
    rng = np.random.default_rng()
    cases: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
        (f"fft 2^{power}", "fft", (1 << power,), {}) for power in range(10, 27 if gpu else 15, 2)
    ]
    many = 256 if gpu else 8
    cases += [
        (f"fft {many} x 4096", "fft", (many, 4096), {}),
        (f"fft {many} x 4096, first axis", "fft", (4096, many), {"axis": 0}),
        (f"rfft {many} x 4096", "rfft", (many, 4096), {}),
        (f"irfft {many} x 2049", "irfft", (many, 2049), {}),
        (f"fftn {many}^2 x 64", "fftn", (many, many, 64), {}),
    ]
    lines = []
    for name, method, shape, options in cases:
        host = rng.standard_normal(shape, dtype=np.float32)
        if method != "rfft":
            host = host.astype(np.complex64)
        repeats = max(4, min(1000, (1 << 28) // host.nbytes if gpu else 4))
        ref = await device.put(host)
        out = await getattr(device.fft, method)(ref, **options)

        queue = partial(call_on, "fft", method, ref, out=out, **options)
        seconds = await ours(device, queue, repeats)
        other = None
        if rival:
            import cupy

            array = cupy.asarray(host)
            call = partial(getattr(cupy.fft, method), array, **options)
            other = theirs(call, repeats)
            del array, call
            cupy.get_default_memory_pool().free_all_blocks()
        lines.append(line(name, seconds, ref.nbytes + out.nbytes, other, "(goal >= 1.0)"))
        await device.free(ref)
        await device.free(out)
    return lines


async def fills(device: Device, *, rival: bool) -> list[str]:
    """Fill memory with numbers, beside filling it with a constant."""
    gpu = device.backend == "cuda"
    count, repeats = (1 << 29, 10) if gpu else (1 << 18, 4)
    out = await device.empty(count, np.float32)
    kernel = await device.nvrtc.compile(WRITE, "write", cpu=write)
    await kernel.launch(1, 1, out, 1)
    plain = await ours(
        device, lambda batch: batch.launch(kernel, 132 * 16, 256, out, count // 4), repeats
    )
    lines = [line("a constant", plain, out.nbytes, None, "")]
    for method in ("random", "normal"):
        name = f"{method}, float32"
        seconds = await ours(device, partial(call_on, "rng", method, out=out), repeats)
        lines.append(line(f"{name}, of memory", seconds, out.nbytes, plain, "(goal >= 0.9)"))
        if rival:
            import cupy

            generator = cupy.random.RandomState(1)
            draw = generator.random_sample if method == "random" else generator.standard_normal
            other = theirs(partial(draw, count, dtype=np.float32), repeats)
            lines.append(line(f"{name}, of CuPy", seconds, out.nbytes, other, ""))
            cupy.get_default_memory_pool().free_all_blocks()
    for method, args in (("exponential", ()), ("gamma", (2.0,)), ("poisson", (5.0,))):
        target = {"size": out.size // 2} if method == "poisson" else {"out": out}
        seconds = await ours(device, partial(call_on, "rng", method, *args, **target), repeats)
        lines.append(line(method, seconds, out.nbytes, None, ""))
    return lines


async def run() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with open_device(0) as device:
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        rival = device.backend == "cuda" and importlib.util.find_spec("cupy") is not None
        print(*await transforms(device, rival=rival), sep="\n")
        print(*await fills(device, rival=rival), sep="\n")


def main() -> None:
    """Run the benchmark."""
    trio.run(run)


if __name__ == "__main__":
    main()
