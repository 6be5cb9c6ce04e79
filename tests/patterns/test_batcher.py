"""When batches begin, who is in them, and what happens to those whose batch fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, DeviceLost
from atomr_accel.actors import Backoff, Overflow
from atomr_accel.patterns import (
    Batcher,
    Closed,
    Dropped,
    Observer,
    Overloaded,
    Retry,
    WrongResults,
    by_length,
    open_batcher,
    open_fair_share,
)

from .worlds import FaultyDevice, Log, on_mock_clock, poisoned

if TYPE_CHECKING:
    from collections.abc import Callable


class Doubler:
    """Doubles the items of a list, which takes a second, and notes what it was given when."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.batches: list[list[int]] = []
        self.times: list[float] = []
        self.running = self.most = 0

    async def __call__(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        self.times.append(trio.current_time())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.running -= 1
        return [2 * item for item in items]


class Clients:
    """Tasks that each ask for one item, and what they got."""

    def __init__(self, nursery: trio.Nursery, batcher: Batcher[Any, Any]) -> None:
        self.nursery = nursery
        self.batcher = batcher
        self.got: dict[Any, Any] = {}
        self.scopes: dict[Any, trio.CancelScope] = {}

    async def ask(self, item: Any, *, priority: float = 0, within: float = float("inf")) -> None:
        """Start a client, and wait until it has asked."""
        self.nursery.start_soon(self._client, item, priority, within)
        await trio.testing.wait_all_tasks_blocked()

    async def _client(self, item: Any, priority: float, within: float) -> None:
        with trio.move_on_after(within) as self.scopes[item]:
            try:
                self.got[item] = await self.batcher.ask(item, priority=priority)
            except Exception as error:  # noqa: BLE001
                self.got[item] = error
        if self.scopes[item].cancelled_caught:
            self.got[item] = "cancelled"


@on_mock_clock
async def test_types() -> None:
    async def lengths(items: list[str]) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [len(item) for item in items]

    async def padded(items: list[str], size: int) -> list[bytes | Exception]:
        await trio.lowlevel.checkpoint()
        return [item.ljust(size).encode() for item in items]

    async with open_batcher(lengths, max_size=4) as batcher:
        assert_type(batcher, Batcher[str, int])
        assert assert_type(await batcher("three"), int) == 5
        assert assert_type(await batcher.ask("three", priority=2), int) == 5
    bucket: Callable[[str], int] = by_length([4, 8])
    async with open_batcher(padded, max_size=4, bucket=bucket) as by_size:
        assert_type(by_size, Batcher[str, bytes])
        assert assert_type(await by_size("three"), bytes) == b"three   "


@on_mock_clock
async def test_what_waits_while_a_batch_runs_is_the_next() -> None:
    double = Doubler()
    async with open_batcher(double, max_size=3) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        for item in range(6):
            await clients.ask(item)
    assert double.batches == [[0], [1, 2, 3], [4, 5]]
    assert clients.got == {item: 2 * item for item in range(6)}
    assert double.most == 1


@on_mock_clock
async def test_a_batch_begins_when_it_is_full_or_its_oldest_has_waited() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=3, max_wait=5, max_in_flight=9) as batcher,
        trio.open_nursery() as nursery,
    ):
        start = trio.current_time()
        clients = Clients(nursery, batcher)
        await clients.ask(0)
        await trio.sleep(2)
        await clients.ask(1)
        await trio.sleep(10)
        for item in (2, 3, 4):
            await clients.ask(item)
    assert double.batches == [[0, 1], [2, 3, 4]]
    assert [time - start for time in double.times] == [5, 12]


@on_mock_clock
async def test_a_deadline_hastens_a_batch_by_what_batches_take() -> None:
    double = Doubler(seconds=2)
    async with (
        open_batcher(double, max_size=9, max_wait=100) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        await clients.ask(0, within=150)  # the first batch: nothing is known of how long it takes
        await trio.sleep(110)
        start = trio.current_time()
        await clients.ask(1)
        await clients.ask(2, within=10)
        await trio.sleep(20)
    assert [sorted(batch) for batch in double.batches] == [[0], [1, 2]]
    assert double.times[1] - start == 6  # batches take two seconds, and it leaves four
    assert clients.got == {0: 0, 1: 2, 2: 4}


@on_mock_clock
async def test_preferred_sizes_are_taken_when_a_batch_is_due() -> None:
    double = Doubler()
    options: dict[str, Any] = {"max_size": 10, "max_wait": 1, "preferred_sizes": (4, 8)}
    async with open_batcher(double, **options) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        for item in range(8):
            await clients.ask(item)
        assert [len(batch) for batch in double.batches] == [8]  # full, at once
        for item in range(8, 15):
            await clients.ask(item)
    assert [len(batch) for batch in double.batches] == [8, 4, 3]


@on_mock_clock
async def test_buckets_are_not_mixed() -> None:
    seen: list[tuple[int, list[str]]] = []

    async def pad(items: list[str], size: int) -> list[str]:
        seen.append((size, items))
        await trio.sleep(1)
        return [item.ljust(size, ".") for item in items]

    bucket: Callable[[str], int] = by_length([2, 4])
    async with (
        open_batcher(pad, max_size=3, bucket=bucket, max_wait=1) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in ("a", "abc", "ab", "abcd", "", "abc."):
            await clients.ask(item)
        with pytest.raises(ValueError, match="length 5, and the longest bucket 4"):
            await batcher("abcde")
    assert seen == [(2, ["a", "ab", ""]), (4, ["abc", "abcd", "abc."])]
    assert clients.got["a"] == "a."


@on_mock_clock
async def test_higher_priorities_go_first_then_earlier_deadlines() -> None:
    double = Doubler()
    async with open_batcher(double, max_size=2) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        await clients.ask(0)
        await clients.ask(1)
        await clients.ask(2, within=90)
        await clients.ask(3, within=50)
        await clients.ask(4, priority=1)
        await clients.ask(5, priority=-1, within=20)
        await clients.ask(6, priority=1, within=30)
    assert double.batches == [[0], [6, 4], [3, 2], [1, 5]]


@on_mock_clock
async def test_several_batches_run_at_a_time_but_not_more() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=1, max_in_flight=3) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        start = trio.current_time()
        for item in range(6):
            await clients.ask(item)
        assert double.most == 3
    assert trio.current_time() - start == 2
    assert double.most == 3


@on_mock_clock
async def test_no_cap_on_concurrency_but_the_one_given() -> None:
    """As many requests wait and run as there are clients."""
    double = Doubler()
    async with (
        open_batcher(double, max_size=400, max_wait=1, capacity=400) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in range(400):
            nursery.start_soon(clients._client, item, 0, float("inf"))
    assert [len(batch) for batch in double.batches] == [400]


@on_mock_clock
async def test_waiting_adapts_to_arrivals() -> None:
    double = Doubler(seconds=0)
    async with (
        open_batcher(double, max_size=100, max_wait=1.0, adaptive=True) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in range(5):  # too few to wait for more
            await clients.ask(item)
            await trio.sleep(3)
        assert [len(batch) for batch in double.batches] == [1] * 5
        for item in range(100, 130):  # many at once, until the estimate is small
            await clients.ask(item)
        await trio.sleep(3)
        double.batches.clear()
        double.times.clear()
        start = trio.current_time()
        for item in range(200, 216):
            await clients.ask(item)
            await trio.sleep(0.01)
        await trio.sleep(3)
    assert sum(len(batch) for batch in double.batches) == 16
    assert len(double.batches) <= 3
    assert double.times[-1] - start < 0.9  # it did not wait for as long as it might


# --- room ------------------------------------------------------------------------------


@on_mock_clock
async def test_a_full_queue_rejects() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=1, capacity=2, overflow=Overflow.REJECT) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in range(3):
            await clients.ask(item)
        with pytest.raises(Overloaded, match="2 requests wait already") as info:
            await batcher(3)
        assert (info.value.waiting, info.value.capacity) == (2, 2)
    assert clients.got == {0: 0, 1: 2, 2: 4}
    assert batcher.statistics().refused == 1


@on_mock_clock
async def test_a_full_queue_drops_its_oldest() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=1, capacity=2, overflow=Overflow.DROP_OLDEST) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        await clients.ask(0)
        await clients.ask(1, priority=5)
        await clients.ask(2)
        await clients.ask(3)
    assert isinstance(clients.got.pop(1), Dropped)
    assert clients.got == {0: 0, 2: 4, 3: 6}


@on_mock_clock
async def test_a_full_queue_is_waited_for() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=1, capacity=1) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in range(4):
            await clients.ask(item)
        assert batcher.statistics().queued == 1
        assert batcher.statistics().outside == 2
        clients.scopes[1].cancel()  # there is room, and the next one comes in
        await trio.testing.wait_all_tasks_blocked()
        assert batcher.statistics().queued == 1
        clients.scopes[3].cancel()
        await clients.ask(4, priority=1)
    assert double.batches == [[0], [2], [4]]
    assert clients.got == {0: 0, 1: "cancelled", 2: 4, 3: "cancelled", 4: 8}


@on_mock_clock
async def test_a_full_queue_does_not_wait_for_a_batch_to_fill() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=8, max_wait=100, capacity=2) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        start = trio.current_time()
        await clients.ask(0)
        await clients.ask(1)
    assert trio.current_time() - start == 1


@on_mock_clock
async def test_it_can_be_tuned_while_it_runs() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=2, max_wait=50, capacity=2) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in range(5):
            await clients.ask(item)
        assert double.batches == [[0, 1]]
        assert batcher.statistics().outside == 1
        batcher.tune(max_size=3, capacity=9, max_in_flight=2)
        await trio.testing.wait_all_tasks_blocked()
        assert double.batches == [[0, 1], [2, 3, 4]]
        await trio.sleep(5)
        await clients.ask(5)
        start = trio.current_time()
        batcher.tune(max_wait=1)
    assert double.times[-1] - start == 1
    with pytest.raises(ValueError, match="preferred sizes must be from 1 to max_size=3"):
        batcher.tune(preferred_sizes=[4])


# --- cancellation ----------------------------------------------------------------------


@on_mock_clock
async def test_who_is_gone_before_a_batch_begins_is_left_out() -> None:
    double = Doubler()
    async with open_batcher(double, max_size=9) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        for item in range(4):
            await clients.ask(item, within=0.5 if item == 2 else 50)
    assert double.batches == [[0], [1, 3]]
    assert clients.got[2] == "cancelled"


@on_mock_clock
async def test_one_caller_that_leaves_does_not_hold_up_the_others() -> None:
    """Nor does its result go to somebody else, nor the next batch wait for it."""
    double = Doubler()
    async with open_batcher(double, max_size=3) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        batcher.tune(max_wait=1)
        for item in (1, 2, 3):
            await clients.ask(item)
        clients.scopes[2].cancel()
        await clients.ask(4)
    assert clients.got == {1: 2, 2: "cancelled", 3: 6, 4: 8}
    assert double.batches == [[1, 2, 3], [4]]


@on_mock_clock
async def test_after_a_wave_of_client_timeouts_all_is_as_before() -> None:
    double = Doubler()
    async with (
        open_batcher(double, max_size=4, max_in_flight=2) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for within in (100.0, 0.5, 100.0):
            base = trio.current_time()
            for item in range(40):
                await clients.ask(round(1000 * base) + item, within=within)
            await trio.sleep(100)
    results = [*clients.got.items()]
    assert all(result == 2 * item for item, result in results[:40] + results[80:])
    statistics = batcher.statistics()
    assert statistics.answered + statistics.dropped == 120
    assert (statistics.queued, statistics.running, statistics.in_flight) == (0, 0, 0)


@on_mock_clock
async def test_a_batch_that_nobody_waits_for_is_cancelled() -> None:
    double = Doubler(seconds=100)
    async with open_batcher(double, max_size=2, max_wait=1) as batcher:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            clients = Clients(nursery, batcher)
            await clients.ask(1, within=2)
            await clients.ask(2, within=3)
            await clients.ask(3, within=150)
        assert clients.got == {1: "cancelled", 2: "cancelled", 3: 6}
        assert trio.current_time() - start == 103
    assert batcher.statistics().abandoned == 1


@on_mock_clock
async def test_a_function_that_fails_as_it_is_cancelled_harms_nobody() -> None:
    async def rude(_items: list[int]) -> list[int]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 100)
            try:
                await trio.sleep(100)
            finally:
                raise ValueError("rude")

    async with open_batcher(rude, max_size=2) as batcher:
        with trio.move_on_after(1):
            await batcher(1)
        with pytest.raises(ExceptionGroup):
            await batcher(2)


@on_mock_clock
async def test_who_is_cancelled_already_asks_for_nothing() -> None:
    double = Doubler()
    async with open_batcher(double, max_size=1) as batcher:
        with trio.CancelScope() as scope:
            scope.cancel()
            await batcher(1)
    assert scope.cancelled_caught
    assert batcher.statistics().submitted == 0


# --- failures --------------------------------------------------------------------------


@on_mock_clock
async def test_the_request_that_fails_a_batch_fails_alone() -> None:
    calls: list[list[int]] = []

    async def invert(items: list[int]) -> list[float]:
        calls.append(items)
        await trio.sleep(1)
        return [1 / item for item in items]

    log = Log()
    async with (
        open_batcher(invert, max_size=8, max_wait=1, observer=log) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in (1, 2, 0, 4):
            await clients.ask(item)
    assert calls == [[1, 2, 0, 4], [1, 2], [0, 4], [0], [4]]
    assert isinstance(clients.got.pop(0), ZeroDivisionError)
    assert clients.got == {1: 1, 2: 0.5, 4: 0.25}
    assert set(log.ends().values()) == {1}
    assert ("retried", 1, 2, 0, 4) in log.lines
    assert batcher.statistics().calls == 5


@on_mock_clock
async def test_the_request_that_poisons_the_device_fails_alone() -> None:
    device = FaultyDevice()

    async def compute(items: list[int]) -> list[int]:
        await device.work(1)
        if 13 in items:
            device.fault()
        return [2 * item for item in items]

    retry = Retry(attempts=2, backoff=Backoff(base=0))
    async with (
        open_batcher(compute, max_size=4, max_in_flight=3, retry=retry) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        batcher.tune(max_wait=1)
        for item in range(8, 20):
            await clients.ask(item)
    error = clients.got.pop(13)
    assert isinstance(error, ContextPoisoned)
    assert len(error.__notes__) == 1
    assert clients.got == {item: 2 * item for item in range(8, 20) if item != 13}
    # The batch and the request alone are tried twice, the half once.
    assert device.faults == 5


@on_mock_clock
async def test_after_a_fault_nothing_is_judged_while_others_may_fault() -> None:
    device = FaultyDevice()
    accidents = [1.0]

    async def compute(items: list[str]) -> list[str]:
        if items == ["poison"]:
            await trio.sleep(1.5)  # not on the device, so that a fault does not end it
            await device.work(0.25)
            device.fault()
        if accidents:  # a fault that is nobody's
            await device.work(accidents.pop())
            device.fault()
        await device.work(2)  # until 3, unless somebody faults at 1.75
        return items

    retry = Retry(attempts=2, backoff=Backoff(base=0))
    async with (
        open_batcher(compute, max_size=1, max_in_flight=2, retry=retry) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        await clients.ask("good")
        await clients.ask("poison")
    assert clients.got["good"] == "good"
    assert isinstance(clients.got["poison"], ContextPoisoned)


@on_mock_clock
async def test_a_fault_that_does_not_come_again_costs_one_call() -> None:
    failures = [poisoned()]

    async def flaky(items: list[int]) -> list[int]:
        await trio.sleep(1)
        if failures:
            raise failures.pop()
        return items

    async with open_batcher(flaky, max_size=4, max_wait=1) as batcher, trio.open_nursery() as n:
        clients = Clients(n, batcher)
        for item in range(3):
            await clients.ask(item)
    assert clients.got == {0: 0, 1: 1, 2: 2}
    statistics = batcher.statistics()
    assert (statistics.calls, statistics.faults, statistics.batches) == (2, 1, 1)


@on_mock_clock
async def test_a_lost_device_is_looked_for_in_no_half() -> None:
    calls = 0

    async def lost(items: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        raise DeviceLost("gone")

    async with open_batcher(lost, max_size=3, max_wait=1) as batcher, trio.open_nursery() as n:
        clients = Clients(n, batcher)
        for item in range(3):
            await clients.ask(item)
    assert calls == 1
    errors = [*clients.got.values()]
    assert all(isinstance(error, DeviceLost) for error in errors)
    assert len({id(error) for error in errors}) == 3  # an instance each, with one cause
    assert len({id(error.__cause__) for error in errors}) == 1


@on_mock_clock
async def test_exceptions_among_the_results_are_raised_at_their_own_callers() -> None:
    async def roots(items: list[float]) -> list[float | Exception]:
        await trio.lowlevel.checkpoint()
        return [item**0.5 if item >= 0 else ValueError(item) for item in items]

    async with open_batcher(roots, max_size=3, max_wait=1) as batcher, trio.open_nursery() as n:
        clients = Clients(n, batcher)
        for item in (4, -1, 9):
            await clients.ask(item)
    assert clients.got[4] == 2
    assert clients.got[9] == 3
    assert clients.got[-1].args == (-1,)
    assert batcher.statistics().calls == 1


@pytest.mark.parametrize(
    ("results", "got"),
    [([], 0), ([1], 1), ([1, 2, 3], 3), ("ab", None), ({1: 2, 3: 4}, None), ({1, 2}, None),
     (None, None), (iter([1, 2]), None)],
)  # fmt: skip
@on_mock_clock
async def test_other_than_one_result_each_is_an_error_for_all(
    results: Any, got: int | None
) -> None:
    async def wrong(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return results

    async with open_batcher(wrong, max_size=2, max_wait=1) as batcher, trio.open_nursery() as n:
        clients = Clients(n, batcher)
        await clients.ask(1)
        await clients.ask(2)
    for error in clients.got.values():
        assert isinstance(error, WrongResults)
        assert (error.expected, error.got) == (2, got)
    assert batcher.statistics().calls == 1


@on_mock_clock
async def test_results_that_cannot_be_listed_are_an_error_of_the_function() -> None:
    class Torn(list[int]):
        pass

    class Rows:
        def __len__(self) -> int:
            return 1

        def __contains__(self, _: object) -> bool:
            return False

        def __iter__(self) -> Any:
            raise OSError("torn")

    async def tear(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return Rows() if items == [1] else Torn(items)

    async with open_batcher(tear, max_size=1) as batcher:
        with pytest.raises(OSError, match="torn"):
            await batcher(1)
        assert await batcher(2) == 2
    assert batcher.statistics().running == 0


@on_mock_clock
async def test_who_leaves_while_a_fault_is_looked_into_is_not_asked_for_again() -> None:
    device = FaultyDevice()
    calls: list[list[int]] = []

    async def compute(items: list[int]) -> list[int]:
        calls.append(items)
        await device.work(1 if 13 in items else 1.25)
        if 13 in items and len(calls) < 4:
            device.fault()
        return items

    retry = Retry(attempts=3, backoff=Backoff(base=0))
    async with (
        open_batcher(compute, max_size=2, max_wait=1, max_in_flight=2, retry=retry) as batcher,
        trio.open_nursery() as nursery,
    ):
        clients = Clients(nursery, batcher)
        for item in (1, 13, 2, 3):
            await clients.ask(item, within=1.5 if item == 3 else 50)
    assert clients.got == {1: 1, 13: 13, 2: 2, 3: "cancelled"}
    assert [call for call in calls[2:] if 3 in call] == []


@on_mock_clock
async def test_an_array_of_results_is_taken_row_by_row() -> None:
    async def twice(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return 2 * np.array(items)

    async with open_batcher(twice, max_size=2) as batcher:
        assert await batcher(3) == 6


# --- the block -------------------------------------------------------------------------


@on_mock_clock
async def test_leaving_the_block_answers_what_was_asked() -> None:
    double = Doubler()
    async with trio.open_nursery() as nursery:
        async with open_batcher(double, max_size=2, max_wait=100, capacity=2) as batcher:
            clients = Clients(nursery, batcher)
            start = trio.current_time()
            for item in range(5):
                await clients.ask(item)
        assert trio.current_time() - start == 3
        with pytest.raises(Closed):
            await batcher(7)
    assert clients.got == {item: 2 * item for item in range(5)}


@on_mock_clock
async def test_a_failure_of_the_block_is_told_to_all_who_wait() -> None:
    double = Doubler(seconds=50)
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError):
            async with open_batcher(double, max_size=1, capacity=1) as batcher:
                clients = Clients(nursery, batcher)
                for item in range(3):
                    await clients.ask(item)
                raise KeyError("the block's")
    assert all(isinstance(error, Closed) for error in clients.got.values())
    assert {type(error.__cause__) for error in clients.got.values()} == {KeyError}
    statistics = batcher.statistics()
    assert (statistics.refused, statistics.running, statistics.queued) == (3, 0, 0)


@on_mock_clock
async def test_what_is_no_error_of_a_request_leaves_the_block() -> None:
    async def leave(items: list[int]) -> list[int]:
        await trio.sleep(1)
        raise SystemExit(3)

    async with trio.open_nursery() as nursery:
        with pytest.raises(SystemExit):
            async with open_batcher(leave, max_size=1) as batcher:
                clients = Clients(nursery, batcher)
                await clients.ask(1)
                await trio.sleep(5)
    assert isinstance(clients.got[1], Closed)


@on_mock_clock
async def test_an_observer_that_fails_is_not_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Observer):
        calls = 0

        def submitted(self, item: object) -> None:
            self.calls += 1
            raise RuntimeError

    observer = Broken()
    async with open_batcher(Doubler(), max_size=1, observer=observer) as batcher:
        assert await batcher(1) == 2
        assert await batcher(2) == 4
    assert observer.calls == 1
    assert "will not be called again" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [({"max_size": 0}, "max_size must be positive"), ({"max_wait": -1}, "max_wait"),
     ({"max_in_flight": 0}, "max_in_flight"), ({"capacity": 1.5}, "capacity must be a whole"),
     ({"overflow": "wait"}, "overflow must be one of Overflow.WAIT"),
     ({"preferred_sizes": [9]}, "preferred sizes"), ({"retry": 3}, "retry must be an instance"),
     ({"observer": print}, "observer must be an instance"), ({"bucket": 4}, "bucket must be")],
)  # fmt: skip
def test_options_are_checked_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        open_batcher(Doubler(), **{"max_size": 8, **options})


def test_another_thread_is_told_how_to_ask() -> None:
    async def main() -> None:
        async with (
            open_batcher(Doubler(seconds=0), max_size=1) as batcher,
            open_fair_share(capacity=1) as share,
        ):

            async def take() -> None:
                async with share.slot("a"):
                    pass

            def work() -> None:
                with pytest.raises(RuntimeError, match="the batcher belongs to"):
                    trio.run(batcher, 1)
                with pytest.raises(RuntimeError, match="the fair share belongs to"):
                    trio.run(take)
                assert trio.from_thread.run(batcher, 3) == 6
                trio.from_thread.run(take)

            await trio.to_thread.run_sync(work)
            assert batcher.statistics().submitted == 1

    trio.run(main)


@on_mock_clock
async def test_marked_requests_do_not_pile_up() -> None:
    double = Doubler(seconds=1e5)
    async with open_batcher(double, max_size=1) as batcher, trio.open_nursery() as nursery:
        clients = Clients(nursery, batcher)
        await clients.ask(0)
        await clients.ask(1)
        for item in range(2, 500):
            with trio.move_on_after(0.1):
                await batcher(item)
        (bucket,) = batcher._buckets.values()
        assert len(bucket.heap._entries) < 100
        assert len(bucket._arrivals) < 100
        nursery.cancel_scope.cancel()


@on_mock_clock
async def test_few_empty_buckets_are_kept() -> None:
    async def same(items: list[int], _bucket: int) -> list[int]:
        await trio.lowlevel.checkpoint()
        return items

    def bucket(item: int) -> int:
        return item

    async with open_batcher(same, max_size=2, bucket=bucket) as batcher:
        for item in range(1000):
            assert await batcher(item) == item
        assert len(batcher._buckets) <= 257


def test_asking_from_a_partial_is_fine() -> None:
    async def scale(factor: int, items: list[int]) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [factor * item for item in items]

    async def main() -> None:
        async with open_batcher(partial(scale, 3), max_size=2) as batcher:
            assert assert_type(await batcher(2), int) == 6

    trio.run(main)
