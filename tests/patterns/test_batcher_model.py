"""Random requests, faults and cancellations: one answer each, and the right one."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned
from atomr_accel.actors import Backoff, Overflow
from atomr_accel.patterns import Closed, Dropped, Overloaded, Retry, WrongResults, open_batcher

from ..harness import run_on_mock_clock
from .worlds import FaultyDevice, Log


class Bad(Exception):
    """Raised by the function for an item, or returned for it."""


@dataclass(frozen=True)
class Asked:
    """One request, and its effect on its batch."""

    number: int
    at: float
    """When it is made."""
    leaves: float
    """After how many seconds its caller is cancelled."""
    priority: int
    bucket: int
    kind: str

    def __lt__(self, other: Asked) -> bool:
        raise AssertionError("items are nobody's business")


KINDS = ["good"] * 8 + ["poison", "raises", "error among results"]

requests = st.builds(
    Asked,
    number=st.just(0),
    at=st.integers(0, 12).map(lambda n: n / 4),
    leaves=st.sampled_from([math.inf] * 4 + [0.1, 0.6, 1.1, 2.6]),
    priority=st.integers(0, 1),
    bucket=st.integers(0, 1),
    kind=st.sampled_from(KINDS),
)

options = st.fixed_dictionaries(
    {
        "max_size": st.integers(1, 6),
        "max_wait": st.sampled_from([0.0, 0.3, 2.0]),
        "max_in_flight": st.integers(1, 3),
        "capacity": st.sampled_from([1, 3, 100]),
        "overflow": st.sampled_from(Overflow),
        "adaptive": st.booleans(),
    }
)

ENDS: dict[str, tuple[type[Exception], ...]] = {
    "good": (),
    "poison": (ContextPoisoned,),
    "raises": (Bad,),
    "error among results": (Bad,),
}
REFUSALS = (Overloaded, Dropped)


class World:
    """A function of lists on a device that faults, and what its callers got."""

    def __init__(self, asked: list[Asked], options: dict[str, Any]) -> None:
        self.asked = [dataclasses.replace(one, number=n) for n, one in enumerate(asked)]
        self.options = options
        self.device = FaultyDevice()
        self.log = Log()
        self.running = 0
        self.gone: set[int] = set()
        self.tries: Counter[int] = Counter()
        self.got: dict[int, object] = {}
        self.accidents = 0

    async def compute(self, items: list[Asked], bucket: int) -> list[int | Exception]:
        assert len(items) <= self.options["max_size"]
        assert {item.bucket for item in items} == {bucket}
        assert self.gone.isdisjoint(item.number for item in items)  # their callers wait
        self.tries.update(item.number for item in items)
        self.running += 1
        assert self.running <= self.options["max_in_flight"]
        try:
            await trio.sleep(bucket / 2)  # not on the device
            await self.device.work(0.5 + len(items) / 16)
        finally:
            self.running -= 1
        if self.accidents:  # a fault that is nobody's
            self.accidents -= 1
            self.device.fault()
        if any(item.kind == "poison" for item in items):
            self.device.fault()
        if any(item.kind == "raises" for item in items):
            raise Bad
        return [Bad() if item.kind == "error among results" else item.number for item in items]

    async def client(self, batcher: Any, asked: Asked) -> None:
        await trio.sleep(asked.at)
        number = asked.number
        with trio.move_on_after(asked.leaves) as scope:
            try:
                self.got[number] = await batcher.ask(asked, priority=asked.priority)
            except Exception as error:  # noqa: BLE001
                self.got[number] = error
        if scope.cancelled_caught:
            self.got[number] = trio.Cancelled
        self.gone.add(number)

    async def main(self) -> None:
        async with (
            open_batcher(
                self.compute,
                bucket=lambda asked: asked.bucket,
                retry=Retry(attempts=2, backoff=Backoff(base=0.1)),
                observer=self.log,
                **self.options,
            ) as self.batcher,
            trio.open_nursery() as nursery,
        ):
            for one in self.asked:
                nursery.start_soon(self.client, self.batcher, one)
        self.check_books()

    def check_books(self) -> None:
        """Every request has one end, and the batcher holds nothing any more."""
        assert self.got.keys() == {one.number for one in self.asked}
        assert set(self.log.ends().values()) <= {1}
        now = self.batcher.statistics()
        ended = now.answered + now.failed + now.refused + now.withdrawn
        assert now.submitted == ended == len(self.log.ends())
        assert (now.queued, now.outside, now.running, now.in_flight) == (0, 0, 0, 0)
        assert self.running == 0


@pytest.mark.slow
@settings(max_examples=150)
@given(asked=st.lists(requests, max_size=14), options=options)
def test_one_answer_each_and_the_right_one(asked: list[Asked], options: dict[str, Any]) -> None:
    world = World(asked, options)
    run_on_mock_clock(world.main)
    reject = options["overflow"] is not Overflow.WAIT
    for one in world.asked:
        got = world.got[one.number]
        if got is trio.Cancelled:
            assert one.leaves < math.inf
        elif isinstance(got, REFUSALS):
            assert reject
        elif ENDS[one.kind]:
            assert isinstance(got, ENDS[one.kind])
        else:
            assert got == one.number  # whatever its neighbours did
        # A batch of n is tried twice, its halves once, and who is alone twice.
        size = options["max_size"]
        assert world.tries[one.number] <= 2 + math.ceil(math.log2(size)) + 2


@settings(max_examples=60)
@given(asked=st.lists(requests, max_size=10), options=options, after=st.integers(0, 12))
def test_one_answer_each_also_when_the_block_is_left(
    asked: list[Asked], options: dict[str, Any], after: int
) -> None:
    """The callers are outside it, and may ask when it is closed."""
    world = World(asked, options)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            try:
                async with open_batcher(
                    world.compute,
                    bucket=lambda asked: asked.bucket,
                    observer=world.log,
                    **options,
                ) as world.batcher:
                    for one in world.asked:
                        nursery.start_soon(world.client, world.batcher, one)
                    await trio.sleep(after / 4)
                    if after % 2:
                        raise KeyError
            except KeyError:
                pass
        world.check_books()

    run_on_mock_clock(main)
    for one in world.asked:
        got = world.got[one.number]
        if one.kind == "good" and isinstance(got, int):
            assert got == one.number
        elif after % 2 == 0 and isinstance(got, Closed):
            assert one.at >= after / 4  # what was asked before is answered


@settings(max_examples=60)
@given(asked=st.lists(requests, max_size=10), options=options)
def test_a_fault_that_is_nobodys_costs_nobody_an_answer(
    asked: list[Asked], options: dict[str, Any]
) -> None:
    world = World([dataclasses.replace(one, kind="good") for one in asked], options)
    world.accidents = 1
    run_on_mock_clock(world.main)
    for one in world.asked:
        got = world.got[one.number]
        assert got == one.number or got is trio.Cancelled or isinstance(got, REFUSALS)


@settings(max_examples=60)
@given(
    asked=st.lists(requests, min_size=2, max_size=12),
    size=st.integers(1, 4),
    flawed=st.sampled_from(["nothing", "one too few"]),
)
def test_the_order_is_by_priority_then_deadline_then_age(
    asked: list[Asked], size: int, flawed: str
) -> None:
    """While a first batch runs, all others come; then they go as a sorted list does."""
    batches: list[list[Asked]] = []
    world = World(asked, {})

    async def note(items: list[Asked]) -> list[int]:
        batches.append(items)
        await trio.sleep(100)
        return [item.number for item in items][flawed == "one too few" :]

    async def client(batcher: Any, asked: Asked) -> None:
        with trio.CancelScope(deadline=1e5 + asked.leaves):
            try:
                world.got[asked.number] = await batcher.ask(asked, priority=asked.priority)
            except WrongResults:
                assert flawed == "one too few"

    async def main() -> None:
        async with (
            open_batcher(note, max_size=size) as batcher,
            trio.open_nursery() as nursery,
        ):
            for one in world.asked:
                nursery.start_soon(client, batcher, one)
                await trio.sleep(0.1)

    run_on_mock_clock(main)
    first, *rest = batches
    assert first == world.asked[:1]
    waiting = sorted(world.asked[1:], key=lambda one: (-one.priority, one.leaves, one.number))
    assert rest == [waiting[at : at + size] for at in range(0, len(waiting), size)]
    assert world.got == ({} if flawed == "one too few" else {n: n for n in range(len(asked))})


@settings(max_examples=80)
@given(
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]), min_size=1, max_size=25),
    size=st.integers(1, 5),
    wait=st.sampled_from([0.0, 0.2, 0.9]),
    adaptive=st.booleans(),
    preferred=st.sets(st.integers(1, 5), max_size=2),
)
def test_requests_wait_no_longer_than_allowed_and_no_shorter_without_cause(
    pauses: list[float], size: int, wait: float, adaptive: bool, preferred: set[int]
) -> None:
    """While there is a place for every batch."""
    came: dict[int, float] = {}
    batches: list[tuple[float, list[int]]] = []
    sizes = sorted(one for one in preferred if one <= size)

    async def note(items: list[int]) -> list[int]:
        batches.append((trio.current_time(), items))
        await trio.sleep(0.1)
        return items

    async def client(batcher: Any, number: int) -> None:
        came[number] = trio.current_time()
        assert await batcher(number) == number

    async def main() -> None:
        async with (
            open_batcher(
                note,
                max_size=size,
                max_wait=wait,
                max_in_flight=100,
                adaptive=adaptive,
                preferred_sizes=sizes,
            ) as batcher,
            trio.open_nursery() as nursery,
        ):
            for number, pause in enumerate(pauses):
                nursery.start_soon(client, batcher, number)
                await trio.sleep(pause)

    run_on_mock_clock(main)
    target = sizes[-1] if sizes else size
    for began, items in batches:
        waited = began - min(came[number] for number in items)
        assert waited <= wait + 1e-9
        if not adaptive and len(items) < target:
            assert waited >= wait - 1e-9
