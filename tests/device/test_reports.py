"""Reports of faults name the right op, next to any others."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    FaultReport,
    GpuRefStale,
    KernelHung,
    ReportedNode,
    traceparent,
)
from atomr_accel.testing import hang, kill_host, poison

from .. import seeds
from ..harness import Gate, cpu_only, opened, sized
from .faulty import DEATHS, TELLING, exits, is_harmless, is_killed, is_sticky

pytestmark = cpu_only

OFTEN: Final = 10**6

SOURCE: Final = 'extern "C" __global__ void {name}(float* x) {{}}'

TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def in_kernel(device: Device, death: Any, chance: np.random.Generator) -> tuple[str, Any]:
    kernel = await device.nvrtc.compile(SOURCE.format(name="deadly"), "deadly", cpu=death)
    x = await device.zeros(4, np.float32)
    return "kernel deadly", partial(kernel.launch, 1, 1, x)


async def in_function(device: Device, death: Any, chance: np.random.Generator) -> tuple[str, Any]:
    lane = f"lane {chance.integers(2)}"
    x = await device.zeros(4, np.float32)
    return f"run {death.__name__}", partial(device.run, death, x, lane=lane)


async def in_batch(device: Device, death: Any, chance: np.random.Generator) -> tuple[str, Any]:
    name, _ = await in_kernel(device, death, chance)
    kernel = await device.nvrtc.compile(SOURCE.format(name="deadly"), "deadly", cpu=death)
    x = await device.put(np.eye(4, dtype="f4"))
    place = chance.integers(6)

    async def run() -> None:
        async with device.batch() as batch:
            for number in range(6):
                if number == place:
                    batch.launch(kernel, 1, 1, x)
                batch.blas.gemm(x, x)

    return name, run


async def in_library(device: Device, death: Any, chance: np.random.Generator) -> tuple[str, Any]:
    """Have an op of a library read out of bounds."""
    x = await device.put(np.ones(4, "f4"))
    at = await device.put(np.array([1, 2**20], "i4"))
    return "sparse.gather", partial(device.sparse.gather, x, at)


async def in_recording(device: Device, death: Any, chance: np.random.Generator) -> tuple[str, Any]:
    kernel = await device.nvrtc.compile(SOURCE.format(name="deadly"), "deadly", cpu=death)
    x = await device.put(np.ones(4, "f4"))
    place = chance.integers(6)
    async with device.record(x) as inner:
        inner.blas.scal(2.0, x)
        inner.launch(kernel, 1, 1, x)
    async with device.record(x) as recording:
        for number in range(6):
            if number == place:
                if place % 2:
                    recording.call(inner, x)
                else:
                    recording.launch(kernel, 1, 1, x)
            recording.blas.scal(2.0, x)

    async def run() -> None:
        await recording.replay(x)

    run.number = place + 1 + place % 2  # type: ignore[attr-defined]
    run.steps = 7 + place % 2  # type: ignore[attr-defined]
    return "recording.replay", run


async def busy(device: Device) -> None:
    while True:
        with suppress(ContextPoisoned, GpuRefStale):
            x = await device.put(np.eye(8))
            for _ in range(50):
                await device.blas.gemm(x, x)


@pytest.mark.slow
async def test_the_right_op_is_named_every_time() -> None:
    """Whatever ends the host, and wherever, next to other ops."""
    chance = seeds.rng()
    async with opened(max_restarts=OFTEN) as device, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(busy, device)
        for _ in range(sized(8, 100)):
            how = str(chance.choice([*DEATHS]))
            places = [in_kernel, in_function, in_batch, in_library, in_recording]
            place = places[chance.integers(len(places))]
            name, run = await place(device, DEATHS[how], chance)
            with pytest.raises(ContextPoisoned) as info:
                await run()
            report = info.value.report
            assert report is not None, (how, place)
            assert report.op is not None, (how, place)
            assert (report.op.name, report.generation) == (name, device.generation - 1), how
            assert report.certain == (how in TELLING or place is in_library)
            if place is in_recording:
                assert report.node is not None
                told = report.node.name, report.node.number, report.node.steps
                assert told == ("kernel deadly", run.number, run.steps)
            else:
                assert report.node is None
            assert report == FaultReport.from_json(report.to_json())
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_kernel_that_ends_its_host_is_named_beside_a_function(gate: Gate) -> None:
    """A function came before it, runs for longer, and is innocent."""
    async with opened() as device:
        x, y = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
        kernel = await device.nvrtc.compile(SOURCE.format(name="deadly"), "deadly", cpu=exits)
        await device.run(is_harmless, x)  # the lane is open

        async def other() -> None:
            with pytest.raises(ContextPoisoned) as info:
                await device.run(partial(_waits, str(gate.path)), x)
            assert not info.value.culprit
            assert info.value.op == "kernel deadly"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ContextPoisoned) as info:
                await kernel.launch(1, 1, y)
        assert info.value.culprit
        assert info.value.report is not None
        assert [op.name for op in info.value.report.in_flight] == ["run partial", "kernel deadly"]


def _waits(path: str, _x: object) -> None:
    with Path(path).open("rb") as file:
        file.read(1)


async def test_a_report_has_op_task_request_buffers_and_the_ops_before() -> None:
    with pytest.raises(DeviceLost):
        async with opened(isolation="thread", max_restarts=OFTEN) as device:
            x = await device.put(np.eye(4, dtype="f4"), sealed=False)
            kernel = await device.nvrtc.compile(SOURCE.format(name="bad"), "bad", cpu=is_sticky)
            token = traceparent.set(TRACE)
            try:
                with pytest.raises(ContextPoisoned) as info:
                    await kernel.launch(1, 1, x)
            finally:
                traceparent.reset(token)
            report = info.value.report
            assert report is not None
            assert report.op is not None
            assert (report.op.name, report.op.lane, report.op.call) == (
                "kernel bad",
                "kernels",
                "LaunchKernel",
            )
            assert report.op.request == TRACE
            assert report.op.task == trio.lowlevel.current_task().name
            assert (report.device, report.generation, report.status) == (device.name, 1, 700)
            [buffer] = report.buffers
            assert (buffer.role, buffer.nbytes, buffer.owner) == ("writes", 64, device.name)
            assert buffer.address == x.block.address
            assert report.before[-1].name == "load bad"
            assert [op.seq for op in report.before] == sorted(op.seq for op in report.before)
            assert (report.in_flight_count, report.certain) == (1, True)
            said = str(report)
            for part in ("kernel bad", "64 bytes", "load bad", TRACE, "CUDA_ERROR_ILLEGAL_ADDRESS"):
                assert part in said
            with pytest.raises(DeviceLost) as lost:
                await device.put(1.0)
            assert lost.value.report is report


async def test_a_fault_in_a_recording_names_the_op_in_threads() -> None:
    with pytest.raises(DeviceLost) as info:
        async with opened(isolation="thread") as device:
            kernel = await device.nvrtc.compile(SOURCE.format(name="bad"), "bad", cpu=is_sticky)
            x = await device.put(np.ones(4, "f4"))
            async with device.record(x) as recording:
                recording.blas.scal(2.0, x)
                recording.launch(kernel, 1, 1, x)
            with suppress(ContextPoisoned):
                await recording.replay(x)
            await device.put(1.0)
    assert info.value.report is not None
    node = info.value.report.node
    assert node == ReportedNode(node.recording, 2, "kernel bad", 2)  # type: ignore[union-attr]


@pytest.mark.slow
async def test_a_fault_is_in_the_log_as_json(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device:
        with caplog.at_level(logging.WARNING, "atomr_accel"):
            error = await poison(device)
            await device.put(1.0)
        [record] = [each for each in caplog.records if hasattr(each, "report")]
        assert error.report is not None
        assert json.loads(record.report) == json.loads(error.report.to_json())


@pytest.mark.slow
async def test_a_host_that_is_killed_while_idle_has_no_op() -> None:
    async with opened() as device:
        await device.get(await device.zeros(4))
        await kill_host(device)
        report = device.core.lifecycle.last_fault.report  # type: ignore[union-attr]
        assert report is not None
        assert (report.op, report.certain, report.buffers) == (None, False, ())
        assert "no op was in flight" in str(report)
        assert [op.name for op in report.before][-1:] == ["get"]


@pytest.mark.slow
async def test_a_child_that_a_function_forks_is_not_the_host() -> None:
    """Its end says nothing about the host, which is killed later by something else."""
    async with opened() as device:
        x = await device.zeros(4, np.float32)
        assert await device.run(_forks, x) == 5
        with pytest.raises(ContextPoisoned) as info:
            await device.run(is_killed, x)
        assert info.value.report is not None
        assert not info.value.report.certain
        assert info.value.op == "run is_killed"


def _forks(_x: object) -> int:
    child = os.fork()
    if not child:
        os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- one request of many ------------------------------------------------------------------


@pytest.mark.slow
async def test_a_hang_fails_only_the_request_that_hangs() -> None:
    """The others went down with it, and are repeated."""
    calls = 0

    async def hangs(device: Device) -> None:
        nonlocal calls
        calls += 1
        await hang(device)

    async def answers(device: Device) -> float:
        total = 0.0
        for _ in range(40):
            x = await device.put(np.eye(4))
            total += (await device.get(await device.blas.gemm(x, x))).sum()
            await trio.sleep(0.01)
        return total

    async with opened(op_deadline=0.3, max_restarts=OFTEN) as device:

        async def innocent() -> None:
            assert await device.retry(answers, device) == 160

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(innocent)
            with pytest.raises(KernelHung) as info:
                await device.retry(hangs, device)
        assert (calls, info.value.culprit, device.generation) == (1, True, 2)
