"""When memory runs out: one request fails, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, GpuRefStale, OutOfMemory
from atomr_accel.backends.cpu.host import context as cpu_context
from atomr_accel.lanes import STAGING_BYTES, Isolation

from ..harness import Gate, cancelled_at, cpu_only, on_shared, opened, settled, used_by

MIB: Final = 1 << 20
SLAB: Final = 64 * MIB


@pytest.mark.parametrize(
    "shape", [1 << 60, (1 << 62, 8), (1 << 31, 1 << 31, 1 << 31), 1 << 43], ids=str
)
@pytest.mark.parametrize("sealed", [False, True])
@on_shared
async def test_a_request_no_device_can_serve(
    device: Device, shape: int | tuple[int, ...], sealed: bool
) -> None:
    with pytest.raises(OutOfMemory, match="no room for") as info:
        await device.core.empty(shape, np.float64, sealed=sealed)
    assert info.value.requested == np.prod(shape, dtype=object) * 8
    # It is over with that.
    assert np.array_equal(await device.get(await device.put(np.arange(9))), np.arange(9))


@on_shared
async def test_the_error_says_how_things_are(device: Device) -> None:
    ref = await device.zeros(1000)
    with pytest.raises(OutOfMemory) as info:
        await device.empty(1 << 60)
    error = info.value
    memory = device.statistics().memory
    assert (error.in_use, error.free) == (memory.used, memory.free)
    assert error.largest_free == memory.largest_free
    for number in (error.requested, error.in_use, error.free, error.largest_free):
        assert str(number) in str(error)
    assert error.fields()["requested"] == 8 << 60
    del ref


# --- a CPU with little memory --------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for four slabs beside the staging memory."""
    monkeypatch.setattr(cpu_context, "physical_memory", lambda: 4 * SLAB + STAGING_BYTES)


def mapped_slabs() -> int:
    """Return the number of slabs this process has mapped (the host's threads are in it)."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum("memfd:atomr-slab" in line for line in lines)


@cpu_only
@pytest.mark.usefixtures("little_memory")
async def test_freed_memory_serves_any_size_again() -> None:
    before = mapped_slabs()  # of a device that tests share
    async with opened(isolation="thread") as device:
        for mib in (100, 40, 200, 10, 250, 64):
            refs = [await device.empty(mib * MIB, np.uint8)]
            with pytest.raises(OutOfMemory):
                while True:
                    refs.append(await device.empty(mib * MIB, np.uint8))
            assert device.statistics().memory.used >= mib * MIB
            refs.clear()
        assert used_by(device) == 0
        assert mapped_slabs() - before == device.statistics().memory.slabs


@cpu_only
@pytest.mark.usefixtures("little_memory")
async def test_running_out_disturbs_nobody_else() -> None:
    async with opened(isolation="thread") as device:
        done = []

        async def work(i: int) -> None:
            a = await device.put(np.full((64, 64), i, np.float32))
            for _ in range(20):
                a = await device.blas.gemm(a, await device.put(np.eye(64, dtype=np.float32)))
            assert (await device.get(a) == i).all()
            done.append(i)

        async def want_too_much() -> None:
            for _ in range(20):
                with pytest.raises(OutOfMemory):
                    await device.empty(6 * SLAB, np.uint8)

        async with trio.open_nursery() as nursery:
            for i in range(5):
                nursery.start_soon(work, i)
                nursery.start_soon(want_too_much)
        assert sorted(done) == list(range(5))
        assert device.statistics().faults == 0


@cpu_only
@pytest.mark.usefixtures("little_memory")
async def test_results_and_seals_run_out_of_memory_too() -> None:
    async with opened(isolation="thread") as device:
        a = await device.put(np.zeros((4200, 1), np.float32))
        ballast = [await device.empty(60 * MIB, np.uint8)]
        with pytest.raises(OutOfMemory):
            while True:
                ballast.append(await device.empty(60 * MIB, np.uint8))
        with pytest.raises(OutOfMemory):
            await device.blas.gemm(a, a, trans_b=True)  # 70 MB
        with pytest.raises(OutOfMemory):
            await device.seal(ballast[0])
        assert not ballast[0].sealed
        with pytest.raises(OutOfMemory):
            await device.put(np.zeros(100 * MIB, np.uint8))
        ballast.clear()
        assert (await device.blas.gemm(a, a, trans_b=True)).shape == (4200, 4200)


@cpu_only
@pytest.mark.usefixtures("little_memory")
async def test_memory_under_a_running_kernel_is_not_given_away(gate: Gate) -> None:
    async with opened(isolation="thread") as device:
        hold = await gate.kernel(device)
        cells = await device.empty(40 * MIB, np.float32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            await device.free(cells)
            del cells
            with pytest.raises(OutOfMemory):
                await device.empty(3 * SLAB, np.uint8)
            gate.open()
        assert (await device.empty(3 * SLAB, np.uint8)).nbytes == 3 * SLAB


@cpu_only
@pytest.mark.usefixtures("little_memory")
async def test_cancelled_requests_leave_no_slab_behind() -> None:
    before = mapped_slabs()
    async with opened(isolation="thread") as device:
        for step in range(1, 100):
            small = [await device.empty(20 * MIB, np.uint8) for _ in range(4)]
            small.clear()  # empty slabs, which the next request has to have unmapped

            async def want_much() -> None:
                with pytest.raises(OutOfMemory):
                    await device.empty(6 * SLAB, np.uint8)

            if not await cancelled_at(step, want_much):
                break
        else:
            pytest.fail("it never comes to an end")
        assert step > 2
        await device.empty(3 * SLAB, np.uint8)
        assert mapped_slabs() - before == device.statistics().memory.slabs


class Pressure:
    """A random life of buffers on a device with little memory."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.held: list[tuple[GpuRef, int]] = []

    async def take(self, mib: int, mark: int) -> None:
        held = sum(ref.nbytes for ref, _ in self.held)
        try:
            ref = await self.device.empty(mib * MIB // 8, np.int64)
        except OutOfMemory:
            # Slabs are of 64 MiB at least, so pieces of them may be all there is.
            assert held + mib * MIB > 2 * SLAB, f"only {held} bytes are in use"
        else:
            for end in (ref[:4], ref[-4:]):
                await self.device.put(np.full(4, mark), out=end)
            self.held.append((ref, mark))

    async def check(self, ref: GpuRef, mark: int) -> None:
        for end in (ref[:4], ref[-4:]):
            assert (await self.device.get(end)).tolist() == [mark] * 4

    async def give(self, which: int, explicit: bool) -> None:
        if self.held:
            ref, mark = self.held.pop(which % len(self.held))
            await self.check(ref, mark)
            if explicit:
                await self.device.free(ref)
                with pytest.raises(GpuRefStale):
                    await self.device.get(ref)

    async def seal(self, which: int) -> None:
        if self.held:
            ref, _ = self.held[which % len(self.held)]
            try:
                await self.device.seal(ref)
            except OutOfMemory:
                assert not ref.sealed


lives = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 80), st.integers(0, 1000)),
        st.tuples(st.just("give"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("seal"), st.integers(0, 9)),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def little_memory_for_all() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_context, "physical_memory", lambda: 4 * SLAB + STAGING_BYTES)
        yield


@pytest.mark.slow
@cpu_only
@pytest.mark.usefixtures("little_memory_for_all")
@settings(max_examples=30)
@given(life=lives)
async def test_failed_allocations_lose_nothing(life: list[tuple[str, int, int]]) -> None:
    async with opened(isolation="thread") as device:
        pressure = Pressure(device)
        for name, *arguments in life:
            await getattr(pressure, name)(*arguments)
        while pressure.held:
            await pressure.check(*pressure.held.pop())
        await settled(device)
        assert used_by(device) == 0


async def test_memory_comes_back_after_errors(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        a = await device.put(np.zeros((2, 3)))
        used = used_by(device)
        for _ in range(10):
            with pytest.raises(ValueError, match="inner dimensions"):
                await device.blas.gemm(a, a)
            with pytest.raises(TypeError):
                await device.put(object())
        assert used_by(device) == used
