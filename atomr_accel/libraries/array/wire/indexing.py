"""Messages of the array lane other than copies and expressions: gathers, scatters, scans."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec

from ....wire import Address, Message
from ....wire.copies import CopyStrided

Outside = Literal["wrap", "clip", "drop"]
"""Treatment of an index out of bounds: it wraps around, becomes the nearest, or is dropped."""


class CopyAll(Message, frozen=True):
    """Copies, one after the other.

    Attributes:
        copies: the single copies.
    """

    copies: tuple[CopyStrided, ...]


class UploadBytes(Message, frozen=True):
    """Write bytes of the program's.

    Attributes:
        target: address to write.
        data: the bytes to write.
    """

    bulky: ClassVar[bool] = True

    target: Address
    data: bytes


class Index(msgspec.Struct, frozen=True, array_like=True):
    """Indices along one axis of an array.

    Attributes:
        address: address of the first index.
        extent: extent of the axis.
        stride: bytes from one element of the axis to the next.
    """

    address: Address
    extent: int
    stride: int


class Element(msgspec.Struct, frozen=True, array_like=True):
    """Axis of the elements that are gathered or scattered.

    Attributes:
        extent: the number of elements.
        plain: bytes from one element to the next in the array that is moved as a whole.
        chosen: the same in the array of which some elements are chosen.
        indices: the same in each of the arrays of indices.
    """

    extent: int
    plain: int
    chosen: int
    indices: tuple[int, ...]


class Choose(Message, frozen=True):
    """Move elements from or to the positions that indices give.

    Attributes:
        kind: ``"gather"`` reads the chosen elements; ``"set"`` writes them, and ``"add"`` adds to
            them.
        plain: address of the first element of the array that is moved as a whole.
        chosen: address of the array of which some are chosen, at index 0 of all axes.
        low, nbytes: the start of that array's memory relative to ``chosen``, and its length.
        dtype: dtype of an element; for an element that is only moved, a dtype of its size.
        index: the dtype of indices, by name.
        outside: the meaning of indices out of bounds; those of ``"wrap"`` may be negative.
        indices: one for each axis that has indices.
        axes: the axes of all elements that are moved: those of the indices, then the others.
        inner: number of elements along the other axes, if several elements for one place have to be
            written in the order of the indices; otherwise 0.
    """

    kind: Literal["gather", "set", "add"]
    plain: Address
    chosen: Address
    low: int
    nbytes: int
    dtype: str
    index: str
    outside: Outside
    indices: tuple[Index, ...]
    axes: tuple[Element, ...]
    inner: int


class Compact(Message, frozen=True):
    """Write the positions of set flags, in their order; answered by their number.

    Attributes:
        flags: address of the flags, of one byte each.
        count: the number of flags.
        positions: address of ``count`` int64, of which the first are written.
        scratch: address of ``PARTS`` int64.
    """

    returns: ClassVar[Any] = int

    flags: Address
    count: int
    positions: Address
    scratch: Address


class CountNumbers(Message, frozen=True):
    """Count how often each number occurs: ``counts[number] += 1``.

    Attributes:
        given: address of whole numbers, without gaps; negative ones and those from ``size`` on are
            left out.
        count: the number of numbers.
        dtype: their dtype, by name.
        counts: address of int64.
        size: the number of counts.
    """

    given: Address
    count: int
    dtype: str
    counts: Address
    size: int


class CountHistogram(Message, frozen=True):
    """Count how many numbers are in each of some intervals of one size.

    Attributes:
        given: address of real numbers, without gaps; those outside and NaN are left out.
        count: the number of elements.
        dtype: their dtype, by name.
        ends: address of two float64, the lowest and the highest edge; 0 if the program knows them.
        low, high: the lowest and the highest edge, if the program knows them.
        counts: address of int64, one for each interval; written.
        edges: address of where intervals begin and end, one more; written.
        edge: the dtype of edges: float32 or float64.
        size: the number of intervals.
    """

    given: Address
    count: int
    dtype: str
    ends: Address
    low: float
    high: float
    counts: Address
    edges: Address
    edge: str
    size: int


class RequireIntervals(Message, frozen=True):
    """Raise if such intervals are impossible, for a histogram that is made by other ops.

    Attributes:
        ends, edge, size: as of ``CountHistogram``, which makes the same check.
    """

    ends: Address
    edge: str
    size: int


class FindAmong(Message, frozen=True):
    """Test of each element whether it is in a sorted row. NaN is not.

    Attributes:
        target: address of a bool for each element.
        given: address of the elements, without gaps.
        row: address of the row.
        count, size: the number of elements, and of those of the row, which is at least 1.
        dtype: the dtype of both, by name: real numbers.
        invert: whether to test that it is not there.
    """

    target: Address
    given: Address
    row: Address
    count: int
    size: int
    dtype: str
    invert: bool


class Interpolate(Message, frozen=True):
    """Interpolate linearly between points; as ``numpy.interp``.

    Attributes:
        target: address of one element of ``dtype`` for each given one.
        given: address of the places to look at, without gaps.
        count: the number of these.
        kind: their dtype, by name: float32 or float64.
        places: address of the places of points, float64, in increasing order.
        values: address of the values there, of ``dtype``.
        left, right: addresses of the values before the first place and after the last one.
        points: the number of points, at least 1.
        dtype: float64 or complex128.
    """

    target: Address
    given: Address
    count: int
    kind: str
    places: Address
    values: Address
    left: Address
    right: Address
    points: int
    dtype: str


class RequireOrder(Message, frozen=True):
    """Raise if edges are in no order.

    Attributes:
        flags: address of two bools: whether some edge is less than the one before, or more.
        falls: whether edges in decreasing order are in order, too.
    """

    flags: Address
    falls: bool

    def check(self, flags: bytes) -> None:
        """Check the flags."""
        if self.falls and all(flags):
            raise ValueError("bins must be monotonically increasing or decreasing")
        if not self.falls and flags[0]:
            raise ValueError("`bins` must increase monotonically, when an array")


MOST_TOP: Final = 2048
"""Largest number of elements of each row that ``Top`` returns."""
TOP_ROWS: Final = 512
"""Number of long rows at a time."""


class Top(Message, frozen=True):
    """Find the first elements of each row in their order; of equal ones the first ones.

    NaN are larger than all others, and both zeros are equal.

    Attributes:
        source: address of rows without gaps, of real numbers.
        dtype: dtype of an element, by name.
        rows, length: number of rows, and of elements in each; both less than 2^31.
        count: number of elements of each row, at most ``MOST_TOP``.
        descending: whether the largest comes first.
        values: address for the elements, outside the source; 0 to omit them.
        places: address for their indices in the row, int64; 0 to omit them.
        scratch: address of ``top_scratch`` bytes.
    """

    source: Address
    dtype: str
    rows: int
    length: int
    count: int
    descending: bool
    values: Address
    places: Address
    scratch: Address


TOP_STATE: Final = 64
TOP_BINS: Final = 1 << 12


def top_scratch(rows: int, length: int, count: int) -> int:
    """Bytes of scratch memory of ``Top``; short rows are sorted, and need none."""
    each = TOP_STATE + 4 * TOP_BINS + 12 * count
    return 0 if length <= MOST_TOP else min(rows, TOP_ROWS) * each


class Distinct(Message, frozen=True):
    """Find the different elements of a sorted row, in order; answered by their number.

    Both zeros are equal.

    Attributes:
        values: address of the row.
        count: number of elements.
        dtype: their dtype, by name.
        equal_nan: whether NaN are equal.
        order: address of the index of each element before the row was sorted, int64; 0 if it is not
            needed.
        made: address of ``count`` elements, of which the first are written.
        places: address of ``count`` int64: the first index of each different element; 0 likewise.
        inverse: address of ``count`` int64: the number of the different element of each, by
            ``order``; 0 likewise.
        begins, lengths: addresses of ``count`` int64: the start of each different element in the
            row, and how often it occurs; both 0 likewise.
        scratch: address of ``PARTS`` int64.
    """

    returns: ClassVar[Any] = int

    values: Address
    count: int
    dtype: str
    equal_nan: bool
    order: Address
    made: Address
    places: Address
    inverse: Address
    begins: Address
    lengths: Address
    scratch: Address


class FindOutside(Message, frozen=True):
    """Look for an index that is out of bounds; answered by whether one is, and the first.

    Attributes:
        address: address of the indices.
        count: the number of indices.
        dtype: their dtype, by name.
        extent: extent of their axis; indices from ``-extent`` to ``extent - 1`` are valid.
        scratch: address of an int64.
    """

    returns: ClassVar[Any] = tuple[bool, int]

    address: Address
    count: int
    dtype: str
    extent: int
    scratch: Address


class ReadNumbers(Message, frozen=True):
    """Answered by numbers.

    Attributes:
        addresses: addresses of int64 numbers.
    """

    returns: ClassVar[Any] = tuple[int, ...]

    addresses: tuple[Address, ...]


class ScanRows(Message, frozen=True):
    """Sums or products of all elements of a row up to each.

    Attributes:
        kind: sums or products.
        source, target: addresses of rows that follow each other; they may be the same.
        dtype: dtype of both, by name.
        rows, length: number of rows, and of elements in each.
    """

    kind: Literal["add", "multiply"]
    source: Address
    target: Address
    dtype: str
    rows: int
    length: int


PARTS: Final = 1024
"""Largest number of parts of a long row."""
