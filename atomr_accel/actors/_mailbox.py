"""Mailboxes: one bounded queue per actor, and what happens when it is full."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import trio

from ._errors import MailboxFull, MessageDropped
from ._messages import Message


class Overflow(enum.Enum):
    """What a full mailbox does with one more message."""

    WAIT = "wait"
    """``send`` and ``ask`` wait for room, first come, first served."""
    REJECT = "reject"
    """``send`` and ``ask`` raise `MailboxFull`."""
    DROP_OLDEST = "drop_oldest"
    """The oldest message makes room: one that was asked is answered with
    `MessageDropped`, one that was told becomes a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """How much a mailbox holds, and what happens when it is full.

    Urgent messages have a queue of their own with the same capacity, which is emptied
    first; they are never dropped. ``tell`` never waits, whatever the policy: where there
    is no room, and none is made, it raises `MailboxFull`, which is a `trio.WouldBlock`.
    """

    capacity: int = 1024
    overflow: Overflow = Overflow.WAIT

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"a mailbox wants a capacity of at least 1, got {self.capacity!r}")


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """A mailbox at one moment."""

    depth: int
    """Messages in it, urgent ones included."""
    urgent: int
    """Urgent messages in it."""
    waiting: int
    """Tasks that wait for room."""
    dropped: int
    """Messages dropped so far to make room for others."""
    capacity: int
    overflow: Overflow


class Ask:
    """A message whose sender is parked until it is answered.

    It is answered once: whoever answers takes the task out, and so does the sender's own
    cancellation.
    """

    __slots__ = ("error", "inbox", "message", "task", "value")

    def __init__(self, message: Message[Any], task: trio.lowlevel.Task, inbox: Inbox) -> None:
        self.message = message
        self.task: trio.lowlevel.Task | None = task
        self.inbox = inbox
        self.value: Any = None
        self.error: BaseException | None = None

    def reply(self, value: Any) -> None:
        if (task := self.task) is not None:
            self.task = None
            self.value = value
            trio.lowlevel.reschedule(task)

    def fail(self, error: BaseException) -> None:
        if (task := self.task) is not None:
            self.task = None
            self.error = error
            trio.lowlevel.reschedule(task)

    def abort(self, _: object) -> trio.lowlevel.Abort:
        self.task = None
        self.inbox.withdraw(self)
        return trio.lowlevel.Abort.SUCCEEDED

    def admitted(self) -> Entry:
        """It waited for room, and there is some now: what to queue."""
        return self


class Sending(Ask):
    """A message whose sender is parked until there is room for it."""

    __slots__ = ()

    def admitted(self) -> Entry:
        self.reply(None)
        return self.message


Entry: TypeAlias = Message[Any] | Ask


class Owner(Protocol):
    """What a mailbox needs to know of its actor."""

    @property
    def path(self) -> str: ...

    def dropped(self, message: Message[Any], /) -> None:
        """A message that was told had to go."""


class Inbox:
    """The queues of one actor. They outlive its restarts.

    ``put`` and ``take`` are the whole of it; the sending and the receiving side repeat
    their short common case in line, where a call would cost as much as the work.
    """

    __slots__ = (
        "capacity",
        "drops",
        "limit",
        "overflow",
        "owner",
        "queue",
        "receiver",
        "task",
        "urgent",
        "waiting",
    )

    def __init__(self, mailbox: Mailbox, owner: Owner) -> None:
        self.capacity = mailbox.capacity
        self.overflow = mailbox.overflow
        self.owner = owner
        self.drops = 0
        # With fewer entries than this, a sender may append without asking: the capacity,
        # or 0 where every message needs a closer look.
        self.limit = self.capacity
        self.queue: deque[Entry] = deque()
        # Rarely needed, so not made before: an idle actor should cost little memory.
        self.urgent: deque[Entry] | None = None
        # Who waits for room, and in which queue. It is full while anyone does.
        self.waiting: deque[tuple[Ask, bool]] | None = None
        # The actor's task, and the same while it is parked for want of messages.
        self.task: trio.lowlevel.Task | None = None
        self.receiver: trio.lowlevel.Task | None = None

    def put(self, entry: Entry, *, urgent: bool) -> bool:
        """Queue an entry; False if there is no room and the policy is to wait for some."""
        queue = self.queue
        if urgent:
            if self.urgent is None:
                self.urgent = deque()
            queue = self.urgent
        if len(queue) >= self.capacity:
            if self.overflow is Overflow.WAIT:
                return False
            if self.overflow is Overflow.REJECT or urgent:
                raise self.full()
            self._drop(queue.popleft())
        queue.append(entry)
        self.wake()
        return True

    def wait(self, ask: Ask, *, urgent: bool) -> None:
        """Let an entry in as soon as there is room."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append((ask, urgent))

    def force(self, message: Message[Any]) -> None:
        """Queue a message of the runtime's own, of which there are few: first, and always."""
        if self.urgent is None:
            self.urgent = deque()
        self.urgent.append(message)
        self.wake()

    def wake(self) -> None:
        if (receiver := self.receiver) is not None:
            self.receiver = None
            trio.lowlevel.reschedule(receiver)

    def take(self) -> Entry:
        """The next entry, of which there is one: urgent ones first."""
        entry = self.urgent.popleft() if self.urgent else self.queue.popleft()
        if self.waiting:
            self.admit()
        return entry

    def admit(self) -> None:
        """An entry has left: let the first in line in whose queue has room."""
        assert self.waiting is not None
        for index, (ask, urgent) in enumerate(self.waiting):
            queue = self.urgent if urgent else self.queue
            assert queue is not None
            if len(queue) < self.capacity:
                del self.waiting[index]
                queue.append(ask.admitted())
                return

    def withdraw(self, ask: Ask) -> None:
        """The sender was cancelled: forget its message unless it was taken already."""
        for queue in (self.queue, self.urgent):
            for index, entry in enumerate(queue or ()):
                if entry is ask:
                    assert queue is not None
                    del queue[index]
                    if self.waiting:
                        self.admit()
                    return
        for index, (waiting, _) in enumerate(self.waiting or ()):
            if waiting is ask:
                assert self.waiting is not None
                del self.waiting[index]
                return

    def close(self) -> list[Entry]:
        """Everything that is left, in the order in which it would have been taken."""
        left = [*(self.urgent or ()), *self.queue, *(ask for ask, _ in self.waiting or ())]
        self.urgent = self.waiting = None
        self.queue.clear()
        self.limit = 0
        return left

    def full(self) -> MailboxFull:
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
            self.owner.dropped(entry)

    def statistics(self) -> MailboxStatistics:
        urgent = len(self.urgent or ())
        return MailboxStatistics(
            depth=len(self.queue) + urgent,
            urgent=urgent,
            waiting=len(self.waiting or ()),
            dropped=self.drops,
            capacity=self.capacity,
            overflow=self.overflow,
        )
