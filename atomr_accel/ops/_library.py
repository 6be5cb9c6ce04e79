"""The parts of every library folder, and the interface of the device for its facade.

A folder holds messages, a facade for programs, and one executor for each backend.

- Messages go over the lane: addresses, sizes and plain values.
- The facade has NumPy-like calls: it checks arguments, makes outputs and sends messages.
- Executors, in ``cpu`` and ``cuda``, run inside the host and carry messages out.

Adding a library adds a folder and an entry point, see ``Library``.
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
    from ..arrays import GpuRef
    from ..arrays.expressions import Operand
    from ..backends import Backend, Capabilities
    from ..lanes import MessageTemplate
    from ..memory import Block, MemoryMap
    from ..wire import CallByTemplate, DeviceInfo, Message
    from ._request import Request, TemplatePreparer
    from ._witness import CallRecorder
    from ._workspaces import Workspaces, WorkspaceSet


class CallMode:
    """Base of the classes that say how ops of a facade are called."""


class Awaited(CallMode):
    """Marks facades whose ops are awaited: those of a device."""


class Collected(CallMode):
    """Marks facades whose ops return their results at once: those of batches and recordings."""


class AsRequests(CallMode):
    """Marks facades whose ops return requests, which are messages to the library's actor."""


D = TypeVar("D", bound=CallMode)


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane to be started when it is first used.

    Attributes:
        name: unique in the device, such as ``"blas"``.
        executors: ``module:class`` by backend name. A backend may have its own; see
            ``executor_on``.
        max_streams: the number of executors, each with its own stream, that may run side by side in
            the lane, so that independent ops overlap on the device.
        watched: whether its ops are work of the device, which ends only if its kernels do. A
            compiler takes what time it takes, and the watchdog leaves it alone.
        own_thread: whether its ops may hold the thread that launches them for longer than it takes
            to queue work on the device. Such a lane has its own thread.
        parkable: whether a host with the lane can be parked. Communicators with other devices do
            not survive that.
    """

    name: str
    executors: Mapping[str, str]
    max_streams: int = 1
    watched: bool = True
    own_thread: bool = False
    parkable: bool = True

    def executor_on(self, backend: Backend) -> str:
        """``module:class`` of what executes this lane's messages on a backend.

        Raises:
            Unsupported: neither the backend nor the library has one.
        """
        found = backend.executors.get(self.name) or self.executors.get(backend.name)
        if found is None and backend.like is not None:
            found = self.executors.get(backend.like)
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


class Transfers(Protocol):
    """Transfers of arrays between the program and the device, for libraries that await them."""

    async def put(self, array: object, *, sealed: bool = False) -> GpuRef:
        """Copy an array to the device."""

    async def get(self, ref: GpuRef) -> np.ndarray[Any, Any]:
        """Copy a buffer from the device."""

    async def free(self, ref: GpuRef) -> None:
        """Give memory back."""

    async def seal(self, ref: GpuRef) -> GpuRef:
        """Make a buffer read-only for good."""


class DeviceView(Protocol):
    """Owner of facades: an open device, or an object that collects ops for one."""

    @property
    def call_mode(self) -> type[CallMode]:
        """Form of its facades' ops: ``Awaited``, ``Collected`` or ``AsRequests``."""

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
        """Name of the backend, for display; ``capabilities`` has its features."""

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the device's backend."""

    @property
    def info(self) -> DeviceInfo | None:
        """Description of the device from its host; None before the host has sent it."""

    @property
    def deterministic(self) -> bool:
        """True if results must depend neither on other ops in flight nor on time."""

    @property
    def memory_lane(self) -> LaneSpec:
        """The lane that fills and copies."""

    @property
    def recorder(self) -> CallRecorder | None:
        """Observer of calls; None if there is none."""

    def library_ref(self, library: str) -> ActorRef:
        """Return the actor of a library, by the library's attribute name."""

    def evaluation(self, expression: Operand, out: GpuRef | None = None) -> Request[GpuRef]:
        """Return the request that computes an expression, by default into a new buffer."""

    def submit(
        self,
        port: Any,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> Submitted | None:
        """Add an op to the program's order."""

    def keep(self, lane: str, name: str, release: Message) -> Block:
        """Return a block that stands for something that the host keeps for a handle of the program.

        The handle holds the block, and ops that need the kept thing name the block as read or
        written. When the last of them is gone, ``release`` is executed on its lane.
        """


class OpSubmitter(DeviceView, Protocol):
    """An open device, from the side of code that carries out requests."""

    @property
    def first_try(self) -> TemplatePreparer:
        """The preparer of requests that have not had to wait yet."""

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return an uninitialised buffer, or None if making it has to wait."""

    async def empty(
        self, shape: tuple[int, ...], dtype: DTypeLike, *, durable: bool = False
    ) -> GpuRef:
        """Make an uninitialised buffer, which is in memory that survives if it is ``durable``."""

    async def open_lane(self, lane: LaneSpec) -> Any:
        """Wait for the context, and start the lane if it is not running."""

    def submit(
        self,
        port: Any,
        name: str,
        message: Message | MessageTemplate,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
        payload: CallByTemplate | None = None,
    ) -> Submitted:
        """Add an op to the program's order; its ``wait()`` returns the result.

        ``payload`` fills the template, if the message is one.
        """
