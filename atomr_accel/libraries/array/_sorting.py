"""``device.array``'s functions that sort, search and count."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import NAMES, as_dtype, is_float
from ...expressions import Operand, cast, constant, index
from ...expressions.expression import broadcast_constant, ufunc, where
from ...expressions.promotion import FLOAT32, common, reduced
from ...memory import GpuRef
from ...ops import ARRAY_LANE as LANE
from ...ops import ARRAY_WAITS as WAITS
from ...ops import Answered, D, Request, Submission, op
from ._keys import taken
from ._top import FP8, fits, ranks, top
from .choosing import INT64, asking, trimmed
from .steps import ArrayPart, Steps, target_of
from .wire.indexing import PARTS, SCAN_PART, Distinct, Scan

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...ops import LaneSpec

T = TypeVar("T")

_UINT8: Final = as_dtype(np.uint8)
_UINT32: Final = as_dtype(np.uint32)
_LONG: Final = 1 << 14
"""A single row beyond that is scanned in parts."""
_LONGEST: Final = 1 << 22
"""Beyond that by CUB, which reads it once: calls of CUB take the host longer."""

SortKind = Literal["quicksort", "mergesort", "heapsort", "stable"]


class Sorting(ArrayPart[D]):
    """Sorting, searching and counting, of long rows by CUB.

    NaN are after all others, as in NumPy. Complex numbers have an order in one row. Rows of up to
    2048 elements are sorted by this package's own kernel. If an array has several longer rows, they
    are sorted as segments, which recordings cannot have.
    """

    @op
    def sort(
        self,
        a: Operand,
        axis: int | None = -1,
        kind: SortKind | None = None,
        *,
        descending: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Sort elements along an axis; as ``numpy.sort``.

        Args:
            a: a ref or an expression, of real numbers; complex numbers only in one row.
            axis: the axis to sort; None flattens ``a`` first.
            kind: as in NumPy; all kinds are stable here.
            descending: whether the order is descending; NaN then come first.
            out: the buffer for the result.

        Raises:
            TypeError: a dtype without an order.
            Unsupported: several rows of more than 2048 elements in a recording; or, for rows of
                more than 2048 elements, CUB is not installed.
        """
        _require_kind(kind)
        return self._sorted("sort", a, axis, descending, out, order=False)

    @op
    def argsort(
        self,
        a: Operand,
        axis: int | None = -1,
        kind: SortKind | None = None,
        *,
        descending: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Return the indices that sort along an axis, int64; as ``numpy.argsort``, and stable.

        Args:
            a: as for ``sort``.
            axis: as for ``sort``.
            kind: as for ``sort``.
            descending: as for ``sort``.
            out: the buffer for the result.

        Raises:
            TypeError, Unsupported: as ``sort``.
        """
        _require_kind(kind)
        return self._sorted("argsort", a, axis, descending, out, order=True)

    @op
    def partition(
        self, a: Operand, kth: int | Sequence[int], axis: int | None = -1
    ) -> Request[GpuRef]:
        """Put the ``kth`` smallest element at its sorted position; as ``numpy.partition``.

        Args:
            a: as for ``sort``. All elements are sorted.
            kth: one or several positions.
            axis: as for ``sort``.

        Raises:
            ValueError: ``kth`` is out of bounds.
            TypeError, Unsupported: as ``sort``.
        """
        _require_kth(self._operand(a, "a"), kth, axis)
        return self._sorted("partition", a, axis, False, None, order=False)

    @op
    def argpartition(
        self, a: Operand, kth: int | Sequence[int], axis: int | None = -1
    ) -> Request[GpuRef]:
        """Return the indices that ``partition``; as ``numpy.argpartition``. Arguments as there."""
        given = self._operand(a, "a")
        _require_kth(given, kth, _flattening(axis, given.shape))
        return self._sorted("argpartition", a, axis, False, None, order=True)

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

        Raises:
            ValueError: ``k`` is negative, or larger than the axis.
            TypeError, Unsupported: as ``sort``, if ``k`` is larger than 2048.
        """
        given, count = self._operand(x), operator.index(k)
        at = normalize_axis_index(axis, len(given.shape))
        if not 0 <= count <= given.shape[at]:
            raise ValueError(f"k is {count}, but the axis has {given.shape[at]} elements")

        few = ranks(given, at, count)

        def build(steps: Steps) -> tuple[GpuRef, GpuRef]:
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
        *,
        order: bool,
    ) -> Request[GpuRef]:
        given = self._operand(a, "a")
        shape = given.shape
        axis = _flattening(axis, shape) if order else axis
        if axis is not None:
            at = normalize_axis_index(axis, len(shape))
        dtype = INT64 if order else given.dtype

        def build(steps: Steps) -> GpuRef:
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
        steps: Steps,
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
        if ranks(given, axis, given.shape[axis]):
            n = given.shape[axis]
            return top(steps, given, axis, n, descending=descending, order=order, out=out)
        ref = steps.ref(given, "a")
        seen: Operand = ref.moveaxis(axis, -1)
        dtype = ref.dtype
        if NAMES[dtype] in FP8:
            seen = cast(seen, FLOAT32)
        if is_float(seen.dtype):  # of which one with a sign would come first
            seen = where(ufunc("isnan", seen), constant(math.nan, seen.dtype), seen)
        n = seen.shape[-1]
        rows = ref.size // n if n else 0
        cub, down = steps.cub, bool(descending)
        positions: GpuRef | None = None
        if not rows:
            made = steps.output(seen.shape, seen.dtype)
            return made, steps.output(seen.shape, INT64) if order else None
        keys = steps.contiguous(seen) if isinstance(seen, GpuRef) else steps.evaluate(seen)
        if rows == 1:
            if keys.dtype.kind == "c" and not down:
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

    # --- searching --------------------------------------------------------------------------

    @op
    def searchsorted(
        self,
        a: GpuRef,
        v: Operand,
        side: Literal["left", "right"] = "left",
        sorter: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Find positions of elements in sorted data, int64; as ``numpy.searchsorted``.

        Args:
            a: one dimension, sorted.
            v: the elements to look for.
            side: before or after equal elements.
            sorter: indices that sort ``a``.

        Raises:
            ValueError: other dimensions, or another ``side``.
            TypeError: a dtype without an order.
            Unsupported: CUB is not installed.
        """
        ref, given = self._ref(a, "a"), self._operand(v, "v")
        order = None if sorter is None else self._ref(sorter, "sorter")
        return self._several("searchsorted", lambda steps: search(steps, ref, given, side, order))

    @op
    def digitize(self, x: Operand, bins: GpuRef, right: bool = False) -> Request[GpuRef]:
        """Return the interval of each element, int64; as ``numpy.digitize``.

        Args:
            x: numbers.
            bins: the edges of intervals, in increasing order.
            right: whether they include their ends.

        Raises:
            ValueError, TypeError, Unsupported: as ``searchsorted``.
        """
        edges, given = self._ref(bins, "bins"), self._operand(x)
        side: Literal["left", "right"] = "left" if right else "right"
        return self._several("digitize", lambda steps: search(steps, edges, given, side, None))

    # --- scans ------------------------------------------------------------------------------

    @op
    def cumsum(
        self,
        a: Operand,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Add up all elements up to each; as ``numpy.cumsum``.

        Sums of floats of 16 bits or less are made in float32. Sums of floats are not made in the
        order of the elements.

        Args:
            a: a ref or an expression.
            axis: the axis to scan; None flattens ``a`` first.
            dtype: the dtype of the computation and of the result.
            out: the buffer for the result.

        Raises:
            Unsupported: a row of more than 2**22 elements, and CUB is not installed.
        """
        return self._scan("cumsum", "add", a, axis, dtype, out)

    @op
    def cumprod(
        self,
        a: Operand,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Products of all elements up to each; as ``numpy.cumprod``, and as ``cumsum``."""
        return self._scan("cumprod", "multiply", a, axis, dtype, out)

    def _scan(
        self,
        name: str,
        kind: Literal["add", "multiply"],
        a: Operand,
        axis: int | None,
        dtype: DTypeLike | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        given = self._operand(a, "a")
        result = reduced(kind, given.dtype) if dtype is None else as_dtype(dtype)
        if result.kind == "b":
            raise TypeError(f"{name} of bool counts nothing; give it a dtype of numbers")
        wide = FLOAT32 if NAMES[result] in FP8 else result
        axis = _flattening(axis, given.shape)
        at = 0 if axis is None else normalize_axis_index(axis, len(given.shape))

        def build(steps: Steps) -> GpuRef:
            ref = steps.cast(steps.ref(given, "a"), wide)
            rows = steps.flat(ref) if axis is None else steps.last(ref, at)
            shape = rows.shape if axis is None else ref.shape
            to = None if out is None else target_of(steps, out, shape, result, op=name)
            last = axis is None or at == len(shape) - 1
            sums = scanned(
                steps,
                kind,
                rows,
                deterministic=self._device.deterministic,
                out=to if last else None,
            )
            sums = steps.cast(sums, result)
            if sums is to or (to is None and last):
                return sums
            made = steps.output(shape, result) if to is None else to
            steps.assign((sums, made if axis is None else made.moveaxis(at, -1)))
            return made

        return self._several(name, build)

    # --- what is there ----------------------------------------------------------------------

    @op
    def unique(
        self,
        ar: Operand,
        return_index: bool = False,
        return_inverse: bool = False,
        return_counts: bool = False,
        *,
        equal_nan: bool = True,
    ) -> Request[GpuRef | tuple[GpuRef, ...]]:
        """Find the different elements, sorted; as ``numpy.unique`` without an axis.

        Args:
            ar: a ref or an expression.
            return_index: whether to return the first position of each.
            return_inverse: whether to return, for each element, its index in the result.
            return_counts: whether to return how often each occurs.
            equal_nan: whether NaN are equal.

        Returns:
            The elements. Further results, int64, follow in a tuple in the order of the arguments.

        Raises:
            TypeError: a dtype without an order.
            Unsupported: in a batch or a recording, because only the device knows the number of
                results; or CUB is not installed.
        """
        given = self._operand(ar, "ar")
        flags = return_index, return_inverse, return_counts

        def made_of(found: tuple[GpuRef, ...]) -> GpuRef | tuple[GpuRef, ...]:
            return found if len(found) > 1 else found[0]

        return self._unique(given, flags, made_of, equal_nan=equal_nan)

    @op
    def unique_values(self, x: Operand) -> Request[GpuRef]:
        """Find the different elements, with each NaN; as ``numpy.unique_values``, but sorted.

        Raises:
            TypeError, Unsupported: as ``unique``.
        """
        flags = False, False, False
        return self._unique(self._operand(x), flags, operator.itemgetter(0), equal_nan=False)

    @op
    def unique_counts(self, x: Operand) -> Request[tuple[GpuRef, GpuRef]]:
        """Find the different elements, and count each; as ``numpy.unique_counts``.

        Raises:
            TypeError, Unsupported: as ``unique``.
        """
        return self._unique(self._operand(x), (False, False, True), _pair, equal_nan=False)

    @op
    def unique_inverse(self, x: Operand) -> Request[tuple[GpuRef, GpuRef]]:
        """Find the different elements, and the inverse; as ``numpy.unique_inverse``.

        Raises:
            TypeError, Unsupported: as ``unique``.
        """
        return self._unique(self._operand(x), (False, True, False), _pair, equal_nan=False)

    @op
    def unique_all(self, x: Operand) -> Request[tuple[GpuRef, GpuRef, GpuRef, GpuRef]]:
        """Find the different elements, their first positions, the inverse, and the count of each.

        As ``numpy.unique_all``.

        Raises:
            TypeError, Unsupported: as ``unique``.
        """

        def made_of(found: tuple[GpuRef, ...]) -> tuple[GpuRef, GpuRef, GpuRef, GpuRef]:
            values, first, inverse, counts = found
            return values, first, inverse, counts

        return self._unique(self._operand(x), (True, True, True), made_of, equal_nan=False)

    def _unique(
        self,
        given: Operand,
        flags: tuple[bool, bool, bool],
        made_of: Callable[[tuple[GpuRef, ...]], T],
        *,
        equal_nan: bool,
    ) -> Request[T]:
        """Return a question with room for all elements; the unused room is freed."""
        shape, dtype = given.shape, given.dtype
        narrow = NAMES[dtype] in FP8  # which are sorted as another dtype

        def finish(count: int, refs: tuple[GpuRef, ...]) -> Any:
            found = [trimmed(refs[0], count)]
            rest = iter(refs[1:])
            for number, wanted in enumerate(flags):
                if wanted:
                    made = next(rest)
                    found.append(made.reshape(shape) if number == 1 else trimmed(made, count))
            return tuple(found) if narrow else made_of(tuple(found))

        def ask(steps: Steps) -> Submission[Any]:
            flat = steps.flat(steps.ref(given, "ar"))
            values, order = self._rows(steps, flat, 0, descending=False, order=flags[0] or flags[1])
            return _distinct(steps, values, order, flags, finish, equal_nan=equal_nan)

        asked: Request[Any] = asking(self._cub, "unique", ask)
        if not narrow:
            return asked

        def build(steps: Steps) -> T:
            found = steps.driver.perform(asked)
            assert found is not None
            return made_of((steps.cast(found[0], dtype), *found[1:]))

        return self._several("unique", build)


def _pair(found: tuple[GpuRef, ...]) -> tuple[GpuRef, GpuRef]:
    first, second = found
    return first, second


def _distinct(
    steps: Steps,
    values: GpuRef,
    order: GpuRef | None,
    flags: tuple[bool, bool, bool],
    finish: Callable[[int, tuple[GpuRef, ...]], Any],
    *,
    equal_nan: bool,
) -> Submission[Any]:
    """Return the question which elements of a sorted row differ, with room for all results."""
    made = steps.output(values.shape, values.dtype)
    places, inverse, lengths = (
        steps.output(values.shape, INT64) if wanted else None for wanted in flags
    )
    begins = steps.output(values.shape, INT64) if flags[2] else None
    scratch = steps.output((PARTS,), INT64)
    message = Distinct(
        values._place.address,
        values.size,
        NAMES[values.dtype],
        equal_nan,
        _address(order),
        _address(made),
        _address(places),
        _address(inverse),
        _address(begins),
        _address(lengths),
        scratch._place.address,
    )
    reads = [ref._place for ref in (values, order) if ref is not None]
    targets = (made, places, inverse, begins, lengths, scratch)
    writes = [ref._place for ref in targets if ref is not None]
    refs = tuple([ref for ref in (made, places, inverse, lengths) if ref is not None])
    return Submission(message, tuple(reads), tuple(writes), finish=Answered(finish, refs))


def _lane_of(given: Operand, axis: int) -> LaneSpec:
    """The lane that sorts rows: several long ones are segments, which wait for the device."""
    n = given.shape[axis]
    return WAITS if math.prod(given.shape) > n and not ranks(given, axis, n) else LANE


def _require_kind(kind: object) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ValueError(f"sort kind must be one of 'quick', 'heap', or 'stable' (got {kind!r})")


def _flattening(axis: int | None, shape: tuple[int, ...]) -> int | None:
    """Return the axis, or None if ``a`` is a single number, for which NumPy takes axis 0 or -1."""
    return None if not shape and axis in (0, -1) else axis


def _require_kth(a: Operand, kth: Any, axis: int | None) -> None:
    shape = a.shape
    n = math.prod(shape) if axis is None else shape[normalize_axis_index(axis, len(shape))]
    for each in (kth,) if isinstance(kth, SupportsIndex) else kth:
        at = operator.index(each)
        if not -n <= at < n and 0 not in shape:
            raise ValueError(f"kth(={at}) out of bounds ({n})")


def search(steps: Steps, a: GpuRef, given: Operand, side: object, sorter: GpuRef | None) -> GpuRef:
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    if a.ndim != 1:
        raise ValueError("object too deep for desired array" if a.ndim else "a must be 1-d")
    data = steps.ref(a, "a")
    if sorter is not None:
        if sorter.shape != a.shape:
            raise ValueError("sorter.size must equal len(a)")
        data = taken(steps, data, sorter)
    dtype = common((a.dtype, given.dtype))
    if NAMES[dtype] in FP8:
        dtype = FLOAT32
    data = steps.contiguous(steps.cast(data, dtype))
    values = steps.contiguous(steps.cast(steps.ref(given, "v"), dtype))
    if not values.size or not data.size:
        return steps.evaluate(broadcast_constant(values.shape, INT64))
    bound = steps.cub.lower_bound if side == "left" else steps.cub.upper_bound
    return steps.do(bound(data, values))


def _address(ref: GpuRef | None) -> Any:
    return 0 if ref is None else ref._place.address


def _order_of_complex(steps: Steps, row: GpuRef) -> GpuRef:
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


def scanned(
    steps: Steps,
    kind: Literal["add", "multiply"],
    rows: GpuRef,
    *,
    deterministic: bool,
    out: GpuRef | None = None,
) -> GpuRef:
    """Scan all rows along the last axis, C-contiguous; in ``out`` if possible."""
    n = rows.shape[-1] if rows.ndim else 1
    if not rows.size:
        return rows
    if out is not None and not fits(out, rows):
        out = None
    if rows.size == n > _LONGEST:
        floats = rows.dtype.kind not in "biu"
        if not (floats and deterministic) and rows.dtype.kind != "c":
            name = "plus" if kind == "add" else "multiplies"
            return steps.do(steps.cub.inclusive_scan(rows, name, dtype=rows.dtype, out=out))
    made = steps.output(rows.shape, rows.dtype) if out is None else out
    scratch = steps.output((PARTS * SCAN_PART,), _UINT8) if rows.size == n > _LONG else None
    message = Scan(
        kind,
        rows._place.address,
        made._place.address,
        NAMES[rows.dtype],
        rows.size // n,
        n,
        0 if scratch is None else scratch._place.address,
    )
    writes = [ref._place for ref in (made, scratch) if ref is not None]
    steps.submit("array.scan", message, (rows._place,), writes)
    return made
