"""Cells: the lives of an actor from one end to the other, and its place in the tree."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from ._actor import Actor, Terminated
from ._errors import (
    ActorRestarted,
    ActorStopped,
    NameTaken,
    SupervisorStopped,
    UnhandledMessage,
)
from ._mailbox import Ask, Entry, Inbox, Mailbox, MailboxStatistics
from ._messages import Message
from ._ref import ActorRef
from ._supervision import ChildSpec, ChildState, Directive, RestartType, Supervision, judge
from ._supervisor import Supervisor, SupervisorStatistics

if TYPE_CHECKING:
    from ._system import ActorSystem

_log = logging.getLogger("atomr_accel.actors")

BATCH = 64
"""Messages an actor handles before it lets other tasks run, if no handler of them did."""


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """An actor at one moment."""

    path: str
    kind: str
    """The name of its class."""
    state: ChildState
    restarts: int
    handled: int
    """Messages handled in all its lives, failures not included."""
    failed: int
    """Messages that a handler failed on."""
    unhandled: int
    """Messages that there is no handler for."""
    mailbox: MailboxStatistics
    children: SupervisorStatistics | None
    """How it supervises its children; None if it has had none in this life."""


class Node:
    """A place in the tree that can have children: the root, or an actor's cell."""

    __slots__ = ("_nursery", "_serial", "_supervision", "children", "path", "supervisor", "system")

    def __init__(self, system: ActorSystem, path: str, supervision: Supervision) -> None:
        self.system = system
        self.path = path
        self.children: dict[str, Cell] = {}
        self.supervisor: Supervisor | None = None
        self._supervision = supervision
        self._nursery: trio.Nursery | None = None
        self._serial = 0

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
        if not isinstance(actor_type, type) or not issubclass(actor_type, Actor):
            raise TypeError(
                f"spawn takes a subclass of Actor and the arguments for it, got {actor_type!r}; "
                "write `await system.spawn(Counter, start=3)`"
            )
        if name is None:
            self._serial += 1
            name = f"{actor_type.__name__.lower()}-{self._serial}"
        elif not name or "/" in name:
            raise ValueError(f"an actor's name must not be empty nor contain '/', got {name!r}")
        if name in self.children:
            raise NameTaken(
                f"there is an actor {self.path}/{name} already; stop it first or choose another name"
            )
        if self._nursery is None:
            raise SupervisorStopped(
                f"cannot start {self.path}/{name}: {self.path or 'the system'} is not running"
            )
        if self.supervisor is None:
            label = f"{self.system.name}:{self.path}" if self.path else self.system.name
            self.supervisor = Supervisor._create(label, self._nursery, self._supervision, self)
        cell = Cell(
            self,
            name,
            actor_type,
            args,
            kwargs,
            mailbox or actor_type.mailbox,
            supervision or actor_type.supervision,
        )
        spec = ChildSpec(name, cell.run, restart, grace, significant)
        self.children[name] = cell
        try:
            await self.supervisor.start_child(spec)
        except BaseException:
            cell.end()  # unless the supervisor has told us so already
            raise
        return cell.ref

    # --- what the supervisor tells

    def child_starting(self, name: str, cause: BaseException | None) -> None:
        self.children[name].starting(cause)

    def child_stopping(self, name: str, *, restarting: bool) -> None:
        self.children[name].halting(restarting=restarting)

    def child_removed(self, name: str) -> None:
        self.children[name].end()


class Cell(Node):
    """One actor, from its first start to its end, through all its restarts."""

    __slots__ = (
        "_arguments",
        "_cause",
        "_current",
        "_ended",
        "_failed",
        "_failure",
        "_halted",
        "_handled",
        "_leaving",
        "_lives",
        "_type",
        "_unhandled",
        "_watchers",
        "_watching",
        "ended",
        "inbox",
        "name",
        "parent",
        "ref",
    )

    def __init__(
        self,
        parent: Node,
        name: str,
        actor_type: type[Actor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mailbox: Mailbox,
        supervision: Supervision,
    ) -> None:
        super().__init__(parent.system, f"{parent.path}/{name}", supervision)
        self.parent = parent
        self.name = name
        self._type = actor_type
        self._arguments = (args, kwargs)
        self.inbox = Inbox(mailbox, self)
        self.ref = ActorRef._create(self)
        self.ended = False
        # What was asked and is being handled, so that it is answered come what may.
        self._current: Ask | None = None
        # How many times it was started, and the failure that the last start is owed to.
        self._lives = 0
        self._cause: BaseException | None = None
        # How the last life ended, if by a failure.
        self._failure: BaseException | None = None
        # Why the loop is to end: its scope was cancelled, to be restarted or not, or it
        # asked for its own end.
        self._halted: str | None = None
        self._leaving = False
        self._handled = self._failed = self._unhandled = 0
        self._ended: trio.Event | None = None
        self._watchers: set[Cell] | None = None
        self._watching: set[Cell] | None = None
        if self.system.instruments is not None:
            self.inbox.limit = 0

    @property
    def kind(self) -> str:
        return self._type.__name__

    @property
    def restarts(self) -> int:
        return max(0, self._lives - 1)

    @property
    def nursery(self) -> trio.Nursery:
        if self._nursery is None:
            raise RuntimeError(f"{self.path} does not run, so it has no nursery; see `started`")
        return self._nursery
