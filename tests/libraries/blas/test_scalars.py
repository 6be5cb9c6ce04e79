"""Scalars on the device: the same results as with numbers, without a transfer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, Unsupported
from atomr_accel.libraries.blas.wire._rows import Row

from ..conformance import MARKS
from .scalars import PRODUCTS, WITH_SCALARS, does_for_a_number, scales_products

pytestmark = MARKS


@pytest.mark.parametrize("row", WITH_SCALARS, ids=[row.name for row in WITH_SCALARS])
async def test_a_buffer_does_for_a_number(device: Device, row: Row) -> None:
    await does_for_a_number(device, row)


@pytest.mark.parametrize(("dtype", "of_scalars"), PRODUCTS)
async def test_products_take_them_too(device: Device, dtype: str, of_scalars: str) -> None:
    await scales_products(device, dtype, of_scalars)


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
        (lambda: blas.axpy(x, y, a=wide), TypeError, "a must have dtype float32, not float64"),
        (lambda: blas.axpy(x, y, a=x), ValueError, "a"),
        (lambda: blas.axpy(x, y, a=y[0]), ValueError, "y shares memory with a"),
        (lambda: blas.symv(a, x, beta=two), ValueError, "pass th.* out"),
        (lambda: blas.gemm(a, a, beta=two), ValueError, "pass th.* out"),
        (
            lambda: blas.gemm(a, a, alpha=wide),
            TypeError,
            "alpha must have dtype float32, not float64",
        ),
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
