"""Training: steps of AdamW next to copies of memory and NumPy, and what fault tolerance costs.

The first table has bytes per second of one fused step, which reads parameters, gradients and two
means, and writes all but the gradients. A copy on the device and NumPy's
step are compared with it. The second has a whole step of a trainer beside the same step by hand,
without snapshots, repeats and checks. On CUDA there is a billion parameters; without a GPU few.

    python tests/benchmarks/bench_train.py
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device, train
from atomr_accel.train import ModelLayout, ModelState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

TIMES = 3
ROUNDS = 3
STEPS = 20


async def seconds(call: Callable[[], Awaitable[object]]) -> float:
    """Return the median duration of a call."""
    await call()
    found = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        await call()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def by_numpy(size: int) -> Callable[[], Awaitable[object]]:
    """Make AdamW's step with NumPy, in place where it can be."""
    p, g, mean, square = (np.full(size, 0.5, np.float32) for _ in range(4))

    async def step() -> None:
        await trio.lowlevel.checkpoint()
        p[:] = p * (1 - 1e-5)
        mean[:] = 0.9 * mean + 0.1 * g
        square[:] = 0.999 * square + 0.001 * (g * g)
        p[:] = p - 1e-3 * (mean / (np.sqrt(square) + 1e-8))

    return step


async def adamw(device: Device, size: int, *, numpy: bool) -> None:
    """Print the first table."""
    params = {"w": np.zeros(size, np.float32)}
    optimizer = train.AdamW(lr=1e-3)
    state = await ModelState.create(device, ModelLayout(params, optimizer), params, optimizer)
    grads = await device.put(np.full(size, 0.5, np.float32))
    other = await device.empty(size, np.float32)

    async def step() -> None:
        await state.update(optimizer, grads, 1.0)

    async def copy() -> None:
        await device.copy(grads, other)

    ours = 7 * 4 * size / await seconds(step)
    memory = 2 * 4 * size / await seconds(copy)
    print(f"AdamW, {size:,} parameters: {ours / 1e9:.1f} GB/s")
    print(f"  a copy on the device: {memory / 1e9:.1f} GB/s, ratio {ours / memory:.2f}")
    if numpy:
        theirs = 7 * 4 * size / await seconds(by_numpy(size))
        print(f"  NumPy: {theirs / 1e9:.1f} GB/s, ratio {ours / theirs:.2f}")


def loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Mean squared error of three layers."""
    hidden = tape.dnn.gelu(tape.blas.gemm(batch["x"], p["a"]))
    hidden = tape.dnn.gelu(tape.blas.gemm(hidden, p["b"]))
    return train.mse(tape.blas.gemm(hidden, p["c"]), batch["y"])


async def trainer_step(device: Device, width: int, rows: int) -> None:
    """Print the second table."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    params = {"a": normal(64, width) / 8, "b": normal(width, width) / width, "c": normal(width, 1)}
    batch = {"x": normal(rows, 64), "y": normal(rows, 1)}
    optimizer = train.AdamW(lr=1e-3)
    state = await ModelState.create(device, ModelLayout(params, optimizer), params, optimizer)
    gradients = train.grad(device, loss)

    async def by_hand() -> None:
        for _ in range(STEPS):
            shard = {name: await device.put(array) for name, array in batch.items()}
            made, grads = await gradients(state.params, shard)
            flat = await state.gathered(grads)
            await device.get(made)
            await state.norm(flat, 1.0)
            await state.update(optimizer, flat, 1.0)

    async with train.open_data_parallel(
        [device], train.gradient_step(loss), params, optimizer, snapshot_every=STEPS
    ) as trainer:

        async def tolerant() -> None:
            async for _ in trainer.run([batch] * STEPS):
                pass

        await by_hand()
        await tolerant()
        rounds = [(await seconds(by_hand), await seconds(tolerant)) for _ in range(ROUNDS)]
    hand, whole = (statistics.median(each) / STEPS for each in zip(*rounds, strict=True))
    print(f"a step of {sum(each.size for each in params.values()):,} parameters, {rows} rows")
    print(f"  by hand {hand * 1e3:.3f} ms, trainer {whole * 1e3:.3f} ms, ratio {whole / hand:.3f}")


async def main() -> None:
    """Print both."""
    async with open_device(0, deterministic=True) as device:
        cuda = device.backend == "cuda"
        await adamw(device, 1_000_000_000 if cuda else 1 << 20, numpy=not cuda)
        await trainer_step(device, 4096 if cuda else 256, 8192 if cuda else 256)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
    sys.exit(0)
