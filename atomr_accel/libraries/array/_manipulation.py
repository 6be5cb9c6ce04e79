"""``device.array``'s functions that join arrays, divide and turn them, or stand for ufuncs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..._dtypes import as_dtype
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.promotion import Casting, common, require_castable
from ...ops import D, Request, op
from .steps import ArrayPart, CallSteps, target_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...arrays.expressions import Value


class Manipulation(ArrayPart[D]):
    """Joining and turning arrays, their parts, and elementwise functions with names."""

    # --- elementwise ------------------------------------------------------------------------

    @op
    def astype(
        self,
        x: Operand,
        dtype: DTypeLike,
        casting: Casting = "unsafe",
        *,
        copy: bool = True,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Convert elements to another dtype; as ``numpy.ndarray.astype``.

        Args:
            x: a ref or an expression.
            dtype: the new dtype.
            casting: the conversions that are allowed.
            copy: whether the result is a copy even if the dtype is the same.
            device: this device's name, or None.
        """
        self._check_device(device)
        return self._converted(x, as_dtype(dtype), casting, copy=copy)

    def _converted(
        self, x: Operand, kind: np.dtype[Any], casting: Casting = "unsafe", *, copy: bool
    ) -> Request[GpuRef]:
        given = self._operand(x)
        require_castable(given.dtype, kind, casting)
        if given.dtype is kind:
            return self._several("astype", lambda steps: _same(steps, given, copy=copy))
        return self._evaluated(cast(given, kind))

    @op
    def ascontiguousarray(self, a: Operand, dtype: DTypeLike | None = None) -> Request[GpuRef]:
        """Make an array C-contiguous; as ``numpy.ascontiguousarray``.

        ``dtype`` is the new one, if any.

        Returns:
            ``a`` itself, if it is C-contiguous already.
        """
        given = self._operand(a, "a")
        kind = given.dtype if dtype is None else as_dtype(dtype)

        def build(steps: CallSteps) -> GpuRef:
            ref = steps.contiguous(steps.cast(steps.ref(given, "a"), kind))
            return ref if ref.ndim else ref.reshape(1)

        return self._several("ascontiguousarray", build)

    @op
    def where(
        self, condition: Value, x: Value, y: Value, /, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Choose elements of one array or another; as ``numpy.where`` with three arguments.

        Args:
            condition: chooses for each element; values other than zero are true.
            x: the elements where ``condition`` holds.
            y: the other elements.
            out: the buffer for the result.
        """
        return self._evaluated(self._made(np.where, condition, x, y), out)

    @op
    def clip(
        self,
        a: Operand,
        a_min: Value | None = None,
        a_max: Value | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Limit elements to bounds; as ``numpy.clip``.

        ``out``, a buffer for the result, may be ``a``.
        """
        return self._evaluated(self._made(np.clip, self._operand(a, "a"), a_min, a_max), out)

    @op
    def round(self, a: Operand, decimals: int = 0, out: GpuRef | None = None) -> Request[GpuRef]:
        """Round to ``decimals`` digits, halves to even; as ``numpy.round``.

        Real and imaginary parts of complex numbers are rounded each for themselves.
        ``decimals`` are digits after the point; negative numbers are digits before it. ``out``, a
        buffer for the result, may be ``a``.

        Raises:
            ValueError: more than 308 digits.
        """
        given, digits = self._operand(a, "a"), operator.index(decimals)
        if given.dtype.kind != "c":
            made = self._made(np.round, given, digits)
            return self._several("round", lambda steps: steps.evaluate(made, out))
        parts = [self._made(np.round, each, digits) for each in (given.real, given.imag)]

        def build(steps: CallSteps) -> GpuRef:
            made = steps.output(given.shape, given.dtype)
            # An infinite part times 1j would make NaN of the other one, so they are not added.
            places = made[..., None].view(parts[0].dtype)
            steps.evaluate_all(parts, (places[..., 0], places[..., 1]))
            return made if out is None else steps.evaluate(made, out)

        return self._several("round", build)

    @op
    def isclose(
        self,
        a: Value,
        b: Value,
        rtol: Value = 1.0e-5,
        atol: Value = 1.0e-8,
        equal_nan: bool = False,
    ) -> Request[GpuRef]:
        """Test whether elements are nearly equal; as ``numpy.isclose``.

        Args:
            a: the elements to compare.
            b: the reference elements, to which ``rtol`` is relative.
            rtol: the relative tolerance, as a part of ``b``.
            atol: the absolute tolerance, which is added.
            equal_nan: whether NaN are equal.
        """
        return self._evaluated(self._made(np.isclose, a, b, rtol, atol, equal_nan))

    # --- joining ----------------------------------------------------------------------------

    @op
    def concatenate(
        self,
        arrays: Sequence[GpuRef],
        axis: int | None = 0,
        out: GpuRef | None = None,
        *,
        dtype: DTypeLike | None = None,
        casting: Casting = "same_kind",
    ) -> Request[GpuRef]:
        """Join arrays along an axis; as ``numpy.concatenate``.

        Args:
            arrays: refs, any views.
            axis: the axis; None flattens them first.
            out: the buffer for the result.
            dtype: the dtype of the result; by default the common one.
            casting: the conversions that are allowed.
        """
        return self._joined("concatenate", self._refs(arrays), axis, out, dtype, casting)

    @op
    def stack(
        self,
        arrays: Sequence[GpuRef],
        axis: int = 0,
        out: GpuRef | None = None,
        *,
        dtype: DTypeLike | None = None,
        casting: Casting = "same_kind",
    ) -> Request[GpuRef]:
        """Stack arrays along a new axis; as ``numpy.stack``.

        ``axis`` is the new one. Other arguments are those of ``concatenate``, all of one shape.
        """
        refs = self._refs(arrays)
        if not refs:
            raise ValueError("need at least one array to stack")
        if len({ref.shape for ref in refs}) > 1:
            raise ValueError("all input arrays must have the same shape")
        at = normalize_axis_index(axis, refs[0].ndim + 1)
        key = (*[slice(None)] * at, None)
        return self._joined("stack", [ref[key] for ref in refs], at, out, dtype, casting)

    @op
    def vstack(self, tup: Sequence[GpuRef], *, dtype: DTypeLike | None = None) -> Request[GpuRef]:
        """Stack arrays one below the other; as ``numpy.vstack``. Errors as for ``concatenate``."""
        refs = [at_least_2d(ref) for ref in self._refs(tup, "tup")]
        return self._joined("vstack", refs, 0, None, dtype, "same_kind")

    @op
    def hstack(self, tup: Sequence[GpuRef], *, dtype: DTypeLike | None = None) -> Request[GpuRef]:
        """Stack arrays side by side; as ``numpy.hstack``. Errors are those of ``concatenate``."""
        refs = [ref if ref.ndim else ref.reshape(1) for ref in self._refs(tup, "tup")]
        first = int(bool(refs) and refs[0].ndim > 1)
        return self._joined("hstack", refs, first, None, dtype, "same_kind")

    def _joined(
        self,
        name: str,
        refs: list[GpuRef],
        axis: int | None,
        out: GpuRef | None,
        dtype: DTypeLike | None,
        casting: Casting,
    ) -> Request[GpuRef]:
        if not refs:
            raise ValueError("need at least one array to concatenate")
        if out is not None and dtype is not None:
            raise TypeError(f"{name}() must be given `out` or `dtype`, not both")
        kind = common(tuple(ref.dtype for ref in refs)) if dtype is None else as_dtype(dtype)
        result = kind if out is None else self._ref(out, "out").dtype
        for ref in refs:
            require_castable(ref.dtype, result, casting)
        first = refs[0]
        if axis is None:
            shape: tuple[int, ...] = (sum(ref.size for ref in refs),)
            at = 0
        else:
            if not first.ndim:
                raise ValueError("zero-dimensional arrays cannot be concatenated")
            at = normalize_axis_index(axis, first.ndim)
            for number, ref in enumerate(refs):
                _require_joinable(first, ref, at, number)
            length = sum(ref.shape[at] for ref in refs)
            shape = (*first.shape[:at], length, *first.shape[at + 1 :])

        def build(steps: CallSteps) -> GpuRef:
            named = [(f"arrays[{number}]", ref) for number, ref in enumerate(refs)]
            made = target_of(steps, out, shape, result, named, op=name)
            start, pairs = 0, []
            for number, ref in enumerate(refs):
                seen = steps.ref(ref, f"arrays[{number}]")
                if axis is None:
                    seen = steps.flat(seen)
                end = start + seen.shape[at]
                pairs.append((seen, made[(*[slice(None)] * at, slice(start, end))]))
                start = end
            steps.assign(*pairs)
            return made

        return self._several(name, build)

    # --- parts ------------------------------------------------------------------------------

    def split(
        self, ary: GpuRef, indices_or_sections: int | Sequence[int], axis: int = 0
    ) -> list[GpuRef]:
        """Divide an array into equal parts, as views; as ``numpy.split``. It is not awaited.

        Args:
            ary: the array to divide.
            indices_or_sections: the number of parts of equal size, or the positions at which they
                end.
            axis: the axis to divide.
        """
        sections = indices_or_sections
        size = self._ref(ary, "ary").shape[normalize_axis_index(axis, ary.ndim)]
        if isinstance(sections, SupportsIndex) and size % operator.index(sections):
            raise ValueError("array split does not result in an equal division")
        return self.array_split(ary, sections, axis)

    def array_split(
        self, ary: GpuRef, indices_or_sections: int | Sequence[int], axis: int = 0
    ) -> list[GpuRef]:
        """Divide an array into parts, as views; as ``numpy.array_split``. It is not awaited.

        Parts may differ in size by one. Arguments are those of ``split``.
        """
        at = normalize_axis_index(axis, self._ref(ary, "ary").ndim)
        size = ary.shape[at]
        if isinstance(indices_or_sections, SupportsIndex):
            count = operator.index(indices_or_sections)
            if count <= 0:
                raise ValueError("number sections must be larger than 0.")
            each, more = divmod(size, count)
            ends = [0, *np.cumsum([each + 1] * more + [each] * (count - more)).tolist()]
        else:
            ends = [0, *map(operator.index, indices_or_sections), size]
        key = [slice(None)] * at
        return [ary[(*key, slice(start, end))] for start, end in pairwise(ends)]

    def flip(self, m: GpuRef, axis: int | tuple[int, ...] | None = None) -> GpuRef:
        """Reverse the order of elements, as a view; as ``numpy.flip``. It is not awaited.

        All axes are reversed by default.
        """
        ref = self._ref(m, "m")
        axes = range(ref.ndim) if axis is None else normalize_axis_tuple(axis, ref.ndim)
        back = slice(None, None, -1)
        return ref[tuple(back if at in axes else slice(None) for at in range(ref.ndim))]

    def fliplr(self, m: GpuRef) -> GpuRef:
        """Columns in reverse order, as a view; as ``numpy.fliplr``. It is not awaited."""
        if self._ref(m, "m").ndim < 2:
            raise ValueError("Input must be >= 2-d.")
        return self.flip(m, 1)

    def flipud(self, m: GpuRef) -> GpuRef:
        """Reverse the order of rows, as a view; as ``numpy.flipud``. It is not awaited."""
        if self._ref(m, "m").ndim < 1:
            raise ValueError("Input must be >= 1-d.")
        return self.flip(m, 0)

    def rot90(self, m: GpuRef, k: int = 1, axes: tuple[int, int] = (0, 1)) -> GpuRef:
        """Turned by right angles, as a view; as ``numpy.rot90``. It is not awaited.

        ``k`` is the number of right angles, from the first of ``axes`` towards the second.
        """
        ref = self._ref(m, "m")
        if len(axes) != 2:
            raise ValueError("len(axes) must be 2.")
        one, other = (normalize_axis_index(axis, ref.ndim) for axis in axes)
        if one == other:
            raise ValueError("Axes must be different.")
        match k % 4:
            case 1:
                return self.flip(ref, other).swapaxes(one, other)
            case 2:
                return self.flip(ref, (one, other))
            case 3:
                return self.flip(ref.swapaxes(one, other), other)
        return ref


def _same(steps: CallSteps, x: Operand, *, copy: bool) -> GpuRef:
    ref = steps.ref(x)
    if not copy or ref is not x:
        return ref
    made = steps.output(ref.shape, ref.dtype)
    steps.assign((ref, made))
    return made


def at_least_2d(ref: GpuRef) -> GpuRef:
    return ref if ref.ndim > 1 else ref[None] if ref.ndim else ref.reshape(1, 1)


def _require_joinable(first: GpuRef, other: GpuRef, axis: int, number: int) -> None:
    if other.ndim != first.ndim:
        raise ValueError(
            f"arrays[{number}] must have {first.ndim} dimension(s), as arrays[0] has, "
            f"not {other.ndim}"
        )
    for at, (n, m) in enumerate(zip(first.shape, other.shape, strict=True)):
        if at != axis and n != m:
            raise ValueError(
                f"arrays[{number}] must have size {n} along dimension {at}, as "
                f"arrays[0] has, not {m}"
            )
