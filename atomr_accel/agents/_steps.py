"""Definitions of step graphs: a typed state, nodes, edges, and their mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_args, get_origin
from typing import get_type_hints as hints_of

import msgspec
import numpy as np

from .._dtypes import native, number_kind
from .._errors import said_of
from ..actors.util import check_instance
from ..memory import MemoryMap
from ..patterns import Retry
from ._errors import FilesForeign

if TYPE_CHECKING:
    from .. import GpuRef
    from ..device.batches.record import Recording

S = TypeVar("S")

START: Final = "start"
"""The name from which edges lead to the first nodes."""
END: Final = "end"
"""The name to which edges lead when nothing follows."""

_ARRAY: Final = 1
"""Number of arrays in MessagePack's extensions."""


class SteppedState(Generic[S]):
    """The fields of a state's class: their types, how updates are joined, and how they are kept.

    Args:
        kind: a dataclass or a ``msgspec.Struct``. A field annotated as ``Annotated[T, function]``
            has a reducer: updates are joined by ``function(old, update)``. Others are replaced.
    """

    def __init__(self, kind: type[S]) -> None:
        given: object = kind
        struct = isinstance(given, type) and issubclass(given, msgspec.Struct)
        if not struct and not (isinstance(given, type) and dataclasses.is_dataclass(given)):
            raise TypeError(f"state must be a dataclass or a msgspec.Struct, not {kind!r}")
        self.kind: Final = kind
        self.types: dict[str, Any] = {}
        self.reducers: dict[str, Callable[[Any, Any], Any]] = {}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        for name, annotation in hints_of(kind, include_extras=True).items():
            plain = annotation
            if get_origin(annotation) is Annotated:
                plain, *notes = get_args(annotation)
                self.reducers.update((name, note) for note in notes if callable(note))
            self.types[name] = plain
            try:
                self._decoders[name] = msgspec.msgpack.Decoder(
                    plain, dec_hook=_decoded, ext_hook=_extended
                )
            except (TypeError, ValueError, NameError) as error:
                raise TypeError(
                    f"field {name} of the state must be of a type that msgspec knows, or an array, "
                    f"not {plain!r}: {error}"
                ) from error

    def check(self, state: object) -> S:
        """Check a whole state of the caller's."""
        if not isinstance(state, self.kind):
            raise TypeError(f"state must be a {self.kind.__name__}, not {said_of(state)}")
        for name in self.types:
            self._checked(name, getattr(state, name), "the state")
        return state

    def check_update(self, node: str, update: object) -> dict[str, Any]:
        """Check what a node returned: fields by name, or None."""
        if update is None:
            return {}
        if not isinstance(update, Mapping):
            raise TypeError(f"node {node!r} must return a mapping of fields, not {said_of(update)}")
        for name in update:
            if name not in self.types:
                there = ", ".join(self.types)
                raise ValueError(f"node {node!r} must return fields among {there}, not {name!r}")
        # What a reducer takes may be of another type; its result is checked.
        return {
            name: value
            if name in self.reducers
            else self._checked(name, value, f"what node {node!r} returned")
            for name, value in update.items()
        }

    def join(self, state: S, updates: Sequence[tuple[str, Mapping[str, Any]]]) -> S:
        """Return the state after updates of nodes, in their order."""
        values: dict[str, Any] = {}
        by: dict[str, str] = {}
        for node, update in updates:
            for name, value in update.items():
                reducer = self.reducers.get(name)
                if reducer is not None:
                    old = values.get(name, getattr(state, name))
                    new = reducer(old, value)
                    values[name] = self._checked(name, new, f"the reducer of {name}")
                elif name in by:
                    raise ValueError(
                        f"field {name!r} must be set by one node in a step, not by {by[name]!r} "
                        f"and {node!r}; give it a reducer: Annotated[..., function]"
                    )
                else:
                    values[name], by[name] = value, node
        if not values:
            return state
        if isinstance(state, msgspec.Struct):
            return msgspec.structs.replace(state, **values)
        return dataclasses.replace(state, **values)  # type: ignore[type-var]

    def _checked(self, name: str, value: Any, where: str) -> Any:
        try:
            return msgspec.convert(value, self.types[name], dec_hook=_decoded)
        except (msgspec.ValidationError, TypeError) as error:
            raise TypeError(
                f"field {name} in {where} must be a {self.types[name]}, not {said_of(value)}: "
                f"{error}"
            ) from error

    def encode(self, state: S) -> bytes:
        """Return a state as bytes."""
        return encode({name: encode(getattr(state, name)) for name in self.types})

    def decode(self, data: bytes) -> S:
        """Return the state that `encode` made bytes of."""
        fields = msgspec.msgpack.decode(data, type=dict[str, bytes])
        made = {}
        for name, value in fields.items():
            try:
                made[name] = self._decoders[name].decode(value)
            except (KeyError, msgspec.ValidationError) as error:
                raise self._foreign(f"field {name!r}") from error
        try:
            return self.kind(**made)
        except TypeError as error:
            if made.keys() >= self.types.keys():
                raise  # of the class itself
            raise self._foreign(f"no field {(self.types.keys() - made.keys()).pop()!r}") from error

    def _foreign(self, what: str) -> FilesForeign:
        return FilesForeign(
            f"the kept state is of another class than {self.kind.__name__}: it has {what}; use the "
            "class that it was kept with, or give the new field a default"
        )


def encode(value: Any) -> bytes:
    """Return plain values and arrays as bytes."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_encoded)
    except OverflowError as error:
        raise ValueError(
            "a whole number in a state must have at most 64 bits, not more; keep it as text"
        ) from error


def decode(data: bytes) -> Any:
    """Return what `encode` made bytes of; tuples are lists then."""
    return msgspec.msgpack.decode(data, ext_hook=_extended)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value, order="C")
        if number_kind(array.dtype) not in "biufcmM":
            raise TypeError(f"an array in a state must be of numbers, not {array.dtype}")
        array = native(array)
        parts = (array.dtype.name, list(array.shape), array.tobytes())
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(parts))
    # msgspec takes a ref for one of its own structs, and asks about what is within.
    what = "GpuRef" if isinstance(value, MemoryMap) else said_of(value)
    raise TypeError(f"a state must be plain values and arrays, not {what}; get buffers first")


def _extended(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"an extension must be number {_ARRAY}, not {code}")
    name, shape, content = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    import ml_dtypes  # noqa: F401 (its dtypes have names for NumPy once it is imported)

    return np.frombuffer(content, np.dtype(name)).reshape(shape).copy()


def _decoded(kind: Any, value: Any) -> Any:
    if isinstance(value, get_origin(kind) or kind):
        return value
    raise ValueError(f"it is a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class StepNode:
    """A node.

    Attributes:
        function: an async function of the state and a `StepContext`; of a recording and buffers if
            ``reads`` is there.
        retry: how often it is tried.
        reads: fields that a device node reads; None for other nodes.
        writes: fields that a device node sets.
        chain: the device nodes that this one was made of.
    """

    name: str
    function: Callable[..., Any]
    retry: Retry
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] = ()
    chain: tuple[StepNode, ...] = ()


@dataclass(frozen=True, slots=True)
class StepBranch:
    """A conditional edge: a function of the state names the nodes that follow."""

    choose: Callable[[Any], str | Sequence[str]]
    targets: tuple[str, ...]


class StepGraph(Generic[S]):
    """A graph of steps over a typed state, for `open_step_graph`.

    ::

        @dataclass
        class Talk:
            question: str
            notes: Annotated[list[str], operator.add]
            answer: str = ""


        graph = StepGraph(Talk)
        graph.add("look", look)
        graph.add("write", write)
        graph.edge(START, "look")
        graph.branch(
            "look", lambda talk: "look" if len(talk.notes) < 3 else "write", ["look", "write"]
        )
        graph.edge("write", END)

    Nodes that edges lead to at the same time run in parallel, in one step. Their updates are joined
    in the order in which the nodes were added, so results do not depend on their speed.

    Args:
        state: a dataclass or a ``msgspec.Struct``, of plain values and NumPy arrays. Updates of a
            field annotated as ``Annotated[T, function]`` are joined by ``function(old, update)``.
    """

    def __init__(self, state: type[S]) -> None:
        self.state: Final[SteppedState[S]] = SteppedState(state)
        self._nodes: dict[str, StepNode] = {}
        self._edges: dict[str, list[str]] = {}
        self._joins: list[tuple[tuple[str, ...], str]] = []
        self._branches: dict[str, list[StepBranch]] = {}

    def add(
        self,
        name: str,
        function: Callable[..., Awaitable[Mapping[str, Any] | None]],
        *,
        retry: Retry | None = None,
    ) -> None:
        """Add a node.

        Args:
            name: its name.
            function: ``async def node(state, step)``, which returns the fields it sets, or None.
                ``step`` is its `StepContext`.
            retry: how often it is tried. By default twice after a fault of a device.
        """
        if not callable(function):
            raise TypeError(f"a node must be an async function, not {function!r}")
        self._add(StepNode(name, function, self._retry(retry)))

    def add_device(
        self,
        name: str,
        function: Callable[..., GpuRef | tuple[GpuRef, ...]],
        *,
        reads: Sequence[str],
        writes: Sequence[str],
        retry: Retry | None = None,
    ) -> None:
        """Add a node that is a recording of the device.

        Device nodes of which each is the only one to follow the other become one recording, and one
        step: on CUDA one graph launch.

        Args:
            name: its name.
            function: ``def node(recording, *buffers)``, which calls libraries of the recording, and
                returns a buffer for each field in ``writes``.
            reads: fields with arrays, copied to the device.
            writes: fields that it sets, as arrays.
            retry: how often it is tried, recording included. By default twice after a fault.
        """
        if not callable(function):
            raise TypeError(f"a node must be a function of a recording, not {function!r}")
        for field in (*reads, *writes):
            if field not in self.state.types:
                raise ValueError(f"reads and writes must be fields of the state, not {field!r}")
        if not writes:
            raise ValueError("writes must be one field or more, not none")
        for field in writes:
            if field in self.state.reducers:
                raise ValueError(f"writes must be fields without reducers, not {field!r}")
        self._add(StepNode(name, function, self._retry(retry), tuple(reads), tuple(writes)))

    @staticmethod
    def _retry(retry: Retry | None) -> Retry:
        if retry is None:
            return Retry(attempts=2)
        check_instance("retry", retry, Retry)
        return retry

    def _add(self, node: StepNode) -> None:
        check_instance("name", node.name, str)
        if node.name in {START, END} or node.name in self._nodes:
            raise ValueError(f"name must be a new one, not {node.name!r}")
        self._nodes[node.name] = node

    def edge(self, source: str | Sequence[str], target: str) -> None:
        """Lead from a node to another, or from several that are all waited for.

        Args:
            source: a node, or ``START``; or a list of nodes, after all of which the target runs
                once.
            target: a node, or ``END``.
        """
        if isinstance(source, str):
            self._edges.setdefault(source, []).append(target)
        else:
            self._joins.append((tuple(source), target))

    def branch(
        self, source: str, choose: Callable[[S], str | Sequence[str]], targets: Iterable[str]
    ) -> None:
        """Lead from a node to those that a function of the state names.

        Args:
            source: a node, or ``START``.
            choose: returns a name, or a list of names that run in parallel.
            targets: the names that it may return.
        """
        if not callable(choose):
            raise TypeError(f"choose must be a function of the state, not {choose!r}")
        self._branches.setdefault(source, []).append(StepBranch(choose, tuple(targets)))

    def plan(self) -> StepPlan[S]:
        """Check the graph, and join chains of device nodes.

        Raises:
            ValueError: an edge from or to a node that is not there, no edge from ``START``, a node
                that no path leads to, or a cycle without a conditional edge.
        """
        sources = [
            *self._edges,
            *self._branches,
            *(each for many, _ in self._joins for each in many),
        ]
        targets = [
            *(each for many in self._edges.values() for each in many),
            *(target for _, target in self._joins),
            *(each for many in self._branches.values() for one in many for each in one.targets),
        ]
        for names, special in ((sources, START), (targets, END)):
            for name in names:
                if name not in self._nodes and name != special:
                    there = ", ".join([*self._nodes, special])
                    raise ValueError(f"an edge must be between nodes among {there}, not {name!r}")
        reached = self._reached()
        if len(reached) == 1:
            raise ValueError("the graph must have an edge from START, not none")
        lonely = [name for name in self._nodes if name not in reached]
        if lonely:
            raise ValueError(f"each node must be reached from START, not left out as {lonely}")
        self._refuse_cycles()
        return self._chained()

    def _followers(self, name: str) -> list[str]:
        return [
            *self._edges.get(name, ()),
            *(target for many, target in self._joins if name in many),
        ]

    def _all_followers(self, name: str) -> list[str]:
        branches = self._branches.get(name, ())
        return [*self._followers(name), *(each for one in branches for each in one.targets)]

    def _reached(self) -> set[str]:
        reached, todo = {START}, [START]
        while todo:
            name = todo.pop()
            after = {*self._all_followers(name)} - {END}
            todo += after - reached
            reached |= after
        return reached

    def _refuse_cycles(self) -> None:
        """A cycle of plain edges has no way out."""
        open_: list[str] = []
        closed: set[str] = set()

        def visit(name: str) -> None:
            if name in open_:
                cycle = " -> ".join([*open_[open_.index(name) :], name])
                raise ValueError(f"a cycle must have a conditional edge, not {cycle}")
            if name not in closed:
                open_.append(name)
                for each in self._followers(name):
                    visit(each)
                closed.add(open_.pop())

        visit(START)
        for name in self._nodes:
            visit(name)

    def _chained(self) -> StepPlan[S]:
        into: dict[str, int] = dict.fromkeys([*self._nodes, END], 0)
        for source in [START, *self._nodes]:
            for each in self._all_followers(source):
                into[each] += 1

        def follows(name: str) -> str | None:
            """The device node that only follows a device node, which nothing else follows."""
            after = self._followers(name)
            if len(after) != 1 or name in self._branches or after[0] == END:
                return None
            both = (self._nodes[name].reads, self._nodes[after[0]].reads)
            joined = any(after[0] == target for _, target in self._joins)
            return after[0] if None not in both and into[after[0]] == 1 and not joined else None

        inner = {follows(name) for name in self._nodes} - {None}
        nodes: dict[str, StepNode] = {}
        last: dict[str, str] = {}
        for name, node in self._nodes.items():
            if name in inner:
                continue
            chain = [node]
            while (following := follows(chain[-1].name)) is not None:
                chain.append(self._nodes[following])
            nodes[name] = node if len(chain) == 1 else _chain(chain)
            last[name] = chain[-1].name
        order = {name: at for at, name in enumerate(nodes)}
        plan_edges = {name: tuple(self._edges.get(end, ())) for name, end in last.items()}
        plan_edges[START] = tuple(self._edges.get(START, ()))
        branches = {name: tuple(self._branches.get(end, ())) for name, end in last.items()}
        branches[START] = tuple(self._branches.get(START, ()))
        first = {end: name for name, end in last.items()}
        joins = tuple(
            (tuple(first.get(each, each) for each in many), target) for many, target in self._joins
        )
        return StepPlan(self.state, nodes, plan_edges, branches, joins, order)


def _chain(nodes: Sequence[StepNode]) -> StepNode:
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for node in nodes:
        assert node.reads is not None
        reads |= {field: None for field in node.reads if field not in writes}
        writes |= dict.fromkeys(node.writes)

    def run(recording: Recording, *buffers: GpuRef) -> tuple[GpuRef, ...]:
        values = dict(zip(reads, buffers, strict=True))
        for node in nodes:
            made = node.function(recording, *(values[field] for field in node.reads or ()))
            several = made if isinstance(made, tuple) else (made,)
            values.update(zip(node.writes, several, strict=True))
        return tuple(values[field] for field in writes)

    most = max(nodes, key=lambda node: node.retry.attempts).retry
    return StepNode(nodes[0].name, run, most, tuple(reads), tuple(writes), tuple(nodes))


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[S]):
    """A checked graph: nodes by the name of their first, and what follows them."""

    state: SteppedState[S]
    nodes: Mapping[str, StepNode]
    edges: Mapping[str, tuple[str, ...]]
    branches: Mapping[str, tuple[StepBranch, ...]]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    order: Mapping[str, int]

    def after(
        self, done: Sequence[str], state: Callable[[], S], arrived: Mapping[int, frozenset[str]]
    ) -> tuple[list[str], dict[int, frozenset[str]]]:
        """Return the nodes of the next step, and the nodes that have arrived at joins that wait.

        Args:
            done: the nodes of this step.
            state: makes a state for each branch, so that none sees what another changes in it.
            arrived: nodes that have arrived at joins, by the join's number.
        """
        waiting = dict(arrived)
        following: set[str] = set()
        for name in done:
            following.update(self.edges.get(name, ()))
            for branch in self.branches.get(name, ()):
                chosen: object = branch.choose(state())
                if not isinstance(chosen, Iterable):
                    if iscoroutine(chosen):
                        chosen.close()
                    raise TypeError(
                        f"the branch after {name!r} must return a node's name, or a list of them, "
                        f"not {said_of(chosen)}"
                    )
                several = [chosen] if isinstance(chosen, str) else [*chosen]
                for each in several:
                    if each not in branch.targets:
                        raise ValueError(
                            f"the branch after {name!r} must name nodes among "
                            f"{', '.join(branch.targets)}, not {each!r}"
                        )
                following.update(several)
            for number, (many, target) in enumerate(self.joins):
                if name in many:
                    there = waiting.pop(number, frozenset()) | {name}
                    if there == {*many}:
                        following.add(target)
                    else:
                        waiting[number] = there
        following.discard(END)
        return sorted(following, key=self.order.__getitem__), waiting
