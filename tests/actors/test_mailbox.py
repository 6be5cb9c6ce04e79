"""Mailboxes: order, room, and full queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    ActorSystem,
    Mailbox,
    MailboxFull,
    Message,
    MessageDropped,
    Overflow,
    handler,
    open_actor_system,
)


class Note(Message[int]):
    n: int


class Gate(Message[None]):
    until: trio.Event


class Scribe(Actor):
    def __init__(self, log: list[int]) -> None:
        self.log = log

    @handler
    async def note(self, message: Note) -> int:
        self.log.append(message.n)
        return message.n

    @handler
    async def gate(self, message: Gate) -> None:
        await message.until.wait()


class Desk:
    """A scribe that is busy until the gate opens, and the outcome of its messages."""

    def __init__(self, system: ActorSystem, scribe: ActorRef, nursery: trio.Nursery) -> None:
        self.system = system
        self.scribe = scribe
        self.nursery = nursery
        self.gate = trio.Event()
        self.log: list[int] = []
        self.outcomes: dict[int, Any] = {}
        self.scopes: dict[int, trio.CancelScope] = {}

    async def start(self, method: str, n: int, *, urgent: bool = False) -> None:
        """Ask or send in a task of its own, and let it get as far as it can."""

        async def run() -> None:
            self.scopes[n] = trio.CancelScope()
            with self.scopes[n]:
                try:
                    self.outcomes[n] = await getattr(self.scribe, method)(Note(n), urgent=urgent)
                except (MailboxFull, MessageDropped, ActorStopped) as exc:
                    self.outcomes[n] = type(exc)

        self.nursery.start_soon(run)
        await wait_all_tasks_blocked()

    async def open(self) -> list[int]:
        self.gate.set()
        await wait_all_tasks_blocked()
        return self.log


@asynccontextmanager
async def desk(capacity: int, overflow: Overflow = Overflow.WAIT) -> AsyncIterator[Desk]:
    async with open_actor_system("demo") as system, trio.open_nursery() as nursery:
        log: list[int] = []
        mailbox = Mailbox(capacity=capacity, overflow=overflow)
        scribe = await system.spawn(Scribe, log, name="scribe", mailbox=mailbox)
        it = Desk(system, scribe, nursery)
        it.log = log
        scribe.tell(Gate(it.gate))
        await wait_all_tasks_blocked()
        yield it
        it.gate.set()


async def test_messages_are_handled_in_order_and_urgent_ones_first() -> None:
    async with desk(10) as it:
        it.scribe.tell(Note(1))
        await it.start("ask", 2)
        await it.start("send", 3)
        it.scribe.tell(Note(11), urgent=True)
        await it.start("ask", 12, urgent=True)
        await it.start("send", 13, urgent=True)
        it.scribe.tell(Note(4))
        statistics = it.scribe.statistics().mailbox
        assert (statistics.depth, statistics.urgent, statistics.waiting) == (7, 3, 0)
        assert (statistics.capacity, statistics.overflow) == (10, Overflow.WAIT)
        assert await it.open() == [11, 12, 13, 1, 2, 3, 4]
        assert it.outcomes == {2: 2, 3: None, 12: 12, 13: None}


async def test_the_default_holds_1024() -> None:
    class Plain(Actor):
        mailbox = Mailbox()

    async with open_actor_system("demo") as system:
        ref = await system.spawn(Plain)
        for _ in range(1024):
            ref.tell(Note(1))
        with pytest.raises(trio.WouldBlock, match=r"the mailbox of /plain-1 is full \(1024\)"):
            ref.tell(Note(1))


async def test_a_full_mailbox_makes_senders_wait_their_turn() -> None:
    async with desk(2) as it:
        it.scribe.tell(Note(1))
        it.scribe.tell(Note(2))
        await it.start("send", 3)
        await it.start("ask", 4)
        await it.start("send", 5)
        with pytest.raises(MailboxFull):
            it.scribe.tell(Note(6))
        it.scribe.tell(Note(7), urgent=True)  # has room of its own
        it.scribe.tell(Note(8), urgent=True)
        with pytest.raises(MailboxFull):
            it.scribe.tell(Note(9), urgent=True)
        await it.start("ask", 9, urgent=True)
        assert it.scribe.statistics().mailbox.waiting == 4
        assert it.outcomes == {}
        assert await it.open() == [7, 8, 9, 1, 2, 3, 4, 5]
        assert it.outcomes == {3: None, 4: 4, 5: None, 9: 9}


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("method", ["ask", "send"])
async def test_a_cancelled_sender_leaves_no_message_and_makes_room(
    method: str, urgent: bool
) -> None:
    async with desk(1) as it:
        await it.start("ask", 1, urgent=urgent)  # in the queue
        await it.start(method, 2, urgent=urgent)  # waits for room
        await it.start(method, 3, urgent=urgent)
        await it.start(method, 4, urgent=urgent)
        it.scopes[3].cancel()
        await wait_all_tasks_blocked()
        assert it.scribe.statistics().mailbox.waiting == 2
        it.scopes[1].cancel()
        await wait_all_tasks_blocked()
        statistics = it.scribe.statistics().mailbox
        assert (statistics.depth, statistics.waiting) == (1, 1)  # 2 has moved up
        assert await it.open() == [2, 4]
        assert set(it.outcomes) == {2, 4}


async def test_reject() -> None:
    async with desk(1, Overflow.REJECT) as it:
        it.scribe.tell(Note(1))
        await it.start("ask", 2)
        await it.start("send", 3)
        with pytest.raises(MailboxFull) as info:
            it.scribe.tell(Note(4))
        assert info.value.path == "/scribe"
        assert it.outcomes == {2: MailboxFull, 3: MailboxFull}
        assert await it.open() == [1]


async def test_drop_oldest(caplog: pytest.LogCaptureFixture) -> None:
    async with desk(2, Overflow.DROP_OLDEST) as it:
        it.scribe.tell(Note(1))
        await it.start("ask", 2)
        it.scribe.tell(Note(3))  # drops 1
        assert "1 dead letter for /scribe, the first a Note: its full mailbox" in caplog.text
        await it.start("ask", 4)  # drops 2
        assert it.outcomes == {2: MessageDropped}
        await it.start("send", 5)  # drops 3
        statistics = it.scribe.statistics().mailbox
        assert (statistics.depth, statistics.dropped) == (2, 3)
        assert it.system.statistics().dead_letters == 2
        # Urgent messages are control: they are never dropped.
        it.scribe.tell(Note(11), urgent=True)
        it.scribe.tell(Note(12), urgent=True)
        with pytest.raises(MailboxFull):
            it.scribe.tell(Note(13), urgent=True)
        assert await it.open() == [11, 12, 4, 5]


async def test_an_ask_that_is_cancelled_before_it_begins_drops_nothing() -> None:
    async with desk(1, Overflow.DROP_OLDEST) as it:
        it.scribe.tell(Note(1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await it.scribe.ask(Note(2))
        with trio.CancelScope() as scope:
            scope.cancel()
            await it.scribe.send(Note(3))
        assert await it.open() == [1]


async def test_whoever_waits_for_room_learns_of_the_end() -> None:
    async with desk(1) as it:
        it.scribe.tell(Note(1))
        await it.start("ask", 2)
        await it.start("send", 3)
        await it.start("send", 4, urgent=True)
        await it.start("send", 5, urgent=True)
        await it.scribe.stop()
        await wait_all_tasks_blocked()
        assert it.outcomes == {2: ActorStopped, 3: ActorStopped, 4: None, 5: ActorStopped}
        assert it.system.statistics().dead_letters == 2


async def test_room_is_given_to_the_queue_it_is_in() -> None:
    """A wait for room among urgent messages does not delay waits for room among others."""
    async with desk(1) as it:
        it.scribe.tell(Note(1))
        it.scribe.tell(Note(2), urgent=True)
        await it.start("send", 3)
        await it.start("send", 4, urgent=True)
        assert await it.open() == [2, 4, 1, 3]


def test_a_mailbox_holds_something() -> None:
    with pytest.raises(
        ValueError, match="capacity of a mailbox must be a whole number of at least 1, not 0"
    ):
        Mailbox(capacity=0)
