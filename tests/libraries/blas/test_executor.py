"""The CUDA executor on a cuBLAS of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, Unsupported
from atomr_accel.libraries.blas.facade import LANE
from atomr_accel.libraries.blas.wire._rows import Row

from ... import seeds
from ...fakes.cublas import FakeCudaBlas, FakeKernels, FakeLibrary
from ...fakes.driver import FakeDriver
from ..conformance import conform, on_cuda, put_any
from .rotations import POINTS, rotg_promises, rotm_promises, rotmg_promises
from .rows import OPERATIONS
from .scalars import PRODUCTS, WITH_SCALARS, does_for_a_number, scales_products

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@dataclass
class Fakes:
    """Stand-ins for the vendor libraries."""

    library: FakeLibrary
    driver: FakeDriver


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Fakes:
    from atomr_accel.executors import cuda_kernels as _cuda_kernels
    from atomr_accel.libraries.blas.host import _cuda
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle

    library = FakeLibrary()
    for module in (_cuda_handle, _cuda):
        monkeypatch.setattr(module, "load_cublas", lambda: library)
    monkeypatch.setattr(_cuda_kernels, "Kernels", FakeKernels)
    FakeCudaBlas.install(monkeypatch, LANE)
    return Fakes(library, driver)


test_conforms = conform(OPERATIONS, take=9, of="the executor of blas")
test_conforms_on_views = conform(OPERATIONS, take=12, of="the executor of blas", put=put_any)


@pytest.mark.parametrize("row", WITH_SCALARS, ids=[row.name for row in WITH_SCALARS])
async def test_a_buffer_does_for_a_number(device: Device, row: Row) -> None:
    await does_for_a_number(device, row)


@pytest.mark.parametrize(("dtype", "of_scalars"), PRODUCTS)
async def test_products_take_them_too(device: Device, dtype: str, of_scalars: str) -> None:
    await scales_products(device, dtype, of_scalars)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
async def test_rotations(device: Device, dtype: str) -> None:
    await rotg_promises(device, dtype)
    for point in POINTS if dtype == "float32" else ():
        await rotmg_promises(device, point, dtype)
    for flag in (-2, -1, 0, 1):
        await rotm_promises(device, flag)


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


async def test_graph_keeps_its_inputs_alive(
    device: Device, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pointer tables that it copies, and the sizes of products of different shapes."""
    kept: list[tuple[Any, Any]] = []
    stream = SimpleNamespace(
        handle=0, pointer=0, captures=True, keep=lambda *each: kept.append((*each, None)[:2])
    )
    monkeypatch.setattr(FakeCudaBlas, "stream", stream)
    a, b = [await device.put(np.ones((n, n), np.float32)) for n in (4, 5)]
    sources: list[int] = []
    read: list[int] = []
    grouped = fakes.library.functions["cublasGemmGroupedBatchedEx_64"]

    def reading(handle: int, *args: Any) -> int:
        read.extend(args[i] for i in range(6))
        return int(grouped(handle, *args))

    fakes.library.functions["cublasGemmGroupedBatchedEx_64"] = reading
    copy = fakes.driver.cuMemcpyHtoDAsync

    def spy(to: int, source: int, nbytes: int, stream: Any) -> Any:
        sources.append(source)
        return copy(to, source, nbytes, stream)

    fakes.driver.change(cuMemcpyHtoDAsync=spy)
    out = await device.empty((4, 4), np.float32)
    for _ in range(2):
        assert await device.blas.gemm_batched([a], [a], out=[out]) == [out]
        assert (await device.get(out) == 4).all()
    large = (await device.blas.gemm_grouped_batched([a, b], [a, b]))[1]
    assert (await device.get(large) == 5).all()
    arrays = [array for thing, _ in kept if isinstance(thing, list) for array in thing]
    assert read
    assert {*read} <= {array.ctypes.data for array in arrays}
    assert len(sources) == 3
    assert {*sources} <= {*fakes.driver.held}, "freed, though a graph would read it again"
    for _, give_back in kept:
        if give_back is not None:
            give_back()
    assert not {*sources} & {*fakes.driver.held}


async def test_products_of_views_by_pointers_touch_no_misaligned_memory(
    device: Device, fakes: Fakes
) -> None:
    """The fake stops where a device would fault; see ``require_alignment``."""
    host = seeds.rng().standard_normal(200).astype(np.float16)
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


async def test_rows_too_far_apart_for_the_drivers_functions_go_one_by_one(
    device: Device, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle

    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 5, 7))
    x = np.arange(12.0)
    expected = [np.linalg.lstsq(one, other)[0] for one, other in zip(a, b, strict=True)]
    called: list[int] = []
    for most, together in ((2**31 - 1, True), (16, False)):
        monkeypatch.setattr(_cuda_handle, "_MOST_PITCH", most)
        called.clear()
        for name in ("cuMemcpy2DAsync", "cuMemsetD2D8Async"):
            function = getattr(fakes.driver, name)

            def spy(*args: Any, function: Any = function) -> Any:
                called.append(1)
                return function(*args)

            monkeypatch.setattr(fakes.driver, name, spy)
        solved, _ = await device.blas.gels_batched(await device.put(a), await device.put(b))
        np.testing.assert_allclose(await device.get(solved), expected)
        scaled = await device.put(x)
        await device.blas.scal(0.0, scaled[::3])
        assert (await device.get(scaled)).tolist() == [
            0.0 if not i % 3 else float(i) for i in range(12)
        ]
        assert bool(called) == together


async def test_a_product_that_runs_again_has_other_pointers_and_scalars(device: Device) -> None:
    one = np.ones((3, 3), np.float32)
    a, b = await device.put(one), await device.put(2 * one)
    for x, alpha, beta in ((a, 1, 0), (b, 1, 0), (b, 2, 3), (a, 0.0, 0), (a, -0.0, 0), (a, 1, 0)):
        c = await device.put(10 * one)
        await device.blas.gemm(x, a, out=c, alpha=alpha, beta=beta)
        made = await device.get(c)
        np.testing.assert_array_equal(made, alpha * 3 * await device.get(x) + beta * 10)
        assert np.signbit(made).all() == np.signbit(alpha)
    assert np.isnan(await device.get(await device.blas.gemm(a, a, alpha=np.nan))).all()


@pytest.mark.parametrize("kind", ["batch", "view", "complex"])
async def test_products_of_batches_and_views_run_again_by_templates(
    device: Device, kind: str
) -> None:
    dtype = np.complex64 if kind == "complex" else np.float32
    host = np.arange(48, dtype=dtype).reshape(3, 4, 4)
    for step in range(4):
        given = host + step
        a, b = await device.put(given), await device.put(given[:, ::-1].copy())
        if kind == "view":
            made = await device.blas.gemm(a[1, :, :3], b[2, :3], alpha=2)
            wanted = 2 * given[1, :, :3] @ given[2, ::-1][:3]
        else:
            made = await device.blas.gemm(a, b, alpha=2)
            wanted = 2 * given @ given[:, ::-1]
        np.testing.assert_array_equal(await device.get(made), wanted)


async def test_compute_types_that_a_release_does_not_know(device: Device, fakes: Fakes) -> None:
    compute = "64F_EMULATED_FIXEDPOINT"
    for dtype in (np.float64, np.complex128):
        a = await device.put(np.full((4, 4), 2, dtype))
        fakes.library.version = 130_000
        with pytest.raises(Unsupported, match=r"needs cuBLAS 13\.1; this is 13\.0"):
            await device.blas.gemm(a, a, compute_type=compute)
        fakes.library.version = 130_100
        product = await device.blas.gemm(a, a, compute_type=compute)
        assert (await device.get(product) == 16).all()
