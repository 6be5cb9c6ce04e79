"""Watching others: one message for each end of an actor that is being watched, in each life."""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    Group,
    Intensity,
    Restarted,
    Terminated,
    handler,
    open_actor_system,
)

from ..harness import sized
from .counter import Block, Boom, Counter, Fail, quick


class Watcher(Counter):
    """An actor with a child and a grandchild in each life, which counts its messages."""

    lives: ClassVar[list[Watcher]] = []

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard

    async def started(self) -> None:
        self.lives.append(self)
        life = len(self.lives)
        child = await self.spawn(Group, name=f"child-{life}")
        below = await self.system.spawn(Counter, name=f"below-{life}", supervisor=child)
        self.mine = [child, below]

    @handler
    async def gone(self, message: Terminated) -> None:
        self.heard.append(message.ref.name)

    @handler
    async def again(self, message: Restarted) -> None:
        self.heard.append(f"{message.ref.name} again")


STEPS = st.one_of(
    st.tuples(st.sampled_from(["watch", "unwatch", "stop", "restart"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["settle", "fail"]), st.just(0)),
)


@settings(deadline=None, max_examples=sized(20, 500))
@given(steps=st.lists(STEPS, max_size=14))
async def test_one_message_for_each_end(steps: list[tuple[str, int]]) -> None:
    """Against a model: a set of the watched, and a queue that is emptied when the actor is free."""
    heard: list[str] = []
    expected: list[str] = []
    watched: set[str] = set()
    queue: list[str] = []
    Watcher.lives = []
    often = quick(intensity=Intensity(restarts=100))
    async with open_actor_system("demo", supervision=often) as system:
        watcher = await system.spawn(Watcher, heard)
        others = [await system.spawn(Counter, name=f"other-{n}") for n in range(2)]
        free = trio.Event()
        watcher.tell(Block(free))
        await wait_all_tasks_blocked()
        for step, number in [*steps, ("settle", 0)]:
            actor = Watcher.lives[-1]
            ref = [*others, *actor.mine][number]
            match step:
                case "watch":
                    actor.watch(ref)
                    if ref.name not in watched:
                        watched.add(ref.name)
                        if ref.stopped:
                            queue.append(ref.name)
                case "unwatch":
                    actor.unwatch(ref)
                    watched.discard(ref.name)
                case "stop" if not ref.stopped:
                    below = actor.mine[1]
                    ends = [ref]
                    if ref is actor.mine[0] and not below.stopped:
                        ends = [below, ref]
                    await ref.stop()
                    queue += [one.name for one in ends if one.name in watched]
                case "restart" if ref in others and not ref.stopped:
                    ref.tell(Fail(Boom()))
                    await wait_all_tasks_blocked()
                    if ref.name in watched:
                        queue.append(f"{ref.name} again")
                case "fail":
                    # It handles what is in the mailbox, and then this.
                    watcher.tell(Fail(Boom()))
                case _:
                    pass
            if step in ("settle", "fail"):
                free.set()
                await wait_all_tasks_blocked()
                for item in queue:
                    name = item.removesuffix(" again")
                    if name in watched:
                        expected.append(item)
                        if item == name:
                            watched.remove(name)
                queue.clear()
                if step == "fail":
                    watched -= {one.name for one in actor.mine}
                assert heard == expected
                free = trio.Event()
                watcher.tell(Block(free))
                await wait_all_tasks_blocked()
        free.set()
        assert watcher.statistics().restarts == sum(step == "fail" for step, _ in steps)


class Parent(Actor):
    """Replaces its child when it ends."""

    supervision = quick()

    async def started(self) -> None:
        await self.replace()

    async def replace(self) -> None:
        self.child: ActorRef = await self.spawn(Counter, name="child")
        self.watch(self.child)

    @handler
    async def gone(self, message: Terminated) -> None:
        await self.replace()

    @handler
    async def fail(self, message: Fail) -> None:
        raise message.failure


@pytest.mark.parametrize("stops_it_first", [False, True])
async def test_a_life_hears_nothing_of_the_children_of_another(
    stops_it_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Hasty(Parent):
        @handler
        async def fail(self, message: Fail) -> None:
            if stops_it_first:
                await self.child.stop()  # its message waits in the mailbox when this life ends
            raise message.failure

    async with open_actor_system("demo", supervision=quick()) as system:
        parent = await system.spawn(Hasty)
        parent.tell(Fail(Boom()))
        await wait_all_tasks_blocked()
        assert parent.statistics().restarts == 1
        await system.find("/hasty-1/child").stop()
        await wait_all_tasks_blocked()
        assert not system.find("/hasty-1/child").stopped
        await parent.stop()
        assert system.statistics().dead_letters == 0
    assert "dead letter" not in caplog.text
