"""Checks of scalars on the device, for every executor."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel import Device
from atomr_accel.libraries.blas.wire._rows import ROWS, Row

from ... import seeds
from ..conformance import Sample, dtype_of
from .rows.routines import call, cases, inputs, scalars_of

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


async def does_for_a_number(device: Device, row: Row) -> None:
    """A buffer of each scalar, or of the last one only, gives what the number gives."""
    for dtype in row.dtypes[-1:] if row.half is None else row.dtypes:
        await same(device, row, dtype)
    await same(device, row, row.dtypes[-1], last_only=True)


PRODUCTS = [("float16", "float32"), ("float32", "float32"), ("complex128", "complex128")]


async def scales_products(device: Device, dtype: str, of_scalars: str) -> None:
    """``gemm`` takes buffers, too."""
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
            close: Any = {"rtol": 1e-2, "atol": 1e-2} if dtype == "float16" else {"rtol": 1e-5}
            np.testing.assert_allclose(await device.get(one), await device.get(expected), **close)
