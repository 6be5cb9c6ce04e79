"""Errors leave the blocks of systems and supervisors without an exception group."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.actors import (
    Actor,
    ActorStopped,
    ChildSpec,
    Directive,
    Group,
    Intensity,
    Message,
    Supervision,
    SupervisionFailed,
    handler,
    open_actor_system,
    open_supervisor,
)
from atomr_accel.actors.nursery import PlainNursery

# Programs may still choose it, although trio would rather they did not.
pytestmark = pytest.mark.filterwarnings("ignore:trio.run.*strict_exception_groups")

Opener = Callable[[], AbstractAsyncContextManager[Any]]
OPENERS: dict[str, Opener] = {
    "nursery": PlainNursery,
    "supervisor": lambda: open_supervisor("top"),
    "system": lambda: open_actor_system("demo"),
}


class Boom(Exception):
    pass


@pytest.fixture(params=[True, False], ids=["strict", "loose"])
def strict(request: pytest.FixtureRequest) -> bool:
    loose: bool = request.param
    return loose


def run(strict: bool, main: Callable[[], Any]) -> None:
    trio.run(main, strict_exception_groups=strict)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_the_bodys_error_is_what_leaves(strict: bool, opener: Opener) -> None:
    cause, context = KeyError("cause"), ValueError("context")
    error = Boom("mine")

    async def main() -> None:
        async with opener():
            try:
                raise context
            except ValueError:
                raise error from cause

    with pytest.raises(Boom) as info:
        run(strict, main)
    assert info.value is error
    assert error.__cause__ is cause
    assert error.__context__ is context
    assert any("raise error from cause" in (line or "") for _, _, _, line in _lines(error))


def _lines(error: BaseException) -> Iterator[tuple[str, int, str, str | None]]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0, frame.name, frame.line


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_group_of_the_program_stays_one(strict: bool, opener: Opener, parts: int) -> None:
    group = ExceptionGroup("mine", [Boom(str(number)) for number in range(parts)])

    async def main() -> None:
        async with opener():
            raise group

    with pytest.raises(ExceptionGroup) as info:
        run(strict, main)
    assert info.value is group


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_a_nursery_of_the_program_makes_its_group(opener: Opener) -> None:
    async def fail() -> None:
        raise Boom

    async def main() -> None:
        async with opener(), trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    with pytest.RaisesGroup(Boom):
        run(True, main)


@pytest.mark.parametrize("stop", [StopIteration, StopAsyncIteration, GeneratorExit])
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_nursery_lets_the_own_errors_of_generators_through(
    strict: bool, opener: Opener, stop: type[BaseException]
) -> None:
    error = stop("mine")
    left: list[BaseException] = []

    async def main() -> None:
        try:
            async with opener():
                raise error
        except BaseException as raised:  # noqa: BLE001 (looked at below)
            left.append(raised)

    run(strict, main)
    assert left == [error]


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_a_cancelled_block_is_left_by_the_cancellation_alone(strict: bool, opener: Opener) -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            async with opener():
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught

    run(strict, main)


def test_a_failure_beside_a_cancellation_is_what_leaves(strict: bool) -> None:
    async def fail_late() -> None:
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        raise Boom

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with PlainNursery() as nursery:
                nursery.start_soon(fail_late)
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
                await trio.sleep_forever()

    with pytest.raises(Boom):
        run(strict, main)


def test_several_failures_make_a_group(strict: bool) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        async with PlainNursery() as nursery:
            nursery.start_soon(fail, Boom())
            nursery.start_soon(fail, KeyError())

    with pytest.RaisesGroup(Boom, KeyError):
        run(strict, main)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_an_interrupt_leaves_as_itself(strict: bool, opener: Opener) -> None:
    async def main() -> None:
        async with opener():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(strict, main)


class Fail(Message[None]):
    error: Exception


class Frail(Actor):
    @handler
    async def fail(self, message: Fail) -> None:
        raise message.error


def test_a_system_that_gives_up_leaves_its_failure_alone(strict: bool) -> None:
    async def main() -> None:
        async with open_actor_system(
            "demo", supervision=Supervision(intensity=Intensity(restarts=0))
        ) as system:
            frail = await system.spawn(Frail)
            frail.tell(Fail(Boom()))
            await trio.sleep_forever()

    with pytest.raises(SupervisionFailed) as info:
        run(strict, main)
    assert isinstance(info.value.__cause__, Boom)


def test_a_failing_body_beside_a_failing_system_makes_a_group(strict: bool) -> None:
    escalating = Supervision(decider=lambda *_: Directive.ESCALATE)

    async def main() -> None:
        async with open_actor_system("demo", supervision=escalating) as system:
            frail = await system.spawn(Frail)
            frail.tell(Fail(Boom()))
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")

    with pytest.RaisesGroup(KeyError, SupervisionFailed):
        run(strict, main)


@pytest.mark.parametrize("escalation", [None, lambda _name, cause: cause], ids=["gives up", "same"])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_failure_that_the_body_was_told_leaves_once(
    strict: bool, depth: int, escalation: Any
) -> None:
    """Either the body or the supervisor leaves first with the error."""
    escalating = Supervision(decider=lambda *_: Directive.ESCALATE, escalation=escalation)
    for turns in range(6):
        error = Boom()

        async def main(turns: int = turns, error: Boom = error) -> None:
            async with open_actor_system("demo", supervision=escalating) as system:
                parent = None
                for _ in range(depth):
                    parent = await system.spawn(Group, supervisor=parent, supervision=escalating)
                frail = await system.spawn(Frail, supervisor=parent)
                try:
                    await frail.ask(Fail(error))
                finally:
                    with trio.CancelScope(shield=True):
                        for _ in range(turns):
                            await trio.lowlevel.checkpoint()

        with pytest.raises(Boom) as info:
            run(strict, main)
        assert info.value is error


@pytest.mark.parametrize("pauses", [0, 1, 2])
@pytest.mark.parametrize("asks", [1, 2], ids=["one ask", "a group of asks"])
def test_missing_actor_adds_nothing_to_the_failure_that_ended_it(pauses: int, asks: int) -> None:
    class Fail(Message[None]):
        pass

    class Failing(Actor):
        @handler
        async def fail(self, message: Fail) -> None:
            raise Boom

    async def main() -> None:
        supervision = Supervision(intensity=Intensity(restarts=0))
        async with open_actor_system("demo", supervision=supervision) as system:
            failing = await system.spawn(Failing)
            with pytest.raises(Boom):
                await failing.ask(Fail())
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:
                for _ in range(asks - 1):
                    nursery.start_soon(failing.ask, Fail())
                await failing.ask(Fail())

    with pytest.raises(SupervisionFailed):
        trio.run(main)


def test_missing_an_actor_that_was_stopped_is_a_failure_of_the_body() -> None:
    async def main() -> None:
        async with open_actor_system("demo") as system:
            stopped = await system.spawn(Actor)
            await stopped.stop()
            await stopped.ask(Message())

    with pytest.raises(ActorStopped):
        trio.run(main)


def test_the_bodys_group_of_it_stays_one_and_what_else_failed_is_told() -> None:
    escalating = Supervision(decider=lambda *_: Directive.ESCALATE)
    error = Boom()

    async def main(more: BaseException | None, wrap: bool) -> None:
        async with open_actor_system("demo", supervision=escalating) as system:
            frail = await system.spawn(Frail)
            try:
                if wrap:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(frail.ask, Fail(error))
                else:
                    await frail.ask(Fail(error))
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                if more is not None:
                    raise more

    with pytest.RaisesGroup(pytest.RaisesExc(Boom, check=lambda raised: raised is error)):
        trio.run(main, None, True)
    with pytest.RaisesGroup(KeyError, SupervisionFailed):
        trio.run(main, KeyError(), False)


def test_a_supervised_task_that_fails_before_it_starts_is_raised_where_it_is_started(
    strict: bool,
) -> None:
    async def broken(*, task_status: trio.TaskStatus[None]) -> None:
        raise Boom

    async def main() -> None:
        async with open_supervisor("top") as supervisor:
            await supervisor.start_child(ChildSpec("broken", broken))

    with pytest.raises(Boom):
        run(strict, main)


def test_an_interrupt_while_an_actor_starts_stops_it(strict: bool) -> None:
    steps: list[str] = []

    class Slow(Actor):
        @trio.lowlevel.enable_ki_protection  # so that it goes to the main task, which waits
        async def started(self) -> None:
            steps.append("starting")
            signal.raise_signal(signal.SIGINT)
            try:
                await trio.sleep_forever()
            finally:
                steps.append("stopped")

    async def main() -> None:
        async with open_actor_system("demo") as system:
            try:
                await system.spawn(Slow, name="slow")
            except KeyboardInterrupt:
                steps.append("interrupted")
            assert not system.tree().children
            raise Boom

    with pytest.raises(Boom):
        run(strict, main)
    assert steps == ["starting", "stopped", "interrupted"]
