"""Actors and their refs: what a program writes, and what others hold and send messages to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, final

import trio

from ._mailbox import Ask, Mailbox, Sending, TellEntry
from ._policy import RestartType, Supervision
from .messages import Message, collect_handlers
from .util import NoPublicConstructor

if TYPE_CHECKING:
    from .cell import Cell
    from .condition import ActorStatistics
    from .system import ActorSystem

R = TypeVar("R")

_HOOKS = ("started", "restarting", "stopping")


@final
class ActorRef(metaclass=NoPublicConstructor):
    """The address of an actor.

    It stays valid while the actor is restarted: messages wait in the mailbox until it
    is back. Once the actor has ended for good, everything that needs it raises
    `ActorStopped`; in another thread than the system's, it raises `RuntimeError`. Refs are
    compared by identity, and an actor has one for all its life.
    """

    _made_by: ClassVar[str] = "what system.spawn(...) returns"
    __slots__ = ("__weakref__", "_cell", "_inbox")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._inbox = cell.inbox

    def __repr__(self) -> str:
        return f"<ActorRef {self._cell.path}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the ref of {self.path} cannot be pickled or copied: an actor has one for all its "
            "life, in its own process. Pass the ref itself, or its path for `system.find`"
        )

    @property
    def name(self) -> str:
        """The actor's name among its siblings."""
        return self._cell.name

    @property
    def kind(self) -> str:
        """The name of the actor's class, as metrics count it."""
        return self._cell.kind

    @property
    def path(self) -> str:
        """Its name and those of its parents, such as ``"/device-0/context/blas"``."""
        return self._cell.path

    @property
    def stopped(self) -> bool:
        """True if the actor has ended for good."""
        return self._cell.ended

    # The three ways to send share their common case: there is room.
    # It is written out in each, since they are most of what a program of actors runs.
    # They are protected from Ctrl-C, which must not fall between queueing and parking.

    @trio.lowlevel.enable_ki_protection
    def tell(self, message: Message[Any], *, urgent: bool = False) -> None:
        """Send a message without waiting for anything.

        Whether it is handled, and with what result, you don't learn. A message the
        actor has no handler for, or did not get to, is a dead letter. A handler that
        fails on it is a failure of the actor.

        Args:
            message: what to send.
            urgent: ahead of all messages that are not.

        Raises:
            MailboxFull: the mailbox is full (a `trio.WouldBlock`).
            ActorStopped: the actor has ended for good.
            RuntimeError: the actor lives in the trio run of another thread.
        """
        if not isinstance(message, Message):
            _not_a_message(message, "tell")
        inbox = self._inbox
        if get_ident() != inbox.thread:
            raise self._cell.elsewhere()
        context, task = copy_context(), inbox.task
        same = task is not None and context == task.context
        entry = message if same else TellEntry(message, context)
        if urgent or len(inbox.queue) >= inbox.limit:
            if not self._cell.accept(entry, urgent=urgent):
                raise inbox.full()
        else:
            inbox.queue.append(entry)
            if (receiver := inbox.receiver) is not None:
                inbox.receiver = None
                trio.lowlevel.reschedule(receiver)
            if inbox.watched:
                self._cell.system._instruments("message_sent", self, message)

    @trio.lowlevel.enable_ki_protection
    async def send(self, message: Message[Any], *, urgent: bool = False) -> None:
        """Send a message like `tell`, but wait for room where the mailbox is full.

        If you are cancelled, the message was not sent.

        Args:
            message: what to send.
            urgent: ahead of all messages that are not.

        Raises:
            MailboxFull: the mailbox is full, and its policy is to reject.
            ActorStopped: the actor has ended for good, perhaps while you waited.
        """
        if not isinstance(message, Message):
            _not_a_message(message, "send")
        if get_ident() != self._inbox.thread:
            raise self._cell.elsewhere()
        await trio.lowlevel.checkpoint_if_cancelled()
        inbox = self._inbox
        context = copy_context()
        if self._cell.accept(TellEntry(message, context), urgent=urgent):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        sending = Sending(message, trio.lowlevel.current_task(), inbox.line)
        self._cell.line_up(sending, urgent=urgent)
        await trio.lowlevel.wait_task_rescheduled(sending.abort)
        if sending.error is not None:
            error, sending.error = sending.error, None
            try:
                raise error
            finally:
                del error

    @trio.lowlevel.enable_ki_protection
    async def ask(self, message: Message[R], *, urgent: bool = False) -> R:
        """Send a message and wait for the answer.

        There is always one: the reply, what the handler raised, one of the errors
        below, or your own cancellation. A message that the actor has not begun to
        handle when you are cancelled is taken back; one that it has, it handles to the
        end, and its reply is dropped.

        Args:
            message: what to send.
            urgent: ahead of all messages that are not.

        Returns:
            What the handler returned.

        Raises:
            UnhandledMessage: the actor has no handler for it.
            ActorStopped: the actor has ended for good, perhaps with this message.
            ActorRestarted: it was restarted while it handled this message, and not
                because of it.
            MailboxFull: the mailbox is full, and its policy is to reject.
            MessageDropped: the message was dropped for another, as is the mailbox's policy.
            Exception: what the handler raised.
        """
        if not isinstance(message, Message):
            _not_a_message(message, "ask")
        inbox = self._inbox
        if get_ident() != inbox.thread:
            raise self._cell.elsewhere()
        task = trio.lowlevel.current_task()
        if task is inbox.task:
            raise RuntimeError(
                f"{self._cell.path} asks itself, and would wait for ever: it handles one message "
                "at a time. Call the method instead, or ask from a task in self.nursery"
            )
        ask = Ask(message, task, inbox.line)
        if urgent or len(inbox.queue) >= inbox.limit:
            await trio.lowlevel.checkpoint_if_cancelled()  # no message of ours drops another's
            if not self._cell.accept(ask, urgent=urgent):
                self._cell.line_up(ask, urgent=urgent)
        else:
            inbox.queue.append(ask)
            if (receiver := inbox.receiver) is not None:
                inbox.receiver = None
                trio.lowlevel.reschedule(receiver)
            if inbox.watched:
                self._cell.system._instruments("message_sent", self, message)
        try:
            await trio.lowlevel.wait_task_rescheduled(ask.abort)
        finally:
            if inbox.watched:
                self._cell.system._instruments("ask_ended", self, message)
        if ask.error is not None:
            # Who asked takes it: the frames it has come through refer to what they answered.
            error, ask.error = ask.error, None
            try:
                raise error
            finally:
                del error  # the traceback has this frame in it
        return ask.value  # type: ignore[no-any-return]

    async def stop(self) -> None:
        """Stop the actor for good, and wait until it has ended.

        Its scope is cancelled, a handler in progress included. If it has ended already
        this does nothing. If you are cancelled meanwhile, it still stops.

        Raises:
            Exception: what the actor raised on its way out.
        """
        await self._cell.stop()

    async def wait_stopped(self) -> BaseException | None:
        """Wait until the actor has ended for good.

        Returns:
            The failure that ended it, if one did: a copy with its causes and without tracebacks,
            which would keep what the actor had at work. The log has the failure itself.
        """
        return await self._cell.wait_ended()

    def statistics(self) -> ActorStatistics:
        """The actor at this moment. Works also once it has ended."""
        return self._cell.statistics()


def _not_a_message(message: object, method: str) -> NoReturn:
    if isinstance(message, type) and issubclass(message, Message):
        raise TypeError(
            f"argument of {method} must be a message, not {message.__qualname__}; "
            f"write `ref.{method}({message.__qualname__}(...))`"
        )
    raise TypeError(
        f"argument of {method} must be an instance of a subclass of Message, not {message!r}"
    )


class Terminated(Message[None]):
    """An actor that this one watches has ended for good.

    Attributes:
        ref: the actor that ended.
        cause: the failure that ended it, if one did: a copy without tracebacks.
    """

    ref: ActorRef
    cause: BaseException | None


class Restarted(Message[None]):
    """An actor that this one watches has been started again: its state is a new one.

    Only actors with a handler for it receive it. For a device and its libraries it means that the
    device was rebuilt.

    Attributes:
        ref: the actor that was started again.
        cause: the failure, its own or a sibling's, that made it necessary.
    """

    ref: ActorRef
    cause: BaseException | None


class Actor:
    """Base of all actors: state of its own, changed by one message at a time.

    ::

        class Counter(Actor):
            def __init__(self, start: int = 0) -> None:
                self.total = start

            @handler
            async def add(self, message: Add) -> int:
                self.total += message.k
                return self.total

    Make one with ``await system.spawn(Counter, start=3)``. An instance is one life of the actor:
    for a restart, a new one is made from the same arguments, while the ref, the mailbox and the
    name stay. You need not call ``super().__init__()``.

    Attributes:
        mailbox: the mailbox of instances; ``spawn(mailbox=...)`` takes precedence.
        supervision: how the actor supervises its children, likewise.
    """

    mailbox: ClassVar[Mailbox] = Mailbox()
    supervision: ClassVar[Supervision] = Supervision()

    _handlers: ClassVar[dict[type, Callable[..., Any] | None]] = {}
    _cell: Cell

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for hook in _HOOKS:
            if not inspect.iscoroutinefunction(getattr(cls, hook)):
                raise TypeError(
                    f"{cls.__qualname__}.{hook} must be an async function: write "
                    f"`async def {hook}(...)`"
                )
        for name, attribute in vars(cls).items():
            if hasattr(attribute, "__handles__") and hasattr(Actor, name):
                raise TypeError(
                    f"handler {cls.__qualname__}.{name} must have another name, "
                    f"because every actor has a {name!r} of its own"
                )
        cls._handlers = dict(collect_handlers(cls))

    # --- hooks

    async def started(self) -> None:
        """Called in each life before the first message.

        ``spawn`` returns when this has. If it raises, the actor has not started: the
        first time, that is raised by ``spawn``; later, it counts as a failure.
        """

    async def restarting(self, cause: BaseException | None) -> None:
        """Called before ``started`` in each life but the first.

        Args:
            cause: the failure, this actor's or a sibling's, that made it necessary.
        """

    async def stopping(self) -> None:
        """Called at the end of each life in which ``started`` was completed.

        The children have been stopped by then. It is shielded from the cancellation
        that may be under way, and is itself cancelled when the actor's grace is over.
        """

    # --- what an actor has at hand

    @property
    def ref(self) -> ActorRef:
        """The actor's own address."""
        return self._cell.ref

    @property
    def system(self) -> ActorSystem:
        """The system it belongs to."""
        return self._cell.system

    @property
    def nursery(self) -> trio.Nursery:
        """A nursery for tasks that work for the actor beside its handlers.

        They are cancelled when this life of the actor ends, before ``stopping``. If one
        fails, that is a failure of the actor.
        """
        return self._cell.nursery

    async def spawn(
        self,
        actor_type: type[Actor],
        /,
        *args: Any,
        name: str | None = None,
        restart: RestartType = RestartType.PERMANENT,
        grace: float = 5.0,
        significant: bool = False,
        mailbox: Mailbox | None = None,
        supervision: Supervision | None = None,
        **kwargs: Any,
    ) -> ActorRef:
        """Start a child of this actor. See `ActorSystem.spawn`.

        It lives in this actor's nursery, supervised as ``supervision`` says, and is
        stopped when this life of the actor ends. So a child that is to be there in each
        life is spawned in ``started``.
        """
        return await self._cell.spawn(
            actor_type,
            args,
            kwargs,
            name=name,
            restart=restart,
            grace=grace,
            significant=significant,
            mailbox=mailbox,
            supervision=supervision,
        )

    def watch(self, ref: ActorRef) -> None:
        """Ask for a `Terminated` message when another actor ends for good.

        It comes at once if that has happened, is urgent, and needs no room in the mailbox. To watch
        twice is to watch once. If this actor has a handler for `Restarted`, it gets the other's
        restarts, too. A restart of either does not end the watch, with one exception: actors below
        this one end with its life, and their messages with them.

        Raises:
            TypeError: this actor has no handler for `Terminated`.
        """
        self._cell.watch(ref._cell)

    def unwatch(self, ref: ActorRef) -> None:
        """Take back a `watch`. Messages about it that are in the mailbox are not handled."""
        self._cell.unwatch(ref._cell)

    def stop(self) -> None:
        """End the actor for good when the message in progress has been handled."""
        self._cell.leave()


class Group(Actor):
    """An actor that does nothing but supervise: a named level in the tree.

    ::

        workers = await system.spawn(
            Group, name="workers", supervision=Supervision(strategy=Strategy.ONE_FOR_ALL)
        )
        await system.spawn(Worker, name="a", supervisor=workers)
    """
