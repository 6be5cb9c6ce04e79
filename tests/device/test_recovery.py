"""Recovery, seen from a program: on the CPU in both isolations, unchanged on a GPU."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, DeviceLost, GpuRefStale, Standby
from atomr_accel.lanes import Isolation
from atomr_accel.testing import FAULTS, kill_host, poison
from atomr_accel.testing._faults import sleep_for_ever, source_of
from tests.harness import cpu_only, no_descriptors, opened, same_bits

from .. import seeds
from .standbys import standby_of


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_is_reported_as_what_it_is(kind: str) -> None:
    async with opened() as device:
        fault = await poison(device, kind)  # type: ignore[arg-type]
        assert (fault.status, fault.status_name) == (
            FAULTS[kind].status,  # type: ignore[index]
            FAULTS[kind].status_name,  # type: ignore[index]
        )
        assert fault.generation == 1
        assert device.generation == 2
        assert (await device.get(await device.zeros(3))).tolist() == [0, 0, 0]


async def test_everything_in_flight_shares_one_cause() -> None:
    failures: list[ContextPoisoned] = []
    async with opened() as device, device.watch_generation() as changes:
        kernel = await device.nvrtc.compile(source_of("hang"), "hang", cpu=sleep_for_ever)
        await kernel.launch(1, 1, 0)  # loads it, so that the next launches are sent at once

        async def victim() -> None:
            with pytest.raises(ContextPoisoned) as caught:
                await kernel.launch(1, 1, 1)
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(victim)
            await trio.testing.wait_all_tasks_blocked()
            assert device.statistics().in_flight == 3
            await kill_host(device)
        assert await anext(changes) == 2
        assert len(failures) == 3
        assert len({id(failure.__cause__) for failure in failures}) == 1
        assert all(failure.generation == 1 for failure in failures)


@pytest.mark.slow
async def test_sealed_buffers_survive_and_others_are_refused() -> None:
    host = seeds.rng().standard_normal((50, 60))
    async with opened(max_restarts=10) as device:
        plain = await device.put(host)
        put_sealed = await device.put(host, sealed=True)
        sealed_later = await device.seal(await device.put(host + 1))
        for end in (poison, kill_host, poison):
            await end(device)
            for use in (device.get(plain), device.free(plain), device.blas.gemm(plain, plain)):
                with pytest.raises(GpuRefStale):
                    await use
            assert plain.is_stale
            assert not put_sealed.is_stale
            np.testing.assert_array_equal(await device.get(put_sealed), host)
            np.testing.assert_array_equal(await device.get(sealed_later), host + 1)
        assert device.generation == 4


async def test_work_that_waits_for_a_rebuild_goes_on_or_is_refused() -> None:
    host = np.eye(4)
    async with opened() as device:
        plain, sealed = await device.put(host), await device.put(host, sealed=True)
        await device.blas.gemm(plain, sealed)
        await poison(device)
        results: list[object] = []

        async def use_sealed() -> None:
            results.append(await device.get(await device.blas.gemm(sealed, sealed)))

        async def use_plain() -> None:
            with pytest.raises(GpuRefStale):
                await device.blas.gemm(plain, sealed)

        async def put() -> None:
            results.append(await device.get(await device.put(host)))

        async with trio.open_nursery() as nursery:
            for task in (use_sealed, use_plain, put):
                nursery.start_soon(task)
        assert len(results) == 2
        for result in results:
            np.testing.assert_array_equal(result, host)


async def test_too_many_faults_lose_the_device() -> None:
    with pytest.raises(DeviceLost, match="more often"):
        async with opened(max_restarts=1) as device:
            await poison(device)
            await poison(device)
            await trio.sleep_forever()


@cpu_only  # a real fault would poison the process that runs the tests
async def test_a_fault_in_a_thread_is_final() -> None:
    isolation: Isolation = "thread"
    with pytest.raises(DeviceLost, match="it is final"):
        async with opened(isolation=isolation) as device:
            await poison(device)
            with pytest.raises(DeviceLost):
                await device.zeros(3)
            await trio.sleep_forever()


@pytest.mark.slow
async def test_the_standby_takes_over() -> None:
    async with opened(standby=Standby(warm=1), max_restarts=3) as device:
        standby = standby_of(device)
        for generation in (2, 3):
            await standby.wait_ready()
            found = device.statistics().standby
            assert found is not None
            assert (found.mode, found.state, found.ready) == ("warm", "ready", 1)
            await poison(device)
            await device.zeros(3)
            assert device.generation == generation


async def test_poison_says_which_faults_there_are() -> None:
    async with opened() as device:
        with pytest.raises(ValueError, match=r"fault must be one of .*illegal_address.*, not 'f"):
            await poison(device, "f")  # type: ignore[arg-type]
        assert device.generation == 1


class Greedy(trio.abc.Instrument):
    """Takes every descriptor that becomes free, in every turn of the loop."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def before_io_wait(self, timeout: float) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        for fd in self._taken:
            os.close(fd)


@pytest.mark.slow
@cpu_only
async def test_a_device_is_rebuilt_when_others_take_all_descriptors() -> None:
    async with opened(isolation="process", max_restarts=4) as device:
        x = await device.put(np.eye(4), sealed=True)
        greedy = Greedy()
        try:
            with no_descriptors():
                trio.lowlevel.add_instrument(greedy)
                for _ in range(4):
                    await kill_host(device)
                    assert same_bits(await device.get(x), np.eye(4))
        finally:
            trio.lowlevel.remove_instrument(greedy)
            greedy.close()
