"""Plans: the vendor's algorithms for graphs on a device, kept in memory and on disk.

Making one takes from milliseconds to seconds, because some are compiled. On disk a plan is
found by its graph, the device's name and the versions of cuDNN and of its frontend.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

import msgspec

from ...._dtypes import DTYPES
from ...._errors import AccelError, LibraryError, Unsupported
from ....wire.recent import Recent
from ..wire._graph import DnnGraph, decode
from ._lowering import engines_at_fault, load_frontend, lower, refusals, require_right
from ._prototypes import version
from ._rewrite import ELEMENTWISE, cut, flattened, live, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ....executors.disk_cache import DiskCache
    from ._runs import PlanRun

_MOST_PLANS: Final = 4096
"""Largest number of plans. The program drops plans above its ``plan_limit``. This limit is for
plans of batches, which it does not know."""
_MOST_CANDIDATES: Final = 16
_KNOWLEDGE: Final = 2
"""Version of our lists of faulty engines. Plans on disk may be older."""
_SWITCH: Final = "use_deterministic_algorithm"
_ALIGNMENT: Final = 256
_T = TypeVar("_T")
_MOST_WORKSPACE: Final = 1 << 30
"""The most scratch memory that a plan may want."""


class StoredStep(msgspec.Struct, frozen=True, array_like=True):
    """A step of a plan on disk.

    Attributes:
        graph: the part of the graph that it computes.
        made: as the frontend serialises it; empty for our own kernels.
    """

    graph: DnnGraph
    made: bytes


class PlanStep(NamedTuple):
    """A part of a graph that is run in one piece.

    Attributes:
        graph: the part; its tensors have the ids of the whole.
        made: the frontend's graph; None for our own kernels.
        workspace: bytes of scratch memory that it needs.
        buffers: ids of its tensors with pointers.
        scalars: ids and dtypes of its numbers.
    """

    graph: DnnGraph
    made: Any
    workspace: int
    buffers: tuple[int, ...]
    scalars: tuple[tuple[int, np.dtype[Any]], ...]


class DnnPlan(NamedTuple):
    """A graph that can be run.

    Attributes:
        steps: its parts, one if cuDNN takes it whole.
        buffers: ids of the tensors with addresses.
        numbers: ids of the numbers.
        between: offsets in the workspace of tensors between steps, by id.
        scratch: offset in the workspace of the steps' own scratch memory.
        workspace: bytes of scratch memory.
        runs: prepared runs of lanes, each under its own key.
    """

    steps: tuple[PlanStep, ...]
    buffers: tuple[int, ...]
    numbers: tuple[int, ...]
    between: dict[int, int]
    scratch: int
    workspace: int
    runs: dict[object, PlanRun]

    def implementation(self, graph: DnnGraph) -> str:
        """Return what computes it, as ``PrepareGraph`` is answered.

        Args:
            graph: the whole graph. Steps that pad have tensors behind its own.
        """
        if any(len(step.graph.tensors) > len(graph.tensors) for step in self.steps):
            return "padded"
        return "own" if any(step.made is None for step in self.steps) else "cudnn"


def assemble(graph: DnnGraph, steps: Sequence[PlanStep]) -> DnnPlan:
    """Assemble a plan from steps, with memory for tensors between them."""
    given = set(graph.buffers())
    between: dict[int, int] = {}
    offset = 0
    for step in steps:
        for id_ in step.graph.buffers():
            if id_ not in given and id_ not in between:
                tensor = step.graph.tensors[id_]
                between[id_] = offset
                offset = _aligned(offset + tensor.extent * DTYPES[tensor.dtype].itemsize)
    workspace = offset + max(step.workspace for step in steps)
    return DnnPlan(tuple(steps), graph.buffers(), graph.scalars(), between, offset, workspace, {})


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@final
class DnnPlanStore:
    """The plans of one context: shared by its lanes, whose streams and handles differ.

    A graph that cuDNN does not take whole is cut into as few parts as possible that it takes, with
    memory for tensors between them. ``own`` tells whether our own kernels compute a node that cuDNN
    refuses. ``elsewhere`` makes a plan in another process, or returns None. ``options`` of the
    frontend's graph replace a handle.
    """

    def __init__(
        self,
        name: str,
        capability: tuple[int, int],
        files: DiskCache | None,
        own: Callable[[DnnGraph], bool],
        options: dict[str, Any] | None = None,
        elsewhere: Callable[[bytes], tuple[StoredStep, ...] | None] | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        self._frontend = load_frontend()
        self._capability = capability
        self._options = options
        self._own = own
        self._elsewhere = elsewhere
        self._files = files
        self._deterministic = deterministic
        versions = (str(version()), str(self._frontend.__version__), _KNOWLEDGE)
        self._names = (name, *versions, deterministic)
        self._plans: Recent[tuple[bytes, bool], DnnPlan] = Recent(_MOST_PLANS)
        self._lock = threading.Lock()

    def find(self, encoded: bytes, handle: int, *, tuned: bool) -> tuple[DnnPlan, str]:
        """A plan, and where it came from: ``"memory"``, ``"disk"`` or ``"built"``."""
        key = (encoded, tuned)
        plan = self.recall(key)
        if plan is not None:
            return plan, "memory"
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                return plan, "memory"
            graph = decode(encoded)
            plan, origin = self._read(key, graph, handle), "disk"
            if plan is None and tuned:
                # Nobody has tuned it yet: the first guess does, and nothing else is said on disk.
                key = (encoded, False)
                plan = self._plans.get(key) or self._read(key, graph, handle)
            if plan is None:
                plan, origin = self._make(encoded, graph, handle), "built"
                self._write(key, plan)
            self._plans.keep(key, plan)
            if tuned:
                self._plans.keep((encoded, True), plan)
        return plan, origin

    def recall(self, key: tuple[bytes, bool]) -> DnnPlan | None:
        """The plan of an encoded graph, tuned or not, if it is in memory."""
        return self._plans.get(key)

    def tune(
        self, encoded: bytes, handle: int, time: Callable[[DnnPlan, int], float]
    ) -> tuple[DnnPlan, str]:
        """Keep the fastest plan for a graph.

        Args:
            encoded: the graph.
            handle: a handle of the library.
            time: runs a plan of one step by the candidate at a position, and returns the time
                that it took.
        """
        key = (encoded, True)
        with self._lock:
            graph = decode(encoded)
            plan = self._read(key, graph, handle)
            if plan is not None:
                self._plans.keep(key, plan)
                return plan, "disk"

            def fastest(part: DnnGraph, made: Any) -> PlanStep:
                if made is None:
                    return self._built(part, made)
                return self._built(part, made, self._choose(graph, part, made, time))

            plan = assemble(graph, self.parts(graph, handle, fastest))
            self._write(key, plan)
            self._plans.keep(key, plan)
        return plan, "built"

    def stored(self, graph: DnnGraph) -> tuple[StoredStep, ...]:
        """Make a plan in the form that is kept on disk, without keeping it here.

        Raises:
            Unsupported: cuDNN has no plan for the graph.
            LibraryError: cuDNN failed.
        """
        steps = self.parts(graph, 0, self._built)
        with refusals("serialize"):
            return _stored(steps)

    def forget(self, encoded: bytes, *, tuned: bool) -> None:
        """Drop a plan from memory."""
        self._plans.remove((encoded, tuned))

    def release(self, lane: object) -> None:
        """Drop the runs that a lane has prepared under its key."""
        with self._lock:
            for plan in list(self._plans.values()):
                plan.runs.pop(lane, None)

    # --- making ---------------------------------------------------------------------------

    def parts(
        self, graph: DnnGraph, handle: int, finish: Callable[[DnnGraph, Any], _T]
    ) -> list[_T]:
        """Cut a graph into parts that cuDNN takes.

        Args:
            graph: the graph.
            handle: a handle of the library.
            finish: converts a part and its candidates, which are None for our own kernels. A part
                that is refused only here, when it is built, is also cut.

        Raises:
            Unsupported: cuDNN does not take one of the nodes, even alone.
        """
        parts = []
        rest = live(graph)
        while rest.nodes:
            reason: AccelError | None = None
            for count in range(len(rest.nodes), 0, -1):
                head, tail = cut(rest, count)
                try:
                    part = finish(head, self.offer(head, handle))
                except (Unsupported, LibraryError) as refusal:
                    reason = refusal
                    if count > 1:
                        continue
                    if self._own(head):
                        part = finish(head, None)
                    elif steps := widened(head):
                        for step in steps:
                            own = self._own(step)
                            parts.append(finish(step, None if own else self.offer(step, handle)))
                        rest = msgspec.structs.replace(tail, tensors=steps[0].tensors)
                        break
                    else:
                        continue
                parts.append(part)
                rest = tail
                break
            else:
                assert reason is not None
                raise reason
        return parts

    def offer(self, graph: DnnGraph, handle: int) -> Any:
        """A frontend graph with candidates, best guess first, of which none is built."""
        frontend = self._frontend
        major, minor = self._capability
        where = {"handle": handle} if self._options is None else self._options
        if self._deterministic:
            graph = _settled(graph)
        made = lower(frontend, flattened(graph), sm_version=10 * major + minor, **where)
        modes, notes = frontend.heur_mode, frontend.numerical_note
        with refusals("cudnnBackendFinalize"):
            made.build_operation_graph()
            made.create_execution_plans([modes.A, modes.FALLBACK])
            made.deselect_workspace_greater_than(_MOST_WORKSPACE)
            if _precise(graph):
                made.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
            if self._deterministic and not _switched(graph):
                made.deselect_numeric_notes([notes.NONDETERMINISTIC])
            made.check_support()
        return made

    def _make(self, encoded: bytes, graph: DnnGraph, handle: int) -> DnnPlan:
        """Make a plan, in another process if there is one for that."""
        stored = None if self._elsewhere is None else self._elsewhere(encoded)
        if stored is not None:
            # A plan that cannot be restored, such as one of another driver, is made again here.
            with contextlib.suppress(AccelError), refusals("deserialize"):
                return assemble(graph, [self._restored(each, handle) for each in stored])
        return assemble(graph, self.parts(graph, handle, self._built))

    def _built(self, graph: DnnGraph, made: Any, position: int | None = None) -> PlanStep:
        """A step by the candidate at a position; by default by the first one that is right."""
        workspace = 0
        if made is not None:
            if position is None:
                _build_first(graph, made)
            else:
                with refusals("cudnnBackendFinalize"):
                    made.build_plan_at_index(position)
            workspace = made.get_workspace_size()
        scalars = tuple((id_, DTYPES[graph.tensors[id_].dtype]) for id_ in graph.scalars())
        return PlanStep(graph, made, workspace, graph.buffers(), scalars)

    def _choose(
        self, graph: DnnGraph, part: DnnGraph, made: Any, time: Callable[[DnnPlan, int], float]
    ) -> int:
        """The position of the fastest candidate."""
        times: dict[int, float] = {}
        for position in _right(part, made):
            if len(times) >= _MOST_CANDIDATES:
                break
            with contextlib.suppress(AccelError):  # a candidate that fails is none
                step = self._built(part, made, position)
                times[position] = time(assemble(graph, [step]), position)
        if not times:
            raise Unsupported("cuDNN has no plan for this graph that runs on this device")
        return min(times, key=times.__getitem__)

    # --- keeping --------------------------------------------------------------------------

    def _question(self, key: tuple[bytes, bool]) -> bytes:
        """Return the key of a plan on disk."""
        return msgspec.msgpack.encode((key, self._names))

    def _write(self, key: tuple[bytes, bool], plan: DnnPlan) -> None:
        if self._files is None:
            return
        with contextlib.suppress(AccelError), refusals("serialize"):
            steps = _stored(plan.steps)
            self._files.put(self._question(key), msgspec.msgpack.encode(steps))

    def _read(self, key: tuple[bytes, bool], graph: DnnGraph, handle: int) -> DnnPlan | None:
        data = None if self._files is None else self._files.get(self._question(key))
        if data is None:
            return None
        try:
            stored = msgspec.msgpack.decode(data, type=tuple[StoredStep, ...])
            return assemble(graph, [self._restored(each, handle) for each in stored])
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it can be built
            return None

    def _restored(self, stored: StoredStep, handle: int) -> PlanStep:
        step = self._built(stored.graph, None)
        if not stored.made:
            return step
        require_right(stored.graph)  # it may be older than the knowledge that it is not
        made = self._frontend.pygraph(handle=handle)
        made.deserialize(handle, list(stored.made))  # the binding takes no bytes
        return step._replace(made=made, workspace=made.get_workspace_size())


def _right(graph: DnnGraph, made: Any) -> list[int]:
    """Positions of the candidates whose engines compute a graph rightly."""
    wrong = engines_at_fault(graph)
    positions = range(made.get_execution_plan_count())
    if not wrong:
        return [*positions]
    with refusals("get_plan_name_at_index"):
        # An engine's name comes before those of its settings: "eng20_k2=6_k3=0".
        names = [made.get_plan_name_at_index(position).partition("_")[0] for position in positions]
    return [position for position in positions if names[position] not in wrong]


def _build_first(graph: DnnGraph, made: Any) -> None:
    """Build the best guess, of an engine that is not at fault."""
    if not engines_at_fault(graph):
        with refusals("cudnnBackendFinalize"):
            made.build_plans()
        return
    for position in _right(graph, made):
        with contextlib.suppress(AccelError), refusals("cudnnBackendFinalize"):
            made.build_plan_at_index(position)
            return
    raise Unsupported("cuDNN does not do this right: all of its engines for this graph are wrong")


def _stored(steps: Sequence[PlanStep]) -> tuple[StoredStep, ...]:
    return tuple(
        StoredStep(step.graph, bytes(step.made.serialize() if step.made else b"")) for step in steps
    )


def _switched(graph: DnnGraph) -> bool:
    """Return whether a graph has nodes with a switch for deterministic results."""
    return any(name == _SWITCH for node in graph.nodes for name, _ in node.attributes)


def _settled(graph: DnnGraph) -> DnnGraph:
    """A graph whose nodes are deterministic where they have a switch for that."""
    nodes = tuple(
        msgspec.structs.replace(
            node,
            attributes=tuple((name, name == _SWITCH or value) for name, value in node.attributes),
        )
        for node in graph.nodes
    )
    return msgspec.structs.replace(graph, nodes=nodes)


def _precise(graph: DnnGraph) -> bool:
    """Return whether to exclude engines that round the factors of products."""
    if graph.tf32 or graph.compute != "float32":
        return False
    return any(node.op not in ELEMENTWISE for node in graph.nodes) and all(
        graph.tensors[id_].dtype in ("float32", "int32") for id_ in graph.buffers()
    )
