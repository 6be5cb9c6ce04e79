"""``open_devices``: several devices under one supervisor, and their common guarantees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import CandidateState, DeviceLost, Devices, DeviceUnavailable, Hints, open_devices
from atomr_accel.actors import Directive
from atomr_accel.testing import kill_host, poison

from ...harness import AT_ONCE, cpu_only, refused

pytestmark = cpu_only


def group(count: int = 2, **options: Any) -> Any:
    """Devices in threads, which are opened sooner, unless they are to be broken."""
    return open_devices(
        range(count), **{"backend": "cpu", "isolation": "thread", "low_latency": False, **options}
    )


async def test_a_group_is_a_sequence_whose_slices_share_its_load() -> None:
    async with group(3) as devices:
        assert isinstance(devices, Devices)
        assert [device.name.split()[0] for device in devices] == ["cpu:0", "cpu:1", "cpu:2"]
        assert (len(devices), devices[-1].info.index) == (3, 2)
        assert devices[1] in devices
        assert repr(devices[1:]) == "<Devices cpu:1, cpu:2>"
        assert set(devices.system.devices) == set(devices)
        async with devices[1:].place() as device:
            assert device is devices[1]
            assert [each.in_flight for each in devices.statistics().devices] == [0, 1, 0]
            assert devices[::-1].statistics().devices[1].in_flight == 1
        await refused(ValueError, "no devices in this slice", devices[:0].place)


async def test_all_are_of_the_backend_of_the_first_or_none_is_opened() -> None:
    await refused(
        DeviceUnavailable,
        "there is no CPU device -1",
        open_devices,
        [0, -1],
        backend="cpu",
        isolation="thread",
    )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"indices": []}, ValueError, "at least one index"),
        (
            {"indices": [1, 1]},
            ValueError,
            r"indices must be unique, because each device is opened once, not \[1, 1\]",
        ),
        ({"indices": ["0"]}, TypeError, "an index must be a whole number, not '0'"),
        ({"on_loss": "stop"}, TypeError, "on_loss must be one of"),
        ({"on_loss": Directive.RESUME}, ValueError, "RESUME is for actors"),
        ({"limit": 0}, ValueError, "limit must be a whole number of at least 1, not 0"),
        ({"limit": "1"}, TypeError, "limit"),
        ({"policy": "best"}, ValueError, "policy must be one of"),
        ({"utilization": 0.5}, TypeError, "a function of a device, not float"),
        ({"colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
    ],
)
async def test_open_devices_refuses_invalid_options(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    await refused(error, message, open_devices, **{"indices": [0], "backend": "cpu", **given})


async def test_an_error_of_the_block_leaves_it_as_it_is() -> None:
    with pytest.raises(KeyError, match=r"^'mine'$"):
        async with group():
            raise KeyError("mine")


async def test_a_fault_of_one_leaves_the_others_as_they_are() -> None:
    async with group(isolation="process", backoff=AT_ONCE) as devices:
        one, two = devices
        kept = await one.put(np.arange(3))
        await poison(two)
        assert devices.statistics().devices[1].state is CandidateState.RECOVERING
        async with devices.place() as device:
            assert device is one
        async with devices[1:].place() as device:  # waits until it is back
            assert (await device.get(await device.put(np.arange(3)))).sum() == 3
        assert [each.generation for each in devices.statistics().devices] == [1, 2]
        assert (await one.get(kept)).sum() == 3


async def test_a_device_that_is_lost_ends_the_block_with_its_loss() -> None:
    with pytest.raises(DeviceLost, match="cpu:1 is lost"):
        async with group(max_restarts=0) as devices:
            await poison(devices[1])
            await trio.sleep_forever()


async def test_group_continues_without_a_failed_device_when_the_policy_allows_it() -> None:
    async with group(on_loss=Directive.STOP) as devices:
        one, two = devices
        await poison(two)
        with pytest.raises(DeviceLost, match="cpu:1 is lost"):
            await two.put(1)
        assert devices.statistics().devices[1].state is CandidateState.LOST
        for _ in range(3):
            async with devices.place(policy="round_robin") as device:
                assert device is one
        await refused(DeviceLost, "no device left", devices[1:].place)


async def test_a_lost_device_is_opened_again_where_the_policy_says_so() -> None:
    settings: dict[str, Any] = {"isolation": "process", "max_restarts": 0}
    async with group(on_loss=Directive.RESTART, **settings) as devices:
        sealed = await devices[1].put(np.arange(3), sealed=True)
        await kill_host(devices[1])
        async with devices[1:].place() as device:
            assert (await device.get(sealed)).sum() == 3


async def test_a_drained_device_gets_no_work() -> None:
    async with group() as devices:
        one, two = devices
        drained = trio.Event()

        async def drain() -> None:
            await devices.drain(1)
            drained.set()

        async with devices[1:].place() as device:
            assert device is two
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(0):
                    await devices.drain(1)
                assert devices.statistics().devices[1].state is CandidateState.READY
                nursery.start_soon(drain)
                await trio.testing.wait_all_tasks_blocked()
                assert devices.statistics().devices[1].state is CandidateState.DRAINING
                async with devices.place() as other:
                    assert other is one
                assert not drained.is_set()
                nursery.cancel_scope.shield = True
                await two.put(1)  # it can still be called
                nursery.cancel_scope.cancel()
        await devices.drain(1)
        assert devices.statistics().devices[1].state is CandidateState.DRAINED
        devices.resume(1)
        async with devices[1:].place() as device:
            assert device is two
        for wrong in (2, -3):
            with pytest.raises(IndexError, match="there are 2 devices"):
                await devices.drain(wrong)
            with pytest.raises(IndexError, match="there are 2 devices"):
                devices[wrong]
        assert devices[-1] is two


async def test_policies_read_loads_and_links() -> None:
    busy = {0: 0.75, 1: None}
    options: dict[str, Any] = {"memory_limit": 64 << 20}
    async with group(utilization=lambda each: busy[each.info.index], **options) as devices:
        one, two = devices
        x = await one.put(np.zeros(1 << 20, np.uint8))
        near = Hints(near=(x[:1000],))
        first, second = devices._candidates
        assert (first.far_bytes(near.near), second.far_bytes(near.near)) == (0, 1000)
        assert first.seconds_to(near.near) == 0 < second.seconds_to(near.near)
        assert (first.utilization, second.utilization) == (0.75, None)
        assert second.free_bytes - first.free_bytes == 1 << 20
        async with devices.place(policy="most_free_memory") as device:
            assert device is two
        for _ in range(3):
            async with devices.place(policy="data_locality", hints=near) as device:
                assert device is one
        async with devices.place(hints=Hints(nbytes=64 << 20)) as device:
            assert device is two
            assert second.free_bytes == 0
        await refused(TypeError, "hints must be Hints, not dict", devices.place, hints={})
