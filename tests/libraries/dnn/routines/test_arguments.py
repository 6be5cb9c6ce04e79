"""cuDNN's routines: bad arguments, calls in place, and what a mask of dropout is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import GpuRefStale

from ...conformance import MARKS

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


async def test_bad_arguments_of_routines(device: Any) -> None:
    dnn = device.dnn
    x = await device.put(np.zeros((2, 3, 8, 8), FLOAT))
    whole = await device.put(np.zeros((2, 3, 8, 8), np.int32))
    calls: Any = (
        (TypeError, "x must be a GpuRef", lambda: dnn.max_pool(0, 2)),
        (TypeError, "must be one of float16", lambda: dnn.max_pool(whole, 2)),
        (ValueError, "one to three dimensions", lambda: dnn.max_pool(x[0, 0], 2)),
        (ValueError, "layout 'CHWN' does not fit", lambda: dnn.max_pool(x, 2, layout="CHWN")),
        (ValueError, "window must be an integer or 2", lambda: dnn.max_pool(x, (2, 2, 2))),
        (ValueError, "at least 1, not 0", lambda: dnn.max_pool(x, 0)),
        (ValueError, "more than half", lambda: dnn.max_pool(x, 2, padding=2)),
        (ValueError, "does not fit into 8", lambda: dnn.max_pool(x, 9)),
        (ValueError, "stride must be an integer", lambda: dnn.avg_pool(x, 2, stride=0)),
        (
            ValueError,
            r"out must have shape \(2, 3, 4, 4\), not \(2, 3, 8, 8\)",
            lambda: dnn.max_pool(x, 2, out=x),
        ),
        (
            ValueError,
            r"grad must have shape \(2, 3, 4, 4\)",
            lambda: dnn.max_pool_grad(x, x, x, 2),
        ),
        (
            ValueError,
            r"grad must have shape \(2, 3, 4, 4\)",
            lambda: dnn.avg_pool_grad(x, x.shape, 2),
        ),
        (ValueError, "axis 4 is out of bounds", lambda: dnn.softmax(x, 4)),
        (
            ValueError,
            r"grad must have shape \(2, 3, 8, 8\), not \(3, 8, 8\)",
            lambda: dnn.softmax_grad(x[0], x),
        ),
        (TypeError, "grad must be one of", lambda: dnn.softmax_grad(whole, x)),
        (ValueError, "p must be at least 0", lambda: dnn.dropout(x, 1.0, seed=0)),
        (ValueError, "seed must be", lambda: dnn.dropout(x, 0.5, seed=-1)),
        (TypeError, "offset must be", lambda: dnn.dropout(x, 0.5, seed=0, offset=0.5)),
        (ValueError, "size must be", lambda: dnn.local_response_norm(x, 17)),
        (ValueError, "beta must be", lambda: dnn.local_response_norm(x, 5, beta=0.0)),
        (ValueError, "shares memory with", lambda: dnn.local_response_norm(x, 5, out=x)),
        (
            ValueError,
            r"y must have shape \(2, 3, 8, 8\), not \(1, 3, 8, 8\)",
            lambda: dnn.local_response_norm_grad(x, x[:1], x, 5),
        ),
    )
    for error, match, call in calls:
        with pytest.raises(error, match=match):
            await call()
    await device.free(x)
    with pytest.raises(GpuRefStale):
        await dnn.softmax(x)
