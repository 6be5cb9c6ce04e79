"""Evaluating expressions: ``device.evaluate``, ``batch.evaluate`` and their like."""

from __future__ import annotations

import weakref
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, EllipsisType, FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    final,
    overload,
)
from weakref import WeakKeyDictionary

import numpy as np

from ..._dtypes import NAMES, SCALARS
from ..._errors import said_of
from ...arrays import GpuRef
from ...arrays.expressions import Expression, Operand, broadcast, cast
from ...memory import block_at, origin, part_of
from ...ops import ARRAY_LANE as LANE
from ...ops import (
    BLOCK_ALIGNMENT,
    D,
    Facade,
    LaneSpec,
    NoTemplate,
    Pending,
    Request,
    Submission,
    alignment,
    op,
    overlap,
    require_readable,
    require_writable,
)
from ...wire.recent import Recent
from ._plan import BufferLayout, Conflict, EvaluationPlan, make_plan
from ._products import computing_products, has_products
from ._resident import BuiltKernel, built
from .graph import ExpressionGraph
from .wire._program import (
    ExpressionLaunch,
    ExpressionStep,
    Interpret,
    KernelForm,
    RunKernels,
    StridedArray,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping

    from ...memory import Block, MemoryMap
    from ...ops import AsRequests, Awaited, Collected, DeviceView, Preparer

_EXECUTORS: Final = {"cuda": "atomr_accel.libraries.array.host._cuda_expression:CudaBuilder"}
BUILDS: Final = LaneSpec("array-builds", _EXECUTORS, watched=False, own_thread=True)
"""Compiles kernels, which may take a second, while the other lane launches those there are."""

_MOST_PLANS: Final = 2048
_MOST_KERNELS: Final = 1024
_MOST_FUSED: Final = 256

_NOTHING_CAPTURED: Final[Mapping[int, weakref.ref[Block]]] = MappingProxyType({})

_One_co = TypeVar("_One_co", covariant=True)
_More_co = TypeVar("_More_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

Computed: TypeAlias = "Operand | np.ndarray[Any, np.dtype[Any]]"
"""Arguments of a computation. To type checkers, NumPy's functions return arrays."""


class Evaluator:
    """Plans and kernels of the expressions that a device has computed.

    Attributes:
        plans: plans of expressions, by everything that their kernels depend on.
        kernels: built kernels, by form.
    """

    __slots__ = ("__weakref__", "kernels", "plans")

    def __init__(self) -> None:
        self.plans: Final[Recent[Hashable, tuple[EvaluationPlan, tuple[BuiltKernel, ...]]]] = (
            Recent(_MOST_PLANS, name="plans")
        )
        self.kernels: Final[Recent[KernelForm, BuiltKernel]] = Recent(_MOST_KERNELS, name="kernels")

    def kernel(self, form: KernelForm) -> BuiltKernel:
        """The kernel of a form, which may have to be built yet."""
        found = self.kernels.get(form)
        return found or self.kernels.add(form, BuiltKernel(form))


_EVALUATORS: Final[WeakKeyDictionary[MemoryMap, Evaluator]] = WeakKeyDictionary()


def evaluator_of(memory: MemoryMap) -> Evaluator:
    """Return the plans and kernels of a device."""
    found = _EVALUATORS.get(memory)
    if found is None:
        found = _EVALUATORS[memory] = Evaluator()
    return found


def evaluating(
    interpreted: bool,
    expressions: tuple[Any, ...],
    out: GpuRef | tuple[GpuRef, ...] | None,
) -> Request[Any]:
    """The request to compute expressions.

    Args:
        interpreted: whether the device computes step by step, and compiles no kernels.
        expressions: the expressions to compute.
        out: the buffers for the results; made if absent.
    """
    if not expressions:
        raise TypeError("evaluate takes at least one expression")
    for each in expressions:
        if not isinstance(each, Operand):
            raise TypeError(
                f"evaluate takes expressions, made of refs by operators and NumPy's functions, "
                f"not {said_of(each)}"
            )
    outs: tuple[GpuRef, ...] | None = None
    if out is not None:
        outs = out if isinstance(out, tuple) else (out,)
        if len(outs) != len(expressions):
            raise ValueError(f"{len(expressions)} expressions have as many outs, not {len(outs)}")
        expressions = tuple(map(_fitted, expressions, outs))
    return computing(interpreted, ExpressionGraph(expressions), outs)


def computing(
    interpreted: bool,
    graph: ExpressionGraph,
    outs: tuple[GpuRef, ...] | None = None,
    *,
    single: bool | None = None,
    captured: Mapping[int, weakref.ref[Block]] = _NOTHING_CAPTURED,
) -> Request[Any]:
    """The request to compute a graph.

    ``captured`` are the buffers of operands that are not of the call's arguments.
    """
    targets = [(graph.values[at].shape, graph.values[at].dtype) for at in graph.results]
    if single is None:
        single = len(targets) == 1

    def start(preparer: Preparer) -> tuple[ExpressionGraph, list[Block]]:
        memory = preparer.memory
        on = graph.on(
            [_standing(ref, preparer, captured.get(at)) for at, ref in enumerate(graph.operands)]
        )
        reads = [require_readable(ref, memory, "an operand", strided=True) for ref in on.operands]
        if outs is not None:
            for at, ref in enumerate(outs):
                name = "out" if len(outs) == 1 else f"out[{at}]"
                require_writable(ref, memory, name, strided=True)
            _require_apart(outs)
        return on, reads

    if has_products(graph, interpreted=interpreted):
        return computing_products(
            graph,
            outs,
            lambda preparer: start(preparer)[0].operands,
            partial(evaluating, interpreted),
            interpreted=interpreted,
            single=single,
        )

    def prepare(preparer: Preparer) -> Submission[Any]:
        on, reads = start(preparer)
        made = outs or tuple([preparer.output(shape, dtype) for shape, dtype in targets])
        writes = [ref.block for ref in made]
        if interpreted:
            message: Any = _interpret(on, made)
        else:
            message = _run(preparer, on, made, reads, writes, given=outs is not None)
        return Submission(message, reads, writes, made[0] if single else made)

    return Request(LANE, "array.evaluate", prepare)


def _standing(ref: GpuRef, preparer: Preparer, captured: weakref.ref[Block] | None) -> GpuRef:
    """Return the ref that stands for an operand in a request."""
    if captured is not None:
        memory = preparer.memory

        def still() -> bool:
            base = captured()
            return base is not None and base.epoch in (memory.epoch, memory.sealed_epoch)

        def base(_preparer: Preparer) -> Block:
            found = captured()
            if found is None:
                raise Pending(LANE)  # so that the function is called anew
            return found

        require_readable(ref, memory, "an operand", strided=True)
        preparer.depends(still)
        ref = _view(ref, preparer.obtain(base), ref.block.offset)
    return preparer.stand_in(ref)


def _fitted(expression: Operand, out: GpuRef) -> Operand:
    """An expression with the shape and dtype of where it goes."""
    if not isinstance(out, GpuRef):
        raise TypeError(f"out must be a GpuRef, not {said_of(out)}")
    dtype = expression.dtype
    if dtype is not out.dtype and not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast output from {dtype!r} to {out.dtype!r} with casting rule 'same_kind'; "
            f"write expression.astype({out.dtype.name!r}) if that is what is meant"
        )
    if expression.shape != out.shape:
        try:
            expression = broadcast(expression, out.shape)
        except ValueError:
            raise ValueError(
                f"non-broadcastable output operand with shape {out.shape} doesn't match the "
                f"broadcast shape {expression.shape}"
            ) from None
    return cast(expression, out.dtype)


def _require_apart(outs: tuple[GpuRef, ...]) -> None:
    for at, one in enumerate(outs):
        for number, other in enumerate(outs[:at]):
            if overlap(one, other):
                raise ValueError(
                    f"out[{at}] shares memory with out[{number}]; give each result its own"
                )


def _array(ref: GpuRef) -> StridedArray:
    return StridedArray(ref.addressable_block.address, ref.shape, ref.strides, NAMES[ref.dtype])


def _interpret(graph: ExpressionGraph, made: tuple[GpuRef, ...]) -> Interpret:
    return Interpret(
        tuple(
            ExpressionStep(
                each.kind,
                each.name,
                each.args,
                each.shape,
                NAMES[each.dtype],
                each.axes,
                each.keepdims,
            )
            for each in graph.values
        ),
        tuple(map(_array, graph.operands)),
        graph.words,
        graph.results,
        tuple(map(_array, made)),
    )


def _layout(ref: GpuRef) -> BufferLayout:
    return BufferLayout(ref.shape, ref.strides, ref.dtype, alignment(ref))


def _signature(ref: GpuRef) -> tuple[object, ...]:
    """Return the parts of a ref that a plan depends on, besides its shape and dtype."""
    return ref.own_strides, ref.block.offset & (BLOCK_ALIGNMENT - 1)


def _conflicts(operands: list[GpuRef], made: tuple[GpuRef, ...]) -> tuple[Conflict, ...]:
    """Which outputs share memory with which operands."""
    found: list[Conflict] = []
    for at, out in enumerate(made):
        for number, ref in enumerate(operands):
            if overlap(out, ref):
                same = (
                    origin(out.block) == origin(ref.block)
                    and out.shape == ref.shape
                    and out.strides == ref.strides
                    and out.dtype is ref.dtype
                )
                found.append(("same" if same else "part", at, number))
    return tuple(found)


def _run(
    preparer: Preparer,
    graph: ExpressionGraph,
    made: tuple[GpuRef, ...],
    reads: list[Block],
    writes: list[Block],
    *,
    given: bool,
) -> RunKernels | None:
    """Return the launches that compute a graph; adds the further blocks to reads and writes."""
    evaluator = evaluator_of(preparer.memory)
    conflicts = _conflicts(graph.operands, made) if given else ()
    key = (
        graph.structure,
        graph.results,
        tuple([_signature(ref) for ref in graph.operands]),
        tuple([_signature(ref) for ref in made]) if given else None,
        conflicts,
    )
    planned = evaluator.plans.get(key)
    if planned is None:
        plan = make_plan(
            graph.values,
            graph.results,
            tuple(map(_layout, graph.operands)),
            tuple(map(_layout, made)),
            conflicts,
        )
        kernels = tuple([evaluator.kernel(each.form) for each in plan.launches])
        planned = evaluator.plans.keep(key, (plan, kernels))
    plan, kernels = planned
    if not kernels:
        return None
    reads += built(kernels, preparer, BUILDS)
    places: dict[str, list[Any]] = {"operand": graph.operands, "output": [*made]}
    places["scratch"] = [preparer.output((count,), dtype) for count, dtype in plan.scratch]
    writes += [ref.block for ref in places["scratch"]]
    words = graph.words
    launches = tuple(
        ExpressionLaunch(
            kernel.number,
            each.blocks,
            tuple(
                [
                    0
                    if place is None
                    else places[place.kind][place.number].addressable_block.address
                    for place in each.places
                ]
            ),
            each.numbers,
            tuple([word for at in each.constants for word in _padded(words[at])]),
        )
        for kernel, each in zip(kernels, plan.launches, strict=True)
    )
    return RunKernels(launches)


def _padded(words: tuple[int, ...]) -> tuple[int, ...]:
    return words if len(words) % 2 == 0 else (*words, 0)


# --- how it is called ----------------------------------------------------------------------


class Evaluate(Protocol[_One_co, _More_co]):
    """Type of ``evaluate``: the number of expressions decides the type of the result."""

    @overload
    def __call__(self, expression: Computed, /, *, out: GpuRef | None = ...) -> _One_co: ...
    @overload
    def __call__(
        self,
        first: Computed,
        second: Computed,
        /,
        *others: Computed,
        out: tuple[GpuRef, ...] | None = ...,
    ) -> _More_co: ...


_Waiting: TypeAlias = Evaluate[
    "Coroutine[Any, Any, GpuRef]", "Coroutine[Any, Any, tuple[GpuRef, ...]]"
]


class evaluate_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(self, facade: None, owner: Any = None) -> _Waiting: ...
    @overload
    def __get__(self, facade: Facade[Awaited], owner: Any = None) -> _Waiting: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> Evaluate[GpuRef, tuple[GpuRef, ...]]: ...
    @overload
    def __get__(
        self, facade: Facade[AsRequests], owner: Any = None
    ) -> Evaluate[Request[GpuRef], Request[tuple[GpuRef, ...]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


@final
class Fused(Facade[D], Generic[D, P, R]):
    """A function whose expressions are computed by one call. Made by ``device.fuse``."""

    templated = True

    def __init__(self, device: DeviceView, function: Callable[P, Any]) -> None:
        self.home = device
        self._function = function
        self._known: Recent[Hashable, _Traced] = Recent(_MOST_FUSED)

    def __repr__(self) -> str:
        return f"<Fused {getattr(self._function, '__qualname__', self._function)}>"

    @op
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Request[R]:
        """Compute what the function makes of refs, and of other arguments.

        Raises:
            TypeError: the function returns no expression, or reads the content of refs.
            Exception: any error of the function, or of ``evaluate``.
        """
        interpreted = self.home.capabilities.python_kernels
        refs: list[GpuRef] = []
        try:
            key = (len(args), tuple(kwargs), _signed((*args, *kwargs.values()), refs))
        except _NoKeyError:
            results, single = self._made(args, kwargs)
            return computing(interpreted, ExpressionGraph(results), single=single)
        traced = self._known.get(key)
        used = None if traced is None else traced.operands_on(refs)
        if traced is None or used is None:
            made, used = self._traced(refs, args, kwargs)
            traced = self._known.keep(key, made)
        return computing(
            interpreted, traced.graph.on(used), single=traced.single, captured=traced.captured
        )

    def _made(self, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Operand, ...], bool]:
        """Return the results of the function, and whether it returned a single one."""
        function: Callable[..., Any] = self._function
        made = function(*args, **kwargs)
        single = not isinstance(made, tuple)
        results: tuple[Any, ...] = (made,) if single else made
        if not results or not all(isinstance(each, Operand) for each in results):
            raise TypeError(
                f"{self!r} has to give an expression, or a tuple of them, not {said_of(made)}"
            )
        return results, single

    def _traced(
        self, refs: list[GpuRef], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Traced, list[GpuRef]]:
        """Trace the function with stand-ins; return the trace and the operands of this call."""
        memory = self.home.memory
        stand_ins: dict[Block, int] = {}

        def stand_in(ref: GpuRef) -> GpuRef:
            block = block_at(memory, 0, 0)
            stand_ins[block] = len(stand_ins)
            return ref.on_block(block)

        given = _replaced((*args, *kwargs.values()), stand_in)
        named = dict(zip(kwargs, given[len(args) :], strict=True))
        results, single = self._made(given[: len(args)], named)
        graph = ExpressionGraph(results)
        operands, used = [], []
        captured: dict[int, weakref.ref[Block]] = {}
        for at, ref in enumerate(graph.operands):
            base, offset = ref.block.base, ref.block.offset
            argument = stand_ins.get(base)
            if argument is None:
                captured[at] = weakref.ref(base)
            like = ref.on_block(block_at(memory, 0, 0))
            operands.append(_FusedOperand(argument or 0, offset, like))
            used.append(
                ref if argument is None else _view(like, refs[argument].addressable_block, offset)
            )
        return _Traced(graph.on([]), tuple(operands), captured, single), used


class _FusedOperand(NamedTuple):
    """Operand of a fused function.

    Attributes:
        argument: the index of the argument of which it is a view, unless it is captured.
        offset: its distance from the start of that argument, in bytes.
        like: a ref of its shape, dtype and strides.
    """

    argument: int
    offset: int
    like: GpuRef


class _Traced(NamedTuple):
    """CallTemplate of a fused function for one signature of arguments.

    Attributes:
        graph: the computation.
        operands: the operands that it reads.
        captured: the buffers of operands that come from no argument. It does not keep them alive.
        single: whether the function returns one expression.
    """

    graph: ExpressionGraph
    operands: tuple[_FusedOperand, ...]
    captured: dict[int, weakref.ref[Block]]
    single: bool

    def operands_on(self, refs: list[GpuRef]) -> list[GpuRef] | None:
        """Return the operands for such arguments; None if a captured one is gone."""
        used = []
        for at, (argument, offset, like) in enumerate(self.operands):
            captured = self.captured.get(at)
            if captured is None:
                used.append(_view(like, refs[argument].addressable_block, offset))
                continue
            base = captured()
            if base is None:
                return None
            ref = _view(like, base, offset)
            if ref.is_stale:
                return None
            used.append(ref)
        return used


def _view(like: GpuRef, block: Block, offset: int) -> GpuRef:
    return like.on_block(part_of(block, offset) if offset else block)


class _NoKeyError(Exception):
    """Signals arguments without a key."""


def _signed(value: Any, refs: list[GpuRef]) -> Hashable:
    """Return the parts of an argument that a fused function may depend on; adds its refs.

    Raises:
        _NoKeyError: the parts cannot be compared, or cannot be kept without a ref.
    """
    kind = type(value)
    if kind is GpuRef:
        refs.append(value)
        return kind, value.shape, value.dtype, value.own_strides
    if kind is Expression:
        graph = ExpressionGraph((value,))
        if any(type(word) is not int for words in graph.words for word in words):
            raise NoTemplate  # a function may be called for each number
        refs += graph.operands
        strides = tuple([ref.own_strides for ref in graph.operands])
        return kind, graph.structure, graph.results, strides, graph.words
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind, tuple([_signed(each, refs) for each in value])
    if kind is dict:
        return kind, tuple([(_signed(at, refs), _signed(each, refs)) for at, each in value.items()])
    if kind in (float, complex):
        return kind, np.array(value).tobytes()  # zeros and NaN have a sign, and NaN cannot be a key
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if (
        (kind is type and value in SCALARS)
        or kind in _PLAIN
        or isinstance(value, np.dtype | np.ufunc | Enum)
    ):
        return kind, value  # 1 and True are one key
    if kind is FunctionType and not (
        value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__
    ):
        return kind, value
    if is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
        within: list[GpuRef] = []
        parts = [_signed(getattr(value, each.name), within) for each in fields(kind)]
        if not within:
            return kind, tuple(parts)
    raise _NoKeyError


_PLAIN: Final = frozenset((bool, int, str, bytes, type(None), EllipsisType, BuiltinFunctionType))
"""Types of values that can be keys and hold no buffer."""


def _replaced(value: Any, stand_in: Callable[[GpuRef], GpuRef]) -> Any:
    """Return an argument with its refs replaced by others, in the order of ``_signed``."""
    kind = type(value)
    if kind is GpuRef:
        return stand_in(value)
    if kind is Expression:
        graph = ExpressionGraph((value,))
        return graph.rebuilt([stand_in(ref) for ref in graph.operands])[0]
    if kind in (tuple, list):
        return kind([_replaced(each, stand_in) for each in value])
    if kind is dict:
        return {at: _replaced(each, stand_in) for at, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._make([_replaced(each, stand_in) for each in value])  # type: ignore[attr-defined]
    return value


class Evaluating(Facade[D]):
    """Computation of expressions on a device, in a batch and in a recording."""

    templated = True

    @evaluate_op
    def evaluate(
        self, *expressions: Computed, out: GpuRef | tuple[GpuRef, ...] | None = None
    ) -> Request[GpuRef | tuple[GpuRef, ...]]:
        """Compute expressions, which refs, operators and NumPy's functions have made.

        On CUDA they become as few kernels as possible, usually one. A kernel is compiled when
        expressions of its structure are first computed. Sizes and numbers are not part of the
        structure. Elementwise functions round each result as NumPy does. On the CPU backend NumPy
        computes them step by step.

        Several expressions in one call share their common parts.

        ``device.requests.evaluate(...)`` is for ``batch.perform``, and for ``device.array.ref``.

        Args:
            *expressions: the expressions to compute.
            out: the buffer for the result, or a tuple of them for several expressions. It may be,
                or share memory with, an operand of the expression. It has the expression's shape,
                or one to which this broadcasts, and a dtype of the same kind.

        Returns:
            The result as a new ref, or ``out``; for several expressions a tuple.

        Raises:
            TypeError: an argument is not an expression; or the result does not cast to ``out``
                within one kind.
            ValueError: ``out`` of another shape; refs of another device; two results that share
                memory.
        """
        interpreted = self.home.capabilities.python_kernels
        return evaluating(interpreted, expressions, out)

    @overload
    def fuse(self, function: Callable[P, Computed]) -> Fused[D, P, GpuRef]: ...
    @overload
    def fuse(
        self, function: Callable[P, tuple[Computed, ...]]
    ) -> Fused[D, P, tuple[GpuRef, ...]]: ...
    def fuse(self, function: Callable[P, Any]) -> Fused[D, P, Any]:
        """Turn a function that computes with refs into one call.

        ::

            @device.fuse
            def gelu(x: GpuRef) -> Operand:
                return 0.5 * x * (1 + scipy.special.erf(x / np.sqrt(2)))


            y = await gelu(x)

        The function is called with stand-ins. That happens once for each signature: the shapes,
        dtypes and layouts of its refs, and its other arguments. Its result is computed as by
        ``evaluate``. So the function cannot see the content of refs. Refs may be inside tuples,
        lists, dicts and expressions. If an argument is neither of these nor a plain value, the
        function is called each time.

        Numbers and refs that the function takes from elsewhere are captured when it is called, and
        keep their value of that time. So pass a value that changes as an argument. A captured ref
        is not kept alive. The function is called again once a captured ref was freed, is stale, or
        has no other holder.

        Args:
            function: returns an expression, or a tuple of them, and does nothing else.

        Returns:
            A callable with the same arguments that returns a ref, or a tuple of them. On a device
            it is awaited; in a batch it returns them at once. ``batch.using`` makes one of the
            other.
        """
        if not callable(function):
            raise TypeError(f"fuse takes a function, not {said_of(function)}")
        return Fused(self.home, function)
