"""Kernels of losses: on the host, in the place of the CPU's way; and that NVRTC takes them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.executors.device_code import C_TYPES, CudaSource
from atomr_accel.libraries.dnn.graph._run import LANE
from atomr_accel.libraries.dnn.host import _cuda_losses, _cuda_routines
from atomr_accel.libraries.dnn.host._cpu import CpuDnn
from atomr_accel.libraries.dnn.host._cuda_losses import SOURCE, CudaLosses, loss_name
from atomr_accel.libraries.dnn.host._cuda_routines import Descriptors

from ....fakes.cudnn_routines import FakeRoutines
from ...compiling import check_all_compile
from ...conformance import conform, on_cuda
from ...host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from ..rows.losses import OPERATIONS

THREADS = 64
TYPES = (("float16", "int64"), ("float32", "int32"), ("float32", "int64"), ("float64", "int64"))
"""Which results are tried with which classes."""

SCORES = "const {x}* x; const {i}* target; const {x}* weights"


def instances(threads: int) -> dict[str, str]:
    """Every kernel with its parameters."""
    found = {}
    for (x, i), group in itertools.product(TYPES, (1, threads)):
        a = "float64" if x == "float64" else "float32"
        names = {"x": C_TYPES[x], "i": C_TYPES[i], "a": C_TYPES[a]}
        scores = SCORES.format(**names)
        for y in {a, x}:
            names["y"] = C_TYPES[y]
            found[loss_name("soft_rows", group, a, y, x)] = (
                "{y}* losses; const {x}* x; const {x}* target; const {x}* weights; Scores how"
            ).format(**names)
            found[loss_name("rows", group, a, y, x, i)] = "{y}* losses; {a}* counts; ".format(
                **names
            ) + (f"{scores}; Scores how")
            found[loss_name("ctc", a, y, x, i)] = (
                "{y}* losses; {x}* dx; const {x}* dy; const {x}* x; const {i}* targets; "
                "const {i}* input_lengths; const {i}* target_lengths; {a}* states; "
                "const {a}* costs; Classification how"
            ).format(**names)
        names["y"] = C_TYPES[x]
        found[loss_name("gradient", group, a, x, i)] = (
            f"{names['x']}* dx; const {names['x']}* dy; {scores}; "
            f"const {names['a']}* sum; Scores how; i64 each"
        )
        found[loss_name("soft_gradient", group, a, x)] = (
            "{x}* dx; const {x}* dy; const {x}* x; const {x}* target; const {x}* weights; "
            "Scores how; i64 each; double divisor"
        ).format(**names)
        found[loss_name("weigh", a, x, i)] = (
            "{a}* sum; const {i}* target; const {x}* weights; Scores how"
        ).format(**names)
        if (x, i) == ("float32", "int32"):
            found[loss_name("pack", a, x, i)] = (
                "Packed packed; const int* targets; const int* input_lengths; "
                "const int* target_lengths; Classification how"
            )
        found[loss_name("total", a, x)] = (
            "{y}* y; const {a}* values; const {a}* weights; i64 count; double divisor"
        ).format(**names)
    return found


class OnHost:
    """The CPU's executor, but losses are by the kernels."""

    def __init__(self, context: Any, stream: Any) -> None:
        pointer = SimpleNamespace(pointer=lambda at: context.bytes_at(at, 1).ctypes.data)
        self._memory: dict[int, Any] = {}
        losses = CudaLosses(pointer, stream, Descriptors(7), self._scratch)  # type: ignore[arg-type]
        self.handlers = {**CpuDnn(context, stream).handlers, **losses.handlers}

    def _scratch(self, nbytes: int) -> int:
        made = self._memory[nbytes] = np.full(nbytes, 0x7F, np.uint8)
        return int(made.ctypes.data)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = CudaSource(CudaLosses.__module__.rpartition(".")[0], "losses.cu", THREADS=THREADS)
    folder = tmp_path_factory.mktemp("losses")
    return compile_kernels(on_host(source), instances(THREADS), folder, threads=THREADS)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> FakeRoutines:
    fake = FakeRoutines()
    monkeypatch.setattr(_cuda_routines, "load_cudnn", lambda: fake)
    return fake


@pytest.fixture
def _kernels(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda_losses, "THREADS", THREADS)
    monkeypatch.setattr(_cuda_losses, "Kernels", lambda *_: HostKernels(compiled))
    assert isinstance(LANE.executors, dict)
    monkeypatch.setitem(LANE.executors, "cpu", f"{__name__}:OnHost")


def tried(row: Any) -> Any:
    """A row with cases of the kernels that are compiled."""
    dtypes = ("float16", "float32", "float64")
    return replace(
        row, dtypes=dtypes, cases=[each for each in row.cases if each["index"] == "int64"]
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(on_cuda(), reason="the real ones are there"),
    pytest.mark.usefixtures("_kernels"),
]

test_conforms = needs_compiler(conform([tried(row) for row in OPERATIONS], of="kernels of losses"))


@needs_compiler
async def test_classes_and_lengths_that_are_not_there(device: Device) -> None:
    """Kernels read nothing at invalid classes and lengths, and give NaN for them."""
    dnn = device.dnn
    nan = np.nan
    x = await device.put(np.zeros((4, 3), np.float32))
    one = await device.put(np.ones(4, np.float32))
    target = await device.put(np.array([0, 3, -1, -100], np.int32))
    losses = await device.get(await dnn.cross_entropy(x, target, reduction="none"))
    np.testing.assert_allclose(losses, [np.log(3), nan, nan, 0], rtol=1e-6)
    assert np.isnan(await device.get(await dnn.cross_entropy(x, target)))
    slopes = await device.get(await dnn.cross_entropy_grad(one, x, target, reduction="none"))
    np.testing.assert_array_equal(np.isnan(slopes).any(1), [False, True, True, False])

    logs = await device.put(np.full((4, 4, 3), -np.log(3), np.float32))
    rows = await device.put(np.array([[1, 2], [1, 7], [1, 2], [1, 2]], np.int32))
    steps = await device.put(np.array([4, 4, 5, 4], np.int32))
    counts = await device.put(np.array([2, 2, 2, 3], np.int32))
    given = (logs, rows, steps, counts)
    losses = await device.get(await dnn.ctc_loss(*given, reduction="none"))
    np.testing.assert_array_equal(np.isnan(losses), [False, True, True, True])
    slopes = await device.get(await dnn.ctc_loss_grad(one, *given, reduction="none"))
    np.testing.assert_array_equal(np.isnan(slopes).all((0, 2)), [False, True, True, True])
    assert np.isfinite(slopes[:, 0]).all()


def asked(row: Any) -> Any:
    """Return a row with the ordinary cases, which cuDNN takes."""
    cases = [
        {**each, "cudnn": True}
        for each in row.cases
        if each["index"] == "int32" and each["padded"] and not each["blank"]
    ]
    return replace(row, dtypes=("float32",), cases=cases)


CLASSIFICATIONS = [asked(row) for row in OPERATIONS if "ctc" in row.name]
test_cudnn_is_asked = needs_compiler(conform(CLASSIFICATIONS, of="kernels of losses"))


@needs_compiler
async def test_cudnn_is_asked_what_it_can_answer(device: Device, library: FakeRoutines) -> None:
    """For all others there is something in their places, and a kernel."""
    logs = await device.put(np.full((4, 4, 3), -np.log(3), np.float32))
    rows = await device.put(np.array([[1, 2], [1, 1], [1, 7], [0, 0]], np.int32))
    steps = await device.put(np.array([4, 2, 4, 3], np.int32))
    counts = await device.put(np.array([2, 2, 2, 0], np.int32))
    how: Any = {"reduction": "none", "cudnn": True}
    losses = await device.dnn.ctc_loss(logs, rows, steps, counts, **how)
    apart = await device.dnn.ctc_loss(logs, rows, steps, counts, reduction="none")
    assert library.classified == 4
    np.testing.assert_allclose(await device.get(losses), await device.get(apart), rtol=1e-6)


@pytest.mark.headers
def test_nvrtc_compiles_them() -> None:
    check_all_compile(SOURCE, instances(256))
