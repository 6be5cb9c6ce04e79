"""Level 3: matrices with structure. Plain products are in ``_gemm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...ops import D, op, op_family
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request
    from .checks import Number, Side, Trans


class Level3(RowRoutines[D]):
    """The part of ``Blas`` for matrices with structure."""

    @op_family
    def symm(
        self,
        _name: str,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
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
        """
        return self._routine(_name, locals())

    hemm: Final = symm.like(
        """Product with a Hermitian matrix; as ``symm``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hemm_64``.
        """
    )

    @op
    def syrk(
        self,
        a: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product of a matrix with its own transpose: ``alpha * a @ a.T + beta * out``.

        Vendor function: ``cublas<t>syrk_64``.

        Args:
            a: shape (n, k), or (k, n) with ``trans``.
            out: shape (n, n), same dtype, not sealed, no memory in common with ``a``. One triangle
                is written; the other does not change, and is zeros if ``out`` is made.
            alpha: scales the product.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans: 1 (``"T"``) for ``a.T @ a``.
            lower: write the lower triangle, not the upper one.

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing; ``trans="C"``
                for complex types, for which there is ``herk``.
        """
        return self._routine("syrk", locals())

    @op
    def herk(
        self,
        a: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: float | GpuRef = 1.0,
        beta: float | GpuRef = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Product with its own conjugate transpose: ``alpha * a @ a.conj().T + beta * out``.

        As ``syrk``, for complex64 and complex128, with real ``alpha`` and ``beta``;
        ``trans=2`` (``"C"``) for ``a.conj().T @ a``. The imaginary part of the diagonal
        becomes 0. Vendor function: ``cublas<t>herk_64``.
        """
        return self._routine("herk", locals())

    @op_family
    def syr2k(
        self,
        _name: str,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Symmetric product of two matrices: ``alpha * (a @ b.T + b @ a.T) + beta * out``.

        As ``syrk`` with a second matrix ``b`` of the shape of ``a``. Vendor function:
        ``cublas<t>syr2k_64``.
        """
        return self._routine(_name, locals())

    @op_family
    def her2k(
        self,
        _name: str,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: float | GpuRef = 0.0,
        trans: Trans = 0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Hermitian product of two matrices.

        ``alpha * a @ b.conj().T + conj(alpha) * b @ a.conj().T + beta * out``; with
        ``trans=2`` (``"C"``) ``alpha * a.conj().T @ b + conj(alpha) * b.conj().T @ a``.
        As ``herk`` with a second matrix ``b`` of the shape of ``a``, and complex
        ``alpha``. Vendor function: ``cublas<t>her2k_64``.
        """
        return self._routine(_name, locals())

    syrkx: Final = syr2k.like(
        """A product that is known to be symmetric: ``alpha * a @ b.T + beta * out``.

        As ``syrk`` with a second matrix ``b`` of the shape of ``a``, such as ``a`` times a
        symmetric matrix. Only one triangle is computed. Vendor function: ``cublas<t>syrkx_64``.
        """
    )

    herkx: Final = her2k.like(
        """A product that is known to be Hermitian: ``alpha * a @ b.conj().T + beta * out``.

        As ``herk`` with a second matrix ``b`` of the shape of ``a`` and any ``alpha``. Only one
        triangle is computed. Vendor function: ``cublas<t>herkx_64``.
        """
    )

    @op
    def gemm3m(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans_a: Trans = 0,
        trans_b: Trans = 0,
    ) -> Request[GpuRef]:
        """Complex product by three real ones, not four: ``alpha * op(a) @ op(b) + beta * out``.

        Up to a quarter less arithmetic than ``gemm``, and somewhat less precise: an error in
        one of the parts of a number is relative to the larger part. For complex64 and
        complex128. Vendor function: ``cublas<t>gemm3m_64``. Arguments are those of ``gemm``, of two
        dimensions.
        """
        return self._routine("gemm3m", locals())

    @op_family
    def trmm(
        self,
        _name: str,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        side: Side = 0,
        lower: bool = False,
        trans_a: Trans = 0,
        unit_diagonal: bool = False,
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
            unit_diagonal: take the diagonal as ones, and do not read it.
        """
        return self._routine(_name, locals())

    trsm: Final = trmm.like(
        """Solve triangular systems ``op(a) @ out = alpha * b``, or ``out @ op(a) = alpha * b``.

        Vendor function: ``cublas<t>trsm_64``. A singular matrix is not looked for: a zero
        on the diagonal gives infinities and NaNs. Arguments, result and errors are those
        of ``trmm``.
        """
    )

    @op
    def geam(
        self,
        a: GpuRef,
        b: GpuRef | None = None,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 1.0,
        trans_a: Trans = 0,
        trans_b: Trans = 0,
    ) -> Request[GpuRef]:
        """Sum of matrices: ``alpha * op(a) + beta * op(b)``; also transposes.

        Vendor function: ``cublas<t>geam_64``.

        Args:
            a: shape (m, n), or (n, m) with ``trans_a``.
            b: shape (m, n), or (n, m) with ``trans_b``; same dtype. Absent, it counts as zeros:
                ``geam(a, trans_a=1)`` transposes.
            out: shape (m, n), same dtype, not sealed. It may be ``a`` or ``b`` if that is not
                transposed. Made if absent.
            alpha: scales ``a``; 0 ignores it, NaNs included.
            beta: scales ``b``; 0 ignores it, NaNs included.
            trans_a: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            trans_b: the same for ``b``.
        """
        if b is None:  # 0 times a again is as good as zeros
            b, beta, trans_b = a, 0.0, trans_a
        return self._routine("geam", locals())

    @op
    def dgmm(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        side: Side = 0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Product with a diagonal matrix: ``diag(x) @ a``, or ``a @ diag(x)``.

        Vendor function: ``cublas<t>dgmm_64``.

        Args:
            a: shape (m, n).
            x: the diagonal: m elements, or n on the right; same dtype.
            side: 0 (``"L"``) for ``diag(x) @ a``, 1 (``"R"``) for ``a @ diag(x)``.
            out: shape (m, n), same dtype, not sealed; may be ``a`` itself. Made if absent.
        """
        return self._routine("dgmm", locals())
