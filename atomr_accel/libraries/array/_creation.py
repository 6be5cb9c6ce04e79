"""``device.array``'s functions that make arrays of numbers."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import numpy as np

from ..._dtypes import HALVES, as_dtype
from ..._errors import said_of
from ...arrays import as_shape
from ...arrays.expressions import Operand, broadcast, cast, constant, index
from ...arrays.expressions.expression import broadcast_constant, ufunc, where
from ...arrays.expressions.promotion import FLOAT32
from ...ops import ARRAY_LANE as LANE
from ...ops import D, Request, Submission, op, op_family
from .steps import ArrayPart

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import Preparer

Shape = int | tuple[int, ...]
Number = complex | np.generic
"""A number; complex stands for float, int and bool, too."""
Real = float | np.generic

_INT64: Final = as_dtype(np.int64)
_FLOAT64: Final = as_dtype(np.float64)


class Creation(ArrayPart[D]):
    """Making arrays."""

    @op
    def arange(
        self,
        start: Real,
        stop: Real | None = None,
        step: Real = 1,
        dtype: DTypeLike | None = None,
        *,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make numbers at equal distances; as ``numpy.arange``.

        Args:
            start: the first number. Without ``stop``, it is ``stop``, and the first number is 0.
            stop: the end, which is excluded.
            step: the distance.
            dtype: the dtype of the result; by default that of the arguments together.
            device: this device's name, or None.
        """
        self._check_device(device)
        first, end = (0, start) if stop is None else (start, stop)
        return self._evaluated(_arange(first, end, step, dtype))

    @op
    def linspace(
        self,
        start: Number,
        stop: Number,
        num: SupportsIndex = 50,
        endpoint: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make ``num`` numbers at equal distances; as ``numpy.linspace``.

        Args:
            start: the first number.
            stop: the last number, or with ``endpoint=False`` the number after it.
            num: the number of elements.
            endpoint: whether ``stop`` is among them.
            dtype: the dtype of the result; integers are rounded down.
            device: this device's name, or None.
        """
        self._check_device(device)
        return self._evaluated(_linspace(start, stop, num, endpoint=endpoint, dtype=dtype))

    @op
    def logspace(
        self,
        start: Number,
        stop: Number,
        num: SupportsIndex = 50,
        endpoint: bool = True,
        base: Number = 10.0,
        *,
        dtype: DTypeLike | None = None,
    ) -> Request[GpuRef]:
        """Make powers with exponents at equal distances; as ``numpy.logspace``.

        ``start`` and ``stop`` are exponents of ``base``. Arguments are those of ``linspace``.
        """
        exponents = _linspace(start, stop, num, endpoint=endpoint, dtype=None)
        powers: Operand = ufunc("power", _number(base, "base"), exponents)
        return self._evaluated(powers if dtype is None else cast(powers, as_dtype(dtype)))

    @op
    def eye(
        self,
        N: SupportsIndex,  # noqa: N803 - NumPy's names
        M: SupportsIndex | None = None,  # noqa: N803
        k: SupportsIndex = 0,
        dtype: DTypeLike | None = None,
        *,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make ones on a diagonal; as ``numpy.eye``.

        Of ``N`` rows and ``M`` columns, by default as many; ``k`` is how far the diagonal is above
        the main one.
        """
        self._check_device(device)
        row, column = _rows_and_columns(N, M)
        return self._evaluated(cast(row + _offset(k, row) == column, as_dtype(dtype)))

    @op
    def identity(self, n: SupportsIndex, dtype: DTypeLike = np.float64) -> Request[GpuRef]:
        """Make ones on the diagonal of a square; as ``numpy.identity``. Errors as for ``eye``."""
        row, column = _rows_and_columns(n, None)
        return self._evaluated(cast(row == column, as_dtype(dtype)))

    @op
    def tri(
        self,
        N: SupportsIndex,  # noqa: N803
        M: SupportsIndex | None = None,  # noqa: N803
        k: SupportsIndex = 0,
        dtype: DTypeLike = np.float64,
    ) -> Request[GpuRef]:
        """Make ones on a diagonal and below it; as ``numpy.tri``. Arguments as for ``eye``."""
        row, column = _rows_and_columns(N, M)
        return self._evaluated(cast(row + _offset(k, row) >= column, as_dtype(dtype)))

    @op_family
    def tril(
        self, _name: str, m: Operand, k: SupportsIndex = 0, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Copy matrices with zeros above a diagonal; as ``numpy.tril``.

        ``k`` is the distance of the diagonal above the main one. ``out`` may be ``m``. One
        dimension stands for a matrix of equal rows.
        """
        shape, lower, k = self._operand(m, "m").shape, _name == "tril", operator.index(k)
        if not shape:
            raise ValueError("m must have at least one dimension, not none")
        sides = shape[-2:] if len(shape) > 1 else shape * 2
        row, column = index(sides, 0), index(sides, 1)
        offset = _offset(k if lower else k - 1, row)
        inside = row + offset >= column if lower else row + offset < column
        return self._evaluated(where(inside, m, constant(0, m.dtype)), out)

    triu: Final = tril.like(
        """Copy matrices with zeros below a diagonal; as ``numpy.triu``. Arguments as ``tril``."""
    )

    @op
    def ones(
        self, shape: Shape, dtype: DTypeLike | None = None, *, device: str | None = None
    ) -> Request[GpuRef]:
        """Make ones; as ``numpy.ones``."""
        self._check_device(device)
        return self._evaluated(broadcast_constant(as_shape(shape), as_dtype(dtype), 1))

    @op
    def full(
        self,
        shape: Shape,
        fill_value: Number,
        dtype: DTypeLike | None = None,
        *,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make an array of one value; as ``numpy.full``.

        ``dtype`` is that of the number by default.
        """
        self._check_device(device)
        value = _number(fill_value, "fill_value")
        kind = as_dtype(np.asarray(value).dtype if dtype is None else dtype)
        return self._evaluated(broadcast_constant(as_shape(shape), kind, value))

    @op
    def full_like(
        self,
        a: Operand,
        fill_value: Number,
        dtype: DTypeLike | None = None,
        *,
        shape: Shape | None = None,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make an array of one value in the shape of another array; as ``numpy.full_like``.

        ``fill_value`` is a number, and ``dtype`` and ``shape`` are others than those of ``a``.
        """
        return self._alike(a, fill_value, dtype, shape, device)

    @op_family
    def zeros_like(
        self,
        _name: str,
        a: Operand,
        dtype: DTypeLike | None = None,
        *,
        shape: Shape | None = None,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Zeros in the shape and dtype of another; as ``numpy.zeros_like``."""
        return self._alike(a, int(_name == "ones_like"), dtype, shape, device)

    ones_like: Final = zeros_like.like(
        """Make ones in the shape and dtype of another array; as ``numpy.ones_like``."""
    )

    def _alike(
        self,
        a: Operand,
        value: Number,
        dtype: DTypeLike | None,
        shape: Shape | None,
        device: str | None,
    ) -> Request[GpuRef]:
        self._check_device(device)
        like = self._operand(a, "a")
        kind = like.dtype if dtype is None else as_dtype(dtype)
        sizes = like.shape if shape is None else as_shape(shape)
        return self._evaluated(broadcast_constant(sizes, kind, _number(value, "fill_value")))

    @op
    def empty_like(
        self,
        prototype: Operand,
        dtype: DTypeLike | None = None,
        *,
        shape: Shape | None = None,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Make a buffer of undefined content, like another one; as ``numpy.empty_like``."""
        self._check_device(device)
        like = self._operand(prototype, "prototype")
        kind = like.dtype if dtype is None else as_dtype(dtype)
        sizes = like.shape if shape is None else as_shape(shape)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            return Submission(None, (), (), preparer.output(sizes, kind))

        return Request(LANE, "array.empty_like", prepare)

    @op
    def indices(self, dimensions: Shape, dtype: DTypeLike = np.int64) -> Request[GpuRef]:
        """Make each element's indices, along a new first axis; as ``numpy.indices``.

        ``dimensions`` is the shape in which the elements have these indices.
        """
        sizes, kind = as_shape(dimensions), as_dtype(dtype)
        shape = (len(sizes), *sizes)
        which = index(shape, 0)
        made: Operand = broadcast(constant(0, _INT64), shape)
        for at in range(len(sizes)):
            made = where(which == at, index(shape, at + 1), made)
        return self._evaluated(cast(made, kind))

    @op
    def meshgrid(
        self, *xi: GpuRef, indexing: Literal["xy", "ij"] = "xy", sparse: bool = False
    ) -> Request[tuple[GpuRef, ...]]:
        """Coordinates on a grid; as ``numpy.meshgrid``, but that they are always copies.

        Args:
            *xi: coordinates along each axis, of one dimension or none.
            indexing: with ``"xy"`` the first two axes are exchanged.
            sparse: whether to leave the other axes at one element.
        """
        if indexing not in ("xy", "ij"):
            raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
        refs = self._refs(xi, "xi")
        count = len(refs)
        places = list(range(count))
        if indexing == "xy" and count > 1:
            places[:2] = 1, 0
        sizes = [0] * count
        for at, ref in zip(places, refs, strict=True):
            sizes[at] = ref.size

        def build(steps: Any) -> tuple[GpuRef, ...]:
            made = []
            pairs = []
            for at, ref in zip(places, refs, strict=True):
                seen = steps.flat(ref).reshape(*(-1 if axis == at else 1 for axis in range(count)))
                if not sparse:
                    seen = seen.broadcast_to(tuple(sizes))
                grid = steps.output(seen.shape, ref.dtype)
                made.append(grid)
                pairs.append((seen, grid))
            steps.assign(*pairs)
            return tuple(made)

        return self._several("meshgrid", build)

    @op
    def diag(self, v: GpuRef, k: SupportsIndex = 0) -> Request[GpuRef]:
        """Make a matrix with a diagonal, or copy a matrix' diagonal; as ``numpy.diag``.

        ``k`` is how far the diagonal is above the main one.
        """
        ref, offset = self._ref(v, "v"), operator.index(k)
        if ref.ndim not in (1, 2):
            raise ValueError("Input must be 1- or 2-d.")

        def build(steps: Any) -> GpuRef:
            if ref.ndim == 2:
                seen = ref.diagonal(offset)
                made: GpuRef = steps.output(seen.shape, ref.dtype)
                steps.assign((seen, made))
                return made
            size = ref.size + abs(offset)
            made = steps.evaluate(broadcast_constant((size, size), ref.dtype))
            steps.assign((ref, made.diagonal(offset)))
            return made

        return self._several("diag", build)


def _number(value: Any, name: str) -> Any:
    """Return an argument, which has to be a number."""
    if isinstance(value, Operand):
        raise TypeError(f"{name} must be a number, not {said_of(value)}; fetch it first")
    if np.ndim(value) or not isinstance(value, complex | float | int | np.generic | np.ndarray):
        raise TypeError(f"{name} must be a number, not {said_of(value)}")
    return value[()] if isinstance(value, np.ndarray) else value


def _real(value: Any, name: str) -> Any:
    number = _number(value, name)
    if np.asarray(number).dtype.kind == "c":
        raise TypeError(f"{name} must be a real number, not {value!r}")
    return number


def _arange(start: Any, stop: Any, step: Any, dtype: DTypeLike | None) -> Operand:
    names = ("start", "stop", "step")
    numbers = [_real(each, name) for each, name in zip((start, stop, step), names, strict=True)]
    start, stop, step = (each.item() if isinstance(each, np.generic) else each for each in numbers)
    kind = as_dtype(np.result_type(*map(np.asarray, numbers)) if dtype is None else dtype)
    if not step:
        raise ZeroDivisionError("division by zero")
    if all(isinstance(each, int) for each in (start, stop, step)):
        count = -((start - stop) // step)
    else:
        length = (stop - start) / step
        if not math.isfinite(length):
            raise ValueError("arange: cannot compute length")
        count = math.ceil(length)
    count = max(0, count)
    if kind.kind == "b" and count > 2:
        raise TypeError("arange() is only supported for booleans when the result has at most 2")
    at = index((count,), 0)
    if kind.kind in "biu":
        if not count:
            return broadcast_constant((0,), kind)
        # Computed from the first two, as integers.
        first = int(start)
        delta = int(start + step) - first
        if kind.kind != "b":
            for end in (first, first + (count - 1) * delta):
                constant(end, kind)  # which the dtype has to hold
        wide = as_dtype(np.uint64 if kind.kind == "u" else np.int64)
        mask = (1 << 64) - 1
        first, delta = (int(np.uint64(each & mask).astype(wide)) for each in (first, delta))
        made = cast(at, wide) * constant(delta, wide) + constant(first, wide)
        return cast(made, kind)
    compute = FLOAT32 if kind in HALVES else kind
    with np.errstate(all="ignore"):
        first_, second_ = (
            np.asarray(each).astype(kind).astype(compute) for each in (start, start + step)
        )
        delta_ = second_ - first_
        third = first_ + compute.type(1) * delta_
    line = cast(at, compute) * constant(compute.type(delta_), compute) + constant(
        compute.type(first_), compute
    )
    if third != second_:
        line = where(at == 1, constant(compute.type(second_), compute), line)
    return cast(line, kind)


def _linspace(
    start: Any, stop: Any, num: SupportsIndex, *, endpoint: bool, dtype: DTypeLike | None
) -> Operand:
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"Number of samples, {count}, must be non-negative.")
    first, last = _number(start, "start"), _number(stop, "stop")
    parts = count - 1 if endpoint else count
    compute = as_dtype(np.result_type(first, last, 1.0))  # Python's numbers take another's dtype
    kind = compute if dtype is None else as_dtype(dtype)
    low, high = (np.asarray(each).astype(compute)[()] for each in (first, last))
    with np.errstate(all="ignore"):
        delta = high - low
        step = delta / parts if parts > 0 else delta
    at = index((count,), 0)
    real = as_dtype(np.empty((), compute).real.dtype)
    line: Operand = cast(at, real)
    if parts > 0 and not step:
        line = cast(line / constant(parts, real), compute) * constant(compute.type(delta), compute)
    else:
        line = cast(line, compute) * constant(compute.type(step), compute)
    line = line + constant(compute.type(low), compute)
    if endpoint and count > 1:
        line = where(at == count - 1, constant(compute.type(high), compute), line)
    if kind.kind in "iu":
        line = ufunc("floor", line)
    return cast(line, kind)


def _offset(k: SupportsIndex, like: Operand) -> int:
    """Return the distance of a diagonal above the main one, limited to the matrix."""
    most = sum(like.shape) + 1
    return max(-most, min(operator.index(k), most))


def _rows_and_columns(rows: SupportsIndex, columns: SupportsIndex | None) -> tuple[Any, Any]:
    shape = as_shape((rows, rows if columns is None else columns))
    return index(shape, 0), index(shape, 1)
