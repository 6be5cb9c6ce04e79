"""Level 2: a matrix and vectors. Bands and packed triangles are in ``_banded``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ops import D, like, op
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request
    from .checks import Number, Trans


def half_times_vector(
    self: RowRoutines[D],
    name: str,
    a: GpuRef,
    x: GpuRef,
    *,
    out: GpuRef | None = None,
    alpha: Number | GpuRef = 1.0,
    beta: Number | GpuRef = 0.0,
    lower: bool = False,
) -> Request[GpuRef]:
    """Return the product of a matrix of which one triangle is stored, and a vector."""
    return self._routine(name, locals())


def triangle_and_vector(
    self: RowRoutines[D],
    name: str,
    a: GpuRef,
    x: GpuRef,
    *,
    out: GpuRef | None = None,
    lower: bool = False,
    trans: Trans = 0,
    unit_diagonal: bool = False,
) -> Request[GpuRef]:
    """Return the product of a triangular matrix and a vector, or the solution of a system."""
    return self._routine(name, locals())


def _outer(
    self: RowRoutines[D],
    name: str,
    x: GpuRef,
    y: GpuRef,
    *,
    a: GpuRef | None = None,
    alpha: Number | GpuRef = 1.0,
) -> Request[GpuRef]:
    return self._routine(name, locals())


def _half_outer(
    self: RowRoutines[D],
    name: str,
    x: GpuRef,
    y: GpuRef,
    *,
    a: GpuRef | None = None,
    alpha: Number | GpuRef = 1.0,
    lower: bool = False,
) -> Request[GpuRef]:
    return self._routine(name, locals())


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

    @like(half_times_vector)
    def symv(self) -> None:
        """Symmetric matrix times vector: ``alpha * a @ x + beta * out``.

        Vendor function: ``cublas<t>symv_64``. Other arguments are those of ``gemv``.

        Args:
            a: shape (n, n), of which one triangle is read.
            x: n elements, same dtype.
            lower: the lower triangle holds the data, not the upper one.
        """

    @like(half_times_vector)
    def hemv(self) -> None:
        """Hermitian matrix times vector; as ``symv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function: ``cublas<t>hemm_64`` with
        one column, because row-major order needs the conjugate matrix, and ``hemv`` has no option
        for it.
        """

    @like(_outer)
    def ger(self) -> None:
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

    @like(_outer)
    def gerc(self) -> None:
        """Add an outer product with a conjugate, in place: ``a += alpha * outer(x, conj(y))``.

        Vendor function: ``cublasGemmStridedBatchedEx_64`` with an inner dimension of 1, because in
        row-major order ``gerc`` would conjugate the other vector. Arguments and errors are those of
        ``ger``.
        """

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

    @like(_half_outer)
    def syr2(self) -> None:
        """Add two outer products: ``a += alpha * (outer(x, y) + outer(y, x))``, in place.

        As ``syr`` with a second vector ``y`` of n elements. Vendor function:
        ``cublas<t>syr2_64``.
        """

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

    @like(_half_outer)
    def her2(self) -> None:
        """Add ``alpha * outer(x, conj(y))`` and its conjugate transpose to a matrix, in place.

        As ``her`` with a second vector ``y`` of n elements and any ``alpha``. Vendor function:
        ``cublas<t>her2k_64`` with one row.
        """

    @like(triangle_and_vector)
    def trmv(self) -> None:
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

    @like(triangle_and_vector)
    def trsv(self) -> None:
        """Solve a triangular system ``op(a) @ out = x``.

        Vendor function: ``cublas<t>trsv_64``; ``cublas<t>trsm_64`` for conjugates. A
        singular matrix is not looked for: a zero on the diagonal gives infinities and
        NaNs. Arguments, result and errors are those of ``trmv``.
        """
