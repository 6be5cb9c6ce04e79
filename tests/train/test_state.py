"""Places of parameters in flat buffers."""

from __future__ import annotations

import math

import numpy as np
import optree
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import train

SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=8)


@given(SHAPES, st.integers(0, 2**32 - 1))
def test_parameters_begin_where_kernels_can_read_them(
    shapes: list[tuple[int, ...]], seed: int
) -> None:
    """Places do not overlap, matrices come first, and the rest is zero."""
    rng = np.random.default_rng(seed)
    params = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    how = train.AdamW(lr=0.1, decays=lambda _, shape: len(shape) > 1)
    layout = train.ModelLayout(params, how)
    flat = layout.flat(params)
    for made, leaf in zip(optree.tree_leaves(layout.tree(flat)), params, strict=True):
        np.testing.assert_array_equal(made, leaf)
    used = np.zeros(layout.size, int)
    for place in layout.places:
        assert place.start * 2 % 16 == 0  # bytes, also of parameters of 16 bits
        end = place.start + math.prod(place.shape)
        used[place.start : end] += 1
        assert end <= layout.decayed if len(place.shape) > 1 else place.start >= layout.decayed
    assert used.max() == 1
    assert not flat[used == 0].any()
    between = np.ones(layout.size, bool)
    for start, stop in layout.gaps:
        between[start:stop] = False
    assert used[between].all()
