"""Standby hosts, prepared in advance, so that a rebuild finds one.

A **warm** one has done all steps that touch no device: interpreter, imports, loading vendor
libraries. A **hot** one has opened the device, too, as its shadow: sealed memory is mapped, the
lanes in use run, and the states of ``device.run`` are made. A context of its own serves the
shadow (``DeviceCore.shadow``), until another context takes the host over.

::

    starting, loading, importing, ready                                            (warm)
    starting, loading, opening, mapping, lanes, importing, init, warming up, ready  (hot)

A **parked** one is prepared like a hot one. Then its memory is unmapped, and its process is parked,
which releases all that it has on the device: ``parking, parked``. It returns by ``restoring`` when
it is taken, is to be hot, or the device has changed. Then it is ``ready``, or parked again.

A warm one is kept in reserve next to the hot ones. It becomes hot when one of them is taken, and
takes over itself when faults follow each other faster than hosts become hot.

A standby can be taken at any step, and finishes that step. When the device uses more, or has
prepared an object, it leaves ``ready`` and returns to it later. One that fails is replaced, after
growing back-offs.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, final

import trio

from ..._errors import AccelError
from ...actors import Backoff
from ...lanes import END_SECONDS, HostDied, uninterrupted
from ...libraries.recordings.wire.messages import ForgetRecording
from ...wire import StickyFault
from ..batches._in_advance import own
from ..batches.replaying import RECORDINGS
from ._budget import NoRoomError, Room
from ._history import PreparationHistory
from ._parking import NotParkedError, Parking
from ._spare import Spare
from ._statistics import StandbyStatistics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from ...actors import ActorRef
    from ...lanes import HostHandle, Op, Port
    from ...wire import Message
    from ..batches.record import Recording
    from ..contexts._prepared import PreparedHost
    from ..core import DeviceCore
    from ._spare import Role
    from ._statistics import StandbyMode

_log = logging.getLogger("atomr_accel.device")

_RETRY: Final = Backoff(initial=1.0, base=2.0, factor=2.0, maximum=60.0)
"""Back-off before another standby is started after one that failed."""

_BREATH_SECONDS: Final = 0.1
"""Time after a rebuild in which no standby becomes hot, because the program's ops come first."""

_STEP_SECONDS: Final = 5.0
"""Time that a rebuild waits for a standby to finish its step, before it starts a host of its
own."""

_MOST_AGAIN: Final = 16
"""Largest number of plans that are prepared in advance in a host that was not hot."""

_ROOM_SECONDS: Final = 1.0
"""Time after which a standby that has not released its memory is killed."""


Taken = tuple["PreparedHost", "DeviceCore | None", bool]
"""A host, the shadow that was served there, if any, and whether it was ready."""


@final
@uninterrupted
class StandbyKeeper:
    """Keeps hosts prepared while a context is up; the next context takes one.

    Warm ones next to others are in reserve. Parked ones may take ``host_memory`` bytes of host
    memory, or any number. With ``optional`` warm ones are as good where hosts cannot be parked.
    """

    def __init__(
        self,
        core: DeviceCore,
        hot: int,
        parked: int,
        warm: int,
        warm_up: Callable[[DeviceCore, ActorRef], Awaitable[object]] | None,
        host_memory: int | None,
        *,
        optional: bool = False,
    ) -> None:
        self._core = core
        mode: StandbyMode = "hot" if hot else "parked" if parked else "warm"
        self._asks: Final = optional and mode == "parked"
        self._room: Final = Room(core, mode, host_memory, optional=self._asks)
        self._parking: Final = Parking(core)
        self._history: Final = PreparationHistory()
        self._hot: Final = hot
        self._parked: Final = parked
        self._number = hot + parked + warm
        self._kept: Final = hot + parked or warm
        self._failure: str | None = None
        self._warm_up: Final = warm_up
        self._spares: Final = self._room.spares
        self._became_ready = trio.Event()
        self._vacant = trio.Event()
        self._seconds: float | None = None
        self._used = self._died = 0
        self._gave_up = 0  # for want of descriptors, in a row
        self._not_before = -math.inf  # time from which hosts may be started again
        self._aside = 0  # blocks in which none may be started
        self._back = trio.Event()
        core.memory.sealed_changed = self.changed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep as many as are wanted, whenever there is a context."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            try:
                if self._asks:
                    await self._ask_for_parking()
                for _ in range(self._number):
                    nursery.start_soon(self._keep)
                await self._promote()
            finally:
                self._parking.close()

    async def _ask_for_parking(self) -> None:
        """Keep warm ones alone if hosts cannot be parked here."""
        await self._core.ready()  # the device comes first
        try:
            await self._parking.check()
        except (AccelError, OSError) as error:
            self._parking.close()
            self._number -= self._parked
            self._room.want_warm()
            _log.info("%s parks no standby: %s", self._core.name, error)

    # --- for the device -------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if a standby is ready."""
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
            spare.behind = True
        self._wake()

    def note(self, lane: str, message: Message) -> None:
        """Note an object that the device has prepared, such as a plan, for the next host."""
        if self._room.wanted == "warm" and not self._blocks(lane):
            return  # see ``prepare_again``
        if self._history.note(lane, message):
            self._wake()

    def note_recording(self, number: int, recording: Recording) -> None:
        """Note a recording that the device has captured, for hot standbys.

        It is not kept alive.
        """
        if self._room.wanted == "warm":
            return
        if self._history.note_recording(number, recording):
            self._wake()

    def own_recordings(self, captured: set[int]) -> None:
        """Recordings that were captured in advance are in the device's own host now."""
        for number in captured:
            recording = self._history.recording(number)
            if recording is not None:
                own(recording)
            else:  # it is gone: dropped at once
                self._core.keep(RECORDINGS.name, "recording.forget", ForgetRecording(number))
        captured.clear()

    def prepare_again(self) -> None:
        """Have a host that was not hot prepare the last host's plans, next to the program's ops.

        It prepares those that were used last, on lanes with a thread of their own.
        """
        core = self._core
        for lane, message in list(reversed(self._history.messages))[:_MOST_AGAIN]:
            port = core.ports.get(lane)
            if port is not None and self._blocks(lane):
                core.submit(port, f"{lane}: in advance", message)

    def _blocks(self, lane: str) -> bool:
        """Return True if a lane has a thread of its own."""
        known = self._core.lanes.get(lane)
        return known is not None and known[0].own_thread

    def statistics(self) -> StandbyStatistics:
        """A snapshot."""
        warm = self._room.mode == "warm"
        wanted = [spare for spare in self._best_first() if warm or spare.role != "warm"]
        parked = sum(spare.current for spare in wanted)
        ready = sum(s.step == "ready" and (warm or s.shadow is not None) for s in wanted)
        if not warm:
            ready = min(ready, self._hot + sum(spare.held for spare in wanted))
        ready = min(ready + parked, self._kept)
        degraded = ready < self._kept or self._room.short
        return StandbyStatistics(
            mode=self._room.mode,
            state=wanted[0].step if wanted else "waiting",
            kept=self._kept,
            ready=ready,
            degraded=degraded,
            problem=self._problem(degraded=degraded),
            parked=parked,
            nbytes=self._core.memory.reserved,
            host_bytes=self._room.host_bytes,
            seconds=self._seconds,
            used=self._used,
            died=self._died,
        )

    def _problem(self, *, degraded: bool) -> str | None:
        """Return the reason why fewer are ready than asked for, or a problem of those that are."""
        problems = [spare.problem for spare in self._best_first()]
        if degraded:
            problems += [self._room.why, self._failure]
        return next(filter(None, problems), None)

    async def take(self) -> Taken | None:
        """Take over the host that is farthest prepared; None if there is none."""
        for spare in self._best_first():
            prepared, ready = spare.prepared, False
            if prepared is None:
                continue
            with trio.move_on_after(_STEP_SECONDS):  # nothing that is being made is lost
                async with spare.moving:
                    was_ready = spare.parked or spare.step == "ready"
                    if not await _running(spare):
                        continue
                    async with prepared.host.quiet():
                        if spare.prepared is not None:  # it has not ended meanwhile
                            ready = was_ready
                            spare.prepared, spare.taken = None, True
                            if spare.context is not None:
                                spare.context.hand_over()
                            spare.scope.cancel()
            if not spare.taken:
                continue
            with trio.CancelScope(shield=True):
                if spare.context is not None and not await spare.context.handed_over():
                    self._core.lifecycle.discard(prepared.host, prepared.ports, spare.shadow)
                    continue
            if spare.shadow is not None:
                for name, port in list(prepared.ports.items()):
                    if self._closed_meanwhile(spare, port):
                        _end_lane(prepared, spare.shadow, name)
            self._room.be_as_wanted()
            self._room.used_at = trio.current_time()
            self._used += 1
            return prepared, spare.shadow, ready
        await trio.lowlevel.checkpoint()
        return None

    def _closed_meanwhile(self, spare: Spare, port: Port) -> bool:
        """Return True if the device has closed a lane that a host has, and perhaps reopened it."""
        known = self._core.lanes.get(port.name)
        return port.name in spare.lanes if known is None else known[1] != port.index

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

    async def make_room(self, *, descriptors: bool = False) -> bool:
        """Give up hot standbys in this generation, because the program needs their memory.

        Args:
            descriptors: give up warm ones, too, and those that start, because the program needs
                their descriptors. Others follow after a back-off, and after ``aside``.

        Returns:
            True if there may be room now: there were any, or one that had descriptors may have
            ended by itself meanwhile.
        """
        given_up = [
            spare
            for spare in self._spares
            if not spare.taken and (descriptors or (spare.shadow is not None and not spare.parked))
        ]
        if not given_up:
            return descriptors
        self._gave_up = self._gave_up + 1 if descriptors else 0
        if descriptors:
            self._not_before = trio.current_time() + _RETRY.delay(self._gave_up)
        else:
            self._room.be_warm("the program needs its memory")
        for spare in given_up:
            spare.give_up()
        for spare in given_up:
            with trio.move_on_after(END_SECONDS):
                await spare.over.wait()
        self._room.account()
        return True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Start no hosts in this block, in which the program takes what ``make_room`` gives."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            if not self._aside:
                self._back.set()
                self._back = trio.Event()

    # --- each of them ---------------------------------------------------------------------

    def tell(self) -> None:
        """Report the progress of the best standby to instruments."""
        if self._core.instruments.active:
            self._core.instruments("standby_changed", self._core, self.statistics().state)

    def _wake(self) -> None:
        """Wake the standbys to prepare more. Until then none is ready."""
        for spare in self._spares:
            if spare.step == "ready":
                spare.step = "loading" if spare.shadow is None else "mapping"
            spare.wake.set()

    def _note_ready(self, spare: Spare) -> None:
        self._seconds = spare.seconds or self._seconds
        self._failure = None
        self._became_ready.set()
        self._became_ready = trio.Event()

    def _best_first(self) -> list[Spare]:
        return sorted(self._spares, key=lambda spare: spare.rank, reverse=True)

    async def _promote(self) -> None:
        """Let as many standbys become hot as are wanted, the furthest ones first."""
        while True:
            await self._vacant.wait()
            self._vacant = trio.Event()
            await self._core.ready()
            if self._used:
                # The processor is the program's at first, and takes no part in a return.
                self._make_hot([spare for spare in self._wanting("hot") if spare.parked])
                await trio.sleep(_BREATH_SECONDS)
            if self._room.mode == "warm":
                continue
            self._make_hot(self._wanting("hot"))
            for spare in self._wanting("parked"):
                spare.role = "parked"
            for spare in self._spares:
                if spare.role != "warm" and spare.shadow is None:
                    spare.wake.set()

    def _make_hot(self, spares: list[Spare]) -> None:
        for spare in spares:
            spare.role = "hot"
            spare.promoted.set()
            spare.wake.set()

    def _wanting(self, role: Role) -> list[Spare]:
        """Return the standbys that are to have a role next, the furthest ones first."""
        number = self._hot if role == "hot" else min(self._parked, self._room.most_parked)
        missing = number - sum(spare.role == role for spare in self._spares)
        below = ("warm",) if role == "parked" else ("warm", "parked")
        others = [spare for spare in self._best_first() if spare.role in below]
        return others[: int(max(0, missing))] if missing < math.inf else others

    async def _keep(self) -> None:
        """Keep one."""
        failures = 0
        while True:
            await self._core.ready()
            while self._aside or trio.current_time() < self._not_before:
                if self._aside:
                    await self._back.wait()
                else:
                    await trio.sleep_until(self._not_before)
                await self._core.ready()
            spare = Spare(
                self._core,
                self._room,
                self._history,
                self._warm_up,
                self._note_ready,
                self._parking,
            )
            self._spares.append(spare)
            self.tell()
            self._vacant.set()
            delay = 0.0
            try:
                await spare.run()
                failures = self._gave_up = 0
            except NoRoomError as error:
                self._room.be_warm(str(error))
            except NotParkedError as error:
                self._room.park_fewer(str(error), error.most)
            except Exception as error:  # noqa: BLE001 (whatever it is, the device has a host)
                if not spare.given_up:
                    # Nothing is lost: a rebuild that comes before the next try starts its own.
                    failures += 1
                    self._died += 1
                    delay = _RETRY.delay(failures)
                    # As text, because a record that is kept would keep the frames of the error
                    # alive.
                    self._failure = told = repr(error)
                    text = "%s: no standby host: %s; trying again"
                    extra = self._core.log_fields(error)
                    _log.warning(text, self._core.name, told, extra=extra)
            finally:
                self._spares.remove(spare)
                self.tell()
                self._room.account()
            if spare.host is not None and not spare.taken:
                with trio.move_on_after(END_SECONDS):
                    await self._core.reaper.reap(spare.host)
            spare.over.set()
            await trio.sleep(delay)


async def _running(spare: Spare) -> bool:
    """Return whether a standby's process can answer; a parked one is restored."""
    if spare.prepared is None:
        return False
    try:
        return not spare.parked or await spare.restore(urgent=True)
    except (AccelError, OSError, StickyFault):
        return False  # it was killed, and its own task replaces it


def _end_lane(prepared: PreparedHost, shadow: DeviceCore, name: str) -> None:
    """End a lane that the device has closed, once all its ops here are over."""
    port = prepared.ports.pop(name, None)
    if port is not None:
        port.end(_lane_closed)
        for op in [op for op in shadow.in_flight.values() if op.port is port]:
            port.fail(op, _lane_closed)
        port.close()


def _lane_closed(op: Op) -> HostDied:
    return HostDied(f"{op.name}: its lane is closed")
