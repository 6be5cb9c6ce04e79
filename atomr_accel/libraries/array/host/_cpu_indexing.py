"""Gathers, scatters and scans on the CPU, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES, is_added, is_inexact
from ..wire._intervals import STEEPEST, edges_between, require_intervals
from ..wire.indexing import (
    Choose,
    Compact,
    CopyAll,
    CountHistogram,
    CountNumbers,
    Distinct,
    FindAmong,
    FindOutside,
    Interpolate,
    ReadNumbers,
    RequireIntervals,
    RequireOrder,
    ScanRows,
    Top,
    UploadBytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext
    from ....wire.copies import CopyStrided

_Array = np.ndarray[Any, np.dtype[Any]]

_NARROW: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
_INT64: Final = DTYPES["int64"]
_CACHED: Final = 1 << 20
"""Bytes of rows that are searched at a time, so that they stay in the cache."""


@final
class CpuIndexing:
    """Executes some of the array lane's messages; its handlers are some of the lane's."""

    def __init__(self, context: CpuContext, copy: Callable[[CopyStrided], None]) -> None:
        self._context: Final = context
        self._copy: Final = copy
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            CopyAll: self._copy_all,
            UploadBytes: self._upload,
            Choose: self._choose,
            Compact: self._compact,
            CountNumbers: self._count_numbers,
            Distinct: self._distinct,
            FindOutside: self._find_outside,
            CountHistogram: self._histogram,
            FindAmong: self._find_among,
            Interpolate: self._interpolate,
            ReadNumbers: self._read_numbers,
            RequireIntervals: self._require_intervals,
            RequireOrder: self._require_order,
            ScanRows: self._scan,
            Top: self._top,
        }

    def _copy_all(self, message: CopyAll) -> None:
        self._context.check()
        for each in message.copies:
            self._copy(each)

    def _upload(self, message: UploadBytes) -> None:
        self._context.check()
        data = np.frombuffer(message.data, np.uint8)
        self._context.bytes_at(message.target, data.size)[:] = data

    def _choose(self, message: Choose) -> None:
        self._context.check()
        dtype, axes = DTYPES[message.dtype], message.axes
        shape = tuple(axis.extent for axis in axes)
        plain = self._context.array(message.plain, shape, dtype, tuple(axis.plain for axis in axes))
        chosen = self._context.array(
            message.chosen + message.low, (message.nbytes // dtype.itemsize,), dtype
        )
        places, good = self._places(message, shape)
        if message.kind == "gather":
            plain[...] = chosen[places]
            return
        values = plain
        if good is not None:
            places, values = places[good], plain[good]
        if message.kind == "set":
            chosen[places] = values
        else:
            with np.errstate(all="ignore"):
                # A copy, because NumPy has read beyond the end of values that broadcast.
                np.add.at(chosen, places, np.array(values))

    def _places(self, message: Choose, shape: tuple[int, ...]) -> tuple[_Array, _Array | None]:
        """Return the positions of chosen elements, and which of them count."""
        size = DTYPES[message.dtype].itemsize
        places = np.full(shape, -message.low, np.int64)
        ndim = len(shape)
        for at, axis in enumerate(message.axes):
            steps = np.arange(axis.extent) * axis.chosen
            places += steps.reshape([-1 if d == at else 1 for d in range(ndim)])
        good: _Array | None = None
        for number, index in enumerate(message.indices):
            steps_of = tuple(axis.indices[number] for axis in message.axes)
            given = self._context.array(index.address, shape, DTYPES[message.index], steps_of)
            n = index.extent
            wide = given.astype(np.uint64 if given.dtype.kind == "u" else np.int64)
            if message.outside == "clip":
                found = np.clip(wide, 0, n - 1).astype(np.int64)
            elif message.outside == "wrap":
                found = np.remainder(wide, wide.dtype.type(n)).astype(np.int64)
            else:
                inside = (given >= 0) & (given < n)
                found = np.where(inside, given, 0).astype(np.int64)
                good = inside if good is None else good & inside
            places += found * index.stride
        return places // size, good

    def _compact(self, message: Compact) -> int:
        self._context.check()
        if not message.count:
            return 0
        flags = self._context.array(message.flags, (message.count,), DTYPES["uint8"])
        positions = self._context.array(message.positions, (message.count,), _INT64)
        found = np.flatnonzero(flags)
        positions[: len(found)] = found
        return len(found)

    def _count_numbers(self, message: CountNumbers) -> None:
        self._context.check()
        if not message.count or not message.size:
            return
        given = self._context.array(message.given, (message.count,), DTYPES[message.dtype])
        counts = self._context.array(message.counts, (message.size,), _INT64)
        inside = given[(given >= 0) & (given < message.size)]
        counts += np.bincount(inside.astype(np.int64), minlength=message.size)

    def _find_outside(self, message: FindOutside) -> tuple[bool, int]:
        self._context.check()
        if not message.count:
            return False, 0
        n = message.extent
        given = self._context.array(message.address, (message.count,), DTYPES[message.dtype])
        wide = given if given.dtype.kind == "u" else given.astype(np.int64)
        bad = wide >= n
        if wide.dtype.kind == "i":
            bad |= wide < -n
        found = np.flatnonzero(bad)
        return (True, int(given[found[0]])) if len(found) else (False, 0)

    def _histogram(self, message: CountHistogram) -> None:
        self._context.check()
        array, size = self._context.array, message.size
        low, high = message.low, message.high
        if message.ends:
            low, high = self._require_intervals(message)
        edges = array(message.edges, (size + 1,), DTYPES[message.edge])
        with np.errstate(all="ignore"):
            edges[...] = edges_between(low, high, size)
            wide = np.empty(0)
            if message.count:
                wide = array(message.given, (message.count,), DTYPES[message.dtype]).astype("f8")
            wide = wide[(wide >= low) & (wide <= high)]
            apart, steep = high - low, size >= (high - low) * STEEPEST
            number = (wide - low) / apart * size if steep else (wide - low) * (size / apart)
        number = np.minimum(number, size - 1).astype(np.int64)
        # Edges decide: narrow elements are compared with narrow edges.
        more = (wide >= edges[number + 1]) & (number != size - 1)
        number = number - (wide < edges[number]) + more
        counts = array(message.counts, (size,), _INT64)
        counts[...] = np.bincount(number[number >= 0], minlength=size)

    def _find_among(self, message: FindAmong) -> None:
        self._context.check()
        array, dtype = self._context.array, DTYPES[message.dtype]
        wide = np.dtype(np.float32) if message.dtype in _NARROW else dtype
        given = array(message.given, (message.count,), dtype).astype(wide, copy=False)
        row = array(message.row, (message.size,), dtype).astype(wide, copy=False)
        target = array(message.target, given.shape, DTYPES["bool"])
        target[...] = np.isin(given, row, invert=message.invert)

    def _interpolate(self, message: Interpolate) -> None:
        self._context.check()
        array, dtype = self._context.array, DTYPES[message.dtype]
        given = array(message.given, (message.count,), DTYPES[message.kind])
        places = array(message.places, (message.points,), DTYPES["float64"])
        values = array(message.values, places.shape, dtype)
        left, right = (array(each, (), dtype)[()] for each in (message.left, message.right))
        target = array(message.target, given.shape, dtype)
        interp: Any = np.interp
        target[...] = interp(given, places, values, left, right)

    def _require_intervals(self, message: CountHistogram | RequireIntervals) -> tuple[float, float]:
        low, high = map(float, self._context.array(message.ends, (2,), DTYPES["float64"]))
        require_intervals(low, high, message.size, message.edge)
        return low, high

    def _require_order(self, message: RequireOrder) -> None:
        self._context.check()
        message.check(bytes(self._context.bytes_at(message.flags, 2)))

    def _distinct(self, message: Distinct) -> int:
        self._context.check()
        n = message.count
        if not n:
            return 0

        def numbers(address: int) -> _Array:
            return self._context.array(address, (n,), _INT64)

        dtype = DTYPES[message.dtype]
        values = self._context.array(message.values, (n,), dtype)
        first = np.ones(n, bool)
        if dtype.kind == "c":
            first[1:] = values[1:] != values[:-1]
            if message.equal_nan:
                first[1:] &= ~np.isnan(values[:-1])
        else:
            keys = _ordered(values)
            first[1:] = keys[1:] != keys[:-1]
            if not message.equal_nan:
                first[1:] |= values[1:] != values[1:]
        begins = np.flatnonzero(first)
        count = len(begins)
        self._context.array(message.made, (n,), dtype)[:count] = values[begins]
        if message.places:
            numbers(message.places)[:count] = numbers(message.order)[begins]
        if message.inverse:
            numbers(message.inverse)[numbers(message.order)] = np.cumsum(first) - 1
        if message.lengths:
            numbers(message.lengths)[:count] = np.diff(begins, append=n)
        return count

    def _read_numbers(self, message: ReadNumbers) -> tuple[int, ...]:
        self._context.check()
        return tuple([int(self._context.array(at, (), _INT64)) for at in message.addresses])

    def _top(self, message: Top) -> None:
        self._context.check()
        if not message.rows * message.count:
            return
        dtype, shape = DTYPES[message.dtype], (message.rows, message.count)
        source = self._context.array(message.source, (message.rows, message.length), dtype)
        if not message.places and not _has_negative_zero(source) and not is_added(dtype):
            ordered = np.sort(source, axis=1)  # the positions are not needed
            values = self._context.array(message.values, shape, dtype)
            values[...] = (ordered[:, ::-1] if message.descending else ordered)[:, : message.count]
            return
        first = _first(source, message.count, descending=message.descending)
        if message.values:
            values = self._context.array(message.values, shape, dtype)
            values[...] = np.take_along_axis(source, first, 1)
        if message.places:
            self._context.array(message.places, shape, _INT64)[...] = first

    def _scan(self, message: ScanRows) -> None:
        self._context.check()
        shape, dtype = (message.rows, message.length), DTYPES[message.dtype]
        source = self._context.array(message.source, shape, dtype)
        target = self._context.array(message.target, shape, dtype)
        wide = np.float32 if message.dtype in _NARROW else None
        ufunc = np.add if message.kind == "add" else np.multiply
        with np.errstate(all="ignore"):
            target[...] = ufunc.accumulate(source, axis=1, dtype=wide)


def _has_negative_zero(given: _Array) -> bool:
    """Return whether equal elements may differ: then the first of them comes first."""
    return is_inexact(given.dtype) and bool((np.signbit(given) & (given == 0)).any())


def _first(source: _Array, count: int, *, descending: bool) -> _Array:
    """Return the places of the first elements of each row in order; of equal ones, the first."""
    rows, length = source.shape
    if is_added(source.dtype) or length < 32 * count:
        return _sorted_first(source, count, descending=descending)
    step = max(1, _CACHED // (length * source.itemsize))
    pieces = (source[start : start + step] for start in range(0, rows, step))
    return np.concatenate([_few_first(piece, count, descending=descending) for piece in pieces])


def _few_first(source: _Array, count: int, *, descending: bool) -> _Array:
    """Sort only elements that may be among the first: those up to a bound from maxima of groups."""
    rows, length = source.shape
    groups = max(8 * count, length // 32)
    end = length // groups * groups
    grouped = source[:, :end].reshape(rows, -1, groups)
    with np.errstate(invalid="ignore"):
        best = grouped.max(axis=1) if descending else grouped.min(axis=1)
        if any(np.isnan(each).any() for each in (best, source[:, end:])):  # it counts as large
            return _sorted_first(source, count, descending=descending)
        at = groups - count if descending else count - 1
        bound = np.partition(best, at, axis=1)[:, at, None]
        chosen = source >= bound if descending else source <= bound
    row, place = np.divmod(np.flatnonzero(chosen), length)
    counts = np.bincount(row, minlength=rows)
    width = int(counts.max())
    if width > length // 4:  # with many equal elements nothing is gained
        return _sorted_first(source, count, descending=descending)
    keys = _ordered(source[row, place])
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    padded = np.full((rows, width), np.iinfo(keys.dtype).max, keys.dtype)
    padded[row, column] = ~keys if descending else keys
    places = np.zeros((rows, width), np.int64)
    places[row, column] = place
    order = np.argsort(padded, axis=1, kind="stable")[:, :count]  # padding comes last
    return np.take_along_axis(places, order, 1)


def _sorted_first(source: _Array, count: int, *, descending: bool) -> _Array:
    """Return the places of the first elements of each row, by a sort of the row."""
    keys = _ordered(source)
    return np.argsort(~keys if descending else keys, axis=1, kind="stable")[:, :count]


def _ordered(given: _Array) -> _Array:
    """Unsigned numbers that are in the order of real ones."""
    bits: _Array = given.view(f"u{given.dtype.itemsize}")
    if given.dtype.kind in "bu":
        return bits
    sign = bits.dtype.type(1 << (8 * given.dtype.itemsize - 1))
    made: _Array = bits ^ sign
    if given.dtype.kind == "i":
        return made
    made = np.where(bits & sign, ~bits, made)
    made[given == 0] = sign  # both zeros
    made[np.isnan(given)] = np.iinfo(bits.dtype).max
    return made
