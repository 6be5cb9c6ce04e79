"""The array lane's kernels for copies: names and arguments."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ....executors.device_code import CudaSource

if TYPE_CHECKING:
    from ....wire.copies import CopyStrided

THREADS: Final = 256
ITEMS: Final = 4
"""Elements that a thread of ``gather`` has under way at a time."""

SOURCE: Final = CudaSource(__package__, "copies.cu", THREADS=THREADS, ITEMS=ITEMS)

RANKS: Final = (2, 4, 64)
"""Numbers of axes for which kernels are compiled; the last one is NumPy's limit."""

_WORD: Final = 4
_WORDS: Final = 32
"""Bytes of a word, and words along a side of a square of small elements."""

ALIGNED: Final = 16
"""Alignment in bytes beyond which the choice of the kernel stays the same."""

_VECTOR: Final = ALIGNED
_LINE: Final = 128
"""Bytes that a thread moves at once at most, and of each line in a tile of ``turned``."""

_LEAST_SIDE: Final = 8
"""Squares that are narrower are left empty for the most part."""

_Axis = tuple[int, int, int]  # target, source, extent


class CopyLaunch(NamedTuple):
    """Launch of a copy.

    Attributes:
        name: the kernel's name expression.
        items: the number of threads that have work.
        arguments: packed arguments, without the two pointers that come first.
    """

    name: str
    items: int
    arguments: bytes


def side(itemsize: int) -> int:
    """Return the elements along a side of a square, as many as some sectors of memory have."""
    return 64 if itemsize <= 4 else 32


def _packs(message: CopyStrided, axes: list[_Axis], rows: _Axis, columns: _Axis) -> bool:
    """Return whether elements are small, and neighbours form whole words everywhere."""
    itemsize = message.itemsize
    if itemsize >= _WORD or rows[1] != itemsize or columns[0] != itemsize:
        return False
    if rows[2] * itemsize % _WORD or columns[2] * itemsize % _WORD:
        return False
    steps = [step for to, of, _ in axes for step in (to, of)]
    places = (message.target, message.source, rows[0], columns[1], *steps)
    return not any(place % _WORD for place in places)


def _times(message: CopyStrided, axes: list[_Axis], rows: _Axis, columns: _Axis) -> int:
    """Return the multiple of 32 words in lines of a tile, if all is 16-byte aligned; else 0."""
    itemsize = message.itemsize
    if itemsize > _WORD or rows[1] != itemsize or columns[0] != itemsize:
        return 0
    steps = [step for to, of, _ in axes for step in (to, of)]
    places = (message.target, message.source, rows[0], columns[1], *steps)
    places += (rows[2] * itemsize, columns[2] * itemsize)
    if any(place % _VECTOR for place in places) or max(rows[2], columns[2]) >= 2**31:
        return 0
    times = max(2, itemsize)  # so that a tile has 256 bytes of a row of the target at least
    while times > 1 and columns[2] <= _elements(times, itemsize) // 2:
        times //= 2
    return times


def _elements(times: int, itemsize: int) -> int:
    """Return the number of elements in ``times`` times 32 words."""
    return times * _WORDS * _WORD // itemsize


def launch(message: CopyStrided) -> CopyLaunch:
    """The kernel for a copy."""
    axes = [
        *zip(message.target_strides, message.source_strides, message.shape, strict=True),
    ]
    count, itemsize = math.prod(message.shape), message.itemsize
    found = _strands(message, axes) or _tiles(message, axes)
    if found is not None:
        return found
    rank = _rank(axes)
    # The grid's stride is added to the index before it is compared, so leave room for it.
    index = "u32" if count < 2**31 else "u64"
    data = struct.pack("<3Q", 0, 0, count) + _packed(_padded(axes, rank))
    return CopyLaunch(f"gather<{itemsize}, {index}, {rank}>", -(-count // ITEMS), data)


def _tiles(message: CopyStrided, axes: list[_Axis]) -> CopyLaunch | None:
    """The kernel where the axes differ along which elements follow each other, if they do."""
    itemsize = message.itemsize
    row = _row(axes, itemsize)
    if row is None:
        return None
    *others, columns = axes
    rows = others.pop(row)
    times = _times(message, others, rows, columns)
    if times:
        kernel, what = "turned", times
        edges = _LINE // itemsize, _elements(times, itemsize)
    else:
        small = _packs(message, others, rows, columns)
        kernel, what = ("packed", _elements(1, itemsize)) if small else ("tiles", side(itemsize))
        edges = what, what
    batches = math.prod(axis[2] for axis in others)
    squares = batches * -(-rows[2] // edges[0]) * -(-columns[2] // edges[1])
    if squares >= 2**31:
        return None
    rank = _rank(others)
    data = struct.pack("<3Q", 0, 0, batches) + _packed([rows, columns, *_padded(others, rank)])
    return CopyLaunch(f"{kernel}<{itemsize}, {what}, {rank}>", squares * THREADS, data)


def _strands(message: CopyStrided, axes: list[_Axis]) -> CopyLaunch | None:
    """The kernel where few elements of each pixel lie in planes on one side, if it is such a copy.

    The axis of pixels has the smallest step in planes, and the others follow each other on the
    other side: in the source, or in the target.
    """
    size = message.itemsize
    for apart in (True, False):
        mixed, plane = (1, 0) if apart else (0, 1)  # where a step stands
        short = [axis for axis in axes if axis[mixed] == size and 1 < axis[2] < _LEAST_SIDE]
        if len(short) != 1:
            continue
        (few,) = short
        pixels = [axis for axis in axes if axis[plane] == size and axis[mixed] == size * few[2]]
        if len(pixels) != 1 or few[plane] <= size:
            continue
        (pixel,) = pixels
        others = [axis for axis in axes if axis is not few and axis is not pixel]
        steps = [step for to, of, _ in others for step in (to, of)]
        places = (message.target, message.source, few[plane], *steps)
        aligned = math.gcd(_VECTOR, pixel[2] * size, *places)
        wide = _VECTOR if aligned == _VECTOR else max(_WORD, size)
        if aligned % wide:
            continue
        each = wide // size
        count = math.prod(axis[2] for axis in others) * (pixel[2] // each)
        if count >= 2**31:
            continue
        rank = _rank([*others, pixel])
        taken = (pixel[0] * each, pixel[1] * each, pixel[2] // each)
        data = struct.pack("<4Q", 0, 0, count, few[plane]) + _packed(
            _padded([*others, taken], rank)
        )
        name = f"strands<{size}, {few[2]}, {wide}, {str(apart).lower()}, {rank}>"
        return CopyLaunch(name, count, data)
    return None


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
