"""The array lane's kernels for the first elements of rows: names and arguments."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ...._dtypes import DTYPES
from ....executors.device_code import CudaSource
from ..wire.indexing import MOST_TOP, TOP_BINS, TOP_ROWS, TOP_STATE
from ._indexing_source import IndexingLaunch
from ._source import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..wire.indexing import Top

_WORDS: Final = 2 * TOP_BINS
"""Counts that a block has room for: few bins have several each, so that fewer threads want one."""
_PART: Final = 4096
_BLOCKS: Final = 792
"""Elements of a part of a row at least, and parts of all rows at most: some for each processor."""

TOPS: Final = CudaSource(
    __package__, "tops.cu", THREADS=THREADS, MOST=MOST_TOP, BINS=TOP_BINS, WORDS=_WORDS
)

_FIRST: Final = 8
"""Bits of keys that are counted first: most elements share few of them."""
_NEXT: Final = 12


def kernel_types(dtype: str) -> str:
    """The template arguments for a dtype: its bits, its keys, and its kind of numbers."""
    kind, size = DTYPES[dtype].kind, DTYPES[dtype].itemsize
    if kind == "c":
        return f"Pair<{'float' if size == 8 else 'double'}>, u32, 4"
    bits = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64"}[size]
    number = 3 if dtype == "bfloat16" else {"b": 0, "u": 0, "i": 1, "f": 2}[kind]
    return f"{bits}, {'u64' if size == 8 else 'u32'}, {number}"


class Round(NamedTuple):
    """Launches for some rows.

    Attributes:
        zeros: number of bytes at the start of the scratch memory that are zero before them.
        launches: in their order.
    """

    zeros: int
    launches: list[IndexingLaunch]


def tops(message: Top, pointer: Callable[[int], int]) -> Iterator[Round]:
    """Yield the launches."""
    if not message.rows * message.count:
        return
    types, down = kernel_types(message.dtype), int(message.descending)
    size = DTYPES[message.dtype].itemsize
    source, length, count = pointer(message.source), message.length, message.count
    values = pointer(message.values) if message.values else 0
    places = pointer(message.places) if message.places else 0
    if length <= MOST_TOP:
        bits = (length - 1).bit_length()
        sizes = message.rows, length, count, bits, down
        packed = struct.pack("<8Q", values, places, source, *sizes)
        blocks = -(-message.rows // (MOST_TOP >> bits))
        yield Round(0, [IndexingLaunch(f"sorted_rows<{types}>", blocks * THREADS, packed)])
        return
    most = min(message.rows, TOP_ROWS)
    states = pointer(message.scratch)
    counts = states + most * TOP_STATE
    keys = counts + most * 4 * TOP_BINS
    found = keys + most * 8 * count
    for first in range(0, message.rows, most):
        rows = min(most, message.rows - first)
        parts = min(-(-length // _PART), max(1, _BLOCKS // rows))
        items = rows * parts * THREADS
        of = source + first * length * size
        launches = []
        for stage, shift, width in _stages(8 * size, (length - 1).bit_length()):
            numbers = rows, length, count, parts, shift, width, stage, down
            packed = struct.pack("<11Q", states, counts, of, *numbers)
            launches.append(IndexingLaunch(f"top_pass<{types}>", items, packed))
        to = values and values + first * count * size, places and places + first * count * 8
        last = rows, length, count, parts, (count - 1).bit_length(), down
        packed = struct.pack("<12Q", *to, of, states, keys, found, *last)
        yield Round(
            keys - states, [*launches, IndexingLaunch(f"top_collect<{types}>", items, packed)]
        )


def _stages(key: int, place: int) -> Iterator[tuple[int, int, int]]:
    """Which bits are counted, one after the other.

    The first ones of keys, then the others; where more elements are equal than there is room for,
    those of places likewise.

    Yields:
        The stage, how far these bits are from the last one, and how many they are.
    """
    left, stage, width = key, 0, _FIRST
    while left:
        width = min(width, left)
        left -= width
        yield stage, left, width
        stage, width = 1, _NEXT
    left, stage = place, 2
    while left:
        width = min(_NEXT, left)
        left -= width
        yield stage, left, width
        stage = 3
