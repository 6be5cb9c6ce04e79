"""The base class of actors: the methods to override, and those to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from ._mailbox import Mailbox
from ._policy import RestartType, Supervision
from ._ref import ActorRef
from .messages import Message, collect_handlers

if TYPE_CHECKING:
    from .cell import Cell
    from .system import ActorSystem

_HOOKS = ("started", "restarting", "stopping")


class Terminated(Message[None]):
    """An actor that this one watches has ended for good.

    Attributes:
        ref: the actor that ended.
        cause: the failure that ended it, if one did.
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

        It comes at once if that has happened, is urgent, and needs no room in the mailbox. If this
        actor has a handler for `Restarted`, it gets the other's restarts, too. A restart of either
        does not end the watch.

        Raises:
            TypeError: this actor has no handler for `Terminated`.
        """
        self._cell.watch(ref._cell)

    def unwatch(self, ref: ActorRef) -> None:
        """Take back a `watch`. A `Terminated` that is in the mailbox already stays there."""
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
