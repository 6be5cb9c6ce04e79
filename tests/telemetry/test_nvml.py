"""NVML as an actor: values, restarts, and Xids that explain faults."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import math
import random
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import trio
import trio.testing

from atomr_accel import DeviceUnavailable, LibraryMissing, ReportedXid, telemetry
from atomr_accel.actors import ActorStopped, open_actor_system
from atomr_accel.telemetry import (
    DeviceFault,
    GpuClocks,
    GpuEcc,
    GpuMemory,
    GpuMig,
    GpuNvLink,
    GpuPcie,
    GpuProcess,
    GpuUtilization,
    MigInstance,
    NvmlMonitor,
    ReadGpus,
    Xid,
    open_nvml,
)
from atomr_accel.telemetry.nvml import nearest_fault
from atomr_accel.telemetry.nvml_library import NvmlLibrary
from atomr_accel.testing import poison

from ..fakes.nvml import FakeGpu, FakeNvml
from ..harness import cpu_only, opened
from ..seeds import draw

NEVER = math.inf


@asynccontextmanager
async def watching(fake: FakeNvml, *, interval: float = NEVER) -> AsyncIterator[NvmlMonitor]:
    """Open a system, and NVML in it."""
    async with (
        open_actor_system("demo") as system,
        open_nvml(system, interval=interval, library=fake) as nvml,
    ):
        yield nvml


FUNCTIONS = Path(telemetry.__file__).parent / "nvml_library.py"


async def test_a_reading_is_in_units_of_si() -> None:
    gpu = FakeGpu(
        processes=[
            SimpleNamespace(pid=7, usedGpuMemory=512, gpuInstanceId=0xFFFFFFFF),
            SimpleNamespace(pid=8, usedGpuMemory=None, gpuInstanceId=3),
        ]
    )
    async with watching(FakeNvml(gpu)) as nvml:
        (reading,) = await nvml.read()
        assert nvml.readings == (reading,)
    assert (reading.index, reading.uuid, reading.name) == (0, gpu.uuid, "Fake H200")
    assert reading.utilization == GpuUtilization(0.75, 0.2)
    assert reading.memory == GpuMemory(1000, 600, 300, 100)
    assert reading.power == pytest.approx(350.5)
    assert reading.power_limit == pytest.approx(700)
    assert reading.energy == pytest.approx(123.456)
    assert (reading.temperature, reading.memory_temperature) == (61.0, 70.0)
    assert reading.clocks == GpuClocks(1_980_000_000, 1_979_000_000, 3_201_000_000, 1_500_000_000)
    assert reading.throttled == ("SwPowerCap", "SwThermalSlowdown")
    assert reading.ecc == GpuEcc(3, 0, 0, 1, remapping_pending=True, remapping_failed=False)
    assert reading.pcie == GpuPcie(5, 16, 7 << 10, 9 << 10, 2)
    assert reading.nvlinks == (
        GpuNvLink(0, 13_800 << 10, 13_900 << 10),
        GpuNvLink(2, 13_802 << 10, 13_902 << 10),
    )
    assert reading.processes == (GpuProcess(7, 512, None), GpuProcess(8, None, 3))
    assert reading.mig == GpuMig(enabled=False, pending=True, instances=())


async def test_unsupported_reading_is_none() -> None:
    names = {name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")}
    every = names - {"nvmlDeviceGetUUID", "nvmlDeviceGetName"}
    gpu = FakeGpu(lacks={*every, "nvmlDeviceGetMemoryInfo_v2", "events"})
    async with watching(FakeNvml(gpu)) as nvml:
        (reading,) = await nvml.read()
    values = {name: getattr(reading, name) for name in reading.__dataclass_fields__}
    told = {name for name, value in values.items() if value is not None}
    assert told == {"at", "index", "uuid", "name"}


async def test_older_drivers_tell_memory_without_what_is_reserved() -> None:
    gpu = FakeGpu(lacks={"nvmlDeviceGetMemoryInfo_v2", "memory temperature"})
    async with watching(FakeNvml(gpu)) as nvml:
        (reading,) = await nvml.read()
    assert reading.memory == GpuMemory(1000, 700, 300, None)
    assert reading.memory_temperature is None


async def test_parts_of_a_divided_gpu() -> None:
    part = FakeGpu(uuid="MIG-1", memory=(100, 60, 30, 10))
    gpu = FakeGpu(mig=[None, part, None])
    async with watching(FakeNvml(gpu)) as nvml:
        (reading,) = await nvml.read()
    parts = (MigInstance("MIG-1", 7, 0, GpuMemory(100, 60, 30, 10)),)
    assert reading.mig == GpuMig(enabled=True, pending=True, instances=parts)


async def test_nvml_actor_calls_nvml_in_other_threads_and_closes_it() -> None:
    fake = FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-2"))
    async with open_actor_system("demo") as system:
        async with open_nvml(system, interval=NEVER, library=fake) as nvml:
            assert nvml.ref.path == "/nvml/reader"
            assert [one.uuid for one in await nvml.ref.ask(ReadGpus())][1:] == ["GPU-2"]
            assert (fake.opened, fake.sets) == (1, 1)
        assert (fake.opened, fake.sets) == (0, 0)
        with pytest.raises(ActorStopped):
            await nvml.read()
    assert fake.threads
    assert threading.current_thread() not in fake.threads


async def test_nvml_actor_reads_periodically() -> None:
    fake = FakeNvml(FakeGpu())
    async with watching(fake, interval=1e-3) as nvml:
        for _ in range(3):  # the third has begun, so the second is over
            await trio.to_thread.run_sync(fake.named.get)
        assert [reading.name for reading in nvml.readings] == ["Fake H200"]


async def test_nvml_that_fails_is_opened_anew_and_its_reader_gets_the_error() -> None:
    fake = FakeNvml(FakeGpu())
    async with (
        open_actor_system("demo") as system,
        open_nvml(system, interval=NEVER, library=fake) as nvml,
    ):
        fake.error = fake.NVML_ERROR_GPU_IS_LOST
        with pytest.raises(fake.NVMLError):
            await nvml.read()
        (reading,) = await nvml.read()  # waits for the next life
        assert reading.name == "Fake H200"
        assert (fake.opened, fake.sets) == (1, 1)
        (child,) = (one for one in system.tree().children if one.name == "nvml")
        assert [one.restarts for one in child.children] == [1]


def test_nvml_that_fails_for_long_takes_nobody_down() -> None:
    async def main() -> None:
        fake = FakeNvml(FakeGpu(lacks={"events"}))
        async with watching(fake) as nvml:
            begun = trio.current_time()
            while trio.current_time() - begun < 900:
                fake.error = fake.NVML_ERROR_GPU_IS_LOST
                with pytest.raises(fake.NVMLError):
                    await nvml.read()
            assert await nvml.read()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))


async def test_without_the_package_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    async with open_actor_system("demo") as system:
        with pytest.raises(LibraryMissing, match=r"pip install .*\[telemetry\]") as info:
            async with open_nvml(system):
                pass
        assert info.value.library == "nvidia-ml-py"
        assert system.tree().children == ()


async def test_without_a_driver_there_is_nothing_to_watch() -> None:
    fake = FakeNvml()
    fake.missing = fake.NVML_ERROR_LIBRARY_NOT_FOUND
    async with open_actor_system("demo") as system:
        with pytest.raises(DeviceUnavailable, match="comes with NVIDIA's driver"):
            async with open_nvml(system, library=fake):
                pass


async def test_the_package_without_a_driver() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        async with open_actor_system("demo") as system:
            with pytest.raises(DeviceUnavailable):
                async with open_nvml(system):
                    pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is a driver")


async def test_arguments() -> None:
    async with open_actor_system("demo") as system:
        for interval in (0, -1.0, math.nan):
            with pytest.raises(ValueError, match="interval"):
                async with open_nvml(system, interval=interval, library=FakeNvml()):
                    pass
    with pytest.raises(TypeError, match="open_nvml"):
        telemetry.NvmlMonitor()


# --- Xids ----------------------------------------------------------------------------------


async def test_xids_are_pushed_as_they_happen() -> None:
    gpu, other = FakeGpu(), FakeGpu(uuid="GPU-2")
    fake = FakeNvml(gpu, other)
    async with watching(fake) as nvml, nvml.watch_xids() as xids:
        fake.happen(gpu, 31)
        fake.happen(other, 9999, gpu_instance=2)
        first, second = await anext(xids), await anext(xids)
        fake.happen(gpu, 31)
        await anext(xids)
    assert (first.number, first.uuid, first.gpu_instance) == (31, gpu.uuid, None)
    assert first.meaning == "GPU memory page fault"
    assert (second.number, second.uuid, second.gpu_instance) == (9999, "GPU-2", 2)
    assert second.meaning == "unknown"
    assert nvml.xid_counts == {(gpu.uuid, 31): 2, ("GPU-2", 9999): 1}
    assert nvml.xids[:2] == (first, second)


async def test_watching_goes_on_while_nvml_is_opened_anew_and_ends_with_the_block() -> None:
    gpu = FakeGpu()
    fake = FakeNvml(gpu)
    async with watching(fake) as nvml:
        watch = nvml.watch_xids()
        xids = await watch.__aenter__()
        fake.error = fake.NVML_ERROR_GPU_IS_LOST
        with pytest.raises(fake.NVMLError):
            await nvml.read()
        fake.happen(gpu, 79)
        assert (await anext(xids)).number == 79
    assert await anext(xids, None) is None
    await watch.__aexit__(None, None, None)


@pytest.mark.parametrize("turns", range(4))
async def test_nvml_that_fails_as_it_is_closed_harms_nobody(turns: int) -> None:
    fake = FakeNvml(FakeGpu())

    async def read(nvml: NvmlMonitor) -> None:
        with contextlib.suppress(fake.NVMLError, ActorStopped):
            await nvml.read()

    async with (
        open_actor_system("demo") as system,
        trio.open_nursery() as nursery,
        open_nvml(system, interval=NEVER, library=fake) as nvml,
    ):
        fake.error = fake.NVML_ERROR_GPU_IS_LOST
        nursery.start_soon(read, nvml)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
    assert (fake.opened, fake.sets) == (0, 0)


def fault_of(uuid: str, at: float, pid: int | None = None, generation: int = 1) -> DeviceFault:
    return DeviceFault("cuda:0", uuid, generation, "CUDA_ERROR_ILLEGAL_ADDRESS", "op", pid, at)


def test_an_xid_explains_the_nearest_fault_of_its_gpu_and_process() -> None:
    rng = random.Random(draw())
    for _ in range(300):
        xid = Xid(31, rng.choice("ab"), rng.uniform(0, 20), rng.choice([None, 1, 2]))
        faults = tuple(
            fault_of(rng.choice("ab"), rng.uniform(0, 20), rng.choice([None, 1, 2]), generation)
            for generation in range(rng.randrange(4))
        )
        tied = nearest_fault(xid, faults)
        apart = {
            fault: abs(fault.at - xid.at)
            for fault in faults
            if fault.uuid == xid.uuid and {fault.pid, xid.pid} != {1, 2}
        }
        if tied is None:
            assert all(seconds > 5 for seconds in apart.values())
        else:
            assert apart[tied] == min(apart.values()) <= 5


@cpu_only
@pytest.mark.slow
async def test_an_xid_and_a_fault_of_a_device_find_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu()
    fake = FakeNvml(gpu)
    async with (
        opened() as device,
        open_nvml(device.system, interval=NEVER, library=fake) as nvml,
        nvml.watch_xids() as xids,
    ):
        core = device.core
        assert core.info is not None
        core.info = msgspec.structs.replace(core.info, uuid="000102030405060708090a0b0c0d0e0f")
        pid = core.host_pid
        error = await poison(device)
        assert error.report is not None
        assert "Xid" not in str(error.report)
        fake.happen(gpu, 31)
        first = await anext(xids)
        assert error.report.xid == ReportedXid(31, "GPU memory page fault")
        assert "Xid 31: GPU memory page fault" in str(error.report)
        (noted,) = nvml.xids
        assert noted == first
        assert first.fault is not None
        assert first.fault.at == pytest.approx(first.at, abs=5)
        assert first.fault == DeviceFault(
            core.name,
            gpu.uuid,
            1,
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "kernel fault",
            pid,
            first.fault.at,
        )
        # The other way round: an Xid that came first.
        xid = Xid(13, "GPU-2", 1.0)
        nvml._note_xid(xid)
        assert nvml.xids[-1] == xid
        nvml._note_fault(later := fault_of("GPU-2", 2.0))
        assert nvml.xids[-1] == dataclasses.replace(xid, fault=later)
        assert nvml.xids[0] == first


# --- the vendor's package ------------------------------------------------------------------


def test_names_are_those_of_the_package() -> None:
    pynvml = pytest.importorskip("pynvml")
    tree = ast.parse(FUNCTIONS.read_text(encoding="utf-8"))
    named = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        if node.attr.startswith(("nvml", "NVML"))
        if node.attr != "nvmlReturn"  # a field
    }
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named |= {text for text in texts if isinstance(text, str) and text.startswith("NVML_")}
    assert len(named) > 50
    assert {name for name in named if not hasattr(pynvml, name)} == set()


def test_the_fake_is_like_the_package() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name, thing in vars(FakeNvml).items():
        if not name.startswith(("nvml", "NVML_")):
            continue
        if inspect.isfunction(thing):
            _, *ours = inspect.signature(thing).parameters.values()
            theirs = inspect.signature(getattr(pynvml, name)).parameters.values()
            shape = [(one.name, one.default) for one in ours]
            assert shape == [(one.name, one.default) for one in theirs], name
        else:
            assert thing == getattr(pynvml, name), name


async def test_nvml_whose_gpus_cannot_be_found_is_closed_again() -> None:
    fake = FakeNvml(FakeGpu())

    def lost(_index: int) -> None:
        raise fake.NVMLError(fake.NVML_ERROR_GPU_IS_LOST)

    fake.nvmlDeviceGetHandleByIndex = lost  # type: ignore[assignment,method-assign]
    for _ in range(3):
        with pytest.raises(fake.NVMLError):
            NvmlLibrary(fake)
        assert fake.opened == 0
