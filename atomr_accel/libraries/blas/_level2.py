"""Level 2: a matrix and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...ops import D, op, op_family
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...arrays import GpuRef
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
        """
        return self._routine("gemv", locals())

    @op_family
    def symv(
        self,
        _name: str,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Symmetric matrix times vector: ``alpha * a @ x + beta * out``.

        Vendor function: ``cublas<t>symv_64``.

        Args:
            a: shape (n, n), of which one triangle is read.
            x: n elements, same dtype.
            out: as in ``gemv``.
            alpha: as in ``gemv``.
            beta: as in ``gemv``.
            lower: the lower triangle holds the data, not the upper one.
        """
        return self._routine(_name, locals())

    hemv: Final = symv.like(
        """Hermitian matrix times vector; as ``symv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function: ``cublas<t>hemm_64`` with
        one column, because row-major order needs the conjugate matrix, and ``hemv`` has no option
        for it.
        """
    )

    @op_family
    def ger(
        self,
        _name: str,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
    ) -> Request[GpuRef]:
        """Add an outer product to a matrix, in place: ``a += alpha * outer(x, y)``.

        Vendor function: ``cublas<t>ger_64``, ``cublas<t>geru_64`` for complex types.

        Args:
            x: m elements.
            y: n elements, same dtype.
            a: shape (m, n), same dtype, not sealed, no memory in common with the inputs.
                Zeros if absent.
            alpha: the factor.

        Returns:
            ``a``.
        """
        return self._routine(_name, locals())

    gerc: Final = ger.like(
        """Add an outer product with a conjugate, in place: ``a += alpha * outer(x, conj(y))``.

        Vendor function: ``cublasGemmStridedBatchedEx_64`` with an inner dimension of 1, because in
        row-major order ``gerc`` would conjugate the other vector. Arguments and errors are those of
        ``ger``.
        """
    )

    @op
    def syr(
        self,
        x: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add a vector's outer product with itself, in place: ``a += alpha * outer(x, x)``.

        Vendor function: ``cublas<t>syr_64``.

        Args:
            x: n elements.
            a: shape (n, n), same dtype, not sealed, no memory in common with the inputs. One
                triangle is read and written; the other does not change. Zeros if absent.
            alpha: the factor.
            lower: use the lower triangle, not the upper one.

        Returns:
            ``a``.
        """
        return self._routine("syr", locals())

    @op_family
    def syr2(
        self,
        _name: str,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add two outer products: ``a += alpha * (outer(x, y) + outer(y, x))``, in place.

        As ``syr`` with a second vector ``y`` of n elements. Vendor function:
        ``cublas<t>syr2_64``.
        """
        return self._routine(_name, locals())

    @op
    def her(
        self,
        x: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: float | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add a vector's Hermitian square, in place: ``a += alpha * outer(x, conj(x))``.

        As ``syr``, for complex64 and complex128, with a real ``alpha``; the imaginary part of the
        diagonal becomes 0. Vendor function: ``cublas<t>herk_64`` with one row, because in row-major
        order it is the other vector that ``her`` would conjugate.
        """
        return self._routine("her", locals())

    her2: Final = syr2.like(
        """Add ``alpha * outer(x, conj(y))`` and its conjugate transpose to a matrix, in place.

        As ``her`` with a second vector ``y`` of n elements and any ``alpha``. Vendor function:
        ``cublas<t>her2k_64`` with one row.
        """
    )

    @op_family
    def trmv(
        self,
        _name: str,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        lower: bool = False,
        trans: Trans = 0,
        unit_diagonal: bool = False,
    ) -> Request[GpuRef]:
        """Triangular matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>trmv_64``; ``cublas<t>trmm_64`` for conjugates.

        Args:
            a: shape (n, n), of which one triangle is read.
            x: n elements, same dtype.
            out: where to put the result: n elements, or ``x`` itself. Made if absent.
            lower: the lower triangle holds the data, not the upper one.
            trans: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.
            unit_diagonal: take the diagonal as ones, and do not read it.
        """
        return self._routine(_name, locals())

    trsv: Final = trmv.like(
        """Solve a triangular system ``op(a) @ out = x``.

        Vendor function: ``cublas<t>trsv_64``; ``cublas<t>trsm_64`` for conjugates. A
        singular matrix is not looked for: a zero on the diagonal gives infinities and
        NaNs. Arguments, result and errors are those of ``trmv``.
        """
    )

    # --- bands and packed triangles, which hold less than a matrix, as SciPy and LAPACK store them

    @op
    def gbmv(
        self,
        m: int,
        n: int,
        kl: int,
        ku: int,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans: Trans = 0,
    ) -> Request[GpuRef]:
        """Band matrix times vector: ``alpha * op(a) @ x + beta * out``.

        Vendor function: ``cublas<t>gbmv_64``, after ``cublas<t>geam_64``, which brings the
        band into the vendor's order.

        Args:
            m: rows of the matrix.
            n: columns of the matrix.
            kl: how many diagonals there are below the main one.
            ku: how many there are above it.
            a: the band as SciPy stores it (``scipy.linalg.solve_banded``): shape
                (kl + ku + 1, n), with element (i, j) at ``a[ku + i - j, j]``.
            x: n elements, or m with ``trans``; same dtype.
            out: as in ``gemv``.
            alpha: as in ``gemv``.
            beta: as in ``gemv``.
            trans: as in ``gemv``.
        """
        return self._routine("gbmv", locals())

    sbmv: Final = symv.like(
        """Symmetric band matrix times vector: ``alpha * a @ x + beta * out``.

        For float32 and float64. Vendor function: ``cublas<t>sbmv_64``, after ``cublas<t>geam_64``,
        as for ``gbmv``. Other arguments are those of ``gemv``.

        Args:
            a: the band, as SciPy stores it (``scipy.linalg.solveh_banded``): shape (k + 1, n).
                Element (i, j) of the upper triangle is at ``a[k + i - j, j]``, of the lower
                triangle at ``a[i - j, j]``. The unused corners are not read.
            x: n elements, same dtype.
            lower: the band holds the lower triangle, not the upper one.
        """
    )

    hbmv: Final = symv.like(
        """Hermitian band matrix times vector; as ``sbmv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hbmv_64``, after ``cublas<t>geam_64``.
        """
    )

    @op_family
    def spmv(
        self,
        _name: str,
        ap: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Packed symmetric matrix times vector: ``alpha * a @ x + beta * out``.

        For float32 and float64. Vendor function: ``cublas<t>spmv_64``.

        Args:
            ap: the triangle, as SciPy stores it (``scipy.linalg.blas``): n * (n + 1) / 2 elements,
                one column after the other. Element (i, j) is at ``ap[i + j * (j + 1) // 2]`` in the
                upper triangle. In the lower triangle it is at ``ap[i + j * (2 * n - j - 1) // 2]``.
            x: n elements, same dtype.
            out: as in ``gemv``.
            alpha: as in ``gemv``.
            beta: as in ``gemv``.
            lower: ``ap`` holds the lower triangle, not the upper one.
        """
        return self._routine(_name, locals())

    hpmv: Final = spmv.like(
        """Packed Hermitian matrix times vector; as ``spmv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hpmv_64``.
        """
    )

    @op
    def spr(
        self,
        x: GpuRef,
        *,
        ap: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add a vector's outer product with itself to a packed matrix, in place.

        ``a += alpha * outer(x, x)``, for float32 and float64. Vendor function:
        ``cublas<t>spr_64``.

        Args:
            x: n elements.
            ap: the triangle, as in ``spmv``: n * (n + 1) / 2 elements, same dtype, not sealed,
                no memory in common with the inputs. Zeros if absent.
            alpha: the factor.
            lower: ``ap`` holds the lower triangle, not the upper one.

        Returns:
            ``ap``.
        """
        return self._routine("spr", locals())

    @op
    def hpr(
        self,
        x: GpuRef,
        *,
        ap: GpuRef | None = None,
        alpha: float | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add ``alpha * outer(x, conj(x))`` to a packed Hermitian matrix, in place.

        As ``spr``, for complex64 and complex128, with a real ``alpha``; the imaginary part of
        the diagonal becomes 0. Vendor function: ``cublas<t>hpr_64``.
        """
        return self._routine("hpr", locals())

    @op_family
    def spr2(
        self,
        _name: str,
        x: GpuRef,
        y: GpuRef,
        *,
        ap: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        lower: bool = False,
    ) -> Request[GpuRef]:
        """Add ``alpha * (outer(x, y) + outer(y, x))`` to a packed symmetric matrix, in place.

        As ``spr`` with a second vector ``y`` of n elements. Vendor function:
        ``cublas<t>spr2_64``.
        """
        return self._routine(_name, locals())

    hpr2: Final = spr2.like(
        """Add ``alpha * outer(x, conj(y))`` and its conjugate transpose to a packed matrix.

        In place, as ``hpr`` with a second vector ``y`` of n elements and any ``alpha``. Vendor
        function: ``cublas<t>hpr2_64``.
        """
    )

    tbmv: Final = trmv.like(
        """Triangular band matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>tbmv_64``, after ``cublas<t>geam_64``, as for ``gbmv``. ``a`` is
        a band as in ``sbmv``. Other arguments are those of ``trmv``.
        """
    )

    tbsv: Final = trmv.like(
        """Solve a triangular system of a band: ``op(a) @ out = x``.

        Vendor function: ``cublas<t>tbsv_64``, after ``cublas<t>geam_64``. A singular matrix is
        not looked for: a zero on the diagonal gives infinities and NaNs. Arguments, result and
        errors are those of ``tbmv``.
        """
    )

    @op_family
    def tpmv(
        self,
        _name: str,
        ap: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        lower: bool = False,
        trans: Trans = 0,
        unit_diagonal: bool = False,
    ) -> Request[GpuRef]:
        """Packed triangular matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>tpmv_64``. ``ap`` is a triangle as in ``spmv``. Other arguments
        are those of ``trmv``.
        """
        return self._routine(_name, locals())

    tpsv: Final = tpmv.like(
        """Solve a packed triangular system: ``op(a) @ out = x``.

        Vendor function: ``cublas<t>tpsv_64``. A singular matrix is not looked for: a zero on
        the diagonal gives infinities and NaNs. Arguments, result and errors are those of
        ``tpmv``.
        """
    )
