"""``device.array``'s functions that repeat or move elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, get_args

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..._dtypes import as_dtype, number_kind
from ...arrays.expressions import Operand, broadcast, cast, constant, index
from ...arrays.expressions.expression import ufunc
from ...ops import D, Request, op
from ._creation import Number, _number
from ._keys import Chosen, gather
from ._scans import scanned
from .choosing import INT64, read_numbers
from .steps import ArrayPart, CallSteps

if TYPE_CHECKING:
    from ...arrays import GpuRef

PadMode = (
    Literal["constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "empty"]
    | Literal["maximum", "mean", "median", "minimum"]
)

_PAD_MODES: Final = tuple(mode for part in get_args(PadMode) for mode in get_args(part))
_STATISTICS: Final = {"maximum": "max", "minimum": "min", "mean": "mean", "median": "median"}
"""Functions of which elements make new ones, by the mode."""


class Repeating(ArrayPart[D]):
    """Elements again, moved along axes, or with others around them."""

    @op
    def repeat(
        self,
        a: GpuRef,
        repeats: SupportsIndex | Sequence[int] | Operand,
        axis: int | None = None,
    ) -> Request[GpuRef]:
        """Repeat each element; as ``numpy.repeat``.

        Args:
            a: an array.
            repeats: the number of repetitions: one number, or one for each element of the axis; on
                the device, too.
            axis: the axis; None flattens it first.

        Raises:
            Unsupported: several numbers on the device, in a batch or a recording, as only the
                device knows how large the result is; several numbers, and CUB is not installed.
        """
        ref = self._ref(a, "a")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        n = ref.size if axis is None else ref.shape[at]
        if isinstance(repeats, Operand):
            return self._repeated(ref, repeats, at, n, flat=axis is None)
        if isinstance(repeats, Sequence):
            counts = np.array([_whole(each, "repeats") for each in repeats], np.int64)
            if (counts < 0).any():
                raise ValueError("repeats may not contain negative values.")
            if len(counts) != 1:
                return self._repeated(ref, counts, at, n, flat=axis is None)
            repeats = int(counts[0])
        times = _whole(repeats, "repeats")
        if times < 0:
            raise ValueError("repeats may not contain negative values.")

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "a")
            if axis is None:
                source = steps.flat(source)
            shape = source.shape
            made = steps.output((*shape[:at], shape[at] * times, *shape[at + 1 :]), ref.dtype)
            split = made.reshape(*shape[: at + 1], times, *shape[at + 1 :])
            seen = source[(*[slice(None)] * (at + 1), None)]
            steps.assign((seen.broadcast_to(split.shape), split))
            return made

        return self._several("repeat", build)

    def _repeated(
        self,
        ref: GpuRef,
        counts: Operand | np.ndarray[Any, np.dtype[Any]],
        axis: int,
        n: int,
        *,
        flat: bool,
    ) -> Request[GpuRef]:
        """Repeat each element by its own number."""
        if counts.dtype.kind not in "biu":
            raise TypeError(
                f"Cannot cast array data from {counts.dtype!r} to dtype('int64') according to the "
                "rule 'safe'"
            )
        size = math.prod(counts.shape)
        if len(counts.shape) > 1 or size not in (1, n):
            raise ValueError(
                f"operands could not be broadcast together with shape ({n},) ({size},)"
            )

        def build(steps: CallSteps) -> GpuRef:
            source = steps.flat(steps.ref(ref, "a")) if flat else steps.ref(ref, "a")
            if isinstance(counts, np.ndarray):
                total = int(counts.sum())
                ends = steps.upload(np.cumsum(counts), INT64)
            else:
                total = 0
                if n:
                    wide = cast(counts, INT64)
                    least, wide = wide.min(), broadcast(wide, (n,))
                    asked = read_numbers(self._cub, (least, wide.sum()), "repeat")
                    low, total = steps.preparer.perform(asked) or (0, 0)
                    if low < 0:
                        raise ValueError("repeats may not contain negative values.")
                    sums = steps.evaluate(wide)
                    ends = scanned(steps, "add", sums)
            shape = (*source.shape[:axis], total, *source.shape[axis + 1 :])
            made = steps.output(shape, ref.dtype)
            if total:
                at = steps.evaluate(index((total,), 0))
                positions = steps.do(steps.cub.upper_bound(ends, at))
                gather(steps, Chosen(source, [(positions, axis)], (total,), axis), made, "clip")
            return made

        return self._several("repeat", build)

    @op
    def tile(
        self,
        A: GpuRef,  # noqa: N803 - NumPy's name
        reps: SupportsIndex | Sequence[SupportsIndex],
    ) -> Request[GpuRef]:
        """Repeat the array along its axes; as ``numpy.tile``.

        ``reps`` says how often along each axis.
        """
        ref = self._ref(A, "A")
        given = (reps,) if isinstance(reps, SupportsIndex) else tuple(reps)
        times = tuple(_whole(each, "reps") for each in given)
        if any(each < 0 for each in times):
            raise ValueError("negative dimensions are not allowed")
        ndim = max(ref.ndim, len(times))
        times = (1,) * (ndim - len(times)) + times
        shape = (1,) * (ndim - ref.ndim) + ref.shape

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "A")[(*[None] * (ndim - ref.ndim), ...)]
            made = steps.output(
                tuple(n * count for n, count in zip(shape, times, strict=True)), ref.dtype
            )
            pairs = tuple(each for pair in zip(times, shape, strict=True) for each in pair)
            key = tuple(each for _ in range(ndim) for each in (None, slice(None)))
            steps.assign((source[key].broadcast_to(pairs), made.reshape(pairs)))
            return made

        return self._several("tile", build)

    @op
    def roll(
        self,
        a: GpuRef,
        shift: SupportsIndex | tuple[SupportsIndex, ...],
        axis: int | tuple[int, ...] | None = None,
    ) -> Request[GpuRef]:
        """Move elements along axes, from the end to the beginning; as ``numpy.roll``.

        ``shift`` says by how many places, one number for each axis; without ``axis`` the array is
        flattened meanwhile.
        """
        ref = self._ref(a, "a")
        shifts = shift if isinstance(shift, tuple) else (shift,)
        if axis is None:
            moves = {0: sum(_whole(each, "shift") for each in shifts)}
            flat_shape: tuple[int, ...] = (ref.size,)
        else:
            axes = normalize_axis_tuple(axis, ref.ndim, allow_duplicate=True)
            if len(shifts) > 1 and len(axes) > 1 and len(shifts) != len(axes):
                raise ValueError("shape mismatch: objects cannot be broadcast to a single shape")
            moves = dict.fromkeys(range(ref.ndim), 0)
            count = max(len(shifts), len(axes))
            for at in range(count):
                each = shifts[at % len(shifts)]
                moves[axes[at % len(axes)]] += _whole(each, "shift")
            flat_shape = ref.shape

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "a")
            made = steps.output(ref.shape, ref.dtype)
            if not ref.size:
                return made
            if axis is None:
                source = steps.flat(source)
            steps.assign(*_rolled(source, made.reshape(flat_shape), moves))
            return made

        return self._several("roll", build)

    @op
    def pad(
        self,
        array: GpuRef,
        pad_width: int | Sequence[int] | Sequence[Sequence[int]],
        mode: PadMode = "constant",
        *,
        stat_length: int | Sequence[int] | Sequence[Sequence[int]] | None = None,
        constant_values: Number = 0,
        end_values: Number = 0,
        reflect_type: Literal["even", "odd"] = "even",
    ) -> Request[GpuRef]:
        """Add elements around an array; as ``numpy.pad``.

        Args:
            array: an array.
            pad_width: the numbers of elements before and after each axis; one number, one pair, or
                a pair for each axis.
            mode: NumPy's name of the content of the new elements.
            stat_length: how many elements at each end make the new ones with ``"maximum"``,
                ``"mean"``, ``"median"`` and ``"minimum"``, in the form of ``pad_width``; by default
                all.
            constant_values: the new elements with ``"constant"``.
            end_values: the outermost elements with ``"linear_ramp"``.
            reflect_type: ``"odd"`` turns what ``"reflect"`` and ``"symmetric"`` give upside down:
                twice the edge minus the element. Integers wrap.

        Raises:
            TypeError: bools with ``"odd"``, or complex numbers with ``"median"``.
            ValueError: an unknown name, sizes out of range, or an empty axis that has no content
                for new elements.
        """
        ref = self._ref(array, "array")
        if reflect_type not in ("even", "odd"):
            raise ValueError(f"reflect_type must be 'even' or 'odd', not {reflect_type!r}")
        odd = reflect_type == "odd" and mode in ("reflect", "symmetric")
        if odd and ref.dtype.kind == "b":
            raise TypeError("array must hold numbers with reflect_type='odd', not bool")
        if mode not in _PAD_MODES:
            raise ValueError(f"mode '{mode}' is not supported; there are {', '.join(_PAD_MODES)}")
        if mode == "median" and ref.dtype.kind == "c":
            raise TypeError(f"array must hold real numbers with mode='median', not {ref.dtype}")
        widths = _widths(pad_width, ref.ndim)
        value = _number(constant_values, "constant_values")
        filler = constant(value, ref.dtype) if mode == "constant" else None
        stats = None if stat_length is None else _widths(stat_length, ref.ndim)
        if stats is not None and any(min(each) < 1 for each in stats):
            raise ValueError("stat_length must be at least 1, not less")
        last = _number(end_values, "end_values")
        if mode not in ("constant", "empty"):
            for at, (n, width) in enumerate(zip(ref.shape, widths, strict=True)):
                if not n and any(width):
                    raise ValueError(
                        f"can't extend empty axis {at} using modes other than 'constant' or 'empty'"
                    )
        shape = tuple(
            before + n + behind for n, (before, behind) in zip(ref.shape, widths, strict=True)
        )

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "array")
            made = steps.output(shape, ref.dtype)
            inside = tuple(
                slice(before, before + n) for n, (before, _) in zip(ref.shape, widths, strict=True)
            )
            if filler is not None and shape != ref.shape:
                one = steps.evaluate(filler)
                pairs = [(one.broadcast_to(part.shape), part) for part in _around(made, inside)]
                steps.assign((source, made[inside]), *pairs)
                return made
            steps.assign((source, made[inside]))
            if mode == "empty":
                return made
            for axis, (before, behind) in enumerate(widths):
                # Axes before this one are whole already; those after it follow.
                key = (*[slice(None)] * axis, slice(None), *inside[axis + 1 :])
                whole = made[key]
                n = ref.shape[axis]
                if mode in _STATISTICS or mode == "linear_ramp":
                    for at_end, width in enumerate((before, behind)):
                        seen = (whole if not at_end else _turned(whole, axis)).moveaxis(axis, 0)
                        most = n if stats is None else min(n, stats[axis][at_end])
                        if width:
                            kept = seen[width : width + (most if mode in _STATISTICS else 1)]
                            steps.evaluate(
                                self._beyond(steps, kept, width, mode, last), seen[:width]
                            )
                    continue
                pairs = []
                for target, of, length, step in _runs(n, before, behind, mode):
                    start, first = target + before, of + before
                    to = whole[(*[slice(None)] * axis, slice(start, start + length))]
                    along = slice(first, first + 1) if not step else slice(first, first + length)
                    if step < 0:
                        along = slice(first - length + 1, first + 1)
                    piece = whole[(*[slice(None)] * axis, along)]
                    if step < 0:
                        piece = piece[(*[slice(None)] * axis, slice(None, None, -1))]
                    if odd and step:
                        period = 2 * (n - (mode == "reflect"))
                        ends = _ends_of(whole, axis, before, n)
                        steps.evaluate(_upside_down(piece, ends, target // period, step), to)
                        continue
                    pairs.append((piece.broadcast_to(to.shape), to))
                steps.assign(*pairs)
            return made

        return self._several("pad", build)

    def _beyond(
        self, steps: CallSteps, kept: GpuRef, width: int, mode: PadMode, last: Number
    ) -> Operand:
        """Return elements before others along the first axis, made of these."""
        shape = (width, *kept.shape[1:])
        if mode != "linear_ramp":
            own: Any = self.as_requests(steps.preparer.home)
            made = steps.do(getattr(own, _STATISTICS[mode])(kept, axis=0, keepdims=True))
            whole = made.dtype is not kept.dtype and number_kind(kept.dtype) in ("i", "u")
            return cast(broadcast(ufunc("rint", made) if whole else made, shape), kept.dtype)
        wide = as_dtype(np.result_type(kept.dtype, np.float64))
        first = constant(wide.type(last), wide)
        step = (cast(kept, wide) - first) / constant(width, wide)
        line = cast(index(shape, 0), wide) * step + first
        return cast(ufunc("floor", line) if kept.dtype.kind in "iu" else line, kept.dtype)


def _ends_of(whole: GpuRef, axis: int, before: int, n: int) -> tuple[GpuRef, GpuRef]:
    """The first and the last of ``n`` elements along an axis, as views of extent 1."""
    key = (slice(None),) * axis
    last = before + n - 1
    return whole[(*key, slice(before, before + 1))], whole[(*key, slice(last, last + 1))]


def _upside_down(piece: GpuRef, ends: tuple[GpuRef, GpuRef], periods: int, step: int) -> Operand:
    """Elements of an odd reflection, some periods away, each of which adds the rise twice."""
    first, last = ends
    dtype = piece.dtype
    times: Any = 2 * periods
    if number_kind(dtype) in ("i", "u"):
        times = np.asarray(times).astype(dtype)[()]  # which wraps, as the sums do
    far: Any = constant(times, dtype) * (last - first) if periods else None
    made: Any = piece if step > 0 else constant(2, dtype) * last - piece
    return cast(made if far is None else made + far, dtype)


def _turned(ref: GpuRef, axis: int) -> GpuRef:
    return ref[(*[slice(None)] * axis, slice(None, None, -1))]


def _whole(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be whole numbers of the program's, not {value!r}") from None


def _rolled(
    source: GpuRef, target: GpuRef, moves: dict[int, int]
) -> Iterator[tuple[GpuRef, GpuRef]]:
    """The parts of an array, and where they go."""
    pairs = [(source, target)]
    for axis, move in moves.items():
        n = source.shape[axis]
        by = move % n
        if not by:
            continue
        key = (slice(None),) * axis
        pairs = [
            part
            for of, to in pairs
            for part in (
                (of[(*key, slice(n - by))], to[(*key, slice(by, None))]),
                (of[(*key, slice(n - by, None))], to[(*key, slice(by))]),
            )
        ]
    yield from pairs


def _around(made: GpuRef, inside: tuple[slice, ...]) -> Iterator[GpuRef]:
    """The parts of an array that are outside of one in its middle."""
    for axis, part in enumerate(inside):
        key = (*[slice(None)] * axis, slice(0, part.start))
        behind = (*[slice(None)] * axis, slice(part.stop, None))
        for each in (made[key], made[behind]):
            if each.size:
                yield each
        made = made[(*[slice(None)] * axis, part)]


def _widths(given: Any, ndim: int) -> list[tuple[int, int]]:
    """Return the numbers of elements before and after each axis."""
    array = np.asarray(given)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError("`pad_width` must be of integral type.")
    if array.size and array.min() < 0:
        raise ValueError("index can't contain negative values")
    try:
        pairs = np.broadcast_to(array, (ndim, 2))
    except ValueError:
        raise ValueError(
            f"operands could not be broadcast together with remapped shapes [original->remapped]: "
            f"{array.shape} and requested shape ({ndim}, 2)"
        ) from None
    return [(int(before), int(behind)) for before, behind in pairs]


def _runs(n: int, before: int, behind: int, mode: PadMode) -> Iterator[tuple[int, int, int, int]]:
    """Yield the runs of elements around an axis, with the elements that they copy.

    Yields:
        The start of a run, the start of its source, its length, and the step in the source: 1, -1,
        or 0 for one element that repeats.
    """
    for start, end in ((-before, 0), (n, n + behind)):
        at = start
        if at == end:
            continue
        if mode == "edge" or n == 1:
            yield at, (0 if at < 0 else n - 1), end - at, 0
            continue
        period = {"wrap": n, "symmetric": 2 * n}.get(mode, 2 * (n - 1))
        turn = n - 1 if mode == "reflect" else n
        while at < end:
            place = at % period
            if place < turn:
                of, step, length = place, 1, turn - place
            else:
                of, step, length = 2 * turn - place, -1, period - place
                of -= mode == "symmetric"
            length = min(length, end - at)
            yield at, of, length, step
            at += length
