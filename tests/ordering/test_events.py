"""Points in a lane's work: recorded, waited for, asked about, measured."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, EventStale
from atomr_accel.testing import kill_host

from ..harness import Gate, cancelled_at, on_shared, opened, settled


@on_shared
async def test_a_point_comes_after_what_was_submitted_before_it(device: Device, gate: Gate) -> None:
    hold = await gate.kernel(device)
    cells, event = await device.zeros(1, np.float32), device.event()
    gate.open()
    await hold(cells)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, cells)
        await trio.testing.wait_all_tasks_blocked()
        await event.record("kernels")
        assert not event.query()
        gate.open()
        await event.wait()
        assert event.query()
        assert (await device.get(cells)).tolist() == [2]
    await event.record("kernels")  # moves it
    await event.wait()


@on_shared
async def test_a_point_comes_after_what_waits_for_another_lane(device: Device, gate: Gate) -> None:
    """The lane has put that aside, but it was submitted before the point."""
    hold = await gate.kernel(device)
    a, event = await device.zeros((1, 1), np.float32), device.event()
    out = await device.blas.gemm(a, a)
    gate.open()
    await hold(a)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, a)
        await trio.testing.wait_all_tasks_blocked()

        async def gemm() -> None:
            await device.blas.gemm(a, a, out=out)

        nursery.start_soon(gemm)
        await trio.testing.wait_all_tasks_blocked()
        await event.record("blas")
        assert await cancelled_at(1, event.wait)
        assert not event.query()
        gate.open()
        await event.wait()
        assert (await device.get(out)).tolist() == [[4]]


@on_shared
async def test_any_number_of_tasks_wait_for_one_point(device: Device, gate: Gate) -> None:
    hold = await gate.kernel(device)
    cells, event = await device.zeros(1, np.float32), device.event()
    woken = 0

    async def wait() -> None:
        nonlocal woken
        await event.wait()
        woken += 1

    gate.open()
    await hold(cells)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, cells)
        await trio.testing.wait_all_tasks_blocked()
        await event.record("kernels")
        for _ in range(5):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == 0
        gate.open()
    assert woken == 5


@on_shared
async def test_whoever_stops_waiting_does_not_take_the_point_back(
    device: Device, gate: Gate
) -> None:
    hold = await gate.kernel(device)
    cells, start, end = await device.zeros(1, np.float32), device.event(), device.event()
    gate.open()
    await hold(cells)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, cells)
        await trio.testing.wait_all_tasks_blocked()
        for event in (start, end):
            await event.record("kernels")
            assert await cancelled_at(1, event.wait)
        gate.open()
    forth, back = await start.elapsed(end), await end.elapsed(start)
    assert forth == pytest.approx(-back)
    assert start.query()
    assert end.query()


@on_shared
async def test_time_on_the_device(device: Device) -> None:
    a = await device.put(np.eye(4, dtype=np.float32))
    await device.blas.gemm(a, a)
    points = [device.event() for _ in range(3)]
    for point in points:
        await point.record()
        await device.blas.gemm(a, a)
    first, second = await points[0].elapsed(points[1]), await points[1].elapsed(points[2])
    whole = await points[0].elapsed(points[2])
    assert whole == pytest.approx(first + second, rel=0.01, abs=0.1)
    assert await points[2].elapsed(points[0]) == pytest.approx(-whole, rel=0.01, abs=0.1)
    assert await points[0].elapsed(points[0]) == 0


@on_shared
async def test_points_that_are_not_there(device: Device) -> None:
    event = device.event()
    with pytest.raises(RuntimeError, match="not recorded yet"):
        event.query()
    with pytest.raises(RuntimeError, match="not recorded yet"):
        await event.wait()
    with pytest.raises(ValueError, match=r"no lane 'nothing' is running; running are: memory"):
        await event.record("nothing")
    await event.record("memory")
    with pytest.raises(RuntimeError, match="not recorded yet"):
        await event.elapsed(device.event())


async def test_a_point_does_not_outlive_its_generation(gate: Gate) -> None:
    async with opened(isolation="process") as device:
        hold = await gate.kernel(device)
        cells, before, pending = await device.zeros(1, np.float32), device.event(), device.event()
        gate.open()
        await hold(cells)  # its lane is open from here on
        await before.record("memory")
        await before.wait()
        async with trio.open_nursery() as nursery:

            async def held() -> None:
                with pytest.raises(ContextPoisoned):
                    await hold(cells)

            nursery.start_soon(held)
            await trio.testing.wait_all_tasks_blocked()
            await pending.record("kernels")
            await kill_host(device)
        with pytest.raises(ContextPoisoned):
            await pending.wait()
        after = device.event()
        await after.record("memory")
        for error in (EventStale, RuntimeError):
            with pytest.raises(error, match="does not outlive its generation"):
                await before.elapsed(after)
        with pytest.raises(ContextPoisoned):
            await pending.elapsed(after)
        await before.record("memory")
        assert await after.elapsed(before) >= 0
        await settled(device)


async def test_foreign_event_is_refused() -> None:
    async with opened(isolation="thread") as device, opened(isolation="thread") as other:
        event, foreign = device.event(), other.event()
        await event.record("memory")
        await foreign.record("memory")
        with pytest.raises(ValueError, match="is an event of"):
            await event.elapsed(foreign)
        with pytest.raises(TypeError, match="end must be an event"):
            await event.elapsed(3)  # type: ignore[arg-type]
