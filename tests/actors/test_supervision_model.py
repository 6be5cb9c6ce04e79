"""The supervisor's state machine against a model of OTP, and the runtime against the machine.

`Otp` is written from OTP's supervisor: one process that does one thing at a time, which is why it
can be a plain recursive program. The state machine under test does not use that program; it handles
events in any order. Where the two are fed the same faults, they must start and stop the same
children in the same order, at the same times.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atomr_accel import (
    ContextPoisoned,
    DeviceLost,
    EventStale,
    GpuRefStale,
    KernelHung,
    OutOfMemory,
    WorldBroken,
)
from atomr_accel.actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    ChildState,
    Directive,
    RestartType,
    Strategy,
    Supervision,
    SupervisionFailed,
    SupervisorState,
    decide_by_type,
    decide_device_faults,
    open_supervisor,
)
from atomr_accel.actors._supervision import (
    Action,
    Escalate,
    Finished,
    Raise,
    Removed,
    ReportFailure,
    StartChild,
    Stop,
    SupervisionMachine,
    Wake,
)

from ..harness import on_mock_clock, sized
from .counter import Boom
from .supervisions import (
    FAULTS,
    NAMES,
    SUPERVISIONS,
    Restart,
    Resume,
    StopIt,
    Worse,
    nothing,
    specs,
)


def poisoned(kind: type[ContextPoisoned]) -> ContextPoisoned:
    return kind("fault", generation=1, status=700, status_name="FAULT", op="gemm")


QUICK = settings(
    max_examples=sized(150, 500),
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class End(enum.Enum):
    FINISHED = "finished"
    ESCALATED = "escalated"


Script = dict[str, list[type[Exception]]]
"""Failures of a child's next starts; the starts after them succeed."""


# --- the model ---------------------------------------------------------------------


class Otp:
    """OTP's supervisor, with a decider in front of it."""

    def __init__(self, supervision: Supervision) -> None:
        self.supervision = supervision
        self.now = 0.0
        self.children: list[ChildSpec] = []
        self.running: set[str] = set()
        self.window: list[float] = []
        self.trace: list[tuple[float, str, str]] = []
        self.faults: Script = {}
        self.end: End | None = None

    def note(self, what: str, name: str) -> None:
        self.trace.append((self.now, what, name))

    def spec(self, name: str) -> ChildSpec | None:
        return next((spec for spec in self.children if spec.name == name), None)

    # what can happen

    def add(self, spec: ChildSpec) -> None:
        self.children.append(spec)
        self.note("start", spec.name)
        if self.faults.get(spec.name):
            self.faults[spec.name].pop(0)
            self.children.remove(spec)
        else:
            self.running.add(spec.name)

    def crash(self, name: str, fault: type[Exception]) -> None:
        self.running.remove(name)
        spec = self.spec(name)
        assert spec is not None
        if fault is Worse:
            self.escalate(spec)
        elif spec.restart is RestartType.TEMPORARY or fault is StopIt:
            self.ended(spec)
        else:
            self.restart(spec, alone=fault is Resume)

    def ret(self, name: str) -> None:
        self.running.remove(name)
        spec = self.spec(name)
        assert spec is not None
        if spec.restart is RestartType.PERMANENT:
            self.restart(spec, alone=False)
        elif (
            spec.restart is RestartType.TRANSIENT
            and self.supervision.strategy is not Strategy.ONE_FOR_ONE
        ):
            self.maybe_shut_down(spec)  # stays listed, to be started with its group
        else:
            self.ended(spec)

    def leave(self, name: str, fault: type[Exception] | None) -> None:
        """A child that stops itself. In OTP only children that are not restarted do."""
        self.running.remove(name)
        spec = self.spec(name)
        assert spec is not None
        if fault is Worse:
            self.escalate(spec)
        else:
            self.ended(spec)

    def stop(self, name: str) -> None:
        spec = self.spec(name)
        assert spec is not None
        self.terminate([spec])
        self.children.remove(spec)

    def shutdown(self) -> None:
        self.terminate(self.children)
        self.children.clear()
        self.end = End.FINISHED

    # what OTP does about it

    def ended(self, spec: ChildSpec) -> None:
        self.children.remove(spec)
        self.maybe_shut_down(spec)

    def maybe_shut_down(self, spec: ChildSpec) -> None:
        others = [c for c in self.children if c.significant and c.name in self.running]
        if spec.significant and (self.supervision.auto_shutdown is AutoShutdown.ANY or not others):
            self.shutdown()

    def terminate(self, specs: list[ChildSpec]) -> None:
        for spec in reversed(specs):
            if spec.name in self.running:
                self.running.remove(spec.name)
                self.note("stop", spec.name)

    def escalate(self, spec: ChildSpec) -> None:
        self.children.remove(spec)
        self.shutdown()
        self.end = End.ESCALATED

    def restart(self, spec: ChildSpec, *, alone: bool) -> None:
        intensity = self.supervision.intensity
        self.window = [at for at in self.window if self.now <= at + intensity.within]
        self.window.append(self.now)
        if len(self.window) > intensity.restarts:
            self.escalate(spec)
            return
        due = self.now + self.supervision.backoff.delay(len(self.window))
        concerned = [spec]
        if not alone and self.supervision.strategy is Strategy.ONE_FOR_ALL:
            concerned = list(self.children)
        elif not alone and self.supervision.strategy is Strategy.REST_FOR_ONE:
            concerned = self.children[self.children.index(spec) :]
        self.terminate(concerned)
        for other in concerned:
            if other.restart is RestartType.TEMPORARY:
                self.children.remove(other)
        self.now = max(self.now, due)
        self.start([c for c in concerned if c in self.children])

    def start(self, specs: list[ChildSpec]) -> None:
        """Start in order. A child that fails to is restarted, and the rest wait for that."""
        for spec in specs:
            if self.end is not None or spec not in self.children or spec.name in self.running:
                continue  # a restart further in has seen to it
            self.note("start", spec.name)
            if not self.faults.get(spec.name):
                self.running.add(spec.name)
                continue
            fault = self.faults[spec.name].pop(0)
            if fault is Worse:
                self.escalate(spec)
            elif fault is StopIt:
                self.ended(spec)
            else:
                self.restart(spec, alone=fault is Resume)


# --- the machine, with a world around it that answers at once ----------------------


class World:
    """Carries out the machine's actions, with children that do as the script says."""

    def __init__(self, supervision: Supervision) -> None:
        self.machine = SupervisionMachine(supervision)
        self.now = 0.0
        self.trace: list[tuple[float, str, str]] = []
        self.faults: Script = {}
        self.end: End | None = None

    @property
    def running(self) -> set[str]:
        children = self.machine.children.items()
        return {name for name, child in children if child.state is ChildState.RUNNING}

    def do(self, actions: list[Action]) -> None:
        todo = deque(actions)
        wakes: list[float] = []
        while todo or wakes:
            if not todo:
                self.now = wakes.pop(0)
                todo += self.machine.tick(self.now)
                continue
            match todo.popleft():
                case StartChild(name):
                    self.trace.append((self.now, "start", name))
                    if self.faults.get(name):
                        fault = self.faults[name].pop(0)(name)
                        todo += self.machine.exited(name, fault, self.now)
                    else:
                        todo += self.machine.started(name, self.now)
                case Stop(name):
                    self.trace.append((self.now, "stop", name))
                    todo += self.machine.exited(name, None, self.now)
                case Wake(at):
                    wakes.append(at)
                case Escalate():
                    assert self.end is None
                    self.end = End.ESCALATED
                case Finished():
                    assert self.end is None
                    self.end = End.FINISHED

    def add(self, spec: ChildSpec) -> None:
        self.do(self.machine.add(spec, self.now))

    def crash(self, name: str, fault: type[Exception]) -> None:
        self.do(self.machine.exited(name, fault(name), self.now))

    def ret(self, name: str) -> None:
        self.do(self.machine.exited(name, None, self.now))

    def leave(self, name: str, fault: type[Exception] | None) -> None:
        self.machine.leave(name)
        self.do(self.machine.exited(name, None if fault is None else fault(name), self.now))

    def stop(self, name: str) -> None:
        self.do(self.machine.stop(name, self.now))

    def shutdown(self) -> None:
        self.do(self.machine.shutdown(self.now))


# --- strategies --------------------------------------------------------------------

RARELY = st.integers(0, 9).map(lambda n: n == 9)
SCRIPTS = st.dictionaries(NAMES, st.lists(st.sampled_from(FAULTS), max_size=2), max_size=2)


# --- the machine does what OTP does ------------------------------------------------


class MachineAgainstOtp(RuleBasedStateMachine):
    @initialize(supervision=SUPERVISIONS, first=st.lists(specs(), min_size=1, max_size=4))
    def open(self, supervision: Supervision, first: list[ChildSpec]) -> None:
        self.otp = Otp(supervision)
        self.world = World(supervision)
        for spec in {spec.name: spec for spec in first}.values():
            self.otp.add(spec)
            self.world.add(spec)

    def both(self, method: str, *args: Any, faults: Script | None = None) -> None:
        for side in self.otp, self.world:
            side.faults = {name: list(of) for name, of in (faults or {}).items()}
            getattr(side, method)(*args)

    def running(self) -> list[str]:
        return [spec.name for spec in self.otp.children if spec.name in self.otp.running]

    @precondition(lambda self: self.otp.end is None)
    @rule(spec=specs(), faults=SCRIPTS)
    def add(self, spec: ChildSpec, faults: Script) -> None:
        if self.otp.spec(spec.name) is None:
            self.both("add", spec, faults=faults)

    @precondition(lambda self: self.otp.end is None and self.running())
    @rule(data=st.data(), fault=st.sampled_from(FAULTS), faults=SCRIPTS)
    def crash(self, data: st.DataObject, fault: type[Exception], faults: Script) -> None:
        self.both("crash", data.draw(st.sampled_from(self.running())), fault, faults=faults)

    @precondition(lambda self: self.otp.end is None and self.running())
    @rule(data=st.data(), faults=SCRIPTS)
    def ret(self, data: st.DataObject, faults: Script) -> None:
        self.both("ret", data.draw(st.sampled_from(self.running())), faults=faults)

    @precondition(lambda self: self.otp.end is None and self.running())
    @rule(data=st.data(), fault=st.sampled_from([None, *FAULTS]))
    def leave(self, data: st.DataObject, fault: type[Exception] | None) -> None:
        self.both("leave", data.draw(st.sampled_from(self.running())), fault)

    @precondition(lambda self: self.otp.end is None and self.otp.children)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        names = [spec.name for spec in self.otp.children]
        self.both("stop", data.draw(st.sampled_from(names)))

    @precondition(lambda self: self.otp.end is None)
    @rule(really=RARELY)
    def shutdown(self, really: bool) -> None:
        if really:
            self.both("shutdown")

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        self.otp.now += seconds
        self.world.now += seconds

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "otp"):
            return
        assert self.world.trace == self.otp.trace
        assert self.world.end == self.otp.end
        assert self.world.now == self.otp.now
        assert list(self.world.machine.children) == [spec.name for spec in self.otp.children]
        assert self.world.running == self.otp.running


@pytest.mark.slow
def test_the_machine_does_what_otp_does() -> None:
    run_state_machine_as_test(MachineAgainstOtp, settings=QUICK)


# --- the machine keeps its promises whatever comes when ----------------------------


class AnyOrder(RuleBasedStateMachine):
    """Children that start, fail, return and leave when they like, in any order."""

    @initialize(supervision=SUPERVISIONS, first=st.lists(specs(), max_size=3))
    def open(self, supervision: Supervision, first: list[ChildSpec]) -> None:
        self.machine = SupervisionMachine(supervision)
        self.now = 0.0
        self.alive: dict[str, bool] = {}  # name: whether it was told to stop
        self.started: set[str] = set()
        self.wakes: set[float] = set()
        self.raised: list[BaseException] = []  # failures, each once
        self.accounted: list[BaseException] = []
        self.ends: list[Action] = []
        for spec in {spec.name: spec for spec in first}.values():
            self.do(self.machine.add(spec, self.now))
            self.do(self.machine.started(spec.name, self.now))
            self.started.add(spec.name)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.ends, "the end is the last action of all"
            match action:
                case StartChild(name):
                    assert name not in self.alive, "two tasks for one child"
                    assert self.machine.state is SupervisorState.RUNNING
                    self.alive[name] = False
                    if self.machine.strategy is not Strategy.ONE_FOR_ONE and name in self.started:
                        for other, child in self.machine.children.items():
                            if other == name:
                                break
                            assert child.state is not ChildState.WAITING, "started out of turn"
                            assert other not in self.started or (
                                child.state is not ChildState.STARTING
                            ), "started before its elder was up"
                case Stop(name):
                    assert not self.alive[name], "stopped twice"
                    self.alive[name] = True
                    if self.machine.state is not SupervisorState.RUNNING:
                        assert name == list(self.machine.children)[-1], "not in reverse order"
                case Wake(at):
                    assert at > self.now
                    self.wakes.add(at)
                case Removed(name, failure):
                    self.started.discard(name)
                    assert name not in self.alive
                    if failure is not None:
                        self.accounted.append(failure)
                case ReportFailure(_, failure) | Raise(failure):
                    self.accounted.append(failure)
                case Escalate(_, cause):
                    if cause in self.raised:  # it may also be a permanent child that returned
                        self.accounted.append(cause)
                    self.ends.append(action)
                case Finished():
                    self.ends.append(action)

    @rule(spec=specs())
    def add(self, spec: ChildSpec) -> None:
        if self.machine.state is SupervisorState.RUNNING and spec.name not in self.machine.children:
            self.do(self.machine.add(spec, self.now))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.alive)))
        if self.machine.children[name].state is ChildState.STARTING:
            self.started.add(name)
        self.do(self.machine.started(name, self.now))

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        fault=st.sampled_from([None, *FAULTS, KeyboardInterrupt]),
        unprompted=st.booleans(),
        forgone=RARELY,
    )
    def exit(
        self,
        data: st.DataObject,
        fault: type[BaseException] | None,
        unprompted: bool,
        forgone: bool,
    ) -> None:
        name = data.draw(st.sampled_from(list(self.alive)))
        starting = self.machine.children[name].state is ChildState.STARTING
        if starting and fault is None:
            fault = Restart  # the runtime makes a failure of this
        failure = fault(name) if fault is not None else None
        if failure is not None:
            self.raised.append(failure)
        told = self.alive.pop(name)
        if failure is None and forgone and self.machine.forgo(name):
            self.do(self.machine.exited(name, None, self.now))
            assert name not in self.machine.children, "started again, or kept"
            return
        if failure is not None and (unprompted or not told) and self.machine._escalation is None:
            # Nobody's order to stop has caused it: it is judged, and raised only on that account.
            actions = self.machine.exited(name, failure, self.now, unprompted=unprompted)
            assert not any(isinstance(action, Raise) for action in actions)
        else:
            actions = self.machine.exited(name, failure, self.now, unprompted=unprompted)
        self.do(actions)

    @precondition(lambda self: self.machine.children)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.do(
            self.machine.stop(data.draw(st.sampled_from(list(self.machine.children))), self.now)
        )

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.wakes and min(self.wakes) <= until:
            self.now = min(self.wakes)
            self.wakes.remove(self.now)
            self.do(self.machine.tick(self.now))
        self.now = until

    @rule(really=RARELY)
    def shutdown(self, really: bool) -> None:
        if really:
            self.do(self.machine.shutdown(self.now))

    @invariant()
    def every_failure_is_accounted_for_once(self) -> None:
        escalating = getattr(self, "machine", None) and self.machine._escalation
        pending = [escalating.cause] if escalating else []
        missing = [f for f in getattr(self, "raised", []) if f not in self.accounted + pending]
        assert missing == []
        assert len(set(map(id, getattr(self, "accounted", [])))) == len(
            getattr(self, "accounted", [])
        )

    @invariant()
    def nothing_is_stuck(self) -> None:
        """Each child that does not run is starting, or waits for another child or a time."""
        if hasattr(self, "machine") and self.machine.state is SupervisorState.RUNNING:
            waiting = [
                child
                for child in self.machine.children.values()
                if child.state is ChildState.WAITING
            ]
            busy = any(self.alive.values()) or any(
                child.state is ChildState.STARTING for child in self.machine.children.values()
            )
            assert not waiting or busy or self.wakes

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.do(self.machine.shutdown(self.now))
        while self.alive:
            told = [name for name, stopping in self.alive.items() if stopping]
            assert told, "nobody was told to stop, and the supervisor is still there"
            for name in told:
                del self.alive[name]
                self.do(self.machine.exited(name, None, self.now))
        assert len(self.ends) == 1
        assert self.machine.state is SupervisorState.STOPPED


@pytest.mark.slow
def test_the_machine_keeps_its_promises_in_any_order_of_events() -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(QUICK, stateful_step_count=25))


# --- the runtime does what the machine decides -------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("crash"), NAMES, st.sampled_from(FAULTS), SCRIPTS),
        st.tuples(st.just("ret"), NAMES, st.none(), SCRIPTS),
        st.tuples(st.just("stop"), NAMES, st.none(), st.just({})),
        st.tuples(st.just("add"), specs(), st.none(), SCRIPTS),
    ),
    max_size=8,
)


class Runtime:
    """Runs the children of `World` as tasks under a real supervisor."""

    def __init__(self) -> None:
        self.trace: list[tuple[float, str, str]] = []
        self.faults: Script = {}
        self.orders: dict[str, trio.MemorySendChannel[Exception | None]] = {}

    def spec(self, spec: ChildSpec) -> ChildSpec:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            self.trace.append((trio.current_time(), "start", spec.name))
            if self.faults.get(spec.name):
                raise self.faults[spec.name].pop(0)(spec.name)
            task_status.started()
            self.orders[spec.name], orders = trio.open_memory_channel[Exception | None](1)
            try:
                order = await orders.receive()
            except trio.Cancelled:
                self.trace.append((trio.current_time(), "stop", spec.name))
                raise
            if order is not None:
                raise order

        return ChildSpec(spec.name, run, spec.restart, spec.grace, spec.significant)


@pytest.mark.slow
@settings(QUICK, max_examples=sized(80, 200))
@given(supervision=SUPERVISIONS, first=st.lists(specs(), min_size=1, max_size=4), steps=STEPS)
@on_mock_clock
async def test_the_runtime_does_what_the_machine_decides(
    supervision: Supervision, first: list[ChildSpec], steps: list[tuple[str, Any, Any, Script]]
) -> None:
    world = World(supervision)
    runtime = Runtime()
    ended = End.FINISHED
    options = {
        name: getattr(supervision, name)
        for name in ("strategy", "decider", "intensity", "backoff", "auto_shutdown")
    }
    try:
        async with open_supervisor("top", **options) as supervisor:
            for spec in {spec.name: spec for spec in first}.values():
                world.add(spec)
                await supervisor.start_child(runtime.spec(spec))
            for method, who, fault, faults in steps:
                name = who.name if isinstance(who, ChildSpec) else who
                if method == "add":
                    possible = name not in world.machine.children
                elif method == "stop":
                    possible = name in world.machine.children
                else:
                    possible = name in world.running
                if world.end is not None or not possible:
                    continue
                world.faults = {name: list(of) for name, of in faults.items()}
                runtime.faults = {name: list(of) for name, of in faults.items()}
                getattr(world, method)(*[who] if fault is None else [who, fault])
                if method == "crash":
                    runtime.orders[name].send_nowait(fault(name))
                elif method == "ret":
                    runtime.orders[name].send_nowait(None)
                elif method == "stop":
                    await supervisor.stop_child(name)
                else:
                    try:
                        await supervisor.start_child(runtime.spec(who))
                    except tuple(FAULTS):
                        assert name not in world.machine.children
                await trio.sleep(1000)  # longer than any back-off; the clock jumps
                world.now = trio.current_time()
                assert runtime.trace == world.trace
            world.shutdown()
    except* SupervisionFailed:
        ended = End.ESCALATED
    assert runtime.trace == world.trace
    assert ended is world.end


# --- single decisions --------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "delay"), [(0, 0.25), (1, 0.25), (2, 1), (3, 2), (4, 4), (5, 5), (5000, 5)]
)
def test_back_off_grows_to_its_maximum(n: int, delay: float) -> None:
    assert Backoff(initial=0.25, base=1.0, factor=2.0, maximum=5).delay(n) == delay


def test_no_back_off_stays_none() -> None:
    assert [Backoff(base=0).delay(n) for n in (1, 2, 5000)] == [0, 0, 0]


def test_jitter_spreads_in_both_directions_and_is_repeatable() -> None:
    import random

    delays = [Backoff(base=1, jitter=0.5, rng=random.Random(1).random).delay(2) for _ in range(2)]
    assert delays[0] == delays[1]
    assert 0.5 <= delays[0] <= 1.5
    for rng, delay in ((lambda: 0.0), 0.5), ((lambda: 0.5), 1.0), ((lambda: 1.0), 1.5):
        assert Backoff(base=1, jitter=0.5, rng=rng).delay(2) == delay
    assert Backoff(initial=0, jitter=0.5, rng=lambda: 1 / 0).delay(1) == 0  # asks for no dice


def test_decide_by_type_takes_the_nearest_base() -> None:
    decide = decide_by_type(
        {LookupError: Directive.STOP, KeyError: Directive.RESUME}, default=Directive.ESCALATE
    )
    assert decide(KeyError(), "a") is Directive.RESUME
    assert decide(IndexError(), "a") is Directive.STOP
    assert decide(ValueError(), "a") is Directive.ESCALATE


@given(fault=st.sampled_from(FAULTS), name=NAMES)
def test_a_decider_learns_which_child_failed(fault: type[Exception], name: str) -> None:
    asked: list[tuple[BaseException, str]] = []

    def decide(failure: BaseException, child: str) -> Directive:
        asked.append((failure, child))
        return Directive.STOP

    machine = SupervisionMachine(Supervision(decider=decide))
    for each in "abcd":
        machine.add(ChildSpec(each, nothing), 0)
        machine.started(each, 0)
    failures = [fault("one"), fault("two")]
    machine.exited(name, ExceptionGroup("both", failures), 0)
    assert asked == [(failure, name) for failure in failures]


@pytest.mark.parametrize(
    ("failure", "directive"),
    [
        (poisoned(ContextPoisoned), Directive.RESTART),
        (poisoned(KernelHung), Directive.RESTART),
        (GpuRefStale("freed"), Directive.RESTART),
        (EventStale("gone"), Directive.RESTART),
        (OutOfMemory("full", requested=8), Directive.RESUME),
        (DeviceLost("gone"), Directive.STOP),
        (WorldBroken("left", rank=1, epoch=2), Directive.ESCALATE),
        (Boom(), Directive.ESCALATE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.value,
)
def test_decide_device_faults(failure: Exception, directive: Directive) -> None:
    assert decide_device_faults(failure, "a") is directive


def test_a_decider_must_decide() -> None:
    machine = SupervisionMachine(Supervision(decider=lambda *_: "restart"))  # type: ignore[arg-type]
    machine.add(ChildSpec("a", nothing), 0)
    machine.started("a", 0)
    *_, last = machine.exited("a", Restart(), 0)
    assert isinstance(last, Escalate)
    assert isinstance(last.cause, TypeError)
    assert "must return a Directive, not 'restart'" in str(last.cause)


def test_stopped_child_has_not_ended_by_itself() -> None:
    """A significant child that fails while its group is stopped does not end the supervisor."""
    machine = SupervisionMachine(Supervision(strategy=Strategy.ONE_FOR_ALL))
    for spec in (
        ChildSpec("a", nothing),
        ChildSpec("b", nothing, RestartType.TEMPORARY, significant=True),
    ):
        machine.add(spec, 0)
        machine.started(spec.name, 0)
    failure, another = Restart("a"), Restart("b")
    assert machine.exited("a", failure, 0)[1:] == [Stop("b", restarting=True)]
    report, removed, start = machine.exited("b", another, 0)
    assert isinstance(report, ReportFailure)
    assert report.failure is another
    assert [removed, start] == [Removed("b"), StartChild("a", failure)]


def test_the_last_of_the_significant_children_is_the_last_that_is_up() -> None:
    supervision = Supervision(strategy=Strategy.REST_FOR_ONE, auto_shutdown=AutoShutdown.ALL)
    machine = SupervisionMachine(supervision)
    for name in "ab":
        machine.add(ChildSpec(name, nothing, RestartType.TRANSIENT, significant=True), 0)
        machine.started(name, 0)
    assert machine.exited("a", None, 0) == []
    assert machine.children["a"].state is ChildState.FINISHED
    *_, last = machine.exited("b", None, 0)
    assert last == Finished()
