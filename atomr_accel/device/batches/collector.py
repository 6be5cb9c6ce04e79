"""Common code of batches and recordings: calls that are collected instead of awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ..._errors import Unsupported
from ...lanes import uninterrupted
from ...libraries.nvrtc.kernel import Kernel, launching
from ...libraries.nvrtc.launching import LaunchWish
from ...libraries.registry import catalogue
from ...ops import (
    STAGED,
    Collected,
    Preparing,
    Request,
    TemplatePreparer,
    needs_staging,
    on_copies,
    require_made_on,
)
from ..calls._proxy import FOR_FACADES, Proxy
from ..data.arrays import Arrays, copying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from ...arrays import GpuRef
    from ...lanes import Port
    from ...libraries.nvrtc.kernel import Argument
    from ...libraries.nvrtc.launching import Dim
    from ...memory import Block
    from ...ops import (
        CallRecorder,
        CallTemplates,
        Facade,
        HostObjects,
        LaneSpec,
        Workspaces,
        WorkspaceSet,
    )
    from ...wire import Message
    from ..core import DeviceCore

T = TypeVar("T")

_FOR_FACADES: Final = {
    *FOR_FACADES,
    *dir(TemplatePreparer),
    *(
        "called",
        "collect",
        "depth",
        "in_part",
        "inputs_bound",
        "late",
        "lane",
        "note_unawaited",
        "number",
        "placed",
        "provide",
        "put_off",
        "take",
        "when_placed",
    ),
}
"""Attributes for facades and requests, hidden from programs; ``perform`` is for both."""


class CollectingDevice(Protocol):
    """A device, which executes what batches and recordings have collected."""

    core: DeviceCore
    call_templates: Any

    async def run(
        self,
        function: Callable[..., object],
        *args: object,
        lane: str,
        init: Callable[[], object] | None,
    ) -> Any:
        """Call a function in the host."""

    async def _upload(self, array: np.ndarray[Any, Any], ref: GpuRef) -> None:
        """Copy an array to a buffer that a batch has made."""

    async def _download(self, ref: GpuRef, host: np.ndarray[Any, Any]) -> None:
        """Copy any view into an array."""


@uninterrupted
class _SharedLibrary:
    """A library of a collector, made from the device's at its first use.

    It is an attribute of the collector from then on. A ``__getattr__`` would slow down each access
    to any attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, collector: Any, owner: Any = None) -> Any:
        if collector is None:
            return self
        facade = getattr(collector.made_on, self._name).on(collector)
        if not collector._ended:  # a later use raises the error that explains it
            setattr(collector, self._name, facade)
        return facade


class Collector(Preparing, Arrays[Collected], Proxy[Collected]):
    """The device as facades see it while ops are collected rather than awaited.

    It has every library of the device as an attribute, whose methods return their results at
    once.
    """

    call_mode: Final = Collected
    _hidden = frozenset(name for name in _FOR_FACADES if not name.startswith("_")) - {"perform"}

    def __init__(self, device: CollectingDevice) -> None:
        super().__init__(device.core)
        self.made_on = device
        self.call_templates: CallTemplates = device.call_templates
        self.recorder: CallRecorder | None = self.core.recorder
        self.ports: dict[str, Any] = dict(self.core.ports)
        self._done: list[Callable[[], None]] = []
        self.scratch: dict[Workspaces, WorkspaceSet] = {}
        self._preparing = False  # a request, which may have others performed first
        self._ended = False

    def _drop_libraries(self) -> None:
        """Break the reference cycle, so that its objects are freed with it at once."""
        self._ended = True
        for name in vars(self).keys() & catalogue().facades.keys():
            delattr(self, name)

    @property
    def home(self) -> Collector:  # type: ignore[override] # as an attribute it would be a cycle
        """Executor of the requests it collects: itself."""
        return self

    def copy(self, src: GpuRef, dst: GpuRef | None = None) -> GpuRef:
        """Copy a buffer on the device. Arguments and errors are those of ``device.copy``.

        Both buffers must be on this device.
        """
        return self._call(copying, self, (src, dst), {})

    def _call(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """A call that is offered here and not by ``facade``, which may be of the device."""
        if self.recorder is not None:
            return self.recorder.collected(make, facade, args, kwargs, self)
        return self.collect(make, facade, args, kwargs)

    def when_placed(self, call: Callable[[], None]) -> None:
        """Call back once all that was collected so far has its place in the program's order."""
        call()

    def collect(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Carry out a call at once; its result gets its content later."""
        try:
            return self._add_request(make(facade, *args, **kwargs))
        except STAGED:
            if not needs_staging(args, kwargs):
                raise  # it is in something that an argument holds
        return self._add_request(on_copies(make, facade, args, kwargs))

    def perform(self, request: Request[T]) -> T:
        """Take a request into the batch or recording.

        Args:
            request: a request made by ``device.requests``.

        Returns:
            The request's result: buffers that get their content later.

        Raises:
            Unsupported: only the device can know the result.
        """
        if not isinstance(request, Request):
            raise TypeError(
                f"perform takes a request, as device.requests makes them, not {request!r}"
            )
        return self._add_request(request)

    def _add_request(self, request: Request[T]) -> T:
        asked, self._preparing = not self._preparing, True
        try:
            submission = request.prepare(self)
        finally:
            self._preparing = not asked
        if submission.finish is not None or (asked and submission.answers):
            raise Unsupported(
                f"{request.name} waits for the device's answer, so it cannot be in a batch or a "
                "recording; await it before"
            )
        result: Any = submission.result
        steps = [step for step in submission.steps(request, self) if step[1].message is not None]
        if steps:
            if submission.sent is not None:
                submission.sent()
            for each, made in steps:
                port = self.ports.get(each.lane.name, each.lane)
                self.submit(port, each.name, made.message, made.reads, made.writes)
            if submission.done is not None:
                self._done.append(submission.done)
        if submission.placed is not None:
            self.when_placed(submission.placed)
        return result  # type: ignore[no-any-return]

    @property
    def host_objects(self) -> HostObjects:
        """Keeper of host objects: the device's, because ops are executed there."""
        return self.core

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """An uninitialised buffer, for a result or as scratch memory."""
        raise NotImplementedError

    def submit(
        self,
        port: Port | LaneSpec,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> None:
        """Take an op into the batch or recording."""
        raise NotImplementedError

    def launch(
        self,
        kernel: Kernel[Any],
        grid: Dim | None,
        block: Dim,
        *args: Argument,
        shared: int = 0,
        elements: Dim | None = None,
        cluster: Dim | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Launch a kernel in the block. Arguments and errors are those of ``kernel.launch``."""
        made: object = kernel
        if type(made) is not Kernel or made.home is not self.core:
            require_made_on(made, self.core)
            raise TypeError(f"launch takes a kernel, of device.nvrtc.compile, not {made!r}")
        wish: dict[str, Any] = {}
        if not (  # spelled out: this is a hot path
            type(shared) is int
            and not shared
            and elements is cluster is priority is None
            and cooperative is programmatic is False
        ):
            given = shared, elements, cluster, cooperative, programmatic, priority
            wish = LaunchWish(*given).asked()
        self._call(launching, kernel, (grid, block, *args), wish)


offered: Final[set[str]] = set()
"""The libraries that collectors have as attributes."""


def offer_library(name: str) -> None:
    """Give collectors an attribute for a library."""
    offered.add(name)
    setattr(Collector, name, _SharedLibrary(name))
