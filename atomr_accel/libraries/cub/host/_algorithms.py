"""CUB's algorithms: how each is built, and called.

Each kind has one class. It holds the iterators and operators for the bindings. At a build these
give the types of buffers, and at a run their addresses. They belong to one executor, because a run
sets them. Builds are shared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ...._dtypes import DTYPES
from ....executors.scan_tiles import (
    SCAN_MACROS,
    THREADS,
    most_scanned,
    scan_threads,
    scan_types,
)
from ..wire._spec import scans_in_order
from . import _source as source
from ._calls import QUERY, WIDE, CubCall, place
from ._sorts import MergeSort, RadixSort, SegmentedSort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wire._spec import CubSpec
    from ._calls import CubRun, ElementLauncher, Kit

_LARGEST_INT: Final = 2**31 - 1
_PACK_BYTES: Final = 16
"""Bytes that a thread reads at once."""

_PACKS: Final = 4
"""Reads of a thread that are under way at a time."""

_PARTS: Final = 2048
"""Most blocks that look for the extreme elements of a row."""

MACROS: Final = {**SCAN_MACROS, "PACKS": _PACKS, "PARTS": _PARTS}
"""Constants of kernels."""

_SCANNED: Final = {"plus": "add", "multiplies": "multiply"}
"""Operators of scans by a kernel of ours."""

_CPP: Final = {
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    "bool": "bool",
    "float32": "float",
    "float64": "double",
    "float16": "h16",
    "bfloat16": "b16",
}
"""Names of dtypes in kernels."""


class Folding(CubCall):
    """Call that folds elements. Its last buffer is for results.

    CUB writes results in the dtype of the computation, even if their iterator has another one. So
    results of another dtype are cast afterwards.
    """

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        *_, accumulator, out = spec.dtypes
        self.number = accumulator
        self._casts = "" if accumulator == out else f"cast<{_CPP[out]}, {_CPP[accumulator]}>"
        self._out = kit.pointer(accumulator)

    def results(self, count: int) -> int:
        """Return the number of results."""
        raise NotImplementedError

    def beside(self, count: int) -> int:
        """Return the bytes of the results before the cast."""
        return DTYPES[self.number].itemsize * self.results(count) if self._casts else 0

    def before(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Return buffers in which scratch memory takes the results if they need a cast."""
        del launch, count
        return (*pointers[:-1], beside) if self._casts else pointers

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Cast them."""
        if self._casts:
            launch(self._casts, self.results(count), pointers[-1], beside)


class Reduce(Folding):
    """Reduction. Buffers: the elements, and their result."""

    result = "DeviceReduceBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        x, accumulator, _ = spec.dtypes
        self._x = kit.pointer(x)
        self._operator = kit.operator(spec.operators[0])
        self._type = kit.type(accumulator)
        self._init = kit.value(accumulator) if spec.init else None

    def results(self, count: int) -> int:
        """Return 1: all elements have one result."""
        del count
        return 1

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        b, spec = self.bindings, self.spec
        kind = b.InitKind.VALUE_INIT if spec.init else b.InitKind.NO_INIT
        determinism = getattr(b.Determinism, spec.determinism.upper())
        return self._x, self._out, self._operator, self._type, kind, determinism

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, values, scratch, stream = given
        place((self._x, self._out), pointers)
        if self._init is not None:
            self._init.state = bytearray(values[0])
        loose = self.spec.determinism == "not_guaranteed"
        compute = built.compute_nondeterministic if loose else built.compute
        needed: int = compute(
            *scratch, self._x, self._out, sizes[0], self._operator, self._init, stream
        )
        return needed


class ArgReduce(CubCall):
    """Reduction to a position. Buffers: the elements, and the position.

    CUB reads pairs of values and positions one by one. For large rows that took 2.5 times as long
    as PyTorch's, so a kernel of ours does all of it.
    """

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        element, largest = _CPP[spec.dtypes[0]], str(spec.descending).lower()
        number = "float" if element in ("h16", "b16") else element
        self.kernels = (f"extreme<{element}, {number}, {largest}>",)
        self._each = _PACKS * _PACK_BYTES // DTYPES[spec.dtypes[0]].itemsize

    def run(self, built: Any, given: CubRun) -> int:
        del built, given
        return 0

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Find the best elements of parts, and then the best of these."""
        del beside
        threads = min(-(-count // self._each), _PARTS * THREADS)
        launch(self.kernels[0], count, pointers[1], pointers[0], threads=threads)


class CubScan(CubCall):
    """Scan. Buffers: the elements, and the result."""

    result = "DeviceScanBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        x, accumulator, out = spec.dtypes
        self.number = accumulator
        self._x, self._out = kit.pointer(x), kit.pointer(out)
        self._operator = kit.operator(spec.operators[0])
        self._type = kit.type(accumulator)
        self._init = kit.value(accumulator) if spec.init else None

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        b = self.bindings
        kind = b.InitKind.VALUE_INIT if self.spec.init else b.InitKind.NO_INIT
        inclusive = self.spec.algorithm == "inclusive_scan"
        return self._x, self._out, self._operator, self._type, inclusive, kind

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, values, scratch, stream = given
        place((self._x, self._out), pointers)
        compute = built.compute_inclusive_no_init
        if self._init is not None:
            self._init.state = bytearray(values[0])
            inclusive = self.spec.algorithm == "inclusive_scan"
            compute = built.compute_inclusive if inclusive else built.compute_exclusive
        needed: int = compute(
            *scratch, self._x, self._out, sizes[0], self._operator, self._init, stream
        )
        return needed


class RowScan(CubCall):
    """Inclusive scan of one row. Buffers: the elements, and the result.

    A kernel of ours takes one launch and no build, where CUB takes two, and gives the same bits in
    every call.
    """

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        self._dtype = spec.dtypes[0]
        self.kernels = (f"scan_tiles<{scan_types(self._dtype, _SCANNED[spec.operators[0].kind])}>",)

    def run(self, built: Any, given: CubRun) -> int:
        del built, given
        return 0

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Scan the row, a part at a time."""
        del beside
        x, out = pointers
        most, itemsize = most_scanned(self._dtype), DTYPES[self._dtype].itemsize
        for number, start in enumerate(range(0, count, most)):
            length, offset = min(most, count - start), start * itemsize
            threads = scan_threads(self._dtype, length)
            launch(self.kernels[0], length, out + offset, x + offset, number, threads=threads)


class SegmentedReduce(Folding):
    """Reduction of segments. Buffers: the elements, segments' starts and ends, the results."""

    buffers = 4
    result = "DeviceSegmentedReduceBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        x, offsets, accumulator, _ = spec.dtypes
        self._x = kit.pointer(x)
        self._begin, self._end = kit.pointer(offsets), kit.pointer(offsets)
        self._operator = kit.operator(spec.operators[0])
        self._init = kit.value(accumulator)

    def results(self, count: int) -> int:
        """Return the number of segments, which have one result each."""
        return count

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return self._x, self._out, self._begin, self._end, self._operator, self._init

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, values, scratch, stream = given
        place((self._x, self._begin, self._end, self._out), pointers)
        self._init.state = bytearray(values[0])
        begin, end = self._begin, self._end
        where = self._x, self._out, sizes[0], begin, end
        needed: int = built.compute(*scratch, *where, self._operator, self._init, 0, stream)
        return needed


class Partition(CubCall):
    """Partition. Buffers: the elements, their flags, up to three parts, and two counts."""

    buffers = 6
    result = "DeviceThreeWayPartitionBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        dtype, self._states = spec.dtypes[0], {}
        flagged = spec.algorithm == "select_flagged"
        self._counts = kit.pointer("int64")
        if flagged:
            x, state = kit.iterator(kit.pair(), lambda name: source.pair_source(dtype, name))
            out, to = kit.iterator(kit.pair(), lambda name: source.value_source(dtype, name))
            self._states = {0: state, 2: to}
            first = kit.function(lambda name: source.flagged_source(dtype, name))
        else:
            x, out = kit.pointer(dtype), kit.pointer(dtype)
            first = kit.operator(spec.operators[0])
        value = kit.pair() if flagged else kit.type(dtype)
        ignored = [kit.iterator(value, source.ignored_source, moves=False) for _ in range(2)]
        self._kept = [state for _, state in ignored]
        self._x, self._outs = x, [out, ignored[0][0], ignored[1][0]]
        if spec.algorithm in ("partition", "three_way_partition"):
            self._outs[1] = kit.pointer(dtype)
        if spec.algorithm == "three_way_partition":
            self._outs[2] = kit.pointer(dtype)
            second = kit.operator(spec.operators[1])
        else:
            truth = spec.algorithm == "partition"
            second = kit.function(lambda name: source.constant_source(name, truth=truth))
        self._operators = first, second

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return self._x, *self._outs, self._counts, *self._operators

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        x, flags, *outs, counts = pointers
        if self._states:
            self._states[0].values, self._states[0].flags = x, flags
            self._states[2].values = outs[0]
        else:
            self._x.state = x or None
        for iterator, pointer in zip(self._outs, outs, strict=False):
            if iterator.is_ptr_kind:
                iterator.state = pointer or None
        self._counts.state = counts
        needed: int = built.compute(
            *scratch, self._x, *self._outs, self._counts, *self._operators, sizes[0], stream
        )
        return needed


class UniqueByKey(CubCall):
    """Buffers: keys and values, where those go that are kept, and their number.

    The bindings tune for large values, other than C++'s numbers, as if they had the size of a key.
    So positions are kept instead of wide values, and the iterator that writes a position writes the
    value at it.
    """

    buffers = 5
    result = "DeviceUniqueByKeyBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values = spec.dtypes
        self._keys, self._out = kit.pointer(keys), kit.pointer(keys)
        self._count = kit.pointer("int64")
        self._valued = bool(values)
        self._states: tuple[Any, ...] = ()
        if values == WIDE:
            place = kit.type("uint64")
            self._values, at = kit.iterator(place, source.place_source)
            self._values_out, to = kit.iterator(
                place, lambda name: source.taken_source(values, name)
            )
            self._states = at, to
        elif values:
            self._values, self._values_out = kit.pointer(values), kit.pointer(values)
        else:
            ignored = [
                kit.iterator(kit.type("uint8"), source.ignored_source, moves=False)
                for _ in range(2)
            ]
            self._kept = [state for _, state in ignored]
            self._values, self._values_out = (iterator for iterator, _ in ignored)
        self._operator = kit.operator(spec.operators[0])

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        outs = self._out, self._values_out
        return self._keys, self._values, *outs, self._count, self._operator

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        keys, items, out, items_out, count = pointers
        place((self._keys, self._out, self._count), (keys, out, count))
        if self._states:
            self._states[1].values, self._states[1].flags = items_out, items
        elif self._valued:
            place((self._values, self._values_out), (items, items_out))
        buffers = self._keys, self._values, self._out, self._values_out, self._count
        needed: int = built.compute(*scratch, *buffers, self._operator, sizes[0], stream)
        return needed


class CubHistogram(CubCall):
    """Buffers: samples and counts. Numbers: the lowest and the highest edge."""

    result = "DeviceHistogramBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        samples, counts, level = spec.dtypes
        self.number = level
        # Signed numbers of 64 bits have no atomic addition, and counts are never negative.
        counts = {"int64": "uint64"}.get(counts, counts)
        self._samples, self._counts = kit.pointer(samples), kit.pointer(counts)
        self._levels = kit.value("int32")
        self._levels.state = bytearray(spec.levels.to_bytes(4, "little"))
        self._low, self._high = kit.value(level), kit.value(level)
        self._itemsize = DTYPES[samples].itemsize

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        # The number of samples decides the width of offsets; wide ones serve all.
        del sizes
        samples = math.ceil(_LARGEST_INT / self._itemsize)
        levels = self.spec.levels
        shape = 1, samples, True
        return 1, 1, self._samples, levels, self._counts, self._low.type, *shape

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, values, scratch, stream = given
        count = min(sizes[0], _LARGEST_INT)  # a question for scratch memory may round up
        place((self._samples, self._counts), pointers)
        self._low.state, self._high.state = bytearray(values[0]), bytearray(values[1])
        edges = self._levels, self._low, self._high
        buffers = self._samples, self._counts
        needed: int = built.compute_even(*scratch, *buffers, *edges, count, 1, count, stream)
        return needed


class CubTransform(CubCall):
    """Transform. Buffers: one or two inputs, and one output."""

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        self._buffers = [kit.pointer(dtype) for dtype in spec.dtypes]
        operator = spec.operators[0]
        self._operator = kit.function(lambda name: source.operator_source(operator, name))

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return *self._buffers, self._operator

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        if scratch != QUERY:
            place(self._buffers, pointers)
            built.compute(*self._buffers, sizes[0], self._operator, stream)
        return 0


class UnaryTransform(CubTransform):
    """Transform of one buffer."""

    result = "DeviceUnaryTransform"


class BinaryTransform(CubTransform):
    """Transform of two buffers."""

    buffers = 3
    result = "DeviceBinaryTransform"


class BinarySearch(CubCall):
    """Search. Buffers: sorted data, values to look for, and their positions."""

    buffers = 3
    result = "DeviceBinarySearchBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        data, values = spec.dtypes
        self._buffers = kit.pointer(data), kit.pointer(values), kit.pointer("uint64")
        if spec.operators:
            self._operator = kit.operator(spec.operators[0])
        else:
            self._operator = kit.function(lambda name: source.ordered_source(data, name))

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        mode = getattr(self.bindings.BinarySearchMode, self.spec.algorithm.upper())
        return mode, *self._buffers, self._operator

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        if scratch != QUERY:
            place(self._buffers, pointers)
            data, wanted, out = self._buffers
            built.compute(data, sizes[1], wanted, sizes[0], out, self._operator, stream)
        return 0


ALGORITHMS: Final[dict[str, type[CubCall]]] = {
    "reduce": Reduce,
    "arg_reduce": ArgReduce,
    "inclusive_scan": CubScan,
    "exclusive_scan": CubScan,
    "segmented_reduce": SegmentedReduce,
    "radix_sort": RadixSort,
    "argsort": RadixSort,
    "merge_sort": MergeSort,
    "segmented_sort": SegmentedSort,
    "select": Partition,
    "select_flagged": Partition,
    "partition": Partition,
    "three_way_partition": Partition,
    "unique_by_key": UniqueByKey,
    "histogram_even": CubHistogram,
    "unary_transform": UnaryTransform,
    "binary_transform": BinaryTransform,
    "lower_bound": BinarySearch,
    "upper_bound": BinarySearch,
}
"""Algorithms by the name in a spec."""


def algorithm_of(spec: CubSpec) -> type[CubCall]:
    """Return what runs the algorithm of a spec."""
    return RowScan if scans_in_order(spec) else ALGORITHMS[spec.algorithm]
