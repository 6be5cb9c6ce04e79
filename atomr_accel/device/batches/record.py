"""Recordings: collected once, replayed often, on CUDA as a graph."""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final, overload

import numpy as np
import trio

from ..._errors import ContextPoisoned, DeviceLost, Unsupported
from ...actors.blocks import EntersAsync, enters
from ...arrays import GpuRef, ref_error, sealed_error
from ...lanes import uninterrupted
from ...libraries.nvrtc.lanes import KERNELS
from ...libraries.recordings.wire.messages import (
    Describe,
    ForgetRecording,
    Kind,
    RecordingStep,
    Section,
)
from ...memory import Block, Epoch, LateAddress, origin, part_of
from ...ops import (
    BLOCK_ALIGNMENT,
    LaneSpec,
    alignment,
    overlap,
    recorded_call,
    require_readable,
    require_writable,
    same_place,
)
from ._fetch import ReplayFetch
from ._life import RecordingLife
from ._nodes import ConditionalPart, RecordingCall, names_of, start_in, step_of
from .collector import CollectingDevice, Collector
from .replaying import (
    FROM_OUTSIDE,
    RECORDINGS,
    checked_buffers,
    ready_to_replay,
    submit_replay,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from ...actors import ActorRef
    from ...lanes import Op
    from ...libraries.recordings.wire.messages import Node
    from ...memory import AtEnd, Kept
    from ...ops import Facade, HostObjects, Request
    from ...wire import Message
    from ._nodes import CollectedOp, RecordedNode

_OF_BATCHES: Final = ("get", "put", "run")

_ALIGNMENT: Final = 16
"""Alignment in bytes of buffers, up to which library calls may depend on it."""

_numbers: Final = itertools.count(1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordingStatistics:
    """A recording at one moment.

    Attributes:
        ops: the calls that it consists of; other recordings that it calls count once.
        replays: how often it was replayed so far.
        in_flight: the replays that are not finished.
        rebuilds: how often it was prepared again for a new generation.
        nbytes: bytes of the buffers that it has made.
    """

    ops: int
    replays: int
    in_flight: int
    rebuilds: int
    nbytes: int


@final
@uninterrupted
class Recording(EntersAsync, Collector):
    """Collects ops inside ``async with device.record() as recording:``, to be replayed.

    Recording executes nothing. The refs that calls return have content once the recording was
    replayed; using them earlier raises ``RuntimeError``. ``replay`` can replace the recorded
    buffers by others. A recording owns the buffers that it has made, which stay valid for as long
    as it does.

    Each replay writes its results to the same buffers, so a recording belongs to the task that
    replays it first. Replays by other tasks could overwrite results that were not read yet, and
    raise ``RuntimeError``. Make one for each task. ``device.record(..., shared=True)`` makes one
    that all tasks may replay if they take turns.

    After a rebuild a recording is prepared again, with the same refs for its results, if the
    buffers it reads are sealed or replaced. Otherwise ``replay`` raises ``GpuRefStale``.

    Random numbers drawn in a recording are the same in every replay.
    """

    _entered_by = "device.record(...) as recording"

    def __init__(
        self,
        device: CollectingDevice,
        inputs: tuple[GpuRef, ...],
        *,
        shared: bool = False,
        lane: LaneSpec = RECORDINGS,
    ) -> None:
        super().__init__(device)
        self.lane: Final = lane
        self.number: Final = next(_numbers)
        self._inputs = inputs
        self._shared = shared
        self._task: weakref.ref[trio.lowlevel.Task] | None = None  # whose results there are
        self._task_name = ""
        self._prepare: list[CollectedOp] = []
        self._nodes: list[RecordedNode] = []
        self._choices: list[ConditionalPart] = []  # whose blocks are open, innermost last
        self.called: dict[Recording, None] = {}  # directly or not, in order
        self._placeholders: dict[GpuRef, GpuRef] = {}
        self.inputs_bound: dict[Block, GpuRef] = {}
        self._stand_ins: dict[Block, list[Block]] = {}  # by the block they stand for
        self._inside: dict[Block, tuple[Block, int]] = {}  # stand-ins that are parts of others
        self._pads: dict[Block, int] = {}  # offset of a stand-in from the buffer that it replaces
        self._particular = False  # whether anything was checked that depends on where it begins
        self._made: dict[Block, int] = {}
        self._provided = 0
        self._life = RecordingLife(0)
        self._ops = self._nbytes = self._replays = self._in_flight = self._lives = 0
        self._place: tuple[ActorRef, AtEnd] | None = None
        self._written: set[Block] = set()
        self._origins: dict[Block, list[Block]] | None = None  # stand-ins by what they stand for
        self._sent: tuple[Any, ...] | None = None
        self._recorded: Op | None = None
        self._kept: Kept | None = None
        self._open = False
        self._entered = False
        self._collecting = False
        self._spoilt = False

    async def __aenter__(self) -> Recording:
        if self._entered:
            raise RuntimeError("a recording is entered once; make another: device.record(...)")
        await self.core.ready()
        self.ports: dict[str, Any] = {name: spec for name, (spec, _) in self.core.lanes.items()}
        self._open = self._entered = True
        for at, ref in enumerate(self._inputs):
            if not self._takes(ref):
                raise ref_error(ref, self.memory, f"input {at} of record")
            self.take(ref)
        self._place = self.core.place.add_recording(f"recording-{self.number}", self)
        if self.recorder is not None:
            self.recorder.entered(self)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._open = False
        self._done.clear()  # nothing was executed
        self._drop_libraries()
        self._written.update(map(self._root, tuple(self._written)))
        if self.recorder is not None:
            self.recorder.left(self, error, body=error is not None)
        if error is None:
            await self._prepared()
        else:
            self._spoilt = True

    if not TYPE_CHECKING:  # to checkers any attribute would be there

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_BATCHES:
                raise AttributeError(
                    f"a recording has no {name}, which a replay could not do: put what it reads "
                    "before it, and fetch its results after replay()"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- its place in the tree ------------------------------------------------------------

    @property
    def ref(self) -> ActorRef:
        """Its place in the tree of actors, such as ``/device-0/recording-3``.

        It answers ``GetStatistics``, and can be watched. It ends when nothing refers to the
        recording any more, or with the device.

        Raises:
            RuntimeError: the recording was not entered, or prepares a standby, which has no place.
        """
        if self._place is None:
            self._check_entered()
            raise RuntimeError("a device must be the program's own to have a ref, not a standby's")
        return self._place[0]

    def statistics(self) -> RecordingStatistics:
        """A snapshot of this recording."""
        return RecordingStatistics(
            ops=self._ops,
            replays=self._replays,
            in_flight=self._in_flight,
            rebuilds=max(0, self._lives - 1),
            nbytes=self._nbytes,
        )

    # --- collecting -----------------------------------------------------------------------

    def collect(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Take a call into the recording, on stand-ins for its buffers."""
        taken = {name: self.take(value) for name, value in kwargs.items()}
        self._collecting = True
        try:
            return super().collect(make, facade, tuple(map(self.take, args)), taken)
        finally:
            self._collecting = False

    def perform(self, request: Request[T]) -> T:
        """Recordings take calls, not requests.

        Raises:
            Unsupported: the buffers of a request are its own, so ``replay`` could not use others
                in their place. Call the library instead: ``recording.blas.gemm(a, b)``.
        """
        if not self._collecting:
            raise Unsupported(
                "a recording takes calls, not requests, whose buffers nothing could replace on "
                "replay; call the library: recording.blas.gemm(a, b)"
            )
        return super().perform(request)

    def take(self, argument: Any) -> Any:
        """Return a ref's stand-in in the recording, whose address is read late.

        An argument that the recording cannot use is returned unchanged, and the call refuses it by
        name.
        """
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.take(item) for item in argument)
        if not self._takes(argument) or self._knows(argument.block.base):
            return argument
        placeholder = self._placeholders.get(argument)
        if placeholder is None:
            placeholder = self._view(argument)
            if placeholder is None:
                placeholder = self._stand_in(argument)
            self._placeholders[argument] = placeholder
        return placeholder

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """A buffer that is inside an argument, as the recording knows it."""
        self._particular = True  # a kernel's tensor map is for what begins at 16 bytes
        taken: GpuRef = self.take(ref)
        return taken

    def _knows(self, block: Block) -> bool:
        """Return True if a block belongs to the recording: made in it, or a stand-in."""
        return block in self._made or block in self.inputs_bound or block in self._inside

    def _takes(self, ref: object) -> bool:
        """Return True if a buffer can be recorded. It may be one that another recording makes."""
        if not isinstance(ref, GpuRef):
            return False
        block, memory = ref.block, self.memory
        epoch = block.epoch
        if epoch is None or block.memory is not memory:
            return False
        return memory.current(epoch) or memory.awaits(epoch)

    def _view(self, argument: GpuRef) -> GpuRef | None:
        """Return the stand-in of a view: the same part of its buffer's stand-in.

        A buffer that replaces an input on replay so replaces its views, too.
        """
        for stand_in in self._stand_ins.get(argument.block.base, ()):
            start = start_in(argument, self.inputs_bound[stand_in])
            if start is not None:
                at = start + self._pads[stand_in]
                return argument.on_block(part_of(stand_in, at) if at else stand_in)
        return None

    def _stand_in(self, argument: GpuRef) -> GpuRef:
        block, stand_in = argument.block, self.memory.promise()
        stand_in.sealed = block.sealed
        if block.epoch is not None and self.memory.current(block.epoch):
            stand_in.epoch = block.epoch  # else it has content when this recording is replayed
        # A stand-in begins at the same offset from an aligned address as its buffer, so that calls
        # find the same alignment.
        pad = self._pads[stand_in] = block.offset % BLOCK_ALIGNMENT
        stand_in.stands_for = block.base, block.offset - pad
        others = self._stand_ins.setdefault(block.base, [])
        for other in others[:]:
            start = start_in(self.inputs_bound[other], argument)
            if start is not None:  # a view that was taken before it
                others.remove(other)
                del self.inputs_bound[other]
                self._inside[other] = stand_in, start + pad - self._pads[other]
        others.append(stand_in)
        self.inputs_bound[stand_in] = argument
        return argument.on_block(part_of(stand_in, pad) if pad else stand_in)

    def _root(self, block: Block) -> Block:
        """The stand-in that a block of the recording is a part of."""
        block = block.base
        while block in self._inside:
            block = self._inside[block][0]
        return block

    @property
    def host_objects(self) -> HostObjects:
        """Recordings have executors of their own."""
        return self

    def keep(self, lane: str, name: str, release: Message) -> Block:
        """Return a handle for an object that the host drops together with the recording."""
        del lane, name, release
        return self.memory.promise()

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return a buffer of the recording, which gets its memory at the end of the block."""
        nbytes = math.prod(shape) * dtype.itemsize
        self.core.growth.require_possible(nbytes)
        block = self.memory.promise()
        self._made[block] = nbytes
        self._nbytes += nbytes
        return GpuRef(block, shape, dtype, nbytes)

    def submit(
        self,
        port: Any,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> None:
        """Take an op into the recording."""
        del reads  # all that is bound is read, as far as other ops are concerned
        self._check_open()
        self._particular = self._particular or port.name != KERNELS.name
        step = (port.executor_on(self.core.backend_description), name, message)
        if getattr(message, "prepares", False):
            self._prepare.append(step)
            self._note(writes)
        else:
            self._add(step, writes)

    @enters
    def when(self, flag: GpuRef) -> Iterator[None]:
        """Record a part that a replay executes only if a flag is set at that point.

        ``with recording.when(flag): ...`` records the calls in its block. On CUDA they become a
        conditional node. Buffers that calls in the block return have memory in any case, and new
        content only if the block was executed. Blocks can be nested.

        Args:
            flag: a bool or an integer of one element on the device; any value but zero counts as
                set. It is read after the recording's earlier ops, so a kernel can set it.

        Raises:
            TypeError: ``flag`` is not a buffer of bool or integers.
            ValueError: it has more than one element, or is of another device.
        """
        return self._choose("when", flag)

    @enters
    def loop(self, flag: GpuRef) -> Iterator[None]:
        """Record a part that a replay repeats while a flag is set.

        It is like ``when``, but the flag is read before each round, and an op in the block must
        write it. A loop that never ends counts as an op that hangs, see ``op_deadline`` of
        ``open_device``.

        Args:
            flag: as for ``when``.

        Raises:
            ValueError: as ``when``; or no op in the block writes the flag.
        """
        return self._choose("loop", flag)

    @property
    def in_part(self) -> bool:
        """True in the block of ``when`` or ``loop``."""
        return bool(self._choices)

    def _choose(self, kind: Kind, flag: GpuRef) -> Iterator[None]:
        self._check_open()
        check = require_readable if kind == "when" else require_writable
        given, flag = flag, self.take(flag)
        check(flag, self.memory, "flag")
        if flag.dtype.kind not in "biu":
            raise TypeError(f"a flag must be a bool or an integer, not {flag.dtype.name}")
        if flag.size != 1:
            raise ValueError(f"a flag must have one element, not shape {flag.shape}")
        choice = ConditionalPart(kind, flag)
        self._choices.append(choice)
        if self.recorder is not None:
            self.recorder.chosen(self, kind, given)
        try:
            yield
        finally:
            self._choices.pop()
            if self.recorder is not None:
                self.recorder.section_ended(self)
        if kind == "loop" and self._root(flag.block) not in map(self._root, choice.written):
            raise ValueError("an op in this loop must write its flag, or the loop runs for ever")
        self._add(choice, choice.written)

    @recorded_call
    def call(
        self, recording: Recording, *inputs: GpuRef, replace: Mapping[GpuRef, GpuRef] | None = None
    ) -> None:
        """Record the replay of another recording as a part of this one (a child graph).

        The other recording's results stay the same refs, and it can still be replayed by itself.

        Args:
            recording: one of the same device.
            *inputs: replacements of the inputs of its ``device.record``, in order.
            replace: further replacements, by the buffers that they replace, read or written.

        Raises:
            ValueError: a buffer has another shape or device, inputs are too many, or the recording
                is of another device.
            TypeError: a buffer has another dtype, or ``recording`` is not a recording.
            RuntimeError: the other recording has not ended.
        """
        self._check_open()
        if not isinstance(recording, Recording):
            raise TypeError(f"call takes a recording, not {type(recording).__name__}")
        if recording.core is not self.core:
            raise ValueError(
                f"the recording was made on {recording.core.name}, not on {self.core.name}"
            )
        if recording._open:
            raise RuntimeError("call a recording after its block, not inside it")
        if recording.lane is not RECORDINGS:
            raise RuntimeError("call must be given a device's recording, not a world's part")
        arguments = {
            stand_in: self.take(ref) for stand_in, ref in recording._bind(inputs, replace).items()
        }
        writes = [block for part in (recording, *recording.called) for block in part._made]
        for stand_in, ref in arguments.items():
            if stand_in in recording._written:
                writes.append(require_writable(ref, self.memory, "a buffer", strided=True))
        self._particular = self._particular or recording._particular
        self.called.update(dict.fromkeys((recording, *recording.called)))
        self._add(RecordingCall(recording, arguments), writes)

    def _add(self, node: RecordedNode, writes: Iterable[Block]) -> None:
        (self._choices[-1].nodes if self._choices else self._nodes).append(node)
        self._ops += not isinstance(node, ConditionalPart)
        self._note(writes)

    def _note(self, writes: Iterable[Block]) -> None:
        writes = tuple(writes)
        self._written.update(writes)
        for choice in self._choices:
            choice.written.update(writes)

    def _check_open(self) -> None:
        if not self._open:
            self._check_entered()
            raise RuntimeError("this recording has ended; replay it, or record another")

    def _check_entered(self) -> None:
        if not self._entered:
            raise RuntimeError(
                "this recording has not begun: enter it, as in "
                "`async with device.record(x) as recording:`"
            )

    # --- replaying ------------------------------------------------------------------------

    @overload
    async def replay(
        self,
        *inputs: GpuRef,
        replace: Mapping[GpuRef, GpuRef] | None = ...,
        get: None = ...,
    ) -> None: ...
    @overload
    async def replay(
        self,
        *inputs: GpuRef,
        replace: Mapping[GpuRef, GpuRef] | None = ...,
        get: GpuRef,
    ) -> np.ndarray[Any, Any]: ...
    @overload
    async def replay(
        self,
        *inputs: GpuRef,
        replace: Mapping[GpuRef, GpuRef] | None = ...,
        get: Sequence[GpuRef],
    ) -> list[np.ndarray[Any, Any]]: ...
    @recorded_call
    async def replay(
        self,
        *inputs: GpuRef,
        replace: Mapping[GpuRef, GpuRef] | None = None,
        get: GpuRef | Sequence[GpuRef] | None = None,
    ) -> np.ndarray[Any, Any] | list[np.ndarray[Any, Any]] | None:
        """Execute the recording and wait until it has finished.

        Args:
            *inputs: replacements of the inputs of ``device.record``, in order.
            replace: further replacements, by the buffers that they replace, read or written.
            get: a ref or a sequence of refs to fetch after the replay. Contiguous ones of up to
                512 KiB come with its answer, which saves the round trip of a ``device.get``, and no
                other op comes in between.

        Returns:
            None without ``get``; else a new array for its ref, or a list of arrays.

        Raises:
            ValueError: a buffer has another shape or device, inputs are too many, or several
                buffers replace one. Also if a view is less aligned than the buffer that it
                replaces, up to 16 bytes, or if buffers share memory that those which they replace
                do not, unless only kernels of the program's own were recorded.
            GpuRefStale: a buffer is stale.
            RuntimeError: another task has replayed it, or a recording that it calls, and it was not
                recorded with ``shared=True``. Also if another recording makes a buffer and was not
                replayed, or if ``get`` is given in the block of a batch.
            OutOfMemory: no room for the arrays of ``get``.
            Unsupported: it has a conditional part, which the driver does not support.
        """
        self._check_replayable()
        if self.lane is not RECORDINGS:
            raise RuntimeError("this recording is a rank's part of a world's; replay that one")
        if get is not None and self.core.open_batches:
            self.core.refuse_in_batch("get")
        fetch = ReplayFetch(self.core, get)
        bound = self._bind(inputs, replace)
        await ready_to_replay(self)
        # From here on nothing is awaited until both ops are submitted.
        buffers = checked_buffers(self, bound)
        if get is not None:
            parts = (self, *self.called)
            fetch.check({block for part in parts for block in part._made if block in part._written})
        running = submit_replay(self, buffers, partial(fetch.submit, self.number))
        try:
            await fetch.wait(running.op)
            running.succeeded()
        except BaseException as error:
            running.failed(error)
            why = running.prepared.error
            ended = isinstance(error, (ContextPoisoned, DeviceLost))
            if why is None or ended or not isinstance(error, Exception):
                raise
            raise why from error.__cause__  # it could not begin
        return None if get is None else await fetch.finish(self.made_on)

    def _check_replayable(self) -> None:
        self._check_entered()
        if self._open:
            raise RuntimeError("replay a recording after its block, not inside it")
        if self._spoilt:
            raise RuntimeError("the block of this recording raised; record another")

    def _keep(self) -> Kept:
        if self._kept is None or self._kept.epoch is not self.memory.epoch:
            message = ForgetRecording(self.number)
            self._kept = self.core.keep(self.lane.name, "recording.forget", message)
        return self._kept

    def _bind(
        self, inputs: tuple[GpuRef, ...], replace: Mapping[GpuRef, GpuRef] | None
    ) -> dict[Block, GpuRef]:
        """Return the buffers for this replay, by the stand-ins that they replace."""
        if not inputs and not replace:
            return self.inputs_bound
        if len(inputs) > len(self._inputs):
            raise ValueError(
                f"replay must be given {len(self._inputs)} inputs, as were recorded, "
                f"not {len(inputs)}"
            )
        bound = dict(self.inputs_bound)
        replaced: dict[Block, GpuRef] = {}
        for recorded, ref in (*zip(self._inputs, inputs, strict=False), *(replace or {}).items()):
            placeholder = self._placeholders.get(recorded)
            if placeholder is None and isinstance(recorded, GpuRef):
                placeholder = self._view(recorded)
            if placeholder is None:
                raise ValueError(f"{recorded!r} is no buffer that this recording was made with")
            stand_in = self._root(placeholder.block)
            whole = self.inputs_bound[stand_in]
            same = whole.shape == recorded.shape and whole.dtype == recorded.dtype
            if not (same and same_place(whole, recorded)):
                raise ValueError(f"{recorded!r} is a view of {whole!r}; replace that")
            if not self._takes(ref):
                raise ref_error(ref, self.memory, FROM_OUTSIDE)
            if ref.shape != recorded.shape:
                raise ValueError(f"{ref!r} has not the shape of {recorded!r}, which it replaces")
            if ref.own_strides != recorded.own_strides:
                raise ValueError(f"{ref!r} has not the strides of {recorded!r}, which it replaces")
            if ref.dtype != recorded.dtype:
                raise TypeError(f"{ref!r} has not the dtype of {recorded!r}, which it replaces")
            begins = min(_ALIGNMENT, alignment(recorded))
            if self._particular and alignment(ref) % begins:
                raise ValueError(
                    f"{ref!r} must begin at a multiple of {begins} bytes, as the view "
                    f"that it replaces did, not {ref.block.offset} bytes into its "
                    "buffer; copy it first"
                )
            before = replaced.setdefault(stand_in, ref)
            if not same_place(before, ref):
                raise ValueError(
                    f"{recorded!r} is replaced twice, by {before!r} and by {ref!r}; what was given "
                    f"twice is one buffer, so give the same one for both"
                )
            bound[stand_in] = ref
        if self._particular:
            self._refuse_new_overlaps(bound, replaced)
        return bound

    def _refuse_new_overlaps(
        self, bound: Mapping[Block, GpuRef], replaced: Mapping[Block, GpuRef]
    ) -> None:
        """Refuse replacements that share memory where the recorded buffers did not."""
        if self._origins is None:
            self._origins = {}
            for stand_in, ref in self.inputs_bound.items():
                self._origins.setdefault(origin(ref.block)[0], []).append(stand_in)
        for one, ref in replaced.items():
            there = origin(ref.block)[0]
            for other in {*self._origins.get(there, ()), *replaced}:
                if one is other or not (one in self._written or other in self._written):
                    continue
                if not overlap(ref, bound[other]):
                    continue
                if not overlap(self.inputs_bound[one], self.inputs_bound[other]):
                    raise ValueError(
                        f"{ref!r} must have memory of its own, not some of {bound[other]!r}: the "
                        "recording writes one of them; copy it first"
                    )

    async def dot(self) -> str:
        """The recording as a graph in the DOT language (``cuGraphDebugDotPrint``).

        Raises:
            Unsupported: before the first replay in this generation there is none.
        """
        port = await self.core.open_lane(self.lane)
        kept = self._kept
        if self._sent is None or kept is None or kept.epoch is not self.memory.epoch:
            raise Unsupported("a recording has no graph before its first replay")
        message = Describe(self.number)
        text: str = await self.core.submit(port, "recording.dot", message, (kept,)).wait()
        return text

    # --- for the host ---------------------------------------------------------------------

    @property
    def steps(self) -> list[str]:
        """Names of the ops that a replay executes, including those of recordings it calls."""
        return names_of(self._nodes)

    def _encode(
        self, bound: Mapping[Block, GpuRef]
    ) -> tuple[tuple[RecordingStep, ...], tuple[Node, ...]]:
        """Return the preparing steps and the nodes to replay, on the present buffers."""
        for stand_in, ref in bound.items():
            stand_in.address = ref.addressable_block.address + -self._pads[stand_in]
        for part, (whole, start) in reversed(self._inside.items()):
            part.address = whole.address + start
        prepare = [step_of(op) for op in self._prepare]
        nodes = self._encode_nodes(self._nodes, prepare)
        return tuple(prepare), nodes

    def _encode_nodes(
        self, nodes: list[RecordedNode], prepare: list[RecordingStep]
    ) -> tuple[Node, ...]:
        encoded: list[Node] = []
        for node in nodes:
            if isinstance(node, RecordingCall):
                first, inner = node.recording._encode(node.arguments)
                prepare += first
                encoded.append(Section("call", inner))
            elif isinstance(node, ConditionalPart):
                inner = self._encode_nodes(node.nodes, prepare)
                address, nbytes = node.flag.block.address, node.flag.nbytes
                encoded.append(Section(node.kind, inner, address, nbytes))
            else:
                encoded.append(step_of(node))
        return tuple(encoded)

    def _unprepared(self) -> Block | None:
        """A buffer of the recording that has no memory in the present generation."""
        there = (self.memory.epoch, self._life.awaited)
        return next(
            (b for b in self._made if b.size == 0 or b.epoch not in there or b.sealed), None
        )

    def _require_own(self, task: trio.lowlevel.Task) -> None:
        """Refuse to overwrite results of another task, which may not have read them."""
        if self._task is None or self._task() is task:
            return
        raise RuntimeError(
            f"this recording must be replayed by one task, here {self._task_name}, not also by "
            f"another ({task.name}): all replays write the same results, so tasks would get each "
            f"other's; record one for each task, or record with record(..., shared=True) "
            f"and hold a trio.Lock from replay() until the results are read or copied"
        )

    def _begin_replay(self, task: trio.lowlevel.Task) -> RecordingLife:
        """Give the recording's results content for ops after the replay."""
        if self._task is None and self._made and not self._shared:
            self._task, self._task_name = weakref.ref(task), task.name
        life = self._life
        life.replays += 1
        if life.replays == 1:
            self._move(life.awaited, self.memory.epoch)
        return life

    def _replay_failed(self, life: RecordingLife) -> None:
        """Take content from the recording's results, unless another replay has written them."""
        life.replays -= 1
        if not life.replays and life is self._life:
            self._move(self.memory.epoch, life.awaited)

    def _move(self, before: Epoch, after: Epoch) -> None:
        """Move the blocks that the recording writes from one epoch to another."""
        for block in self._made:
            if block.epoch is before and block in self._written and not block.sealed:
                block.epoch = after

    async def _prepared(self) -> None:
        """Have memory for the recording's buffers in the present generation."""
        while True:
            await self.core.ready()
            if self._life.awaited.generation != self.memory.generation:
                self._life = RecordingLife(self.memory.generation)
                self._lives += 1
            block = self._unprepared()
            if block is None:
                return
            if block.sealed:
                ref = GpuRef(block, (self._made[block],), np.dtype(np.uint8), self._made[block])
                raise sealed_error(ref, "a result of the recording")
            if block.durable is not None:
                raise ValueError(
                    "a result of a recording is made by each replay, and must not be durable; have "
                    "the recording copy it to a durable buffer"
                )
            if block.size:  # of a generation that is over
                block.retire()
            results = block in self._written and not self._life.replays
            block.epoch = self._life.awaited if results else self.memory.epoch
            block.generation = self.memory.generation
            block.address = LateAddress(block)
            if self.memory.provide(block, self._made[block]):
                self._provided += 1
            else:
                await self.core.growth.grow(self._made[block])
