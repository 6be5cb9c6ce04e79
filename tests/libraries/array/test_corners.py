"""``device.array`` at the corners of NumPy's and SciPy's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS
from .calls import fetched, put, same

pytestmark = MARKS

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize(
    ("a", "v"),
    [
        ([1, 2, 3], [1, INF]),
        ([1, 2, 3], [1, NAN]),
        ([1, NAN, 3, 4], [0, 2, 1]),
        ([2, INF], [1, 2, -INF, 4, 5]),
        ([1], [NAN, 2]),
    ],
)
@on_shared
async def test_what_is_not_finite_stays_where_rows_meet(
    device: Device, a: list[float], v: list[float], dtype: str
) -> None:
    rows = np.array(a, dtype), np.array(v, dtype)
    x, y = [await device.put(row) for row in rows]
    for name in ("convolve", "correlate"):
        for mode in ("full", "same", "valid"):
            with np.errstate(all="ignore"):
                expected = getattr(np, name)(*rows, mode)
            got = await device.get(await getattr(device.array, name)(x, y, mode))
            if dtype == "complex64":  # whose products with infinities differ
                got, expected = np.isfinite(got), np.isfinite(expected)
            same(got, expected)


@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@on_shared
async def test_parts_of_complex_numbers_are_rounded(
    device: Device, layout: str, dtype: str
) -> None:
    host = np.array([[1.5 + 2.5j, complex(INF, -1.26), complex(-0.34, NAN)]] * 2, dtype)
    x = await put(device, host, layout)
    for on in (device.array, device.xp):
        for digits in (0, 1):
            same(await device.get(await on.round(x, digits)), np.round(host, digits), near=1e-6)
        one = await on.round(x[0, 0])
        same(await device.get(one), np.round(host[0, 0]))
    assert await device.array.round(x, 0, x) is x
    same(await device.get(x), np.round(host))
    with pytest.raises(TypeError, match=r"await device\.array\.round"):
        np.round(x)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "float32"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@on_shared
async def test_odd_reflections_of_integers_wrap(device: Device, dtype: str, mode: Any) -> None:
    host = np.array([1, 2, 3], dtype)
    x = await device.put(host)
    for width in (4, 150 if dtype == "int8" else 30):
        got = await device.array.pad(x, width, mode, reflect_type="odd")
        same(await device.get(got), np.pad(host, width, mode, reflect_type="odd"))


@pytest.mark.parametrize("mode", ["mean", "median", "maximum"])
@on_shared
async def test_bools_are_padded_with_what_is_not_zero(device: Device, mode: Any) -> None:
    host = np.array([True, False])
    same(
        await device.get(await device.array.pad(await device.put(host), 1, mode)),
        np.pad(host, 1, mode),
    )
    z = await device.put(np.ones(3, np.complex64))
    if mode == "median":
        with pytest.raises(TypeError, match="array must hold real numbers"):
            await device.array.pad(z, 1, mode)


@on_shared
async def test_a_range_has_the_dtype_of_its_place(device: Device) -> None:
    host = np.array([[-(2**31), 2**31 - 1], [1, 5]], np.int32)
    x = await device.put(host)
    for axis, shape in ((None, ()), (1, (2,))):
        out = await device.put(np.zeros(shape, np.int64))
        await device.array.ptp(x, axis, out)
        same(await device.get(out), np.ptp(host, axis, np.zeros(shape, np.int64)))
    with pytest.raises(TypeError):
        await device.array.ptp(await device.evaluate(x * 0.5), out=await device.put(np.array(0)))


REDUCTIONS = [
    *("sum", "prod", "max", "min", "ptp", "mean", "var", "std", "median"),
    *("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanmedian"),
]


@pytest.mark.parametrize("name", REDUCTIONS)
@on_shared
async def test_a_reduction_into_a_place_of_a_wider_dtype(device: Device, name: str) -> None:
    host = np.array([[1, 2, 5], [7, 3, 4]], np.float32)
    if name.startswith("nan"):
        host[0, 1] = NAN
    out = await device.put(np.full(2, -1.0))
    await getattr(device.array, name)(await device.put(host), axis=1, out=out)
    expected = getattr(np, name)(host.astype(np.float64), axis=1)
    np.testing.assert_allclose(await device.get(out), expected, rtol=1e-6)


@pytest.mark.parametrize("places", [[], slice(0, 0), np.zeros(3, bool)])
@on_shared
async def test_values_for_no_places_have_to_fit(device: Device, places: Any) -> None:
    host, values = np.arange(3.0), np.array([7.0, 8])
    x, y = await device.put(host), await device.put(values)
    with pytest.raises(ValueError, match="shape mismatch"):
        await device.array.insert(x, places, y)
    for given, number in ((y[:1], values[:1]), (4, 4)):
        got = await device.array.insert(x, places, given)
        same(await device.get(got), np.insert(host, places, number))


@on_shared
async def test_edges_may_be_an_expression(device: Device) -> None:
    host, ends = np.array([1.0, 2, 2, 3]), np.array([0.0, 1, 1.5])
    x, edges = await device.put(host), await device.put(ends)
    expected = np.histogram(host, ends * 2)
    same(await fetched(device, await device.array.histogram(x, edges * 2)), [*expected])
    both = await device.array.histogram2d(x, x, edges * 2)
    same(await fetched(device, both), [*np.histogram2d(host, host, ends * 2)])


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((2, 0), 1)])
@on_shared
async def test_no_parts_have_no_different_ones(
    device: Device, shape: tuple[int, ...], axis: int
) -> None:
    host = np.zeros(shape, np.float32)
    x = await device.put(host)
    same(await fetched(device, await device.array.unique(x, axis=axis)), host)
    got = await device.array.unique(x, True, True, True, axis)
    expected = np.unique(host, True, True, True, axis)
    same(await fetched(device, got), [*expected])


@on_shared
async def test_factors_of_exponentials_count_as_they_are(device: Device) -> None:
    host, factors = np.array([0.1, 0.2, -0.3], np.float32), np.array([1, -2, 1.3])
    x, b = await device.put(host), await device.put(factors)
    got = await device.array.logsumexp(x, b=b, return_sign=True)
    expected = special.logsumexp(host, b=factors, return_sign=True)
    same(await fetched(device, got), [*expected], near=1e-14)


@on_shared
async def test_the_standard_has_no_conversion_of_complex_numbers_to_real_ones(
    device: Device,
) -> None:
    host = np.array([1 + 2j, 0])
    z = await device.put(host)
    with pytest.raises(TypeError, match="take real"):
        await device.xp.astype(z, np.float32)
    for dtype in ("complex64", "bool"):
        same(await device.get(await device.xp.astype(z, dtype)), host.astype(dtype))
    same(await device.get(await device.array.astype(z, "float32")), np.array([1, 0], np.float32))
