"""Costs of a program with many actors: steps are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorSystem,
    Backoff,
    ChildSpec,
    Instrument,
    Intensity,
    Mailbox,
    NoSuchActor,
    Overflow,
    Strategy,
    Supervision,
    _mailbox,
    _supervision,
    open_actor_system,
)
from atomr_accel.actors._mailbox import SWEEP, Ask, Inbox
from atomr_accel.actors._supervision import Action, StartChild, Stop, SupervisionMachine, Wake

from .counter import Add, Boom, Counter, Fail, Get, Hang
from .supervisions import nothing


def lines(of: Any, call: Callable[[], object]) -> int:
    """Return the number of lines of a module that a call executes."""
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return local if frame.f_code.co_filename == of.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


# --- mailboxes


class Nobody:
    """The owner of a mailbox."""

    path = "/nobody"

    def __init__(self) -> None:
        self.current: Ask | None = None
        self.dead: list[Any] = []

    def handles(self, ask: Ask) -> bool:
        return ask is self.current

    def dropped(self, message: Any) -> None:
        self.dead.append(message)


def asked(inbox: Inbox, n: int) -> Ask:
    ask = Ask(Add(n), object(), inbox.line)  # type: ignore[arg-type] # never scheduled
    if not inbox.put(ask, urgent=False):
        inbox.wait(ask, urgent=False)
    return ask


@pytest.mark.parametrize("first", ["oldest", "newest"])
def test_withdrawing_costs_the_same_however_many_wait(first: str) -> None:
    def cost(n: int) -> float:
        inbox = Inbox(Mailbox(capacity=n // 2), Nobody())
        asks = [asked(inbox, k) for k in range(n)]

        def withdraw_all() -> None:
            for ask in asks if first == "oldest" else reversed(asks):
                ask.abort(None)

        steps = lines(_mailbox, withdraw_all)
        assert (inbox.statistics().depth, inbox.statistics().waiting) == (0, 0)
        assert len(inbox.queue) <= SWEEP  # whoever asks and gives up for ever fills nothing
        return steps / n

    assert cost(2000) < 1.5 * cost(500)


def test_withdrawn_message_is_not_kept_alive() -> None:
    inbox = Inbox(Mailbox(), Nobody())
    ask = asked(inbox, 1)
    ask.abort(None)
    assert not hasattr(ask, "message")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.booleans()),
        st.tuples(st.just("tell"), st.booleans()),
        st.tuples(st.just("withdraw"), st.integers(0, 99)),
        st.tuples(st.just("take"), st.none()),
    ),
    max_size=200,
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(operations=OPERATIONS, capacity=st.integers(1, 40), sweep=st.sampled_from([0, 2, SWEEP]))
def test_a_mailbox_is_two_queues_and_whoever_waits_for_them(
    operations: list[tuple[str, Any]], capacity: int, sweep: int
) -> None:
    """Against plain lists, in which whatever was withdrawn is looked for."""
    owner = Nobody()
    inbox = Inbox(Mailbox(capacity=capacity), owner)
    queues: dict[bool, list[Any]] = {False: [], True: []}
    waiting: dict[bool, list[Any]] = {False: [], True: []}
    asks: list[Ask] = []

    def admit() -> None:
        for urgent, queue in queues.items():
            if waiting[urgent] and len(queue) < capacity:
                queue.append(waiting[urgent].pop(0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_mailbox, "SWEEP", sweep)
        for number, (operation, argument) in enumerate(operations):
            if operation == "ask":
                ask = Ask(Add(number), object(), inbox.line)  # type: ignore[arg-type]
                asks.append(ask)
                if inbox.put(ask, urgent=argument):
                    queues[argument].append(ask)
                else:
                    inbox.wait(ask, urgent=argument)
                    waiting[argument].append(ask)
            elif operation == "tell":
                message = Add(number)
                if inbox.put(message, urgent=argument):
                    queues[argument].append(message)
                else:
                    assert len(queues[argument]) == capacity
            elif operation == "withdraw" and asks:
                ask = asks.pop(argument % len(asks))
                if ask.task is not None:
                    ask.abort(None)
                for entries in (*queues.values(), *waiting.values()):
                    if ask in entries and ask is not owner.current:
                        entries.remove(ask)
                admit()
            elif operation == "take":
                if owner.current is not None:
                    owner.current.task = None  # it has its answer
                owner.current = None
                expected = next((q.pop(0) for q in (queues[True], queues[False]) if q), None)
                admit()
                taken = inbox.take()
                assert taken is expected
                owner.current = taken if isinstance(taken, Ask) else None
            statistics = inbox.statistics()
            assert statistics.depth == sum(map(len, queues.values()))
            assert statistics.urgent == len(queues[True])
            assert statistics.waiting == sum(map(len, waiting.values()))
            full = len(queues[False]) >= capacity
            assert (len(inbox.queue) >= inbox.limit) == full  # what senders look at
    left = [entry for urgent in (True, False) for entry in queues[urgent] + waiting[urgent]]
    assert inbox.close() == left


async def test_a_mailbox_of_withdrawn_messages_drops_one_that_is_not() -> None:
    mailbox = Mailbox(capacity=2, overflow=Overflow.DROP_OLDEST)
    async with open_actor_system("demo") as system, trio.open_nursery() as nursery:
        counter = await system.spawn(Counter, mailbox=mailbox)
        counter.tell(Get())
        nursery.start_soon(counter.ask, Hang())
        await wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await counter.ask(Add(1))
        counter.tell(Add(10))
        counter.tell(Add(20))
        counter.tell(Add(30))
        assert counter.statistics().mailbox.dropped == 1
        nursery.cancel_scope.cancel()


# --- restarts


@pytest.mark.parametrize("strategy", Strategy)
def test_a_restart_of_many_costs_as_much_for_each(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SupervisionMachine, "validate", False)

    def cost(n: int) -> float:
        supervision = Supervision(
            strategy=strategy,
            backoff=Backoff(initial=1.0, base=1.0, factor=1.0),
            intensity=Intensity(restarts=n),
        )
        machine = SupervisionMachine(supervision)
        names = [f"child-{k}" for k in range(n)]
        for name in names:
            machine.add(ChildSpec(name, nothing), 0)
            machine.started(name, 0)
        todo: list[Action] = []
        order: list[str] = []

        def restart_all() -> None:
            alone = strategy is Strategy.ONE_FOR_ONE
            for name in names if alone else names[:1]:
                todo.extend(machine.exited(name, Boom(), 0))
            while todo:
                match todo.pop():
                    case Stop(name):
                        todo.extend(machine.exited(name, None, 0))
                    case Wake(at) if at > 0 and not order:
                        todo.extend(machine.tick(1))
                    case StartChild(name):
                        order.append(name)
                        todo.extend(machine.started(name, 1))

        steps = lines(_supervision, restart_all)
        assert sorted(order) == sorted(names)
        if strategy is not Strategy.ONE_FOR_ONE:
            assert order == names
        return steps / n

    assert cost(400) < 1.5 * cost(100)


# --- deep trees


async def _dig(system: ActorSystem, depth: int) -> None:
    ref = None
    for _ in range(depth):
        ref = await system.spawn(Actor, name="a", supervisor=ref)


async def test_a_tree_may_be_deeper_than_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SupervisionMachine, "validate", False)
    depth = sys.getrecursionlimit() + 100
    async with open_actor_system("demo") as system:
        await _dig(system, depth)
        assert system.statistics().actors == depth
        drawn = str(system.tree()).splitlines()
        assert len(drawn) == depth + 1
        assert drawn[-1] == "    " * (depth - 1) + "└── a  Actor  running  restarts=0  mailbox=0"


# --- the tree is whole whenever it is looked at


async def test_a_cancelled_spawn_is_not_in_the_tree() -> None:
    """Between two steps of a spawn, other tasks see an actor with a state, or none."""
    seen: list[str] = []

    async def look(look_again: Callable[[], Awaitable[None]]) -> None:
        for _ in range(4):
            seen.append(str(system.tree()))
            with suppress(NoSuchActor):
                seen.append(system.find("/x").statistics().path)
            await look_again()

    async def spawn() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await system.spawn(Counter, name="x")

    async with open_actor_system("demo") as system:
        for _ in range(20):  # who of the two goes first is trio's dice
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawn)
                nursery.start_soon(look, trio.lowlevel.checkpoint)
        assert set(seen) == {"demo  system  running  restarts=0  mailbox=0"}


async def test_an_instrument_may_look_at_the_tree_at_any_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trees: list[str] = []

    class Look(Instrument):
        def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
            trees.append(str(system.tree()))
            system.statistics()

    slow = Supervision(
        strategy=Strategy.ONE_FOR_ALL, backoff=Backoff(initial=5), intensity=Intensity(restarts=9)
    )
    async with open_actor_system("demo", supervision=slow, instruments=[Look()]) as system:
        refs = [await system.spawn(Counter, name=name) for name in "abc"]
        with pytest.raises(Boom):
            await refs[0].ask(Fail(Boom()))
        await wait_all_tasks_blocked()
        assert "waiting" in str(system.tree())
    assert len(trees) == 3
    assert caplog.text.count("\n") == 1  # the restart: instruments that fail are reported
