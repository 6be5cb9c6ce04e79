"""Stand-ins for a device, for facades whose ops are not awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...libraries.facades import Libraries
from ...ops import D, DeviceView, require_made_on

if TYPE_CHECKING:
    from collections.abc import Set

    from ...actors import ActorRef
    from ...arrays import GpuRef
    from ...arrays.expressions import Operand
    from ...backends import Capabilities
    from ...memory import Block, MemoryMap
    from ...ops import Facade, LaneSpec, Request
    from ...wire import DeviceInfo, Message
    from ..core import DeviceCore


FOR_FACADES: Final = {
    *dir(DeviceView),
    *("as_requests", "caches", "call_templates", "core", "home", "library", "made_on", "on"),
    *("ref", "share_libraries", "shared_identity", "templated", "transfers"),
}
"""Attributes for facades, hidden from programs."""


class Proxy(Libraries[D]):
    """Base class with a device's libraries and properties, which executes calls in its own way."""

    _hidden: ClassVar[Set[str]]
    """Attributes for facades, hidden from programs."""

    def __init__(self, core: DeviceCore) -> None:
        self.core: Final = core
        self.memory: Final[MemoryMap] = core.memory

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - self._hidden)

    def _use(self: Any, made: Facade[Any]) -> Any:
        """Return a copy of ``made`` whose ops go to this object."""
        require_made_on(made, self.core)
        return made.on(self)

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.core.backend

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the device's backend."""
        return self.core.capabilities

    @property
    def memory_lane(self) -> LaneSpec:
        """The lane that fills and copies."""
        return self.core.memory_lane

    @property
    def info(self) -> DeviceInfo | None:
        """Properties of the device."""
        return self.core.info

    @property
    def deterministic(self) -> bool:
        """True if results are independent of other ops in flight and of timing."""
        return self.core.deterministic

    def library_ref(self, library: str) -> ActorRef:
        """The actor of a library."""
        return self.core.library_ref(library)

    def evaluation(self, expression: Operand, out: GpuRef | None = None) -> Request[GpuRef]:
        """Return the request that computes an expression, by default into a new buffer."""
        return self.core.evaluation(expression, out)

    def keep(self, lane: str, name: str, release: Message) -> Block:
        """Return the handle of an object that the host keeps for the program."""
        return self.core.keep(lane, name, release)
