"""Cases of ``device.cutlass``: products, groups and convolutions with epilogues, against NumPy.

A kernel takes half a minute to compile on a GPU, so there are few combinations of dtypes, layouts
and epilogues, drawn from a few seeds, and many sizes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.conformance import dtype_of
from .cases import Case, chance, choose, close

Random = np.random.Generator

FIXED: Final[dict[str, Any]] = {
    "tile": (128, 128, 64), "cluster": (1, 1, 1), "schedule": "pingpong",
}  # fmt: skip
KERNELS: Final = 12
SIZES: Final = (8, 16, 24, 40, 64, 136, 200)


def whole(random: Random, of: tuple[int, ...], dtype: str) -> Any:
    """Numbers that the type holds exactly, as their products."""
    return (random.integers(-4, 5, of) / 4).astype(dtype_of(dtype))


async def product(case: Case, kernel: Random) -> None:
    """Products, stacks of them, with a bias and an activation."""
    random, device = case.random, case.device
    dtype = choose(kernel, ("float16", "bfloat16"))
    m, n, k = (choose(random, SIZES) for _ in range(3))
    lead = choose(random, ((), (), (2,), (2, 3)))
    trans_b, kind = chance(kernel, 0.7), choose(kernel, ("plain", "relu", "residual"))
    a = whole(random, (*lead, m, k), dtype)
    b = whole(random, (*lead, n, k) if trans_b else (*lead, k, n), dtype)
    case.tell(op="matmul", dtype=dtype, m=m, n=n, k=k, lead=lead, trans_b=trans_b, kind=kind)
    large, other = a.astype(np.float64), b.astype(np.float64)
    expected = large @ (other.swapaxes(-1, -2) if trans_b else other)
    x, y = await case.put(a, views=False), await case.put(b, views=False)
    options: dict[str, Any] = dict(FIXED)
    if kind == "relu":
        bias = whole(random, (n,), dtype)
        options |= {
            "bias": await case.put(bias, views=False),
            "epilogue": device.cutlass.accumulator.relu(),
        }
        expected = np.maximum(expected + bias.astype(np.float64), 0)
    elif kind == "residual":
        c = whole(random, expected.shape, dtype)
        options["epilogue"] = device.cutlass.accumulator * 0.5 + await case.put(c, views=False)
        expected = expected * 0.5 + c.astype(np.float64)
    await case.poison(expected.size * 2)
    got = await case.fetch(await device.cutlass.matmul(x, y, trans_b=trans_b, **options))
    close(got, expected, dtype=dtype_of(dtype), factor=4.0, magnitude=1.0)


async def grouped(case: Case, _kernel: Random) -> None:
    """Groups of rows, each with a matrix of its own."""
    random, device = case.random, case.device
    groups, n, k = int(random.integers(1, 5)), choose(random, SIZES), choose(random, SIZES)
    sizes = [int(each) for each in random.integers(0, 50, groups)]
    if not sum(sizes):
        sizes[0] = 3
    a, b = whole(random, (sum(sizes), k), "float16"), whole(random, (groups, k, n), "float16")
    case.tell(op="matmul_grouped", sizes=sizes, n=n, k=k)
    parts = np.split(a.astype(np.float64), np.cumsum(sizes)[:-1])
    expected = np.concatenate([x @ y for x, y in zip(parts, b.astype(np.float64), strict=True)])
    x, y = await case.put(a, views=False), await case.put(b, views=False)
    await case.poison(expected.size * 2)
    got = await case.fetch(await device.cutlass.matmul_grouped(x, y, sizes, **FIXED))
    close(got, expected, dtype=np.float16, factor=4.0, magnitude=1.0)


async def convolution(case: Case, _kernel: Random) -> None:
    """Images and filters with channels last."""
    random, device = case.random, case.device
    side, taps, stride, padding = (
        int(random.integers(*each)) for each in ((3, 12), (1, 4), (1, 3), (0, 2))
    )
    channels, filters = choose(random, (8, 16, 24)), choose(random, (8, 16, 40))
    x = whole(random, (2, side, side + 1, channels), "float16")
    w = whole(random, (filters, taps, taps, channels), "float16")
    case.tell(op="conv", x=x.shape, w=w.shape, stride=stride, padding=padding)
    if side + 2 * padding < taps:
        return
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = np.pad(x.astype(np.float64), around)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), axis=(1, 2))
    expected = np.einsum("nhwcrs,krsc->nhwk", windows[:, ::stride, ::stride], w.astype(np.float64))
    a, b = await case.put(x, views=False), await case.put(w, views=False)
    await case.poison(expected.size * 2)
    made = await device.cutlass.conv(a, b, stride=stride, padding=padding, **FIXED)
    close(await case.fetch(made), expected, dtype=np.float16, factor=4.0, magnitude=1.0)


OPS: Final[tuple[Any, ...]] = (product, product, grouped, convolution)


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    kernel = np.random.default_rng(int(random.integers(KERNELS)))
    with case.described():
        await choose(kernel, OPS)(case, kernel)
        await case.finish()
    return None
