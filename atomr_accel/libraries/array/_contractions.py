"""``device.array``'s products of arrays under NumPy's names."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ...arrays.expressions import Operand
from ...arrays.expressions.promotion import common
from ...ops import D, Request, op
from .steps import ArrayPart, CallSteps

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...arrays.expressions import Value

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

Axes = int | tuple[int | Sequence[int], int | Sequence[int]]
"""Number of last and first axes that are summed over, or these axes of each array."""


class Contractions(ArrayPart[D]):
    """Products of arrays.

    Their matrix products are those of expressions: by cuBLAS, but for integers and bools, which
    a kernel sums up. Floats of 16 bits are summed in float32. Products of fp8 are a ``TypeError``.
    """

    @op
    def dot(self, a: Value, b: Value, out: GpuRef | None = None) -> Request[GpuRef]:
        """Sum products over the last axis of ``a`` and the last but one of ``b``; ``numpy.dot``."""
        return self._evaluated(self._made(np.dot, a, b), out)

    @op
    def inner(self, a: Value, b: Value) -> Request[GpuRef]:
        """Sum products over the last axes; as ``numpy.inner``. Errors as for ``dot``."""
        return self._evaluated(self._made(np.inner, a, b))

    @op
    def vdot(self, a: Operand, b: Operand) -> Request[GpuRef]:
        """Sum all products, of ``a``'s conjugates; as ``numpy.vdot``."""
        x, y = self._operand(a, "a"), self._operand(b, "b")
        if math.prod(x.shape) != math.prod(y.shape):
            raise ValueError(
                f"b must have as many elements as a, {math.prod(x.shape)}, not {math.prod(y.shape)}"
            )
        if x.shape == y.shape:
            return self._evaluated(self._made(np.vdot, x, y))

        def build(steps: CallSteps) -> GpuRef:
            one, other = (steps.flat(steps.ref(each, of)) for each, of in ((x, "a"), (y, "b")))
            return steps.evaluate(self._made(np.vdot, one, other))

        return self._several("vdot", build)

    @op
    def outer(self, a: Operand, b: Operand, out: GpuRef | None = None) -> Request[GpuRef]:
        """Multiply each element of one array by each of another; as ``numpy.outer``."""
        x, y = self._operand(a, "a"), self._operand(b, "b")

        def build(steps: CallSteps) -> GpuRef:
            rows, columns = (
                each if len(each.shape) == 1 else steps.flat(steps.ref(each, of))
                for each, of in ((x, "a"), (y, "b"))
            )
            return steps.evaluate(_NUMPY.expand_dims(rows, 1) * _NUMPY.expand_dims(columns, 0), out)

        return self._several("outer", build)

    @op
    def tensordot(self, a: Operand, b: Operand, axes: Axes = 2) -> Request[GpuRef]:
        """Sum products over several axes of two arrays; as ``numpy.tensordot``.

        ``axes`` are how many at the end of ``a`` and at the beginning of ``b``, or which of each.
        """
        x, y = self._operand(a, "a"), self._operand(b, "b")
        left, right = _contracted(axes, len(x.shape), len(y.shape))
        if [x.shape[at] for at in left] != [y.shape[at] for at in right]:
            raise ValueError(
                f"axes of a must have the lengths of those of b, "
                f"{tuple(y.shape[at] for at in right)}, not {tuple(x.shape[at] for at in left)}"
            )
        rest = [at for at in range(len(x.shape)) if at not in left]
        others = [at for at in range(len(y.shape)) if at not in right]
        heads, tails = [x.shape[at] for at in rest], [y.shape[at] for at in others]
        n = math.prod(x.shape[at] for at in left)

        def build(steps: CallSteps) -> GpuRef:
            one, other = steps.ref(x, "a"), steps.ref(y, "b")
            rows = _matrix(steps, one.transpose((*rest, *left)), math.prod(heads), n)
            columns = _matrix(steps, other.transpose((*right, *others)), n, math.prod(tails))
            return steps.evaluate(rows @ columns).reshape((*heads, *tails))

        return self._several("tensordot", build)

    @op
    def kron(self, a: Operand, b: Operand) -> Request[GpuRef]:
        """Make blocks of one array, each times an element of another; as ``numpy.kron``."""
        x, y = self._operand(a, "a"), self._operand(b, "b")
        ndim = max(len(x.shape), len(y.shape))
        sizes, blocks = ((1,) * (ndim - len(each.shape)) + each.shape for each in (x, y))

        def spread(each: Operand, first: int) -> Any:
            # Each axis of the result is one of a, and then one of b.
            own = [2 * at + first for at in range(ndim - len(each.shape), ndim)]
            return _NUMPY.expand_dims(each, tuple(at for at in range(2 * ndim) if at not in own))

        def build(steps: CallSteps) -> GpuRef:
            made = steps.evaluate(spread(x, 0) * spread(y, 1))
            return made.reshape(tuple(n * m for n, m in zip(sizes, blocks, strict=True)))

        return self._several("kron", build)

    @op
    def trace(
        self,
        a: GpuRef,
        offset: SupportsIndex = 0,
        axis1: SupportsIndex = 0,
        axis2: SupportsIndex = 1,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Add up diagonals; as ``numpy.trace``."""
        seen = self._ref(a, "a").diagonal(offset, axis1, axis2)
        return self._evaluated(seen.sum(-1, dtype), out)

    @op
    def cross(
        self,
        a: GpuRef,
        b: GpuRef,
        axisa: SupportsIndex = -1,
        axisb: SupportsIndex = -1,
        axisc: SupportsIndex = -1,
        axis: SupportsIndex | None = None,
    ) -> Request[GpuRef]:
        """Vector products of three dimensions; as ``numpy.cross``."""
        if axis is not None:
            axisa = axisb = axisc = axis
        x, y = self._ref(a, "a"), self._ref(b, "b")
        x, y = x.moveaxis(axisa, -1), y.moveaxis(axisb, -1)
        for name, each in (("a", x), ("b", y)):
            if each.shape[-1] != 3:
                raise ValueError(
                    f"{name} must have vectors of 3 elements, not {each.shape[-1]}; add zeros to "
                    "those of 2: device.array.pad"
                )
        dtype = common((x.dtype, y.dtype))
        shape = (*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), 3)
        at = normalize_axis_index(operator.index(axisc), len(shape))
        parts: list[Operand] = [
            x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))
        ]

        def build(steps: CallSteps) -> GpuRef:
            made = steps.output((*shape[:at], 3, *shape[at:-1]), dtype)
            seen = made.moveaxis(at, -1)
            steps.evaluate_all(parts, (seen[..., 0], seen[..., 1], seen[..., 2]))
            return made

        return self._several("cross", build)


def _contracted(axes: Any, ndim: int, others: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of two arrays that are summed over."""
    if isinstance(axes, SupportsIndex):
        count = operator.index(axes)
        if not 0 <= count <= min(ndim, others):
            raise ValueError(
                f"axes must be at most {min(ndim, others)}, which both arrays have, not {count}"
            )
        return tuple(range(ndim - count, ndim)), tuple(range(count))
    left, right = axes
    found = normalize_axis_tuple(left, ndim), normalize_axis_tuple(right, others)
    if len(found[0]) != len(found[1]):
        raise ValueError(f"axes must be as many of a as of b, not {len(found[0])}, {len(found[1])}")
    return found


def _matrix(steps: CallSteps, view: GpuRef, rows: int, columns: int) -> GpuRef:
    """Return a view as a matrix, copied only if its axes do not go over as one."""
    try:
        return view.reshape(rows, columns)
    except ValueError:
        return steps.contiguous(view).reshape(rows, columns)
