"""A rank of a world dies: every op in flight gets an error, and the world goes on."""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, DeviceLost, GpuRefStale, KernelHung, WorldBroken
from atomr_accel.device.contexts._prepared import PreparedHost
from atomr_accel.testing import hang, kill_host, poison
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.worlds import World, _bootstrap, _engine, open_world
from atomr_accel.worlds._member import DeviceMember

from ..harness import cpu_only, descriptors, opened, program, settled, stop_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atomr_accel import Device
    from atomr_accel.worlds._world import OnBreak

    from ..harness import Gate

pytestmark = [cpu_only, pytest.mark.slow]


@asynccontextmanager
async def world_of(
    size: int, mortal: int, *, hangs_after: float | None = None, **options: Any
) -> AsyncIterator[World]:
    """A world of devices, one of which has a host that can die; those of others are threads."""
    async with AsyncExitStack() as stack:
        devices = [
            await stack.enter_async_context(
                opened(0, isolation="process", op_deadline=hangs_after)
                if number == mortal
                else opened(0, isolation="thread")
            )
            for number in range(size)
        ]
        yield await stack.enter_async_context(open_world(devices, **options))


async def ones(world: World) -> list[Any]:
    return [await device.full((8,), 1.0, np.float32) for device in world.devices]


async def hang_on(device: Device) -> None:
    with pytest.raises(Exception, match="op_deadline"):
        await hang(device)


DEATHS: dict[str, Callable[[Device], Awaitable[object]]] = {
    "fault": poison,
    "kill": kill_host,
    "hang": hang_on,
}


@pytest.mark.parametrize("how", DEATHS)
async def test_survivors_are_told_and_the_world_comes_back(how: str, gate: Gate) -> None:
    async with world_of(3, 1, hangs_after=0.4) as world:
        first, second, third = world.devices
        kept = await first.put(np.arange(5.0))
        hold = await gate.kernel(first)
        x = await ones(world)
        generations = [device.generation for device in world.devices]
        failures: list[WorldBroken] = []

        async def broken() -> None:
            with pytest.raises(WorldBroken, match="rank 1 of 3 failed in epoch 1") as caught:
                await world.all_reduce(x)
            failures.append(caught.value)

        async with world.watch() as epochs, trio.open_nursery() as nursery:
            nursery.start_soon(hold, x[0])  # so that collectives are under way meanwhile
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(broken)
            await trio.testing.wait_all_tasks_blocked()
            await DEATHS[how](second)
            gate.open()
            assert await anext(epochs) == 2
        assert len(failures) == 3
        assert len({id(failure.__cause__) for failure in failures}) <= 1
        assert {failure.rank for failure in failures} <= {1}
        # Survivors have lost nothing, and the dead rank what it always does.
        assert [device.generation for device in (first, third)] == [generations[0], generations[2]]
        assert second.generation == generations[1] + 1
        assert (await first.get(kept)).tolist() == [*range(5)]
        with pytest.raises(GpuRefStale):
            await world.all_reduce(x)
        y = await world.all_reduce(await ones(world))
        for device, ref in zip(world.devices, y, strict=True):
            assert (await device.get(ref)).tolist() == [3.0] * 8
        said = world.statistics()
        assert (said.phase, said.epoch, said.breaks, said.in_flight) == ("whole", 2, 1, 0)
        for device in world.devices:
            await settled(device)


async def test_a_world_shrinks_and_refuses_what_was_called_before() -> None:
    async with world_of(3, 0, on_break="shrink") as world:
        devices = world.devices
        x = await ones(world)
        await kill_host(devices[0])
        with pytest.raises((ValueError, WorldBroken, GpuRefStale)):
            await world.all_reduce(x)
        assert world.devices == devices[1:]
        assert world.rank_of(devices[1]) == 0
        y = await world.all_reduce(x[1:])
        assert (await devices[2].get(y[1])).tolist() == [2.0] * 8
        with pytest.raises(ValueError, match="no device of"):
            world.rank_of(devices[0])


def kill_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mortal: Device, lane: str | None = None
) -> list[int]:
    """Kill the host of a device as a function is called for it the first time.

    Args:
        monkeypatch: replaces the function.
        owner: the module or class that has it.
        name: its name.
        mortal: the device.
        lane: only if this lane is among its arguments.

    Returns:
        The process ids of the killed hosts, empty until it happens.
    """
    function, killed = getattr(owner, name), list[int]()

    def call(*args: Any, **kwargs: Any) -> Any:
        core = mortal.core
        mine = any(each is core or getattr(each, "core", None) is core for each in args)
        lanes = {spec.name for each in args if isinstance(each, list) for spec in each}
        pid = core.host_pid
        if mine and not killed and pid is not None and (lane is None or lane in lanes):
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return killed


POINTS: dict[str, tuple[Any, str, str | None]] = {
    "starting the lane of collectives": (PreparedHost, "start_lanes", "nccl"),
    "starting the lane that aborts": (PreparedHost, "start_lanes", "nccl-aborts"),
    "meeting": (_bootstrap, "mapped", None),
    "joining": (DeviceMember, "join", None),
    "leaving": (DeviceMember, "abort", None),
}


@pytest.mark.parametrize("how", ["open", "resize"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_world_is_formed_and_resized_wherever_a_host_is_killed(
    point: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, lane = POINTS[point]
    async with opened(0, isolation="thread") as one, opened(0, isolation="process") as new:
        killed = kill_before(monkeypatch, owner, name, new, lane)
        async with open_world([one, new] if how == "open" else [one]) as world:
            await world.resize([one, new])
            if point == "leaving":
                await world.resize([one])
                await world.resize([one, new])
            assert len(killed) == 1
            y = await world.all_reduce(await ones(world))
            assert (await new.get(y[1])).tolist() == [2.0] * 8
        assert new.generation == 2
        await settled(one)


@pytest.mark.parametrize("on_break", ["wait", "shrink"])
async def test_the_last_rank_is_waited_for(on_break: OnBreak) -> None:
    async with world_of(2, 1, on_break=on_break) as world:
        one, other = world.devices
        await world.resize([other])
        await kill_host(other)
        y = await world.all_reduce(await ones(world))
        assert (await other.get(y[0])).tolist() == [1.0] * 8
        await world.resize([one, other])
        assert world.size == 2


def test_device_that_was_in_a_world_is_collected() -> None:
    cores: list[weakref.ref[Any]] = []

    @program
    async def leave_worlds() -> None:
        async with world_of(2, 1) as world:
            await world.barrier()
            await world.all_reduce(await ones(world))
            cores.extend(weakref.ref(device.core) for device in world.devices)

    leave_worlds()
    collect_garbage()
    assert [core() for core in cores] == [None, None]


async def test_a_rank_that_waits_in_another_world_is_not_blamed(gate: Gate) -> None:
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(opened(0, isolation="thread")) for _ in range(3)]
        other = await stack.enter_async_context(open_world(devices[1:]))
        world = await stack.enter_async_context(open_world(devices[:2], op_deadline=0.4))
        x, y = await ones(world), await ones(other)
        hold = await gate.kernel(devices[2])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, y[1])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(other.all_reduce, y)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(WorldBroken, match="waits for a collective of another") as caught:
                await world.all_reduce(x)
            assert caught.value.rank is None
            gate.open()
        assert [device.generation for device in devices] == [1, 1, 1]


async def test_a_host_that_is_stopped_is_killed_at_the_deadline() -> None:
    async with world_of(2, 1, op_deadline=0.5) as world, world.watch() as epochs:
        x = await ones(world)
        pid = world.devices[1].statistics().host_pid
        assert pid is not None
        stop_process(pid)
        with pytest.raises(WorldBroken, match="does not answer") as caught:
            await world.all_reduce(x)
        assert caught.value.rank == 1
        assert isinstance(caught.value.__cause__, KernelHung)
        # It is over with that generation, so what follows waits for the next one.
        assert world.devices[1].generation == 2
        await world.devices[1].put(1.0)
        assert await anext(epochs) == 2
        y = await world.all_reduce(await ones(world))
        assert (await world.devices[0].get(y[0])).tolist() == [2.0] * 8


async def test_a_rank_behind_other_work_is_killed_where_others_join_again(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engine, "_JOINING_SECONDS", 0.0)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(opened(0, isolation="thread"))
        second, third = [await stack.enter_async_context(opened(0)) for _ in range(2)]
        hold = await gate.kernel(second)
        world = await stack.enter_async_context(open_world([first, second, third], op_deadline=0.4))
        x = await ones(world)
        async with world.watch() as epochs, trio.open_nursery() as nursery:

            async def stay() -> None:
                with pytest.raises(ContextPoisoned):
                    await hold(x[1])

            async def call() -> None:
                with pytest.raises(WorldBroken, match="rank 2 of 3"):
                    await world.all_reduce(x)

            nursery.start_soon(stay)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await kill_host(third)
            assert await anext(epochs) == 3
        assert "is gone: joining had not ended" in (world.statistics().last_break or "")
        assert (first.generation, second.generation, third.generation) == (1, 2, 2)
        y = await world.all_reduce(await ones(world))
        assert (await first.get(y[0])).tolist() == [3.0] * 8


async def test_a_host_that_is_stopped_does_not_keep_others_from_meeting() -> None:
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(opened(0)) for _ in range(2)]
        world = await stack.enter_async_context(open_world(devices, op_deadline=0.4))
        pid = devices[0].statistics().host_pid
        assert pid is not None
        async with world.watch() as epochs:
            stop_process(pid)
            await kill_host(devices[1])
            await anext(epochs)
        await world.barrier()
        assert [device.generation for device in devices] == [2, 2]


async def test_a_world_is_left_whatever_is_under_way() -> None:
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(opened(0, isolation="thread")) for _ in range(2)]
        one, other = devices

        async def call(world: World) -> None:
            with suppress(WorldBroken):  # or it was done
                await world.all_reduce([await one.full(5, 1.0), await other.full(5, 2.0)])

        for number in range(12):
            async with trio.open_nursery() as outer:
                with pytest.raises(IndexError):
                    async with open_world(devices) as world:
                        for _ in range(5):
                            outer.start_soon(call, world)
                        for _ in range(number):
                            await trio.lowlevel.checkpoint()
                        raise IndexError
        assert [device.generation for device in devices] == [1, 1]
        for device in devices:
            await settled(device)


async def test_a_device_that_is_lost_ends_its_world() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(opened(0, isolation="thread"))
        with pytest.raises(DeviceLost):
            async with opened(0, isolation="thread") as other, open_world([one, other]) as world:
                x = await ones(world)
                await world.all_reduce(x)
                with pytest.raises(ContextPoisoned):
                    raise await poison(other)
                with pytest.raises((WorldBroken, DeviceLost, GpuRefStale)):
                    await world.all_reduce(x)
        assert (await one.get(await one.put(np.arange(3)))).tolist() == [0, 1, 2]


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_replay_after_a_device_was_lost_names_its_rank(rank: int) -> None:
    with pytest.raises(DeviceLost):
        async with (
            opened(0, isolation="thread") as one,
            opened(0, isolation="thread") as other,
            open_world([one, other]) as world,
        ):
            x = await ones(world)
            async with world.record(x) as recording:
                recording.all_reduce(x)
            await recording.replay()
            with pytest.raises(ContextPoisoned):
                raise await poison(world.devices[rank])
            await trio.sleep_forever()
    for call in (recording.replay, world.barrier):
        with pytest.raises(WorldBroken, match=f"rank {rank} of 2 failed .* is lost") as caught:
            await call()
        assert caught.value.rank == rank
        assert isinstance(caught.value.__cause__, DeviceLost)


async def test_leaving_a_world_leaves_nothing() -> None:
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(opened(0, isolation="thread")) for _ in range(2)]
        async with open_world(devices) as world:
            await world.barrier()  # which makes devices take memory
        before = descriptors()
        for _ in range(3):
            async with open_world(devices) as world:
                await world.barrier()
        assert descriptors() <= before
        with pytest.raises(WorldBroken, match="the world was left"):
            await world.barrier()
