"""Bands and square roots, beside SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported

from ...harness import on_shared
from ..conformance import MARKS
from ..refusals import refuses

pytestmark = MARKS

SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from(["float32", "float64", "complex64", "complex128"])


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    made = random.uniform(-1, 1, shape)
    if dtype.startswith("complex"):
        made = made + 1j * random.uniform(-1, 1, shape)
    return made.astype(dtype)


def close(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape
    least = 1e-3 if got.dtype.itemsize <= 4 or got.dtype == np.complex64 else 1e-9
    np.testing.assert_allclose(got, expected, least, least)


@settings(max_examples=20, deadline=None)
@given(
    seed=SEEDS,
    dtype=DTYPES,
    n=st.integers(1, 9),
    low=st.integers(0, 4),
    up=st.integers(0, 4),
    sides=st.sampled_from([(), (1,), (3,)]),
)
@on_shared
async def test_bands(
    device: Device, seed: int, dtype: str, n: int, low: int, up: int, sides: tuple[int, ...]
) -> None:
    low, up = min(low, n - 1), min(up, n - 1)
    random = np.random.default_rng(seed)
    ab, b = numbers(random, (low + up + 1, n), dtype), numbers(random, (n, *sides), dtype)
    ab[up] += 6
    put = device.put
    got = await device.linalg.solve_banded((low, up), await put(ab), await put(b))
    close(await device.get(got), scipy.linalg.solve_banded((low, up), ab, b))
    for lower in (False, True):
        half = numbers(random, (up + 1, n), dtype)
        main = 0 if lower else up
        half[main] = abs(half[main].real) + 9
        got = await device.linalg.solveh_banded(await put(half), await put(b), lower=lower)
        close(await device.get(got), scipy.linalg.solveh_banded(half, b, lower=lower))


@on_shared
async def test_bands_of_several_matrices_in_a_batch(device: Device) -> None:
    random = np.random.default_rng(0)
    ab, b = random.uniform(-1, 1, (2, 3, 4)), random.uniform(-1, 1, (2, 4, 1))
    ab[:, 1] += 4
    one, other = await device.put(ab), await device.put(b)
    async with device.batch() as batch:
        made = batch.linalg.solve_banded((1, 1), one, other)
    expected = [scipy.linalg.solve_banded((1, 1), *each) for each in zip(ab, b, strict=True)]
    np.testing.assert_allclose(await device.get(made), expected, 1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 9), lead=st.sampled_from([(), (2,)]))
@on_shared
async def test_tridiagonal_matrices(
    device: Device, seed: int, n: int, lead: tuple[int, ...]
) -> None:
    random = np.random.default_rng(seed)
    d, e = random.normal(size=(*lead, n)), random.normal(size=(*lead, n - 1))
    x, y = await device.put(d), await device.put(e)
    w, v = await device.linalg.eigh_tridiagonal(x, y)
    got, columns = await device.get(w), await device.get(v)
    whole = np.zeros((*lead, n, n))
    rows = np.arange(n)
    whole[..., rows, rows] = d
    whole[..., rows[1:], rows[:-1]] = whole[..., rows[:-1], rows[1:]] = e
    np.testing.assert_allclose(got, np.linalg.eigvalsh(whole), atol=1e-9)
    np.testing.assert_allclose(whole @ columns, columns * got[..., None, :], atol=1e-9)
    first, last = sorted(random.integers(0, n, 2).tolist())
    some = await device.linalg.eigh_tridiagonal(x, y, True, "i", (first, last))
    np.testing.assert_allclose(await device.get(some), got[..., first : last + 1], atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, dtype=DTYPES, n=st.integers(0, 6), hermitian=st.booleans())
@on_shared
async def test_square_roots(device: Device, seed: int, dtype: str, n: int, hermitian: bool) -> None:
    host = numbers(np.random.default_rng(seed), (2, n, n), dtype)
    host = host @ host.conj().mT if hermitian else host + 2 * n * np.eye(n, dtype=dtype)
    found = await device.linalg.sqrtm(await device.put(host), hermitian=hermitian)
    got = await device.get(found)
    close(got @ got, host.astype(got.dtype))
    if n and not hermitian:
        expected = np.stack([scipy.linalg.sqrtm(each) for each in host])
        close(got, expected.astype(got.dtype))


@on_shared
async def test_a_matrix_with_a_negative_eigenvalue_has_no_hermitian_root(device: Device) -> None:
    a = await device.put(np.stack([np.diag([1.0, -1.0]), np.diag([4.0, 0.0])]))
    got = await device.get(await device.linalg.sqrtm(a, hermitian=True))
    assert np.isnan(got[0]).any()
    np.testing.assert_array_equal(got[1], np.diag([2.0, 0.0]))


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, dtype=DTYPES, n=st.integers(1, 6), hermitian=st.booleans())
@on_shared
async def test_singular_values_alone_and_of_hermitian_matrices(
    device: Device, seed: int, dtype: str, n: int, hermitian: bool
) -> None:
    host = numbers(np.random.default_rng(seed), (2, n, n), dtype)
    host = host + host.conj().mT if hermitian else host
    a = await device.put(host)
    s = await device.linalg.svd(a, compute_uv=False, hermitian=hermitian)
    expected = np.linalg.svd(host, compute_uv=False)
    close(await device.get(s), expected)
    made = await device.linalg.svd(a, hermitian=hermitian)
    u, values, vh = [await device.get(each) for each in made]
    close(values, expected)
    close((u * values[..., None, :].astype(dtype)) @ vh, host)
    close(u.conj().mT @ u, np.broadcast_to(np.eye(n, dtype=dtype), u.shape))
    close(vh @ vh.conj().mT, np.broadcast_to(np.eye(n, dtype=dtype), u.shape))


test_bad_arguments_of_bands = refuses(
    "linalg",
    [
        ("solve_banded((1, 0), f8_3x3, f8_3x3[0])", ValueError, r"\.\.\., 2, n"),
        ("solve_banded((1, -1), f8_3x3, f8_3x3[0])", ValueError, "l_and_u"),
        ("solveh_banded(f8_3x3[0], f8_3x3[0])", ValueError, r"u \+ 1"),
        ("eigh_tridiagonal(f8_3x3[0], f8_3x3[0])", ValueError, "shapes that fit"),
        ('eigh_tridiagonal(f8_3x3[0], f8_3x3[0, 1:], select="v")', Unsupported, "only the device"),
        ('eigh_tridiagonal(f8_3x3[0], f8_3x3[0, 1:], select="i")', ValueError, "select_range"),
        ("sqrtm(f8_3x3[:2])", np.linalg.LinAlgError, "square"),
        ("svd(f8_3x3, hermitian=True, k=1)", ValueError, "must be None"),
        ("svd(f8_3x3, compute_uv=False, k=1)", ValueError, "k must be None"),
        ("svd(f8_3x3[:2], hermitian=True)", np.linalg.LinAlgError, "square"),
    ],
)
