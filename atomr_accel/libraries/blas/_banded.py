"""Level 2: bands and packed triangles, which hold less than a whole matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ops import D, like, op
from ._level2 import half_times_vector, triangle_and_vector
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request
    from .checks import Number, Trans


def _packed_times_vector(
    self: RowRoutines[D],
    name: str,
    ap: GpuRef,
    x: GpuRef,
    *,
    out: GpuRef | None = None,
    alpha: Number | GpuRef = 1.0,
    beta: Number | GpuRef = 0.0,
    lower: bool = False,
) -> Request[GpuRef]:
    return self._routine(name, locals())


def _packed_and_vector(
    self: RowRoutines[D],
    name: str,
    ap: GpuRef,
    x: GpuRef,
    *,
    out: GpuRef | None = None,
    lower: bool = False,
    trans: Trans = 0,
    unit_diagonal: bool = False,
) -> Request[GpuRef]:
    return self._routine(name, locals())


def _packed_outer(
    self: RowRoutines[D],
    name: str,
    x: GpuRef,
    y: GpuRef,
    *,
    ap: GpuRef | None = None,
    alpha: Number | GpuRef = 1.0,
    lower: bool = False,
) -> Request[GpuRef]:
    return self._routine(name, locals())


class Banded(RowRoutines[D]):
    """The part of ``Blas`` for bands and packed triangles, as SciPy and LAPACK store them."""

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

    @like(half_times_vector)
    def sbmv(self) -> None:
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

    @like(half_times_vector)
    def hbmv(self) -> None:
        """Hermitian band matrix times vector; as ``sbmv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hbmv_64``, after ``cublas<t>geam_64``.
        """

    @like(_packed_times_vector)
    def spmv(self) -> None:
        """Packed symmetric matrix times vector: ``alpha * a @ x + beta * out``.

        For float32 and float64. Vendor function: ``cublas<t>spmv_64``. Other arguments are those of
        ``gemv``.

        Args:
            ap: the triangle, as SciPy stores it (``scipy.linalg.blas``): n * (n + 1) / 2 elements,
                one column after the other. Element (i, j) is at ``ap[i + j * (j + 1) // 2]`` in the
                upper triangle. In the lower triangle it is at ``ap[i + j * (2 * n - j - 1) // 2]``.
            x: n elements, same dtype.
            lower: ``ap`` holds the lower triangle, not the upper one.
        """

    @like(_packed_times_vector)
    def hpmv(self) -> None:
        """Packed Hermitian matrix times vector; as ``spmv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hpmv_64``.
        """

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

    @like(_packed_outer)
    def spr2(self) -> None:
        """Add ``alpha * (outer(x, y) + outer(y, x))`` to a packed symmetric matrix, in place.

        As ``spr`` with a second vector ``y`` of n elements. Vendor function:
        ``cublas<t>spr2_64``.
        """

    @like(_packed_outer)
    def hpr2(self) -> None:
        """Add ``alpha * outer(x, conj(y))`` and its conjugate transpose to a packed matrix.

        In place, as ``hpr`` with a second vector ``y`` of n elements and any ``alpha``. Vendor
        function: ``cublas<t>hpr2_64``.
        """

    @like(triangle_and_vector)
    def tbmv(self) -> None:
        """Triangular band matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>tbmv_64``, after ``cublas<t>geam_64``, as for ``gbmv``. ``a`` is
        a band as in ``sbmv``. Other arguments are those of ``trmv``.
        """

    @like(triangle_and_vector)
    def tbsv(self) -> None:
        """Solve a triangular system of a band: ``op(a) @ out = x``.

        Vendor function: ``cublas<t>tbsv_64``, after ``cublas<t>geam_64``. A singular matrix is
        not looked for: a zero on the diagonal gives infinities and NaNs. Arguments, result and
        errors are those of ``tbmv``.
        """

    @like(_packed_and_vector)
    def tpmv(self) -> None:
        """Packed triangular matrix times vector: ``op(a) @ x``.

        Vendor function: ``cublas<t>tpmv_64``. ``ap`` is a triangle as in ``spmv``. Other arguments
        are those of ``trmv``.
        """

    @like(_packed_and_vector)
    def tpsv(self) -> None:
        """Solve a packed triangular system: ``op(a) @ out = x``.

        Vendor function: ``cublas<t>tpsv_64``. A singular matrix is not looked for: a zero on
        the diagonal gives infinities and NaNs. Arguments, result and errors are those of
        ``tpmv``.
        """
