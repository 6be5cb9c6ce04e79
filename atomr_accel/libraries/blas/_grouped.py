"""Products of groups of rows, each group with a matrix of its own."""

from __future__ import annotations

import operator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...memory import part_of
from ...ops import (
    D,
    Submission,
    op,
    require_dtype,
    require_no_alias,
    require_rank,
    require_readable,
    require_shape,
    require_writable,
    with_tf32,
)
from ._gemm import factors
from ._plans import GROUPED, POINTER_BYTES, result_types
from .checks import TF32, UINT8, BlasPart, Number, Trans, operation, scales_nothing
from .wire._messages import GemmList, ProductOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from ...memory import Block
    from ...ops import Preparer, Request

_NAME: Final = "gemm_grouped"


class GroupedProducts(BlasPart[D]):
    """The part of ``Blas`` that multiplies groups of rows."""

    @op
    def gemm_grouped(
        self,
        a: GpuRef,
        b: GpuRef,
        sizes: Sequence[SupportsIndex],
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_b: Trans = False,
        compute_type: str | None = None,
        allow_tf32: bool = False,
    ) -> Request[GpuRef]:
        """Each group of rows of ``a`` times a matrix of its own, in one call.

        The groups lie one after the other in ``a``. The rows of group ``g`` of the result are
        ``alpha * a[start:end] @ op(b[g]) + beta * out[start:end]``. A mixture of experts is such a
        product, with its tokens sorted by expert. The program must know the sizes. If only the
        device knows them, pad the groups to one size and call ``gemm`` with a batch.

        Vendor functions: ``cublasGemmGroupedBatchedEx_64`` (cuBLAS 12.5);
        ``cublasGemmBatchedEx_64`` where all groups that have rows have as many. Dtypes are float16,
        bfloat16, float32 and float64, and the result has that of the inputs.

        Args:
            a: shape (m, k).
            b: shape (groups, k, n), or (groups, n, k) with ``trans_b``; same dtype as ``a``.
            sizes: how many rows each group has, none included; m in all.
            out: where to put the result: shape (m, n), not sealed, no memory in common with ``a``
                or ``b``. Made if absent.
            alpha: scales the products.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans_b: use the transposes of ``b``; 2 (``"C"``) for their conjugates.
            compute_type: how to compute, see the class.
            allow_tf32: as for ``gemm``.

        Returns:
            ``out``, or a new buffer of shape (m, n).

        Raises:
            Unsupported: the cuBLAS that is installed is older.
        """
        given: object = sizes
        if isinstance(given, GpuRef):
            raise TypeError("sizes are the program's whole numbers, not a GpuRef: get them first")
        rows = tuple(map(operator.index, sizes))
        if any(isinstance(size, bool) for size in sizes):
            raise TypeError(f"sizes are whole numbers, not {sizes!r}")
        if any(size < 0 for size in rows):
            raise ValueError(f"sizes must be at least 0, not {rows}")
        op_b = operation(trans_b, "trans_b")

        compute_type = with_tf32(compute_type, TF32, allow_tf32=allow_tf32)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            block_a = require_readable(a, memory, "a")
            block_b = require_readable(b, memory, "b")
            dtype = a.dtype
            if NAMES[dtype] not in GROUPED:
                raise TypeError(
                    f"dtypes of {_NAME} must be one of {', '.join(GROUPED)}, not {dtype.name}"
                )
            require_rank(a, 2, "a")
            require_rank(b, 3, "b")
            require_dtype(b, dtype, "b", "a")
            m, n, k = _shape_of(a, b, rows, op_b)
            _, compute = result_types(dtype, None, compute_type, _NAME)
            factor, scale = factors(a, alpha, beta, compute)
            fresh = scales_nothing(scale, out)
            result = preparer.output((m, n), dtype) if out is None else out
            block = require_writable(result, memory, "out")
            require_shape(result, (m, n), "out")
            require_dtype(result, dtype, "out", "a")
            require_no_alias(_NAME, [("out", result)], [("a", a), ("b", b)])
            starts = accumulate(rows, initial=0)
            placed = zip(range(len(rows)), starts, rows, strict=False)
            groups = [group for group in placed if group[2]]
            if not (groups and n):
                return Submission(None, (), (), result)

            def place(whole: Block, elements: int) -> Any:
                return part_of(whole, elements * dtype.itemsize).address

            pointers = preparer.output((3 * POINTER_BYTES * len(groups),), UINT8).block
            message = GemmList(
                tuple(place(block_a, at * k) for _, at, _ in groups),
                tuple(place(block_b, g * k * n) for g, _, _ in groups),
                tuple(place(block, at * n) for _, at, _ in groups),
                tuple((size, n, k) for _, _, size in groups),
                ProductOptions(dtype.name, dtype.name, compute, 0, op_b),
                factor,
                scale,
                pointers.address,
            )
            reads = (block_a, block_b) if fresh else (block_a, block_b, block)
            return Submission(message, reads, (block, pointers), result)

        return self._request(_NAME, prepare)


def _shape_of(a: GpuRef, b: GpuRef, rows: tuple[int, ...], op_b: int) -> tuple[int, int, int]:
    """m, n and k, where all fits."""
    m, k = a.shape
    groups, k_b, n = b.shape if not op_b else (b.shape[0], b.shape[2], b.shape[1])
    if k != k_b:
        raise ValueError(
            f"the inner dimensions differ: a has shape {a.shape}, b has shape {b.shape}, "
            f"trans_b={op_b}"
        )
    if len(rows) != groups or sum(rows) != m:
        raise ValueError(
            f"sizes must be {groups} numbers with sum {m}, one for each matrix of b "
            f"and in all the rows of a, not {len(rows)} with sum {sum(rows)}"
        )
    return m, n, k
