"""The sparse grid beside one that is stored in full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, OutOfMemory
from atomr_accel.realtime import SparseGrid, open_sparse_grid
from atomr_accel.realtime.wire import sparse_grid as wire
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, on_shared, opened, sized
from .emulated import emulated, needs_compiler

Array = np.ndarray[Any, Any]

SHAPES = st.sampled_from([(20, 27), (8, 8), (1, 30), (9, 11, 17)])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "step", "erase", "fade"]),
        st.integers(1, 4),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr(SparseGrid, "kernels", emulated(wire.SPARSE_GRID))


def diffused(x: Array, dt: float, diffusion: float, fading: float, parts: int) -> Array:
    for _ in range(parts):
        padded = np.pad(x, 1)
        inner = tuple(slice(1, -1) for _ in x.shape)
        total = sum(
            np.roll(padded, by, axis)[inner] - x for axis in range(x.ndim) for by in (-1, 1)
        )
        x = x + dt / parts * (diffusion * total - fading * x)
    return x


def positions_of(shape: tuple[int, ...]) -> Array:
    return np.indices(shape).reshape(len(shape), -1).T


async def check(device: Device, shape: tuple[int, ...], steps: list[tuple[str, int, int]]) -> None:
    """Do the same with a sparse grid and a dense array."""
    dense, everywhere = np.zeros(shape), positions_of(shape)
    fading = 0.0
    async with open_sparse_grid(device, shape, capacity=64, diffusion=0.5) as grid:
        for op, count, seed in steps:
            random = np.random.default_rng(seed)
            at = random.integers(0, shape, (count, len(shape)))
            if op == "step":
                await grid.step(0.4, count=count)
                parts = grid.substeps(0.4, {"diffusion": 0.5, "fading": fading})
                for _ in range(count):
                    dense = diffused(dense, 0.4, 0.5, fading, parts)
            elif op == "fade":
                fading = float(random.uniform(0, 0.5))
                grid.update(fading=fading)
            else:
                values = random.standard_normal(count) if op == "put" else np.zeros(count)
                await grid.put(at, values)
                for place, value in zip(at, values, strict=True):  # the last one counts
                    dense[tuple(place)] = value
            found = (await grid.get(everywhere)).reshape(shape)
            np.testing.assert_allclose(found, dense, atol=2e-6)
            directory = await grid.read("directory")
            places = await grid.read("places")
            assert await grid.blocks() == (directory >= 0).sum() == (places >= 0).sum()
            there = np.flatnonzero(directory >= 0)
            assert (places[directory[there]] == there).all()


@settings(max_examples=12)
@given(shape=SHAPES, steps=STEPS)
@on_shared
async def test_it_is_a_dense_grid(device: Device, shape: Any, steps: Any) -> None:
    await check(device, shape, steps)


@pytest.mark.slow
@settings(max_examples=sized(15, 2000))
@given(shape=SHAPES, steps=STEPS)
@on_shared
async def test_it_is_a_dense_grid_over_many_histories(
    device: Device, shape: Any, steps: Any
) -> None:
    await check(device, shape, steps)


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("shape", [(30, 41), (12, 17, 9)])
async def test_a_drop_spreads_from_block_to_block(device: Device, shape: tuple[int, ...]) -> None:
    middle, dense = [size // 2 for size in shape], np.zeros(shape)
    dense[tuple(middle)] = 1
    async with open_sparse_grid(device, shape, capacity=64, diffusion=1.0, fading=0.1) as grid:
        await grid.put([middle], [1.0])
        assert await grid.blocks() == 1
        for _ in range(6):
            await grid.step(0.2)
            parts = grid.substeps(0.2, {"diffusion": 1.0, "fading": 0.1})
            dense = diffused(dense, 0.2, 1.0, 0.1, parts)
        assert 1 < await grid.blocks() < 64
        found = await grid.get(positions_of(shape))
        picture = await grid.snapshot()
    np.testing.assert_allclose(found.reshape(shape), dense, atol=1e-6)
    assert picture.shape == (*shape[-2:], 3)
    assert picture[..., 0].argmax() == (shape[-2] - 1 - middle[-2]) * shape[-1] + middle[-1]


async def test_order_of_convergence_to_the_heat_kernel(device: Device) -> None:
    """A Gaussian's variance grows by 2 D t along each axis, and the error falls with h squared."""
    errors = []
    for n in (33, 65):
        h = 1.0 / (n - 1)
        x = (np.arange(n) - n // 2) * h
        apart = (x[:, None] ** 2 + x[None] ** 2)[..., None]
        begin, end = 0.004, 0.006
        kernel = np.exp(-apart / (4 * np.array([begin, end]))) / (
            4 * np.pi * np.array([begin, end])
        )
        async with open_sparse_grid(device, (n, n), capacity=81, diffusion=1 / h**2) as grid:
            await grid.put(positions_of((n, n)), kernel[..., 0].ravel())
            await grid.step(end - begin)
            found = (await grid.get(positions_of((n, n)))).reshape(n, n)
        errors.append(np.abs(found - kernel[..., 1]).max())
    assert np.log2(errors[0] / errors[1]) > 1.6, errors


async def test_blocks_below_the_threshold_go(device: Device) -> None:
    async with open_sparse_grid(
        device, (64, 64), capacity=20, diffusion=0.0, fading=1.0, threshold=0.01
    ) as grid:
        await grid.put([(3, 3), (44, 44), (60, 3)], [1.0, 0.02, 0.001])
        assert await grid.blocks() == 3
        await grid.step(0.5)
        assert await grid.blocks() == 2  # one was below from the beginning
        await grid.step(0.5, count=3)
        assert await grid.blocks() == 1
        grid.update(threshold=1.0)
        await grid.step(0.5)
        assert await grid.blocks() == 0
        assert not (await grid.get([(3, 3)])).any()
        assert not (await grid.snapshot()).any()


async def test_too_many_blocks_leave_the_last_good_state(device: Device) -> None:
    async with open_sparse_grid(device, (64, 64), capacity=3, diffusion=1.0) as grid:
        await grid.put([(4, 4), (4, 20)], [1.0, 2.0])
        with pytest.raises(OutOfMemory, match="4 blocks must be at most the grid's capacity of 3"):
            await grid.put([(40, 4), (40, 40)], [1.0, 1.0])
        assert await grid.blocks() == 2
        assert (await grid.get([(4, 4), (4, 20), (40, 4)])).tolist() == [1, 2, 0]
        await grid.step(0.1, count=3)
        before = await grid.get(positions_of((64, 64)))
        with pytest.raises(OutOfMemory, match="must be at most the grid's capacity of 3"):
            await grid.step(0.1, count=9)
        steps = grid.steps
        assert 3 <= steps < 12
        assert grid.time == pytest.approx(0.1 * steps)
        found = await grid.get(positions_of((64, 64)))
        dense = before.reshape(64, 64).astype(float)
        for _ in range(steps - 3):
            dense = diffused(dense, 0.1, 1.0, 0.0, 1)
        np.testing.assert_allclose(found.reshape(64, 64), dense, atol=1e-6)
        grid.update(threshold=0.05)  # and so it goes on
        await grid.step(0.1)
        assert grid.steps == steps + 1


@pytest.mark.slow
async def test_a_fault_midway() -> None:
    dense = np.zeros((24, 24))
    dense[12, 12] = 1
    async with opened() as device, open_sparse_grid(device, (24, 24), every=3) as grid:
        await grid.put([(12, 12)], [1.0])
        await grid.step(0.2, count=4)
        await poison(device)
        await grid.step(0.2)
        found = grid.statistics()
        assert (found.steps, found.faults, found.lost_steps) == (4, 1, 1)
        for _ in range(4):
            dense = diffused(dense, 0.2, 1.0, 0.0, 1)
        cells = (await grid.get(positions_of((24, 24)))).reshape(24, 24)
        np.testing.assert_allclose(cells, dense, atol=1e-6)


async def test_bad_input(device: Device) -> None:
    changes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shape": (8,)}, ValueError, "shape must have 2 or 3 axes"),
        ({"shape": (8, 0)}, ValueError, "shape must be from 1"),
        ({"shape": (1, 8, 8)}, ValueError, "more than 1 cell along z"),
        ({"shape": (2**14, 2**14, 2**14)}, ValueError, "shape must have at most 134217728 blocks"),
        ({"capacity": 0}, ValueError, "capacity must be from 1"),
        ({"diffusion": -1.0}, ValueError, "diffusion must be from 0"),
        ({"threshold": np.nan}, ValueError, "threshold must be finite"),
    ]
    for change, kind, message in changes:
        with pytest.raises(kind, match=message):
            async with open_sparse_grid(device, **{"shape": (8, 8), "capacity": 4, **change}):
                pass
    async with open_sparse_grid(device, (8, 12), capacity=4) as grid:
        wrong: list[tuple[Any, Any, type[Exception], str]] = [
            ([(0.5, 1)], [1], TypeError, "positions must be an array of whole numbers"),
            ([0, 1], [1], ValueError, r"positions must have shape \(n, 2\)"),
            ([(0, 12)], [1], ValueError, "positions must be inside of the shape"),
            ([(-1, 0)], [1], ValueError, "positions must be inside of the shape"),
            ([(0, 0)], [1, 2], ValueError, r"values must have shape \(1,\)"),
            ([(0, 0)], [np.nan], ValueError, "values must be finite"),
        ]
        for positions, values, kind, message in wrong:
            with pytest.raises(kind, match=message):
                await grid.put(positions, values)
        await grid.put([], [])
        assert (await grid.get([])).shape == (0,)
        assert await grid.blocks() == 0


@needs_compiler
@cpu_only
@pytest.mark.parametrize("shape", [(21, 30), (10, 12, 9)])
async def test_kernels_equal_their_functions(
    device: Device, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = seeds.rng()
    at, values = random.integers(0, shape, (9, len(shape))), random.standard_normal(9)
    found = []
    for kernels in (SparseGrid.kernels, emulated(SparseGrid.kernels)):
        monkeypatch.setattr(SparseGrid, "kernels", kernels)
        async with open_sparse_grid(device, shape, capacity=40, threshold=1e-4) as grid:
            await grid.put(at, values)
            await grid.step(0.3, count=2)
            found.append([await grid.read(name) for name in grid.state])
            found[-1].append(await grid.snapshot())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 if one.dtype.kind == "f" else 1)
