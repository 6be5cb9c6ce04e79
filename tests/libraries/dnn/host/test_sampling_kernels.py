"""Kernels that sample images: on the host, in the place of the CPU's way; and by NVRTC."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.executors.device_code import C_TYPES, CudaSource
from atomr_accel.libraries.dnn.graph._run import LANE
from atomr_accel.libraries.dnn.host import _cuda_sampling
from atomr_accel.libraries.dnn.host._cpu import CpuDnn
from atomr_accel.libraries.dnn.host._cuda_sampling import SOURCE, CudaSampling, sampling_name

from ...compiling import check_all_compile
from ...conformance import conform, on_cuda
from ...host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from ..routines import test_sampling
from ..rows.sampling import DTYPES, OPERATIONS

THREADS = 64
GRID = "const {t}* grid; Grid how"
MEMBERS = {
    "affine": "{t}* grid; const {t}* theta; Affine how",
    "affine_back": "{t}* dtheta; const {t}* dgrid; Affine how",
    "sample": "{t}* y; const {t}* x; " + GRID,
    "scatter": "{a}* dx; const {t}* dy; " + GRID + "; i64 ordered",
    "convert": "{t}* y; const {a}* x; i64 count",
    "steer": "{t}* dgrid; const {t}* dy; const {t}* x; " + GRID,
    "unfold": "{t}* y; const {t}* x; Windows how",
    "fold": "{t}* x; const {t}* y; Windows how",
    "pool": "{t}* y; i64* indices; const {t}* x; Windows how",
    "unpool": "{t}* x; const {t}* y; const i64* indices; Windows how",
    "pick": "{t}* y; const {t}* x; const i64* indices; Windows how",
}
"""The kernels' parameters, with the types of elements and of sums."""


def instances() -> dict[str, str]:
    """Every kernel with its parameters."""
    found = {}
    for dtype in DTYPES:
        types = {"t": C_TYPES[dtype], "a": "double" if dtype == "float64" else "float"}
        found[f"clear<{types['t']}>"] = "{t}* y; i64 count".format(**types)
        for name, members in MEMBERS.items():
            found[sampling_name(name, dtype)] = members.format(**types)
    return found


class OnHost:
    """The CPU's executor, but samples are by the kernels."""

    def __init__(self, context: Any, stream: Any) -> None:
        pointer = SimpleNamespace(pointer=lambda at: context.bytes_at(at, 1).ctypes.data)
        sampling = CudaSampling(pointer, stream)  # type: ignore[arg-type]
        self.handlers = {**CpuDnn(context, stream).handlers, **sampling.handlers}

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = CudaSource(CudaSampling.__module__.rpartition(".")[0], "sampling.cu", THREADS=THREADS)
    folder = tmp_path_factory.mktemp("sampling")
    return compile_kernels(on_host(source), instances(), folder, threads=THREADS)


@pytest.fixture
def _kernels(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda_sampling, "THREADS", THREADS)
    monkeypatch.setattr(_cuda_sampling, "Kernels", lambda *_: HostKernels(compiled))
    assert isinstance(LANE.executors, dict)
    monkeypatch.setitem(LANE.executors, "cpu", f"{__name__}:OnHost")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(on_cuda(), reason="the real ones are there"),
    pytest.mark.usefixtures("_kernels"),
]

test_conforms = needs_compiler(conform(OPERATIONS, of="kernels of samples", take=2))
test_largest_of_nan = needs_compiler(test_sampling.test_largest_of_nan)
test_positions = needs_compiler(test_sampling.test_positions_that_are_no_numbers_and_far_away)
test_weights = needs_compiler(test_sampling.test_elements_of_weight_zero_do_not_count)
test_parts = needs_compiler(test_sampling.test_pooling_in_parts_and_back)
test_batches = needs_compiler(test_sampling.test_batches_and_empty_batches)


@needs_compiler
async def test_indices_that_are_not_there(device: Device) -> None:
    """Nothing is written or read at them."""
    x = await device.put(np.array([[[1, 2, 3]]], np.float32))
    indices = await device.put(np.array([[[4, 1, -1]]], np.int64))
    made = await device.dnn.max_unpool(x, indices, 2, stride=1)
    np.testing.assert_array_equal(await device.get(made), [[[0, 2, 0, 0]]])
    back = await device.dnn.max_unpool_grad(made, indices)
    np.testing.assert_array_equal(await device.get(back), [[[0, 2, 0]]])


@pytest.mark.headers
def test_nvrtc_compiles_them() -> None:
    check_all_compile(SOURCE, instances())
