"""Services: objects with a place in the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    ActorStopped,
    Call,
    ChildSpec,
    ChildState,
    GetStatistics,
    Group,
    Intensity,
    Message,
    NameTaken,
    NoSuchChild,
    Service,
    Supervision,
    SupervisionFailed,
    SupervisorStopped,
    UnhandledMessage,
    handler,
    open_actor_system,
    serving,
)
from atomr_accel.actors.part import place


class Shout(Message[str]):
    """A message of this service alone."""

    text: str


class Echo(Service):
    """A service that repeats items, and fails on command."""

    def __init__(self) -> None:
        self.lives = 0
        self.finished = 0
        self.ends: list[BaseException | None] = []
        self.fail = trio.Event()
        self.open = trio.Event()
        self.waiting = 0

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.lives += 1
        self.fail = trio.Event()
        task_status.started()
        await self.fail.wait()
        raise KeyError(self.lives)

    async def call(self, item: Any, **options: Any) -> Any:
        self.waiting += 1
        try:
            if item == "wait":
                await self.open.wait()
            if item == "bad":
                raise ValueError(item)
            return item, options
        finally:
            self.waiting -= 1

    @handler
    async def shout(self, message: Shout) -> str:
        return message.text.upper()

    async def finish(self) -> None:
        self.finished += 1

    def ended(self, cause: BaseException | None) -> None:
        self.ends.append(cause)

    def depth(self) -> int:
        return self.waiting

    def statistics(self) -> object:
        return self.lives


async def test_a_service_in_a_system_is_an_actor() -> None:
    async with open_actor_system("test") as system:
        echo = Echo()
        async with serving(echo, system=system, name="echo"):
            assert system.find("/echo") is echo.ref
            assert system.tree().children[0].kind == "Echo"
            assert await echo.ref.ask(Call(3)) == (3, {})
            assert await echo.ref.ask(Call(3, {"priority": 1})) == (3, {"priority": 1})
            assert await echo.ref.ask(Shout("hey")) == "HEY"
            assert await echo.ref.ask(GetStatistics()) == 1
            with pytest.raises(UnhandledMessage, match="Echo has no handler for Message"):
                await echo.ref.ask(Message())
        assert echo.finished == 1
        assert echo.ref.stopped
        assert not system.tree().children


async def test_what_a_call_raises_is_the_askers() -> None:
    async with open_actor_system("test") as system:
        echo = Echo()
        async with serving(echo, system=system):
            with pytest.raises(ValueError, match=r"^bad$"):
                await echo.ref.ask(Call("bad"))
            echo.ref.tell(Call("bad"))
            assert await echo.ref.ask(Call(1)) == (1, {})
            assert echo.lives == 1


async def test_a_service_that_fails_lives_again_as_the_same_object(
    autojump_clock: object,
) -> None:
    async with open_actor_system("test") as system:
        echo = Echo()
        async with serving(echo, system=system, name="echo"):
            echo.fail.set()
            await wait_all_tasks_blocked()
            assert await echo.ref.ask(Call(1)) == (1, {})
            assert echo.lives == 2
            assert system.tree().children[0].restarts == 1
            assert echo.ends == []


async def test_calls_run_side_by_side_and_are_shown_as_load() -> None:
    async with open_actor_system("test") as system, trio.open_nursery() as nursery:
        echo = Echo()
        async with serving(echo, system=system):
            for _ in range(3):
                nursery.start_soon(echo.ref.ask, Call("wait"))
            await wait_all_tasks_blocked()
            assert system.tree().children[0].depth == 3
            echo.open.set()
            await wait_all_tasks_blocked()
            assert system.tree().children[0].depth == 0


async def test_a_service_below_an_actor_is_supervised_by_it() -> None:
    async with open_actor_system("test") as system:
        group = await system.spawn(Group, name="group")
        echo = Echo()
        async with serving(echo, parent=group, name="echo"):
            assert echo.ref.path == "/group/echo"
            await group.stop()
            assert echo.ref.stopped
            assert echo.ends == [None]
            with pytest.raises(ActorStopped):
                await echo.ref.ask(Call(1))


async def test_a_service_that_fails_too_often_ends_its_system(autojump_clock: object) -> None:
    echo = Echo()
    with pytest.raises(SupervisionFailed) as caught:
        async with open_actor_system("test") as system, serving(echo, system=system):
            while True:
                echo.fail.set()
                await trio.sleep(10)
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(echo.ends[0], KeyError)


async def test_the_block_tells_a_service_why_it_ends() -> None:
    async with open_actor_system("test") as system:
        echo = Echo()
        with pytest.raises(OSError, match=r"^why$"):
            async with serving(echo, system=system):
                raise OSError("why")
        assert all(isinstance(cause, OSError) for cause in echo.ends)
        assert echo.ends
        assert echo.finished == 0


async def test_alone_a_service_has_no_ref_and_fails_its_block() -> None:
    echo = Echo()
    with pytest.raises(KeyError):
        async with serving(echo):
            with pytest.raises(RuntimeError, match="must have a place in a system"):
                _ = echo.ref
            echo.fail.set()
            await trio.sleep_forever()
    assert isinstance(echo.ends[0], KeyError)


async def test_two_services_of_one_name() -> None:
    async with open_actor_system("test") as system, serving(Echo(), system=system, name="echo"):
        second = Echo()
        with pytest.raises(NameTaken):
            async with serving(second, system=system, name="echo"):
                raise AssertionError("it must not begin")
        assert second.lives == 0
        assert system.tree().children[0].state is ChildState.RUNNING


@pytest.mark.parametrize(
    "place",
    [{"system": "test"}, {"parent": "/x"}],
    ids=["system", "parent"],
)
async def test_a_place_of_a_wrong_type(place: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(place))} must be an instance of Actor"):
        async with serving(Echo(), **place):
            raise AssertionError("it must not begin")


async def test_a_place_in_two_systems() -> None:
    async with (
        open_actor_system("one") as one,
        open_actor_system("two") as two,
        serving(Echo(), system=two, name="echo") as echo,
    ):
        with pytest.raises(ValueError, match="parent must be an actor of the system given"):
            async with serving(Echo(), system=one, parent=echo.ref):
                raise AssertionError("it must not begin")
        async with serving(Echo(), system=two, parent=echo.ref) as below:
            assert below.ref.path.startswith("/echo/")


async def test_a_service_is_in_one_block_at_a_time() -> None:
    async with open_actor_system("test") as system, serving(Echo()) as echo:
        with pytest.raises(RuntimeError, match="this Echo must be in one block at a time"):
            async with serving(echo, system=system):
                raise AssertionError("it must not begin")
    async with serving(echo):
        assert echo.lives == 2


@pytest.mark.parametrize("options", [None, 3, [("a", 1)], {1: 2}])
def test_options_of_a_call_are_by_name(options: Any) -> None:
    with pytest.raises(TypeError, match="options of a Call must be a mapping"):
        Call("item", options)


async def test_only_services_are_served() -> None:
    made: Callable[[], Any] = object
    with pytest.raises(TypeError, match="must be an instance of Service"):
        async with serving(made()):
            raise AssertionError("it must not begin")


async def test_cancelling_the_block_stops_the_service() -> None:
    async with open_actor_system("test") as system:
        echo = Echo()
        with trio.CancelScope() as scope:
            async with serving(echo, system=system):
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert echo.ref.stopped
        assert echo.finished == 0


class Parts(Service):
    """A service with children, which fail on command."""

    supervision = Supervision(intensity=Intensity(restarts=1, within=60.0))

    def __init__(self) -> None:
        self.fail = trio.Event()
        self.lives = self.parts = 0

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.lives += 1
        await self.start_child(ChildSpec("part", self.part), kind="Part of it")
        task_status.started()
        await trio.sleep_forever()

    async def part(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.parts += 1
        task_status.started()
        await self.fail.wait()
        self.fail = trio.Event()
        raise KeyError(self.parts)


async def test_children_of_a_service_restart_alone_until_they_fail_too_often(
    autojump_clock: object,
) -> None:
    parts = Parts()
    async with open_actor_system("test") as system, serving(parts, system=system, name="parts"):
        (child,) = system.tree().children[0].children
        assert (child.path, child.kind) == ("/parts/part", "Part of it")
        with pytest.raises(NameTaken):
            await parts.start_child(ChildSpec("part", parts.part))
        with pytest.raises(ValueError, match="must be without '/'"):
            await parts.start_child(ChildSpec("a/b", parts.part))
        await parts.start_child(ChildSpec("other", parts.part))
        await parts.stop_child("other")
        with pytest.raises(NoSuchChild):
            await parts.stop_child("other")
        for lives, restarts in ((1, 1), (2, 0)):
            parts.fail.set()
            await trio.sleep(60 * (lives - 1) + 1)
            tree = system.tree().children[0]
            assert parts.lives == lives
            assert [one.restarts for one in tree.children] == [restarts]
        assert tree.restarts == 1


async def test_alone_a_service_has_children_too(autojump_clock: object) -> None:
    parts = Parts()
    for change in (parts.start_child(ChildSpec("x", parts.part)), parts.stop_child("x")):
        with pytest.raises(SupervisorStopped, match="this Parts is not running"):
            await change
    with pytest.raises(SupervisionFailed) as caught:
        async with serving(parts):
            await parts.start_child(ChildSpec("other", parts.part))
            await parts.stop_child("other")
            while True:
                parts.fail.set()
                await trio.sleep(1)
    assert parts.lives == 1
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_child_that_does_not_start_fails_the_life_that_begins() -> None:
    class Broken(Parts):
        async def part(self, *, task_status: trio.TaskStatus[None]) -> None:
            raise OSError("no part")

    async with open_actor_system("test") as system:
        for place in (None, system):
            with pytest.raises(OSError, match="no part"):
                async with serving(Broken(), system=place):
                    raise AssertionError("it must not begin")
        assert not system.tree().children


async def test_the_block_has_the_service_and_a_name_wants_a_place() -> None:
    echo = Echo()
    async with serving(echo) as service:
        assert service is echo
    with pytest.raises(ValueError, match="name must come with a place"):
        async with serving(echo, name="echo"):
            raise AssertionError("it must not begin")


async def test_a_place_shows_the_statistics_of_its_service() -> None:
    async with open_actor_system("test") as system:
        await system.spawn(Group, name="group")
        async with serving(Echo(), system=system, name="echo") as _:
            group, echo = system.tree().children
            assert (group.service, echo.service) == (None, 1)
            ref = system.find("/echo")
            assert ref.statistics().service == 1
        assert ref.statistics().service is None


async def test_a_part_with_statistics_answers_for_them_alone() -> None:
    async with open_actor_system("test") as system:
        group = await system.spawn(Group, name="group")
        part = place(group._cell, "part", "Part")
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        with pytest.raises(UnhandledMessage, match=r"^/group/part takes no messages"):
            await part.ref.ask(GetStatistics())
        answers = iter([3, 4])
        part.served = lambda: next(answers)
        assert await part.ref.ask(GetStatistics()) == 3
        with pytest.raises(UnhandledMessage, match="got a Call"):
            await part.ref.ask(Call(1))
        with pytest.raises(UnhandledMessage, match="got a GetStatistics"):
            part.ref.tell(GetStatistics())
        with trio.CancelScope() as scope:
            soon(scope.cancel)
            await part.ref.ask(GetStatistics())
        assert scope.cancelled_caught
        assert await part.ref.ask(GetStatistics(), urgent=True) == 4
        part.served = lambda: 1 // 0
        with pytest.raises(ZeroDivisionError):
            await part.ref.ask(GetStatistics())
        soon(part.end)
        for _ in range(2):  # while it is asked, and after that
            with pytest.raises(ActorStopped):
                await part.ref.ask(GetStatistics())
