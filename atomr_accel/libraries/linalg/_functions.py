"""Functions of matrices."""

from __future__ import annotations

import math
import operator
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..._errors import Unsupported
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ...ops import ARRAY_LANE as ARRAY
from ...ops import Awaited, D, op
from ...wire.options import whole
from ..array.choosing import read_number
from ._factors import SolverFactorizations
from ._spectra import Spectra
from ._steps import FLOAT64, INT64, LANE, LinalgSteps, SolverStack
from ._systems import Systems

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request

Order = Literal["fro", "nuc"] | float
Axes = int | tuple[int, ...] | None

_SPECTRAL: Final = (2, -2, "nuc")

_PADE: Final = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0),
    *(129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0),
    *(40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
"""Coefficients of the [13/13] Padé approximant of exp."""

_THETA: Final = 5.371920351148152
"""Up to which 1-norm that approximant is as exact as float64 (Higham, 2005)."""


class MatrixFunctions(Systems[D], SolverFactorizations[D], Spectra[D]):
    """Determinants, norms, powers and the exponential."""

    @op
    def det(self, a: Operand) -> Request[GpuRef]:
        """Determinants of matrices (..., n, n), by ``lu_factor``; as ``numpy.linalg.det``.

        Returns:
            Shape (...).
        """

        def build(steps: LinalgSteps) -> GpuRef:
            diagonal, sign = self._pivoted(steps, a)
            signs, logs = _split(diagonal)
            # How far products of some of the factors may get, whatever the order.
            nothing, limits = constant(0, logs.dtype), np.finfo(logs.dtype)
            up = ufunc("maximum", logs, nothing).sum(-1)
            down = ufunc("minimum", logs, nothing).sum(-1)
            within = (up < math.log(limits.max) - 1) & (down > math.log(limits.tiny) + 1)
            far = signs.prod(-1) * sign * ufunc("exp", logs.sum(-1))
            return steps.evaluate(where(within, diagonal.prod(-1) * sign, far))

        return self._calls("det", build)

    @op
    def slogdet(self, a: Operand) -> Request[tuple[GpuRef, GpuRef]]:
        """Sign and logarithm of determinants, by ``lu_factor``; as ``numpy.linalg.slogdet``.

        Returns:
            ``(sign, logabsdet)`` of shape (...); 0 and minus infinity for singular matrices.
        """

        def build(steps: LinalgSteps) -> tuple[GpuRef, GpuRef]:
            diagonal, sign = self._pivoted(steps, a)
            signs, logs = _split(diagonal)
            return steps.evaluate(signs.prod(-1) * sign), steps.evaluate(logs.sum(-1))

        return self._calls("slogdet", build)

    def _pivoted(self, steps: LinalgSteps, a: Operand) -> tuple[Any, Any]:
        """The diagonal of U, and the sign of the exchanges, as expressions."""
        stack = steps.stack(self._operand(a, "a"), square=True)
        factors, pivots = self._lu(steps, stack, transposed=True)
        # Where there is NaN, vendors may pivot by other elements, and find the matrix singular.
        lost: Any = ufunc("isnan", stack.ref).any(axis=(-2, -1))
        nan, zero = constant(np.nan, stack.dtype), constant(0, stack.dtype)
        diagonal: Any = factors.diagonal(0, -2, -1)
        # One zero decides, also where others have overflowed.
        singular = (diagonal == zero).any(axis=-1, keepdims=True)
        diagonal = where(lost[..., None], nan, where(singular, zero, diagonal))
        exchanged = pivots != index(pivots.shape, -1 % len(pivots.shape)) + 1
        one = constant(1, stack.dtype)
        return diagonal, where(exchanged, -one, one).prod(-1)

    @op
    def norm(
        self,
        x: Operand,
        ord: Order | None = None,  # noqa: A002 - NumPy's name
        axis: Axes = None,
        keepdims: bool = False,
    ) -> Request[GpuRef]:
        """Norms of vectors and matrices; as ``numpy.linalg.norm``.

        Those of order 2, -2 and "nuc" of matrices are computed by ``svdvals``.

        Args:
            x: any shape.
            ord: which norm.
            axis: along which axis, or of the matrices of which two axes; by default of all.
            keepdims: keep these axes, with one element.
        """
        given = self._operand(x)

        def build(steps: LinalgSteps) -> GpuRef:
            return self._norm(steps, given, ord, axis, keepdims=keepdims)

        return self._calls("norm", build, LANE if is_spectral(ord) else ARRAY)

    def _norm(
        self,
        steps: LinalgSteps,
        x: Operand,
        order: Any,
        axis: Axes = None,
        *,
        keepdims: bool = False,
    ) -> GpuRef:
        x = cast(x, FLOAT64) if x.dtype.kind in "biu" else x
        if not isinstance(axis, (tuple, NoneType)):
            axis = whole(axis, "axis")
        given = range(len(x.shape)) if axis is None else axis
        axes = normalize_axis_tuple(given, len(x.shape), allow_duplicate=True)
        if isinstance(order, str) and len(axes) == 1:
            raise ValueError(f"Invalid norm order {order!r} for vectors")
        if axis is not None and len(axes) > 2:
            raise ValueError("Improper number of dimensions to norm.")
        if order is None or len(axes) == 1:
            return steps.evaluate(np.linalg.norm(x, order, axis, keepdims))
        if len(axes) != 2:
            raise ValueError("Improper number of dimensions to norm.")
        if axes[0] == axes[1]:
            raise ValueError("Duplicate axes given.")
        if is_spectral(order):
            matrices = (
                steps.ref(x).moveaxis(axes[0], -1).moveaxis(axes[1] - (axes[1] > axes[0]), -1)
            )
            s = self._values(steps, steps.stack(matrices))
            made: Any = (
                s.sum(-1) if order == "nuc" else s.max(-1, initial=0) if order == 2 else s.min(-1)
            )
            if keepdims:
                for at in sorted(axes):
                    made = np.expand_dims(made, at)
            return steps.evaluate(made)
        size: Any = abs(x)
        if order == "fro":
            return steps.evaluate(ufunc("sqrt", (size * size).sum(axes, keepdims=keepdims)))
        if order not in (1, -1, math.inf, -math.inf):
            raise ValueError(f"Invalid norm order {order!r} for matrices.")
        summed, other = (axes[0], axes[1]) if abs(order) == 1 else (axes[1], axes[0])
        sums = size.sum(summed, keepdims=True)
        extreme = partial(sums.max, initial=0) if order > 0 else sums.min
        made = extreme(other, keepdims=True)
        return steps.evaluate(made if keepdims else made.squeeze(axes))

    @op
    def cond(self, x: Operand, p: Order | None = None) -> Request[GpuRef]:
        """Condition numbers; as ``numpy.linalg.cond``: infinite for singular matrices.

        Args:
            x: shape (..., m, n); square unless ``p`` is 2 or -2.
            p: the norm; by default 2, computed by ``svdvals``, others with ``inv``.

        Raises:
            LinAlgError: it did not converge, once that is known; or empty matrices.
        """

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(x), square=p not in (None, 2, -2))
            if not stack.m or not stack.n:
                raise np.linalg.LinAlgError("cond is not defined on empty arrays")
            if p in (None, 2, -2):
                s = self._values(steps, stack)
                first, last = s[..., 0], s[..., -1]
                ratio: Any = last / first if p == -2 else first / last
                bad: Any = ufunc("isnan", last)
            else:
                inverse = self._inverse(steps, stack, raises=False)
                axes = (-2, -1)
                ratio = self._norm(steps, stack.ref, p, axes) * self._norm(steps, inverse, p, axes)
                bad = ufunc("isnan", stack.ref).any((-2, -1))
            # What is no number is infinite, unless it came of one that was given.
            unknown = ufunc("isnan", ratio) & ~bad
            return steps.evaluate(where(unknown, constant(math.inf, ratio.dtype), ratio))

        return self._calls("cond", build)

    @op
    def matrix_power(self, a: Operand, n: SupportsIndex) -> Request[GpuRef]:
        """Powers of square matrices, by products; as ``numpy.linalg.matrix_power``.

        Args:
            a: shape (..., m, m).
            n: the exponent; negative for powers of the inverse.

        Raises:
            LinAlgError: n is negative and a matrix is singular, once that is known; or matrices are
                not square.
        """
        exponent = whole(n, "n")

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(a, "a"), square=True)
            if not exponent:
                return steps.eye(stack, stack.n)
            power = steps.contiguous(stack.ref)
            if exponent < 0:
                power = self._inverse(steps, stack)
            made: GpuRef | None = None
            left = abs(exponent)
            while left:
                if left & 1:
                    made = power if made is None else steps.matmul(made, power)
                left >>= 1
                if left:
                    power = steps.matmul(power, power)
            assert made is not None
            return steps.fresh(made) if made is stack.ref else made

        return self._calls("matrix_power", build, ARRAY)

    @op
    def expm(self, A: Operand, *, squarings: SupportsIndex | None = None) -> Request[GpuRef]:  # noqa: N803
        """Exponentials of square matrices; as ``scipy.linalg.expm``.

        By scaling, the [13/13] Padé approximant and squaring (Higham, 2005). Each matrix is squared
        as often as its norm tells.

        Args:
            A: shape (..., n, n).
            squarings: how often at most; by default the device is asked for the largest norm first.
                With it a batch can have the call; what would need more is less exact.

        Raises:
            Unsupported: without ``squarings`` in a batch or a recording.
        """
        given = None if squarings is None else operator.index(squarings)

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(A, "A"), square=True)
            if not stack.ref.size:
                return steps.fresh(stack.ref)
            wanted = _squarings(cast(self._operand(A, "A"), stack.dtype))
            most = given
            if most is None and steps.preparer.home.call_mode is not Awaited:
                raise Unsupported(
                    "linalg.expm asks the device how often matrices are squared, so in a batch or "
                    "a recording it needs a number: expm(A, squarings=8), say"
                )
            if most is None:  # asked of what was given, as no step is executed yet
                asked = read_number(self._cub, cast(wanted.max(), INT64), "expm")
                most = steps.preparer.perform(asked) or 0
            times = steps.evaluate(ufunc("minimum", wanted, most))
            scaled = steps.evaluate(stack.ref * cast(ufunc("exp2", -times), stack.dtype))
            made = self._approximant(steps, stack, scaled)
            for squared in range(most):
                square = steps.matmul(made, made)
                made = steps.evaluate(where(times > squared, square, made))
            return made

        return self._calls("expm", build, ARRAY)

    def _approximant(self, steps: LinalgSteps, stack: SolverStack, a: GpuRef) -> GpuRef:
        """``(v - u)^-1 @ (v + u)``, with the odd powers in u and the even ones in v."""
        b, n = _PADE, stack.n
        row, column = index((n, n), 0), index((n, n), 1)
        one = cast(row == column, stack.dtype)
        a2 = steps.matmul(a, a)
        a4 = steps.matmul(a2, a2)
        a6 = steps.matmul(a2, a4)
        high: Any = b[13] * a6 + b[11] * a4 + b[9] * a2
        low: Any = b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one
        odd = steps.evaluate(steps.matmul(a6, steps.evaluate(high)) + low)
        u = steps.matmul(a, odd)
        high = b[12] * a6 + b[10] * a4 + b[8] * a2
        low = b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
        v = steps.evaluate(steps.matmul(a6, steps.evaluate(high)) + low)
        right = steps.evaluate((v + u).swapaxes(-1, -2))
        factors = steps.evaluate(v - u)
        pivots = steps.output((*stack.lead, n), self._pivots("gesv", stack))
        info = steps.solve("gesv", stack, (n, n), (factors, pivots, right), 1)
        return steps.result_of(info, right.mT)


def is_spectral(order: object) -> bool:
    """Return whether a norm of matrices takes their singular values."""
    return order in _SPECTRAL


def _squarings(a: Operand) -> Any:
    """Return how often the exponential of a matrix is squared, by its 1-norm; shape (..., 1, 1)."""
    size: Any = abs(a)
    norms = size.sum(-2, keepdims=True).max(-1, keepdims=True)
    wanted = ufunc("maximum", ufunc("ceil", ufunc("log2", norms / _THETA)), 0)
    # What is not finite stays so however often it is squared.
    return where(norms < math.inf, wanted, constant(0, norms.dtype))


def _split(x: Any) -> tuple[Any, Any]:
    """Numbers as their signs, 0 of zeros, and the logarithms of how large they are."""
    size = abs(x)
    if x.dtype.kind != "c":
        return ufunc("sign", x), ufunc("log", size)
    return where(size == 0, constant(0, x.dtype), x / size), ufunc("log", size)
