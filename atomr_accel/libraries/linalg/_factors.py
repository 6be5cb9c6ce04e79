"""Factorizations: Cholesky's, LU, LDL and QR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from ...arrays.expressions import Operand, cast
from ...ops import D, op
from ._steps import INT32, INT64, LinalgPart, LinalgSteps, SolverStack, triangle
from .wire._messages import SolverProblem

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request

Mode = Literal["reduced", "complete", "raw"]
_MODES: Final = get_args(Mode)


class QR(NamedTuple):
    """The result of ``qr``.

    Attributes:
        Q: orthonormal columns; with mode "raw" the reflectors, as ``numpy.linalg.qr`` has them.
        R: the upper triangle; with mode "raw" the scalars of the reflectors.
    """

    Q: GpuRef
    R: GpuRef


class SolverFactorizations(LinalgPart[D]):
    """Factorizations that take a fixed number of steps."""

    @op
    def cholesky(self, a: Operand, *, lower: bool = True) -> Request[GpuRef]:
        """The triangular factor of positive definite matrices; as ``numpy.linalg.cholesky``.

        Vendor functions: ``cusolverDnXpotrf``, for stacks of matrices up to 128 by 128
        ``cusolverDn<t>potrfBatched``; up to 32 by 32 it is a kernel of our own.

        Args:
            a: shape (..., n, n), Hermitian; one triangle is read.
            lower: read the lower triangle and return the factor of ``a = l @ l^H``; if False, the
                upper one of ``a = u^H @ u``.

        Returns:
            Of the same shape, with zeros in the other triangle. NaN for matrices that are not
            positive definite.
        """

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(a, "a"), square=True)
            # The solver sees the transpose, and factorizes its lower triangle, which is up to 2.6
            # times faster than the upper one. So lower triangles are turned over.
            factor = steps.fresh(stack.ref.mT if lower else stack.ref)
            info = steps.solve(
                *("potrf", stack, (stack.n,), (factor,)),
                failure="Matrix is not positive definite",
            )
            found = factor.mT if lower else factor
            return steps.result_of(info, triangle(found, lower=lower))

        return self._calls("cholesky", build)

    @op
    def lu_factor(self, a: Operand) -> Request[tuple[GpuRef, GpuRef]]:
        """LU factorizations with partial pivoting; as ``scipy.linalg.lu_factor``.

        Vendor functions: ``cusolverDnXgetrf``, for stacks of square matrices up to 128 by 128
        ``cublas<t>getrfBatched``; up to 32 by 32 it is a kernel of our own.

        Args:
            a: shape (..., m, n).

        Returns:
            ``(lu, piv)``: both factors in one matrix, without the ones of ``l``; and the row that
            each row was exchanged with, int32 from 0 on. A singular matrix has a zero on the
            diagonal, and does not raise. Complex matrices may have other pivots than with SciPy:
            LAPACK takes ``|re| + |im|`` as the size of a pivot, and the vendor's routines may take
            the modulus. The factors reproduce the matrix equally well.
        """

        def build(steps: LinalgSteps) -> tuple[GpuRef, GpuRef]:
            stack = steps.stack(self._operand(a, "a"))
            factors, pivots = self._lu(steps, stack, transposed=False)
            lu = steps.fresh(factors.mT)
            return lu, steps.evaluate(cast(pivots - 1, INT32))

        return self._calls("lu_factor", build)

    def _lu(
        self, steps: LinalgSteps, stack: SolverStack, *, transposed: bool
    ) -> tuple[GpuRef, GpuRef]:
        """The factors as the solver leaves them, and its pivots, which count from one."""
        m, n = (stack.n, stack.m) if transposed else (stack.m, stack.n)
        factors = steps.fresh(stack.ref if transposed else stack.ref.mT)
        batched = SolverProblem("getrf", stack.dtype.name, stack.batch, (m, n)).batched
        pivots = steps.output((*stack.lead, min(m, n)), INT32 if batched else INT64)
        steps.solve("getrf", stack, (m, n), (factors, pivots))
        return factors, pivots

    @op
    def ldl(
        self,
        A: Operand,  # noqa: N803 - NumPy's name
        lower: bool = True,
        hermitian: bool = True,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """LDL factorizations of symmetric matrices; as ``scipy.linalg.ldl``.

        On the CPU only: what the vendor's ``sytrf`` gives is not in the form of these results.

        Args:
            A: shape (..., n, n), of which one triangle is read.
            lower: which triangle, and which factor is given.
            hermitian: whether complex matrices are Hermitian, or symmetric.

        Returns:
            ``(lu, d, perm)``: the outer factor, whose rows ``perm`` makes triangular; the blocks
            of one or two rows on the diagonal; and the order of rows, int64. NaN, and any order,
            for matrices that hold NaN or infinity.

        Raises:
            LinAlgError: a matrix holds NaN or infinity, once that is known; matrices that are not
                square.
            Unsupported: on CUDA.
        """

        def build(steps: LinalgSteps) -> tuple[GpuRef, GpuRef, GpuRef]:
            stack = steps.stack(self._operand(A, "A"), square=True)
            factor = steps.fresh(stack.ref.mT)
            d = steps.output(factor.shape, stack.dtype)
            order = steps.output(factor.shape[:-1], INT64)
            options = (int(lower), int(hermitian))
            info = steps.solve(
                *("ldl", stack, (stack.n,), (factor, d, order), *options),
                failure="There are no such factors",
            )
            return steps.result_of(info, factor.mT), steps.result_of(info, d.mT), order

        return self._calls("ldl", build)

    @op
    def qr(self, a: Operand, mode: Mode = "reduced") -> Request[QR]:
        """QR factorizations; as ``numpy.linalg.qr``. ``qr_r`` computes R alone.

        Vendor functions: ``cusolverDnXgeqrf``, ``cusolverDn<t>orgqr`` and ``ungqr``, one matrix
        after the other. Stacks of matrices up to 64 by 64, in complex128 up to 32 by 32, go to
        kernels of our own; larger ones in complex128 up to 64 to ``cublas<t>geqrfBatched``.

        Args:
            a: shape (..., m, n); k is the smaller of m and n.
            mode: "reduced": Q of shape (..., m, k) and R of (..., k, n). "complete": (..., m, m)
                and (..., m, n). "raw": the reflectors, transposed, of (..., n, m), and their
                scalars of (..., k).

        Returns:
            Q and R.
        """
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")

        def build(steps: LinalgSteps) -> QR:
            stack, factors, tau = self._reflectors(steps, a)
            m, k = stack.m, min(stack.m, stack.n)
            if mode == "raw":
                return QR(factors, tau)
            rows = m if mode == "complete" else k
            r = steps.evaluate(triangle(factors.mT[..., :rows, :], lower=False))
            # The reflectors are in the first columns, which are rows here; others are not read.
            if not k:
                whole = steps.eye(stack, m)
                return QR(whole if rows else steps.output((*stack.lead, m, 0), stack.dtype), r)
            q = steps.output((*stack.lead, rows, m), stack.dtype)
            steps.assign((factors[..., :k, :], q[..., :k, :]))
            steps.solve("orgqr", stack, (m, rows, k), (q, tau))
            return QR(steps.fresh(q.mT), r)

        return self._calls("qr", build)

    @op
    def qr_r(self, a: Operand) -> Request[GpuRef]:
        """The factor R of ``qr``; as ``numpy.linalg.qr`` with mode "r".

        Arguments and errors are those of ``qr``.

        Returns:
            Shape (..., k, n).
        """

        def build(steps: LinalgSteps) -> GpuRef:
            stack, factors, _ = self._reflectors(steps, a)
            rows = min(stack.m, stack.n)
            return steps.evaluate(triangle(factors.mT[..., :rows, :], lower=False))

        return self._calls("qr_r", build)

    def _reflectors(self, steps: LinalgSteps, a: Operand) -> tuple[SolverStack, GpuRef, GpuRef]:
        """Return the matrices, and their reflectors and scalars."""
        stack = steps.stack(self._operand(a, "a"))
        factors = steps.fresh(stack.ref.mT)
        tau = steps.output((*stack.lead, min(stack.m, stack.n)), stack.dtype)
        steps.solve("geqrf", stack, (stack.m, stack.n), (factors, tau))
        return stack, factors, tau
