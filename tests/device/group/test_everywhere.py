"""``Devices.seal_everywhere``: a sealed copy on each device, and again after one is gone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    DeviceLost,
    Devices,
    GpuRef,
    GpuRefSealed,
    GpuRefStale,
    OutOfMemory,
    open_devices,
)
from atomr_accel.actors import Directive
from atomr_accel.device.group import _everywhere
from atomr_accel.device.interop._sharing import copy_here
from atomr_accel.testing import kill_host, poison

from ...harness import AT_ONCE, cancelled_at, cpu_only, opened, settled, used_by

pytestmark = cpu_only

LARGE = np.arange(1 << 17, dtype=np.float64)
"""Size from which copies go from device to device directly."""


def group(count: int, **options: Any) -> Any:
    """Devices in threads, which are opened sooner, unless they are to be broken."""
    return open_devices(
        range(count), **{"backend": "cpu", "isolation": "thread", "low_latency": False, **options}
    )


async def assert_everywhere(devices: Devices, copies: Any, want: np.ndarray[Any, Any]) -> None:
    assert [*copies] == [device for device in devices if not device.closed]
    for device, ref in copies.items():
        assert isinstance(ref, GpuRef)
        assert ref.sealed
        assert (await device.get(ref) == want).all()
        with pytest.raises(GpuRefSealed):
            await device.fill(ref, 0)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("array", [LARGE, np.arange(6).reshape(2, 3), np.array(2.5)])
async def test_an_array_is_put_once_and_passed_on(count: int, array: Any) -> None:
    async with group(count) as devices:
        copies = await devices.seal_everywhere(array)
        await assert_everywhere(devices, copies, array)
        said = copies.statistics()
        assert (said.copies, said.good, said.restored) == (count, count, 0)
        assert said.nbytes == array.nbytes
        transfers = [device.statistics().memory.sealed for device in devices]
        assert len(set(transfers)) == 1


async def test_each_that_has_it_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []

    async def noted(core: Any, ref: GpuRef, *, sealed: bool) -> GpuRef:
        sources.append(ref.device)
        return await copy_here(core, ref, sealed=sealed)

    monkeypatch.setattr(_everywhere, "copy_here", noted)
    for count, most in ((2, 1), (3, 2), (4, 2), (7, 3), (8, 3)):
        async with group(count) as devices:
            sources.clear()
            await devices.seal_everywhere(LARGE)
            assert len(sources) == count - 1
            assert max(Counter(sources).values()) == most


async def test_a_buffer_is_sealed_where_it_is() -> None:
    async with group(3) as devices, opened(7, isolation="thread") as other:
        x = await devices[1].put(LARGE)
        copies = await devices.seal_everywhere(x)
        assert copies[devices[1]] is x
        await assert_everywhere(devices, copies, LARGE)
        y = await other.put(LARGE[:5])
        copies = await devices.seal_everywhere(y)
        await assert_everywhere(devices, copies, LARGE[:5])
        assert not y.sealed
        with pytest.raises(ValueError, match="no devices in this slice"):
            await devices[:0].seal_everywhere(x)


async def test_group_keeps_no_writable_mapping_of_sealed_memory() -> None:
    async with group(3) as devices:
        copies = await devices.seal_everywhere(LARGE)
        for source in devices:
            assert source.core.memory.unmapped == []
            for target, ref in copies.items():
                slab = target.core.memory.slab_of(ref.block)
                assert source.core.windows.find(target.core, slab) is None


async def test_a_copy_that_is_gone_comes_back_from_a_peer() -> None:
    async with group(3) as devices, opened(7, isolation="thread") as other:
        copies = await devices.seal_everywhere(LARGE)
        assert await copies.restore(devices[1]) is copies[devices[1]]  # there is nothing to do
        assert copies.statistics().restored == 0
        for device in devices[:2]:
            await device.free(copies[device])
        assert copies.statistics().good == 1
        for device in devices[:2]:
            assert await copies.restore(device) is copies[device]
        await assert_everywhere(devices, copies, LARGE)
        ref = await copies.restore(other)  # one that had none so far
        assert (await other.get(ref) == LARGE).all()
        assert (copies.statistics().copies, copies.statistics().restored) == (4, 3)
        for device, ref in copies.items():
            await device.free(ref)
        with pytest.raises(GpuRefStale, match="no device has a good copy"):
            await copies.restore(devices[0])
        with pytest.raises(TypeError, match="restore takes an open device, not"):
            await copies.restore(5)


@pytest.mark.slow
async def test_faults_leave_copies_and_a_device_in_the_place_of_a_lost_one_gets_one() -> None:
    options: Any = {"isolation": "process", "backoff": AT_ONCE, "max_restarts": 1}
    async with group(2, on_loss=Directive.STOP, **options) as devices:
        one, two = devices
        copies = await devices.seal_everywhere(LARGE)
        await kill_host(two)
        assert (await two.get(copies[two]) == LARGE).all()
        assert copies.statistics().good == 2
        await poison(two)
        with pytest.raises(DeviceLost):
            await two.get(await two.put(0))
        assert copies.statistics().good == 1
        with pytest.raises(DeviceLost):
            await copies.restore(two)
        async with opened(1) as another:
            ref = await copies.restore(another)
            assert (await another.get(ref) == LARGE).all()
        # Whoever is lost is left out from now on.
        assert [*await devices.seal_everywhere(LARGE[:3])] == [one]


@pytest.mark.slow
async def test_a_source_that_fails_in_the_midst_goes_on_when_it_is_back() -> None:
    async with group(3, isolation="process", max_restarts=9) as devices:
        one, two, three = devices
        copies = await devices[:2].seal_everywhere(LARGE)

        async def restore() -> None:
            await copies.restore(three)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restore)
            nursery.start_soon(kill_host, one)
            nursery.start_soon(kill_host, two)
        assert (await three.get(copies[three]) == LARGE).all()


async def test_a_device_without_room_leaves_nothing_on_the_others() -> None:
    async with group(2, memory_limit=4 << 20) as devices:
        full = await devices[1].zeros(4 << 20, np.uint8)
        with pytest.raises(OutOfMemory):
            await devices.seal_everywhere(LARGE)
        assert used_by(devices[0]) == 0
        del full
        assert len(await devices.seal_everywhere(LARGE)) == 2


async def test_whoever_is_cancelled_leaves_nothing() -> None:
    async with group(2) as devices:
        step = 1
        while await cancelled_at(step, lambda: devices.seal_everywhere(LARGE)):
            step += 1
            for device in devices:
                await settled(device)
        assert step > 5
        for device in devices:
            device.core.memory.collect(1000)
            assert used_by(device) == 0
