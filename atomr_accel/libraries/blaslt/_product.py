"""One product: its arguments, their checks, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, final

import msgspec

from ..._dtypes import DTYPES, NAMES
from ..._errors import Unsupported
from ...arrays import span
from ...ops import (
    Submission,
    alignment,
    not_contiguous,
    require_no_alias,
    require_readable,
    require_writable,
    strided,
)
from ..blas.checks import scalar
from ..blas.layout import laid_out
from ._plan import BlasLtPlan, Given, PlanKey, make_plan
from .wire._layout import Layout
from .wire._messages import RunBlasLt, Scalar
from .wire._narrow import FP8

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...memory import Block, MemoryMap
    from ...ops import Preparer, Workspaces
    from ...wire.matrices import Laid
    from ..blas.checks import Number, Trans

_UINT8: Final = DTYPES["uint8"]
_IN_PLACE: Final = (("out", "c"),)
_NO_LAYOUTS: Final = (None, None, None)
_NOTHING: Final = (0.0, (0.0, 0.0))


class MatmulResults(NamedTuple):
    """The results of ``BlasLt.matmul_extra``; those that it was not asked for are None.

    Attributes:
        out: the product.
        aux: the auxiliary output of the epilogue.
        bias_grad: the gradient of the bias.
        amax: the largest magnitude of the product, before ``scale_out``.
    """

    out: GpuRef
    aux: GpuRef | None
    bias_grad: GpuRef | None
    amax: GpuRef | None


class HeuristicOptions(TypedDict, total=False):
    """The options of a product that do not choose its algorithm."""

    out: GpuRef | None
    c: GpuRef | None
    alpha: Number | GpuRef
    beta: Number
    trans_a: Trans
    trans_b: Trans
    dtype: DTypeLike | None
    compute_type: str | None
    allow_tf32: bool
    epilogue: str | None
    bias: GpuRef | None
    aux: GpuRef | None
    scale_a: GpuRef | None
    scale_b: GpuRef | None
    scale_out: GpuRef | None
    amax: bool
    fast_accum: bool
    layout_a: Layout | None
    layout_b: Layout | None
    layout_out: Layout | None


class MatmulOptions(HeuristicOptions, total=False):
    """The options of a product."""

    autotune: bool
    algorithm: int | None


class ProductOperands(NamedTuple):
    """The buffers of a product, by the names of the arguments of ``BlasLt.matmul``."""

    a: GpuRef
    b: GpuRef
    c: GpuRef | None
    bias: GpuRef | None
    scale_a: GpuRef | None
    scale_b: GpuRef | None
    scale_out: GpuRef | None
    out: GpuRef | None
    aux: GpuRef | None
    alpha: GpuRef | None = None


_NEEDED: Final = ProductOperands._fields[:2]
_STRIDED: Final = ("a", "b", "out")


class BlasLtOptions(NamedTuple):
    """All else that a plan depends on, each of one type."""

    layout_a: Layout | None
    layout_b: Layout | None
    layout_out: Layout | None
    trans_a: int
    trans_b: int
    dtype: np.dtype[Any] | None
    compute_type: str | None
    epilogue: str
    fast: bool
    amax: bool


@final
class BlasLtProduct(msgspec.Struct, frozen=True, gc=False):
    """A product that was checked for this call.

    Attributes:
        operands: its buffers.
        alpha, beta: the scalars as messages carry them.
        added: the array to add: c, or out.
        adds: True if an array is added.
    """

    operands: ProductOperands
    plan: BlasLtPlan
    alpha: Scalar
    beta: Scalar
    added: GpuRef | None
    adds: bool
    reads: list[Block]

    def submission(
        self,
        preparer: Preparer,
        algorithm: bytes,
        workspace_bytes: int,
        workspaces: Workspaces,
        *,
        scratch: bool = False,
    ) -> Submission[Any]:
        """Make outputs and the submission.

        An empty ``algorithm`` lets the lane choose. With ``scratch`` results go to buffers that are
        discarded, not to those of the caller.
        """
        a, b, _, side, scale_a, scale_b, scale_out, out, aux, factors = self.operands
        plan, added = self.plan, self.added
        epilogue, result, begin = plan.epilogue, out, plan.offset_d
        if result is None or (scratch and result.own_strides is None):
            result = preparer.output(plan.shape if out is None else out.shape, plan.dtype)
        elif scratch:  # of a view, with room for its gaps: they are part of the plan
            low, high = span(result.shape, result.strides, result.dtype.itemsize)
            result, begin = preparer.output((high - low,), _UINT8), begin - low
        results: Any = result
        writes = [result.block]
        largest = None
        if plan.several:
            if epilogue.makes_aux and (aux is None or scratch):
                aux = preparer.output(plan.aux_shape, plan.aux_dtype)
            if epilogue.bias_gradient:
                side = preparer.output(plan.gradient_shape, DTYPES[plan.bias_dtype])
            if plan.spec.amax:
                largest = preparer.output((), DTYPES["float32"])
            made = (aux if epilogue.makes_aux else None, side if epilogue.bias_gradient else None)
            results = MatmulResults(result, *made, largest)
            writes = [ref.block for ref in results if ref is not None]
        zeros = packed_a = packed_b = packed_scales = workspace = 0
        if plan.scratch:
            temporary = [
                preparer.output((size,), _UINT8).block if size else None
                for size in (plan.zeros, *plan.packed)
            ]
            zeros, packed_a, packed_b, packed_scales = (
                block.address if block else 0 for block in temporary
            )
            writes += filter(None, temporary)
        if workspace_bytes:
            # After everything that may have to wait, and so be asked for again.
            block = workspaces.obtain(preparer, workspace_bytes)
            workspace = block.address
            writes.append(block)
        message = RunBlasLt(
            plan.encoded,
            algorithm,
            zeros or a.addressable_block.address + plan.offset_a,
            zeros or b.addressable_block.address + plan.offset_b,
            0
            if added is None
            else added.addressable_block.address + (plan.offset_d if added is out else 0),
            result.addressable_block.address + begin,
            0 if side is None else side.block.address,
            0 if aux is None else aux.block.address,
            0 if scale_a is None else scale_a.block.address,
            0 if scale_b is None else scale_b.block.address,
            0 if scale_out is None else scale_out.block.address,
            0 if largest is None else largest.block.address,
            workspace,
            workspace_bytes,
            packed_a,
            packed_b,
            packed_scales,
            plan.zeros,
            self.alpha,
            self.beta,
            0 if factors is None else factors.block.address,
        )
        return Submission(message, self.reads, writes, results)


def check(
    operands: ProductOperands,
    options: BlasLtOptions,
    alpha: Number,
    beta: Number,
    memory: MemoryMap,
) -> BlasLtProduct:
    """Check everything that can be checked before outputs are made.

    ``alpha`` is 1 if the operands include one for each column.
    """
    if options[:3] != _NO_LAYOUTS:
        _require_layouts(options)
    reads = [
        require_readable(ref, memory, name, strided=name in _STRIDED)  # type: ignore[arg-type]
        for name, ref in zip(ProductOperands._fields, operands, strict=True)
        if ref is not None or name in _NEEDED
    ]
    given: list[Any] = [
        None if ref is None else Given(ref.shape, NAMES[ref.dtype], alignment(ref), None)
        for ref in operands
    ]
    if strided(operands.a, operands.b, operands.out):
        for at, laid in _laid(operands, options):
            given[at] = given[at]._replace(laid=laid)
    try:
        plan = make_plan(PlanKey._make((*given, *options)))
    except Unsupported:
        for name, ref in zip(_STRIDED, (operands.a, operands.b, operands.out), strict=True):
            if strided(ref):  # of contiguous ones one stride may lead to all
                raise not_contiguous(ref, name) from None  # type: ignore[arg-type]
        raise
    factor = alpha if type(alpha) is float and plan.real else _scale(alpha, plan, "alpha")
    scale = beta if type(beta) is float and plan.real else _scale(beta, plan, "beta")
    added, out, aux = operands.c, operands.out, operands.aux
    adds = scale not in _NOTHING
    if adds and added is None:
        added = out
        if added is None or plan.spec.d.dtype in FP8:
            why = "no out either" if added is None else "an fp8 result cannot be added to"
            raise ValueError(f"beta must be 0 without c, not {beta}: {why}")
    if out is not None or aux is not None:
        reads = _require_outputs(operands, plan, memory)
        if added is out and out is not None:
            reads.append(out.block)
    return BlasLtProduct(operands, plan, factor, scale, added, adds, reads)


def _laid(operands: ProductOperands, options: BlasLtOptions) -> Iterator[tuple[int, Laid]]:
    """Yield positions and layouts of views that are not contiguous.

    Raises:
        NotContiguous: a view that must be copied.
    """
    for name, op in (("a", options.trans_a), ("b", options.trans_b), ("out", 0)):
        ref: GpuRef | None = getattr(operands, name)
        if ref is None or ref.contiguous:
            continue
        if options[:3] != _NO_LAYOUTS or ref.ndim < 2 or ref.dtype.itemsize == 1:
            raise not_contiguous(ref, name)
        laid = laid_out(ref, ref.shape, op, name)
        one_step = ref.ndim == 3 or not laid.steps
        if name == "out" and (laid.op or not one_step or not ref.size or operands.c is not None):
            raise not_contiguous(ref, name)
        if options.epilogue and name == "out":
            raise not_contiguous(ref, name)
        yield ProductOperands._fields.index(name), laid


def _require_layouts(options: BlasLtOptions) -> None:
    for name, layout in zip(("a", "b", "out"), options[:3], strict=True):
        if layout is not None and not isinstance(layout, Layout):
            raise TypeError(f"layout_{name} must be a Layout, not {type(layout).__name__}")


def _scale(value: Number, plan: BlasLtPlan, name: str) -> Scalar:
    number = scalar(value, DTYPES[plan.spec.scale_type], name)
    if plan.spec.scale_type == "int32" and number not in (0.0, 1.0):
        raise ValueError(f"{name} must be 0 or 1 for int8, not {value}")
    return number


def _require_outputs(operands: ProductOperands, plan: BlasLtPlan, memory: MemoryMap) -> list[Block]:
    """Check the caller's output buffers, and return the blocks that are only read."""
    out, aux = operands.out, operands.aux
    written = []
    if out is not None:
        require_writable(out, memory, "out", strided=True)
        written.append(("out", out))
    if plan.epilogue.makes_aux and aux is not None:
        require_writable(aux, memory, "aux")
        written.append(("aux", aux))
    read = [
        (name, ref)
        for name, ref in zip(ProductOperands._fields, operands, strict=True)
        if ref is not None and name != "out" and (name != "aux" or plan.epilogue.takes_aux)
    ]
    require_no_alias("matmul", written, read, in_place=_IN_PLACE)
    return [ref.block for _, ref in read]
