"""Singular values and eigenvalues, and functions that use them."""

from __future__ import annotations

import math
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import numpy as np

from ..._dtypes import DTYPES, NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand, cast, constant
from ...arrays.expressions.expression import ufunc, where
from ...ops import ARRAY_LANE as ARRAY
from ...ops import D, op, op_family
from ...wire.options import real, whole
from ._polar import Scaled, scaled
from ._steps import COMPLEX_OF, INT64, LANE, LinalgPart, LinalgSteps, SolverStack, real_of
from ._systems import precision_of
from .wire._messages import BATCHED, SolverProblem

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ...ops import AsRequests, Awaited, Collected, Facade, Request
    from ._systems import Refine

SvdAlgorithm = Literal["gesvd", "gesvdj", "gesvdp", "gesvdr", "gesvda"]
EighAlgorithm = Literal["evd", "evj", "evx"]

_Vectors_co = TypeVar("_Vectors_co", covariant=True)
_Values_co = TypeVar("_Values_co", covariant=True)
_Either_co = TypeVar("_Either_co", covariant=True)

_RANKED: Final = ("gesvdr", "gesvda")
_EXACT: Final = ("gesvd", "gesvdj", "gesvdp")
_LEAST_POLAR: Final = 128
"""Rows and columns from which a polar decomposition pays."""

_EIGH: Final = {"evd": "syevd", "evj": "syevj", "evx": "syevdx"}
_NO_SVD: Final = "SVD did not converge"
_NO_EIGENVALUES: Final = "Eigenvalues did not converge"

_OVERSAMPLING: Final = 8
_POWER_ITERATIONS: Final = 2


class SVD(NamedTuple):
    """The result of ``svd``: ``a = U @ diag(S) @ Vh``.

    Attributes:
        U: orthonormal columns.
        S: singular values, largest first.
        Vh: orthonormal rows.
    """

    U: GpuRef
    S: GpuRef
    Vh: GpuRef


class SvdSignature(Protocol[_Vectors_co, _Values_co, _Either_co]):
    """``svd``: ``compute_uv`` decides the type of the result."""

    @overload
    def __call__(
        self,
        a: Operand,
        full_matrices: bool = ...,
        compute_uv: Literal[True] = ...,
        hermitian: bool = ...,
        *,
        algorithm: SvdAlgorithm | None = ...,
        k: int | None = ...,
    ) -> _Vectors_co: ...
    @overload
    def __call__(
        self,
        a: Operand,
        full_matrices: bool = ...,
        *,
        compute_uv: Literal[False],
        hermitian: bool = ...,
        algorithm: SvdAlgorithm | None = ...,
        k: None = ...,
    ) -> _Values_co: ...
    @overload
    def __call__(
        self,
        a: Operand,
        full_matrices: bool,
        compute_uv: Literal[False],
        hermitian: bool = ...,
        *,
        algorithm: SvdAlgorithm | None = ...,
        k: None = ...,
    ) -> _Values_co: ...
    @overload
    def __call__(
        self,
        a: Operand,
        full_matrices: bool = ...,
        compute_uv: bool = ...,
        hermitian: bool = ...,
        *,
        algorithm: SvdAlgorithm | None = ...,
        k: int | None = ...,
    ) -> _Either_co: ...


_AwaitedSvd: TypeAlias = SvdSignature[
    "Coroutine[Any, Any, SVD]", "Coroutine[Any, Any, GpuRef]", "Coroutine[Any, Any, SVD | GpuRef]"
]


class svd_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(self, facade: None, owner: Any = None) -> _AwaitedSvd: ...
    @overload
    def __get__(self, facade: Facade[Awaited], owner: Any = None) -> _AwaitedSvd: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> SvdSignature[SVD, GpuRef, SVD | GpuRef]: ...
    @overload
    def __get__(
        self, facade: Facade[AsRequests], owner: Any = None
    ) -> SvdSignature[Request[SVD], Request[GpuRef], Request[SVD | GpuRef]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class Eigen(NamedTuple):
    """The result of ``eig`` and ``eigh``.

    Attributes:
        eigenvalues: of ``eigh`` in ascending order.
        eigenvectors: as columns.
    """

    eigenvalues: GpuRef
    eigenvectors: GpuRef


class LstSq(NamedTuple):
    """The result of ``lstsq``.

    Attributes:
        x: the solutions.
        residuals: sums of squared residuals.
        rank: the rank of each matrix, int64.
        s: its singular values.
    """

    x: GpuRef
    residuals: GpuRef
    rank: GpuRef
    s: GpuRef


class Polar(NamedTuple):
    """The result of ``polar``.

    Attributes:
        u: orthonormal.
        p: positive semidefinite.
    """

    u: GpuRef
    p: GpuRef


class Spectra(LinalgPart[D]):
    """Factorizations that iterate."""

    @svd_op
    def svd(
        self,
        a: Operand,
        full_matrices: bool = True,
        compute_uv: bool = True,
        hermitian: bool = False,
        *,
        algorithm: SvdAlgorithm | None = None,
        k: int | None = None,
    ) -> Request[SVD | GpuRef]:
        """Singular value decompositions; as ``numpy.linalg.svd``.

        Vendor functions: ``cusolverDnXgesvd`` (QR iterations), ``cusolverDnXgesvdp`` (a polar
        decomposition), ``cusolverDn<t>gesvdj`` and ``gesvdjBatched`` (Jacobi's method),
        ``cusolverDnXgesvdr`` (randomised), ``cusolverDn<t>gesvdaStridedBatched`` (approximate, for
        tall matrices). If a singular value is too near to zero for ``gesvdp``, ``gesvd`` runs
        again. In float32, ``gesvdj`` gives some 4 digits of large matrices. The CPU runs LAPACK's
        ``gesdd`` for all algorithms.

        Args:
            a: shape (..., m, n).
            full_matrices: return square U and Vh; otherwise of the smaller size, as with ``k``.
            compute_uv: return ``U`` and ``Vh``, too.
            hermitian: the matrices are; then by ``eigh``, without ``algorithm`` and ``k``.
            algorithm: the method. By default "gesvdj" for stacks of matrices up to 32 by 32, else
                "gesvd", and "gesvdp" from 128 rows and columns on, unless U or Vh would have to be
                completed.
            k: how many of the largest singular values, for "gesvdr" and "gesvda", which need it.

        Returns:
            An ``SVD`` of ``U``, ``S`` and ``Vh``; without ``compute_uv`` only ``S``. NaN for
            matrices that did not converge.

        Raises:
            ValueError: an unknown algorithm; ``k`` with one that does not take it, or out of
                range, or without ``compute_uv``.
        """
        largest = None if k is None else whole(k, "k")
        if hermitian and (algorithm is not None or k is not None):
            raise ValueError("algorithm and k must be None for hermitian matrices")
        if not compute_uv and (k is not None or algorithm not in (None, *_EXACT)):
            raise ValueError(f"k must be None without compute_uv, and algorithm one of {_EXACT}")

        def build(steps: LinalgSteps) -> SVD | GpuRef:
            stack = steps.stack(self._operand(a, "a"), square=hermitian)
            if hermitian:
                return self._hermitian(steps, stack, vectors=compute_uv)
            if not compute_uv:
                return self._values(steps, stack, algorithm)
            return self._svd(steps, stack, full=full_matrices, algorithm=algorithm, k=largest)

        return self._calls("svd", build)

    @op
    def svdvals(self, x: Operand, /, *, algorithm: SvdAlgorithm | None = None) -> Request[GpuRef]:
        """Singular values, largest first; as ``numpy.linalg.svdvals``.

        Vendor functions, errors and ``algorithm``: those of ``svd``, but none that takes ``k``.

        Returns:
            Shape (..., min(m, n)), real, for matrices (..., m, n).
        """
        if algorithm not in (None, *_EXACT):
            raise ValueError(f"algorithm must be one of {', '.join(_EXACT)}, not {algorithm!r}")

        def build(steps: LinalgSteps) -> GpuRef:
            return self._values(steps, steps.stack(self._operand(x)), algorithm)

        return self._calls("svdvals", build)

    def _hermitian(self, steps: LinalgSteps, stack: SolverStack, *, vectors: bool) -> SVD | GpuRef:
        """Singular values of Hermitian matrices: eigenvalues without signs, largest first."""
        w, *rest = self._eigh(steps, stack.ref, None, True, 1, None, None, vectors=vectors)
        array = self._array
        size = steps.evaluate(abs(w))
        if not vectors:
            return steps.fresh(steps.do(array.sort(size))[..., ::-1])
        order = steps.fresh(steps.do(array.argsort(size))[..., ::-1])
        s = steps.do(array.take_along_axis(size, order, -1))
        at: Any = order[..., None, :]
        u = steps.do(array.take_along_axis(rest[0], at.broadcast_to(rest[0].shape), -1))
        signs: Any = steps.do(array.take_along_axis(w, order, -1))
        one = constant(1, signs.dtype)
        right = _rows(where(signs < 0, -one, one), stack) * _conjugate(u.mT)
        return SVD(u, s, steps.evaluate(right))

    def _svd(
        self,
        steps: LinalgSteps,
        stack: SolverStack,
        *,
        full: bool,
        algorithm: str | None = None,
        k: int | None = None,
    ) -> SVD:
        """Return the decompositions; the solver gets tall matrices, transposed if needed."""
        least = min(stack.m, stack.n)
        name = _algorithm_of(stack, algorithm, k, full=full)
        if not least:
            return self._nothing(steps, stack, full=full)
        tall, most = stack.m > stack.n, max(stack.m, stack.n)
        given = stack.ref.mT if tall else stack.ref
        polar = scaled(steps, given) if name == "gesvdp" else None
        matrices = steps.fresh(given) if polar is None else polar.matrices
        sizes: tuple[int, ...] = (most, least)
        options: tuple[int, ...] = (1, int(full))
        columns = most if full else least
        kept = least if k is None else k
        if name == "gesvdj" and stack.batch > 1 and most <= BATCHED[name]:
            columns = most  # one call for all of them gives square ones only
        if name == "gesvda":
            sizes, options, columns = (most, least, kept), (1,), kept
        elif name == "gesvdr":
            more = min(_OVERSAMPLING, least - kept)
            sizes, options = (most, least, kept, more), (1, _POWER_ITERATIONS)
            columns = least
        s = steps.output((*stack.lead, kept if name == "gesvda" else least), real_of(stack.dtype))
        u = steps.output((*stack.lead, columns, most), stack.dtype)
        rows = kept if name == "gesvda" else least
        v = steps.output((*stack.lead, rows, least), stack.dtype)
        info = self._solved(steps, name, stack, sizes, (matrices, s, u, v), options, polar)
        # Buffers are what the solver gives, transposed; gesvd gives Vh, the others V.
        wanted = most if full else kept
        left: Operand = u[..., :wanted, :]
        right: Operand = v if name == "gesvd" else steps.adjoint(v[..., :kept, :])
        if tall:
            left, right = _adjoint(left), _adjoint(right)
        else:
            left, right = right, left
        values = steps.result_of(info, s[..., :kept] if polar is None else polar.values(s))
        return SVD(steps.result_of(info, left), values, steps.result_of(info, right))

    @staticmethod
    def _solved(
        steps: LinalgSteps,
        name: str,
        stack: SolverStack,
        sizes: tuple[int, ...],
        buffers: tuple[GpuRef, ...],
        options: tuple[int, ...],
        polar: Scaled | None,
    ) -> GpuRef:
        """Info of matrices that are solved for their singular values, which raises."""
        if polar is None:
            return steps.solve(name, stack, sizes, buffers, *options, failure=_NO_SVD)
        info = steps.solve(name, stack, sizes, buffers, *options)
        problem = SolverProblem(name, NAMES[stack.dtype], stack.batch, sizes, options)
        return steps.require(polar.told(info), problem, _NO_SVD)

    @staticmethod
    def _nothing(steps: LinalgSteps, stack: SolverStack, *, full: bool) -> SVD:
        """Return the decompositions of matrices without rows, or without columns."""
        if full:
            u, vh = steps.eye(stack, stack.m), steps.eye(stack, stack.n)
        else:
            u = steps.output((*stack.lead, stack.m, 0), stack.dtype)
            vh = steps.output((*stack.lead, 0, stack.n), stack.dtype)
        return SVD(u, steps.output((*stack.lead, 0), real_of(stack.dtype)), vh)

    def _values(
        self, steps: LinalgSteps, stack: SolverStack, algorithm: str | None = None
    ) -> GpuRef:
        sizes = max(stack.m, stack.n), min(stack.m, stack.n)
        name = _algorithm_of(stack, algorithm, None)
        given = stack.ref.mT if stack.m > stack.n else stack.ref
        polar = scaled(steps, given) if name == "gesvdp" and given.size else None
        matrices = steps.fresh(given) if polar is None else polar.matrices
        s = steps.output((*stack.lead, sizes[1]), real_of(stack.dtype))
        buffers: tuple[GpuRef, ...] = matrices, s
        vectors = name == "gesvdj" and stack.batch > 1 and sizes[0] <= BATCHED[name]
        if vectors:  # which the call for all of them writes in any case
            buffers += tuple(steps.output((*stack.lead, n, n), stack.dtype) for n in sizes)
        options = (int(vectors), 0)
        info = self._solved(steps, name, stack, sizes, buffers, options, polar)
        return steps.result_of(info, s if polar is None else polar.values(s))

    # --- eigenvalues ------------------------------------------------------------------------

    @op_family
    def eigh(
        self,
        _name: str,
        a: Operand,
        b: Operand | None = None,
        *,
        lower: bool = True,
        type: Literal[1, 2, 3] = 1,  # noqa: A002 - SciPy's name
        subset_by_index: tuple[int, int] | None = None,
        algorithm: EighAlgorithm | None = None,
    ) -> Request[Eigen]:
        """Eigenvalues and eigenvectors of Hermitian matrices.

        As ``numpy.linalg.eigh``, and with ``b`` as ``scipy.linalg.eigh``. Vendor functions:
        ``cusolverDnXsyevd`` (divide and conquer), ``cusolverDn<t>syevj`` and ``syevjBatched``
        (Jacobi's method), ``cusolverDnXsyevdx`` (some of them), ``cusolverDn<t>sygvd``.

        Args:
            a: shape (..., n, n), of which one triangle is read.
            b: positive definite, of the same shape: solve ``a @ v = w * b @ v``.
            lower: whether that is the lower one.
            type: the problem to solve with ``b``: 1 as above, 2 ``a @ b @ v = w * v``, or 3 ``b @ a
                @ v = w * v``.
            subset_by_index: the first and the last wanted eigenvalue, counted from 0; not with
                ``b``.
            algorithm: the method. By default "evj" for stacks of matrices up to 32 by 32, "evx"
                for a subset, else "evd"; not with ``b``.

        Returns:
            ``(eigenvalues, eigenvectors)``, ascending. NaN for matrices that did not converge.
        """
        vectors, subset = _name == "eigh", subset_by_index

        def build(steps: LinalgSteps) -> Any:
            made = self._eigh(steps, a, b, lower, type, subset, algorithm, vectors=vectors)
            return Eigen(*made) if vectors else made[0]

        return self._calls(_name, build)

    eigvalsh: Final = eigh.like(
        """Eigenvalues of Hermitian matrices, ascending; as ``numpy.linalg.eigvalsh``.

        Vendor functions, arguments and errors: those of ``eigh``.
        """,
        returns=GpuRef,
    )

    def _eigh(
        self,
        steps: LinalgSteps,
        a: Operand,
        b: Operand | None,
        lower: bool,
        kind: int,
        subset: tuple[int, int] | None,
        algorithm: str | None,
        *,
        vectors: bool,
    ) -> tuple[GpuRef, ...]:
        """The solver sees the transposes, which are conjugates: so are the vectors."""
        given = self._operand(a, "a")
        other: Operand | None = None
        if b is not None:
            given, other = steps.joint(given, self._operand(b, "b"))
        stack = steps.stack(given, square=True)
        n = stack.n
        options: tuple[int, ...] = (int(vectors), int(not lower))
        matrices = steps.fresh(stack.ref)
        buffers = [matrices]
        w = steps.output((*stack.lead, n), real_of(stack.dtype))
        name, sizes, kept = _eigh_algorithm(stack, algorithm, subset)
        if other is not None:
            if algorithm is not None or subset is not None or kind not in (1, 2, 3):
                raise ValueError("algorithm and subset must be None with b; type must be 1, 2 or 3")
            if other.shape != stack.ref.shape:
                raise ValueError(f"b must have shape {stack.ref.shape}, not {other.shape}")
            name, sizes, kept, options = "sygvd", (n,), slice(None), (kind, *options)
            buffers.append(steps.fresh(steps.ref(other, "b")))
        buffers.append(w)
        info = steps.solve(name, stack, sizes, tuple(buffers), *options, failure=_NO_EIGENVALUES)
        count = len(range(n)[kept]) if subset is not None else n
        values = steps.result_of(info, w[..., :count])
        if not vectors:
            return (values,)
        columns: Operand = matrices.mT[..., :count]
        if stack.dtype.kind == "c":
            columns = columns.conj()
        return values, steps.result_of(info, columns)

    @op
    def eig(self, a: Operand) -> Request[Eigen]:
        """Eigenvalues and right eigenvectors of any square matrices; as ``numpy.linalg.eig``.

        Vendor function: ``cusolverDnXgeev``, which releases before CUDA 12.8 do not have.

        Returns:
            ``(eigenvalues, eigenvectors)``, always complex: whether all are real only the device
            knows. NaN where it did not converge.

        Raises:
            Unsupported: the vendor's library has no such function.
        """
        return self._calls("eig", lambda steps: Eigen(*self._eig(steps, a, vectors=True)))

    @op
    def eigvals(self, a: Operand) -> Request[GpuRef]:
        """Eigenvalues of any square matrices, complex; as ``numpy.linalg.eigvals``.

        Vendor function, arguments and errors: those of ``eig``.
        """
        return self._calls("eigvals", lambda steps: self._eig(steps, a, vectors=False)[0])

    def _eig(self, steps: LinalgSteps, a: Operand, *, vectors: bool) -> tuple[GpuRef, ...]:
        stack = steps.stack(self._operand(a, "a"), square=True)
        dtype = COMPLEX_OF.get(stack.dtype.name, stack.dtype)
        ref = steps.cast(stack.ref, dtype)
        stack = stack._replace(ref=ref)
        matrices, n = steps.fresh(ref.mT), stack.n
        buffers = [matrices, steps.output((*stack.lead, n), dtype)]
        buffers += [steps.output((*stack.lead, n, n), dtype)] if vectors else []
        info = steps.solve(
            "geev", stack, (n,), tuple(buffers), int(vectors), failure=_NO_EIGENVALUES
        )
        values = steps.result_of(info, buffers[1])
        return (values, steps.result_of(info, buffers[2].mT)) if vectors else (values,)

    # --- what is made of them ---------------------------------------------------------------

    @op
    def pinv(
        self,
        a: Operand,
        rcond: float | None = None,
        hermitian: bool = False,
        *,
        rtol: float | None = None,
    ) -> Request[GpuRef]:
        """Pseudo-inverses; as ``numpy.linalg.pinv``, by ``svd``, or by ``eigh``.

        Args:
            a: shape (..., m, n).
            rcond: one number: singular values up to that, times the largest one, count as zero;
                by default ``max(m, n)`` times the dtype's eps, and half of that eps if it is
                negative.
            hermitian: the matrices are.
            rtol: as ``rcond``.

        Returns:
            Shape (..., n, m).
        """
        if rcond is not None and rtol is not None:
            raise ValueError("rcond must be None where rtol is given; use only one of them")
        least = rcond if rtol is None else rtol

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(a, "a"), square=hermitian)
            if hermitian:
                s, v = self._eigh(steps, stack.ref, None, True, 1, None, None, vectors=True)
                left, right = v, steps.evaluate(steps.adjoint(v))
            else:
                made = self._svd(steps, stack, full=False)
                left, s, right = made
            scaled = _inverted(s, rcond_of(stack, least))
            u = steps.evaluate(_rows(scaled, stack) * _conjugate(left.mT))
            return steps.matmul(right, u, trans_a=2)

        return self._calls("pinv", build, ARRAY)

    @op
    def lstsq(
        self,
        a: Operand,
        b: Operand,
        rcond: float | None = None,
        *,
        refine: Refine | None = None,
    ) -> Request[LstSq]:
        """The x that minimizes the norm of ``b - a @ x``; as ``numpy.linalg.lstsq``, of stacks too.

        By ``svd``; with ``refine`` by ``cusolverDn<t1><t2>gels``, for matrices of full rank with
        m >= n. That finds out neither rank nor singular values, which are n and NaN then.

        Args:
            a: shape (..., m, n).
            b: shape (m,), or (..., m, nrhs), with a's leading dimensions.
            rcond: as of ``pinv``.
            refine: as of ``solve``.

        Returns:
            ``x``, ``residuals``, ``rank``, ``s``. Residuals are of shape (..., nrhs), (...,) for
            one vector, whatever the rank turns out to be, which only the device knows; zeros
            where m <= n.

        Raises:
            ValueError: shapes that do not fit; ``refine`` with m < n.
        """

        def build(steps: LinalgSteps) -> LstSq:
            matrices, right = steps.joint(self._operand(a, "a"), self._operand(b, "b"))
            stack = steps.stack(matrices)
            given = steps.ref(right, "b")
            vector = len(given.shape) == 1
            sides = given[:, None] if vector else given
            if sides.shape[:-1] != (*stack.lead, stack.m):
                raise np.linalg.LinAlgError(
                    f"Incompatible dimensions: a has shape {stack.ref.shape}, b has {given.shape}"
                )
            if refine is None:
                x, rank, s = self._least_squares(steps, stack, sides, rcond)
            else:
                x, rank, s = self._refined_squares(steps, stack, sides, refine)
            product = steps.matmul(stack.ref, x)
            far = abs(sides - product) ** 2
            residuals = steps.evaluate(far.sum(-2) if stack.m > stack.n else far.sum(-2) * 0)
            if vector:
                return LstSq(x.reshape(x.shape[:-1]), residuals.reshape(stack.lead), rank, s)
            return LstSq(x, residuals, rank, s)

        return self._calls("lstsq", build, ARRAY)

    def _least_squares(
        self, steps: LinalgSteps, stack: SolverStack, sides: GpuRef, rcond: float | None
    ) -> tuple[GpuRef, GpuRef, GpuRef]:
        u, s, vh = self._svd(steps, stack, full=False)
        small = rcond_of(stack, rcond)
        projected = steps.matmul(u, sides, trans_a=2)
        scaled = steps.evaluate(_rows(_inverted(s, small), stack) * projected)
        return steps.matmul(vh, scaled, trans_a=2), self._rank(steps, s, s, small), s

    def _refined_squares(
        self, steps: LinalgSteps, stack: SolverStack, sides: GpuRef, refine: str
    ) -> tuple[GpuRef, GpuRef, GpuRef]:
        m, n = stack.m, stack.n
        if m < n:
            raise ValueError(f"refine takes matrices with m >= n, not shape {stack.ref.shape}")
        precision = precision_of(refine, stack)
        nrhs = sides.shape[-1]
        x = steps.output((*stack.lead, nrhs, n), stack.dtype)
        buffers = (steps.fresh(stack.ref.mT), steps.fresh(sides.mT), x)
        info = steps.solve(
            *("irs_gels", stack, (m, n, nrhs), buffers, precision),
            failure="Matrix is not of full rank",
        )
        nothing = constant(np.nan, real_of(stack.dtype))
        rank = steps.evaluate(cast(where(info == 0, n, 0), INT64))
        unknown = steps.evaluate(nothing).broadcast_to((*stack.lead, n))
        return steps.result_of(info, x.mT), rank, steps.fresh(unknown)

    @op
    def matrix_rank(
        self,
        A: Operand,  # noqa: N803 - NumPy's name
        tol: float | None = None,
        hermitian: bool = False,
        *,
        rtol: float | None = None,
    ) -> Request[GpuRef]:
        """Count the singular values that are not zero; as ``numpy.linalg.matrix_rank``.

        Args:
            A: shape (..., m, n). A vector has rank 1, or 0 if all elements are zero.
            tol: one number: singular values up to it count as zero; by default the largest one
                times ``max(m, n)`` times the dtype's eps.
            hermitian: the matrices are Hermitian, so ``eigvalsh`` replaces ``svdvals``.
            rtol: the same as a part of the largest one.

        Returns:
            Shape (...), int64.
        """
        if tol is not None and rtol is not None:
            raise ValueError("tol must be None where rtol is given; use only one of them")
        small = None if tol is None else threshold(tol, "tol")

        given = self._operand(A, "A")

        def build(steps: LinalgSteps) -> GpuRef:
            if len(given.shape) < 2:
                nonzero: Any = cast(given, DTYPES["bool"])
                return steps.evaluate(cast(nonzero.any(), INT64))
            stack = steps.stack(given, square=hermitian)
            if hermitian:
                s: Operand = abs(self._eigh(steps, A, None, True, 1, None, None, vectors=False)[0])
            else:
                s = self._values(steps, stack)
            if small is not None:
                return steps.evaluate(cast(s > small, INT64).sum(-1))
            return self._rank(steps, s, s, rcond_of(stack, rtol))

        return self._calls("matrix_rank", build, LANE if len(given.shape) > 1 else ARRAY)

    @staticmethod
    def _rank(steps: LinalgSteps, s: Operand, of: Operand, small: float) -> GpuRef:
        if not s.shape[-1]:
            return steps.evaluate(cast(s, INT64).sum(-1))
        far = s > of.max(-1, keepdims=True) * small
        return steps.evaluate(cast(far, INT64).sum(-1))

    @op
    def polar(self, a: Operand, side: Literal["right", "left"] = "right") -> Request[Polar]:
        """Polar decompositions, ``a = u @ p``, or ``p @ u``; as ``scipy.linalg.polar``, by ``svd``.

        Args:
            a: shape (..., m, n).
            side: where ``p`` is.

        Returns:
            ``u`` of a's shape, and ``p`` of shape (..., n, n), or (..., m, m).
        """
        if side not in ("right", "left"):
            raise ValueError(f"side must be 'right' or 'left', not {side!r}")

        def build(steps: LinalgSteps) -> Polar:
            stack = steps.stack(self._operand(a, "a"))
            u, s, vh = self._svd(steps, stack, full=False)
            if side == "right":
                scaled = steps.evaluate(_rows(s, stack) * vh)
                p = steps.matmul(vh, scaled, trans_a=2)
            else:
                scaled = steps.evaluate(u * cast(_seen(s, -2), stack.dtype))
                p = steps.matmul(scaled, u, trans_b=2)
            return Polar(steps.matmul(u, vh), p)

        return self._calls("polar", build, ARRAY)


def _algorithm_of(
    stack: SolverStack, algorithm: str | None, k: int | None, *, full: bool = False
) -> str:
    """Return the algorithm that computes singular values."""
    largest, least = max(stack.m, stack.n), min(stack.m, stack.n)
    small = stack.batch > 1 and largest <= BATCHED["gesvdj"]
    polar = least >= _LEAST_POLAR and (largest == least or not full)
    name = algorithm or ("gesvdj" if small else "gesvdp" if polar else "gesvd")
    if name not in (*_EXACT, *_RANKED):
        raise ValueError(
            f"algorithm must be one of {', '.join(_EXACT + _RANKED)}, not {algorithm!r}"
        )
    if (k is not None) != (name in _RANKED):
        raise ValueError("k is for the algorithms gesvdr and gesvda, which need it")
    if k is not None and not 1 <= k <= min(stack.m, stack.n):
        raise ValueError(f"k must be from 1 to {min(stack.m, stack.n)}, not {k}")
    return name


def _eigh_algorithm(
    stack: SolverStack, algorithm: str | None, subset: tuple[int, int] | None
) -> tuple[str, tuple[int, ...], slice]:
    """The routine, its sizes, and which eigenvalues come of it."""
    n = stack.n
    small = stack.batch > 1 and n <= BATCHED["syevj"]
    name = algorithm or ("evx" if subset else "evj" if small else "evd")
    if name not in _EIGH:
        raise ValueError(f"algorithm must be one of {', '.join(_EIGH)}, not {algorithm!r}")
    if subset is None:
        return (
            (_EIGH[name], (n,), slice(None)) if name != "evx" else ("syevdx", (n, 1, n), slice(n))
        )
    first, last = subset
    if name != "evx":
        raise ValueError("a subset is for the algorithm evx")
    if not 0 <= first <= last < n:
        raise ValueError(f"subset_by_index must be within 0 and {n - 1}, not {subset}")
    return "syevdx", (n, first + 1, last + 1), slice(first, last + 1)


def rcond_of(stack: SolverStack, rcond: float | None) -> float:
    """Return the ratio to the largest singular value up to which others count as zero."""
    given = None if rcond is None else threshold(rcond, "rcond")
    if given is not None and given >= 0:
        return given
    eps = float(np.finfo(real_of(stack.dtype)).eps)
    return eps / 2 if given is not None else max(stack.m, stack.n) * eps


def threshold(value: float, name: str) -> float:
    """Return a number up to which others count as zero; NaN is a ``ValueError``."""
    number = real(value, name, finite=False)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number to compare with, not NaN")
    return number


def _inverted(s: GpuRef, small: float) -> Operand:
    """The inverses of singular values or eigenvalues, and zeros for those that count as zero."""
    if not s.size:
        return s
    return inverted_above(s, abs(s).max(-1, keepdims=True) * small)


def inverted_above(s: GpuRef, small: Operand) -> Operand:
    """The inverses of values that are larger than some, and zeros for others."""
    used = (abs(s) > small) | ufunc("isnan", s)  # those of a matrix that failed stay what they are
    return where(used, 1 / where(used, s, constant(1, s.dtype)), constant(0, s.dtype))


def _rows(s: Operand, stack: SolverStack) -> Operand:
    """A factor for each row."""
    return cast(_seen(s, -1), stack.dtype)


def _seen(s: Operand, axis: int) -> Operand:
    made: Any = np.expand_dims(s, axis)
    return made  # type: ignore[no-any-return]


def _adjoint(x: Operand) -> Operand:
    return x.swapaxes(-1, -2)  # type: ignore[attr-defined, no-any-return]


def _conjugate(x: Operand) -> Operand:
    return x.conj() if x.dtype.kind == "c" else x
