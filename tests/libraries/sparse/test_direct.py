"""Direct solvers: conformance, refusals, and matrices that have no factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from atomr_accel import Device, GpuRefStale, LinAlgError, Unsupported
from atomr_accel.testing import poison

from ...harness import opened
from ..conformance import MARKS, conform, installed, on_cuda
from .direct_rows import DIRECT, MATRIX

pytestmark = [*MARKS, installed("cudss")]

test_conforms = conform(DIRECT, take=1 if on_cuda() else 4)


async def test_a_singular_matrix_raises_and_the_lane_goes_on(device: Device) -> None:
    singular = MATRIX.copy()
    singular.data[-1] = 0
    empty: Any = scipy.sparse.csr_array((3, 3))
    b = await device.put(np.ones(3))
    for matrix in (singular, empty):
        with pytest.raises(LinAlgError, match="singular") as caught:
            await device.sparse.splu(await device.sparse.put(matrix))
        assert caught.value.info > 0
        with pytest.raises(LinAlgError):
            await device.sparse.spsolve(await device.sparse.put(matrix), b)
    made = await device.sparse.spsolve(await device.sparse.put(MATRIX), b)
    np.testing.assert_allclose(MATRIX @ await device.get(made), 1)


async def test_a_matrix_that_is_not_positive_definite_is_an_error_if_told_so(
    device: Device,
) -> None:
    indefinite = MATRIX.copy()
    indefinite.data[-1] = -2
    a = await device.sparse.put(indefinite)
    with pytest.raises(LinAlgError):
        await device.sparse.splu(a, kind="spd")
    lu = await device.sparse.splu(a, kind="symmetric")
    x = await device.get(await lu.solve(await device.put(np.ones(3))))
    np.testing.assert_allclose(indefinite @ x, 1)


async def test_pivots_below_epsilon_count_as_zero(device: Device) -> None:
    # Its diagonal is not small, as cuDSS scales that to ones; a pivot is.
    near: Any = scipy.sparse.csr_array(np.array([[1, 1, 0], [1, 1.001, 1], [0, 1, 1000.001]]))
    a = await device.sparse.put(near)
    await device.sparse.splu(a)
    for options in ({}, {"pivoting": "none", "reordering": "none"}):
        with pytest.raises(LinAlgError):
            await device.sparse.splu(a, pivot_epsilon=1e-2, **options)  # type: ignore[arg-type]


async def test_after_a_factorization_that_failed_there_are_no_factors(device: Device) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones(3))
    lu = await device.sparse.splu(a)
    with pytest.raises(LinAlgError, match="singular"):
        await lu.refactorize(a.with_data(await device.zeros(a.data.shape)))
    assert lu.matrix is a
    with pytest.raises(LinAlgError, match="no factors"):
        await lu.solve(b)
    assert await lu.refactorize(a) is lu
    np.testing.assert_allclose(MATRIX @ await device.get(await lu.solve(b)), 1)


async def test_factors_solve_in_batches(device: Device) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones((3, 2)))
    lu = await device.sparse.splu(a)
    async with device.batch() as batch:
        x = batch.using(lu).solve(batch.using(lu).solve(b))
    np.testing.assert_allclose(MATRIX @ (MATRIX @ await device.get(x)), 1)
    with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
        async with device.batch() as one:
            one.sparse.splu(a)
    with pytest.raises(Unsupported, match="recording"):
        async with device.record(b) as recording:
            recording.using(lu).solve(b)
    with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
        async with device.batch() as other:
            other.using(lu).refactorize(a)


async def test_direct_solver_refuses_invalid_arguments(device: Device) -> None:
    sparse = device.sparse
    a = await sparse.put(MATRIX)
    with pytest.raises(ValueError, match="square"):
        await sparse.splu(await sparse.put(scipy.sparse.csr_array((2, 3))))
    with pytest.raises(TypeError, match="a is coo; csr or csc is needed"):
        await sparse.splu(await sparse.tocoo(a))
    with pytest.raises(TypeError, match="float16"):
        await sparse.splu(a.with_data(await device.array.astype(a.data, "float16")))
    with pytest.raises(ValueError, match="kind must be one of 'general', 'symmetric'"):
        await sparse.splu(a, kind="banded")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lower must be None"):
        await sparse.splu(a, lower=True)
    with pytest.raises(ValueError, match="refinement"):
        await sparse.splu(a, refinement=-1)
    with pytest.raises(ValueError, match="pivot_threshold must be at least 0 and at most 1"):
        await sparse.splu(a, pivot_threshold=2)
    lu = await sparse.splu(a)
    assert lu.shape == (3, 3)
    assert repr(lu).startswith("<SparseLU of <SparseRef csr 3x3 float64")
    with pytest.raises(ValueError, match="3 rows"):
        await lu.solve(await device.put(np.ones(4)))
    with pytest.raises(TypeError, match="float32"):
        await lu.solve(await device.put(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="trans must be 'N', 'T' or 'H', not 'C'"):
        await lu.solve(await device.put(np.ones(3)), "C")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="indices"):
        await lu.refactorize(await sparse.put(MATRIX))
    with pytest.raises(ValueError, match="indices"):
        await lu.refactorize(lu.matrix.T)
    with pytest.raises(TypeError, match="SparseRef"):
        await lu.refactorize(lu.matrix.data)  # type: ignore[arg-type]
    complex_csc = await sparse.put(MATRIX.astype(complex).tocsc())
    lu = await sparse.splu(complex_csc)
    with pytest.raises(Unsupported, match="convert it with tocsr"):
        await lu.solve(await device.put(np.ones(3, complex)), "H")


@pytest.mark.skipif(on_cuda(), reason="cuDSS is not asked to look")
async def test_places_that_are_there_twice_are_told(device: Device) -> None:
    starts, data = await device.put(np.array([0, 2, 3])), await device.put(np.ones(3))
    for places in ([0, 0, 1], [1, 0, 1]):
        a = device.sparse.csr_array((data, await device.put(np.array(places)), starts), (2, 2))
        for b in (a, a.T):
            with pytest.raises(
                ValueError, match="a has indices that are not sorted, or there twice"
            ):
                await device.sparse.splu(b)


@pytest.mark.slow
async def test_factors_are_gone_after_a_rebuild() -> None:
    async with opened(isolation="process") as device:
        a = await device.sparse.put(MATRIX, sealed=True)
        lu = await device.sparse.splu(a)
        await poison(device)
        with pytest.raises(GpuRefStale, match="rebuilt"):
            await lu.solve(await device.put(np.ones(3)))
        with pytest.raises(GpuRefStale, match="rebuilt"):
            await lu.refactorize(a)
