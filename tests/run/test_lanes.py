"""Lanes of functions: their costs, and how they end."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, DeviceLost, KernelHung, open_system
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host
from atomr_accel.wire import Failure

from ..harness import BACKEND, Gate, cancelled_at, cpu_only, on_shared, opened, settled

pytestmark = cpu_only


def lanes_of(device: Device) -> set[str]:
    return {lane.name for lane in device.statistics().lanes}


def counter() -> tuple[Callable[[], Any], Callable[[Any], int]]:
    def make() -> list[int]:
        return [0]

    def count(state: list[int]) -> int:
        state[0] += 1
        return state[0]

    return make, count


def cost_of_host() -> tuple[int, int]:
    import threading

    return len([*Path("/proc/self/fd").iterdir()]), threading.active_count()


# --- closing ------------------------------------------------------------------------------------


async def test_a_lane_whose_first_caller_was_cancelled_can_be_closed(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        before = lanes_of(device)
        for step in range(1, 8):
            name = f"new-{step}"
            await cancelled_at(step, lambda name=name: device.run(len, b"", lane=name))  # type: ignore[misc]
            await device.close_lane(name)
        await device.run(len, b"", lane="last")  # whatever was being opened is open by now
        await device.close_lane("last")
        assert lanes_of(device) - {"results"} == before


@pytest.mark.slow
async def test_a_closed_lane_leaves_nothing_behind(isolation: Isolation) -> None:
    make, count = counter()
    async with opened(isolation=isolation) as device:
        before = await device.run(cost_of_host)
        lanes = lanes_of(device)
        for number in range(5):
            assert await device.run(count, lane=f"job-{number}", init=make) == 1
            assert f"run.job-{number}" in lanes_of(device)
        during = await device.run(cost_of_host)
        assert during[0] >= before[0] + 5 * 3
        for number in range(5):
            await device.close_lane(f"job-{number}")
        assert lanes_of(device) == lanes
        while (after := await device.run(cost_of_host)) != before:
            assert after[0] >= before[0]  # the last threads may be about to end
        # Their names are free again, and their states are gone.
        assert await device.run(count, lane="job-1", init=make) == 1
        assert await device.run(count, lane="job-1", init=make) == 2


async def test_a_lane_whose_function_has_forked_is_closed_at_once(gate: Gate) -> None:
    """The child has copies of all that the host has open, its sockets among them."""
    path = str(gate.path)

    def fork() -> int:
        import multiprocessing

        def wait() -> None:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (it travels by value)
                file.read(1)

        child = multiprocessing.get_context("fork").Process(target=wait, daemon=True)
        child.start()
        assert child.pid is not None
        return child.pid

    async with opened() as device:
        pid = await device.run(fork, lane="forks")
        await device.close_lane("forks")
        os.kill(pid, 0)  # the child is still there
        gate.open()


async def test_closed_lanes_are_not_opened_in_a_rebuild() -> None:
    async with opened() as device:
        for name in ("a", "b"):
            await device.run(len, "x", lane=name)
        await device.close_lane("a")
        await kill_host(device)
        assert await device.run(len, "x", lane="b") == 1
        assert {"run.b"} == {name for name in lanes_of(device) if name.startswith("run")}
        assert await device.run(len, "xy", lane="a") == 2


async def test_closing_waits_for_calls_and_calls_for_closing(
    gate: Gate, isolation: Isolation
) -> None:
    path = str(gate.path)
    make, count = counter()

    def wait(state: list[int]) -> int:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (it travels by value)
            file.read(1)
        state[0] += 1
        return state[0]

    async with opened(isolation=isolation) as device, trio.open_nursery() as nursery:
        order: list[str] = []

        async def note(name: str, function: Callable[[], Any]) -> None:
            order.append(f"{name} {await function()}")

        run = partial(device.run, lane="one", init=make)
        nursery.start_soon(note, "slow", partial(run, wait))
        await trio.testing.wait_all_tasks_blocked()
        for name in ("closed", "closed"):
            nursery.start_soon(note, name, partial(device.close_lane, "one"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(note, "new", partial(run, count))
        await trio.testing.wait_all_tasks_blocked()
        assert not order
        gate.open()
    assert order[0] == "slow 1"
    assert sorted(order[1:]) == ["closed None", "closed None", "new 1"]


@on_shared
async def test_closing_can_be_cancelled_at_any_point(device: Device) -> None:
    make, count = counter()
    step = 1
    while True:
        assert await device.run(count, lane="c", init=make) == 1
        going = await cancelled_at(step, lambda: device.close_lane("c"))
        # It happened, or nothing has changed, and closing again ends it.
        await device.close_lane("c")
        assert "run.c" not in lanes_of(device)
        if not going:
            break
        step += 1
    assert step > 2
    await device.close_lane("c")
    await device.close_lane("never opened")
    with pytest.raises(TypeError, match="lane must be a name"):
        await device.close_lane(5)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_host_that_dies_while_a_lane_is_closed() -> None:
    make, count = counter()
    async with opened(max_restarts=9) as device:
        for _ in range(3):
            assert await device.run(count, lane="x", init=make) == 1
            os.kill(device.statistics().host_pid or 0, 9)
            try:
                await device.close_lane("x")
            except ContextPoisoned:
                await device.close_lane("x")
            assert await device.run(count, lane="x", init=make) == 1
            await device.close_lane("x")
        await settled(device)
        assert not [name for name in device.core.lanes if name == "run.x"]


@on_shared
async def test_ops_that_depend_on_a_closed_lane_continue(device: Device) -> None:
    def add(x: Any) -> None:
        x += 1

    ref = await device.zeros(4)
    for _ in range(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(device.run, add, ref, lane="p"))
            nursery.start_soon(device.close_lane, "p")
            nursery.start_soon(device.run, add, ref)
        await device.close_lane("p")
    assert (await device.get(ref) == 20).all()


# --- deadlines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1.0, 20.0])
def test_time_in_which_nobody_has_looked_is_not_an_ops(gate: Gate, step: float) -> None:
    path = str(gate.path)

    def wait() -> str:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (it travels by value)
            file.read(1)
        return "fine"

    async def main() -> None:
        async with opened(op_deadline=8.0) as device, trio.open_nursery() as nursery:

            async def call() -> None:
                try:
                    answers.append(await device.run(wait))
                except KernelHung:
                    answers.append("hung")

            await device.run(len, "the lane is open")
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3 if step > 8 else 12):  # the program is stopped, and goes on; or runs
                clock.jump(step)
                await trio.testing.wait_all_tasks_blocked()
            gate.open()

    answers: list[str] = []
    clock = trio.testing.MockClock()
    trio.run(main, clock=clock)
    assert answers == ["fine" if step > 8 else "hung"]


# --- hosts that do not keep to the protocol -----------------------------------------------------


def forge(data: bytes) -> None:
    """Write to every socket of this host but the one of this lane."""
    import threading

    own = threading.current_thread().name
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as sock:
                    sock.send(data, socket.MSG_DONTWAIT)
        except OSError:
            pass
    assert own


def frame(payload: object) -> bytes:
    data = msgspec.msgpack.encode(payload)
    return struct.pack("<I", len(data)) + data


FORGED = {
    "unknown": frame([987654]),
    "no msgpack": struct.pack("<I", 2) + b"\xc1\xc1",
    "4 GiB": struct.pack("<I", 0xFFFFFFFF) + b"x" * 1000,
    "code": frame(Failure(1, "eval", "1", {}, "")),
    "nests": struct.pack("<I", 50_000) + b"\x91" * 50_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED.keys())
async def test_a_host_that_breaks_the_protocol_is_replaced(data: bytes) -> None:
    async with opened() as device:
        x = await device.put(np.ones(3))
        with pytest.raises(ContextPoisoned, match="broke the protocol") as caught:
            await device.run(forge, data, lane="forger")
            await trio.sleep_forever()
        assert caught.value.status_name == "protocol violation"
        assert x.is_stale
        assert (await device.get(await device.put(np.ones(3))) == 1).all()
        assert device.generation == 2


async def test_abandoned_close_of_a_lane_is_finished_by_the_next_caller(gate: Gate) -> None:
    path = str(gate.path)

    def wait() -> None:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (it travels by value)
            file.read(1)

    async with opened(isolation="thread") as device, trio.open_nursery() as nursery:
        await device.run(len, "x", lane="one")
        nursery.start_soon(partial(device.run, wait, lane="one"))
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def give_up() -> None:
            with scope:
                await device.close_lane("one")

        async def close() -> None:
            await device.close_lane("one")
            assert "run.one" not in lanes_of(device)

        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert "run.one" in lanes_of(device)
        gate.open()


async def test_lane_request_at_the_end_of_a_context_raises_its_cause() -> None:
    """The lane takes no more tasks, and its end is not known yet."""
    async with open_system("demo") as system:
        device = await system.spawn_device(0, backend=BACKEND)
        context: Any = device.core.context
        async with trio.open_nursery() as over:
            pass
        context._nursery = over
        told: list[DeviceLost] = []

        async def ask() -> None:
            with pytest.raises(DeviceLost) as info:
                await device.run(len, "x", lane="one")
            told.append(info.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await device.ref.stop()
        assert len(told) == 2
