"""The CUDA executor on a cuBLASLt of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, Unsupported
from atomr_accel.host.templates import HostTemplate
from atomr_accel.libraries.blaslt._facade import LANE

from ...fakes.cublaslt import FakeCudaBlasLt, FakeEvents, FakeLt
from ...fakes.driver import FakeDriver
from ...fakes.vendor import FakeContext
from ..conformance import check, conform, dtype_of, on_cuda
from ..host_kernels import compile_kernels, needs_compiler, on_host
from .rows import E2M1, E4M3, OPERATIONS

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeLt:
    from atomr_accel.libraries.blaslt.host import _cuda

    fake = FakeLt()
    fake.events = FakeEvents(driver, fake)
    monkeypatch.setattr(_cuda, "load_cublaslt", lambda: fake)
    FakeCudaBlasLt.install(monkeypatch, LANE)
    return fake


test_conforms = conform(
    [each for each in OPERATIONS if not each.name.endswith(("fp4", "mxfp8"))],  # it is a Hopper
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
async def test_block_scales_are_tiled_and_fp4_is_packed(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from atomr_accel.executors import cuda_kernels as _cuda_kernels
    from atomr_accel.libraries.blaslt.host import _cuda

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
    for dtype, kind in ((E2M1, "fp4"), (E4M3, "mxfp8")):
        (operation,) = [each for each in OPERATIONS if each.name.endswith(f" {kind}")]
        for case in operation.cases:
            await check(device, operation, dtype, case, "the executor of blaslt")


async def test_fp4_is_refused_where_the_device_has_none(device: Device) -> None:
    a = await device.put(np.ones((32, 32), dtype_of(E2M1)))
    scale = await device.put(np.ones((32, 2), dtype_of("float8_e4m3fn")))
    with pytest.raises(Unsupported, match=r"fp4 needs compute capability 10\.0"):
        await device.blaslt.matmul(a, a, trans_b=True, scale_a=scale, scale_b=scale)


async def test_block_scales_of_fp8_are_refused_where_the_device_has_none(device: Device) -> None:
    a = await device.put(np.ones((32, 32), dtype_of(E4M3)))
    scale = await device.put(np.full((32, 1), 127, np.uint8))
    with pytest.raises(Unsupported, match=r"scales of fp8 need compute capability 10\.0"):
        await device.blaslt.matmul(a, a, trans_b=True, scale_a=scale, scale_b=scale)


async def test_an_algorithm_by_its_number(device: Device, library: FakeLt) -> None:
    a = await device.put(np.ones((16, 16), np.float32))
    assert await device.blaslt.algorithms(a, a) == [60, 61]
    for number, expected in ((61, "algorithm 1"), (60, "algorithm 0"), (61, "algorithm 1")):
        product = await device.blaslt.matmul(a, a, algorithm=number)
        assert library.launched[-1] == expected
        assert (await device.get(product) == 16).all()
    with pytest.raises(
        Unsupported, match=r"algorithm must be one that cuBLASLt has for this product, \[60,"
    ):
        await device.blaslt.matmul(a, a, algorithm=7)


async def test_factors_of_columns_move_with_their_buffer(device: Device) -> None:
    a = await device.put(np.eye(4, dtype=np.float32))
    for number in (2, 3, 5, 7):
        alpha = await device.put(np.full(4, number, np.float32))
        product = await device.blaslt.matmul(a, a, alpha=alpha)
        np.testing.assert_array_equal(await device.get(product), number * np.eye(4))


async def test_a_product_that_runs_again_has_other_pointers_and_scalars(
    device: Device, library: FakeLt
) -> None:
    one = np.ones((4, 4), np.float32)
    a = await device.put(one)
    biases = [await device.put(np.full(4, each, np.float32)) for each in (1, 2)]
    c = await device.put(10 * one)
    for bias, alpha, beta in ((0, 1, 0), (1, 1, 0), (1, 2, 0), (0, 2, 3), (0, 1, 0)):
        d = await device.blaslt.matmul(a, a, bias=biases[bias], c=c, alpha=alpha, beta=beta)
        expected = alpha * 4 * one + beta * 10 + bias + 1
        np.testing.assert_array_equal(await device.get(d), expected)
    assert library.set.count("BIAS_POINTER") == 1 + 3  # for the heuristic, and where it changed


async def test_a_pointer_that_could_not_be_set_is_set_again(
    device: Device, library: FakeLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await device.put(np.ones((4, 4), np.float32))
    first, second = [await device.put(np.full(4, each, np.float32)) for each in (1, 2)]
    await device.blaslt.matmul(a, a, bias=first)
    with monkeypatch.context() as patch:
        patch.setitem(library.functions, "cublasLtMatmulDescSetAttribute", lambda *_: 7)
        with pytest.raises(LibraryError, match=r"SetAttribute\(BIAS_POINTER\)"):
            await device.blaslt.matmul(a, a, bias=second)
    for bias, value in ((second, 6), (first, 5)):
        d = await device.get(await device.blaslt.matmul(a, a, bias=bias))
        np.testing.assert_array_equal(d, np.full((4, 4), value))


async def test_repeated_product_of_a_batch_is_prepared_once(
    device: Device, library: FakeLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated call is prepared once, also before the program knows of an algorithm."""
    filled: list[object] = []
    monkeypatch.setattr(HostTemplate, "filled", lambda *given: filled.append(given))
    a = await device.put(2 * np.eye(4, dtype=np.float32))
    await device.blaslt.matmul(a[:2, :2], a[:2, :2])  # the lane is open
    library.launched.clear()
    async with device.batch() as batch:
        y = a
        for _ in range(5):
            y = batch.blaslt.matmul(y, a)
    np.testing.assert_array_equal(await device.get(y), 2**6 * np.eye(4))
    assert len(library.launched) == 5
    assert not filled


async def test_a_product_that_was_dropped_is_prepared_again(
    device: Device, library: FakeLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.blaslt.host import _cuda

    monkeypatch.setattr(_cuda, "_MOST_PLANS", 1)
    bias = await device.put(np.ones(4, np.float32))
    arrays = [await device.put(np.ones((n, 4), np.float32)) for n in (4, 8)]
    for _ in range(2):
        for a in arrays:
            d = await device.get(await device.blaslt.matmul(a, arrays[0], bias=bias))
            np.testing.assert_array_equal(d, np.full(a.shape, 5))
    assert library.set.count("BIAS_POINTER") == 2 * 4
