"""Refusals of calls, raised in the caller, and contexts in which matrices may be used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as scipy_sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, GpuRefSealed, GpuRefStale, SparseRef, Unsupported
from atomr_accel.libraries.sparse.host._cpu import taken_as

from ...harness import opened, program
from ..conformance import MARKS, on_cuda

pytestmark = MARKS

sparse: Any = scipy_sparse
MATRIX = sparse.csr_array(np.array([[0.0, 2, 0], [0, 0, 0], [1, 0, 3]]))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
async def test_put_matrix_comes_back(device: Device, form: str, index: Any) -> None:
    matrix = MATRIX.asformat(form, copy=True)
    for name in ("indptr", "indices"):
        if hasattr(matrix, name):
            setattr(matrix, name, getattr(matrix, name).astype(index))
    a = await device.sparse.put(matrix, check=True)
    back: Any = await device.sparse.get(a)
    assert (a.format, a.shape, back.format, back.shape) == (form, (3, 3), form, (3, 3))
    np.testing.assert_array_equal(back.toarray(), MATRIX.toarray())
    if form != "coo":
        assert a.index_dtype == index


async def test_matrices_of_scipy_alone_are_put(device: Device) -> None:
    with pytest.raises(TypeError, match="takes dense ones"):
        await device.sparse.put(np.eye(3))
    with pytest.raises(TypeError, match="not lil_array"):
        await device.sparse.put(MATRIX.tolil())
    with pytest.raises(TypeError, match="the array is int64"):
        await device.sparse.put(MATRIX.astype(np.int64))
    bad = MATRIX.copy()
    bad.indices[0] = 7
    with pytest.raises(ValueError, match="indices"):
        await device.sparse.put(bad, check=True)
    worse = await device.sparse.put(bad)
    with pytest.raises(ValueError, match="1 indices that are out of bounds"):
        await device.sparse.check(worse)


@pytest.mark.parametrize("size", [1, 3])
async def test_matrices_of_padded_rows_come_back(device: Device, size: int) -> None:
    twice = sparse.coo_array(([1.0, 2, 3], ([0, 0, 2], [1, 1, 2])), shape=(3, 3))
    for matrix in (MATRIX, twice, sparse.csr_array((3, 3))):
        blocked = await device.sparse.put_blocked_ell(matrix, size)
        sliced = await device.sparse.put_sliced_ell(matrix, size, sealed=True)
        assert (blocked.format, sliced.format) == ("blocked-ell", "sliced-ell")
        assert (blocked.nnz, blocked.dtype, blocked.ndim) == (
            matrix.tobsr((size, size)).data.size,
            matrix.dtype,
            2,
        )
        assert sliced.sealed
        assert sliced.nbytes == sum(part.nbytes for part in sliced.parts)
        for a in (blocked, sliced):
            back: Any = await device.sparse.get(a)
            np.testing.assert_array_equal(back.toarray(), matrix.toarray())
        assert await device.sparse.seal(blocked) is blocked
        await device.sparse.free(sliced)
        assert sliced.is_stale


async def test_matrices_of_padded_rows_are_multiplied_as_they_are(device: Device) -> None:
    put = device.sparse.put_blocked_ell
    with pytest.raises(ValueError, match="no multiple"):
        await put(MATRIX, 2)
    with pytest.raises(ValueError, match="rows and columns"):
        await device.sparse.put_sliced_ell(sparse.csr_array((0, 3)))
    with pytest.raises(TypeError, match="dtype is int8"):
        await put(MATRIX, 1, dtype=np.int8)
    turned: Any = MATRIX * 1j
    for call in (put, device.sparse.put_sliced_ell):
        with pytest.raises(TypeError, match="complex128, of which float64 has no imaginary parts"):
            await call(turned, 1, dtype=np.float64)
    x = await device.put(np.ones((3, 3)))
    sliced = await device.sparse.put_sliced_ell(MATRIX)
    with pytest.raises(ValueError, match="vectors only"):
        await device.sparse.matmul(sliced, x)
    blocked = await put(MATRIX, 1)
    with pytest.raises(ValueError, match="as it is"):
        await device.sparse.matmul(blocked, x, trans=1)
    with pytest.raises(TypeError, match="SparseRef"):
        await device.sparse.tocsr(blocked)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shares memory with a\.data"):
        await device.sparse.matmul(blocked, await device.zeros((3, 2)), out=blocked.data)
    async with device.batch() as batch:
        y = batch.sparse.matmul(blocked, x)
    np.testing.assert_array_equal(await device.get(y), MATRIX @ np.ones((3, 3)))
    with pytest.raises(Unsupported, match="awaited"):
        async with device.batch() as other:
            await other.sparse.put_sliced_ell(MATRIX)


@pytest.mark.slow
async def test_an_index_out_of_bounds_is_a_fault() -> None:
    bad = MATRIX.copy()
    bad.indices[0] = 1 << 30
    async with opened(isolation="process") as device:
        a, x = await device.sparse.put(bad), await device.put(np.ones(3))
        with pytest.raises(ContextPoisoned):
            await device.sparse.matmul(a, x)
        kept = await device.sparse.put(MATRIX, sealed=True)
        x = await device.put(np.ones(3))
        y = await device.sparse.matmul(kept, x)
        np.testing.assert_array_equal(await device.get(y), MATRIX @ np.ones(3))
        assert a.is_stale
        assert kept.sealed


async def test_views_of_a_matrix(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    assert a.T.format == "csc"
    assert a.T.T.format == "csr"
    assert a.T.data is a.data
    coo = await device.sparse.tocoo(a)
    assert (coo.T.row, coo.T.col) == (coo.col, coo.row)
    with pytest.raises(AttributeError, match="indptr"):
        _ = coo.indptr
    with pytest.raises(AttributeError, match="a csr matrix has indptr and indices, and no row"):
        _ = a.row
    with pytest.raises(TypeError, match=r"device\.sparse\.matmul"):
        _ = a @ a.data
    with pytest.raises(ValueError, match="transpose of a bsr matrix is not a view"):
        _ = (await device.sparse.tobsr(a, (3, 1))).T
    assert "csr 3x3 float64 with 3" in repr(a)


async def test_parts_must_fit(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    make = device.sparse.csr_array
    parts = (a.data, a.indices, a.indptr)
    assert isinstance(make(parts, (3, 3)), SparseRef)
    with pytest.raises(ValueError, match=r"indptr must have shape \(5,\), not \(4,\)"):
        make(parts, (4, 3))
    with pytest.raises(ValueError, match="3 elements and 2 indices"):
        make((a.data, a.indices[:2], a.indptr), (3, 3))
    with pytest.raises(ValueError, match="contiguous"):
        make((a.data, a.indices[::-1], a.indptr), (3, 3))
    with pytest.raises(TypeError, match="both must be int32"):
        make((a.data, await device.array.astype(a.indices, np.int16), a.indptr), (3, 3))
    with pytest.raises(TypeError, match="GpuRef"):
        make((MATRIX.data, a.indices, a.indptr), (3, 3))
    with pytest.raises(ValueError, match="no multiple"):
        device.sparse.bsr_array((await device.put(np.ones((3, 2, 2))), *parts[1:]), (3, 3))


async def test_pairs_are_pairs(device: Device) -> None:
    sparse_of: Any = device.sparse
    a = await sparse_of.put(MATRIX)
    parts = (a.data, a.indices, a.indptr)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: sparse_of.csr_array(parts[:2], (3, 3)), ValueError, "data, indices, indptr"),
        (lambda: sparse_of.coo_array(parts, (3, 3)), ValueError, r"\(data, \(row, col\)\)"),
        (lambda: sparse_of.csr_array(parts, (3, 3, 3)), ValueError, "shape must be rows and"),
        (
            lambda: sparse_of.csr_array(parts, 3),
            ValueError,
            "shape must be rows and columns, not 3",
        ),
        (lambda: sparse_of.csr_array(parts, (3, "x")), TypeError, "an extent of shape"),
        (lambda: sparse_of.tobsr(a, 2), ValueError, "blocksize must be rows and columns, not 2"),
        (lambda: sparse_of.solve_banded(1, a.data, a.data), ValueError, "l_and_u must be"),
    ]
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            await call()
    for shape in ((3,), (1, 2, 3)):
        with pytest.raises(ValueError, match="the array must have two dimensions, not shape"):
            await sparse_of.put(sparse.coo_array(np.ones(shape)))


@pytest.mark.parametrize("form", ["csr", "coo"])
async def test_conversions_touch_no_memory_of_others(device: Device, form: str) -> None:
    bad = MATRIX.asformat(form, copy=True)
    column = bad.indices if form == "csr" else bad.coords[1]
    column[0] = 99
    a = await device.sparse.put(bad)
    made: list[Any] = [await call(a) for call in (device.sparse.tocsc, device.sparse.sort_indices)]
    dense = await device.sparse.todense(a)
    assert (await device.get(dense)).sum() == MATRIX.sum()
    assert [each.shape for each in made] == [(3, 3)] * 2
    assert device.generation == 1


async def test_products_say_what_does_not_fit(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    x = await device.put(np.ones(3))
    multiply = device.sparse.matmul
    with pytest.raises(TypeError, match="SparseRef"):
        await multiply(x, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have 3 rows"):
        await multiply(a, await device.put(np.ones(4)))
    with pytest.raises(TypeError, match="x must have the dtype of a, float64, not float32"):
        await multiply(a, await device.put(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="beta multiplies out"):
        await multiply(a, x, beta=1.0)
    with pytest.raises(ValueError, match="shares memory with x"):
        await multiply(a, x, out=x)
    with pytest.raises(ValueError, match=r"shares memory with a\.data"):
        await multiply(a, x, out=a.data)
    with pytest.raises(ValueError, match="one or two dimensions"):
        await multiply(a, await device.put(np.ones((3, 1, 1))))
    with pytest.raises(ValueError, match="a bsr matrix is multiplied as it is"):
        await multiply(await device.sparse.tobsr(a, (1, 1)), x, trans=1)
    sealed = await device.put(np.ones(3), sealed=True)
    with pytest.raises(GpuRefSealed):
        await multiply(a, x, out=sealed)
    with pytest.raises(TypeError, match="coo; csr or csc"):
        await device.sparse.spgemm(await device.sparse.tocoo(a), a)
    with pytest.raises(TypeError, match="both must be the same"):
        await device.sparse.spgemm(a, a.T)
    plan = await device.sparse.spgemm_plan(a, a)
    other = await device.sparse.sort_indices(a)
    with pytest.raises(ValueError, match="refs of indices"):
        await device.sparse.spgemm_reuse(plan, other, a)
    doubled = a.with_data(await device.evaluate(a.data * 2))
    product = await device.sparse.spgemm_reuse(plan, doubled, a)
    expected = 2 * (MATRIX @ MATRIX).toarray()
    np.testing.assert_array_equal((await device.sparse.get(product)).toarray(), expected)
    await device.sparse.free(a)
    with pytest.raises(GpuRefStale):
        await multiply(a, x)


async def test_views_that_have_gaps_are_copied(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    x = (await device.put(np.arange(12.0).reshape(6, 2)))[::2, :1][:, 0]
    assert not x.contiguous
    found = await device.get(await device.sparse.matmul(a, x))
    np.testing.assert_array_equal(found, MATRIX @ np.array([0.0, 4, 8]))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("n", [None, 2])
async def test_products_take_views_on_both_sides(device: Device, form: str, n: int | None) -> None:
    matrix = MATRIX.asformat(form)
    a = await device.sparse.put(matrix)
    tail = () if n is None else (n,)
    data = np.arange(1.0, 1 + 6 * math.prod(tail)).reshape(6, *tail)
    expected = matrix @ data[::2]
    x = (await device.put(data))[::2]
    for call in range(3):  # from the second one on, by a trace
        made = await device.sparse.matmul(a, x)
        np.testing.assert_array_equal(await device.get(made), expected, f"call {call}")
        out = await device.full((6, *tail), np.nan)
        await device.sparse.matmul(a, x, out=out[::2])
        await device.sparse.matmul(a, x, alpha=2.0, beta=1.0, out=out[::2])
        np.testing.assert_array_equal((await device.get(out))[::2], 3 * expected, f"call {call}")
    out = await device.full((6, *tail), np.nan)
    async with device.batch() as batch:
        batch.sparse.matmul(a, x, out=out[::2])
        later = batch.get(out)
    found = later.value
    np.testing.assert_array_equal(found[::2], expected)
    assert np.isnan(found[1::2]).all()


async def test_beta_of_0_reads_no_output(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    x, nan = await device.put(np.ones(3)), np.full(3, np.nan)
    out = await device.sparse.matmul(a, x, out=await device.put(nan))
    np.testing.assert_array_equal(await device.get(out), MATRIX @ np.ones(3))
    place = await device.put(np.array([1], np.int32))
    y = await device.sparse.axpby(x[:1], place, await device.put(nan), b=0.0)
    np.testing.assert_array_equal(await device.get(y), [0, 1, 0])


async def test_batches_take_what_needs_no_answer(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    x = await device.put(np.arange(3.0))
    async with device.batch() as batch:
        back = batch.sparse.tocsr(batch.sparse.tocsc(a))
        y = batch.sparse.matmul(back, x)
        dense = batch.sparse.todense(back)
    np.testing.assert_array_equal(await device.get(y), MATRIX @ np.arange(3.0))
    np.testing.assert_array_equal(await device.get(dense), MATRIX.toarray())
    for name in ("sum_duplicates", "check"):
        with pytest.raises(Unsupported):
            async with device.batch() as batch:
                getattr(batch.sparse, name)(a)
    with pytest.raises(Unsupported):
        async with device.batch() as batch:
            batch.sparse.spgemm(a, a)
    with pytest.raises(Unsupported, match="on the device itself"):
        async with device.batch() as batch:
            await batch.sparse.put(MATRIX)


async def test_recordings_take_other_buffers(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    lower = await device.sparse.put(sparse.csr_array(np.tril(MATRIX.toarray()) + np.eye(3)))
    analysis = await device.sparse.analyse_triangular(lower)
    x = await device.put(np.arange(3.0))
    async with device.record(x, a.data) as recording:
        y = recording.sparse.matmul(a, x)
        z = recording.sparse.spsolve_triangular(analysis, x)
    other, data = await device.put(np.ones(3)), await device.put(np.full(3, 5.0))
    await recording.replay(other, data)
    expected = (MATRIX != 0).astype(float) * 5 @ np.ones(3)
    np.testing.assert_array_equal(await device.get(y), expected)
    solved = np.linalg.solve(np.tril(MATRIX.toarray()) + np.eye(3), np.ones(3))
    np.testing.assert_allclose(await device.get(z), solved)


async def test_an_actor_is_asked(device: Device) -> None:
    a = await device.sparse.put(MATRIX)
    x = await device.put(np.ones(3))
    y = await device.sparse.ref.ask(device.requests.sparse.matmul(a, x))
    np.testing.assert_array_equal(await device.get(y), MATRIX @ np.ones(3))


async def test_a_deterministic_device_refuses_what_depends_on_time() -> None:
    async with opened(isolation="thread", deterministic=True) as device:
        a = await device.sparse.put(MATRIX)
        x = await device.put(np.ones(3))
        await device.sparse.matmul(a, x)
        await device.sparse.matmul(a.T, x, trans=1)
        for matrix, trans in ((a, 1), (a.T, 0)):
            with pytest.raises(Unsupported, match="deterministic"):
                await device.sparse.matmul(matrix, x, trans=trans)
            with pytest.raises(Unsupported, match="deterministic"):
                await device.sparse.spsolve_triangular(matrix, x, trans=trans)


@settings(max_examples=12)
@given(st.data())
def test_conversions_and_products_are_scipys(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    places = data.draw(
        st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1)), max_size=12)
    )
    values = [float(each) for each in range(1, len(places) + 1)]
    row, column = [np.array([each[axis] for each in places], np.int32) for axis in (0, 1)]
    matrix = sparse.coo_array((values, (row, column)), shape=(rows, columns))
    steps = data.draw(st.lists(st.sampled_from(["tocsr", "tocsc", "tocoo"]), max_size=3))
    trans = data.draw(st.sampled_from([0, 1]))

    @program
    async def run() -> None:
        async with opened(isolation="thread") as device:
            a = await device.sparse.put(matrix)
            for step in steps:
                a = await getattr(device.sparse, step)(a)
            await device.sparse.check(a)
            x = np.arange(1.0, (rows if trans else columns) + 1)
            summed = await device.sparse.sum_duplicates(a)
            assert summed.nnz == len({*places})
            full = on_cuda() and matrix.nnz > rows * columns
            y = await device.sparse.matmul(summed if full else a, await device.put(x), trans=trans)
            np.testing.assert_allclose(await device.get(y), taken_as(matrix, trans) @ x)
            back: Any = await device.sparse.get(summed)
            np.testing.assert_allclose(back.toarray(), matrix.toarray())

    run()
