"""Level 3: matrices with structure. Plain products are in ``_gemm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._arguments import require_apart, require_dtype, require_rank, usable
from .._op import D, op
from .._request import Submission
from ..wire._options import flag
from ._checks import (
    REAL_OF,
    SINGLE_OR_DOUBLE,
    Number,
    Routines,
    Side,
    Trans,
    matrix_output,
    on_the_right,
    operation,
    require_kind,
    scalar,
    scales_nothing,
    square,
    vector,
)
from .wire._messages import MatrixMatrix

if TYPE_CHECKING:
    from ...memory import GpuRef
    from .._request import Driver, Request

_COMPLEX = SINGLE_OR_DOUBLE[2:]


class Level3(Routines[D]):
    """The part of ``Blas`` for matrices with structure."""

    @op
    def symm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        side: Side = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product with a symmetric matrix: ``alpha * a @ b + beta * out``.

        Vendor function: ``cublas<t>symm_64``.

        Args:
            a: the symmetric matrix: shape (m, m), or (n, n) on the right.
            b: shape (m, n), same dtype.
            out: shape (m, n), same dtype, not sealed, no memory in common with the
                inputs. Made if absent.
            alpha: scales the product.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            side: 0 (``"L"``) for ``a @ b``, 1 (``"R"``) for ``b @ a``.
            lower: the lower triangle holds the data, not the upper one.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing.
            TypeError: unequal or unsupported dtypes.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: a sealed ref to be written.
        """
        return self._one_sided("symm", a, b, out, alpha, beta, side, lower)

    @op
    def hemm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        side: Side = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product with a Hermitian matrix; as ``symm``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hemm_64``.
        """
        return self._one_sided("hemm", a, b, out, alpha, beta, side, lower)

    @op
    def syrk(
        self,
        a: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product with its own transpose: ``alpha * a @ a.T + beta * out``.

        Vendor function: ``cublas<t>syrk_64``.

        Args:
            a: shape (n, k), or (k, n) with ``trans``.
            out: shape (n, n), same dtype, not sealed, no memory in common with ``a``. One
                triangle is written; the other keeps what it holds, which is zeros where
                ``out`` is made.
            alpha: scales the product.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans: 1 (``"T"``) for ``a.T @ a``.
            lower: write the lower triangle, not the upper one.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing;
                ``trans="C"`` for complex types, for which there is ``herk``.
            TypeError: unequal or unsupported dtypes.
        """
        return self._rank_k("syrk", a, None, out, alpha, beta, trans, lower)

    @op
    def herk(
        self,
        a: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product with its own conjugate transpose: ``alpha * a @ a.conj().T + beta * out``.

        As ``syrk``, for complex64 and complex128, with real ``alpha`` and ``beta``;
        ``trans=2`` (``"C"``) for ``a.conj().T @ a``. The imaginary part of the diagonal
        becomes 0. Vendor function: ``cublas<t>herk_64``.
        """
        return self._rank_k("herk", a, None, out, alpha, beta, trans, lower)

    @op
    def syr2k(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Symmetric product of two matrices: ``alpha * (a @ b.T + b @ a.T) + beta * out``.

        As ``syrk`` with a second matrix ``b`` of the shape of ``a``. Vendor function:
        ``cublas<t>syr2k_64``.
        """
        return self._rank_k("syr2k", a, b, out, alpha, beta, trans, lower)

    @op
    def her2k(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: float = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Hermitian product of two matrices.

        ``alpha * a @ b.conj().T + conj(alpha) * b @ a.conj().T + beta * out``; with
        ``trans=2`` (``"C"``) ``alpha * a.conj().T @ b + conj(alpha) * b.conj().T @ a``.
        As ``herk`` with a second matrix ``b`` of the shape of ``a``, and complex
        ``alpha``. Vendor function: ``cublas<t>her2k_64``.
        """
        return self._rank_k("her2k", a, b, out, alpha, beta, trans, lower)

    @op
    def trmm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        side: Side = 0,
        lower: bool = False,
        trans_a: Trans = 0,
        diag: int = 0,
    ) -> Request[GpuRef]:
        """Product with a triangular matrix: ``alpha * op(a) @ b``.

        Vendor function: ``cublas<t>trmm_64``.

        Args:
            a: the triangular matrix: shape (m, m), or (n, n) on the right.
            b: shape (m, n), same dtype.
            out: where to put the result: shape (m, n), or ``b`` itself. Made if absent.
            alpha: scales the product.
            side: 0 (``"L"``) for ``op(a) @ b``, 1 (``"R"``) for ``b @ op(a)``.
            lower: the lower triangle holds the data, not the upper one.
            trans_a: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            diag: 1 takes the diagonal as ones and does not read it.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, aliasing with ``a``.
            TypeError: unequal or unsupported dtypes.
        """
        return self._triangle("trmm", a, b, out, alpha, side, lower, trans_a, diag)

    @op
    def trsm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        side: Side = 0,
        lower: bool = False,
        trans_a: Trans = 0,
        diag: int = 0,
    ) -> Request[GpuRef]:
        """Solve triangular systems ``op(a) @ out = alpha * b``, or ``out @ op(a) = alpha * b``.

        Vendor function: ``cublas<t>trsm_64``. A singular matrix is not looked for: a zero
        on the diagonal gives infinities and NaNs. Arguments, result and errors are those
        of ``trmm``.
        """
        return self._triangle("trsm", a, b, out, alpha, side, lower, trans_a, diag)

    @op
    def geam(
        self,
        a: GpuRef,
        b: GpuRef | None = None,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 1.0,
        trans_a: Trans = 0,
        trans_b: Trans = 0,
    ) -> Request[GpuRef]:
        """Sum of matrices: ``alpha * op(a) + beta * op(b)``; also transposes.

        Vendor function: ``cublas<t>geam_64``.

        Args:
            a: shape (m, n), or (n, m) with ``trans_a``.
            b: shape (m, n), or (n, m) with ``trans_b``; same dtype. Absent, it counts as
                zeros: ``geam(a, trans_a=1)`` transposes.
            out: shape (m, n), same dtype, not sealed. It may be ``a`` or ``b`` where that
                is taken as it is. Made if absent.
            alpha: scales ``a``; 0 ignores it, NaNs included.
            beta: scales ``b``; 0 ignores it, NaNs included.
            trans_a: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            trans_b: the same for ``b``.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, aliasing with a transposed input.
            TypeError: unequal or unsupported dtypes.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block_a = usable(a, memory, "a")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "geam")
            require_rank(a, 2, "a")
            op_a, op_b = operation(trans_a, "trans_a"), operation(trans_b, "trans_b")
            m, n = a.shape[::-1] if op_a else a.shape
            block_b = block_a
            if b is not None:
                block_b = usable(b, memory, "b")
                require_rank(b, 2, "b")
                require_dtype(b, a.dtype, "b", "a")
                if (b.shape[::-1] if op_b else b.shape) != (m, n):
                    raise ValueError(
                        f"op(a) is {(m, n)} (a has shape {a.shape}, trans_a={trans_a!r}), but "
                        f"b has shape {b.shape}, trans_b={trans_b!r}"
                    )
            result, block = matrix_output(out, a, (m, n), driver, memory)
            inputs = [
                (f"{name} (transposed)" if op else name, ref)
                for name, ref, op in (("a", a, op_a), ("b", b, op_b))
                if ref is not None
            ]
            as_they_are = (("out", "a"), ("out", "b"))
            require_apart("geam", [("out", result)], inputs, in_place=as_they_are)
            message = MatrixMatrix(
                "geam",
                dtype,
                m,
                n,
                0,
                block_a.address,
                block_b.address if b is not None else 0,
                block.address,
                scalar(alpha, a.dtype, "alpha"),
                scalar(beta if b is not None else 0.0, a.dtype, "beta"),
                trans_a=op_a,
                trans_b=op_b,
            )
            return Submission(message, (block_a, block_b), (block,), result)

        return self._request("geam", prepare)

    @op
    def dgmm(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        side: Side = 0,
        out: GpuRef | None = None,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Product with a diagonal matrix: ``diag(x) @ a``, or ``a @ diag(x)``.

        Vendor function: ``cublas<t>dgmm_64``.

        Args:
            a: shape (m, n).
            x: the diagonal: m elements, or n on the right; same dtype.
            side: 0 (``"L"``) for ``diag(x) @ a``, 1 (``"R"``) for ``a @ diag(x)``.
            out: shape (m, n), same dtype, not sealed; may be ``a`` itself. Made if absent.
            offx: where ``x`` begins.
            incx: steps in ``x``.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, aliasing with ``x``.
            TypeError: unequal or unsupported dtypes.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block_a = usable(a, memory, "a")
            usable(x, memory, "x")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "dgmm")
            require_rank(a, 2, "a")
            require_dtype(x, a.dtype, "x", "a")
            m, n = a.shape
            right = on_the_right(side)
            why = f"the number of {'columns' if right else 'rows'} of a (shape {a.shape})"
            diagonal = vector(x, "x", memory, n=n if right else m, off=offx, inc=incx, why=why)
            result, block = matrix_output(out, a, (m, n), driver, memory)
            require_apart("dgmm", [("out", result)], [("x", x), ("a", a)], in_place=[("out", "a")])
            message = MatrixMatrix(
                "dgmm",
                dtype,
                m,
                n,
                0,
                block_a.address,
                diagonal.address,
                block.address,
                scalar(1.0, a.dtype, "alpha"),
                scalar(0.0, a.dtype, "beta"),
                right=right,
                incx=diagonal.inc,
            )
            return Submission(message, (block_a, diagonal.block), (block,), result)

        return self._request("dgmm", prepare)

    # --- in common ------------------------------------------------------------------------

    def _one_sided(
        self,
        routine: str,
        a: GpuRef,
        b: GpuRef,
        out: GpuRef | None,
        alpha: Number,
        beta: Number,
        side: Side,
        lower: bool,
    ) -> Request[GpuRef]:
        dtypes = SINGLE_OR_DOUBLE if routine == "symm" else _COMPLEX
        below = flag(lower, "lower")

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block_a, block_b = usable(a, memory, "a"), usable(b, memory, "b")
            dtype = require_kind(a, dtypes, routine)
            require_dtype(b, a.dtype, "b", "a")
            right = on_the_right(side)
            m, n = _beside(a, b, right)
            scale = scalar(beta, a.dtype, "beta")
            fresh = scales_nothing(scale, out)
            result, block = matrix_output(out, a, (m, n), driver, memory)
            require_apart(routine, [("out", result)], [("a", a), ("b", b)])
            message = MatrixMatrix(
                routine,
                dtype,
                m,
                n,
                0,
                block_a.address,
                block_b.address,
                block.address,
                scalar(alpha, a.dtype, "alpha"),
                scale,
                right,
                below,
            )
            reads = (block_a, block_b) if fresh else (block_a, block_b, block)
            return Submission(message, reads, (block,), result)

        return self._request(routine, prepare)

    def _rank_k(
        self,
        routine: str,
        a: GpuRef,
        b: GpuRef | None,
        out: GpuRef | None,
        alpha: Number,
        beta: Number,
        trans: Trans,
        lower: bool,
    ) -> Request[GpuRef]:
        hermitian = routine.startswith("her")
        dtypes = _COMPLEX if hermitian else SINGLE_OR_DOUBLE
        below = flag(lower, "lower")

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block_a = usable(a, memory, "a")
            dtype = require_kind(a, dtypes, routine)
            require_rank(a, 2, "a")
            op = operation(trans, "trans")
            if a.dtype.kind == "c" and op == (1 if hermitian else 2):
                wanted = "2 ('C')" if hermitian else "1 ('T')"
                raise ValueError(f"{routine} of a complex type takes trans 0 or {wanted}, not {op}")
            n, k = a.shape[::-1] if op else a.shape
            inputs = [("a", a)]
            if b is not None:
                usable(b, memory, "b")
                inputs.append(("b", b))
                require_dtype(b, a.dtype, "b", "a")
                if b.shape != a.shape:
                    raise ValueError(f"a has shape {a.shape}, but b has shape {b.shape}")
            real = REAL_OF.get(dtype, a.dtype)
            scale = scalar(beta, real if hermitian else a.dtype, "beta")
            fresh = scales_nothing(scale, out)
            result, block = matrix_output(out, a, (n, n), driver, memory)
            require_apart(routine, [("out", result)], inputs)
            message = MatrixMatrix(
                routine,
                dtype,
                n,
                n,
                k,
                block_a.address,
                inputs[-1][1]._block.address,
                block.address,
                scalar(alpha, real if routine == "herk" else a.dtype, "alpha"),
                scale,
                lower=below,
                trans_a=op,
                clear=out is None,
            )
            reads = tuple(each._block for _, each in inputs)
            return Submission(message, reads if fresh else (*reads, block), (block,), result)

        return self._request(routine, prepare)

    def _triangle(
        self,
        routine: str,
        a: GpuRef,
        b: GpuRef,
        out: GpuRef | None,
        alpha: Number,
        side: Side,
        lower: bool,
        trans_a: Trans,
        diag: int,
    ) -> Request[GpuRef]:
        below = flag(lower, "lower")

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block_a, block_b = usable(a, memory, "a"), usable(b, memory, "b")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, routine)
            require_dtype(b, a.dtype, "b", "a")
            right = on_the_right(side)
            m, n = _beside(a, b, right)
            if diag not in (0, 1):
                raise ValueError(f"diag must be 0 (as it is) or 1 (ones), not {diag!r}")
            result, block = matrix_output(out, a, (m, n), driver, memory)
            require_apart(routine, [("out", result)], [("a", a), ("b", b)], in_place=[("out", "b")])
            message = MatrixMatrix(
                routine,
                dtype,
                m,
                n,
                0,
                block_a.address,
                block_b.address,
                block.address,
                scalar(alpha, a.dtype, "alpha"),
                scalar(0.0, a.dtype, "beta"),
                right,
                below,
                bool(diag),
                operation(trans_a, "trans_a"),
            )
            return Submission(message, (block_a, block_b), (block,), result)

        return self._request(routine, prepare)


def _beside(a: GpuRef, b: GpuRef, right: bool) -> tuple[int, int]:
    """The shape of b, where the square a stands beside it."""
    size = square(a, "a")
    require_rank(b, 2, "b")
    m, n = b.shape
    if size != (n if right else m):
        raise ValueError(
            f"a has shape {a.shape} and b has shape {b.shape}: on the "
            f"{'right' if right else 'left'} side a must be {(n, n) if right else (m, m)}"
        )
    return m, n
