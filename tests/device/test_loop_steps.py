"""However much is in flight or dropped at once, no step of the loop does more than some of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, Device, DeviceLost, GpuRef
from atomr_accel.device import _failures, _lifecycle
from atomr_accel.device.contexts import context as _context
from atomr_accel.memory import Block, MemoryMap
from atomr_accel.memory._allocator import ALIGNMENT

from ..harness import cpu_only, opened, stop_process, used_by

pytestmark = cpu_only

MANY: Final = 2000
MOST: Final = 1024
"""Ops or blocks that a step may do something with: each takes about a microsecond."""

ONE: Final = np.ones((1, 1), np.float32)


class Steps(trio.abc.Instrument):
    """Largest change of a number in one step of a task, or between two steps."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._before = 0
        self.most = 0

    def __enter__(self) -> Steps:
        self._before = self._count()
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_error: object) -> None:
        trio.lowlevel.remove_instrument(self)

    def _look(self) -> None:
        now = self._count()
        self.most = max(self.most, abs(now - self._before))
        self._before = now

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._look()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._look()

    def before_io_wait(self, timeout: float) -> None:
        self._look()

    def after_io_wait(self, timeout: float) -> None:
        self._look()


def stop(device: Device) -> int:
    """Have the host do nothing more; its process id."""
    pid = device.statistics().host_pid
    assert pid is not None
    stop_process(pid)
    return pid


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the errors that were made after a context had failed."""
    made: list[str] = []
    of = _failures.taken_down

    def taken_down(name: str, fault: ContextPoisoned, seq: int = 0) -> ContextPoisoned:
        made.append(name)
        return of(name, fault, seq)

    for module in (_lifecycle, _context):
        monkeypatch.setattr(module, "taken_down", taken_down)
    return made


async def filled(device: Device) -> tuple[GpuRef, int]:
    """A buffer for ops that will not finish, and the process id of the host that is stopped."""
    ref = await device.put(ONE)
    await device.blas.gemm(ref, ref)
    return ref, stop(device)


async def test_a_host_that_dies_with_thousands_of_ops_in_flight() -> None:
    answers = 0

    async def ask(device: Device, ref: GpuRef) -> None:
        nonlocal answers
        with pytest.raises(ContextPoisoned):
            await device.blas.gemm(ref, ref)
        answers += 1

    async with opened() as device:
        ref, pid = await filled(device)
        in_flight = device.core.in_flight
        with Steps(lambda: len(in_flight)) as steps:
            async with trio.open_nursery() as nursery:
                for _ in range(MANY):
                    nursery.start_soon(ask, device, ref)
                while len(in_flight) < MANY:
                    await trio.lowlevel.checkpoint()
                steps.most = 0
                os.kill(pid, signal.SIGKILL)
        assert answers == MANY
        assert 0 < steps.most <= MOST
        again = await device.put(ONE)
        assert (await device.get(await device.blas.gemm(again, again)) == 1).all()
        assert not in_flight


async def test_a_batch_of_thousands_that_a_fault_takes_down(errors: list[str]) -> None:
    async with opened() as device:
        ref, pid = await filled(device)
        core = device.core
        with Steps(lambda: len(core.in_flight)) as steps, pytest.raises(ContextPoisoned):
            async with device.batch() as batch:
                for _ in range(MANY):
                    batch.blas.gemm(ref, ref)
                await trio.lowlevel.checkpoint()
                steps.most = 0
                os.kill(pid, signal.SIGKILL)
        assert 0 < steps.most <= MOST
        assert errors == ["blas.gemm"]  # whose errors nobody sees are not made


async def test_a_batch_of_thousands_that_fails_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = 0
    free = MemoryMap.free

    def counted(memory: MemoryMap, block: Block) -> None:
        nonlocal freed
        freed += 1
        free(memory, block)

    monkeypatch.setattr(MemoryMap, "free", counted)
    async with opened() as device:
        with Steps(lambda: freed) as steps, pytest.raises(ZeroDivisionError):
            async with device.batch() as batch:
                refs = [batch.empty(1) for _ in range(MANY)]
                raise ZeroDivisionError
        assert freed == MANY
        assert all(ref.is_stale for ref in refs)
        assert 0 < steps.most <= MOST
        assert used_by(device) == 0


async def test_a_block_that_is_left_with_thousands_of_ops_in_flight() -> None:
    lost = 0

    async def ask(device: Device, ref: GpuRef) -> None:
        nonlocal lost
        with pytest.raises(DeviceLost, match="'async with' block was left"):
            await device.blas.gemm(ref, ref)
        lost += 1

    async with trio.open_nursery() as nursery:
        async with opened() as device:
            ref, _pid = await filled(device)
            in_flight = device.core.in_flight
            for _ in range(MANY):
                nursery.start_soon(ask, device, ref)
            while len(in_flight) < MANY:
                await trio.lowlevel.checkpoint()
            steps = Steps(lambda: len(in_flight))
            steps.__enter__()
        steps.__exit__()
        assert not in_flight
    assert lost == MANY
    assert 0 < steps.most <= MOST


async def test_thousands_of_dropped_buffers_are_counted_without_freeing_them_all() -> None:
    async with opened() as device:
        memory = device.core.memory
        async with device.batch() as batch:
            refs = [batch.empty(1) for _ in range(MANY)]
        refs.clear()
        left = len(memory.dropped)
        assert left >= MANY
        while left:
            found = device.statistics().memory
            assert found.used == found.dropped * ALIGNMENT
            assert found.dropped == len(memory.dropped)
            assert 0 < left - found.dropped <= 2 * MOST
            left = found.dropped
        async with device.batch() as batch:
            refs = [batch.empty(1) for _ in range(MANY)]
        refs.clear()
        await device.trim()
        assert device.statistics().memory.dropped == device.statistics().memory.used == 0
