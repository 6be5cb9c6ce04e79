"""The FFT lane's kernels: their source, their names, and their arguments."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ....executors.device_code import C_TYPES, CudaSource
from ..wire._plan import MOST_DIMS

if TYPE_CHECKING:
    from ..wire._cosines import Fold, Series, Spread
    from ..wire._plan import Move

SOURCE: Final = CudaSource(__package__, "layouts.cu", DIMS=MOST_DIMS)

THREADS: Final = 256
SIDE: Final = 32
"""Elements along a side of a tile."""

COSINES: Final = CudaSource(__package__, "cosines.cu", THREADS=THREADS, SIDE=SIDE)

_NARROW: Final = 8
"""Number of elements behind an axis below which tiles would be mostly empty."""

ELEMENTS: Final = {
    **C_TYPES,
    "float16x2": "Pair<h16>",
    "bfloat16x2": "Pair<b16>",
    "complex64": "Pair<float>",
    "complex128": "Pair<double>",
}
"""Names of element types in the kernels."""

BY_SIZE: Final = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned",
    8: "unsigned long long",
    16: "Pair<double>",
}
"""Types of elements that are only copied, by their size in bytes."""


def move_name(move: Move, count: int) -> str:
    """The name expression of the kernel for a move of ``count`` elements."""
    return f"move<{ELEMENTS[move.source_type]}, {ELEMENTS[move.target_type]}, {_index(count)}>"


def move_arguments(move: Move, count: int) -> bytes:
    """The arguments of that kernel, without its pointers."""
    dims = b"".join(
        struct.pack("<4q", dim.size, dim.target, dim.source, dim.extent) for dim in move.dims
    )
    tail = struct.pack(
        "<dq3i4x", move.scale, move.middle, len(move.dims), move.edge, move.conjugate
    )
    return struct.pack("<3Q", 0, 0, count) + dims.ljust(MOST_DIMS * 32, b"\0") + tail


class FftLaunch(NamedTuple):
    """The launch of a kernel.

    Attributes:
        name: its name expression.
        items: the number of threads with work.
        arguments: packed, without the two pointers that are first.
    """

    name: str
    items: int
    arguments: bytes


def fold_launch(fold: Fold) -> FftLaunch:
    """The kernel that makes rows for a Fourier transform."""
    types = f"{fold.series.type}, {ELEMENTS[fold.source_type]}, {ELEMENTS[fold.precision]}"
    return _along_axis("fold", types, fold.series, fold.width, fold.width)


def spread_launch(spread: Spread) -> FftLaunch:
    """Return the launch of the kernel that makes results from transformed rows."""
    types = f"{spread.series.type}, {ELEMENTS[spread.precision]}"
    return _along_axis("spread", types, spread.series, spread.width, spread.taken)


def _along_axis(name: str, types: str, series: Series, width: int, taken: int) -> FftLaunch:
    """Return the launch of a kernel that handles ``taken`` elements of each row."""
    inner, outer = series.inner, series.outer
    if inner < _NARROW:
        count = items = outer * inner * taken
        name = f"{name}<{types}, {_index(count)}>"
    else:
        count = outer * -(-inner // SIDE) * -(-taken // SIDE)
        items = count * THREADS
        name = f"{name}_tiles<{types}>"
    numbers = (inner, series.extent, series.points, width, taken)
    data = struct.pack(
        "<3Q5qd2i", 0, 0, count, *numbers, series.scale, series.sine, series.orthogonal
    )
    return FftLaunch(name, items, data)


def _index(count: int) -> str:
    """A type wide enough to count elements."""
    # The grid's stride is added to the index before it is compared, so leave room for it.
    return "unsigned" if count < 2**31 else "unsigned long long"


def roll_arguments(shape: tuple[int, ...], shifts: tuple[int, ...], count: int) -> bytes:
    """The arguments of ``roll``, without its pointers."""
    turns = b"".join(struct.pack("<2q", *turn) for turn in zip(shape, shifts, strict=True))
    return (
        struct.pack("<3Q", 0, 0, count)
        + turns.ljust(MOST_DIMS * 16, b"\0")
        + struct.pack("<i4x", len(shape))
    )


def frequencies_arguments(n: int, step: float, *, half: bool) -> tuple[int, bytes]:
    """Return the number of elements of ``frequencies``, and its arguments but for the pointer."""
    count = n // 2 + 1 if half else n
    # The driver compares sizes: nothing pads the last argument.
    return count, struct.pack("<QQqdi", 0, count, n, step, half)
