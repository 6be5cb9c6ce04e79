"""``open_device``: what there is to open, what there is not, and the end."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import CpuFallbackWarning, DeviceLost, DeviceUnavailable, open_device
from atomr_accel.backends import cpu, cuda
from atomr_accel.lanes import Isolation
from atomr_accel.wire import DeviceInfo

from ..harness import BACKEND, ON_CUDA, cpu_only, opened

no_gpu = pytest.mark.skipif(cuda.why_absent() is None, reason="there is a GPU here")


async def test_a_device_says_what_it_is(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        assert re.fullmatch(rf"{BACKEND}:0( \(\d+\))?", device.name)
        assert (device.backend, device.isolation) == (BACKEND, isolation)
        assert device.generation == 1
        assert repr(device) == f"<Device {device.name}, ready, generation 1>"
        assert isinstance(device.info, DeviceInfo)
        assert (device.info.backend, device.info.index) == (BACKEND, 0)
        assert device.info.name
        assert device.info.total_memory > 1 << 20
        statistics = device.statistics()
        assert (statistics.state, statistics.faults, statistics.last_fault) == ("ready", 0, None)
        assert (statistics.generation, statistics.in_flight) == (1, 0)
        assert statistics.memory.used == 0
        if isolation == "process":
            assert statistics.host_pid not in (None, os.getpid())
        else:
            assert statistics.host_pid is None


async def test_after_the_block_nothing_works_and_nothing_hangs(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        plain = await device.put(np.eye(2))
        sealed = await device.put(np.eye(2), sealed=True)
        kernel = await device.nvrtc.compile(
            'extern "C" __global__ void nothing() {}', "nothing", cpu=lambda: None
        )
    assert repr(device) == f"<Device {device.name}, lost, generation 2>"
    assert plain.is_stale
    for call in (
        lambda: device.put(np.eye(2)),
        lambda: device.get(sealed),
        lambda: device.zeros(3),
        lambda: device.free(sealed),
        lambda: device.blas.gemm(sealed, sealed),
        lambda: device.nvrtc.compile("", "x"),
        lambda: kernel.launch(1, 1),
    ):
        with pytest.raises(Exception) as info:  # noqa: PT011 (the one or the other)
            await call()
        assert info.type.__name__ in ("DeviceLost", "CompileError")
    with pytest.raises(DeviceLost, match="its 'async with' block was left"):
        await device.put(1.0)
    async with device.watch_generation() as changes:
        assert [generation async for generation in changes] == []
    assert device.statistics().state == "lost"


async def test_leaving_the_block_reports_waiting_calls(isolation: Isolation) -> None:
    """Tasks outside the block may still be using the device."""
    told = []

    async def watch(device: Any, *, task_status: trio.TaskStatus[None]) -> None:
        async with device.watch_generation() as changes:
            task_status.started()
            told.append([generation async for generation in changes])

    async def keep_busy(device: Any, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        with pytest.raises(DeviceLost):
            while True:
                await device.put(np.zeros(100))
        told.append([])

    async with trio.open_nursery() as nursery, opened(isolation=isolation) as device:
        await nursery.start(watch, device)
        await nursery.start(keep_busy, device)
        await nursery.start(keep_busy, device)
        await device.put(1.0)
    assert told == [[], [], []]


@pytest.mark.parametrize("index", [-1, 7777] if ON_CUDA else [-1])
async def test_a_device_that_is_not_there(isolation: Isolation, index: int) -> None:
    with pytest.raises(DeviceUnavailable, match=rf"there is no .*device {index}"):
        async with open_device(index, backend=BACKEND, isolation=isolation):
            pytest.fail("opened")


async def test_an_unknown_backend_and_isolation() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no backend 'tpu'; expected one of 'auto', 'c"):
        async with open_device(0, backend="tpu"):
            pytest.fail("opened")
    with pytest.raises(ValueError, match="isolation must be 'process' or 'thread', not 'fibre'"):
        async with open_device(0, backend="cpu", isolation="fibre"):  # type: ignore[arg-type]
            pytest.fail("opened")


@no_gpu
async def test_insisting_on_a_gpu_without_one() -> None:
    with pytest.raises(DeviceUnavailable, match=r"cuda:0 cannot be opened: .*/dev/nvidiactl"):
        async with open_device(0, backend="cuda"):
            pytest.fail("opened")


@no_gpu
async def test_auto_falls_back_to_the_cpu_and_says_so() -> None:
    with pytest.warns(
        CpuFallbackWarning, match=r"running on the CPU: .*no NVIDIA driver"
    ) as caught:
        async with open_device(0, isolation="thread") as device:
            assert device.backend == "cpu"
    assert caught[0].filename == __file__


CONTEXTS = """
import os
import re
from atomr_accel import DeviceUnavailable

def nothing(index, plan):
    raise DeviceUnavailable(f"there is nothing behind the driver for {index}")

def crash(index, plan):
    os._exit(3)
"""


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a host can import, with contexts that cannot be had."""
    (tmp_path / "contexts_for_tests.py").write_text(CONTEXTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "contexts_for_tests"


@cpu_only
async def test_a_driver_without_a_device_falls_back_too(
    monkeypatch: pytest.MonkeyPatch, contexts: str, isolation: Isolation
) -> None:
    """The driver's files are there, but the host finds no GPU behind them."""
    there = dataclasses.replace(
        cuda.BACKEND, context=f"{contexts}:nothing", why_absent=lambda: None
    )
    monkeypatch.setattr(cuda, "BACKEND", there)
    with pytest.warns(CpuFallbackWarning, match="nothing behind the driver for 0"):
        async with open_device(0, isolation=isolation) as device:
            assert device.backend == "cpu"


@cpu_only
async def test_a_host_that_dies_as_it_starts(
    monkeypatch: pytest.MonkeyPatch, contexts: str
) -> None:
    crashing = dataclasses.replace(cpu.BACKEND, context=f"{contexts}:crash")
    monkeypatch.setattr(cpu, "BACKEND", crashing)
    with pytest.raises(DeviceUnavailable, match="ended with exit code 3 while it started"):
        async with open_device(0, backend="cpu"):
            pytest.fail("opened")


async def test_an_error_in_the_block_leaves_it_as_it_is(isolation: Isolation) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as info:
        async with opened(isolation=isolation):
            raise error
    assert info.value is error


async def test_a_cancelled_block_is_left(isolation: Isolation) -> None:
    with trio.CancelScope() as scope:
        async with opened(isolation=isolation) as device:
            ref = await device.put(np.eye(2))
            scope.cancel()
            await device.get(ref)
    assert scope.cancelled_caught


async def test_devices_of_one_program_are_apart(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as one, opened(isolation=isolation) as other:
        assert one.name != other.name
        a, b = await one.put(np.eye(2)), await other.put(np.eye(2))
        for call in (
            lambda: one.get(b),
            lambda: one.free(b),
            lambda: one.seal(b),
            lambda: one.blas.gemm(a, b),
            lambda: one.blas.gemm(b, a),
            lambda: one.blas.gemm(a, a, out=b),
        ):
            with pytest.raises(
                ValueError,
                match=r"must be on .*:0.*, where the op runs, not on .*:0.*; `device.copy`",
            ):
                await call()
        assert np.array_equal(await other.get(b), np.eye(2))


async def test_opening_again_and_again(isolation: Isolation) -> None:
    for _ in range(3):
        async with opened(isolation=isolation) as device:
            assert np.array_equal(await device.get(await device.put(np.arange(5))), np.arange(5))


@cpu_only
async def test_no_warning_where_the_backend_was_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with open_device(0, backend="cpu", isolation="thread"):
            pass
