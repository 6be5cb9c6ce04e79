"""Expressions: chains of elementwise functions, softmax and layer norm, against CuPy and PyTorch.

Chains of 3 to 12 functions on 2^10 to 2^28 numbers: ours as one kernel, CuPy's one by one and
by ``cupy.fuse``, PyTorch's one by one and by ``torch.compile``. Measured side by side, see
``side_by_side.py``; the share of the memory's bandwidth is printed behind. Stops when its time is
over. Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import side_by_side
import trio
from side_by_side import Rival, Row, compare, cupy_of, open_first, torch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BANDWIDTH = 4.8e12
"""Bytes in a second of an H200's memory."""

side_by_side.ROUNDS = 3
side_by_side.ROUND_SECONDS = 0.05


def chain3(x: Any, y: Any, xp: Any) -> Any:
    """Three functions."""
    return xp.maximum(x * 1.5 + y, x)


def chain6(x: Any, y: Any, xp: Any) -> Any:
    """Six."""
    return xp.tanh(xp.maximum(x * 1.5 + y, x) * 0.5) - y


def chain12(x: Any, y: Any, xp: Any) -> Any:
    """Twelve."""
    z = chain6(x, y, xp)
    return xp.sqrt(xp.abs(z * x - y) + 1.0) * z - x * 0.25


def softmax(x: Any, _y: Any, xp: Any) -> Any:
    """Return the softmax of each row."""
    if xp.__name__ == "torch":
        return xp.softmax(x, -1)
    e = xp.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x: Any, _y: Any, xp: Any) -> Any:
    """Return the layer norm of each row."""
    if xp.__name__ == "torch":
        return xp.nn.functional.layer_norm(x, x.shape[-1:])
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / xp.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


async def measure(
    device: Device, function: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Row:
    """A function on two arrays; of rows on one."""
    rows = len(shape) > 1
    x, y, out = [await device.rng.normal(size=shape, dtype=dtype) for _ in range(3)]
    fused = device.fuse(lambda x, y: function(x, y, np))
    if rows:  # into memory that is there, as a program of its own would

        def call(on: Any) -> Any:
            return on.evaluate(function(x, y, np).astype(dtype), out=out)
    else:

        def call(on: Any) -> Any:
            return fused(x, y) if on is device else on.using(fused)(x, y)

    rivals = rivals_of(device, function, shape, dtype)
    ours, theirs = await compare(device, call, rivals)
    reads = 1 if rows else 2
    amount = float((reads + 1) * np.prod(shape) * dtype.itemsize)
    goals = {"torch.compile": 1.0} if rows else {"cupy": 3.0}
    name = f"{function.__name__} {dtype.name} {'x'.join(map(str, shape))}"
    for ref in (x, y, out):
        await device.free(ref)
    return Row(name, amount, "GB/s", ours, theirs, goals)


def rivals_of(
    device: Device, function: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> dict[str, Rival]:
    """Return the same function by CuPy and PyTorch."""
    found: dict[str, Rival] = {}
    if (cupy := cupy_of(device)) and dtype.name != "bfloat16":
        a, b = (cupy.random.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in "ab")
        wait = cupy.cuda.Device().synchronize
        found["cupy"] = Rival(lambda: function(a, b, cupy), wait)
        if len(shape) == 1:
            fuse = cupy.fuse(kernel_name="fused")(lambda a, b: function(a, b, cupy))
            found["cupy.fuse"] = Rival(lambda: fuse(a, b), wait)
    if torch := torch_of(device):
        kind = getattr(torch, dtype.name)
        c, d = (torch.randn(*shape, device="cuda", dtype=kind) for _ in "cd")
        compiled = torch.compile(lambda c, d: function(c, d, torch))
        found["torch"] = Rival(lambda: function(c, d, torch), torch.cuda.synchronize)
        found["torch.compile"] = Rival(lambda: compiled(c, d), torch.cuda.synchronize)
    return found


async def run(seconds: float) -> None:
    """Measure and print."""
    begin = time.monotonic()
    float32 = np.dtype(np.float32)
    async with open_first() as device:
        gpu = device.backend == "cuda"
        jobs: list[tuple[Any, tuple[int, ...], np.dtype[Any]]] = []
        for bits in (24, 28, 20, 16, 10) if gpu else (10, 16):
            jobs += [(each, (1 << bits,), float32) for each in (chain3, chain6, chain12)]
        sizes = ((4096, 1024), (16384, 4096), (1 << 20, 128), (4096, 32768), (64, 1 << 20))
        for function in (softmax, layer_norm):
            for shape in sizes if gpu else ((64, 1024),):
                jobs += [(function, shape, float32), (function, shape, BFLOAT16)]
        for done, job in enumerate(jobs):
            if time.monotonic() - begin > seconds:
                print(f"stopped: {done} of {len(jobs)}")
                break
            row = await measure(device, *job)
            for line in row.lines():
                share = row.amount / row.ours.queued / BANDWIDTH
                print(f"{line} | {share:.2f} of {BANDWIDTH / 1e12} TB/s", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=240)
    trio.run(run, parser.parse_args().seconds)


if __name__ == "__main__":
    main()
