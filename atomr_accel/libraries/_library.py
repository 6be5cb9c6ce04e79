"""The parts every library folder has, and what its facade may ask of the device.

A folder holds messages, a facade for programs, and one executor for each backend:

    messages      what goes over the lane: addresses, sizes, plain values
    facade        NumPy-like calls: checks arguments, makes outputs, sends messages
    cpu, cuda     executors: run inside the host, turn a message into work

Adding a library adds a folder and a line to ``_table.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .._errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

    import numpy as np
    from numpy.typing import DTypeLike

    from ..actors import ActorRef
    from ..backends import Backend, Capabilities
    from ..lanes import Template
    from ..memory import Block, GpuRef, MemoryMap
    from ..wire import CallByTemplate, DeviceInfo, Message
    from ._op import Driving
    from ._request import FirstTry
    from ._witness import Witness
    from ._workspaces import Workspaces, WorkspaceSet


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane to be started when it is first used.

    Attributes:
        name: unique in the device, such as ``"blas"``.
        executors: ``module:class`` by backend name. A backend may bring its own; see
            ``executor_on``.
        max_streams: how many executors, each with a stream of its own, may run side by side in
            the lane, so that independent ops overlap on the device.
        hangs: whether its ops are work of the device, which ends only if its kernels do. A
            compiler takes what time it takes, and the watchdog leaves it alone.
        blocks: whether its ops may keep the thread that launches them, beyond queueing work on
            the device. Such a lane has a thread of its own.
    """

    name: str
    executors: Mapping[str, str]
    max_streams: int = 1
    hangs: bool = True
    blocks: bool = False

    def executor_on(self, backend: Backend) -> str:
        """``module:class`` of what executes this lane's messages on a backend.

        Raises:
            Unsupported: neither the backend nor the library has one.
        """
        found = backend.executors.get(self.name) or self.executors.get(backend.name)
        if found is None:
            raise Unsupported(
                f"{self.name} has no executor for backend {backend.name!r}; it has some for "
                f"{', '.join(map(repr, self.executors)) or 'none'}"
            )
        return found


class Submitted(Protocol):
    """An op on its way."""

    async def wait(self) -> Any:
        """Wait until it is done; its result."""


class Home(Protocol):
    """Where facades are at home: an open device, or what collects ops in its place."""

    @property
    def driver(self) -> type[Driving]:
        """How ops of its facades are called: ``Awaited``, ``Collected`` or ``Described``."""

    @property
    def memory(self) -> MemoryMap:
        """The map of the device's memory."""

    @property
    def scratch(self) -> MutableMapping[Workspaces, WorkspaceSet]:
        """The workspaces that libraries keep for it."""

    @property
    def ports(self) -> Mapping[str, Any]:
        """The lanes that are open now, by name; none during a rebuild."""

    @property
    def backend(self) -> str:
        """The backend's name, to be shown; what it can do is told by ``capabilities``."""

    @property
    def capabilities(self) -> Capabilities:
        """How devices of its backend differ from others."""

    @property
    def info(self) -> DeviceInfo | None:
        """What the device says of itself; None before it has."""

    @property
    def deterministic(self) -> bool:
        """Whether results must not depend on what else is in flight, nor on time."""

    @property
    def memory_lane(self) -> LaneSpec:
        """The lane that fills and copies."""

    @property
    def witness(self) -> Witness | None:
        """Who is told of calls, if anybody wants to know."""

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library, by the name that the library has as an attribute."""

    def submit(
        self,
        port: Any,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> Submitted | None:
        """Put an op in its place in the program's order."""

    def keep(self, lane: str, name: str, release: Message) -> Block:
        """What stands for something that the host keeps for a handle of the program.

        The handle holds it, and ops that need what is kept name it as read or written; when
        all are gone ``release`` is executed on its lane.
        """


class Submitter(Home, Protocol):
    """An open device, as what carries out requests sees it."""

    @property
    def first_try(self) -> FirstTry:
        """The driver of requests that have not had to wait yet."""

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """An uninitialised buffer, or None where making it takes a wait."""

    async def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> GpuRef:
        """An uninitialised buffer."""

    async def open_lane(self, lane: LaneSpec) -> Any:
        """Wait for the context, and start the lane if it is not running."""

    def submit(
        self,
        port: Any,
        name: str,
        message: Message | Template,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
        payload: CallByTemplate | None = None,
    ) -> Submitted:
        """Put an op in its place in the program's order; its ``wait()`` has the result.

        Args:
            port: its lane.
            name: what to call it.
            message: what the lane executes.
            reads: what it reads.
            writes: what it writes.
            payload: the request, where the message is a template.
        """
