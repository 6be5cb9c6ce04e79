"""How facades run graphs: bind buffers, have a plan made, run it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

from ...._dtypes import DTYPES
from ....memory import Block, GpuRef
from ..._arguments import require_apart, usable, writable
from ..._library import LaneSpec
from ..._op import D
from ..._op import Facade as BaseFacade
from ..._perform import Prepared, perform
from ..._workspaces import Workspaces
from ...wire._recent import Recent
from ..wire._graph import Graph, encode
from ..wire._messages import ForgetGraph, PrepareGraph, RunGraph, TuneGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from ....memory import MemoryMap
    from ..._library import Submitter
    from ..._perform import Room
    from ..attention._call import Prelude

_WAYS: Final = 4
_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.dnn.host._cpu:CpuDnn",
    "cuda": "atomr_accel.libraries.dnn.host._cuda:CudaDnn",
}
LANE: Final = LaneSpec("dnn", _EXECUTORS, ways=_WAYS)
PLANNER: Final = LaneSpec("dnn-plans", _EXECUTORS, hangs=False)
"""Makes plans, which may take seconds, while the other lane runs those that are there."""

DEFAULT_LIMIT: Final = 512
_CALLS_A_PLAN: Final = 4
"""How many calls and graphs are kept for each plan: several may lead to one."""

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
    """

    __slots__ = ("buffers", "encoded", "graph", "scalars")

    def __init__(self, graph: Graph) -> None:
        self.graph: Final = graph
        self.encoded: Final = encode(graph)
        self.buffers: Final = graph.buffers()
        self.scalars: Final = graph.scalars()


class Output(NamedTuple):
    """A buffer that a run writes.

    Attributes:
        id: its tensor.
        shape: its shape as the caller sees it.
        name: what to call it in errors.
        in_place: whether it may be a buffer that is read, too.
        result: whether the caller gets it.
    """

    id: int
    shape: tuple[int, ...]
    name: str = "out"
    in_place: bool = False
    result: bool = True


@final
class Form:
    """A call without its buffers: what is checked once for all calls that are alike.

    Attributes:
        program: what to run.
        reads: what the call reads, in the order in which it is given: the tensor's id, -1
            for what the graph itself does not read, and what to call it in errors.
        outputs: what it writes.
        targets: shape and dtype of each of these, and whether it may be read, too.
        results: positions of those that the caller gets; a single one comes by itself.
        order: takes the addresses of the graph's buffers out of those of what is read, written
            and made, one after the other.
        numbers: the graph's numbers in the order of their ids, as far as calls do not differ
            in them.
        prelude: what is done before the graph runs.
        updates: positions of what is read and written, too, and what to call it in errors.
    """

    __slots__ = (
        "numbers",
        "order",
        "outputs",
        "prelude",
        "program",
        "reads",
        "results",
        "targets",
        "updates",
    )

    def __init__(
        self,
        program: Program,
        reads: Iterable[tuple[int, str]],
        outputs: Iterable[Output],
        numbers: tuple[float, ...] = (),
        prelude: Prelude | None = None,
        updates: tuple[tuple[int, str], ...] = (),
    ) -> None:
        self.program: Final = program
        self.reads: Final = tuple(reads)
        self.outputs: Final = tuple(outputs)
        tensors = program.graph.tensors
        self.targets: Final = tuple(
            (each.shape, DTYPES[tensors[each.id].dtype], each.in_place) for each in self.outputs
        )
        self.results: Final = tuple(at for at, each in enumerate(self.outputs) if each.result)
        ids = [id_ for id_, _ in self.reads] + [each.id for each in self.outputs]
        if prelude is not None:
            ids += prelude.ids
        places = {id_: at for at, id_ in enumerate(ids)}
        self.order: Final = picker([places[id_] for id_ in program.buffers])
        self.numbers: Final = numbers
        self.prelude: Final = prelude
        self.updates: Final = updates


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the items at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple([items[at] for at in positions])


class _Unplanned(Exception):
    """It is not known how much workspace a graph needs."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded


@final
class PlanCache:
    """What the program knows of plans, and the graphs that facades have made.

    Attributes:
        autotune: whether graphs get the fastest of their plans, found by trying.
        tf32: whether products of float32 may round their factors.
        workspaces: the plans' scratch memory.
        forms: of calls, by what tells them apart (see ``Facade._run``).
    """

    def __init__(self) -> None:
        self.autotune = False
        self.tf32 = False
        self.workspaces: Final = Workspaces(_WAYS, _SMALL)
        self._workspaces: OrderedDict[tuple[bytes, bool], int] = OrderedDict()
        self.forms: Final[Recent[Hashable, Form]] = Recent(_CALLS_A_PLAN * DEFAULT_LIMIT)
        self._programs: Recent[Hashable, Any] = Recent(_CALLS_A_PLAN * DEFAULT_LIMIT)
        self._limit = DEFAULT_LIMIT
        self._hits = self._misses = self._built = self._loaded = 0
        self._tuned = self._evictions = 0

    def program(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What was made for a key before; at most a few thousand are kept."""
        program = self._programs.get(key)
        if program is None:
            program = self._programs.keep(key, make())
        made: _T = program
        return made

    def remember(self, key: Hashable, form: Form) -> None:
        """Keep the form of a call; at most a few thousand are kept."""
        self.forms.keep(key, form)

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
        self.forms.limit = self._programs.limit = _CALLS_A_PLAN * max(limit, DEFAULT_LIMIT)
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


class Facade(BaseFacade[D]):
    """What the parts of ``device.dnn`` have in common."""

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans = PlanCache()

    async def _run(
        self,
        name: str,
        key: Hashable,
        given: Sequence[GpuRef | None],
        outs: Sequence[GpuRef | None],
        make: Callable[[], Form],
        *,
        numbers: tuple[float, ...] = (),
        tune: bool | None = None,
        sent: Callable[[], None] | None = None,
    ) -> Any:
        """Run a graph.

        Args:
            name: what to call the op.
            key: what ``make`` depends on beside shapes and dtypes of ``given``, None if it
                has to be asked each time. Equal keys have to mean equal calls: see ``exact``.
            given: what the call reads, in the order of the form; None for what is not there.
            outs: where results go, in the order of the form's outputs; None, or too few, for
                those to be made.
            make: checks arguments, and gives the form of all calls that are alike; may be
                called several times.
            numbers: the graph's numbers, where the form has none.
            tune: whether to try all plans; by default as ``autotune`` says.
            sent: called when the message of the form that ``make`` gave last is being sent.
        """
        device, plans = self._device, self._plans
        tuned = plans.autotune if tune is None else tune
        known: tuple[bytes, int] | None = None

        def prepare(room: Room) -> Prepared:
            nonlocal known
            form, reads, addresses = _match(device.memory, plans, name, key, given, outs, make)
            encoded = form.program.encoded
            if known is None or known[0] != encoded:
                workspace = plans.find(encoded, tuned=tuned)
                if workspace is None:
                    raise _Unplanned(encoded)
                known = encoded, workspace
            prepared = _prepare(
                *(device, plans, form, room, given, outs, reads, addresses, numbers, known[1]),
                tuned=tuned,
            )
            if sent is not None and LANE.name in device.ports:
                sent()
            return prepared

        while True:
            try:
                return await perform(device, LANE, name, prepare)
            except _Unplanned as unplanned:
                encoded = unplanned.encoded

            def trial(room: Room, workspace: int) -> Prepared:
                form, reads, addresses = _match(device.memory, plans, name, key, given, outs, make)
                return _prepare(
                    *(device, plans, form, room, given, (), reads, addresses, numbers, workspace),
                    tuned=True,
                    tuning=True,
                )

            known = encoded, await self._make(name, encoded, trial if tuned else None)

    async def _plan(self, program: Program) -> None:
        """Have the host make a plan now, so that what cuDNN refuses is known."""
        plans, device = self._plans, self._device
        if plans.find(program.encoded, tuned=False) is None:
            request = Prepared(PrepareGraph(program.encoded, tuned=False), (), ())
            answer = await perform(device, PLANNER, "dnn.plan", lambda _room: request)
            plans.keep(device, program.encoded, (answer[0], answer[1]), tuned=False)

    async def _make(
        self, name: str, encoded: bytes, trial: Callable[[Room, int], Prepared] | None
    ) -> int:
        """Have the host make a plan; the workspace it needs, as far as that can be known.

        Args:
            name: what to call the op.
            encoded: the graph.
            trial: how to have all plans tried, with a workspace of so many bytes; None if
                they are not to be.
        """
        device, plans = self._device, self._plans
        # What to try all plans with needs as much workspace as the first guess; a candidate
        # that wants more gets it from the lane.
        request = Prepared(PrepareGraph(encoded, tuned=False), (), ())
        answer = await perform(device, PLANNER, "dnn.plan", lambda _room: request)
        if answer is not None and trial is not None:
            nbytes = int(answer[0])
            answer = await perform(device, LANE, f"{name}.tune", lambda room: trial(room, nbytes))
        if answer is None:  # inside a batch there is no answer yet: the lane has its own
            return 0
        plans.keep(device, encoded, (answer[0], answer[1]), tuned=trial is not None)
        return int(answer[0])


def _match(
    memory: MemoryMap,
    plans: PlanCache,
    name: str,
    key: Hashable,
    given: Sequence[Any],
    outs: Sequence[Any],
    make: Callable[[], Form],
) -> tuple[Form, list[Block], list[Any]]:
    """The form of a call, what it reads, and addresses of that, 0 for what is not there.

    A form that is known stands for the checks that led to it. What differs from call to call
    is looked at here: if anything is out of the ordinary, all is checked from the beginning,
    so that there is one place that says what is wrong.
    """
    reads: list[Block] = []
    addresses: list[Any] = []
    signature: list[Any] = [key]
    present, sealed = memory.epoch, memory.sealed_epoch
    plain, form = key is not None, None
    aligned = apart = True
    for ref in given:
        if ref is None:
            signature.append(None)
            addresses.append(0)
            continue
        if type(ref) is not GpuRef:
            plain = False
            break
        block = ref._block
        epoch = block.epoch
        if epoch is not present and epoch is not sealed:
            plain = False
            break
        if type(block) is not Block and block.offset % _ALIGNMENT:
            aligned = False
        signature += (ref.shape, ref.dtype)
        reads.append(block)
        addresses.append(block.address)
    if plain:
        try:
            form = plans.forms.get(tuple(signature))
        except TypeError:  # an argument that cannot be a key
            plain = False
    if form is not None:
        written: list[Block] = []
        for out, (shape, dtype, in_place) in zip(outs, form.targets, strict=False):
            if out is None:
                continue
            if type(out) is not GpuRef or out.shape != shape or out.dtype is not dtype:
                form = None
                break
            block = out._block
            if block.epoch is not present or block.sealed:
                form = None
                break
            if type(block) is not Block and block.offset % _ALIGNMENT:
                aligned = False
            # Views of one buffer are equal. What is written in place is read once.
            if reads.count(block) > in_place or block in written:
                apart = False
            written.append(block)
    if form is not None:
        for at, _ in form.updates:
            block = given[at]._block
            if block.sealed or reads.count(block) > 1 or block in written:
                apart = False
        if not (aligned and apart):
            _check(memory, name, form, given, outs)
    else:
        form = make()
        _check(memory, name, form, given, outs)
        if plain:
            plans.remember(tuple(signature), form)
        reads = [ref._block for ref in given if ref is not None]
        addresses = [0 if ref is None else ref._block.address for ref in given]
    return form, reads, addresses


def _prepare(
    device: Submitter,
    plans: PlanCache,
    form: Form,
    room: Room,
    given: Sequence[GpuRef | None],
    outs: Sequence[GpuRef | None],
    reads: list[Block],
    addresses: list[Any],
    numbers: tuple[float, ...],
    workspace_bytes: int,
    *,
    tuned: bool,
    tuning: bool = False,
) -> Prepared:
    """Make outputs, and say what to send.

    Args:
        device: where.
        plans: has the workspaces.
        form: of the call, which was checked.
        room: where to make outputs.
        given: what is read.
        outs: the caller's own buffers for outputs.
        reads: the blocks that are read.
        addresses: of what is read; those of the others are added.
        numbers: the graph's numbers, where the form has none.
        workspace_bytes: scratch memory to bring.
        tuned: which plan to run.
        tuning: try all plans instead.
    """
    writes: list[Block] = []
    made: list[GpuRef] = []
    brought = len(outs)
    for shape, dtype, _ in form.targets:
        at = len(made)
        out = outs[at] if at < brought else None
        if out is None:
            out = room.empty(shape, dtype)
        block = out._block
        writes.append(block)
        addresses.append(block.address)
        made.append(out)
    prelude, workspace = form.prelude, 0
    scratch = workspace_bytes if prelude is None else prelude.nbytes + workspace_bytes
    if scratch:
        block = plans.workspaces.take(device, room, scratch)
        writes.append(block)
        workspace = block.address
        if prelude is not None:
            addresses += [workspace + offset for offset in prelude.offsets]
            addresses.append(0)  # where zeros are made, there is nothing to make them from
            workspace = workspace + prelude.nbytes if workspace_bytes else 0
    message: Any = RunGraph(
        form.program.encoded,
        tuned,
        form.order(addresses),
        form.numbers or numbers,
        workspace,
        workspace_bytes,
    )
    if tuning:
        message = TuneGraph(message)
    if prelude is not None:
        message = prelude.message(message, addresses)
    for at, _ in form.updates:
        ref = given[at]
        assert ref is not None
        # Whoever writes comes after all who read before, so there is no need to read, too:
        # then the next one that writes would wait for every single one of them.
        reads.remove(ref._block)
        writes.append(ref._block)
    if tuning:
        return Prepared(message, reads, writes)
    results = form.results
    result: Any = made[0] if len(results) == 1 else tuple([made[at] for at in results])
    return Prepared(message, reads, writes, result)


def _check(
    memory: MemoryMap,
    op: str,
    form: Form,
    given: Sequence[GpuRef | None],
    outs: Sequence[GpuRef | None],
) -> None:
    """Check a call's buffers, here and now."""
    read: list[tuple[str, GpuRef]] = []
    written: list[tuple[str, GpuRef]] = []
    updates = dict(form.updates)
    for at, (ref, (id_, name)) in enumerate(zip(given, form.reads, strict=True)):
        if ref is None:
            continue
        block = usable(ref, memory, name)
        if id_ >= 0 and block.offset % _ALIGNMENT:
            raise _askew(block, name)
        if at in updates:
            writable(ref, memory, name)
            written.append((name, ref))
        else:
            read.append((name, ref))
    for out, output, (shape, dtype, _) in zip(outs, form.outputs, form.targets, strict=False):
        if out is None:
            continue
        block = writable(out, memory, output.name)
        if block.offset % _ALIGNMENT:
            raise _askew(block, output.name)
        if out.shape != shape or out.dtype is not dtype:
            raise (ValueError if out.shape != shape else TypeError)(
                f"{output.name} is {out.dtype.name} of shape {out.shape}, but the result is "
                f"{dtype.name} of shape {shape}"
            )
        written.append((output.name, out))
    in_place = [(each.name, each.name) for each in form.outputs if each.in_place]
    require_apart(op, written, read, in_place=in_place)


def _askew(block: Block, name: str) -> ValueError:
    return ValueError(
        f"{name} is a view that begins {block.offset} bytes into its buffer; cuDNN wants a "
        f"multiple of {_ALIGNMENT}: copy it to a buffer of its own"
    )
