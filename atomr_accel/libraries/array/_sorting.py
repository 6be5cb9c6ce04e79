"""Sorting: whole rows, parts of them, and their largest elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import NAMES, as_dtype, is_float
from ...arrays import GpuRef
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ...arrays.expressions.promotion import FLOAT32
from ...ops import ARRAY_LANE as LANE
from ...ops import ARRAY_WAITS as WAITS
from ...ops import D, Request, op, op_family
from ._keys import taken
from ._top import FP8, fits, ranks, top
from .choosing import INT64
from .steps import ArrayPart, CallSteps, target_of

if TYPE_CHECKING:
    from ...ops import LaneSpec

_UINT32: Final = as_dtype(np.uint32)

SortKind = Literal["quicksort", "mergesort", "heapsort", "stable"]


class Sorting(ArrayPart[D]):
    """Sorting, of long rows by CUB.

    NaN are after all others, as in NumPy. Complex numbers have an order in one row. Rows of up to
    2048 elements are sorted by this package's own kernel. If an array has several longer rows, they
    are sorted as segments, which recordings cannot have.
    """

    @op_family
    def sort(
        self,
        _name: str,
        a: Operand,
        axis: int | None = -1,
        kind: SortKind | None = None,
        *,
        stable: bool | None = None,
        descending: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Sort elements along an axis; as ``numpy.sort``.

        Args:
            a: a ref or an expression, of real numbers; complex numbers only in one row.
            axis: the axis to sort; None flattens ``a`` first.
            kind: as in NumPy; all kinds are stable here.
            stable: as in NumPy, in the place of ``kind``.
            descending: whether the order is descending; NaN then come first.
            out: the buffer for the result.

        Raises:
            Unsupported: several rows of more than 2048 elements in a recording; or, for rows of
                more than 2048 elements, CUB is not installed.
        """
        _require_kind(kind, stable)
        return self._sorted(_name, a, axis, descending, out)

    argsort: Final = sort.like(
        """Return the indices that sort along an axis, int64; as ``numpy.argsort``, and stable.

        Arguments and errors are those of ``sort``.
        """
    )

    @op_family
    def partition(
        self, _name: str, a: Operand, kth: int | Sequence[int], axis: int | None = -1
    ) -> Request[GpuRef]:
        """Put the ``kth`` smallest element at its sorted position; as ``numpy.partition``.

        ``kth`` is one or several positions. All elements are sorted. Other arguments are those of
        ``sort``.
        """
        given = self._operand(a, "a")
        flat = flattening(axis, given.shape) if _name == "argpartition" else axis
        _require_kth(given, kth, flat)
        return self._sorted(_name, a, axis, False, None)

    argpartition: Final = partition.like(
        """Return the indices that ``partition``; as ``numpy.argpartition``. Arguments as there."""
    )

    @op
    def topk(
        self, x: Operand, k: SupportsIndex, axis: int = -1, *, largest: bool = True
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Find the largest elements along an axis, in descending order, and their indices.

        Among equal elements the first ones come first. NaN count as larger than all others. Up to
        2048 of each row are found without sorting it.

        Args:
            x: as for ``sort``.
            k: the number of elements.
            axis: the axis to search.
            largest: whether to find the largest; otherwise the smallest, in ascending order.

        Returns:
            The values, and their indices, int64.
        """
        given, count = self._operand(x), operator.index(k)
        at = normalize_axis_index(axis, len(given.shape))
        if not 0 <= count <= given.shape[at]:
            raise ValueError(
                f"k must be at most {given.shape[at]}, the number of "
                f"elements along the axis, not {count}"
            )

        few = ranks(given, at, count)

        def build(steps: CallSteps) -> tuple[GpuRef, GpuRef]:
            if few:
                values, positions = top(steps, given, at, count, descending=largest)
            else:
                values, positions = self._rows(steps, given, at, descending=largest, order=True)
            assert positions is not None
            refs = (values, positions) if few else (values[..., :count], positions[..., :count])
            last = at == len(given.shape) - 1
            made = []
            for ref, dtype in zip(refs, (given.dtype, INT64), strict=True):
                part = ref.moveaxis(-1, at)
                if few and last and ref.dtype is dtype:
                    made.append(ref)
                    continue
                result = steps.output(part.shape, dtype)
                steps.assign((part, result))
                made.append(result)
            return made[0], made[1]

        return self._several("topk", build, LANE if few else _lane_of(given, at))

    def _sorted(
        self,
        name: str,
        a: Operand,
        axis: int | None,
        descending: bool,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        given, order = self._operand(a, "a"), name.startswith("arg")
        shape = given.shape
        axis = flattening(axis, shape) if order else axis
        if axis is not None:
            at = normalize_axis_index(axis, len(shape))
        dtype = INT64 if order else given.dtype

        def build(steps: CallSteps) -> GpuRef:
            source: Operand = given
            size = shape if axis is not None else (math.prod(shape),)
            along = at if axis is not None else 0
            if axis is None:
                source = steps.flat(steps.ref(given, "a"))
            last = along == len(size) - 1
            to = None
            if out is not None:
                to = target_of(steps, out, size, dtype, op=name)
            values, positions = self._rows(
                steps,
                source,
                along,
                descending=descending,
                order=order,
                out=to if last and not order else None,
            )
            found = values if positions is None else positions
            if to is None and last and found.dtype is dtype:
                return found.reshape(size)
            if found is to:
                return found
            made = steps.output(size, dtype) if to is None else to
            seen = made.moveaxis(along, -1)
            steps.assign((found.reshape(seen.shape), seen))
            return made

        return self._several(name, build, LANE if axis is None else _lane_of(given, at))

    def _rows(
        self,
        steps: CallSteps,
        given: Operand,
        axis: int,
        *,
        descending: bool,
        order: bool,
        out: GpuRef | None = None,
    ) -> tuple[GpuRef, GpuRef | None]:
        """Rows along an axis, sorted; and the order, if it is asked for. The axis is last.

        With ``order`` the values are made as well. They go to ``out`` if possible.
        """
        n = given.shape[axis]
        if ranks(given, axis, n):
            return top(steps, given, axis, n, descending=descending, order=order, out=out)
        if given.dtype.kind == "c" and (descending or math.prod(given.shape) > n):
            raise TypeError(  # before a step has a kernel built
                f"a is {given.dtype.name}, which has no order; complex numbers are sorted in one "
                "row, in ascending order"
            )
        ref = steps.ref(given, "a")
        seen: Operand = ref.moveaxis(axis, -1)
        dtype = ref.dtype
        if NAMES[dtype] in FP8:
            seen = cast(seen, FLOAT32)
        if is_float(seen.dtype):  # of which one with a sign would come first
            seen = where(ufunc("isnan", seen), constant(math.nan, seen.dtype), seen)
        rows = ref.size // n if n else 0
        cub, down = steps.cub, bool(descending)
        positions: GpuRef | None = None
        if not rows:
            made = steps.output(seen.shape, seen.dtype)
            return made, steps.output(seen.shape, INT64) if order else None
        keys = steps.contiguous(seen) if isinstance(seen, GpuRef) else steps.evaluate(seen)
        if rows == 1:
            if keys.dtype.kind == "c":
                flat = keys.reshape(n)
                positions = _order_of_complex(steps, flat)
                values = taken(steps, flat, positions).reshape(keys.shape)
                return values, positions.reshape(keys.shape) if order else None
            if not order:
                to = out if out is not None and fits(out, keys) else None
                return steps.do(cub.sort(keys, descending=down, out=to)), None
            # Half as many bytes to take along, where places fit into them.
            number = _UINT32 if n < 2**32 else INT64
            flat = steps.evaluate(cast(index((n,), 0), number))
            values, found = steps.do(cub.sort_pairs(keys.reshape(n), flat, descending=down))
            positions = steps.cast(found, INT64)
            return values.reshape(keys.shape), positions.reshape(keys.shape)
        begins = steps.evaluate(index((rows,), 0) * n)
        ends = steps.evaluate(begins + n)
        if not order:
            return steps.do(cub.segmented_sort(keys, begins, ends, descending=down)), None
        numbers = steps.evaluate(index(keys.shape, len(keys.shape) - 1))
        pair: tuple[GpuRef, GpuRef] = steps.do(
            cub.segmented_sort_pairs(keys, numbers, begins, ends, descending=down)
        )
        return pair


def _require_kind(kind: object, stable: object) -> None:
    if kind is not None and stable is not None:
        raise ValueError("kind must be None where stable is given; use only one of them")
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ValueError(f"sort kind must be one of 'quick', 'heap', or 'stable', not {kind!r}")


def _require_kth(a: Operand, kth: Any, axis: int | None) -> None:
    shape = a.shape
    n = math.prod(shape) if axis is None else shape[normalize_axis_index(axis, len(shape))]
    for each in (kth,) if isinstance(kth, SupportsIndex) else kth:
        at = operator.index(each)
        if not -n <= at < n and 0 not in shape:
            raise ValueError(f"kth(={at}) out of bounds ({n})")


def _order_of_complex(steps: CallSteps, row: GpuRef) -> GpuRef:
    """The order of complex numbers: by where they are NaN, by real parts, by imaginary ones."""
    order = steps.evaluate(index(row.shape, 0))
    lost = [ufunc("isnan", part) for part in (row.real, row.imag)]
    zero = constant(0, row.real.dtype)
    keys = (
        where(lost[1], zero, row.imag),
        where(lost[0], zero, row.real),
        cast(lost[0], as_dtype(np.uint8)) * 2 + cast(lost[1], as_dtype(np.uint8)),
    )
    for key in keys:  # stable, so that the last one counts most
        there = taken(steps, steps.evaluate(key), order)
        _, order = steps.do(steps.cub.sort_pairs(there, order))
    return order


def _lane_of(given: Operand, axis: int) -> LaneSpec:
    """The lane that sorts rows: several long ones are segments, which wait for the device."""
    n = given.shape[axis]
    return WAITS if math.prod(given.shape) > n and not ranks(given, axis, n) else LANE


def flattening(axis: int | None, shape: tuple[int, ...]) -> int | None:
    """Return the axis, or None if ``a`` is a single number, for which NumPy takes axis 0 or -1."""
    return None if not shape and axis in (0, -1) else axis
