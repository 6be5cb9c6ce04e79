"""Ends of a system: the errors that leave its block, for each order of two tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    ChildSpec,
    Directive,
    Group,
    Intensity,
    Message,
    Strategy,
    Supervision,
    SupervisionFailed,
    handler,
    open_actor_system,
)
from atomr_accel.actors._supervision import (
    Action,
    Escalate,
    Finished,
    Raise,
    Removed,
    ReportFailure,
    Stop,
    SupervisionMachine,
)

from .counter import Boom, Counter, Fail, Hang, Minor, quick
from .supervisions import FAULTS, SUPERVISIONS, Restart, nothing, specs


@pytest.fixture(params=range(12))
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test with several random choices of trio's scheduler."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    state = trio._core._run._r.getstate()
    trio._core._run._r.seed(request.param)
    yield
    trio._core._run._r.setstate(state)


class Lean(Message[None]):
    on: ActorRef


class Front(Counter):
    """Waits for others, in a handler or as soon as it has started."""

    @handler
    async def lean(self, message: Lean) -> None:
        await message.on.ask(Hang())


# --- a failure just before the end


@pytest.mark.parametrize("name", ["a", "g/a"])
async def test_a_failure_its_asker_has_handled_stays_inside(schedule: None, name: str) -> None:
    async with open_actor_system("demo") as system:
        group = await system.spawn(Group, name="g")
        actor = await system.spawn(Counter, supervisor=group if "/" in name else None)
        with pytest.raises(Boom):
            await actor.ask(Fail(Boom()))


def test_a_told_failure_stays_inside_as_well(
    schedule: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with open_actor_system("demo") as system:
            actor = await system.spawn(Counter)
            actor.tell(Fail(Boom("nobody asked")))
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    trio.run(main)
    assert "Boom('nobody asked')" in caplog.text or "Boom: nobody asked" in caplog.text


@pytest.mark.parametrize("below", [False, True])
def test_escalated_actor_leaves_all_the_same(schedule: None, below: bool) -> None:
    escalating = quick(decider=lambda *_: Directive.ESCALATE)

    async def main() -> None:
        async with open_actor_system("demo", supervision=escalating) as system:
            group = await system.spawn(Group, supervision=escalating)
            actor = await system.spawn(Counter, supervisor=group if below else None)
            with pytest.raises(Boom):
                await actor.ask(Fail(Boom()))

    with pytest.raises(SupervisionFailed):
        trio.run(main)


async def test_parent_contains_the_failure_that_it_restarts_from(schedule: None) -> None:
    async with open_actor_system("demo") as system:
        group = await system.spawn(Group, supervision=Supervision(intensity=Intensity(restarts=0)))
        actor = await system.spawn(Counter, supervisor=group)
        with pytest.raises(Boom):
            await actor.ask(Fail(Boom()))


def test_one_failure_too_many_leaves_all_the_same(schedule: None) -> None:
    async def main() -> None:
        async with open_actor_system(
            "demo", supervision=quick(intensity=Intensity(restarts=0))
        ) as system:
            actor = await system.spawn(Counter)
            with pytest.raises(Boom):
                await actor.ask(Fail(Boom()))

    with pytest.raises(SupervisionFailed):
        trio.run(main)


async def test_a_first_start_that_fails_is_its_spawners_also_at_the_end(schedule: None) -> None:
    class Broken(Counter):
        async def started(self) -> None:
            await trio.lowlevel.checkpoint()
            raise Boom

    async with trio.open_nursery() as nursery, open_actor_system("demo") as system:

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(Boom):
                await system.spawn(Broken)
            left.set()

        left = trio.Event()
        await left.wait()


@settings(deadline=None, derandomize=True)
@given(supervision=SUPERVISIONS, spec=specs(), fault=st.sampled_from(FAULTS))
def test_a_failure_ends_alike_seen_before_or_after_the_order_to_stop(
    supervision: Supervision, spec: ChildSpec, fault: type[Exception]
) -> None:
    def run(*, late: bool) -> list[Action]:
        machine = SupervisionMachine(supervision)
        machine.add(spec, 0)
        machine.started(spec.name, 0)
        actions: list[Action] = []
        if late:
            assert machine.shutdown(0) == [Stop(spec.name, restarting=False)]
            actions += machine.exited(spec.name, fault(), 0, unprompted=True)
        else:
            actions += machine.exited(spec.name, fault(), 0)
            actions += machine.shutdown(0)
            if spec.name in machine.children:  # it had been started again
                actions += machine.exited(spec.name, None, 0)
        return actions

    early, late = run(late=False), run(late=True)
    for kind in (Raise, ReportFailure, Escalate, Finished):
        assert sum(isinstance(a, kind) for a in early) == sum(isinstance(a, kind) for a in late)


def test_failure_caused_by_a_stop_is_raised() -> None:
    machine = SupervisionMachine(Supervision())
    machine.add(ChildSpec("a", nothing), 0)
    machine.started("a", 0)
    machine.shutdown(0)
    failure = Restart()
    assert machine.exited("a", failure, 0) == [Removed("a"), Raise(failure), Finished()]


def test_a_failure_beside_an_escalation_is_raised_too() -> None:
    machine = SupervisionMachine(Supervision(decider=lambda *_: Directive.ESCALATE))
    for name in "ab":
        machine.add(ChildSpec(name, nothing), 0)
        machine.started(name, 0)
    machine.exited("b", Restart("first"), 0)
    second = Restart("second")
    removed, raised, end = machine.exited("a", second, 0, unprompted=True)
    assert (removed, raised) == (Removed("a"), Raise(second))
    assert isinstance(end, Escalate)


# --- an orderly stop is no failure


def test_an_actor_that_waits_for_one_that_is_stopped_first(
    schedule: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with open_actor_system("demo") as system:
            front = await system.spawn(Front)
            front.tell(Lean(await system.spawn(Counter)))
            await wait_all_tasks_blocked()

    trio.run(main)
    assert caplog.text == ""


def test_the_same_across_groups_that_would_not_restart(
    schedule: None, caplog: pytest.LogCaptureFixture
) -> None:
    strict = Supervision(intensity=Intensity(restarts=0))

    async def main() -> None:
        async with open_actor_system("demo", supervision=strict) as system:
            groups = [await system.spawn(Group, supervision=strict) for _ in range(2)]
            front = await system.spawn(Front, supervisor=groups[0])
            front.tell(Lean(await system.spawn(Counter, supervisor=groups[1])))
            await wait_all_tasks_blocked()

    trio.run(main)
    assert caplog.text == ""


def test_a_task_of_an_actor_that_waits_for_one_that_is_stopped_first(
    schedule: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Busy(Counter):
        @handler
        async def lean(self, message: Lean) -> None:
            self.nursery.start_soon(message.on.ask, Hang())

    async def main() -> None:
        async with open_actor_system("demo") as system:
            busy = await system.spawn(Busy)
            busy.tell(Lean(await system.spawn(Counter)))
            await wait_all_tasks_blocked()

    trio.run(main)
    assert caplog.text == ""


async def test_a_group_that_is_restarted_stops_as_orderly() -> None:
    """A wait for a sibling in the group's former life is not a failure in the next one."""
    async with open_actor_system(
        "demo", supervision=quick(strategy=Strategy.ONE_FOR_ALL)
    ) as system:
        group = await system.spawn(Group)
        front = await system.spawn(Front, supervisor=group)
        front.tell(Lean(await system.spawn(Counter, supervisor=group)))
        other = await system.spawn(Counter)
        await wait_all_tasks_blocked()
        other.tell(Fail(Boom()))
        await wait_all_tasks_blocked()
        assert (group.statistics().restarts, other.statistics().restarts) == (1, 1)
        assert system.statistics().children.failures == 1


async def test_the_stop_of_one_that_others_need_is_a_failure_of_those() -> None:
    log: list[str] = []
    async with open_actor_system("demo", supervision=quick()) as system:
        front = await system.spawn(Front, 0, log, name="f")
        worker = await system.spawn(Counter)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ActorStopped, match="/counter-1 has stopped"):
                    await front.ask(Lean(worker))

            await wait_all_tasks_blocked()
            await worker.stop()
        await wait_all_tasks_blocked()
        assert log[:2] == ["+f", "-f"]
        assert log[2].startswith("~ActorStopped")


async def test_an_end_by_a_failure_is_no_orderly_stop() -> None:
    """The worker fails for good while the system stops, and so does whoever needs it."""
    stop = quick(decider=lambda *_: Directive.STOP)

    class Frail(Counter):
        async def stopping(self) -> None:
            raise Boom

    with pytest.raises(Boom):
        async with open_actor_system("demo", supervision=stop) as system:
            front = await system.spawn(Front)
            front.tell(Lean(await system.spawn(Frail)))
            await wait_all_tasks_blocked()
    assert front.stopped


class Twice(Actor):
    """Fails on a message, and again on its way out."""

    async def stopping(self) -> None:
        raise Minor("on its way out")

    @handler
    async def fail(self, message: Fail) -> None:
        raise message.failure


async def test_the_log_tells_both_failures_of_one_life(caplog: pytest.LogCaptureFixture) -> None:
    async with open_actor_system("demo", supervision=quick()) as system:
        ref = await system.spawn(Twice, name="twice")
        ref.tell(Fail(Boom("at work")))
        await wait_all_tasks_blocked()
        (said,) = [record.getMessage() for record in caplog.records]
        assert "Boom('at work')" in said
        assert "Minor('on its way out')" in said
        with suppress(Minor):
            await ref.stop()
