"""Level 1: vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...ops import D, op, op_family
from ._routines import RowRoutines

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request
    from .checks import Number


class Level1(RowRoutines[D]):
    """The part of ``Blas`` for vectors."""

    @op
    def axpy(self, x: GpuRef, y: GpuRef, *, a: Number | GpuRef = 1.0) -> Request[GpuRef]:
        """Add a multiple of a vector to another, in place: ``y += a * x``.

        Vendor function: ``cublas<t>axpy_64``, ``cublasAxpyEx_64`` for 16-bit types.

        Args:
            x: shape (n,).
            y: shape (n,), same dtype, not sealed; may be ``x`` itself.
            a: the factor.

        Returns:
            ``y``.
        """
        return self._routine("axpy", locals())

    @op
    def copy(self, x: GpuRef, y: GpuRef | None = None) -> Request[GpuRef]:
        """Copy a vector: ``y[:] = x``.

        Vendor function: ``cublas<t>copy_64``, ``cublasCopyEx_64`` for 16-bit types.

        Args:
            x: shape (n,).
            y: where to: shape (n,), same dtype, not sealed. Made if absent.

        Returns:
            ``y``.
        """
        return self._routine("copy", locals())

    @op
    def swap(self, x: GpuRef, y: GpuRef) -> Request[tuple[GpuRef, GpuRef]]:
        """Exchange the elements of two vectors, in place.

        Vendor function: ``cublas<t>swap_64``, ``cublasSwapEx_64`` for 16-bit types.

        Args:
            x: shape (n,), not sealed; shares no elements with ``y``.
            y: the same, of the same dtype.

        Returns:
            ``(x, y)``.
        """
        return self._routine("swap", locals())

    @op
    def rot(
        self, x: GpuRef, y: GpuRef, c: Number | GpuRef, s: Number | GpuRef
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Rotate the points (x, y), in place: ``x, y = c*x + s*y, c*y - conj(s)*x``.

        Vendor function: ``cublas<t>rot_64``, ``cublasRotEx_64`` for 16-bit types.

        Args:
            x: shape (n,), not sealed; shares no elements with ``y``.
            y: the same, of the same dtype.
            c: the cosine; real.
            s: the sine; complex where the dtype is.

        Returns:
            ``(x, y)``.
        """
        return self._routine("rot", locals())

    @op
    def rotg(
        self, a: GpuRef, b: GpuRef, *, c: GpuRef | None = None, s: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef, GpuRef]]:
        """Compute the rotation that turns the point ``(a, b)`` into ``(r, 0)``.

        Vendor function: ``cublas<t>rotg_v2``. Pass ``c`` and ``s`` to ``rot`` to rotate vectors
        without a transfer.

        Args:
            a: shape (), not sealed; becomes r.
            b: shape (), the dtype of ``a``, not sealed. If real, it becomes z, from which both
                ``c`` and ``s`` can be computed: s if that is smaller than c, 1 if c is 0, and 1 / c
                otherwise. If complex, it is undefined afterwards.
            c: where to put the cosine: shape (), the real dtype. Made if absent.
            s: where to put the sine: shape (), the dtype of ``a``. Made if absent.

        Returns:
            ``(a, b, c, s)``. With the old values of ``a`` and ``b``, ``c * a + s * b`` is r and ``c
            * b - conj(s) * a`` is 0.
        """
        return self._routine("rotg", locals())

    @op
    def rotm(self, x: GpuRef, y: GpuRef, param: GpuRef) -> Request[tuple[GpuRef, GpuRef]]:
        """Apply a modified rotation to the points (x, y), in place.

        Vendor function: ``cublas<t>rotm_64``.

        Args:
            x: shape (n,), not sealed, float32 or float64; shares no elements with ``y``.
            y: the same, of the same dtype.
            param: the result of ``rotmg``: shape (5,), same dtype. The rotation is ``x, y = h11*x +
                h12*y, h21*x + h22*y``. If ``param[0]`` is -1, ``param[1:]`` is ``[h11, h21, h12,
                h22]``. If it is 0, h11 and h22 are 1. If it is 1, h12 is 1 and h21 is -1. If it is
                -2, the points do not change.

        Returns:
            ``(x, y)``.
        """
        return self._routine("rotm", locals())

    @op
    def rotmg(
        self, d1: GpuRef, d2: GpuRef, x1: GpuRef, y1: GpuRef, *, param: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef, GpuRef]]:
        """The modified rotation that makes the second part of a point 0.

        The point is ``(sqrt(d1) * x1, sqrt(d2) * y1)``. Vendor function:
        ``cublas<t>rotmg_v2``.

        Args:
            d1: shape (), not sealed, float32 or float64; becomes that of the rotated point.
            d2: the same, of the same dtype.
            x1: the same, of the same dtype.
            y1: shape (), same dtype.
            param: where to put the rotation, as ``rotm`` takes it: shape (5,). Made if absent.
                What ``param[0]`` leaves open in it is undefined.

        Returns:
            ``(d1, d2, x1, param)``.
        """
        return self._routine("rotmg", locals())

    @op
    def scal(self, a: Number | GpuRef, x: GpuRef) -> Request[GpuRef]:
        """Multiply a vector by a number, in place: ``x *= a``.

        Vendor function: ``cublas<t>scal_64``, ``cublasScalEx_64`` for 16-bit types. NaN
        times 0 is NaN, as in NumPy.

        Args:
            a: the factor.
            x: shape (n,), not sealed.

        Returns:
            ``x``.
        """
        return self._routine("scal", locals())

    @op_family
    def dot(
        self, _name: str, x: GpuRef, y: GpuRef, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Scalar product ``sum(x * y)``, without conjugation.

        Vendor function: ``cublas<t>dot_64``, ``cublas<t>dotu_64``, ``cublasDotEx_64``.

        Args:
            x: shape (n,).
            y: the same, of the same dtype.
            out: where to put the result: shape (), same dtype. Made if absent.

        Returns:
            A buffer of shape (); 0 for empty vectors. It stays on the device: as input to
            the next op it costs no transfer, and ``device.get`` fetches it.
        """
        return self._routine(_name, locals())

    dotc: Final = dot.like(
        """Scalar product ``sum(conj(x) * y)``; as ``numpy.vdot``.

        Vendor function: ``cublas<t>dotc_64``, ``cublasDotcEx_64``; for real types ``dot``.
        Arguments, result and errors are those of ``dot``.
        """
    )

    @op_family
    def nrm2(self, _name: str, x: GpuRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """Euclidean norm, without overflow on the way.

        Vendor function: ``cublas<t>nrm2_64``, ``cublasNrm2Ex_64`` for 16-bit types.

        Args:
            x: shape (n,).
            out: where to put the result: shape (), the real dtype. Made if absent.

        Returns:
            A buffer of shape () and the real dtype of ``x``; 0 for an empty vector.

        Raises:
            ValueError: ``x`` is not a vector.
        """
        return self._routine(_name, locals())

    asum: Final = nrm2.like(
        """Sum of magnitudes; a complex number counts as ``|real| + |imag|``.

        Vendor function: ``cublas<t>asum_64``, ``cublasAsumEx_64`` for 16-bit types.
        Arguments, result and errors are those of ``nrm2``.
        """
    )

    amax: Final = nrm2.like(
        """Index of the first element of the largest magnitude.

        Vendor function: ``cublasI<t>amax_64``, ``cublasIamaxEx_64`` for 16-bit types. As
        in CuPy the index stays on the device; as in NumPy and SciPy it starts at 0. A
        complex number counts as ``|real| + |imag|``. With NaNs the index is one of the
        vector's, but which is undefined.

        Args:
            x: shape (n,), not empty.
            out: where to put the index: shape (), int64. Made if absent.

        Returns:
            A buffer of shape () and dtype int64.

        Raises:
            ValueError: an empty vector.
        """
    )

    amin: Final = nrm2.like(
        """Index of the first element of the smallest magnitude.

        Vendor function: ``cublasI<t>amin_64``, ``cublasIaminEx_64`` for 16-bit types.
        Arguments, result and errors are those of ``amax``.
        """
    )
