"""Level 2: a matrix and vectors. Bands and packed triangles are in ``_banded``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ops import D, op
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...memory import GpuRef
    from ...ops import Request
    from .checks import Number, Trans


class Level2(RowRoutines[D]):
    """The part of ``Blas`` for a matrix and vectors."""

    @op
    def gemv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans: Trans = 0,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Matrix times vector: ``alpha * op(a) @ x + beta * out``.

        Vendor function: ``cublas<t>gemv_64``; for 16-bit types
        ``cublasHSHgemvStridedBatched_64`` and its like, accumulating in float32.

        Args:
            a: shape (m, n).
            x: n elements, or m with ``trans``; same dtype.
            out: m elements, or n with ``trans``; same dtype, not sealed, no memory in
                common with the inputs. Made if absent.
            alpha: scales the product.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``out`` begins.
            incy: steps in ``out``.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing.
            TypeError: unequal or unsupported dtypes.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: a sealed ref to be written.
        """
        return self._routine("gemv", locals())

    @op
    def symv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Symmetric matrix times vector: ``alpha * a @ x + beta * out``.

        Vendor function: ``cublas<t>symv_64``.

        Args:
            a: shape (n, n), of which one triangle is read.
            x: n elements, same dtype.
            lower: the lower triangle holds the data, not the upper one.
            out: as in ``gemv``.
            alpha: as in ``gemv``.
            beta: as in ``gemv``.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``out`` begins.
            incy: steps in ``out``.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing.
            TypeError: unequal or unsupported dtypes.
        """
        return self._routine("symv", locals())

    @op
    def hemv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Hermitian matrix times vector; as ``symv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function: ``cublas<t>hemm_64`` with
        one column, because row-major order needs the conjugate matrix, and ``hemv`` has no option
        for it.
        """
        return self._routine("hemv", locals())

    @op
    def ger(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Add an outer product to a matrix, in place: ``a += alpha * outer(x, y)``.

        Vendor function: ``cublas<t>ger_64``, ``cublas<t>geru_64`` for complex types.

        Args:
            x: m elements.
            y: n elements, same dtype.
            a: shape (m, n), same dtype, not sealed, no memory in common with the inputs.
                Zeros if absent.
            alpha: the factor.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            ``a``.

        Raises:
            ValueError: shapes that do not fit, aliasing.
            TypeError: unequal or unsupported dtypes.
        """
        return self._routine("ger", locals())

    @op
    def gerc(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Add an outer product with a conjugate, in place: ``a += alpha * outer(x, conj(y))``.

        Vendor function: ``cublasGemmStridedBatchedEx_64`` with an inner dimension of 1, because in
        row-major order ``gerc`` would conjugate the other vector. Steps must be positive. Arguments
        and errors are those of ``ger``.
        """
        return self._routine("gerc", locals())

    @op
    def syr(
        self,
        x: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Add a vector's outer product with itself, in place: ``a += alpha * outer(x, x)``.

        Vendor function: ``cublas<t>syr_64``.

        Args:
            x: n elements.
            a: shape (n, n), same dtype, not sealed, no memory in common with the inputs. One
                triangle is read and written; the other does not change. Zeros if absent.
            alpha: the factor.
            lower: use the lower triangle, not the upper one.
            offx: where ``x`` begins.
            incx: steps in ``x``.

        Returns:
            ``a``.

        Raises:
            ValueError: shapes that do not fit, aliasing.
            TypeError: unequal or unsupported dtypes.
        """
        return self._routine("syr", locals())

    @op
    def syr2(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Add two outer products: ``a += alpha * (outer(x, y) + outer(y, x))``, in place.

        As ``syr`` with a second vector ``y`` of n elements. Vendor function:
        ``cublas<t>syr2_64``.
        """
        return self._routine("syr2", locals())

    @op
    def her(
        self,
        x: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: float | GpuRef = 1.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Add a vector's Hermitian square, in place: ``a += alpha * outer(x, conj(x))``.

        As ``syr``, for complex64 and complex128, with a real ``alpha`` and positive steps; the
        imaginary part of the diagonal becomes 0. Vendor function: ``cublas<t>herk_64`` with one
        row, because in row-major order it is the other vector that ``her`` would conjugate.
        """
        return self._routine("her", locals())

    @op
    def her2(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Add ``alpha * outer(x, conj(y))`` and its conjugate transpose to a matrix, in place.

        As ``her`` with a second vector ``y`` of n elements and any ``alpha``. Vendor function:
        ``cublas<t>her2k_64`` with one row.
        """
        return self._routine("her2", locals())

    @op
    def trmv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        lower: bool = False,
        trans: Trans = 0,
        diag: int = 0,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Triangular matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>trmv_64``; ``cublas<t>trmm_64`` for conjugates.

        Args:
            a: shape (n, n), of which one triangle is read.
            x: n elements, same dtype.
            out: where to put the result: a buffer laid out as ``x``, or ``x`` itself.
                Made if absent, with shape (n,) and no gaps.
            lower: the lower triangle holds the data, not the upper one.
            trans: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            diag: 1 takes the diagonal as ones and does not read it.
            offx: where ``x`` begins.
            incx: steps in ``x``.

        Returns:
            ``out``.

        Raises:
            ValueError: shapes that do not fit, aliasing with ``a``.
            TypeError: unequal or unsupported dtypes.
        """
        return self._routine("trmv", locals())

    @op
    def trsv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        lower: bool = False,
        trans: Trans = 0,
        diag: int = 0,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Solve a triangular system ``op(a) @ out = x``.

        Vendor function: ``cublas<t>trsv_64``; ``cublas<t>trsm_64`` for conjugates. A
        singular matrix is not looked for: a zero on the diagonal gives infinities and
        NaNs. Arguments, result and errors are those of ``trmv``.
        """
        return self._routine("trsv", locals())
