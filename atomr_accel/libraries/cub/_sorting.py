"""Sorts, and searches in sorted elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import NAMES
from ..._errors import said_of
from ...arrays import GpuRef
from ...ops import D, op, op_family
from ...wire.options import flag, whole
from ._operators import coded
from ._reductions import offsets_of
from .call import INT64, LANE, WAITING, CubOutput, CubPart, element, opaque
from .wire._spec import CubSpec, OperatorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...ops import Request
    from ._operators import AnyOperator


class Sorts(CubPart[D]):
    """``device.cub``'s sorts and searches."""

    @op
    def sort(
        self,
        keys: GpuRef,
        *,
        op: AnyOperator | None = None,
        descending: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Sort (``cub::DeviceRadixSort::SortKeys``, ``cub::DeviceMergeSort::SortKeys``).

        A radix sort orders keys by their bits: NaN without a sign is after all others, as in NumPy,
        and NaN with a sign before them. Both zeros are equal.

        Args:
            keys: any shape, taken as one row; real.
            op: returns whether one key comes before another; this makes it a merge sort.
                ``"less"``, ``"greater"``, or a function as for ``reduce``.
            descending: whether the largest comes first.
            out: the buffer for the result; not keys itself.

        Returns:
            An array of the shape of keys. Equal keys stay in their order.

        Raises:
            ValueError: ``op`` and ``descending`` together.
        """
        return self._sort("sort", keys, None, op, descending, out)

    @op
    def sort_pairs(
        self,
        keys: GpuRef,
        values: GpuRef,
        *,
        op: AnyOperator | None = None,
        descending: bool = False,
        out: tuple[GpuRef, GpuRef] | None = None,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Sort keys and take values along (``cub::DeviceRadixSort::SortPairs``).

        Arguments are those of ``sort``, with ``values``, one for each key, of any dtype. ``out``
        has a buffer for keys and one for values.

        Returns:
            The keys and the values. Values of equal keys stay in their order.
        """
        return self._sort("sort_pairs", keys, values, op, descending, out)

    @op
    def argsort(
        self, keys: GpuRef, *, descending: bool = False, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Return the order in which ``sort`` has keys, which is stable.

        Arguments are those of ``sort``.

        Returns:
            Positions in keys, int64, in the shape of keys.
        """
        self._require(keys=keys)
        dtypes = element(keys, "keys"), "uint64"
        spec = CubSpec("argsort", dtypes, descending=flag(descending, "descending"))
        shape = keys.shape
        return self._request(
            "cub.argsort",
            spec,
            [("keys", keys)],
            [
                CubOutput("positions", shape, INT64),
                CubOutput("sorted keys", shape, keys.dtype),
                CubOutput("out", shape, INT64, out),
            ],
            (keys.size,),
            result=_last,
        )

    @op
    def segmented_sort(
        self,
        keys: GpuRef,
        begins: GpuRef,
        ends: GpuRef,
        *,
        descending: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Sort each of many segments (``cub::DeviceSegmentedSort::StableSortKeys``).

        It waits for the device while it runs, so it runs on a lane of its own, and cannot be
        recorded.

        Args:
            keys: as for ``sort``.
            begins: as for ``segmented_reduce``.
            ends: as for ``segmented_reduce``; segments must not overlap.
            descending: whether the largest comes first.
            out: the buffer for the result. Elements outside all segments are not written.

        Returns:
            An array of the shape of keys.

        Raises:
            TypeError: a dtype without an order, or offsets that are neither int32 nor int64.
            Unsupported: in a recording.
        """
        segments = begins, ends
        return self._sort("segmented_sort", keys, None, None, descending, out, segments)

    @op
    def segmented_sort_pairs(
        self,
        keys: GpuRef,
        values: GpuRef,
        begins: GpuRef,
        ends: GpuRef,
        *,
        descending: bool = False,
        out: tuple[GpuRef, GpuRef] | None = None,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Sort segments and take values along (``cub::DeviceSegmentedSort::StableSortPairs``).

        Arguments are those of ``segmented_sort``, with ``values``, one for each key, of any dtype.
        ``out`` has a buffer for keys and one for values. Elements outside all segments are not
        written.

        Returns:
            The keys and the values.
        """
        segments = begins, ends
        return self._sort("segmented_sort_pairs", keys, values, None, descending, out, segments)

    @op_family
    def lower_bound(
        self,
        _name: str,
        data: GpuRef,
        values: GpuRef,
        *,
        op: AnyOperator | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Find the positions of values in sorted data, before equal elements (``cub::LowerBound``).

        This is ``numpy.searchsorted`` with ``side="left"``.

        Args:
            data: any shape, taken as one row; sorted, with NaN after all others.
            values: the values to look for, of the dtype of data.
            op: returns whether one element comes before another, in the order of data; by default
                ``<``.
            out: the buffer for the result.

        Returns:
            Positions in data, int64, in the shape of values.
        """
        self._require(data=data, values=values)
        dtype = element(data, "data")
        if element(values, "values") != dtype:
            raise TypeError(f"data is {dtype} and values {NAMES[values.dtype]}; cast one first")
        operators: tuple[OperatorSpec, ...] = ()
        if op is not None:
            operators = (coded(self.home, op, (dtype, dtype), "bool", "op"),)
        elif "float" not in dtype:
            operators = (OperatorSpec((dtype, dtype), "bool", "less"),)
        spec = CubSpec(_name, (dtype, dtype), operators)
        return self._request(
            f"cub.{_name}",
            spec,
            [("data", data), ("values", values)],
            [CubOutput("out", values.shape, INT64, out)],
            (values.size, data.size),
        )

    upper_bound: Final = lower_bound.like(
        """Find the positions of values in sorted data, after equal elements (``cub::UpperBound``).

        This is ``numpy.searchsorted`` with ``side="right"``. Otherwise as ``lower_bound``.
        """
    )

    def _sort(
        self,
        name: str,
        keys: GpuRef,
        values: GpuRef | None,
        op: AnyOperator | None,
        descending: bool,
        out: Any,
        segments: tuple[GpuRef, GpuRef] | None = None,
    ) -> Request[Any]:
        """Sort all keys, or those of each segment, and take values along if there are any."""
        moved = {} if values is None else {"values": values}
        offsets = {} if segments is None else {"begins": segments[0], "ends": segments[1]}
        self._require(keys=keys, **moved, **offsets)
        outputs: list[CubOutput | None]
        if values is None:
            outputs = [CubOutput("out", keys.shape, keys.dtype, out), None]
        else:
            if keys.size != values.size:
                raise ValueError(f"there are {keys.size} keys and {values.size} values")
            given = _two(out)
            outputs = [
                CubOutput("out[0]", keys.shape, keys.dtype, given[0]),
                CubOutput("out[1]", values.shape, values.dtype, given[1]),
            ]
        dtype, first = element(keys, "keys"), flag(descending, "descending")
        dtypes = dtype, "" if values is None else opaque(values.dtype)
        sizes: tuple[int, ...] = (keys.size,)
        if segments is not None:
            spec = CubSpec("segmented_sort", (*dtypes, offsets_of(*segments)), descending=first)
            count = whole(segments[0].size, "the number of segments", 0, 2**31 - 1)
            sizes = keys.size, count
        elif op is None:
            spec = CubSpec("radix_sort", dtypes, descending=first)
        elif first:
            raise ValueError("op says which key comes first, so descending has no meaning with it")
        else:
            less = coded(self.home, op, (dtype, dtype), "bool", "op")
            spec = CubSpec("merge_sort", dtypes, (less,))
        return self._request(
            f"cub.{name}",
            spec,
            [("keys", keys), ("values", values), *offsets.items()],
            outputs,
            sizes,
            lane=LANE if segments is None else WAITING,
            result=None if values is None else tuple,
        )


def _two(out: Any) -> tuple[GpuRef | None, GpuRef | None]:
    """Return two buffers, or two times None."""
    if out is None:
        return None, None
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"out must be two buffers, for keys and for values, not {said_of(out)}")
    return out[0], out[1]


def _last(made: Sequence[GpuRef]) -> GpuRef:
    return made[-1]
