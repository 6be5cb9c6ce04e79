"""cuDNN's routines: bad arguments, calls in place, and what a mask of dropout is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import GpuRefStale

from ...conformance import MARKS
from ...refusals import refuses

FLOAT = np.dtype(np.float32)

pytestmark = MARKS


# --- dropout ------------------------------------------------------------------------------


async def test_a_mask_is_two_numbers(device: Any) -> None:
    x = await device.put(np.ones(1000, FLOAT))
    first = await device.get(await device.dnn.dropout(x, 0.4, seed=3))
    again = await device.get(await device.dnn.dropout(x, 0.4, seed=3))
    np.testing.assert_array_equal(first, again)
    assert abs((first == 0).mean() - 0.4) < 0.1
    np.testing.assert_allclose(first[first != 0], 1 / 0.6, rtol=1e-6)
    # Two halves are one mask, wherever it is cut.
    for cut in (1, 2, 3, 500):
        parts = [
            await device.dnn.dropout(x[:cut], 0.4, seed=3),
            await device.dnn.dropout(x[cut:], 0.4, seed=3, offset=cut),
        ]
        joined = np.concatenate([await device.get(part) for part in parts])
        np.testing.assert_array_equal(joined, first)
    other = await device.get(await device.dnn.dropout(x, 0.4, seed=4))
    assert ((other == 0) != (first == 0)).mean() > 0.3
    got = await device.dnn.dropout(x, 0.4, seed=3, out=x)
    assert got is x
    np.testing.assert_array_equal(await device.get(x), first)


# --- in place -----------------------------------------------------------------------------


async def test_softmax_in_place(device: Any) -> None:
    host = np.random.default_rng(0).standard_normal((5, 7)).astype(FLOAT)
    x = await device.put(host)
    apart = await device.get(await device.dnn.softmax(x, 0))
    assert await device.dnn.softmax(x, 0, out=x) is x
    np.testing.assert_array_equal(await device.get(x), apart)
    empty = await device.get(await device.dnn.softmax(x[:0], 1))
    assert empty.shape == (0, 7)


# --- bad arguments ------------------------------------------------------------------------


test_bad_arguments_of_routines = refuses(
    "dnn",
    [
        ("max_pool(0, 2)", TypeError, "x must be a GpuRef"),
        ("max_pool(i4_2x3x8x8, 2)", TypeError, "must be one of float16"),
        ("max_pool(f4_2x3x8x8[0, 0], 2)", ValueError, "one to three dimensions"),
        ('max_pool(f4_2x3x8x8, 2, layout="CHWN")', ValueError, "layout 'CHWN' does not fit"),
        ("max_pool(f4_2x3x8x8, (2, 2, 2))", ValueError, "window must be an integer or 2"),
        ("max_pool(f4_2x3x8x8, 0)", ValueError, "at least 1, not 0"),
        ("max_pool(f4_2x3x8x8, 2, padding=2)", ValueError, "more than half"),
        ("max_pool(f4_2x3x8x8, 9)", ValueError, "does not fit into 8"),
        ("avg_pool(f4_2x3x8x8, 2, stride=0)", ValueError, "stride must be an integer"),
        (
            "max_pool(f4_2x3x8x8, 2, out=f4_2x3x8x8)",
            ValueError,
            r"out must have shape \(2, 3, 4, 4\), not \(2, 3, 8, 8\)",
        ),
        (
            "max_pool_grad(f4_2x3x8x8, f4_2x3x8x8, f4_2x3x8x8, 2)",
            ValueError,
            r"grad must have shape \(2, 3, 4, 4\)",
        ),
        (
            "avg_pool_grad(f4_2x3x8x8, f4_2x3x8x8.shape, 2)",
            ValueError,
            r"grad must have shape \(2, 3, 4, 4\)",
        ),
        ("softmax(f4_2x3x8x8, 4)", ValueError, "axis 4 is out of bounds"),
        (
            "softmax_grad(f4_2x3x8x8[0], f4_2x3x8x8)",
            ValueError,
            r"grad must have shape \(2, 3, 8, 8\), not \(3, 8, 8\)",
        ),
        ("softmax_grad(i4_2x3x8x8, f4_2x3x8x8)", TypeError, "grad must be one of"),
        ("dropout(f4_2x3x8x8, 1.0, seed=0)", ValueError, "p must be at least 0"),
        ("dropout(f4_2x3x8x8, 0.5, seed=-1)", ValueError, "seed must be"),
        ("dropout(f4_2x3x8x8, 0.5, seed=0, offset=0.5)", TypeError, "offset must be"),
        ("local_response_norm(f4_2x3x8x8, 17)", ValueError, "size must be"),
        ("local_response_norm(f4_2x3x8x8, 5, beta=0.0)", ValueError, "beta must be"),
        ("local_response_norm(f4_2x3x8x8, 5, out=f4_2x3x8x8)", ValueError, "shares memory with"),
        (
            "local_response_norm_grad(f4_2x3x8x8, f4_2x3x8x8[:1], f4_2x3x8x8, 5)",
            ValueError,
            r"y must have shape \(2, 3, 8, 8\), not \(1, 3, 8, 8\)",
        ),
    ],
)


async def test_freed_buffer_is_refused(device: Any) -> None:
    x = await device.put(np.zeros(3, FLOAT))
    await device.free(x)
    with pytest.raises(GpuRefStale):
        await device.dnn.softmax(x)
