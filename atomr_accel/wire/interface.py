"""Interfaces that a host needs from a backend and from executors.

Their implementations run inside the host, on lanes' threads. This module is independent of vendors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from .control import DeviceInfo, OpenLane


class Stream(Protocol):
    """An ordered queue of device work, as one lane has it."""

    @property
    def queue(self) -> Any:
        """Equal for streams that are one queue of the device."""

    def mark(self) -> Any:
        """A token for all work queued so far; None if that has finished already."""

    def finished(self, token: Any) -> bool:
        """Return True if the work before ``token`` is done.

        Raises:
            StickyFault: the context failed.
        """

    def wait(self, token: Any) -> None:
        """Block this thread until the work before ``token`` is done, without the GIL."""

    def release(self, token: Any) -> None:
        """Release a token, which is not used any more."""

    def signal(self) -> int:
        """Return a new descriptor that becomes readable once all work queued so far is done.

        It may never become readable if the context fails; ``finished`` raises then.
        """

    def timestamp(self, event: int) -> None:
        """Record the time when all work queued so far is done, under a number."""

    def follow(self, other: Any) -> None:
        """Let later work on this stream wait for what ``other`` has queued by now."""

    def close(self) -> None:
        """Release the stream; its lane has ended."""

    # A stream that can measure its ops has ``stopwatch()``, too: see ``Stopwatch``.


class Stopwatch(Protocol):
    """Measures what a stream executes, in nanoseconds of ``time.monotonic_ns``."""

    def start(self) -> Any:
        """Return a token of the begin of work that is about to be queued."""

    def stop(self, begun: Any) -> Any:
        """Return a token of the begin and the end of work, now that it is queued."""

    def drop(self, begun: Any) -> None:
        """Drop a measurement, because the work was not queued or times are not wanted any more."""

    def read(self, token: Any) -> tuple[int, int]:
        """When it began and ended, once it has."""


class HostContext(Protocol):
    """One device in one host."""

    info: DeviceInfo

    def open_lane(self, name: str, stream: Hashable) -> Any:
        """Make the context current in this thread and return a ``Stream``.

        Args:
            name: the lane that it is for.
            stream: the stream's name by the ``StreamAllocator``. Calls with equal names share one
                queue of the device; None: it is the lane's own.
        """

    def free_memory(self) -> int:
        """Return the bytes of device memory that are free, or 0 if the backend cannot know."""

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two timestamps that have both happened."""

    def forget_event(self, event: int) -> None:
        """Release a timestamp, if there is one of that number."""

    def map_pinned(self, slab: int, fd: int, nbytes: int) -> None:
        """Map memory shared with the program, page-locked for the device, unless it is mapped."""

    def map_pointer(self, slab: int, pointer: int, nbytes: int) -> None:
        """Give memory of this process, which others own, an address."""

    def create_managed(self, slab: int, nbytes: int) -> int:
        """Allocate memory that moves between the device and the host by itself.

        Returns:
            Its descriptor, or -1 if other processes cannot map it.
        """

    def create_slab(self, slab: int, nbytes: int, *, sealed: bool) -> int:
        """Allocate device memory, map it, and return its descriptor."""

    def map_slab(self, slab: int, fd: int, nbytes: int, *, sealed: bool) -> None:
        """Map memory that an earlier host allocated; read-only if ``sealed``."""

    def unmap_slab(self, slab: int) -> None:
        """Unmap a slab, or memory shared with the program."""

    # A context whose backend has a ``Parker`` has ``hold_slab(slab)``, too, which unmaps a slab but
    # keeps its address for the next ``map_slab``.

    # A context that reaches memory of other devices has ``peer(index)``, too, which returns a
    # ``Peer``. One whose kernels print has ``flush()``, which writes their output after a failure.

    def check(self) -> None:
        """Raise StickyFault if the context has failed."""

    def close(self) -> None:
        """Release everything."""

    # The program calls the following methods, in a context of its own next to the host's.

    def make_current(self) -> None:
        """Prepare this thread for the calls below, and for mapping slabs."""

    def pointer(self, address: int) -> int:
        """The pointer that an address is here."""

    def take(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy from memory of this process's libraries to an address, and wait for it."""

    def synchronize(self) -> None:
        """Wait for all that this process has queued on the device."""


class Parker(Protocol):
    """Parks hosts, which keep their state and release the device.

    It is made, without arguments, in a process of its own, which has no device open.
    """

    def check(self) -> None:
        """Raise Unsupported if this machine cannot park processes."""

    def park(self, pid: int, uuid: str) -> int:
        """Stop a process, and release its memory on the device.

        Args:
            pid: a host without slabs.
            uuid: its device.

        Returns:
            The bytes of device memory that this released, or 0 if they are unknown.
        """

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Have a parked process run again.

        Raises:
            OutOfMemory: the device has no room for it. It is parked as before.
            Exception: it is lost, and must be killed.
        """


@dataclass(frozen=True, slots=True)
class Fusion:
    """A way to execute many messages of one type with one call.

    Small kernels are bound by launch time, so a lane that has received several independent ones
    launches them together if the library supports that. The library may then sum in another order,
    so a deterministic host does not use it.

    Attributes:
        key: returns a message's key. Messages with equal keys may go together; one with None goes
            alone.
        run: executes a list of at least two messages with equal keys.
        most: largest number of messages at once.
    """

    key: Callable[[Any], Hashable]
    run: Callable[[list[Any]], None]
    most: int


class Executor(Protocol):
    """Turns a lane's messages into device work: a library's handle, or memory's copies.

    A handler is called with its message only, and queues its work on the lane's stream. It returns
    None or a plain value that is sent once the work is done, or a ``Later`` that computes
    the value then.

    ``preparers`` may have functions by message type, for messages that come as templates. Such a
    function gets a ``HostTemplate`` and returns a function that executes the message with given
    addresses, or None to have the template filled in. An executor that can execute several messages
    at once has ``fusions``, by message type. An executor that keeps objects for messages has
    ``on(stream)``, which returns the executor of a further stream of its lane with the same
    objects. Otherwise one is made for each stream. If ``spreads`` is true, further executors cost
    only a stream and ops may take long, so even a few ops are spread over streams.
    """

    handlers: Mapping[type, Callable[[Any], Any]]

    def __init__(self, context: Any, stream: Any) -> None: ...

    def close(self) -> None:
        """Release what the executor holds."""


class StreamAllocator(Protocol):
    """Decides which lanes share streams: ``open_device(streams=...)``.

    A host makes one with the arguments of its ``HostClass``, and asks it about each lane that
    starts, one lane at a time.
    """

    def stream_of(self, lane: OpenLane, slot: int, priority: int) -> Hashable:
        """Name the stream of a slot of a lane.

        Slots of equal names, of whichever lanes, have one stream. Its work runs in order, so an op
        that follows another one there needs no event. A lane has one slot for each different name.

        Args:
            lane: the lane. A lane whose ``thread`` has its name is alone in that thread.
            slot: the slot's number: 0 for ops that are in flight alone, and up to
                ``lane.max_streams - 1`` for more that do not depend on each other.
            priority: the lane's stream priority. A stream has that of the first lane there.

        Returns:
            The name, or None for a stream that nothing else uses.
        """


class WorkInFlight(Protocol):
    """The unfinished ops of a thread of lanes, for a ``CompletionStrategy``."""

    @property
    def quiet(self) -> float:
        """Seconds since an op has finished, or since there are any."""

    def nap(self, seconds: float) -> None:
        """Sleep so long, or until a request or a signal of the driver comes.

        Args:
            seconds: the time, at least 0; from a millisecond on it counts in whole milliseconds.
        """

    def wait_for_oldest(self) -> None:
        """Sleep in the driver until the oldest op is done, without the GIL.

        New requests wait for that, too.

        Raises:
            StickyFault: the context failed.
        """


class CompletionStrategy(Protocol):
    """Decides how a thread of lanes waits for the end of ops: ``open_device(completion=...)``.

    A host makes one for each thread of lanes, with the arguments of its ``HostClass``, and one
    more when it opens the device.
    """

    @property
    def sleeps(self) -> bool:
        """True if ``wait`` calls ``wait_for_oldest``: ops are marked so that threads can sleep."""

    @property
    def signals(self) -> bool:
        """True if the driver is to signal the end of ops, which ends naps: see ``Stream.signal``.

        It signals nothing after an error, so naps must end by themselves, too.
        """

    def wait(self, work: WorkInFlight) -> None:
        """Wait for a moment.

        The thread calls it again and again while ops are in flight. Before each call it has looked
        for requests and for finished ops, and there were none. An error ends the context.
        """


@final
class Later:
    """A handler's result whose value only the device knows, once the op is done.

    Attributes:
        read: returns the value then, or raises the error of the op. It is called in the lane's
            thread and must not wait, so the handler has had the data copied to the host.
    """

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read: Final = read
