"""Statistics and norms give NumPy's values, dtypes and errors, whatever dtype is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS

GIVEN = ("bool", "int8", "int64", "uint16", "float32", "float64", "complex64", "complex128")
WANTED = (None, "int64", "float32", "float64", "complex64")


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or the type of the error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function()
        except (TypeError, ValueError) as error:
            return type(error)


async def check(device: Device, name: str, host: Any, *args: Any, **options: Any) -> None:
    """A function of ``device.array`` does as NumPy's of this name."""
    numpys: Any = np.linalg if name == "norm" else np
    expected = attempt(lambda: getattr(numpys, name)(host, *args, **options))
    x = await device.put(host)
    try:
        found: Any = await device.get(await getattr(device.array, name)(x, *args, **options))
    except (TypeError, ValueError) as error:
        found = type(error)
    if isinstance(expected, type):
        assert found is expected, (expected, found)
        return
    assert found.dtype == expected.dtype
    floats = [each.dtype for each in (expected, host) if each.dtype.kind in "fc"]
    exact = expected.dtype.kind in "biu"
    eps = 0 if exact else 64 * max(float(np.finfo(each).eps) for each in floats)
    np.testing.assert_allclose(found, expected, rtol=eps, atol=eps)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["mean", "var", "nanmean", "nanvar"]),
    dtype=st.sampled_from(GIVEN),
    wanted=st.sampled_from(WANTED),
    axis=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
@on_shared
async def test_statistics_are_computed_in_the_dtype_that_is_asked_for(
    device: Device, name: str, dtype: str, wanted: str | None, axis: int | None, seed: int
) -> None:
    if wanted == "complex64" and name != "mean":
        wanted = None  # NumPy gives variances as complex numbers
    draw = np.random.default_rng(seed)
    host = (draw.integers(-9, 9, (3, 4)) / 4).astype(dtype)
    if host.dtype.kind == "c":
        host += 1j * draw.integers(-9, 9, (3, 4)).astype(dtype)
    if wanted == "int64" and host.dtype.kind == "c":
        wanted = "float32"
    await check(device, name, host, axis=axis, dtype=wanted)


@on_shared
async def test_a_deviation_is_computed_in_the_dtype_that_is_asked_for(device: Device) -> None:
    for host in (np.array([1.7, 2.2, 9.9], np.float32), np.array([1 + 2j, 3 - 1j, 0.5j])):
        for wanted in (None, np.float32, np.float64):
            await check(device, "std", host, dtype=wanted)
            if host.dtype.kind != "c":
                await check(device, "nanstd", host, dtype=wanted)
    await check(device, "std", np.array([1.7, 2.2, 9.9], np.float32), dtype=np.int8)
    await check(device, "nanstd", np.array([1.7, 2.2, 9.9], np.float32), dtype=np.int8)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("order", [None, "fro", "f", 2, 1, 0, -np.inf, 3])
@on_shared
async def test_norms_refuse_what_numpy_refuses(
    device: Device, shape: tuple[int, ...], order: Any
) -> None:
    host = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    if len(shape) == 2 and order not in (None, "fro", "f"):
        with pytest.raises(TypeError, match=r"device\.linalg\.norm"):
            await device.array.norm(await device.put(host), order)
    else:
        await check(device, "norm", host, order)


@on_shared
async def test_the_angle_of_real_numbers_has_numpys_dtype(device: Device) -> None:
    for dtype in GIVEN:
        host = np.array([0, 1, 1]).astype(dtype)
        assert np.angle(await device.put(host)).dtype == np.angle(host).dtype


@pytest.mark.parametrize("function", ["linspace", "logspace"])
@on_shared
async def test_ranges_have_the_dtype_of_their_ends(device: Device, function: str) -> None:
    ends = (1, 2.5, np.float32(1), np.float16(2), np.int8(3), np.float64(2), 1j, np.complex64(1))
    for first in ends:
        for last in ends:
            expected = getattr(np, function)(first, last, 3)
            made = await getattr(device.array, function)(first, last, 3)
            assert made.dtype == expected.dtype, (first, last)


@settings(max_examples=30)
@given(
    dtype=st.sampled_from(["bool", "int8", "uint8", "int64", "uint64", "float32", "float64"]),
    bins=st.sampled_from([[0.0, 1.0, 3.0], [0.0, 0.5, 2.0, 9.0]]),
    seed=st.integers(0, 99),
)
@on_shared
async def test_whole_weights_of_histograms_are_summed_exactly(
    device: Device, dtype: str, bins: list[float], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    host, large = draw.uniform(0, 3, 9), 2**62 if dtype.endswith("int64") else 100
    weights = draw.integers(0, large, 9, endpoint=True).astype(dtype)
    x, w = await device.put(host), await device.put(weights)
    found, _ = await device.array.histogram(x, bins, weights=w)
    expected = np.histogram(host, bins, weights=weights.astype(np.add.reduce(weights).dtype))[0]
    np.testing.assert_allclose(await device.get(found), expected, rtol=1e-6 * (dtype[0] == "f"))
