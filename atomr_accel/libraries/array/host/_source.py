"""The array lane's kernels for copies: which one, how it is called, and its arguments."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ...host._device_code import CudaSource

if TYPE_CHECKING:
    from ..wire._messages import CopyStrided

THREADS: Final = 256
ITEMS: Final = 4
"""Elements that a thread of ``gather`` has under way at a time."""

SOURCE: Final = CudaSource(__package__, "copies.cu", THREADS=THREADS, ITEMS=ITEMS)

RANKS: Final = (2, 4, 64)
"""For how many axes kernels are compiled; NumPy has no more than the last."""

_LEAST_SIDE: Final = 8
"""Squares that are narrower are left empty for the most part."""

_Axis = tuple[int, int, int]  # target, source, extent


class Launch(NamedTuple):
    """How a copy is launched.

    Attributes:
        name: the kernel's name expression.
        items: threads that it has work for.
        arguments: packed, without the two pointers that are first.
    """

    name: str
    items: int
    arguments: bytes


def side(itemsize: int) -> int:
    """Elements along a side of a square: as many as are some sectors of memory."""
    return 64 if itemsize < 4 else 32


def launch(message: CopyStrided) -> Launch:
    """The kernel for a copy."""
    axes = [
        *zip(message.target_strides, message.source_strides, message.shape, strict=True),
    ]
    count, itemsize = math.prod(message.shape), message.itemsize
    row = _row(axes, itemsize)
    if row is not None:
        edge = side(itemsize)
        rows, columns = axes.pop(row), axes.pop()
        batches = math.prod(axis[2] for axis in axes)
        squares = batches * -(-rows[2] // edge) * -(-columns[2] // edge)
        if squares < 2**31:
            rank = _rank(axes)
            data = struct.pack("<3Q", 0, 0, batches) + _packed(
                [rows, columns, *_padded(axes, rank)]
            )
            return Launch(f"tiles<{itemsize}, {edge}, {rank}>", squares * THREADS, data)
        axes.insert(row, rows)
        axes.append(columns)
    rank = _rank(axes)
    # The grid's stride is added to the index before it is compared, so leave room for it.
    index = "u32" if count < 2**31 else "u64"
    data = struct.pack("<3Q", 0, 0, count) + _packed(_padded(axes, rank))
    return Launch(f"gather<{itemsize}, {index}, {rank}>", -(-count // ITEMS), data)


def _row(axes: list[_Axis], itemsize: int) -> int | None:
    """The axis along which elements follow each other in the source, if not in the target, too."""
    if len(axes) < 2:
        return None
    *others, (to, of, extent) = axes
    near = 2 * itemsize
    if to > near or abs(of) <= near or extent < _LEAST_SIDE:
        return None
    for at, (_, step, length) in enumerate(others):
        if 0 < abs(step) <= near and length >= _LEAST_SIDE:
            return at
    return None


def _rank(axes: list[_Axis]) -> int:
    return next(rank for rank in RANKS if len(axes) <= rank)


def _padded(axes: list[_Axis], rank: int) -> list[_Axis]:
    return [(0, 0, 1)] * (rank - len(axes)) + axes


def _packed(axes: list[_Axis]) -> bytes:
    return b"".join(
        struct.pack("<2qQ2I", to, of, extent, *divisor(extent)) for to, of, extent in axes
    )


def divisor(extent: int) -> tuple[int, int]:
    """A factor and a shift that divide numbers below 2**31 by ``extent``."""
    if extent >= 2**31:
        return 0, 0  # where none is divided by it
    shift = (extent - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - extent)) // extent + 1, shift
