"""Lanes: a window of ops, no lane in another's way, a watchdog, and strategies that agree."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, KernelHung
from atomr_accel.host._lane import Lane
from atomr_accel.host._launcher import Launcher
from atomr_accel.host.completion import BlockingCompletion
from atomr_accel.lanes import LaneStatistics
from atomr_accel.memory import LateAddress
from atomr_accel.testing import lane_delays, poison
from atomr_accel.wire import Fill

from ..fakes.lanes import new_record
from ..harness import ON_CUDA, Gate, on_shared, opened, settled
from .programs import ADD, KINDS, Run, add, adder
from .running import compiled

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

WINDOW: Final = 1024


def lane(device: Device, name: str) -> LaneStatistics:
    return next(lane for lane in device.statistics().lanes if lane.name == name)


# --- back-pressure -------------------------------------------------------------------------


@on_shared
async def test_a_host_has_so_many_ops_at_a_time_and_the_rest_can_be_withdrawn(
    device: Device, gate: Gate
) -> None:
    hold, kernel = await gate.kernel(device), await adder(device)
    both = await device.zeros(5, np.float32)
    x, cells = both[:4], both[4:]  # of one buffer, or the launches would overtake what holds
    await kernel.launch(1, 4, x, 0.0)
    gate.open()
    await hold(cells)
    scope = trio.CancelScope()
    count = WINDOW + 200

    async def launch(value: float) -> None:
        await kernel.launch(1, 4, x, value)

    async def cancelled() -> None:
        with scope:
            await launch(1000.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, cells)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(count):
            nursery.start_soon(launch, 1.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await trio.testing.wait_all_tasks_blocked()
        found = lane(device, "kernels")
        assert found.in_flight == count + 2
        assert found.queued >= found.in_flight - WINDOW
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert lane(device, "kernels").in_flight == count + 2  # its place is kept
        # Another lane has a window of its own.
        assert (await device.get(await device.put(np.arange(3)))).tolist() == [0, 1, 2]
        gate.open()
    await settled(device)
    assert lane(device, "kernels").queued == 0
    assert (await device.get(x)).tolist() == [count] * 4


@on_shared
async def test_a_batch_of_more_than_a_window(device: Device) -> None:
    kernel, x = await adder(device), await device.zeros(4, np.float32)
    async with device.batch() as batch:
        for _ in range(2 * WINDOW + 100):
            batch.launch(kernel, 1, 4, x, 1.0)
    assert (await device.get(x)).tolist() == [2 * WINDOW + 100] * 4
    found = lane(device, "kernels")
    assert found.submitted == found.completed + found.failed


@on_shared
async def test_unencodable_op_fails_and_keeps_its_place(device: Device) -> None:
    core, x = device.core, await device.full(4, 2.0)
    nowhere = Fill(LateAddress(core.memory.promise()), 8, bytes(8))  # type: ignore[arg-type]
    before = lane(device, "memory").failed
    op = core.submit(core.ports["memory"], "fill", nowhere, (), (x.block,))
    after: list[list[float]] = []

    async def get() -> None:
        after.append((await device.get(x)).tolist())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        with pytest.raises(RuntimeError, match="no memory yet"):
            await op.wait()
    assert after == [[2.0] * 4]
    assert lane(device, "memory").failed >= before


# --- fairness ------------------------------------------------------------------------------


async def test_a_slow_compiler_delays_only_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(
        f"atomr_accel.libraries.nvrtc.host._{'cuda' if ON_CUDA else 'cpu'}"
    )
    find_module, entered, go_on = module.find_module, threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        entered.set()
        go_on.wait()
        return find_module(*args)

    async with opened(isolation="thread") as device:
        kernel, x = await adder(device), await device.zeros(4, np.float32)
        await kernel.launch(1, 4, x, 0.0)
        monkeypatch.setattr(module, "find_module", slow)
        done: list[str] = []
        try:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def late() -> None:
                    await (await device.nvrtc.compile(ADD, "add", cpu=add)).launch(1, 4, x, 5.0)
                    done.append("compiled")

                await trio.to_thread.run_sync(entered.wait)
                await kernel.launch(1, 4, x, 1.0)
                a = await device.put(np.eye(2, dtype=np.float32))
                await device.get(await device.blas.gemm(a, a))
                assert (await device.get(x)).tolist() == [1] * 4
                assert done == []
                go_on.set()
        finally:
            go_on.set()
        assert done == ["compiled"]
        assert (await device.get(x)).tolist() == [6] * 4


@on_shared
async def test_ops_that_wait_for_another_lane_let_others_pass(device: Device, gate: Gate) -> None:
    hold = await gate.kernel(device)
    held, a = await device.zeros((1, 1), np.float32), await device.put(np.eye(2, dtype=np.float32))
    gate.open()
    await hold(held)
    await device.blas.gemm(a, a)
    done: list[str] = []

    async def note(name: str, call: Callable[[], Awaitable[object]]) -> None:
        await call()
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note, "hold", lambda: hold(held))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(note, "dependent", lambda: device.blas.gemm(held, held))
        nursery.start_soon(note, "get", lambda: device.get(held))
        await trio.testing.wait_all_tasks_blocked()
        if ON_CUDA:  # where all copies share a stream, so what comes after this get is behind it
            gate.open()
        for _ in range(20):
            await device.get(await device.blas.gemm(a, a))
        if not ON_CUDA:
            assert done == []
            gate.open()
    assert sorted(done) == ["dependent", "get", "hold"]


# --- the watchdog --------------------------------------------------------------------------

HANG: Final = """
    extern "C" __global__ void hang(volatile float* x) { while (x[0] == 0) __nanosleep(1000); }
"""


def hanging_for_ever(_x: object) -> None:
    time.sleep(3600)  # in a host process, which is killed


@pytest.mark.slow
async def test_a_hung_kernel_is_told_and_survived() -> None:
    async with opened(isolation="process", op_deadline=1.0) as device:
        sealed = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        plain = await device.put(np.eye(2, dtype=np.float32))
        await device.blas.gemm(plain, plain)
        kernel, x = await adder(device), await device.zeros(4, np.float32)
        await kernel.launch(1, 4, x, 0.0)  # it is loaded
        hanging = await device.nvrtc.compile(HANG, "hang", cpu=hanging_for_ever)
        other: list[ContextPoisoned] = []

        def submitted() -> int:
            return sum(e.submitted for e in device.statistics().lanes if e.name == "kernels")

        before = submitted()

        async def also_waits() -> None:
            while submitted() < before + 2:  # the other is loaded, and launched
                await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(KernelHung) as error:
                await kernel.launch(1, 4, x, 1.0)
            other.append(error.value)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(also_waits)
            with pytest.raises(KernelHung) as info:
                await hanging.launch(1, 1, x)
        assert trio.current_time() - began >= 1
        assert other[0].__cause__ is info.value.__cause__
        assert (info.value.op, info.value.generation) == ("kernel hang", 1)
        assert plain.is_stale
        square = await device.blas.gemm(sealed, sealed)
        assert np.array_equal(await device.get(square), np.eye(2))
        assert device.statistics().faults == 1
        await settled(device)


@pytest.mark.slow
@pytest.mark.parametrize("completion", ["hybrid", "polled", "blocking", "callback"])
async def test_long_queues_are_no_hung_ops(completion: Any) -> None:
    """Only the op at the head counts, and only from when it got there."""
    async with opened(isolation="process", op_deadline=0.3, completion=completion) as device:
        kernel = await device.nvrtc.compile(*_NAP, cpu=_nap)
        async with device.batch() as batch:
            for _ in range(12):
                batch.launch(kernel, 1, 1, 50_000)
        assert device.generation == 1


_NAP: Final = (
    """
    extern "C" __global__ void nap(int microseconds) {
        long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin) :: "memory");
        do {
            __nanosleep(1000);
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
        } while (now - begin < microseconds * 1000LL);
    }
    """,
    "nap",
)


def _nap(microseconds: Any) -> None:
    time.sleep(microseconds * 1e-6)


# --- strategies ----------------------------------------------------------------------------

STRATEGIES: Final[list[dict[str, Any]]] = [
    {"streams": "single"},
    {"streams": "pooled", "stream_pool": 2},
    {"streams": "per_actor", "priorities": {"blas": -1, "memory": 0}},
    {"completion": "polled"},
    {"completion": "blocking"},
    {"completion": "hybrid"},
    {"completion": "callback"},
    {"streams": "single", "completion": "callback"},
]


@pytest.mark.parametrize("options", STRATEGIES, ids=repr)
async def test_all_strategies_give_the_same_results(options: dict[str, Any]) -> None:
    with lane_delays(100):
        async with opened(isolation="process", **options) as device:
            kernel = await compiled(device)
            for seed in range(3):
                ops = [(kind, seed * 100 + at) for at, kind in enumerate(KINDS * 3)]
                await Run(device, kernel).run(ops)


@pytest.mark.parametrize("completion", ["polled", "blocking", "hybrid", "callback"])
async def test_all_completion_strategies_see_faults(completion: Any) -> None:
    async with opened(isolation="process", completion=completion) as device:
        sealed = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        fault = await poison(device)
        assert (fault.status, fault.op) == (700, "kernel fault")
        assert np.array_equal(await device.get(await device.blas.gemm(sealed, sealed)), np.eye(2))


@pytest.mark.parametrize(
    "options",
    [
        {"streams": "many"},
        {"completion": "magic"},
        {"stream_pool": 0},
        {"op_deadline": 0},
        {"op_deadline": 1, "isolation": "thread"},
        {"isolation": "hope"},
    ],
    ids=repr,
)
async def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        async with opened(**options):
            pass


def test_delays_are_asked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOMR_LANE_DELAY", raising=False)
    with lane_delays(5, seed=2):
        assert os.environ["ATOMR_LANE_DELAY"] == "2:5"
        with lane_delays(0):
            assert os.environ["ATOMR_LANE_DELAY"] == "0:0"
        assert os.environ["ATOMR_LANE_DELAY"] == "2:5"
    assert "ATOMR_LANE_DELAY" not in os.environ
    with (
        pytest.raises(
            ValueError, match="microseconds must be a whole number of at least 0, not -1"
        ),
        lane_delays(-1),
    ):
        pass


def test_a_registration_between_two_looks_is_not_lost() -> None:
    """A lane that starts to watch another while that one is waking those who watch it."""
    pairs = [socket.socketpair(), socket.socketpair()]
    lanes: dict[int, Lane] = {}
    launchers = [
        Launcher(BlockingCompletion(), idle_spin=False, record=new_record()) for _ in pairs
    ]
    watched, watcher = (
        Lane(index, pair[1], lanes, launchers[index]) for index, pair in enumerate(pairs)
    )
    lanes.update({0: watched, 1: watcher})

    class Interleaved(type(watched._watchers)):  # type: ignore[misc]
        """The other thread wakes those it knows between the look-up and the registration."""

        def add(self, launcher: Launcher) -> None:
            watched._notify()
            super().add(launcher)

    watched._watchers = Interleaved()
    assert not watcher._ready(((0, 7),))
    watched._seen = 7
    watched._notify()
    assert launchers[1]._poll(0)  # it is woken, or it would never look again
    assert watcher._ready(((0, 7),))
    for pair in pairs:
        for end in pair:
            end.close()
    for launcher in launchers:
        launcher.close()
