"""Cancelled at every checkpoint of every call, a device stays usable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale, Unsupported
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.ops import Awaited
from atomr_accel.testing import kill_host

from ..harness import Gate, cancelled_at, interrupted_at, on_shared, opened, settled, used_by
from .programs import ADD, add, adder

pytestmark = pytest.mark.slow

LARGE = 1 << 18
"""Elements of an array that takes more than one step to move."""


class Calls:
    """Every call of a device that waits, on buffers of its own."""

    def __init__(self, device: Device, kernel: Kernel[Awaited], a: GpuRef, x: GpuRef) -> None:
        self.device = device
        self.kernel = kernel
        self.a = a
        self.x = x

    @staticmethod
    async def of(device: Device) -> Calls:
        a = await device.put(np.eye(2, dtype=np.float32))
        x = await device.zeros(4, np.float32)
        kernel = await adder(device)
        await kernel.launch(1, 4, x, 0.0)
        await device.blas.gemm(a, a)
        await device.put(np.zeros(4), sealed=True)
        return Calls(device, kernel, a, x)

    async def put(self) -> None:
        await self.device.put(np.zeros(LARGE))

    async def put_sealed(self) -> None:
        await self.device.put(np.zeros(LARGE), sealed=True)

    async def get(self) -> None:
        await self.device.get(self.a)

    async def empty(self) -> None:
        await self.device.empty(4)

    async def full(self) -> None:
        await self.device.full(4, 1.0)

    async def fill(self) -> None:
        await self.device.fill(self.x, 2.0)

    async def copy(self) -> None:
        await self.device.copy(self.a)

    async def gemm(self) -> None:
        await self.device.blas.gemm(self.a, self.a)

    async def compile(self) -> None:
        await self.device.nvrtc.compile(ADD, "add", cpu=add)

    async def launch(self) -> None:
        await self.kernel.launch(1, 4, self.x, 1.0)

    async def launch_first(self) -> None:
        await (await adder(self.device)).launch(1, 4, self.x, 1.0)

    async def seal(self) -> None:
        await self.device.seal(await self.device.zeros(4))

    async def free(self) -> None:
        await self.device.free(await self.device.zeros(4))

    async def batch(self) -> None:
        async with self.device.batch() as batch:
            c = batch.blas.gemm(self.a, self.a)
            batch.launch(self.kernel, 1, 4, self.x, 1.0)
            batch.get(c)

    async def record(self) -> None:
        async with self.device.record(self.a) as recorded:
            recorded.blas.gemm(self.a, self.a)
            recorded.launch(self.kernel, 1, 4, self.x, 1.0)
        await recorded.replay()
        await recorded.dot()

    async def event(self) -> None:
        start, end = self.device.event(), self.device.event()
        await start.record("memory")
        await end.record("memory")
        await start.wait()
        await start.elapsed(end)

    async def check(self) -> None:
        """The device is usable."""
        assert np.array_equal(await self.device.get(self.a), np.eye(2))
        square = await self.device.blas.gemm(self.a, self.a)
        assert np.array_equal(await self.device.get(square), np.eye(2))
        await self.device.fill(self.x, 0.0)
        await self.kernel.launch(1, 4, self.x, 1.0)
        assert (await self.device.get(self.x)).tolist() == [1] * 4
        await trio.lowlevel.checkpoint()


NAMES = [name for name in vars(Calls) if not name.startswith("_") and name not in ("of", "check")]


@pytest.mark.parametrize("name", NAMES)
@on_shared
async def test_cancelled_at_every_checkpoint(device: Device, name: str) -> None:
    calls = await Calls.of(device)
    call: Callable[[], Awaitable[None]] = getattr(calls, name)
    used, step = used_by(device), 1
    while await cancelled_at(step, call):
        await settled(device)
        await calls.check()
        assert used_by(device) <= used
        assert device.statistics().transfers == ()
        step += 1
    assert step > 1


@pytest.mark.parametrize("name", NAMES)
@on_shared
async def test_cancelled_while_its_lanes_are_busy(device: Device, gate: Gate, name: str) -> None:
    """Ops in the outbox are withdrawn, and ops that wait still go on."""
    calls = await Calls.of(device)
    hold = await gate.kernel(device)
    gate.open()
    await hold(calls.x)
    call: Callable[[], Awaitable[None]] = getattr(calls, name)
    used = used_by(device)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, calls.x)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            with trio.move_on_after(0.005):
                await call()
        gate.open()
    await settled(device)
    await calls.check()
    assert used_by(device) <= used


async def test_the_host_dies_at_every_checkpoint() -> None:
    """The awaited result is there, but its generation has ended when the task gets it."""
    async with opened(isolation="process", max_restarts=1000) as device:
        for name in ("seal", "launch_first", "batch", "record"):
            step, more = 1, True
            while more:
                calls = await Calls.of(device)
                errors: list[BaseException] = []

                async def tolerant(calls: Calls = calls, name: str = name) -> None:
                    try:
                        await getattr(calls, name)()
                    except (ContextPoisoned, GpuRefStale, Unsupported) as error:
                        errors.append(error)  # noqa: B023

                more, _ = await interrupted_at(step, tolerant, lambda: kill_host(device))
                await settled(device)
                await (await Calls.of(device)).check()
                step += 3  # each takes a new process
