"""The array lane's kernels for indices and scans: names and arguments."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ...._dtypes import DTYPES
from ....executors.device_code import CudaSource
from ....executors.scan_tiles import SCAN_MACROS, most_scanned, scan_threads, scan_types
from ..wire.indexing import PARTS
from ._source import THREADS, divisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire.indexing import Choose, CountHistogram, Element, ScanRows

UPLOADED: Final = 2048
"""Bytes that a launch takes along among its arguments."""
COMPACT_ITEMS: Final = 16
SCAN_ITEMS: Final = 8
COUNT_ITEMS: Final = 16
_LONG: Final = 1 << 14
"""A single row beyond that is scanned by several blocks."""
_SHORT: Final = 32
"""Rows up to that length are scanned by one thread each."""

INDEXING: Final = CudaSource(__package__, "indexing.cu", THREADS=THREADS, UPLOADED=UPLOADED)
COMPACTION: Final = CudaSource(__package__, "compaction.cu", THREADS=THREADS, ITEMS=COMPACT_ITEMS)
DISTINCT: Final = CudaSource(__package__, "distinct.cu", THREADS=THREADS, ITEMS=COMPACT_ITEMS)
SCANS: Final = CudaSource(__package__, "scans.cu", ITEMS=SCAN_ITEMS, **SCAN_MACROS)
SEARCHES: Final = CudaSource(__package__, "search.cu", THREADS=THREADS)

MOST_SHARED: Final = 8192
"""Most numbers that blocks count in memory of their own."""
NUMBERS: Final = CudaSource(
    __package__,
    "counts.cu",
    THREADS=THREADS,
    SHARED=MOST_SHARED,
    COPIES=16,
    FEW_EDGES=1025,
    AHEAD=4,
)

COUNTS: Final = (1, 2, 4, 8)
"""Numbers of arrays of indices for which kernels are compiled."""
RANKS: Final = (2, 4, 8, 32)
"""Numbers of axes for which kernels are compiled."""

ELEMENTS: Final = {
    "bool": "flag",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "h16",
    "bfloat16": "b16",
    "float32": "float",
    "float64": "double",
    "complex64": "c64",
    "complex128": "c128",
}
"""Names of elements that are added up."""
_MOVED: Final = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64", 16: "Wide"}
_OUTSIDE: Final = {"wrap": 0, "clip": 1, "drop": 2}


class IndexingLaunch(NamedTuple):
    """Launch of a message.

    Attributes:
        name: the kernel's name expression.
        items: the number of threads that have work.
        arguments: packed arguments; pointers to outputs and inputs come first.
    """

    name: str
    items: int
    arguments: bytes


def choosing(message: Choose, pointer: Callable[[int], int]) -> IndexingLaunch:
    """The kernel for a gather or a scatter, with its pointers."""
    count = math.prod(axis.extent for axis in message.axes)
    given = len(message.indices)
    indices = next(number for number in COUNTS if given <= number)
    rank = next(number for number in RANKS if len(message.axes) <= number)
    # The grid's stride is added to the index before it is compared, so leave room for it.
    width = "u32" if count < 2**31 else "u64"
    last = f"{ELEMENTS[message.index]}, {width}, {indices}, {rank}"
    size = DTYPES[message.dtype].itemsize
    items, more = count, b""
    if message.inner:
        adds = message.kind == "add"
        element = ELEMENTS[message.dtype] if adds else _MOVED[size]
        name = f"in_order<{element}, {str(adds).lower()}, {last}>"
        items, more = message.inner, struct.pack("<Q", message.inner)
    elif message.kind == "add":
        name = f"add<{ELEMENTS[message.dtype]}, {last}>"
    else:
        name = f"{'gather' if message.kind == 'gather' else 'scatter'}<{size}, {last}>"
    places = (message.chosen, message.plain)
    target, source = places[::-1] if message.kind == "gather" else places
    data = struct.pack("<3Q", pointer(target), pointer(source), count) + more
    # The kernel may take more indices than are given: the first one again changes nothing.
    for number in range(indices):
        index = message.indices[number if number < given else 0]
        stride = index.stride if number < given else 0
        data += struct.pack("<Q2q", pointer(index.address), index.extent, stride)
    none = struct.pack(f"<{2 + indices}qQ2I", *[0] * (2 + indices), 1, *divisor(1))
    data += none * (rank - len(message.axes))
    for axis in message.axes:
        data += _axis(axis, indices)
    return IndexingLaunch(name, items, data + struct.pack("<q", _OUTSIDE[message.outside]))


def _axis(axis: Element, indices: int) -> bytes:
    steps = [*axis.indices, *[axis.indices[0]] * (indices - len(axis.indices))]
    numbers = axis.plain, axis.chosen, *steps
    return struct.pack(f"<{len(numbers)}qQ2I", *numbers, axis.extent, *divisor(axis.extent))


def parts_of(count: int) -> tuple[int, int]:
    """Return the number of parts in which flags are compacted, and the flags in each."""
    unit = THREADS * COMPACT_ITEMS
    each = -(-count // (PARTS - 1))
    each = -(-each // unit) * unit
    return -(-count // each), each


class Placed(NamedTuple):
    """A launch, and the addresses to which its pointers point.

    Attributes:
        launch: without its pointers.
        addresses: the addresses for the first arguments; 0 for nothing.
    """

    launch: IndexingLaunch
    addresses: tuple[int, ...]

    def packed(self, pointer: Callable[[int], int]) -> IndexingLaunch:
        """Return the launch with its pointers."""
        name, items, arguments = self.launch
        pointers = [pointer(at) if at else 0 for at in self.addresses]
        return IndexingLaunch(name, items, struct.pack(f"<{len(pointers)}Q", *pointers) + arguments)


def scanning(message: ScanRows) -> list[Placed]:
    """The kernels for a scan."""
    types, target, source = scan_types(message.dtype, message.kind), message.target, message.source
    rows, length = message.rows, message.length
    if rows == 1 and length > _LONG:
        most, itemsize = most_scanned(message.dtype), DTYPES[message.dtype].itemsize
        return [
            Placed(
                IndexingLaunch(
                    f"scan_tiles<{types}>",
                    scan_threads(message.dtype, min(most, length - start)),
                    struct.pack("<2Q", number, min(most, length - start)),
                ),
                (target + start * itemsize, source + start * itemsize),
            )
            for number, start in enumerate(range(0, length, most))
        ]
    kernel = "scan_short" if length <= _SHORT else "scan"
    items = rows * (1 if kernel == "scan_short" else THREADS)
    return [
        Placed(
            IndexingLaunch(f"{kernel}<{types}>", items, struct.pack("<2Q", rows, length)),
            (target, source),
        )
    ]


def binning(message: CountHistogram) -> Placed:
    """The kernel for a histogram; more counts than ``MOST_SHARED`` are zeros before."""
    numbers = struct.pack("<2Q2d", message.count, message.size, message.low, message.high)
    name = f"binned<{ELEMENTS[message.dtype]}, {ELEMENTS[message.edge]}>"
    threads = max(-(-message.count // COUNT_ITEMS), message.size + 1)
    addresses = (message.counts, message.edges, message.given, message.ends)
    return Placed(IndexingLaunch(name, threads, numbers), addresses)
