"""Cells: the lives of an actor from one end to the other, and its place in the tree."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio

from ..wire.options import real
from ._actor import Actor, ActorRef, Restarted, Terminated
from ._errors import ActorRestarted, ActorStopped, NameTaken, SupervisorStopped, UnhandledMessage
from ._mailbox import (
    Ask,
    Entry,
    Inbox,
    Mailbox,
    Notice,
    TellEntry,
    message_of,
)
from ._policy import ChildSpec, RestartType, Supervision
from ._records import answer_or_error, record_of
from ._supervision import ChildState
from ._supervisor import Supervisor
from .condition import ActorStatistics, Condition
from .context import enter, leave
from .hooks import begin, finish, make
from .logs import fields
from .messages import LATER, Message, unmarked_handler
from .nursery import PlainNursery, plain
from .util import check_instance

if TYPE_CHECKING:
    from .system import ActorSystem

_log = logging.getLogger("atomr_accel.actors")

_NO_SUPERVISION: Final = Supervision()

BATCH = 64
"""Messages an actor handles before it lets other tasks run, if no handler of them did."""


class TreeNode:
    """A place in the tree that can have children: the root, or an actor's cell."""

    __slots__ = ("_nursery", "_serials", "_supervision", "children", "path", "supervisor", "system")

    def __init__(self, system: ActorSystem, path: str, supervision: Supervision) -> None:
        self.system: Final = system
        self.path: Final = path
        self.children: dict[str, Cell] = {}
        self.supervisor: Supervisor | None = None
        self._supervision = supervision
        self._nursery: trio.Nursery | None = None
        self._serials: dict[str, int] | None = None  # by class, of actors without a name

    @trio.lowlevel.enable_ki_protection
    async def spawn(
        self,
        actor_type: type[Actor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str | None,
        restart: RestartType,
        grace: float,
        significant: bool,
        mailbox: Mailbox | None,
        supervision: Supervision | None,
    ) -> ActorRef:
        """Start an actor as a child; see ``ActorSystem.spawn``."""
        if get_ident() != self.system._thread:
            raise self.elsewhere()
        given: object = actor_type
        if not isinstance(given, type) or not issubclass(given, Actor):
            raise TypeError(
                "argument of spawn must be a subclass of Actor and the arguments for "
                f"it, not {actor_type!r}; write `await system.spawn(Counter, start=3)`"
            )
        if name is not None:
            check_instance("an actor's name", name, str)
        if name is not None and (not name or "/" in name):
            raise ValueError(
                f"an actor's name must be one or more characters other than '/', not {name!r}"
            )
        if mailbox is None:
            mailbox = actor_type.mailbox
        if supervision is None:
            supervision = actor_type.supervision
        check_instance("mailbox", mailbox, Mailbox)
        check_instance("supervision", supervision, Supervision)
        grace = real(grace, "grace", least=0, infinity=True)
        # From here until the supervisor has the child too, nothing is awaited: an actor is in
        # both or in neither.
        await trio.lowlevel.checkpoint_if_cancelled()
        if name is None:
            name = self._next_name(actor_type)
        if name in self.children:
            raise NameTaken(
                f"there is an actor {self.path}/{name} already; stop it first, or choose "
                "another name"
            )
        cell = Cell(self, name, actor_type, args, kwargs, restart, grace, mailbox, supervision)
        return await self.start(cell, ChildSpec(name, cell.run, restart, grace, significant))

    @trio.lowlevel.enable_ki_protection
    async def start(self, cell: Cell, spec: ChildSpec) -> ActorRef:
        """Start a child that was made, and wait until it has started."""
        if self._nursery is None:
            raise SupervisorStopped(
                f"cannot start {cell.path}: {self.path or 'the system'} is not running"
            )
        if self.supervisor is None:
            label = f"{self.system.name}:{self.path}" if self.path else self.system.name
            self.supervisor = Supervisor.construct(label, self._nursery, self._supervision, self)
        self.children[cell.name] = cell
        ref = cell.ref
        supervisor = self.supervisor
        try:
            await supervisor._wait_started(supervisor._begin(spec))
        except BaseException:
            if not supervisor._has(spec):  # it may run still, if Ctrl-C came again and again
                cell.end()  # unless the supervisor has told us so already
            raise
        return ref

    def elsewhere(self) -> RuntimeError:
        """The error for a call from another thread than the system's."""
        return self.system._elsewhere(self.path or f"the system {self.system.name!r}")

    def _next_name(self, actor_type: type[Actor]) -> str:
        kind = actor_type.__name__.lower()
        if self._serials is None:
            self._serials = {}
        while True:
            serial = self._serials[kind] = self._serials.get(kind, 0) + 1
            if f"{kind}-{serial}" not in self.children:
                return f"{kind}-{serial}"

    @property
    def stopping(self) -> bool:
        """True if this node or one above it is being stopped."""
        node: TreeNode = self
        while True:
            if node._nursery is None or (node.supervisor and node.supervisor._is_stopping):
                return True
            if (above := node.above) is None:
                return False
            node = above

    @property
    def above(self) -> TreeNode | None:
        """The node above this one, if this is not the root."""
        return None

    async def _close_supervisor(self) -> None:
        if self.supervisor is not None:
            await self.supervisor._close()
            self.supervisor = None

    # --- what the supervisor tells

    def child_starting(self, name: str, cause: BaseException | None) -> None:
        """A child begins a life: its first, or another because of ``cause``."""
        self.children[name].starting(cause)

    def child_stopping(self, name: str, *, restarting: bool) -> None:
        """Handle a request to end a child, for good or for its next life."""
        self.children[name].halting(restarting=restarting)

    def child_exited(self, name: str, failure: BaseException | None) -> bool:
        """Handle the end of a child's life. Return True if it failed before it was stopped."""
        return self.children[name].exited(failure)

    def child_removed(self, name: str) -> None:
        """A child is gone for good."""
        self.children[name].end()

    def children_failed(self, *, unprompted: bool) -> None:
        """Do nothing: only actors have a parent that decides about their failures."""


class Cell(TreeNode):
    """One actor, from its first start to its end, through all its restarts."""

    __slots__ = (
        "_arguments",
        "_cause",
        "_current",
        "_ended",
        "_failed",
        "_failure",
        "_grace",
        "_halted",
        "_handled",
        "_leaving",
        "_ref",
        "_restart",
        "_type",
        "_undecided",
        "_unhandled",
        "_unprompted",
        "_was_up",
        "_watchers",
        "_watching",
        "at_end",
        "check",
        "ended",
        "inbox",
        "name",
        "parent",
        "restarting",
        "restarts",
        "served",
        "shown",
    )

    def __init__(
        self,
        parent: TreeNode,
        name: str,
        actor_type: type[Actor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        restart: RestartType,
        grace: float,
        mailbox: Mailbox,
        supervision: Supervision,
    ) -> None:
        super().__init__(parent.system, f"{parent.path}/{name}", supervision)
        self.parent: Final = parent
        self.name: Final = name
        self._type = actor_type
        self._arguments = (args, kwargs)
        self._restart = restart
        self._grace = grace
        self.inbox: Final = Inbox(mailbox, self)
        self.inbox.watch(watched=self.system._instruments.wants("message_sent", "ask_ended"))
        # The ref has the cell, so once it has ended, the cell has the ref only weakly.
        self._ref: ActorRef | weakref.ref[ActorRef] = ActorRef.construct(self)
        self.ended: bool = False
        self._ended: trio.Event | None = None
        # What was asked and is being handled, so that it is answered come what may.
        self._current: Ask | None = None
        # What tasks were answering when the actor failed.
        self._undecided: list[Ask] = []
        # Whether it ever started completely, how often it did so again, and the failure
        # that the present life is owed to.
        self._was_up = False
        self.restarts: int = 0
        self._cause: BaseException | None = None
        # The failure that the last life ended with, if it was one, and whether that was
        # there before anybody told the actor to end; None while there is no telling.
        self._failure: BaseException | None = None
        self._unprompted: bool | None = None
        # The loop is to end: because its scope was cancelled, perhaps for a restart, or
        # because the actor wants to leave.
        self._halted = False
        self.restarting: bool = False
        self._leaving = False
        self._handled = self._failed = self._unhandled = 0
        # Dicts for their order: sets would notify in another one in every run. A cell is in
        # `_watching` until its `Terminated` is taken out of the mailbox, if it is that long.
        self._watchers: dict[Cell, None] | None = None
        self._watching: dict[Cell, None] | None = None
        # For what is more than an actor: called at the end for good, with the failure, and
        # what makes of its own condition the one that trees and statistics show.
        self.at_end: Callable[[BaseException | None], None] | None = None
        self.shown: Callable[[Condition], Condition] | None = None
        # Of a service, and of a part that has some: returns its statistics.
        self.served: Callable[[], object] | None = None
        # Raises in the sender, before a message is sent, if the actor could not handle it.
        self.check: Callable[[Message[Any]], None] | None = None

    @property
    def above(self) -> TreeNode | None:
        """The parent."""
        return self.parent

    @property
    def ref(self) -> ActorRef:
        """The actor's address."""
        ref = self._ref() if isinstance(self._ref, weakref.ref) else self._ref
        if ref is None:  # it had ended, and nobody had its ref any more
            ref = ActorRef.construct(self)
            self._ref = weakref.ref(ref)
        return ref

    @property
    def kind(self) -> str:
        """Name of the actor's class."""
        return self._type.__name__

    @property
    def state(self) -> ChildState:
        """State that its supervisor sees."""
        if self.ended or self.parent.supervisor is None:
            return ChildState.ENDED
        return self.parent.supervisor._state_of(self.name)

    @property
    def nursery(self) -> trio.Nursery:
        """Nursery of the actor's tasks."""
        if self._nursery is None:
            raise RuntimeError(
                f"{self.path} has no nursery at present: it is there from `started` until the "
                "children are stopped"
            )
        return self._nursery

    def condition(self) -> Condition:
        """Return the state of the actor, as a tree shows it."""
        condition = Condition(self.state, self.restarts, self.inbox.statistics().depth)
        return condition if self.shown is None or self.ended else self.shown(condition)

    def service(self) -> object:
        """Return the statistics of the service whose place this is; None if it is none's."""
        return None if self.served is None else answer_or_error(self.served)

    def statistics(self) -> ActorStatistics:
        """Return the statistics of this moment."""
        condition = self.condition()
        return ActorStatistics(
            path=self.path,
            kind=self.kind,
            state=condition.state,
            restarts=condition.restarts,
            handled=self._handled,
            failed=self._failed,
            unhandled=self._unhandled,
            mailbox=self.inbox.statistics(),
            children=None if self.supervisor is None else self.supervisor.statistics(),
            generation=condition.generation,
            service=self.service(),
        )

    # --- messages in

    def accept(self, entry: Entry, *, urgent: bool) -> bool:
        """Queue an entry. Return False if the mailbox is full and its policy is to wait."""
        if self.ended:
            raise self._stopped_error()
        if self.check is not None:
            self.check(message_of(entry))
        accepted = self.inbox.put(entry, urgent=urgent)
        if accepted and self.system._instruments.active:
            self.system._instruments("message_sent", self.ref, message_of(entry))
        return accepted

    def check_messages(self, check: Callable[[Message[Any]], None]) -> None:
        """Have each message checked in its sender, before it is sent."""
        self.check = check
        self.inbox.ask_owner()

    def line_up(self, ask: Ask, *, urgent: bool) -> None:
        """Queue an entry as soon as there is room."""
        self.inbox.wait(ask, urgent=urgent)
        if self.system._instruments.active:
            self.system._instruments("message_sent", self.ref, ask.message)

    def handles(self, ask: Ask) -> bool:
        """Return True if the actor is handling this ask."""
        return self._current is ask

    def dropped(self, message: Message[Any]) -> None:
        """Turn a dropped message into a dead letter."""
        self.system._dead_letter(self.ref, [message], "its full mailbox drops the oldest")

    # --- what the parent's supervisor tells

    def starting(self, cause: BaseException | None) -> None:
        """Begin a life: the first, or another because of ``cause``."""
        if self._was_up:
            self.restarts += 1
            if self.system._instruments.active:
                self.system._instruments("actor_restarting", self.ref, cause)
        self._cause = cause
        for ask in self._undecided:
            error = self._interrupted(restarting=True)
            error.__cause__ = cause
            ask.fail(error)
        self._undecided.clear()
        self._failure = self._unprompted = None
        self._halted = self.restarting = self._leaving = False

    def halting(self, *, restarting: bool) -> None:
        """Note that this life was asked to end, for good or for the next one."""
        self._halted = True
        self.restarting = restarting

    def exited(self, failure: BaseException | None) -> bool:
        """Handle the end of this life. Return True if it failed before it was stopped."""
        self._failure = failure
        return self._unprompted is True

    def children_failed(self, *, unprompted: bool) -> None:
        """Handle that the supervisor of the children has given up."""
        self._failing(unprompted=unprompted)

    def _failing(self, *, unprompted: bool) -> None:
        """Note a failure. One that an order to end has caused takes precedence."""
        if self._unprompted is not False:
            self._unprompted = unprompted

    def end(self) -> None:
        """The actor is gone for good: answer everyone, and tell those who watch."""
        if self.ended:
            return
        self.ended = True
        if self.at_end is not None:
            self.at_end(self._failure)
        if self.parent.children.get(self.name) is self:
            del self.parent.children[self.name]
        for ask in self._undecided:
            ask.fail(self._stopped_error())
        self._undecided.clear()
        ref = self.ref
        unread: list[Message[Any]] = []
        for entry in self.inbox.close():
            if isinstance(entry, Ask):
                entry.fail(self._stopped_error())
            elif not isinstance(entry, Notice) or self._is_expected(entry):
                unread.append(message_of(entry))
        if unread:
            self.system._dead_letter(ref, unread, "it has stopped")
        self._release(ref)
        for watched in self._watching or ():
            if watched._watchers is not None:
                watched._watchers.pop(self, None)
        for watcher in self._watchers or ():
            watcher.inbox.force(Notice(Terminated(ref, self._failure), self))
        self._watchers = self._watching = None
        if self._ended is not None:
            self._ended.set()
        if self._was_up and self.system._instruments.active:
            self.system._instruments("actor_stopped", ref, self._failure)

    def _release(self, ref: ActorRef) -> None:
        """Let go of what only lives need. Refs may be kept for long, and each keeps the cell."""
        self._ref = weakref.ref(ref)
        self._arguments = ((), {})
        self._supervision = _NO_SUPERVISION
        self._cause = self.at_end = self.shown = self.served = self.check = None
        if self._failure is not None:
            self._failure = record_of(self._failure)

    # --- one life

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[ActorRef]) -> None:
        """The whole of one life. The parent's supervisor runs it, once for each."""
        failures: list[BaseException] = []
        up = False
        self.inbox.task = trio.lowlevel.current_task()
        try:
            actor = make(self, self._type, self._arguments)
            async with PlainNursery() as nursery:
                self._nursery = nursery
                try:
                    await begin(actor, self)
                    up = self._was_up = True
                    task_status.started(self.ref)
                    self._has_started()
                    await self._serve(actor)
                except BaseException as exc:
                    if not isinstance(exc, Exception):
                        if not self._halted:  # a task in the nursery has failed
                            self._failing(unprompted=True)
                        raise
                    self._failing(unprompted=not self._halted)
                    failures.append(exc)  # raised below: a nursery would wrap it in a group
                finally:
                    self._nursery = None
                    await self._close_supervisor()
                    self._forget_below()
                    nursery.cancel_scope.cancel()
        except BaseException as exc:  # noqa: BLE001
            if failures:
                self._failing(unprompted=False)
            failures.append(exc)  # raised below, with what comes on top of it
        if up:
            await self._finish(actor, failures)
        if (current := self._current) is not None:
            self._current = None
            failure = next((f for f in failures if isinstance(f, Exception)), None)
            # If nobody halted it and nothing failed, its significant children ended this life.
            ended = not self._halted and not failures
            restarting = ended and self._restart is RestartType.PERMANENT
            current.fail(self._interrupted(restarting=restarting) if failure is None else failure)
            del current, failure  # the traceback has this frame in it
        if self._leaving and self.parent.supervisor is not None:
            self.parent.supervisor._leaves(self.name)
        self.inbox.task = None
        try:
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise plain(
                    BaseExceptionGroup(
                        f"{self.path} failed, and again on its way out",
                        tuple(failures),  # it keeps what it gets, and the list is emptied
                    )
                )
        finally:
            failures.clear()  # the tracebacks have this frame in them

    def _has_started(self) -> None:
        if self.system._instruments.active:
            self.system._instruments("actor_started", self.ref)
        cause, self._cause = self._cause, None
        if self.restarts:
            self.announce(cause)

    def announce(self, cause: BaseException | None) -> None:
        """Tell those who watch, and want to know, that it was started again."""
        for watcher in self._watchers or ():
            if watcher._handler_of(Restarted) is not None:
                watcher.inbox.force(Notice(Restarted(self.ref, cause), self))

    async def _finish(self, actor: Actor, failures: list[BaseException]) -> None:
        try:
            deadline = trio.current_time() + self._grace
            with trio.CancelScope(shield=True, deadline=deadline) as scope:
                await finish(actor)
        except BaseException as exc:  # noqa: BLE001
            self._failing(unprompted=not self._halted)
            failures.append(exc)  # raised by `run`
        if scope.cancelled_caught:
            text = "%s: stopping() was cancelled after %g s"
            _log.warning(text, self.path, self._grace, extra=fields(actor=self.path))

    async def _serve(self, actor: Actor) -> None:
        """Handle messages, one at a time, until it is time to end."""
        inbox = self.inbox
        task = inbox.task
        queue = inbox.queue
        handlers = self._type._handlers
        instruments = self.system._instruments
        assert task is not None
        own = task.context  # which most senders have, too: compared in no time if untouched
        credit = BATCH
        entry: Entry | None
        while not self._halted:
            if not credit:
                credit = BATCH
                await trio.lowlevel.checkpoint()
                continue
            if inbox.urgent or inbox.waiting:
                entry = inbox.take()
                if isinstance(entry, Notice):
                    if not self._takes(entry):
                        continue
                    entry = entry.message
            else:
                entry = queue.popleft() if queue else None
            if entry is None:
                inbox.receiver = task
                await trio.lowlevel.wait_task_rescheduled(self._unpark)
                credit = BATCH
                continue
            credit -= 1
            if type(entry) is Ask:
                if entry.task is None:
                    inbox.skip()
                    continue
                self._current = entry
                message, context = entry.message, entry.task.context
            elif type(entry) is TellEntry:
                message, context = entry.message, entry.context
            else:
                message, context = entry, None  # type: ignore[assignment]
            handler = handlers.get(type(message)) or self._handler_of(type(message))
            if handler is None:
                self._refuse(entry, message)
                continue
            entered = enter(context) if context is not None and context != own else None
            if instruments.active:
                instruments("message_started", self.ref, message)
            try:
                value = await handler(actor, message)
            except BaseException as failure:
                if instruments.active:
                    instruments("message_finished", self.ref, message, failure)
                if not self._survives(entry, failure):
                    raise
            else:
                if value is not LATER:
                    self._handled += 1
                    if type(entry) is Ask:
                        self._current = None
                        entry.reply(value)
                    if instruments.active:
                        instruments("message_finished", self.ref, message, None)
            finally:
                if entered:
                    leave(entered)
            # Keep none alive while idle.
            entry = message = value = context = entered = None  # type: ignore[assignment]

    def answer_later(self, message: Message[Any], work: Coroutine[Any, Any, Any]) -> None:
        """Have a task answer the message that is being handled; see `side_by_side`."""
        ask, self._current = self._current, None
        scope = trio.CancelScope()
        if ask is not None:
            ask.scope = scope
        self.nursery.start_soon(self._answer, ask, message, work, scope, name=self.path)

    @trio.lowlevel.enable_ki_protection
    async def _answer(
        self,
        ask: Ask | None,
        message: Message[Any],
        work: Coroutine[Any, Any, Any],
        scope: trio.CancelScope,
    ) -> None:
        failure: BaseException | None = None
        try:
            with scope:
                value = await work
                self._handled += 1
                if ask is not None:
                    ask.reply(value)
        except Exception as error:  # noqa: BLE001 (the asker's)
            failure = error
            self._failed += 1
            if ask is not None:
                ask.fail(error)
            else:
                self.system._dead_letter(self.ref, [message], "it failed", error)
        except BaseException as error:
            failure = error
            if ask is not None and self._halted:
                ask.fail(self._interrupted(restarting=self.restarting))
            elif ask is not None:
                # The actor has failed, and only its supervisor knows what comes of it.
                self._undecided.append(ask)
            raise
        finally:
            if self.system._instruments.active:
                self.system._instruments("message_finished", self.ref, message, failure)
            del failure  # its traceback has this frame in it

    def _unpark(self, _: object) -> trio.lowlevel.Abort:
        self.inbox.receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _handler_of(self, message_type: type) -> Callable[..., Awaitable[Any]] | None:
        """The handler of the nearest base class of a message type, found once per type."""
        handlers = self._type._handlers
        if message_type not in handlers:
            known = (base for base in message_type.__mro__ if handlers.get(base) is not None)
            base = next(known, None)
            handlers[message_type] = None if base is None else handlers[base]
        return handlers[message_type]

    def _refuse(self, entry: Entry, message: Message[Any]) -> None:
        self._unhandled += 1
        self._current = None
        what = f"{self.kind} has no handler for {type(message).__qualname__}"
        kind: Any = self._type  # mypy takes a class for its instances, when it looks for a hash
        method = unmarked_handler(kind, type(message))
        if method is not None:
            what = f"{what}; did you forget @handler on its method {method}?"
        if isinstance(entry, Ask):
            entry.fail(UnhandledMessage(f"{self.path}: {what}", path=self.path))
        else:
            self.system._dead_letter(self.ref, [message], what)

    def _survives(self, entry: Entry, failure: BaseException) -> bool:
        """Return True if the actor takes its next message after a handler failed."""
        if not isinstance(failure, Exception):
            # Cancelled, most likely. If by the supervisor, the asker need not wait for
            # our end to learn of it; if by our own nursery, that will say why.
            if self._halted and (current := self._current) is not None:
                self._current = None
                current.fail(self._interrupted(restarting=self.restarting))
            return False
        self._failed += 1
        asked = isinstance(entry, Ask)
        if isinstance(entry, Ask):
            self._current = None
            entry.fail(failure)
        assert self.parent.supervisor is not None
        if not self.parent.supervisor._resumes(self.name, failure):
            return False
        if not asked:
            self._log_failed(failure)
        return True

    def _log_failed(self, failure: Exception) -> None:
        """Log a failure of a message without an asker."""
        text = "%s: a message failed, and the actor goes on"
        extra = fields(failure, actor=self.path)
        _log.error(text, self.path, exc_info=failure, extra=extra)

    def _interrupted(self, *, restarting: bool) -> ActorRestarted | ActorStopped:
        if not restarting:
            return self._stopped_error()
        return ActorRestarted(
            f"{self.path} was restarted while it handled the message", path=self.path
        )

    def _stopped_error(self) -> ActorStopped:
        error = ActorStopped(f"{self.path} has stopped", path=self.path)
        # An actor that ended with its parent did not fail itself: the parent's failure is why.
        node: TreeNode | None = self
        while node is not None and error.__cause__ is None:
            if isinstance(node, Cell):
                error.__cause__ = node._failure
            node = node.above
        return error

    # --- ends

    def leave(self) -> None:
        """End for good when the message in progress has been handled."""
        self._leaving = self._halted = True
        self.inbox.wake()

    async def stop(self) -> None:
        """End the actor for good, and wait until it has ended."""
        if get_ident() != self.system._thread:
            raise self.elsewhere()
        if self.ended or self.parent.supervisor is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.parent.supervisor.stop_child(self.name)

    async def wait_ended(self) -> BaseException | None:
        """Wait until the actor is gone for good; returns the failure that ended it, if one did."""
        if get_ident() != self.system._thread:
            raise self.elsewhere()
        if self.ended:
            await trio.lowlevel.checkpoint()
        else:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()
        return self._failure

    def watch(self, other: Cell) -> None:
        """Ask for a ``Terminated`` when the other ends, or at once if it has."""
        if self._type._handlers.get(Terminated) is None:
            raise TypeError(
                f"{self.kind} must have a handler for Terminated, because it watches "
                f"{other.path}; add `@handler async def ...(self, message: "
                "Terminated) -> None`"
            )
        if self._watching is None:
            self._watching = {}
        elif other in self._watching:
            return
        self._watching[other] = None
        if other.ended:
            self.inbox.force(Notice(Terminated(other.ref, other._failure), other))
            return
        if other._watchers is None:
            other._watchers = {}
        other._watchers[self] = None

    def unwatch(self, other: Cell) -> None:
        """Take a ``watch`` back."""
        if self._watching is not None and other in self._watching:
            del self._watching[other]
            if other._watchers is not None:
                other._watchers.pop(self, None)

    def _forget_below(self) -> None:
        """End the watches on actors below this one, which a life takes along when it ends.

        Its next life has others there, and need not hear of those.
        """
        for other in [*(self._watching or ())]:
            node: TreeNode | None = other
            while node is not None and node is not self:
                node = node.above
            if node is self:
                self.unwatch(other)

    def _is_expected(self, notice: Notice) -> bool:
        """Return True unless the watch has been taken back since the message was sent."""
        return self._watching is not None and notice.about in self._watching

    def _takes(self, notice: Notice) -> bool:
        """Return True if the actor is to handle a message about an actor that it watches."""
        if not self._is_expected(notice):
            return False
        if self._watching is not None and isinstance(notice.message, Terminated):
            assert isinstance(notice.about, Cell)
            del self._watching[notice.about]
        return True


# What follows calls the user's code, and Ctrl-C may interrupt that. Handlers, which are
# called without a frame between, are marked likewise where they are defined.
