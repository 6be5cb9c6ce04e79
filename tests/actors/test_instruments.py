"""Instruments: the calls they get, and that they do no harm."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    Backoff,
    Directive,
    Instrument,
    Mailbox,
    Message,
    Supervision,
    decide_by_type,
    handler,
    open_actor_system,
)
from atomr_accel.actors.instrument import Instruments


class Boom(Exception):
    pass


class Minor(Exception):
    pass


class Do(Message[int]):
    failure: Exception | None = None


class Sleep(Message[None]):
    pass


class Other(Message[None]):
    pass


class Worker(Actor):
    @handler
    async def do(self, message: Do) -> int:
        if message.failure is not None:
            raise message.failure
        return 1

    @handler
    async def sleep(self, message: Sleep) -> None:
        await trio.sleep_forever()


class Recorder(Instrument):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def actor_started(self, ref: ActorRef) -> None:
        self.seen.append(("started", ref.path))

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        self.seen.append(("restarting", ref.path, cause))

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        self.seen.append(("stopped", ref.path, cause))

    def message_sent(self, ref: ActorRef, message: Message[Any]) -> None:
        self.seen.append(("sent", message))

    def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
        self.seen.append(("begin", message))

    def message_finished(
        self, ref: ActorRef, message: Message[Any], failure: BaseException | None
    ) -> None:
        self.seen.append(("end", message, failure))

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        self.seen.append(("dead", message, reason))


async def test_instrument_receives_every_event() -> None:
    recorder = Recorder()
    supervision = Supervision(
        decider=decide_by_type({Minor: Directive.RESUME}), backoff=Backoff(base=0)
    )
    seen = recorder.seen
    async with open_actor_system("demo", supervision=supervision, instruments=[recorder]) as system:
        worker = await system.spawn(Worker, name="w", mailbox=Mailbox(capacity=1))
        assert seen == [("started", "/w")]
        seen.clear()

        await worker.ask(Do())
        assert seen == [("sent", Do()), ("begin", Do()), ("end", Do(), None)]
        seen.clear()

        minor, boom = Do(Minor()), Do(Boom())
        for message in minor, boom:
            with pytest.raises((Minor, Boom)):
                await worker.ask(message)
        await wait_all_tasks_blocked()
        assert seen == [
            ("sent", minor),
            ("begin", minor),
            ("end", minor, minor.failure),
            ("sent", boom),
            ("begin", boom),
            ("end", boom, boom.failure),
            ("restarting", "/w", boom.failure),
            ("started", "/w"),
        ]
        seen.clear()

        worker.tell(Other())
        await wait_all_tasks_blocked()
        assert seen == [
            ("sent", Other()),
            ("dead", Other(), "Worker has no handler for Other"),
        ]
        seen.clear()

        worker.tell(Sleep())
        await wait_all_tasks_blocked()
        worker.tell(Other())
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ActorStopped):
                    await worker.send(Do())  # waits for room

            await wait_all_tasks_blocked()
            assert seen[-1] == ("sent", Do())
            seen.clear()
            await worker.stop()
        begun, dead, stopped = seen
        assert begun[:2] == ("end", Sleep())
        assert isinstance(begun[2], trio.Cancelled)
        assert dead == ("dead", Other(), "it has stopped")
        assert stopped == ("stopped", "/w", None)


async def test_an_actor_that_never_started_never_stopped() -> None:
    class Broken(Actor):
        async def started(self) -> None:
            raise Boom

    recorder = Recorder()
    async with open_actor_system("demo", instruments=[recorder]) as system:
        with pytest.raises(Boom):
            await system.spawn(Broken)
    assert recorder.seen == []


async def test_an_instrument_that_fails_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Recorder):
        def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
            raise Boom

    faulty, sound = Faulty(), Recorder()
    async with open_actor_system("demo", instruments=[faulty, sound]) as system:
        worker = await system.spawn(Worker)
        assert await worker.ask(Do()) == 1
        assert await worker.ask(Do()) == 1
    assert [entry[0] for entry in faulty.seen] == ["started", "sent"]
    assert [entry[0] for entry in sound.seen] == [
        "started",
        *["sent", "begin", "end"] * 2,
        "stopped",
    ]
    (record,) = caplog.records
    assert "failed and will not be called again" in record.getMessage()


async def test_only_what_is_overridden_is_called() -> None:
    class Births(Instrument):
        def __init__(self) -> None:
            self.count = 0

        def actor_started(self, ref: ActorRef) -> None:
            self.count += 1

    births = Births()
    async with open_actor_system("demo", instruments=[births]) as system:
        assert list(system._instruments.methods) == ["actor_started"]
        await (await system.spawn(Worker)).ask(Do())
    assert births.count == 1
    async with open_actor_system("demo") as system:
        assert not system._instruments.active


async def test_instruments_come_and_go_while_the_system_runs() -> None:
    recorder = Recorder()
    async with open_actor_system("demo") as system:
        worker = await system.spawn(Worker)
        await worker.ask(Do())
        with system.instrumented(recorder):
            await worker.ask(Do())
            later = await system.spawn(Worker, name="later")
        await worker.ask(Do())
        await later.ask(Do())
        worker.tell(Do())
        assert not system._instruments.active
    assert recorder.seen == [
        ("sent", Do()),
        ("begin", Do()),
        ("end", Do(), None),
        ("started", "/later"),
    ]
    async with open_actor_system("demo") as system:
        with (
            pytest.raises(TypeError, match="an instance of Instrument"),
            system.instrumented(Instrument),  # type: ignore[arg-type]
        ):
            pass


async def test_hooks_that_a_subclass_declares_are_hooks() -> None:
    class Wider(Instrument, hooks=True):
        def told_more(self, what: str) -> None:
            """Nothing by itself."""

    class Listener(Wider):
        def __init__(self) -> None:
            self.heard: list[str] = []
            vars(self)["told_more"] = self.heard.append  # what an instance has counts, too

    instruments = Instruments([Wider()])
    assert not instruments.active
    listener = Listener()
    instruments.add(listener)
    instruments("told_more", "this")
    instruments("actor_started", None)
    instruments.remove(listener)
    instruments("told_more", "not that")
    assert listener.heard == ["this"]
