"""Launches of a kernel, next to CuPy's ``RawKernel`` and ``cuda.core``.

The kernel does next to nothing, so the launch is measured: in a queue (a batch of ours), where each
waits for the one before, and alone. Of our own queue two more times are printed, of the program's
thread: until all is sent, and with the answers. See ``side_by_side.py``. Without a GPU only our own
numbers are printed.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from side_by_side import Rival, compare, open_first, there

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef, Kernel

LAUNCHES = 500
BATCHES = 10
GOAL, OF_THE_THREAD = 1.2, 6.0
BLOCK = 128
SOURCE = """
    extern "C" __global__ void step(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] + 1;
    }
"""


def step(x: Any, y: Any, n: int) -> None:
    """Add 1, as the kernel does."""
    y[:n] = x[:n] + 1


def of_cupy() -> Rival:
    """Return the same launch by CuPy."""
    import cupy

    x, y = cupy.zeros(BLOCK, "f4"), cupy.zeros(BLOCK, "f4")
    kernel = cupy.RawKernel(SOURCE, "step")
    count = np.int32(BLOCK)
    return Rival(
        lambda: kernel((1,), (BLOCK,), (x, y, count)), cupy.cuda.get_current_stream().synchronize
    )


def of_cuda_core() -> Rival:
    """Return the same launch by ``cuda.core``."""
    from cuda import core

    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    options = core.ProgramOptions(arch=f"sm_{device.arch}")
    kernel = core.Program(SOURCE, "c++", options).compile("cubin").get_kernel("step")
    x, y = (device.allocate(4 * BLOCK, stream=stream) for _ in range(2))
    shape, count = core.LaunchConfig(grid=1, block=BLOCK), np.int32(BLOCK)
    return Rival(lambda: core.launch(stream, shape, kernel, x, y, count), stream.sync)


def rivals() -> dict[str, Rival]:
    """Return the rivals that are installed."""
    found = {}
    if there("cupy"):
        found["cupy"] = of_cupy()
    if there("cuda") and there("cuda.core"):
        found["cuda.core"] = of_cuda_core()
    return found


async def of_the_thread(
    device: Device, kernel: Kernel[Any], x: GpuRef, y: GpuRef
) -> tuple[float, float]:
    """Microseconds of the program's thread for a launch: until it is sent, and with its answer."""
    rounds = []
    for _ in range(BATCHES + 2):
        thread = time.thread_time()
        async with device.batch() as batch:
            for _ in range(LAUNCHES):
                batch.launch(kernel, 1, BLOCK, x, y, BLOCK)
            submitted = time.thread_time()
        rounds.append((submitted - thread, time.thread_time() - thread))
    columns = zip(*rounds[2:], strict=True)
    sent, whole = (statistics.median(each) / LAUNCHES * 1e6 for each in columns)
    return sent, whole


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        kernel = await device.nvrtc.compile(SOURCE, "step", cpu=step)
        x, y = [await device.zeros((BLOCK,), np.float32) for _ in range(2)]

        def call(on: Any) -> Any:
            launch = kernel.launch if on is device else partial(on.launch, kernel)
            return launch(1, BLOCK, x, y, BLOCK)

        ours, theirs = await compare(device, call, rivals() if device.backend == "cuda" else {})
        sent, whole = await of_the_thread(device, kernel, x, y)
        print(f"{'us a launch':16}  queued   alone")
        print(f"{'here':16} {ours.queued * 1e6:7.1f} {ours.alone * 1e6:7.1f}")
        for name, pace in theirs.items():
            ratio = ours.queued / pace.queued
            print(
                f"{name:16} {pace.queued * 1e6:7.1f} {pace.alone * 1e6:7.1f}"
                f"  here {ratio:.2f} times that in a queue (goal at most {GOAL})"
            )
        print(
            f"the program's thread: {sent:.1f} us until it is sent (goal at most {OF_THE_THREAD}),"
            f" {whole:.1f} with its answer"
        )


if __name__ == "__main__":
    trio.run(run)
