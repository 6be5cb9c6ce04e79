"""The CUDA executor on a cuSPARSELt of NumPy: the same rows, through the vendor's prototypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, LibraryMissing, Unsupported
from atomr_accel.libraries.sparselt._facade import LANE
from atomr_accel.libraries.sparselt.host._prototypes import STATUSES

from ...fakes.cusparselt import ALGORITHMS, SCRATCH, FakeCudaSparseLt, FakeSparseLt
from ...fakes.driver import FakeDriver
from ..conformance import conform, on_cuda
from .rows import OPERATIONS, PLAIN

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeSparseLt:
    from atomr_accel.libraries.sparselt.host import _cuda

    fake = FakeSparseLt()
    fake.room = lambda pointer: len(driver.held[pointer])
    monkeypatch.setattr(_cuda, "load_cusparselt", lambda: fake)
    FakeCudaSparseLt.install(monkeypatch, LANE)
    return fake


test_conforms = conform(OPERATIONS, take=4, of="the executor of sparselt")


async def operands(device: Device, dtype: str = "float16") -> Any:
    a = await device.sparselt.prune(await device.put(np.ones((32, 32), dtype)))
    b = await device.put(np.ones((16, 32), dtype))
    return await device.sparselt.compress(a), b.T


async def test_plans_are_kept_by_all_that_they_depend_on(
    device: Device, library: FakeSparseLt
) -> None:
    a, b = await operands(device)
    biases = [await device.put(np.ones(32, np.float16)) for _ in range(2)]
    out = await device.empty((32, 16), np.float16)
    matmul = device.sparselt.matmul

    async def plans(**options: Any) -> int:
        before = library.called.count("MatmulPlanInit")
        made = await device.get(await matmul(a, b, **options))
        assert (made == 16 + ("bias" in options)).all()
        return library.called.count("MatmulPlanInit") - before

    assert [await plans(), await plans(), await plans(out=out)] == [1, 0, 0]
    assert [await plans(bias=each) for each in (*biases, *biases)] == [1, 1, 0, 0]
    assert await plans(order="F") == 1
    assert await plans(epilogue="relu") == 1
    assert [await plans(autotune=True) for _ in range(2)] == [1 + ALGORITHMS, 0]


@pytest.mark.parametrize("fastest", [0, 1, 3])
async def test_algorithms_are_timed_once_in_scratch_memory_of_their_own(
    device: Device, library: FakeSparseLt, driver: FakeDriver, fastest: int
) -> None:
    a, b = await operands(device)
    out = await device.put(np.ones((32, 16), np.float16))
    driver.change(cuEventElapsedTime=lambda *_: (0, float(library.ran[-1] != fastest)))
    for _ in range(2):
        await device.sparselt.matmul(a, b, out=out, beta=1.0, autotune=True)
    assert (await device.get(out) == 33).all()
    assert set(library.ran) == {0, 1, 3}
    assert library.ran[-2:] == [fastest, fastest]
    scratch = [len(each) for each in driver.held.values()]
    assert scratch == [SCRATCH * fastest] * (fastest > 0)
    assert driver.events == 0


async def test_tuning_leaves_nothing_when_an_algorithm_fails(
    device: Device, library: FakeSparseLt, driver: FakeDriver
) -> None:
    a, b = await operands(device)
    held = library.held
    matmul = library.Matmul

    def failing(*args: Any) -> int:
        if library.of(args[1]).algorithm == 3:
            return STATUSES["CUSPARSE_STATUS_EXECUTION_FAILED"]
        return matmul(*args)

    library.Matmul = failing  # type: ignore[method-assign,assignment]
    with pytest.raises(LibraryError):
        await device.sparselt.matmul(a, b, autotune=True)
    assert library.held == held
    assert not driver.held
    assert driver.events == 0


async def test_temporary_descriptors_are_destroyed(
    device: Device, library: FakeSparseLt, driver: FakeDriver
) -> None:
    a = await device.put(np.ones((32, 32), np.float16))
    pruned = await device.sparselt.prune(a)
    await device.sparselt.compress(pruned)
    assert await device.sparselt.check(pruned)
    assert library.held == 1  # the handle
    held = len(driver.held)
    assert not await device.sparselt.check(a)
    assert len(driver.held) == held


@pytest.mark.parametrize("dtype", PLAIN[::2])
async def test_gelu_is_of_narrow_types(device: Device, dtype: str, library: FakeSparseLt) -> None:
    a, b = await operands(device, dtype)
    held = library.held
    with pytest.raises(Unsupported, match=f"multiply {dtype} to {dtype} with gelu"):
        await device.sparselt.matmul(a, b, epilogue="gelu")
    assert library.held == held


async def test_without_the_library(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.sparselt.host import _cuda

    def load() -> Any:
        raise LibraryMissing("the vendor library is not installed", library="cusparseLt")

    monkeypatch.setattr(_cuda, "load_cusparselt", load)
    with pytest.raises(LibraryMissing):
        await device.sparselt.prune(await device.put(np.ones((32, 32), np.float16)))
