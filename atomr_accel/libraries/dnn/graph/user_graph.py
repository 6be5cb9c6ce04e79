"""Graphs of users' own: ``device.dnn.graph()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from ....ops import (
    D,
    Facade,
    Request,
    Submission,
    op,
    require_made_on,
    require_no_race,
    require_readable,
)
from ....wire.options import flag, real
from ..wire._element_types import FLOATS, INTEGERS, fitting
from ..wire._graph import strides_of
from ..wire._messages import PrepareGraph
from ..wire._nodes import NODES
from ._builder import Builder, Symbol
from ._operations import GraphOperations
from ._run import PLANNER, DnnPart, EncodedGraph, GraphCall, RunOutput
from ._signatures import build_op, run_op
from .layout import paddings, physical, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike

    from ....arrays import GpuRef
    from ....memory import MemoryMap
    from ....ops import DeviceView, Preparer
    from ..wire._graph import DnnTensor
    from ._run import DnnPlanCache
    from ._signatures import OneOrMore
    from .layout import Padding, Steps

R = TypeVar("R")


@final
class GraphTensor:
    """A tensor of a graph that is being made.

    Numbers and nodes can be added, subtracted, multiplied and divided with the usual
    operators; ``@`` is the matrix product.

    Attributes:
        graph: the graph.
        shape: dimensions, (batch, channels, ...) for images whatever their layout.
        dtype: name of the dtype that it has as an output, if none is given.
    """

    __slots__ = ("graph", "symbol")

    def __init__(self, graph: Graph[Any], symbol: Symbol) -> None:
        self.graph: Final = graph
        self.symbol: Final = symbol

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.symbol.shape

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return self.symbol.dtype

    def __add__(self, other: GraphTensor | float) -> GraphTensor:
        return self.graph.add(self, other)

    def __sub__(self, other: GraphTensor | float) -> GraphTensor:
        return self.graph.sub(self, other)

    def __mul__(self, other: GraphTensor | float) -> GraphTensor:
        return self.graph.mul(self, other)

    def __truediv__(self, other: GraphTensor | float) -> GraphTensor:
        return self.graph.div(self, other)

    def __matmul__(self, other: GraphTensor) -> GraphTensor:
        return self.graph.matmul(self, other)

    def __neg__(self) -> GraphTensor:
        return self.graph.neg(self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<Node {self.dtype} {self.shape}>"


@final
class Graph(Facade[D], GraphOperations):
    """A user-defined graph; made by ``device.dnn.graph()``.

    Every operation of the table in the documentation is a method: inputs in their order,
    attributes by name. Some also have shorter names: ``conv`` is ``conv_fprop``.

        graph = device.dnn.graph()
        x = graph.tensor((8, 64, 56, 56), "bfloat16", channels_last=True, name="x")
        w = graph.tensor((64, 64, 3, 3), "bfloat16", channels_last=True, name="w")
        y = graph.relu(graph.conv(x, w, padding=1) * 0.5)
        plan = await graph.build(y)
        result = await plan(x=images, w=filters)

    Tensors between inputs and outputs need no memory if cuDNN fuses the graph into one kernel.
    Otherwise the graph is run in as few parts as possible.

    All methods raise:
        ValueError: shapes, strides and attributes that do not fit, a name that is taken, an output
            that no operation has computed.
        TypeError: an argument that is not a dtype, or not of this graph.
        Unsupported: a dtype that graphs or an operation do not have.
    """

    def __init__(self, device: DeviceView, plans: DnnPlanCache) -> None:
        self.home = device
        self.plans = plans
        self._builder = Builder()
        self._inputs: dict[str, Symbol] = {}
        self._strided: set[str] = set()
        self._scalars: dict[int, str | float] = {}
        self._outputs: list[tuple[str, Symbol]] = []
        self._built: set[str] = set()  # names of outputs that build has made

    def tensor(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        *,
        name: str | None = None,
        channels_last: bool = False,
        strides: Sequence[int] | None = None,
    ) -> GraphTensor:
        """A buffer that the graph reads.

        Args:
            shape: dimensions; (batch, channels, ...) for images, whatever their layout.
            dtype: element type.
            name: how it is called when the plan is run; by default ``"input0"`` and so on.
            channels_last: it lies in memory as (batch, ..., channels), and so does the
                buffer that is given for it; so do results that are made like it.
            strides: elements from one index to the next along each dimension, for a buffer
                of any shape that is large enough; by default there are no gaps. Results lie
                as ``channels_last`` says, without gaps.
        """
        called = name or f"input{len(self._inputs)}"
        self._require_free(called, self._inputs)
        sizes = tuple(shape)
        if 0 in sizes:
            raise ValueError(f"shape must have sizes of at least 1, not {sizes}")
        symbol = self._builder.tensor(sizes, dtype, strides, last=channels_last)
        self._inputs[called] = symbol
        if strides is not None:
            self._strided.add(called)
        return GraphTensor(self, symbol)

    def scalar(self, name: str, dtype: DTypeLike = "float32", *, ndim: int = 4) -> GraphTensor:
        """A number that is given when the plan is run.

        Args:
            name: how it is called then.
            dtype: its type.
            ndim: dimensions of the tensors that it is combined with.
        """
        symbol = self._builder.scalar(dtype, ndim)
        if name in self._scalars.values() or name in self._inputs:
            raise ValueError(f"there is a {name} already")
        self._scalars[symbol.id] = name
        return GraphTensor(self, symbol)

    def conv(
        self,
        x: GraphTensor,
        w: GraphTensor,
        *,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
    ) -> GraphTensor:
        """Cross-correlation, with arguments as ``device.dnn.conv`` takes them.

        Args:
            x: images (N, C, ...).
            w: filters (K, C / groups, ...).
            stride: steps of the filter.
            padding: zeros around the images.
            dilation: steps between the taps of a filter.
        """
        taps = w.shape[2:]
        strides = steps(stride, len(taps), "stride")
        dilations = steps(dilation, len(taps), "dilation")
        before, after = paddings(padding, taps, strides, dilations)
        return self.conv_fprop(
            x,
            w,
            pre_padding=before,
            post_padding=after,
            stride=strides,
            dilation=dilations,
        )

    if not TYPE_CHECKING:

        def __getattr__(self, op: str) -> Callable[..., Any]:
            row = NODES.get(op)
            if row is None:
                raise AttributeError(f"there is no operation {op!r}; there are {', '.join(NODES)}")
            names = (*row.inputs, *row.optional)

            def make(*inputs: Any, **given: Any) -> Any:
                if len(inputs) > len(names):
                    raise TypeError(f"{op} takes at most {len(names)} tensors, not {len(inputs)}")
                return self.node(op, **dict(zip(names, inputs, strict=False)), **given)

            return make

    def node(self, op: str, **given: Any) -> GraphTensor | tuple[GraphTensor, ...]:
        """Add an operation.

        Args:
            op: its name in the table of operations.
            given: inputs and attributes by name; a number may stand for an input.

        Returns:
            Its output, or a tuple of them.
        """
        row = NODES.get(op)
        if row is None:
            raise ValueError(f"there is no operation {op!r}; there are {', '.join(NODES)}")
        inputs = {*row.inputs, *row.optional}
        nodes = [
            value for name, value in given.items() if name in inputs and type(value) is GraphTensor
        ]
        ndim = len(nodes[0].shape) if nodes else 4
        dtypes = {node.dtype for node in nodes}
        wide = "float64" if "float64" in dtypes else "float32"
        # A whole number beside integers is one of them.
        integer = "" if dtypes & FLOATS else next(iter(dtypes & INTEGERS), "")
        found = self._builder.node(
            op,
            **{
                name: self._operand(
                    op, name, value, integer if isinstance(value, int) and integer else wide, ndim
                )
                if name in inputs
                else value
                for name, value in given.items()
            },
        )
        made = tuple(GraphTensor(self, symbol) for symbol in found.values())
        return made[0] if len(made) == 1 else made

    def output(
        self, node: GraphTensor, *, name: str | None = None, dtype: DTypeLike | None = None
    ) -> None:
        """Make a tensor an output, which is written to memory.

        Args:
            node: result of an operation.
            name: argument of the plan for a buffer to write it to; by default ``"output0"`` and
                so on.
            dtype: element type; by default that of the tensor.
        """
        symbol = self._operand("output", "node", node, "", 0)
        called = name or f"output{len(self._outputs)}"
        self._require_free(called, dict(self._outputs))
        for other, known in self._outputs:
            if known.id == symbol.id:
                raise ValueError(f"this tensor is an output already, called {other!r}")
        # The caller gets an array without gaps, wherever the inputs have some.
        self._builder.output(symbol, dtype, strides_of(symbol.shape, last=symbol.tensor.last))
        self._outputs.append((called, symbol))

    @build_op
    def build(
        self, *outputs: GraphTensor, allow_tf32: bool = False, autotune: bool = False
    ) -> Request[GraphPlan[D, OneOrMore]]:
        """Make a plan.

        Args:
            *outputs: results of the plan, in this order; by default the tensors that ``output``
                was called with. They become outputs if they are not yet. From them type checkers
                know whether the result is a buffer or a tuple.
            allow_tf32: whether products of float32 may round their factors to ten bits, to run
                faster.
            autotune: whether the first run tries all plans and keeps the fastest.

        Raises:
            ValueError: the graph has no operations or no outputs, or an output of ``output``
                is not among ``outputs``.
            Unsupported: cuDNN does not take one of its operations; with its reason.
            LibraryError: cuDNN failed.
        """
        if outputs:
            self._require_outputs(outputs)
        device, plans = self.home, self.plans
        tuned = flag(autotune, "autotune")
        require_no_race(device, autotune=tuned)
        graph = EncodedGraph(self._builder.finish(tf32=flag(allow_tf32, "allow_tf32")))
        plan: GraphPlan[D, OneOrMore] = GraphPlan(
            *(device, plans, graph, self._inputs, self._scalars, self._outputs, self._strided),
            tuned=tuned,
        )

        def finish(answer: tuple[int, str, str]) -> GraphPlan[D, OneOrMore]:
            if plans.find(graph.encoded, tuned=False) is None:
                plans.keep(graph.encoded, answer, tuned=False)
            return plan

        def prepare(_preparer: Preparer) -> Submission[GraphPlan[D, OneOrMore]]:
            message = PrepareGraph(graph.encoded, tuned=False)
            return Submission(message, (), (), finish=finish)

        # The host makes a plan now, so that what cuDNN refuses is known.
        return Request(PLANNER, "dnn.plan", prepare)

    def _require_outputs(self, nodes: tuple[GraphTensor, ...]) -> None:
        """Make these tensors outputs, and check that there are no others."""
        symbols = [self._operand("build", "an output", node, "", 0) for node in nodes]
        for symbol in symbols:
            self._builder.require_computed(symbol)
        wanted = [symbol.id for symbol in symbols]
        if len(set(wanted)) != len(wanted):
            raise ValueError("build: every output can be given once")
        known = {symbol.id: name for name, symbol in self._outputs}
        if others := [name for id_, name in known.items() if id_ not in wanted]:
            raise ValueError(
                f"build must be given all outputs or none, not {len(wanted)}; the "
                "graph has others, by "
                f"{'an earlier build' if self._built.intersection(others) else 'output'}: "
                f"{', '.join(others)}"
            )
        for node in nodes:
            if node.symbol.id not in known:
                self.output(node)
                self._built.add(self._outputs[-1][0])
        self._outputs.sort(key=lambda output: wanted.index(output[1].id))

    def _operand(self, op: str, name: str, value: Any, dtype: str, ndim: int) -> Any:
        if type(value) is GraphTensor:
            if value.graph is not self:
                raise ValueError(f"{op}: {name} belongs to another graph")
            return value.symbol
        if value is None:
            return None
        if isinstance(value, (int, float)) and dtype:
            number = fitting(value, dtype, f"{op}: {name}") if dtype in INTEGERS else float(value)
            symbol = self._builder.scalar(dtype, ndim)
            self._scalars[symbol.id] = number
            return symbol
        raise TypeError(f"{op}: {name} must be a tensor of the graph, not {value!r}")

    def _require_free(self, name: str, taken: dict[str, Symbol]) -> None:
        if not name.isidentifier() or name in taken or name in self._scalars.values():
            raise ValueError(f"{name!r} is taken, or is no name")


@final
class GraphPlan(DnnPart[D], Generic[D, R]):
    """A graph that can be run: ``await plan(x=..., w=...)``.

    Its second type parameter is the type of its result: a buffer, or a tuple of buffers. It is
    their union if ``build`` was called without outputs, because a type checker cannot count calls
    of ``output``. A call raises what the operations of ``device.dnn`` do.

    Attributes:
        inputs: the names of its inputs.
        outputs: the names of its outputs, in the order of results.
        scalars: the names of its numbers.
    """

    def __init__(
        self,
        device: DeviceView,
        plans: DnnPlanCache,
        graph: EncodedGraph,
        inputs: dict[str, Symbol],
        scalars: dict[int, str | float],
        outputs: list[tuple[str, Symbol]],
        strided: set[str],
        *,
        tuned: bool,
    ) -> None:
        super().__init__(device, plans)
        self._graph = graph
        tensors, used = graph.tensors, graph.used
        self._reads: Final = {
            name: symbol.id for name, symbol in inputs.items() if symbol.id in used
        }
        writes = {name: symbol.id for name, symbol in outputs}
        self._numbers: Final = [scalars[id_] for id_ in graph.scalars]
        self._integers: Final = {
            name: tensors[id_].dtype
            for id_, name in zip(graph.scalars, self._numbers, strict=True)
            if isinstance(name, str) and tensors[id_].dtype in INTEGERS
        }
        self._shapes: Final = {
            name: None if name in strided else _outside(tensors[id_])
            for name, id_ in self._reads.items()
        }
        self._call: Final = GraphCall(
            graph,
            [(id_, name) for name, id_ in self._reads.items()],
            [RunOutput(id_, _outside(tensors[id_]), name) for name, id_ in writes.items()],
        )
        self._tuned = tuned
        self.inputs: Final = tuple(self._reads)
        self.outputs: Final = tuple(writes)
        self.scalars: Final = tuple(each for each in self._numbers if isinstance(each, str))
        self._needed: Final = frozenset((*self.inputs, *self.scalars))
        self._known: Final = self._needed.union(self.outputs)

    @op
    def __call__(self, /, **given: GpuRef | float) -> Request[R]:
        """Run the graph.

        Args:
            given: a buffer for each input, a number for each scalar, and for outputs
                buffers to write to, all by name.

        Returns:
            The outputs in their order; a single one by itself.
        """
        return self._run_by(self, given)

    def _run_by(self, part: DnnPart[Any], given: dict[str, Any]) -> Request[R]:
        """A request to run the graph, of another part of the library or of the plan itself."""
        known, needed = self._known, self._needed
        if (unknown := given.keys() - known) or (missing := needed - given.keys()):
            what = f"unknown: {', '.join(sorted(unknown))}" if unknown else ""
            what = what or f"missing: {', '.join(sorted(missing))}"
            raise TypeError(f"{what}; the plan takes {', '.join(sorted(known))}")

        def make() -> GraphCall:
            self._check(part.home.memory, given)
            return self._call

        refs = [given[name] for name in self.inputs]
        outs = [given.get(name) for name in self.outputs]
        numbers = tuple(
            [self._number(each, given) if isinstance(each, str) else each for each in self._numbers]
        )
        return part._request(
            "dnn.graph", self._call, refs, outs, make, numbers=numbers, tune=self._tuned
        )

    def _number(self, name: str, given: dict[str, Any]) -> float:
        dtype = self._integers.get(name)
        if dtype is None:
            return real(given[name], name, finite=False)
        return fitting(given[name], dtype, name)

    def _check(self, memory: MemoryMap, given: dict[str, Any]) -> None:
        """Hold inputs against the graph."""
        tensors = self._graph.tensors
        for name, id_ in self._reads.items():
            ref = given[name]
            require_readable(ref, memory, name)
            if ref.dtype.name != tensors[id_].dtype:
                raise TypeError(
                    f"{name} must have dtype {tensors[id_].dtype}, not {ref.dtype.name}"
                )
            shape = self._shapes[name]
            if (ref.shape != shape) if shape is not None else ref.size < tensors[id_].extent:
                wanted = shape or f"any shape, with at least {tensors[id_].extent} elements"
                raise ValueError(f"{name} must have shape {wanted}, not {ref.shape}")

    def __repr__(self) -> str:
        return f"<Plan ({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


def _outside(tensor: DnnTensor) -> tuple[int, ...]:
    """The shape of the buffer of a tensor without gaps."""
    return physical(tensor.shape, last=tensor.last and len(tensor.shape) > 1)


class UserGraphs(DnnPart[D]):
    """Graphs of users' own."""

    def graph(self) -> Graph[D]:
        """A new graph, to be filled with tensors and operations."""
        return Graph(self.home, self.plans)

    @run_op
    def run(self, /, plan: GraphPlan[Any, R], **given: GpuRef | float) -> Request[R]:
        """Run a plan inside a batch, where ``await plan(...)`` is not possible.

        Args:
            plan: result of ``graph.build()``.
            **given: a buffer for each input, a number for each scalar, and for outputs buffers
                to write to, all by name.
        """
        home = getattr(plan, "home", None)
        if home is None or home.memory is not self.home.memory:
            require_made_on(plan, self.home)
        return plan._run_by(self, given)
