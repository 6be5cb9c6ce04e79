"""Composed functions of ``device.array`` in batches and recordings, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from atomr_accel import Device, Unsupported

from ...harness import on_shared
from ..conformance import MARKS
from ..refusals import refuses
from .calls import LAYOUTS, by_numpy, fetched, put, same, sample

pytestmark = MARKS

COMPOSED: dict[str, tuple[Any, ...]] = {
    "dot": (), "inner": (), "vdot": (), "outer": (), "kron": (), "tensordot": (1,),
    "array_equal": (), "allclose": (), "isin": (), "append": (), "append to rows": (0,),
    "column_stack": (), "dstack": (), "trapezoid": (), "lexsort": (),
}  # fmt: skip
"""Functions of two matrices, with further arguments."""
TOGETHER = ("column_stack", "dstack", "lexsort")
ALONE: dict[str, tuple[Any, ...]] = {
    "trace": (1,), "diff": (2, 0), "gradient": (0.5,), "nancumsum": (1,), "nanmedian": (0,),
    "cov": (), "corrcoef": (), "average": (0,), "delete": (1, 0), "insert": ([0, 2], 7, 1),
    "logsumexp": (0,), "softmax": (1,), "log_softmax": (-1,),
    "delete every other": (slice(None, None, 2), 1), "nanquantile": (0.3,),
}  # fmt: skip
"""Functions of one matrix."""


def called(on: Any, name: str, x: Any, y: Any) -> Any:
    """Return what a call of the table gives, on NumPy or a library."""
    word = name.split(maxsplit=1)[0]
    function = getattr(special if on is np and not hasattr(np, word) else on, word)
    if name in TOGETHER:
        return function([x, y])
    return function(x, y, *COMPOSED[name]) if name in COMPOSED else function(x, *ALONE[name])


@pytest.mark.parametrize("name", [*COMPOSED, *ALONE])
@settings(max_examples=4)
@given(seed=st.integers(0, 99), layout=st.sampled_from(LAYOUTS))
@on_shared
async def test_functions_are_the_same_awaited_in_batches_and_in_recordings(
    device: Device, name: str, seed: int, layout: str
) -> None:
    one, other = sample(seed, (4, 4), "float64"), sample(seed + 1, (4, 4), "float64")
    with np.errstate(all="ignore"):
        expected = called(np, name, one, other)
    x, y = await put(device, one, layout), await put(device, other, layout)
    for _ in range(3):  # by a template, where there is one
        made = await called(device.array, name, x, y)
        same(await fetched(device, made), expected, near=1e-9)
    async with device.batch() as batch:
        together = called(batch.array, name, x, y)
    same(await fetched(device, together), expected, near=1e-9)
    async with device.record() as recording:
        later = called(recording.array, name, x, y)
    for _ in range(2):
        await recording.replay()
        same(await fetched(device, later), expected, near=1e-9)


@pytest.mark.parametrize("name", ["outer", "kron", "tensordot", "isin", "diff", "average", "cov"])
@on_shared
async def test_functions_take_expressions(device: Device, name: str) -> None:
    one, other = sample(1, (3, 3), "float32"), sample(2, (3, 3), "float32")
    x, y = await device.put(one), await device.put(other)
    got = await fetched(device, await called(device.array, name, x * 2, y + 1))
    same(got, called(np, name, one * 2, other + 1), near=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda on, x, mask: on.union1d(x, x),
        lambda on, x, mask: on.intersect1d(x, x),
        lambda on, x, mask: on.setdiff1d(x, x),
        lambda on, x, mask: on.delete(x, mask),
        lambda on, x, mask: on.ravel_multi_index((x,), (9,), "raise"),
    ],
)
@on_shared
async def test_sizes_that_only_the_device_knows_are_not_in_batches(
    device: Device, call: Callable[..., Any]
) -> None:
    x = await device.put(np.arange(4))
    mask = await device.evaluate(x > 2)
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="await it before"):
            call(batch.array, x, mask)
    assert await call(device.array, x, mask) is not None


@on_shared
async def test_ravel_multi_index_looks_at_its_indices(device: Device) -> None:
    x = await device.put(np.arange(4))
    with pytest.raises(ValueError, match="invalid entry"):
        await device.array.ravel_multi_index((x,), (2,), "raise")


test_bad_arguments = refuses(
    "array",
    [
        ("delete(i8_4, i8_4)", TypeError, "await device.get"),
        ("insert(i8_4, i8_4, 1)", TypeError, "await device.get"),
        ("delete(i8_4, 9)", IndexError, "out of bounds"),
        ("insert(i8_4, [0, 9], 1)", IndexError, "out of bounds"),
        ("cross(i8_4[:2], i8_4[:2])", ValueError, "device.array.pad"),
        ("diff(i8_4, -1)", ValueError, "n must be"),
        ("gradient(i8_4[:1])", ValueError, "at least 2 elements"),
        ("convolve(i8_4, i8_4[:0])", ValueError, "at least one element"),
        ('convolve(i8_4, i8_4, "most")', ValueError, "mode must be"),
        ("interp(i8_4, i8_4, i8_4[:2])", ValueError, "the same length"),
        ("tensordot(i8_4, i8_4, 2)", ValueError, "axes must be"),
        ("tensordot(i8_4, i8_4[:2], 1)", ValueError, "axes of a must"),
        ("vdot(i8_4, i8_4[:2])", ValueError, "as many elements"),
        ("select([i8_4], [i8_4])", TypeError, "must be of bool"),
        ("select([], [])", ValueError, "as long as choicelist"),
        ("apply_along_axis(lambda row: 3, 0, i8_4)", TypeError, "ref or an expression"),
        ("quantile(i8_4, 0.5, weights=i8_4)", ValueError, "inverted_cdf"),
        ("average(i8_4, weights=i8_4[:2])", TypeError, "Axis must be"),
        ("cov(i8_4, fweights=i8_4[:2])", ValueError, "fweights must have"),
        ("unravel_index(i8_4, (0, 3))", ValueError, "must have elements"),
        ("logsumexp(i8_4 * 1j)", TypeError, "must be real numbers"),
        ("softmax(special.gammainc(1, i8_4))", TypeError, "Compute it on the host"),
        ("histogram2d(i8_4, i8_4[:2])", ValueError, "as long as x"),
    ],
    special=special,
)


@on_shared
async def test_a_mask_is_read_before_the_call(device: Device) -> None:
    x = await put(device, np.arange(12.0).reshape(3, 4), "transposed")
    mask = await device.put(np.arange(12) % 3 == 0)
    got = await fetched(device, await device.array.delete(x, mask))
    same(got, by_numpy("delete", np.arange(12.0), np.arange(12) % 3 == 0))
    row = (await device.put(np.arange(8)))[::-2]
    got = await fetched(device, await device.array.setdiff1d(row, row[:1], True))
    same(got, np.array([5, 3, 1]))
