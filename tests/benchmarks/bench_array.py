"""Functions of ``device.array``, and copies between layouts, against CuPy and PyTorch.

Gathers and scatters of rows, transposes and other copies of views, sorts, scans and counts.
Measured side by side, see ``side_by_side.py``: throughput of many in a queue, and latency of one
alone. Each line tells both, how many times as fast as the others we are, for what only moves memory
the share of its bandwidth, and how many seconds the line itself took. Stops when its time is over.
Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import side_by_side
import trio
from side_by_side import Rival, compare, open_first, parser_of_lines, there, wanted

from atomr_accel import Unsupported

if TYPE_CHECKING:
    from atomr_accel import Device

BANDWIDTH = 4.8e12
"""Bytes in a second of an H200's memory."""

BINS = 256
TOP = 64
NUMBERS = 1 << 16
"""Number of different values that ``unique`` finds, at most."""

side_by_side.ROUND_SECONDS = 0.02
side_by_side.MOST_QUEUED = 320  # results of so many have room at a time
side_by_side.ALONE = 10


@dataclass
class Job:
    """An op that one line of the table measures.

    Attributes:
        ours: one op on its argument, which is the device (then it is awaited) or a batch.
        cupy, torch: the rivals' ops, by the names of their functions. amount: bytes that it has to
        read and write; 0 if memory is not the limit. asks: whether it waits for the device's
        answer, so that no batch can have it.
    """

    ours: Callable[[Any], Any]
    cupy: dict[str, Callable[[], object]] = field(default_factory=dict)
    torch: dict[str, Callable[[], object]] = field(default_factory=dict)
    amount: float = 0
    asks: bool = False


Making = Callable[["Device"], Awaitable[Job]]


def drawn(xp: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Normal numbers of CuPy's or PyTorch's."""
    if xp == "cupy":
        import cupy

        return cupy.random.standard_normal(shape, dtype=cupy.float32).astype(dtype)
    import torch

    return torch.randn(*shape, device="cuda", dtype=getattr(torch, dtype))


def moved(xp: str, host: Any) -> Any:
    """NumPy's array as theirs."""
    if xp == "cupy":
        import cupy

        return cupy.asarray(host)
    import torch

    return torch.from_numpy(host).cuda()


def rivals_there(device: Device) -> list[str]:
    """Return the rivals that are installed."""
    return [name for name in ("cupy", "torch") if device.backend == "cuda" and there(name)]


# --- rows ----------------------------------------------------------------------------------------


def rows(width: int, dtype: str, count: int, kind: str) -> Making:
    """Rows of a table by their numbers, four times as many as it has: gathered, or added to."""

    async def make(device: Device) -> Job:
        many = count // 4
        numbers = np.random.default_rng(width).integers(0, many, count)
        table = await device.rng.normal(size=(many, width), dtype=dtype)
        plain = await device.rng.normal(size=(count, width), dtype=dtype)
        at = await device.put(numbers)
        item = np.dtype(dtype).itemsize
        gather = kind == "gather"
        # A sum is read and written, and the addend is read.
        amount = float(count * width * item * (2 if gather else 3) + numbers.nbytes)
        if gather:
            job = Job(lambda on: on.array.take(table, at, 0, out=plain), amount=amount)
        else:
            job = Job(lambda on: on.array.add_at(table, at, plain), amount=amount)
        for xp in rivals_there(device):
            t, p = (drawn(xp, (n, width), dtype) for n in (many, count))
            i = moved(xp, numbers)
            if xp == "cupy":
                import cupy

                if gather:
                    job.cupy["cupy"] = partial(cupy.take, t, i, 0, out=p)
                else:
                    job.cupy["cupy"] = partial(cupy.add.at, t, i, p)
            else:
                import torch

                if gather:
                    job.torch["index_select"] = partial(torch.index_select, t, 0, i, out=p)
                    job.torch["embedding"] = partial(torch.nn.functional.embedding, i, t)
                else:
                    job.torch["index_add"] = partial(t.index_add_, 0, i, p)
        return job

    return make


# --- views ---------------------------------------------------------------------------------------

VIEWS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "transposed": (2, lambda x: x.T),
    "inner axes exchanged": (3, lambda x: x.swapaxes(1, 2)),
    "outer axes exchanged": (3, lambda x: x.swapaxes(0, 1)),
    "every other column": (2, lambda x: x[:, ::2]),
    "half of each row": (2, lambda x: x[:, : x.shape[1] // 2]),
}
"""Number of axes of the array, and its view."""


def view(name: str, dtype: str, bits: int) -> Making:
    """A copy of a view, next to another one's."""
    ndim, see = VIEWS[name]
    side = 1 << bits // 2
    shape = (side, side) if ndim == 2 else (side // 32, 64, side // 2)

    async def make(device: Device) -> Job:
        seen = see(await device.rng.normal(size=shape, dtype=dtype))
        out = await device.empty(seen.shape, dtype)
        job = Job(lambda on: on.copy(seen, out), amount=2.0 * seen.nbytes)
        for xp in rivals_there(device):
            theirs = see(drawn(xp, shape, dtype))
            if xp == "cupy":
                import cupy

                job.cupy["cupy"] = partial(cupy.array, theirs, order="C")
            else:
                job.torch["contiguous"] = theirs.contiguous
        return job

    return make


# --- order and numbers ---------------------------------------------------------------------------


def row_of(name: str, power: int) -> Making:
    """A function of one row."""

    async def make(device: Device) -> Job:
        generator = np.random.default_rng(power)
        host: Any
        if name == "unique":
            host = generator.integers(0, NUMBERS, 1 << power, dtype=np.int32)
        else:
            host = generator.standard_normal(1 << power, dtype=np.float32)
        x = await device.put(host)
        like = await device.empty(x.shape, x.dtype)
        ours: dict[str, Callable[[Any], Any]] = {
            "sort": lambda on: on.array.sort(x, out=like),
            "top-k": lambda on: on.array.topk(x, TOP),
            "cumsum": lambda on: on.array.cumsum(x, out=like),
            "histogram": lambda on: on.array.histogram(x, BINS, (-4, 4)),
            "unique": lambda on: on.array.unique(x),
        }
        job = Job(ours[name], asks=name == "unique")
        for xp in rivals_there(device):
            t = moved(xp, host)
            if xp == "cupy":
                import cupy

                calls: dict[str, Callable[[Any], object]] = {
                    "sort": cupy.sort,
                    "top-k": lambda t: cupy.partition(t, TOP),
                    "cumsum": cupy.cumsum,
                    "histogram": lambda t: cupy.histogram(t, BINS, (-4, 4)),
                    "unique": cupy.unique,
                }
                job.cupy["cupy"] = partial(calls[name], t)
            else:
                import torch

                calls = {
                    "sort": torch.sort,
                    "top-k": lambda t: torch.topk(t, TOP),
                    "cumsum": lambda t: torch.cumsum(t, 0),
                    "histogram": lambda t: torch.histc(t, BINS, -4, 4),
                    "unique": torch.unique,
                }
                job.torch["torch"] = partial(calls[name], t)
        return job

    return make


def jobs(gpu: bool) -> dict[str, Making]:
    """All lines, by name."""
    made: dict[str, Making] = {}
    dtypes = ("float16", "float32")
    for kind in ("gather", "scatter-add"):
        for width in (64, 768):
            for dtype in dtypes:
                name = f"{kind} of {width} {dtype}"
                made[name] = rows(width, dtype, 1 << (20 if gpu else 6), kind)
    for name in VIEWS:
        for dtype in dtypes if name == "transposed" else ("float32",):
            made[f"{name} {dtype}"] = view(name, dtype, 26 if gpu else 12)
    for name in ("sort", "top-k", "cumsum", "histogram", "unique"):
        for power in (20, 24) if gpu else (8, 10):
            made[f"{name} 2^{power}"] = row_of(name, power)
    return made


# --- measuring -----------------------------------------------------------------------------------


def rivals_of(job: Job) -> dict[str, Rival]:
    """Return the rivals that have this op."""
    waits: dict[str, Callable[[], object]] = {}
    if job.cupy:
        import cupy

        waits |= dict.fromkeys(job.cupy, cupy.cuda.Device().synchronize)
    if job.torch:
        import torch

        waits |= dict.fromkeys(job.torch, torch.cuda.synchronize)
    rivals = {}
    for name, call in (job.cupy | job.torch).items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever they say instead
            print(f"  {name} does not: {error}")
        else:
            rivals[name] = Rival(call, waits[name])
    return rivals


async def measure(device: Device, name: str, make: Making) -> str:
    """A line."""
    begin = time.monotonic()
    job = await make(device)
    try:
        ours, theirs = await compare(device, job.ours, rivals_of(job), together=not job.asks)
    except Unsupported as error:
        return f"{name:30} not here: {error}"
    line = f"{name:30} {ours.queued * 1e6:9.1f} us, alone {ours.alone * 1e6:8.1f} us"
    if job.amount:
        line += f" {job.amount / ours.queued / BANDWIDTH:5.2f} of {BANDWIDTH / 1e12} TB/s"
    for rival, pace in theirs.items():
        line += f" | {rival} {pace.queued * 1e6:9.1f} us, ratio {pace.queued / ours.queued:5.2f}"
        line += f", alone {pace.alone * 1e6:8.1f} us, ratio {pace.alone / ours.alone:5.2f}"
    return f"{line} | took {time.monotonic() - begin:.1f} s"


def release() -> None:
    """Give back what the others keep."""
    for name, module in (("cupy", sys.modules.get("cupy")), ("torch", sys.modules.get("torch"))):
        if module is not None and name == "cupy":
            module.get_default_memory_pool().free_all_blocks()
        elif module is not None and module.cuda.is_available():
            module.cuda.empty_cache()


async def run(jobs: Callable[[bool], dict[str, Making]], only: list[str], seconds: float) -> None:
    """Measure and print."""
    begin = time.monotonic()
    # A standby would open the same lanes and build the same kernels, next to what is measured.
    async with open_first(standby=None) as device:
        chosen = {
            name: make
            for name, make in jobs(device.backend == "cuda").items()
            if wanted(name, only)
        }
        for done, (name, make) in enumerate(chosen.items()):
            if time.monotonic() - begin > seconds:
                print(f"stopped: {done} of {len(chosen)}")
                break
            print(await measure(device, name, make), flush=True)
            release()
    print(f"{time.monotonic() - begin:.1f} s in all")


def main(
    jobs: Callable[[bool], dict[str, Making]], description: str | None, seconds: float
) -> None:
    """Run a benchmark of jobs, given whether the device is a GPU."""
    parser = parser_of_lines(description)
    parser.add_argument("--seconds", type=float, default=seconds)
    given = parser.parse_args()
    trio.run(run, jobs, given.only, given.seconds)


if __name__ == "__main__":
    main(jobs, __doc__, 40)
