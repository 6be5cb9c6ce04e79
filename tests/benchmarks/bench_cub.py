"""Reductions, scans, sorts and their like against CuPy and PyTorch.

Measured side by side, see ``side_by_side.py``: throughput of many in a queue, and latency of one
alone. Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from side_by_side import (
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

    from atomr_accel import Device, GpuRef

BINS = 256
TOP = 64

Ours = dict[str, "Callable[[Any, GpuRef, dict[str, GpuRef]], Any]"]


def unique(on: Any, x: GpuRef, outs: dict[str, GpuRef]) -> Any:
    """Both steps, in a batch; alone only the second one waits."""
    return on.cub.unique(outs["sorted"])


OURS: Ours = {
    "reduce": lambda on, x, outs: on.cub.reduce(x, out=outs["one"]),
    "maximum": lambda on, x, outs: on.cub.reduce(x, "maximum", out=outs["one"]),
    "argmax": lambda on, x, outs: on.cub.argmax(x),
    "scan": lambda on, x, outs: on.cub.inclusive_scan(x, out=outs["like"]),
    "sort": lambda on, x, outs: on.cub.sort(x, out=outs["like"]),
    "argsort": lambda on, x, outs: on.cub.argsort(x),
    "unique of sorted": unique,
    "histogram": lambda on, x, outs: on.cub.histogram_even(x, BINS, -4, 4),
    "top-k by a sort": lambda on, x, outs: on.cub.sort(x, descending=True, out=outs["like"]),
}


def rivals_of(device: Device, name: str, host: Any) -> dict[str, Rival]:
    """Return the rivals' equivalents on the same numbers."""
    rivals: dict[str, Rival] = {}
    if cupy := cupy_of(device):
        x = cupy.asarray(host)
        ordered = cupy.sort(x)
        calls = {
            "reduce": partial(cupy.sum, x),
            "maximum": partial(cupy.max, x),
            "argmax": partial(cupy.argmax, x),
            "scan": partial(cupy.cumsum, x),
            "sort": partial(cupy.sort, x),
            "argsort": partial(cupy.argsort, x),
            "unique of sorted": partial(_kept, ordered),
            "histogram": partial(cupy.histogram, x, BINS, (-4, 4)),
            "top-k by a sort": partial(cupy.partition, x, TOP),
        }
        rivals["cupy"] = Rival(calls[name], cupy.cuda.get_current_stream().synchronize)
    if torch := torch_of(device):
        t = torch.from_numpy(host).cuda()
        sorted_t = torch.sort(t)[0]
        calls = {
            "reduce": partial(torch.sum, t),
            "maximum": partial(torch.max, t),
            "argmax": partial(torch.argmax, t),
            "scan": partial(torch.cumsum, t, 0),
            "sort": partial(torch.sort, t),
            "argsort": partial(torch.argsort, t),
            "unique of sorted": partial(torch.unique_consecutive, sorted_t),
            "histogram": partial(torch.histc, t, BINS, -4, 4),
            "top-k by a sort": partial(torch.topk, t, TOP),
        }
        rivals["torch"] = Rival(calls[name], torch.cuda.synchronize)
    return rivals


def _kept(ordered: Any) -> Any:
    """The first of equal neighbours, as CuPy's own ``unique`` has them."""
    import cupy

    mask = cupy.empty(ordered.shape, cupy.bool_)
    mask[:1] = True
    cupy.not_equal(ordered[1:], ordered[:-1], out=mask[1:])
    return ordered[mask]


async def measure(device: Device, name: str, power: int) -> Row:
    """One algorithm, of one size."""
    host = np.random.default_rng(power).standard_normal(1 << power, dtype=np.float32)
    x = await device.put(host)
    outs = {
        "one": await device.empty((), np.float32),
        "like": await device.empty(x.shape, np.float32),
        "sorted": await device.cub.sort(x),
    }
    rivals = rivals_of(device, name, host)
    goals = dict.fromkeys(rivals, 1.0)
    paces = await compare(device, lambda on: OURS[name](on, x, outs), rivals)
    if "cupy" in rivals:
        import cupy

        rivals.clear()
        cupy.get_default_memory_pool().free_all_blocks()
    return Row(f"{name} 2^{power}", x.nbytes, "GB/s", *paces, goals)


async def run(only: list[str]) -> None:
    """Measure and print."""
    async with open_first() as device:
        for name in OURS:
            for power in range(20, 29, 2) if device.backend == "cuda" else (12, 14):
                if wanted(f"{name} 2^{power}", only):
                    show(await measure(device, name, power))
        print(device.cub.statistics())


if __name__ == "__main__":
    trio.run(run, parser_of_lines(__doc__).parse_args().only)
