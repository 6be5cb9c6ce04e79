"""NumPy's and SciPy's functions that are made of others, next to CuPy's and PyTorch's.

Twenty of the most used ones, of 2^20 and 2^24 elements, in float32; fewer where the result has many
more. Lines are those of ``bench_array.py``: ratios above 1 say that this is faster. Without a GPU
sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from bench_array import Job, Making, main, moved, rivals_there
from scipy import special

from atomr_accel import Device

BINS = 256
TAPS = 31


class Function(NamedTuple):
    """A function and its arguments.

    Attributes:
        ours: one op, of the device or a batch and the arguments.
        cupy: CuPy's, of the module and the arguments.
        torch: PyTorch's, if it has it.
        shapes: of the arguments, for a number of elements; a negative length is of sorted numbers.
        asks: whether only the device knows the size of the result.
        whole: whether the arguments are integers.
    """

    ours: Callable[..., Any]
    cupy: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    shapes: Callable[[int], list[tuple[int, ...]]] = lambda n: [(n,)]
    asks: bool = False
    whole: bool = False


def pair(n: int) -> list[tuple[int, ...]]:
    return [(n,), (n,)]


def square(n: int) -> list[tuple[int, ...]]:
    return [(1 << n.bit_length() // 2, n >> n.bit_length() // 2)]


def factors(n: int) -> list[tuple[int, ...]]:
    """Two vectors whose products of all pairs are ``n``."""
    return [(1 << n.bit_length() // 2,), (n >> n.bit_length() // 2,)]


def cubes(n: int) -> list[tuple[int, ...]]:
    side = 1 << (n.bit_length() - 1) // 3
    return [(side, side, side), (side, side, side)]


def blocks(n: int) -> list[tuple[int, ...]]:
    side = 1 << (n.bit_length() - 1) // 4
    return [(side, side), (side, side)]


FUNCTIONS: dict[str, Function] = {
    "diff": Function(
        lambda on, x: on.array.diff(x), lambda cp, x: cp.diff(x), lambda t, x: t.diff(x)
    ),
    "outer": Function(
        lambda on, x, y: on.array.outer(x, y),
        lambda cp, x, y: cp.outer(x, y),
        lambda t, x, y: t.outer(x, y),
        factors,
    ),
    "tensordot": Function(
        lambda on, x, y: on.array.tensordot(x, y, 2),
        lambda cp, x, y: cp.tensordot(x, y, 2),
        lambda t, x, y: t.tensordot(x, y, 2),
        cubes,
    ),
    "kron": Function(
        lambda on, x, y: on.array.kron(x, y),
        lambda cp, x, y: cp.kron(x, y),
        lambda t, x, y: t.kron(x, y),
        blocks,
    ),
    "isin": Function(
        lambda on, x, y: on.array.isin(x, y),
        lambda cp, x, y: cp.isin(x, y),
        lambda t, x, y: t.isin(x, y),
        lambda n: [(n,), (1024,)],
        whole=True,
    ),
    "interp": Function(
        lambda on, x, y, z: on.array.interp(x, y, z),
        lambda cp, x, y, z: cp.interp(x, y, z),
        shapes=lambda n: [(n,), (-1024,), (1024,)],
    ),
    "average": Function(
        lambda on, x, y: on.array.average(x, weights=y),
        lambda cp, x, y: cp.average(x, weights=y),
        shapes=pair,
    ),
    "cov": Function(
        lambda on, x: on.array.cov(x),
        lambda cp, x: cp.cov(x),
        lambda t, x: t.cov(x),
        lambda n: [(16, n // 16)],
    ),
    "gradient": Function(
        lambda on, x: on.array.gradient(x, axis=1),
        lambda cp, x: cp.gradient(x, axis=1),
        lambda t, x: t.gradient(x, dim=1),
        square,
    ),
    "cross": Function(
        lambda on, x, y: on.array.cross(x, y),
        lambda cp, x, y: cp.cross(x, y),
        lambda t, x, y: t.linalg.cross(x, y),
        lambda n: [(n // 4, 3), (n // 4, 3)],
    ),
    "select": Function(
        lambda on, x, y: on.array.select([x > 1, x > 0], [y, x], 0),
        lambda cp, x, y: cp.select([x > 1, x > 0], [y, x], 0),
        shapes=pair,
    ),
    "lexsort": Function(
        lambda on, x, y: on.array.lexsort([x, y]),
        lambda cp, x, y: cp.lexsort(cp.stack([x, y])),
        shapes=pair,
        whole=True,
    ),
    "nanmedian": Function(
        lambda on, x: on.array.nanmedian(x),
        lambda cp, x: cp.nanmedian(x),
        lambda t, x: t.nanmedian(x),
    ),
    "convolve": Function(
        lambda on, x, y: on.array.convolve(x, y),
        lambda cp, x, y: cp.convolve(x, y),
        lambda t, x, y: t.nn.functional.conv1d(
            x[None, None], y.flip(0)[None, None], padding=TAPS - 1
        ),
        lambda n: [(n,), (TAPS,)],
    ),
    "histogram2d": Function(
        lambda on, x, y: on.array.histogram2d(x, y, BINS, [[-4, 4], [-4, 4]]),
        lambda cp, x, y: cp.histogram2d(x, y, BINS, [[-4, 4], [-4, 4]]),
        shapes=pair,
    ),
    "union1d": Function(
        lambda on, x, y: on.array.union1d(x, y),
        lambda cp, x, y: cp.union1d(x, y),
        lambda t, x, y: t.unique(t.cat([x, y])),
        pair,
        asks=True,
        whole=True,
    ),
    "logsumexp": Function(
        lambda on, x: on.array.logsumexp(x, axis=1),
        lambda cp, x: _of_cupyx().logsumexp(x, axis=1),
        lambda t, x: t.logsumexp(x, 1),
        square,
    ),
    "softmax": Function(
        lambda on, x: on.array.softmax(x, axis=1),
        lambda cp, x: _of_cupyx().softmax(x, axis=1),
        lambda t, x: t.softmax(x, 1),
        square,
    ),
    "digamma": Function(
        lambda on, x: on.evaluate(special.psi(x)),
        lambda cp, x: _of_cupyx().digamma(x),
        lambda t, x: t.digamma(x),
    ),
    "cumulative_sum": Function(
        lambda on, x: on.xp.cumulative_sum(x),
        lambda cp, x: cp.cumsum(x),
        lambda t, x: t.cumsum(x, 0),
    ),
}


def _of_cupyx() -> Any:
    import cupyx.scipy.special

    return cupyx.scipy.special


def line(function: Function, power: int) -> Making:
    """A function of 2^power elements."""

    async def make(device: Device) -> Job:
        random = np.random.default_rng(power)
        hosts: list[Any] = []
        for shape in function.shapes(1 << power):
            if function.whole:
                hosts.append(random.integers(0, 1 << 16, shape, dtype=np.int32))
            else:
                size = tuple(abs(each) for each in shape)
                drawn = random.standard_normal(size, dtype=np.float32)
                hosts.append(np.sort(drawn) if shape[0] < 0 else drawn)
        refs = [await device.put(each) for each in hosts]
        job = Job(lambda on: function.ours(on, *refs), asks=function.asks)
        for name in rivals_there(device):
            given = [moved(name, each) for each in hosts]
            if name == "cupy":
                import cupy

                job.cupy["cupy"] = partial(function.cupy, cupy, *given)
            elif function.torch is not None:
                import torch

                job.torch["torch"] = partial(function.torch, torch, *given)
        return job

    return make


def jobs(gpu: bool) -> dict[str, Making]:
    """All lines, by name."""
    return {
        f"{name} 2^{power}": line(function, power)
        for power in ((20, 24) if gpu else (10,))
        for name, function in FUNCTIONS.items()
    }


if __name__ == "__main__":
    main(jobs, __doc__, 70)
