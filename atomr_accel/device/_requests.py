"""``device.requests``: the libraries' calls as values, to be sent to the libraries' actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final, overload

from ..libraries._library import Home
from ..libraries._op import Described
from ..libraries._origin import require_made_on
from ..libraries._table import Libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from ..actors import ActorRef
    from ..backends import Capabilities
    from ..libraries._library import LaneSpec
    from ..libraries._op import Facade
    from ..libraries._workspaces import Workspaces, WorkspaceSet
    from ..libraries.dnn.attention._paged import PagedKVCache
    from ..libraries.dnn.graph._user_graph import Plan
    from ..libraries.dnn.rnn._facade import Rnn
    from ..libraries.nvrtc._facade import Kernel
    from ..libraries.rng._generator import Generator
    from ..memory import Kept, MemoryMap
    from ..wire import Message
    from ._core import DeviceCore

R = TypeVar("R")

_HIDDEN: Final = {name for name in dir(Home) if not name.startswith("_")}
"""What facades ask for, and programs do not."""


@final
class Requests(Libraries[Described]):
    """The libraries of a device, with methods that make requests and send nothing.

    ``device.requests.blas.gemm(a, b)`` is a message that is answered with a ``GpuRef``:
    ``await device.blas.ref.ask(request)``. Arguments are checked when it is carried out.
    """

    driver: Final = Described

    def __init__(self, core: DeviceCore, libraries: Libraries[Any]) -> None:
        self._core = core
        self.memory: Final[MemoryMap] = core.memory
        self.scratch: Final[MutableMapping[Workspaces, WorkspaceSet]] = core.scratch
        self._share_libraries(libraries, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _HIDDEN)

    @overload
    def using(self, made: Generator[Any]) -> Generator[Described]: ...
    @overload
    def using(self, made: Kernel[Any]) -> Kernel[Described]: ...
    @overload
    def using(self, made: Plan[Any, R]) -> Plan[Described, R]: ...
    @overload
    def using(self, made: PagedKVCache[Any]) -> PagedKVCache[Described]: ...
    @overload
    def using(self, made: Rnn[Any]) -> Rnn[Described]: ...
    def using(self, made: Facade[Any]) -> Facade[Described]:
        """Something that a library has made, such as a kernel, with methods that make requests.

        Args:
            made: by a library of this device.

        Raises:
            TypeError: it is nothing that a library of this device has made.
        """
        require_made_on(made, self._core)
        described: Facade[Described] = made._on(self)
        return described

    # --- what facades ask for -------------------------------------------------------------

    @property
    def ports(self) -> Mapping[str, Any]:
        """The lanes that are open now, by name."""
        return self._core.ports

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._core.backend

    @property
    def capabilities(self) -> Capabilities:
        """How devices of its backend differ from others."""
        return self._core.capabilities

    @property
    def memory_lane(self) -> LaneSpec:
        """The lane that fills and copies."""
        return self._core.memory_lane

    @property
    def deterministic(self) -> bool:
        """Whether results must not depend on what else is in flight, nor on time."""
        return self._core.deterministic

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library."""
        return self._core.library_ref(library)

    def submit(self, *_op: Any, **_blocks: Any) -> NoReturn:
        """Requests are not carried out here."""
        raise AssertionError("a request is made, not carried out")

    def keep(self, lane: str, name: str, release: Message) -> Kept:
        """What stands for something that the host keeps for a handle of the program."""
        return self._core.keep(lane, name, release)
