"""The CUDA executor on a cuBLASLt of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel import Unsupported
from atomr_accel.libraries.blaslt._facade import LANE

from ...fakes.cublas import FakeContext
from ...fakes.cublaslt import FakeCudaBlasLt, FakeEvents, FakeLt
from ..conformance import check, conform, dtype_of, on_cuda
from ..host_kernels import compile_kernels, needs_compiler, on_host
from .rows import E2M1, OPERATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from atomr_accel import Device

    from ...fakes.driver import FakeDriver

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeLt:
    from atomr_accel.libraries.blaslt.host import _cuda

    fake = FakeLt()
    fake.events = FakeEvents(driver, fake)
    monkeypatch.setattr(_cuda, "load_cublaslt", lambda: fake)
    assert isinstance(LANE.executors, dict)
    executor = f"{FakeCudaBlasLt.__module__}:FakeCudaBlasLt"
    monkeypatch.setitem(LANE.executors, "cpu", executor)
    return fake


test_conforms = conform(
    [each for each in OPERATIONS if each.dtypes != (E2M1,)],  # the fake is a Hopper
    take=3,
    of="the executor of blaslt",
)


async def test_tuning_runs_every_candidate_and_remembers_the_best(
    device: Device, library: FakeLt
) -> None:
    a = await device.put(np.ones((16, 16), np.float32))
    library.events.milliseconds["algorithm 1"] = 0.25
    await device.blaslt.matmul(a, a, autotune=True)
    assert library.launched.count("algorithm 0") > 5
    assert library.launched[-1] == "algorithm 1"
    launched = len(library.launched)
    await device.blaslt.matmul(a, a, autotune=True)
    assert len(library.launched) == launched + 1


async def test_fp8_the_other_way_round_is_refused_with_a_hint(device: Device) -> None:
    a = await device.put(np.ones((16, 16), dtype_of("float8_e4m3fn")))
    with pytest.raises(Unsupported, match="trans_b=True"):
        await device.blaslt.matmul(a, a)


@needs_compiler
async def test_fp4_is_packed_and_its_scales_are_tiled(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from atomr_accel.libraries.blaslt.host import _cuda
    from atomr_accel.libraries.host import _cuda_kernels

    members = {
        "pack": "unsigned char* target; const unsigned char* source; u64 count",
        "tile": "unsigned char* target; const unsigned char* source; u64 count; u64 rows; "
        "u64 columns",
    }
    kernels = compile_kernels(on_host(_cuda._KERNELS), members, tmp_path)

    class HostKernels:
        def __init__(self, *_: Any) -> None:
            pass

        def function(self, name: str) -> Any:
            return kernels[name]

        def launch(self, function: Any, _items: int, arguments: Any) -> None:
            function(bytes(arguments._data))

        def close(self) -> None:
            pass

    monkeypatch.setattr(_cuda_kernels, "Kernels", HostKernels)
    monkeypatch.setattr(FakeContext, "compute_capability", (10, 0))
    (operation,) = [each for each in OPERATIONS if each.dtypes == (E2M1,)]
    for case in operation.cases:
        await check(device, operation, E2M1, case, "the executor of blaslt")


async def test_fp4_is_refused_where_the_device_has_none(device: Device) -> None:
    a = await device.put(np.ones((32, 32), dtype_of(E2M1)))
    scale = await device.put(np.ones((32, 2), dtype_of("float8_e4m3fn")))
    with pytest.raises(Unsupported, match=r"10\.0"):
        await device.blaslt.matmul(a, a, trans_b=True, scale_a=scale, scale_b=scale)
