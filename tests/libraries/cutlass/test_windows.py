"""Loads of TMA for the tiles of a convolution gather the convolution's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.libraries.cutlass._movement import Movement
from atomr_accel.libraries.cutlass.host._plans import Extents, extents_of
from atomr_accel.libraries.cutlass.wire._window import ImageWindow

from .specs import spec

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]

CHANNELS, FILTERS = 3, 5


def gathered(
    image: Array, lower: Axes, upper: Axes, steps: Axes, base: Axes, offset: Axes, pixels: int
) -> Iterator[Array]:
    """Yield the pixels of one TMA load.

    The load is ``cp.async.bulk.tensor.im2col`` on a map of ``cuTensorMapEncodeIm2col``.

    The base pixel lies inside a box that reaches from ``lower`` to ``upper`` beyond the image's
    ends. Each step leads to the next pixel, along the innermost axis first. A step that leaves the
    box goes back to its start and advances the next axis, and in the end the image. For each pixel,
    the load reads the pixel at an offset from it, and gives zeros outside the image.

    Args:
        image: (N, ..., C).
        lower, upper, steps, base, offset: innermost axis first; ``base`` ends with an image.
        pixels: the number of pixels.
    """
    sizes = image.shape[-2:0:-1]
    at = [*base]
    for _ in range(pixels):
        place = [where + far for where, far in zip(at, offset, strict=False)]
        inside = all(0 <= where < size for where, size in zip(place, sizes, strict=True))
        there = inside and at[-1] < len(image)
        yield image[(at[-1], *reversed(place))] if there else np.zeros(image.shape[-1])
        for axis, size in enumerate(sizes):
            at[axis] += steps[axis]
            if at[axis] <= size - 1 + upper[axis]:
                break
            at[axis] = lower[axis]
        else:
            at[-1] += 1


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Axes, Axes, Movement]:
    """Shapes of images and filters, and a movement that fits; a third of them are gradients."""
    space = draw(st.integers(1, 3))

    def axes(least: int, most: int) -> Axes:
        return tuple(draw(st.lists(st.integers(least, most), min_size=space, max_size=space)))

    taps, dilation, image = axes(1, 3), axes(1, 3), axes(1, 7)
    before, after = axes(0, 2), axes(0, 2)
    room = [
        max(size, step * (count - 1) + 1 - low - high)
        for size, step, count, low, high in zip(image, dilation, taps, before, after, strict=True)
    ]
    images = (draw(st.integers(1, 2)), *room, CHANNELS)
    gradient = draw(st.integers(0, 2)) == 0
    stride = (1,) * space if gradient else axes(1, 3)
    padding = [*zip(before, after, strict=True)]
    movement = Movement(stride, padding, dilation, 1, None, images if gradient else None)
    return images, (FILTERS, *taps, CHANNELS), movement


def test_sizes_hold_all_of_a_window() -> None:
    movement = Movement((2, 1), [(1, 0), (2, 2)], (1, 3), 1, "NHWC")
    sizes, shape = movement.over((4, 9, 8, 16), (24, 3, 2, 16))
    assert shape == (4, 4, 9, 24)
    assert sizes[:4] == (4 * 4 * 9, 24, 3 * 2 * 16, 1)
    window = ImageWindow.of(sizes, 2)
    assert window == ImageWindow(16, False, (9, 8), (4, 9), (-1, -2), (2, 1), (3, 2), (1, 3))
    assert window.sizes(*sizes[:4]) == sizes
    # With multiprocessors and a swizzle behind them they end where pointers may follow.
    assert not len(sizes) % 2


def test_filters_are_a_matrix_for_each_tap() -> None:
    movement = Movement(1, 0, 1, 1, None)
    sizes, _ = movement.over((4, 9, 8, 16), (24, 3, 2, 16))
    images, filters, added, out = extents_of(spec(space=2), sizes)
    assert images[:2] == ((16, 8, 9, 4), (16, 128, 1152))
    assert filters == Extents((16, 24, 6), (96, 16))  # channels, filters, taps
    assert added == out == ((24, 4 * 7 * 7, 1), (24, 24 * 196), None)
    sizes, _ = movement._replace(images=(4, 9, 8, 16)).over((4, 7, 7, 24), (24, 3, 2, 16))
    grad, filters, _, out = extents_of(spec(space=2, trans_b=False), sizes)
    assert grad.sizes == (24, 7, 7, 4)
    assert filters == Extents((16, 24, 6), (96, 16))
    assert out.sizes == (16, 4 * 9 * 8, 1)
    by_filters = movement._replace(stride=(2, 1), filters=(24, 3, 2, 16))
    sizes, shape = by_filters.over((4, 4, 7, 24), (4, 9, 8, 16))
    assert shape == (24, 3, 2, 16)
    assert sizes[:4] == (24, 16, 4 * 4 * 7, 6)
    one = spec(space=2, trans_a=True, trans_b=False)
    grad, images, _, out = extents_of(one, sizes)
    assert grad == ((24, 112, 1), (24, 24 * 112), None)
    assert images.sizes == (16, 8, 9, 4)
    assert out == Extents((16, 24, 6), (96, 16))


@settings(max_examples=60)
@given(convolutions())
def test_tma_gathers_windows(case: tuple[Axes, Axes, Movement]) -> None:
    """Tiles may begin anywhere, up to beyond the last row, in the way that the mainloop asks."""
    images, filters, movement = case
    space = len(images) - 2
    x_shape = images
    if movement.images is not None:
        _, result = movement._replace(images=None).over(images, filters)
        x_shape = result
    sizes, _ = movement.over(x_shape, filters)
    window = ImageWindow.of(sizes, space)
    assert window.refusal() is None
    x = np.random.default_rng(1).standard_normal(x_shape)
    rows = np.pad(x, ((0, 0), *window.margins, (0, 0)))
    (m, *_), tall = sizes, 5
    lower = window.corner[::-1]
    upper = [last - (size - 1) for last, size in zip(window.last, window.image, strict=True)][::-1]
    for tap in np.ndindex(window.filter):
        met = rows[(slice(None), *window.slices(tap))].reshape(m, -1)
        offset = tuple(at * step for at, step in zip(tap, window.dilation, strict=True))[::-1]
        for begin in range(0, m + tall, tall):
            pixel, base = begin, []
            for count, step, low in zip(
                window.positions[::-1], window.stride[::-1], lower, strict=True
            ):
                base.append(pixel % count * step + low)
                pixel //= count
            found = gathered(
                *(x, lower, tuple(upper), window.stride[::-1], (*base, pixel), offset, tall)
            )
            expected = np.zeros((tall, met.shape[1]))
            expected[: max(0, m - begin)] = met[begin : begin + tall]
            assert (np.array([*found]) == expected).all()
