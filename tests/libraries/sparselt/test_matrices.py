"""Matrices of structured sparsity: what pruning keeps, and what calls refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, StructuredRef, Unsupported

from ...harness import opened
from ..conformance import MARKS, dtype_of, installed
from .rows import DTYPES, groups

pytestmark = [*MARKS, installed("cusparseLt")]

Array = np.ndarray[Any, Any]


def random(dtype: str, m: int = 64, k: int = 96) -> Array:
    rng = np.random.default_rng(3)
    numbers = rng.integers(-60, 60, (m, k)) if dtype == "int8" else rng.uniform(-4, 4, (m, k))
    return numbers.astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_strips_keep_the_largest(device: Device, dtype: str) -> None:
    matrix = random(dtype)
    a = await device.put(matrix)
    pruned = await device.get(await device.sparselt.prune(a))
    kept = pruned != 0
    assert (pruned[kept] == matrix[kept]).all()
    before, after = (np.abs(groups(each.astype(float), dtype)) for each in (matrix, pruned))
    half = before.shape[1] // 2
    # Which of equal ones are kept is left open, but not their sum.
    np.testing.assert_array_equal(after.sum(1), np.sort(before)[:, half:].sum(1))
    assert ((after != 0).sum(1) <= half).all()
    assert await device.sparselt.check(await device.put(pruned))
    assert not await device.sparselt.check(await device.full(matrix.shape, 1, dtype_of(dtype)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
async def test_tiles_keep_half_of_rows_and_columns(device: Device, dtype: str) -> None:
    matrix = random(dtype, 32, 32)
    a = await device.put(matrix)
    with pytest.raises(ValueError, match="shares memory"):
        await device.sparselt.prune(a, alg="tile", out=a)
    out = await device.empty(a.shape, a.dtype)
    assert await device.sparselt.prune(a, alg="tile", out=out) is out
    pruned = (await device.get(out)).astype(float)
    size = groups(matrix, dtype).shape[1]
    rows = [kept for kept in itertools.product((0, 1), repeat=size) if sum(kept) == size // 2]
    masks = [np.array(mask) for mask in itertools.product(rows, repeat=size)]
    masks = [mask for mask in masks if (mask.sum(0) == size // 2).all()]
    for i, j in itertools.product(range(0, 32, size), repeat=2):
        tile = np.s_[i : i + size, j : j + size]
        best = max(np.abs(matrix[tile].astype(float) * mask).sum() for mask in masks)
        assert np.abs(pruned[tile]).sum() == pytest.approx(best, rel=1e-6)
        for axis in range(2):
            assert ((pruned[tile] != 0).sum(axis) <= size // 2).all()
    assert await device.sparselt.check(out)
    assert await device.sparselt.check(await device.copy(out.T))


async def test_a_linear_layer(device: Device) -> None:
    rng = np.random.default_rng(5)
    weights = await device.sparselt.prune(
        await device.put(rng.uniform(-1, 1, (64, 32)).astype(np.float16))
    )
    x = rng.uniform(-1, 1, (16, 32)).astype(np.float16)
    bias = rng.uniform(-1, 1, 64).astype(np.float16)
    w = await device.sparselt.compress(weights)
    assert (type(w), w.shape, w.ndim, w.dtype.name) == (StructuredRef, (64, 32), 2, "float16")
    assert w.nbytes < weights.nbytes
    await device.seal(w.data)
    assert w.sealed
    assert not w.is_stale
    made = await device.sparselt.matmul(
        w, (await device.put(x)).T, bias=await device.put(bias), order="F"
    )
    assert made.T.contiguous
    expected = x.astype(float) @ (await device.get(weights)).astype(float).T + bias
    np.testing.assert_allclose(await device.get(made.T), expected, atol=2e-2)
    async with device.batch() as batch:
        twice = batch.sparselt.matmul(w, (await device.put(x)).T, alpha=2.0)
    expected = 2 * (expected - bias)
    np.testing.assert_allclose(await device.get(twice), expected.T, atol=2e-2)


async def test_matrices_refuse_invalid_arguments(device: Device) -> None:
    lt = device.sparselt
    a = await device.put(random("float16"))
    compressed = await lt.compress(await lt.prune(a))
    b = await device.put(random("float16", 96, 32))
    with pytest.raises(TypeError, match="float64"):
        await lt.prune(await device.zeros((64, 64)))
    with pytest.raises(ValueError, match="multiples of 16"):
        await lt.prune(await device.zeros((64, 40), np.float16))
    with pytest.raises(ValueError, match="two dimensions"):
        await lt.check(await device.zeros((64,), np.float16))
    with pytest.raises(ValueError, match="alg must be 'strip' or 'tile', not 'rows'"):
        await lt.prune(a, alg="rows")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="compress"):
        await lt.matmul(a, b)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=r"a and b must have shapes \(m, k\) and \(k, n\), not \(64, 96\) and \(64,",
    ):
        await lt.matmul(compressed, a)
    with pytest.raises(ValueError, match="multiples of 8"):
        await lt.matmul(compressed, await device.zeros((96, 4), np.float16))
    wide, long = await device.zeros((96, 20), np.float16), await device.zeros((72,), np.float16)
    with pytest.raises(ValueError, match="b of float16 is a view whose rows begin 20 elements"):
        await lt.matmul(compressed, wide[:, :16])
    with pytest.raises(
        ValueError, match="bias must begin at a multiple of 16 bytes, because cuSPARSELt"
    ):
        await lt.matmul(compressed, b, bias=long[2:66])
    with pytest.raises(TypeError, match="float32"):
        await lt.matmul(compressed, b, dtype=np.float32)
    with pytest.raises(ValueError, match="beta multiplies c or out"):
        await lt.matmul(compressed, b, beta=1.0)
    with pytest.raises(ValueError, match="epilogue 'relu_bias' and bias do not fit"):
        await lt.matmul(compressed, b, epilogue="relu_bias")
    with pytest.raises(ValueError, match="epilogue"):
        await lt.matmul(compressed, b, epilogue="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order must be 'C' or 'F', not 'A'"):
        await lt.matmul(compressed, b, order="A")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bias must be float16"):
        await lt.matmul(compressed, b, bias=await device.zeros((64,), np.float32))
    out = await device.zeros((64, 32), np.float16)
    with pytest.raises(ValueError, match="lie in memory as out"):
        await lt.matmul(compressed, b, out=out, c=(await device.copy(out.T)).T, beta=1.0)
    square = await device.zeros((96, 96), np.float16)
    with pytest.raises(ValueError, match="shares memory"):
        await lt.matmul(compressed, square, out=square[:64])


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "16" not in dtype])
async def test_only_16_bit_types_lie_by_rows(device: Device, dtype: str) -> None:
    a = await device.sparselt.compress(await device.sparselt.prune(await device.put(random(dtype))))
    b = await device.put(random(dtype, 96, 32))
    with pytest.raises(ValueError, match="by columns"):
        await device.sparselt.matmul(a, b)
    await device.sparselt.matmul(a, (await device.copy(b.T)).T)


@pytest.mark.parametrize("batch", [False, True])
async def test_matmul_takes_b_by_columns_when_bias_is_strided(device: Device, batch: bool) -> None:
    a = await device.sparselt.compress(
        await device.sparselt.prune(await device.put(random("int8")))
    )
    b = (await device.put(random("int8", 32, 96))).T
    numbers = np.arange(128, dtype=np.float32)
    bias, strided = await device.put(numbers[::2].copy()), (await device.put(numbers))[::2]
    expected = await device.get(await device.sparselt.matmul(a, b, bias=bias))
    if batch:
        async with device.batch() as collected:
            made = collected.sparselt.matmul(a, b, bias=strided)
    else:
        made = await device.sparselt.matmul(a, b, bias=strided)
    np.testing.assert_array_equal(await device.get(made), expected)


async def test_narrow_types_are_not_added_to(device: Device) -> None:
    lt = device.sparselt
    a = await lt.compress(await lt.prune(await device.put(random("float8_e4m3fn"))))
    columns = (await device.put(random("float8_e4m3fn", 32, 96))).T
    out = await device.zeros((64, 32), dtype_of("float8_e4m3fn"))
    with pytest.raises(ValueError, match="give c"):
        await lt.matmul(a, columns, out=out, beta=1.0)
    with pytest.raises(TypeError, match="float16 or bfloat16"):
        await lt.matmul(a, columns, out=out, c=await device.zeros((64, 32), np.float32), beta=1.0)


async def test_batches_take_what_was_compressed_before(device: Device) -> None:
    a = await device.put(random("float16"))
    with pytest.raises(Unsupported, match="compress"):
        async with device.batch() as batch:
            batch.sparselt.compress(batch.sparselt.prune(a))
    with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
        async with device.batch() as other:
            other.sparselt.check(a)


async def test_a_deterministic_device_does_not_tune() -> None:
    async with opened(isolation="thread", deterministic=True) as device:
        a = await device.put(random("float16"))
        compressed = await device.sparselt.compress(await device.sparselt.prune(a))
        b = await device.put(random("float16", 96, 32))
        with pytest.raises(ValueError, match="autotune"):
            await device.sparselt.matmul(compressed, b, autotune=True)
        await device.sparselt.matmul(compressed, b)
