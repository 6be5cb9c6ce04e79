"""``device.requests``: the libraries' calls as values, to be sent to the libraries' actors."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NoReturn,
    ParamSpec,
    TypeVar,
    final,
    overload,
)

from ...libraries.array.evaluate import Evaluating
from ...ops import AsRequests, DeviceView
from ._proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from ...libraries.array.evaluate import Fused
    from ...libraries.dnn.attention.paged import PagedKVCache
    from ...libraries.dnn.graph.user_graph import GraphPlan
    from ...libraries.dnn.rnn.facade import Rnn
    from ...libraries.facades import Libraries
    from ...libraries.nvrtc.kernel import Kernel
    from ...libraries.nvrtc.module import Module
    from ...libraries.rng.generator import Generator
    from ...libraries.sparse.direct import SparseLU
    from ...ops import CallRecorder, Facade, Workspaces, WorkspaceSet
    from ..core import DeviceCore

R = TypeVar("R")
P = ParamSpec("P")


@final
class Requests(Evaluating[AsRequests], Proxy[AsRequests]):
    """The libraries of a device, with methods that make requests and send nothing.

    ``device.requests.blas.gemm(a, b)`` is a message, which an actor answers with a ``GpuRef``:
    ``await device.blas.ref.ask(request)``. Arguments are checked when the request is executed.
    """

    call_mode: Final = AsRequests
    _hidden = frozenset(name for name in (*dir(DeviceView), "ref", "templated") if name[0] != "_")

    def __init__(self, core: DeviceCore, libraries: Libraries[Any]) -> None:
        super().__init__(core)
        self.scratch: Final[MutableMapping[Workspaces, WorkspaceSet]] = core.scratch
        self._share_libraries(libraries, self)

    @overload
    def using(self, made: Fused[Any, P, R]) -> Fused[AsRequests, P, R]: ...
    @overload
    def using(self, made: Generator[Any]) -> Generator[AsRequests]: ...
    @overload
    def using(self, made: Kernel[Any]) -> Kernel[AsRequests]: ...
    @overload
    def using(self, made: Module[Any]) -> Module[AsRequests]: ...
    @overload
    def using(self, made: GraphPlan[Any, R]) -> GraphPlan[AsRequests, R]: ...
    @overload
    def using(self, made: PagedKVCache[Any]) -> PagedKVCache[AsRequests]: ...
    @overload
    def using(self, made: Rnn[Any]) -> Rnn[AsRequests]: ...
    @overload
    def using(self, made: SparseLU[Any]) -> SparseLU[AsRequests]: ...
    def using(self, made: Facade[Any]) -> Facade[AsRequests]:
        """Return an object of a library, such as a kernel, with methods that make requests.

        Args:
            made: an object made by a library of this device.

        Raises:
            TypeError: ``made`` was not made by a library of this device.
        """
        described: Facade[AsRequests] = self._use(made)
        return described

    @property
    def _device(self) -> Requests:  # type: ignore[override] # as an attribute it would be a cycle
        return self

    # --- what facades ask for -------------------------------------------------------------

    @property
    def recorder(self) -> CallRecorder | None:
        """Object that gets the program's calls, or None."""
        return self._core.recorder

    @property
    def ports(self) -> Mapping[str, Any]:
        """The lanes that are open now, by name."""
        return self._core.ports

    def submit(self, *_op: Any, **_blocks: Any) -> NoReturn:
        """Requests are not carried out here."""
        raise AssertionError("a request is made, not carried out")
