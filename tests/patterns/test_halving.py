"""Failed batches: halving them to answer each request."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, DeviceLost
from atomr_accel.actors import Backoff
from atomr_accel.patterns import Retry, WrongResults, open_batcher

from .worlds import FaultyDevice, Log, open_clients, poisoned

pytestmark = pytest.mark.clock("mock")


async def test_the_request_that_fails_a_batch_fails_alone() -> None:
    calls: list[list[int]] = []

    async def invert(items: list[int]) -> list[float]:
        calls.append(items)
        await trio.sleep(1)
        return [1 / item for item in items]

    log = Log()
    async with open_clients(invert, max_size=8, max_wait=1, observer=log) as clients:
        for item in (1, 2, 0, 4):
            await clients.ask(item)
    assert calls == [[1, 2, 0, 4], [1, 2], [0, 4], [0], [4]]
    assert isinstance(clients.got.pop(0), ZeroDivisionError)
    assert clients.got == {1: 1, 2: 0.5, 4: 0.25}
    assert set(log.ends().values()) == {1}
    assert ("retried", 1, 2, 0, 4) in log.lines
    assert clients.batcher.statistics().calls == 5


async def test_the_request_that_poisons_the_device_fails_alone() -> None:
    device = FaultyDevice()

    async def compute(items: list[int]) -> list[int]:
        await device.work(1)
        if 13 in items:
            device.fault()
        return [2 * item for item in items]

    retry = Retry(attempts=2, backoff=Backoff(base=0))
    async with open_clients(compute, max_size=4, max_in_flight=3, retry=retry) as clients:
        clients.batcher.tune(max_wait=1)
        for item in range(8, 20):
            await clients.ask(item)
    error = clients.got.pop(13)
    assert isinstance(error, ContextPoisoned)
    assert len(error.__notes__) == 1
    assert clients.got == {item: 2 * item for item in range(8, 20) if item != 13}
    # The batch and the request alone are tried twice, the half once.
    assert device.faults == 5


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
    async with open_clients(compute, max_size=1, max_in_flight=2, retry=retry) as clients:
        await clients.ask("good")
        await clients.ask("poison")
    assert clients.got["good"] == "good"
    assert isinstance(clients.got["poison"], ContextPoisoned)


async def test_a_fault_that_does_not_come_again_costs_one_call() -> None:
    failures = [poisoned()]

    async def flaky(items: list[int]) -> list[int]:
        await trio.sleep(1)
        if failures:
            raise failures.pop()
        return items

    async with open_clients(flaky, max_size=4, max_wait=1) as clients:
        for item in range(3):
            await clients.ask(item)
    assert clients.got == {0: 0, 1: 1, 2: 2}
    statistics = clients.batcher.statistics()
    assert (statistics.calls, statistics.faults, statistics.batches) == (2, 1, 1)


async def test_a_lost_device_is_looked_for_in_no_half() -> None:
    calls = 0

    async def lost(items: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        raise DeviceLost("gone")

    async with open_clients(lost, max_size=3, max_wait=1) as clients:
        for item in range(3):
            await clients.ask(item)
    assert calls == 1
    errors = [*clients.got.values()]
    assert all(isinstance(error, DeviceLost) for error in errors)
    assert len({id(error) for error in errors}) == 3  # an instance each, with one cause
    assert len({id(error.__cause__) for error in errors}) == 1


async def test_a_function_for_halves_that_raises_is_an_error_of_the_batch() -> None:
    async def fail(items: list[int]) -> list[int]:
        await trio.sleep(1)
        if 13 in items:
            raise KeyError("the batch's")
        return items

    def halve(error: Exception) -> bool:
        raise ValueError("the function's")

    async with open_clients(fail, max_size=2, max_wait=1, halve=halve) as clients:
        for item in (12, 13, 14, 15):
            await clients.ask(item)
    for item in (12, 13):
        error = clients.got[item]
        assert isinstance(error, ValueError)
        assert isinstance(error.__cause__, ValueError)  # one for all, and an instance for each
        assert isinstance(error.__cause__.__context__, KeyError)
    assert (clients.got[14], clients.got[15]) == (14, 15)
    assert clients.batcher.statistics().failed == 2


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 8, 32])
async def test_how_many_faults_it_takes_to_find_who_causes_them(size: int, attempts: int) -> None:
    device = FaultyDevice()

    async def compute(items: list[int]) -> list[int]:
        await device.work(1)
        if 0 in items:
            device.fault()
        return items

    retry = Retry(attempts=attempts, backoff=Backoff(base=0))
    async with open_clients(compute, max_size=size, max_wait=1, retry=retry) as clients:
        for item in range(size):
            await clients.ask(item)
    assert device.faults == int(math.log2(size)) - 1 + 2 * attempts
    assert clients.batcher.statistics().answered == size - 1


async def test_exceptions_among_the_results_are_raised_at_their_own_callers() -> None:
    async def roots(items: list[float]) -> list[float | Exception]:
        await trio.lowlevel.checkpoint()
        return [item**0.5 if item >= 0 else ValueError(item) for item in items]

    async with open_clients(roots, max_size=3, max_wait=1) as clients:
        for item in (4, -1, 9):
            await clients.ask(item)
    assert clients.got[4] == 2
    assert clients.got[9] == 3
    assert clients.got[-1].args == (-1,)
    assert clients.batcher.statistics().calls == 1


@pytest.mark.parametrize(
    ("results", "got"),
    [([], 0), ([1], 1), ([1, 2, 3], 3), ("ab", None), ({1: 2, 3: 4}, None), ({1, 2}, None),
     (None, None), (iter([1, 2]), None)],
)  # fmt: skip
async def test_other_than_one_result_each_is_an_error_for_all(
    results: Any, got: int | None
) -> None:
    async def wrong(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return results

    async with open_clients(wrong, max_size=2, max_wait=1) as clients:
        await clients.ask(1)
        await clients.ask(2)
    for error in clients.got.values():
        assert isinstance(error, WrongResults)
        assert (error.expected, error.got) == (2, got)
    assert clients.batcher.statistics().calls == 1


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
        with pytest.raises(OSError, match=r"^torn$"):
            await batcher(1)
        assert await batcher(2) == 2
    assert batcher.statistics().running == 0


async def test_cancelled_request_is_not_repeated_while_a_fault_is_isolated() -> None:
    device = FaultyDevice()
    calls: list[list[int]] = []

    async def compute(items: list[int]) -> list[int]:
        calls.append(items)
        await device.work(1 if 13 in items else 1.25)
        if 13 in items and len(calls) < 4:
            device.fault()
        return items

    retry = Retry(attempts=3, backoff=Backoff(base=0))
    async with open_clients(
        compute, max_size=2, max_wait=1, max_in_flight=2, retry=retry
    ) as clients:
        for item in (1, 13, 2, 3):
            await clients.ask(item, within=1.5 if item == 3 else 50)
    assert clients.got == {1: 1, 13: 13, 2: 2, 3: "cancelled"}
    assert [call for call in calls[2:] if 3 in call] == []


async def test_an_array_of_results_is_taken_row_by_row() -> None:
    async def twice(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return 2 * np.array(items)

    async with open_batcher(twice, max_size=2) as batcher:
        assert await batcher(3) == 6


async def test_a_function_that_is_not_async_is_told() -> None:
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    wrong: Any = double
    async with open_batcher(wrong, max_size=4) as batcher:
        with pytest.raises(TypeError, match=r"takes an async function; .* returned"):
            await batcher(1)
