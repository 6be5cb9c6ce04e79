"""Shapes with a zero in them give what NumPy gives."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...harness import on_shared
from ..conformance import MARKS
from .rows.ops import NAMES, REDUCTIONS

if TYPE_CHECKING:
    from atomr_accel import Device

pytestmark = MARKS


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
async def test_activations(device: Device, shape: tuple[int, ...]) -> None:
    x = await device.empty(shape, np.float16)
    for name in NAMES:
        for call, refs in ((name, (x,)), (f"{name}_grad", (x, x))):
            if "gelu_tanh" not in call:
                y = await getattr(device.dnn, call)(*refs)
                assert (y.shape, y.dtype) == (x.shape, x.dtype)
                assert (await device.get(y)).shape == shape


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, bool]:
    sizes = st.sampled_from((0, 0, 1, 2, 3))
    shape = draw(st.lists(sizes, min_size=1, max_size=4).map(tuple).filter(lambda s: 0 in s))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return shape, draw(st.sampled_from((None, min(axes), tuple(axes)))), draw(st.booleans())


@given(reductions(), st.sampled_from(sorted(REDUCTIONS)), st.sampled_from(("float16", "float64")))
@on_shared
async def test_reductions(
    device: Device, case: tuple[tuple[int, ...], Any, bool], mode: str, dtype: str
) -> None:
    shape, axis, keepdims = case
    array = np.zeros(shape, dtype)
    x: Any = await device.put(array)
    which: Any = mode
    try:
        with warnings.catch_warnings(action="ignore"):  # NumPy warns of means of nothing
            expected = REDUCTIONS[mode](array.astype(float), axis=axis, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ValueError, match="x must have elements for"):
            await device.dnn.reduce(x, which, axis, keepdims=keepdims)
        return
    y = await device.dnn.reduce(x, which, axis, keepdims=keepdims)
    assert y.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_array_equal(await device.get(y), expected, strict=False)


async def test_empty_arguments_are_checked_like_others(device: Device) -> None:
    x, y = await device.empty((0, 3), np.float32), await device.empty((1, 3), np.float32)
    whole = await device.empty((0, 3), np.int32)
    with pytest.raises(TypeError, match=r"x must have dtype .*, not int32"):
        await device.dnn.relu(whole)
    with pytest.raises(TypeError, match=r"x must have dtype .*, not int32"):
        await device.dnn.reduce(whole, "sum")
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        await device.dnn.relu_grad(y, x)
    with pytest.raises(ValueError, match="axis 2"):
        await device.dnn.reduce(x, "sum", 2)
    with pytest.raises(ValueError, match=r"out is float32 of shape \(1, 3\)"):
        await device.dnn.relu(x, out=y)
    with pytest.raises(TypeError, match="but the result is float32"):
        await device.dnn.reduce(x, "sum", 0, out=await device.empty((3,), np.float64))


async def test_results_go_where_they_are_wanted_and_can_be_recorded(device: Device) -> None:
    x = await device.empty((0, 3), np.float32)
    out = await device.full((3,), 7, np.float32)
    assert await device.dnn.reduce(x, "sum", 0, out=out) is out
    np.testing.assert_array_equal(await device.get(out), [0, 0, 0])
    async with device.batch() as batch:
        made = batch.dnn.reduce(batch.dnn.relu(x), "mean", 0)
    assert np.isnan(await device.get(made)).all()
    async with device.record() as program:
        made = program.dnn.relu(program.dnn.reduce(x, "norm2", 0))
    await program.replay()
    np.testing.assert_array_equal(await device.get(made), [0, 0, 0])
