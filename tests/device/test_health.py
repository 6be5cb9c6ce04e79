"""``device.health()``: what an orchestrator should know of a device."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import trio
import trio.lowlevel
import trio.testing

from atomr_accel import Device, DeviceLost, OutOfMemory
from atomr_accel.testing import hang, kill_host, poison

from ..harness import cpu_only, opened

pytestmark = cpu_only


async def test_a_device_at_work_is_not_asked_and_an_idle_one_is() -> None:
    async with opened(isolation="thread", standby=None) as device:

        def probes() -> int:
            return device.core._sequence

        before = probes()
        health = await device.health(within=60)
        assert (health.live, health.ready, health.degraded, health.reasons) == (
            True,
            True,
            False,
            (),
        )
        assert probes() == before + 1
        assert (await device.health(within=60)).ready
        assert probes() == before + 1  # that op was lately
        await device.get(await device.put(1.0))
        before = probes()
        assert (await device.health(within=60)).ready
        assert probes() == before
        assert (await device.health(within=1e-9)).reasons[0].startswith("no op has finished")


async def test_checks_share_one_op_and_a_cancelled_one_harms_no_other() -> None:
    async with opened(isolation="thread", standby=None) as device, trio.open_nursery() as nursery:
        before = device.core._sequence
        answers: list[bool] = []

        async def check() -> None:
            answers.append((await device.health(within=20)).ready)

        with trio.CancelScope() as scope:
            scope.cancel()
            await device.health(within=20)
        for _ in range(5):
            nursery.start_soon(check)
        await trio.testing.wait_all_tasks_blocked(0.001)
        while len(answers) < 5:
            await trio.lowlevel.checkpoint()
        assert answers == [True] * 5
        assert device.core._sequence <= before + 2


@pytest.mark.slow
async def test_a_device_that_is_rebuilt_is_live_and_not_ready() -> None:
    async with opened(standby=None) as device:
        await kill_host(device)
        health = await device.health()
        assert (health.live, health.ready) == (True, False)
        assert health.reasons[0].startswith("it is being rebuilt: generation 1 of")
        await device.put(1.0)
        assert (await device.health()).ready


@pytest.mark.slow
async def test_a_lost_device_is_not_live() -> None:
    with pytest.raises(DeviceLost):
        async with opened(isolation="thread") as device:
            await poison(device)
            with trio.CancelScope(shield=True):
                while not device.closed:
                    await trio.lowlevel.checkpoint()
            health = await device.health()
            assert (health.live, health.ready) == (False, False)
            assert "is lost" in health.reasons[0]
            await device.put(1.0)


async def test_a_closed_device_is_not_live() -> None:
    async with opened(isolation="thread") as device:
        pass
    assert not (await device.health()).live


async def test_short_memory_and_errors_of_cells_degrade() -> None:
    async with opened(isolation="thread", standby=None, memory_limit=4 << 20) as device:
        with pytest.raises(OutOfMemory):
            await device.empty((8 << 20,), np.uint8)
        kept = await device.empty((4 << 20) - 256, np.uint8)
        health = await device.health()
        assert health.ready
        assert health.degraded
        assert [each for each in health.reasons if "memory_limit" in each]
        assert [each for each in health.reasons if "found no memory" in each]
        assert kept is not None


async def test_nvml_tells_of_ecc_errors() -> None:
    ecc = SimpleNamespace(uncorrected=2, remapping_pending=True, remapping_failed=False)
    memory = SimpleNamespace(used=99, total=100, free=1)
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    other = SimpleNamespace(uuid="GPU-1", ecc=ecc, memory=memory)
    async with opened(isolation="thread", standby=None) as device:
        info = device.core.info
        device.core.info = SimpleNamespace(uuid="0" * 31 + "1")  # type: ignore[assignment]
        gpus = SimpleNamespace(readings=(other,))
        assert not (await device.health(gpus=gpus)).degraded
        gpus.readings = (SimpleNamespace(uuid=uuid, ecc=ecc, memory=memory),)
        health = await device.health(gpus=gpus)
        assert "2 uncorrected errors" in " ".join(health.reasons)
        assert len(health.reasons) == 3
        device.core.info = info


@pytest.mark.parametrize("within", [0, -1, float("nan"), "1", True])
async def test_wrong_times_are_refused(within: object) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises((TypeError, ValueError), match="within"):
            await device.health(within=within)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_shortage_of_memory_fails_only_its_request() -> None:
    """Next to requests that share the device with it."""

    async def works(device: Device) -> None:
        for _ in range(20):
            x = await device.put(np.eye(16))
            assert (await device.get(await device.blas.gemm(x, x))).trace() == 16

    async with opened(memory_limit=64 << 20) as device, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(works, device)
        for _ in range(5):
            with pytest.raises(OutOfMemory):
                await device.zeros((1 << 30,), np.uint8)
        assert device.generation == 1


@pytest.mark.slow
async def test_a_device_that_hangs_is_not_ready_in_its_lane() -> None:
    """Other lanes answer, so it is ready; ``op_deadline`` ends the op."""
    async with opened(standby=None) as device, trio.open_nursery() as nursery:
        nursery.start_soon(hang, device)
        await trio.testing.wait_all_tasks_blocked()
        assert (await device.health(within=20)).ready
        nursery.cancel_scope.cancel()


LOSES: str = """if True:
    import trio
    from atomr_accel import ContextPoisoned, open_device
    from atomr_accel.testing import poison

    async def main():
        async with open_device(0, backend="cpu", max_restarts=0) as device:
            try:
                await poison(device)
            except ContextPoisoned:
                pass
            await trio.sleep_forever()

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.slow
def test_a_program_whose_device_is_lost_ends_with_an_error() -> None:
    """Also if all its tasks wait for something else."""
    done = subprocess.run(
        [sys.executable, "-c", LOSES], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "DeviceLost: cpu:0 is lost" in done.stderr
