"""Systems: the root of a tree of actors."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import trio

from .._other_names import HasOtherSystemNames
from ..wire.options import several
from ._actor import Actor, ActorRef
from ._errors import NoSuchActor
from ._forked import ending_children
from ._mailbox import Mailbox
from ._policy import RestartType, Supervision
from ._supervision import ChildState
from ._supervisor import Supervisor, SupervisorStatistics
from .blocks import enters, opens
from .cell import Cell, TreeNode
from .instrument import Instrument, Instruments
from .logs import fields
from .messages import Message
from .nursery import PlainNursery
from .util import NoPublicConstructor, check_instance, describe

_log = logging.getLogger("atomr_accel.actors")


@dataclass(frozen=True, slots=True)
class SystemStatistics:
    """A system at one moment.

    Attributes:
        name: the system's name.
        actors: actors in the whole tree.
        dead_letters: messages that were sent without an asker and not handled.
        children: statistics of the supervisor of the actors at the top.
    """

    name: str
    actors: int
    dead_letters: int
    children: SupervisorStatistics


@dataclass(frozen=True, slots=True)
class ActorTree:
    """An actor and those below it, at one moment. ``str(tree)`` draws it."""

    name: str
    path: str
    kind: str
    """The name of the actor's class; for the root, ``"system"``."""
    state: ChildState
    restarts: int
    depth: int
    """Messages in its mailbox; for parts of a device, the ops that are not answered."""
    children: tuple[ActorTree, ...]
    generation: int | None = None
    """Present generation of a device or one of its parts, else None."""
    service: object = field(default=None, hash=False)
    """Statistics of a service, or the exception that its ``statistics()`` raises; else None."""

    def __str__(self) -> str:
        # With a list of what is still to draw: a tree may be deeper than Python's stack.
        lines = []
        todo = [(self, "", "")]
        while todo:
            node, first, rest = todo.pop()
            generation = "" if node.generation is None else f"  generation={node.generation}"
            lines.append(
                f"{first}{node.name}  {node.kind}  {node.state.value}  "
                f"restarts={node.restarts}  mailbox={node.depth}{generation}"
            )
            for child in reversed(node.children):
                last = child is node.children[-1]
                todo.append(
                    (
                        child,
                        rest + ("└── " if last else "├── "),
                        rest + ("    " if last else "│   "),
                    )
                )
        return "\n".join(lines)


class ActorSystem(HasOtherSystemNames, metaclass=NoPublicConstructor):
    """A tree of actors, and the root of it. `open_actor_system` makes one."""

    _made_by: ClassVar[str] = "open_actor_system(name)"

    def __init__(
        self,
        name: str,
        nursery: trio.Nursery,
        supervision: Supervision,
        instruments: Instruments,
    ) -> None:
        self.name = name
        self._instruments = instruments
        self.root: Final = TreeNode(self, "", supervision)
        self.root._nursery = nursery
        self._supervisor = Supervisor.construct(name, nursery, supervision, self.root)
        self.root.supervisor = self._supervisor
        self.lost: int = 0
        self._thread = threading.get_ident()
        self._thread_name = threading.current_thread().name
        instruments.follow(self._watch_messages)

    def __repr__(self) -> str:
        return f"<ActorSystem {self.name!r}>"

    async def spawn(
        self,
        actor_type: type[Actor],
        /,
        *args: Any,
        name: str | None = None,
        supervisor: ActorRef | None = None,
        restart: RestartType = RestartType.PERMANENT,
        grace: float = 5.0,
        significant: bool = False,
        mailbox: Mailbox | None = None,
        supervision: Supervision | None = None,
        **kwargs: Any,
    ) -> ActorRef:
        """Start an actor, and wait until it has started.

        If you are cancelled meanwhile, the actor is stopped again.

        Args:
            actor_type: the class of the actor.
            *args: for its constructor, at each start.
            name: its name among its siblings. By default, one made from the class's.
            supervisor: the actor that is to be its parent. By default, the system.
            restart: when it is restarted.
            grace: the seconds that ``stopping`` may take, and after which an actor that
                has not left is reported.
            significant: its end ends its parent, as ``auto_shutdown`` says.
            mailbox: in place of the class's.
            supervision: how it supervises its own children, in place of the class's.
            **kwargs: for its constructor. Arguments of the names above can be passed
                by position.

        Returns:
            The actor's address.

        Raises:
            NameTaken: its parent has a child of that name.
            SupervisorStopped: its parent does not run.
            ChildStopped: it was stopped before it had started.
            Exception: what its constructor or ``started`` raised. It is then not kept.
        """
        given: object = supervisor
        if given is not None and not isinstance(given, ActorRef):
            raise TypeError(
                "supervisor must be the ref of the actor that is to be the parent, "
                f"not {given!r}; how an actor supervises its own children is its "
                "`supervision`"
            )
        parent = self.root if supervisor is None else supervisor._cell
        return await parent.spawn(
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

    def find(self, path: str) -> ActorRef:
        """The actor of a path such as ``"/device-0/context/blas"``.

        Raises:
            NoSuchActor: there is none, or none any more.
        """
        check_instance("a path", path, str)
        if not path.startswith("/"):
            raise ValueError(f"a path must start with '/', not {path!r}")
        node = self.root
        for name in path[1:].split("/"):
            if name not in node.children:
                there = ", ".join(node.children) or "none"
                raise NoSuchActor(
                    f"there is no {path}: {node.path or 'the system'} has no child {name!r}; "
                    f"its children: {there}",
                    path=path,
                )
            node = node.children[name]
        assert isinstance(node, Cell)
        return node.ref

    def tree(self) -> ActorTree:
        """The system and all its actors at this moment."""
        below: dict[TreeNode, tuple[ActorTree, ...]] = {}
        for node in reversed(_nodes(self.root)):  # whoever is below comes first
            below[node] = tuple(_drawn(cell, below.pop(cell)) for cell in node.children.values())
        return ActorTree(
            name=self.name,
            path="/",
            kind="system",
            state=ChildState.RUNNING,
            restarts=0,
            depth=0,
            children=below[self.root],
        )

    def statistics(self) -> SystemStatistics:
        """The system at this moment."""
        return SystemStatistics(
            name=self.name,
            actors=len(_nodes(self.root)) - 1,
            dead_letters=self.lost,
            children=self._supervisor.statistics(),
        )

    @enters
    def instrumented(self, instrument: Instrument) -> Iterator[None]:
        """Tell an instrument what happens in the system, for the length of a ``with`` block.

        Args:
            instrument: what to tell, as those of ``open_actor_system(instruments=...)``.

        Raises:
            TypeError: the argument is not an Instrument.
        """
        self._instruments.add(instrument)
        try:
            yield
        finally:
            self._instruments.remove(instrument)

    def tell_instruments(self) -> None:
        """Deliver late events to instruments now. Otherwise they arrive some dozens at a time."""
        self._instruments.tell()

    def _watch_messages(self) -> None:
        """Have senders tell instruments, or no more."""
        watched = self._instruments.wants("message_sent", "ask_ended")
        for node in _nodes(self.root):
            if isinstance(node, Cell):
                node.inbox.watch(watched=watched)

    def _elsewhere(self, path: str) -> RuntimeError:
        # A message would wake a task of another loop: refused before anything has happened.
        return RuntimeError(
            f"{path} lives in the trio.run of thread {self._thread_name!r} and is used in thread "
            f"{threading.current_thread().name!r}; call it in its own: "
            "trio.from_thread.run(ref.ask, message, trio_token=token), or run_sync for "
            "ref.tell, with the token of that run: trio.lowlevel.current_trio_token()"
        )

    def _dead_letter(
        self,
        ref: ActorRef,
        messages: Sequence[Message[Any]],
        reason: str,
        cause: Exception | None = None,
    ) -> None:
        # For the cells; the public side is the log, the statistics and `Instrument`.
        self.lost += len(messages)
        if cause is not None:
            reason = f"{reason}: {describe(cause)}"
        _log.warning(
            "%d dead letter%s for %s, the first a %s: %s",
            len(messages),
            "" if len(messages) == 1 else "s",
            ref.path,
            type(messages[0]).__qualname__,
            reason,
            exc_info=cause,
            extra=fields(cause, actor=ref.path),
        )
        if self._instruments.active:
            for message in messages:
                self._instruments("dead_letter", ref, message, reason)


def _drawn(cell: Cell, children: tuple[ActorTree, ...]) -> ActorTree:
    condition = cell.condition()
    return ActorTree(
        name=cell.name,
        path=cell.path,
        kind=cell.kind,
        state=condition.state,
        restarts=condition.restarts,
        depth=condition.depth,
        children=children,
        generation=condition.generation,
        service=cell.service(),
    )


def _nodes(root: TreeNode) -> list[TreeNode]:
    """A node and all below it, each before its children."""
    nodes = [root]
    for node in nodes:
        nodes += node.children.values()
    return nodes


@opens
async def open_actor_system(
    name: str,
    *,
    supervision: Supervision = Supervision(),  # noqa: B008 (frozen)
    instruments: Iterable[Instrument] = (),
) -> AsyncIterator[ActorSystem]:
    """Open a system of actors, which live until the block is left.

    Leaving the block stops them in reverse order of their start, each after its own
    children. When the supervision at the top gives up, the body is cancelled and the
    failure leaves the block; where several things failed, a group of them does. An actor
    that waited for one that was stopped before it has not failed.

    Args:
        name: for logs and the tree.
        supervision: how the actors at the top are supervised.
        instruments: objects to tell what happens in the system.
    """
    async with opened(ActorSystem, name, supervision, instruments) as system:
        yield system


S = TypeVar("S", bound=ActorSystem)

Companion = Callable[["ActorSystem"], AbstractAsyncContextManager[object]]
"""A context manager that is opened next to a system, and closed before it."""

_companions: list[Companion] = []


@enters
def beside_systems(companion: Companion) -> Iterator[None]:
    """Open something beside each system that this process opens while the block runs.

    It is for tools that run and observe another program.
    """
    _companions.append(companion)
    try:
        yield
    finally:
        _companions.remove(companion)


@asynccontextmanager
async def opened(
    kind: type[S], name: str, supervision: Supervision, instruments: Iterable[Instrument] = ()
) -> AsyncIterator[S]:
    """Open a system that is an instance of ``kind``; see `open_actor_system`."""
    check_instance("a system's name", name, str)
    check_instance("supervision", supervision, Supervision)
    hooks = Instruments(several(instruments, "instruments"))
    async with PlainNursery() as nursery:
        system = kind.construct(name, nursery, supervision, hooks)
        try:
            async with AsyncExitStack() as stack:
                for companion in _companions:
                    await stack.enter_async_context(companion(system))
                with ending_children():
                    yield system
        finally:
            await system._supervisor._close()
