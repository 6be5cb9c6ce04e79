"""Histograms and intervals whatever the range, the weights and the order of edges."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS
from .calls import fetched, put, same

pytestmark = MARKS

Array = np.ndarray[Any, Any]


def counted(x: Array, edges: Array, weights: Array, *, last: bool = True) -> list[float]:
    """Return the sums of weights between edges, compared exactly."""
    sums = [0.0] * (len(edges) - 1)
    lines = [Fraction(float(edge)) for edge in edges]
    for value, weight in zip(map(Fraction, map(float, x)), weights, strict=True):
        for at in range(len(sums)):
            top = last and at == len(sums) - 1 and value == lines[-1]
            if lines[at] <= value < lines[at + 1] or top:
                sums[at] += float(weight)
    return sums


@settings(max_examples=40)
@example(power=-1022, dtype="float64", bins=5, parts=[0, 1, 2, 7, 10], origin=0)
@example(power=-1070, dtype="float64", bins=5, parts=[0, 1, 2, 3, 4, 5, 6, 7], origin=0)
@example(power=-149, dtype="float32", bins=7, parts=[0, 1, 6, 7], origin=0)
@example(power=123, dtype="float32", bins=2, parts=[0, 12, 24, 31], origin=-16)
@given(
    power=st.integers(-1060, 1000),
    dtype=st.sampled_from(["float32", "float64"]),
    bins=st.integers(1, 8),
    parts=st.lists(st.integers(0, 40), min_size=2, max_size=12, unique=True),
    origin=st.integers(-40, 0),
)
@on_shared
async def test_elements_are_between_their_edges_at_every_magnitude(
    device: Device, power: int, dtype: str, bins: int, parts: list[int], origin: int
) -> None:
    power = power if dtype == "float64" else max(-149, min(power, 120))
    host = (np.ldexp(1.0, power) * (np.array(parts) + origin)).astype(dtype)
    x, weights = await put(device, host), np.arange(1.0, len(host) + 1)
    w = await put(device, weights)
    try:
        wanted = np.histogram(host, bins)
    except ValueError as error:
        for each in (None, w):
            with pytest.raises(ValueError, match="Too many bins"):
                await device.array.histogram(x, bins, weights=each)
        assert "Too many bins" in str(error)  # noqa: PT017 - whether it is raised varies
        return
    for each, sums in ((None, np.ones(len(host))), (w, weights)):
        counts, edges = await fetched(device, await device.array.histogram(x, bins, weights=each))
        assert counts.tolist() == counted(host, edges, sums)
        unit = np.spacing(np.abs(wanted[1]).max())
        assert (np.abs(edges.astype("f8") - wanted[1]) <= bins * unit).all()
        assert (edges[0], edges[-1]) == (host.min(), host.max())


@on_shared
async def test_ranges_wider_than_the_largest_number_are_refused(device: Device) -> None:
    x = await put(device, np.array([1e308, -1e308, 0.5]))
    w = await put(device, np.ones(3))
    for weights in (None, w):
        for bounds in (None, (-1e308, 1e308)):
            with pytest.raises(ValueError, match="Too many bins for data range"):
                await device.array.histogram(x, 4, bounds, weights=weights)
    with pytest.raises(ValueError, match="Too many bins for data range"):
        await device.cub.histogram_even(x, 4, -1e308, 1e308)


@on_shared
async def test_narrow_numbers_of_a_wide_range_are_counted(device: Device) -> None:
    host = np.array([-3e38, -1e38, 0, 1e38, 2e38, 3e38], np.float32)
    counts, edges = await fetched(device, await device.array.histogram(await put(device, host), 4))
    same([edges], [np.linspace(float(host[0]), float(host[-1]), 5).astype("f4")])
    assert counts.tolist() == counted(host, edges, np.ones(len(host)))


@settings(max_examples=20)
@given(power=st.integers(-1070, -900), bins=st.integers(1, 6), seed=st.integers(0, 999))
@on_shared
async def test_cub_counts_in_ranges_of_every_size(
    device: Device, power: int, bins: int, seed: int
) -> None:
    unit = np.ldexp(1.0, power)
    parts = np.random.default_rng(seed).integers(-5, 4 * bins + 5, 50)
    host = np.concatenate((unit * parts, [1.0, -1e300, np.nan, np.inf]))
    edges = unit * 4 * np.arange(bins + 1)
    x = await put(device, host)
    got = await device.cub.histogram_even(x, bins, edges[0], edges[-1], dtype="uint32")
    finite = host[np.isfinite(host)]
    wanted = counted(finite, edges, np.ones(len(finite)), last=False)
    assert (await device.get(got)).tolist() == wanted
    async with device.batch() as batch:
        again = batch.cub.histogram_even(x, bins, edges[0], edges[-1], dtype="uint32")
    assert (await device.get(again)).tolist() == wanted


@on_shared
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("density", [False, True])
async def test_complex_weights_are_added_up(device: Device, dtype: str, density: bool) -> None:
    host = np.array([0.0, 1.0, 2.0, 0.5])
    weights = np.array([1 + 1j, 2 - 1j, 3, -4j], dtype)
    x, w = await put(device, host), await put(device, weights)
    for bins in (2, [0.0, 1.0, 2.0]):
        wanted = np.histogram(host, bins, weights=weights, density=density)
        got = await fetched(
            device, await device.array.histogram(x, bins, density=density, weights=w)
        )
        same(got, list(wanted), near=1e-6)
    with pytest.raises(TypeError, match="Cannot cast array data from dtype"):
        await device.array.bincount(await put(device, np.array([0, 1, 1, 0])), w)


@settings(max_examples=30)
@given(
    edges=st.lists(st.integers(0, 6), max_size=6),
    order=st.sampled_from(["rising", "falling", "any"]),
    right=st.booleans(),
    dtype=st.sampled_from(["float64", "float32", "int32"]),
)
@on_shared
async def test_intervals_are_those_of_edges_in_either_order(
    device: Device, edges: list[int], order: str, right: bool, dtype: str
) -> None:
    if order != "any":
        edges = sorted(edges, reverse=order == "falling")
    x, bins = np.arange(-1, 8, 0.5).astype(dtype), np.array(edges, dtype)
    ref, line = await put(device, x), await put(device, bins)
    try:
        wanted = np.digitize(x, bins, right)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            await device.array.digitize(ref, line, right)
        return
    got = await device.get(await device.array.digitize(ref, line, right))
    same([got], [wanted])
    async with device.batch() as batch:
        again = batch.array.digitize(ref, line, right)
    same([await device.get(again)], [wanted])


@on_shared
async def test_histograms_refuse_edges_that_do_not_increase(device: Device) -> None:
    x = await put(device, np.array([0.5, 1.5, 2.5]))
    for edges in ([3.0, 2.0, 0.0], [0.0, 2.0, 1.0]):
        bins = await put(device, np.array(edges))
        with pytest.raises(ValueError, match="must increase monotonically"):
            await device.array.histogram(x, bins)
        with pytest.raises(ValueError, match="must increase monotonically"):
            async with device.batch() as batch:
                batch.array.histogram(x, bins)
