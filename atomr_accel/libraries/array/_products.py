"""Matrix products in expressions: cuBLAS computes them, between the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Expression, sum_of_products
from ...ops import ARRAY_LANE, Request, RequestsOnly, Submission, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...arrays.expressions import Operand
    from ...ops import AsRequests, Preparer
    from ..blas.facade import Blas
    from .graph import ExpressionGraph

_BY_BLAS: Final = frozenset(
    ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
)


def has_products(graph: ExpressionGraph, *, interpreted: bool) -> bool:
    """Return whether a graph has matrix products that kernels do not compute.

    An interpreter computes products of integers, for which cuBLAS has no function.
    """
    return any(not interpreted or _by_blas(graph, at) for at in graph.products)


def _by_blas(graph: ExpressionGraph, at: int) -> bool:
    return NAMES[graph.values[at].dtype] in _BY_BLAS


def computing_products(
    graph: ExpressionGraph,
    outs: tuple[GpuRef, ...] | None,
    operands_of: Callable[[Preparer], Sequence[GpuRef]],
    evaluating: Callable[..., Request[Any]],
    *,
    interpreted: bool,
    single: bool,
) -> Request[Any]:
    """Return the request to compute a graph with matrix products.

    The operands of each product are computed first, unless they are buffers. A product that is the
    whole result goes to its place directly, unless an operand is there. ``operands_of`` returns
    checked operands. ``single`` makes the result a ref rather than a tuple.
    """
    from ..blas.facade import LANE, Blas

    direct: dict[int, int] = {}
    if not any(overlap(out, ref) for out in outs or () for ref in graph.operands):
        wanted = {at: place for place, at in reversed([*enumerate(graph.results)])}
        direct = {at: wanted[at] for at in graph.products if at in wanted and _by_blas(graph, at)}
    only = len(direct) == len(graph.results) == 1

    def prepare(preparer: Preparer) -> Submission[Any]:
        operands = operands_of(preparer)
        blas: Blas[AsRequests] = Blas(RequestsOnly(preparer.home))
        steps: list[Request[Any]] = []

        def buffer(x: Operand) -> GpuRef:
            ref = _as_ref(x)
            if ref is None:
                ref = preparer.output(x.shape, x.dtype)
                steps.append(evaluating((x,), ref))
            return ref

        def product(at: int, a: Operand, b: Operand) -> Operand:
            if not _by_blas(graph, at):
                return a @ b if interpreted else sum_of_products(a, b)
            value = graph.values[at]
            left, right = buffer(a), buffer(b)
            if outs is None or at not in direct:
                result = preparer.output(value.shape, value.dtype)
            else:
                result = outs[direct[at]]
            steps.append(blas.matmul(left, right, result))
            return result

        made = graph.rebuilt(operands, product)
        rest = [place for place, at in enumerate(graph.results) if direct.get(at) != place]
        results: list[Any] = [*made]
        last: Submission[Any] = Submission(None, (), ())
        if rest:
            targets = None if outs is None else tuple([outs[place] for place in rest])
            last = evaluating(tuple([made[place] for place in rest]), targets).prepare(preparer)
            computed: Any = last.result if len(rest) > 1 else (last.result,)
            for place, ref in zip(rest, computed, strict=True):
                results[place] = ref
        elif only:
            last = steps.pop().prepare(preparer)
        result = results[0] if single else tuple(results)
        return msgspec.structs.replace(last, result=result).around(steps)

    return Request(LANE if only else ARRAY_LANE, "array.evaluate", prepare)


def _as_ref(x: Operand) -> GpuRef | None:
    """Return an operand of a product as a view of a buffer; None if it has to be computed."""
    if isinstance(x, GpuRef):
        return x
    if not isinstance(x, Expression) or x.kind != "view":
        return None
    (ref,), (axes,) = x.args, x.params
    if not isinstance(ref, GpuRef):
        return None
    if any(at is None and extent != 1 for at, extent in zip(axes, x.shape, strict=True)):
        return None
    used = [at for at in axes if at is not None]
    gone = tuple([at for at in range(ref.ndim) if at not in used])
    order = [at - sum(each < at for each in gone) for at in used]
    key = tuple([None if at is None else slice(None) for at in axes])
    return ref.squeeze(gone).transpose(tuple(order))[key]
