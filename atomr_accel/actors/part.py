"""Parts: places in the tree for tasks that are no actors, such as the contexts of a device.

They have a path, a state and a ref that can be watched, and are supervised like any actor. Those
with statistics answer `GetStatistics`; they take no other messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, final

import trio

from ._actor import Actor
from ._errors import UnhandledMessage
from ._mailbox import Ask, Entry, Mailbox, message_of
from ._policy import ChildSpec, RestartType, Supervision
from ._supervision import ChildState
from .cell import Cell, TreeNode
from .messages import GetStatistics
from .nursery import PlainNursery

Run = Callable[..., Awaitable[None]]


class _PartStatus:
    """Object that a part's function gets as ``task_status``."""

    __slots__ = ("_part", "_status")

    def __init__(self, part: Part, status: trio.TaskStatus[Any]) -> None:
        self._part = part
        self._status = status

    @trio.lowlevel.enable_ki_protection
    def started(self, value: Any = None) -> None:
        self._part._was_up = True
        self._status.started(value)
        self._part._has_started()


@final
class Part(Cell):
    """A part of an actor: a task that its supervisor restarts, or a node without a task.

    Parts without a task live from ``place`` to ``end``, and end with their parent.

    Args:
        parent: the cell to which the part belongs.
        name: among the children of that.
        kind: for the tree.
        run: like that of a `ChildSpec`; it looks after its own protection from Ctrl-C. None
            for a part without a task.

    Attributes:
        followers: functions to call when it restarts, in addition to its watchers.
    """

    __slots__ = ("_kind", "_run", "followers")

    def __init__(self, parent: TreeNode, name: str, kind: str, run: Run | None) -> None:
        super().__init__(
            parent,
            name,
            Actor,
            (),
            {},
            RestartType.PERMANENT,
            5.0,
            Mailbox(),
            Supervision(),
        )
        self._kind = kind
        self._run = run
        self.followers: list[Callable[[BaseException | None], None]] = []
        self.inbox.close()  # every message passes through `accept`

    @property
    def kind(self) -> str:
        """Kind of the part, for display."""
        return self._kind

    @property
    def state(self) -> ChildState:
        """State of the part."""
        if self._run is None:
            return ChildState.ENDED if self.ended else ChildState.RUNNING
        return super().state

    def accept(self, entry: Entry, *, urgent: bool) -> bool:  # noqa: ARG002 (no queue here)
        """Refuse it: a part takes no messages, but for the question for its statistics."""
        if self.ended:
            raise self._stopped_error()
        message = message_of(entry)
        if self.served is not None and isinstance(message, GetStatistics) and type(entry) is Ask:
            # The asker is about to park, and is answered then. There is no queue that the message
            # could be withdrawn from, if it is cancelled before.
            entry.scope = trio.CancelScope()
            trio.lowlevel.current_trio_token().run_sync_soon(self._answer_statistics, entry)
            return True
        raise UnhandledMessage(
            f"{self.path} takes no messages, and got a {type(message).__qualname__}; send it to "
            "an actor, such as that of a library",
            path=self.path,
        )

    def _answer_statistics(self, ask: Ask) -> None:
        if ask.task is None:  # it was cancelled
            return
        if self.served is None:
            ask.fail(self._stopped_error())
            return
        try:
            ask.reply(self.served())
        except Exception as error:  # noqa: BLE001 (the asker's)
            ask.fail(error)

    async def stop(self) -> NoReturn:
        """Raise `RuntimeError`. A part ends with the actor that it belongs to."""
        raise RuntimeError(f"{self.path} is a part of {self.parent.path}: stop that")

    def announce(self, cause: BaseException | None) -> None:
        """Tell those who watch or follow of a restart."""
        super().announce(cause)
        for follow in self.followers:
            follow(cause)

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[Any]) -> None:
        """The whole of one life. The parent's supervisor runs it, once for each."""
        assert self._run is not None
        try:
            await self._run(task_status=_PartStatus(self, task_status))
        except Exception:
            self._failing(unprompted=not self._halted)
            raise
        finally:
            for child in [*self.children.values()]:
                child.end()


@final
class Annex(TreeNode):
    """A second supervisor at an actor's place in the tree, whose children outlast its lives.

    They are shown among the actor's own children, and end when it ends for good.
    """

    __slots__ = ("_cells", "_over", "_owner")

    def __init__(self, owner: Cell) -> None:
        super().__init__(owner.system, owner.path, owner._supervision)
        self.children: dict[str, Cell] = owner.children
        self._owner = owner
        # Those that the supervisor has not removed. They leave the tree before that.
        self._cells: dict[str, Cell] = {}
        self._over = trio.Event()

    @property
    def above(self) -> TreeNode | None:
        """The actor."""
        return self._owner

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Supervise children until ``end`` is called."""
        # If the start is cancelled, ``started`` leaves this task where it is, and waits for its
        # end, which the shield would prevent. Nothing is awaited from here until then.
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            async with PlainNursery() as nursery:
                self._nursery = nursery
                task_status.started()
                try:
                    await self._over.wait()
                finally:
                    self._nursery = None
                    await self._close_supervisor()
                    nursery.cancel_scope.cancel()

    def end(self) -> None:
        """End the children, and answer all who wait for them."""
        for cell in [*self._cells.values()]:
            cell.end()
        self._over.set()

    def child_starting(self, name: str, cause: BaseException | None) -> None:
        """A child begins a life."""
        self._cells.setdefault(name, self.children[name]).starting(cause)

    def child_stopping(self, name: str, *, restarting: bool) -> None:
        """Handle a request to end a child."""
        self._cells[name].halting(restarting=restarting)

    def child_exited(self, name: str, failure: BaseException | None) -> bool:
        """Handle the end of a child's life."""
        return self._cells[name].exited(failure)

    def child_removed(self, name: str) -> None:
        """A child is gone for good."""
        self._cells.pop(name).end()


async def start_part(part: Part) -> None:
    """Start the task of a part, and wait until it has started."""
    await part.parent.start(part, ChildSpec(part.name, part.run))


def place(parent: TreeNode, name: str, kind: str) -> Part:
    """Put up a part that has no task of its own."""
    part = parent.children[name] = Part(parent, name, kind, None)
    return part
