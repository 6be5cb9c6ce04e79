"""Remains of ended actors: the address and the failure, nothing else."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import ClassVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from atomr_accel import AccelError, ContextPoisoned, LinAlgError, OutOfMemory
from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    Directive,
    MailboxFull,
    RestartType,
    Supervision,
    Terminated,
    handler,
    open_actor_system,
)
from atomr_accel.actors._records import identity, record_of

from ..harness import sized
from .counter import Boom, Counter, Fail, Quit


class Data:
    """An argument whose end can be seen."""


class Job(Counter):
    """Has all that an actor can have: arguments, a child, a watch, a failure with frames."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data

    async def started(self) -> None:
        self.watch(await self.spawn(Counter))

    @handler
    async def gone(self, message: Terminated) -> None:
        pass

    @handler
    async def fail(self, message: Fail) -> None:
        data = self.data
        raise OSError("one of its own") from Boom(id(data))


async def _stop(ref: ActorRef) -> None:
    await ref.stop()


async def _quit(ref: ActorRef) -> None:
    await ref.ask(Quit())


async def _told(ref: ActorRef) -> None:
    ref.tell(Fail(OSError("told")))
    await ref.wait_stopped()


async def _asked(ref: ActorRef) -> None:
    with suppress(OSError):
        await ref.ask(Fail(OSError("asked")))


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What is logged refers to the failure, and pytest keeps it.
    monkeypatch.setattr(logging.getLogger("atomr_accel.actors"), "disabled", True)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Keeper(Actor):
    """An actor that keeps the ends it hears of."""

    def __init__(self, others: list[ActorRef], kept: list[Terminated]) -> None:
        self.others, self.kept = others, kept

    async def started(self) -> None:
        self.watch(self.others.pop())

    @handler
    async def gone(self, message: Terminated) -> None:
        self.kept.append(message)


@pytest.mark.parametrize("end", [_stop, _quit, _told, _asked])
@pytest.mark.parametrize("restart", RestartType)
async def test_a_ref_of_an_ended_actor_keeps_nothing_that_it_needed(
    no_collection: None, restart: RestartType, end: Callable[[ActorRef], Awaitable[None]]
) -> None:
    supervision = Supervision(decider=lambda *_: Directive.STOP)
    async with open_actor_system("demo", supervision=supervision) as system:
        data = Data()
        alive = weakref.ref(data)
        ref = await system.spawn(Job, data, restart=restart, name="job")
        del data
        kept: list[Terminated] = []
        await system.spawn(Keeper, [ref], kept)
        await end(ref)
        await wait_all_tasks_blocked()
        assert alive() is None
        # What it is for still works.
        failure = await ref.wait_stopped()
        assert (failure is not None) == (end in (_told, _asked))
        assert [(one.ref, one.cause) for one in kept] == [(ref, failure)]
        with pytest.raises(ActorStopped) as info:
            ref.tell(Quit())
        assert info.value.__cause__ is failure
        assert (ref.path, ref.stopped, ref.statistics().kind) == ("/job", True, "Job")
        # And it is freed with its ref, for nothing refers to itself.
        gone = weakref.ref(ref)
        kept.clear()
        del ref, info, failure
        assert gone() is None


async def test_a_ref_is_one_and_the_same_also_after_the_end() -> None:
    class Teller(Counter):
        me: ClassVar[list[Actor]] = []

        async def started(self) -> None:
            self.me.append(self)

    async with open_actor_system("demo") as system:
        ref = await system.spawn(Teller)
        (actor,) = Teller.me
        await ref.stop()
        assert actor.ref is ref
        del ref
        assert actor.ref is actor.ref
        assert actor.ref.path == "/teller-1"


FAILURES = [
    ValueError("a", 2),
    OSError(2, "no such file", "x.txt"),
    KeyError("k"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ContextPoisoned("fault", generation=1, status=700, status_name="FAULT", op="gemm"),
    OutOfMemory("full", requested=7, free=3),
    LinAlgError("singular", index=0, info=3),
    MailboxFull("full", path="/a"),
    KeyboardInterrupt(),
]
"""Failures of all makes: with state of their own in C or in attributes, of two bases."""


@settings(max_examples=sized(40, 500))
@given(
    tree=st.recursive(
        st.sampled_from(FAILURES), lambda inner: st.lists(inner, min_size=1, max_size=3)
    ),
    causes=st.lists(st.sampled_from(FAILURES), max_size=3),
)
def test_a_record_says_what_the_failure_says(tree: object, causes: list[BaseException]) -> None:
    def build(of: object) -> BaseException:
        if isinstance(of, list):
            return BaseExceptionGroup("some", [build(part) for part in of])
        assert isinstance(of, BaseException)
        return record_of(of)  # one of its own, to raise and to chain

    chain = [build(tree), *map(record_of, causes)]
    for failure, cause in pairwise(chain):
        failure.__cause__ = cause
    failure = chain[0]
    failure.add_note("where it was")
    try:
        raise failure
    except BaseException:  # noqa: BLE001
        record = record_of(failure)
    todo: list[tuple[BaseException, BaseException]] = [(failure, record)]
    while todo:
        one, two = todo.pop()
        assert one is not two
        assert (type(one), str(one), repr(one)) == (type(two), str(two), repr(two))
        assert identity(one) == identity(two)
        assert getattr(one, "__notes__", None) == getattr(two, "__notes__", None)
        assert two.__traceback__ is None
        if isinstance(one, AccelError) and isinstance(two, AccelError):
            assert one.fields() == two.fields()
        if isinstance(one, BaseExceptionGroup) and isinstance(two, BaseExceptionGroup):
            todo += zip(one.exceptions, two.exceptions, strict=True)
        assert (one.__cause__ is None) == (two.__cause__ is None)
        if one.__cause__ is not None and two.__cause__ is not None:
            todo.append((one.__cause__, two.__cause__))


def test_other_failures_have_other_identities() -> None:
    assert identity(Boom()) != identity(record_of(boom := Boom()))
    assert identity(boom) == identity(record_of(record_of(boom)))


def test_causes_may_go_round_in_a_ring() -> None:
    one, two = Boom("one"), Boom("two")
    one.__cause__, two.__cause__ = two, one
    record = record_of(one)
    assert record.__cause__ is not None
    assert record.__cause__.__cause__ is record


def test_a_failure_that_cannot_be_copied_is_kept_itself() -> None:
    class Mixed(KeyError, OSError):
        """KeyError cannot make one, although it comes first."""

    mixed = Mixed("a")
    assert record_of(mixed) is mixed


async def test_who_missed_an_actor_that_failed_does_not_count_twice() -> None:
    """Late messages get a record of the failure that ended the system, too."""

    class Slow(Counter):
        async def stopping(self) -> None:
            await until.wait()

    until = trio.Event()
    with pytest.raises(Exception, match="gave up") as info:
        async with open_actor_system(
            "demo", supervision=Supervision(decider=lambda *_: Directive.ESCALATE)
        ) as system:
            await system.spawn(Slow)
            ref = await system.spawn(Counter)
            ref.tell(Fail(Boom()))
            await ref.wait_stopped()
            until.set()
            ref.tell(Quit())
    assert not isinstance(info.value, ExceptionGroup)
    assert isinstance(info.value.__cause__, Boom)
