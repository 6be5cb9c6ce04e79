"""The device actor: what stays the same while contexts come and go.

It owns the memory map, the order of submission and the generation. A context actor
attaches itself when its host is good, and is detached the moment it is not.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import current_thread, get_ident
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._dtypes import as_dtype
from .._errors import ContextPoisoned, DeviceLost, Unsupported
from ..actors._deciders import leaves
from ..lanes import STAGING_BYTES, Gate, HostDied, Op, PinnedPool, Port, fail_some, uninterrupted
from ..libraries._library import LaneSpec
from ..libraries._op import Awaited
from ..libraries._request import FirstTry
from ..memory import GpuRef, Kept, MemoryMap, Release, as_shape, keep
from ..wire import StreamPlan
from ._failures import is_passing, taken_down, told
from ._growth import Growth
from ._place import Place
from .data._bulk import COPIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    from msgspec import Raw
    from numpy.typing import DTypeLike

    from ..actors import ActorRef
    from ..backends import Backend, Capabilities
    from ..lanes import HostHandle, Isolation
    from ..libraries._workspaces import Workspaces, WorkspaceSet
    from ..memory import Block, Epoch
    from ..wire import DeviceInfo, Message
    from ._context import Context
    from ._prepared import Prepared
    from ._run import HostCalls
    from ._standby import Standby
    from .data._pinned import Pinned
    from .data._transfer import Transfer
    from .interop._exports import Exports

Shape = int | tuple[int, ...]

_MOST_RELEASED: Final = 4
"""How much the host is told to let go of with one op."""


_RANGE: Final = 1 << 40
"""Sequence numbers of a device and of what stands for it lie so far apart."""


_MOST_CRASHES: Final = 2
"""Another host is not spent on a lane that has cost so many."""


@dataclass(frozen=True, slots=True)
class Startup:
    """How long a context took to come up, in seconds.

    Attributes:
        total: from starting its host to opening the gate.
        open: until the device was opened there: process, imports, context.
        remap: mapping the sealed slabs again.
        remapped_bytes: their size.
        lanes: starting the lanes that were in use, and the round trip that proves it good.
    """

    total: float
    open: float
    remap: float
    remapped_bytes: int
    lanes: float


@final
class _Common:
    """What a device and its companions have in common."""

    def __init__(self, name: str) -> None:
        self.staging: Final = PinnedPool(STAGING_BYTES, lambda: 0)
        self.copiers: Final = ThreadPoolExecutor(COPIERS, f"{name} copier")
        self.quarantined: Final[list[tuple[HostHandle, Callable[[], None]]]] = []
        self.terminating: Final[list[HostHandle]] = []
        self.gone: Final[weakref.WeakSet[HostHandle]] = weakref.WeakSet()
        self.modules: Final[dict[str, None]] = {}
        self.lane_numbers: Final = itertools.count()
        self._last_range = 0

    def next_range(self, sequence: int) -> int:
        """Where numbers begin that are far from all others; ``sequence`` is in use, too."""
        self._last_range = max(self._last_range, sequence) + _RANGE
        return self._last_range


@final
@uninterrupted
class DeviceCore:
    """One device of one program.

    Attributes:
        memory: the map of its memory.
        staging: the memory through which ordinary arrays travel.
        pinned: page-locked arrays.
        exports: buffers that the program has mapped.
        copiers: threads that copy large arrays to and from there.
        transfers: the long transfers that are under way.
        quarantined: what may be done once a host has ended, which may still be moving data
            when its ops are answered.
        ports: the open lanes by name; empty while there is no good context.
        dropped: what handles that are gone have left in the host; see ``keep``.
        being_sealed: how many callers are sealing each block.
        in_flight: every op that is not answered, by sequence number.
        info: what the device said of itself when it was opened last.
        lanes: the lanes in use, with their numbers; a rebuild opens them again.
        crashes: how many hosts in a row have crashed as they started a lane.
        scratch: the workspaces that libraries keep.
        standby: keeps a host warm for the next rebuild, if there is one.
        terminating: hosts that were killed and may not have ended yet; see ``reap_host``.
        host_calls: functions of the program that run in its host.
        modules: what they have imported there, for the next host.
        whole: the device that this stands for, on a host that may take over; None for a device.
        place: where it is in a tree of actors.
        over_how: why the device is closed, if it is and was not lost.
    """

    driver: Final = Awaited
    pinned: Pinned
    exports: Exports
    host_calls: HostCalls

    def __init__(
        self,
        backend: Backend,
        index: int,
        isolation: Isolation,
        *,
        op_deadline: float | None = None,
        plan: StreamPlan | None = None,
        prompt: bool = True,
        memory_limit: int | None = None,
        whole: DeviceCore | None = None,
    ) -> None:
        self.whole: Final = whole
        self.index: Final = index
        self.name: Final = f"{backend.name}:{index}"
        self.isolation: Final = isolation
        self.op_deadline: Final = op_deadline
        self.plan: Final = plan or StreamPlan()
        self.prompt: Final = prompt
        self._common: Final[_Common] = _Common(self.name) if whole is None else whole._common
        self.staging: Final = self._common.staging
        self.copiers: Final = self._common.copiers
        self.quarantined: Final = self._common.quarantined
        self.terminating: Final = self._common.terminating
        self.modules: Final = self._common.modules
        # Ops of both may read the same buffer at the same time, by the numbers they have.
        self._sequence: int = 0 if whole is None else self._common.next_range(whole._sequence)
        self.memory: Final[MemoryMap] = (
            MemoryMap(self.name, memory_limit) if whole is None else whole.memory.companion()
        )
        self.memory.owner = self
        self.transfers: Final[set[Transfer]] = set()
        self.ports: Mapping[str, Port] = {}
        self.in_flight: Final[dict[int, Op]] = {}
        self.dropped: Final[deque[tuple[Epoch | None, Release]]] = deque()
        self.lanes: Final[dict[str, tuple[LaneSpec, int]]] = {}
        self.crashes: Final[Counter[str]] = Counter()
        self.info: DeviceInfo | None = None
        self.startup: Startup | None = None
        self.standby: Standby | None = None
        self.place: Final = Place(self)
        self.over_how: str = "it was stopped"
        self.faults: int = 0
        self.last_fault: ContextPoisoned | None = None
        self.memory.bump()
        self._backend = backend
        self._thread = get_ident()
        self._thread_name = current_thread().name
        self._context: Context | None = None
        self._failing: Context | None = None
        self._opened = Gate()
        self._bumped = Gate()
        self._end: DeviceLost | None = None
        self._served: Epoch | None = None
        self.growth: Final = Growth(self)
        self.sealing: Final = trio.Lock()
        self.first_try: Final = FirstTry(self)
        self.scratch: Final[weakref.WeakKeyDictionary[Workspaces, WorkspaceSet]] = (
            weakref.WeakKeyDictionary()
        )
        self.memory_lane: Final = LaneSpec("memory", {backend.name: backend.memory}, blocks=True)
        self.being_sealed: Final[Counter[Block]] = Counter()
        self._watchers: set[trio.MemorySendChannel[int]] = set()

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def capabilities(self) -> Capabilities:
        """How devices of its backend differ from others."""
        return self._backend.capabilities

    @property
    def deterministic(self) -> bool:
        """Whether results must not depend on what else is in flight, nor on time."""
        return self.plan.deterministic

    @property
    def backend_description(self) -> Backend:
        """The backend."""
        return self._backend

    @property
    def context(self) -> Context | None:
        """The context actor that is attached, if one is."""
        if get_ident() != self._thread:
            raise self._elsewhere()
        return self._context

    @property
    def host_pid(self) -> int | None:
        """The host's process id, if there is a context and it has one."""
        return self._context.host.pid if self._context is not None else None

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
    def state(self) -> str:
        """``"ready"``, ``"rebuilding"`` or ``"lost"``."""
        if self._end is not None:
            return "lost"
        return "rebuilding" if self._context is None else "ready"

    # --- contexts come and go ------------------------------------------------------------

    def attach(self, context: Context, ports: Mapping[str, Port], info: DeviceInfo) -> None:
        """Open the gate: ``context`` has proved good."""
        self._context = context
        self._served = self.memory.epoch
        self.ports = ports
        self.info = info
        self._opened.open()

    def companion(self) -> DeviceCore:
        """The device on another host, which has the same sealed memory and else none of it."""
        return DeviceCore(self._backend, self.index, self.isolation, plan=self.plan, whole=self)

    def take_over(self, companion: DeviceCore, prepared: Prepared) -> None:
        """Go on with the host of a companion, which submits nothing any more."""
        self._sequence = max(self._sequence, companion._sequence)
        idle = not companion.in_flight
        for name, port in prepared.ports.items():
            port.move_to(self.in_flight)
            spec, number = companion.lanes[name]
            if name not in self.lanes:
                self.add_lane(spec, number)
        left = companion.memory.abandon()
        companion.finish()
        if idle:  # else they go with the host, because it may still write there
            self.memory.unmapped += left

    def discard(self, prepared: Prepared, companion: DeviceCore | None = None) -> None:
        """End a host that nobody uses, and leave nothing of it."""
        prepared.host.kill()
        if prepared.host not in self.terminating:
            self.terminating.append(prepared.host)
        for port in prepared.ports.values():
            port.end()
            port.close()
        if companion is not None:
            while companion.in_flight:
                fail_some(companion.in_flight, lambda op: HostDied(f"{op.name}: no host"))
            companion.memory.abandon()
            companion.finish()

    def finish(self) -> None:
        """A companion is over: whoever still calls it is told."""
        self.memory.over = "was there for its warm_up, which is over"
        self._end = DeviceLost(f"{self.name} {self.memory.over}")
        self._opened.open()
        self.pinned.close()

    def release(self, context: Context) -> None:
        """Close the gate of a companion: its host is another's from now on."""
        if self._context is context:
            self._context, self.ports = None, {}
            self._opened = Gate()

    def detach(self, fault: ContextPoisoned) -> None:
        """Close the gate: the context has failed.

        The generation moves first, so nothing that runs from here on can take a buffer of
        the dead context for a good one. Then everything in flight gets its answer, which may
        take some turns of the loop; its ports take no other answers any more.
        """
        context = self._context
        if context is None:
            return
        self.faults += 1
        self.last_fault = fault
        self._next_generation()
        self.shut(context)
        self._answer_some(context, lambda op: taken_down(op.name, fault))

    def _next_generation(self) -> None:
        generation = self.memory.bump()
        self._bumped.open()
        self._bumped = Gate()
        for watcher in self._watchers:
            with suppress(trio.BrokenResourceError):  # somebody has closed the iterator
                watcher.send_nowait(generation)

    def renew(self) -> None:
        """The device was stopped to be started again: what its context had is gone."""
        if self._served is self.memory.epoch:
            self._next_generation()

    def _answer_some(self, context: Context, make_error: Callable[[Op], Exception]) -> None:
        if self._failing is context and self.in_flight:
            fail_some(self.in_flight, make_error)
            again = partial(self._answer_some, context, make_error)
            trio.lowlevel.current_trio_token().run_sync_soon(again)

    def shut(self, context: Context) -> None:
        """Nothing is submitted to a context any more that is ending, with or without a fault."""
        if self._context is context:
            self._failing, self._context = context, None
            for port in self.ports.values():
                port.end()
            self.ports = {}
            if self._end is None:
                self._opened = Gate()

    def forget(self, context: Context) -> None:
        """A context is over, and everything that was in flight is answered."""
        if self._failing is context:
            self._failing = None

    def loss(self, _name: str, cause: BaseException) -> BaseException:
        """The error for a device that is lost on account of a failure of its context.

        Whether it is, somebody above decides: see ``end``.
        """
        if isinstance(cause, DeviceLost):
            return cause
        if self.isolation == "thread" and isinstance(cause, ContextPoisoned):
            why = (
                'a sticky fault poisons the whole process, so under isolation="thread" '
                'it is final; isolation="process" survives it'
            )
        elif self.isolation == "process" and is_passing(cause):
            why = "its context failed more often than its restart intensity allows"
        else:
            why = "its context ended by what another one would not mend"
        error = DeviceLost(f"{self.name} is lost: {why}; the last failure: {told(cause)}")
        error.__cause__ = cause
        return error

    def end(self, failure: BaseException | None) -> None:
        """The device is over, by a failure or without one: answer whoever waits, free memory."""
        if self._end is None and failure is not None:
            end = next((one for one in leaves(failure) if isinstance(one, DeviceLost)), failure)
            if not isinstance(end, DeviceLost):
                end = DeviceLost(f"{self.name} is lost; the last failure: {told(failure)}")
                end.__cause__ = failure
            self._end = end
            self.memory.over = "is lost"
        self.close()

    async def settle(self) -> None:
        """Wait, as long as that makes sense, until nothing is left of a device that is over."""
        with trio.CancelScope(shield=True):
            await self.reap_hosts()
            await self.exports.close()

    def tells_of_the_loss(self, error: BaseException) -> bool:
        """Whether all it says is that this device is lost, with what that has cancelled."""
        said = [one for one in leaves(error) if not isinstance(one, trio.Cancelled)]
        return bool(said) and self.memory.over == "is lost" and all(map(self._is_the_loss, said))

    def _is_the_loss(self, error: BaseException) -> bool:
        """Whether an error is that of the lost device, or of an op that its last fault ended."""
        fault = self._end.__cause__ if self._end is not None else None
        if isinstance(error, ContextPoisoned):
            return fault is not None and str(fault) in (str(error), str(error.__cause__))
        return isinstance(error, DeviceLost) and str(error) == str(self._end)

    async def verdict(self) -> None:
        """Wait until it is decided what becomes of the device, if its context is failing."""
        context = self._failing
        if context is None and self._context is not None and self._context.terminating:
            context = self._context
        if context is not None:
            await context.wait_ended()

    def close(self) -> None:
        """Nobody uses the device any more: let go whoever still waits, free memory."""
        if self._end is None:
            self.memory.over = f"is closed: {self.over_how}"
            self._end = DeviceLost(f"{self.name} {self.memory.over}")
        self._opened.open()
        for watcher in list(self._watchers):
            watcher.close()
        if self._served is self.memory.epoch:  # or a fault has made its refs stale
            self.memory.bump()
        self.memory.close()
        self.staging.close()
        self.copiers.shutdown(wait=False)
        self.pinned.close()

    async def reap_host(self, host: HostHandle) -> None:
        """Wait until a host that was killed has ended; then nothing touches its memory."""
        await host.wait_ended()
        self._reaped(host)

    async def reap_hosts(self) -> None:
        """Wait until the hosts that were killed have ended, as long as that makes sense."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for host in self.terminating:
                    nursery.start_soon(host.close)
        for host in list(self.terminating):
            if host.ended:
                self._reaped(host)
            else:
                host.abandon()

    def _reaped(self, host: HostHandle) -> None:
        if host in self.terminating:
            self.terminating.remove(host)
        self._common.gone.add(host)
        over = [callback for dead, callback in self.quarantined if dead is host]
        self.quarantined[:] = [entry for entry in self.quarantined if entry[0] is not host]
        for callback in over:
            callback()

    def quarantine(self, host: HostHandle, callback: Callable[[], None]) -> None:
        """Call back once ``host`` has ended, which may be moving data until then."""
        if host in self._common.gone:
            callback()
        else:
            self.quarantined.append((host, callback))

    async def ready(self) -> Context:
        """Wait until there is a good context.

        Raises:
            DeviceLost: there will be none.
        """
        if get_ident() != self._thread:
            raise self._elsewhere()
        while True:
            if self._end is not None:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise DeviceLost(str(self._end)) from self._end.__cause__
            context = self._context
            if context is None:
                await self._opened.wait()
            elif context.terminating:
                await context.wait_ended()
            else:
                await trio.lowlevel.checkpoint()
                if self._context is context and not context.terminating:
                    return context

    async def generation_after(self, generation: int) -> int:
        """Wait until the generation is a later one."""
        while self.memory.generation <= generation:
            await self._bumped.wait()
        return self.memory.generation

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library."""
        return self.place.library_ref(library)

    def executors(self) -> set[str]:
        """What a host of this device loads: ``module:class`` of its context and lanes."""
        lanes = {spec.executor_on(self._backend) for spec, _ in self.lanes.values()}
        return {self._backend.context, *lanes}

    def thread_of(self, spec: LaneSpec) -> str:
        """The name of the host's thread that runs a lane."""
        shared = self.capabilities.asynchronous or self.plan.strategy == "single"
        return "launches" if shared and not spec.blocks else spec.name

    def lane_number(self, name: str) -> int:
        """The number of a lane in dependencies, as long as it is in use; never another lane's."""
        known = self.lanes.get(name)
        if known is None and self.whole is not None:
            known = self.whole.lanes.get(name)
        return next(self._common.lane_numbers) if known is None else known[1]

    def add_lane(self, spec: LaneSpec, number: int) -> None:
        """Note that a lane is in use."""
        if spec.name not in self.lanes:
            self.lanes[spec.name] = (spec, number)
            self.changed()

    def drop_lane(self, name: str) -> None:
        """A rebuild does without the lane; its next user starts it, or gets the reason."""
        if self.lanes.pop(name, None) is not None:
            self.changed()

    def changed(self) -> None:
        """A standby may have to do something."""
        if self.standby is not None:
            self.standby.changed()

    def remove_lane(self, name: str) -> None:
        """A lane has answered all that was asked of it, and is not used any more: end it."""
        self.drop_lane(name)
        if self._context is not None:
            self._context.remove_lane(name)

    def blame(self, name: str, *, crashed: bool) -> None:
        """A host did not survive the start of a lane.

        Args:
            name: the lane.
            crashed: whether that was the host's own doing. One that was killed from outside
                tells nothing of the lane.
        """
        self.drop_lane(name)
        if crashed:
            self.crashes[name] += 1

    @contextmanager
    def watch(self) -> Iterator[trio.MemoryReceiveChannel[int]]:
        """A channel of the generations from now on."""
        send, receive = trio.open_memory_channel[int](math.inf)
        self._watchers.add(send)
        if self._end is not None:
            send.close()
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(send)

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
                        f"last fault: {self.last_fault}"
                    )
                port = await context.open_lane(lane)
            if port is not None:
                return port

    def submit(
        self,
        port: Port,
        name: str,
        message: Message | type[Message],
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        payload: Raw | None = None,
    ) -> Op:
        """Put an op in its place in the program's order."""
        if get_ident() != self._thread:
            raise self._elsewhere()
        self._sequence = sequence = self._sequence + 1
        op = Op(port, sequence, name, message, reads, writes, payload)
        port.submit(op)
        if self.dropped:
            self._release()
        if message.lasting and self.standby is not None and not isinstance(message, type):
            self.standby.note(port.name, message)
        return op

    def keep(self, lane: str, name: str, release: Message) -> Kept:
        """What stands for something that the host keeps for a handle of the program.

        The handle holds it, and each op that needs what the host keeps names it as read or
        written. Once all of them are gone and another op is submitted, the host is told.

        Args:
            lane: the lane that executes ``release``.
            name: the name of that op.
            release: has the host let go; it must do nothing where there is nothing.
        """
        return keep(self.memory, self.dropped, Release(lane, name, release))

    def _release(self) -> None:
        """Tell the host of some of what it need not keep any more.

        Nothing is kept without an op, so this keeps up with all that is dropped.
        """
        for _ in range(min(_MOST_RELEASED, len(self.dropped))):
            epoch, (lane, name, message) = self.dropped.popleft()
            port = self.ports.get(lane)
            if port is not None and epoch is self.memory.epoch:
                self._sequence = sequence = self._sequence + 1
                port.submit(Op(port, sequence, name, message, (), ()))

    # --- memory --------------------------------------------------------------------------

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """An uninitialised buffer, or None where making it takes a wait."""
        if self.context is None:
            return None
        block = self.memory.allocate(nbytes)
        return None if block is None else GpuRef(block, shape, dtype, nbytes)

    async def empty(self, shape: Shape, dtype: DTypeLike, *, sealed: bool = False) -> GpuRef:
        """An uninitialised buffer.

        Raises:
            OutOfMemory: no room, also after giving up what no usable ref needs.
        """
        dtype = as_dtype(dtype)
        shape = as_shape(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        while True:
            context = await self.ready()
            block = self.memory.allocate(nbytes, sealed=sealed)
            if block is not None:
                return GpuRef(block, shape, dtype, nbytes)
            await self.growth.add_slab(context, nbytes, sealed=sealed)
