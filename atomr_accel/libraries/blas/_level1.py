"""Level 1: vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._arguments import require_apart, require_dtype, usable, writable
from .._op import D, op
from .._request import Submission
from ._checks import (
    FLOATS,
    INT64,
    REAL_OF,
    Number,
    Routines,
    count_elements,
    given_count,
    require_kind,
    scalar,
    vector,
    vector_output,
)
from .wire._messages import Scalar, Vectors

if TYPE_CHECKING:
    import numpy as np

    from ...memory import GpuRef
    from .._request import Driver, Request


class Level1(Routines[D]):
    """The part of ``Blas`` for vectors."""

    @op
    def axpy(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: Number = 1.0,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Add a multiple of a vector to another, in place: ``y += a * x``.

        Vendor function: ``cublas<t>axpy_64``, ``cublasAxpyEx_64`` for 16-bit types.

        Args:
            x: shape (>= n,).
            y: shape (>= n,), same dtype, not sealed; may be ``x`` itself.
            a: the factor.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            ``y``.

        Raises:
            ValueError: shapes, offsets or increments that do not fit.
            TypeError: unequal or unsupported dtypes.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: a sealed ref to be written.
        """
        return self._two("axpy", x, y, n, offx, incx, offy, incy, scalars={"a": a})

    @op
    def copy(
        self,
        x: GpuRef,
        y: GpuRef | None = None,
        *,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Copy a vector: ``y[:] = x``.

        Vendor function: ``cublas<t>copy_64``, ``cublasCopyEx_64`` for 16-bit types.

        Args:
            x: shape (>= n,).
            y: where to: shape (>= n,), same dtype, not sealed. Made if absent.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            ``y``.

        Raises:
            ValueError: shapes that do not fit, or ``y`` is ``x``.
            TypeError: unequal or unsupported dtypes.
        """
        return self._two("copy", x, y, n, offx, incx, offy, incy, apart=True)

    @op
    def swap(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Exchange the elements of two vectors, in place.

        Vendor function: ``cublas<t>swap_64``, ``cublasSwapEx_64`` for 16-bit types.

        Args:
            x: shape (>= n,), not sealed, two different buffers.
            y: the same, of the same dtype.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            ``(x, y)``.

        Raises:
            ValueError: shapes that do not fit, or ``y`` is ``x``.
            TypeError: unequal or unsupported dtypes.
        """
        return self._two("swap", x, y, n, offx, incx, offy, incy, apart=True, writes_x=True)

    @op
    def rot(
        self,
        x: GpuRef,
        y: GpuRef,
        c: Number,
        s: Number,
        *,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Rotate the points (x, y), in place: ``x, y = c*x + s*y, c*y - conj(s)*x``.

        Vendor function: ``cublas<t>rot_64``, ``cublasRotEx_64`` for 16-bit types.

        Args:
            x: shape (>= n,), not sealed, two different buffers.
            y: the same, of the same dtype.
            c: the cosine; real.
            s: the sine; complex where the dtype is.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            ``(x, y)``.

        Raises:
            ValueError: shapes that do not fit, or ``y`` is ``x``.
            TypeError: unequal or unsupported dtypes, a complex ``c``.
        """
        numbers = {"c": c, "s": s}
        return self._two(
            *("rot", x, y, n, offx, incx, offy, incy), apart=True, writes_x=True, scalars=numbers
        )

    @op
    def scal(
        self, a: Number, x: GpuRef, *, n: int | None = None, offx: int = 0, incx: int = 1
    ) -> Request[GpuRef]:
        """Multiply a vector by a number, in place: ``x *= a``.

        Vendor function: ``cublas<t>scal_64``, ``cublasScalEx_64`` for 16-bit types. NaN
        times 0 is NaN, as in NumPy.

        Args:
            a: the factor.
            x: shape (>= n,), not sealed.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``; positive.

        Returns:
            ``x``.

        Raises:
            ValueError: offsets or increments that do not fit.
            TypeError: an unsupported dtype.
        """

        def prepare(_driver: Driver) -> Submission[Any]:
            memory = self._device.memory
            block = writable(x, memory, "x")
            dtype = require_kind(x, FLOATS, "scal")
            count, address, step = _forward(x, n, offx, incx, block.address)
            scalars = (scalar(a, x.dtype, "a"),)
            message = Vectors("scal", dtype, count, address, step, scalars=scalars)
            return Submission(message, (block,), (block,), x)

        return self._request("scal", prepare)

    @op
    def dot(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Scalar product ``sum(x * y)``, without conjugation.

        Vendor function: ``cublas<t>dot_64``, ``cublas<t>dotu_64``, ``cublasDotEx_64``.

        Args:
            x: shape (>= n,).
            y: the same, of the same dtype.
            out: where to put the result: shape (), same dtype. Made if absent.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``y`` begins.
            incy: steps in ``y``.

        Returns:
            A buffer of shape (); 0 for empty vectors. It stays on the device: as input to
            the next op it costs no transfer, and ``device.get`` fetches it.

        Raises:
            ValueError: shapes that do not fit.
            TypeError: unequal or unsupported dtypes.
        """
        return self._product("dot", x, y, out, n, offx, incx, offy, incy)

    @op
    def dotc(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Scalar product ``sum(conj(x) * y)``; as ``numpy.vdot``.

        Vendor function: ``cublas<t>dotc_64``, ``cublasDotcEx_64``; for real types ``dot``.
        Arguments, result and errors are those of ``dot``.
        """
        return self._product("dotc", x, y, out, n, offx, incx, offy, incy)

    @op
    def nrm2(
        self,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Euclidean norm, without overflow on the way.

        Vendor function: ``cublas<t>nrm2_64``, ``cublasNrm2Ex_64`` for 16-bit types.

        Args:
            x: shape (>= n,).
            out: where to put the result: shape (), the real dtype. Made if absent.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``; positive.

        Returns:
            A buffer of shape () and the real dtype of ``x``; 0 for an empty vector.

        Raises:
            ValueError: offsets or increments that do not fit.
            TypeError: an unsupported dtype.
        """
        return self._reduce("nrm2", x, out, n, offx, incx)

    @op
    def asum(
        self,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Sum of magnitudes; a complex number counts as ``|real| + |imag|``.

        Vendor function: ``cublas<t>asum_64``, ``cublasAsumEx_64`` for 16-bit types.
        Arguments, result and errors are those of ``nrm2``.
        """
        return self._reduce("asum", x, out, n, offx, incx)

    @op
    def amax(
        self,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Index of the first element of the largest magnitude.

        Vendor function: ``cublasI<t>amax_64``, ``cublasIamaxEx_64`` for 16-bit types. As
        in CuPy the index stays on the device; as in NumPy and SciPy it starts at 0. A
        complex number counts as ``|real| + |imag|``. With NaNs the index is one of the
        vector's, but which is undefined.

        Args:
            x: shape (>= n,), not empty.
            out: where to put the index: shape (), int64. Made if absent.
            n: how many elements; by default all.
            offx: where ``x`` begins.
            incx: steps in ``x``; positive.

        Returns:
            A buffer of shape () and dtype int64, counted in steps of ``incx``.

        Raises:
            ValueError: an empty vector, offsets or increments that do not fit.
            TypeError: an unsupported dtype.
        """
        return self._reduce("amax", x, out, n, offx, incx, INT64)

    @op
    def amin(
        self,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        n: int | None = None,
        offx: int = 0,
        incx: int = 1,
    ) -> Request[GpuRef]:
        """Index of the first element of the smallest magnitude.

        Vendor function: ``cublasI<t>amin_64``, ``cublasIaminEx_64`` for 16-bit types.
        Arguments, result and errors are those of ``amax``.
        """
        return self._reduce("amin", x, out, n, offx, incx, INT64)

    # --- in common ------------------------------------------------------------------------

    def _two(
        self,
        routine: str,
        x: GpuRef,
        y: GpuRef | None,
        n: int | None,
        offx: int,
        incx: int,
        offy: int,
        incy: int,
        *,
        apart: bool = False,
        writes_x: bool = False,
        scalars: dict[str, Number] | None = None,
    ) -> Request[Any]:
        """Routines that write y, or both; what they write is what they give."""

        def prepare(driver: Driver) -> Submission[Any]:
            memory = self._device.memory
            (writable if writes_x else usable)(x, memory, "x")
            dtype = require_kind(x, FLOATS, routine)
            count = _shared_count(x, y, n, offx, incx, offy, incy)
            first = vector(x, "x", memory, n=count, off=offx, inc=incx, write=writes_x)
            out, second = vector_output(y, x, count, driver, memory, off=offy, inc=incy, name="y")
            if apart or (first.address, incx) != (second.address, incy):
                written = [("y", out), ("x", x)] if writes_x else [("y", out)]
                require_apart(routine, written, [] if writes_x else [("x", x)])
            numbers: list[Scalar] = []
            for name, value in (scalars or {}).items():
                kind = REAL_OF.get(dtype, x.dtype) if name == "c" else x.dtype
                numbers.append(scalar(value, kind, name))
            message = Vectors(
                routine,
                dtype,
                count,
                first.address,
                first.inc,
                second.address,
                second.inc,
                scalars=tuple(numbers),
            )
            writes = (first.block, second.block) if writes_x else (second.block,)
            return Submission(
                message, (first.block, second.block), writes, (x, out) if writes_x else out
            )

        return self._request(routine, prepare)

    def _product(
        self,
        routine: str,
        x: GpuRef,
        y: GpuRef,
        out: GpuRef | None,
        n: int | None,
        offx: int,
        incx: int,
        offy: int,
        incy: int,
    ) -> Request[GpuRef]:
        def prepare(driver: Driver) -> Submission[Any]:
            memory = self._device.memory
            usable(x, memory, "x")
            usable(y, memory, "y")
            dtype = require_kind(x, FLOATS, routine)
            require_dtype(y, x.dtype, "y", "x")
            count = _shared_count(x, y, n, offx, incx, offy, incy)
            first = vector(x, "x", memory, n=count, off=offx, inc=incx)
            second = vector(y, "y", memory, n=count, off=offy, inc=incy)
            result = self._scalar_output(out, x.dtype, driver)
            require_apart(routine, [("out", result)], [("x", x), ("y", y)])
            message = Vectors(
                routine,
                dtype,
                count,
                first.address,
                first.inc,
                second.address,
                second.inc,
                result._block.address,
            )
            return Submission(message, (first.block, second.block), (result._block,), result)

        return self._request(routine, prepare)

    def _reduce(
        self,
        routine: str,
        x: GpuRef,
        out: GpuRef | None,
        n: int | None,
        offx: int,
        incx: int,
        result_dtype: np.dtype[Any] | None = None,
    ) -> Request[GpuRef]:
        def prepare(driver: Driver) -> Submission[Any]:
            block = usable(x, self._device.memory, "x")
            dtype = require_kind(x, FLOATS, routine)
            count, address, step = _forward(x, n, offx, incx, block.address)
            if result_dtype is not None and not count:
                raise ValueError(f"{routine} of an empty vector: it has no elements to choose from")
            kind = result_dtype or REAL_OF.get(dtype, x.dtype)
            result = self._scalar_output(out, kind, driver)
            require_apart(routine, [("out", result)], [("x", x)])
            message = Vectors(routine, dtype, count, address, step, result=result._block.address)
            return Submission(message, (block,), (result._block,), result)

        return self._request(routine, prepare)

    def _scalar_output(self, out: GpuRef | None, dtype: np.dtype[Any], driver: Driver) -> GpuRef:
        if out is None:
            return driver.output((), dtype)
        writable(out, self._device.memory, "out")
        if out.dtype is not dtype:
            raise TypeError(f"out has dtype {out.dtype.name}, but the result has {dtype.name}")
        if out.shape != ():
            raise ValueError(f"out has shape {out.shape}, but the result has shape ()")
        return out


def _shared_count(
    x: GpuRef, y: GpuRef | None, n: int | None, offx: int, incx: int, offy: int, incy: int
) -> int:
    """How many elements a routine of two vectors takes."""
    if n is not None:
        return given_count(n)
    count = count_elements(x, "x", offx, incx)
    if y is not None:
        there = count_elements(y, "y", offy, incy)
        if there != count:
            raise ValueError(
                f"x has {count} elements (shape {x.shape}), but y has {there} (shape {y.shape}); "
                f"say how many to take: n="
            )
    return count


def _forward(x: GpuRef, n: int | None, offx: int, incx: int, address: int) -> tuple[int, int, int]:
    """Count, address and step of a vector that the library takes in positive steps only."""
    there = count_elements(x, "x", offx, incx)
    if incx < 0:
        raise ValueError(f"incx is {incx}, but with one vector it must be positive")
    count = there if n is None else given_count(n)
    if count > there:
        raise ValueError(f"x has {there} elements (shape {x.shape}), but n is {count}")
    return count, address + int(offx) * x.dtype.itemsize, int(incx)
