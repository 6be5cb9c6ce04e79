"""Batched factorizations, LU and QR, and solutions with their factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ..._errors import Unsupported
from ...ops import (
    D,
    Submission,
    op,
    require_dtype,
    require_no_alias,
    require_readable,
    require_shape,
    require_writable,
)
from .checks import (
    INT32,
    LARGEST_INT,
    SINGLE_OR_DOUBLE,
    UINT8,
    BlasPart,
    Trans,
    operation,
    require_kind,
)
from .wire._messages import Factor

if TYPE_CHECKING:
    import numpy as np

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import Preparer, Request

T = TypeVar("T")

_POINTERS = 3 * 8
"""Bytes of pointers for each matrix."""


_MOST_INVERTED = 32
"""The rows that ``cublas<t>matinvBatched`` takes at most."""


class _FactorStack(NamedTuple):
    """Matrices over leading dimensions."""

    lead: tuple[int, ...]
    batch: int
    m: int
    n: int


class Factorizations(BlasPart[D]):
    """The part of ``Blas`` for batched LU and QR.

    The vendor's functions are column-major, and but for ``matinv_batched`` overwrite their input.
    ``cublas<t>geam_64`` brings the whole batch into that order and back, through scratch memory
    of the size of the arguments.
    """

    @op
    def getrf_batched(
        self, a: GpuRef, *, out: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """LU factorizations with partial pivoting: ``a = p @ l @ u``.

        Vendor function: ``cublas<t>getrfBatched``.

        Args:
            a: shape (..., n, n).
            out: where to put the factors: shape (..., n, n), or ``a`` itself. Made if absent.

        Returns:
            ``(lu, piv, info)``. ``lu`` holds both factors in one matrix, without the ones of ``l``.
            ``piv`` holds the row that each row was exchanged with: int32 of shape (..., n),
            starting at 0 as in SciPy. ``info``, int32 of shape (...), is 0, or i if ``u[i-1, i-1]``
            is exactly 0, so that the matrix is singular.

        Raises:
            ValueError: matrices that are not square, or more than 2**31 - 1 rows in all.
        """

        def prepare(preparer: Preparer) -> Submission[tuple[GpuRef, GpuRef, GpuRef]]:
            block = require_readable(a, self.home.memory, "a")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "getrf_batched")
            stack = _square_stack(a, "a")
            lu, block_lu = self._output(out, a.shape, a.dtype, preparer)
            require_no_alias("getrf_batched", [("out", lu)], [("a", a)], in_place=[("out", "a")])
            piv = preparer.output(a.shape[:-1], INT32)
            info = preparer.output(stack.lead, INT32)
            factor = Factor("getrf", dtype, stack.batch, stack.n, stack.n)
            writes = {"c": block_lu, "pivots": piv.block, "info": info.block}
            scratch = (a.nbytes, _POINTERS * stack.batch)
            return _submission(preparer, factor, {"a": block}, writes, scratch, (lu, piv, info))

        return self._request("getrf_batched", prepare)

    @op
    def getrs_batched(
        self,
        lu: GpuRef,
        piv: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        trans: Trans = 0,
    ) -> Request[GpuRef]:
        """Solve ``op(a) @ x = b`` with the factors of ``getrf_batched``.

        Vendor function: ``cublas<t>getrsBatched``.

        Args:
            lu: the factors, of shape (..., n, n).
            piv: the exchanged rows, of shape (..., n), each from 0 to n - 1. The range is not
                checked on CUDA: other values access memory outside the matrix.
            b: right-hand sides: shape (..., n) or (..., n, nrhs), same dtype and leading
                dimensions.
            out: where to put the solutions: a buffer shaped as ``b``, or ``b`` itself. Made if
                absent.
            trans: 1 (``"T"``) for the transpose of ``a``, 2 (``"C"``) for its conjugate.

        Returns:
            ``out``. For singular matrices it holds infinities and NaNs; see ``info`` of
            ``getrf_batched``.

        Raises:
            ValueError: shapes that do not fit; on the CPU, a row that is not there.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = self.home.memory
            block_lu = require_readable(lu, memory, "lu")
            block_piv = require_readable(piv, memory, "piv")
            block_b = require_readable(b, memory, "b")
            dtype = require_kind(lu, SINGLE_OR_DOUBLE, "getrs_batched")
            stack = _square_stack(lu, "lu")
            _require_pivots(piv, lu)
            require_dtype(b, lu.dtype, "b", "lu")
            nrhs = _right_hand_sides(b, lu, stack.n)
            result, block = self._output(out, b.shape, b.dtype, preparer)
            given = [("lu", lu), ("piv", piv), ("b", b)]
            require_no_alias("getrs_batched", [("out", result)], given, in_place=[("out", "b")])
            turned = operation(trans, "trans")
            factor = Factor("getrs", dtype, stack.batch, stack.n, stack.n, nrhs, turned)
            reads = {"a": block_lu, "pivots": block_piv, "b": block_b}
            scratch = (lu.nbytes, b.nbytes, _POINTERS * stack.batch, max(4, piv.nbytes))
            return _submission(preparer, factor, reads, {"c": block}, scratch, result)

        return self._request("getrs_batched", prepare)

    @op
    def getri_batched(
        self, lu: GpuRef, piv: GpuRef, *, out: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Inverses, from the factors of ``getrf_batched``.

        Vendor function: ``cublas<t>getriBatched``. To solve systems, ``getrs_batched`` is
        faster and more accurate.

        Args:
            lu: the factors, of shape (..., n, n).
            piv: the exchanged rows, as of ``getrs_batched``.
            out: where to put the inverses: shape (..., n, n), not ``lu``. Made if absent.

        Returns:
            ``(inverse, info)``; ``info`` as that of ``getrf_batched``. The inverse of a
            singular matrix is undefined.

        Raises:
            ValueError: shapes that do not fit, aliasing; on the CPU, a row that is not there.
        """

        def prepare(preparer: Preparer) -> Submission[tuple[GpuRef, GpuRef]]:
            memory = self.home.memory
            block_lu = require_readable(lu, memory, "lu")
            block_piv = require_readable(piv, memory, "piv")
            dtype = require_kind(lu, SINGLE_OR_DOUBLE, "getri_batched")
            stack = _square_stack(lu, "lu")
            _require_pivots(piv, lu)
            result, block = self._output(out, lu.shape, lu.dtype, preparer)
            require_no_alias("getri_batched", [("out", result)], [("lu", lu), ("piv", piv)])
            info = preparer.output(stack.lead, INT32)
            factor = Factor("getri", dtype, stack.batch, stack.n, stack.n)
            reads = {"a": block_lu, "pivots": block_piv}
            writes = {"c": block, "info": info.block}
            scratch = (lu.nbytes, lu.nbytes, _POINTERS * stack.batch, max(4, piv.nbytes))
            return _submission(preparer, factor, reads, writes, scratch, (result, info))

        return self._request("getri_batched", prepare)

    @op
    def matinv_batched(
        self, a: GpuRef, *, out: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Inverses of matrices of up to 32 rows, in one step.

        Vendor function: ``cublas<t>matinvBatched``. For larger ones there are ``getrf_batched``
        and ``getri_batched``.

        Args:
            a: shape (..., n, n), n <= 32.
            out: where to put the inverses: shape (..., n, n), not ``a``. Made if absent.

        Returns:
            ``(inverse, info)``; ``info`` as that of ``getrf_batched``. The inverse of a
            singular matrix is undefined.

        Raises:
            Unsupported: more than 32 rows.
        """

        def prepare(preparer: Preparer) -> Submission[tuple[GpuRef, GpuRef]]:
            block = require_readable(a, self.home.memory, "a")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "matinv_batched")
            stack = _square_stack(a, "a")
            if stack.n > _MOST_INVERTED:
                raise Unsupported(
                    f"matinv_batched inverts matrices of up to {_MOST_INVERTED} rows; a has shape "
                    f"{a.shape}. For larger ones there are getrf_batched and getri_batched"
                )
            result, block_c = self._output(out, a.shape, a.dtype, preparer)
            require_no_alias("matinv_batched", [("out", result)], [("a", a)])
            info = preparer.output(stack.lead, INT32)
            factor = Factor("matinv", dtype, stack.batch, stack.n, stack.n)
            writes = {"c": block_c, "info": info.block}
            scratch = (_POINTERS * stack.batch,)
            return _submission(preparer, factor, {"a": block}, writes, scratch, (result, info))

        return self._request("matinv_batched", prepare)

    @op
    def geqrf_batched(
        self, a: GpuRef, *, out: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """QR factorizations: ``a = q @ r``, with ``q`` as a product of reflectors.

        Vendor function: ``cublas<t>geqrfBatched``.

        Args:
            a: shape (..., m, n).
            out: where to put the factors: shape (..., m, n), or ``a`` itself. Made if
                absent.

        Returns:
            ``(qr, tau)`` as of ``scipy.linalg.lapack.dgeqrf``: ``r`` on and above the
            diagonal, the reflectors below it, and their scalars, of shape
            (..., min(m, n)).

        Raises:
            ValueError: fewer than two dimensions, or more than 2**31 - 1 rows in all.
        """

        def prepare(preparer: Preparer) -> Submission[tuple[GpuRef, GpuRef]]:
            block = require_readable(a, self.home.memory, "a")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "geqrf_batched")
            stack = _stack(a, "a")
            qr, block_qr = self._output(out, a.shape, a.dtype, preparer)
            require_no_alias("geqrf_batched", [("out", qr)], [("a", a)], in_place=[("out", "a")])
            tau = preparer.output((*stack.lead, min(stack.m, stack.n)), a.dtype)
            factor = Factor("geqrf", dtype, stack.batch, stack.m, stack.n)
            writes = {"c": block_qr, "tau": tau.block}
            scratch = (a.nbytes, _POINTERS * stack.batch)
            return _submission(preparer, factor, {"a": block}, writes, scratch, (qr, tau))

        return self._request("geqrf_batched", prepare)

    @op
    def gels_batched(
        self, a: GpuRef, b: GpuRef, *, out: GpuRef | None = None
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """Least squares: the ``x`` that minimizes the norm of ``b - a @ x``.

        Vendor function: ``cublas<t>gelsBatched``.

        Args:
            a: shape (..., m, n) with m >= n, of full rank.
            b: right-hand sides: shape (..., m) or (..., m, nrhs), same dtype and leading
                dimensions.
            out: where to put the solutions: shape (..., n) or (..., n, nrhs), no memory in common
                with the inputs. Made if absent.

        Returns:
            ``(x, info)``. ``info``, int32 of shape (...), is 0, or i if the i-th diagonal element
            of the triangular factor is exactly 0. That matrix is not of full rank, and its solution
            is undefined.

        Raises:
            Unsupported: m < n, which the vendor does not solve.
        """

        def prepare(preparer: Preparer) -> Submission[tuple[GpuRef, GpuRef]]:
            memory = self.home.memory
            block_a, block_b = require_readable(a, memory, "a"), require_readable(b, memory, "b")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "gels_batched")
            stack = _stack(a, "a")
            require_dtype(b, a.dtype, "b", "a")
            nrhs = _right_hand_sides(b, a, stack.m)
            if stack.m < stack.n:
                raise Unsupported(
                    f"gels_batched solves overdetermined systems only; a has shape {a.shape}"
                )
            shape = (*stack.lead, stack.n, *b.shape[len(stack.lead) + 1 :])
            result, block = self._output(out, shape, a.dtype, preparer)
            require_no_alias("gels_batched", [("out", result)], [("a", a), ("b", b)])
            info = preparer.output(stack.lead, INT32)
            factor = Factor("gels", dtype, stack.batch, stack.m, stack.n, nrhs)
            reads = {"a": block_a, "b": block_b}
            writes = {"c": block, "info": info.block}
            scratch = (a.nbytes, b.nbytes, _POINTERS * stack.batch, b.nbytes)
            return _submission(preparer, factor, reads, writes, scratch, (result, info))

        return self._request("gels_batched", prepare)

    def _output(
        self, out: GpuRef | None, shape: tuple[int, ...], dtype: np.dtype[Any], preparer: Preparer
    ) -> tuple[GpuRef, Block]:
        if out is None:
            out = preparer.output(shape, dtype)
        block = require_writable(out, self.home.memory, "out")
        require_dtype(out, dtype, "out", "the input")
        require_shape(out, shape, "out")
        return out, block


def _stack(ref: GpuRef, name: str) -> _FactorStack:
    """Return the number and the size of the matrices that a ref holds."""
    if len(ref.shape) < 2:
        raise ValueError(f"{name} must have at least 2 dimensions, not shape {ref.shape}")
    *lead, m, n = ref.shape
    batch = math.prod(lead)
    if batch * max(m, n) > LARGEST_INT:
        raise ValueError(
            f"{name} must have at most 2**31 - 1 rows in all, not {batch} times "
            f"{max(m, n)}, in shape {ref.shape}; do it in parts"
        )
    return _FactorStack(tuple(lead), batch, m, n)


def _square_stack(ref: GpuRef, name: str) -> _FactorStack:
    stack = _stack(ref, name)
    if stack.m != stack.n:
        raise ValueError(f"{name} must hold square matrices, not shape {ref.shape}")
    return stack


def _require_pivots(piv: GpuRef, lu: GpuRef) -> None:
    if piv.dtype is not INT32:
        raise TypeError(f"piv must have dtype int32, not {piv.dtype.name}")
    if piv.shape != lu.shape[:-1]:
        raise ValueError(
            f"piv must be the pivots of lu, of shape {lu.shape}, not of shape {piv.shape}"
        )


def _right_hand_sides(b: GpuRef, a: GpuRef, rows: int) -> int:
    """Return the number of right-hand sides that b holds for each matrix of a."""
    expected = (*a.shape[:-2], rows)
    if b.shape == expected:
        return 1
    if b.shape[:-1] == expected:
        if b.shape[-1] > LARGEST_INT:
            raise ValueError(
                f"b must have at most 2**31 - 1 right-hand sides, not {b.shape[-1]}, "
                f"in shape {b.shape}; do it in parts"
            )
        return b.shape[-1]
    raise ValueError(
        f"b must have shape {expected} or {(*expected, 'nrhs')} for matrices of shape "
        f"{a.shape}, not {b.shape}"
    )


def _submission(
    preparer: Preparer,
    factor: Factor,
    reads: dict[str, Block],
    writes: dict[str, Block],
    scratch: tuple[int, ...],
    result: T,
) -> Submission[T]:
    """Complete a message with scratch memory and the addresses of its blocks, by field."""
    pieces = [preparer.output((nbytes,), UINT8).block for nbytes in scratch]
    places = {name: block.address for name, block in (reads | writes).items()}
    message = msgspec.structs.replace(
        factor, scratch=tuple([piece.address for piece in pieces]), **places
    )
    return Submission(message, tuple(reads.values()), (*writes.values(), *pieces), result)
