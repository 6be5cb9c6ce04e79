"""Systems of equations, and inverses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from ..._dtypes import NAMES
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ...ops import D, op
from ._steps import INT32, INT64, LinalgPart, LinalgSteps, SolverStack, solved_in
from .wire._messages import SolverProblem

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request

Trans = Literal[0, 1, 2, "N", "T", "C"]
Refine = Literal["float32", "tfloat32", "bfloat16", "float16"]

_TRANS: Final[dict[object, int]] = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
_PRECISIONS: Final = ("float32", "tfloat32", "bfloat16", "float16")
SINGULAR: Final = "Singular matrix"
_NO_ROWS: Final = "Rows are exchanged with others that are not there"


class Sides(NamedTuple):
    """Matrices and right-hand sides of one dtype, broadcast to each other.

    Attributes:
        a: the matrices.
        b: the right-hand sides, of shape (..., m, nrhs).
        vector: whether they have one axis only.
    """

    a: SolverStack
    b: GpuRef
    vector: bool

    @property
    def nrhs(self) -> int:
        """Right-hand sides of each matrix."""
        return self.b.shape[-1]

    def shaped(self, x: GpuRef) -> GpuRef:
        """A contiguous result of shape (..., n, nrhs) in the caller's terms."""
        return x.reshape(x.shape[:-1]) if self.vector else x


class Systems(LinalgPart[D]):
    """Solving."""

    @op
    def solve(self, a: Operand, b: Operand, *, refine: Refine | None = None) -> Request[GpuRef]:
        """The x of ``a @ x = b``; as ``numpy.linalg.solve``.

        Vendor functions: ``cusolverDnXgetrf`` and ``cusolverDnXgetrs``, for stacks of matrices up
        to 128 by 128 ``cublas<t>getrfBatched`` and ``cublas<t>getrsBatched``; up to 32 by 32 it is
        a kernel of our own. With ``refine`` ``cusolverDn<t1><t2>gesv``.

        Args:
            a: shape (..., n, n).
            b: shape (n,), or (..., n, nrhs); leading dimensions are broadcast.
            refine: factorize in a lower precision, and refine the solution to full precision:
                "float32" for double precision only, "tfloat32", "bfloat16" or "float16" for any.
                The CPU computes in full precision.

        Returns:
            An array of b's shape, broadcast. NaN for singular matrices.
        """

        def build(steps: LinalgSteps) -> GpuRef:
            sides = self._sides(steps, a, b)
            if refine is not None:
                return self._refined(steps, sides, refine)
            stack, n = sides.a, sides.a.n
            # Transposed by the copy, as the solver takes up to a third longer for transposes.
            factors, right = steps.fresh(stack.ref.mT), self._columns(steps, sides.b)
            pivots = steps.output((*stack.lead, n), self._pivots("gesv", stack))
            buffers = (factors, pivots, right)
            info = steps.solve("gesv", stack, (n, sides.nrhs), buffers, 0, failure=SINGULAR)
            return sides.shaped(steps.result_of(info, right.mT))

        return self._calls("solve", build)

    def _refined(self, steps: LinalgSteps, sides: Sides, refine: str) -> GpuRef:
        stack, n = sides.a, sides.a.n
        precision = precision_of(refine, stack)
        matrices, right = steps.fresh(stack.ref.mT), self._columns(steps, sides.b)
        x = steps.output(right.shape, stack.dtype)
        sizes, buffers = (n, sides.nrhs), (matrices, right, x)
        info = steps.solve("irs_gesv", stack, sizes, buffers, precision)
        # Of a singular matrix the solver may say nothing, and give NaN.
        lost: Any = ufunc("isnan", x).any(axis=(-2, -1))
        for given in (stack.ref, right):
            lost = lost & ufunc("isfinite", given).all(axis=(-2, -1))
        problem = SolverProblem("irs_gesv", NAMES[stack.dtype], stack.batch, sizes, (precision,))
        found = where(lost, ufunc("maximum", info, constant(1, info.dtype)), info)
        return sides.shaped(steps.result_of(steps.require(found, problem, SINGULAR), x.mT))

    @op
    def inv(self, a: Operand) -> Request[GpuRef]:
        """Inverses of matrices (..., n, n); as ``numpy.linalg.inv``.

        Vendor functions: those of ``solve``, which is faster and more accurate than to multiply
        with an inverse.

        Returns:
            Of the same shape. NaN for matrices that are singular.
        """
        return self._calls("inv", lambda steps: self._inverse(steps, steps.stack(a, square=True)))

    def _inverse(self, steps: LinalgSteps, stack: SolverStack, *, raises: bool = True) -> GpuRef:
        """The inverse: that of the transpose, which the solver sees, is its transpose."""
        n = stack.n
        factors, right = steps.fresh(stack.ref), steps.eye(stack, n)
        pivots = steps.output((*stack.lead, n), self._pivots("gesv", stack))
        failure = SINGULAR if raises else ""
        info = steps.solve("gesv", stack, (n, n), (factors, pivots, right), 0, failure=failure)
        return steps.result_of(info, right)

    @op
    def solve_triangular(
        self,
        a: Operand,
        b: Operand,
        trans: Trans = 0,
        lower: bool = False,
        unit_diagonal: bool = False,
    ) -> Request[GpuRef]:
        """The x of ``op(a) @ x = b``, a triangular; as ``scipy.linalg.solve_triangular``.

        Vendor functions: ``cublas<t>trsm_64``, for stacks of small matrices
        ``cublas<t>trsmBatched``. A singular matrix is not looked for: a zero on the diagonal gives
        infinities and NaNs.

        Args:
            a: shape (..., n, n), of which one triangle is read.
            b: shape (n,), or (..., n, nrhs); leading dimensions are broadcast.
            trans: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            lower: which triangle.
            unit_diagonal: take the diagonal for ones.

        Returns:
            Of b's shape, broadcast.
        """
        turned = turned_by(trans)

        def build(steps: LinalgSteps) -> GpuRef:
            sides = self._sides(steps, a, b)
            x = steps.fresh(sides.b)
            self._triangular(steps, sides.a, x, turned, lower=lower, unit=unit_diagonal)
            return sides.shaped(x)

        return self._calls("solve_triangular", build)

    def _triangular(
        self,
        steps: LinalgSteps,
        stack: SolverStack,
        x: GpuRef,
        trans: int,
        *,
        lower: bool,
        unit: bool = False,
    ) -> None:
        """Solve in place.

        The solver sees ``x.T @ op(a).T = b.T``, and ``a`` transposed. ``trans`` therefore does not
        change, and the triangle is the other one.
        """
        matrices = steps.contiguous(stack.ref)
        sizes = (stack.n, x.shape[-1])
        options = (int(not lower), trans, int(unit))
        steps.solve("trsm", stack, sizes, (matrices, x), *options, reads=1)

    @op
    def cho_solve(self, c_and_lower: tuple[Operand, bool], b: Operand) -> Request[GpuRef]:
        """The x of ``a @ x = b``, with what ``cholesky`` gave for a; as ``scipy.linalg.cho_solve``.

        Vendor functions: those of ``solve_triangular``. ``c_and_lower`` are the factor, of shape
        (..., n, n), and whether it is the lower one. ``b`` is as for ``solve``.

        Returns:
            Of b's shape, broadcast.
        """
        factor, given = c_and_lower
        if given not in (0, 1):
            raise TypeError(f"lower must be True or False, not {given!r}")
        lower = bool(given)

        def build(steps: LinalgSteps) -> GpuRef:
            sides = self._sides(steps, factor, b)
            x = steps.fresh(sides.b)
            for trans in (0, 2) if lower else (2, 0):
                self._triangular(steps, sides.a, x, trans, lower=lower)
            return sides.shaped(x)

        return self._calls("cho_solve", build)

    @op
    def lu_solve(
        self, lu_and_piv: tuple[Operand, GpuRef], b: Operand, trans: Trans = 0
    ) -> Request[GpuRef]:
        """The x of ``op(a) @ x = b``, with what ``lu_factor`` gave for a.

        As ``scipy.linalg.lu_solve``. Vendor functions: ``cusolverDnXgetrs``, for stacks of small
        matrices ``cublas<t>getrsBatched``. ``lu_and_piv`` are the factors, of shape (..., n, n),
        and the exchanged rows, from 0 to n - 1. Other arguments are those of ``solve_triangular``.

        Returns:
            Of b's shape, broadcast. NaN for matrices whose ``piv`` has rows that are not there.

        Raises:
            LinAlgError: there are such rows, once that is known; its ``info`` says how many.
        """
        lu, piv = lu_and_piv
        turned = turned_by(trans)

        def build(steps: LinalgSteps) -> GpuRef:
            given = steps.ref(self._operand(piv, "piv"), "piv")
            if given.dtype.kind not in "iu":
                raise TypeError(f"piv must be made of integers, not of {given.dtype.name}")
            sides = self._sides(steps, lu, b)
            stack, shape = sides.a, self._operand(lu, "lu").shape
            if given.shape != shape[:-1]:
                raise ValueError(
                    f"piv must be the pivots of lu, of shape {shape}, not of shape {given.shape}"
                )
            trans = turned if stack.dtype.kind == "c" else min(turned, 1)
            sizes = (stack.n, sides.nrhs)
            info, pivots = self._counted(steps, stack, sizes, given)
            factors, right = steps.fresh(stack.ref.mT), self._columns(steps, sides.b)
            steps.solve("getrs", stack, sizes, (factors, pivots, right), trans, reads=2)
            return sides.shaped(steps.result_of(info, right.mT))

        return self._calls("lu_solve", build)

    def _counted(
        self, steps: LinalgSteps, stack: SolverStack, sizes: tuple[int, ...], piv: GpuRef
    ) -> tuple[GpuRef, GpuRef]:
        """Return the number of invalid pivots, and pivots that are safe for the solver.

        The solver does not check pivots, and counts rows from one. Invalid pivots are replaced by
        valid ones.
        """
        whole = (*stack.lead, stack.n)
        rows = cast(piv.broadcast_to(whole), INT64)
        own = index(whole, len(whole) - 1)
        wrong = (rows < 0) | (rows >= stack.n)
        counted: Any = cast(wrong, INT64)
        problem = SolverProblem("getrs", stack.dtype.name, stack.batch, sizes)
        told = steps.require(counted.sum(-1), problem, _NO_ROWS)
        pivots = cast(where(wrong, own, rows) + 1, self._pivots("getrs", stack))
        return told, steps.evaluate(pivots)

    # --- what these have in common ----------------------------------------------------------

    def _sides(self, steps: LinalgSteps, a: Operand, b: Operand) -> Sides:
        """Matrices and right-hand sides, as ``numpy.linalg.solve`` takes them."""
        matrices, right = steps.joint(self._operand(a, "a"), self._operand(b, "b"))
        stack = steps.stack(matrices, square=True)
        given = steps.ref(right, "b")
        vector = len(given.shape) == 1
        if not given.shape or given.shape[-1 if vector else -2] != stack.n:
            raise ValueError(
                f"b must have as many rows as a, of shape {stack.ref.shape}, not "
                f"shape {given.shape}"
            )
        sides = given[:, None] if vector else given
        lead = np.broadcast_shapes(stack.lead, sides.shape[:-2])
        whole = stack.ref.broadcast_to((*lead, stack.n, stack.n))
        return Sides(
            SolverStack(whole, lead, math.prod(lead), stack.n, stack.n),
            sides.broadcast_to((*lead, *sides.shape[-2:])),
            vector,
        )

    @staticmethod
    def _columns(steps: LinalgSteps, b: GpuRef) -> GpuRef:
        """Right-hand sides, column-major."""
        return steps.fresh(b.mT)

    @staticmethod
    def _pivots(routine: str, stack: SolverStack) -> np.dtype[np.int32] | np.dtype[np.int64]:
        """Return the dtype in which the solver stores pivots."""
        problem = SolverProblem(routine, stack.dtype.name, stack.batch, (stack.m, stack.n))
        return INT32 if problem.batched else INT64


def turned_by(trans: Trans) -> int:
    """Return an option ``trans`` as 0, 1 or 2."""
    try:
        return _TRANS[trans]
    except (KeyError, TypeError):
        raise ValueError(f"trans must be 0 ('N'), 1 ('T') or 2 ('C'), not {trans!r}") from None


def precision_of(refine: str, stack: SolverStack) -> int:
    """The number of a precision that is lower than that of the matrices."""
    single = solved_in(stack.dtype).name in ("float32", "complex64")
    if refine not in _PRECISIONS[single:]:
        raise ValueError(
            f"refine must be one of {', '.join(_PRECISIONS[single:])} for {stack.dtype.name}, "
            f"not {refine!r}"
        )
    return _PRECISIONS.index(refine)
