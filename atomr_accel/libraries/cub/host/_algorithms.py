"""CUB's algorithms: how each is built, and called.

One class for each kind. It has the iterators and operators that the bindings want, which say of
what types buffers are when something is built, and where they are when it is run. They belong to
one executor, because a run sets them. What was built is shared.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...._dtypes import DTYPES
from ..wire._spec import BINARY
from . import _source as source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wire._spec import Operator, Spec

_WELL_KNOWN: Final = {
    "plus": "PLUS",
    "multiplies": "MULTIPLIES",
    "minimum": "MINIMUM",
    "maximum": "MAXIMUM",
    "bit_and": "BIT_AND",
    "bit_or": "BIT_OR",
    "bit_xor": "BIT_XOR",
    "equal_to": "EQUAL_TO",
    "less": "LESS",
    "greater": "GREATER",
}
"""Operators that CUB knows, and has faster code for. The others are linked as the program's are."""

_ENUMS: Final = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOLEAN"}
_WIDE: Final = "complex128"
"""What values of 16 bytes are moved as: the only ones that CUB has no number for."""

_LARGEST_INT: Final = 2**31 - 1

SOMEWHERE: Final = 1 << 12
"""A pointer where there is none yet: what is null is taken for a buffer that is not there."""

QUERY: Final = (0, 0)
"""In place of scratch memory: nothing is to be run, only to be told how much it takes."""


class State(ctypes.Structure):
    """Of iterators that are no pointers; as in ``_source``."""

    _fields_: ClassVar[Any] = [
        ("values", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("index", ctypes.c_int64),
    ]


class Kit:
    """Makes what the bindings want.

    Args:
        bindings: the module.
        link: compiles the source of a function; None where nothing is built, only run.
    """

    def __init__(self, bindings: Any, link: Callable[[str, str], bytes] | None) -> None:
        self.bindings: Final = bindings
        self._link = link
        self._functions = 0

    def type(self, dtype: str) -> Any:
        """What tells a type."""
        b = self.bindings
        known = DTYPES[dtype]
        if known.kind == "c":
            return b.TypeInfo(known.itemsize, known.alignment, b.TypeEnum.STORAGE)
        enum = getattr(b.TypeEnum, _ENUMS.get(dtype, dtype.upper()))
        return b.TypeInfo(known.itemsize, known.itemsize, enum)

    def pointer(self, dtype: str) -> Any:
        """A buffer; of bytes where there is none."""
        b = self.bindings
        nothing = b.Op(), b.Op()
        where = SOMEWHERE if dtype else None
        kind = self.type(dtype or "uint8")
        return b.Iterator(8, b.IteratorKind.POINTER, *nothing, kind, state=where)

    def iterator(self, value: Any, read: Callable[[str], str], *, moves: bool = True) -> Any:
        """Something else than a pointer, and its state.

        Args:
            value: the type of its values.
            read: the source of what reads or writes one.
            moves: whether it is another one elsewhere.
        """
        b = self.bindings
        state = State()
        advance = self.function(source.advance_source if moves else source.ignored_source)
        access = self.function(read)
        made = b.IteratorState(ctypes.pointer(state))
        kind = b.IteratorKind.ITERATOR
        return b.Iterator(8, kind, advance, access, value, state=made), state

    def pair(self) -> Any:
        """The type of an element with its position or its flag."""
        return self.bindings.TypeInfo(16, 8, self.bindings.TypeEnum.STORAGE)

    def function(self, make: Callable[[str], str]) -> Any:
        """Something that is linked, by what makes its source for a name."""
        self._functions += 1
        name = f"atomr_{self._functions}"
        code = b"" if self._link is None else self._link(make(name), name)
        b = self.bindings
        return b.Op(operator_type=b.OpKind.STATELESS, name=name, ltoir=code)

    def operator(self, operator: Operator) -> Any:
        """An operator, as CUB knows it if it does."""
        b = self.bindings
        known = _WELL_KNOWN.get(operator.kind)
        if known is not None and _means_the_same(operator):
            return b.Op(operator_type=getattr(b.OpKind, known), name="", ltoir=b"")
        return self.function(lambda name: source.operator_source(operator, name))

    def value(self, dtype: str) -> Any:
        """A number from the program; set before a run."""
        return self.bindings.Value(self.type(dtype), bytearray(DTYPES[dtype].itemsize))


def _means_the_same(operator: Operator) -> bool:
    """Whether CUB's operator of that name gives what ours does."""
    given, result = operator.arguments[0], operator.result
    dtype = DTYPES[given]
    if dtype.kind == "c":
        return False
    if operator.kind in ("minimum", "maximum"):
        return dtype.kind in "biu" and result == given  # ours keeps NaN
    return result == given or BINARY[operator.kind].truth


class Call:
    """An algorithm with what it is given.

    Attributes:
        result: the class of what is built.
        buffers: how many it gets.
        number: the dtype of the numbers that it takes from the program.
    """

    result: ClassVar[str]
    buffers: ClassVar[int] = 2
    number = "uint8"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        self.spec: Final = spec
        self.kit: Final = kit
        self.bindings: Final = kit.bindings

    def gathered(self, count: int) -> int:
        """Bytes of the positions that are sorted in the place of values; 0 where these are."""
        del count
        return 0

    @property
    def number_bytes(self) -> int:
        """How large numbers from the program are."""
        return DTYPES[self.number].itemsize

    def stand_ins(self) -> list[int]:
        """Pointers to ask with: null, where there is no buffer."""
        return [SOMEWHERE] * self.buffers

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        """What it is built of, all but where headers are."""
        raise NotImplementedError

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        """Queue it; the bytes of scratch memory that it needs.

        With ``QUERY`` for scratch memory nothing is queued.
        """
        raise NotImplementedError


def _set(iterators: Sequence[Any], pointers: Sequence[int]) -> None:
    for iterator, pointer in zip(iterators, pointers, strict=True):
        iterator.state = pointer or None


class Reduce(Call):
    """Buffers: what is reduced, and its result."""

    result = "DeviceReduceBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        x, accumulator, out = spec.dtypes
        self.number = accumulator
        self._x, self._out = kit.pointer(x), kit.pointer(out)
        self._operator = kit.operator(spec.operators[0])
        self._type = kit.type(accumulator)
        self._init = kit.value(accumulator) if spec.init else None

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        b, spec = self.bindings, self.spec
        kind = b.InitKind.VALUE_INIT if spec.init else b.InitKind.NO_INIT
        determinism = getattr(b.Determinism, spec.determinism.upper())
        return self._x, self._out, self._operator, self._type, kind, determinism

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        _set((self._x, self._out), pointers)
        if self._init is not None:
            self._init.state = bytearray(values[0])
        loose = self.spec.determinism == "not_guaranteed"
        compute = built.compute_nondeterministic if loose else built.compute
        needed: int = compute(
            *scratch, self._x, self._out, sizes[0], self._operator, self._init, stream
        )
        return needed


class ArgReduce(Call):
    """Buffers: what is reduced, and the position."""

    result = "DeviceReduceBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        dtype, largest = spec.dtypes[0], spec.descending
        self._x, self._from = kit.iterator(kit.pair(), lambda name: source.pair_source(dtype, name))
        self._out, self._to = kit.iterator(
            kit.pair(), lambda name: source.index_source(dtype, name)
        )
        self._operator = kit.function(
            lambda name: source.extreme_source(dtype, name, largest=largest)
        )

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        b = self.bindings
        how = b.InitKind.NO_INIT, b.Determinism.RUN_TO_RUN
        return self._x, self._out, self._operator, self.kit.pair(), *how

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        self._from.values, self._to.values = pointers
        needed: int = built.compute(
            *scratch, self._x, self._out, sizes[0], self._operator, None, stream
        )
        return needed


class Scan(Call):
    """Buffers: what is scanned, and its result."""

    result = "DeviceScanBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
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

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        _set((self._x, self._out), pointers)
        compute = built.compute_inclusive_no_init
        if self._init is not None:
            self._init.state = bytearray(values[0])
            inclusive = self.spec.algorithm == "inclusive_scan"
            compute = built.compute_inclusive if inclusive else built.compute_exclusive
        needed: int = compute(
            *scratch, self._x, self._out, sizes[0], self._operator, self._init, stream
        )
        return needed


class SegmentedReduce(Call):
    """Buffers: what is reduced, where segments begin and end, and the results."""

    buffers = 4
    result = "DeviceSegmentedReduceBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        x, offsets, accumulator, out = spec.dtypes
        self.number = accumulator
        self._x, self._out = kit.pointer(x), kit.pointer(out)
        self._begin, self._end = kit.pointer(offsets), kit.pointer(offsets)
        self._operator = kit.operator(spec.operators[0])
        self._init = kit.value(accumulator)

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return self._x, self._out, self._begin, self._end, self._operator, self._init

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        _set((self._x, self._begin, self._end, self._out), pointers)
        self._init.state = bytearray(values[0])
        begin, end = self._begin, self._end
        where = self._x, self._out, sizes[0], begin, end
        needed: int = built.compute(*scratch, *where, self._operator, self._init, 0, stream)
        return needed


class PairSort(Call):
    """Buffers: keys and values, and where these go; 0 for values that are not there.

    Positions are sorted in the place of wide values, which are gathered by them afterwards. For
    radix sorts the bindings declare what is no number of C++'s as large as a key, and then find
    that they are tuned for something else. Merge sorts have tiles that do not fit into a block's
    shared memory; CUB then launches other ones, of which the bindings know nothing.
    """

    buffers = 4

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values = spec.dtypes
        self._gathers = values == _WIDE
        if self._gathers:
            values = "uint64"
        self._buffers = [kit.pointer(dtype) for dtype in (keys, values, keys, values)]

    def gathered(self, count: int) -> int:
        return 8 * count if self._gathers else 0

    def stand_ins(self) -> list[int]:
        """Values may be missing."""
        return [SOMEWHERE, SOMEWHERE if self.spec.dtypes[1] else 0] * 2


class RadixSort(PairSort):
    """By the bits of keys."""

    result = "DeviceRadixSortBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        b = self.bindings
        self._whole = b.Op(operator_type=b.OpKind.STATELESS, name="", ltoir=b"")
        self._bits = 8 * DTYPES[spec.dtypes[0]].itemsize

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        order = self.bindings.SortOrder
        direction = order.DESCENDING if self.spec.descending else order.ASCENDING
        return direction, *self._buffers[:2], self._whole, b""

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        _set(self._buffers, pointers)
        keys, items, sorted_keys, sorted_items = self._buffers
        buffers = keys, sorted_keys, items, sorted_items
        bits = 0, self._bits
        needed: int = built.compute(
            *scratch, *buffers, self._whole, sizes[0], *bits, False, -1, stream
        )[0]
        return needed


class MergeSort(PairSort):
    """By an operator."""

    result = "DeviceMergeSortBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        self._operator = kit.operator(spec.operators[0])

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return *self._buffers, self._operator

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        _set(self._buffers, pointers)
        needed: int = built.compute(*scratch, *self._buffers, sizes[0], self._operator, stream)
        return needed


class SegmentedSort(Call):
    """Buffers: keys, values, where segments begin and end, and where keys and values go."""

    buffers = 6
    result = "DeviceSegmentedSortBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values, offsets = spec.dtypes
        dtypes = keys, values, offsets, offsets, keys, values
        self._buffers = [kit.pointer(dtype) for dtype in dtypes]

    def stand_ins(self) -> list[int]:
        """Values may be missing."""
        pair = [SOMEWHERE, SOMEWHERE if self.spec.dtypes[1] else 0]
        return [*pair, SOMEWHERE, SOMEWHERE, *pair]

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        order = self.bindings.SortOrder
        direction = order.DESCENDING if self.spec.descending else order.ASCENDING
        return direction, *self._buffers[:4]

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        _set(self._buffers, pointers)
        keys, items, begin, end, sorted_keys, sorted_items = self._buffers
        buffers = keys, sorted_keys, items, sorted_items
        needed: int = built.compute(*scratch, *buffers, *sizes, begin, end, False, -1, stream)[0]
        return needed


class Partition(Call):
    """Buffers: what is divided, its flags, where the parts go, and two numbers of them."""

    buffers = 6
    result = "DeviceThreeWayPartitionBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
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

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
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


class UniqueByKey(Call):
    """Buffers: keys and values, where those go that are kept, and their number.

    The bindings tune for values that are no number of C++'s as if they were as large as a key.
    So positions are kept in the place of wide values, and what writes one gets the value there.
    """

    buffers = 5
    result = "DeviceUniqueByKeyBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values = spec.dtypes
        self._keys, self._out = kit.pointer(keys), kit.pointer(keys)
        self._count = kit.pointer("int64")
        self._valued = bool(values)
        self._states: tuple[Any, ...] = ()
        if values == _WIDE:
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

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        keys, items, out, items_out, count = pointers
        _set((self._keys, self._out, self._count), (keys, out, count))
        if self._states:
            self._states[1].values, self._states[1].flags = items_out, items
        elif self._valued:
            _set((self._values, self._values_out), (items, items_out))
        buffers = self._keys, self._values, self._out, self._values_out, self._count
        needed: int = built.compute(*scratch, *buffers, self._operator, sizes[0], stream)
        return needed


class Histogram(Call):
    """Buffers: samples and counts. Numbers: the lowest and the highest edge."""

    result = "DeviceHistogramBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        samples, counts, level = spec.dtypes
        self.number = level
        # There is no atomic addition of signed numbers of 64 bits, and none is negative.
        counts = {"int64": "uint64"}.get(counts, counts)
        self._samples, self._counts = kit.pointer(samples), kit.pointer(counts)
        self._levels = kit.value("int32")
        self._levels.state = bytearray(spec.levels.to_bytes(4, "little"))
        self._low, self._high = kit.value(level), kit.value(level)
        self._itemsize = DTYPES[samples].itemsize

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        # How many there are decides how wide offsets are; wide ones serve all.
        del sizes
        samples = math.ceil(_LARGEST_INT / self._itemsize)
        levels = self.spec.levels
        shape = 1, samples, True
        return 1, 1, self._samples, levels, self._counts, self._low.type, *shape

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        count = min(sizes[0], _LARGEST_INT)  # who asks how much memory it takes may round up
        _set((self._samples, self._counts), pointers)
        self._low.state, self._high.state = bytearray(values[0]), bytearray(values[1])
        edges = self._levels, self._low, self._high
        buffers = self._samples, self._counts
        needed: int = built.compute_even(*scratch, *buffers, *edges, count, 1, count, stream)
        return needed


class Transform(Call):
    """Buffers: one or two that are read, and one that is written."""

    def __init__(self, spec: Spec, kit: Kit) -> None:
        super().__init__(spec, kit)
        self._buffers = [kit.pointer(dtype) for dtype in spec.dtypes]
        operator = spec.operators[0]
        self._operator = kit.function(lambda name: source.operator_source(operator, name))

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return *self._buffers, self._operator

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        if scratch != QUERY:
            _set(self._buffers, pointers)
            built.compute(*self._buffers, sizes[0], self._operator, stream)
        return 0


class UnaryTransform(Transform):
    """Of one buffer."""

    result = "DeviceUnaryTransform"


class BinaryTransform(Transform):
    """Of two."""

    buffers = 3
    result = "DeviceBinaryTransform"


class BinarySearch(Call):
    """Buffers: what is sorted, what is looked for, and where that would be."""

    buffers = 3
    result = "DeviceBinarySearchBuildResult"

    def __init__(self, spec: Spec, kit: Kit) -> None:
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

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        del values
        if scratch != QUERY:
            _set(self._buffers, pointers)
            data, wanted, out = self._buffers
            built.compute(data, sizes[1], wanted, sizes[0], out, self._operator, stream)
        return 0


ALGORITHMS: Final[dict[str, type[Call]]] = {
    "reduce": Reduce,
    "arg_reduce": ArgReduce,
    "inclusive_scan": Scan,
    "exclusive_scan": Scan,
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
    "histogram_even": Histogram,
    "unary_transform": UnaryTransform,
    "binary_transform": BinaryTransform,
    "lower_bound": BinarySearch,
    "upper_bound": BinarySearch,
}
"""By the name that a spec has."""
