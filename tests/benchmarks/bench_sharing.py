"""Effects of one program on another one on the same GPU: of work, faults, kills, hangs, shortages.

The other program multiplies matrices of 512 x 512, one after the other, and every 50th time it
allocates and frees 64 MiB. Its rows: products a second, the median, the 99th percentile and the
longest time of a product, errors, and the generation of its device, which is 1 unless a fault was
its own. ``--mps`` starts NVIDIA's Multi-Process Service for both, if its programs are here.

    python tests/benchmarks/bench_sharing.py
    python tests/benchmarks/bench_sharing.py --mps --seconds 5
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import trio

from atomr_accel import AccelError, CpuFallbackWarning, Device, OutOfMemory, open_device
from atomr_accel.testing import hang, kill_host, poison

SIDE = 512
EVERY = 50
SPARE = 256 << 20


# --- the other program ------------------------------------------------------------------------


async def other() -> None:
    """Multiply for ever; a line on standard input asks for a row about the time since the last."""
    taken: list[float] = []
    errors: Counter[str] = Counter()
    async with open_device(0) as device:
        x = await device.full((SIDE, SIDE), 1 / SIDE, np.float32)

        async def answer() -> None:
            lines = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
            while await lines.receive_some(1):
                found = sorted(taken) or [0.0]
                at = [found[min(len(found) - 1, int(q * len(found)))] for q in (0.5, 0.99, 1.0)]
                print(json.dumps([len(taken), *at, dict(errors), device.generation]), flush=True)
                taken.clear()
                errors.clear()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            for number in range(sys.maxsize):
                begun = time.perf_counter()
                try:
                    await device.blas.gemm(x, x)
                    if number % EVERY == 0:
                        await device.free(await device.empty(64 << 20, np.uint8))
                except AccelError as error:
                    errors[type(error).__name__] += 1
                taken.append(time.perf_counter() - begun)


# --- this one ---------------------------------------------------------------------------------


async def rest(_device: Device, until: float) -> None:
    """Do nothing."""
    await trio.sleep_until(until)


async def work(device: Device, until: float) -> None:
    """Multiply large matrices."""
    side = 4096 if device.backend == "cuda" else 256
    x = await device.full((side, side), 1 / side, np.float32)
    while trio.current_time() < until:
        async with device.batch() as batch:
            for _ in range(8):
                batch.blas.gemm(x, x)


def again(harm: Callable[[Device], Awaitable[object]]) -> Callable[[Device, float], Any]:
    """Return what does a harm, waits until the device is back, and does it again."""

    async def harms(device: Device, until: float) -> None:
        while trio.current_time() < until:
            with contextlib.suppress(AccelError):
                await harm(device)
            await device.retry(lambda: device.zeros(1))

    return harms


async def fill(device: Device, until: float) -> None:
    """Take all memory but a little."""
    held = []
    size = 1 << 30
    while size >= SPARE:
        try:
            held.append(await device.empty(size, np.uint8))
        except OutOfMemory:
            size //= 2
    await trio.sleep_until(until)
    for each in held:
        await device.free(each)


SCENES: dict[str, Callable[[Device, float], Awaitable[None]]] = {
    "rests": rest,
    "works": work,
    "faults": again(poison),
    "loses its host": again(kill_host),
    "hangs": again(hang),
    "fills the memory": fill,
}


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run NVIDIA's Multi-Process Service, and give the environment of its clients."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        sys.exit("nvidia-cuda-mps-control must be on the path for --mps; it is not")
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        away = subprocess.DEVNULL  # a daemon would keep them open
        told = {**os.environ, **env}
        subprocess.run([control, "-d"], env=told, check=True, stdout=away, stderr=away)
        os.environ.update(env)
        try:
            yield env
        finally:
            subprocess.run([control], env=told, input=b"quit\n", timeout=30, check=False)


async def main(seconds: float, scenes: list[str]) -> None:
    """Print a row for each scene."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    command = [sys.executable, "-W", "ignore", __file__, "--other"]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    rest_of_lines = b""

    async def row() -> list[Any]:
        nonlocal rest_of_lines
        await process.stdin.send_all(b"\n")  # type: ignore[union-attr]
        while b"\n" not in rest_of_lines:
            more = await process.stdout.receive_some()  # type: ignore[union-attr]
            if not more:
                raise RuntimeError("the other program has ended")
            rest_of_lines += more
        line, rest_of_lines = rest_of_lines.split(b"\n", 1)
        return list(json.loads(line))

    async with open_device(0, op_deadline=1.0) as device:
        print(f"{device.info.name}, backend {device.backend}; while this program ...")
        with contextlib.suppress(AccelError):  # all that it needs is compiled
            await hang(device)
        await device.retry(lambda: device.zeros(1))
        await row()
        for name in scenes:
            if name == "fills the memory" and device.backend != "cuda":
                continue  # that of the whole machine
            await row()
            begun = time.perf_counter()
            before = device.generation
            with trio.move_on_after(4 * seconds):
                await SCENES[name](device, trio.current_time() + seconds)
            took = time.perf_counter() - begun
            count, middle, late, longest, errors, generation = await row()
            print(
                f"  {name:18} {count / took:8.0f} products/s, {middle * 1e6:6.0f} us, 99 % below "
                f"{late * 1e6:8.0f}, longest {longest * 1e3:8.1f} ms; errors {errors or 'none'}; "
                f"generation {generation}; rebuilt here {device.generation - before} times",
                flush=True,
            )
    await process.stdin.aclose()
    await process.wait()


def options() -> argparse.Namespace:
    """Return what the command line says."""
    summary, *_ = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each scene")
    parser.add_argument("--scenes", default=",".join(SCENES), help="some of these")
    return parser.parse_args()


if __name__ == "__main__":
    given = options()
    if given.other:
        trio.run(other)
    else:
        with mps() if given.mps else contextlib.nullcontext():
            trio.run(main, given.seconds, given.scenes.split(","))
