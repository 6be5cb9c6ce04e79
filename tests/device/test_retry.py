"""``device.retry``: the calls after a fault, their number, and the last error."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio._core import _run as trio_run

from atomr_accel import ContextPoisoned, Device, DeviceLost, GpuRef, GpuRefStale
from atomr_accel.device.calls._turns import Again
from atomr_accel.testing import kill_host, poison

from ..harness import AT_ONCE, opened


class Flaky:
    """Computes on the device, and fails a number of times on the way."""

    def __init__(self, device: Device, faults: int) -> None:
        self.device = device
        self.faults = faults
        self.calls = 0

    async def __call__(self, x: float, y: float = 1.0) -> float:
        self.calls += 1
        ref = await self.device.put(np.full((2, 2), x))
        if self.calls <= self.faults:
            await kill_host(self.device)
        return float((await self.device.get(ref))[0, 0] * y)


async def test_retry_calls_again_after_a_fault() -> None:
    async with opened(max_restarts=9) as device:
        flaky = Flaky(device, faults=2)
        assert await device.retry(flaky, 3.0, 2.0) == 6
        assert flaky.calls == 3
        assert device.generation == 3


async def test_attempts_are_bounded_and_the_last_error_tells_of_the_others() -> None:
    async with opened(max_restarts=9) as device:
        flaky = Flaky(device, faults=9)
        with pytest.raises((ContextPoisoned, GpuRefStale)) as info:
            await device.retry(flaky, 3.0, attempts=3)
        assert flaky.calls == 3
        notes = info.value.__notes__
        for number, note in enumerate(notes, 1):
            said = rf"attempt {number} ended with (GpuRefStale|ContextPoisoned)\("
            assert re.match(said, note)
        assert len(notes) == 2


async def test_the_next_attempt_has_what_the_one_before_had() -> None:
    """Without waiting for garbage to be collected."""
    held: list[weakref.ref[GpuRef]] = []

    async def holds(device: Device) -> int:
        assert not any(ref() for ref in held), "the attempt before still holds it"
        mine = await device.empty((4,), np.float32)
        held.append(weakref.ref(mine))
        if len(held) == 1:
            raise ContextPoisoned("", generation=1, status=700, status_name="FAULT", op="test")
        return len(held)

    async with opened(isolation="thread") as device:
        gc.disable()
        try:
            assert await device.retry(holds, device) == 2
        finally:
            gc.enable()
        assert not any(ref() for ref in held)


async def test_a_lost_device_is_not_asked_again() -> None:
    calls = 0

    async def once(device: Device) -> None:
        nonlocal calls
        calls += 1
        await poison(device)
        await device.put(np.eye(2))

    with pytest.raises(DeviceLost):
        async with opened(max_restarts=0) as device, trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True), pytest.raises(DeviceLost):
                await device.retry(once, device, attempts=5)
            nursery.start_soon(trio.sleep_forever)
    assert calls == 1


async def test_other_errors_are_raised_at_once() -> None:
    calls = 0

    async def wrong() -> None:
        nonlocal calls
        calls += 1
        raise KeyError("mine")

    async with opened(isolation="thread") as device:
        with pytest.raises(KeyError, match=r"^'mine'$"):
            await device.retry(wrong)
    assert calls == 1


async def test_retry_does_not_repeat_a_call_that_was_stale_from_the_start() -> None:
    calls = 0

    async def late(ref: Any) -> None:
        nonlocal calls
        calls += 1
        await device.get(ref)

    async with opened(isolation="thread") as device:
        ref = await device.put(np.eye(2))
        await device.free(ref)
        with pytest.raises(GpuRefStale) as info:
            await device.retry(late, ref)
    assert calls == 1
    assert "make it in the function, or seal it" in info.value.__notes__[0]


async def test_a_group_of_faults_is_one_too() -> None:
    calls = 0

    async def both(device: Device) -> int:
        nonlocal calls
        calls += 1
        refs = [await device.put(np.eye(2)) for _ in range(2)]
        if calls == 1:
            await kill_host(device)
        async with trio.open_nursery() as nursery:
            for ref in refs:
                nursery.start_soon(device.get, ref)
        return calls

    async with opened() as device:
        assert await device.retry(both, device) == 2


async def test_one_error_of_another_kind_in_a_group_decides() -> None:
    async def both() -> None:
        raise ExceptionGroup("two", [GpuRefStale("gone"), KeyError("mine")])

    async with opened(isolation="thread") as device:
        with pytest.RaisesGroup(GpuRefStale, KeyError):
            await device.retry(both)


async def test_retry_can_be_cancelled_during_a_rebuild() -> None:
    async with opened(backoff=AT_ONCE) as device:
        flaky = Flaky(device, faults=9)
        with trio.CancelScope() as scope:

            async def cancel_in_between() -> float:
                try:
                    return await flaky(1.0)
                finally:
                    scope.cancel()

            await device.retry(cancel_in_between)
        assert scope.cancelled_caught
        assert flaky.calls == 1


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        (None, {}, TypeError, "retry takes an async function and its arguments, not NoneType"),
        (lambda: 3, {}, TypeError, "retry takes an async function; .* returned 3"),
        (
            trio.lowlevel.checkpoint,
            {"attempts": 0},
            ValueError,
            "attempts must be a whole number of at least 1, not 0",
        ),
        (trio.lowlevel.checkpoint, {"attempts": True}, TypeError, "attempts must be a whole"),
        (trio.lowlevel.checkpoint, {"attempts": 1.0}, TypeError, "attempts must be a whole"),
    ],
)
async def test_misuse(
    function: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(error, match=message):
            await device.retry(function, **options)


async def test_a_call_in_place_of_a_function() -> None:
    async def infer() -> None:
        pytest.fail("called")

    async with opened(isolation="thread") as device:
        with pytest.raises(TypeError, match=r"not a coroutine.*write `device\.retry\(infer, x\)`"):
            await device.retry(infer())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("ways", [(0.0,), (0.9,), (0.0, 0.9), (0.0, 0.0, 0.9)])
async def test_retry_keeps_the_order_of_callers(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[float, ...]
) -> None:
    """However trio goes through the tasks of a turn."""
    asked: list[int] = []
    lost = trio.Event()

    async def ask(device: Device, number: int) -> None:
        ref = await device.empty((4,), np.float32)
        asked.append(number)
        await lost.wait()
        await device.get(ref)

    async with opened(max_restarts=9) as device:
        await device.empty((4,), np.float32)  # there is memory: who asks for some need not wait
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(partial(device.retry, ask, device, number))
                await trio.testing.wait_all_tasks_blocked()
            await kill_host(device)
            await device.put(np.ones(1))
            monkeypatch.setattr(trio_run._r, "random", itertools.cycle(ways).__next__)
            lost.set()
        assert asked == [*range(8), *range(8)]


@pytest.mark.parametrize("ways", [(0.0,), (0.9,), (0.0, 0.9), (0.0, 0.0, 0.9)])
async def test_calls_go_on_in_their_order_unless_they_are_cancelled(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[float, ...]
) -> None:
    again, gone_on = Again(), list[int]()
    numbers = [again.number() for _ in range(60)]

    async def wait(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await again.wait(number)
            gone_on.append(number)

    monkeypatch.setattr(trio_run._r, "random", itertools.cycle(ways).__next__)
    scopes = [trio.CancelScope() for _ in numbers]
    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(wait, number, scopes[number])
        await trio.lowlevel.checkpoint()
        for scope in scopes[::3]:
            scope.cancel()
    assert gone_on == [number for number in numbers if number % 3]
    assert not again._waiting
