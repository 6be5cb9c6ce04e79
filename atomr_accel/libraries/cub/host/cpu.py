"""CUB on the CPU, with NumPy: the same results, in the same order."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle
import numpy as np

from ...._dtypes import DTYPES
from ....host.host import IMPORTS
from ..wire._spec import BINARY, UNARY, decode
from ..wire.messages import BuildCub, Count, RunCub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._spec import CubSpec, OperatorSpec

Array = np.ndarray[Any, Any]


@final
class CpuCub:
    """Executes CUB's messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._specs: set[bytes] = set()
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            BuildCub: self._build,
            RunCub: self._run,
            Count: self._count,
        }

    def close(self) -> None:
        """Do nothing: it holds nothing."""

    def _build(self, message: BuildCub) -> tuple[int, str, float]:
        self._context.check()
        if message.spec in self._specs:
            return 0, "memory", 0.0
        start = time.perf_counter()
        _decoded(message.spec)
        self._specs.add(message.spec)
        return 0, "built", time.perf_counter() - start

    def _run(self, message: RunCub) -> None:
        self._context.check()
        spec = _decoded(message.spec)
        ALGORITHMS[spec.algorithm](_Job(self._context, spec, message))

    def _count(self, message: Count) -> int:
        self._context.check()
        return int(self._context.array(message.address, (), DTYPES["int64"]))


@lru_cache(256)
def _decoded(encoded: bytes) -> CubSpec:
    return decode(encoded)


class _Job:
    """Run of an algorithm.

    Attributes:
        spec: the algorithm that runs.
        sizes: the sizes of the message.
    """

    def __init__(self, context: CpuContext, spec: CubSpec, message: RunCub) -> None:
        self._context = context
        self._message = message
        self.spec: Final = spec
        self.sizes: Final = message.sizes

    def array(self, at: int, count: int, dtype: str) -> Array:
        """Return a buffer as an array."""
        address, kind = self._message.addresses[at], DTYPES[dtype]
        if not count or not address:
            return np.empty(0, kind)
        return self._context.array(address, (count,), kind)

    def value(self, at: int, dtype: str) -> Any:
        """Return a number from the program."""
        return np.frombuffer(self._message.values[at], DTYPES[dtype])[0]

    def init(self, dtype: str) -> Any:
        """Return the value to begin with, or None without one."""
        return self.value(0, dtype) if self.spec.init else None


@lru_cache(256)
def _ufunc(operator: OperatorSpec) -> Any:
    """An operator as a ufunc of arrays."""
    count = len(operator.arguments)
    if operator.kind:
        ufunc: Any = getattr(np, (UNARY if count == 1 else BINARY)[operator.kind].ufunc)
        if operator.arguments[0] == "bool" and operator.kind == "identity":
            return np.copy
        return ufunc
    with IMPORTS.running():
        function: Any = cloudpickle.loads(operator.function)
    if isinstance(function, np.ufunc):
        return function
    given, result = DTYPES[operator.arguments[0]].type, DTYPES[operator.result].type

    def scalar(*values: Any) -> Any:
        return result(function(*map(given, values)))

    return np.frompyfunc(scalar, count, 1)


def _apply(operator: OperatorSpec, *arrays: Array) -> Array:
    """An operator on each element."""
    given = DTYPES[operator.arguments[0]]
    wide = [each.astype(given, copy=False) for each in arrays]
    return np.asarray(_ufunc(operator)(*wide)).astype(DTYPES[operator.result])


def _accumulate(operator: OperatorSpec, values: Array) -> Array:
    """Fold the first element, the first two, and so on; there must be at least one element."""
    dtype = values.dtype
    ufunc: Any = _ufunc(operator)
    if operator.kind and not BINARY[operator.kind].truth:
        return np.asarray(ufunc.accumulate(values, dtype=dtype))
    made = np.empty(values.shape, dtype)
    made[:1] = values[:1]
    for at in range(1, len(values)):
        made[at] = ufunc(made[at - 1], values[at])
    return made


def _fold(operator: OperatorSpec, values: Array) -> Any:
    """Fold all elements; there must be at least one."""
    ufunc: Any = _ufunc(operator)
    if operator.kind and not BINARY[operator.kind].truth:
        return ufunc.reduce(values, dtype=values.dtype)
    while len(values) > 1:  # in a tree, neighbours first, as on a device
        half = len(values) // 2
        folded = np.asarray(ufunc(values[: 2 * half : 2], values[1 : 2 * half : 2]))
        values = np.concatenate((folded.astype(values.dtype), values[2 * half :]))
    return values[0]


def _begun(init: Any, values: Array) -> Array:
    """Elements, with what to begin with before them."""
    if init is None:
        return values
    return np.concatenate((np.asarray([init], values.dtype), values))


# --- the algorithms ---------------------------------------------------------------------------


def _reduce(job: _Job) -> None:
    x, accumulator, out = job.spec.dtypes
    values = job.array(0, job.sizes[0], x).astype(DTYPES[accumulator])
    values = _begun(job.init(accumulator), values)
    job.array(1, 1, out)[0] = _fold(job.spec.operators[0], values)


def _arg_reduce(job: _Job) -> None:
    values = job.array(0, job.sizes[0], job.spec.dtypes[0])
    strange = values != values  # noqa: PLR0124 - NaN, in any dtype
    if strange.any():
        position = np.argmax(strange)
    else:
        position = np.argmax(values) if job.spec.descending else np.argmin(values)
    job.array(1, 1, "int64")[0] = position


def _scan(job: _Job) -> None:
    x, accumulator, out = job.spec.dtypes
    count = job.sizes[0]
    if not count:
        return
    values = job.array(0, count, x).astype(DTYPES[accumulator])
    init = job.init(accumulator)
    sums = _accumulate(job.spec.operators[0], _begun(init, values))
    if init is not None:
        sums = sums[:-1] if job.spec.algorithm == "exclusive_scan" else sums[1:]
    job.array(1, count, out)[:] = sums.astype(DTYPES[out])


def _segments(job: _Job, first: int, count: int, n: int, dtype: str) -> Iterator[slice]:
    begins, ends = (job.array(first + at, count, dtype).tolist() for at in range(2))
    for begin, end in zip(begins, ends, strict=True):
        if begin < end and not 0 <= begin < end <= n:
            raise IndexError(f"a segment from {begin} to {end} of {n} elements")
        yield slice(begin, max(begin, end))


def _segmented_reduce(job: _Job) -> None:
    x, offsets, accumulator, out = job.spec.dtypes
    segments, n = job.sizes
    values = job.array(0, n, x).astype(DTYPES[accumulator])
    init, target = job.value(0, accumulator), job.array(3, segments, out)
    for at, segment in enumerate(_segments(job, 1, segments, n, offsets)):
        target[at] = _fold(job.spec.operators[0], _begun(init, values[segment]))


def ordered_bits(keys: Array) -> Array:
    """Unsigned numbers in the order in which a radix sort has keys.

    The order is that of their bits: NaN with a sign are before all others, NaN without a sign after
    them. Both zeros are equal.
    """
    bits: Array = keys.view(np.dtype(f"u{keys.dtype.itemsize}")).copy()
    sign = bits.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    if keys.dtype.kind in "bu":
        return bits
    if keys.dtype.kind != "i":
        return _ordered_floats(bits, sign)
    bits ^= sign
    return bits


def _ordered_floats(bits: Array, sign: Any) -> Array:
    bits = np.where(bits == sign, 0, bits).astype(bits.dtype)
    return np.where((bits & sign) != 0, ~bits, bits | sign)


def _sorted(keys: Array, *, descending: bool) -> Array:
    """Return the order in which keys are sorted; it is stable."""
    bits = ordered_bits(keys)
    return np.argsort(~bits if descending else bits, kind="stable")


def _sorted_keys(keys: Array, *, descending: bool) -> Array:
    """Keys in order; without an order to apply to others, NumPy's fastest sort does."""
    unsigned = np.dtype(f"u{keys.dtype.itemsize}")
    sign = unsigned.type(1 << (8 * keys.dtype.itemsize - 1))
    whole = keys.dtype.kind in "biu"
    if not whole and (keys.view(unsigned) == sign).any():
        # Zeros with a sign are equal to those without, but not the same.
        return keys[_sorted(keys, descending=descending)]
    bits = np.sort(ordered_bits(keys))
    if keys.dtype.kind == "i":
        bits ^= sign
    elif not whole:
        bits = np.where((bits & sign) != 0, bits ^ sign, ~bits)
    made = bits.view(keys.dtype)
    return made[::-1] if descending else made


def _sort(job: _Job) -> None:
    keys, values = job.spec.dtypes
    count = job.sizes[0]
    given = job.array(0, count, keys)
    if job.spec.algorithm != "merge_sort" and not values:
        job.array(2, count, keys)[:] = _sorted_keys(given, descending=job.spec.descending)
        return
    if job.spec.algorithm == "merge_sort":
        order = _merged(given, job.spec.operators[0])
    else:
        order = _sorted(given, descending=job.spec.descending)
    job.array(2, count, keys)[:] = given[order]
    if values:
        job.array(3, count, values)[:] = job.array(1, count, values)[order]


def _argsort(job: _Job) -> None:
    count = job.sizes[0]
    keys = job.array(0, count, job.spec.dtypes[0])
    job.array(3, count, "int64")[:] = _sorted(keys, descending=job.spec.descending)


def _merged(keys: Array, less: OperatorSpec) -> Array:
    """Return the order by a function that says whether one element comes before another."""
    order = np.arange(len(keys))
    width = 1
    while width < len(keys):
        parts = [
            _merge(keys, order[start : start + width], order[start + width :][:width], less)
            for start in range(0, len(keys), 2 * width)
        ]
        order = np.concatenate(parts)
        width *= 2
    return order


def _merge(keys: Array, left: Array, right: Array, less: OperatorSpec) -> Array:
    """Merge two sorted runs; both are indices of keys."""
    if not len(right):
        return left
    behind_left = _searched(keys[right], keys[left], less, right=False)
    behind_right = _searched(keys[left], keys[right], less, right=True)
    merged = np.empty(len(left) + len(right), left.dtype)
    merged[np.arange(len(left)) + behind_left] = left
    merged[np.arange(len(right)) + behind_right] = right
    return merged


def _searched(data: Array, wanted: Array, less: OperatorSpec | None, *, right: bool) -> Array:
    """Return the positions of values in sorted data: before equal elements, or after them."""
    low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(data), np.int64)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        there = data[np.minimum(middle, len(data) - 1)]
        before = ~_before(wanted, there, less) if right else _before(there, wanted, less)
        low = np.where(open_ & before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
    return low


def _before(one: Array, other: Array, less: OperatorSpec | None) -> Array:
    if less is not None:
        return _apply(less, one, other)
    strange = (other != other) & (one == one)  # noqa: PLR0124 - NaN is behind all others
    return np.asarray((one < other) | strange, np.bool_)


def _segmented_sort(job: _Job) -> None:
    keys, values, offsets = job.spec.dtypes
    n, segments = job.sizes
    given, target = job.array(0, n, keys), job.array(4, n, keys)
    for segment in _segments(job, 2, segments, n, offsets):
        order = _sorted(given[segment], descending=job.spec.descending)
        target[segment] = given[segment][order]
        if values:
            items = job.array(1, n, values)[segment]
            job.array(5, n, values)[segment] = items[order]


def _partition(job: _Job) -> None:
    dtype, count = job.spec.dtypes[0], job.sizes[0]
    x = job.array(0, count, dtype)
    operators = job.spec.operators
    if job.spec.algorithm == "select_flagged":
        first = job.array(1, count, "uint8") != 0
    else:
        first = _apply(operators[0], x).astype(np.bool_)
    second = ~first
    if job.spec.algorithm == "three_way_partition":
        second &= _apply(operators[1], x).astype(np.bool_)
    parts = [x[first], x[second], x[~first & ~second]]
    counts = job.array(5, 2, "int64")
    outs = {"select": 1, "select_flagged": 1, "partition": 2}.get(job.spec.algorithm, 3)
    for at, part in enumerate(parts[:outs]):
        _keep(job, 2 + at, part, dtype)
    counts[:] = [len(parts[0]), len(parts[1])]


def _keep(job: _Job, at: int, part: Array, dtype: str) -> None:
    """Write the kept elements, and bytes of 0xFF behind them."""
    room = job.array(at, job.sizes[0], dtype)
    room[: len(part)] = part
    room[len(part) :].view(np.uint8)[...] = 0xFF


def _unique_by_key(job: _Job) -> None:
    keys, values = job.spec.dtypes
    count = job.sizes[0]
    given = job.array(0, count, keys)
    first = np.ones(count, np.bool_)
    first[1:] = ~_apply(job.spec.operators[0], given[:-1], given[1:]).astype(np.bool_)
    found = int(first.sum())
    _keep(job, 2, given[first], keys)
    if values:
        _keep(job, 3, job.array(1, count, values)[first], values)
    job.array(4, 1, "int64")[0] = found


def _histogram(job: _Job) -> None:
    samples, counts, level = job.spec.dtypes
    bins = job.spec.levels - 1
    x = job.array(0, job.sizes[0], samples).astype(DTYPES[level])
    low, high = job.value(0, level), job.value(1, level)
    x = x[(x >= low) & (x < high)]
    if DTYPES[level].kind in "iu":
        wide = [int(each) for each in (low, high)]
        at = [(int(each) - wide[0]) * bins // (wide[1] - wide[0]) for each in np.unique(x)]
        positions = np.asarray(at, np.int64)[np.unique(x, return_inverse=True)[1]]
    else:
        scale = DTYPES[level].type(bins) / (high - low)
        positions = ((x - low) * scale).astype(np.int64)
    found = np.bincount(np.minimum(positions, bins - 1), minlength=bins)
    job.array(1, bins, counts)[:] = found


def _transform(job: _Job) -> None:
    *given, out = job.spec.dtypes
    count = job.sizes[0]
    arrays = [job.array(at, count, dtype) for at, dtype in enumerate(given)]
    if count:
        job.array(len(given), count, out)[:] = _apply(job.spec.operators[0], *arrays)


def _search(job: _Job) -> None:
    data, values = job.spec.dtypes
    wanted, n = job.sizes
    less = job.spec.operators[0] if job.spec.operators else None
    right = job.spec.algorithm == "upper_bound"
    found = _searched(job.array(0, n, data), job.array(1, wanted, values), less, right=right)
    job.array(2, wanted, "int64")[:] = found


ALGORITHMS: Final[dict[str, Callable[[_Job], None]]] = {
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "inclusive_scan": _scan,
    "exclusive_scan": _scan,
    "segmented_reduce": _segmented_reduce,
    "radix_sort": _sort,
    "argsort": _argsort,
    "merge_sort": _sort,
    "segmented_sort": _segmented_sort,
    "select": _partition,
    "select_flagged": _partition,
    "partition": _partition,
    "three_way_partition": _partition,
    "unique_by_key": _unique_by_key,
    "histogram_even": _histogram,
    "unary_transform": _transform,
    "binary_transform": _transform,
    "lower_bound": _search,
    "upper_bound": _search,
}
"""Algorithms by the name in a spec."""
