"""The feed matches the program's state: states, differences between them, and events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.actors import (
    Actor,
    ActorSystem,
    ActorTree,
    Intensity,
    Message,
    Supervision,
    SupervisorStopped,
    handler,
    open_actor_system,
)
from atomr_accel.dashboard._feed import Feed
from atomr_accel.dashboard._history import EVENTS, LONGEST, Ring, described
from atomr_accel.dashboard._state import SystemObserver

from ..harness import on_mock_clock, sized
from .client import merged


class Fail(Message[None]):
    pass


class Hold(Message[None]):
    pass


class Patient(Actor):
    """Fails, or takes its time, if it is asked to."""

    supervision = Supervision(intensity=Intensity(restarts=3, within=60))

    @handler
    async def fail(self, message: Fail) -> None:
        raise ValueError("as asked")

    @handler
    async def hold(self, message: Hold) -> None:
        await trio.sleep(100)


def told(tree: ActorTree) -> dict[str, Any]:
    """A tree as the dashboard tells it."""
    found = {}
    todo = [*tree.children]
    while todo:
        node = todo.pop()
        todo += node.children
        found[node.path] = {
            "kind": node.kind,
            "state": node.state.value,
            "restarts": node.restarts,
            "depth": node.depth,
        }
    return found


class Reader:
    """Has what a page has."""

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self.state: dict[str, Any] = {}

    async def read(self) -> str:
        kind, data, *_ = (await anext(self._messages)).decode("ascii").split("\n")
        content = json.loads(data.removeprefix("data: "))
        if kind == "event: state":
            self.state = content
        elif kind == "event: change":
            self.state = merged(self.state, content)
        return kind.removeprefix("event: ")

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not (self.state and condition()):
                await self.read()


def with_reader(
    body: Callable[[ActorSystem, Feed, Reader], Awaitable[None]],
) -> None:
    """Run a body with a reader of a feed, in no time at all."""

    async def main() -> None:
        supervision = Supervision(intensity=Intensity(restarts=1000, within=60))
        async with open_actor_system("s", supervision=supervision) as system:
            feed = Feed(system)
            async with trio.open_nursery() as nursery, aclosing(feed.messages()) as messages:
                nursery.start_soon(feed.run)
                with system.instrumented(feed.history):
                    await body(system, feed, Reader(messages))
                nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


NAMES = st.text(min_size=1, max_size=3).filter(lambda name: "/" not in name) | st.sampled_from(
    [
        "<script>alert(1)</script>".replace("/", "|"),
        "__proto__",
        "constructor",
        "\u202egpj.exe",  # unpaired surrogates have tests in test_patch
        "\n\ndata: {}",
    ]
)
STEPS = st.tuples(
    st.sampled_from(["spawn", "spawn", "fail", "stop", "hold"]), st.integers(0, 99), NAMES
)


@pytest.mark.slow
@settings(max_examples=sized(20, 400))
@given(st.lists(STEPS, max_size=14))
def test_after_whatever_happens_a_page_has_what_the_system_has(
    steps: list[tuple[str, int, str]],
) -> None:
    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        for step, at, name in steps:
            paths = sorted(told(system.tree()))
            ref = system.find(paths[at % len(paths)]) if paths else None
            if step == "spawn":
                siblings = told(system.tree())
                parent = ref if at % 2 else None
                if f"{parent.path if parent else ''}/{name}" not in siblings:
                    with suppress(SupervisorStopped):  # its parent is about to be restarted
                        await system.spawn(Patient, name=name, supervisor=parent)
            elif ref is not None and step == "stop":
                await ref.stop()
            elif ref is not None and step == "fail" and not told(system.tree())[ref.path]["depth"]:
                ref.tell(Fail())
            elif ref is not None and step == "hold":
                ref.tell(Hold())
            await trio.testing.wait_all_tasks_blocked()
            if at % 3 == 0:
                await reader.until(lambda: bool(reader.state["actors"] == told(system.tree())))
        await reader.until(lambda: bool(reader.state["actors"] == told(system.tree())))
        whole = await feed.look()
        await reader.until(
            lambda: reader.state["events"] == json.loads(json.dumps(whole["events"]))
        )
        events = [event for event in reader.state["events"].values() if event["kind"] == "restart"]
        for path, actor in told(system.tree()).items():
            mine = [event for event in events if event["path"] == path]
            assert len(mine) >= actor["restarts"]  # one of that name may have been stopped

    with_reader(body)


def test_whoever_is_late_gets_one_difference_and_no_queue() -> None:
    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        assert await reader.read() == "state"
        for at in range(20):
            await system.spawn(Patient, name=f"a-{at}")
            await trio.sleep(2)
        assert await reader.read() == "change"
        assert len(reader.state["actors"]) == 20

    with_reader(body)


def test_feed_reports_events_within_a_second_with_any_number_of_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Actors that take long to look at are looked at less often; events do not wait for that."""

    async def slow(observer: SystemObserver) -> tuple[dict[str, Any], float]:
        return (await actors(observer))[0], 3.0

    actors = SystemObserver.actors
    monkeypatch.setattr(SystemObserver, "actors", slow)

    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        ref = await system.spawn(Patient)
        await reader.read()
        feed.history.actor_stopped(ref, ValueError("of the test"))
        begun = trio.current_time()
        await reader.until(lambda: "1" in reader.state["events"])
        assert trio.current_time() - begun < 1

    with_reader(body)


@on_mock_clock
async def test_feed_reads_nothing_without_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = Feed.look

    async def counted(feed: Feed, *, thoroughly: bool = True) -> Any:
        nonlocal looks
        looks += 1
        return await look(feed, thoroughly=thoroughly)

    monkeypatch.setattr(Feed, "look", counted)
    async with open_actor_system("s") as system:
        feed = Feed(system)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.run)
            await trio.sleep(100)
            assert looks == 0
            async with aclosing(feed.messages()) as messages:
                await anext(messages)
                await trio.sleep(10)
            assert 30 < looks < 50
            so_far = looks
            await trio.sleep(100)
            assert looks <= so_far + 1
            nursery.cancel_scope.cancel()


def test_all_are_told_of_the_end() -> None:
    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        assert await reader.read() == "state"
        feed.close()
        while (kind := await reader.read()) == "change":
            pass
        assert kind == "end"

    with_reader(body)


def test_many_events_take_no_more_space() -> None:
    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        ref = await system.spawn(Patient)
        await reader.read()
        for _ in range(EVENTS + 50):
            feed.history.actor_restarting(ref, ValueError("again"))
        await reader.until(lambda: str(EVENTS + 50) in reader.state["events"])
        assert len(reader.state["events"]) == EVENTS

    with_reader(body)


@given(st.integers(1, 5), st.lists(st.integers()))
def test_a_ring_keeps_the_last(most: int, values: list[int]) -> None:
    ring = Ring(most)
    for value in values:
        before = dict(ring.values), ring.values
        ring.add(value)
        assert before[0] == before[1]  # whoever has it keeps it
    assert [*ring.values.values()] == values[-most:]
    assert [*ring.values] == [str(n + 1) for n in range(len(values))][-most:]


def test_an_error_is_told_whatever_it_does() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(Mute()) == f"{Mute.__qualname__}: (it cannot be told)"[:LONGEST]
    assert described(ValueError()) == "ValueError"
    assert len(described(ValueError("x" * 10**6))) == LONGEST


def test_a_look_that_fails_is_logged_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([ValueError("of the test")])
    states_of_devices = SystemObserver.states_of_devices

    def failing(observer: SystemObserver) -> Any:
        for failure in failures:
            raise failure
        return states_of_devices(observer)

    async def body(system: ActorSystem, feed: Feed, reader: Reader) -> None:
        await reader.read()
        monkeypatch.setattr(SystemObserver, "states_of_devices", failing)
        await system.spawn(Patient)
        await reader.until(lambda: len(reader.state["actors"]) == 1)

    with_reader(body)
    assert "of the test" in caplog.text
