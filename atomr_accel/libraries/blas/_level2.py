"""Level 2: a matrix and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._arguments import require_apart, require_dtype, require_rank, usable, writable
from .._op import D, op
from .._request import Submission
from ..wire._options import flag
from ._checks import (
    FLOATS,
    SINGLE_OR_DOUBLE,
    UINT8,
    Number,
    Routines,
    Trans,
    count_elements,
    operation,
    require_kind,
    require_matrix,
    scalar,
    scales_nothing,
    square,
    vector,
    vector_output,
)
from .wire._messages import MatrixVector

if TYPE_CHECKING:
    from ...memory import GpuRef
    from .._request import Driver, Request


class Level2(Routines[D]):
    """The part of ``Blas`` for a matrix and vectors."""

    @op
    def gemv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
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

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block = usable(a, memory, "a")
            usable(x, memory, "x")
            require_rank(a, 2, "a")
            dtype = require_kind(a, FLOATS, "gemv")
            require_dtype(x, a.dtype, "x", "a")
            m, n = a.shape
            op = operation(trans, "trans")
            rows, columns = (n, m) if op else (m, n)
            if op == 2 and a.dtype.kind == "c" and min(incx, incy) < 0:
                raise ValueError(
                    f"gemv with trans='C' takes positive steps, not incx={incx}, incy={incy}"
                )
            of = f"of op(a) (a has shape {a.shape}, trans={trans!r})"
            why = f"the number of columns {of}"
            first = vector(x, "x", memory, n=columns, off=offx, inc=incx, why=why)
            scale = scalar(beta, a.dtype, "beta")
            fresh = scales_nothing(scale, out)
            why = f"the number of rows {of}"
            result, second = vector_output(
                out, a, rows, driver, memory, off=offy, inc=incy, why=why
            )
            require_apart("gemv", [("out", result)], [("a", a), ("x", x)])
            message = MatrixVector(
                "gemv",
                dtype,
                m,
                n,
                block.address,
                first.address,
                first.inc,
                second.address,
                second.inc,
                scalar(alpha, a.dtype, "alpha"),
                scale,
                op,
            )
            reads = (block, first.block) if fresh else (block, first.block, second.block)
            return Submission(message, reads, (second.block,), result)

        return self._request("gemv", prepare)

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
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: Trans = 0,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
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
            offx: where ``x`` begins.
            incx: steps in ``x``.
            offy: where ``out`` begins.
            incy: steps in ``out``.

        Returns:
            ``out``.

        Raises:
            ValueError: sizes or shapes that do not fit, ``beta`` without ``out``, aliasing.
            TypeError: unequal or unsupported dtypes.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block = usable(a, memory, "a")
            usable(x, memory, "x")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "gbmv")
            require_dtype(x, a.dtype, "x", "a")
            if min(m, n, kl, ku) < 0:
                raise ValueError(f"no size may be negative: m={m}, n={n}, kl={kl}, ku={ku}")
            require_matrix(a, (kl + ku + 1, n), "a", f"there are {kl}+{ku}+1 diagonals of {n}")
            op = operation(trans, "trans")
            rows, columns = (n, m) if op else (m, n)
            of = f"of op(a) (a is {m} by {n}, trans={trans!r})"
            why = f"the number of columns {of}"
            first = vector(x, "x", memory, n=columns, off=offx, inc=incx, why=why)
            scale = scalar(beta, a.dtype, "beta")
            fresh = scales_nothing(scale, out)
            why = f"the number of rows {of}"
            result, second = vector_output(
                out, a, rows, driver, memory, off=offy, inc=incy, why=why
            )
            require_apart("gbmv", [("out", result)], [("a", a), ("x", x)])
            scratch = driver.output((a.nbytes,), UINT8)._block
            message = MatrixVector(
                "gbmv",
                dtype,
                m,
                n,
                block.address,
                first.address,
                first.inc,
                second.address,
                second.inc,
                scalar(alpha, a.dtype, "alpha"),
                scale,
                op,
                kl=kl,
                ku=ku,
                scratch=scratch.address,
            )
            reads = (block, first.block) if fresh else (block, first.block, second.block)
            return Submission(message, reads, (second.block, scratch), result)

        return self._request("gbmv", prepare)

    @op
    def symv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
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
        return self._symmetric("symv", a, x, out, alpha, beta, lower, offx, incx, offy, incy)

    @op
    def hemv(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        lower: bool = False,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """Hermitian matrix times vector; as ``symv``, for complex64 and complex128.

        The imaginary part of the diagonal is not read. Vendor function:
        ``cublas<t>hemm_64`` with one column, because the conjugate that row-major order
        asks for is none of ``hemv``'s options.
        """
        return self._symmetric("hemv", a, x, out, alpha, beta, lower, offx, incx, offy, incy)

    @op
    def ger(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number = 1.0,
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
        return self._outer("ger", x, y, a, alpha, offx, incx, offy, incy)

    @op
    def gerc(
        self,
        x: GpuRef,
        y: GpuRef,
        *,
        a: GpuRef | None = None,
        alpha: Number = 1.0,
        offx: int = 0,
        incx: int = 1,
        offy: int = 0,
        incy: int = 1,
    ) -> Request[GpuRef]:
        """As ``ger`` with the conjugate of ``y``: ``a += alpha * outer(x, conj(y))``.

        Vendor function: ``cublasGemmStridedBatchedEx_64`` with an inner dimension of 1,
        because in row-major order it is the other vector that ``gerc`` would conjugate.
        Steps must be positive.
        """
        return self._outer("gerc", x, y, a, alpha, offx, incx, offy, incy)

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
                Made if absent.
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
        return self._triangular("trmv", a, x, out, lower, trans, diag, offx, incx)

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
        return self._triangular("trsv", a, x, out, lower, trans, diag, offx, incx)

    # --- in common ------------------------------------------------------------------------

    def _symmetric(
        self,
        routine: str,
        a: GpuRef,
        x: GpuRef,
        out: GpuRef | None,
        alpha: Number,
        beta: Number,
        lower: bool,
        offx: int,
        incx: int,
        offy: int,
        incy: int,
    ) -> Request[GpuRef]:
        dtypes = SINGLE_OR_DOUBLE if routine == "symv" else SINGLE_OR_DOUBLE[2:]
        below = flag(lower, "lower")

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block = usable(a, memory, "a")
            usable(x, memory, "x")
            dtype = require_kind(a, dtypes, routine)
            require_dtype(x, a.dtype, "x", "a")
            n = square(a, "a")
            if routine == "hemv" and min(incx, incy) < 0:
                raise ValueError(f"hemv takes positive steps only, not incx={incx}, incy={incy}")
            why = f"the size of a (shape {a.shape})"
            first = vector(x, "x", memory, n=n, off=offx, inc=incx, why=why)
            scale = scalar(beta, a.dtype, "beta")
            fresh = scales_nothing(scale, out)
            result, second = vector_output(out, a, n, driver, memory, off=offy, inc=incy, why=why)
            require_apart(routine, [("out", result)], [("a", a), ("x", x)])
            message = MatrixVector(
                routine,
                dtype,
                n,
                n,
                block.address,
                first.address,
                first.inc,
                second.address,
                second.inc,
                scalar(alpha, a.dtype, "alpha"),
                scale,
                lower=below,
            )
            reads = (block, first.block) if fresh else (block, first.block, second.block)
            return Submission(message, reads, (second.block,), result)

        return self._request(routine, prepare)

    def _outer(
        self,
        routine: str,
        x: GpuRef,
        y: GpuRef,
        a: GpuRef | None,
        alpha: Number,
        offx: int,
        incx: int,
        offy: int,
        incy: int,
    ) -> Request[GpuRef]:
        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            usable(x, memory, "x")
            usable(y, memory, "y")
            dtype = require_kind(x, SINGLE_OR_DOUBLE, routine)
            require_dtype(y, x.dtype, "y", "x")
            if routine == "gerc" and min(incx, incy) < 0:
                raise ValueError(f"gerc takes positive steps only, not incx={incx}, incy={incy}")
            if a is None:
                m, n = count_elements(x, "x", offx, incx), count_elements(y, "y", offy, incy)
                target = driver.output((m, n), x.dtype)
            else:
                target = a
                require_rank(target, 2, "a")
                require_dtype(target, x.dtype, "a", "x")
                m, n = target.shape
            block = writable(target, memory, "a")
            why = f"of a (shape {target.shape})"
            first = vector(x, "x", memory, n=m, off=offx, inc=incx, why=f"the number of rows {why}")
            second = vector(
                y, "y", memory, n=n, off=offy, inc=incy, why=f"the number of columns {why}"
            )
            require_apart(routine, [("a", target)], [("x", x), ("y", y)])
            factor = scalar(alpha, x.dtype, "alpha")
            message = MatrixVector(
                routine,
                dtype,
                m,
                n,
                block.address,
                first.address,
                first.inc,
                second.address,
                second.inc,
                factor,
                scalar(1.0, x.dtype, "beta"),
                clear=a is None,
            )
            return Submission(message, (first.block, second.block, block), (block,), target)

        return self._request(routine, prepare)

    def _triangular(
        self,
        routine: str,
        a: GpuRef,
        x: GpuRef,
        out: GpuRef | None,
        lower: bool,
        trans: Trans,
        diag: int,
        offx: int,
        incx: int,
    ) -> Request[GpuRef]:
        below = flag(lower, "lower")

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = self._device.memory
            block = usable(a, memory, "a")
            usable(x, memory, "x")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, routine)
            require_dtype(x, a.dtype, "x", "a")
            n = square(a, "a")
            op = operation(trans, "trans")
            if op == 2 and a.dtype.kind == "c" and incx < 0:
                raise ValueError(f"{routine} with trans='C' takes positive steps, not {incx}")
            why = f"the size of a (shape {a.shape})"
            first = vector(x, "x", memory, n=n, off=offx, inc=incx, why=why)
            if out is None:
                result = driver.output((n,), a.dtype)
                second = vector(result, "out", memory, n=n, write=True)
            else:
                result = out
                require_dtype(out, a.dtype, "out", "a")
                second = vector(out, "out", memory, n=n, off=offx, inc=incx, write=True, why=why)
            require_apart(routine, [("out", result)], [("a", a), ("x", x)], in_place=[("out", "x")])
            one = scalar(1.0, a.dtype, "alpha")
            message = MatrixVector(
                routine,
                dtype,
                n,
                n,
                block.address,
                first.address,
                first.inc,
                second.address,
                second.inc,
                one,
                scalar(0.0, a.dtype, "beta"),
                op,
                below,
                _unit(diag),
            )
            return Submission(message, (block, first.block), (second.block,), result)

        return self._request(routine, prepare)


def _unit(diag: int) -> bool:
    if diag not in (0, 1):
        raise ValueError(f"diag must be 0 (as it is) or 1 (ones), not {diag!r}")
    return bool(diag)
