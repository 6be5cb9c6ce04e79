"""A caller may be cancelled anywhere, and nothing comes to harm.

Each scenario makes one call. Each run cancels the caller one step of the scheduler later, until a
run ends before the cancellation. So every point in the life of the call is covered, in every task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorSystem,
    Backoff,
    ChildSpec,
    Mailbox,
    Message,
    NoSuchActor,
    Strategy,
    Supervision,
    handler,
    open_actor_system,
    open_supervisor,
)


class Saboteur(trio.abc.Instrument):
    """Cancels the caller after a number of steps of any task, counted from its call."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.scope: trio.CancelScope | None = None

    def arm(self, scope: trio.CancelScope) -> None:
        if self.after == 0:
            scope.cancel()
        else:
            self.scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is not None:
            self.after -= 1
            if self.after == 0:
                self.scope.cancel()

    def disarm(self) -> bool:
        """Disarm, and return whether the step was reached."""
        self.scope = None
        return self.after <= 0


class Boom(Exception):
    pass


class Do(Message[int]):
    n: int


class Slow(Message[int]):
    n: int


class Die(Message[int]):
    n: int


class Worker(Actor):
    """Notes its work outside its state, so that restarts keep the notes."""

    supervision = Supervision(backoff=Backoff(base=0))

    def __init__(self, done: list[int], *, children: int = 0, seconds: float = 0) -> None:
        self.done = done
        self.children = children
        self.seconds = seconds

    async def started(self) -> None:
        await trio.sleep(self.seconds)
        for number in range(self.children):
            await self.spawn(Worker, self.done, seconds=self.seconds, name=f"child-{number}")

    async def stopping(self) -> None:
        await trio.sleep(self.seconds)

    @handler
    async def do(self, message: Do) -> int:
        self.done.append(message.n)
        return message.n

    @handler
    async def slow(self, message: Slow) -> int:
        await trio.sleep(1)
        self.done.append(message.n)
        await trio.sleep(1)
        return message.n

    @handler
    async def die(self, message: Die) -> int:
        self.done.append(message.n)
        await trio.sleep(1)
        raise Boom(message.n)


class Stage:
    """One run of a scenario."""

    def __init__(self, system: ActorSystem, saboteur: Saboteur) -> None:
        self.system = system
        self.saboteur = saboteur
        self.done: list[int] = []
        self.result: Any = None
        self.cancelled = False

    async def call(self, function: Callable[[], Awaitable[Any]]) -> None:
        """The call under test."""
        with trio.CancelScope() as scope:
            self.saboteur.arm(scope)
            try:
                self.result = await function()
            except Boom as exc:
                self.result = exc
        self.cancelled = scope.cancelled_caught


SUPERVISION = Supervision(backoff=Backoff(base=0.5), strategy=Strategy.ONE_FOR_ALL)


def at_every_step(scenario: Callable[[Stage], Awaitable[None]]) -> int:
    """Run a scenario once for each step it has; returns how many that were."""

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        with trio.fail_after(1000):  # of a clock that jumps: only the stuck get there
            async with open_actor_system("demo", supervision=SUPERVISION) as system:
                await scenario(Stage(system, saboteur))
        assert trio.lowlevel.current_statistics().tasks_living == before

    step = 0
    while True:
        saboteur = Saboteur(step)
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(main, clock=clock, instruments=[saboteur])
        if saboteur.after > 0:
            return step
        step += 1


async def still_works(stage: Stage, ref: ActorRef) -> None:
    assert await ref.ask(Do(1000)) == 1000
    assert stage.done.count(1000) == 1


# --- messages


@pytest.mark.parametrize("message", [Do(1), Slow(1), Die(1)])
@pytest.mark.parametrize("urgent", [False, True])
def test_ask(message: Message[int], urgent: bool) -> None:
    async def scenario(stage: Stage) -> None:
        ref = await stage.system.spawn(Worker, stage.done)
        await stage.call(lambda: ref.ask(message, urgent=urgent))
        stage.saboteur.disarm()
        await trio.sleep(5)
        if stage.cancelled:
            assert stage.result is None
            assert stage.done in ([], [1])
        else:
            assert stage.result == 1 or isinstance(stage.result, Boom)
            assert stage.done == [1]
        await still_works(stage, ref)

    assert at_every_step(scenario) >= 3


@pytest.mark.parametrize("method", ["ask", "send"])
def test_waiting_for_room(method: str) -> None:
    async def scenario(stage: Stage) -> None:
        ref = await stage.system.spawn(Worker, stage.done, mailbox=Mailbox(capacity=1))
        ref.tell(Slow(1))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            ref.tell(Slow(2))
            nursery.start_soon(stage.call, lambda: getattr(ref, method)(Do(3)))
            nursery.start_soon(ref.send, Do(4))
            nursery.start_soon(ref.ask, Do(5))
        stage.saboteur.disarm()
        assert await ref.ask(Do(6)) == 6
        assert stage.done[:2] == [1, 2]
        assert stage.done[-1] == 6
        counts = [stage.done.count(n) for n in (1, 2, 4, 5, 6)]
        assert counts == [1, 1, 1, 1, 1]
        if not stage.cancelled:
            assert stage.done.count(3) == 1
            assert stage.result == (3 if method == "ask" else None)
        elif method == "send":
            assert 3 not in stage.done  # a cancelled send has sent nothing
        else:
            assert stage.done.count(3) <= 1

    assert at_every_step(scenario) >= 5


def test_asking_while_a_sibling_takes_the_actor_down() -> None:
    async def scenario(stage: Stage) -> None:
        ref = await stage.system.spawn(Worker, stage.done, seconds=0.25)
        sibling = await stage.system.spawn(Worker, [])
        sibling.tell(Die(0))
        await stage.call(lambda: _ask_through_restarts(ref, Slow(1)))
        stage.saboteur.disarm()
        await trio.sleep(10)
        assert stage.done.count(1) <= 2
        await still_works(stage, ref)

    assert at_every_step(scenario) >= 5


async def _ask_through_restarts(ref: ActorRef, message: Message[int]) -> int:
    from atomr_accel.actors import ActorRestarted

    try:
        return await ref.ask(message)
    except ActorRestarted:
        return await ref.ask(message)


# --- lives


@pytest.mark.parametrize("children", [0, 2])
def test_spawn(children: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.call(
            lambda: stage.system.spawn(
                Worker, stage.done, children=children, seconds=0.25, name="w"
            )
        )
        stage.saboteur.disarm()
        if stage.cancelled:  # whoever is cancelled has not started an actor
            assert stage.system.statistics().actors == 0
            with pytest.raises(NoSuchActor):
                stage.system.find("/w")
            stage.result = await stage.system.spawn(Worker, stage.done, name="w")
        await still_works(stage, stage.result)

    assert at_every_step(scenario) >= 3


def test_spawn_that_fails() -> None:
    class Broken(Worker):
        async def started(self) -> None:
            await trio.sleep(1)
            raise Boom

    async def scenario(stage: Stage) -> None:
        await stage.call(lambda: stage.system.spawn(Broken, stage.done))
        stage.saboteur.disarm()
        assert stage.cancelled or isinstance(stage.result, Boom)
        assert stage.system.statistics().actors == 0

    assert at_every_step(scenario) >= 3


@pytest.mark.parametrize("method", ["stop", "wait_stopped"])
def test_stop_and_wait_stopped(method: str) -> None:
    async def scenario(stage: Stage) -> None:
        ref = await stage.system.spawn(Worker, stage.done, children=1, seconds=0.25)
        other = await stage.system.spawn(Worker, stage.done)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.call, getattr(ref, method))
            if method == "wait_stopped":
                nursery.start_soon(ref.stop)
        stage.saboteur.disarm()
        # A stop that was under way goes on without its caller.
        if stage.saboteur.after != 0 or method == "wait_stopped":
            await ref.wait_stopped()
        await still_works(stage, other)

    assert at_every_step(scenario) >= 3


def test_the_block_of_a_system() -> None:
    """Cancelled while actors start, work, fail and stop, a system still stops them in order."""
    order: list[str] = []

    class Node(Worker):
        async def started(self) -> None:
            order.append(f"+{self.ref.path}")
            await super().started()

        async def stopping(self) -> None:
            await super().stopping()
            order.append(f"-{self.ref.path}")

    async def block(stage: Stage) -> None:
        order.clear()
        async with open_actor_system("inner", supervision=SUPERVISION) as system:
            a = await system.spawn(Node, stage.done, name="a", seconds=0.25, children=1)
            b = await system.spawn(Node, stage.done, name="b", seconds=0.25)
            await a.ask(Slow(1))
            b.tell(Die(2))
            with pytest.raises(Boom):
                await b.ask(Die(3))
            await a.ask(Do(4))

    async def scenario(stage: Stage) -> None:
        try:
            await stage.call(lambda: block(stage))
        except* Boom:
            pass  # b failed while the system was stopping it, when nobody is left to restart it
        stage.saboteur.disarm()
        up: list[str] = []
        for event in order:
            if event[0] == "+":
                up.append(event[1:])
            else:  # in reverse order, whoever had started completely
                assert event[1:] in up
                while up.pop() != event[1:]:
                    pass

    assert at_every_step(scenario) >= 40


# --- supervisors


@asynccontextmanager
async def _supervisor() -> AsyncIterator[Any]:
    async with open_supervisor("s", backoff=Backoff(base=0)) as supervisor:
        yield supervisor


@pytest.mark.parametrize("method", ["start_child", "stop_child"])
def test_children_of_a_supervisor(method: str) -> None:
    async def run(*, task_status: trio.TaskStatus[int]) -> None:
        try:
            await trio.sleep(1)
            task_status.started(7)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async def scenario(stage: Stage) -> None:
        manager: AbstractAsyncContextManager[Any] = _supervisor()
        async with manager as supervisor:
            spec = ChildSpec("c", run)
            if method == "start_child":
                await stage.call(lambda: supervisor.start_child(spec))
                assert stage.result == (None if stage.cancelled else 7)
                names = [child.name for child in supervisor.statistics().children]
                assert names == ([] if stage.cancelled else ["c"])
            else:
                await supervisor.start_child(spec)
                await stage.call(lambda: supervisor.stop_child("c"))
                stage.saboteur.disarm()
                await trio.sleep(5)
                left = [child.name for child in supervisor.statistics().children]
                assert left == [] or stage.cancelled
            stage.saboteur.disarm()

    assert at_every_step(scenario) >= 3
