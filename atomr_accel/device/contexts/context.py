"""The context actor: one incarnation of a device, one generation, one host.

Its lanes are tasks in its nursery, so they live and die together, as in a one_for_all supervisor.
Every end of a context ends its host too, and the supervisor then starts another.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import trio

from ..._errors import AccelError, ContextPoisoned, DeviceUnavailable, KernelHung
from ...actors.deciders import leaves
from ...lanes import (
    HostDied,
    StaggeredEvent,
    describe_exit,
    fail_some,
    first_error,
    start_host,
    uninterrupted,
)
from ...libraries.digests.lane import DIGESTS
from ...wire import Preload, Probe, StickyFault
from .._failures import is_short, lacks_descriptors, named, short_of, taken_down
from ..core import MEMORY_LANE, Startup
from ._prepared import PreparedHost
from ._reporting import fault_report, likeliest, suspect_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...actors.part import Part
    from ...lanes import HostHandle, Op, Port
    from ...ops import LaneSpec
    from ...wire import DeviceInfo, Fault
    from ..core import DeviceCore

_LAUNCH_TIMEOUT: Final = 702
"""The driver's status for a kernel that its own watchdog ended."""

_ASSERTION: Final = "Assertion `"
"""Text in the line that the driver writes for each thread whose ``assert`` has failed."""

_WATCH_DIVISOR: Final = 8
"""A hung op is noticed within an eighth of the deadline after it."""


_PROMPT_SECONDS: Final = 1.0
"""Time within which an idle host answers."""


_log = logging.getLogger("atomr_accel.device")


@final
class _StartingLane:
    """A lane that is being started.

    Attributes:
        done: set when it has started or failed.
        error: the reason why it does not start, if the context goes on without it.
    """

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None


@final
@uninterrupted
class Context:
    """Runs one host from its start to its end, or until another context takes it over.

    Args:
        core: the device, or a shadow that prepares a standby.
        prepared: its host, if it has one.

    Attributes:
        prepared: its host.
    """

    prepared: PreparedHost

    def __init__(self, core: DeviceCore, prepared: PreparedHost | None = None) -> None:
        self._core = core
        if prepared is not None:
            self.prepared = prepared
        self._shadow: DeviceCore | None = None
        self._opening = trio.Lock()
        self._starts: dict[str, _StartingLane] = {}
        self._handed_over = self._over = False
        self._generation: Final = core.memory.generation
        self._fault: ContextPoisoned | None = None
        self._found: Fault | None = None
        self._suspect: tuple[Op | None, bool] = (None, False)
        self._dead = trio.Event()
        self._ended = StaggeredEvent()
        self._nursery: trio.Nursery

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring the context up, serve, and end with the fault that ended it."""
        core = self._core
        if core.failed_starts and core.start_backoff is not None:
            await trio.sleep(core.start_backoff.delay(core.failed_starts + 1))
        core.failed_starts += 1  # until this one is up
        self._begun = trio.current_time()
        core.reserve.use()
        if self._core.original is None:
            self.prepared = await self._take_standby() or PreparedHost(await self._start_host())
        self.host.reserve = core.reserve
        failures: ExceptionGroup[Any] | None = None
        up = False
        try:
            try:
                # A group, also for programs that have told trio to raise single errors bare.
                async with trio.open_nursery(strict_exception_groups=True) as self._nursery:
                    for host in self._core.reaper.terminating:
                        self._nursery.start_soon(self._core.reaper.reap, host)
                    if self.host.output is not None:
                        fields = core.log_fields()
                        self._nursery.start_soon(self.host.output.run, fields)
                    self._nursery.start_soon(self._watch_host)
                    self._nursery.start_soon(self._end_when_dead)
                    for port in self.prepared.ports.values():
                        self._run_port(port)
                    info = await self._bring_up()
                    self._attach(info)
                    self._nursery.start_soon(core.growth.keep_unmapping, self)
                    self._nursery.start_soon(core.pinned.keep_unmapping, self)
                    if self._core.op_deadline is not None:
                        self._nursery.start_soon(self._watch, self._core.op_deadline)
                    up = True
                    core.failed_starts = 0
                    task_status.started()
            except BaseExceptionGroup as group:
                failures, rest = group.split(Exception)
                if rest is not None:
                    # Cancelled, or interrupted; that it failed too no longer matters.
                    raise rest from None
            if failures is not None:
                code = None
                if self._fault is None and failures.subgroup(HostDied):
                    # Its exit code tells best why it died, so let it finish dying.
                    code = await self.host.close(terminating=True)
                raise self._conclude(failures, code, up=up)
        finally:
            if self._handed_over and failures is None:
                self._core.lifecycle.release(self)
            else:
                self._handed_over = False
                await self._end()
            self._shadow = None
            self._over = True
            core.growth.end_unmapping()
            self._ended.open()

    async def _start_host(self) -> HostHandle:
        """Start a host, also if standbys have the last descriptors."""
        core = self._core
        start = partial(start_host, core.isolation, core.sanitizer, core.reserve)
        try:
            return await start()
        except OSError as error:
            if core.standby is None or not lacks_descriptors(error):
                raise
            with core.standby.aside():
                if not await core.standby.make_room(descriptors=True):
                    raise
                return await start()

    async def _end(self) -> None:
        """End the host completely."""
        if self.host.sanitizer is not None:
            await self.host.finish()
        # Tearing down a GPU's context takes the kernel a while; the next host need not
        # wait for that, and touches nothing that this one can still write to.
        self.host.kill()
        self._core.reaper.terminating.append(self.host)
        self._core.lifecycle.shut(self)
        for port in self.prepared.ports.values():
            port.end(self.not_finished)
            port.close()
        self._core.reserve.fill()
        # Also what no fault has answered: the program's other tasks get their turns, however
        # much it is. No later context begins before that, so no op of it waits for these.
        while self._core.in_flight:
            fail_some(self._core.in_flight, self.not_finished)
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._core.lifecycle.forget(self)

    async def _take_standby(self) -> PreparedHost | None:
        """The host that is farthest prepared, if there is one and it answers."""
        standby = self._core.standby
        while standby is not None and (taken := await standby.take()) is not None:
            prepared: PreparedHost = taken[0]
            _, shadow, ready = taken
            good = False
            try:
                if ready:  # it has nothing to do, so it answers at once
                    with trio.move_on_after(_PROMPT_SECONDS):
                        await prepared.host.request(Preload([]))
                        good = True
                else:
                    good = prepared.host.alive
            except (AccelError, OSError):
                pass  # the reason why it is not taken
            finally:
                if not good:
                    self._core.lifecycle.discard(prepared.host, prepared.ports, shadow)
            if good:
                if shadow is not None:
                    self._core.take_over(shadow, prepared.ports)
                self._shadow = shadow
                return prepared
        return None

    def _attach(self, info: DeviceInfo) -> None:
        """Attach to the device, because the host has passed its check."""
        core = self._core
        hot = self._shadow is not None
        if self._shadow is not None:
            core.host_calls.take_over(self._shadow.host_calls, self.prepared.ports)
            if core.standby is not None:
                core.standby.own_recordings(self.prepared.captured)
            self._shadow = None
        core.lifecycle.attach(self, self.prepared.ports, info)
        if not hot and core.standby is not None:
            core.standby.prepare_again()

    def hand_over(self) -> None:
        """End as soon as this is cancelled, but for the host, with all it is doing."""
        if not self.terminating and not self._over:
            self._handed_over = True
            for port in self.prepared.ports.values():
                port.hand_over()

    async def handed_over(self) -> bool:
        """Wait until this has ended; whether its host is another's then."""
        await self._ended.wait()
        return self._handed_over

    @property
    def host(self) -> HostHandle:
        """The host."""
        return self.prepared.host

    async def _watch_host(self) -> None:
        """The context ends with its host, and the host with its context."""
        try:
            await self.host.wait_ended()
            self.report_dead()
        except trio.Cancelled:
            # Its answers are not needed any more. If it was ending, its exit code gives the reason,
            # and so does the report of its sanitizer.
            if not (self.terminating or self._handed_over or self.host.sanitizer):
                self.host.kill()
            raise

    def _conclude(self, failures: ExceptionGroup[Any], code: int | None, *, up: bool) -> Exception:
        """Return the one error that explains why the context ended."""
        # An op keeps its buffers, so an ended context must not keep the op.
        (op, certain), self._suspect = self._suspect, (None, False)
        if self._fault is not None:
            return self._fault
        # One that only means that the host is gone comes last: another has the cause.
        errors = [each for each in leaves(failures) if isinstance(each, Exception)]
        errors.sort(key=lambda error: isinstance(error, HostDied))
        for error in errors:
            if not isinstance(error, (AccelError, StickyFault, OSError, MemoryError)):
                # Nothing that happens to devices: show all of it.
                return failures if len(errors) > 1 else error
        first = errors[0]
        name, starting = self._core.name, self.prepared.starting
        where = _starting(starting) if starting else "opening the context"
        if isinstance(first, (HostDied, StickyFault)) and starting:
            crashed = isinstance(first, HostDied) and code != -signal.SIGKILL
            crashed = crashed or self.host.reason is not None
            if len(starting) == 1:
                self._core.blame(starting[0], crashed=crashed)
            elif crashed:
                self._core.starts_lanes_serially = True
        if isinstance(first, StickyFault):
            return self._poison(first.status, first.status_name, str(first), where)
        if isinstance(first, HostDied):
            how = self.host.reason or describe_exit(code)
            if up:
                told = f"the host of {name} {how}"
                if starting:
                    return self._poison(code or 0, how, told, where)
                named_op = "idle" if op is None else op.name
                return self._poison(code or 0, how, told, named_op, op, certain=certain)
            return DeviceUnavailable(
                f"the host of {name} {how} while it started" + (f" ({where})" if starting else "")
            )
        if up:
            return self._poison(0, type(first).__name__, str(first), "idle")
        return first

    def _poison(
        self,
        status: int,
        status_name: str,
        message: str,
        op: str,
        suspect: Op | None = None,
        *,
        certain: bool = False,
    ) -> ContextPoisoned:
        """Note the fault, once, and have the device refuse everything of this generation.

        ``op`` names the op, or other work, at which the fault was seen, and ``suspect`` is that op.
        ``certain`` means that it is known to be the cause.

        Returns:
            The fault that was noted, now or before.
        """
        if self._fault is None:
            generation = self._generation
            last = self._last_words()
            said = first_error(last) or next((line for line in last if _ASSERTION in line), None)
            if said is not None:
                message = f"{message}: {said}"
            when = "while idle" if op == "idle" else f"at {named(op)}"
            self._fault = ContextPoisoned(
                f"generation {generation} of {self._core.name} is gone: {message} (seen {when})",
                generation=generation,
                status=status,
                status_name=status_name,
                op=op,
            )
            if last:
                self._fault.add_note("\n  ".join(("the host's standard error ended with:", *last)))
            self._report(self._fault, suspect, certain=certain, output=last)
            self._core.lifecycle.detach(self._fault)
        return self._fault

    def _report(
        self, fault: ContextPoisoned, op: Op | None, *, certain: bool, output: list[str]
    ) -> None:
        """Give a fault its report, while all ops are still in flight."""
        fault.report = fault_report(
            self._core,
            self.prepared.ports,
            self.host.box,
            generation=fault.generation,
            status=fault.status,
            status_name=fault.status_name,
            message=str(fault),
            op=op,
            certain=certain,
            output=output,
        )

    def _last_words(self) -> list[str]:
        """Report the host's output so far, and return the last lines of its standard error."""
        output = self.host.output
        if output is None:
            return []
        output.drain()
        return [*output.last]

    async def _watch(self, deadline: float) -> None:
        """End the host when an op hangs.

        This is the only way to end a kernel that never finishes.
        """
        interval = deadline / _WATCH_DIVISOR
        running = 0.0
        while True:
            begun = trio.current_time()
            await trio.sleep(interval)
            # If this comes late, the program was stopped or busy, and the host may have been
            # stopped, too. That time does not count for the op.
            running += min(trio.current_time() - begun, 2 * interval)
            core = self._core
            overdue = [
                op
                for name, port in self.prepared.ports.items()
                if (op := port.overdue(running, deadline)) and core.lanes[name][0].watched
            ]
            if not overdue:
                continue
            # Lanes share streams, so others may only be waiting behind the oldest of them.
            hung = min(overdue, key=lambda op: op.seq)
            self.hung(
                hung.name,
                f"{hung.name} had not finished after {deadline} s, the device's op_deadline",
                hung,
                certain=len(overdue) == 1 or not core.capabilities.asynchronous,
            )
            return

    def hung(
        self, op: str, message: str, suspect: Op | None = None, *, certain: bool = False
    ) -> ContextPoisoned:
        """Kill the host, because an op hangs, and end the context with a fault at once.

        ``certain`` means that the op itself hangs, rather than waits for another one. For
        an op of another device there is no ``suspect``.

        Returns:
            The fault that ends the context: this one, or an earlier one.
        """
        if self._fault is None:
            last = self._last_words()
            self._fault = KernelHung(
                f"generation {self._generation} of {self._core.name} is gone: {message}",
                generation=self._generation,
                status=_LAUNCH_TIMEOUT,
                status_name="CUDA_ERROR_LAUNCH_TIMEOUT",
                op=op,
            )
            self._report(self._fault, suspect, certain=certain, output=last)
        self.host.kill()
        self._core.lifecycle.detach(self._fault)
        self.report_dead()
        return self._fault

    # --- bringing up -------------------------------------------------------------------

    async def _bring_up(self) -> DeviceInfo:
        core, prepared = self._core, self.prepared
        begun = self._begun
        info = await prepared.open(core)
        opened = trio.current_time()
        mapped = await prepared.map(core)
        remapped = trio.current_time()
        await self.start_lanes(core.lanes)
        pattern = os.urandom(256)
        probe = core.submit(prepared.ports[MEMORY_LANE], "probe", Probe(pattern))
        if await probe.wait() != pattern:
            raise DeviceUnavailable(f"{core.name} does not give back what is written to it")
        await core.durables.verify(prepared.ports)
        core.starts_lanes_serially = False
        up = trio.current_time()
        core.startup = Startup(
            total=up - begun,
            open=opened - begun,
            remap=remapped - opened,
            remapped_bytes=mapped,
            lanes=up - remapped,
        )
        return info

    async def start_lanes(self, lanes: Mapping[str, tuple[LaneSpec, int]]) -> None:
        """Start the lanes that a device has in use, and end earlier ones of the same names.

        If a lane does not start, the device continues without it, and its next user gets the error.

        Args:
            lanes: the lanes with their numbers, by name.
        """
        ports = self.prepared.ports
        wanted = dict(lanes)
        async with self._opening:
            for name, (_, number) in wanted.items():
                if name in ports and ports[name].index != number:
                    self._core.remove_lane(name)
            wanted.setdefault(MEMORY_LANE, (self._core.memory_lane, -1))
            missing = [spec for name, (spec, _) in wanted.items() if name not in ports]
            failed = await self._start_some(missing)
        core = self._core
        for name, error in failed.items():
            if name == MEMORY_LANE or (name == DIGESTS.name and core.durables.required):
                raise error
            text, extra = "%s: lane %r does not start: %s", core.log_fields(error, lane=name)
            _log.warning(text, core.name, name, repr(error), extra=extra)
            core.drop_lane(name)

    async def open_lane(self, spec: LaneSpec) -> Port | None:
        """Start a lane; return None if the context has ended, or another caller's start failed.

        The context's own nursery starts it, so a cancelled caller does not force the host to be
        killed during a long start.

        Raises:
            ContextPoisoned: this very start has ended the context.
            Exception: the error that the host raised.
        """
        start = self._starts.get(spec.name)
        mine = start is None
        if start is None:
            start = self._starts[spec.name] = _StartingLane()
            try:
                self._nursery.start_soon(self._open_lane, spec, start)
            except RuntimeError:  # the context has just ended, and takes no more tasks
                self._starts.pop(spec.name)
                start.done.set()
                await self.wait_ended()
                return None
        await start.done.wait()
        if start.error is not None and mine:
            raise start.error
        if self.terminating:
            await self.wait_ended()
            if spec.name in self.prepared.starting and self._fault is not None:
                raise taken_down(f"starting lane {spec.name!r}", self._fault)
        return self._core.ports.get(spec.name)

    async def wait_opening(self, name: str) -> None:
        """Wait until a lane is not being started any more. Its caller may be gone."""
        start = self._starts.get(name)
        if start is not None:
            await start.done.wait()

    async def _open_lane(self, spec: LaneSpec, start: _StartingLane) -> None:
        try:
            async with self._opening:
                if spec.name not in self.prepared.ports:
                    for error in (await self._start_some([spec])).values():
                        start.error = short_of(error, f"lane {spec.name!r} of {self._core.name}")
        except (trio.Cancelled, HostDied):
            self.report_dead()
            raise
        except StickyFault as fault:
            self._core.blame(spec.name, crashed=False)
            where = f"starting lane {spec.name!r}"
            self._poison(fault.status, fault.status_name, str(fault), where)
            self.report_dead()
        finally:
            self._starts.pop(spec.name)
            start.done.set()

    async def _start_some(self, specs: list[LaneSpec]) -> dict[str, Exception]:
        """Start lanes, and those again that found no memory or descriptors once there may be."""
        core = self._core
        failed = await self.prepared.start_lanes(core, specs)
        for make_room in (core.reaper.make_room, partial(self._give_up_standbys, failed)):
            short = [spec for spec in specs if is_short(failed.get(spec.name))]
            with core.standby.aside() if core.standby is not None and short else nullcontext():
                if short and await make_room():
                    for spec in short:
                        del failed[spec.name]
                    failed |= await self.prepared.start_lanes(core, short)
        for spec in specs:
            if spec.name not in failed:
                self._run_port(self.prepared.ports[spec.name])
                self._core.crashes.pop(spec.name, None)
        return failed

    async def _give_up_standbys(self, failed: Mapping[str, Exception]) -> bool:
        """Have standbys release what lanes lack; return whether there were any."""
        standby = self._core.standby
        descriptors = any(map(lacks_descriptors, failed.values()))
        return standby is not None and await standby.make_room(descriptors=descriptors)

    def _run_port(self, port: Port) -> None:
        self._core.ask_for_times([port])
        part = self._core.place.of_lane(port)
        name = f"{self._core.name} lane {port.name}"
        self._nursery.start_soon(self._run_lane, port, part, name=name)

    async def _run_lane(self, port: Port, part: Part | None) -> None:
        try:
            await port.run(self._on_fault)
        finally:
            ended = self.prepared.ports.get(port.name) is port  # or the lane was closed
            if ended and not self._handed_over:
                self._core.reserve.returned(1)
            if part is not None:
                part.end()
        if ended:
            self.report_dead()

    def remove_lane(self, name: str) -> None:
        """End a lane that is not used any more."""
        self.prepared.remove_lane(name)

    def _on_fault(self, fault: Fault) -> None:
        if self.host.sanitizer is None:
            self._note_fault(fault)
        else:
            self._found = self._found or fault
        self.report_dead()

    def _take_last_answers(self) -> None:
        """Take the answers that the host has still sent: ops that are done are no suspects."""
        for port in [*self.prepared.ports.values()]:
            port.take_last_answers()

    def _note_fault(self, fault: Fault) -> None:
        """Note a fault that the host has reported."""
        self._take_last_answers()
        in_flight = self._core.in_flight
        suspect = likeliest([in_flight[seq] for seq in fault.suspects if seq in in_flight])
        op = "idle" if suspect is None else suspect.name
        # Where ops are executed one by one, the one that fails is the one.
        alone = len(in_flight) == 1 or not self._core.capabilities.asynchronous
        certain = suspect is not None and alone
        self._poison(fault.status, fault.status_name, fault.message, op, suspect, certain=certain)

    def report_dead(self) -> None:
        """End the context, because its host is gone."""
        self._dead.set()

    def fail(self, op: Op) -> None:
        """End the context with a fault, because an op failed that has no waiting caller."""
        error = op.error
        told = f"{op.name} failed: {error}"
        self._poison(0, type(error).__name__, told, op.name, op, certain=True)
        self.report_dead()

    def not_finished(self, op: Op) -> Exception:
        """The error for an op that was in flight at the end, or is submitted after it."""
        if self._fault is not None:
            return taken_down(op.name, self._fault, op.seq)
        return self._core.lifecycle.why_over(op.name, self._generation)

    async def wait_ended(self) -> None:
        """Wait until the context is over, once it was reported dead."""
        await self._ended.wait()

    @property
    def terminating(self) -> bool:
        """True if the context was reported dead."""
        return self._dead.is_set()

    async def _end_when_dead(self) -> None:
        await self._dead.wait()
        # Before later ones are sent to a host that is gone.
        self._take_last_answers()
        self._suspect = suspect_of(self._core, self.host.box)
        if self._found is not None:
            await self.host.finish()
            self._note_fault(self._found)
        raise self._fault or HostDied(f"the host of {self._core.name} is gone")


def _starting(lanes: tuple[str, ...]) -> str:
    plural = "s" if len(lanes) > 1 else ""
    return f"starting lane{plural} {', '.join(map(repr, lanes))}"
