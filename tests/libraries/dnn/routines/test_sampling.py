"""Samples of images and their windows against sums over all elements, and refusals."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.libraries.dnn.routines._pooling import Absent, PoolingWindow, unpooled_size

from .... import seeds
from ....harness import ON_CUDA
from ...conformance import MARKS, conform
from ..rows.sampling import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=5)

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
async def test_positions_that_are_no_numbers_and_far_away(device: Device, padding: str) -> None:
    """Results for NaN, infinities and positions far outside: zeros, or elements at the ends."""
    x = await device.put(np.arange(1, 7, dtype=FLOAT).reshape(1, 1, 2, 3))
    rows = [(np.nan, -1), (np.inf, -1), (-np.inf, -1), (3e38, -1), (-3e38, -1), (-1 + 16, -1)]
    grid = await device.put(np.array([[rows]], FLOAT))
    how: Any = {"padding_mode": padding, "align_corners": True}
    y = (await device.get(await device.dnn.grid_sample(x, grid, **how))).ravel()
    expected = {
        "zeros": [0, 0, 0, 0, 0, 0],
        "border": [1, 3, 1, 3, 1, 3],
        "reflection": [1, 1, 1, y[3], y[4], 1],  # by the last bits of the position
    }[padding]
    np.testing.assert_array_equal(y, expected)
    assert np.isfinite(y).all()
    assert ((y == 0) | ((y >= 1) & (y <= 3))).all()
    one = await device.put(np.ones((1, 1, 1, 6), FLOAT))
    slopes = await device.get(await device.dnn.grid_sample_grid_grad(one, x, grid, **how))
    assert np.isfinite(slopes).all()


async def test_elements_of_weight_zero_do_not_count(device: Device) -> None:
    x = np.full((1, 1, 3, 3), np.nan, FLOAT)
    x[0, 0, 1, 1] = 5
    image, middle = await device.put(x), await device.put(np.zeros((1, 1, 1, 2), FLOAT))
    y = await device.dnn.grid_sample(image, middle, align_corners=True)
    assert (await device.get(y)).item() == 5


async def test_same_each_time(device: Device) -> None:
    """Sums in an order have the same bits, where many samples are of one element."""
    rng = seeds.rng()
    grid = await device.put(rng.uniform(-0.1, 0.1, (1, 40, 40, 2)).astype(FLOAT))
    grad = await device.put(rng.standard_normal((1, 2, 40, 40)).astype(FLOAT))
    made = [
        await device.get(
            await device.dnn.grid_sample_input_grad(grad, grid, (1, 2, 3, 3), deterministic=True)
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(made[0], made[1])


async def test_largest_of_nan(device: Device) -> None:
    x = await device.put(np.array([[[1, np.nan, 2, np.nan, -np.inf, -np.inf, 4, 4]]], FLOAT))
    y, indices = await device.dnn.max_pool_with_indices(x, 2)
    np.testing.assert_array_equal(await device.get(y), [[[np.nan, np.nan, -np.inf, 4]]])
    np.testing.assert_array_equal(await device.get(indices), [[[1, 3, 4, 6]]])


async def test_pooling_in_parts_and_back(device: Device) -> None:
    """Places that are only partly inside; the least size of the result; a size by name."""
    x = await device.put(np.arange(5, dtype=FLOAT).reshape(1, 1, 5))
    y, indices = await device.dnn.max_pool_with_indices(x, 2, ceil_mode=True)
    np.testing.assert_array_equal(await device.get(indices), [[[1, 3, 4]]])
    back = await device.dnn.max_unpool(y, indices, 2)
    np.testing.assert_array_equal(await device.get(back), [[[0, 1, 0, 3, 4, 0]]])
    back = await device.dnn.max_unpool(y, indices, 2, output_size=5)
    np.testing.assert_array_equal(await device.get(back), [[[0, 1, 0, 3, 4]]])
    out = await device.empty((1, 1, 3), FLOAT)
    again, _ = await device.dnn.max_pool_with_indices(x, 2, ceil_mode=True, out=out)
    assert again is out


@given(
    count=st.integers(1, 4), taps=st.integers(1, 6), step=st.integers(1, 4), padding=st.integers(0)
)
def test_sizes_of_unpooled_images_are_those_that_pooling_takes_back(
    count: int, taps: int, step: int, padding: int
) -> None:
    moves = (taps,), (step,), (padding % (taps // 2 + 1),)

    def pooled(size: int) -> set[int]:
        """The numbers of places, with and without a last one that is partly inside."""
        found = set()
        for ceil in (False, True):
            with contextlib.suppress(ValueError):
                image = Absent((1, 1, size), FLOAT)
                found.add(PoolingWindow("max", image, *moves, None, ceil).y_shape[-1])
        return found

    for size in range(1, 40):
        if count in pooled(size):
            assert unpooled_size(size, (count,), *moves) == (size,)
        else:
            with pytest.raises(ValueError, match="output_size must be"):
                unpooled_size(size, (count,), *moves)


async def test_indices_out_of_range(device: Device) -> None:
    x = await device.put(np.array([[[1, 2]]], FLOAT))
    indices = await device.put(np.array([[[4, -1]]], np.int64))
    if ON_CUDA:
        made = await device.get(await device.dnn.max_unpool(x, indices, 2))
        np.testing.assert_array_equal(made, np.zeros((1, 1, 4)))
        return
    with pytest.raises(ValueError, match=r"indices\[0, 0, 0\] must be from 0 to 3, not 4"):
        await device.dnn.max_unpool(x, indices, 2)
    with pytest.raises(ValueError, match="must be from 0 to 4, not -1"):
        await device.dnn.max_unpool(x, indices, 2, output_size=5)


async def test_batches_and_empty_batches(device: Device) -> None:
    x = await device.empty((0, 2, 4, 4), FLOAT)
    grid = await device.empty((0, 3, 3, 2), FLOAT)
    dnn = device.dnn
    y, indices = await dnn.max_pool_with_indices(x, 2)
    assert (await dnn.grid_sample_grid_grad(await dnn.grid_sample(x, grid), x, grid)).shape == (
        grid.shape
    )
    assert (await dnn.max_unpool(y, indices, 2)).shape == x.shape
    assert (await dnn.max_unpool_grad(x, indices)).shape == y.shape
    columns = await dnn.unfold(x, 2)
    assert columns.shape == (0, 8, 9)
    assert (await dnn.fold(columns, (4, 4), 2)).shape == x.shape
    async with device.batch() as batch:
        theta = batch.zeros((2, 2, 3), FLOAT)
        back = batch.dnn.affine_grid_grad(batch.dnn.affine_grid(theta, (2, 1, 3, 3)))
    np.testing.assert_array_equal(await device.get(back), np.zeros((2, 2, 3)))


async def test_refusals(device: Device) -> None:
    dnn: Any = device.dnn
    x = await device.put(np.zeros((2, 4, 3, 3), FLOAT))
    grid = await device.put(np.zeros((2, 5, 5, 2), FLOAT))
    half = await device.put(np.zeros((2, 5, 5, 2), np.float16))
    whole = await device.put(np.zeros((2, 4, 3, 3), np.int64))
    cases: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "x must be a GpuRef", lambda: dnn.grid_sample(0, grid)),
        (TypeError, "grid must have the dtype of x", lambda: dnn.grid_sample(x, half)),
        (TypeError, "x must have dtype float16", lambda: dnn.unfold(whole, 2)),
        (ValueError, "two or three dimensions", lambda: dnn.grid_sample(x[:, :, 0], grid)),
        (ValueError, r"grid must have shape \(2, ...places, 2\)", lambda: dnn.grid_sample(x, x)),
        (ValueError, "mode must be one of", lambda: dnn.grid_sample(x, grid, mode="bicubic")),
        (ValueError, "padding_mode must", lambda: dnn.grid_sample(x, grid, padding_mode="no")),
        (TypeError, "align_corners", lambda: dnn.grid_sample(x, grid, align_corners=1)),
        (ValueError, "grad must have shape", lambda: dnn.grid_sample_grid_grad(x, x, grid)),
        (ValueError, "theta must have shape", lambda: dnn.affine_grid(grid, (2, 1, 3, 3))),
        (ValueError, "size must be that of", lambda: dnn.affine_grid(grid, (2, 1, 3))),
        (TypeError, "size must be that of", lambda: dnn.affine_grid(grid, 4)),
        (TypeError, "size must be that of", lambda: dnn.affine_grid(grid, (2, 1, 3.5, 3))),
        (ValueError, "the batch may be 0, not", lambda: dnn.affine_grid(grid, (2, 1, 0, 3))),
        (ValueError, "the shape of x must be", lambda: dnn.grid_sample(x[:, :0], grid)),
        (TypeError, "shape must be that of", lambda: dnn.grid_sample_input_grad(x, grid, 4)),
        (ValueError, "grad must have shape", lambda: dnn.affine_grid_grad(x)),
        (ValueError, "does not fit into 3", lambda: dnn.unfold(x, 3, dilation=2)),
        (ValueError, "window must be an integer or 2", lambda: dnn.unfold(x, (1, 2, 3))),
        (ValueError, "x must have shape .batch, channels of", lambda: dnn.fold(x, 3, 2)),
        (ValueError, "a multiple of 9", lambda: dnn.fold(x.reshape(2, 12, 3), (3, 3), (3, 3))),
        (
            ValueError,
            r"x must have shape \(2, 12, 4\)",
            lambda: dnn.fold(x.reshape(2, 12, 3), 3, 2),
        ),
        (TypeError, "indices must be int64", lambda: dnn.max_unpool(x, x, 2)),
        (ValueError, "indices must have shape", lambda: dnn.max_unpool(x, whole[:1], 2)),
        (ValueError, "do not belong", lambda: dnn.max_unpool_grad(x, whole[:1])),
        (ValueError, "more than half", lambda: dnn.max_unpool(x, whole, 1, padding=5)),
        (
            ValueError,
            "name the output_size",
            lambda: dnn.max_unpool(x[..., :1, :1], whole[..., :1, :1], 2, padding=1),
        ),
        (
            ValueError,
            r"from \(5, 5\) to \(7, 7\), which .* to \(3, 3\) places, not \(5, 8\); give the size",
            lambda: dnn.max_unpool(x, whole, 2, output_size=(5, 8)),
        ),
        (ValueError, "out must have shape", lambda: dnn.unfold(x, 2, out=x)),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            await call()
