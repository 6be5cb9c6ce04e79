"""Sizes that 32 bits do not count, on a device that has room for them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device, GpuRef

from .. import seeds
from .conformance import dtype_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

N: Final = 2**31 + 5
"""More elements than an int counts."""

LONG: Final = 2**16 + 8
"""More rows and columns, together, than an int counts elements."""


@pytest.fixture(autouse=True)
def large_enough(device: Device) -> None:
    if device.backend != "cuda" or device.info.total_memory < 80 << 30:
        pytest.skip("takes up to 60 GiB of device memory")


async def ends(device: Device, ref: GpuRef, count: int = 8) -> np.ndarray[Any, Any]:
    """The last elements of a buffer of one dimension."""
    return await device.get(ref.reshape(-1)[-count:])


async def test_vectors(device: Device) -> None:
    x = await device.full((N,), 1, np.float32)
    await device.blas.scal(3.0, x[N - 2 :])
    assert await device.get(await device.blas.amax(x)) == N - 2
    y = await device.blas.copy(x)
    await device.blas.axpy(x, y, a=2.0)
    assert (await ends(device, y, 3)).tolist() == [3, 9, 9]
    assert await device.get(await device.blas.asum(y[N - 4 :])) == 24


async def test_vectors_of_half_precision(device: Device) -> None:
    x = await device.full((N,), 1, np.float16)
    await device.blas.scal(2.0, x[N - 3 :])
    assert (await ends(device, x, 4)).tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("library", ["blas", "blaslt"])
async def test_products_whose_result_is_large(device: Device, library: str) -> None:
    rng = seeds.rng()
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((LONG, 8), (8, LONG // 2)))
    left, right = await device.put(a), await device.put(b)
    multiply = device.blas.gemm if library == "blas" else device.blaslt.matmul
    product = await multiply(left, right)
    assert product.size > 2**31
    expected = a[-1].astype(np.float32) @ b[:, -8:].astype(np.float32)
    np.testing.assert_allclose(await ends(device, product), expected, rtol=1e-2, atol=1e-2)


async def test_products_whose_operand_is_large(device: Device) -> None:
    a = await device.full((LONG, LONG // 2), 1, np.float16)
    await device.blas.scal(2.0, a[-1])
    x = await device.full((LONG // 2,), 2.0**-14, np.float16)
    y = await device.blas.gemv(a, x)
    expected = (LONG // 2) * 2.0**-14
    got = (await ends(device, y, 2)).astype(np.float64)
    np.testing.assert_allclose(got, [expected, 2 * expected], rtol=1e-2)


async def test_batches_that_are_large_together(device: Device) -> None:
    count = 2**31 // 64 + 3
    a = await device.full((count, 8, 8), 1, np.float16)
    await device.blas.scal(2.0, a[-1].reshape(-1))
    product = await device.blas.matmul(a, a)
    assert (await ends(device, product, 65)).tolist() == [8.0] + [32.0] * 64


async def test_transforms(device: Device) -> None:
    rows, columns = 2**21 + 1, 1024
    a = await device.zeros((rows, columns), np.complex64)
    row = seeds.rng().standard_normal(columns).astype(np.complex64)
    await device.copy(await device.put(row), a[rows - 1])
    spectrum = await device.fft.fft(a)
    got = await device.get(spectrum[rows - 1])
    np.testing.assert_allclose(got, np.fft.fft(row), rtol=1e-4, atol=1e-3)
    assert not (await device.get(spectrum[rows - 2])).any()
    await device.free(spectrum)
    real = await device.fft.ifft(a)  # scaled by a kernel of this package
    got = await device.get(real[rows - 1])
    np.testing.assert_allclose(got, np.fft.ifft(row), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("kind", ["philox4_32_10", "xorwow", "sobol32"])
async def test_numbers(device: Device, dtype: str, kind: str) -> None:
    count = N - 5  # whole blocks, so that the sequence can be entered near its end
    seed = None if kind == "sobol32" else 1
    whole = await device.empty(count, dtype)
    results = []
    for skip, out in ((0, whole), (count - 64, await device.empty(64, dtype_of(dtype)))):
        rng = device.rng.default_rng(seed, kind, offset=skip)
        if dtype == "float32":
            await rng.random(out=out)
        else:
            await rng.integers(0, 256, out=out)
        results.append(await ends(device, out, 64))
    np.testing.assert_array_equal(results[0], results[1])


async def test_counts_beyond_32_bits_are_refused_with_a_reason(device: Device) -> None:
    a = await device.empty((2**31 // 4 + 1, 4, 4), np.float32)
    with pytest.raises(ValueError, match="what the library can count"):
        await device.blas.getrf_batched(a)
