"""Products of matrices and vectors, and triangular systems, of many small matrices at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
from ...wire.broadcast import broadcast
from ...wire.options import flag
from .checks import (
    FLOATS,
    LARGEST_INT,
    SINGLE_OR_DOUBLE,
    UINT8,
    BlasPart,
    Number,
    Side,
    Trans,
    on_the_right,
    operation,
    require_kind,
    scalar,
    scales_nothing,
)
from .wire._messages import Gemm, ProductOptions, RunStacked

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Preparer, Request
    from ...wire import Message

_POINTERS = 3 * 8
"""Bytes of pointers for each matrix."""

_ADJOINT = 2


class StackedRoutines(BlasPart[D]):
    """The part of ``Blas`` for batches at levels 2 and 3."""

    @op
    def gemv_batched(
        self,
        a: GpuRef,
        x: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans: Trans = 0,
    ) -> Request[GpuRef]:
        """Matrices times vectors: ``alpha * op(a) @ x + beta * out``; as ``numpy.matvec``.

        Vendor function: ``cublas<t>gemvStridedBatched_64`` where one stride leads from each to the
        next, ``cublas<t>gemvBatched_64`` otherwise; for conjugates those of ``gemm``.

        Args:
            a: shape (..., m, n).
            x: shape (..., n), or (..., m) with ``trans``; same dtype. Leading dimensions are
                broadcast.
            out: shape (..., m), or (..., n) with ``trans``; same dtype, not sealed, no memory in
                common with the inputs. Made if absent.
            alpha: scales the products.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans: 1 (``"T"``) for the transposes of ``a``, 2 (``"C"``) for their conjugates.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            block_a, block_x = require_readable(a, memory, "a"), require_readable(x, memory, "x")
            dtype = require_kind(a, FLOATS, "gemv_batched")
            require_dtype(x, a.dtype, "x", "a")
            turned = operation(trans, "trans")
            if len(a.shape) < 2:
                raise ValueError(f"a must have at least 2 dimensions, not shape {a.shape}")
            m, n = a.shape[:-3:-1] if turned else a.shape[-2:]
            if x.shape[-1:] != (n,):
                raise ValueError(
                    f"x must have a last dimension of {n}, because op(a) is {m} by "
                    f"{n}, not shape {x.shape}; a has shape {a.shape}, trans={trans!r}"
                )
            batch = broadcast(a.shape, (*x.shape, 1))
            shape = (*batch.shape, m)
            result = preparer.output(shape, a.dtype) if out is None else out
            block = require_writable(result, memory, "out")
            require_dtype(result, a.dtype, "out", "a")
            require_shape(result, shape, "out")
            require_no_alias("gemv_batched", [("out", result)], [("a", a), ("x", x)])
            factors = scalar(alpha, a.dtype, "alpha"), scalar(beta, a.dtype, "beta")
            fresh = scales_nothing(factors[1], out)
            several = len(batch.sizes) > 1
            pointers = preparer.output((_POINTERS * batch.products if several else 0,), UINT8).block
            places = block_a.address, block_x.address, block.address
            _, sizes, strides_a, strides_x = batch
            message: Message
            if turned == _ADJOINT and a.dtype.kind == "c":
                options = ProductOptions(
                    dtype, dtype, "32F" if dtype == "complex64" else "64F", turned, 0
                )
                message = Gemm(
                    *places,
                    (m, 1, n),
                    *(sizes, strides_a, strides_x),
                    options,
                    *factors,
                    pointers.address,
                )
            else:
                message = RunStacked(
                    *("gemv", dtype),
                    *places,
                    (a.shape[-2], a.shape[-1]),
                    *(sizes, strides_a, strides_x),
                    (turned,),
                    *factors,
                    pointers.address,
                )
            reads = (block_a, block_x) if fresh else (block_a, block_x, block)
            return Submission(message, reads, (block, pointers), result)

        return self._request("gemv_batched", prepare)

    @op
    def trsm_batched(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        side: Side = 0,
        lower: bool = False,
        trans_a: Trans = 0,
        unit_diagonal: bool = False,
    ) -> Request[GpuRef]:
        """Solve triangular systems ``op(a) @ out = alpha * b``, or ``out @ op(a) = alpha * b``.

        Vendor function: ``cublas<t>trsmBatched``. A singular matrix is not looked for: a zero on
        the diagonal gives infinities and NaNs.

        Args:
            a: shape (..., m, m), or (..., n, n) on the right, of which one triangle is read. Its
                leading dimensions are broadcast to those of ``b``.
            b: right-hand sides: shape (..., m, n), same dtype.
            out: where to put the solutions: a buffer shaped as ``b``, or ``b`` itself.
                Made if absent.
            alpha: scales ``b``.
            side: 0 (``"L"``) for ``op(a) @ out``, 1 (``"R"``) for ``out @ op(a)``.
            lower: the lower triangles hold the data, not the upper ones.
            trans_a: 1 (``"T"``) for the transposes of ``a``, 2 (``"C"``) for their conjugates.
            unit_diagonal: take the diagonals as ones, and do not read them.

        Raises:
            ValueError: shapes that do not fit, aliasing, sizes of 2**31 or more.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            block_a, block_b = require_readable(a, memory, "a"), require_readable(b, memory, "b")
            dtype = require_kind(a, SINGLE_OR_DOUBLE, "trsm_batched")
            require_dtype(b, a.dtype, "b", "a")
            right = on_the_right(side)
            options = (
                int(right),
                int(flag(lower, "lower")),
                operation(trans_a, "trans_a"),
                int(flag(unit_diagonal, "unit_diagonal")),
            )
            if len(b.shape) < 2:
                raise ValueError(f"b must have at least 2 dimensions, not shape {b.shape}")
            *lead, m, n = b.shape
            order = n if right else m
            if a.shape[-2:] != (order, order):
                raise ValueError(
                    f"a must have shape (..., {order}, {order}) for b of shape "
                    f"{b.shape} and side={side!r}, not {a.shape}"
                )
            batch = broadcast(a.shape, b.shape)
            if batch.shape != tuple(lead):
                raise ValueError(
                    "a must have leading dimensions that broadcast to those of b, "
                    f"{b.shape}, not shape {a.shape}"
                )
            if max(m, n, math.prod(lead)) > LARGEST_INT:
                raise ValueError(
                    f"b must have at most 2**31 - 1 elements along each axis, not shape {b.shape}"
                )
            result = preparer.output(b.shape, b.dtype) if out is None else out
            block = require_writable(result, memory, "out")
            require_dtype(result, b.dtype, "out", "b")
            require_shape(result, b.shape, "out")
            given = [("a", a), ("b", b)]
            require_no_alias("trsm_batched", [("out", result)], given, in_place=[("out", "b")])
            pointers = preparer.output((_POINTERS * batch.products,), UINT8).block
            message = RunStacked(
                *("trsm", dtype),
                *(block_a.address, block_b.address, block.address),
                (m, n),
                *batch[1:],
                options,
                *(scalar(alpha, a.dtype, "alpha"), scalar(0.0, a.dtype, "beta")),
                pointers.address,
            )
            return Submission(message, (block_a, block_b), (block, pointers), result)

        return self._request("trsm_batched", prepare)
