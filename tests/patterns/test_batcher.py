"""Batchers: when batches begin, which requests they hold, and how their failures spread."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any, assert_type

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel.actors import Overflow
from atomr_accel.patterns import (
    Batcher,
    Closed,
    Dropped,
    Observer,
    Overloaded,
    Refused,
    by_length,
    open_batcher,
    open_fair_share,
)

from ..harness import LONG
from .worlds import Clients, Doubler, Log, open_clients

pytestmark = pytest.mark.clock("mock")


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


async def test_requests_waiting_during_a_batch_form_the_next() -> None:
    double = Doubler()
    async with open_clients(double, max_size=3) as clients:
        for item in range(6):
            await clients.ask(item)
    assert double.batches == [[0], [1, 2, 3], [4, 5]]
    assert clients.got == {item: 2 * item for item in range(6)}
    assert double.most == 1


async def test_a_batch_begins_when_it_is_full_or_its_oldest_has_waited() -> None:
    double = Doubler()
    async with open_clients(double, max_size=3, max_wait=5, max_in_flight=9) as clients:
        start = trio.current_time()
        await clients.ask(0)
        await trio.sleep(2)
        await clients.ask(1)
        await trio.sleep(10)
        for item in (2, 3, 4):
            await clients.ask(item)
    assert double.batches == [[0, 1], [2, 3, 4]]
    assert [time - start for time in double.times] == [5, 12]


async def test_a_deadline_hastens_a_batch_by_what_batches_take() -> None:
    double = Doubler(seconds=2)
    async with open_clients(double, max_size=9, max_wait=100) as clients:
        await clients.ask(0, within=150)  # the first batch: nothing is known of how long it takes
        await trio.sleep(110)
        start = trio.current_time()
        await clients.ask(1)
        await clients.ask(2, within=10)
        await trio.sleep(20)
    assert [sorted(batch) for batch in double.batches] == [[0], [1, 2]]
    assert double.times[1] - start == 6  # batches take two seconds, and it leaves four
    assert clients.got == {0: 0, 1: 2, 2: 4}


async def test_preferred_sizes_are_taken_when_a_batch_is_due() -> None:
    double = Doubler()
    options: dict[str, Any] = {"max_size": 10, "max_wait": 1, "preferred_sizes": (4, 8)}
    async with open_clients(double, **options) as clients:
        for item in range(8):
            await clients.ask(item)
        assert [len(batch) for batch in double.batches] == [8]  # full, at once
        for item in range(8, 15):
            await clients.ask(item)
    assert [len(batch) for batch in double.batches] == [8, 4, 3]


async def test_buckets_are_not_mixed() -> None:
    seen: list[tuple[int, list[str]]] = []

    async def pad(items: list[str], size: int) -> list[str]:
        seen.append((size, items))
        await trio.sleep(1)
        return [item.ljust(size, ".") for item in items]

    bucket: Callable[[str], int] = by_length([2, 4])
    async with open_clients(pad, max_size=3, bucket=bucket, max_wait=1) as clients:
        for item in ("a", "abc", "ab", "abcd", "", "abc."):
            await clients.ask(item)
        with pytest.raises(ValueError, match="length 5, and the longest bucket 4"):
            await clients.batcher("abcde")
    assert seen == [(2, ["a", "ab", ""]), (4, ["abc", "abcd", "abc."])]
    assert clients.got["a"] == "a."


async def test_higher_priorities_go_first_then_earlier_deadlines() -> None:
    double = Doubler()
    async with open_clients(double, max_size=2) as clients:
        await clients.ask(0)
        await clients.ask(1)
        await clients.ask(2, within=90)
        await clients.ask(3, within=50)
        await clients.ask(4, priority=1)
        await clients.ask(5, priority=-1, within=20)
        await clients.ask(6, priority=1, within=30)
    assert double.batches == [[0], [6, 4], [3, 2], [1, 5]]


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    "options", [{"max_size": 4}, {"max_size": 8, "preferred_sizes": [2, 8]}], ids=["any", "sizes"]
)
async def test_a_deadline_is_met_behind_higher_priorities(
    options: dict[str, Any], known: bool
) -> None:
    double = Doubler(seconds=0.1)
    async with open_clients(double, max_wait=60, max_in_flight=2, **options) as clients:
        if known:
            await clients.batcher(9)
        await clients.ask(1, priority=1)
        await clients.ask(2, priority=2)
        await clients.ask(0, within=1)
        await trio.sleep(5)
    assert clients.got == {0: 0, 1: 2, 2: 4}


async def test_a_deadline_of_who_left_hastens_nothing() -> None:
    double = Doubler(seconds=1)
    async with open_clients(double, max_size=4, max_wait=60) as clients:
        await clients.batcher(9)
        start = trio.current_time()
        await clients.ask(1)
        with trio.CancelScope() as scope:
            clients.nursery.start_soon(_cancel_after, scope, 2)
            with trio.fail_after(10):
                await clients.batcher(0)
        assert scope.cancelled_caught
        await trio.sleep(100)
    assert double.batches[1:] == [[1]]
    assert double.times[1] - start == 60


async def _cancel_after(scope: trio.CancelScope, seconds: float) -> None:
    await trio.sleep(seconds)
    scope.cancel()


async def test_a_priority_is_a_real_number() -> None:
    double = Doubler()
    async with open_clients(double, max_size=1) as clients:
        for item in (0, 1):
            await clients.ask(item)
        bad: Any
        for bad in (1j, "1", None, np.array([1]), [1], True):
            with pytest.raises(TypeError, match=r"priority must be a (real )?number"):
                await clients.batcher.ask(2, priority=bad)
        with pytest.raises(ValueError, match=r"priority must be a (real )?number, not nan"):
            await clients.batcher.ask(2, priority=math.nan)
        assert clients.batcher.statistics().submitted == 2
        good: Any
        for item, good in enumerate((np.uint8(3), Fraction(5, 2), -(10**400), math.inf), 2):
            await clients.ask(item, priority=good)
    assert double.batches == [[0], [5], [2], [3], [1], [4]]


class _BadKey:
    """The key of a bucket, of a kind that cannot be one."""

    def __init__(self, *, hashes: bool) -> None:
        self.hashes = hashes

    def __hash__(self) -> int:
        if not self.hashes:
            raise KeyError("no hash")
        return hash("good")

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize(
    "key",
    [[], _BadKey(hashes=False), _BadKey(hashes=True)],
    ids=["unhashable", "hash raises", "eq raises"],
)
async def test_a_bucket_that_cannot_be_found_is_an_error_of_its_caller(
    key: Any, overflow: Overflow
) -> None:
    double = Doubler()

    async def compute(items: list[int], _bucket: object) -> list[int | Exception]:
        return await double(items)

    log = Log()
    options: dict[str, Any] = {"capacity": 1, "overflow": overflow, "observer": log}
    async with open_clients(
        compute, max_size=1, bucket=lambda item: key if item == 13 else "good", **options
    ) as clients:
        for item in (0, 1, 13):  # the queue is full, and has the other bucket
            await clients.ask(item)
        assert isinstance(clients.got[13], TypeError)
        assert "bucket must return what can be hashed and compared" in str(clients.got[13])
        assert clients.batcher.statistics().submitted == 2
        await trio.sleep(10)
        await clients.ask(3)
    assert clients.got[0] == 0
    assert clients.got[1] == 2
    assert clients.got[3] == 6
    assert ("submitted", 13) not in log.lines
    assert set(log.ends().values()) == {1}


async def test_a_bucket_is_looked_for_once() -> None:
    """Also where many come and go, some of them while no room was found."""

    class Key:
        def __init__(self, item: int) -> None:
            self.item = item
            self.calls = 0

        def __hash__(self) -> int:
            self.calls += 1
            if self.calls > 2:  # to look, and to put it there
                raise ValueError("asked too often")
            return self.item

    async def same(items: list[int], _bucket: object) -> list[int]:
        await trio.sleep(0.1)
        return items

    async with open_clients(same, max_size=1, bucket=Key, capacity=1) as clients:
        for item in range(300):
            clients.nursery.start_soon(clients.ask, item)
    assert clients.got == {item: item for item in range(300)}


@pytest.mark.parametrize("overflow", Overflow)
async def test_buckets_stay_while_anybody_is_to_enter(overflow: Overflow) -> None:
    async def same(items: list[int], _bucket: int) -> list[int]:
        await trio.sleep(1)
        return items

    async with open_clients(
        same, max_size=2, bucket=lambda item: item % 300, capacity=1, overflow=overflow
    ) as clients:
        for item in range(300):  # more buckets than are kept, all but the first refused or left
            with trio.move_on_after(0.01), suppress(Refused):
                await clients.batcher(item)
        for item in (298, 598, 299, 599, 297):
            await clients.ask(item)
            with trio.move_on_after(0.01), suppress(Refused):
                await clients.batcher(item + 600)
    assert clients.got.keys() == {297, 298, 299, 598, 599}
    for item, got in clients.got.items():
        assert got == item or (overflow is not Overflow.WAIT and isinstance(got, Refused))
    statistics = clients.batcher.statistics()
    assert (statistics.queued, statistics.outside, statistics.running) == (0, 0, 0)
    assert not any(bucket.outside for bucket in clients.batcher._buckets.values())
    assert len(clients.batcher._buckets) <= 257


async def test_several_batches_run_at_a_time_but_not_more() -> None:
    double = Doubler()
    async with open_clients(double, max_size=1, max_in_flight=3) as clients:
        start = trio.current_time()
        for item in range(6):
            await clients.ask(item)
        assert double.most == 3
    assert trio.current_time() - start == 2
    assert double.most == 3


async def test_no_cap_on_concurrency_but_the_one_given() -> None:
    """All clients wait and run at once."""
    double = Doubler()
    async with open_clients(double, max_size=400, max_wait=1, capacity=400) as clients:
        for item in range(400):
            clients.nursery.start_soon(clients._client, item, 0, float("inf"))
    assert [len(batch) for batch in double.batches] == [400]


async def test_other_tasks_run_while_many_are_answered() -> None:
    turn = 0
    turns: list[int] = []

    async def count() -> None:
        nonlocal turn
        while True:
            await trio.lowlevel.checkpoint()
            turn += 1

    async with open_batcher(Doubler(seconds=0), max_size=500) as batcher:

        async def client(item: int) -> None:
            assert await batcher(item) == 2 * item
            turns.append(turn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            async with trio.open_nursery() as clients:
                for item in range(500):
                    clients.start_soon(client, item)
            nursery.cancel_scope.cancel()
    assert batcher.statistics().batches == 1
    assert max(turns.count(one) for one in turns) <= 2 * 64  # tasks of a turn run in any order


async def test_waiting_adapts_to_arrivals() -> None:
    double = Doubler(seconds=0)
    async with open_clients(double, max_size=100, max_wait=1.0, adaptive=True) as clients:
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


async def test_a_full_queue_rejects() -> None:
    double = Doubler()
    async with open_clients(double, max_size=1, capacity=2, overflow=Overflow.REJECT) as clients:
        for item in range(3):
            await clients.ask(item)
        with pytest.raises(Overloaded, match="2 requests wait already") as info:
            await clients.batcher(3)
        assert (info.value.waiting, info.value.capacity) == (2, 2)
    assert clients.got == {0: 0, 1: 2, 2: 4}
    assert clients.batcher.statistics().refused == 1


async def test_a_full_queue_drops_its_oldest() -> None:
    double = Doubler()
    async with open_clients(
        double, max_size=1, capacity=2, overflow=Overflow.DROP_OLDEST
    ) as clients:
        await clients.ask(0)
        await clients.ask(1, priority=5)
        await clients.ask(2)
        await clients.ask(3)
    assert isinstance(clients.got.pop(1), Dropped)
    assert clients.got == {0: 0, 2: 4, 3: 6}


async def test_a_full_queue_is_waited_for() -> None:
    double = Doubler()
    async with open_clients(double, max_size=1, capacity=1) as clients:
        for item in range(4):
            await clients.ask(item)
        assert clients.batcher.statistics().queued == 1
        assert clients.batcher.statistics().outside == 2
        clients.scopes[1].cancel()  # there is room, and the next one comes in
        await trio.testing.wait_all_tasks_blocked()
        assert clients.batcher.statistics().queued == 1
        clients.scopes[3].cancel()
        await clients.ask(4, priority=1)
    assert double.batches == [[0], [2], [4]]
    assert clients.got == {0: 0, 1: "cancelled", 2: 4, 3: "cancelled", 4: 8}


async def test_a_full_queue_does_not_wait_for_a_batch_to_fill() -> None:
    double = Doubler()
    async with open_clients(double, max_size=8, max_wait=100, capacity=2) as clients:
        start = trio.current_time()
        await clients.ask(0)
        await clients.ask(1)
    assert trio.current_time() - start == 1


async def test_batcher_can_be_tuned_while_it_runs() -> None:
    double = Doubler()
    async with open_clients(double, max_size=2, max_wait=50, capacity=2) as clients:
        for item in range(5):
            await clients.ask(item)
        assert double.batches == [[0, 1]]
        assert clients.batcher.statistics().outside == 1
        clients.batcher.tune(max_size=3, capacity=9, max_in_flight=2)
        await trio.testing.wait_all_tasks_blocked()
        assert double.batches == [[0, 1], [2, 3, 4]]
        await trio.sleep(5)
        await clients.ask(5)
        start = trio.current_time()
        clients.batcher.tune(max_wait=1)
    assert double.times[-1] - start == 1
    with pytest.raises(
        ValueError, match="a preferred size must be a whole number from 1 to 3, not 4"
    ):
        clients.batcher.tune(preferred_sizes=[4])


# --- cancellation ----------------------------------------------------------------------


async def test_request_cancelled_before_its_batch_is_left_out() -> None:
    double = Doubler()
    async with open_clients(double, max_size=9) as clients:
        for item in range(4):
            await clients.ask(item, within=0.5 if item == 2 else 50)
    assert double.batches == [[0], [1, 3]]
    assert clients.got[2] == "cancelled"


async def test_one_caller_that_leaves_does_not_hold_up_the_others() -> None:
    """The other callers get their own results, and the next batch does not wait."""
    double = Doubler()
    async with open_clients(double, max_size=3) as clients:
        clients.batcher.tune(max_wait=1)
        for item in (1, 2, 3):
            await clients.ask(item)
        clients.scopes[2].cancel()
        await clients.ask(4)
    assert clients.got == {1: 2, 2: "cancelled", 3: 6, 4: 8}
    assert double.batches == [[1, 2, 3], [4]]


async def test_after_a_wave_of_client_timeouts_all_is_as_before() -> None:
    double = Doubler()
    async with open_clients(double, max_size=4, max_in_flight=2) as clients:
        for within in (100.0, 0.5, 100.0):
            base = trio.current_time()
            for item in range(40):
                await clients.ask(round(1000 * base) + item, within=within)
            await trio.sleep(100)
    results = [*clients.got.items()]
    assert all(result == 2 * item for item, result in results[:40] + results[80:])
    statistics = clients.batcher.statistics()
    assert statistics.answered + statistics.withdrawn == 120
    assert (statistics.queued, statistics.running, statistics.in_flight) == (0, 0, 0)


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


async def test_cancelled_caller_asks_for_nothing() -> None:
    double = Doubler()
    async with open_batcher(double, max_size=1) as batcher:
        with trio.CancelScope() as scope:
            scope.cancel()
            await batcher(1)
    assert scope.cancelled_caught
    assert batcher.statistics().submitted == 0


# --- the block -------------------------------------------------------------------------


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


async def test_error_of_no_request_leaves_the_block() -> None:
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
    [({"max_size": 0}, "max_size must be a whole number of at least 1, not 0"), ({"max_wait": -1}, "max_wait"),  # noqa: E501
     ({"max_in_flight": 0}, "max_in_flight"), ({"capacity": 1.5}, "capacity must be a whole"),
     ({"overflow": "wait"}, "overflow must be one of Overflow.WAIT"),
     ({"preferred_sizes": [9]}, "a preferred size must be"), ({"retry": 3}, "retry must be an instance"),  # noqa: E501
     ({"observer": print}, "observer must be an instance"), ({"bucket": 4}, "bucket must be")],
)  # fmt: skip
def test_options_are_checked_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        open_batcher(Doubler(), **{"max_size": 8, **options})


@pytest.mark.clock("real")
async def test_another_thread_is_told_how_to_ask() -> None:
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


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("nested", [False, True], ids=["thread", "its own trio"])
@pytest.mark.clock("real")
async def test_tuning_from_another_thread_changes_nothing(nested: bool, used: bool) -> None:
    async with (
        open_batcher(Doubler(seconds=0), max_size=2) as batcher,
        open_fair_share(capacity=1) as share,
    ):

        async def tune() -> None:
            with pytest.raises(RuntimeError, match=r"run_sync\(partial\(batcher.tune"):
                batcher.tune(max_size=1)
            with pytest.raises(RuntimeError, match=r"run_sync\(partial\(share.tune"):
                share.tune(capacity=2, weights={"a": 3})

        def work() -> None:
            if nested:
                trio.run(tune)
            else:
                with pytest.raises(StopIteration):
                    tune().send(None)
            trio.from_thread.run_sync(partial(share.tune, weights={"b": 3}))

        if used:
            assert await batcher(1) == 2
            async with share.slot("a"):
                pass
        settings = batcher._settings
        await trio.to_thread.run_sync(work)
        assert batcher._settings is settings
        assert share.statistics().capacity == 1
        with trio.fail_after(LONG):
            assert await batcher(2) == 4
            async with share.slot("a"):
                weights = {one.path: one.weight for one in share.statistics().tenants}
                assert weights["a"] == 1


async def test_marked_requests_do_not_pile_up() -> None:
    double = Doubler(seconds=1e5)
    async with open_clients(double, max_size=1) as clients:
        await clients.ask(0)
        await clients.ask(1)
        for item in range(2, 500):
            with trio.move_on_after(0.1):
                await clients.batcher(item)
        (bucket,) = clients.batcher._buckets.values()
        assert len(bucket.heap._entries) < 100
        assert len(bucket._arrivals) < 100
        clients.nursery.cancel_scope.cancel()


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


@pytest.mark.clock("real")
async def test_asking_from_a_partial_is_fine() -> None:
    async def scale(factor: int, items: list[int]) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [factor * item for item in items]

    async with open_batcher(partial(scale, 3), max_size=2) as batcher:
        assert assert_type(await batcher(2), int) == 6
