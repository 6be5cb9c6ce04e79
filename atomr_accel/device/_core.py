"""The device actor: what stays the same while contexts come and go.

It owns the memory map, the order of submission and the generation. A context actor
attaches itself when its host is good, and is detached the moment it is not.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._dtypes import as_dtype
from .._errors import ContextPoisoned, DeviceLost, OutOfMemory, Unsupported
from ..host import OFFSET_MASK, CreateSlab, StickyFault, StreamPlan, UnmapSlabs
from ..lanes import STAGING_BYTES, HostDied, Op, PinnedPool, Port
from ..memory import GpuRef, MemoryMap, Slab
from ._bulk import COPIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np

    from ..backends import Backend
    from ..host import DeviceInfo, Message
    from ..lanes import HostHandle, Isolation
    from ..libraries import LaneSpec
    from ..memory import Block, Epoch
    from ._context import Context
    from ._exports import Exports
    from ._pinned import Pinned
    from ._standby import Standby
    from ._transfer import Transfer

Shape = int | tuple[int, ...]


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
        dropped_programs: recordings that were garbage collected and the host still has: their
            epochs, their numbers, and the blocks that put their release in order.
        being_sealed: how many callers are sealing each block.
        in_flight: every op that is not answered, by sequence number.
        info: what the device said of itself when it was opened last.
        lanes: the lanes in use, with their numbers; a rebuild opens them again.
        next_lane: numbers for lanes, never the same again.
        standby: keeps a host warm for the next rebuild, if there is one.
        dying: hosts that were killed and may not have ended yet; see ``bury``.
    """

    pinned: Pinned
    exports: Exports

    def __init__(
        self,
        backend: Backend,
        index: int,
        isolation: Isolation,
        *,
        op_deadline: float | None = None,
        plan: StreamPlan | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.index: Final = index
        self.name: Final = f"{backend.name}:{index}"
        self.isolation: Final = isolation
        self.op_deadline: Final = op_deadline
        self.plan: Final = plan or StreamPlan()
        self.memory: Final = MemoryMap(self.name, memory_limit)
        self.memory.owner = self
        self.staging: Final = PinnedPool(STAGING_BYTES, lambda: 0)
        self.copiers: Final = ThreadPoolExecutor(COPIERS, f"{self.name} copier")
        self.transfers: Final[set[Transfer]] = set()
        self.quarantined: list[tuple[HostHandle, Callable[[], None]]] = []
        self.ports: Mapping[str, Port] = {}
        self.in_flight: Final[dict[int, Op]] = {}
        self.dropped_programs: Final[deque[tuple[Epoch, int, Block]]] = deque()
        self.lanes: Final[dict[str, tuple[LaneSpec, int]]] = {}
        self.next_lane: Final = itertools.count()
        self.info: DeviceInfo | None = None
        self.startup: Startup | None = None
        self.standby: Standby | None = None
        self.dying: list[HostHandle] = []
        self.closing = False
        self.faults = 0
        self.last_fault: ContextPoisoned | None = None
        self.memory.bump()
        self._backend = backend
        self._sequence = 0
        self._context: Context | None = None
        self._opened = trio.Event()
        self._bumped = trio.Event()
        self._end: DeviceLost | None = None
        self._growing = trio.Lock()
        self.sealing: Final = trio.Lock()
        self.being_sealed: Final[Counter[Block]] = Counter()
        self._watchers: set[trio.MemorySendChannel[int]] = set()

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def backend_description(self) -> Backend:
        """The backend."""
        return self._backend

    @property
    def context(self) -> Context | None:
        """The context actor that is attached, if one is."""
        return self._context

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
        self.ports = ports
        self.info = info
        self._opened.set()

    def detach(self, fault: ContextPoisoned) -> None:
        """Close the gate: the context has failed.

        The generation moves first, so nothing that runs from here on can take a buffer of
        the dead context for a good one. Then everything in flight gets its answer.
        """
        if self._context is None:
            return
        self._context = None
        ports, self.ports = self.ports, {}
        self._opened = trio.Event()
        self.faults += 1
        self.last_fault = fault
        generation = self.memory.bump()
        self._bumped.set()
        self._bumped = trio.Event()
        for watcher in self._watchers:
            with suppress(trio.BrokenResourceError):  # somebody has closed the iterator
                watcher.send_nowait(generation)
        for port in ports.values():
            port.fail_all(lambda op: taken_down(op.name, fault))

    def forget(self, context: Context) -> None:
        """A context is over, with or without a fault."""
        if self._context is context:
            self._context = None
            self.ports = {}
            if self._end is None:
                self._opened = trio.Event()

    def lose(self, _name: str, cause: BaseException) -> BaseException:
        """Give the device up for good; the error that says so."""
        if self._end is None:
            if self.isolation == "thread" and isinstance(cause, ContextPoisoned):
                why = (
                    'a sticky fault poisons the whole process, so under isolation="thread" '
                    'it is final; isolation="process" survives it'
                )
            else:
                why = "its context failed more often than its restart intensity allows"
            self._end = DeviceLost(f"{self.name} is lost: {why}; the last failure: {cause}")
            self._end.__cause__ = cause
            self._opened.set()
        return self._end

    def close(self) -> None:
        """The block of ``open_device`` is left: answer whoever still waits, free memory."""
        if self._end is None:
            self._end = DeviceLost(f"{self.name} is closed: its 'async with' block was left")
        self._context = None
        ports, self.ports = self.ports, {}
        end = self._end
        for port in ports.values():
            port.fail_all(lambda _op: DeviceLost(str(end)))
        self._opened.set()
        for watcher in list(self._watchers):
            watcher.close()
        self.memory.bump()
        self.memory.close()
        self.staging.close()
        self.copiers.shutdown(wait=False)
        self.pinned.close()

    async def bury(self) -> None:
        """Wait until the hosts that were killed have ended."""
        while self.dying:
            host = self.dying[-1]
            await host.close()
            self.dying.remove(host)
            over = [callback for dead, callback in self.quarantined if dead is host]
            self.quarantined = [entry for entry in self.quarantined if entry[0] is not host]
            for callback in over:
                callback()

    async def ready(self) -> Context:
        """Wait until there is a good context.

        Raises:
            DeviceLost: there will be none.
        """
        while True:
            if self._end is not None:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise DeviceLost(str(self._end)) from self._end.__cause__
            context = self._context
            if context is None:
                await self._opened.wait()
            elif context.dying:
                await context.wait_ended()
            else:
                await trio.lowlevel.checkpoint()
                if self._context is context and not context.dying:
                    return context

    async def generation_after(self, generation: int) -> int:
        """Wait until the generation is a later one."""
        while self.memory.generation <= generation:
            await self._bumped.wait()
        return self.memory.generation

    def executors(self) -> set[str]:
        """What a host of this device loads: ``module:class`` of its context and lanes."""
        lanes = {spec.executors[self.backend] for spec, _ in self.lanes.values()}
        return {self._backend.context, *lanes}

    def add_lane(self, spec: LaneSpec, index: int) -> None:
        """Note that a lane is in use."""
        if spec.name not in self.lanes:
            self.lanes[spec.name] = (spec, index)
            if self.standby is not None:
                self.standby.changed()

    def remove_lane(self, name: str) -> None:
        """A lane has answered all that was asked of it, and is not used any more: end it."""
        self.lanes.pop(name, None)
        if self._context is not None:
            self._context.remove_lane(name)

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
                if self.backend not in lane.executors:
                    raise Unsupported(f"{lane.name} has no executor for backend {self.backend!r}")
                port = await context.open_lane(lane)
            if port is not None:
                return port

    def submit(
        self,
        port: Port,
        name: str,
        message: Message,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
    ) -> Op:
        """Put an op in its place in the program's order."""
        self._sequence = sequence = self._sequence + 1
        op = Op(port, sequence, name, message, reads, writes)
        port.submit(op)
        return op

    # --- memory --------------------------------------------------------------------------

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """An uninitialised buffer, or None where making it takes a wait."""
        if self._context is None:
            return None
        block = self.memory.allocate(nbytes)
        return None if block is None else GpuRef(block, shape, dtype, nbytes)

    async def empty(self, shape: Shape, dtype: Any, *, sealed: bool = False) -> GpuRef:
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
            await self._grow(context, nbytes, sealed=sealed)

    async def grow(self, nbytes: int) -> None:
        """Make room for ``nbytes`` in one piece.

        Raises:
            OutOfMemory: there is none.
        """
        await self._grow(await self.ready(), nbytes, sealed=False)

    async def _grow(self, context: Context, nbytes: int, *, sealed: bool) -> None:
        async with self._growing:
            if context is not self._context:
                return
            block = self.memory.allocate(nbytes, sealed=sealed)
            if block is not None:  # somebody else has grown it while we waited
                return
            if self.memory.unheld:
                await self.exports.sweep()
                return
            if nbytes > OFFSET_MASK:
                raise self._out_of_memory(nbytes)
            try:
                try:
                    await self._add_slab(context, nbytes, sealed=sealed)
                except OutOfMemory:
                    await self._trim(context)
                    await self._add_slab(context, nbytes, sealed=sealed)
            except OutOfMemory as error:
                raise self._out_of_memory(nbytes) from error
            except (HostDied, StickyFault):
                # Its lanes notice by themselves, and the caller waits for the next one.
                context.report_dead()

    async def trim(self) -> None:
        """Give memory that nothing uses back to the device."""
        context = await self.ready()
        async with self._growing:
            if context is self._context:
                try:
                    await self._trim(context)
                except (HostDied, StickyFault):
                    context.report_dead()

    async def unmap(self) -> None:
        """Have the host unmap slabs that went with their only buffer."""
        context = await self.ready()
        unmapped, self.memory.unmapped = self.memory.unmapped, []
        try:
            with trio.CancelScope(shield=True):
                await context.host.request(UnmapSlabs(unmapped))
        except (HostDied, StickyFault):
            context.report_dead()

    async def _trim(self, context: Context) -> None:
        if self.memory.unheld:
            await self.exports.sweep()
        trimmed = self.memory.trim()
        if trimmed:
            # They are off the map: the host must hear of it, whoever is cancelled.
            with trio.CancelScope(shield=True):
                await context.host.request(UnmapSlabs(trimmed))
        await self.exports.sweep()

    async def _add_slab(self, context: Context, nbytes: int, *, sealed: bool) -> None:
        if sealed and self.info is not None and not self.info.exports_memory:
            raise Unsupported("this platform cannot export device memory, so nothing can be sealed")
        refusal = None
        for size in self.memory.slab_sizes(nbytes):
            slab = self.memory.new_slab_id()
            try:
                _, fd = await context.host.request(CreateSlab(slab, size, sealed))
            except OutOfMemory as error:
                refusal = error
                continue
            if context is self._context:
                self.memory.add_slab(Slab(slab, size, fd, sealed))
            elif fd >= 0:
                os.close(fd)
            return
        raise refusal or OutOfMemory(
            f"the memory_limit of {self.memory.limit} bytes is reached", requested=nbytes
        )

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        found = self.memory.statistics()
        return OutOfMemory(
            f"no room for {nbytes} bytes on {self.name}: {found.used} bytes are in use, "
            f"{found.free} are free in slabs, at most {found.largest_free} in one piece"
            + (f"; its memory_limit is {found.limit}" if found.limit is not None else ""),
            requested=nbytes,
            free=found.free,
            in_use=found.used,
            largest_free=found.largest_free,
        )


def as_shape(shape: Shape) -> tuple[int, ...]:
    """A shape as NumPy takes it: a number or a sequence of numbers, none negative."""
    result: tuple[int, ...]
    try:
        result = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        result = tuple(map(operator.index, shape))  # type: ignore[arg-type]
    if any(size < 0 for size in result):
        raise ValueError(f"negative dimensions are not allowed: {result}")
    return result


def taken_down(name: str, fault: ContextPoisoned) -> ContextPoisoned:
    """The error for an op that was in flight when its context failed."""
    # One of its own for each op, because a traceback belongs to one task; the fault they
    # share is the cause of all.
    error = type(fault)(
        f"{name} did not finish: {fault}",
        generation=fault.generation,
        status=fault.status,
        status_name=fault.status_name,
        op=fault.op,
    )
    error.__cause__ = fault
    return error
