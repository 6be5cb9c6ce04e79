"""Supervisors on trio: what a program that uses them sees."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.actors import (
    AutoShutdown,
    Backoff,
    ChildExited,
    ChildSpec,
    ChildState,
    ChildStopped,
    Directive,
    Intensity,
    NameTaken,
    NoSuchChild,
    RestartType,
    Strategy,
    SupervisionFailed,
    Supervisor,
    SupervisorState,
    SupervisorStopped,
    decide_by_type,
    open_supervisor,
)

AT_ONCE = Backoff(base=0.0)


class Boom(Exception):
    pass


class Child:
    """A child that notes what happens to it and fails, returns or hangs on demand."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name
        self.orders: trio.MemorySendChannel[Exception | None]
        self.fail_next_start: Exception | None = None
        self.slow_start = 0.0
        self.slow_stop = 0.0
        self.fail_stop: Exception | None = None

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        self.orders, orders = trio.open_memory_channel[Exception | None](10)
        try:
            if self.slow_start:
                await trio.sleep(self.slow_start)
            if (failure := self.fail_next_start) is not None:
                self.fail_next_start = None
                raise failure
            self.log.append(f"+{self.name}")
            task_status.started(f"{self.name} is up")
            order = await orders.receive()
            if order is not None:
                raise order
            self.log.append(f"{self.name} returns")
        finally:
            if self.slow_stop:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.slow_stop)
            self.log.append(f"-{self.name}")
            if self.fail_stop is not None:
                raise self.fail_stop

    def fail(self, failure: Exception | None = None) -> None:
        self.orders.send_nowait(failure or Boom(self.name))

    def finish(self) -> None:
        self.orders.send_nowait(None)


@asynccontextmanager
async def family(
    names: str, *, spec: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Supervisor, dict[str, Child], list[str]]]:
    log: list[str] = []
    children = {name: Child(log, name) for name in names}
    options.setdefault("backoff", AT_ONCE)
    async with open_supervisor("top", **options) as supervisor:
        for name, child in children.items():
            await supervisor.start_child(ChildSpec(name, child.run, **(spec or {})))
        log.clear()
        yield supervisor, children, log


def states(supervisor: Supervisor) -> dict[str, ChildState]:
    return {child.name: child.state for child in supervisor.statistics().children}


async def test_start_child_returns_what_the_child_reports() -> None:
    log: list[str] = []
    async with open_supervisor("top") as supervisor:
        assert await supervisor.start_child(ChildSpec("a", Child(log, "a").run)) == "a is up"
        assert log == ["+a"]
        assert states(supervisor) == {"a": ChildState.RUNNING}
    assert log == ["+a", "-a"]
    assert supervisor.statistics().state is SupervisorState.STOPPED
    assert "top" in repr(supervisor)
    assert supervisor.name == "top"


async def test_leaving_stops_in_reverse_order_one_after_the_other(autojump_clock: Any) -> None:
    async with family("abc") as (_, children, log):
        children["c"].slow_stop = children["b"].slow_stop = 1
        before = trio.current_time()
    assert log == ["-c", "-b", "-a"]
    assert trio.current_time() - before == 2


async def test_cancelling_from_outside_stops_in_reverse_order_too(autojump_clock: Any) -> None:
    with trio.move_on_after(5) as scope:
        async with family("abc") as (_, children, log):
            children["c"].slow_stop = 1
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["-c", "-b", "-a"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.ONE_FOR_ONE, ["-b", "+b"]),
        (Strategy.ONE_FOR_ALL, ["-b", "-c", "-a", "+a", "+b", "+c"]),
        (Strategy.REST_FOR_ONE, ["-b", "-c", "+b", "+c"]),
    ],
)
async def test_strategies(strategy: Strategy, expected: list[str]) -> None:
    async with family("abc", strategy=strategy) as (supervisor, children, log):
        children["b"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert log == expected
        statistics = supervisor.statistics()
        assert statistics.restarts == statistics.restarts_in_window == statistics.failures == 1
        assert [child.restarts for child in statistics.children] == [
            log.count(f"+{child.name}") for child in statistics.children
        ]
        assert statistics.children[1].last_failure is not None
        assert statistics.children[1].last_failure.endswith("Boom: b")


async def test_a_group_starts_in_order_and_waits_for_each(autojump_clock: Any) -> None:
    async with family("abc", strategy=Strategy.ONE_FOR_ALL) as (supervisor, children, log):
        children["a"].slow_start = 1
        children["c"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["-c", "-b", "-a"]
        assert states(supervisor) == {
            "a": ChildState.STARTING,
            "b": ChildState.WAITING,
            "c": ChildState.WAITING,
        }
        late = Child(log, "d")
        # Meanwhile newcomers queue up behind the group.
        assert await supervisor.start_child(ChildSpec("d", late.run)) == "d is up"
        assert log == ["-c", "-b", "-a", "+a", "+b", "+c", "+d"]


async def test_a_newcomer_caught_by_a_group_restart_is_started_again(autojump_clock: Any) -> None:
    async with family("a", strategy=Strategy.ONE_FOR_ALL) as (supervisor, children, log):
        late = Child(log, "b")
        late.slow_start = 1
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                assert await supervisor.start_child(ChildSpec("b", late.run)) == "b is up"

            await trio.sleep(0.5)
            children["a"].fail()
        assert log == ["-a", "-b", "+a", "+b"]
        assert supervisor.statistics().children[1].restarts == 0


async def test_permanent_children_are_restarted_when_they_return() -> None:
    async with family("a") as (supervisor, children, log):
        children["a"].finish()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["a returns", "-a", "+a"]
        assert supervisor.statistics().failures == 0


@pytest.mark.parametrize("restart", [RestartType.TRANSIENT, RestartType.TEMPORARY])
async def test_others_are_not(restart: RestartType) -> None:
    async with family("a", spec={"restart": restart}) as (supervisor, children, log):
        children["a"].finish()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["a returns", "-a"]
        assert states(supervisor) == {}
        await supervisor.start_child(ChildSpec("a", children["a"].run))  # the name is free


async def test_a_group_restart_starts_finished_transient_children_again() -> None:
    async with family(
        "ab", strategy=Strategy.ONE_FOR_ALL, spec={"restart": RestartType.TRANSIENT}
    ) as (
        supervisor,
        children,
        log,
    ):
        children["a"].finish()
        await trio.testing.wait_all_tasks_blocked()
        assert states(supervisor) == {"a": ChildState.FINISHED, "b": ChildState.RUNNING}
        children["b"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert log[2:] == ["-b", "+a", "+b"]
        await supervisor.stop_child("a")


async def test_the_failure_of_a_temporary_child_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with family("a", spec={"restart": RestartType.TEMPORARY}) as (supervisor, children, _):
        children["a"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert states(supervisor) == {}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "top: child 'a' failed, it will not be restarted"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)


async def test_back_off(autojump_clock: Any) -> None:
    backoff = Backoff(initial=0.25, base=1, factor=3, maximum=5)
    async with family("a", backoff=backoff, intensity=Intensity(restarts=9)) as (_, children, log):
        for delay in [0.25, 1, 3, 5, 5]:
            children["a"].fail()
            await trio.sleep(delay - 0.125)
            assert log.pop() == "-a"
            await trio.sleep(0.25)
            assert log.pop() == "+a"


async def test_too_many_restarts_stop_all_and_escalate(autojump_clock: Any) -> None:
    log: list[str] = []
    with pytest.raises(SupervisionFailed, match="more than 2 restarts") as info:
        async with family("abc", intensity=Intensity(restarts=2, within=10)) as (_, children, log):
            children["b"].fail()
            await trio.sleep(8)
            children["b"].fail()
            await trio.sleep(8)  # the first is no longer in the window
            children["b"].fail()
            await trio.sleep(1)
            log.clear()
            children["b"].fail()
            await trio.sleep_forever()
    assert log == ["-b", "-c", "-a"]
    failure = info.value
    assert isinstance(failure, SupervisionFailed)
    assert isinstance(failure.__cause__, Boom)
    assert failure.fields() == {"supervisor": "top", "child": "b"}


async def test_a_permanent_child_that_keeps_returning_escalates() -> None:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()

    with pytest.raises(SupervisionFailed) as info:
        async with open_supervisor("top", backoff=AT_ONCE) as supervisor:
            await supervisor.start_child(ChildSpec("a", run))
            await trio.sleep_forever()
    assert isinstance(info.value.__cause__, ChildExited)


async def test_escalation_makes_the_exception() -> None:
    class Lost(Exception):
        pass

    def escalation(name: str, cause: BaseException) -> BaseException:
        return Lost(name)

    with pytest.raises(Lost) as info:
        async with family("ab", decider=lambda *_: Directive.ESCALATE, escalation=escalation) as (
            _,
            children,
            log,
        ):
            children["a"].fail()
            await trio.sleep_forever()
    assert log == ["-a", "-b"]
    assert str(info.value) == "top"
    assert isinstance(info.value.__cause__, Boom)


async def test_an_escalation_that_raises_is_raised() -> None:
    def escalation(name: str, cause: BaseException) -> BaseException:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as info:
        async with family("a", intensity=Intensity(restarts=0), escalation=escalation) as (
            _,
            children,
            _,
        ):
            children["a"].fail()
            await trio.sleep_forever()
    assert isinstance(info.value.__cause__, Boom)


async def test_an_escalation_makes_an_exception() -> None:
    with pytest.raises(TypeError, match="must return an exception, not None"):
        async with family(
            "a", intensity=Intensity(restarts=0), escalation=lambda _name, _cause: None
        ) as (_, children, _):
            children["a"].fail()
            await trio.sleep_forever()


async def test_a_decider_that_fails_is_escalated() -> None:
    def decider(failure: BaseException, child: str) -> Directive:
        raise ZeroDivisionError

    with pytest.raises(SupervisionFailed) as info:
        async with family("a", decider=decider) as (_, children, _):
            children["a"].fail()
            await trio.sleep_forever()
    cause = info.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert isinstance(cause.__context__, Boom)


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
async def test_signals_escalate_as_themselves(signal: type[BaseException]) -> None:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise BaseExceptionGroup("", [Boom(), signal()])

    log: list[str] = []
    with pytest.RaisesGroup(Boom, signal):
        async with family("a", decider=lambda *_: Directive.RESUME) as (supervisor, _, log):
            await supervisor.start_child(ChildSpec("b", run))
            await trio.sleep_forever()
    assert log == ["-a"]


async def test_the_worst_leaf_of_a_group_decides() -> None:
    decider = decide_by_type({Boom: Directive.STOP}, default=Directive.RESTART)
    async with family("ab", decider=decider) as (supervisor, children, _):
        children["a"].fail(ExceptionGroup("", [ValueError(), ExceptionGroup("", [Boom()])]))
        children["b"].fail(ExceptionGroup("", [ValueError()]))
        await trio.testing.wait_all_tasks_blocked()
        assert states(supervisor) == {"b": ChildState.RUNNING}


async def test_resume_restarts_the_child_alone_and_counts() -> None:
    async with family("ab", strategy=Strategy.ONE_FOR_ALL, decider=lambda *_: Directive.RESUME) as (
        supervisor,
        children,
        log,
    ):
        children["a"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["-a", "+a"]
        assert supervisor.statistics().restarts == 1


async def test_failing_to_start_again_is_a_failure_like_any_other() -> None:
    async with family("ab", strategy=Strategy.REST_FOR_ONE) as (supervisor, children, log):
        children["a"].fail_next_start = Boom("again")
        children["a"].fail()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["-a", "-b", "-a", "+a", "+b"]
        assert supervisor.statistics().restarts_in_window == 2


async def test_a_first_start_that_fails_is_its_callers() -> None:
    async with family("a") as (supervisor, _, _):
        child = Child([], "b")
        child.fail_next_start = Boom("no")
        with pytest.raises(Boom, match=r"^no$"):
            await supervisor.start_child(ChildSpec("b", child.run))
        assert states(supervisor) == {"a": ChildState.RUNNING}
        assert supervisor.statistics().restarts == 0

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            pass

        with pytest.raises(ChildExited, match="'c' returned before"):
            await supervisor.start_child(ChildSpec("c", run))
        with pytest.raises(NameTaken, match="'a' already, and it is running"):
            await supervisor.start_child(ChildSpec("a", run))


async def test_started_twice_is_an_error() -> None:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        task_status.started()

    with pytest.raises(SupervisionFailed) as info:
        async with open_supervisor("top", intensity=Intensity(restarts=0)) as supervisor:
            await supervisor.start_child(ChildSpec("a", run))
            await trio.sleep_forever()
    assert "twice" in str(info.value.__cause__)


async def test_started_by_somebody_left_behind_is_an_error() -> None:
    left_behind: list[trio.TaskStatus[None]] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        left_behind.append(task_status)
        if len(left_behind) == 1:
            raise Boom
        task_status.started()
        await trio.sleep_forever()

    async with open_supervisor("top") as supervisor:
        with pytest.raises(Boom):
            await supervisor.start_child(ChildSpec("a", run))
        with pytest.raises(RuntimeError, match=r"'a' called .* after its run had ended"):
            left_behind[0].started()
        await supervisor.start_child(ChildSpec("a", run))


async def test_a_failure_may_be_falsy() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    child = Child([], "a")
    child.fail_next_start = Empty()
    async with open_supervisor("top", backoff=AT_ONCE) as supervisor:
        with pytest.raises(Empty):
            await supervisor.start_child(ChildSpec("a", child.run))
        await supervisor.start_child(ChildSpec("a", child.run))
        child.fail(Empty())
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.statistics().restarts == 1


async def test_cancelling_start_child_stops_the_child(autojump_clock: Any) -> None:
    async with family("a") as (supervisor, _, log):
        child = Child(log, "b")
        child.slow_start = 10
        child.slow_stop = 3
        with trio.move_on_after(5) as scope:
            await supervisor.start_child(ChildSpec("b", child.run))
        assert scope.cancelled_caught
        assert trio.current_time() == 8  # not before it has left
        assert log == ["-b"]
        assert states(supervisor) == {"a": ChildState.RUNNING}

        child.fail_stop = Boom("in the way")
        with trio.move_on_after(5), pytest.raises(Boom) as info:
            await supervisor.start_child(ChildSpec("b", child.run))
        assert isinstance(info.value.__context__, trio.Cancelled)


async def test_cancelled_as_it_reports_the_child_is_stopped_all_the_same() -> None:
    scope = trio.CancelScope()
    log: list[str] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            log.append("left")

    async with open_supervisor("top") as supervisor:
        with scope:
            await supervisor.start_child(ChildSpec("a", run))
        assert scope.cancelled_caught
        assert log == ["left"]
        assert states(supervisor) == {}


async def test_stop_child(autojump_clock: Any) -> None:
    async with family("abc") as (supervisor, children, log):
        await supervisor.stop_child("b")
        assert log == ["-b"]
        assert list(states(supervisor)) == ["a", "c"]
        with pytest.raises(NoSuchChild, match="top has no child 'b'; its children: a, c"):
            await supervisor.stop_child("b")
        children["a"].fail_stop = Boom("while leaving")
        with pytest.raises(Boom, match="while leaving"):
            await supervisor.stop_child("a")
        assert list(states(supervisor)) == ["c"]


async def test_a_stop_goes_on_when_its_caller_is_cancelled(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with family("a") as (supervisor, children, _):
        children["a"].slow_stop = 10
        with trio.move_on_after(1) as scope:
            await supervisor.stop_child("a")
        assert scope.cancelled_caught
        assert states(supervisor) == {"a": ChildState.STOPPING}
        await trio.sleep(20)
        assert states(supervisor) == {}


async def test_a_failure_that_nobody_waits_for_any_more_is_logged(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with family("a") as (supervisor, children, _):
        children["a"].slow_stop = 10
        children["a"].fail_stop = Boom("too late")
        with trio.move_on_after(1):
            await supervisor.stop_child("a")
        await trio.sleep(20)
    assert "Boom: too late" in caplog.text


async def test_a_child_may_stop_itself() -> None:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await supervisor.stop_child("a")

    async with open_supervisor("top") as supervisor:
        await supervisor.start_child(ChildSpec("a", run))
        await trio.testing.wait_all_tasks_blocked()
        assert states(supervisor) == {}


async def test_stopping_a_child_that_waits_for_its_back_off(autojump_clock: Any) -> None:
    async with family("a", backoff=Backoff(initial=5)) as (supervisor, children, log):
        children["a"].fail()
        await trio.sleep(1)
        assert states(supervisor) == {"a": ChildState.WAITING}
        await supervisor.stop_child("a")
        await trio.sleep(10)
        assert log == ["-a"]


async def test_a_stop_while_another_starts_it(autojump_clock: Any) -> None:
    async with family("") as (supervisor, _, log):
        child = Child(log, "a")
        child.slow_start = 10
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ChildStopped, match="'a' was stopped as it started"):
                    await supervisor.start_child(ChildSpec("a", child.run))

            await trio.sleep(1)
            await supervisor.stop_child("a")


async def test_grace_is_reported_and_waited_out(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with family("ab", spec={"grace": 2.0}) as (supervisor, children, _):
        children["a"].slow_stop = 7
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.stop_child, "a")
            await trio.sleep(1)
            assert not supervisor.statistics().children[0].overdue
            assert not caplog.records
            await trio.sleep(2)
            assert supervisor.statistics().children[0].overdue
        assert trio.current_time() == 7
    assert [record.getMessage() for record in caplog.records] == [
        "top: child 'a' has not left 2 s after it was cancelled; still waiting"
    ]


async def test_grace_is_reported_also_when_cancelled_from_outside(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.move_on_after(1):
        async with family("a", spec={"grace": 2.0}) as (_, children, _):
            children["a"].slow_stop = 7
            await trio.sleep_forever()
    assert trio.current_time() == 8
    assert "'a' has not left 2 s" in caplog.text


async def test_failures_on_the_way_out_are_raised() -> None:
    with pytest.RaisesGroup(Boom, ValueError):
        async with family("ab") as (_, children, log):
            children["a"].fail_stop = Boom("leaving")
            raise ValueError
    assert log == ["-b", "-a"]


async def test_failures_during_an_escalation_are_raised_too() -> None:
    with pytest.RaisesGroup(Boom, SupervisionFailed):
        async with family("ab", intensity=Intensity(restarts=0)) as (_, children, _):
            children["a"].fail_stop = Boom("leaving")
            children["b"].fail()
            await trio.sleep_forever()


async def test_supervisor_starts_nothing_once_it_stops(autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        async with family("a") as (supervisor, children, log):
            children["a"].slow_stop = 5
            late = Child(log, "late")
            late.slow_start = 10

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ChildStopped):
                    await supervisor.start_child(ChildSpec("late", late.run))

            @nursery.start_soon
            async def _() -> None:
                await trio.sleep(1)
                with pytest.raises(SupervisorStopped, match="'b': the supervisor is stopping"):
                    await supervisor.start_child(ChildSpec("b", late.run))
                await supervisor.stop_child("a")
                assert trio.current_time() == 5

            await trio.testing.wait_all_tasks_blocked()
        assert log == ["-late", "-a"]
    with pytest.raises(SupervisorStopped):
        await supervisor.start_child(ChildSpec("b", late.run))


@pytest.mark.parametrize("how", ["finish", "fail"])
async def test_the_end_of_a_significant_child_ends_the_supervisor(how: str) -> None:
    log: list[str] = []
    async with open_supervisor("top", decider=lambda *_: Directive.STOP) as supervisor:
        child = Child(log, "s")
        for name, spec in {
            "a": ChildSpec("a", Child(log, "a").run),
            "s": ChildSpec("s", child.run, restart=RestartType.TRANSIENT, significant=True),
            "b": ChildSpec("b", Child(log, "b").run),
        }.items():
            assert await supervisor.start_child(spec) == f"{name} is up"
        log.clear()
        getattr(child, how)()
        await trio.Event().wait()  # cancelled once the children are gone, quietly
    assert [entry for entry in log if entry[0] == "-"] == ["-s", "-b", "-a"]


async def test_auto_shutdown_all_waits_for_the_last() -> None:
    spec: dict[str, Any] = {"restart": RestartType.TRANSIENT, "significant": True}
    async with family("ab", spec=spec, auto_shutdown=AutoShutdown.ALL) as (supervisor, children, _):
        children["a"].finish()
        await trio.testing.wait_all_tasks_blocked()
        assert states(supervisor) == {"b": ChildState.RUNNING}
        await supervisor.stop_child("b")  # not by itself
        await supervisor.start_child(ChildSpec("b", children["b"].run, **spec))
        children["b"].finish()
        await trio.sleep_forever()


async def test_a_supervisor_is_a_child_like_any_other() -> None:
    log: list[str] = []
    leaf = Child(log, "leaf")

    async def subtree(*, task_status: trio.TaskStatus[None]) -> None:
        async with open_supervisor("sub", intensity=Intensity(restarts=1), backoff=AT_ONCE) as sub:
            await sub.start_child(ChildSpec("leaf", leaf.run))
            task_status.started()
            await trio.sleep_forever()

    async with family("a") as (supervisor, _, _):
        await supervisor.start_child(ChildSpec("sub", subtree))
        for _ in range(2):
            leaf.fail()
            await trio.testing.wait_all_tasks_blocked()
        assert log == ["+leaf", "-leaf", "+leaf", "-leaf", "+leaf"]
        statistics = supervisor.statistics()
        assert statistics.failures == statistics.restarts == 1
        assert statistics.children[1].last_failure is not None
        assert "SupervisionFailed" in statistics.children[1].last_failure


async def test_a_stray_cancelled_is_passed_on() -> None:
    """One that no scope of the child explains ends the block, as in any nursery of trio's."""
    cancelled: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as exc:
            cancelled.append(exc)
            raise

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise cancelled[0]

    async with family("a") as (supervisor, _, log):
        await supervisor.start_child(ChildSpec("b", run))
        await trio.Event().wait()
    assert log == ["-a"]
    assert supervisor.statistics().restarts == 0


async def _noop(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: ChildSpec("", _noop),
            ValueError,
            "a child's name must be a non-empty string, not ''",
        ),
        (lambda: ChildSpec("a", 3), TypeError, "child 'a': run must be an async function, not 3"),  # type: ignore[arg-type]
        (
            lambda: ChildSpec("a", _noop, grace=-1),
            ValueError,
            "child 'a': grace must be at least 0, not -1",
        ),
        (lambda: ChildSpec("a", _noop, significant=True), ValueError, "TRANSIENT or TEMPORARY"),
        (
            lambda: Intensity(restarts=-1),
            ValueError,
            "restarts must be a whole number of at least 0, not -1",
        ),
        (lambda: Intensity(within=0), ValueError, "within must be more than 0, not 0"),
        (lambda: Backoff(base=-1), ValueError, "base must be at least 0, not -1"),
        (lambda: Backoff(factor=0.5), ValueError, "factor must be at least 1, not 0.5"),
        (lambda: Backoff(jitter=2), ValueError, "jitter must be at least 0 and at most 1, not 2"),
        (lambda: Supervisor(), TypeError, r"use open_supervisor\(name\)"),  # type: ignore[call-arg]
    ],
)
def test_misuse(make: Callable[[], Awaitable[None]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
