"""Factorizations against CuPy and PyTorch: one large matrix, and many small ones.

What takes a few milliseconds is measured as other ops are: in a queue of many, and some in a row,
each alone. The others, of which the largest take a second, are measured in turns, one by one.
Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from side_by_side import (
    Pace,
    Rival,
    Row,
    compare,
    cupy_of,
    open_first,
    parser_of_lines,
    show,
    torch_of,
    wanted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

OPS = ("solve", "cholesky", "qr", "svd", "eigh")
FLOPS = {"solve": 2 / 3, "cholesky": 1 / 3, "qr": 4 / 3 * 2, "svd": 22.0, "eigh": 9.0}
"""Operations on a matrix of n rows, in units of n cubed; the usual counts for iterations."""

GOALS = {"cupy": 1.0, "torch": 1.0}
LEAST, MOST, ROUND = 4, 30, 0.4
"""Calls of each side, the first two of which do not count; and how many seconds they may take."""

SHORT, SMALL = 8e-3, 20 << 20
"""Seconds of a call, and bytes of its matrices, up to which there is a queue of many."""

SECONDS = 55.0
"""Time after which no new measurement begins; the rest is reported as left out."""


def shapes(*, gpu: bool) -> list[tuple[int, ...]]:
    """Many small matrices, then single ones that grow."""
    many = (4096, 32, 32) if gpu else (64, 32, 32)
    return [many, *((n, n) for n in ((512, 1024, 2048, 4096, 8192) if gpu else (128, 256)))]


def rivals_of(device: Device, op: str, host: np.ndarray[Any, Any]) -> dict[str, Rival]:
    """Return the rivals' equivalents."""
    found = {}

    def sides(a: Any) -> tuple[Any, ...]:
        return (a, a) if op == "solve" else (a,)

    if cupy := cupy_of(device):
        options = {"full_matrices": False} if op == "svd" else {}
        call = partial(getattr(cupy.linalg, op), *sides(cupy.asarray(host)), **options)
        found["cupy"] = Rival(call, cupy.cuda.get_current_stream().synchronize)
    if torch := torch_of(device):
        options = {"full_matrices": False} if op == "svd" else {}
        call = partial(getattr(torch.linalg, op), *sides(torch.from_numpy(host).cuda()), **options)
        found["torch"] = Rival(call, torch.cuda.synchronize)
    return found


def title_of(op: str, shape: tuple[int, ...]) -> str:
    """The name of a line."""
    return f"{op} {' x '.join(map(str, shape))}"


async def measure(device: Device, op: str, shape: tuple[int, ...]) -> Row:
    """One op on one shape."""
    n = shape[-1]
    x = np.random.default_rng().standard_normal(shape, dtype=np.float32)
    host = x @ x.swapaxes(-1, -2) / n + np.eye(n, dtype=np.float32)
    a = await device.put(host)
    args = (a, a) if op == "solve" else (a,)
    options = {"full_matrices": False} if op == "svd" else {}
    rivals = rivals_of(device, op, host)
    work = FLOPS[op] + (2 if op == "solve" else 0)
    flops = work * n**3 * (shape[0] if len(shape) > 2 else 1)
    title = title_of(op, shape)

    def call(on: Any) -> Any:
        return getattr(on.linalg, op)(*args, **options)

    if host.nbytes <= SMALL and await is_short(partial(call, device), rivals):
        ours, theirs = await compare(device, call, rivals)
        return Row(title, flops, "TFLOP/s", ours, theirs, GOALS)
    samples: dict[str, list[float]] = {"": [], **{name: [] for name in rivals}}
    begun = time.perf_counter()
    while True:
        for name, seconds in samples.items():
            start = time.perf_counter()
            if name:
                rivals[name].call()
                rivals[name].wait()
            else:
                await call(device)
            seconds.append(time.perf_counter() - start)
        count = len(samples[""])
        if count >= MOST or (count >= LEAST and time.perf_counter() - begun > ROUND):
            break
    alone = {name: statistics.median(seconds[2:]) for name, seconds in samples.items()}
    paces = {name: Pace(seconds, seconds) for name, seconds in alone.items()}
    return Row(title, flops, "TFLOP/s", paces.pop(""), paces, GOALS)


async def is_short(call: Callable[[], Any], rivals: dict[str, Rival]) -> bool:
    """Return whether no side takes long."""
    await call()
    start = time.perf_counter()
    await call()
    seconds = [time.perf_counter() - start]
    for rival in rivals.values():
        for _ in range(2):
            start = time.perf_counter()
            rival.call()
            rival.wait()
        seconds.append(time.perf_counter() - start)
    return max(seconds) < SHORT


async def run(only: list[str]) -> None:
    """Measure and print."""
    async with open_first() as device:
        end = time.monotonic() + SECONDS
        for shape in shapes(gpu=device.backend == "cuda"):
            for op in OPS:
                if not wanted(title_of(op, shape), only):
                    continue
                if time.monotonic() > end:
                    print(f"{op} {shape}: left out, as {SECONDS:.0f} s are over")
                    continue
                show(await measure(device, op, shape))


if __name__ == "__main__":
    trio.run(run, parser_of_lines(__doc__).parse_args().only)
