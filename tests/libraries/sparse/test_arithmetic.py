"""Arithmetic, parts and joins of sparse matrices, beside SciPy's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS

SEEDS = st.integers(0, 2**31)
FORMATS = st.sampled_from(["csr", "csc", "coo"])
DTYPES = st.sampled_from(["float32", "float64", "complex64", "complex128"])
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 6))


def drawn(seed: int, shape: tuple[int, int], form: Any, dtype: str) -> Any:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, shape[0] * shape[1] + 1))
    data = random.integers(-2, 3, count).astype(dtype)
    coords = tuple(random.integers(0, extent, count) for extent in shape)
    made = scipy.sparse.coo_array((data, coords), shape=shape)
    return made if form == "coo" else made.asformat(form)  # coo has elements that are there twice


async def is_same(device: Device, got: Any, expected: Any) -> None:
    found = await device.sparse.get(got)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.todense(), expected.todense(), 1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shape=SHAPES, form=FORMATS, dtype=DTYPES, other=FORMATS)
@on_shared
async def test_sums_and_products(
    device: Device, seed: int, shape: tuple[int, int], form: str, dtype: str, other: str
) -> None:
    on = device.sparse
    x, y = drawn(seed, shape, form, dtype), drawn(seed + 1, shape, other, "float64")
    a, b = await on.put(x), await on.put(y)
    await is_same(device, await on.add(a, b), x + y)
    await is_same(device, await on.multiply(a, 2.5), x * 2.5)
    for rows, columns in ((shape[0], shape[1]), (1, shape[1]), (shape[0], 1)):
        dense = np.random.default_rng(seed).normal(size=(rows, columns)).astype(dtype)
        made = await on.multiply(a, await device.put(dense))
        await is_same(device, made, x.tocsr().multiply(dense).tocsr().astype(dtype))
    both = np.result_type(dtype, "float64")  # SciPy's of no elements are float64
    products = x.tocsr().multiply(y.tocsr()).tocsr().astype(both)
    await is_same(device, await on.multiply(a, b), products)
    product = await on.kron(a, b, "csc")
    assert product.format == "csc"
    await is_same(device, product, scipy.sparse.kron(x, y, "csc").astype(both))
    await is_same(device, await on.astype(a, "complex128"), x.astype("complex128"))


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shape=SHAPES, form=FORMATS, dtype=DTYPES)
@on_shared
async def test_reductions_and_diagonals(
    device: Device, seed: int, shape: tuple[int, int], form: str, dtype: str
) -> None:
    on = device.sparse
    host = drawn(seed, shape, form, dtype)
    a, dense = await on.put(host), host.todense()
    axes: tuple[Any, ...] = (None, 0, 1, -1, -2)
    for axis in axes:
        for name in ("sum", "mean"):
            got = await device.get(await getattr(on, name)(a, axis))
            np.testing.assert_allclose(got, getattr(dense, name)(axis), 1e-5)
            assert got.dtype == dtype
    for k in range(-shape[0], shape[1] + 1):
        got = await device.get(await on.diagonal(a, k))
        np.testing.assert_array_equal(got, np.diagonal(dense, k))


@on_shared
async def test_a_mean_over_more_places_than_float16_has_numbers_for(device: Device) -> None:
    host = scipy.sparse.coo_matrix((np.full(300, 100.0), (np.arange(300),) * 2), (300, 300))
    a = await device.sparse.put(host.astype(np.float32))
    half = await device.sparse.astype(a, np.float16)
    assert abs(float(await device.get(await device.sparse.mean(half))) - 1 / 3) < 1e-3


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, shape=SHAPES, form=FORMATS, k=st.integers(-7, 7))
@on_shared
async def test_parts(device: Device, seed: int, shape: tuple[int, int], form: str, k: int) -> None:
    on = device.sparse
    host = drawn(seed, shape, form, "float64")
    a = await on.put(host)
    made: Any
    for name in ("tril", "triu"):
        made = await getattr(on, name)(a, k, "csc")
        assert made.format == "csc"
        await is_same(device, made, getattr(scipy.sparse, name)(host, k))
    made = await on.eliminate_zeros(a)
    assert made.nnz == (host.data != 0).sum()
    await is_same(device, made, host)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, extent=st.integers(1, 5), forms=st.lists(FORMATS, min_size=1, max_size=3))
@on_shared
async def test_joins(device: Device, seed: int, extent: int, forms: list[str]) -> None:
    on = device.sparse
    random = np.random.default_rng(seed)
    for name in ("vstack", "hstack"):
        hosts = []
        for at, form in enumerate(forms):
            shape = (int(random.integers(1, 5)), extent)
            shape = shape if name == "vstack" else shape[::-1]
            hosts.append(drawn(seed + at, shape, form, "float32"))
        blocks = [await on.put(each) for each in hosts]
        made = await getattr(on, name)(blocks)
        await is_same(device, made, getattr(scipy.sparse, name)(hosts))


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, shape=SHAPES, form=FORMATS, k=st.integers(-6, 6))
@on_shared
async def test_diagonal_matrices(
    device: Device, seed: int, shape: tuple[int, int], form: Any, k: int
) -> None:
    on = device.sparse
    m, n = shape
    made = await on.eye(m, n, k, "float32", form)
    assert made.format == form
    await is_same(device, made, scipy.sparse.coo_array(np.eye(m, n, k, "float32")))
    random = np.random.default_rng(seed)
    offsets = random.permutation(np.arange(1 - m, n))[:3].tolist()
    hosts = [random.normal(size=min(m + min(at, 0), n - max(at, 0))) for at in offsets]
    refs = [await device.put(each) for each in hosts]
    made = await on.diags(refs, offsets, shape, form)
    await is_same(device, made, scipy.sparse.diags_array(hosts, offsets=offsets, shape=shape))


@on_shared
async def test_in_a_batch(device: Device) -> None:
    host = drawn(3, (4, 5), "csr", "float64")
    a = await device.sparse.put(host)
    async with device.batch() as batch:
        made = batch.sparse.multiply(batch.sparse.add(a, a), 3)
        total = batch.sparse.sum(made, 0)
        with pytest.raises(Unsupported):
            batch.sparse.tril(a)
    np.testing.assert_allclose(await device.get(total), host.todense().sum(0) * 6)


WRONG: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda on, a: on.add(a, a.T), ValueError, "one shape"),
    (lambda on, a: on.add(a, 1), TypeError, "b"),
    (lambda on, a: on.multiply(a, "a"), TypeError, "other must be a number"),
    (lambda on, a: on.kron(a, 2), TypeError, "b"),
    (lambda on, a: on.multiply(a, a.major.reshape(1, 1, 3)), ValueError, "broadcast"),
    (lambda on, a: on.astype(a, "int32"), TypeError, "dtype must be one of"),
    (lambda on, a: on.sum(a, 2), ValueError, "axis must be"),
    (lambda on, a: on.diagonal(a, 9), ValueError, "k must be a diagonal"),
    (lambda on, a: on.vstack([]), ValueError, "not none"),
    (lambda on, a: on.vstack([a, a.T]), ValueError, "agree in axis 1"),
    (lambda on, a: on.diags([a.data], [0, 1], (2, 2)), ValueError, "equally many"),
    (lambda on, a: on.diags([a.data], [0], (9, 9)), ValueError, r"must have shape \(9,\)"),
    (lambda on, _: on.eye(3, dtype="int64"), TypeError, "dtype must be one of"),
]


FORMATTED: dict[str, Callable[..., Any]] = {
    "kron": lambda on, a, to: on.kron(a, a, to),
    "tril": lambda on, a, to: on.tril(a, 0, to),
    "triu": lambda on, a, to: on.triu(a, 0, to),
    "vstack": lambda on, a, to: on.vstack([a, a], to),
    "hstack": lambda on, a, to: on.hstack([a, a], to),
    "eye": lambda on, _, to: on.eye(3, format=to),
    "diags": lambda on, a, to: on.diags([a.data.reshape(-1)], [0], (a.data.size,) * 2, to),
    "fromdense": lambda on, a, to: on.fromdense(a.data.reshape(1, -1), to),
}


@on_shared
async def test_all_that_take_a_format_are_tried(device: Device) -> None:
    methods = inspect.getmembers(type(device.sparse), inspect.isfunction)
    taking = {
        name
        for name, each in methods
        if name[0] != "_" and "format" in inspect.signature(each).parameters
    }
    assert taking == set(FORMATTED)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMATTED)),
    given_format=st.one_of(st.text(max_size=4), st.none(), st.integers(), st.just("bsr")).filter(
        lambda each: each not in ("csr", "csc", "coo")
    ),
    form=st.sampled_from(["csr", "coo", "bsr"]),
)
@on_shared
async def test_formats_that_do_not_exist(
    device: Device, name: str, given_format: object, form: Any
) -> None:
    a = await device.sparse.put(drawn(3, (2, 2), form, "float64"))
    with pytest.raises(ValueError, match="format must be 'csr', 'csc' or 'coo'"):
        await FORMATTED[name](device.sparse, a, given_format)


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
@on_shared
async def test_bad_arguments_of_arithmetic(
    device: Device, call: Callable[..., Any], error: type[Exception], words: str
) -> None:
    a = await device.sparse.put(drawn(3, (2, 3), "csr", "float64"))
    with pytest.raises(error, match=words):
        await call(device.sparse, a)
