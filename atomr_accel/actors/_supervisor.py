"""Supervisors: the tasks that carry out what `_supervision` decides."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, final

import trio

from ._errors import ActorStopped, ChildExited, ChildStopped, NoSuchChild, SupervisionFailed
from ._policy import AutoShutdown, Backoff, ChildSpec, Intensity, RestartType, Strategy, Supervision
from ._supervision import (
    Action,
    Child,
    ChildState,
    Escalate,
    FailureOutcome,
    Finished,
    Raise,
    Removed,
    ReportFailure,
    StartChild,
    Stop,
    SupervisionMachine,
    SupervisorState,
    Wake,
)
from .blocks import opens
from .deciders import Decider, Directive, judge, leaves, restart_always
from .logs import fields
from .nursery import PlainNursery
from .util import NoPublicConstructor

_log = logging.getLogger("atomr_accel.actors")


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """One child of a supervisor, at one moment.

    Attributes:
        name: the child's name.
        state: the state of its life.
        restart: when it is restarted.
        significant: whether its end can end the supervisor.
        restarts: number of times that it was started again.
        last_failure: its last failure in one line, also where a restart has dealt with it.
        overdue: true if it was cancelled more than its grace ago and has not left.
    """

    name: str
    state: ChildState
    restart: RestartType
    significant: bool
    restarts: int
    last_failure: str | None
    overdue: bool


@dataclass(frozen=True, slots=True)
class SupervisorStatistics:
    """A supervisor at one moment.

    Attributes:
        name: the supervisor's name.
        state: the state of its life.
        strategy: the children that a failure restarts.
        children: in the order in which they were started; those gone for good are not in it.
        restarts: restarts so far; that of a whole group counts once.
        restarts_in_window: restarts that the intensity counts at present.
        failures: children's failures so far, whatever became of them.
    """

    name: str
    state: SupervisorState
    strategy: Strategy
    children: tuple[ChildStatistics, ...]
    restarts: int
    restarts_in_window: int
    failures: int


class ChildObserver(Protocol):
    """Receiver of the events of a supervisor's children: a parent in the tree of actors."""

    def child_starting(self, name: str, cause: BaseException | None) -> None:
        """A child is about to be started, on account of a failure if it is a restart."""

    def child_stopping(self, name: str, *, restarting: bool) -> None:
        """A child was cancelled."""

    def child_exited(self, name: str, failure: BaseException | None) -> bool:
        """A child's task has ended; what follows is still open.

        Returns:
            True if the child failed before it was stopped.
        """

    def child_removed(self, name: str) -> None:
        """A child is gone for good."""

    def children_failed(self, *, unprompted: bool) -> None:
        """A failure of the children will be raised, where they live."""

    @property
    def path(self) -> str:
        """Its place in the tree, which paths of its children begin with."""

    @property
    def stopping(self) -> bool:
        """True if the supervisor, or a node above it, is being stopped."""


class _ChildSlot:
    """The running side of one child."""

    __slots__ = ("failure", "gone", "leave_by", "not_started", "scope", "spec", "starter", "value")

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.scope: trio.CancelScope | None = None
        self.value: Any = None
        # Who waits for the first start to be complete or to have failed, and why it did.
        self.starter: trio.Event | None = trio.Event()
        self.not_started: BaseException | None = None
        # Who waits for the child to be gone, and how it failed on its way.
        self.gone: trio.Event | None = None
        self.failure: BaseException | None = None
        # When its grace ends, once it is being stopped; inf when that has been reported.
        self.leave_by: float | None = None


class _TaskStatus:
    """Object that a child's ``run`` gets as ``task_status``."""

    __slots__ = ("_scope", "_slot", "_supervisor", "called")

    def __init__(self, supervisor: Supervisor, slot: _ChildSlot, scope: trio.CancelScope) -> None:
        self._supervisor = supervisor
        self._slot = slot
        self._scope = scope
        self.called = False

    @trio.lowlevel.enable_ki_protection
    def started(self, value: Any = None) -> None:
        name = self._slot.spec.name
        if self.called:
            raise RuntimeError(
                f"child {name!r} called task_status.started() twice; it is to be called once "
                "each time run is called"
            )
        if self._slot.scope is not self._scope:
            raise RuntimeError(
                f"child {name!r} called task_status.started() after its run had ended"
            )
        self.called = True
        self._supervisor._child_started(self._slot, value)


@final
class Supervisor(metaclass=NoPublicConstructor):
    """Starts children, and starts them again as its strategy says when they fail.

    `open_supervisor` makes one. Its children are tasks in its nursery, each in its own
    cancel scope, which is shielded from those around the supervisor. A cancellation from
    outside reaches the body of the ``async with``. When the body has left, the children
    are stopped in reverse order, as at any other end.
    """

    _made_by: ClassVar[str] = "open_supervisor(name)"

    def __init__(
        self,
        name: str,
        nursery: trio.Nursery,
        supervision: Supervision,
        family: ChildObserver | None = None,
    ) -> None:
        self._name = name
        self._nursery = nursery
        self._machine = SupervisionMachine(supervision)
        self._escalation = supervision.escalation
        self._family = family
        self._slots: dict[str, _ChildSlot] = {}
        self._stopped = trio.Event()
        # One task sleeps until the next moment of interest; there is none without one.
        self._alarm: trio.CancelScope | None = None
        self._wake_at = math.inf

    def __repr__(self) -> str:
        return f"<Supervisor {self._name!r}: {self._machine.state.value}>"

    @property
    def name(self) -> str:
        """The name given to `open_supervisor`."""
        return self._name

    # What moves the machine on and carries out its actions is protected from Ctrl-C, which
    # must not fall between the two.

    @trio.lowlevel.enable_ki_protection
    async def start_child(self, spec: ChildSpec) -> Any:
        """Start a child and wait until it has started.

        If you are cancelled meanwhile, so is the child, and you leave when it has, as
        with `trio.Nursery.start`. Under ``ONE_FOR_ALL`` and ``REST_FOR_ONE`` a child that
        is added during a restart of the group starts after it; a child must not wait for
        that before it has itself started.

        Args:
            spec: what to start, under a name that no other child has.

        Returns:
            What the child passed to ``task_status.started``.

        Raises:
            NameTaken: there is a child of that name.
            SupervisorStopped: the supervisor is stopping or has stopped.
            ChildStopped: the child was stopped before it had started.
            BaseException: what the child raised before it had started. That does not
                count as a failure to restart from; the child is not kept.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._wait_started(self._begin(spec))

    def _begin(self, spec: ChildSpec) -> _ChildSlot:
        actions = self._machine.add(spec, trio.current_time())
        slot = self._slots[spec.name] = _ChildSlot(spec)
        self._perform(actions)
        return slot

    @trio.lowlevel.enable_ki_protection
    async def _wait_started(self, slot: _ChildSlot) -> Any:
        assert slot.starter is not None
        try:
            await slot.starter.wait()
        except KeyboardInterrupt:
            await self._take_back(slot)
            raise
        except trio.Cancelled:
            # It may even have started, the news crossing with our cancellation. Whoever is
            # cancelled has not started a child: stop it, and leave when it has left.
            await self._take_back(slot)
            failure = slot.failure if slot.not_started is None else slot.not_started
            if failure is not None and not isinstance(failure, ChildStopped):
                raise failure  # noqa: B904 (the Cancelled is its context, not its cause)
            raise
        else:
            if slot.not_started is not None:
                raise slot.not_started
            return slot.value
        finally:
            # The tracebacks have this frame in them.
            failure = slot.starter = slot.value = slot.not_started = slot.failure = None

    async def _take_back(self, slot: _ChildSlot) -> None:
        if self._slots.get(slot.spec.name) is slot:
            gone = self._stop(slot)
            with trio.CancelScope(shield=True):
                await gone.wait()

    @trio.lowlevel.enable_ki_protection
    async def stop_child(self, name: str) -> None:
        """Stop a child for good, and wait until it has gone.

        If you are cancelled meanwhile, the child still stops.

        Raises:
            NoSuchChild: no child has this name, or the child had ended.
            BaseException: what the child raised while it was leaving.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        slot = self._slots.get(name)
        if slot is None:
            raise NoSuchChild(
                f"{self._name} has no child {name!r}; its children: "
                f"{', '.join(self._slots) or 'none'}"
            )
        await self._stop(slot).wait()
        try:
            if slot.failure is not None:
                raise slot.failure
        finally:
            # Its traceback has this frame in it, and the slot has the failure.
            del slot

    def statistics(self) -> SupervisorStatistics:
        """The supervisor and its children at this moment."""
        machine = self._machine
        return SupervisorStatistics(
            name=self._name,
            state=machine.state,
            strategy=machine.strategy,
            children=tuple(self._child_statistics(child) for child in machine.children.values()),
            restarts=machine.restarts,
            restarts_in_window=machine.restarts_in_window(trio.current_time()),
            failures=machine.failures,
        )

    def _child_statistics(self, child: Child) -> ChildStatistics:
        return ChildStatistics(
            name=child.spec.name,
            state=child.state,
            restart=child.spec.restart,
            significant=child.spec.significant,
            restarts=child.restarts,
            last_failure=child.last_failure,
            overdue=self._slots[child.spec.name].leave_by == math.inf,
        )

    # --- events for the machine

    def _child_started(self, slot: _ChildSlot, value: Any) -> None:
        actions = self._machine.started(slot.spec.name, trio.current_time())
        if slot.starter is not None and slot.leave_by is None:
            slot.value = value
            slot.starter.set()
            slot.starter = None
        self._perform(actions)

    def _stop(self, slot: _ChildSlot) -> trio.Event:
        if slot.gone is None:
            slot.gone = trio.Event()
        self._perform(self._machine.stop(slot.spec.name, trio.current_time()))
        return slot.gone

    # --- for the tree of actors

    def _state_of(self, name: str) -> ChildState:
        child = self._machine.children.get(name)
        return ChildState.ENDED if child is None else child.state

    @property
    def _is_stopping(self) -> bool:
        return self._machine.state is not SupervisorState.RUNNING

    def _resumes(self, name: str, failure: Exception) -> bool:
        """Return True if an actor keeps its state and continues after this failure."""
        try:
            return judge(self._machine.decider, failure, name) is Directive.RESUME
        except Exception:  # noqa: BLE001
            return False  # the machine will ask again, and escalate what the decider raises

    def _has(self, spec: ChildSpec) -> bool:
        slot = self._slots.get(spec.name)
        return slot is not None and slot.spec is spec

    def _leaves(self, name: str) -> None:
        """An actor is about to end because it wants to."""
        self._machine.leave(name)

    @trio.lowlevel.enable_ki_protection
    async def _close(self) -> None:
        self._perform(self._machine.shutdown(trio.current_time()))
        # Bounded by the children: each has been cancelled, or will be in its turn.
        with trio.CancelScope(shield=True):
            await self._stopped.wait()

    @trio.lowlevel.enable_ki_protection
    async def _run(self, slot: _ChildSlot, scope: trio.CancelScope) -> None:
        """The task of a child, from one start to the exit that belongs to it."""
        failure: BaseException | None = None
        actions: list[Action] = []
        status = _TaskStatus(self, slot, scope)
        # Actors look after their own protection, and there are many of them: spare a frame.
        run = slot.spec.run if self._family is not None else partial(_unprotected, slot.spec.run)
        try:
            with scope:
                await run(task_status=status)
            if not status.called and not scope.cancel_called:
                name = slot.spec.name
                raise ChildExited(
                    f"child {name!r} returned before it called task_status.started()", child=name
                )
        except BaseException as exc:  # noqa: BLE001
            # All of them, for the machine must see every exit. What it does not deal
            # with it raises, and that includes whatever is not an `Exception`.
            failure = exc
        try:
            slot.scope = slot.leave_by = None
            name, now = slot.spec.name, trio.current_time()
            if self._family is None:
                actions = self._machine.exited(name, failure, now)
            else:
                if (
                    failure is not None
                    and self._family.stopping
                    and _only_missed_others(failure)
                    and self._machine.forgo(name)
                ):
                    failure = None
                unprompted = self._family.child_exited(name, failure)
                actions = self._machine.exited(name, failure, now, unprompted=unprompted)
            self._perform(actions)
        finally:
            # The traceback of the failure has this frame in it.
            del failure, actions

    # --- actions of the machine

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartChild(name, cause):
                    slot = self._slots[name]
                    if self._family is not None:
                        self._family.child_starting(name, cause)
                    slot.scope = trio.CancelScope(shield=True)
                    self._nursery.start_soon(
                        self._run, slot, slot.scope, name=f"{self._name}/{name}"
                    )
                case Stop(name, restarting):
                    slot = self._slots[name]
                    assert slot.scope is not None
                    if self._family is not None:
                        self._family.child_stopping(name, restarting=restarting)
                    slot.scope.cancel()
                    slot.leave_by = trio.current_time() + slot.spec.grace
                    self._set_alarm(slot.leave_by)
                case Wake(at):
                    self._set_alarm(at)
                case Removed(name, failure):
                    self._removed(self._slots.pop(name), failure)
                    if self._family is not None:
                        self._family.child_removed(name)
                case ReportFailure(name, failure, verdict):
                    self._report(name, failure, verdict)
                case Raise(failure):
                    if self._family is not None:
                        self._family.children_failed(unprompted=False)
                    self._nursery.start_soon(_raise, failure)
                case Escalate(name, cause, reason):
                    if self._family is not None:
                        self._family.children_failed(unprompted=True)
                    self._nursery.start_soon(_raise, self._escalate(name, cause, reason))
                    self._end()
                case Finished():
                    # Also the end of the body, where it is the children who ended this.
                    self._nursery.cancel_scope.cancel()
                    self._end()

    def _removed(self, slot: _ChildSlot, failure: BaseException | None) -> None:
        name = slot.spec.name
        if slot.starter is not None:
            if failure is None:
                failure = ChildStopped(f"child {name!r} was stopped as it started")
            slot.not_started = failure
            slot.starter.set()
        elif failure is not None:
            if slot.gone is not None and slot.gone.statistics().tasks_waiting:
                slot.failure = failure
            else:  # whoever stopped it did not stay to see this
                self._report(name, failure, FailureOutcome.GONE)
        if slot.gone is not None:
            slot.gone.set()

    def _end(self) -> None:
        self._stopped.set()
        if self._alarm is not None:
            self._wake_at = math.inf
            self._alarm.cancel()

    def _report(self, name: str, failure: BaseException, verdict: FailureOutcome) -> None:
        extra = fields(failure, actor=self._path_of(name))
        if verdict is FailureOutcome.RESTARTING:
            # As text: a record that is kept would keep all that the failure's frames have.
            text = "%s: child %r failed, %s: %s"
            _log.warning(text, self._name, name, verdict.value, repr(failure), extra=extra)
        else:
            text = "%s: child %r failed, %s"
            _log.error(text, self._name, name, verdict.value, exc_info=failure, extra=extra)

    def _path_of(self, name: str) -> str:
        """Return the path of a child. Outside a tree it begins with the supervisor's name."""
        above = self._name if self._family is None else self._family.path
        return f"{above}/{name}"

    def _escalate(self, name: str, cause: BaseException, reason: str) -> BaseException:
        if not isinstance(cause, Exception):
            return cause  # Ctrl-C is no failure of ours to wrap
        if self._escalation is None:
            failure: BaseException = SupervisionFailed(
                f"supervisor {self._name!r} gave up: {reason}", supervisor=self._name, child=name
            )
        else:
            try:
                failure = self._escalation(self._name, cause)
                if not isinstance(failure, BaseException):
                    raise TypeError(
                        f"{self._escalation!r} must return an exception, not {failure!r}"
                    )
            except BaseException as broken:  # noqa: BLE001 (raised in the nursery instead)
                failure = broken
        if failure is not cause and failure.__cause__ is None:
            failure.__cause__ = cause
        return failure

    # --- time

    def _set_alarm(self, at: float) -> None:
        if at >= self._wake_at:
            return
        self._wake_at = at
        if self._alarm is None:
            self._alarm = trio.CancelScope()
            self._nursery.start_soon(self._sleep, name=f"{self._name} (alarm)")
        self._alarm.deadline = at

    @trio.lowlevel.enable_ki_protection
    async def _sleep(self) -> None:
        while self._wake_at < math.inf:
            # Shielded like the children, whose time it keeps; `_end` is its end, too.
            self._alarm = trio.CancelScope(deadline=self._wake_at, shield=True)
            with self._alarm:
                await trio.sleep_forever()
            now = trio.current_time()
            self._wake_at = math.inf
            self._perform(self._machine.tick(now))
            for slot in self._slots.values():
                if slot.leave_by is not None and slot.leave_by < math.inf:
                    if slot.leave_by <= now:
                        self._overdue(slot)
                    else:
                        self._set_alarm(slot.leave_by)
        self._alarm = None

    def _overdue(self, slot: _ChildSlot) -> None:
        slot.leave_by = math.inf
        _log.warning(
            "%s: child %r has not left %g s after it was cancelled; still waiting",
            self._name,
            slot.spec.name,
            slot.spec.grace,
            extra=fields(actor=self._path_of(slot.spec.name)),
        )


@trio.lowlevel.disable_ki_protection
async def _unprotected(
    run: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[Any]
) -> None:
    await run(task_status=task_status)


async def _raise(failure: BaseException) -> None:
    raise failure


def _only_missed_others(failure: BaseException) -> bool:
    """Return True if every part of a failure is a missing actor that had been stopped."""
    return all(isinstance(leaf, ActorStopped) and not leaf.__cause__ for leaf in leaves(failure))


@opens
async def open_supervisor(
    name: str,
    *,
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    decider: Decider = restart_always,
    intensity: Intensity = Intensity(),  # noqa: B008 (frozen)
    backoff: Backoff = Backoff(),  # noqa: B008 (frozen)
    escalation: Callable[[str, BaseException], BaseException] | None = None,
    auto_shutdown: AutoShutdown = AutoShutdown.ANY,
) -> AsyncIterator[Supervisor]:
    """Open a supervisor, whose children live until the block is left.

    Leaving the block stops the children in reverse order of their start, each before
    the next. A supervisor gives up when a failure is escalated or restarts exceed the
    intensity. It then stops the children in the same way and raises in its nursery: the
    body is cancelled, and the failure leaves the block, or a group if there were several
    failures. When significant children end, it stops the others and
    cancels the body, and the block is left without an exception.

    Args:
        name: for logs, errors and statistics.
        strategy: which children a restart concerns.
        decider: what to do about each failure. By default, restart.
        intensity: how often it may restart.
        backoff: how long it waits before it does.
        escalation: makes the exception to raise when the supervisor gives up, from its
            name and the last failure, which becomes the ``__cause__``. By default,
            `SupervisionFailed`. Failures that are no `Exception` leave as themselves.
        auto_shutdown: when the end of significant children stops the supervisor.
    """
    supervision = Supervision(
        strategy=strategy,
        decider=decider,
        intensity=intensity,
        backoff=backoff,
        escalation=escalation,
        auto_shutdown=auto_shutdown,
    )
    async with PlainNursery() as nursery:
        supervisor = Supervisor.construct(name, nursery, supervision)
        try:
            yield supervisor
        finally:
            await supervisor._close()
