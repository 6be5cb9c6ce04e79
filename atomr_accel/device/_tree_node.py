"""A device's place in a tree of actors, and the condition that it shows there."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ..actors import ChildState
from ..actors.part import place
from ..libraries.registry import catalogue
from ..memory import AtEnd
from .waking_queue import WakingQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..actors import ActorRef, Supervisor
    from ..actors.cell import Cell
    from ..actors.condition import Condition
    from ..actors.part import Annex, Part
    from ..lanes import Op, Port
    from ..memory import MemoryMap
    from ..ops import Request


def library_of(request: Request[Any]) -> str | None:
    """Return the library that a request belongs to, by its name or else by its lane.

    A call of several steps may end with a request of another library.
    """
    known = catalogue()
    library = request.name.partition(".")[0]
    if library in known.facades:
        return library
    return known.library_of_lane.get(request.lane.name)


class _RecordingNow(Protocol):
    @property
    def in_flight(self) -> int: ...
    @property
    def rebuilds(self) -> int: ...


class _ShownRecording(Protocol):
    def statistics(self) -> _RecordingNow: ...


@final
class DeviceNode:
    """A device's place in a tree of actors.

    Attributes:
        cell: the device's own, once it has one.
        annex: where the libraries' actors are.
        context: that of its contexts, one after the other.
        supervisor: who starts them.
        libraries: the libraries' actors by name.
        pinned: the place of the pool of page-locked memory.
    """

    def __init__(
        self,
        memory: MemoryMap,
        in_flight: Mapping[int, Op],
        ports: Callable[[], Mapping[str, Port]],
        rebuilding: Callable[[], bool],
    ) -> None:
        self._memory = memory
        self._in_flight = in_flight
        self._ports = ports
        self._rebuilding = rebuilding
        self.cell: Cell | None = None
        self.annex: Annex | None = None
        self.context: Part | None = None
        self.supervisor: Supervisor | None = None
        self.libraries: Final[dict[str, ActorRef]] = {}
        self.pinned: ActorRef | None = None
        self._parts: Final[dict[str, Part]] = {}
        self._gone: Final = WakingQueue(weakref.WeakMethod(self._collect))

    @property
    def stopping(self) -> bool:
        """True if the device, or an actor above it, is being stopped."""
        return self.cell is not None and self.cell.stopping

    @property
    def restarting(self) -> bool:
        """True if the device is being stopped to be restarted."""
        return self.cell is not None and self.cell.restarting

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library."""
        ref = self.libraries.get(library)
        if ref is None:
            raise AttributeError(
                "only a library has an actor, such as device.blas.ref; it carries out what the "
                "library's generators, kernels and plans request, too"
            )
        return ref

    def add_context(self, part: Part) -> None:
        """Show the context, and report its restarts as rebuilds."""
        self.context = part
        part.shown = lambda own: own._replace(generation=self._memory.generation)
        part.followers.append(self._rebuilt)

    def _rebuilt(self, cause: BaseException | None) -> None:
        assert self.cell is not None
        self.cell.announce(cause)
        for ref in self.libraries.values():
            ref._cell.announce(cause)

    def add_device(self, cell: Cell) -> None:
        """Show the device."""
        self.cell = cell
        cell.shown = lambda own: self._seen(own, len(self._in_flight))

    def add_library(self, name: str, cell: Cell) -> None:
        """Show a library."""
        lanes = tuple(lane.name for lane in catalogue().all[name].lanes)
        cell.shown = partial(self._seen_library, lanes)

    def _seen_library(self, lanes: tuple[str, ...], own: Condition) -> Condition:
        ports = self._ports()
        load = sum(ports[lane].load for lane in lanes if lane in ports)
        seen = self._seen(own, own.depth + load)
        return seen._replace(restarts=0 if self.context is None else self.context.restarts)

    def of_lane(self, port: Port) -> Part | None:
        """Show a lane as a part of the context."""
        if self.context is None:
            return None
        part = place(self.context, port.name, "Lane")
        part.shown = lambda own: own._replace(depth=port.load, generation=self._memory.generation)
        return part

    def add_pinned(self, statistics: Callable[[], object]) -> None:
        """Show the pool of page-locked memory, as long as the device is not over."""
        if "pinned" not in self._parts:
            assert self.cell is not None
            part = self._parts["pinned"] = place(self.cell, "pinned", "Pinned")
            part.shown = lambda own: self._seen(own, 0)
            part.served = statistics
            self.pinned = part.ref

    def add_recording(self, name: str, recording: _ShownRecording) -> tuple[ActorRef, AtEnd] | None:
        """Show a recording at the ref that this returns, until the other object is gone.

        A shadow has no place, and neither have its recordings.
        """
        if self.cell is None or self.cell.ended:
            return None
        part = self._parts[name] = place(self.cell, name, "Recording")
        shown = weakref.ref(recording)  # the tree keeps none alive
        part.shown = partial(self._seen_recording, shown)
        part.served = lambda: None if (there := shown()) is None else there.statistics()
        return part.ref, AtEnd(self._gone, name)

    def _seen_recording(self, shown: weakref.ref[_ShownRecording], own: Condition) -> Condition:
        recording = shown()
        if recording is None:
            return own
        now = recording.statistics()
        return self._seen(own, now.in_flight)._replace(restarts=now.rebuilds)

    def _collect(self) -> None:
        while self._gone:
            part = self._parts.pop(self._gone.popleft(), None)
            if part is not None:
                part.end()

    def end_parts(self) -> None:
        """The device is over: so are its parts."""
        for part in [*self._parts.values()]:
            part.end()
        self._parts.clear()

    def _seen(self, own: Condition, depth: int) -> Condition:
        """Return a condition adjusted for the context, which all parts of the device need."""
        waits = own.state is ChildState.RUNNING and self._rebuilding()
        return own._replace(
            state=ChildState.WAITING if waits else own.state,
            depth=depth,
            generation=self._memory.generation,
        )
