"""``device.array`` sorts, searches, scans, counts and reduces as NumPy does."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported
from atomr_accel.libraries.array._quantiles import _METHODS, Method, _place

from ...harness import on_shared, opened
from ..conformance import MARKS
from ..refusals import refuses
from .calls import (
    FILLED,
    FLOATS,
    LAYOUTS,
    REAL,
    SEEDS,
    SHAPES,
    by_numpy,
    fetched,
    put,
    same,
    sample,
)

pytestmark = MARKS

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "count_nonzero", "ptp")
MEANS = ("mean", "var", "std")
WITHOUT_NAN = ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd")
NEAR = {"float16": 5e-3, "float32": 1e-5}


@settings(max_examples=60)
@given(
    name=st.sampled_from((*REDUCTIONS, *MEANS, *WITHOUT_NAN)),
    shape=FILLED,
    dtype=st.sampled_from(("int8", "int64", "uint8", "float16", "float32", "float64")),
    seed=SEEDS,
    keepdims=st.booleans(),
)
@on_shared
async def test_reductions(
    device: Device, name: str, shape: tuple[int, ...], dtype: str, seed: int, *, keepdims: bool
) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype, strange=name not in MEANS)
    if name.startswith("nan") and host.dtype.kind == "f":
        host = np.where(np.isinf(host), host.dtype.type(1), host)
    x = await put(device, host, draw.choice(LAYOUTS))
    axis: Any = draw.choice([None, *range(-len(shape), len(shape))])
    if not name.startswith("arg") and len(shape) > 1 and draw.random() < 0.3:
        axis = (0, -1)
    expected = by_numpy(name, host, axis=axis, keepdims=keepdims)
    near = NEAR.get(dtype, 1e-12)
    call = getattr(device.array, name)
    same(await fetched(device, await call(x, axis=axis, keepdims=keepdims)), expected, near=near)
    if name != "count_nonzero":
        out = await put(device, np.zeros(np.shape(expected), expected.dtype), "gaps")
        assert await call(x, axis=axis, out=out, keepdims=keepdims) is out
        same(await fetched(device, out), expected, near=near)


@settings(max_examples=20)
@given(shape=FILLED, seed=SEEDS)
@on_shared
async def test_reductions_count_as_numpy_does(
    device: Device, shape: tuple[int, ...], seed: int
) -> None:
    host, mask = sample(seed, shape, "float64"), sample(seed, shape, "bool")
    x, m = await put(device, host), await put(device, mask)
    array = device.array
    same(await fetched(device, await array.sum(x, where=m)), np.sum(host, where=mask))
    same(
        await fetched(device, await array.sum(x, 0, "float32", initial=2)),
        np.sum(host, 0, "float32", initial=2),
    )
    same(
        await fetched(device, await array.max(x, -1, initial=9, where=m)),
        np.max(host, -1, initial=9, where=mask),
    )
    same(await fetched(device, await array.all(x, where=m)), np.all(host, where=mask))
    same(
        await fetched(device, await array.norm(x, axis=0)), np.linalg.norm(host, axis=0), near=1e-12
    )
    odd = sample(seed, shape, "float64", strange=True)
    odd.reshape(-1)[0] = 1
    o = await put(device, odd)
    same(await fetched(device, await array.nanargmax(o)), np.nanargmax(odd))
    same(await fetched(device, await array.nanargmin(o)), np.nanargmin(odd))
    kept = await array.nanargmax(o, keepdims=True)
    same(await fetched(device, kept), np.nanargmax(odd, keepdims=True))
    kept = await array.nanargmin(o.reshape(1, -1), 1, keepdims=True)
    same(await fetched(device, kept), np.nanargmin(odd.reshape(1, -1), 1, keepdims=True))


@pytest.mark.slow
@settings(max_examples=60)
@given(shape=SHAPES, dtype=st.sampled_from(REAL), seed=SEEDS)
@on_shared
async def test_sorts(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype, strange=True)
    x = await put(device, host, draw.choice(LAYOUTS))
    axis = draw.choice([None, *range(-len(shape), len(shape))])
    array = device.array
    same(await fetched(device, await array.sort(x, axis)), np.sort(host, axis))
    same(await fetched(device, await array.argsort(x, axis)), np.argsort(host, axis, stable=True))
    out = await put(device, np.zeros(np.sort(host, axis).shape, host.dtype), "transposed")
    assert await array.sort(x, axis, out=out) is out
    same(await fetched(device, out), np.sort(host, axis))
    if not shape:
        return
    at = draw.randrange(-len(shape), len(shape))
    n = shape[at]
    k = draw.randint(0, n)
    values, places = await array.topk(x, k, at)
    order = np.flip(np.sort(host, at), at).take(range(k), at)
    same(await fetched(device, values), order)
    found = await device.get(places)
    assert found.shape == order.shape
    same(np.take_along_axis(host, found, at) if found.size else order, order)
    values, places = await array.topk(x, k, at, largest=False)
    same(await fetched(device, values), np.sort(host, at).take(range(k), at))
    same(await fetched(device, places), np.argsort(host, at, stable=True).take(range(k), at))
    if n:
        kth = draw.randrange(-n, n)
        part = await device.get(await array.partition(x, kth, at))
        same(part.take([kth % n], at), np.sort(host, at).take([kth % n], at))


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(("float32", "float16", "float64", "int8", "uint16", "int64")),
    rows=st.integers(1, 5),
    length=st.integers(32, 400),
    k=st.integers(1, 8),
    kinds=st.integers(1, 1000),
    odd=st.sampled_from((0.0, 0.02, 0.5)),
    largest=st.booleans(),
    seed=SEEDS,
)
@on_shared
async def test_few_of_long_rows_are_those_of_a_stable_sort(
    device: Device, dtype: str, rows: int, length: int, k: int, kinds: int, odd: float,
    *, largest: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    host = rng.integers(0, min(kinds, 120), (rows, length)).astype(dtype)
    if host.dtype.kind == "f":
        strange = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], dtype)
        host = np.where(rng.random(host.shape) < odd, rng.choice(strange, host.shape), host)
    x = await device.put(host)
    values, places = await device.array.topk(x, k, largest=largest)
    # From the end, a stable sort has the last of equal elements first, so rows are reversed.
    order = np.argsort(host, 1, stable=True)
    if largest:
        order = length - 1 - np.argsort(host[:, ::-1], 1, stable=True)[:, ::-1]
    same(await device.get(places), order[:, :k])
    same(await device.get(values), np.take_along_axis(host, order[:, :k], 1))


@settings(max_examples=40)
@given(shape=SHAPES, dtype=st.sampled_from((*REAL, "complex64")), seed=SEEDS)
@on_shared
async def test_scans(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    x = await put(device, host, draw.choice(LAYOUTS))
    axis = draw.choice([None, *range(-len(shape), len(shape))])
    if not shape and axis is None:
        host = host.reshape(1)
        x = x.reshape(1)
    for name in ("cumsum", "cumprod"):
        expected = by_numpy(name, host, axis)
        if dtype == "float16":
            expected = by_numpy(name, host.astype("float32"), axis).astype("float16")
        same(await fetched(device, await getattr(device.array, name)(x, axis)), expected)
        out = await put(device, np.zeros(expected.shape, "complex128"), "transposed")
        assert await getattr(device.array, name)(x, axis, out=out) is out
        same(await fetched(device, out), expected.astype("complex128"))
    same(
        await fetched(device, await device.array.cumsum(x, axis, "complex64")),
        np.cumsum(host, axis, "complex64"),
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(shape=FILLED, dtype=st.sampled_from(REAL), seed=SEEDS, equal_nan=st.booleans())
@on_shared
async def test_unique(
    device: Device, shape: tuple[int, ...], dtype: str, seed: int, *, equal_nan: bool
) -> None:
    draw = Random(seed)
    # NumPy has several NaN in any order, where they are not equal.
    host = sample(seed, shape, dtype, strange=equal_nan)
    x = await put(device, host, draw.choice(LAYOUTS))
    flags = [draw.random() < 0.5 for _ in range(3)]
    numpy: Any = np
    expected = numpy.unique(host, *flags, equal_nan=equal_nan)
    got = await fetched(device, await device.array.unique(x, *flags, equal_nan=equal_nan))
    same(got, list(expected) if isinstance(expected, tuple) else expected)
    array = device.array
    host = sample(seed, shape, dtype)
    x = await put(device, host)
    same(await fetched(device, await array.unique_all(x)), list(np.unique_all(host)))
    same(await fetched(device, await array.unique_counts(x)), list(np.unique_counts(host)))
    same(await fetched(device, await array.unique_inverse(x)), list(np.unique_inverse(host)))
    same(await fetched(device, await array.unique_values(x)), np.unique_all(host).values)


@on_shared
async def test_percentiles_of_single_precision_are_at_the_places_of_their_hundredths(
    device: Device,
) -> None:
    host = np.array([15, 20, 35, 40, 50], np.float32)
    x = await put(device, host)
    for method in ("inverted_cdf", "averaged_inverted_cdf"):
        got = await device.array.percentile(x, 40.0, method=method)
        same(await fetched(device, got), np.percentile(host, 40.0, method=method))


@on_shared
async def test_unique_of_one_axis_has_one_nan(device: Device) -> None:
    host = np.array([np.nan, 0, 0, np.nan])
    x = await put(device, host)
    for equal_nan in (True, False):
        for axis in (0, -1):
            got = await device.array.unique(x, return_counts=True, axis=axis, equal_nan=equal_nan)
            expected = np.unique(host, return_counts=True, axis=axis, equal_nan=equal_nan)
            same(await fetched(device, got), list(expected))


@settings(max_examples=30)
@given(size=st.integers(0, 9), shape=SHAPES, seed=SEEDS, side=st.sampled_from(["left", "right"]))
@on_shared
async def test_searches(
    device: Device, size: int, shape: tuple[int, ...], seed: int, side: Any
) -> None:
    draw = Random(seed)
    data = sample(seed, (size,), draw.choice(["int64", "float32", "float64"]))
    values = sample(seed + 1, shape, draw.choice(["int8", "float64"]))
    a, v = await put(device, np.sort(data), "gaps"), await put(device, values, draw.choice(LAYOUTS))
    array = device.array
    same(
        await fetched(device, await array.searchsorted(a, v, side)),
        np.searchsorted(np.sort(data), values, side),
    )
    order = np.argsort(data)
    sorter = await put(device, order)
    got = await array.searchsorted(await put(device, data), v, side, sorter)
    same(await fetched(device, got), np.searchsorted(data, values, side, order))
    right = side == "right"
    same(
        await fetched(device, await array.digitize(v, a, right)),
        np.digitize(values, np.sort(data), right),
    )


@on_shared
async def test_narrow_numbers_on_an_edge_are_counted_where_numpy_counts_them(
    device: Device,
) -> None:
    for dtype in (np.float32, np.float16):
        host = (np.arange(11) / 10).astype(dtype)  # 0.7 is less in float32 than in float64
        x = await put(device, host)
        got = await fetched(device, await device.array.histogram(x, 10, (0, 1)))
        same(got, list(np.histogram(host, 10, (0, 1))))
        got = await fetched(device, await device.array.histogram(x, 4))
        same(got, list(np.histogram(host, 4)))
    with pytest.raises(ValueError, match="Too many bins"):  # these are infinite in float16
        await device.array.histogram(x, 3, (0, 1e5))


@on_shared
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("name", ["argsort", "cumsum", "cumprod", "argpartition"])
async def test_a_number_has_an_axis_where_numpy_sees_one(
    device: Device, name: str, axis: int | None
) -> None:
    further = [0] if name == "argpartition" else []
    expected = getattr(np, name)(np.array(5.0), *further, axis=axis)
    got = await getattr(device.array, name)(await put(device, np.array(5.0)), *further, axis=axis)
    same(await fetched(device, [got]), [expected])
    with pytest.raises(np.exceptions.AxisError):
        await getattr(device.array, name)(await put(device, np.array(5.0)), *further, axis=1)


@on_shared
async def test_partitions_of_none_are_none_whatever_is_asked(device: Device) -> None:
    for shape in ((0,), (2, 0), (0, 3)):
        host = np.zeros(shape)
        x = await put(device, host)
        for kth in (0, 5, [-3, 1]):
            if isinstance(kth, list) and shape[-1] > 1:
                continue
            same(await fetched(device, [await device.array.partition(x, kth)]), [host])
            places = await fetched(device, [await device.array.argpartition(x, kth)])
            same(places, [np.argpartition(host, kth)])


@on_shared
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        np.array([1, np.inf]),
        np.array([-np.inf, 1, np.inf], np.float32),
        np.array([np.nan, 1]),
        np.full(3, 2582694641243101725, np.uint64),
        np.array([1, 1 + 2**-23], np.float32),
    ],
)
async def test_histograms_of_ranges_that_are_none_are_refused_as_numpy_does(
    device: Device, host: np.ndarray[Any, Any], weighted: bool
) -> None:
    with pytest.raises(ValueError, match=r"is not finite|Too many bins") as wanted:
        np.histogram(host, 6)
    x = await put(device, host)
    weights = await put(device, np.ones(len(host))) if weighted else None
    with pytest.raises(ValueError, match=re.escape(str(wanted.value))):
        await device.array.histogram(x, 6, weights=weights)
    with pytest.raises(ValueError, match=re.escape(str(wanted.value))):
        async with device.batch() as batch:
            batch.array.histogram(x, 6, weights=weights)
    with pytest.raises(ValueError, match="Too many bins"):
        await device.array.histogram(x, 9, (1, 1 + 1e-15), weights=weights)


@pytest.mark.slow
@settings(max_examples=40)
@given(size=st.integers(0, 30), seed=SEEDS, density=st.booleans())
@on_shared
async def test_histograms(device: Device, size: int, seed: int, *, density: bool) -> None:
    draw = Random(seed)
    rng = np.random.default_rng(seed)
    host = rng.normal(size=size) if draw.random() < 0.6 else rng.integers(-9, 9, size)
    x = await put(device, host, "gaps")
    weights = rng.integers(0, 5, size).astype(draw.choice(["float64", "int64"]))
    w = await put(device, weights)
    bins: Any = draw.choice([1, 3, 10, [-2.0, 0.0, 1.0, 1.5], [-3, 0, 4]])
    bounds = draw.choice([None, (-1.0, 1.5), (0, 0)])
    expected = by_numpy("histogram", host, bins, bounds, density=density)
    got = await fetched(device, await device.array.histogram(x, bins, bounds, density))
    same(got, list(expected), near=1e-12)
    expected = by_numpy("histogram", host, bins, bounds, weights=weights)
    got = await fetched(device, await device.array.histogram(x, bins, bounds, weights=w))
    same(got, list(expected), near=1e-12)
    numbers = np.abs(rng.integers(-9, 9, size)).astype(draw.choice(["uint8", "int32", "int64"]))
    n = await put(device, numbers)
    least = draw.randint(0, 12)
    array = device.array
    same(
        await fetched(device, await array.bincount(n, None, least)),
        np.bincount(numbers, None, least),
    )
    got = await fetched(device, await array.bincount(n, w, least))
    expected = np.bincount(numbers, weights, least).astype(np.float64)  # without any an int64
    same(got, expected, near=1e-12)
    async with device.batch() as batch:
        made = batch.array.bincount(n, length=5)
    same(await fetched(device, made), np.bincount(numbers[numbers < 5], None, 5))


@pytest.mark.slow
@settings(max_examples=50)
@given(
    shape=FILLED,
    dtype=st.sampled_from(("int8", "int64", *FLOATS)),
    seed=SEEDS,
    method=st.sampled_from(_METHODS),
    keepdims=st.booleans(),
)
@on_shared
async def test_quantiles(
    device: Device, shape: tuple[int, ...], dtype: str, seed: int, method: Any, *, keepdims: bool
) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    if host.dtype.kind == "f" and draw.random() < 0.3:
        host.reshape(-1)[draw.randrange(host.size)] = np.nan
    x = await put(device, host, draw.choice(LAYOUTS))
    axis: Any = draw.choice([None, *range(-len(shape), len(shape)), tuple(range(len(shape)))[:2]])
    q: Any = draw.choice([0.0, 0.25, 0.5, 1.0, np.float64(0.25), [0.1, 0.9], [[0.5, 1.0]]])
    array = device.array
    near = NEAR.get(dtype, 1e-12)
    expected = by_numpy("quantile", host, q, axis, method=method, keepdims=keepdims)
    if np.size(expected) == 1 and np.isnan(expected):
        # NumPy gives an element of the input here, of the input's dtype whatever q is.
        usual = by_numpy("quantile", np.ones(1, dtype), q, method=method).dtype
        expected = np.asarray(expected, usual)
    got = await array.quantile(x, q, axis, method=method, keepdims=keepdims)
    same(await fetched(device, got), expected, near=near)
    got = await array.median(x, axis, keepdims=keepdims)
    same(await fetched(device, got), by_numpy("median", host, axis, keepdims=keepdims), near=near)
    got = await array.percentile(x, 30.0, axis)
    same(await fetched(device, got), by_numpy("percentile", host, 30.0, axis), near=near)


@pytest.mark.parametrize("method", _METHODS)
def test_places_of_quantiles(method: Method) -> None:
    for n in (1, 2, 3, 8, 9, 10):
        rows = np.arange(n) ** 2.0
        for share in (*np.linspace(0, 1, 13), *(k / n for k in range(n + 1)), 0.5 / n, 1.5 / n):
            if share <= 1:
                place, part = _place(float(n), float(share), method)
                low = int(place)
                high = rows[min(low + 1, n - 1)]
                wanted = np.quantile(rows, share, method=method)
                assert rows[low] + part * (high - rows[low]) == pytest.approx(wanted), (n, share)


@on_shared
async def test_the_dtype_of_quantiles_is_numpys(device: Device) -> None:
    for dtype in ("float16", "float32", "float64", "int32"):
        host = np.arange(5, dtype=dtype)
        x = await device.put(host)
        for q in (0.3, np.float32(0.3), np.float64(0.3), [0.3]):
            for call in ("quantile", "percentile"):
                for method in ("linear", "lower", "hazen"):
                    got = await getattr(device.array, call)(x, q, method=method)
                    wanted = getattr(np, call)(host, q, method=method)
                    assert got.dtype == wanted.dtype, (dtype, q, call, method)


@pytest.mark.slow
@settings(max_examples=30)
@given(size=st.integers(0, 40), seed=SEEDS)
@on_shared
async def test_complex_numbers_in_one_row(device: Device, size: int, seed: int) -> None:
    host = sample(seed, (size,), "complex64")
    odd = np.random.default_rng(seed).choice([0, 1, np.nan, -np.inf], (2, size)).astype(np.float32)
    host.real[::2], host.imag[::3] = odd[0, ::2], odd[1, ::3]
    x = await put(device, host, "gaps")
    array = device.array
    same(await fetched(device, await array.sort(x)), np.sort(host))
    same(await fetched(device, await array.argsort(x)), np.argsort(host, stable=True))
    finite = np.nan_to_num(host)
    f = await put(device, finite)
    same(await fetched(device, await array.unique_all(f)), list(np.unique_all(finite)))
    with pytest.raises(TypeError, match="has no order"):
        await array.sort(await put(device, np.ones((2, 2), np.complex64)))


@pytest.mark.parametrize("deterministic", [False, True])
async def test_long_rows(deterministic: bool) -> None:
    async with opened(deterministic=deterministic, isolation="thread") as device:
        host = np.random.default_rng(0).integers(-9, 9, 150_001).astype(np.float64)
        x = await device.put(host)
        same(await device.get(await device.array.cumsum(x)), np.cumsum(host))
        i = await device.put(host.astype(np.int32))
        same(await device.get(await device.array.cumsum(i)), np.cumsum(host.astype(np.int32)))


@on_shared
async def test_batches(device: Device) -> None:
    host = np.random.default_rng(0).normal(size=(5, 8))
    x = await device.put(host)
    async with device.batch() as batch:
        order = batch.array.argsort(x, 0)
        values, places = batch.array.topk(x, 2)
        best = batch.array.take_along_axis(x, batch.array.argmax(x, -1, keepdims=True), -1)
        sums = batch.array.cumsum(x, 1)
        middle = batch.array.median(x)
        call: Any
        for call in (lambda: batch.array.unique(x), lambda: batch.array.bincount(order[0])):
            with pytest.raises(Unsupported, match="waits for the device's answer"):
                call()
    same(await device.get(order), np.argsort(host, 0))
    same(await device.get(values), -np.sort(-host)[:, :2])
    same(await device.get(places), np.argsort(-host)[:, :2])
    same(await device.get(best), host.max(-1, keepdims=True))
    same(await device.get(sums), np.cumsum(host, 1), near=1e-12)
    same(await device.get(middle), np.median(host), near=1e-12)


test_sorting_refuses_invalid_arguments = refuses(
    "array",
    [
        ("sort(c8_2x2)", TypeError, "has no order"),
        ("sort(f8_2x3, 2)", np.exceptions.AxisError, "axis 2 is out of bounds"),
        ('sort(f8_2x3, kind="bubble")', ValueError, "sort kind must be one of"),
        ("sort([1])", TypeError, "a must be a GpuRef"),
        ("partition(f8_2x3, 3)", ValueError, r"kth\(=3\) out of bounds \(3\)"),
        (
            "topk(f8_2x3, 4)",
            ValueError,
            "k must be at most 3, the number of elements along the axis, not 4",
        ),
        ("searchsorted(f8_2x3, f8_2x3)", ValueError, "object too deep"),
        ('searchsorted(f8_2x3[0], f8_2x3, "up")', ValueError, "side must be"),
        ('searchsorted(f8_2x3[0], f8_2x3, "left", i8_2)', ValueError, "sorter.size must equal"),
        ("bincount(f8_2x3[0])", TypeError, "Cannot cast array data from"),
        ("bincount(i8_2, minlength=-1)", ValueError, "'minlength' must not be negative"),
        ("bincount(i8_2, f8_2x3[0])", ValueError, "don't have the same length"),
        ("histogram(f8_2x3, 0)", ValueError, "`bins` must be positive"),
        ("histogram(f8_2x3, [2, 1])", ValueError, "must increase monotonically"),
        ("histogram(f8_2x3, 2, (1, 0))", ValueError, "max must be larger than min"),
        ("histogram(c8_2x2)", TypeError, "no order"),
        ("quantile(f8_2x3, 1.5)", ValueError, r"Quantiles must be in the range \[0, 1\]"),
        ("histogram(f8_2x3, 2.5)", TypeError, "bins must be a whole number or edges, not 2.5"),
        ("gradient(f8_2x3, f8_2x3[0])", TypeError, "one number, or one distance or coordinates"),
        ("percentile(f8_2x3, 101)", ValueError, "Percentiles must be in the range"),
        ('quantile(f8_2x3, 0.5, method="best")', ValueError, "not a valid method"),
        ("median(f8_2x3[:0])", ValueError, "median of no elements"),
        ("max(f8_2x3[:0])", ValueError, "zero-size array to reduction operation maximum"),
        ("argmax(f8_2x3[:0])", ValueError, "attempt to get argmax of an empty sequence"),
        ("sum(f8_2x3, 5)", np.exceptions.AxisError, "axis 5 is out of bounds"),
        ('cumsum(f8_2x3, dtype="bool")', TypeError, "cumsum of bool"),
        ("sum(f8_2x3, out=i8_2)", TypeError, "Cannot cast output"),
    ],
)


@on_shared
async def test_negative_numbers_are_not_counted(device: Device) -> None:
    numbers = await device.put(np.array([1, -2]))
    with pytest.raises(ValueError, match="must have no negative elements"):
        await device.array.bincount(numbers)


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint16", "bool"]),
    descending=st.booleans(),
    zeros=st.booleans(),
    size=st.sampled_from([0, 1, 7, 60, 3000]),
    seed=SEEDS,
)
@on_shared
async def test_sorting_keeps_the_order_of_zeros_with_a_sign(
    device: Device, dtype: str, descending: bool, zeros: bool, size: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    host = draw.integers(-9, 9, size).astype(dtype)
    if host.dtype.kind == "f":
        host[draw.random(size) < 0.1] = np.nan
        host[draw.random(size) < 0.1] = -np.inf
        host[host == 0] = draw.choice([0.0, -0.0] if zeros else [0.0], (host == 0).sum())
    x = await device.put(host)
    order = await device.get(await device.array.argsort(x, kind="stable", descending=descending))
    found = await device.get(await device.array.sort(x, descending=descending))
    np.testing.assert_array_equal(found, host[order])  # NaN equals NaN
    if host.dtype.kind == "f":
        numbers = ~np.isnan(found)
        assert (np.signbit(found) == np.signbit(host[order]))[numbers].all()
    if not descending:
        np.testing.assert_array_equal(found, np.sort(host))
