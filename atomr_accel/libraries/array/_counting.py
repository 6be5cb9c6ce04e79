"""``device.array``'s functions that count: histograms and their like."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from ..._dtypes import NAMES, as_dtype, is_added, is_float, number_kind
from ..._errors import said_of
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import broadcast_constant, where
from ...arrays.expressions.promotion import FLOAT32, common, reduced
from ...ops import D, Request, op
from ._keys import Chosen, taken
from ._searching import require_order, search
from ._top import FP8
from .choosing import INT64, choose, read_numbers
from .steps import ArrayPart, CallSteps
from .wire._intervals import STEEPEST, require_intervals
from .wire.indexing import CountHistogram, CountNumbers, RequireIntervals

if TYPE_CHECKING:
    from ...arrays import GpuRef

_FLOAT64: Final = as_dtype(np.float64)
_COMPLEX128: Final = as_dtype(np.complex128)
_INT32: Final = as_dtype(np.int32)


class Counting(ArrayPart[D]):
    """Counting."""

    @op
    def bincount(
        self,
        x: Operand,
        weights: Operand | None = None,
        minlength: SupportsIndex = 0,
        *,
        length: SupportsIndex | None = None,
    ) -> Request[GpuRef]:
        """Count how often each number occurs; as ``numpy.bincount``.

        Args:
            x: whole numbers from 0 on, in one dimension.
            weights: the weight of each number, real; the result is float64 then.
            minlength: the smallest size of the result.
            length: the size of the result, if it is known. The call then needs no answer of the
                device, so it may be in a batch. Negative numbers and numbers of at least ``length``
                are ignored.

        Raises:
            ValueError: ``x`` has other than one dimension; or it has a negative number, without
                ``length``.
            Unsupported: in a batch or a recording, without ``length``.
        """
        given = self._operand(x)
        if given.dtype.kind not in "biu":
            raise TypeError(
                f"Cannot cast array data from {given.dtype!r} to dtype('int64') according to the "
                "rule 'safe'"
            )
        if len(given.shape) != 1:
            raise ValueError("object of too small depth for desired array")
        least = operator.index(minlength)
        if least < 0:
            raise ValueError("'minlength' must not be negative")
        if weights is not None:
            each = self._operand(weights, "weights")
            if each.shape != given.shape:
                raise ValueError("The weights and list don't have the same length.")
            if each.dtype.kind == "c":
                raise TypeError(
                    f"Cannot cast array data from {each.dtype!r} to dtype('float64') according to "
                    "the rule 'safe'"
                )

        def build(steps: CallSteps) -> GpuRef:
            size = least if length is None else operator.index(length)
            if length is None and given.shape[0]:
                asked = read_numbers(self._cub, (given.min(), given.max()), "bincount")
                low, high = steps.preparer.perform(asked) or (0, 0)
                if low < 0:
                    raise ValueError("'list' argument must have no negative elements")
                size = max(least, high + 1)
            return self._counted(steps, steps.ref(given), weights, size, _FLOAT64)

        return self._several("bincount", build)

    def _counted(
        self,
        steps: CallSteps,
        x: GpuRef,
        weights: Operand | None,
        size: int,
        summed: np.dtype[Any],
    ) -> GpuRef:
        dtype = INT64 if weights is None else summed
        made = steps.evaluate(broadcast_constant((size,), dtype))
        if x.dtype.kind == "b":
            x = steps.cast(x, INT64)
        if not size:
            return made
        if weights is None:  # by a kernel of ours: CUB's would have to be there, and built first
            given = steps.contiguous(x)
            message = CountNumbers(
                given.addressable_block.address,
                given.size,
                NAMES[given.dtype],
                made.addressable_block.address,
                size,
            )
            steps.submit(
                "array.count", message, [given.addressable_block], [made.addressable_block]
            )
            return made
        each = steps.cast(steps.ref(weights, "weights"), dtype)
        chosen = Chosen(made, [(x, 0)], x.shape, 0)
        choose(
            steps,
            "add",
            each,
            made,
            chosen.indices,
            chosen.loops(each),
            (),
            outside="drop",
            ordered=self.home.deterministic,
        )
        return made

    @op
    def histogram(
        self,
        a: Operand,
        bins: SupportsIndex | Sequence[float] | GpuRef = 10,
        range: tuple[float, float] | None = None,  # noqa: A002 - NumPy's name
        density: bool = False,
        weights: Operand | None = None,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Count the elements in each of some intervals; as ``numpy.histogram``.

        Args:
            a: real numbers, of any shape.
            bins: the number of intervals of equal size, or their edges in increasing order.
            range: the lowest and the highest edge; by default the smallest and the largest element.
            density: whether to return densities, whose integral is 1.
            weights: the weight of each element, real or complex.

        Returns:
            The counts, and the edges: float16 for elements of float16, but float32 for bfloat16.
            Counts by integer weights have the dtype of their sum, such as int64 for int32, for
            which NumPy keeps int32.

        Raises:
            ValueError: no intervals, an invalid range, a range wider than the largest number, or
                weights of another shape. Without ``range``, also elements that are infinite, NaN,
                or too near to each other or too far apart for the number of intervals; edges on
                the device that do not increase. The device finds these, and they are not raised in
                a recording on CUDA.
            Unsupported: CUB, which finds positions among given ``bins``, is not installed.
        """
        given = self._operand(a, "a")
        if given.dtype.kind == "c":
            raise TypeError("a histogram of complex numbers, which have no order")
        if weights is not None and self._operand(weights, "weights").shape != given.shape:
            raise ValueError("weights should have the same shape as a.")
        bounds = None if range is None else _bounds(*range)
        edges = _edges(bins)

        def build(steps: CallSteps) -> tuple[GpuRef, GpuRef]:
            x = steps.flat(steps.ref(given, "a"))
            half = NAMES[x.dtype] == "float16"  # whose edges are, too; the kernel has wide ones
            if isinstance(edges, int) and weights is None and not half:
                made, ends = _binned(steps, x, edges, bounds)
                return (_densities(steps, made, ends) if density else made), ends
            numbers, ends, count = _numbered(steps, x, edges, bounds, "histogram")
            flat = None if weights is None else steps.flat(steps.ref(weights, "weights"))
            kind = "" if weights is None else weights.dtype.kind
            whole = weights is not None and kind in "biu"
            summed = _COMPLEX128 if kind == "c" else _FLOAT64
            if weights is not None and whole:
                summed = reduced("add", weights.dtype)
            made = self._counted(steps, numbers, flat, count, summed)
            if density:
                made = _densities(steps, made, ends)
            elif not whole and weights is not None and weights.dtype is not made.dtype:
                made = steps.cast(made, weights.dtype)
            return made, ends

        return self._several("histogram", build)

    @op
    def histogram2d(
        self,
        x: Operand,
        y: Operand,
        bins: SupportsIndex | Sequence[Any] | GpuRef = 10,
        range: Sequence[tuple[float, float] | None] | None = None,  # noqa: A002 - NumPy's name
        density: bool = False,
        weights: Operand | None = None,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """Count points in each of some rectangles; as ``numpy.histogram2d``.

        ``bins`` are as for ``histogram``, for both coordinates, or a pair of these.

        Returns:
            The counts, float64, and the edges of ``x`` and of ``y``.
        """
        given = self._operand(x), self._operand(y, "y")
        size = given[0].shape
        for name, each in zip(("x", "y", "weights"), (*given, weights), strict=True):
            if each is None:
                continue
            if self._operand(each, name).dtype.kind == "c":
                raise TypeError(f"{name} of a histogram must be real numbers, not complex ones")
            if len(size) != 1 or each.shape != size:
                raise ValueError(f"{name} must have one dimension, as long as x, not {each.shape}")
        pair = bins if isinstance(bins, Sequence) and len(bins) == 2 else (bins, bins)
        edges = [_edges(each) for each in pair]
        ranges = (None, None) if range is None else range
        bounds = [None if each is None else _bounds(*each) for each in ranges]

        kind = common((given[0].dtype, given[1].dtype))
        kind = kind if is_float(kind) and size[0] else _FLOAT64

        def build(steps: CallSteps) -> tuple[GpuRef, GpuRef, GpuRef]:
            def numbered(each: Operand, edge: Any, bound: Any) -> tuple[GpuRef, GpuRef, int]:
                narrow = steps.cast(steps.ref(each), kind if bound is None else _FLOAT64)
                return _numbered(steps, narrow, edge, bound, "histogram2d")

            found = [
                numbered(each, edge, bound)
                for each, edge, bound in zip(given, edges, bounds, strict=True)
            ]
            (rows, x_ends, n), (columns, y_ends, m) = found
            outside = (rows < 0) | (rows >= n) | (columns < 0) | (columns >= m)
            numbers = steps.evaluate(where(outside, -1, cast(rows, INT64) * m + columns))
            w = None if weights is None else steps.ref(weights, "weights")
            counts = steps.cast(self._counted(steps, numbers, w, n * m, _FLOAT64), _FLOAT64)
            counts = counts.reshape(n, m)
            if density:
                wide = [steps.cast(each, _FLOAT64) for each in (x_ends, y_ends)]
                sides = [each[1:] - each[:-1] for each in wide]
                area = sides[0][:, None] * sides[1][None, :]
                counts = steps.evaluate(counts / area / counts.sum())
            return counts, x_ends, y_ends

        return self._several("histogram2d", build)


def _numbered(
    steps: CallSteps,
    x: GpuRef,
    edges: int | np.ndarray[Any, Any] | Operand,
    bounds: tuple[float, float] | None,
    name: str,
) -> tuple[GpuRef, GpuRef, int]:
    """Return the interval of each element, out of bounds for none, the edges, and their number."""
    if isinstance(edges, int):
        return *_places(steps, x, edges, bounds), edges
    known = isinstance(edges, np.ndarray)  # which rise
    if isinstance(edges, np.ndarray):
        ends = steps.upload(edges, as_dtype(edges.dtype))
    else:
        ends = steps.ref(edges, "bins")
    count = ends.size - 1
    if not known and ends.size > 1 and ends.dtype.kind != "c":
        require_order(steps, ends, name, falls=False)
    numbers: Operand = search(steps, ends, x, "right", None)
    last = ends[-1:]
    inside = where(x == last, constant(count - 1, INT64), numbers - 1)
    return steps.evaluate(inside), ends, count


def _bounds(low: Any, high: Any) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"supplied range of [{low}, {high}] is not finite")
    if low > high:
        raise ValueError("max must be larger than min in range parameter.")
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _edges(bins: Any) -> int | np.ndarray[Any, Any] | Operand:
    several = isinstance(bins, Operand) or (isinstance(bins, np.ndarray) and bins.ndim)
    if isinstance(bins, SupportsIndex) and not several:
        count = operator.index(bins)
        if count < 1:
            raise ValueError("`bins` must be positive, when an integer")
        return count
    if isinstance(bins, str):
        raise TypeError(f"bins must be a number or edges, not {bins!r}")
    if not np.ndim(bins) and not isinstance(bins, Operand):
        raise TypeError(f"bins must be a whole number or edges, not {bins!r}; convert it with int")
    if isinstance(bins, Operand):
        if len(bins.shape) != 1:
            raise ValueError("`bins` must be 1d, when an array")
        return bins
    edges = np.asarray(bins)
    if is_float(edges.dtype) and is_added(edges.dtype):
        edges = edges.astype(np.float32)
    if edges.ndim != 1 or number_kind(edges.dtype) not in ("i", "u", "f"):
        raise ValueError(f"`bins` must be 1d, when an array, not {said_of(bins)}")
    if (edges[:-1] > edges[1:]).any():
        raise ValueError("`bins` must increase monotonically, when an array")
    return edges


def _densities(steps: CallSteps, counts: GpuRef, ends: GpuRef) -> GpuRef:
    """Counts in densities, whose integral is 1."""
    wide = steps.cast(ends, _FLOAT64)
    return steps.evaluate(counts / (wide[1:] - wide[:-1]) / counts.sum())


def _binned(
    steps: CallSteps, x: GpuRef, count: int, bounds: tuple[float, float] | None
) -> tuple[GpuRef, GpuRef]:
    """Return the number of elements in each interval, and the edges."""
    if NAMES[x.dtype] in FP8:
        x = steps.cast(x, FLOAT32)
    dtype = _of_edges(x.dtype if x.dtype.kind not in "biu" else _FLOAT64, bounds)
    if NAMES[dtype] not in ("float32", "float64"):
        dtype = _FLOAT64
    both = _ends(steps, x) if bounds is None and x.size else None
    least, most = bounds or (0.0, 1.0)
    if both is None:
        require_intervals(float(least), float(most), count, NAMES[dtype])
    counts, ends = steps.output((count,), INT64), steps.output((count + 1,), dtype)
    message = CountHistogram(
        x.addressable_block.address if x.size else 0,
        x.size,
        NAMES[x.dtype],
        0 if both is None else both.addressable_block.address,
        float(least),
        float(most),
        counts.addressable_block.address,
        ends.addressable_block.address,
        NAMES[dtype],
        count,
    )
    reads = [ref.addressable_block for ref in (x, both) if ref is not None]
    steps.submit(
        "array.histogram", message, reads, [counts.addressable_block, ends.addressable_block]
    )
    return counts, ends


def _ends(steps: CallSteps, x: GpuRef) -> GpuRef:
    """Return the smallest and largest number, in float64; 0.5 beyond both if they are equal."""
    both = steps.output((2,), _FLOAT64)
    low, high = cast(x.min(), _FLOAT64), cast(x.max(), _FLOAT64)
    same = low == high
    steps.evaluate_all(
        [where(same, low - 0.5, low), where(same, high + 0.5, high)], (both[0], both[1])
    )
    return both


def _of_edges(dtype: np.dtype[Any], bounds: tuple[float, float] | None) -> np.dtype[Any]:
    """Return the dtype of edges. As in NumPy, narrow elements are compared with narrow edges."""
    floats = dtype if NAMES[dtype] == "float16" else np.result_type(dtype, np.float32)
    return as_dtype(np.result_type(floats, *(bounds or ())))


def _places(
    steps: CallSteps, x: GpuRef, count: int, bounds: tuple[float, float] | None
) -> tuple[GpuRef, GpuRef]:
    """Return the interval of each element, -1 for none, and the edges."""
    wide = steps.cast(x, _FLOAT64) if x.dtype.kind in "biu" else x
    edge = _of_edges(wide.dtype, bounds)
    if bounds is None and x.size:
        both = _ends(steps, wide)
        low, high = both[0], both[1]
        message = RequireIntervals(both.addressable_block.address, NAMES[edge], count)
        steps.submit("array.histogram", message, [both.addressable_block], [])
    else:
        least, most = bounds or (0.0, 1.0)
        require_intervals(float(least), float(most), count, NAMES[edge])
        low = steps.evaluate(constant(float(least), _FLOAT64))
        high = steps.evaluate(constant(float(most), _FLOAT64))
    at = index((count + 1,), 0)
    place, apart = cast(at, _FLOAT64), high - low
    steep = apart * STEEPEST <= float(count)
    line = where(steep, place / float(count) * apart, place * (apart / float(count))) + low
    line = where(at == count, high, line)
    ends = steps.evaluate(cast(line, edge))
    fraction = (cast(wide, _FLOAT64) - low) / apart * float(count)
    inside = (wide >= low) & (wide <= high)
    whole = _INT32 if count < 2**31 else INT64
    # The last one includes the highest edge.
    last = constant(count - 1, whole)
    numbers = steps.evaluate(where(inside & (fraction < count), cast(fraction, whole), last))
    begins, nexts = taken(steps, ends, numbers), taken(steps, ends[1:], numbers)
    less = cast(wide < begins, whole)
    more = cast((wide >= nexts) & (numbers != count - 1), whole)
    fixed = where(inside, numbers - less + more, constant(-1, whole))
    return steps.evaluate(fixed), ends
