"""``device.array``'s differences, integrals, interpolation and convolution."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..._dtypes import NAMES, as_dtype, is_inexact
from ...arrays.expressions import Operand, broadcast, cast, constant, index, sum_of_products
from ...arrays.expressions.expression import reduce, ufunc, where
from ...arrays.expressions.promotion import FLOAT32, common, resolve
from ...ops import D, Request, op
from ._creation import Number, _number
from ._keys import taken
from ._sorting import Sorting
from .steps import CallSteps
from .wire.indexing import Interpolate

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...arrays.expressions import Value

ConvolveMode = Literal["full", "same", "valid"]

_FLOAT64: Final = as_dtype(np.float64)
_COMPLEX128: Final = as_dtype(np.complex128)


class Calculus(Sorting[D]):
    """Differences, integrals, interpolation and convolution."""

    @op
    def diff(
        self,
        a: Operand,
        n: SupportsIndex = 1,
        axis: SupportsIndex = -1,
        prepend: Value | None = None,
        append: Value | None = None,
    ) -> Request[GpuRef]:
        """Subtract each element from the next one; as ``numpy.diff``.

        ``prepend`` and ``append`` are numbers or arrays. Of bools the result says which neighbours
        differ.
        """
        given, times = self._operand(a, "a"), operator.index(n)
        if times < 0:
            raise ValueError(f"n must be at least 0, not {times}")
        if not given.shape:
            raise ValueError("a must have at least one dimension, not none")
        at = normalize_axis_index(operator.index(axis), len(given.shape))
        ends = [_end(each, given, at) for each in (prepend, append)]
        parts = [each for each in (ends[0], given, ends[1]) if each is not None]
        dtype = common(tuple(each.dtype for each in parts))

        def build(steps: CallSteps) -> GpuRef:
            if not times:
                return steps.evaluate(given)
            several = len(parts) > 1
            x = self._in_a_row(steps, parts, at, dtype) if several else steps.ref(given, "a")
            for _ in range(times):
                x = steps.evaluate(_difference(x, at))
            return x

        return self._several("diff", build)

    @staticmethod
    def _in_a_row(
        steps: CallSteps, parts: Sequence[Operand], axis: int, dtype: np.dtype[Any]
    ) -> GpuRef:
        """Return arrays one after the other."""
        shape = list(parts[0].shape)
        shape[axis] = sum(each.shape[axis] for each in parts)
        made = steps.output(tuple(shape), dtype)
        start = 0
        for each in parts:
            end = start + each.shape[axis]
            steps.evaluate(cast(each, dtype), made[(*[slice(None)] * axis, slice(start, end))])
            start = end
        return made

    @op
    def gradient(
        self,
        f: Operand,
        *varargs: Number | GpuRef,
        axis: int | tuple[int, ...] | None = None,
        edge_order: Literal[1, 2] = 1,
    ) -> Request[GpuRef | tuple[GpuRef, ...]]:
        """Central differences, and differences to one side at the edges; as ``numpy.gradient``.

        ``varargs`` are the distance of elements, one number for all axes, or for each axis a number
        or the coordinates in one dimension. The result is a tuple if there are several axes.
        """
        given = self._operand(f, "f")
        ndim = len(given.shape)
        axes = tuple(range(ndim)) if axis is None else normalize_axis_tuple(axis, ndim)
        if edge_order not in (1, 2):
            raise ValueError(f"edge_order must be 1 or 2, not {edge_order!r}")
        spaces: list[Any] = [*varargs] or [1.0]
        if len(spaces) == 1 and not getattr(spaces[0], "shape", ()):
            spaces *= len(axes)
        if len(spaces) != len(axes):
            raise TypeError(
                f"gradient takes no distance, one number, or one distance or coordinates for each "
                f"of {len(axes)} axes, not {len(spaces)}"
            )
        for at, space in zip(axes, spaces, strict=True):
            if given.shape[at] < edge_order + 1:
                raise ValueError(
                    f"f must have at least {edge_order + 1} elements along axis {at}, not "
                    f"{given.shape[at]}"
                )
            if isinstance(space, Operand) and space.shape not in ((), (given.shape[at],)):
                raise ValueError(
                    f"coordinates along axis {at} must have shape ({given.shape[at]},), not "
                    f"{space.shape}"
                )
        dtype = given.dtype if is_inexact(given.dtype) else _FLOAT64

        def build(steps: CallSteps) -> GpuRef | tuple[GpuRef, ...]:
            x = steps.cast(steps.ref(given, "f"), dtype)
            found = []
            for at, space in zip(axes, spaces, strict=True):
                made = steps.output(x.shape, dtype)
                apart: Any = space if isinstance(space, Operand) else _number(space, "varargs")
                if isinstance(space, Operand) and space.shape:
                    points = steps.ref(space, "varargs")
                    points = points if is_inexact(points.dtype) else steps.cast(points, _FLOAT64)
                    apart = steps.evaluate(points[1:] - points[:-1])
                pairs = _slopes(x.moveaxis(at, -1), made.moveaxis(at, -1), apart, edge_order)
                steps.evaluate_all(
                    [cast(each, dtype) for each, _ in pairs], tuple([to for _, to in pairs])
                )
                found.append(made)
            return found[0] if len(found) == 1 else tuple(found)

        return self._several("gradient", build)

    @op
    def trapezoid(
        self, y: Operand, x: Operand | None = None, dx: Value = 1.0, axis: SupportsIndex = -1
    ) -> Request[GpuRef]:
        """Integrate along an axis by trapezoids; as ``numpy.trapezoid``.

        ``x`` are coordinates in one dimension, or in a shape that broadcasts.
        """
        given = self._operand(y, "y")
        at = normalize_axis_index(operator.index(axis), len(given.shape))
        points = None if x is None else self._operand(x)

        def build(steps: CallSteps) -> GpuRef:
            heights = steps.ref(given, "y").moveaxis(at, -1)
            wide: Any = dx
            if points is not None:
                places = steps.ref(points)
                if places.ndim > 1:
                    places = places.moveaxis(operator.index(axis), -1)
                wide = _difference(places, -1)
            whole = wide * (heights[..., 1:] + heights[..., :-1]) / 2.0
            return steps.evaluate(whole.sum(-1))

        return self._several("trapezoid", build)

    @op
    def interp(
        self,
        x: Operand,
        xp: GpuRef,
        fp: GpuRef,
        left: Number | None = None,
        right: Number | None = None,
        period: float | None = None,
    ) -> Request[GpuRef]:
        """Interpolate linearly between points; as ``numpy.interp``, in float64 or complex128.

        ``xp`` and ``fp`` have one dimension; ``xp`` increases, unless there is a ``period``.
        """
        given, points, heights = self._operand(x), self._ref(xp, "xp"), self._ref(fp, "fp")
        if "c" in (given.dtype.kind, points.dtype.kind):
            raise TypeError("x and xp must be real numbers, not complex ones")
        if points.ndim != 1 or points.shape != heights.shape or not points.size:
            raise ValueError(
                "xp and fp must have one dimension and the same length, at least 1, not shapes "
                f"{points.shape} and {heights.shape}"
            )
        if period == 0:
            raise ValueError("period must be a non-zero value")
        dtype = _COMPLEX128 if heights.dtype.kind == "c" else _FLOAT64
        ends = [
            None if each is None or period is not None else constant(_number(each, name), dtype)
            for each, name in ((left, "left"), (right, "right"))
        ]

        def build(steps: CallSteps) -> GpuRef:
            at = steps.ref(given)
            if at.dtype is not FLOAT32 or period is not None:
                at = steps.cast(at, _FLOAT64)
            places = steps.cast(steps.ref(points, "xp"), _FLOAT64)
            values = steps.cast(steps.ref(heights, "fp"), dtype)
            if period is not None:
                turn = abs(period)
                at = steps.evaluate(ufunc("remainder", at, turn))
                places = steps.evaluate(ufunc("remainder", places, turn))
                places, order = self._rows(steps, places, 0, descending=False, order=True)
                assert order is not None
                values = taken(steps, values, order)
                around = [places[-1:] - turn, places, places[:1] + turn]
                places = self._in_a_row(steps, around, 0, _FLOAT64)
                values = self._in_a_row(steps, [values[-1:], values, values[:1]], 0, dtype)
            at, places, values = map(steps.contiguous, (at, places, values))
            first, last = (
                values[end] if each is None else steps.evaluate(each)
                for each, end in zip(ends, (0, places.size - 1), strict=True)
            )
            made = steps.output(at.shape, dtype)
            if not made.size:
                return made
            target, *reads = (
                ref.addressable_block for ref in (made, at, places, values, first, last)
            )
            message = Interpolate(
                target.address,
                reads[0].address,
                at.size,
                NAMES[at.dtype],
                reads[1].address,
                reads[2].address,
                reads[3].address,
                reads[4].address,
                places.size,
                NAMES[dtype],
            )
            steps.submit("array.interp", message, reads, [target])
            return made

        return self._several("interp", build)

    @op
    def convolve(self, a: Operand, v: Operand, mode: ConvolveMode = "full") -> Request[GpuRef]:
        """Convolve two rows; as ``numpy.convolve``.

        Each element is one sum of products, so integers are exact. For two long rows,
        ``device.fft.fftconvolve`` takes fewer steps.
        """
        long, short = self._rows_of("convolve", a, v, mode)
        n, m = long.shape[0], short.shape[0]
        if m > n:
            long, short = short, long
        return self._convolved("convolve", long, short, mode, turned=True)

    @op
    def correlate(self, a: Operand, v: Operand, mode: ConvolveMode = "valid") -> Request[GpuRef]:
        """Correlate two rows, with the conjugates of ``v``; as ``numpy.correlate``."""
        x, y = self._rows_of("correlate", a, v, mode)
        conjugate: Operand = y if y.dtype.kind != "c" else ufunc("conjugate", y)
        n, m = x.shape[0], y.shape[0]
        if m > n:
            return self._convolved("correlate", conjugate, x, mode, swapped=True)
        return self._convolved("correlate", x, conjugate, mode)

    def _rows_of(self, name: str, a: Operand, v: Operand, mode: object) -> tuple[Operand, Operand]:
        if mode not in ("full", "same", "valid"):
            raise ValueError(f"mode must be 'full', 'same' or 'valid', not {mode!r}")
        for word, each in (("a", self._operand(a, "a")), ("v", self._operand(v, "v"))):
            if len(each.shape) != 1 or not each.shape[0]:
                raise ValueError(
                    f"{word} of {name} must have one dimension and at least one element, not shape "
                    f"{each.shape}"
                )
        return a, v

    def _convolved(
        self,
        name: str,
        long: Operand,
        short: Operand,
        mode: str,
        *,
        turned: bool = False,
        swapped: bool = False,
    ) -> Request[GpuRef]:
        """Return sums of products of one row and each window of a longer one, which is padded.

        The row is taken backwards if ``turned``, and the results if ``swapped``.
        """
        n, m = long.shape[0], short.shape[0]
        dtype = resolve("multiply", (long.dtype, short.dtype))[2]
        start, count = {
            "full": (0, n + m - 1),
            "same": ((m - 1) // 2, n),
            "valid": (m - 1, n - m + 1),
        }[mode]

        def build(steps: CallSteps) -> GpuRef:
            none = broadcast(constant(0, dtype), (m - 1,))
            row = self._in_a_row(steps, [none, long, none], 0, dtype)
            step = dtype.itemsize
            windows = row[start:].with_layout((count, m), (step, step))
            factors = steps.cast(steps.ref(short), dtype)
            factors = factors[::-1] if turned else factors
            made = steps.output((count,), dtype)
            target = made[::-1] if swapped else made
            # Windows before the first and from the last on have zeros of those around the row.
            first, last = 0, count
            if is_inexact(dtype):
                first = min(count, m - 1 - start)
                last = max(first, min(count, n - start))
            pairs = [(sum_of_products(windows[first:last], factors), target[first:last])]
            for begin, end in ((0, first), (last, count)):
                # Such a zero times an infinity or NaN is NaN, which is not to be added.
                place = index((end - begin, m), 0) + index((end - begin, m), 1) + (start + begin)
                inside = (place >= m - 1) & (place < n + m - 1)
                products = where(inside, windows[begin:end] * factors, constant(0, dtype))
                pairs.append((reduce("add", products, -1, dtype=dtype), target[begin:end]))
            pairs = [(each, to) for each, to in pairs if to.size]
            steps.evaluate_all([each for each, _ in pairs], tuple([to for _, to in pairs]))
            return made

        return self._several(name, build)


def _end(value: Value | None, given: Operand, axis: int) -> Operand | None:
    """Return what ``diff`` puts at an end, in the shape of one element or more along the axis."""
    if value is None:
        return None
    each = value if isinstance(value, Operand) else constant(_number(value, "an end"))
    if each.shape:
        return each
    return broadcast(each, (*given.shape[:axis], 1, *given.shape[axis + 1 :]))


def _difference(x: GpuRef, axis: int) -> Operand:
    key = (*[slice(None)] * (axis % x.ndim),)
    name = "not_equal" if x.dtype.kind == "b" else "subtract"
    return ufunc(name, x[(*key, slice(1, None))], x[(*key, slice(None, -1))])


def _slopes(x: GpuRef, to: GpuRef, apart: Any, edge_order: int) -> list[tuple[Operand, GpuRef]]:
    """Return slopes along the last axis, and where they go: inside, and at both ends.

    ``apart`` is the distance of elements, or a buffer of all distances.
    """
    even = not (isinstance(apart, Operand) and apart.shape)
    y: list[Any] = [x[..., :-2], x[..., 1:-1], x[..., 2:]]
    if even:
        inside = (y[2] - y[0]) / (2.0 * apart)
    else:
        one, two = apart[:-1], apart[1:]
        inside = (
            -two / (one * (one + two)) * y[0]
            + (two - one) / (one * two) * y[1]
            + one / (two * (one + two)) * y[2]
        )
    pairs = [(inside, to[..., 1:-1])] if x.shape[-1] > 2 else []
    for sign, ends in ((1, (0, 1, 2)), (-1, (-1, -2, -3))):
        first, second = (
            (apart, apart) if even else (apart[ends[0]], apart[ends[1]] if edge_order > 1 else None)
        )
        if edge_order == 1:
            slope = sign * (x[..., ends[1]] - x[..., ends[0]]) / first
        else:
            outer, middle, inner = (x[..., at] for at in ends)
            both = first + second
            slope = sign * (
                -(2.0 * first + second) / (first * both) * outer
                + both / (first * second) * middle
                - first / (second * both) * inner
            )
        pairs.append((slope, to[..., ends[0]]))
    return pairs
