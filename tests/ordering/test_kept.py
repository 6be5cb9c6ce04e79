"""The host keeps an object for a handle exactly as long as the program keeps the handle."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.device.batches.replaying import RECORDINGS
from atomr_accel.device.core import MEMORY_LANE
from atomr_accel.libraries.nvrtc.lanes import KERNELS
from atomr_accel.libraries.nvrtc.wire.messages import LaunchKernel, Load
from atomr_accel.libraries.recordings.wire.messages import (
    Describe,
    PrepareRecording,
    RecordingStep,
    Replay,
)
from atomr_accel.testing import kill_host
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import Elapsed, Message, encoder

from ..harness import Gate, on_shared, opened, settled

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SOURCE: Final = 'extern "C" __global__ void nothing() {}'
_numbers: Final = itertools.count(1 << 40)


def nothing() -> None:
    pass


async def _executes(device: Device, lane: str, message: Message) -> bool:
    core = device.core
    try:
        await core.submit(core.ports[lane], "look", message).wait()
    except KeyError:
        return False
    return True


def _launch(number: int) -> LaunchKernel:
    return LaunchKernel(number, 0, (1, 1, 1), (1, 1, 1), 0, ())


async def has_event(device: Device, number: int) -> bool:
    return await _executes(device, MEMORY_LANE, Elapsed(number, number))


async def has_kernel(device: Device, number: int) -> bool:
    return await _executes(device, KERNELS.name, _launch(number))


async def has_recording(device: Device, number: int) -> bool:
    return await _executes(device, RECORDINGS.name, Describe(number))


async def has_kernel_for_recordings(device: Device, number: int) -> bool:
    step = RecordingStep(KERNELS.executors[device.backend], "look", encoder.encode(_launch(number)))
    own = next(_numbers)
    core = device.core
    try:
        made = core.submit(core.ports[RECORDINGS.name], "look", PrepareRecording(own, (), (step,)))
        await core.submit(core.ports[RECORDINGS.name], "look", Replay(own)).wait()
    except KeyError:
        return False
    return made.error is None


async def told(device: Device) -> None:
    """Have the host learn of dropped handles, which it does with other ops, and wait for it."""
    collect_garbage()
    x = await device.zeros(1)
    while device.core.dropped:
        await device.fill(x, 0)
    await settled(device)


@on_shared
async def test_events(device: Device) -> None:
    numbers = []
    for _ in range(3):
        event, other = device.event(), device.event()
        await event.record("memory")
        await other.record("memory")
        await event.record("memory")
        assert await event.elapsed(other) <= 0
        numbers += [event._number, other._number]
        assert await has_event(device, event._number)
        del event, other
    await told(device)
    assert not [number for number in numbers if await has_event(device, number)]


@on_shared
async def test_an_event_stays_while_it_is_measured(device: Device) -> None:
    event, end = device.event(), device.event()
    await event.record("memory")
    await end.record("memory")
    await event.wait()
    await end.wait()
    numbers = event._number, end._number
    with trio.CancelScope() as scope:
        scope.cancel()
        await event.elapsed(end)
    del event, end
    await told(device)
    assert not [number for number in numbers if await has_event(device, number)]


@on_shared
async def test_kernels(device: Device) -> None:
    numbers = []
    for _ in range(3):
        kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
        async with trio.open_nursery() as nursery:  # each finds that it is not loaded
            for _ in range(3):
                nursery.start_soon(kernel.launch, 1, 1)
        numbers.append(kernel.resident.number)
        await told(device)
        assert await has_kernel(device, numbers[-1])
        await kernel.launch(1, 1)
        del kernel
    await told(device)
    assert not [number for number in numbers if await has_kernel(device, number)]


@on_shared
async def test_a_kernel_that_is_loaded_in_a_batch_stays_for_all(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
    number = kernel.resident.number
    async with device.batch() as batch:
        batch.launch(kernel, 1, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.launch, 1, 1)
    del batch
    await told(device)
    await kernel.launch(1, 1)
    with pytest.raises(RuntimeError, match="given up"):
        async with device.batch() as batch:
            batch.launch(kernel, 1, 1)
            raise RuntimeError("given up")
    del batch
    await told(device)
    await kernel.launch(1, 1)
    del kernel
    await told(device)
    assert not await has_kernel(device, number)


@on_shared
async def test_a_kernel_is_loaded_once(device: Device) -> None:
    """By whatever launches it first; what a batch has asked for counts once it has not failed."""
    kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
    core = device.core
    loads: list[str] = []

    def submit(port: Any, name: str, message: Message, *blocks: Any) -> Any:
        if isinstance(message, Load):
            loads.append(name)
        return type(core).submit(core, port, name, message, *blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "submit", submit)
        with pytest.raises(RuntimeError, match="given up"):
            async with device.batch() as batch:
                batch.launch(kernel, 1, 1)
                batch.using(kernel).launch(1, 1)
                assert len(loads) == 1
                raise RuntimeError("given up")
        async with device.batch() as batch:
            batch.launch(kernel, 1, 1)
            batch.launch(kernel, 1, 1)
            assert len(loads) == 2
            await kernel.launch(1, 1)  # whether the batch's is good is not known yet
            assert len(loads) == 3
        await kernel.launch(1, 1)
        async with device.batch() as batch:
            batch.using(kernel).launch(1, 1)
        async with device.record() as recorded:  # has executors of its own
            recorded.launch(kernel, 1, 1)
            recorded.using(kernel).launch(1, 1)
        assert len(recorded._prepare) == 1
        await recorded.replay()
        await kernel.launch(1, 1)
    assert len(loads) == 3


@on_shared
async def test_a_batchs_load_is_good_for_what_comes_after_it(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
    async with device.batch() as batch:
        batch.launch(kernel, 1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(kernel.resident), "_load", None)
        await kernel.launch(1, 1)
        async with device.batch() as batch:
            batch.launch(kernel, 1, 1)


@on_shared
async def test_a_load_that_fails_in_a_batch_does_not_count(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
    image = kernel.resident._image
    kernel.resident._image = b"no kernel"
    with pytest.raises(ExceptionGroup):  # the load, and the launch that finds nothing
        async with device.batch() as batch:
            batch.launch(kernel, 1, 1)
    kernel.resident._image = image
    await kernel.launch(1, 1)


@on_shared
async def test_a_kernel_stays_while_it_runs(device: Device, gate: Gate) -> None:
    """Its caller is gone, and so is the handle."""
    hold = await gate.kernel(device)
    cells = await device.zeros(1, np.float32)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(trio.testing.wait_all_tasks_blocked)
            nursery.start_soon(_cancel_when_blocked, scope)
            await hold(cells)
        del hold
        collect_garbage()
        await device.zeros(1)
        await device.fill(await device.zeros(1), 0)
        assert not device.core.dropped
        gate.open()
    await settled(device)
    assert device.core.dropped
    await told(device)
    assert (await device.get(cells)).tolist() == [1]


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


@on_shared
async def test_recordings_and_what_they_have_prepared(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
    await kernel.launch(1, 1)
    number = kernel.resident.number
    recordings = []
    for _ in range(2):
        async with device.record() as recorded:
            recorded.launch(kernel, 1, 1)
        await recorded.replay()
        recordings.append(recorded)
    async with device.record() as outer:
        outer.call(recordings[0])
    await outer.replay()
    numbers = [made.number for made in (*recordings, outer)]
    del kernel, recorded
    await told(device)
    assert not await has_kernel(device, number)
    while recordings:
        assert await has_kernel_for_recordings(device, number)
        recordings.pop()
        await told(device)
        await outer.replay()
    assert [await has_recording(device, made) for made in numbers] == [True, False, True]
    del outer
    await told(device)
    assert not [made for made in numbers if await has_recording(device, made)]
    assert not await has_kernel_for_recordings(device, number)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    steps=st.lists(
        st.sampled_from(["event", "kernel", "recording"])
        | st.tuples(st.integers(0, 99), st.booleans()),
        max_size=16,
    )
)
@on_shared
async def test_whatever_is_dropped_when(
    device: Device, steps: list[str | tuple[int, bool]]
) -> None:
    """Objects with a handle work; nothing else is left."""
    made: list[tuple[Any, Any]] = []  # handles, and what asks the host for what they stand for

    async def make(kind: str) -> None:
        if kind == "event":
            event = device.event()
            await event.record("kernels")
            made.append((event, (has_event, event._number)))
            return
        kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
        if kind == "kernel":
            await kernel.launch(1, 1)
            made.append((kernel, (has_kernel, kernel.resident.number)))
            return
        async with device.record() as recorded:
            recorded.launch(kernel, 1, 1)
        await recorded.replay()
        made.append((recorded, (has_recording, recorded.number)))

    await make("kernel")
    await make("recording")
    gone = []
    for step in steps:
        if isinstance(step, str):
            await make(step)
        elif made:
            index, elsewhere = step
            handle, ask = made.pop(index % len(made))
            gone.append(ask)
            held = [handle]
            del handle
            if elsewhere:
                thread = threading.Thread(target=held.clear)
                thread.start()
                thread.join()
            held.clear()
    await told(device)
    assert [ask for ask in gone if await ask[0](device, ask[1])] == []
    for handle, (has, number) in made:
        assert await has(device, number)
        if has is has_event:
            await handle.wait()
        else:
            await (handle.launch(1, 1) if has is has_kernel else handle.replay())
    made.clear()
    handle = None
    await told(device)


@on_shared
async def test_much_that_goes_at_once_does_not_hold_up_the_next_op(device: Device) -> None:
    events = [device.event() for _ in range(300)]
    for event in events:
        await event.record("memory")
    await events[-1].wait()
    x = await device.zeros(1)
    del event
    events.clear()
    await settled(device)
    assert len(device.core.dropped) == 300
    before = device.statistics().in_flight
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.fill, x, 0)
        await trio.lowlevel.checkpoint()
        assert device.statistics().in_flight <= before + 8
    await told(device)


async def test_objects_of_a_dead_host_are_forgotten() -> None:
    async with opened(isolation="process") as device:
        kernel = await device.nvrtc.compile(SOURCE, "nothing", cpu=nothing)
        await kernel.launch(1, 1)
        event = device.event()
        await event.record("kernels")
        await event.wait()
        await kill_host(device)
        await kernel.launch(1, 1)
        number = kernel.resident.number
        await told(device)  # that it was loaded in the generation before is nothing to release
        assert await has_kernel(device, number)
        del event, kernel
        await told(device)
        assert not await has_kernel(device, number)
