"""Engine of a world: it forms communicators, sends them ops and reports faults.

A device is one kind of member, and a simulated rank in the tests is another. ``Membership`` makes
every decision.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import trio

from .._errors import (
    AccelError,
    ContextPoisoned,
    DeviceLost,
    LibraryMissing,
    Unsupported,
    WorldBroken,
)
from ..actors.nursery import PlainNursery
from ._blame import Unfinished, to_blame
from ._interfaces import WorldMember
from ._mail import Mail
from ._membership import (
    Broken,
    Ended,
    FormCommunicator,
    LeaveCommunicator,
    Membership,
    Settled,
    WorldOpened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._interfaces import Bootstrap, Meeting, RankPart
    from ._membership import Effect

_GRACE_SECONDS: Final = 1.0
"""Seconds for a host to report its progress. A host that works answers sooner."""

_JOINING_SECONDS: Final = 15.0
"""Seconds for ranks to join at least. A new host loads the library first, which takes seconds."""

_LOOKS: Final = 8
"""Checks of the deadline in one deadline's time: it is noticed at most an eighth late."""

_numbers: Final = itertools.count(1)

_log = logging.getLogger("atomr_accel.worlds")


_M = TypeVar("_M", bound=WorldMember)


class _Nowhere:
    """The meeting of members that have not met yet, or that met for an earlier communicator."""

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """See ``Meeting.place_of``. It is never called."""
        raise AssertionError(rank)

    def abort(self) -> None:
        """Do nothing, because the program holds no meeting."""

    async def close(self) -> None:
        """Do nothing, because the meeting has no resources."""
        await trio.lowlevel.checkpoint()


@dataclass(eq=False)
class Term:
    """An epoch in which members meet.

    Attributes:
        epoch: the number of the epoch.
        members: its members, in the order of their ranks.
        begun: the time at which they began to meet.
        number: the number of their communicator, which is unique.
        meeting: the meeting by which they found each other.
        at: the number of the next round; see ``nccl/wire/_area``.
        sent: the number of ops sent to each member. Joining counts as the first.
    """

    epoch: int
    members: tuple[int, ...]
    begun: float
    number: int = field(default_factory=lambda: next(_numbers))
    meeting: Meeting = field(default_factory=_Nowhere)
    at: int = 1
    sent: Counter[int] = field(default_factory=Counter)


@final
@dataclass(eq=False)
class CollectiveCall:
    """An op in flight, with an event for the tasks that wait for it.

    Attributes:
        name: the name of the op in messages.
        begun: the time at which it was sent.
        places: the members that take part, each with the op's place among its ops, from 1 on.
        done: an event that is set when the op has ended.
        broken: the reason if it was not done.
    """

    name: str
    begun: float
    places: dict[int, int] = field(default_factory=dict)
    done: trio.Event = field(default_factory=trio.Event)
    broken: Broken | None = None

    async def wait(self) -> None:
        """Wait until all ranks have done the op. Cancellation ends only the wait.

        Raises:
            WorldBroken: the op was not done.
        """
        await self.done.wait()
        if self.broken is not None:
            raise broken_error(f"{self.name} was not done", self.broken)


@final
class Engine(Generic[_M]):
    """Runs a world.

    ``deadline`` is in seconds, None without a limit.

    Attributes:
        membership: the members of the world, and its phase.
        term: the term of the present epoch, once its members meet.
        deadline: the deadline as given.
        mail: the values that ranks have sent each other.
    """

    def __init__(
        self,
        members: Sequence[_M],
        meet: Bootstrap[_M],
        *,
        shrink: bool = False,
        deadline: float | None = None,
    ) -> None:
        self.membership: Final = Membership(range(len(members)), shrink=shrink)
        self.term: Term | None = None
        self._members = list(members)
        self._nursery: trio.Nursery | None = None
        self._followers: dict[int, trio.CancelScope] = {}
        self._meet = meet
        self.deadline: Final = deadline
        self._calls: dict[int, CollectiveCall] = {}
        self._effects: deque[Effect] = deque()
        self._work = trio.Event()
        self._changed = trio.Event()
        self._forming = trio.CancelScope()
        self._starting = trio.CancelScope()
        self._watchers: set[trio.MemorySendChannel[int]] = set()
        self._closed = False
        self.mail: Final = Mail(self)
        self._addressees: tuple[int, ...] | None = self.members
        self._resizing: Final = trio.Lock()
        self._draining = False

    @property
    def present(self) -> tuple[_M, ...]:
        """The members of this epoch, in the order of their ranks."""
        return tuple(self._members[number] for number in self.membership.members)

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the members of this epoch."""
        return self.membership.members

    def refusal(self, what: str, members: tuple[int, ...]) -> WorldBroken | None:
        """Return the error if a call for these members can never begin, else None.

        Args:
            what: the outcome of the call, which begins the message.
            members: the members of the world at the time of the call.
        """
        now = self.membership
        if now.ended is not None:
            return broken_error(what, now.ended)
        if now.members == members:
            return None
        broken = now.broken
        if broken is not None and broken.epoch + 1 < now.epoch:
            broken = None  # the break was before the world was resized
        return WorldBroken(
            f"{what}: the world was resized; it was called for {len(members)} ranks, and now there "
            f"are {len(now.members)}",
            rank=None if broken is None else broken.rank,
            epoch=now.epoch,
        )

    def require(self, what: str, members: tuple[int, ...]) -> None:
        """Raise the error that ``refusal`` returns, if any."""
        refusal = self.refusal(what, members)
        if refusal is not None:
            raise refusal

    # --- for callers -----------------------------------------------------------------------

    async def whole(self) -> Term:
        """Wait until all members have joined."""
        await trio.lowlevel.checkpoint()
        while (term := self.whole_now()) is None:
            self.require("there is no world any more", self.members)
            await self._changed.wait()
        return term

    def whole_now(self) -> Term | None:
        """Return the term if all members have joined and ops can begin, else None."""
        if self.membership.phase != "whole" or self._draining:
            return None
        assert self.term is not None
        return self.term

    async def resize(self, members: Sequence[_M]) -> None:
        """Continue with these members, in the order of their ranks, and wait until all have joined.

        New members start first, and the world goes on meanwhile. Then the engine waits for ops in
        flight, and new calls wait. If you are cancelled until then, nothing has changed.

        Raises:
            WorldBroken: they never will join.
            DeviceLost, LibraryMissing, Unsupported, OutOfMemory: one of them is lost, or cannot
                take ops; nothing has changed.
        """
        async with self._resizing:
            await self._start(members)
            self._draining = True
            try:
                while True:
                    if self.membership.phase != "over":
                        for member in members:  # a lost member would end a healthy world
                            member.require_open()
                    if not self._calls:
                        break
                    await next(iter(self._calls.values())).done.wait()
                if self.membership.phase != "over":
                    self._replace(members)
            finally:
                self._draining = False
                self._change()
            await self.whole()

    async def _start(self, members: Sequence[_M]) -> None:
        """Wait until new members take ops, or the world has ended."""
        errors: list[AccelError] = []

        async def start(member: _M) -> None:
            try:
                await member.start()
            except AccelError as error:
                if not errors:
                    errors.append(error)
                self._starting.cancel()

        present = set(map(id, self.present))
        with trio.CancelScope() as self._starting:
            if self._closed or self.membership.phase == "over":
                return
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                for member in members:
                    if id(member) not in present:
                        nursery.start_soon(start, member)
        if errors:
            raise errors.pop()

    def _replace(self, members: Sequence[_M]) -> None:
        """Replace the world's members from the next epoch on."""
        known = {id(self._members[number]): number for number in self.membership.members}
        numbers = []
        for member in members:
            number = known.get(id(member))
            if number is None:
                number = len(self._members)
                self._members.append(member)
                if self._nursery is not None:  # else its next life begins with all
                    self._nursery.start_soon(self._follow, number, member)
            numbers.append(number)
        self._happen(self.membership.resize(numbers))
        for number in self._followers.keys() - set(numbers):
            self._followers.pop(number).cancel()

    def submit(self, term: Term, name: str, parts: Sequence[RankPart], at: int) -> CollectiveCall:
        """Send an op to all ranks that take part, without waiting.

        All members of ``term`` have joined. ``at`` is the number of the round after the op's own.
        """
        assert term is self.term
        assert self.membership.phase == "whole"
        term.at = at
        op = self.membership.begin(term.members[part.rank] for part in parts)
        call = self._calls[op] = CollectiveCall(name, trio.current_time())
        for part in parts:
            member = term.members[part.rank]
            term.sent[member] += 1
            call.places[member] = term.sent[member]
            self._members[member].collect(
                term.number, name, part, partial(self._answered, term, op, member)
            )
        return call

    @contextmanager
    def watch(self) -> Iterator[trio.MemoryReceiveChannel[int]]:
        """Return a channel of the epochs that become whole from now on."""
        send, receive = trio.open_memory_channel[int](math.inf)
        if self.membership.phase == "over":
            send.close()
        self._watchers.add(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(send)

    # --- its tasks -------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, and again when called again.

        In between, calls wait, and so do letters and watchers. Ops in flight fail.
        """
        failure: Exception | None = None
        try:
            async with PlainNursery() as nursery:
                self._nursery = nursery
                self._effects.clear()
                for number, member in enumerate(self._members):
                    nursery.start_soon(self._follow, number, member)
                if self.deadline is not None:
                    nursery.start_soon(self._watch_deadline, self.deadline)
                task_status.started()
                try:
                    while True:
                        await self._work.wait()
                        self._work = trio.Event()
                        while self._effects:
                            self._do(self._effects.popleft(), nursery)
                finally:
                    self._nursery = None  # in the block: past its end the nursery refuses tasks
        except Exception as error:
            failure = error
            raise
        finally:
            try:
                await self._leave_all(failure)
            finally:
                del failure  # its traceback has this frame in it

    async def _leave_all(self, failure: Exception | None) -> None:
        """Fail ops in flight, and have members leave."""
        why = "its actor was stopped, or restarted" if failure is None else f"it failed: {failure}"
        epoch = self.membership.epoch
        cause = WorldBroken(f"the world was interrupted: {why}", rank=None, epoch=epoch)
        cause.__cause__ = failure
        self._happen(self.membership.restart(cause))
        if self.membership.phase == "over":
            self._end_watchers()
        self._followers.clear()
        term, self.term = self.term, None
        if term is not None:
            await self._leave(term)

    def close(self) -> None:
        """The world was left: fail all calls, and end all watchers."""
        if self._closed:
            return
        self._closed = True
        self._starting.cancel()
        rank: int | None = None
        cause: AccelError = WorldBroken(
            "the world was left", rank=None, epoch=self.membership.epoch
        )
        for at, member in enumerate(self.present):
            try:
                member.require_open()
            except AccelError as error:  # its loss has ended the system in which the world is
                rank, cause = at, error
                break
        self._happen(self.membership.close(rank, cause))
        self._end_watchers()
        self._change()

    def _end_watchers(self) -> None:
        for watcher in list(self._watchers):
            watcher.close()

    async def _follow(self, number: int, member: WorldMember) -> None:
        if number not in self.membership.members:
            return  # the world was resized again before this began
        with trio.CancelScope() as self._followers[number]:
            try:
                await member.follow(
                    lambda: self._happen(self.membership.ready(number)),
                    lambda cause: self._happen(self.membership.lost(number, cause)),
                )
            except AccelError as error:  # the member is lost, or its lanes are unavailable
                self._happen(self.membership.gone(number, error))

    def _happen(self, effects: list[Effect]) -> None:
        """Apply the effects of an event: settle calls at once, and leave the rest to a task.

        This runs while answers arrive, when no op may be submitted.
        """
        changed = False
        for effect in effects:
            if isinstance(effect, Settled):
                call = self._calls.pop(effect.op)
                call.broken = effect.broken
                call.done.set()
                continue
            changed = True
            if isinstance(effect, WorldOpened):
                ranks = len(self.membership.members)
                _log.info("epoch %d of a world: %d ranks", effect.epoch, ranks)
                for watcher in list(self._watchers):
                    with suppress(trio.BrokenResourceError):  # the iterator was closed
                        watcher.send_nowait(effect.epoch)
            else:
                self._effects.append(effect)
                self._work.set()
        if changed:
            self._change()
        addressees = None if self.membership.phase == "over" else self.members
        if addressees != self._addressees:
            self._addressees = addressees
            self.mail.look()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _do(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case FormCommunicator():
                nursery.start_soon(self._form, effect)
            case LeaveCommunicator():
                self._forming.cancel()
                term, self.term = self.term, None
                if term is not None:
                    nursery.start_soon(self._leave, term)
            case Ended():
                self._starting.cancel()
                self._end_watchers()
                self._change()
            case Settled() | WorldOpened():
                raise AssertionError("these are told at once")

    async def _form(self, form: FormCommunicator) -> None:
        """Let members meet, and send each of them the op to join."""
        members = [self._members[number] for number in form.members]
        if form.epoch != self.membership.epoch:
            return
        term = self.term = Term(form.epoch, form.members, trio.current_time())
        with trio.CancelScope() as self._forming:
            try:
                meeting = await self._meet(members)
            except (ContextPoisoned, DeviceLost) as error:
                _log.debug("a device failed as ranks met: %s", error)  # its follower reports it
                return
            except (AccelError, OSError) as error:
                self._failed(form.epoch, None, error)
                return
            stale = term is not self.term or form.epoch != self.membership.epoch
            if stale or self.membership.phase != "joining":
                await meeting.close()
                return
            term.meeting = meeting
            term.sent.update(form.members)
            for rank, member in enumerate(members):
                answered = partial(self._joined, term, form.members[rank])
                member.join(term.number, rank, len(members), meeting.place_of(rank), answered)

    def _joined(self, term: Term, member: int, error: Exception | None) -> None:
        if error is None:
            self._happen(self.membership.joined(term.epoch, member))
        else:
            self._fail(term, member, error)

    def _answered(self, term: Term, op: int, member: int, error: Exception | None) -> None:
        if error is None:
            self._happen(self.membership.answered(op, member))
        else:
            self._fail(term, member, error)

    def _fail(self, term: Term, member: int, error: Exception) -> None:
        """Handle an error that a member answered with."""
        if term.epoch != self.membership.epoch:
            return
        if isinstance(error, (ContextPoisoned, DeviceLost)):
            self._happen(self.membership.lost(member, error.__cause__ or error))  # type: ignore[arg-type]
        else:
            self._failed(term.epoch, member, error)

    def _failed(self, epoch: int, member: int | None, error: Exception) -> None:
        for_good = isinstance(error, (LibraryMissing, Unsupported))
        self._happen(self.membership.failed(epoch, member, error, for_good=for_good))

    async def _leave(self, term: Term) -> None:
        """Have members leave a communicator, and release all its resources even if cancelled."""
        term.meeting.abort()
        left = trio.Event()
        waiting = set(term.sent)

        def answered(member: int) -> None:
            waiting.discard(member)
            if not waiting:
                left.set()

        for member in term.sent:  # also members that have left the world
            self._members[member].abort(term.number, partial(answered, member))
        with trio.CancelScope(shield=True):
            with trio.move_on_after(self.deadline or math.inf):
                if waiting:
                    await left.wait()
            late = TimeoutError(f"leaving a world had not ended after {self.deadline} s")
            for member in [*waiting]:  # a host that hangs would keep the meeting's resources
                self._members[member].kill("nccl.abort", late)
            await term.meeting.close()

    # --- its deadline ----------------------------------------------------------------------

    async def _watch_deadline(self, deadline: float) -> None:
        """Find the hosts that hang when an op, or joining, takes too long."""
        while True:
            await trio.sleep(deadline / _LOOKS)
            term = self.term
            if term is None:
                continue
            overdue = [
                (op, call)
                for op, call in self._under_way(term)
                if trio.current_time() - call.begun
                >= (deadline if op else max(deadline, _JOINING_SECONDS))
            ]
            if overdue:
                oldest = overdue[0][1].name
                after = trio.current_time() - overdue[0][1].begun
                why = f"{oldest} had not ended after {after:.3g} s; op_deadline is {deadline} s"
                await self._blame(term, [op for op, _ in overdue], oldest, why)

    def _under_way(self, term: Term) -> list[tuple[int, CollectiveCall]]:
        """Return the unfinished ops of a term by number, in order. Number 0 is joining."""
        if self.membership.phase == "joining":
            return [(0, CollectiveCall("joining", term.begun, dict.fromkeys(term.sent, 1)))]
        return list(self._calls.items())

    async def _blame(self, term: Term, overdue: Sequence[int], oldest: str, why: str) -> None:
        """End the hosts that hang.

        These are the hosts that do not answer, or that have not begun ops that others have begun.
        """
        begun: dict[int, int] = {}
        all_told = trio.Event()

        def answered(member: int, count: int, error: Exception | None) -> None:
            if error is not None:
                self._fail(term, member, error)
            begun[member] = count
            if len(begun) == len(term.members):
                all_told.set()

        for member in term.members:
            self._members[member].ask_begun(term.number, partial(answered, member))
        with trio.move_on_after(_GRACE_SECONDS):
            await all_told.wait()
        if term is not self.term or term.epoch != self.membership.epoch:
            return
        suspects = [each for each in term.members if each not in begun]
        if not suspects:
            unfinished = {
                op: Unfinished(call.places, self.membership.waited_for(op), joining=not op)
                for op, call in self._under_way(term)
            }
            late = [unfinished[op] for op in overdue if op in unfinished]
            if not late:  # it was done meanwhile
                return
            suspects = to_blame(late, list(unfinished.values()), begun)
        cause: Exception = TimeoutError(why)
        for member in [each for each in suspects if each in begun]:
            if self._members[member].waits_elsewhere():  # the other world finds the culprit
                suspects.remove(member)
                name = self._members[member].name
                cause = TimeoutError(f"{why}: {name} waits for a collective of another world")
        for member in suspects:
            name = self._members[member].name
            how = "does not answer" if member not in begun else "has not begun it"
            cause = TimeoutError(f"{why}: {name} {how}")
            fault = self._members[member].kill(oldest, cause)
            if fault is not None:
                self._happen(self.membership.lost(member, fault))
        self._failed(term.epoch, suspects[0] if suspects else None, cause)


def broken_error(what: str, broken: Broken) -> WorldBroken:
    """Return the error of a call that failed because its world broke or was left."""
    if isinstance(broken.cause, WorldBroken):
        interrupted = WorldBroken(f"{what}: {broken.cause}", rank=None, epoch=broken.epoch)
        interrupted.__cause__ = broken.cause.__cause__
        return interrupted
    who = "a rank" if broken.rank is None else f"rank {broken.rank} of {broken.size}"
    error = WorldBroken(
        f"{what}: {who} failed in epoch {broken.epoch}: {broken.cause}",
        rank=broken.rank,
        epoch=broken.epoch,
    )
    error.__cause__ = broken.cause
    return error
