"""The actors of a device: itself, and one for each of its libraries.

::

    gpu-0                  the device; its failure is that it is lost
    ├── context            one life is one generation and one host; ends with a fault
    │   ├── memory, blas   its lanes
    ├── standby            further hosts, prepared
    └── blas, dnn, ...     the libraries: they carry out what others ask of them

Programs with the device itself call its methods, which go straight to the lanes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, final

import trio

from ..actors import Actor
from ..actors.messages import side_by_side
from ..actors.part import Part, start_part
from ..libraries.registry import catalogue
from ..ops import Pending, Request, perform, result, submit
from ._failures import is_passing
from ._tree_node import library_of
from .contexts.context import Context

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .core import DeviceCore

T = TypeVar("T")


@final
class DeviceActor(Actor):
    """A device: starts its context, and again after each fault.

    The core and all that programs hold of the device stay the same when it is itself started
    again, after it was lost.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        core.place.add_device(self._cell)
        self._cell.at_end = self._ended

    async def started(self) -> None:
        """Bring up the first context of this life."""
        core, cell = self._core, self._cell
        if cell.restarts:
            core.lifecycle.renew()
        # First, so that they are there when the context is: it lets all go on who wait.
        for name in catalogue().facades:
            core.place.libraries[name] = await self.spawn(LibraryActor, core, name, name=name)
        core.place.supervisor = cell.supervisor
        context = Part(cell, "context", "Context", partial(_run_context, core))
        core.place.add_context(context)
        await start_part(context)
        if core.standby is not None:
            await start_part(Part(cell, "standby", "Standby", core.standby.run))

    def _ended(self, failure: BaseException | None) -> None:
        # Nothing is awaited at an actor's end, so a task sees to it that nothing is left.
        self._core.lifecycle.end(failure)
        nursery = self.system._root._nursery
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


@final
class LibraryActor(Actor):
    """A library: carries out the requests it is sent, side by side, in their order.

    What a request raises is the asker's, and no failure of the library.
    """

    def __init__(self, core: DeviceCore, name: str) -> None:
        self._core = core
        self._name = name
        self._last: _Turn | None = None
        core.place.add_library(name, self._cell)

    @side_by_side(Request)
    def execute(self, request: Request[T]) -> Coroutine[Any, Any, T]:
        """Submit a request, at once if it need not wait."""
        library = library_of(request)
        if library != self._name:
            return _fail(self._not_ours(request.name, library))
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

    def _not_ours(self, request: str, library: str | None) -> TypeError:
        whose = "none of the libraries" if library is None else f"device.{library}"
        where = "" if library is None else f"; send it to device.{library}.ref"
        return TypeError(
            f"{request} is a request of {whose}, and was sent to {self.ref.path}, which carries "
            f"out those of device.{self._name}{where}"
        )

    async def _execute(self, request: Request[T], turn: _Turn) -> T:
        try:
            await turn.wait()
            return await perform(self._core, request, turn.over.set)
        finally:
            turn.over.set()


async def _fail(error: Exception) -> Any:
    await trio.lowlevel.checkpoint()
    try:
        raise error
    finally:
        del error  # the traceback has this frame in it
