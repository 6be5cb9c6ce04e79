"""How facades run graphs: bind buffers, have a plan made, run it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

from ..._dtypes import DTYPES
from .._arguments import overlap, usable, writable
from .._library import LaneSpec
from .._perform import Prepared, perform
from .._workspaces import Workspaces
from ._graph import Graph, encode
from ._messages import ForgetGraph, PrepareGraph, RunGraph, TuneGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ...memory import Block, GpuRef, MemoryMap
    from .._library import Submitter
    from .._perform import Room

_WAYS: Final = 4
_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.dnn._cpu:CpuDnn",
    "cuda": "atomr_accel.libraries.dnn._cuda:CudaDnn",
}
LANE: Final = LaneSpec("dnn", _EXECUTORS, ways=_WAYS)
PLANNER: Final = LaneSpec("dnn-plans", _EXECUTORS, hangs=False)
"""Makes plans, which may take seconds, while the other lane runs those that are there."""

DEFAULT_LIMIT: Final = 512
_ALIGNMENT: Final = 16
"""Bytes that cuDNN expects every address to be a multiple of."""

_SMALL: Final = 4 << 20
"""Bytes of workspace up to which ops run side by side, each with one of its own."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DnnStatistics:
    """The plans of a device's graphs.

    Attributes:
        plans: graphs whose plan is known.
        plan_limit: how many may be.
        hits: runs that found their plan.
        misses: runs that had to have it made or found.
        built: plans that cuDNN had to make.
        loaded: plans that were on disk.
        tuned: plans found by trying all.
        evictions: plans dropped, by the limit or by ``clear_plans``.
        workspace: bytes of the workspaces that they share.
    """

    plans: int
    plan_limit: int
    hits: int
    misses: int
    built: int
    loaded: int
    tuned: int
    evictions: int
    workspace: int


@final
class Program:
    """A graph, ready to travel.

    Attributes:
        graph: the graph.
        encoded: its bytes.
        buffers: ids of its buffers.
        scalars: ids of its numbers.
        written: those of the buffers that it writes.
    """

    __slots__ = ("buffers", "encoded", "graph", "scalars", "written")

    def __init__(self, graph: Graph) -> None:
        self.graph: Final = graph
        self.encoded: Final = encode(graph)
        self.buffers: Final = graph.buffers()
        self.scalars: Final = graph.scalars()
        self.written: Final = frozenset(graph.written())


class Output(NamedTuple):
    """A buffer that a run writes.

    Attributes:
        shape: its shape as the caller sees it.
        out: the caller's own buffer; None to make one.
        name: what to call it in errors.
        in_place: whether it may be a buffer that is read, too.
    """

    shape: tuple[int, ...]
    out: GpuRef | None = None
    name: str = "out"
    in_place: bool = False


class Bound(NamedTuple):
    """A program with its buffers, checked.

    Attributes:
        program: what to run.
        inputs: what it reads: id, buffer and name of each.
        outputs: what it writes, by id.
        scalars: its numbers, in the order of their ids.
        results: the ids of what the caller gets; a single one comes by itself.
    """

    program: Program
    inputs: Sequence[tuple[int, GpuRef, str]]
    outputs: dict[int, Output]
    scalars: tuple[float, ...]
    results: tuple[int, ...]


@final
class PlanCache:
    """What the program knows of plans, and the graphs that facades have made.

    Attributes:
        autotune: whether graphs get the fastest of their plans, found by trying.
        tf32: whether products of float32 may round their factors.
        workspaces: the plans' scratch memory.
    """

    def __init__(self) -> None:
        self.autotune = False
        self.tf32 = False
        self.workspaces: Final = Workspaces(_WAYS, _SMALL)
        self._workspaces: OrderedDict[tuple[bytes, bool], int] = OrderedDict()
        self._programs: dict[Hashable, Any] = {}
        self._limit = DEFAULT_LIMIT
        self._hits = self._misses = self._built = self._loaded = 0
        self._tuned = self._evictions = 0

    def program(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What was made for a key before; at most a few thousand are kept."""
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= 4 * max(self._limit, DEFAULT_LIMIT):
                self._programs.clear()
            program = self._programs[key] = make()
        made: _T = program
        return made

    def find(self, encoded: bytes, *, tuned: bool) -> int | None:
        """How much workspace to bring, if that is known."""
        key = (encoded, tuned)
        workspace = self._workspaces.get(key)
        if workspace is not None:
            self._hits += 1
            self._workspaces.move_to_end(key)
        return workspace

    def keep(
        self, device: Submitter, encoded: bytes, answer: tuple[int, str], *, tuned: bool
    ) -> None:
        """Note what the host said of a plan."""
        workspace, origin = answer
        self._misses += 1
        self._built += origin == "built"
        self._loaded += origin == "disk"
        self._tuned += tuned
        self._workspaces[encoded, tuned] = workspace
        self.evict(device, self._limit)

    def evict(self, device: Submitter, limit: int) -> None:
        """Drop the plans that were not used for longest."""
        port = device.ports.get(PLANNER.name)
        while len(self._workspaces) > limit:
            (encoded, tuned), _ = self._workspaces.popitem(last=False)
            self._evictions += 1
            if port is not None:
                device.submit(port, "dnn.forget", ForgetGraph(encoded, tuned))

    def limit_to(self, device: Submitter, limit: int) -> None:
        """Keep that many plans."""
        self._limit = limit
        self.evict(device, limit)

    @property
    def limit(self) -> int:
        """How many plans are kept."""
        return self._limit

    def statistics(self, device: Submitter) -> DnnStatistics:
        """A snapshot."""
        return DnnStatistics(
            plans=len(self._workspaces),
            plan_limit=self._limit,
            hits=self._hits,
            misses=self._misses,
            built=self._built,
            loaded=self._loaded,
            tuned=self._tuned,
            evictions=self._evictions,
            workspace=self.workspaces.nbytes(device),
        )


class Facade:
    """What the parts of ``device.dnn`` have in common."""

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans = PlanCache()

    async def _run(
        self,
        name: str,
        bind: Callable[[], Bound],
        *,
        tune: bool | None = None,
        wrap: Callable[[Prepared], Prepared] | None = None,
    ) -> Any:
        """Run a graph.

        Args:
            name: what to call the op.
            bind: checks arguments and names buffers; may be called several times.
            tune: whether to try all plans; by default as ``autotune`` says.
            wrap: makes of ``RunGraph`` and ``TuneGraph`` the messages that carry them.
        """
        wrap = wrap or _as_it_is
        device, plans = self._device, self._plans
        tuned = plans.autotune if tune is None else tune
        bound: Bound | None = bind()
        assert bound is not None
        encoded = bound.program.encoded
        workspace = plans.find(encoded, tuned=tuned)
        if workspace is None:
            _check(device.memory, bound)
            bound = None
            workspace = await self._make(name, bind, encoded, wrap, tuned=tuned)
        nbytes = workspace

        def prepare(room: Room) -> Prepared:
            # What is bound is good until something is awaited.
            nonlocal bound
            now, bound = bound or bind(), None
            return wrap(_prepare(device, plans, now, room, nbytes, tuned=tuned))

        return await perform(device, LANE, name, prepare)

    async def _plan(self, program: Program) -> None:
        """Have the host make a plan now, so that what cuDNN refuses is known."""
        plans, device = self._plans, self._device
        if plans.find(program.encoded, tuned=False) is None:
            request = Prepared(PrepareGraph(program.encoded, tuned=False), (), ())
            answer = await perform(device, PLANNER, "dnn.plan", lambda _room: request)
            plans.keep(device, program.encoded, (answer[0], answer[1]), tuned=False)

    async def _make(
        self,
        name: str,
        bind: Callable[[], Bound],
        encoded: bytes,
        wrap: Callable[[Prepared], Prepared],
        *,
        tuned: bool,
    ) -> int:
        """Have the host make a plan; the workspace it needs, as far as that can be known."""
        device, plans = self._device, self._plans
        # What to try all plans with needs as much workspace as the first guess; a candidate
        # that wants more gets it from the lane.
        request = Prepared(PrepareGraph(encoded, tuned=False), (), ())
        answer = await perform(device, PLANNER, "dnn.plan", lambda _room: request)
        if answer is not None and tuned:

            def prepare(room: Room) -> Prepared:
                prepared = _prepare(
                    device, plans, bind(), room, answer[0], tuned=True, scratch=True
                )
                assert isinstance(prepared.message, RunGraph)
                return wrap(prepared._replace(message=TuneGraph(prepared.message), result=None))

            answer = await perform(device, PLANNER, f"{name}.tune", prepare)
        if answer is None:  # inside a batch there is no answer yet: the lane has its own
            return 0
        plans.keep(device, encoded, (answer[0], answer[1]), tuned=tuned)
        return int(answer[0])


def _as_it_is(prepared: Prepared) -> Prepared:
    return prepared


def _prepare(
    device: Submitter,
    plans: PlanCache,
    bound: Bound,
    room: Room,
    workspace_bytes: int,
    *,
    tuned: bool,
    scratch: bool = False,
) -> Prepared:
    """Check buffers, make outputs, and say what to send.

    Args:
        device: where.
        plans: has the workspaces.
        bound: the program and its buffers.
        room: where to make outputs.
        workspace_bytes: scratch memory to bring.
        tuned: which plan to run.
        scratch: write to buffers that nobody sees.
    """
    _check(device.memory, bound)
    program = bound.program
    refs = {id_: ref for id_, ref, _ in bound.inputs}
    reads = [ref._block for ref in refs.values()]
    writes = []
    for id_, output in bound.outputs.items():
        out = output.out
        if out is None or scratch:
            out = room.empty(output.shape, DTYPES[program.graph.tensors[id_].dtype])
        refs[id_] = out
        writes.append(out._block)
    workspace: Any = 0
    if workspace_bytes:
        block = plans.workspaces.take(device, room, workspace_bytes)
        writes.append(block)
        workspace = block.address
    message = RunGraph(
        program.encoded,
        tuned,
        tuple([refs[id_]._block.address for id_ in program.buffers]),
        bound.scalars,
        workspace,
        workspace_bytes,
    )
    results = [refs[id_] for id_ in bound.results]
    return Prepared(message, reads, writes, results[0] if len(results) == 1 else tuple(results))


def _check(memory: MemoryMap, bound: Bound) -> None:
    """Check a program's buffers, here and now."""
    tensors = bound.program.graph.tensors
    for _, ref, name in bound.inputs:
        block = usable(ref, memory, name)
        if block.offset % _ALIGNMENT:
            raise _askew(block, name)
    for id_, output in bound.outputs.items():
        out = output.out
        if out is None:
            continue
        dtype = DTYPES[tensors[id_].dtype]
        block = writable(out, memory, output.name)
        if block.offset % _ALIGNMENT:
            raise _askew(block, output.name)
        if out.shape != output.shape or out.dtype is not dtype:
            raise (ValueError if out.shape != output.shape else TypeError)(
                f"{output.name} is {out.dtype.name} of shape {out.shape}, but the result is "
                f"{dtype.name} of shape {output.shape}"
            )
        for _, ref, name in bound.inputs:
            if not output.in_place and overlap(out, ref):
                raise ValueError(
                    f"{output.name} and {name} share memory, which is not possible here"
                )


def _askew(block: Block, name: str) -> ValueError:
    return ValueError(
        f"{name} is a view that begins {block.offset} bytes into its buffer; cuDNN wants a "
        f"multiple of {_ALIGNMENT}: copy it to a buffer of its own"
    )
