"""Trees of actors: children, groups, finding, and being told of ends."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorRestarted,
    Backoff,
    Directive,
    Group,
    Intensity,
    NoSuchActor,
    RestartType,
    Strategy,
    Supervision,
    SupervisionFailed,
    SupervisorStopped,
    Terminated,
    decide_by_type,
    handler,
    open_actor_system,
)

from .counter import Add, Boom, Counter, Fail, Get, Hang, Quit, quick


class Parent(Counter):
    """Has two counters below it in each of its lives."""

    async def started(self) -> None:
        await super().started()
        for name in "xy":
            await self.spawn(Counter, 0, self.log, name=name)


async def test_children_live_in_their_parent() -> None:
    log: list[str] = []
    async with open_actor_system("demo", supervision=quick()) as system:
        parent = await system.spawn(Parent, 0, log, name="p")
        x = system.find("/p/x")
        assert x.path == "/p/x"
        assert await x.ask(Add(1)) == 1
        x.tell(Fail(Boom("x")))
        assert await x.ask(Add(1)) == 1
        assert log == ["+p", "+x", "+y", "-x", "~Boom('x')", "+x"]
        log.clear()

        parent.tell(Fail(Boom("p")))
        assert await parent.ask(Add(1)) == 1
        assert log == ["-y", "-x", "-p", "~Boom('p')", "+p", "+x", "+y"]
        assert x.stopped  # the new life has children of its own
        assert system.find("/p/x") is not x
        log.clear()

        statistics = parent.statistics()
        assert statistics.children is not None
        assert [child.name for child in statistics.children.children] == ["x", "y"]
    assert log == ["-y", "-x", "-p"]


async def test_failures_climb_the_tree() -> None:
    log: list[str] = []
    async with open_actor_system("demo", supervision=quick()) as system:
        parent = await system.spawn(
            Parent, 0, log, name="p", supervision=quick(intensity=Intensity(restarts=0))
        )
        log.clear()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(SupervisionFailed, match="'demo:/p' gave up") as info:
                    await parent.ask(Hang())
                assert isinstance(info.value.__cause__, Boom)

            await wait_all_tasks_blocked()
            system.find("/p/x").tell(Fail(Boom("x")))
        await wait_all_tasks_blocked()
        assert log[:3] == ["-x", "-y", "-p"]
        assert log[3].startswith("~SupervisionFailed")
        assert log[4:] == ["+p", "+x", "+y"]


async def test_groups_and_spawning_below_others() -> None:
    log: list[str] = []
    async with open_actor_system("demo") as system:
        group = await system.spawn(
            Group, name="g", supervision=quick(strategy=Strategy.REST_FOR_ONE)
        )
        for name in "abc":
            await system.spawn(Counter, 0, log, name=name, supervisor=group)
        log.clear()
        system.find("/g/b").tell(Fail(Boom()))
        await wait_all_tasks_blocked()
        assert log == ["-b", "-c", "~Boom()", "+b", "~Boom()", "+c"]
        await group.stop()
        with pytest.raises(SupervisorStopped, match="cannot start /g/late: /g is not running"):
            await system.spawn(Counter, name="late", supervisor=group)


async def test_the_end_of_a_significant_child_ends_a_life_of_its_parent() -> None:
    log: list[str] = []

    class Job(Counter):
        pass

    class Manager(Counter):
        async def started(self) -> None:
            await super().started()
            await self.spawn(
                Job, 0, self.log, name="job", restart=RestartType.TRANSIENT, significant=True
            )

    async with open_actor_system("demo", supervision=quick()) as system:
        manager = await system.spawn(Manager, 0, log, name="m")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ActorRestarted):  # it is permanent
                    await manager.ask(Hang())

            await wait_all_tasks_blocked()
            # A stop from outside is not the child's own end; a return is.
            system.find("/m/job")._cell.nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert log[:4] == ["+m", "+job", "-job", "-m"]
        assert log[4].startswith("~ChildExited")

        done = await system.spawn(Manager, name="d", restart=RestartType.TRANSIENT)
        system.find("/d/job")._cell.nursery.cancel_scope.cancel()
        assert await done.wait_stopped() is None


async def test_find() -> None:
    async with open_actor_system("demo") as system:
        parent = await system.spawn(Parent, name="p")
        assert system.find("/p") is parent
        with pytest.raises(
            NoSuchActor, match=r"no /q: the system has no child 'q'; .*: p$"
        ) as info:
            system.find("/q")
        assert info.value.path == "/q"
        with pytest.raises(NoSuchActor, match=r"no /p/x/y: /p/x has no child 'y'; .*: none$"):
            system.find("/p/x/y")
        for path in "", "p":
            with pytest.raises(ValueError, match="a path must start with '/', not"):
                system.find(path)
        with pytest.raises(NoSuchActor):
            system.find("/")


async def test_the_tree_as_text() -> None:
    async with open_actor_system("demo", supervision=quick()) as system:
        await system.spawn(Parent, name="p")
        last = await system.spawn(Counter, name="last")
        last.tell(Fail(Boom()))
        await wait_all_tasks_blocked()
        last.tell(Get())
        last.tell(Get())
        tree = system.tree()
        assert str(tree).splitlines() == [
            "demo  system  running  restarts=0  mailbox=0",
            "├── p  Parent  running  restarts=0  mailbox=0",
            "│   ├── x  Counter  running  restarts=0  mailbox=0",
            "│   └── y  Counter  running  restarts=0  mailbox=0",
            "└── last  Counter  running  restarts=1  mailbox=2",
        ]
        assert [child.path for child in tree.children[0].children] == ["/p/x", "/p/y"]
        assert system.statistics().actors == 4


# --- death watch -------------------------------------------------------------------


class Mourner(Actor):
    def __init__(self) -> None:
        self.gone: list[tuple[str, BaseException | None]] = []

    @handler
    async def terminated(self, message: Terminated) -> None:
        self.gone.append((message.ref.path, message.cause))


async def test_death_watch() -> None:
    supervision = Supervision(
        decider=decide_by_type({Boom: Directive.STOP}), backoff=Backoff(base=0)
    )
    async with open_actor_system("demo", supervision=supervision) as system:
        watcher = await system.spawn(Mourner)
        mourner = _instance(watcher)
        refs = {name: await system.spawn(Counter, name=name) for name in "abcd"}
        for name in "abc":
            mourner.watch(refs[name])
        mourner.unwatch(refs["c"])
        mourner.unwatch(refs["d"])  # was not watched: nothing to take back
        refs["a"].tell(Fail(ValueError()))  # a restart is no end
        await wait_all_tasks_blocked()
        assert mourner.gone == []
        boom = Boom("at a")
        refs["a"].tell(Fail(boom))
        await refs["c"].stop()
        await refs["b"].stop()
        await wait_all_tasks_blocked()
        assert repr(mourner.gone) == repr([("/a", boom), ("/b", None)])
        mourner.watch(refs["a"])  # late is early enough
        await wait_all_tasks_blocked()
        assert repr(mourner.gone[2:]) == repr([("/a", boom)])

        mourner.watch(refs["d"])
        await watcher.stop()
        await refs["d"].stop()  # nobody left to tell


def _instance(ref: ActorRef) -> Any:
    """The actor behind a ref, which only its own handlers should touch."""
    frames = [frame for frame, _ in ref._inbox.task.iter_await_frames()]  # type: ignore[union-attr]
    return next(frame.f_locals["actor"] for frame in frames if "actor" in frame.f_locals)


async def test_watching_takes_a_handler() -> None:
    async with open_actor_system("demo") as system:
        ref = await system.spawn(Counter)
        with pytest.raises(
            TypeError, match="Counter must have a handler for Terminated, because it watches"
        ):
            _instance(ref).watch(ref)


@pytest.mark.parametrize("restart", [RestartType.TRANSIENT, RestartType.TEMPORARY])
@pytest.mark.parametrize("strategy", Strategy)
async def test_a_significant_actor_that_stops_itself_ends_its_parent(
    restart: RestartType, strategy: Strategy
) -> None:
    async with open_actor_system("demo") as system:
        group = await system.spawn(
            Group, restart=RestartType.TRANSIENT, supervision=quick(strategy=strategy)
        )
        other = await system.spawn(Counter, supervisor=group)
        job = await system.spawn(Counter, supervisor=group, restart=restart, significant=True)
        assert await job.ask(Quit()) == "bye"
        await wait_all_tasks_blocked()
        assert (job.stopped, other.stopped, group.stopped) == (True, True, True)


@pytest.mark.parametrize("restart", [RestartType.TRANSIENT, RestartType.TEMPORARY])
async def test_a_significant_actor_that_is_stopped_leaves_its_parent(restart: RestartType) -> None:
    async with open_actor_system("demo") as system:
        group = await system.spawn(Group, restart=RestartType.TRANSIENT)
        job = await system.spawn(Counter, supervisor=group, restart=restart, significant=True)
        await job.stop()
        await wait_all_tasks_blocked()
        assert (job.stopped, group.stopped) == (True, False)


async def test_wait_stopped_waits_for_the_end() -> None:
    async with (
        open_actor_system("demo", supervision=quick()) as system,
        trio.open_nursery() as nursery,
    ):
        counter = await system.spawn(Counter)
        ended = trio.Event()

        @nursery.start_soon
        async def _() -> None:
            await counter.wait_stopped()
            ended.set()

        counter.tell(Fail(Boom()))
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        await counter.stop()
        await ended.wait()
