"""``device.requests``: calls as values, to be sent to the actors of devices and libraries."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NoReturn,
    Protocol,
    TypeVar,
    final,
)

import trio

from ..._errors import DeviceLost
from ...ops import AsRequests
from ..data.arrays import Arrays
from ._proxy import FOR_FACADES, Proxy
from .device_call import DeviceCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    import numpy as np

    from ...arrays import GpuRef
    from ...arrays.expressions import Expression
    from ...libraries.facades import Libraries
    from ...ops import CallRecorder, Workspaces, WorkspaceSet
    from .._statistics import DeviceStatistics
    from ..batches.record import Recording
    from ..core import DeviceCore
    from ..data._methods import MemoryMethods
    from ..data._snapshot import Snapshot

R = TypeVar("R")


class _OwnMethods(Protocol):
    """The methods that a device has of its own; its class knows of this module."""

    async def run(
        self,
        function: Callable[..., Any],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> Any: ...

    def statistics(self) -> DeviceStatistics: ...


@final
class Requests(Arrays[AsRequests], Proxy[AsRequests]):
    """Methods of a device and its libraries that make messages and send nothing.

    ``device.requests.blas.gemm(a, b)`` is a message, which an actor answers with a ``GpuRef``:
    ``await device.ref.ask(request)``. Arguments are checked when the request is executed. Each
    method has the arguments, the result and the errors of the device's method of the same name.
    Messages to one actor run in the order in which they were sent; calls of the device's own
    methods, and messages to other actors, are not ordered with them.
    """

    call_mode: Final = AsRequests
    _hidden = frozenset(
        name for name in (*FOR_FACADES, "made_on", "ports", "recorder") if name[0] != "_"
    )

    def __init__(self, core: DeviceCore, methods: MemoryMethods, libraries: Libraries[Any]) -> None:
        super().__init__(core)
        # While the device is open its block holds it; a reference from here would be a cycle.
        self._find_device = weakref.ref(methods)
        self.scratch: Final[MutableMapping[Workspaces, WorkspaceSet]] = core.scratch
        self.share_libraries(libraries, self)

    @property
    def home(self) -> Requests:  # type: ignore[override] # as an attribute it would be a cycle
        """Object that the libraries' methods make requests for: this one."""
        return self

    # --- methods of the device itself -------------------------------------------------------

    def put(
        self, array: object, *, out: GpuRef | None = None, sealed: bool = False
    ) -> DeviceCall[GpuRef]:
        """Message for ``device.put``."""
        put = partial(self._methods.put, array, out=out, sealed=sealed)
        return self._call("put", put, ordered=out is not None)

    def get(
        self, ref: GpuRef | Expression, out: np.ndarray[Any, Any] | None = None
    ) -> DeviceCall[np.ndarray[Any, Any]]:
        """Message for ``device.get``."""
        return self._call("get", partial(self._methods.get, ref, out))

    def copy(self, src: GpuRef, dst: GpuRef | None = None) -> DeviceCall[GpuRef]:
        """Message for ``device.copy``."""
        return self._call("copy", partial(self._methods.copy, src, dst))

    def free(self, ref: GpuRef) -> DeviceCall[None]:
        """Message for ``device.free``."""
        return self._call("free", partial(self._methods.free, ref))

    def seal(self, ref: GpuRef) -> DeviceCall[GpuRef]:
        """Message for ``device.seal``."""
        return self._call("seal", partial(self._methods.seal, ref))

    def unseal(self, ref: GpuRef) -> DeviceCall[GpuRef]:
        """Message for ``device.unseal``."""
        return self._call("unseal", partial(self._methods.unseal, ref))

    def snapshot(
        self,
        refs: Iterable[GpuRef],
        *,
        to: MemoryMethods | None = None,
        out: Snapshot | None = None,
    ) -> DeviceCall[Snapshot]:
        """Message for ``device.snapshot``."""
        return self._call("snapshot", partial(self._methods.snapshot, refs, to=to, out=out))

    def restore(
        self, snapshot: Snapshot, *, out: Sequence[GpuRef] | None = None
    ) -> DeviceCall[list[GpuRef]]:
        """Message for ``device.restore``."""
        return self._call("restore", partial(self._methods.restore, snapshot, out=out))

    def run(
        self,
        function: Callable[..., object],
        *args: object,
        lane: str = "run",
        init: Callable[[], object] | None = None,
    ) -> DeviceCall[Any]:
        """Message for ``device.run``. Functions of other lanes wait for it, too."""
        return self._call("run", partial(self._own.run, function, *args, lane=lane, init=init))

    def replay(
        self,
        recording: Recording,
        *inputs: GpuRef,
        replace: Mapping[GpuRef, GpuRef] | None = None,
    ) -> DeviceCall[None]:
        """Message for ``recording.replay``, of one that was recorded with ``shared=True``."""
        return self._call("replay", partial(recording.replay, *inputs, replace=replace))

    def statistics(self) -> DeviceCall[DeviceStatistics]:
        """Message for ``device.statistics``."""

        async def statistics() -> DeviceStatistics:
            await trio.lowlevel.checkpoint()
            return self._own.statistics()

        return self._call("statistics", statistics, ordered=False)

    @property
    def _own(self) -> _OwnMethods:
        own: Any = self._methods
        return own  # type: ignore[no-any-return]

    @property
    def _methods(self) -> MemoryMethods:
        device = self._find_device()
        if device is None:
            raise DeviceLost(f"{self.core.name} is closed: its 'async with' block was left")
        return device

    def _call(
        self, name: str, function: Callable[[], Coroutine[Any, Any, R]], *, ordered: bool = True
    ) -> DeviceCall[R]:
        return DeviceCall(self.memory, name, ordered, function)

    # --- what facades ask for -------------------------------------------------------------

    @property
    def recorder(self) -> CallRecorder | None:
        """Object that gets the program's calls, or None."""
        return self.core.recorder

    @property
    def ports(self) -> Mapping[str, Any]:
        """The lanes that are open now, by name."""
        return self.core.ports

    def submit(self, *_op: Any, **_blocks: Any) -> NoReturn:
        """Requests are not carried out here."""
        raise AssertionError("a request is made, not carried out")
