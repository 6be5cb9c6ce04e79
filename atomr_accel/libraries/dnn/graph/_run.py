"""Requests that run graphs: they check buffers, let a plan be made, and run it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, final

from ...._dtypes import DTYPES
from ....arrays import GpuRef
from ....memory import Block
from ....ops import (
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    picker,
    require_no_alias,
    require_no_race,
    require_readable,
    require_writable,
)
from ....wire.options import flag
from ....wire.recent import Recent
from ..wire._graph import DnnGraph, encode
from ..wire._messages import ForgetGraph, PrepareGraph, RunGraph, TuneGraph
from ..wire.sequence_messages import Clear, ClearAll

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import numpy as np

    from ....memory import MemoryMap
    from ....ops import DeviceView, Preparer
    from ....wire import Message


class RunSetup(Protocol):
    """Work before a graph runs, such as making some of its inputs in scratch memory."""

    @property
    def ids(self) -> Sequence[int]:
        """Ids of the tensors that are made."""

    @property
    def offsets(self) -> Sequence[int]:
        """Their offsets in scratch memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of scratch memory."""

    def message(self, run: RunGraph | TuneGraph, addresses: list[Any]) -> Message:
        """Return the message that does the work, and then runs the graph."""


_STREAMS: Final = 4
_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.dnn.host._cpu:CpuDnn",
    "cuda": "atomr_accel.libraries.dnn.host._cuda:CudaDnn",
}
LANE: Final = LaneSpec("dnn", _EXECUTORS, max_streams=_STREAMS)
PLANNER: Final = LaneSpec("dnn-plans", _EXECUTORS, watched=False, own_thread=True)
"""Lane that makes plans, which may take seconds, while the other lane runs existing ones."""

DEFAULT_LIMIT: Final = 512
_CALLS_A_PLAN: Final = 4
"""Number of calls and graphs that are kept for each plan, since several may share one."""

_ALIGNMENT: Final = 16
"""Bytes that cuDNN expects every address to be a multiple of."""

_SMALL: Final = 4 << 20
"""Bytes of workspace up to which ops run side by side, each with one of its own."""

ZERO: Final = 0x00
NAN: Final = 0xFF
"""A byte of which every floating-point number that is made of it is NaN."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DnnStatistics:
    """The origins of graphs' plans, and their workspaces.

    Attributes:
        built: plans that cuDNN had to make.
        loaded: plans that were on disk.
        tuned: plans found by trying all.
        workspace: bytes of the workspaces that they share.
        attention: what computes attention, with the numbers of plans: ``"cudnn"``; ``"padded"``
            for head sizes that cuDNN computes with zeros behind them; ``"own"`` where it refuses
            and kernels of this package compute; ``"numpy"`` on the CPU. ``"kernel"`` is the number
            of kinds of calls for the kernels of ``device.flash_attention``, on the CPU, too. Calls
            with the same shapes, dtypes and options are of one kind, and have one plan.
    """

    built: int
    loaded: int
    tuned: int
    workspace: int
    attention: Mapping[str, int]


@final
class EncodedGraph:
    """A graph, ready to travel.

    Attributes:
        tensors: its tensors by id.
        used: ids of those that it reads or writes.
        encoded: its bytes.
        buffers: ids of its buffers.
        scalars: ids of its numbers.
    """

    __slots__ = ("buffers", "encoded", "scalars", "tensors", "used")

    def __init__(self, graph: DnnGraph) -> None:
        self.tensors: Final = graph.tensors
        self.used: Final = graph.used()
        self.encoded: Final = encode(graph)
        self.buffers: Final = graph.buffers()
        self.scalars: Final = graph.scalars()


class RunOutput(NamedTuple):
    """A buffer that a run writes.

    Attributes:
        id: its tensor.
        shape: its shape as the caller sees it.
        name: name in errors.
        in_place: whether it may be a buffer that is read, too.
        result: whether the caller gets it.
    """

    id: int
    shape: tuple[int, ...]
    name: str = "out"
    in_place: bool = False
    result: bool = True


class CachedCall:
    """A call without its buffers, checked once for all calls with the same signature.

    Attributes:
        reads: the call's inputs, in the caller's order: the tensor's id, or -1 if the graph
            itself does not read it, and the name in errors.
        outputs: the call's outputs.
        targets: shape and dtype of each output.
        results: positions of the outputs that the caller gets; a single one is not in a tuple.
        updates: positions of inputs that are also written, and their names in errors.
        alignment: required alignment of the addresses of buffers, in bytes.
        strided: names in errors of inputs that may have gaps, as the graph's tensors say.
    """

    __slots__ = ("alignment", "outputs", "reads", "results", "strided", "targets", "updates")

    def __init__(
        self,
        reads: Iterable[tuple[int, str]],
        outputs: Iterable[RunOutput],
        dtypes: Iterable[np.dtype[Any]],
        updates: tuple[tuple[int, str], ...] = (),
        strided: frozenset[str] = frozenset(),
        alignment: int = _ALIGNMENT,
    ) -> None:
        self.reads: Final = tuple(reads)
        self.outputs: Final = tuple(outputs)
        self.targets: Final = tuple(
            (each.shape, dtype) for each, dtype in zip(self.outputs, dtypes, strict=True)
        )
        self.results: Final = tuple(at for at, each in enumerate(self.outputs) if each.result)
        self.updates: Final = updates
        self.alignment: Final = alignment
        self.strided: Final = strided


@final
class GraphCall(CachedCall):
    """A call that runs a graph.

    Attributes:
        graph: the graph to run.
        order: picks the addresses of the graph's buffers, given those of all inputs, outputs and
            derived tensors.
        numbers: the graph's numbers in the order of their ids, if all calls share them.
        setup: the work before the graph runs.
    """

    __slots__ = ("graph", "numbers", "order", "setup")

    def __init__(
        self,
        graph: EncodedGraph,
        reads: Iterable[tuple[int, str]],
        outputs: Iterable[RunOutput],
        numbers: tuple[float, ...] = (),
        setup: RunSetup | None = None,
        updates: tuple[tuple[int, str], ...] = (),
        strided: frozenset[str] = frozenset(),
    ) -> None:
        written = tuple(outputs)
        dtypes = [DTYPES[graph.tensors[each.id].dtype] for each in written]
        super().__init__(reads, written, dtypes, updates, strided)
        self.graph: Final = graph
        ids = [id_ for id_, _ in self.reads] + [each.id for each in written]
        if setup is not None:
            ids += setup.ids
        places = {id_: at for at, id_ in enumerate(ids)}
        self.order: Final = picker([places[id_] for id_ in graph.buffers])
        self.numbers: Final = numbers
        self.setup: Final = setup


@final
class FillCall(CachedCall):
    """A call without input elements, because an array has a zero in its shape.

    Attributes:
        byte: value of the results' bytes, if they have any.
    """

    __slots__ = ("byte",)

    def __init__(
        self,
        reads: Iterable[str],
        outputs: Iterable[RunOutput],
        dtypes: Iterable[np.dtype[Any]],
        byte: int = ZERO,
    ) -> None:
        super().__init__([(-1, name) for name in reads], outputs, dtypes, alignment=1)
        self.byte: Final = byte

    @classmethod
    def of_one(
        cls, reads: Iterable[str], shape: tuple[int, ...], dtype: np.dtype[Any], byte: int = ZERO
    ) -> FillCall:
        """A call with one result."""
        return cls(reads, [RunOutput(-1, shape)], [dtype], byte)


def without_images(call: CachedCall) -> CachedCall:
    """Replace a call whose batch is empty by one that fills its results.

    Sums over images are zeros then; other results have no elements.
    """
    if type(call) is not GraphCall:
        return call
    tensors = call.graph.tensors
    if not any(0 in tensors[at].shape for at in call.graph.used):
        return call
    names = [name for _, name in call.reads]
    return FillCall(names, call.outputs, [dtype for _, dtype in call.targets])


@final
class DnnPlanCache:
    """The program's knowledge of plans, and the graphs that facades have made.

    Attributes:
        workspaces: the plans' scratch memory.
        plans: bytes of workspace of each plan, by its encoded graph and whether it is tuned.
        calls: checked calls by their signatures (see ``DnnPart._request``), and graphs, for calls
            without templates.
    """

    def __init__(self, device: DeviceView) -> None:
        self._device = device
        self.workspaces: Final = Workspaces(_STREAMS, _SMALL)
        self.plans: Final[Recent[tuple[bytes, bool], _KnownPlan]] = Recent(
            DEFAULT_LIMIT, partial(_forget, device), name="plans"
        )
        self.calls: Final[Recent[Hashable, Any]] = Recent(
            _CALLS_A_PLAN * DEFAULT_LIMIT, name="calls"
        )
        self._built = self._loaded = self._tuned = 0
        self._attention: Counter[str] = Counter()
        self._forms: Recent[Hashable, bool] = Recent(_CALLS_A_PLAN * DEFAULT_LIMIT)

    def graph(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """A graph that was made for a key before; at most a few thousand are kept."""
        graph = self.calls.get(key)
        if graph is None:
            graph = self.calls.add(key, make())
        made: _T = graph
        return made

    def find(self, encoded: bytes, *, tuned: bool) -> int | None:
        """Return the bytes of workspace that a plan needs, or None if they are unknown."""
        known = self.plans.get((encoded, tuned))
        return None if known is None else known.workspace

    def still(self, encoded: bytes, workspace: int | None, *, tuned: bool) -> Callable[[], bool]:
        """Return a function that checks whether ``find`` gives the same as now."""
        return lambda: self.find(encoded, tuned=tuned) == workspace

    def note_kernel(self, form: Hashable) -> None:
        """Note a kind of attention that is computed by kernels that are no part of a plan."""
        if self._forms.get(form) is None:
            self._forms.keep(form, True)
            self._attention["kernel"] += 1

    def keep(self, encoded: bytes, answer: tuple[int, str, str], *, tuned: bool) -> int:
        """Note the host's answer about a plan, and return the bytes of workspace."""
        workspace, origin, implementation = answer
        if b"sdpa" in encoded:  # the only texts in it are names of ops and of their options
            self._attention[implementation] += 1
        self._built += origin == "built"
        self._loaded += origin == "disk"
        self._tuned += tuned
        if self.plans.peek((encoded, tuned)) is None:  # several calls may have asked for it
            self.plans.keep((encoded, tuned), _KnownPlan(encoded, tuned, workspace))
        self.plans.misses += 1
        return workspace

    def limit_to(self, limit: int) -> None:
        """Keep that many plans."""
        self.calls.limit = _CALLS_A_PLAN * max(limit, DEFAULT_LIMIT)
        self.plans.limit = limit

    def statistics(self) -> DnnStatistics:
        """A snapshot."""
        nbytes = self.workspaces.nbytes(self._device)
        counts = dict(self._attention)
        return DnnStatistics(self._built, self._loaded, self._tuned, nbytes, counts)


class _KnownPlan(NamedTuple):
    """The program's record of a plan.

    Attributes:
        encoded: its graph.
        tuned: whether it was found by trying all.
        workspace: bytes of workspace that it needs.
    """

    encoded: bytes
    tuned: bool
    workspace: int


def _forget(device: DeviceView, plan: _KnownPlan) -> None:
    """Let the host drop a plan."""
    port = device.ports.get(PLANNER.name)
    if port is not None:
        device.submit(port, "dnn.forget", ForgetGraph(plan.encoded, plan.tuned))


class DnnPart(Facade[D]):
    """Base of the parts of ``device.dnn``."""

    def __init__(self, device: DeviceView, plans: DnnPlanCache | None = None) -> None:
        self.home = device
        self.plans: Final = plans or DnnPlanCache(device)
        self._asked: set[bytes] = set()

    def on(self, device: DeviceView) -> Any:
        facade = super().on(device)
        facade._asked = set()
        return facade

    def _request(
        self,
        name: str,
        key: Hashable,
        given: Sequence[GpuRef | None],
        outs: Sequence[GpuRef | None],
        make: Callable[[], CachedCall],
        *,
        numbers: tuple[float, ...] = (),
        tune: bool = False,
        sent: Callable[[], None] | None = None,
    ) -> Request[Any]:
        """Return a request to run a graph.

        Args:
            name: name of the op.
            key: values on which ``make`` depends besides shapes and dtypes of ``given``; None to
                call it each time. Equal keys must mean equal calls: see ``exact``.
            given: the call's inputs, in the order of ``CachedCall.reads``; None for absent ones.
            outs: buffers for results, in the order of the call's outputs; None or omitted to
                make them.
            make: checks arguments, and returns the call that all calls with the same signature
                share; may be called several times.
            numbers: the graph's numbers, if the call has none.
            tune: whether the first run tries all plans and keeps the fastest.
            sent: called when the message of the call that ``make`` gave last is being sent.

        Raises:
            TypeError: ``tune`` is not a bool.
            ValueError: ``tune`` is set on a device that was opened with ``deterministic=True``.
        """
        if tune is not False:
            require_no_race(self.home, autotune=flag(tune, "autotune"))
        planned: tuple[bytes, int] | None = None

        def prepare(preparer: Preparer) -> Submission[Any]:
            nonlocal planned
            call, reads, addresses = self._checked(preparer.memory, name, key, given, outs, make)
            if type(call) is not GraphCall:
                return _fill(preparer, call, reads, outs)
            plans = self.plans
            encoded = call.graph.encoded
            if planned is None or planned[0] != encoded:
                nbytes = plans.find(encoded, tuned=tune)
                preparer.depends(plans.still(encoded, nbytes, tuned=tune))
                if nbytes is None:
                    nbytes = self._plan(preparer, encoded, tuned=tune, name=name, trial=trial)
                planned = encoded, nbytes
            run = self._run(preparer, call, outs, addresses, numbers, planned[1], tuned=tune)
            message, writes, made = run
            if call.updates:
                _update(call, given, reads, writes)
            results = call.results
            result = made[0] if len(results) == 1 else tuple([made[at] for at in results])
            return Submission(message, reads, writes, result, None, sent)

        def trial(preparer: Preparer, nbytes: int) -> Submission[Any]:
            call, reads, addresses = self._checked(preparer.memory, name, key, given, outs, make)
            assert type(call) is GraphCall
            run = self._run(preparer, call, (), addresses, numbers, nbytes, tuned=True, tuning=True)
            _update(call, given, reads, run[1])
            return Submission(run[0], reads, run[1])

        return Request(LANE, name, prepare)

    def _plan(
        self,
        preparer: Preparer,
        encoded: bytes,
        *,
        tuned: bool,
        name: str,
        trial: Callable[[Preparer, int], Submission[Any]],
    ) -> int:
        """Let the host make a plan first, and return the bytes of workspace, or 0 if unknown.

        ``trial`` prepares a trial of all plans with that many bytes of workspace.
        """
        here = preparer.home is self.home  # a batch asks once
        if here and encoded in self._asked:
            return 0
        # What to try all plans with needs as much workspace as the first guess; a candidate
        # that wants more gets it from the lane.
        answer = preparer.perform(planning(encoded))
        if answer is not None and tuned:
            nbytes = answer[0]
            answer = preparer.perform(
                Request(LANE, f"{name}.tune", lambda preparer: trial(preparer, nbytes))
            )
        if answer is None:  # inside a batch there is no answer yet: the lane has its own
            if here:
                self._asked.add(encoded)
            return 0
        return self.plans.keep(encoded, answer, tuned=tuned)

    def _checked(
        self,
        memory: MemoryMap,
        name: str,
        key: Hashable,
        given: Sequence[Any],
        outs: Sequence[Any],
        make: Callable[[], CachedCall],
    ) -> tuple[CachedCall, list[Block], list[Any]]:
        """Return a checked call, the blocks that it reads, and their addresses, 0 if absent.

        A known signature needs no further checks of shapes, dtypes and options. ``_check`` checks
        the buffers themselves. Calls skip it if all buffers are ordinary and none is both the
        caller's and written.
        """
        reads: list[Block] = []
        addresses: list[Any] = []
        parts: list[Any] = [key]
        present, sealed = memory.epoch, memory.sealed_epoch
        call, signature, plain = None, None, True
        for ref in given:
            if ref is None:
                parts.append(None)
                addresses.append(0)
                continue
            if type(ref) is not GpuRef:
                break
            block = ref.block
            epoch = block.epoch
            if epoch is not present and epoch is not sealed:
                break
            if type(block) is not Block:
                if ref.own_strides is not None:
                    block, plain = ref.addressable_block, False
                    parts.append(ref.own_strides)
                elif block.offset % _ALIGNMENT:
                    plain = False
            parts += (ref.shape, ref.dtype)
            reads.append(block)
            addresses.append(block.address)
        else:
            if key is not None:
                signature = tuple(parts)
                try:
                    call = self.plans.calls.get(signature)
                except TypeError:  # an argument that cannot be a key
                    signature = None
        for out in outs:
            if out is not None:
                plain = False
        if call is None or call.updates or not plain:
            known, call = call, call or without_images(make())
            _check(memory, name, call, given, outs)
            if known is None and signature is not None:
                self.plans.calls.add(signature, call)
        return call, reads, addresses

    def _run(
        self,
        preparer: Preparer,
        call: GraphCall,
        outs: Sequence[GpuRef | None],
        addresses: list[Any],
        numbers: tuple[float, ...],
        workspace_bytes: int,
        *,
        tuned: bool,
        tuning: bool = False,
    ) -> tuple[Any, list[Block], list[GpuRef]]:
        """Return the message, the blocks that it writes, and the outputs.

        The addresses of other buffers are added to those of the inputs.
        """
        writes: list[Block] = []
        made: list[GpuRef] = []
        brought = len(outs)
        for shape, dtype in call.targets:
            at = len(made)
            out = outs[at] if at < brought else None
            if out is None:
                out = preparer.output(shape, dtype)
            block = out.block
            writes.append(block)
            addresses.append(block.address)
            made.append(out)
        setup, workspace = call.setup, 0
        scratch = workspace_bytes if setup is None else setup.nbytes + workspace_bytes
        if scratch:
            block = self.plans.workspaces.obtain(preparer, scratch)
            writes.append(block)
            workspace = block.address
            if setup is not None:
                addresses += [workspace + offset for offset in setup.offsets]
                workspace = workspace + setup.nbytes if workspace_bytes else 0
        if setup is not None:
            addresses.append(0)  # of what is not there
        message: Any = RunGraph(
            call.graph.encoded,
            tuned,
            tuple(call.order(addresses)),
            call.numbers or numbers,
            workspace,
            workspace_bytes,
        )
        if tuning:
            message = TuneGraph(message)
        if setup is not None:
            message = setup.message(message, addresses)
        return message, writes, made


def planning(encoded: bytes) -> Request[tuple[int, str, str]]:
    """Ask the host to make a plan. It is answered as ``PrepareGraph``."""
    submission: Submission[tuple[int, str, str]] = Submission(
        PrepareGraph(encoded, tuned=False), (), ()
    )
    return Request(PLANNER, "dnn.plan", lambda _preparer: submission)


def _fill(
    preparer: Preparer, call: CachedCall, reads: list[Block], outs: Sequence[GpuRef | None]
) -> Submission[Any]:
    assert type(call) is FillCall
    made: list[GpuRef] = []
    for target, out in zip_longest(call.targets, outs):
        made.append(preparer.output(*target) if out is None else out)
    blocks = [ref.block for ref in made]
    parts = [Clear(ref.block.address, ref.nbytes, call.byte) for ref in made]
    message = parts[0] if len(parts) == 1 else ClearAll(tuple(parts))
    results = tuple([made[at] for at in call.results])
    return Submission(message, reads, blocks, results[0] if len(results) == 1 else results)


def _update(
    call: CachedCall, given: Sequence[GpuRef | None], reads: list[Block], writes: list[Block]
) -> None:
    """Count buffers that are both read and written as written."""
    for at, _ in call.updates:
        ref = given[at]
        assert ref is not None
        # A writer already waits for all earlier readers. Counting it as a reader, too, would make
        # the next writer wait for every one of them.
        reads.remove(ref.block)
        writes.append(ref.block)


def _check(
    memory: MemoryMap,
    op: str,
    call: CachedCall,
    given: Sequence[GpuRef | None],
    outs: Sequence[GpuRef | None],
) -> None:
    """Check a call's buffers, here and now."""
    read: list[tuple[str, GpuRef]] = []
    written: list[tuple[str, GpuRef]] = []
    updates = dict(call.updates)
    for at, (ref, (id_, name)) in enumerate(zip(given, call.reads, strict=True)):
        if ref is None:
            continue
        block = require_readable(ref, memory, name, strided=name in call.strided)
        if id_ >= 0 and block.offset % call.alignment:
            raise _misaligned(block, name)
        if at in updates:
            require_writable(ref, memory, name)
            written.append((name, ref))
        else:
            read.append((name, ref))
    for out, output, (shape, dtype) in zip(outs, call.outputs, call.targets, strict=False):
        if out is None:
            continue
        block = require_writable(out, memory, output.name)
        if block.offset % call.alignment:
            raise _misaligned(block, output.name)
        require_result(out, shape, dtype, output.name)
        written.append((output.name, out))
    in_place = [(each.name, each.name) for each in call.outputs if each.in_place]
    require_no_alias(op, written, read, in_place=in_place)


def require_result(out: GpuRef, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Check that a buffer has the shape and the dtype of a result."""
    if out.shape != shape or out.dtype is not dtype:
        raise (ValueError if out.shape != shape else TypeError)(
            f"{name} is {out.dtype.name} of shape {out.shape}, but the result is "
            f"{dtype.name} of shape {shape}"
        )


def _misaligned(block: Block, name: str) -> ValueError:
    return ValueError(
        f"{name} is a view that begins {block.offset} bytes into its buffer; cuDNN wants a "
        f"multiple of {_ALIGNMENT}: copy it to a buffer of its own"
    )
