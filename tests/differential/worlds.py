"""Cases of collectives: worlds of one to three devices on the CPU, of one on a GPU."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

import numpy as np

from atomr_accel import Device, open_device
from atomr_accel.worlds import open_world

from ..libraries.conformance import dtype_of, wide
from .cases import Case, choose, same

DTYPES: Final = (
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
REDUCED: Final[dict[str, Any]] = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
KINDS: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "broadcast",
    "scatter",
    "reduce_scatter",
    "all_to_all",
)
EACH: Final = 20
"""Collectives of one case: to open a world takes longer than they do, so there are fewer cases."""


async def collective(world: Any, case: Case) -> None:
    """One collective, and what NumPy gives."""
    random, size = case.random, world.size
    kind, dtype = choose(random, KINDS), choose(random, DTYPES)
    op, root = choose(random, list(REDUCED)), int(random.integers(size))
    of = (size * int(random.integers(1, 5)), int(random.integers(1, 40)))
    if kind == "scatter":
        root = 0
    arrays = [random.integers(0, 2, of).astype(dtype_of(dtype)) for _ in range(size)]
    case.tell(op=kind, dtype=dtype, reduced=op, root=root, shape=of, size=size)
    x = [await device.put(a) for device, a in zip(world.devices, arrays, strict=True)]
    stack = np.stack([wide(array) for array in arrays])
    sums = REDUCED[op](stack, 0).astype(arrays[0].dtype)
    rows = of[0] // size
    expected: list[Any]
    if kind == "all_reduce":
        made, expected = await world.all_reduce(x, op), [sums] * size
    elif kind == "reduce":
        made, expected = [await world.reduce(x, root, op)], [sums]
    elif kind == "all_gather":
        made, expected = await world.all_gather(x), [np.stack(arrays)] * size
    elif kind == "gather":
        made, expected = [await world.gather(x, root)], [np.stack(arrays)]
    elif kind == "broadcast":
        made, expected = await world.broadcast(x[root]), [arrays[root]] * size
    elif kind == "scatter":
        parts = arrays[0].reshape(size, rows, -1)
        given = await world.devices[0].put(parts)
        made, expected = await world.scatter(given), list(parts)
    elif kind == "reduce_scatter":
        shaped = [
            await d.put(a.reshape(size, rows, -1))
            for d, a in zip(world.devices, arrays, strict=True)
        ]
        made, expected = await world.reduce_scatter(shaped, op), list(sums.reshape(size, rows, -1))
    else:
        parts = np.stack([array.reshape(size, rows, -1) for array in arrays])
        given = [await d.put(a) for d, a in zip(world.devices, parts, strict=True)]
        made, expected = await world.all_to_all(given), list(parts.swapaxes(0, 1))
    where = [world.devices[root]] if len(made) == 1 and size > 1 else world.devices
    for device, ref, other in zip(where, made, expected, strict=True):
        same(await device.get(ref), other)


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Open a world, and run some collectives on it."""
    case = Case(device, random)
    with case.described():
        size = 1 if device.backend == "cuda" else int(random.integers(1, 4))
        async with AsyncExitStack() as stack:
            devices = [device]
            for _ in range(size - 1):
                other = open_device(0, backend="cpu", isolation="thread")
                devices.append(await stack.enter_async_context(other))
            world = await stack.enter_async_context(open_world(devices))
            for _ in range(EACH):
                await collective(world, case)
    return None
