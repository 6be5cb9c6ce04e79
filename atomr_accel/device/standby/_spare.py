"""One host on standby, prepared step by step until it is taken."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, final

import trio

from ..._errors import AccelError, OutOfMemory
from ...actors import Backoff
from ...lanes import HostDied, start_host, uninterrupted
from ...libraries.recordings.wire.messages import ForgetRecording
from ...wire import Preload, StickyFault, UnmapSlabs
from .._assembly import add_parts
from ..batches._in_advance import capture_in
from ..batches.replaying import RECORDINGS
from ..contexts._prepared import PreparedHost, learn
from ..contexts.context import Context
from ._budget import NoRoomError
from ._parking import NotParkedError, host_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...actors import ActorRef
    from ...lanes import HostHandle
    from ...wire import Message
    from ..core import DeviceCore
    from ._budget import Room
    from ._history import PreparationHistory
    from ._parking import Parking

_log = logging.getLogger("atomr_accel.device")

Role = Literal["warm", "parked", "hot"]

STEPS: Final = (
    "lost",
    "starting",
    "loading",
    "opening",
    "mapping",
    "lanes",
    "importing",
    "init",
    "warming up",
    "parking",
    "restoring",
    "ready",
    "parked",
)


SETTLE: Final = Backoff(initial=1.0, base=2.0, factor=2.0, maximum=60.0)
"""Back-off before a parked one returns to follow the device, because that takes memory."""

CALM_SECONDS: Final = 2.0
"""Time after a fault in which one that is ready is not parked, because faults follow each other and
parking and restoring it would take longer than it may have."""

LONG_SECONDS: Final = 10.0
"""Time after which a ``warm_up`` that has not returned counts as a problem."""


@final
@uninterrupted
class Spare:
    """One host on standby, and its preparation.

    Attributes:
        host: the host.
        prepared: the state of its preparation, until it is taken.
        shadow: the device there, if it is hot.
        context: the context that serves the shadow.
        role: how far it should be prepared, if it has room.
        parked: whether its process is parked, so that it answers nothing.
        moving: held while it is parked, restored or taken.
        promoted: set when a parked one is to be hot.
        wake: set when it may have to prepare more.
        scope: the cancel scope of its task.
        begun: the time when it was started, until it is ready.
        seconds: the time that it took to become ready.
        lanes: its lanes that are, or were, the device's.
        left: bytes of free device memory that it has found; 0 if unknown.
        nbytes: bytes of the device's memory that it takes, unless it is parked.
        host_bytes: bytes of host memory that it takes, if it is parked.
        behind: whether the device has changed since its last update.
        noted: the device's objects that it has prepared.
        held: whether it is kept from being parked for a while.
        taken: whether it has taken over.
        given_up: whether it has ended because it was given up.
        over: set when it has released its memory and descriptors.
    """

    def __init__(
        self,
        core: DeviceCore,
        room: Room,
        history: PreparationHistory,
        warm_up: Callable[[DeviceCore, ActorRef], Awaitable[object]] | None,
        told: Callable[[Spare], None],
        parking: Parking,
    ) -> None:
        self._core = core
        self._room = room
        self._history = history
        self._warm_up: Final = warm_up
        self._told: Final = told
        self._parking: Final = parking
        self.host: HostHandle | None = None
        self.prepared: PreparedHost | None = None
        self.shadow: DeviceCore | None = None
        self.context: Context | None = None
        self.role: Role = "warm"
        self.parked = False
        self.moving: Final = trio.Lock()
        self.promoted = trio.Event()
        self._returns = 0  # in a row
        self._no_return: str | None = None
        self._step = "starting"
        self.wake = trio.Event()
        self.scope = trio.CancelScope()
        self._starting: Final = trio.CancelScope()
        self.begun: float | None = trio.current_time()
        self.seconds: float | None = None
        self.lanes: set[str] = set()
        self.left = self.nbytes = self.host_bytes = 0
        self.behind = True
        self.noted: set[tuple[str, Message]] = set()
        self.held = self.taken = self.given_up = False
        self._called_at = math.inf  # when ``warm_up`` was called, while it runs
        self._warm_up_failure: str | None = None
        self.over: Final = trio.Event()

    @property
    def problem(self) -> str | None:
        """Problem with its ``warm_up`` or with its return, or None."""
        since = trio.current_time() - self._called_at
        if since > LONG_SECONDS:
            return f"warm_up of a standby has not returned for {since:.1f} s"
        return self._no_return or self._warm_up_failure

    @property
    def step(self) -> str:
        """Present step, one of ``STEPS``."""
        return self._step

    @step.setter
    def step(self, step: str) -> None:
        self._step = step
        if self._core.standby is not None:
            self._core.standby.tell()

    @property
    def rank(self) -> tuple[int, int]:
        """Progress, to be compared with other standbys."""
        best = 0
        if self.shadow is not None:
            away = self.parked or self.step in ("parking", "restoring")
            best = 2 if away else 3 if self.begun is None else 1
        return best, STEPS.index(self.step)

    @property
    def current(self) -> bool:
        """True if it is parked, and the device has not changed since."""
        if not self.parked or self.prepared is None or self.prepared.host.ended:
            return False
        return not self.behind and not self.wake.is_set()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Start a host, and keep it prepared until it is taken.

        Raises:
            HostDied: it ended before.
            Exception: it could not be started, or prepared.
        """
        with self._starting:
            self.host = await start_host("process", self._core.sanitizer)
        if self.host is None:
            raise HostDied("the standby host was given up before it had started")
        prepared = self.prepared = PreparedHost(self.host)
        problem: BaseException | None = None
        try:
            try:
                with self.scope:
                    async with trio.open_nursery(strict_exception_groups=True) as nursery:
                        nursery.start_soon(self._watch, prepared.host)
                        assert prepared.host.output is not None
                        nursery.start_soon(prepared.host.output.run, self._core.log_fields())
                        await self._prepare(nursery)
            except BaseExceptionGroup as group:
                failures, rest = group.split(Exception)
                if rest is not None:
                    raise rest from None
                problem = failures
                while isinstance(problem, BaseExceptionGroup):
                    problem = problem.exceptions[0]
            if not self.taken:
                raise problem or HostDied("it ended")
        finally:
            problem = None
            if not self.taken:
                self.prepared, self.parked = None, False
                self.step = "lost"
                self._core.lifecycle.discard(prepared.host, prepared.ports, self.shadow)

    def give_up(self) -> None:
        """End it, also while its host starts; ``over`` is set once all it held is released."""
        self.given_up = True
        self._starting.cancel()
        if self.prepared is not None:
            self.prepared.host.kill()

    async def _watch(self, host: HostHandle) -> None:
        await host.wait_ended()
        raise HostDied(f"the standby host {host.reason or 'has ended'}")

    async def _prepare(self, nursery: trio.Nursery) -> None:
        """Prepare a host, and again when the device changes, until it is taken."""
        prepared = self.prepared
        assert prepared is not None
        while True:
            # The event that woke this may also have had it taken. All of it then has another owner.
            await trio.lowlevel.checkpoint_if_cancelled()
            if self.parked:
                await self._settle()
            wake = self.wake = trio.Event()
            returned = self.parked
            if returned and not await self._return():
                continue
            behind, self.behind = self.behind, False
            if behind:
                if self.context is None:
                    self.step = "loading"
                await prepared.load(self._core)
                await self._learn()
            if self.role == "parked" and self.shadow is None:
                self._check_parkable()
            if self.role != "warm" and self._room.mode != "warm" and self.shadow is None:
                await self._open(prepared, nursery)
                behind = True
            if self.context is not None:
                if behind:
                    await self._follow(prepared, self.context)
                elif returned and self.shadow is not None:
                    self.step = "mapping"
                    await prepared.map(self.shadow)
                await self._prepare_noted()
                await self._capture(prepared)
            elif behind:
                self.step = "importing"
                await prepared.import_modules(self._core)
            first = self.begun is not None and (self._room.wanted == "warm" or self.context)
            if first and not wake.is_set():
                await self._room.measure(self)
            if not wake.is_set():  # the device may have changed meanwhile
                if first and self.begun is not None:
                    self.seconds, self.begun = trio.current_time() - self.begun, None
                if self.role == "parked" and self.context is not None:
                    if await self._is_kept_hot(wake):
                        continue
                    await self._park(prepared)
                else:
                    self._returns = 0
                    self.step = "ready"
                self._told(self)
                await wake.wait()

    async def _is_kept_hot(self, wake: trio.Event) -> bool:
        """Wait until no fault has come for a while; return whether there is more to prepare.

        One at a time takes memory of the device meanwhile.
        """
        left = CALM_SECONDS - (trio.current_time() - self._room.used_at)
        if left > 0 and not any(spare.held for spare in self._room.spares):
            self.held = True
            self.step = "ready"
            self._told(self)
            try:
                with trio.move_on_after(left):
                    await wake.wait()
            finally:
                self.held = False
        return wake.is_set()

    def _check_parkable(self) -> None:
        """Refuse what a parked host cannot have."""
        for name, (spec, _) in self._core.lanes.items():
            if not spec.parkable:
                raise NotParkedError(f"a host with lane {name!r} cannot be parked", 0)
        if self.prepared is not None and self.prepared.info is not None and self.prepared.info.mig:
            raise NotParkedError("the room on an instance of a card (MIG) is not known", 0)

    async def _park(self, prepared: PreparedHost) -> None:
        """Park the process, which releases all that it has on the device."""
        assert prepared.info is not None
        self._check_parkable()
        host = prepared.host
        async with self.moving:
            self.step = "parking"
            try:
                await prepared.hold()
                nbytes = await self._parking.park(host, prepared.info)
            except BaseException:
                host.kill()  # nobody knows what it can do
                raise
            self.nbytes = max(self.nbytes, nbytes)
            self.host_bytes = host_bytes(host.pid or 0)
            self.parked = True
            self.step = "parked"
            self._room.account()
        self._room.check_host_memory()

    async def _settle(self) -> None:
        """Wait until the device has not changed for a while, or this is to be hot."""
        if self.role == "parked" or self._no_return is not None:
            self._returns += 1
            with trio.move_on_after(SETTLE.delay(self._returns)):
                await self.promoted.wait()

    async def _return(self) -> bool:
        """Have a parked process run again, in the background; return whether it does."""
        async with self.moving:
            if self._core.memory.affordable([self.nbytes]):
                return await self.restore()
            self._no_return = f"memory_limit leaves no room for the {self.nbytes} bytes of a host"
            self.promoted = trio.Event()
            self.wake.set()
            return False

    async def restore(self, *, urgent: bool = False) -> bool:
        """Have a parked process run again. The caller holds ``moving``.

        Args:
            urgent: whether a rebuild waits for it.

        Returns:
            Whether there was room. Otherwise it is parked as before.

        Raises:
            Exception: it is lost, and was killed.
        """
        prepared = self.prepared
        assert prepared is not None
        assert prepared.info is not None
        host = prepared.host
        self.step = "restoring"
        call = partial(self._parking.restore, host, prepared.info, self.nbytes, urgent=urgent)
        try:
            await self._core.reaper.with_room(call)
        except OutOfMemory as error:
            self._no_return = str(error)
            self.promoted = trio.Event()
            self.step = "parked"
            self.wake.set()
            return False
        except BaseException:
            host.kill()  # nobody knows what it can do
            raise
        self._no_return = None
        self.parked = False
        self._room.account()
        return True

    async def _learn(self) -> None:
        """Ask the running host what the program's functions have imported there."""
        context = self._core.context
        if context is not None and self._core.host_calls.in_use:
            with suppress(AccelError, OSError, StickyFault):  # its own context sees to that
                await learn(context.host, self._core)

    async def _open(self, prepared: PreparedHost, nursery: trio.Nursery) -> None:
        """Open the device in a host that was warm."""
        core = self._core
        self.step = "opening"
        shadow = self._shadow()
        self.left = await self._room.left()
        try:
            await prepared.open(shadow)
            await prepared.host.request(Preload([]))  # answered when all that began is done
        except (HostDied, StickyFault):
            raise
        except Exception as error:
            why = f"a second context cannot be had: {error}"
            if prepared.info is not None:  # this one is of no use for either
                raise NoRoomError(why) from error
            self._room.be_warm(why)
            return
        self.shadow = shadow
        await self._room.measure(self)
        if core.memory.over_limit:
            await core.growth.trim()
        if core.memory.over_limit:
            raise NoRoomError(
                f"its context takes {self.nbytes} bytes, {core.memory.over_limit} more than the "
                "memory_limit leaves"
            )
        self.step = "mapping"
        self.context = context = Context(shadow, prepared)
        await nursery.start(context.run)

    async def _follow(self, prepared: PreparedHost, context: Context) -> None:
        """Have all in a hot host that the device has."""
        core, shadow = self._core, self.shadow
        assert shadow is not None
        self.step = "mapping"
        await prepared.map(shadow)
        self.step = "lanes"
        await trio.lowlevel.checkpoint_if_cancelled()
        lanes = dict(core.lanes)  # which may be others by the time these have started
        for name in [name for name in prepared.ports if name in self.lanes - lanes.keys()]:
            shadow.remove_lane(name)
        self.lanes.update(lanes)
        await context.start_lanes(lanes)
        self.step = "importing"
        await prepared.import_modules(core)
        self.step = "init"
        await shadow.host_calls.repeat(core.host_calls, prepared.mapped)
        if self._warm_up is not None:
            self.step = "warming up"
            await self._rehearse(shadow, prepared, self._warm_up)
        if shadow.context is not context or context.terminating:
            raise HostDied("it failed as it was prepared")

    async def _prepare_noted(self) -> None:
        """Prepare what the device has prepared: plans, kernels."""
        shadow = self.shadow
        assert shadow is not None
        for lane, message in [one for one in self._history.messages if one not in self.noted]:
            port = shadow.ports.get(lane)
            if port is not None:
                self.noted.add((lane, message))
                with suppress(AccelError, ValueError):  # the program gets it on doing the same
                    await shadow.submit(port, f"{lane}: in advance", message).wait()
        self.noted.intersection_update(self._history.messages)

    async def _capture(self, prepared: PreparedHost) -> None:
        """Capture the recordings that the device has captured, and forget others."""
        shadow = self.shadow
        assert shadow is not None
        port = shadow.ports.get(RECORDINGS.name)
        known = self._history.numbers()
        for number in prepared.captured - known:
            prepared.captured.discard(number)
            if port is not None:
                shadow.submit(port, "recording.forget", ForgetRecording(number))
        missing = known - prepared.captured
        for number in sorted(missing):
            recording = self._history.recording(number)
            if recording is not None and port is not None:
                prepared.captured.add(number)
                with suppress(AccelError, ValueError):  # the program gets it on a replay
                    await capture_in(recording, shadow, prepared.mapped)
                recording = None
        if missing:
            await self._give_back(shadow, prepared)

    async def _rehearse(
        self,
        shadow: DeviceCore,
        prepared: PreparedHost,
        warm_up: Callable[[DeviceCore, ActorRef], Awaitable[object]],
    ) -> None:
        """Call the program's ``warm_up``, and leave none of its memory."""
        self._called_at = trio.current_time()
        try:
            await warm_up(shadow, self._ref)
            self._warm_up_failure = None
        except Exception as error:  # noqa: BLE001 (the program's)
            self._warm_up_failure = f"warm_up of a standby failed: {error!r}"
            _log.warning(
                "%s: %s",
                self._core.name,
                self._warm_up_failure,
                extra=self._core.log_fields(error),
            )
        finally:
            self._called_at = math.inf
        await self._give_back(shadow, prepared)

    async def _give_back(self, shadow: DeviceCore, prepared: PreparedHost) -> None:
        """Leave none of a shadow's own memory."""
        for op in list(shadow.in_flight.values()):
            with suppress(Exception):
                await op.wait()
        before = shadow.memory.epoch
        slabs = shadow.memory.abandon()
        shadow.host_calls.keep_states(before, prepared.mapped)
        if slabs:
            # They are off the map, so the host must unmap them, even if it is taken meanwhile.
            await prepared.host.request(UnmapSlabs(slabs), required=True)

    def _shadow(self) -> DeviceCore:
        shadow = self._core.shadow()
        add_parts(shadow, self._core.pinned.statistics().limit)
        shadow.place.supervisor = self._core.place.supervisor
        return shadow

    @property
    def _ref(self) -> ActorRef:
        cell = self._core.place.cell
        assert cell is not None  # it keeps this running
        return cell.ref
