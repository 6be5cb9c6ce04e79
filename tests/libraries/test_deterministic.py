"""A deterministic device: results depend neither on other ops in flight nor on time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import open_device
from atomr_accel.device import Device
from atomr_accel.libraries.blas.facade import LANE
from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.wire._graph import DnnGraph, encode

from ..fakes import cudnn as fake_cudnn
from ..fakes.cublas import FakeCudaBlas, FakeKernels, FakeLibrary
from ..fakes.driver import FakeDriver
from .conformance import on_cuda
from .dnn.host.offers import graphs_of, offer
from .dnn.rows import attention as attention_rows
from .dnn.rows import ops as dnn_rows

not_on_cuda = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> list[str]:
    """Which functions of cuBLAS are called for products."""
    from atomr_accel.executors import cuda_kernels as _cuda_kernels
    from atomr_accel.libraries.blas.host import _cuda
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle

    library = FakeLibrary()
    calls: list[str] = []

    def noted(name: str, function: Any) -> Any:
        def call(*args: Any) -> int:
            calls.append(name)
            status: int = function(*args)
            return status

        return call

    for name in ("cublasGemmEx_64", "cublasGemmBatchedEx_64"):
        library.functions[name] = noted(name, library.functions[name])
    for module in (_cuda_handle, _cuda):
        monkeypatch.setattr(module, "load_cublas", lambda: library)
    monkeypatch.setattr(_cuda_kernels, "Kernels", FakeKernels)
    FakeCudaBlas.install(monkeypatch, LANE)
    return calls


@not_on_cuda
@pytest.mark.parametrize("deterministic", [False, True])
async def test_products_are_not_launched_together(
    launched: list[str], *, deterministic: bool
) -> None:
    async with open_device(
        0, backend="cpu", isolation="thread", deterministic=deterministic
    ) as device:
        a = await device.put(np.eye(4, dtype=np.float32))
        out = await device.blas.gemm(a, a)
        async with device.batch() as batch:
            products = [batch.blas.gemm(a, a) for _ in range(64)]
        for product in (out, *products):
            assert np.array_equal(await device.get(product), np.eye(4))
    together = "cublasGemmBatchedEx_64" in launched
    assert together is not deterministic
    if deterministic:
        assert launched == ["cublasGemmEx_64"] * 65


@not_on_cuda
@pytest.mark.parametrize(
    ("captures", "deterministic"), [(False, False), (False, True), (True, False)]
)
def test_products_have_the_workspace_that_they_have_in_graphs(
    launched: list[str],  # for its fakes
    monkeypatch: pytest.MonkeyPatch,
    *,
    captures: bool,
    deterministic: bool,
) -> None:
    """The choice of cuBLAS depends on the size of the workspace."""
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle

    library: Any = _cuda_handle.load_cublas()
    given: list[int] = []

    def note(_handle: int, _workspace: int, nbytes: int) -> int:
        given.append(nbytes)
        return 0

    library.functions["cublasSetWorkspace_v2"] = note
    context: Any = SimpleNamespace(pointer=int, deterministic=deterministic)
    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=captures)
    _cuda_handle.CublasHandle(context, stream).close()
    assert given == ([0, 32 << 20] if captures or deterministic else [0])


async def test_deterministic_device_has_no_races() -> None:
    async with open_device(0, backend="cpu", isolation="thread", deterministic=True) as device:
        a = await device.put(np.eye(4, dtype=np.float32))
        with pytest.raises(ValueError, match="wins a race"):
            await device.blaslt.matmul(a, a, autotune=True)
        with pytest.raises(ValueError, match="wins a race"):
            await device.dnn.conv(*[await device.put(np.ones((1, 1, 2, 2)))] * 2, autotune=True)
        graph = device.dnn.graph()
        graph.output(graph.relu(graph.tensor((4, 4, 4), "float32")))
        with pytest.raises(ValueError, match="wins a race"):
            await graph.build(autotune=True)
        async with device.batch() as batch:
            with pytest.raises(ValueError, match="wins a race"):
                batch.blaslt.matmul(a, a, autotune=True)
        await device.blaslt.matmul(a, a)


async def test_deterministic_option_is_a_bool() -> None:
    for wrong in (1, "yes", None):
        with pytest.raises(TypeError, match=f"deterministic must be True or False, not {wrong!r}"):
            async with open_device(0, backend="cpu", deterministic=wrong):  # type: ignore[arg-type]
                pass


def a_weight_gradient() -> DnnGraph:
    builder = Builder()
    x, dy = (builder.tensor((8, 64, 28, 28), "float32") for _ in range(2))
    names = ("pre_padding", "post_padding", "stride", "dilation")
    window: dict[str, Any] = dict.fromkeys(names, (1, 1))
    made = builder.node("conv_wgrad", image=x, loss=dy, shape=(64, 64, 3, 3), **window)
    builder.output(next(iter(made.values())))
    return builder.finish()


@not_on_cuda
@pytest.mark.parametrize("deterministic", [False, True])
def test_plans_of_cudnn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, deterministic: bool
) -> None:
    from atomr_accel.executors.disk_cache import DiskCache
    from atomr_accel.libraries.dnn.host import _plans

    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    frontend = fake_cudnn.FakeFrontend()
    monkeypatch.setattr(_plans, "load_frontend", lambda: frontend)
    monkeypatch.setattr(_plans, "version", lambda: 90000)

    def store(*, deterministic: bool) -> Any:
        files = DiskCache("plans")
        return _plans.DnnPlanStore("", (9, 0), files, bool, deterministic=deterministic)

    encoded = encode(a_weight_gradient())
    assert store(deterministic=deterministic).find(encoded, 1, tuned=False)[1] == "built"
    note = frontend.numerical_note.NONDETERMINISTIC
    assert (note in frontend.deselected) is deterministic
    # What is on disk is for the likes of it.
    assert store(deterministic=deterministic).find(encoded, 1, tuned=False)[1] == "disk"
    assert store(deterministic=not deterministic).find(encoded, 1, tuned=False)[1] == "built"


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("rows", [attention_rows, dnn_rows])
async def test_cudnn_has_plans_that_are_deterministic(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: Any
) -> None:
    """For all that it takes otherwise, or else there are kernels of our own."""
    graphs = list(await graphs_of(monkeypatch, rows.OPERATIONS))
    usual = offer(graphs, tmp_path)
    for before, verdict in zip(usual, offer(graphs, tmp_path, "--deterministic"), strict=True):
        if before.startswith("takes"):
            assert verdict.startswith("takes"), f"{before}, but then {verdict}"
