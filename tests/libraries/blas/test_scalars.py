"""Scalars on the device: the same results as with numbers, without a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel import Unsupported
from atomr_accel.libraries.blas.wire._rows import ROWS, Row

from ... import seeds
from ..conformance import MARKS, Sample, dtype_of
from .rows.routines import call, cases, inputs, scalars_of

if TYPE_CHECKING:
    from atomr_accel import Device

pytestmark = MARKS

WITH_SCALARS = [row for row in ROWS.values() if row.scalars]


def fitting(row: Row) -> dict[str, Any]:
    """A case of a row that is not empty, the one with the most options chosen."""
    found = [case for case in cases(row) if all(case.get(size, 1) for size in (*"mnk", "length"))]
    return {"length": 37, **found[-1]} if "length" in found[-1] else found[-1]


async def same(device: Device, row: Row, dtype: str, *, last_only: bool = False) -> None:
    sample, case = Sample(seeds.draw(), dtype), fitting(row)
    arrays = inputs(row, "", sample, **case)
    refs = [await device.put(array) for array in arrays]
    again = [await device.put(array) for array in arrays]
    plain = scalars_of(row, refs[0])
    names = [name for name, _ in row.numbers][-1 if last_only else 0 :]
    placed = {
        name: await device.put(
            np.array(plain[name]).astype(dtype_of(row.scalar_dtype(name, dtype)))
        )
        for name in names
    }
    got = await call(row, "", "", device, *again, **case, placed=placed)
    expected = await call(row, "", "", device, *refs, **case)
    pairs = zip(
        expected if isinstance(expected, tuple) else (expected,),
        got if isinstance(got, tuple) else (got,),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_array_equal(await device.get(other), await device.get(one))


@pytest.mark.parametrize("row", WITH_SCALARS, ids=[row.name for row in WITH_SCALARS])
async def test_a_buffer_does_for_a_number(device: Device, row: Row) -> None:
    for dtype in row.dtypes[-1:] if row.half is None else row.dtypes:
        await same(device, row, dtype)
    await same(device, row, row.dtypes[-1], last_only=True)


@pytest.mark.parametrize(
    ("dtype", "of_scalars"),
    [("float16", "float32"), ("float32", "float32"), ("complex128", "complex128")],
)
async def test_products_take_them_too(device: Device, dtype: str, of_scalars: str) -> None:
    sample = Sample(seeds.draw(), dtype)
    alpha, beta = (np.array(number).astype(of_scalars) for number in (0.5, -2.0))
    placed = [await device.put(number) for number in (alpha, beta)]
    for shape_a, shape_b in (((3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)), ((2, 1, 3, 5), (3, 5, 4))):
        a, b = [await device.put(sample.array(*shape)) for shape in (shape_a, shape_b)]
        before = sample.array(*np.matmul(np.empty(shape_a), np.empty(shape_b)).shape)
        outs = [await device.put(before) for _ in range(3)]
        expected = await device.blas.gemm(a, b, out=outs[0], alpha=0.5, beta=-2.0)
        got = await device.blas.gemm(a, b, out=outs[1], alpha=placed[0], beta=placed[1])
        mixed = await device.blas.gemm(a, b, out=outs[2], alpha=0.5, beta=placed[1])
        for one in (got, mixed):
            close = {"rtol": 1e-2, "atol": 1e-2} if dtype == "float16" else {"rtol": 1e-5}
            np.testing.assert_allclose(await device.get(one), await device.get(expected), **close)


async def test_results_are_scalars_of_what_follows(device: Device) -> None:
    """Also in a batch, and where the result is not there yet."""
    x = np.arange(1.0, 5.0)
    async with device.batch() as batch:
        ref = batch.put(x)
        square = batch.blas.dot(ref, ref)
        y = batch.blas.axpy(ref, batch.put(x), a=square)
    assert (await device.get(y)).tolist() == (x + 30 * x).tolist()


async def test_scalars_that_will_not_do(device: Device) -> None:
    x, y = [await device.put(np.ones(4, np.float32)) for _ in range(2)]
    a = await device.put(np.ones((4, 4), np.float32))
    nothing = await device.put(np.ones((4, 0), np.float32))
    wide = await device.put(np.float64(2))
    two = await device.put(np.float32(2))
    blas: Any = device.blas
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: blas.axpy(x, y, a=wide), TypeError, "a has dtype float64"),
        (lambda: blas.axpy(x, y, a=x), ValueError, "a"),
        (lambda: blas.axpy(x, y, a=y[0]), ValueError, "y shares memory with a"),
        (lambda: blas.symv(a, x, beta=two), ValueError, "there is no out"),
        (lambda: blas.gemm(a, a, beta=two), ValueError, "there is no out"),
        (lambda: blas.gemm(a, a, alpha=wide), TypeError, "alpha has dtype float64"),
        (lambda: blas.gemm(a, a, out=a[:], alpha=two), ValueError, "shares memory"),
        (lambda: blas.gemv(nothing, x[:0], out=y, beta=two), Unsupported, "no terms"),
        (lambda: blas.gemm(nothing, nothing, alpha=two, trans_b=True), Unsupported, "no terms"),
        (lambda: blas.gemm_batched([a], [a], alpha=two), TypeError, "alpha must be a number"),
    ]
    for call_, error, match in refused:
        with pytest.raises(error, match=match):
            await call_()


async def test_calls_alike_take_their_own_scalars(device: Device) -> None:
    x = await device.put(np.ones(3))
    for number in (2.0, 3.0, 5.0, 7.0):
        a, y = await device.put(np.array(number)), await device.put(np.zeros(3))
        assert (await device.get(await device.blas.axpy(x, y, a=a)) == number).all()
        eye = await device.put(np.eye(2))
        assert (await device.get(await device.blas.gemm(eye, eye, alpha=a)))[0, 0] == number
