"""Copies between devices: through windows that stay open, in order, whatever fails on the way."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale
from atomr_accel._dtypes import DTYPES
from atomr_accel.lanes import END_SECONDS
from atomr_accel.testing import kill_host, poison
from atomr_accel.wire import UnmapSlabs

from ..array_samples import noise, random_bits
from ..harness import (
    SECOND,
    Gate,
    cancelled_at,
    cpu_only,
    interrupted_at,
    opened,
    same_bits,
    settled,
    sized,
    used_by,
)

MUCH = 1 << 20
"""Size from which a window is opened."""


def has_window(source: Device, target: Device, ref: GpuRef) -> bool:
    slab = target.core.memory.slab_of(ref.block)
    return source.core.windows.find(target.core, slab) is not None


def slabs_of_host(device: Device) -> int:
    """Return the number of slabs a device's host has mapped, its own and those of others."""
    maps = Path(f"/proc/{device.statistics().host_pid}/maps").read_text(encoding="utf-8")
    return maps.count("atomr-slab")


async def test_every_dtype_and_layout_is_copied() -> None:
    layouts: list[Callable[[Any], Any]] = [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[::-1, 1:],
        lambda x: x[1:1],
        lambda x: x[2, 3],
    ]
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        for number, dtype in enumerate(DTYPES.values()):
            array = random_bits((4, 6), dtype, number)
            ref = await one.put(array)
            for layout in layouts:
                there = await two.copy(layout(ref))
                assert same_bits(await two.get(there), layout(array))
            into = await two.zeros((6, 4), dtype)
            await two.copy(ref, into.T)
            assert same_bits(await two.get(into), array.T)


async def test_a_window_stays_open_and_serves_small_copies_too() -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        small = await one.put(np.arange(3))
        copy = await two.copy(small)
        assert not has_window(one, two, copy)
        array = noise(MUCH)
        ref = await one.put(array)
        first = await two.copy(ref)
        assert has_window(one, two, first)
        again = await two.copy(ref)
        assert same_bits(await two.get(again), array)
        assert (await two.get(await two.copy(small))).sum() == 3
        assert one.core.staging._pool.in_use == 0


@cpu_only
@pytest.mark.slow
async def test_window_keeps_no_memory_that_its_owner_freed() -> None:
    async with opened(max_restarts=9) as one, AsyncExitStack() as stack:
        ref = await one.put(noise(MUCH))
        alone = slabs_of_host(one)
        two = await stack.enter_async_context(opened(SECOND, max_restarts=9))
        copy = await two.copy(ref)
        assert slabs_of_host(one) == alone + 1
        del copy
        await two.trim()
        assert slabs_of_host(one) == alone

        copy = await two.copy(ref)
        await poison(two)  # its memory goes as soon as another is wanted
        del copy
        copy = await two.copy(ref)
        await two.trim()
        assert slabs_of_host(one) == alone + 1

        await stack.aclose()
        del copy
        await trio.testing.wait_all_tasks_blocked()
        assert slabs_of_host(one) == alone


def requests(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[UnmapSlabs]:
    """Return the list of requests to unmap slabs that a device's host has answered."""
    context, answered = device.core.serving, list[UnmapSlabs]()
    assert context is not None
    request = context.host.request

    async def noted(message: Any, *fds: int, **options: Any) -> Any:
        answer = await request(message, *fds, **options)
        if isinstance(message, UnmapSlabs):
            answered.append(message)
        return answer

    monkeypatch.setattr(context.host, "request", noted)
    return answered


async def test_a_trim_that_is_cancelled_at_any_step_leaves_nothing_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        ref = await one.put(noise(MUCH))
        by_one, by_two = requests(one, monkeypatch), requests(two, monkeypatch)
        windows, slabs = set[int](), set[int]()
        step, goes_on = 1, True
        while goes_on:
            copy = await two.copy(ref)
            slab = two.core.memory.slab_of(copy.block)
            window = one.core.windows.find(two.core, slab)
            assert window is not None
            windows.add(window.number)
            slabs.add(slab.id)
            del copy
            goes_on = await cancelled_at(step, two.trim)
            step += 1
        await two.trim()
        assert step > 3
        assert {number for request in by_one for number in request.ids} == windows
        assert {number for request in by_two for number in request.ids} == slabs


def test_a_host_that_does_not_answer_holds_up_no_other_device_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither one that needs the memory, nor one that is closed."""
    clock = trio.testing.MockClock()

    async def main() -> None:
        go_on, ended = trio.Event(), list[object]()

        async def runs(function: Callable[[], Awaitable[object]]) -> None:
            await function()
            ended.append(function)

        async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
            context = one.core.serving
            assert context is not None
            request = context.host.request

            async def silent(message: Any, *fds: int, **options: Any) -> Any:
                if isinstance(message, UnmapSlabs):
                    await go_on.wait()
                return await request(message, *fds, **options)

            monkeypatch.setattr(context.host, "request", silent)
            ref = await one.put(noise(MUCH))
            await two.copy(ref)
            two.core.memory.trim()
            waits = (two.core.windows.close_guests, two.core.lifecycle.settle)
            async with trio.open_nursery() as nursery:
                try:
                    for wait in waits:
                        nursery.start_soon(runs, wait)
                    await trio.testing.wait_all_tasks_blocked()
                    assert ended == []
                    clock.jump(END_SECONDS)
                    await trio.testing.wait_all_tasks_blocked()
                    assert set(ended) == set(waits)
                finally:
                    go_on.set()
            assert one.generation == 1  # its host was not given up
            assert same_bits(await one.get(ref), noise(MUCH))

    trio.run(main, clock=clock)


@cpu_only
async def test_a_window_in_use_is_not_closed(gate: Gate) -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        hold = await gate.kernel(one)
        x = await one.zeros(MUCH // 4, np.float32)
        before = await two.copy(x)
        slab = two.core.memory.slab_of(before.block)
        window = one.core.windows.find(two.core, slab)
        assert window is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, x)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(two.copy, x)
            await trio.testing.wait_all_tasks_blocked()
            two.core.windows.given_up(slab.id)
            assert one.core.memory.unmapped == []
            gate.open()
        assert one.core.memory.unmapped == [window.number]
        after = await two.copy(x)  # through another
        assert (await two.get(after))[0] == 1


@pytest.mark.parametrize("nbytes", [400, MUCH])
async def test_copies_have_their_place_in_the_order_of_the_source(gate: Gate, nbytes: int) -> None:
    """Whatever is called before a copy is in it, and nothing that is called after it."""
    chance = random.Random(nbytes)
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        hold = await gate.kernel(one)
        x = await one.zeros(nbytes // 4, np.float32)
        # As everywhere, who must wait for memory is late. So there is memory, and windows on it.
        room = [await two.copy(x) for _ in range(8)]
        del room
        copies: list[tuple[float, GpuRef]] = []

        async def copy(expected: float) -> None:
            copies.append((expected, await two.copy(x)))

        for _ in range(4):
            value = 0.0
            await one.fill(x, value)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, x)
                await trio.testing.wait_all_tasks_blocked()
                value += 1
                for number in range(2, 10):
                    if chance.random() < 0.5:
                        nursery.start_soon(copy, value)
                    else:
                        nursery.start_soon(one.fill, x, number)
                        value = float(number)
                    await trio.testing.wait_all_tasks_blocked()
                gate.open()
            # The kernel counts in the first element, and a fill is of all.
            for expected, ref in copies:
                assert (await two.get(ref[:1]))[0] == expected
            copies.clear()


async def test_a_copy_that_is_cancelled_at_any_step_leaves_nothing() -> None:
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as two:
        array = noise(MUCH)
        ref = await one.put(array)
        await two.copy(ref)
        step = 1
        while await cancelled_at(step, lambda: two.copy(ref)):
            step += 1
            await settled(one)
            await settled(two)
        two.core.memory.collect(1000)
        assert used_by(two) == 0
        assert same_bits(await two.get(await two.copy(ref)), array)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blow", "sealed"),
    sized([(kill_host, True)], [(kill_host, True), (kill_host, False), (poison, True)]),
)
async def test_a_fault_of_either_side_at_any_step_names_it_and_leaves_the_other(
    blow: Any, sealed: bool
) -> None:
    array = noise(MUCH)
    many: Any = {"max_restarts": 99, "standby": None}
    async with opened(**many) as one, opened(SECOND, **many) as two:
        steps = sized(
            [(1, one), (2, two)], [(step, side) for step in range(1, 9) for side in (one, two)]
        )
        kept = {each: await each.put(array, sealed=True) for each in (one, two)}
        for step, side in steps:
            other = two if side is one else one
            plain = await other.put(np.arange(3))
            ref = kept[one] if sealed else await one.put(array)
            generation = other.generation
            failure: Exception | None = None
            try:
                _, copy = await interrupted_at(step, partial(two.copy, ref), partial(blow, side))
                if not copy.is_stale:
                    assert same_bits(await two.get(copy), array)
            except (ContextPoisoned, GpuRefStale) as error:
                failure = error
            if isinstance(failure, ContextPoisoned):
                assert f"of {side.name} is gone" in str(failure)
            elif failure is not None:
                assert (side, sealed) == (one, False)
            # The other one has not even noticed.
            assert other.generation == generation
            assert (await other.get(plain)).sum() == 3
            for each in (one, two):
                assert same_bits(await each.get(kept[each]), array)
                assert each.core.staging._pool.in_use == 0
