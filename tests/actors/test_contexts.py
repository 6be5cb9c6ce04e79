"""Context variables cross mailboxes, whichever way a message is sent."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import Actor, Mailbox, Message, Overflow, handler, open_actor_system
from atomr_accel.actors.context import stays
from atomr_accel.actors.messages import side_by_side

user: ContextVar[str] = ContextVar("user", default="nobody")
place = stays(ContextVar("place", default="home"))


noted: list[str] = []


class Who(Message[str]):
    pass


class WhoLater(Message[str]):
    pass


class Note(Message[None]):
    pass


class Change(Message[None]):
    to: str


class Fail(Message[None]):
    pass


class Witness(Actor):
    @handler
    async def who(self, message: Who) -> str:
        return user.get()

    @side_by_side(WhoLater)
    def who_later(self, message: WhoLater) -> Coroutine[Any, Any, str]:
        return self._later()

    async def _later(self) -> str:
        await trio.lowlevel.checkpoint()
        return user.get()

    @handler
    async def note(self, message: Note) -> None:
        noted.append(user.get())

    @handler
    async def change(self, message: Change) -> None:
        user.set(message.to)

    @handler
    async def fail(self, message: Fail) -> None:
        raise ValueError(user.get())


class Relay(Actor):
    def __init__(self, recorder: object) -> None:
        self.recorder = recorder

    @handler
    async def who(self, message: Who) -> str:
        return await self.recorder.ask(message)  # type: ignore[attr-defined, no-any-return]


async def test_asked_told_and_sent() -> None:
    noted.clear()
    async with open_actor_system("demo") as system:
        recorder = await system.spawn(Witness, mailbox=Mailbox(capacity=1))
        relay = await system.spawn(Relay, recorder)
        token = user.set("ann")
        assert await relay.ask(Who()) == "ann"  # through two mailboxes
        assert await recorder.ask(WhoLater()) == "ann"
        assert await recorder.ask(Who(), urgent=True) == "ann"
        recorder.tell(Note())
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for _ in range(3):  # which wait for room
                nursery.start_soon(recorder.send, Note())
        user.reset(token)
        await wait_all_tasks_blocked()
        assert noted == ["ann"] * 4
        assert await recorder.ask(Who()) == "nobody"


async def test_condition_is_a_copy_of_the_moment_when_it_was_read() -> None:
    seen: list[str] = []

    class Late(Actor):
        @handler
        async def note(self, message: Note) -> None:
            seen.append(user.get())

    async with open_actor_system("demo") as system:
        late = await system.spawn(Late, mailbox=Mailbox(capacity=2, overflow=Overflow.DROP_OLDEST))
        for name in "abc":  # the first is dropped
            user.set(name)
            late.tell(Note())
        user.set("d")
        await wait_all_tasks_blocked()
        await late.send(Note())
        await wait_all_tasks_blocked()
        assert system.statistics().dead_letters == 1
    assert seen == ["b", "c", "d"]


async def test_a_handler_keeps_what_it_sets_and_nothing_of_its_senders() -> None:
    async with open_actor_system("demo") as system:
        recorder = await system.spawn(Witness)
        token = user.set("ann")
        assert await recorder.ask(Who()) == "ann"
        with pytest.raises(ValueError, match=r"^ann$"):
            await recorder.ask(Fail())
        user.reset(token)
        assert user.get() == "nobody"
        assert await recorder.ask(Who()) == "nobody"  # it was restarted
        await recorder.ask(Change(to="own"))
        assert await recorder.ask(Who()) == "own"


async def test_some_variables_stay() -> None:
    class Stays(Actor):
        @handler
        async def who(self, message: Who) -> str:
            return place.get()

    async with open_actor_system("demo") as system:
        stayer = await system.spawn(Stays)
        place.set("away")
        assert await stayer.ask(Who()) == "home"
        assert copy_context()[place] == "away"
