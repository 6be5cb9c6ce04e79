"""The CUDA executor on a cuBLAS of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel import LibraryError, Unsupported
from atomr_accel.libraries.blas import LANE

from .blas_rows import OPERATIONS
from .conformance import conform, on_cuda
from .fake_cublas import FakeCudaBlas, FakeKernels, FakeLibrary, fake_driver

if TYPE_CHECKING:
    from atomr_accel import Device

pytest.importorskip("cuda.bindings.driver")

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@dataclass
class Fakes:
    """What stands for the vendor's libraries."""

    library: FakeLibrary
    driver: SimpleNamespace


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    from atomr_accel.libraries import _cuda_kernels
    from atomr_accel.libraries.blas import _cuda, _cuda_handle, _fused

    def check(_call: str, answer: tuple[Any, ...]) -> Any:
        assert answer[0] == 0
        return answer[1] if len(answer) > 1 else None

    library, driver = FakeLibrary(), fake_driver()
    for module in (_cuda_handle, _fused):
        monkeypatch.setattr(module, "driver", driver)
        monkeypatch.setattr(module, "check", check)
    for module in (_cuda_handle, _cuda):
        monkeypatch.setattr(module, "load_cublas", lambda: library)
    monkeypatch.setattr(_cuda_kernels, "Kernels", FakeKernels)
    assert isinstance(LANE.executors, dict)
    monkeypatch.setitem(LANE.executors, "cpu", f"{FakeCudaBlas.__module__}:FakeCudaBlas")
    return Fakes(library, driver)


test_conforms = conform(OPERATIONS, take=3, of="the executor of blas")


async def test_a_status_becomes_an_error_that_says_it(device: Device, fakes: Fakes) -> None:
    a = await device.put(np.ones((4, 4), np.float32))
    fakes.library.functions["cublasGemmEx_64"] = lambda *_: 13
    with pytest.raises(LibraryError) as caught:
        await device.blas.gemm(a, a)
    assert (caught.value.library, caught.value.call) == ("cublas", "cublasGemmEx_64")
    assert caught.value.status == 13
    fakes.library.functions["cublasSsymm_v2_64"] = lambda *_: 15
    with pytest.raises(Unsupported, match="cublasSsymm"):
        await device.blas.symm(a, a)
    assert (await device.get(await device.blas.trmm(a, a))).any(), "the lane goes on"


async def test_small_products_go_without_a_workspace_unless_that_fails(
    device: Device, fakes: Fakes
) -> None:
    handles: list[int] = []
    gemm = fakes.library.functions["cublasGemmEx_64"]

    def spy(handle: int, *arguments: Any) -> int:
        handles.append(handle)
        return 3 if handle == 2 and arguments[2] == 5 else gemm(handle, *arguments)

    fakes.library.functions["cublasGemmEx_64"] = spy
    refs = {n: await device.put(np.ones((n, n), np.float32)) for n in (4, 5, 600)}
    for n, expected in ((4, [2]), (5, [2, 1]), (600, [1])):
        handles.clear()
        assert (await device.get(await device.blas.gemm(refs[n], refs[n])) == n).all()
        assert handles == expected


async def test_what_a_graph_copies_from_stays(device: Device, fakes: Fakes) -> None:
    a = await device.put(np.ones((4, 4), np.float32))
    sources: list[int] = []
    copy = fakes.driver.cuMemcpyHtoDAsync

    def spy(to: int, source: int, nbytes: int, stream: Any) -> Any:
        sources.append(source)
        return copy(to, source, nbytes, stream)

    fakes.driver.cuMemcpyHtoDAsync = spy
    fakes.driver.cuStreamIsCapturing = lambda _stream: (0, 1)
    out = await device.empty((4, 4), np.float32)
    for _ in range(2):
        assert await device.blas.gemm_batched([a], [a], out=[out]) == [out]
        assert (await device.get(out) == 4).all()
    assert sources
    assert fakes.driver.held(sources[0]), "freed, though a graph would read it again"


async def test_products_of_views_by_pointers_touch_no_misaligned_memory(
    device: Device, fakes: Fakes
) -> None:
    """The fake stops where a device would fault; see ``require_alignment``."""
    host = np.random.default_rng().standard_normal(200).astype(np.float16)
    buffer = await device.put(host)
    for start in (0, 1, 4, 8):
        a, b = (buffer[at : at + 32].reshape(4, 8) for at in (start, start + 64))
        wide = [host[at : at + 32].reshape(4, 8).astype(np.float32) for at in (start, start + 64)]
        expected = wide[0] @ wide[1].T
        (one,) = await device.blas.gemm_batched([a], [b], trans_b=True)
        np.testing.assert_allclose(await device.get(one), expected, rtol=1e-2, atol=1e-2)
        many = await device.blas.gemm_grouped_batched([a, a], [b, b], trans_b=True)
        np.testing.assert_allclose(await device.get(many[1]), expected, rtol=1e-2, atol=1e-2)
        async with device.batch() as batch:
            fused = [batch.blas.gemm(a, b, trans_b=True) for _ in range(5)]
        np.testing.assert_allclose(await device.get(fused[4]), expected, rtol=1e-2, atol=1e-2)
