"""The spatial index against SciPy's tree and brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree

from atomr_accel import Device
from atomr_accel.realtime import SpatialIndex
from atomr_accel.realtime.wire import spatial as wire
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, opened, sized
from .emulated import emulated, needs_compiler

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr("atomr_accel.realtime._spatial.SPATIAL", emulated(wire.SPATIAL))


pytestmark = pytest.mark.usefixtures("sources")


def clouds(random: Any) -> dict[str, Array]:
    """Return clouds of points; most are degenerate."""
    n = int(random.integers(1, 60))
    d = int(random.integers(2, 4))
    some = random.standard_normal((n, d))
    line = some * np.eye(d)[0]
    far = some.copy()
    far[0] = 1e6
    clusters = some * 1e-3 + random.integers(-2, 3, (n, 1)) * 100
    return {
        "some": some,
        "one": some[:1],
        "same": np.repeat(some[:1], n, 0),
        "line": line,
        "lattice": random.integers(0, 4, (n, d)).astype(float),
        "far": far,
        "clusters": clusters,
    }


async def check(device: Device, points: Array, random: Any) -> None:
    points = points.astype(np.float32)
    n, d = points.shape
    near = points[random.integers(0, n, 8)] + random.standard_normal((8, d)) * 0.2
    queries = np.concatenate([near, points[:4], random.standard_normal((3, d)) * 500])
    queries = queries.astype(np.float32)
    tree, index = cKDTree(points), await SpatialIndex.build(device, points)

    k = int(random.integers(1, 9))
    far, which = await index.nearest(queries, k)
    wanted, _ = tree.query(queries, [*range(1, k + 1)])
    np.testing.assert_allclose(far, wanted, rtol=1e-12)
    there = which >= 0
    assert (there == np.isfinite(wanted)).all()
    apart = np.linalg.norm(points[which].astype(float) - queries[:, None].astype(float), axis=2)
    np.testing.assert_allclose(apart[there], far[there], rtol=1e-12)
    assert all(len({*row[row >= 0]}) == (row >= 0).sum() for row in which)

    radius = float(random.uniform(0.0, 1.5))
    offsets, found = await index.within(queries, radius)
    for i, each in enumerate(tree.query_ball_point(queries, radius)):
        assert sorted(found[offsets[i] : offsets[i + 1]]) == sorted(each)

    ways = random.standard_normal(queries.shape).astype(np.float32)
    ways[:d] = np.eye(d)
    ball = index.cell * float(random.uniform(0.1, 1.0))
    far, which = await index.cast(queries, ways, ball)
    expected, number = np.zeros(len(queries)), np.zeros(len(queries), np.int32)
    twin: Any = wire.cast
    none = [None] * 4
    twin(expected, number, queries, ways, points, *none, len(queries), d, ball)
    np.testing.assert_allclose(far, expected, rtol=1e-6, atol=1e-6 * ball)
    assert ((which >= 0) == np.isfinite(expected)).all()


async def test_random_and_degenerate_clouds(device: Device) -> None:
    random = seeds.rng()
    for points in clouds(random).values():
        await check(device, points, random)


@pytest.mark.slow
async def test_many_clouds(device: Device) -> None:
    random = seeds.rng()
    for _ in range(sized(10, 150)):
        for points in clouds(random).values():
            await check(device, points, random)


async def test_bad_input(device: Device) -> None:
    for points, message in [
        (np.zeros((0, 2)), r"points must have shape \(n, 2\)"),
        (np.zeros((3, 4)), r"points must have shape \(n, 2\)"),
        (np.zeros(3), r"points must have shape \(n, n\)"),
        (np.full((3, 2), np.nan), "points must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            await SpatialIndex.build(device, points)
    index = await SpatialIndex.build(device, np.eye(3), cell=0.5)
    with pytest.raises(ValueError, match=r"queries must have shape \(n, 3\)"):
        await index.nearest(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="k must be from 1 to 64"):
        await index.nearest(np.zeros((1, 3)), 65)
    with pytest.raises(ValueError, match=r"radius must be from 0 to 0\.5"):
        await index.cast(np.zeros((1, 3)), np.ones((1, 3)), 0.6)
    with pytest.raises(ValueError, match="directions must be longer than 0"):
        await index.cast(np.zeros((1, 3)), np.zeros((1, 3)), 0.1)
    assert (await index.nearest(np.zeros((0, 3)), 2))[0].shape == (0, 2)
    assert index.statistics().points == 3


@pytest.mark.slow
async def test_after_a_fault_the_grid_is_made_again() -> None:
    async with opened() as device:
        index = await SpatialIndex.build(device, np.eye(3))
        await poison(device)
        assert (await index.nearest(np.eye(3)))[1].ravel().tolist() == [0, 1, 2]
        assert index.statistics().builds == 2
