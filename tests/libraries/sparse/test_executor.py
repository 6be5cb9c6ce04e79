"""The CUDA executor on a cuSPARSE of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from atomr_accel import Device, LibraryError, Unsupported
from atomr_accel.libraries.sparse.part import LANE

from ...fakes.cusparse import FakeCudaSparse, FakeSparseLibrary
from ...fakes.driver import FakeDriver
from ..conformance import conform, on_cuda
from .rows import OPERATIONS

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")

CALLS = ("matmul", "sddmm", "spgemm", "spsolve_triangular", "solve_banded", "axpby", "gather")
MORE = ("scatter", "dot")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeSparseLibrary:
    from atomr_accel.libraries.sparse.host import _cuda_handle

    fake = FakeSparseLibrary()
    monkeypatch.setattr(_cuda_handle, "load_cusparse", lambda: fake)
    FakeCudaSparse.install(monkeypatch, LANE)
    return fake


test_conforms = conform(
    [row for row in OPERATIONS if row.name.partition(".")[2] in (*CALLS, *MORE)],
    take=4,
    of="the executor of sparse",
)

EYE = scipy.sparse.eye_array(6, format="csr")


async def test_scratch_memory_is_asked_for_once(device: Device, library: FakeSparseLibrary) -> None:
    a = await device.sparse.put(EYE)
    x = await device.put(np.ones(6))
    for _ in range(3):
        await device.sparse.matmul(a, x)
    assert library.called.count("cusparseSpMV") == 3
    assert library.called.count("cusparseSpMV_bufferSize") == 1


async def test_solve_banded_has_rows_to_spare_behind_pentadiagonal_systems(
    device: Device, library: FakeSparseLibrary
) -> None:
    ab = np.ones((5, 3), np.complex64)
    ab[2] += 8
    await device.sparse.solve_banded(
        (2, 2), await device.put(ab), await device.put(np.ones((3, 64), np.complex64))
    )
    *_, main, _, _, right = library.behind
    assert (main == 1).all()
    for each in (*library.behind[:2], *library.behind[3:5], right):
        assert not each.any()


async def test_an_analysis_is_made_once_and_forgotten(
    device: Device, library: FakeSparseLibrary, driver: FakeDriver
) -> None:
    a = await device.sparse.put(EYE)
    b = await device.put(np.ones(6))
    analysis = await device.sparse.analyse_triangular(a)
    for _ in range(3):
        await device.sparse.spsolve_triangular(analysis, b)
    assert library.called.count("cusparseSpSV_analysis") == 1
    assert library.called.count("cusparseSpSV_destroyDescr") == 0
    held = len(driver.held)
    del analysis
    await device.sparse.matmul(a, b)  # sends the lane the pending message, too
    await device.sparse.matmul(a, b)
    assert library.called.count("cusparseSpSV_destroyDescr") == 1
    assert len(driver.held) == held - 1


async def test_unsupported_format_error_names_the_conversion(device: Device) -> None:
    x = await device.put(np.ones(6))
    blocks = await device.sparse.put(EYE.tobsr((2, 3)))
    with pytest.raises(Unsupported, match="2 by 3: convert"):
        await device.sparse.matmul(blocks, x)
    places = np.zeros(5, int)
    often = scipy.sparse.coo_array((np.ones(5), (places, places)), shape=(1, 1))
    with pytest.raises(Unsupported, match="sum_duplicates"):
        await device.sparse.matmul(await device.sparse.put(often), x[:1])


async def test_a_batch_asks_once_and_brings_nothing(
    device: Device, library: FakeSparseLibrary
) -> None:
    a = await device.sparse.put(EYE)
    x = await device.put(np.ones(6))
    async with device.batch() as batch:
        ys = [batch.sparse.matmul(a, x) for _ in range(5)]
    assert library.called.count("cusparseSpMV") == 5
    assert library.called.count("cusparseSpMV_bufferSize") == 1
    assert all([(await device.get(y) == 1).all() for y in ys])


async def test_products_of_int64_indices_are_refused(device: Device) -> None:
    one = scipy.sparse.csr_array(
        (np.ones(1), np.zeros(1, np.int64), np.array([0, 1], np.int64)), shape=(1, 1)
    )
    a = await device.sparse.put(one)
    wide = await device.array.astype(a.indptr, np.int64)
    indices = await device.array.astype(a.indices, np.int64)
    a = device.sparse.csr_array((a.data, indices, wide), (1, 1))
    with pytest.raises(Unsupported, match="sparse matrices with int32 indices only"):
        await device.sparse.spgemm(a, a)


async def test_a_recording_wants_an_analysis(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(handle=0, pointer=0, captures=True)
    monkeypatch.setattr(FakeCudaSparse, "stream", stream)
    a = await device.sparse.put(EYE)
    b = await device.put(np.ones(6))
    with pytest.raises(Unsupported, match="analyse_triangular"):
        await device.sparse.spsolve_triangular(a, b)
    analysis = await device.sparse.analyse_triangular(a)
    assert (await device.get(await device.sparse.spsolve_triangular(analysis, b)) == 1).all()


async def test_a_status_becomes_an_error_that_says_it(
    device: Device, library: FakeSparseLibrary
) -> None:
    a = await device.sparse.put(EYE)
    x = await device.put(np.ones(6))
    library.functions["cusparseSpMV"] = lambda *_: 6
    with pytest.raises(LibraryError) as caught:
        await device.sparse.matmul(a, x)
    assert (caught.value.library, caught.value.status) == ("cusparse", 6)
    library.functions["cusparseSpMV"] = lambda *_: 10
    with pytest.raises(Unsupported, match="cusparseSpMV returned 10"):
        await device.sparse.matmul(a, x)


async def test_temporary_descriptors_are_destroyed(
    device: Device, library: FakeSparseLibrary
) -> None:
    a = await device.sparse.put(EYE)
    x = await device.put(np.ones(6))
    await device.sparse.matmul(a, x)
    alive = sum(each is not None for each in library.things.values())
    await device.sparse.matmul(a, x)
    await device.sparse.spsolve_triangular(a, x)
    assert sum(each is not None for each in library.things.values()) == alive
