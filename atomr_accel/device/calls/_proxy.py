"""Stand-ins for a device, for facades whose ops are not awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, TypeVar, overload

from ...libraries.facades import Libraries
from ...ops import D, DeviceView, require_made_on

if TYPE_CHECKING:
    from collections.abc import Set

    from ...actors import ActorRef
    from ...arrays import GpuRef
    from ...arrays.expressions import Operand
    from ...backends import Capabilities
    from ...libraries.array.evaluate import Fused
    from ...libraries.dnn.attention.paged import PagedKVCache
    from ...libraries.dnn.graph.user_graph import GraphPlan
    from ...libraries.dnn.rnn.facade import Rnn
    from ...libraries.engine.engine import OnnxEngine
    from ...libraries.nvrtc.cuda_array import CudaArray
    from ...libraries.nvrtc.kernel import Kernel
    from ...libraries.nvrtc.module import KernelModule
    from ...libraries.rng.generator import Generator
    from ...libraries.sparse.direct import SparseLU
    from ...memory import Block, MemoryMap
    from ...ops import AsRequests, Collected, Facade, LaneSpec, Request
    from ...wire import DeviceInfo, Message
    from ..core import DeviceCore

R = TypeVar("R")
P = ParamSpec("P")

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

    @overload
    def using(self: Proxy[Collected], made: CudaArray[Any]) -> CudaArray[Collected]: ...
    @overload
    def using(self, made: Fused[Any, P, R]) -> Fused[D, P, R]: ...
    @overload
    def using(self, made: Generator[Any]) -> Generator[D]: ...
    @overload
    def using(self, made: Kernel[Any]) -> Kernel[D]: ...
    @overload
    def using(self, made: KernelModule[Any]) -> KernelModule[D]: ...
    @overload
    def using(self, made: GraphPlan[Any, R]) -> GraphPlan[D, R]: ...
    @overload
    def using(self: Proxy[AsRequests], made: PagedKVCache[Any]) -> PagedKVCache[AsRequests]: ...
    @overload
    def using(self, made: Rnn[Any]) -> Rnn[D]: ...
    @overload
    def using(self, made: OnnxEngine[Any]) -> OnnxEngine[D]: ...
    @overload
    def using(self, made: SparseLU[Any]) -> SparseLU[D]: ...
    def using(self: Any, made: Facade[Any]) -> Facade[Any]:
        """Return an object of a library, such as a random generator, for use in this place.

        ``batch.using(generator).normal(size=1000)`` returns a ref at once, and
        ``device.requests.using(generator).normal(size=1000)`` a request. The object shares its
        state with ``made``, such as the place in a random sequence.

        Args:
            made: an object made by a library of this device.

        Returns:
            The object with methods that return at once in a batch or a recording, and make requests
            in ``device.requests``.

        Raises:
            Unsupported: its calls must be awaited, like those of a ``PagedKVCache`` in a batch.
        """
        require_made_on(made, self.core)
        used: Facade[Any] = made.on(self)
        return used

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
