"""CUB's sorts: how each is built, and called, and what kernels of ours do around them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ...._dtypes import DTYPES
from ._calls import SOMEWHERE, WIDE, CubCall, place, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wire._spec import CubSpec
    from ._calls import CubRun, ElementLauncher, Kit

_POSITION: Final = "uint64"


def _gather(dtype: str) -> str:
    """The kernel that gathers values of a dtype."""
    return f"gather<u{8 * DTYPES[dtype].itemsize}>"


class PairSort(CubCall):
    """Sort. Buffers: keys, values, and their results; values may be 0, which means missing.

    Positions are sorted instead of wide values, which are gathered by them afterwards. In radix
    sorts the bindings declare such values as large as a key, and then find other tuning parameters.
    In merge sorts the tiles do not fit into a block's shared memory. CUB then launches other
    kernels, of which the bindings know nothing.
    """

    buffers = 4

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values = spec.dtypes
        self._gathers = values == WIDE
        if self._gathers:
            values = _POSITION
        self._buffers = [kit.pointer(dtype) for dtype in (keys, values, keys, values)]

    def stand_ins(self) -> list[int]:
        """Values may be missing."""
        return [SOMEWHERE, SOMEWHERE if self.spec.dtypes[1] else 0] * 2

    def beside(self, count: int) -> int:
        """Return the bytes of the sorted positions."""
        return 8 * count if self._gathers else 0

    def before(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Write positions in place of wide values; return the buffers for CUB."""
        if not self._gathers:
            return pointers
        keys, _, sorted_keys, sorted_values = pointers
        launch("positions", count, sorted_values)
        return keys, sorted_values, sorted_keys, beside

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Gather values."""
        if self._gathers:
            launch(_gather(WIDE), count, pointers[3], pointers[1], beside)


class RadixSort(PairSort):
    """Sort by the bits of keys."""

    result = "DeviceRadixSortBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        b = self.bindings
        self._whole = b.Op(operator_type=b.OpKind.STATELESS, name="", ltoir=b"")
        self._bits = 8 * DTYPES[spec.dtypes[0]].itemsize

    def before(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Write the positions, which CUB sorts into the order."""
        if self.spec.algorithm == "argsort":
            launch("positions", count, pointers[1])
        return super().before(launch, pointers, beside, count)

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        order = self.bindings.SortOrder
        direction = order.DESCENDING if self.spec.descending else order.ASCENDING
        return direction, *self._buffers[:2], self._whole, b""

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        place(self._buffers, pointers)
        keys, items, sorted_keys, sorted_items = self._buffers
        buffers = keys, sorted_keys, items, sorted_items
        bits = 0, self._bits
        needed: int = built.compute(
            *scratch, *buffers, self._whole, sizes[0], *bits, False, -1, stream
        )[0]
        return needed


class MergeSort(PairSort):
    """Sort by an operator."""

    result = "DeviceMergeSortBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        self._operator = kit.operator(spec.operators[0])

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        return *self._buffers, self._operator

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        place(self._buffers, pointers)
        needed: int = built.compute(*scratch, *self._buffers, sizes[0], self._operator, stream)
        return needed


class SegmentedSort(CubCall):
    """Segmented sort. Buffers: keys, values, starts and ends of segments, and the two results.

    CUB compares floats of short segments, and NaN have no order there. So floats are sorted as
    whole numbers of the same order. Positions are sorted instead of values that come with floats or
    are wide. The values are written by them afterwards; elements outside all segments stay.
    """

    buffers = 6
    result = "DeviceSegmentedSortBuildResult"

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        super().__init__(spec, kit)
        keys, values, offsets = spec.dtypes
        self._size = DTYPES[keys].itemsize
        self._floats = "float" in keys
        self._gathers = bool(values) and (self._floats or values == WIDE)
        self._word = f"u{8 * self._size}"
        if self._floats:
            keys = f"uint{8 * self._size}"
        if self._gathers:
            values = _POSITION
        dtypes = keys, values, offsets, offsets, keys, values
        self._buffers = [kit.pointer(dtype) for dtype in dtypes]

    def beside(self, count: int) -> int:
        """Return the bytes of keys in, of keys out, and of positions in and out."""
        return sum(self._parts(count))

    def _parts(self, count: int) -> tuple[int, int, int, int]:
        keys = whole(self._size * count) if self._floats else 0
        positions = whole(8 * count) if self._gathers else 0
        return keys, keys if self._gathers else 0, positions, positions

    def before(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Write ordered keys, and positions for values."""
        keys, values, begins, ends, to, values_to = pointers
        at = [*accumulate(self._parts(count), initial=beside)]
        if self._floats and self._gathers:
            launch(f"ordered<{self._word}>", count, at[0], keys)
            keys, to = at[0], at[1]
        elif self._floats:
            # Both zeros become equal only if values or positions are sorted with them.
            launch(f"mapped<{self._word}>", count, at[0], keys)
            launch(f"mapped<{self._word}>", count, to, to)
            keys = at[0]
        if self._gathers:
            launch("positions", count, at[2])
            launch("nowhere", count, at[3])
            values, values_to = at[2], at[3]
        return keys, values, begins, ends, to, values_to

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Restore the keys, and write the values."""
        keys, values, _, _, to, values_to = pointers
        places = beside + sum(self._parts(count)[:3])
        if self._floats and not self._gathers:
            launch(f"floats<{self._word}>", count, to, to)
        elif self._floats:
            launch(f"gather<{self._word}>", count, to, keys, places)
        if self._gathers:
            launch(_gather(self.spec.dtypes[1]), count, values_to, values, places)

    def stand_ins(self) -> list[int]:
        """Values may be missing."""
        pair = [SOMEWHERE, SOMEWHERE if self.spec.dtypes[1] else 0]
        return [*pair, SOMEWHERE, SOMEWHERE, *pair]

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        del sizes
        order = self.bindings.SortOrder
        direction = order.DESCENDING if self.spec.descending else order.ASCENDING
        return direction, *self._buffers[:4]

    def run(self, built: Any, given: CubRun) -> int:
        pointers, sizes, _, scratch, stream = given
        place(self._buffers, pointers)
        keys, items, begin, end, sorted_keys, sorted_items = self._buffers
        buffers = keys, sorted_keys, items, sorted_items
        needed: int = built.compute(*scratch, *buffers, *sizes, begin, end, False, -1, stream)[0]
        return needed
