"""``einsum``: any number of operands, in steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias, get_args

import numpy as np

from ..._dtypes import HALVES, as_dtype
from ..._errors import said_of
from ...arrays import GpuRef, ref_error
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.promotion import FLOAT32
from ...arrays.views import strides_of
from ...ops import ARRAY_LANE as ARRAY
from ...ops import AsRequests, Collected, D, Request, Submission, op
from ...wire.recent import Recent
from ..array.steps import CallSteps, target_of
from ..blas.checks import LANE as BLAS
from ._operations import LANE, TensorOperations
from ._plan import ArrayLayout, Contraction, CopyStep, EinsumPlan, MatrixProduct, Sum, make_plan
from ._subscripts import Terms, interleaved, parse, resolve
from .wire._messages import Available

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...ops import DeviceView, LaneSpec, Preparer
    from ..blas.facade import Blas
    from ..cub.facade import Cub
    from ._plan import ArrayView

Subscripts: TypeAlias = "str | Operand"
Sublist: TypeAlias = "Sequence[SupportsIndex | EllipsisType]"
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Optimize: TypeAlias = "bool | str | tuple[str, int] | Sequence[str | tuple[int, ...]]"

_CASTINGS: Final = get_args(Casting)
_MOST_PLANS: Final = 1024


@dataclass(slots=True)
class _HostFacts:
    """Facts about the host.

    Attributes:
        cutensor: True if it has the library; None if it has not been asked.
    """

    cutensor: bool | None = None


class Einsum(TensorOperations[D]):
    """The part of ``Tensor`` that takes any number of operands."""

    def __init__(self, device: DeviceView, blas: Blas[Any], cub: Cub[Any]) -> None:
        super().__init__(device)
        self._found = _HostFacts()
        self._blas: Blas[AsRequests] = blas.as_requests(device)
        self._cub: Cub[AsRequests] = cub.as_requests(device)
        self._sums: Recent[Hashable, EinsumPlan] = Recent(_MOST_PLANS, name="sums")
        self.caches: tuple[Recent[Any, Any], ...] = (*self.caches, self._sums)

    @op
    def einsum(
        self,
        subscripts: Subscripts,
        *operands: Operand | Sublist,
        out: GpuRef | None = None,
        dtype: DTypeLike | None = None,
        casting: Casting = "safe",
        optimize: Optimize = True,
    ) -> Request[GpuRef]:
        """Sums of products along the axes that subscripts name; as ``numpy.einsum``.

        Pairs are multiplied along a path of opt_einsum's. If the memory of a pair is a batch of
        matrices, transposed or not, cuBLAS multiplies it. Other pairs take one call of cuTENSOR if
        it is installed; if not, an array is copied first. Products without a common axis, sums, and
        everything with integers and bools run as kernels of expressions.

        Args:
            subscripts: such as ``"ij,jk->ik"``, with ``...`` for axes that broadcast. Or the first
                operand, followed by its subscripts as a list of numbers, then further operands and
                lists; a last list is that of the result.
            *operands: refs or expressions, including any views.
            out: where to put the result: no memory in common with operands. Made if absent.
            dtype: the dtype of the computation and the result; by default the one to which all
                operands promote. Sums of 16-bit floats are computed in float32, and rounded after
                each pair.
            casting: allowed conversions to ``dtype``; conversions to the dtype of ``out`` may be of
                the same kind.
            optimize: how to find the path: True is opt_einsum's ``"auto"``, False multiplies from
                left to right. It may also be a name such as ``"optimal"`` or ``"greedy"``, a name
                with a limit for elements of intermediate arrays, or a path of
                ``numpy.einsum_path``.

        Returns:
            ``out``, or a new C-contiguous array; never a view.

        Raises:
            ValueError: invalid subscripts, or ones that do not fit the operands; sizes that do not
                broadcast, or differ along a diagonal. Also ``out`` of another shape, or an unknown
                ``casting`` or ``optimize``.
            TypeError: an operand that is not an array of the device; dtypes that do not cast.
        """
        terms, arrays = _read(subscripts, operands)
        for at, each in enumerate(arrays):
            if not isinstance(each, Operand):
                raise ref_error(each, self.home.memory, f"operand {at}")
        kind = _dtype_of(arrays, dtype, casting)
        asked = (terms, arrays, out, kind, optimize)
        without = self._planned(*asked, contracts=False)
        ends = not without.copies and isinstance(without.steps[-1], MatrixProduct)
        lane: LaneSpec = BLAS if ends else ARRAY

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            plan = without
            if without.copies and self._contracts(preparer):
                plan = self._planned(*asked, contracts=True)
            steps = CallSteps(preparer, self._cub, lane)
            refs = [steps.ref(each, f"operand {at}") for at, each in enumerate(arrays)]
            reads = [(f"operand {at}", ref) for at, ref in enumerate(refs)]
            result = target_of(steps, out, plan.shape, kind, reads, op="einsum")
            scratch = [steps.output(shape, kind) for shape in plan.scratch]
            self._perform(steps, plan, [*refs, result, *scratch])
            return steps.result(result)

        return Request(lane, "tensor.einsum", prepare)

    def _contracts(self, preparer: Preparer) -> bool:
        """Return True if cuTENSOR is available.

        The lane is asked once. Batches and recordings get no answers, so they do not ask, and use
        the answer of an earlier call if there is one. The choice may therefore vary between calls,
        so a deterministic device does not use cuTENSOR.
        """
        if self.home.deterministic:
            return False
        found = self._found
        known = found.cutensor
        if known is None and preparer.home.call_mode is not Collected:
            asking: Request[bool] = Request(
                LANE,
                "tensor.available",
                lambda _preparer: Submission(Available(), (), ()),
                key="tensor.available",
            )
            known = found.cutensor = preparer.perform(asking)
        preparer.depends(lambda: found.cutensor is known)
        return bool(known)

    def _planned(
        self,
        terms: Terms,
        arrays: Sequence[Operand],
        out: GpuRef | None,
        dtype: np.dtype[Any],
        optimize: Any,
        *,
        contracts: bool,
    ) -> EinsumPlan:
        """The plan for operands that lie so, with cuTENSOR or without."""
        layouts = tuple(map(_layout, arrays))
        given = _layout(out) if isinstance(out, GpuRef) else None
        key = (terms, layouts, given, dtype, repr(optimize), contracts)
        plan = self._sums.get(key)
        if plan is not None:
            return plan
        labelled = resolve(terms, tuple(each.shape for each in layouts))
        if given is not None and given.shape != tuple(labelled.sizes[at] for at in labelled.output):
            given = None  # which is refused with all that is known of it
        plan = make_plan(labelled, layouts, given, dtype, optimize, contracts=contracts)
        return self._sums.add(key, plan)

    def _perform(self, steps: CallSteps, plan: EinsumPlan, values: list[GpuRef]) -> None:
        """Do the steps of a plan."""
        described: TensorOperations[AsRequests] = self.as_requests(self.home)

        def seen(view: ArrayView) -> GpuRef:
            return values[view.value].with_layout(view.shape, view.strides)

        for step in plan.steps:
            match step:
                case MatrixProduct(a, b, target):
                    steps.do(self._blas.gemm(seen(a), seen(b), out=seen(target)))
                case Sum(parts, axes, target):
                    steps.evaluate(_sum([seen(each) for each in parts], axes), seen(target))
                case CopyStep(source, target):
                    given, made = seen(source), seen(target)
                    if given.dtype is made.dtype:
                        steps.assign((given, made))
                    else:  # by whichever rule, which the caller chose
                        steps.evaluate(cast(given, made.dtype), made)
                case Contraction((a, b, target), (modes_a, modes_b, modes)):
                    steps.do(
                        described.contract(
                            seen(a), modes_a, seen(b), modes_b, modes, out=seen(target)
                        )
                    )


def _read(
    subscripts: Subscripts, operands: tuple[Operand | Sublist, ...]
) -> tuple[Terms, list[Any]]:
    """Subscripts and operands, in whichever form."""
    if isinstance(subscripts, str):
        return parse(subscripts), [*operands]
    given: list[Any] = [subscripts, *operands]
    if len(given) < 2:
        raise ValueError(
            "einsum takes subscripts and operands, or operands, each with a list of its "
            f"subscripts behind it; not {said_of(subscripts)} alone"
        )
    last = given.pop() if len(given) % 2 else None
    return interleaved(given[1::2], last), given[::2]


def _layout(array: Operand) -> ArrayLayout:
    """Return the layout of an operand; an expression will be contiguous."""
    if isinstance(array, GpuRef):
        return ArrayLayout(array.shape, array.strides, array.dtype)
    return ArrayLayout(array.shape, strides_of(array.shape, array.dtype.itemsize), array.dtype)


def _dtype_of(
    arrays: Sequence[Operand], dtype: DTypeLike | None, casting: Casting
) -> np.dtype[Any]:
    """Return the dtype of the computation."""
    if casting not in _CASTINGS:
        raise ValueError(f"casting must be one of {', '.join(_CASTINGS)}, not {casting!r}")
    kind = as_dtype(np.result_type(*(each.dtype for each in arrays)) if dtype is None else dtype)
    for at, each in enumerate(arrays):
        if each.dtype is not kind and not np.can_cast(each.dtype, kind, casting):
            raise TypeError(
                f"Cannot cast operand {at} from {each.dtype!r} to {kind!r} according to the rule "
                f"{casting!r}"
            )
    return kind


def _sum(parts: list[GpuRef], axes: int) -> Operand:
    """A product of arrays, summed along its last axes."""
    dtype = parts[0].dtype
    last = tuple(range(-axes, 0))
    terms: list[Any] = list(parts)
    if dtype in HALVES and axes:
        terms = [cast(each, FLOAT32) for each in parts]
    product: Any = terms[0]
    if len(terms) > 1:
        product = terms[0] & terms[1] if dtype.kind == "b" else terms[0] * terms[1]
    if not axes:
        return product  # type: ignore[no-any-return]
    total: Any = (
        np.any(product, last) if dtype.kind == "b" else np.sum(product, last, terms[0].dtype)
    )
    return cast(total, dtype)
