"""Number of messages of ``device.array`` calls: one, unless an answer is needed in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...harness import opened
from .calls import Count, Numpy, fetched, same

SIDE = 6
LONG = 5000
"""A length above the longest row that is sorted without CUB."""


ONE: dict[str, Callable[..., Any]] = {
    "sort": lambda on, x, y: on.sort(x),
    "sort of all": lambda on, x, y: on.sort(x, axis=None),
    "sort of columns": lambda on, x, y: on.sort(x, axis=0),
    "sort of a long row": lambda on, x, y: on.sort(y),
    "argsort of a long row": lambda on, x, y: on.argsort(y, kind="stable"),
    "sort of long rows": lambda on, x, y: on.sort(y.reshape(2, -1)),
    "argsort": lambda on, x, y: on.argsort(x, kind="stable"),
    "partition": lambda on, x, y: on.partition(x, 2),
    "cumsum": lambda on, x, y: on.cumsum(x, axis=0),
    "cumsum of all": lambda on, x, y: on.cumsum(y),
    "cumprod of columns": lambda on, x, y: on.cumprod(x, axis=0),
    "histogram": lambda on, x, y: on.histogram(y, 7),
    "histogram of a range": lambda on, x, y: on.histogram(y, 7, (-1, 2)),
    "histogram of densities": lambda on, x, y: on.histogram(x, 4, density=True),
    "histogram between edges": lambda on, x, y: on.histogram(x, [-2.0, 0.0, 0.5, 2.0]),
    "searchsorted": lambda on, x, y: on.searchsorted(x[0], x),
    "median": lambda on, x, y: on.median(x),
    "median of columns": lambda on, x, y: on.median(x, axis=0),
    "quantile": lambda on, x, y: on.quantile(x, [0.1, 0.5, 0.7], axis=1),
    "roll": lambda on, x, y: on.roll(x, 2, axis=0),
    "concatenate": lambda on, x, y: on.concatenate([x, x]),
    "unique": lambda on, x, y: on.unique(y),
    "unique and more": lambda on, x, y: on.unique(x, True, True, True),
    "flatnonzero": lambda on, x, y: on.flatnonzero(x),
}
"""Calls on a square and a long row."""

TWO: dict[str, Callable[..., Any]] = {
    "nonzero": lambda on, x, y: on.nonzero(x),
    "bincount": lambda on, x, y: on.bincount((y * 0).astype(np.int64)),
    "repeat": lambda on, x, y: on.repeat(x[0], (x[0] * 0 + 2).astype(np.int64)),
}
"""Calls whose result size depends on the data: the size is fetched first, then memory is taken."""

CASES = [*((name, ONE[name], 1) for name in ONE), *((name, TWO[name], 2) for name in TWO)]


async def test_how_many_messages_calls_take() -> None:
    count = Count()
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(SIDE, SIDE)).round(1), rng.normal(size=LONG).round(2)
    x[0].sort()
    async with opened(instruments=[count]) as device:
        refs = [await device.put(each) for each in (x, y)]
        for name, call, most in CASES:
            for _ in range(3):  # built the first time, traced from the second one on
                count.names.clear()
                made = await call(device.array, *refs)
                there = [*count.names]
            assert len(there) == most, f"{name}: {there}"
            expected = call(Numpy(), x, y)
            expected = [*expected] if isinstance(expected, tuple) else expected
            same(await fetched(device, made), expected, near=1e-12)


@pytest.mark.parametrize("name", ["sort", "cumsum"])
async def test_results_are_written_where_they_are_wanted(name: str) -> None:
    """Without another copy, where nothing lies in between."""
    count = Count()
    async with opened(instruments=[count]) as device:
        call: Any = getattr(device.array, name)
        numpy: Any = getattr(np, name)
        for size in (SIDE, LONG, 20 * LONG):
            host = np.random.default_rng(0).integers(-9, 9, size)
            x, like = await device.put(host), await device.zeros(size + 1, "int64")
            for out in (like[1:], like[:-1]):
                for _ in range(2):
                    count.names.clear()
                    assert await call(x, out=out) is out
                    there = [each for each in count.names if each != "cub.build"]
                    assert there == [f"array.{name}"]
                    np.testing.assert_array_equal(await device.get(out), numpy(host))
            assert await call(x, out=x) is x  # written in place
            np.testing.assert_array_equal(await device.get(x), numpy(host))


async def test_long_constant_travels_in_its_own_message() -> None:
    count = Count()
    host = np.random.default_rng(0).normal(size=50)
    async with opened(instruments=[count]) as device:
        x = await device.put(host)
        for edges, most in ((128, 1), (129, 2)):
            bins = np.linspace(-2, 2, edges)
            for _ in range(2):
                count.names.clear()
                counts, _ = await device.array.histogram(x, bins)
            assert len(count.names) == most
            np.testing.assert_array_equal(await device.get(counts), np.histogram(host, bins)[0])


@pytest.mark.slow
async def test_recordings_sort_short_rows() -> None:
    async with opened() as device:
        host = np.random.default_rng(0).normal(size=(4, 300))
        x = await device.put(host)
        async with device.record() as recording:
            rows = recording.array.sort(x)
            values, places = recording.array.topk(x, 7)
        await recording.replay()
        np.testing.assert_array_equal(await device.get(rows), np.sort(host))
        np.testing.assert_array_equal(await device.get(values), -np.sort(-host)[:, :7])
        np.testing.assert_array_equal(await device.get(places), np.argsort(-host)[:, :7])
