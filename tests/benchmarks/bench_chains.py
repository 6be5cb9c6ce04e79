"""Chains of dependent ops in a batch: the cost of an op for the program's thread, and in all.

Each chain is 200 ops on matrices of 256 by 256, each of the result of the one before. It prints
three times, medians of ten batches: the thread's until all is submitted, the thread's until the
block is left, and the clock's. Some chains alternate between libraries. With PyTorch and a GPU, the
clock time of its eager loop is measured in between.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import trio
from side_by_side import open_first

from atomr_accel import Device, GpuRef

LENGTH = 200
BATCHES = 10
SIZE = 256
SOURCE = """
    struct __half { unsigned short bits; };
    extern "C" __global__ void step(const __half* x, __half* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i];
    }
"""

_BIASED = "blaslt.matmul with bias"
TURNS = {
    "gemm, blaslt": ("gemm", _BIASED),
    "layer_norm, blaslt": ("layer_norm", _BIASED),
    "all four": ("layer_norm", _BIASED, "a kernel", "gemm"),
}
"""Chains that change from library to library."""

Step = Callable[[Any, GpuRef], GpuRef]
"""The next op of a chain, given a batch and the last result."""


def step(x: Any, y: Any, n: int) -> None:
    """Copy x to y, as the kernel does."""
    y.reshape(-1)[:n] = x.reshape(-1)[:n]


async def chains(device: Device) -> dict[str, tuple[GpuRef, Step]]:
    """Each chain's first buffer and its step."""
    half = await device.put(np.eye(SIZE, dtype=np.float16))
    scale = await device.put(np.ones(SIZE, np.float16))
    bias = await device.put(np.zeros(SIZE, np.float16))
    kernel = await device.nvrtc.compile(SOURCE, "step", cpu=step)
    one = await device.zeros((SIZE, SIZE), np.float16)
    other = await device.zeros((SIZE, SIZE), np.float16)

    def launch(batch: Any, x: GpuRef) -> GpuRef:
        y = other if x is one else one
        batch.launch(kernel, SIZE, SIZE, x, y, SIZE * SIZE)
        return y

    steps: dict[str, Step] = {
        "gemm": lambda batch, y: batch.blas.gemm(y, half),
        "relu": lambda batch, y: batch.dnn.relu(y),
        "layer_norm": lambda batch, y: batch.dnn.layer_norm(y, scale, bias),
        "blaslt.matmul": lambda batch, y: batch.blaslt.matmul(y, half),
        "blaslt.matmul with bias": lambda batch, y: batch.blaslt.matmul(y, half, bias=bias),
        "a kernel": launch,
    }
    for name, taking in TURNS.items():
        steps[name] = in_turns([steps[each] for each in taking])
    return {name: (half, step) for name, step in steps.items()}


def in_turns(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a step that runs the given ones in rotation."""
    numbers = itertools.count()
    return lambda *given: steps[next(numbers) % len(steps)](*given)


def eager() -> dict[str, Callable[[], None]]:
    """Return the same chains as a loop of PyTorch, if it is installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch
    from torch.nn import functional

    if not torch.cuda.is_available():
        return {}
    half = torch.eye(SIZE, dtype=torch.float16, device="cuda")
    scale, bias = torch.ones_like(half[0]), torch.zeros_like(half[0])
    steps: dict[str, Callable[[Any], Any]] = {
        "gemm": lambda y: y @ half,
        "relu": torch.relu,
        "layer_norm": lambda y: functional.layer_norm(y, (SIZE,), scale, bias),
        "blaslt.matmul": lambda y: y @ half,
        "blaslt.matmul with bias": lambda y: functional.linear(y, half, bias),
    }
    for name, taking in TURNS.items():
        if steps.keys() >= {*taking}:
            steps[name] = in_turns([steps[each] for each in taking])

    def loop(step: Callable[[Any], Any]) -> None:
        y = half
        for _ in range(LENGTH):
            y = step(y)
        torch.cuda.synchronize()

    return {name: partial(loop, step) for name, step in steps.items()}


async def measure(device: Device, first: GpuRef, chain: Step) -> tuple[float, float, float]:
    """Microseconds of one op: of the thread submitting, of the thread in all, of the clock."""
    rounds = []
    for _ in range(BATCHES + 2):
        clock, thread = time.perf_counter(), time.thread_time()
        async with device.batch() as batch:
            y = first
            for _ in range(LENGTH):
                y = chain(batch, y)
            submitted = time.thread_time()
        ended = time.thread_time()
        rounds.append((submitted - thread, ended - thread, time.perf_counter() - clock))
    columns = zip(*rounds[2:], strict=True)
    submitting, whole, wall = (statistics.median(each) / LENGTH * 1e6 for each in columns)
    return submitting, whole, wall


async def main() -> None:
    """Measure and print."""
    async with open_first() as device:
        print(f"{'us an op':26} submitted  thread   clock   torch  ratio")
        there, rivals = await chains(device), eager()
        gc.collect()
        gc.freeze()  # otherwise the first chain pays for the garbage of imports
        for name, (first, chain) in there.items():
            ours = await measure(device, first, chain)
            line = f"{name:26} {ours[0]:9.1f} {ours[1]:7.1f} {ours[2]:7.1f}"
            if name in rivals:
                rivals[name]()
                begun = time.perf_counter()
                for _ in range(BATCHES):
                    rivals[name]()
                theirs = (time.perf_counter() - begun) / BATCHES / LENGTH * 1e6
                line += f" {theirs:7.1f} {ours[2] / theirs:6.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    trio.run(main)
