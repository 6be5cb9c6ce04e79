"""Sorts, and searches in sorted elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._dtypes import NAMES
from ..._errors import said_of
from ...arrays import GpuRef
from ...ops import D, op
from ...wire.options import flag, whole
from ._operators import coded
from ._reductions import offsets_of
from .call import INT64, WAITING, CubOutput, CubPart, element, opaque
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
        self._require(keys=keys)
        spec = self._sorted_by(keys, "", op, descending)
        return self._request(
            "cub.sort",
            spec,
            [("keys", keys), ("values", None)],
            [CubOutput("out", keys.shape, keys.dtype, out), None],
            (keys.size,),
        )

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

        Args:
            keys: as for ``sort``.
            values: one for each key, of any dtype.
            op: as for ``sort``.
            descending: as for ``sort``.
            out: the buffers for keys and values.

        Returns:
            The keys and the values. Values of equal keys stay in their order.
        """
        self._require(keys=keys, values=values)
        _require_as_many(keys, values)
        spec = self._sorted_by(keys, opaque(values.dtype), op, descending)
        given = _two(out)
        return self._request(
            "cub.sort_pairs",
            spec,
            [("keys", keys), ("values", values)],
            [
                CubOutput("out[0]", keys.shape, keys.dtype, given[0]),
                CubOutput("out[1]", values.shape, values.dtype, given[1]),
            ],
            (keys.size,),
            result=tuple,
        )

    @op
    def argsort(
        self, keys: GpuRef, *, descending: bool = False, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Return the order in which ``sort`` has keys, which is stable.

        Args:
            keys: as for ``sort``.
            descending: as for ``sort``.
            out: the buffer for the result.

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

    def _sorted_by(
        self, keys: GpuRef, values: str, op: AnyOperator | None, descending: bool
    ) -> CubSpec:
        dtype = element(keys, "keys")
        first = flag(descending, "descending")
        if op is None:
            return CubSpec("radix_sort", (dtype, values), descending=first)
        if first:
            raise ValueError("op says which key comes first, so descending has no meaning with it")
        less = coded(self.home, op, (dtype, dtype), "bool", "op")
        return CubSpec("merge_sort", (dtype, values), (less,))

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
        self._require(keys=keys, begins=begins, ends=ends)
        spec, sizes = _segmented(keys, "", begins, ends, descending)
        return self._request(
            "cub.segmented_sort",
            spec,
            [("keys", keys), ("values", None), ("begins", begins), ("ends", ends)],
            [CubOutput("out", keys.shape, keys.dtype, out), None],
            sizes,
            lane=WAITING,
        )

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

        Args:
            keys: as for ``sort``.
            values: one for each key, of any dtype.
            begins: as for ``segmented_sort``.
            ends: as for ``segmented_sort``.
            descending: whether the largest comes first.
            out: the buffers for keys and values. Elements outside all segments are not written.

        Returns:
            The keys and the values.
        """
        self._require(keys=keys, values=values, begins=begins, ends=ends)
        _require_as_many(keys, values)
        spec, sizes = _segmented(keys, opaque(values.dtype), begins, ends, descending)
        given = _two(out)
        return self._request(
            "cub.segmented_sort_pairs",
            spec,
            [("keys", keys), ("values", values), ("begins", begins), ("ends", ends)],
            [
                CubOutput("out[0]", keys.shape, keys.dtype, given[0]),
                CubOutput("out[1]", values.shape, values.dtype, given[1]),
            ],
            sizes,
            lane=WAITING,
            result=tuple,
        )

    @op
    def lower_bound(
        self,
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
        return self._bound("lower_bound", data, values, op, out)

    @op
    def upper_bound(
        self,
        data: GpuRef,
        values: GpuRef,
        *,
        op: AnyOperator | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Find the positions of values in sorted data, after equal elements (``cub::UpperBound``).

        This is ``numpy.searchsorted`` with ``side="right"``.

        Args:
            data: as for ``lower_bound``.
            values: as for ``lower_bound``.
            op: as for ``lower_bound``.
            out: the buffer for the result.

        Returns:
            Positions in data, int64, in the shape of values.
        """
        return self._bound("upper_bound", data, values, op, out)

    def _bound(
        self,
        algorithm: str,
        data: GpuRef,
        values: GpuRef,
        op: AnyOperator | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        self._require(data=data, values=values)
        dtype = element(data, "data")
        if element(values, "values") != dtype:
            raise TypeError(f"data is {dtype} and values {NAMES[values.dtype]}; cast one first")
        operators: tuple[OperatorSpec, ...] = ()
        if op is not None:
            operators = (coded(self.home, op, (dtype, dtype), "bool", "op"),)
        elif "float" not in dtype:
            operators = (OperatorSpec((dtype, dtype), "bool", "less"),)
        spec = CubSpec(algorithm, (dtype, dtype), operators)
        return self._request(
            f"cub.{algorithm}",
            spec,
            [("data", data), ("values", values)],
            [CubOutput("out", values.shape, INT64, out)],
            (values.size, data.size),
        )


def _segmented(
    keys: GpuRef, values: str, begins: GpuRef, ends: GpuRef, descending: bool
) -> tuple[CubSpec, tuple[int, int]]:
    offsets = offsets_of(begins, ends)
    segments = whole(begins.size, "the number of segments", 0, 2**31 - 1)
    dtypes = element(keys, "keys"), values, offsets
    spec = CubSpec("segmented_sort", dtypes, descending=flag(descending, "descending"))
    return spec, (keys.size, segments)


def _require_as_many(keys: GpuRef, values: GpuRef) -> None:
    if keys.size != values.size:
        raise ValueError(f"there are {keys.size} keys and {values.size} values")


def _two(out: Any) -> tuple[GpuRef | None, GpuRef | None]:
    """Return two buffers, or two times None."""
    if out is None:
        return None, None
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"out must be two buffers, for keys and for values, not {said_of(out)}")
    return out[0], out[1]


def _last(made: Sequence[GpuRef]) -> GpuRef:
    return made[-1]
