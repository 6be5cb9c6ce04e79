"""Decisions of a supervisor: a state machine without I/O.

Events go in as method calls (`SupervisionMachine.exited` and its siblings), each with
the present time where time matters; actions come out as a list. Nothing here waits,
reads a clock or knows of trio's tasks, so the whole of supervision can be driven by a
property test. `_supervisor` carries the actions out.

The semantics are those of OTP, with three differences that structured concurrency allows.

* Children of a ``ONE_FOR_ONE`` supervisor start and restart independently; OTP's
  supervisor is one process that does one thing at a time.
* An error passes through a decider, so a failure can also stop its child for good
  or be escalated at once.
* If the supervisor itself is stopping, an error that a child raises while it stops is raised, never
  only logged, because no other code can handle it.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from sortedcontainers import SortedDict

from ._errors import ChildExited, NameTaken, SupervisorStopped
from ._policy import AutoShutdown, ChildSpec, RestartType, Strategy, Supervision
from .deciders import Directive, judge
from .util import describe


class ChildState(enum.Enum):
    """State of a child."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """Cancelled, and not gone yet."""
    WAITING = "waiting"
    """Will be started: after a back-off, or when it is its turn."""
    FINISHED = "finished"
    """A transient child that returned. Only a restart of its group starts it again."""
    ENDED = "ended"
    """Gone for good. No supervisor lists such a child; refs to an actor still tell."""


class SupervisorState(enum.Enum):
    """State of a supervisor."""

    RUNNING = "running"
    STOPPING = "stopping"
    ESCALATING = "escalating"
    """Stopping its children to raise a failure once they are gone."""
    STOPPED = "stopped"


# --- actions -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start the child's task. Answer with ``started`` or ``exited``.

    The cause is the failure, its own or a sibling's, that it is started again after.
    """

    name: str
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the child's scope. Answer with ``exited`` when the task has ended."""

    name: str
    restarting: bool


@dataclass(frozen=True, slots=True)
class Wake:
    """Call ``tick`` at this time."""

    at: float


@dataclass(frozen=True, slots=True)
class Removed:
    """The child is gone for good.

    A failure is raised in the task that waits for the child's first start or for its stop.
    """

    name: str
    failure: BaseException | None = None


class FailureOutcome(enum.Enum):
    """Outcome of a child's failure, for the log."""

    RESTARTING = "it will be restarted"
    GONE = "it will not be restarted"


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """A failure was dealt with and will be raised nowhere: put it on record."""

    name: str
    failure: BaseException
    verdict: FailureOutcome


@dataclass(frozen=True, slots=True)
class Raise:
    """A child failed while the supervisor was stopping: raise that in the nursery."""

    failure: BaseException


@dataclass(frozen=True, slots=True)
class Escalate:
    """All children are gone: raise on account of this failure. The last action of all."""

    name: str
    cause: BaseException
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """All children are gone and the supervisor has stopped. The last action of all."""


Action: TypeAlias = StartChild | Stop | Wake | Removed | ReportFailure | Raise | Escalate | Finished


# --- the machine -------------------------------------------------------------------


class _StopAction(enum.Enum):
    """Action after a child that is being stopped has left."""

    RESTART = "restart"
    REMOVE = "remove"
    LEAVE = "leave"
    """A stop that the child asked for: its own end, which counts if it is significant."""


class Child:
    """State of one child, as the machine keeps it."""

    __slots__ = (
        "cause",
        "due",
        "last_failure",
        "mark",
        "place",
        "restarts",
        "spec",
        "state",
        "was_up",
    )

    def __init__(self, spec: ChildSpec, place: int) -> None:
        self.spec = spec
        self.place = place
        """Grows in the order in which children were added."""
        self.state = ChildState.WAITING
        self.mark: _StopAction | None = None
        self.was_up = False
        """True if its first start is complete. Before that, a failure goes to its starter."""
        self.due = 0.0
        self.cause: BaseException | None = None
        self.restarts = 0
        self.last_failure: str | None = None


_ALIVE = (ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING)


class SupervisionMachine:
    """The decisions of one supervisor. See the module's docstring."""

    validate = False
    """True to check the invariants after every event, as the tests do. This takes time proportional
    to the number of children."""

    def __init__(self, supervision: Supervision) -> None:
        self.strategy = supervision.strategy
        self.decider = supervision.decider
        self.intensity = supervision.intensity
        self.backoff = supervision.backoff
        self.auto_shutdown = supervision.auto_shutdown
        self.state = SupervisorState.RUNNING
        self.children: dict[str, Child] = {}
        self.restarts = 0
        self.failures = 0
        self._window: deque[float] = deque()
        # A restart among a hundred thousand children looks only at those it concerns: the
        # children in state WAITING, in the order in which they will start, those being started
        # again, and the names of those that a group restart has still to stop.
        self._places = 0
        self._waiting: SortedDict[tuple[float, int], Child] = SortedDict()
        self._restarting: SortedDict[int, Child] = SortedDict()
        self._to_stop: list[str] = []
        # A group restart is under way: some children are being stopped or started in turn.
        self._wave = False
        # Names still to be stopped, set once the supervisor itself stops.
        self._shutdown_order: list[str] = []
        self._escalation: Escalate | None = None

    # --- events

    def add(self, spec: ChildSpec, now: float) -> list[Action]:
        """A child was added. Raises if it cannot be, and then nothing has changed."""
        if self.state is not SupervisorState.RUNNING:
            raise SupervisorStopped(
                f"cannot start child {spec.name!r}: the supervisor is {self.state.value}"
            )
        if (taken := self.children.get(spec.name)) is not None:
            raise NameTaken(
                f"there is a child {spec.name!r} already, and it is {taken.state.value}; "
                "stop it first or choose another name"
            )
        self._places += 1
        self.children[spec.name] = child = Child(spec, self._places)
        self._wait(child, now, None)
        return self._settle(now)

    def started(self, name: str, now: float) -> list[Action]:
        """A child called ``task_status.started``."""
        child = self.children[name]
        if child.state is not ChildState.STARTING:
            return []  # it was cancelled a moment earlier, and is on its way out
        child.state = ChildState.RUNNING
        child.was_up = True
        self._restarting.pop(child.place, None)
        return self._settle(now)

    def exited(
        self, name: str, failure: BaseException | None, now: float, *, unprompted: bool = False
    ) -> list[Action]:
        """A child's task ended, by a failure or without one.

        ``unprompted`` means that the child failed before it was asked to stop, even if that has
        happened meanwhile.
        """
        child = self.children[name]
        assert child.state in _ALIVE, (name, child.state)
        told = child.state is ChildState.STOPPING and not unprompted
        self._restarting.pop(child.place, None)
        if failure is not None:
            self.failures += 1
            child.last_failure = describe(failure)
        if failure is None:
            running = self.state is SupervisorState.RUNNING
            actions = self._returned(child, now) if running else self._remove(child)
        elif self.state is SupervisorState.RUNNING or not told:
            actions = self._failed(child, failure, now)
        else:
            actions = [*self._remove(child), Raise(failure)]
        return actions + self._settle(now)

    def forgo(self, name: str) -> bool:
        """A child that is about to exit is not to be started again.

        Returns:
            False if its first start is not complete: its failure is its starter's.
        """
        child = self.children[name]
        if child.was_up:
            child.mark = _StopAction.REMOVE
        return child.was_up

    def leave(self, name: str) -> None:
        """A child is about to exit for good because it wants to, whatever its restart type."""
        child = self.children[name]
        if child.mark is not _StopAction.REMOVE:
            child.mark = _StopAction.LEAVE if child.was_up else _StopAction.REMOVE

    def stop(self, name: str, now: float) -> list[Action]:
        """A child is to be stopped for good."""
        child = self.children[name]
        if self.state is not SupervisorState.RUNNING:
            return []  # its turn will come
        child.mark = _StopAction.REMOVE
        if child.state not in _ALIVE:
            return self._remove(child) + self._settle(now)
        return self._stop(child) + self._settle(now)

    def shutdown(self, now: float) -> list[Action]:
        """The supervisor is to stop."""
        if self.state is not SupervisorState.RUNNING:
            return []
        return self._begin_shutdown(SupervisorState.STOPPING) + self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """The time of a `Wake` has come."""
        return self._settle(now)

    def restarts_in_window(self, now: float) -> int:
        """Return the number of restarts that the intensity counts at present."""
        return sum(1 for at in self._window if now - at <= self.intensity.within)

    # --- what an exit means

    def _failed(self, child: Child, failure: BaseException, now: float) -> list[Action]:
        name = child.spec.name
        stopping = self.state is not SupervisorState.RUNNING
        if not child.was_up:
            return self._remove(child, failure)  # raised by start_child, whoever stopped it
        try:
            directive = judge(self.decider, failure, name)
        except BaseException as broken:  # noqa: BLE001 (it is raised by the escalation)
            broken.__context__ = failure
            return self._escalate(child, broken, f"the decider failed on child {name!r}")
        if directive is Directive.ESCALATE:
            return self._escalate(child, failure, f"child {name!r} failed")
        if stopping:
            return self._forgiven(child, failure, directive, now)
        if child.mark is _StopAction.REMOVE:
            return self._remove(child, failure)
        if (
            child.spec.restart is RestartType.TEMPORARY
            or child.mark is _StopAction.LEAVE
            or (directive is Directive.STOP and child.mark is None)
        ):
            report = ReportFailure(name, failure, FailureOutcome.GONE)
            return [report, *self._ended(child, failed=True)]
        actions: list[Action] = []
        if child.mark is _StopAction.RESTART:  # its restart is under way: no second one to count
            self._wait(child, child.due, child.cause)
        else:
            actions = self._restart(child, failure, now, alone=directive is Directive.RESUME)
            if self.state is not SupervisorState.RUNNING:
                return actions  # one too many: it will be raised
        return [ReportFailure(name, failure, FailureOutcome.RESTARTING), *actions]

    def _forgiven(
        self, child: Child, failure: BaseException, directive: Directive, now: float
    ) -> list[Action]:
        """A child failed by itself while others were being stopped, this one next.

        The outcome must not depend on whether the failure or the order to stop was seen
        first. So the failure has its usual effect, except that the child is not started
        again.
        """
        restart = directive is not Directive.STOP and child.mark is None
        giving_up = self._escalation is not None  # already, so there is nothing to count
        if restart and child.spec.restart is not RestartType.TEMPORARY and not giving_up:
            reason = self._one_too_many(child, now)
            if reason is not None:
                return self._escalate(child, failure, reason)
        return [ReportFailure(child.spec.name, failure, FailureOutcome.GONE), *self._remove(child)]

    def _returned(self, child: Child, now: float) -> list[Action]:
        if child.mark is _StopAction.REMOVE:
            return self._remove(child)
        if child.mark is _StopAction.LEAVE:
            return self._ended(child, failed=False)
        if child.mark is _StopAction.RESTART:
            # A temporary child whose first start this cuts short still has a starter.
            if child.spec.restart is RestartType.TEMPORARY and child.was_up:
                return self._remove(child)
            self._wait(child, child.due, child.cause)
            return []
        if child.spec.restart is RestartType.PERMANENT:
            name = child.spec.name
            exited = ChildExited(f"permanent child {name!r} returned", child=name)
            return self._restart(child, exited, now, alone=False)
        return self._ended(child, failed=False)

    def _ended(self, child: Child, *, failed: bool) -> list[Action]:
        """The child ended by itself and will not be restarted on that account."""
        left = child.mark is _StopAction.LEAVE
        significant = child.spec.significant and (left or child.mark is None)
        if (
            not failed
            and not left
            and child.spec.restart is RestartType.TRANSIENT
            and self.strategy is not Strategy.ONE_FOR_ONE
        ):
            child.state = ChildState.FINISHED
            actions: list[Action] = []
        else:
            actions = self._remove(child)
        if significant and (
            self.auto_shutdown is AutoShutdown.ANY
            or not any(
                other.spec.significant and other.state is not ChildState.FINISHED
                for other in self.children.values()
            )
        ):
            actions += self._begin_shutdown(SupervisorState.STOPPING)
        return actions

    def _restart(
        self, child: Child, cause: BaseException, now: float, *, alone: bool
    ) -> list[Action]:
        reason = self._one_too_many(child, now)
        if reason is not None:
            return self._escalate(child, cause, reason)
        self.restarts += 1
        due = now + self.backoff.delay(len(self._window))
        self._wait(child, due, cause)
        if self.strategy is Strategy.ONE_FOR_ONE:
            return []
        self._wave = True
        if alone:
            return []
        concerned = self.strategy is Strategy.ONE_FOR_ALL
        for other in list(self.children.values()):
            concerned = concerned or other is child
            if not concerned or other is child:
                continue
            if other.state in _ALIVE:
                if other.mark is None:
                    other.mark = _StopAction.RESTART
                other.due = due
                other.cause = cause
            else:
                self._wait(other, due, cause)
        self._to_stop = [
            other.spec.name for other in self.children.values() if other.mark is _StopAction.RESTART
        ]
        return []

    def _one_too_many(self, child: Child, now: float) -> str | None:
        """Count a restart; the reason to escalate if that exceeds the intensity."""
        window, within = self._window, self.intensity.within
        while window and now - window[0] > within:
            window.popleft()
        window.append(now)
        if len(window) <= self.intensity.restarts:
            return None
        return (
            f"child {child.spec.name!r} failed, and more than {self.intensity.restarts} restarts "
            f"within {within:g} s are too many"
        )

    def _escalate(self, child: Child, cause: BaseException, reason: str) -> list[Action]:
        if self._escalation is not None:  # one is under way, and this is another failure
            return [*self._remove(child), Raise(cause)]
        self._escalation = Escalate(child.spec.name, cause, reason)
        return self._remove(child) + self._begin_shutdown(SupervisorState.ESCALATING)

    def _begin_shutdown(self, state: SupervisorState) -> list[Action]:
        self.state = state
        self._wave = False
        self._shutdown_order = list(self.children)
        return []

    # --- single steps

    def _wait(self, child: Child, due: float, cause: BaseException | None) -> None:
        self._waiting.pop(self._turn(child), None)
        child.state = ChildState.WAITING
        child.mark = None
        child.due = due
        child.cause = cause
        self._waiting[self._turn(child)] = child

    def _turn(self, child: Child) -> tuple[float, int]:
        """Return the key of the starting order: children of a group in order, others when due."""
        return (child.due if self.strategy is Strategy.ONE_FOR_ONE else 0.0, child.place)

    def _start(self, child: Child) -> list[Action]:
        child.state = ChildState.STARTING
        if child.was_up:
            child.restarts += 1
            self._restarting[child.place] = child
        del self._waiting[self._turn(child)]
        cause, child.cause = child.cause, None
        return [StartChild(child.spec.name, cause)]

    def _stop(self, child: Child) -> list[Action]:
        if child.state is ChildState.STOPPING:
            return []
        child.state = ChildState.STOPPING
        self._restarting.pop(child.place, None)
        return [Stop(child.spec.name, child.mark is _StopAction.RESTART)]

    def _remove(self, child: Child, failure: BaseException | None = None) -> list[Action]:
        name = child.spec.name
        del self.children[name]
        self._waiting.pop(self._turn(child), None)
        return [Removed(name, failure)]

    # --- what is next

    def _settle(self, now: float) -> list[Action]:
        """The actions that have become possible."""
        if self.state is SupervisorState.RUNNING:
            actions = self._settle_group(now) if self._wave else self._start_waiting(now)
        elif self.state is SupervisorState.STOPPED:
            actions = []
        else:
            actions = self._settle_shutdown()
        if self.validate:
            self._check(now)
        return actions

    def _start_waiting(self, now: float) -> list[Action]:
        """Each waiting child starts when it is due, on its own."""
        actions: list[Action] = []
        while self._waiting:
            child = self._waiting.peekitem(0)[1]
            if child.due > now:
                return [*actions, Wake(child.due)]
            actions += self._start(child)
        return actions

    def _settle_group(self, now: float) -> list[Action]:
        """A group restart goes on: stop in reverse order, one at a time, then start likewise."""
        while self._to_stop:
            child = self.children.get(self._to_stop[-1])
            if child is not None and child.mark is _StopAction.RESTART:
                return self._stop(child)
            self._to_stop.pop()
        actions: list[Action] = []
        while self._waiting:
            child = self._waiting.peekitem(0)[1]
            if self._restarting and self._restarting.peekitem(0)[0] < child.place:
                return actions
            if child.due > now:
                return [*actions, Wake(child.due)]
            actions += self._start(child)
        if not self._restarting:
            self._wave = False
        return actions

    def _settle_shutdown(self) -> list[Action]:
        """Stop all children in reverse order, one at a time."""
        actions: list[Action] = []
        order = self._shutdown_order
        while order:
            child = self.children.get(order[-1])
            if child is None:
                order.pop()
            elif child.state in _ALIVE:
                return actions + self._stop(child)
            else:
                actions += self._remove(child)
        self.state = SupervisorState.STOPPED
        end, self._escalation = self._escalation or Finished(), None
        return [*actions, end]

    def _check(self, now: float) -> None:
        """The invariants, which hold between any two events."""
        for name, child in self.children.items():
            assert name == child.spec.name
            waiting = self._turn(child) in self._waiting
            assert waiting == (child.state is ChildState.WAITING), name
            assert (child.place in self._restarting) == (
                child.state is ChildState.STARTING and child.was_up
            ), name
            assert (child.mark is None) or child.state in _ALIVE, name
            assert child.state is not ChildState.FINISHED or (
                self.strategy is not Strategy.ONE_FOR_ONE
                and child.spec.restart is RestartType.TRANSIENT
            ), name
        known = list(self.children.values())
        assert all(child in known for child in self._waiting.values())
        assert all(child in known for child in self._restarting.values())
        if self._wave:
            marked = {c.spec.name for c in self.children.values() if c.mark is _StopAction.RESTART}
            assert marked <= set(self._to_stop), "a child that is to be stopped is forgotten"
        assert len(self._window) <= self.intensity.restarts + 1
        if self.state is SupervisorState.STOPPED:
            assert not self.children
        elif self.state is SupervisorState.RUNNING:
            assert self._escalation is None
            assert len(self._window) <= self.intensity.restarts
            if not self._wave:
                assert all(child.due > now for child in self._waiting.values())
        else:
            stopping = [c for c in self.children.values() if c.state is ChildState.STOPPING]
            assert stopping, "a supervisor that stops waits for a child that is leaving"
