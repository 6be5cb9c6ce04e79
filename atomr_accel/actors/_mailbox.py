"""Mailboxes: one bounded queue per actor, and what happens when it is full."""

from __future__ import annotations

import enum
from collections import deque
from contextvars import Context
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final, Protocol, TypeAlias

import trio

from ..wire.options import count, set_fields
from ._errors import MailboxFull, MessageDropped
from .messages import Message
from .util import check_member


class Overflow(enum.Enum):
    """Action of a full mailbox when one more message arrives, or of a pattern's full queue.

    Patterns, such as batchers, raise `Overloaded` for `MailboxFull` and `Dropped` for
    `MessageDropped`.
    """

    WAIT = "wait"
    """``send`` and ``ask`` wait for room, first come, first served."""
    REJECT = "reject"
    """``send`` and ``ask`` raise `MailboxFull`."""
    DROP_OLDEST = "drop_oldest"
    """The oldest message makes room: an ask is answered with `MessageDropped`, and any other
    message becomes a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """Capacity of a mailbox, and its action when it is full.

    Urgent messages have a queue of their own with the same capacity, which is emptied first; they
    are never dropped. ``tell`` never waits, whatever the policy. If the mailbox is full and no
    message is dropped, it raises `MailboxFull`, which is a `trio.WouldBlock`.
    """

    capacity: int = 1024
    overflow: Overflow = Overflow.WAIT

    def __post_init__(self) -> None:
        set_fields(self, capacity=count(self.capacity, "capacity of a mailbox"))
        check_member("overflow", self.overflow, Overflow)


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """A mailbox at one moment.

    Attributes:
        depth: messages in it, urgent ones included.
        urgent: urgent messages in it.
        waiting: tasks that wait for room.
        dropped: messages dropped so far to make room for others.
        capacity: the maximum number of messages.
        overflow: the action when it is full.
    """

    depth: int
    urgent: int
    waiting: int
    dropped: int
    capacity: int
    overflow: Overflow


NO_CONTEXT: Final = Context()


class TellEntry:
    """A message without an asker, with the context variables of its sender."""

    __slots__ = ("context", "message")

    def __init__(self, message: Message[Any], context: Context) -> None:
        self.message: Final = message
        self.context: Final = context


class Notice(TellEntry):
    """A message of the runtime's own to an actor that watches another."""

    __slots__ = ("about",)

    def __init__(self, message: Message[Any], about: Owner) -> None:
        super().__init__(message, NO_CONTEXT)
        self.about: Final = about


class Ask:
    """A message whose sender is parked until it is answered.

    It is answered once: whoever answers takes the task out, and so does the sender's own
    cancellation.
    """

    __slots__ = ("error", "line", "message", "scope", "task", "value")

    def __init__(self, message: Message[Any], task: trio.lowlevel.Task, line: Line) -> None:
        self.message: Message[Any] = message
        self.task: trio.lowlevel.Task | None = task
        self.line: Line = line
        self.value: Any = None
        self.error: BaseException | None = None
        # Of the task that answers, where the actor has given the message to one.
        self.scope: trio.CancelScope | None = None

    def reply(self, value: Any) -> None:
        """Answer with a value, unless that is late."""
        if (task := self.task) is not None:
            self.task = None
            self.value = value
            trio.lowlevel.reschedule(task)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless that is late."""
        if (task := self.task) is not None:
            self.task = None
            self.error = error
            trio.lowlevel.reschedule(task)

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """The sender is cancelled: take the message back, or cancel the task that answers."""
        self.task = None
        if self.scope is not None:
            self.scope.cancel()
        else:
            self.line.inbox.withdraw(self)
        return trio.lowlevel.Abort.SUCCEEDED

    def admitted(self) -> Entry:
        """Return the entry to queue, now that there is room for it."""
        return self


class Sending(Ask):
    """A message whose sender is parked until there is room for it."""

    __slots__ = ()

    def admitted(self) -> Entry:
        assert self.task is not None  # who was cancelled is in line no more
        context = self.task.context
        self.reply(None)
        return TellEntry(self.message, context.copy())


Entry: TypeAlias = Message[Any] | TellEntry | Ask


def message_of(entry: Entry) -> Message[Any]:
    """Return the message of an entry of any kind."""
    return entry if isinstance(entry, Message) else entry.message


class Owner(Protocol):
    """The part of an actor that its mailbox needs."""

    @property
    def path(self) -> str: ...

    def handles(self, ask: Ask, /) -> bool:
        """Return True if the actor is handling this ask."""

    def dropped(self, message: Message[Any], /) -> None:
        """Handle a message that was dropped and has no asker."""


SWEEP = 32
"""Withdrawn entries that a line keeps in any case."""


class Line:
    """Entries in a row.

    Removing an entry from the middle takes time proportional to the length. So a withdrawn entry
    stays, without its message, until it is in front or half of all entries are withdrawn.
    """

    __slots__ = ("entries", "inbox", "withdrawn")

    def __init__(self, inbox: Inbox) -> None:
        self.inbox: Final = inbox
        self.entries: Final[deque[Entry]] = deque()
        self.withdrawn: int = 0

    def __len__(self) -> int:
        return len(self.entries) - self.withdrawn

    def append(self, entry: Entry) -> None:
        """Put an entry behind the others."""
        if isinstance(entry, Ask):
            entry.line = self
        self.entries.append(entry)

    def pop(self) -> Entry | None:
        """The first that was not withdrawn."""
        while self.entries:
            entry = self.entries.popleft()
            if not _is_withdrawn(entry):
                return entry
            self.withdrawn -= 1
        return None

    def withdraw(self, ask: Ask) -> None:
        """Forget the message of an entry whose asker has left."""
        del ask.message  # it may hold much, and the line may hold the rest for long
        self.withdrawn += 1
        if self.withdrawn > max(SWEEP, len(self)):
            left = self.left()
            self.entries.clear()  # in place: the actor's loop knows it
            self.entries.extend(left)
            self.withdrawn = 0

    def left(self) -> list[Entry]:
        """All that were not withdrawn."""
        return [entry for entry in self.entries if not _is_withdrawn(entry)]


def _is_withdrawn(entry: Entry) -> bool:
    return isinstance(entry, Ask) and entry.task is None


class Inbox:
    """The queues of one actor. They outlive its restarts.

    ``put`` and ``take`` are the whole of it; the sending and the receiving side repeat
    their short common case in line, where a call would cost as much as the work.
    """

    __slots__ = (
        "capacity",
        "closed",
        "drops",
        "limit",
        "line",
        "overflow",
        "owner",
        "queue",
        "receiver",
        "task",
        "thread",
        "urgent",
        "waiting",
        "waiting_urgent",
        "watched",
    )

    def __init__(self, mailbox: Mailbox, owner: Owner) -> None:
        self.thread: Final = get_ident()  # where all of this happens
        self.capacity: Final = mailbox.capacity
        self.overflow: Final = mailbox.overflow
        self.owner: Final = owner
        self.drops: int = 0
        # With fewer entries than this, a sender may append without asking: the capacity and
        # what was withdrawn, or 0 once it takes none.
        self.limit: int = self.capacity
        self.closed: bool = False  # it takes no messages, or none any more
        self.watched: bool = False  # somebody is told of every message
        self.line: Final = Line(self)
        self.queue: Final = self.line.entries
        # Rarely needed, so not made before: an idle actor should cost little memory.
        self.urgent: Line | None = None
        # Who waits for room in either. The queue is full while anyone does.
        self.waiting: Line | None = None
        self.waiting_urgent: Line | None = None
        # The actor's task, and the same while it is parked for want of messages.
        self.task: trio.lowlevel.Task | None = None
        self.receiver: trio.lowlevel.Task | None = None

    def put(self, entry: Entry, *, urgent: bool) -> bool:
        """Queue an entry. Return False if the mailbox is full and its policy is to wait."""
        line = self.line
        if urgent:
            if self.urgent is None:
                self.urgent = Line(self)
            line = self.urgent
        if len(line) >= self.capacity:
            if self.overflow is Overflow.WAIT:
                return False
            if self.overflow is Overflow.REJECT or urgent:
                raise self.full()
            if (oldest := line.pop()) is not None:
                self._drop(oldest)
            self._set_limit()
        line.append(entry)
        self.wake()
        return True

    def wait(self, ask: Ask, *, urgent: bool) -> None:
        """Let an entry in as soon as there is room."""
        if urgent:
            if self.waiting_urgent is None:
                self.waiting_urgent = Line(self)
            self.waiting_urgent.append(ask)
        else:
            if self.waiting is None:
                self.waiting = Line(self)
            self.waiting.append(ask)

    def force(self, notice: Notice) -> None:
        """Queue a message of the runtime's own, of which there are few: first, and always."""
        if self.urgent is None:
            self.urgent = Line(self)
        self.urgent.append(notice)
        self.wake()

    def wake(self) -> None:
        """Let the actor go on, if it is parked."""
        if (receiver := self.receiver) is not None:
            self.receiver = None
            trio.lowlevel.reschedule(receiver)

    def take(self) -> Entry | None:
        """The next entry: urgent ones first."""
        for line in (self.urgent, self.line):
            if line is not None and (entry := line.pop()) is not None:
                self._set_limit()
                self._admit(line)
                return entry
        self._set_limit()
        return None

    def skip(self) -> None:
        """The entry that was in front of the queue had been withdrawn."""
        self.line.withdrawn -= 1
        self._set_limit()

    def _admit(self, line: Line) -> None:
        """Admit the first waiting entry, after another has left."""
        waiting = self.waiting if line is self.line else self.waiting_urgent
        if waiting is not None and len(line) < self.capacity:
            first = waiting.pop()
            if first is not None:
                assert isinstance(first, Ask)
                line.append(first.admitted())

    def withdraw(self, ask: Ask) -> None:
        """The sender was cancelled: forget its message unless it was taken already."""
        if self.owner.handles(ask):
            return
        line = ask.line
        line.withdraw(ask)
        self._set_limit()
        if line is self.line or line is self.urgent:
            self._admit(line)

    def ask_owner(self) -> None:
        """Have senders ask ``accept`` for every message, which may refuse it."""
        self.limit = 0  # and there it stays

    def watch(self, *, watched: bool) -> None:
        """Have whoever sends tell of that, or no more."""
        self.watched = watched

    def _set_limit(self) -> None:
        if self.limit:
            self.limit = self.capacity + self.line.withdrawn

    def close(self) -> list[Entry]:
        """Everything that is left, in the order in which it would have been taken."""
        lines = (self.urgent, self.waiting_urgent, self.line, self.waiting)
        left = [entry for line in lines if line is not None for entry in line.left()]
        self.urgent = self.waiting = self.waiting_urgent = None
        self.queue.clear()
        if not self.closed:  # a part's is closed from the beginning
            self.closed = True
            del self.owner, self.line.inbox  # nobody asks for them now, and they refer to this
        self.line.withdrawn = self.limit = 0
        return left

    def full(self) -> MailboxFull:
        """Return the error for a message that finds no room."""
        path = self.owner.path
        return MailboxFull(f"the mailbox of {path} is full ({self.capacity})", path=path)

    def _drop(self, entry: Entry) -> None:
        self.drops += 1
        if isinstance(entry, Ask):
            path = self.owner.path
            entry.fail(
                MessageDropped(
                    f"{path} dropped a {type(entry.message).__qualname__}, the oldest in its "
                    f"full mailbox ({self.capacity})",
                    path=path,
                )
            )
        else:
            self.owner.dropped(message_of(entry))

    def statistics(self) -> MailboxStatistics:
        """The mailbox at this moment."""
        urgent = len(self.urgent or ())
        return MailboxStatistics(
            depth=len(self.line) + urgent,
            urgent=urgent,
            waiting=len(self.waiting or ()) + len(self.waiting_urgent or ()),
            dropped=self.drops,
            capacity=self.capacity,
            overflow=self.overflow,
        )
