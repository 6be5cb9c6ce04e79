"""Arrays of any layout, the copies between them, and the kernels that make those."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel.libraries.array.host._source import RANKS, side
from atomr_accel.ops import merged
from atomr_accel.wire.copies import CopyStrided

Array = np.ndarray[Any, Any]

SIZES = (1, 2, 4, 8, 16)
OF_SIZE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def message_of(target: Array, source: Array) -> CopyStrided:
    """The copy of one array to another, with their own pointers as addresses."""
    plan = merged(target.shape, target.strides, source.strides, source.itemsize, 1 << 8)
    return CopyStrided(
        pointer(source) + plan.source,
        pointer(target) + plan.target,
        plan.itemsize,
        tuple(axis.extent for axis in plan.axes),
        tuple(axis.source for axis in plan.axes),
        tuple(axis.target for axis in plan.axes),
    )


def bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def pointer(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def names() -> dict[str, str]:
    """Every kernel that is launched, with its parameters."""
    kernels = {}
    for size in SIZES:
        for rank in RANKS:
            for index in ("u32", "u64"):
                kernels[f"gather<{size}, {index}, {rank}>"] = (
                    f"char* target; const char* source; u64 count; Axes<{rank}> axes"
                )
            squares = [f"tiles<{size}, {side(size)}, {rank}>"]
            if size < 4:
                squares.append(f"packed<{size}, {128 // size}, {rank}>")
            squares += [
                f"turned<{size}, {k}, {rank}>" for k in (1, 2, 4) if k <= max(2, size) and size <= 4
            ]
            for name in squares:
                kernels[name] = (
                    f"char* target; const char* source; u64 batches; Axis row; Axis column; "
                    f"Axes<{rank}> axes"
                )
            for few in (2, 3, 5) if rank < 64 else (3,):
                for wide in {16, max(4, size)}:
                    for apart in ("true", "false"):
                        kernels[f"strands<{size}, {few}, {wide}, {apart}, {rank}>"] = (
                            "char* target; const char* source; u64 count; u64 plane; "
                            f"Axes<{rank}> axes"
                        )
    return kernels


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, gaps: bool) -> Array:
    """An array of any order of axes, with gaps and any directions."""
    order = tuple(map(int, rng.permutation(len(shape))))
    steps = [int(rng.choice([-2, -1, 1, 3] if gaps else [1])) for _ in order]
    around = [abs(step) * shape[axis] for axis, step in zip(order, steps, strict=True)]
    data = rng.integers(0, 256, (*around, np.dtype(dtype).itemsize), np.uint8)
    array = data.view(dtype)[..., 0]
    key: tuple[Any, ...] = tuple(slice(None, None, step) for step in steps)
    return np.asarray(array[(*key, ...)].transpose(np.argsort(order)))
