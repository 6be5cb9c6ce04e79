"""Further hosts, prepared while there is time, so that a rebuild finds one.

A **warm** one has done all that touches no device: interpreter, imports, loading the vendor's
libraries. A **hot** one has opened the device, too, as a companion of it: sealed memory is mapped,
the lanes in use run, and the states of ``device.run`` are made. For that a context of its own
serves the companion (``DeviceCore.companion``), until another context takes the host over.

::

    starting, loading, importing, ready                                            (warm)
    starting, loading, opening, mapping, lanes, importing, init, warming up, ready  (hot)

Beside the hot ones a warm one is in reserve: it becomes hot when one is taken, and serves itself
when faults follow each other faster than hosts get hot.

From wherever it is it can be taken, and goes on with what it was doing. When the device uses more
it leaves ``ready``, and comes back. One that fails is replaced, less and less often.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

import trio

from .._errors import AccelError, StandbyWarning
from ..actors import Backoff
from ..lanes import END_SECONDS, HostDied, start_host, uninterrupted
from ..libraries.programs.wire._messages import Forget
from ..wire import StickyFault, UnmapSlabs
from ._context import Context
from ._device import Device
from ._prepared import Prepared
from ._run import HostCalls
from .batches._record import PROGRAMS
from .data._pinned import Pinned
from .interop._exports import Exports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ..actors import ActorRef
    from ..lanes import HostHandle
    from ..wire import Message
    from ._core import DeviceCore
    from .batches._record import Recording

StandbyMode = Literal["hot", "warm"]

_log = logging.getLogger("atomr_accel.device")

_RETRY: Final = Backoff(initial=1.0, base=2.0, factor=2.0, maximum=60.0)
"""When another is tried after one that could not be had."""

_BREATH_SECONDS: Final = 0.1
"""After a rebuild the program's ops come first: for so long none becomes hot."""

_STEP_SECONDS: Final = 5.0
"""Whoever needs a host waits so long for one to finish what it is doing, or starts its own."""

_MOST_NOTED: Final = 512
"""Plans and kernels of which hot ones have their own, those that were made last."""

_MOST_RECORDINGS: Final = 64
"""Recordings that hot ones capture in advance, those that were captured last."""

_MOST_AGAIN: Final = 16
"""As many of them are prepared at once in a host that was not hot."""

_ROOM_SECONDS: Final = 1.0
"""A standby that has not let go of memory after this long is killed."""

_STEPS: Final = (
    "starting",
    "loading",
    "opening",
    "mapping",
    "lanes",
    "importing",
    "init",
    "warming up",
    "ready",
)


@dataclass(frozen=True, slots=True)
class StandbyStatistics:
    """The standby hosts of a device at one moment.

    Attributes:
        mode: what is kept: ``"hot"``, or ``"warm"``, also where there is no room for a hot one.
        state: how far the best one is: ``"starting"``, ``"loading"``, ``"opening"``,
            ``"mapping"``, ``"lanes"``, ``"importing"``, ``"init"``, ``"warming up"`` or
            ``"ready"``; ``"waiting"`` if there is none, because the device is being rebuilt, the
            last one was just taken, or has failed and is tried again later.
        kept: how many are wanted.
        ready: how many are ready.
        nbytes: what they take of the device's memory, as far as the driver tells.
        seconds: how long the last one took to be ready; None before the first.
        used: how many have taken over.
        died: how many have ended before, or could not be had.
    """

    mode: StandbyMode
    state: str
    kept: int
    ready: int
    nbytes: int
    seconds: float | None
    used: int
    died: int


class _NoRoomError(Exception):
    """The limit of the device's memory has no room for another context."""


@final
class _Spare:
    """One host on standby.

    Attributes:
        host: the host.
        prepared: how far that is, until it is taken.
        companion: the device there, if it is hot.
        context: what serves that.
        hot: whether it is to be, as far as there is room.
        step: where it is, on the way of ``_STEPS``.
        wake: set when it may have to do more.
        scope: all that is done with it.
        begun: when it was started.
        lanes: those of its lanes that are, or were, the device's.
        left: bytes of the device's memory that it has found; 0 where that is not known.
        nbytes: what it takes of the device's memory.
        behind: whether the device has changed since it followed.
        noted: what it has prepared of what the device has.
        taken: whether it has taken over.
        given_up: whether that is why it has ended.
    """

    def __init__(self) -> None:
        self.host: HostHandle | None = None
        self.prepared: Prepared | None = None
        self.companion: DeviceCore | None = None
        self.context: Context | None = None
        self.hot = False
        self.step = "starting"
        self.wake = trio.Event()
        self.scope = trio.CancelScope()
        self.begun: float | None = trio.current_time()
        self.lanes: set[str] = set()
        self.left = self.nbytes = 0
        self.behind = True
        self.noted: set[tuple[str, Message]] = set()
        self.taken = self.given_up = False

    @property
    def rank(self) -> tuple[bool, int]:
        """How far it is, to be compared with others."""
        return self.companion is not None, _STEPS.index(self.step)


Taken = tuple[Prepared, "DeviceCore | None", bool]
"""A host, the companion that was served there, if any, and whether it was ready."""


@final
@uninterrupted
class Standby:
    """Keeps hosts prepared while a context is up; the next context takes one.

    Args:
        core: the device.
        mode: how far they are prepared.
        kept: how many.
        warm_up: called with the device of a hot one.
    """

    def __init__(
        self,
        core: DeviceCore,
        mode: StandbyMode,
        kept: int,
        warm_up: Callable[[Device], Awaitable[object]] | None,
    ) -> None:
        self._core = core
        self._wanted: Final = mode
        self._mode = mode
        self._kept: Final = kept
        self._warm_up: Final = warm_up
        self._spares: list[_Spare] = []
        self._noted: OrderedDict[tuple[str, Message], None] = OrderedDict()
        self._recordings: OrderedDict[int, weakref.ref[Recording]] = OrderedDict()
        self._became_ready = trio.Event()
        self._vacant = trio.Event()
        self._warned = False
        self._seconds: float | None = None
        self._used = self._died = 0
        core.memory.sealed_changed = self.changed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep as many as are wanted, whenever there is a context."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            for _ in range(self._kept + (self._wanted == "hot")):
                nursery.start_soon(self._keep)
            nursery.start_soon(self._promote)

    # --- for the device -------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether one has nothing more to do."""
        return self.statistics().ready > 0

    @property
    def hosts(self) -> list[HostHandle]:
        """The hosts, the best one first; also that in reserve."""
        return [spare.prepared.host for spare in self._best_first() if spare.prepared is not None]

    async def wait_ready(self, least: int | None = None) -> None:
        """Wait until ``least`` are ready, or else as many as are wanted."""
        await trio.lowlevel.checkpoint()
        while self.statistics().ready < (least or self._kept):
            await self._became_ready.wait()

    def changed(self) -> None:
        """The device uses more than before, or less."""
        for spare in self._spares:
            if spare.step == "ready":
                spare.step = "loading" if spare.companion is None else "mapping"
            spare.behind = True
            spare.wake.set()

    def note(self, lane: str, message: Message) -> None:
        """The device has prepared something, such as a plan, which the next host needs, too."""
        known = (lane, message) in self._noted
        self._noted[lane, message] = None
        if known:
            self._noted.move_to_end((lane, message))
            return
        if len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)
        for spare in self._spares:
            spare.wake.set()

    def note_recording(self, number: int, recording: Recording) -> None:
        """The device has captured a recording, which a hot one is to do, too.

        Args:
            number: what the host knows it by.
            recording: it is not kept alive.
        """
        if self._wanted == "warm":
            return
        known = number in self._recordings
        self._recordings[number] = weakref.ref(recording)
        self._recordings.move_to_end(number)
        if known:
            return
        if len(self._recordings) > _MOST_RECORDINGS:
            self._recordings.popitem(last=False)
        for spare in self._spares:
            spare.wake.set()

    def own_recordings(self, captured: set[int]) -> None:
        """Recordings that were captured in advance are in the device's own host now."""
        for number in captured:
            recording = self._recording(number)
            if recording is not None:
                recording.was_captured()
            else:  # it is gone: dropped at once
                self._core.keep(PROGRAMS.name, "program.forget", Forget(number))
        captured.clear()

    def _recording(self, number: int) -> Recording | None:
        known = self._recordings.get(number)
        recording = None if known is None else known()
        if recording is None:
            self._recordings.pop(number, None)
        return recording

    def prepare_again(self) -> None:
        """Have a host that was not hot prepare what the last one had, beside the program's ops.

        That is, on lanes with a thread of their own, what was used last.
        """
        core = self._core
        for lane, message in list(reversed(self._noted))[:_MOST_AGAIN]:
            port = core.ports.get(lane)
            if port is not None and core.lanes[lane][0].blocks:
                core.submit(port, f"{lane}: in advance", message)

    def statistics(self) -> StandbyStatistics:
        """A snapshot."""
        warm = self._mode == "warm"
        wanted = [spare for spare in self._best_first() if warm or spare.hot]
        ready = [s for s in wanted if s.step == "ready" and (warm or s.companion is not None)]
        return StandbyStatistics(
            mode=self._mode,
            state=wanted[0].step if wanted else "waiting",
            kept=self._kept,
            ready=min(self._kept, len(ready)),
            nbytes=self._core.memory.reserved,
            seconds=self._seconds,
            used=self._used,
            died=self._died,
        )

    async def take(self) -> Taken | None:
        """Take over the host that is farthest prepared; None if there is none."""
        for spare in self._best_first():
            prepared, ready = spare.prepared, False
            if prepared is None:
                continue
            with trio.move_on_after(_STEP_SECONDS):  # nothing that is being made is lost
                async with prepared.host.quiet():
                    if spare.prepared is not None:  # it has not ended meanwhile
                        ready = spare.step == "ready"
                        spare.prepared, spare.taken = None, True
                        if spare.context is not None:
                            spare.context.hand_over()
                        spare.scope.cancel()
            if not spare.taken:
                continue
            with trio.CancelScope(shield=True):
                if spare.context is not None and not await spare.context.handed_over():
                    self._core.lifecycle.discard(prepared, spare.companion)
                    continue
            if spare.companion is not None:
                for name in spare.lanes - self._core.lanes.keys():
                    _end_lane(prepared, spare.companion, name)
            self._mode = self._wanted
            self._used += 1
            return prepared, spare.companion, ready
        await trio.lowlevel.checkpoint()
        return None

    async def unmap(self, slabs: Iterable[int]) -> None:
        """Have slabs unmapped that were given up: memory is short."""
        slabs = set(slabs)
        for spare in list(self._spares):
            prepared = spare.prepared
            if prepared is not None and not prepared.mapped.isdisjoint(slabs):
                with trio.move_on_after(_ROOM_SECONDS) as scope:
                    with suppress(AccelError, OSError, StickyFault):
                        await prepared.unmap(slabs)
                if scope.cancelled_caught:
                    prepared.host.kill()

    async def make_room(self) -> bool:
        """Keep no hot ones in this generation; whether that has freed memory."""
        hosts = []
        for spare in self._spares:
            if spare.companion is not None and spare.prepared is not None:
                spare.given_up = True
                hosts.append(spare.prepared.host)
        if not hosts:
            return False
        self._be_warm("the program needs its memory")
        for host in hosts:
            host.kill()
        for host in hosts:
            with trio.move_on_after(END_SECONDS):
                await host.wait_ended()
        self._account()
        return True

    # --- each of them ---------------------------------------------------------------------

    def _best_first(self) -> list[_Spare]:
        return sorted(self._spares, key=lambda spare: spare.rank, reverse=True)

    async def _promote(self) -> None:
        """Have as many become hot as are wanted, those that are farthest."""
        while True:
            await self._vacant.wait()
            self._vacant = trio.Event()
            await self._core.ready()
            if self._used:
                await trio.sleep(_BREATH_SECONDS)
            if self._mode == "warm":
                continue
            wanting = self._kept - sum(spare.hot for spare in self._spares)
            others = [spare for spare in self._best_first() if not spare.hot]
            for spare in others[: max(0, wanting)]:
                spare.hot = True
            for spare in self._spares:
                if spare.hot and spare.companion is None:
                    spare.wake.set()

    async def _keep(self) -> None:
        """Keep one."""
        failures = 0
        while True:
            await self._core.ready()
            spare = _Spare()
            self._spares.append(spare)
            self._vacant.set()
            delay = 0.0
            try:
                await self._keep_one(spare)
                failures = 0
            except _NoRoomError as error:
                self._be_warm(str(error))
            except Exception as error:  # noqa: BLE001 (whatever it is, the device has a host)
                if not spare.given_up:
                    # Nothing is lost: a rebuild that comes before the next try starts its own.
                    failures += 1
                    self._died += 1
                    delay = _RETRY.delay(failures)
                    # As text: a record that is kept would keep all that the error's frames have.
                    told = repr(error)
                    _log.warning("%s: no standby host: %s; trying again", self._core.name, told)
            finally:
                self._spares.remove(spare)
                self._account()
            if spare.host is not None and not spare.taken:
                with trio.move_on_after(END_SECONDS):
                    await self._core.reaper.reap(spare.host)
            await trio.sleep(delay)

    @trio.lowlevel.enable_ki_protection
    async def _keep_one(self, spare: _Spare) -> None:
        """Start a host, and keep it prepared until it is taken.

        Raises:
            HostDied: it ended before.
            Exception: it could not be started, or prepared.
        """
        spare.host = await start_host("process")
        prepared = spare.prepared = Prepared(spare.host)
        problem: BaseException | None = None
        try:
            try:
                with spare.scope:
                    async with trio.open_nursery(strict_exception_groups=True) as nursery:
                        nursery.start_soon(self._watch, prepared.host)
                        await self._prepare(spare, nursery)
            except BaseExceptionGroup as group:
                failures, rest = group.split(Exception)
                if rest is not None:
                    raise rest from None
                problem = failures
                while isinstance(problem, BaseExceptionGroup):
                    problem = problem.exceptions[0]
            if not spare.taken:
                raise problem or HostDied("it ended")
        finally:
            problem = None
            if not spare.taken:
                spare.prepared = None
                self._core.lifecycle.discard(prepared, spare.companion)

    async def _watch(self, host: HostHandle) -> None:
        await host.wait_ended()
        raise HostDied(f"the standby host {host.reason or 'has ended'}")

    async def _prepare(self, spare: _Spare, nursery: trio.Nursery) -> None:
        """Prepare a host, and again when the device changes, until it is taken."""
        prepared = spare.prepared
        assert prepared is not None
        while True:
            wake = spare.wake = trio.Event()
            behind, spare.behind = spare.behind, False
            if behind:
                if spare.context is None:
                    spare.step = "loading"
                await prepared.load(self._core)
                await self._learn()
            if spare.hot and self._mode == "hot" and spare.companion is None:
                await self._open(spare, prepared, nursery)
                behind = True
            if spare.context is not None:
                if behind:
                    await self._follow(spare, prepared, spare.context)
                await self._prepare_noted(spare)
                await self._capture(spare, prepared)
            elif behind:
                spare.step = "importing"
                await prepared.import_modules(self._core)
            if not wake.is_set():
                if spare.begun is not None and (self._wanted == "warm" or spare.context):
                    await self._measure(spare)
                    self._seconds = trio.current_time() - spare.begun
                    spare.begun = None
                spare.step = "ready"
                self._became_ready.set()
                self._became_ready = trio.Event()
                await wake.wait()

    async def _learn(self) -> None:
        """Ask the running host what the program's functions have imported there."""
        context = self._core.context
        if context is not None and self._core.host_calls.in_use:
            with suppress(AccelError, OSError, StickyFault):  # its own context sees to that
                await context.prepared.learn(self._core)

    async def _open(self, spare: _Spare, prepared: Prepared, nursery: trio.Nursery) -> None:
        """Open the device in a host that was warm."""
        core = self._core
        spare.step = "opening"
        companion = self._companion()
        spare.left = await self._left()
        try:
            await prepared.open(companion)
            await self._measure(spare)  # which also waits for what goes on beside
        except (HostDied, StickyFault):
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is: one context there is)
            self._be_warm(f"a second context cannot be had: {error}")
            return
        spare.companion = companion
        if core.memory.over_limit:
            await core.growth.trim()
        if core.memory.over_limit:
            raise _NoRoomError(
                f"its context takes {spare.nbytes} bytes, {core.memory.over_limit} more than the "
                "memory_limit leaves"
            )
        spare.step = "mapping"
        spare.context = context = Context(companion, prepared)
        await nursery.start(context.run)

    async def _follow(self, spare: _Spare, prepared: Prepared, context: Context) -> None:
        """Have all in a hot host that the device has."""
        core, companion = self._core, spare.companion
        assert companion is not None
        spare.step = "mapping"
        await prepared.map(companion)
        spare.step = "lanes"
        for name in [name for name in prepared.ports if name in spare.lanes - core.lanes.keys()]:
            companion.remove_lane(name)
        spare.lanes.update(core.lanes)
        await context.start_lanes(core)
        spare.step = "importing"
        await prepared.import_modules(core)
        spare.step = "init"
        await companion.host_calls.repeat(core.host_calls, prepared.mapped)
        if self._warm_up is not None:
            spare.step = "warming up"
            await self._rehearse(companion, prepared, self._warm_up)
        if companion.context is not context or context.terminating:
            raise HostDied("it failed as it was prepared")

    async def _prepare_noted(self, spare: _Spare) -> None:
        """Prepare what the device has prepared: plans, kernels."""
        companion = spare.companion
        assert companion is not None
        for lane, message in [one for one in self._noted if one not in spare.noted]:
            port = companion.ports.get(lane)
            if port is not None:
                spare.noted.add((lane, message))
                with suppress(AccelError, ValueError):  # the program is told when it does the same
                    await companion.submit(port, f"{lane}: in advance", message).wait()
        spare.noted.intersection_update(self._noted)

    async def _capture(self, spare: _Spare, prepared: Prepared) -> None:
        """Capture what the device has captured, and forget what it has forgotten."""
        companion = spare.companion
        assert companion is not None
        port = companion.ports.get(PROGRAMS.name)
        known = {number for number in list(self._recordings) if self._recording(number) is not None}
        for number in prepared.captured - known:
            prepared.captured.discard(number)
            if port is not None:
                companion.submit(port, "program.forget", Forget(number))
        missing = known - prepared.captured
        for number in sorted(missing):
            recording = self._recording(number)
            if recording is not None and port is not None:
                prepared.captured.add(number)
                with suppress(AccelError, ValueError):  # the program is told when it replays it
                    await recording.capture_in(companion, prepared.mapped)
                recording = None
        if missing:
            await self._give_back(companion, prepared)

    async def _rehearse(
        self,
        companion: DeviceCore,
        prepared: Prepared,
        warm_up: Callable[[Device], Awaitable[object]],
    ) -> None:
        """Call the program's ``warm_up``, and leave none of its memory."""
        try:
            await warm_up(Device(companion, self._ref))
        except Exception as error:  # noqa: BLE001 (the program's)
            _log.warning("%s: warm_up of a standby failed: %s", self._core.name, repr(error))
        await self._give_back(companion, prepared)

    async def _give_back(self, companion: DeviceCore, prepared: Prepared) -> None:
        """Leave none of a companion's own memory."""
        for op in list(companion.in_flight.values()):
            with suppress(Exception):
                await op.wait()
        before = companion.memory.epoch
        slabs = companion.memory.abandon()
        companion.host_calls.keep_states(before, prepared.mapped)
        if slabs:
            await prepared.host.request(UnmapSlabs(slabs))

    def _companion(self) -> DeviceCore:
        companion = self._core.companion()
        companion.pinned = Pinned(companion, self._core.pinned.statistics().limit)
        companion.exports = Exports(companion)
        companion.host_calls = HostCalls(companion)
        companion.place.supervisor = self._core.place.supervisor
        return companion

    @property
    def _ref(self) -> ActorRef:
        cell = self._core.place.cell
        assert cell is not None  # it keeps this running
        return cell.ref

    def _be_warm(self, why: str) -> None:
        """There is no room for hot ones: keep warm ones, and say so once."""
        self._mode = "warm"
        if not self._warned:
            self._warned = True
            told = StandbyWarning(f"{self._core.name} keeps a warm standby, not a hot one: {why}")
            try:
                warnings.warn(told, stacklevel=2)
            except StandbyWarning:  # the program wants errors, and this is a task of its own
                _log.warning("%s", told)

    async def _left(self) -> int:
        """Bytes of the device's memory that are free, and those that are the program's."""
        context = self._core.context
        with suppress(AccelError, OSError, StickyFault):  # its own context sees to that
            if context is not None and (free := await context.prepared.free_memory()):
                return free + self._core.memory.capacity
        return 0

    async def _measure(self, spare: _Spare) -> None:
        """Note what a hot one has taken of the device's memory."""
        if spare.left and (left := await self._left()):
            spare.nbytes = max(0, spare.left - left)
        self._account()

    def _account(self) -> None:
        """Count what contexts of standbys take against the limit of the device's memory."""
        self._core.memory.reserved = sum(
            spare.nbytes
            for spare in self._spares
            if spare.prepared is not None and not spare.given_up
        )


def _end_lane(prepared: Prepared, companion: DeviceCore, name: str) -> None:
    """End a lane that the device has closed, and that nobody runs here any more."""
    port = prepared.ports.pop(name, None)
    if port is not None:
        port.end()
        for op in [op for op in companion.in_flight.values() if op.port is port]:
            port.fail(op, lambda op: HostDied(f"{op.name}: its lane is closed"))
        port.close()
