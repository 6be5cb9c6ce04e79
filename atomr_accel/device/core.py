"""The core of a device: the part that stays the same while contexts come and go.

It owns the memory map and the order of submission. Its ``Lifecycle`` decides which context takes
submissions.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock, current_thread, get_ident
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._dtypes import as_dtype
from .._errors import Unsupported
from ..actors.instrument import Instruments
from ..actors.logs import fields
from ..actors.nursery import tasks_around
from ..arrays import GpuRef, as_shape
from ..lanes import (
    NO_RESERVE,
    STAGING_BYTES,
    UNWATCHED,
    DeviceInstrument,
    Op,
    PinnedPool,
    Port,
    Reserve,
    WatchedDevice,
    uninterrupted,
)
from ..libraries.array.evaluate import evaluating
from ..memory import Kept, MemoryMap, Release, keep
from ..ops import Awaited, DeviceView, ImmediatePreparer, LaneSpec
from ..wire import Message, ReportTimes, StreamPlan
from ._growth import SlabGrowth
from ._lifecycle import Lifecycle
from ._tree_node import DeviceNode
from .calls._turns import Again
from .contexts._reaper import Reaper
from .data._copiers import Copiers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CoroutineType

    import numpy as np
    from numpy.typing import DTypeLike

    from ..actors import ActorRef, Backoff
    from ..arrays.expressions import Operand
    from ..backends import Backend, Capabilities
    from ..lanes import Isolation, MessageTemplate, Sanitizer
    from ..memory import Block, Epoch, Slab
    from ..ops import CallRecorder, Facade, Request, Workspaces, WorkspaceSet
    from ..wire import Affinity, CallByTemplate, DeviceInfo
    from .data._progress import Transfer
    from .parts import (
        CollectiveOrder,
        DurableMemory,
        ExportedBuffers,
        FunctionCalls,
        OpenBatch,
        PinnedArrays,
        ReplayedRecording,
        ServingContext,
        SlabWindows,
        StandbyHosts,
    )

Shape = int | tuple[int, ...]

MEMORY_LANE: Final = "memory"
"""Name of the lane that fills and copies."""

ASKING_FOR_TIMES: Final = "times"
"""Name of ops that configure hosts to send times for instruments."""

_MOST_RELEASED: Final = 4
"""Largest number of objects that the host is asked to release with one op."""


_RANGE: Final = 1 << 40
"""Distance between the sequence numbers of a device and of its shadows."""


_MOST_CRASHES: Final = 2
"""Crashes after which a lane is not started in another host."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Time that a context took to start, in seconds.

    Attributes:
        total: from starting its host to opening the gate.
        open: until the host had opened the device: process, imports, context.
        remap: mapping the sealed slabs again.
        remapped_bytes: size of the sealed slabs.
        lanes: starting the lanes that were in use, and the round trip that checks the context.
    """

    total: float
    open: float
    remap: float
    remapped_bytes: int
    lanes: float


_names: Final[set[str]] = set()
_naming: Final = Lock()
"""Names of the devices of this process that are open, in any of its threads."""


def _new_name(plain: str) -> str:
    """Return a free name: ``cpu:0``, or ``cpu:0 (2)`` while a device of that name is open."""
    with _naming:
        others = (f"{plain} ({number})" for number in itertools.count(2))
        name = next(each for each in itertools.chain([plain], others) if each not in _names)
        _names.add(name)
    return name


@final
class _SharedParts:
    """Objects that a device shares with its shadows."""

    def __init__(self, name: str) -> None:
        self.staging: Final = PinnedPool(STAGING_BYTES, lambda: 0)
        self.copiers: Final = Copiers(f"{name} copier")
        self.reaper: Final = Reaper()
        self.modules: Final[dict[str, None]] = {}
        self.lane_numbers: Final = itertools.count()
        self.starts_lanes_serially = False
        self._last_range = 0

    def next_range(self, sequence: int) -> int:
        """Return the begin of a range of numbers far from all others, including ``sequence``."""
        self._last_range = max(self._last_range, sequence) + _RANGE
        return self._last_range


@final
@uninterrupted
class DeviceCore:
    """Submits the ops of one device of a program, and allocates memory for their results.

    Other packages get it as ``device.core``. Their facades may use the names of ``DeviceView``,
    their instruments those of ``WatchedDevice``. ``dir`` lists both. The rest belongs to this
    package, and changes without notice.

    Attributes:
        memory: the map of its memory.
        staging: the memory through which ordinary arrays are transferred.
        pinned: page-locked arrays.
        exports: buffers that the program has mapped.
        copiers: threads that copy large arrays to and from staging memory.
        transfers: the long transfers in progress.
        reaper: waits for hosts that were killed.
        lifecycle: attaches and detaches contexts.
        serving: the context that takes ops; None while no context is usable. See ``context``.
        ports: its open lanes by name; empty without a context.
        dropped: messages that release objects of dropped handles in the host; see ``keep``.
        being_sealed: number of callers that are sealing each block.
        durables: the durable buffers, and the digests that prove them.
        in_flight: every op that is not answered, by sequence number.
        info: the device's properties when it was last opened.
        lanes: the lanes in use, with their numbers; a rebuild opens them again.
        crashes: number of hosts in a row that have crashed while starting each lane.
        scratch: the workspaces that libraries keep.
        standby: keeps a host warm for the next rebuild, if configured.
        host_calls: functions of the program that run in its host.
        modules: modules that those functions have imported, for the next host.
        start_backoff: the back-off after contexts that did not start, if any.
        failed_starts: number of failed starts in a row.
        most_failed_starts: number of failed starts in a row that loses the device; None if only its
            supervisor counts.
        original: the device that this one represents on a standby; None for a device.
        place: its place in a tree of actors.
        affinity: the cores that its hosts may run on.
        sanitizer: the sanitizer that its hosts run under, if any.
        windows: slabs of other devices that its host has mapped.
        instruments: the instruments of its system; none for a shadow.
        open_batches: the innermost batch of this device whose block each task is in.
        recorder: gets the program's calls, for example for a journal; None without one.
        collectives: the order of its collectives; None before its first world.
        recordings: the recordings that were replayed, by number.
        refused_at: the time at which a request for memory last failed, on trio's clock.
    """

    call_mode: Final = Awaited
    pinned: PinnedArrays
    exports: ExportedBuffers
    host_calls: FunctionCalls
    windows: SlabWindows
    durables: DurableMemory
    recorder: CallRecorder | None = None
    collectives: CollectiveOrder | None = None

    def __init__(
        self,
        backend: Backend,
        index: int,
        isolation: Isolation,
        *,
        op_deadline: float | None = None,
        plan: StreamPlan | None = None,
        low_latency: bool = True,
        affinity: Affinity = None,
        sanitizer: Sanitizer | None = None,
        memory_limit: int | None = None,
        original: DeviceCore | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        self.instruments: Final = Instruments() if instruments is None else instruments
        self.original: Final = original
        self.index: Final = index
        self.name: Final[str] = (
            _new_name(f"{backend.name}:{index}") if original is None else original.name
        )
        self.isolation: Final = isolation
        self.op_deadline: Final = op_deadline
        self.plan: Final = plan or StreamPlan()
        self.low_latency: Final = low_latency
        self.affinity: Final[Affinity] = affinity
        self.sanitizer: Final[Sanitizer | None] = sanitizer
        self._shared: Final[_SharedParts] = (
            _SharedParts(self.name) if original is None else original._shared
        )
        self.staging: Final = self._shared.staging
        self.copiers: Final = self._shared.copiers
        self.reaper: Final = self._shared.reaper
        self.modules: Final = self._shared.modules
        # Ops of both may read the same buffer at the same time, by the numbers they have.
        self._sequence: int = 0 if original is None else self._shared.next_range(original._sequence)
        self.memory: Final[MemoryMap] = (
            MemoryMap(self.name, memory_limit, index=index)
            if original is None
            else original.memory.shadow()
        )
        self.memory.owner = self
        self.memory.slab_changed = self._slab_changed
        self._told_of_ops = self.instruments.each_op
        self.instruments.follow(self.instruments_changed)
        self.instruments.tell_late(self.tell_done)
        self.transfers: Final[set[Transfer]] = set()
        self.serving: ServingContext | None = None
        self.ports: Mapping[str, Port] = {}
        self.in_flight: Final[dict[int, Op]] = {}
        self.dropped: Final[deque[tuple[Epoch, Release]]] = deque()
        self.lanes: Final[dict[str, tuple[LaneSpec, int]]] = {}
        self.crashes: Final[Counter[str]] = Counter()
        self.info: DeviceInfo | None = None
        self.startup: Startup | None = None
        self.standby: StandbyHosts | None = None
        self.place: Final = DeviceNode(
            self.memory,
            self.in_flight,
            lambda: self.ports,
            lambda: self.lifecycle.state == "rebuilding",
        )
        self.recordings: Final[weakref.WeakValueDictionary[int, ReplayedRecording]] = (
            weakref.WeakValueDictionary()
        )
        self.open_batches: Final[dict[trio.lowlevel.Task, OpenBatch]] = {}
        self.lifecycle: Final[Lifecycle] = Lifecycle(self)
        self.reserve: Final = Reserve() if original is None else NO_RESERVE
        self.memory.bump()
        self._backend = backend
        self._thread = get_ident()
        self._thread_name = current_thread().name
        self.growth: Final = SlabGrowth(self)
        self.refused_at: float = -math.inf
        self.start_backoff: Backoff | None = None
        self.failed_starts = 0
        self.most_failed_starts: int | None = None
        self.sealing: Final = trio.Lock()
        self.first_try: Final = ImmediatePreparer(self)
        self.again: Final = Again()
        self.scratch: Final[weakref.WeakKeyDictionary[Workspaces, WorkspaceSet]] = (
            weakref.WeakKeyDictionary()
        )
        self.memory_lane: Final = LaneSpec(
            MEMORY_LANE, {backend.name: backend.memory}, own_thread=True
        )
        self.being_sealed: Final[Counter[Block]] = Counter()

    def __dir__(self) -> list[str]:
        """Return what packages may use: the names of ``DeviceView`` and ``WatchedDevice``."""
        return [name for name in (*vars(DeviceView), *vars(WatchedDevice)) if name[0] != "_"]

    def give_name_back(self) -> None:
        """Let the next device have this one's name, because this one is over."""
        with _naming:
            _names.discard(self.name)

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def path(self) -> str:
        """Its place in the tree of actors."""
        cell = (self if self.original is None else self.original).place.cell
        return "" if cell is None else cell.path

    @property
    def generation(self) -> int:
        """The present generation."""
        return self.memory.generation

    def log_fields(self, error: BaseException | None = None, *, lane: str | None = None) -> Any:
        """Return the ``extra`` of a log record about this device."""
        return fields(
            error, actor=self.path, device=self.name, generation=self.generation, lane=lane
        )

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the device's backend."""
        return self._backend.capabilities

    @property
    def deterministic(self) -> bool:
        """True if results are independent of other ops in flight and of timing."""
        return self.plan.deterministic

    @property
    def backend_description(self) -> Backend:
        """The backend."""
        return self._backend

    @property
    def context(self) -> ServingContext | None:
        """The context actor that is attached, if one is."""
        if get_ident() != self._thread:
            raise self._elsewhere()
        return self.serving

    @property
    def host_pid(self) -> int | None:
        """The host's process id, if there is a context and it has one."""
        return self.serving.host.pid if self.serving is not None else None

    def tell_output(self) -> None:
        """Report the host's output on descriptors 1 and 2, such as by kernels."""
        output = None if self.serving is None else self.serving.host.output
        if output is not None:
            output.glance()

    def _elsewhere(self) -> RuntimeError:
        # An answer would wake a task of another loop, or find none: refused before anything
        # has happened.
        return RuntimeError(
            f"{self.name} was opened by the trio.run of thread {self._thread_name!r} and is used "
            f"in thread {current_thread().name!r}; call it in its own: "
            "trio.from_thread.run(device.put, array, trio_token=token), with the token of that "
            "run: trio.lowlevel.current_trio_token()"
        )

    @property
    def starts_lanes_serially(self) -> bool:
        """True if lanes are started one after the other, to find the one that crashes its host."""
        return self._shared.starts_lanes_serially

    @starts_lanes_serially.setter
    def starts_lanes_serially(self, value: bool) -> None:
        self._shared.starts_lanes_serially = value

    # --- its contexts --------------------------------------------------------------------

    def shadow(self) -> DeviceCore:
        """The device on another host, which has the same sealed memory and else none of it."""
        return DeviceCore(
            self._backend,
            self.index,
            self.isolation,
            plan=self.plan,
            affinity=self.affinity,
            original=self,
        )

    def take_over(self, shadow: DeviceCore, ports: Mapping[str, Port]) -> None:
        """Continue with the host of a shadow, which submits no more ops."""
        self._sequence = max(self._sequence, shadow._sequence)
        idle = not shadow.in_flight
        for name, port in ports.items():
            port.move_to(self.in_flight, self)
            spec, number = shadow.lanes[name]
            if name not in self.lanes:
                self.add_lane(spec, number)
        left = shadow.memory.abandon()
        shadow.lifecycle.finish()
        if idle:  # else they go with the host, because it may still write there
            self.memory.unmapped += left
            self.pinned.take_over(shadow.pinned)

    async def ready(self) -> ServingContext:
        """Wait for a context that takes ops, and return it.

        Raises:
            DeviceLost: the device is lost or closed.
        """
        if get_ident() != self._thread:
            raise self._elsewhere()
        while True:
            context = self.serving
            if context is None:
                await self.lifecycle.opened()
            elif context.terminating:
                await context.wait_ended()
            else:
                await trio.lowlevel.checkpoint()
                if self.serving is context and not context.terminating:
                    return context

    def note_unawaited(self, call: CoroutineType[Any, Any, Any], facade: Facade[Any]) -> None:
        """Have the batch, in whose block an op of the device is called, see that it is awaited."""
        if not trio.lowlevel.in_trio_task():
            return
        batch = self.open_batches.get(trio.lowlevel.current_task())
        if batch is not None:
            batch.note_unawaited(call, facade)

    def refuse_in_batch(self, call: str) -> None:
        """Refuse a call in the block of a batch, or in a task that the block waits for."""
        for task, depth in tasks_around():
            batch = self.open_batches.get(task)
            if batch is None or depth < batch.depth:  # a nursery around the block's
                continue
            raise RuntimeError(
                f"device.{call} must be called outside of a batch's block, because the batch's ops "
                f"may not have begun, not inside; write: later = batch.{call}(...), and "
                "later.value after the block"
            )

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library."""
        return self.place.library_ref(library)

    def executors(self) -> set[str]:
        """Return the classes that a host of this device loads, as ``module:class``."""
        lanes = {spec.executor_on(self._backend) for spec, _ in self.lanes.values()}
        return {self._backend.context, *lanes}

    def thread_of(self, spec: LaneSpec) -> str:
        """The name of the host's thread that runs a lane."""
        threads = self.plan.threads
        shared = self.capabilities.asynchronous if threads is None else threads == "shared"
        return "launches" if shared and not spec.own_thread else spec.name

    def lane_number(self, name: str) -> int:
        """Return the number of a lane in dependencies, unique for as long as the lane is in use."""
        known = self.lanes.get(name)
        if known is None and self.original is not None:
            known = self.original.lanes.get(name)
        return next(self._shared.lane_numbers) if known is None else known[1]

    def add_lane(self, spec: LaneSpec, number: int) -> None:
        """Note that a lane is in use."""
        if spec.name not in self.lanes:
            self.lanes[spec.name] = (spec, number)
            self.changed()

    def drop_lane(self, name: str) -> None:
        """Leave a lane out of rebuilds. Its next user starts it, or gets the error."""
        if self.lanes.pop(name, None) is not None:
            self.changed()

    def changed(self) -> None:
        """Notify standbys of a change."""
        if self.standby is not None:
            self.standby.changed()

    def remove_lane(self, name: str) -> None:
        """End a lane that has answered all its ops and is not used any more."""
        self.drop_lane(name)
        if self.serving is not None:
            self.serving.remove_lane(name)

    def blame(self, name: str, *, crashed: bool) -> None:
        """Drop a lane whose start its host did not survive.

        Args:
            name: the lane.
            crashed: whether the host crashed by itself. If it was killed from outside, the lane is
                not blamed.
        """
        self.drop_lane(name)
        if crashed:
            self.crashes[name] += 1

    # --- ops -----------------------------------------------------------------------------

    async def open_lane(self, lane: LaneSpec) -> Port:
        """The lane's port; waits for the context, and starts the lane if need be."""
        while True:
            context = await self.ready()
            port = self.ports.get(lane.name)
            if port is None:
                lane.executor_on(self._backend)  # there is one, or this raises
                if self.crashes[lane.name] >= _MOST_CRASHES:
                    raise Unsupported(
                        f"lane {lane.name!r} of {self.name} is not started any more: "
                        f"{_MOST_CRASHES} hosts in a row have crashed as they started it; the "
                        f"last fault: {self.lifecycle.last_fault}"
                    )
                port = await context.open_lane(lane)
            if port is not None:
                return port

    def submit(
        self,
        port: Port,
        name: str,
        message: Message | MessageTemplate,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        payload: CallByTemplate | None = None,
    ) -> Op:
        """Submit an op: give it the next place in the program's order, and pass it to its port."""
        if get_ident() != self._thread:
            raise self._elsewhere()
        self._sequence = sequence = self._sequence + 1
        op = Op(port, sequence, name, message, reads, writes, payload)
        if self.memory.has_durable:
            self.durables.submit(op)
        else:
            port.submit(op)
        if self.recorder is not None:
            self.recorder.submitted()
        if self.dropped:
            self._release()
        if message.lasting and self.standby is not None and isinstance(message, Message):
            self.standby.note(port.name, message)
        return op

    def instruments_changed(self) -> None:
        """Follow instruments that come and go.

        Ops submitted without an instrument are not counted.
        """
        before, self._told_of_ops = self._told_of_ops, self.instruments.each_op
        if self._told_of_ops and not before:
            for op in self.in_flight.values():
                op.submitted_at = UNWATCHED
        for port in self.ports.values():
            port.watch()
        self.ask_for_times()

    def ask_for_times(self, ports: Iterable[Port] | None = None) -> None:
        """Have hosts send times and mark launches while an instrument wants them.

        Args:
            ports: lanes that have just started; by default all.
        """
        told = [each for each in self.instruments if isinstance(each, DeviceInstrument)]
        wanted = (
            any(each.timed for each in told),
            any(each.ranges for each in told),
            any(each.correlated for each in told),
        )
        for port in self.ports.values() if ports is None else ports:
            if port.reports != wanted:
                port.reports = wanted
                self.submit(port, ASKING_FOR_TIMES, ReportTimes(*wanted))

    def tell_done(self) -> None:
        """Report all ops that are done to instruments."""
        for port in self.ports.values():
            port.tell_done()

    def evaluation(self, expression: Operand, out: GpuRef | None = None) -> Request[GpuRef]:
        """Return the request that computes an expression, by default into a new buffer."""
        return evaluating(self.capabilities.python_kernels, (expression,), out)

    def keep(self, lane: str, name: str, release: Message) -> Kept:
        """Return the handle of an object that the host keeps for the program.

        The program's handle holds it, and each op that needs the object names it as read or
        written. Once all of them are gone, the next ops release the object in the host. ``release``
        must do nothing if the host lacks the object.
        """
        return keep(self.memory, self.dropped, Release(lane, name, release))

    def _release(self) -> None:
        """Have the host release some of the objects that are not needed any more.

        Objects are kept by ops only, so calling this with each op keeps up with dropped handles.
        """
        for _ in range(min(_MOST_RELEASED, len(self.dropped))):
            epoch, (lane, name, message) = self.dropped.popleft()
            port = self.ports.get(lane)
            if port is not None and epoch is self.memory.epoch:
                port.submit(Op(port, self.next_place(), name, message, (), ()))

    def next_place(self) -> int:
        """Return the next place in the program's order."""
        self._sequence += 1
        return self._sequence

    # --- memory --------------------------------------------------------------------------

    def _slab_changed(self, slab: Slab, added: bool) -> None:
        if not added:
            self.windows.given_up(slab.id)
        if self.instruments.active:
            name = "slab_added" if added else "slab_removed"
            self.instruments(name, self, slab.nbytes, slab.sealed)

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return an uninitialised buffer, or None if making it needs to wait."""
        if get_ident() != self._thread:
            raise self._elsewhere()
        if self.serving is None:
            return None
        block = self.memory.allocate(nbytes)
        return None if block is None else GpuRef(block, shape, dtype, nbytes)

    async def empty(
        self, shape: Shape, dtype: DTypeLike, *, sealed: bool = False, durable: bool = False
    ) -> GpuRef:
        """An uninitialised buffer.

        Raises:
            OutOfMemory: no room, also after giving up what no usable ref needs.
        """
        dtype = as_dtype(dtype)
        shape = as_shape(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        while True:
            context = await self.ready()
            block = self.memory.allocate(nbytes, sealed=sealed, durable=durable)
            if block is not None:
                return GpuRef(block, shape, dtype, nbytes)
            await self.growth.add_slab(context, nbytes, sealed=sealed, durable=durable)
