"""Matrix products: plain, over batches, and of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._dtypes import DTYPES, NAMES, as_dtype
from ..._errors import Unsupported
from ...arrays import GpuRef
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
    strided,
    with_tf32,
)
from ._plans import (
    GROUPED,
    INT8,
    POINTER_BYTES,
    GemmArguments,
    plan_strided,
    plan_wide,
    product_sizes,
    require_rows,
    require_starts,
    result_types,
)
from .checks import (
    TF32,
    UINT8,
    BlasPart,
    Number,
    Trans,
    operation,
    place_scalars,
    require_terms,
    scalar,
    scales_nothing,
)
from .wire._messages import Gemm, GemmList, ProductOptions, Scalar

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...memory import Block
    from ...ops import Preparer, Request


class BlasProducts(BlasPart[D]):
    """The part of ``Blas`` that multiplies matrices."""

    @op
    def gemm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number | GpuRef = 0.0,
        trans_a: Trans = False,
        trans_b: Trans = False,
        dtype: DTypeLike | None = None,
        compute_type: str | None = None,
        allow_tf32: bool = False,
    ) -> Request[GpuRef]:
        """Matrix product: ``alpha * op(a) @ op(b) + beta * out``.

        Vendor functions: ``cublasGemmEx_64``; for batches ``cublasGemmStridedBatchedEx_64`` where
        one stride leads from each matrix to the next, ``cublasGemmBatchedEx_64`` otherwise.

        Args:
            a: shape (..., m, k), or (..., k, m) with ``trans_a``.
            b: shape (..., k, n), or (..., n, k) with ``trans_b``; same dtype as ``a``. Leading
                dimensions are broadcast as in ``numpy.matmul``. Views whose rows or columns have no
                gaps, such as ``x.T`` and ``x[:, :k]``, are read directly; others are copied first.
            out: where to put the result: shape (..., m, n), not sealed, no memory in common with
                ``a`` or ``b``. Made if absent. A view whose rows have no gaps, of one matrix or a
                batch, is written directly; others through a copy.
            alpha: scales the product; a number, or a buffer as the class describes.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans_a: use the transpose of ``a``; 2 (``"C"``) for its conjugate.
            trans_b: use the transpose of ``b``; 2 (``"C"``) for its conjugate.
            dtype: the dtype of the result, see the class.
            compute_type: how to compute, see the class.
            allow_tf32: whether products of float32 and complex64 may round their factors to ten
                bits, to run faster.

        Returns:
            ``out``, or a new buffer of shape (..., m, n). Empty sums are zeros.
        """
        compute_type = with_tf32(compute_type, TF32, allow_tf32=allow_tf32)
        return self._gemm(a, b, out, alpha, beta, trans_a, trans_b, dtype, compute_type)

    @op
    def matmul(
        self,
        a: GpuRef,
        b: GpuRef,
        out: GpuRef | None = None,
        *,
        dtype: DTypeLike | None = None,
        compute_type: str | None = None,
        allow_tf32: bool = False,
    ) -> Request[GpuRef]:
        """Matrix product of arrays of any rank; as ``numpy.matmul``.

        Vendor functions: those of ``gemm``.

        Args:
            a: shape (..., m, k) or (k,).
            b: shape (..., k, n) or (k,); same dtype. Leading dimensions are broadcast.
            out: where to put the result, as for ``gemm``.
            dtype: as for ``gemm``; int8 gives int32, where NumPy overflows.
            compute_type: as for ``gemm``.
            allow_tf32: as for ``gemm``.

        Returns:
            ``out``, or a new buffer of shape (..., m, n); without m where ``a`` has one dimension,
            without n where ``b`` has.
        """
        compute_type = with_tf32(compute_type, TF32, allow_tf32=allow_tf32)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            require_readable(a, preparer.memory, "a", strided=True)
            require_readable(b, preparer.memory, "b", strided=True)
            shape_a, shape_b = a.shape, b.shape
            for name, shape in (("a", shape_a), ("b", shape_b)):
                if not shape:
                    raise ValueError(f"{name} has no dimensions; matmul needs at least one")
            if len(shape_a) == 1:
                shape_a = (1, *shape_a)
            if len(shape_b) == 1:
                shape_b = (*shape_b, 1)
            wide = GemmArguments("matmul", a, b, shape_a, shape_b, out, 1.0, 0.0, 0, 0)
            return self._prepare_general(preparer, wide, dtype, compute_type)

        if getattr(a, "ndim", 0) > 1 and getattr(b, "ndim", 0) > 1:
            return self._gemm(a, b, out, 1.0, 0.0, 0, 0, dtype, compute_type)
        return self._request("matmul", prepare)

    @op
    def gemm_batched(
        self,
        a: Sequence[GpuRef],
        b: Sequence[GpuRef],
        *,
        out: Sequence[GpuRef] | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_a: Trans = False,
        trans_b: Trans = False,
        dtype: DTypeLike | None = None,
        compute_type: str | None = None,
        allow_tf32: bool = False,
    ) -> Request[list[GpuRef]]:
        """Products of equally shaped matrices in buffers of their own, in one call.

        Vendor function: ``cublasGemmBatchedEx_64``.

        ``a`` lists matrices of shape (m, k), or (k, m) with ``trans_a``, and ``b`` as many of shape
        (k, n), or (n, k) with ``trans_b``, of the same dtype. A matrix may come several times.
        ``out`` lists as many different buffers of shape (m, n). Other arguments are those of
        ``gemm``.
        """
        return self._list("gemm_batched", locals())

    @op
    def gemm_grouped_batched(
        self,
        a: Sequence[GpuRef],
        b: Sequence[GpuRef],
        *,
        out: Sequence[GpuRef] | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_a: Trans = False,
        trans_b: Trans = False,
        compute_type: str | None = None,
        allow_tf32: bool = False,
    ) -> Request[list[GpuRef]]:
        """Products of matrices of any shapes, in one call.

        Vendor function: ``cublasGemmGroupedBatchedEx_64`` (cuBLAS 12.5); consecutive
        products of one shape make a group. Dtypes are float16, bfloat16, float32 and
        float64, and the results have that of the inputs.

        Arguments are those of ``gemm_batched``, but each pair of matrices has m, n and k of its
        own.

        Raises:
            Unsupported: the cuBLAS that is installed is older.
        """
        return self._list("gemm_grouped_batched", locals())

    # --- in common ------------------------------------------------------------------------

    def _gemm(
        self,
        a: GpuRef,
        b: GpuRef,
        out: GpuRef | None,
        alpha: Number | GpuRef,
        beta: Number | GpuRef,
        trans_a: Trans,
        trans_b: Trans,
        dtype: DTypeLike | None,
        compute_type: str | None,
    ) -> Request[GpuRef]:
        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            require_readable(a, preparer.memory, "a", strided=True)
            require_readable(b, preparer.memory, "b", strided=True)
            op_a, op_b = operation(trans_a, "trans_a"), operation(trans_b, "trans_b")
            given = GemmArguments("gemm", a, b, a.shape, b.shape, out, alpha, beta, op_a, op_b)
            return self._prepare_general(preparer, given, dtype, compute_type)

        return self._request("gemm", prepare)

    def _prepare_general(
        self,
        preparer: Preparer,
        given: GemmArguments,
        dtype: DTypeLike | None,
        compute_type: str | None,
    ) -> Submission[GpuRef]:
        memory = preparer.memory
        name, a, b, shape_a, shape_b, out, alpha, beta, op_a, op_b = given
        block_a = require_readable(a, memory, "a", strided=True)
        block_b = require_readable(b, memory, "b", strided=True)
        wanted = None if dtype is None else as_dtype(dtype)
        if out is not None:
            require_writable(out, memory, "out", strided=True)
            wanted = out.dtype if wanted is None else wanted
        require_dtype(b, a.dtype, "b", "a")
        if strided(a, b, out):
            plan = plan_strided(given, wanted, compute_type)
        else:
            plan = plan_wide(a, b, shape_a, shape_b, op_a, op_b, wanted, compute_type)
        require_starts(a, b)
        factor: Scalar | None
        scale: Scalar | None
        at: tuple[int, ...] = ()
        scalars: list[Block] = []
        rooms: list[Block] = []
        placed: list[tuple[str, GpuRef]] = []
        if type(alpha) is not GpuRef and type(beta) is not GpuRef:
            factor, scale = factors(a, alpha, beta, plan.options.compute)
            fresh = scales_nothing(scale, out)
        else:
            if a.dtype is INT8:
                raise Unsupported("int8 products with alpha or beta on the device")
            both = (("alpha", alpha), ("beta", beta))
            placed = [(each, value) for each, value in both if isinstance(value, GpuRef)]
            factor, scale = _unless_placed(a, alpha, "alpha"), _unless_placed(a, beta, "beta")
            fresh = scales_nothing(scale, out)
            kind = DTYPES[plan.options.scalars]
            at, scalars, rooms = place_scalars(preparer, [(*each, kind) for each in both])
        result = preparer.output(plan.shape, plan.dtype_c) if out is None else out
        block = require_writable(result, memory, "out", strided=True)
        require_shape(result, plan.shape, "out")
        if result.dtype is not plan.dtype_c:
            raise TypeError(f"out must have dtype {plan.dtype_c.name}, not {result.dtype.name}")
        require_no_alias(name, [("out", result)], [("a", a), ("b", b)])
        if placed:
            require_no_alias(name, [("out", result)], placed)
            if result.size:
                require_terms(a, b)
        writes: tuple[Block, ...] = (block, *rooms)
        pointers = 0
        if plan.pointer_bytes:
            scratch = preparer.output((plan.pointer_bytes,), UINT8).block
            pointers = scratch.address
            writes = (*writes, scratch)
        message = Gemm(
            block_a.address,
            block_b.address,
            block.address,
            plan.sizes,
            plan.batch,
            plan.strides_a,
            plan.strides_b,
            plan.options,
            factor,
            scale,
            pointers,
            plan.rows,
            plan.strides_c,
            at,
        )
        reads = (block_a, block_b, *scalars, *(() if fresh else (block,)))
        return Submission(message, reads, writes, result)

    def _list(self, name: str, options: Mapping[str, Any]) -> Request[list[GpuRef]]:
        """Return the request for products of lists, with the arguments of a method."""
        a, b, out, dtype = options["a"], options["b"], options["out"], options.get("dtype")
        asked = options["compute_type"]
        compute_type = with_tf32(asked, TF32, allow_tf32=options["allow_tf32"])
        for called, given in (("a", a), ("b", b), ("out", out)):
            if not isinstance(given, Sequence) and not (called == "out" and given is None):
                raise TypeError(
                    f"{called} must be a list of GpuRefs, one for each matrix, not "
                    f"{type(given).__name__}; a batch in one buffer is for gemm"
                )
        if not a or len(a) != len(b) or (out is not None and len(out) != len(a)):
            outs = "" if out is None else f" and {len(out)} outputs"
            raise ValueError(f"{name} of {len(a)} matrices a, {len(b)} matrices b{outs}")
        grouped = name == "gemm_grouped_batched"

        def prepare(preparer: Preparer) -> Submission[Any]:
            memory = self.home.memory
            blocks = [
                (
                    require_readable(left, memory, f"a[{i}]"),
                    require_readable(right, memory, f"b[{i}]"),
                )
                for i, (left, right) in enumerate(zip(a, b, strict=True))
            ]
            first = a[0].dtype
            if grouped and NAMES[first] not in GROUPED:
                raise TypeError(
                    f"dtypes of {name} must be one of {', '.join(GROUPED)}, not {first.name}"
                )
            wanted = dtype if dtype is not None or out is None else getattr(out[0], "dtype", None)
            op_a, op_b = (operation(options[each], each) for each in ("trans_a", "trans_b"))
            shapes = []
            for i, (left, right) in enumerate(zip(a, b, strict=True)):
                require_rank(left, 2, f"a[{i}]")
                require_rank(right, 2, f"b[{i}]")
                require_dtype(left, first, f"a[{i}]", "a[0]")
                require_dtype(right, first, f"b[{i}]", "a[0]")
                shapes.append(product_sizes(left.shape, right.shape, op_a, op_b, f"[{i}]"))
                if not grouped and shapes[i] != shapes[0]:
                    raise ValueError(
                        f"product {i} must have (m, n, k) = {shapes[0]}, as product 0 "
                        f"has, not {shapes[i]}; use gemm_grouped_batched for unequal "
                        "shapes"
                    )
                require_rows(left, right, op_a, op_b, shapes[i])
                require_starts(left, right, f"[{i}]")
            dtype_c, compute = result_types(first, wanted, compute_type, name)
            if grouped and dtype_c is not first:
                raise TypeError(f"{name} gives {first.name} for {first.name}, not {dtype_c.name}")
            factor, scale = factors(a[0], options["alpha"], options["beta"], compute)
            fresh = scales_nothing(scale, a[0] if out is not None else None)
            results: list[GpuRef] = []
            for i, (m, n, _) in enumerate(shapes):
                result = preparer.output((m, n), dtype_c) if out is None else out[i]
                require_writable(result, memory, f"out[{i}]")
                require_shape(result, (m, n), f"out[{i}]")
                require_dtype(result, dtype_c, f"out[{i}]", "the result")
                results.append(result)
            if out is not None:
                inputs = [
                    (f"{x}[{i}]", ref)
                    for x, refs in zip("ab", (a, b), strict=True)
                    for i, ref in enumerate(refs)
                ]
                require_no_alias(name, [(f"out[{i}]", ref) for i, ref in enumerate(out)], inputs)
            written = [result.block for result in results]
            pointers = preparer.output((3 * POINTER_BYTES * len(a),), UINT8).block
            message = GemmList(
                tuple(pair[0].address for pair in blocks),
                tuple(pair[1].address for pair in blocks),
                tuple(block.address for block in written),
                tuple(shapes),
                ProductOptions(first.name, dtype_c.name, compute, op_a, op_b),
                factor,
                scale,
                pointers.address,
            )
            reads = [block for pair in blocks for block in pair]
            return Submission(
                message, reads if fresh else [*reads, *written], [*written, pointers], results
            )

        return self._request(name, prepare)


def factors(like: GpuRef, alpha: Any, beta: Any, compute: str) -> tuple[Scalar, Scalar]:
    """Both scalars as messages carry them."""
    scalars = scalar(alpha, like.dtype, "alpha"), scalar(beta, like.dtype, "beta")
    if compute.startswith("32I") and not {*scalars} <= {0.0, 1.0}:
        raise ValueError(f"with an int32 result alpha and beta are 0 or 1, not {alpha} and {beta}")
    return scalars


def _unless_placed(like: GpuRef, value: Any, name: str) -> Scalar | None:
    """A scalar as messages carry it; None for one on the device."""
    return None if isinstance(value, GpuRef) else scalar(value, like.dtype, name)
