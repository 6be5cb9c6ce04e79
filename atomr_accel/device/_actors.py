"""The actors of a device: itself, and one for each of its libraries.

::

    device-0               the device; its failure is that it is lost
    ├── context            one life is one generation and one host; ends with a fault
    │   ├── memory, blas   its lanes
    ├── standby            further hosts, prepared
    ├── pinned             page-locked memory, and a node for each recording that lives
    ├── recording-1, ...
    └── blas, dnn, ...     the libraries: they carry out what others ask of them, and outlast
                           a restart of the device by its supervisor, so that requests wait for it

The device answers the requests of all libraries, and those for its own methods. Programs that hold
the device itself call its methods, which go straight to the lanes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, final

import trio

from ..actors import Actor, Message, RestartType, UnhandledMessage
from ..actors.messages import side_by_side
from ..actors.part import Annex, Part, start_part
from ..libraries.registry import catalogue
from ..ops import Pending, Request, perform, require_home, result, submit
from ._failures import is_passing
from ._tree_node import library_of
from .calls.device_call import DeviceCall
from .contexts.context import Context

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .core import DeviceCore

T = TypeVar("T")


class _Turn:
    """A request's place in the line of those that wait before their submission."""

    __slots__ = ("before", "over")

    def __init__(self, before: _Turn | None) -> None:
        self.before = before
        self.over = trio.Event()

    async def wait(self) -> None:
        while self.before is not None:
            await self.before.over.wait()
            self.before = self.before.before  # callers that have given up have left their places


class _RequestActor(Actor):
    """An actor that carries out requests side by side, in their order.

    What a request raises is the asker's, and no failure of the actor.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._last: _Turn | None = None
        self._cell.check_messages(self._check)

    def _check(self, message: Message[Any]) -> None:
        """Raise, in the sender, for a message that this actor cannot carry out."""
        raise NotImplementedError

    @side_by_side(Request)
    def execute(self, request: Request[T]) -> Coroutine[Any, Any, T]:
        """Submit a request, at once if it need not wait."""
        if self._last is None or (self._last.before is None and self._last.over.is_set()):
            self._last = None
            try:
                return result(*submit(self._core, request, self._core.first_try))
            except Pending:
                pass
            except Exception as error:  # noqa: BLE001 (the asker's)
                return _fail(error)
        self._last = turn = _Turn(self._last)
        return self._execute(request, turn)

    async def _execute(self, request: Request[T], turn: _Turn) -> T:
        try:
            await turn.wait()
            return await perform(self._core, request, turn.over.set)
        finally:
            turn.over.set()


@final
class DeviceActor(_RequestActor):
    """A device: starts its context, and again after each fault. It answers all its requests.

    The core and all that programs hold of the device stay the same when it is itself started
    again, after it was lost.
    """

    def __init__(self, core: DeviceCore) -> None:
        super().__init__(core)
        core.place.add_device(self._cell)
        self._cell.at_end = self._ended

    async def started(self) -> None:
        """Bring up the first context of this life."""
        core, cell = self._core, self._cell
        if cell.restarts:
            core.lifecycle.renew()
        # First, so that they are there when the context is: it lets all go on who wait.
        await self._start_libraries()
        context = Part(cell, "context", "Context", partial(_run_context, core))
        core.place.add_context(context)
        await start_part(context)
        core.place.supervisor = cell.supervisor
        if core.standby is not None:
            await start_part(Part(cell, "standby", "Standby", core.standby.run))
        core.place.add_pinned(core.pinned.statistics)

    def _check(self, message: Message[Any]) -> None:
        if not isinstance(message, (Request, DeviceCall)):
            raise UnhandledMessage(
                f"{self.ref.path} answers what device.requests makes, such as "
                f"device.requests.blas.gemm(a, b), not a {type(message).__qualname__}",
                path=self.ref.path,
            )
        require_home(message.name, message.home, self._core.memory)

    @side_by_side(DeviceCall)
    def call(self, call: DeviceCall[T]) -> Coroutine[Any, Any, T]:
        """Call a method of the device, in order with the requests if buffers are concerned."""
        if not call.ordered:
            return call.function()
        self._last = turn = _Turn(self._last)
        return self._call(call, turn)

    async def _call(self, call: DeviceCall[T], turn: _Turn) -> T:
        try:
            await turn.wait()
            return await call.function()
        finally:
            turn.over.set()

    async def _start_libraries(self) -> None:
        """Start those that do not run: in the first life all, later those that were stopped."""
        core, place = self._core, self._core.place
        nursery = self.system.root._nursery
        assert nursery is not None
        if place.annex is None:
            annex = Annex(self._cell)
            await nursery.start(annex.run, name=f"{core.name} (libraries)")
            place.annex = annex
        for name in catalogue().facades:
            if name not in place.libraries or place.libraries[name].stopped:
                place.libraries[name] = await place.annex.spawn(
                    LibraryActor,
                    (core, name),
                    {},
                    name=name,
                    restart=RestartType.PERMANENT,
                    grace=5.0,
                    significant=False,
                    mailbox=None,
                    supervision=None,
                )

    def _ended(self, failure: BaseException | None) -> None:
        # Nothing is awaited at an actor's end, so a task sees to it that nothing is left.
        if self._core.place.annex is not None:
            self._core.place.annex.end()
        self._core.place.end_parts()
        self._core.lifecycle.end(failure)
        nursery = self.system.root._nursery
        assert nursery is not None
        nursery.start_soon(self._core.lifecycle.settle, name=f"{self._core.name} (settling)")


async def _run_context(core: DeviceCore, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await Context(core).run(task_status=task_status)
    except Exception as error:
        # A device that is being closed needs no other context. Nothing is hidden by this:
        # whatever was in flight has had the fault for its answer.
        if not (core.place.stopping and is_passing(error)):
            raise


@final
class LibraryActor(_RequestActor):
    """A library: carries out the requests it is sent."""

    def __init__(self, core: DeviceCore, name: str) -> None:
        super().__init__(core)
        self._name = name
        core.place.add_library(name, self._cell)

    def _check(self, message: Message[Any]) -> None:
        if not isinstance(message, Request):
            raise UnhandledMessage(
                f"{self.ref.path} answers requests of device.{self._name}, not a "
                f"{type(message).__qualname__}",
                path=self.ref.path,
            )
        require_home(message.name, message.home, self._core.memory)
        library = library_of(message)
        if library != self._name:
            whose = "none of the libraries" if library is None else f"device.{library}"
            where = "device.ref" if library is None else f"device.{library}.ref"
            raise TypeError(
                f"{message.name} is a request of {whose}, and was sent to {self.ref.path}, which "
                f"carries out those of device.{self._name}; send it to {where}"
            )


async def _fail(error: Exception) -> Any:
    await trio.lowlevel.checkpoint()
    try:
        raise error
    finally:
        del error  # the traceback has this frame in it
