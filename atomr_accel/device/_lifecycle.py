"""A device's life: contexts start and end, generations pass, and finally the device ends."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from .._errors import ContextPoisoned, DeviceLost
from ..actors import Directive
from ..actors.deciders import leaves
from ..lanes import HostDied, StaggeredEvent, fail_some, uninterrupted
from ._failures import is_passing, named, restarted, taken_down, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..lanes import HostHandle, Op, Port
    from ..wire import DeviceInfo
    from .core import DeviceCore
    from .parts import ServingContext


@final
@uninterrupted
class Lifecycle:
    """Decides which context takes the ops of a device, and wakes tasks that wait for it.

    A context attaches itself when its host is ready, and is detached the moment it fails.

    Attributes:
        faults: number of faults so far.
        last_fault: the last fault.
        over_how: the reason why the device is closed, if it was closed and not lost.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core: Final = core
        self.faults: int = 0
        self.last_fault: ContextPoisoned | None = None
        self._faulted: int = 0  # the generation that it has ended
        self.over_how: str = "it was stopped"
        self._failing: ServingContext | None = None
        self._opened = StaggeredEvent()
        self._end: DeviceLost | None = None
        self._untold = False  # whether the present generation is still to be reported
        self._watchers: Final[set[trio.MemorySendChannel[int]]] = set()

    @property
    def state(self) -> str:
        """``"ready"``, ``"rebuilding"`` or ``"lost"``."""
        if self._end is not None:
            return "lost"
        return "rebuilding" if self._core.serving is None else "ready"

    # --- contexts come and go ------------------------------------------------------------

    def attach(self, context: ServingContext, ports: Mapping[str, Port], info: DeviceInfo) -> None:
        """Open the gate: ``context`` takes ops from now on."""
        core = self._core
        core.serving = context
        core.ports = ports
        core.info = info
        core.reserve.settle()
        core.ask_for_times()
        if core.instruments.active:
            core.instruments("generation_ready", core, core.generation, core.startup)
        self._opened.open()

    async def opened(self) -> None:
        """Wait until the gate is opened, if no context is attached."""
        if self._end is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            self.require_open()
        await self._opened.wait()

    def require_open(self) -> None:
        """Raise unless a context is attached or may be."""
        if self._end is not None:
            raise DeviceLost(str(self._end)) from self._end.__cause__

    def release(self, context: ServingContext) -> None:
        """Close the gate of a shadow: its host is another's from now on."""
        core = self._core
        if core.serving is context:
            core.serving, core.ports = None, {}
            self._opened = StaggeredEvent()

    def detach(self, fault: ContextPoisoned) -> None:
        """Close the gate: the context has failed.

        Everything in flight gets its answer, which may take some turns of the loop.
        """
        context = self._core.serving
        if context is None:
            return
        self.faults += 1
        self.last_fault, self._faulted = fault, self._core.memory.generation
        if self._core.instruments.active:
            self._core.instruments("fault", self._core, fault)
        self.shut(context)
        self._tell_generation()
        self._answer_some(context)

    def shut(self, context: ServingContext) -> None:
        """Close the gate: the context ends, with or without a fault.

        The generation changes first, so later code cannot use a buffer of the ended context. The
        context's ports take no further answers, and fail further ops.
        """
        core = self._core
        if core.serving is context:
            core.reaper.quarantine(context.host, core.memory.owners().clear)
            core.memory.bump()
            core.durables.interrupted()
            self._untold = True
            if not self._comes_back:
                core.memory.over = f"is closed: {self.over_how}"
            self._failing, core.serving = context, None
            for port in core.ports.values():
                port.end(context.not_finished)
            core.ports = {}
            if self._end is None:
                self._opened = StaggeredEvent()

    def _answer_some(self, context: ServingContext) -> None:
        if self._failing is context and self._core.in_flight:
            fail_some(self._core.in_flight, context.not_finished)
            again = partial(self._answer_some, context)
            trio.lowlevel.current_trio_token().run_sync_soon(again)

    def forget(self, context: ServingContext) -> None:
        """A context is over, and everything that was in flight is answered."""
        if self._failing is context:
            self._failing = None

    async def verdict(self) -> None:
        """Wait until it is decided what becomes of the device, if its context is failing."""
        context, serving = self._failing, self._core.serving
        if context is None and serving is not None and serving.terminating:
            context = serving
        if context is not None:
            await context.wait_ended()

    def discard(
        self, host: HostHandle, ports: Mapping[str, Port], shadow: DeviceCore | None = None
    ) -> None:
        """End an unused host completely."""
        terminating = self._core.reaper.terminating
        host.kill()
        if host not in terminating:
            terminating.append(host)
        for port in ports.values():
            port.end(_no_host)
            port.close()
        if shadow is not None:
            while shadow.in_flight:
                fail_some(shadow.in_flight, _no_host)
            shadow.memory.abandon()
            shadow.host_calls.forget()
            shadow.lifecycle.finish()

    # --- generations pass ----------------------------------------------------------------

    def _tell_generation(self) -> None:
        self._untold, generation = False, self._core.memory.generation
        if self._core.instruments.active:
            self._core.instruments("generation_began", self._core, generation)
        for watcher in self._watchers:
            with suppress(trio.BrokenResourceError):  # the iterator was closed
                watcher.send_nowait(generation)

    def why_over(self, what: str, generation: int) -> Exception:
        """Return the error for a call or op that was unfinished when its generation ended."""
        if self.last_fault is not None and generation == self._faulted:
            return taken_down(what, self.last_fault)
        if self._end is not None:
            error = DeviceLost(f"{named(what)} did not finish: {self._end}")
            error.__cause__ = self._end.__cause__
            return error
        name = self._core.name
        if self._comes_back:
            return restarted(what, name, generation)
        return DeviceLost(f"{named(what)} did not finish: {name} is closed: {self.over_how}")

    @property
    def _comes_back(self) -> bool:
        """True if another context follows, as far as is known."""
        place = self._core.place
        return place.restarting or not place.stopping

    def renew(self) -> None:
        """Begin a new life, because the device was stopped and starts again."""
        self._core.memory.over = None
        if self._untold:
            self._tell_generation()

    @contextmanager
    def watch(self) -> Iterator[trio.MemoryReceiveChannel[int]]:
        """A channel of the generations from now on."""
        send, receive = trio.open_memory_channel[int](math.inf)
        self._watchers.add(send)
        if self._end is not None:
            send.close()
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(send)

    # --- it is over ----------------------------------------------------------------------

    def decide(self, error: BaseException, _child: str) -> Directive:
        """Return the directive for a failed context: restart it, or escalate."""
        if self._core.isolation == "thread" or not is_passing(error) or self._starts_in_vain:
            return Directive.ESCALATE
        return Directive.RESTART

    @property
    def _starts_in_vain(self) -> bool:
        core = self._core
        return core.most_failed_starts is not None and core.failed_starts >= core.most_failed_starts

    def loss(self, _name: str, cause: BaseException) -> BaseException:
        """Return the error for a device that is lost because its context failed.

        A supervisor above decides if the device is lost: see ``end``.
        """
        if isinstance(cause, DeviceLost):
            return cause
        isolation, name = self._core.isolation, self._core.name
        if isolation == "thread" and isinstance(cause, ContextPoisoned):
            why = (
                'a sticky fault poisons the whole process, so under isolation="thread" '
                'it is final; isolation="process" survives it'
            )
        elif self._starts_in_vain:
            why = f"its context did not start {self._core.failed_starts} times in a row"
        elif isolation == "process" and is_passing(cause):
            why = "its context failed more often than its restart intensity allows"
        else:
            why = "its context ended by what another one would not mend"
        error = DeviceLost(f"{name} is lost: {why}; the last failure: {told(cause)}")
        error.__cause__ = cause
        return error

    def end(self, failure: BaseException | None) -> None:
        """End the device, with a failure or without: answer waiting tasks, and free memory."""
        if self._end is None and failure is not None:
            end = next((one for one in leaves(failure) if isinstance(one, DeviceLost)), failure)
            if not isinstance(end, DeviceLost):
                end = DeviceLost(f"{self._core.name} is lost; the last failure: {told(failure)}")
                end.__cause__ = failure
            self._end = end
            self._core.memory.over = "is lost"
            if self._core.instruments.active:
                self._core.instruments("device_lost", self._core, end)
        self.close()

    def close(self) -> None:
        """Close the device: release waiting tasks, and free memory."""
        core, memory = self._core, self._core.memory
        if self._end is None:
            memory.over = f"is closed: {self.over_how}"
            self._end = DeviceLost(f"{core.name} {memory.over}")
        core.instruments.unfollow(core.instruments_changed)
        core.instruments.tell_no_more(core.tell_done)
        self._opened.open()
        for watcher in list(self._watchers):
            watcher.close()
        memory.close()
        core.give_name_back()
        core.staging.close(self._end)
        core.reserve.close()
        core.copiers.close()
        core.pinned.close(self._end)

    def finish(self) -> None:
        """End a shadow. Later calls of it raise ``DeviceLost``."""
        memory = self._core.memory
        memory.over = "was there for its warm_up, which is over"
        self._end = DeviceLost(f"{self._core.name} {memory.over}")
        self._opened.open()
        self._core.pinned.close(self._end)

    async def settle(self) -> None:
        """Wait until a device that is over has released everything, as far as possible."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._core.windows.close_guests)
                nursery.start_soon(self._core.reaper.reap_all)
            await self._core.exports.close()

    def tells_of_the_loss(self, error: BaseException) -> bool:
        """Return True if an error only says that this device is lost, besides cancellations."""
        said = [one for one in leaves(error) if not isinstance(one, trio.Cancelled)]
        lost = self._core.memory.over == "is lost"
        return bool(said) and lost and all(map(self._is_the_loss, said))

    def _is_the_loss(self, error: BaseException) -> bool:
        """Return True if an error is the device's loss, or of an op that its last fault ended."""
        fault = self._end.__cause__ if self._end is not None else None
        if isinstance(error, ContextPoisoned):
            return fault is not None and str(fault) in (str(error), str(error.__cause__))
        return isinstance(error, DeviceLost) and str(error) == str(self._end)


def _no_host(op: Op) -> HostDied:
    return HostDied(f"{op.name}: no host")
