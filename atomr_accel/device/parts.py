"""Interfaces of the parts that a device's core holds, for each other.

The core holds them by these interfaces alone, so that each part imports the core and no other part
on the same level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import CoroutineType

    import numpy as np
    import trio

    from .._errors import AccelError, ContextPoisoned
    from ..arrays import GpuRef
    from ..lanes import HostHandle, Op, Piece, PinnedStatistics, Port
    from ..memory import AtEnd, Block, DurableStatistics, Epoch, Slab
    from ..ops import Facade, LaneSpec
    from ..wire import Message
    from .core import DeviceCore
    from .standby._statistics import StandbyStatistics


class OpenBatch(Protocol):
    """A batch in whose block a task is, or the innermost of several.

    Attributes:
        depth: number of the task's nurseries around the outermost block.
    """

    depth: int

    def note_unawaited(self, call: CoroutineType[Any, Any, Any], facade: Facade[Any]) -> None:
        """Note a call of the device itself in the block."""


class ReplayedRecording(Protocol):
    """A recording that was replayed."""

    @property
    def steps(self) -> list[str]:
        """Names of the ops that a replay executes."""


class ServingContext(Protocol):
    """The context that takes the ops of a device."""

    @property
    def host(self) -> HostHandle:
        """Its host."""

    @property
    def terminating(self) -> bool:
        """True if the context was reported dead."""

    async def open_lane(self, spec: LaneSpec) -> Port | None:
        """Start a lane; return None if the context has ended, or another caller's start failed."""

    async def wait_opening(self, name: str) -> None:
        """Wait until a lane is not being started any more."""

    def remove_lane(self, name: str) -> None:
        """End a lane that is not used any more."""

    def report_dead(self) -> None:
        """End the context, because its host is gone."""

    def fail(self, op: Op) -> None:
        """End the context with a fault, because an op failed that has no waiting caller."""

    def hung(self, op: str, message: str) -> ContextPoisoned:
        """Kill the host, because an op hangs, and end the context with the fault returned."""

    def not_finished(self, op: Op) -> Exception:
        """The error for an op that was in flight at the end, or is submitted after it."""

    async def wait_ended(self) -> None:
        """Wait until the context is over, once it was reported dead."""


class StandbyHosts(Protocol):
    """The standbys of a device."""

    @property
    def ready(self) -> bool:
        """True if a standby is ready."""

    @property
    def hosts(self) -> list[HostHandle]:
        """The hosts, the best one first."""

    async def wait_ready(self, least: int | None = None) -> None:
        """Wait until ``least`` are ready, or else as many as are wanted."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Keep as many as are wanted."""

    async def take(self) -> tuple[Any, DeviceCore | None, bool] | None:
        """Take over the host that is farthest prepared; None if there is none."""

    async def unmap(self, slabs: Iterable[int]) -> None:
        """Have slabs unmapped that were given up."""

    async def make_room(self, *, descriptors: bool = False) -> bool:
        """Give up standbys, because the program needs their memory or descriptors."""

    def aside(self) -> AbstractContextManager[None]:
        """Start no hosts in this block, in which the program takes what ``make_room`` gives."""

    def changed(self) -> None:
        """The device uses more than before, or less."""

    def note(self, lane: str, message: Message) -> None:
        """Note an object that the device has prepared, for the next host."""

    def note_recording(self, number: int, recording: Any) -> None:
        """Note a recording that the device has captured."""

    def own_recordings(self, captured: set[int]) -> None:
        """Recordings that were captured in advance are in the device's own host now."""

    def prepare_again(self) -> None:
        """Have a host that was not hot prepare the last host's plans."""

    def tell(self) -> None:
        """Report the progress of the best standby to instruments."""

    def statistics(self) -> StandbyStatistics:
        """A snapshot."""


class CollectiveOrder(Protocol):
    """The order of a device's collectives, for all its members of worlds."""

    @property
    def unanswered(self) -> dict[int, object]:
        """The members that submitted the unanswered ones, by sequence number."""

    def block(self) -> Block:
        """Return the block that every collective writes."""


class FunctionCalls(Protocol):
    """Calls of the program's functions in the host."""

    @property
    def in_use(self) -> bool:
        """True if a function was called."""

    async def run(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        lane: str,
        init: Callable[[], object] | None,
    ) -> object:
        """Call a function."""

    async def close(self, lane: str) -> None:
        """End a lane."""

    async def repeat(self, whole: Self, mapped: set[int]) -> None:
        """Make the states of the lanes of a device here, too."""

    def keep_states(self, before: Epoch, mapped: set[int]) -> None:
        """Keep the states although all memory that is not sealed is gone."""

    def take_over(self, shadow: Self, ports: Mapping[str, Port]) -> None:
        """Continue with the states of a shadow."""

    def forget(self) -> None:
        """Drop all states."""


class DurableMemory(Protocol):
    """The durable buffers of a device, verified sealed ones, and the digests that prove them."""

    @property
    def required(self) -> bool:
        """True if a host must have the lane of digests."""

    async def ready(self) -> Port:
        """Return the lane of digests, once there is a context that has it."""

    async def check(self, ref: GpuRef, known: bytes = b"") -> str:
        """Verify a buffer that survives rebuilds; return its digest."""

    async def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer in memory that survives, to be filled and adopted."""

    def adopt(self, block: Block) -> Op:
        """Make a block in memory that survives durable; return the op that proves its content."""

    async def convert(self, ref: GpuRef) -> None:
        """Move a buffer to memory that survives, and make it durable."""

    async def proven(self, block: Block) -> None:
        """Wait until all writes so far are proven."""

    def submit(self, op: Op) -> None:
        """Submit an op by its port, with digests of the bytes it writes."""

    def interrupted(self) -> None:
        """Give up buffers with a write in flight, because the context has ended."""

    async def verify(self, ports: Mapping[str, Port]) -> None:
        """Compare the content of all buffers with their digests, on a new host."""

    def statistics(self) -> DurableStatistics:
        """Return the counters at this moment."""


class PinnedArrays(Protocol):
    """The page-locked arrays of a device."""

    def find(self, data: np.ndarray[Any, Any]) -> int | None:
        """The address of page-locked data; None for ordinary memory."""

    def piece_at(self, address: int) -> Piece:
        """Return the piece that contains an address."""

    async def mapped(self, address: int) -> HostHandle:
        """Have the present host map the memory at an address, if needed, and return the host."""

    async def take(self, nbytes: int) -> Piece:
        """Return memory that does not count to the limit, until ``drop``."""

    def drop(self, piece: Piece) -> None:
        """Give back what ``take`` has given."""

    def at_end(self, piece: Piece) -> AtEnd:
        """Return what gives back a piece of ``take`` when it is gone."""

    async def keep_unmapping(self, context: ServingContext) -> None:
        """Have the host of a context unmap freed memory, for as long as the context serves."""

    def take_over(self, shadow: Self) -> None:
        """Have unmapped what a shadow has given up in the host that is this device's now."""

    def statistics(self) -> PinnedStatistics:
        """A snapshot of the pool."""

    def close(self, over: AccelError) -> None:
        """The device is closed; arrays that are still held keep their memory."""


class ExportedBuffers(Protocol):
    """Buffers that the program has mapped."""

    @property
    def returned(self) -> bool:
        """True if arrays are gone whose memory ``sweep`` has to make usable again."""

    async def export(self, ref: GpuRef) -> Any:
        """Map a buffer in this process."""

    async def adopt(self, array: Any, put: Callable[[Any], Any]) -> GpuRef:
        """Return a buffer with the content of an array of another library."""

    async def sweep(self) -> None:
        """Unmap what no array uses any more."""

    async def close(self) -> None:
        """Unmap all that no array uses."""


class SlabWindows(Protocol):
    """A device's windows on slabs of others, and the devices with windows on it."""

    async def open(self, owner: DeviceCore, slab: Slab) -> Any:
        """Open a window on a slab of another device; None if that cannot be."""

    def find(self, owner: DeviceCore, slab: Slab) -> Any:
        """The window on a slab, if there is one that can be used now."""

    def admit(self, guest: DeviceCore) -> None:
        """Note a device that has a window on this one."""

    def drop(self, owner: DeviceCore, slab: int) -> None:
        """Close a window, because its slab is given up."""

    def given_up(self, slab: int) -> None:
        """Close all windows on a slab of this device, because it is given up."""

    async def close_guests(self) -> None:
        """Have others unmap what this device has given up."""
