"""Functions that are made of others: products, tensors, and SciPy's smaller ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..._errors import Unsupported, said_of
from ...arrays.expressions import Operand, broadcast, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ...arrays.expressions.promotion import common
from ...ops import ARRAY_LANE as ARRAY
from ...ops import Awaited, D, op, op_family
from ..array.choosing import read_number
from ._functions import MatrixFunctions, is_spectral
from ._spectra import inverted_above, rcond_of, threshold
from ._steps import FLOAT64, INT32, INT64, LANE, LinalgSteps, SolverStack, real_of, triangle

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import Request
    from ._functions import Axes, Order

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""


class DerivedFunctions(MatrixFunctions[D]):
    """Functions that are made of others."""

    @property
    def _own(self) -> Any:
        """This facade, whose calls are steps of others."""
        return self.as_requests(self.home)

    # --- products ------------------------------------------------------------------------------

    @op
    def outer(self, x1: Operand, x2: Operand, /) -> Request[GpuRef]:
        """Multiply each element of a vector by each of another; as ``numpy.linalg.outer``."""
        for name, each in (("x1", x1), ("x2", x2)):
            if len(self._operand(each, name).shape) != 1:
                raise ValueError(f"{name} must have one dimension, not shape {each.shape}")
        return self._calls("outer", lambda steps: steps.do(self._array.outer(x1, x2)), ARRAY)

    @op
    def tensordot(
        self,
        x1: Operand,
        x2: Operand,
        /,
        *,
        axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2,
    ) -> Request[GpuRef]:
        """Sum products over several axes; as ``numpy.linalg.tensordot``, by ``array.tensordot``."""
        request = self._array.tensordot(x1, x2, axes)
        return self._calls("tensordot", lambda steps: steps.do(request), ARRAY)

    @op
    def cross(self, x1: GpuRef, x2: GpuRef, /, *, axis: int = -1) -> Request[GpuRef]:
        """Vector products of three dimensions; as ``numpy.linalg.cross``, by ``array.cross``."""
        request = self._array.cross(x1, x2, axis=axis)
        return self._calls("cross", lambda steps: steps.do(request), ARRAY)

    @op
    def trace(
        self, x: GpuRef, /, *, offset: SupportsIndex = 0, dtype: DTypeLike | None = None
    ) -> Request[GpuRef]:
        """Sum the diagonals of matrices of shape (..., m, n); as ``numpy.linalg.trace``."""
        request = self._array.trace(x, offset, -2, -1, dtype)
        return self._calls("trace", lambda steps: steps.do(request), ARRAY)

    def diagonal(self, x: GpuRef, /, *, offset: int = 0) -> GpuRef:
        """Return a view of the diagonals of matrices, not awaited; as ``numpy.linalg.diagonal``."""
        return self._ref(x).diagonal(offset, -2, -1)

    @op
    def multi_dot(self, arrays: Sequence[Operand], *, out: GpuRef | None = None) -> Request[GpuRef]:
        """Multiply several matrices in the order that is fastest; as ``numpy.linalg.multi_dot``.

        Args:
            arrays: two or more matrices; the first and the last may be vectors.
            out: where to put the result.
        """
        if isinstance(arrays, Operand) or not isinstance(arrays, tuple | list):
            raise TypeError(f"arrays must be a list or tuple of refs, not {said_of(arrays)}")
        given: list[Any] = [self._operand(each, f"arrays[{at}]") for at, each in enumerate(arrays)]
        last = len(given) - 1
        if last < 1:
            raise ValueError(f"arrays must be at least two, not {last + 1}")
        for at, each in enumerate(given):
            if len(each.shape) != 2 and (len(each.shape) != 1 or at not in (0, last)):
                raise np.linalg.LinAlgError(
                    f"arrays[{at}] has shape {each.shape}, but must be two-dimensional"
                )
        ends = [at for at in (0, last) if len(given[at].shape) == 1]
        for at in ends:
            given[at] = _NUMPY.expand_dims(given[at], 1 if at else 0)
        sizes = [given[0].shape[0], *[each.shape[1] for each in given]]
        splits = _fastest(sizes)

        def build(steps: LinalgSteps) -> GpuRef:
            def product(first: int, end: int) -> Any:
                if first == end:
                    return given[first]
                split = splits[first, end]
                left, right = product(first, split), product(split + 1, end)
                whole = not ends and (first, end) == (0, last)
                return steps.evaluate(left @ right, out if whole else None)

            made: GpuRef = product(0, last)
            if not ends:
                return made
            made = made.squeeze(tuple([1 if at else 0 for at in ends]))
            return made if out is None else steps.evaluate(made, out)

        return self._calls("multi_dot", build, ARRAY)

    # --- norms ---------------------------------------------------------------------------------

    @op
    def vector_norm(
        self,
        x: Operand,
        /,
        *,
        axis: Axes = None,
        keepdims: bool = False,
        ord: float = 2,  # noqa: A002 - NumPy's name
    ) -> Request[GpuRef]:
        """Norms of vectors along one or several axes, or all; as ``numpy.linalg.vector_norm``."""
        given = self._operand(x)
        ndim = len(given.shape)
        axes = normalize_axis_tuple(range(ndim) if axis is None else axis, ndim)
        rest = [at for at in range(ndim) if at not in axes]

        def build(steps: LinalgSteps) -> GpuRef:
            if len(axes) == 1:
                return self._norm(steps, given, ord, axes[0], keepdims=keepdims)
            rows = steps.contiguous(steps.ref(given).transpose((*rest, *axes)))
            lead = [given.shape[at] for at in rest]
            rows = rows.reshape(*lead, math.prod(given.shape[at] for at in axes))
            made = self._norm(steps, rows, ord, -1)
            kept = [1 if at in axes else n for at, n in enumerate(given.shape)]
            return made.reshape(tuple(kept)) if keepdims else made

        return self._calls("vector_norm", build, ARRAY)

    @op
    def matrix_norm(
        self,
        x: Operand,
        /,
        *,
        keepdims: bool = False,
        ord: Order | None = "fro",  # noqa: A002 - NumPy's name
    ) -> Request[GpuRef]:
        """Norms of matrices of shape (..., m, n); as ``numpy.linalg.matrix_norm``; see ``norm``."""
        given = self._operand(x)

        def build(steps: LinalgSteps) -> GpuRef:
            return self._norm(steps, given, ord, (-2, -1), keepdims=keepdims)

        return self._calls("matrix_norm", build, LANE if is_spectral(ord) else ARRAY)

    # --- tensors -------------------------------------------------------------------------------

    @op
    def tensorsolve(
        self, a: Operand, b: Operand, axes: Sequence[int] | None = None
    ) -> Request[GpuRef]:
        """The x of ``tensordot(a, x, x.ndim) = b``; as ``numpy.linalg.tensorsolve``, by ``solve``.

        Args:
            a: shape ``b.shape + x.shape``, whose halves have as many elements.
            b: any shape.
            axes: axes of ``a`` that are moved to its end first.
        """
        x, sides = self._operand(a, "a"), self._operand(b, "b")
        moved = [operator.index(each) for each in axes or ()]
        order = [at for at in range(len(x.shape)) if at not in moved] + moved
        shape = tuple([x.shape[at] for at in order][len(sides.shape) :])
        n = math.prod(shape)
        if math.prod(x.shape) != n * n or math.prod(sides.shape) != n:
            raise np.linalg.LinAlgError(
                f"a must have as many elements for b, {math.prod(sides.shape)}, as for the "
                f"solution, {n}, not shape {x.shape}"
            )

        def build(steps: LinalgSteps) -> GpuRef:
            whole = steps.contiguous(steps.ref(x, "a").transpose(tuple(order))).reshape(n, n)
            made: GpuRef = steps.do(self._own.solve(whole, steps.flat(steps.ref(sides, "b"))))
            return made.reshape(shape)

        return self._calls("tensorsolve", build)

    @op
    def tensorinv(self, a: Operand, ind: SupportsIndex = 2) -> Request[GpuRef]:
        """The inverse of ``tensordot`` with ``a``; as ``numpy.linalg.tensorinv``, by ``inv``.

        Args:
            a: the first ``ind`` axes have as many elements as the others.
            ind: how many of the axes count as rows.
        """
        x, count = self._operand(a, "a"), operator.index(ind)
        if count <= 0:
            raise ValueError(f"ind must be above 0, not {count}")
        rows, columns = x.shape[:count], x.shape[count:]
        n = math.prod(columns)
        if math.prod(rows) != n:
            raise np.linalg.LinAlgError(f"a must have halves of one size, not {rows}, {columns}")

        def build(steps: LinalgSteps) -> GpuRef:
            whole = steps.contiguous(steps.ref(x, "a")).reshape(n, n)
            made: GpuRef = steps.do(self._own.inv(whole))
            return made.reshape((*columns, *rows))

        return self._calls("tensorinv", build)

    # --- SciPy's factorizations ----------------------------------------------------------------

    @op
    def lu(
        self, a: Operand, permute_l: bool = False, *, p_indices: bool = False
    ) -> Request[tuple[GpuRef, ...]]:
        """LU factorizations in three matrices; as ``scipy.linalg.lu``, by ``lu_factor``.

        Args:
            a: shape (..., m, n); k is the smaller of m and n.
            permute_l: return ``(p @ l, u)``.
            p_indices: return the rows of ``l`` that make ``p @ l``, int32 of shape (..., m).

        Returns:
            ``(p, l, u)``, ``a = p @ l @ u``: shapes (..., m, m), (..., m, k) and (..., k, n).
        """

        def build(steps: LinalgSteps) -> tuple[GpuRef, ...]:
            stack = steps.stack(self._operand(a, "a"))
            m, k = stack.m, min(stack.m, stack.n)
            factors, pivots = self._lu(steps, stack, transposed=False)
            below = factors.mT[..., :k]
            row, column = index((m, k), 0), index((m, k), 1)
            one, none = constant(1, stack.dtype), constant(0, stack.dtype)
            left = steps.evaluate(where(row > column, below, where(row == column, one, none)))
            upper = steps.evaluate(triangle(factors.mT[..., :k, :], lower=False))
            rows = self._exchanged(steps, stack, pivots)
            found: Any = index((*stack.lead, m, m), len(stack.lead)) == cast(rows, INT64)
            if not (permute_l or p_indices):
                return steps.evaluate(cast(found, real_of(stack.dtype))), left, upper
            places = cast(found, INT64) * index((m, m), 1)
            order = steps.evaluate(cast(places.sum(-1), INT32))
            if not permute_l:
                return order, left, upper
            taken = self._array.take_along_axis(left, order[..., None], -2)
            return steps.do(taken), upper

        return self._calls("lu", build)

    def _exchanged(self, steps: LinalgSteps, stack: SolverStack, pivots: GpuRef) -> GpuRef:
        """Return the row of the matrix that each row of the factors is of, shape (..., 1, m).

        The solver exchanges the rows of a right-hand side, and solves nothing.
        """
        m, k, lead = stack.m, pivots.shape[-1], stack.lead
        last = len(lead)
        rows = steps.evaluate(cast(index((*lead, 1, m), last + 1), FLOAT64))
        if not rows.size:
            return rows
        square = SolverStack(rows, lead, stack.batch, m, m)
        ones = steps.eye(square, m)
        whole = steps.output((*lead, m), self._pivots("getrs", square))
        steps.evaluate(cast(pivots, whole.dtype), whole[..., :k])
        if m > k:  # the others stay where they are
            own = index((*lead, m - k), last) + (k + 1)
            steps.evaluate(cast(own, whole.dtype), whole[..., k:])
        steps.solve("getrs", square, (m, 1), (ones, whole, rows), 0, reads=2)
        return rows

    @op
    def cho_factor(self, a: Operand, lower: bool = False) -> Request[tuple[GpuRef, bool]]:
        """The first argument of ``cho_solve``, by ``cholesky``; as ``scipy.linalg.cho_factor``.

        Returns:
            The factor, with zeros in the other triangle, and ``lower``.
        """
        flag = bool(lower)
        request = self._own.cholesky(a, lower=flag)
        return self._calls("cho_factor", lambda steps: (steps.do(request), flag))

    @op
    def pinvh(
        self,
        a: Operand,
        atol: float | None = None,
        rtol: float | None = None,
        lower: bool = True,
        return_rank: bool = False,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Pseudo-inverses of Hermitian matrices; as ``scipy.linalg.pinvh``, by ``eigh``.

        Args:
            a: shape (..., n, n), of which one triangle is read.
            atol: eigenvalues up to that count as zero; 0 by default.
            rtol: the same as a part of the largest one, added to ``atol``; by default ``n`` times
                the dtype's eps.
            lower: which triangle.
            return_rank: return how many do not count as zero, too: int64 of shape (...).
        """
        absolute = 0.0 if atol is None else threshold(atol, "atol")

        def build(steps: LinalgSteps) -> Any:
            stack = steps.stack(self._operand(a, "a"), square=True)
            s, v = self._eigh(steps, stack.ref, None, lower, 1, None, None, vectors=True)
            relative = rcond_of(stack, rtol)
            size: Any = abs(s)
            inverse = inverted_above(
                s, size.max(-1, keepdims=True, initial=0) * relative + absolute
            )
            left = steps.evaluate(v * cast(_NUMPY.expand_dims(inverse, -2), stack.dtype))
            made = steps.matmul(left, v, trans_b=2)
            if not return_rank:
                return made
            return made, steps.evaluate(cast(inverse != 0, INT64).sum(-1))

        return self._calls("pinvh", build, ARRAY)

    @op_family
    def null_space(
        self,
        _name: str,
        A: Operand,  # noqa: N803 - SciPy's name
        rcond: float | None = None,
    ) -> Request[GpuRef]:
        """Orthonormal columns that ``A`` maps to zero; as ``scipy.linalg.null_space``, by ``svd``.

        Args:
            A: shape (m, n).
            rcond: singular values up to that, times the largest one, count as zero; by default
                ``max(m, n)`` times the dtype's eps.

        Returns:
            Shape (n, n - rank).

        Raises:
            Unsupported: in a batch or a recording, because the device decides the shape.
        """
        left = _name == "orth"
        if len(self._operand(A, "A").shape) != 2:
            raise np.linalg.LinAlgError(f"A must be one matrix, not shape {A.shape}")

        def build(steps: LinalgSteps) -> GpuRef:
            if steps.preparer.home.call_mode is not Awaited:
                raise Unsupported(
                    f"linalg.{_name} asks the device for the rank, so a batch or a recording "
                    "cannot have it; await it before"
                )
            small = rcond_of(steps.stack(A), rcond)
            found: Any = steps.preparer.perform(self._own.svd(A, not left))
            u, s, vh = found
            rank = 0
            if s.size:
                far = cast(s > s.max() * small, INT64)
                rank = steps.preparer.perform(read_number(self._cub, far.sum(), _name)) or 0
            return steps.fresh(u[:, :rank] if left else steps.ref(steps.adjoint(vh[rank:])))

        return self._calls(_name, build, ARRAY)

    orth: Final = null_space.like(
        """Orthonormal columns that span those of ``A``; as ``scipy.linalg.orth``, by ``svd``.

        Arguments and errors are those of ``null_space``.

        Returns:
            Shape (m, rank).
        """
    )

    # --- SciPy's special matrices --------------------------------------------------------------

    @op
    def block_diag(self, *arrs: Operand) -> Request[GpuRef]:
        """Put matrices one behind the other on a diagonal; as ``scipy.linalg.block_diag``.

        Vectors count as rows, and leading dimensions are broadcast.
        """
        given: list[Any] = [
            _NUMPY.expand_dims(each, tuple(range(2 - len(self._operand(each, "arrs").shape))))
            for each in arrs
        ]
        lead = np.broadcast_shapes(*[each.shape[:-2] for each in given])
        sizes = [each.shape[-2:] for each in given]
        m, n = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        dtype = common(tuple(each.dtype for each in given)) if given else FLOAT64

        def build(steps: LinalgSteps) -> GpuRef:
            made = steps.output((*lead, m, n) if given else (1, 0), dtype)
            if not made.size:
                return made
            steps.evaluate(broadcast(constant(0, dtype), made.shape), made)
            i = j = 0
            for each, (rows, columns) in zip(given, sizes, strict=True):
                if rows and columns:
                    part = broadcast(cast(each, dtype), (*lead, rows, columns))
                    steps.evaluate(part, made[..., i : i + rows, j : j + columns])
                i, j = i + rows, j + columns
            return made

        return self._calls("block_diag", build, ARRAY)

    @op
    def toeplitz(self, c: Operand, r: Operand | None = None) -> Request[GpuRef]:
        """A matrix whose diagonals are constant; as ``scipy.linalg.toeplitz``.

        Args:
            c: the first column, of one dimension.
            r: the first row, whose first element is not read; by default the conjugate of ``c``.
        """
        x = self._operand(c, "c")
        y: Any = x if r is None else self._operand(r, "r")
        if len(x.shape) != 1 or len(y.shape) != 1:
            raise ValueError(f"c and r must have one dimension, not shapes {x.shape}, {y.shape}")
        m, n, dtype = x.shape[0], y.shape[0], common((x.dtype, y.dtype))

        def build(steps: LinalgSteps) -> GpuRef:
            if not m or not n:
                return steps.output((m, n), dtype)
            row = steps.output((m + n - 1,), dtype)
            steps.evaluate(cast(steps.ref(x, "c")[::-1], dtype), row[:m])
            if n > 1:
                rest: Operand = steps.ref(y, "r")[1:]
                rest = ufunc("conjugate", rest) if r is None and dtype.kind == "c" else rest
                steps.evaluate(cast(rest, dtype), row[m:])
            step = dtype.itemsize
            return steps.fresh(row.with_layout((m, n), (step, step))[::-1])

        return self._calls("toeplitz", build, ARRAY)


def _fastest(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return after which matrix to split each range of a product, to multiply least."""
    count = len(sizes) - 1
    costs: dict[tuple[int, int], int] = {(at, at): 0 for at in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            end = first + length
            costs[first, end], splits[first, end] = min(
                (
                    costs[first, at]
                    + costs[at + 1, end]
                    + sizes[first] * sizes[at + 1] * sizes[end + 1],
                    at,
                )
                for at in range(first, end)
            )
    return splits
