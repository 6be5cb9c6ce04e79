"""Shapes with a zero in them give what NumPy gives."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS
from .rows.ops import NAMES, REDUCTIONS

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


IMAGES: dict[str, Any] = {
    "conv": lambda d, x: d.conv(x(4, 6, 6), x.weight(4, 4, 3, 3), bias=x.weight(4)),
    "conv_transpose": lambda d, x: d.conv_transpose(x(4, 6, 6), x.weight(4, 2, 3, 3)),
    "conv_input_grad": lambda d, x: d.conv_input_grad(
        x(4, 4, 4), x.weight(4, 4, 3, 3), (x.batch, 4, 6, 6)
    ),
    "conv_weight_grad": lambda d, x: d.conv_weight_grad(x(4, 4, 4), x(4, 6, 6), (4, 4, 3, 3)),
    "conv_bias_grad": lambda d, x: d.conv_bias_grad(x(4, 4, 4)),
    "layer_norm": lambda d, x: d.layer_norm(x(3, 4), x.weight(4), x.weight(4)),
    "layer_norm_train": lambda d, x: d.layer_norm_train(x(3, 4), x.weight(4), x.weight(4)),
    "layer_norm_grad": lambda d, x: d.layer_norm_grad(x(4), x(4), x.weight(4), x(), x()),
    "rms_norm": lambda d, x: d.rms_norm(x(3, 4), x.weight(4)),
    "rms_norm_grad": lambda d, x: d.rms_norm_grad(x(4), x(4), x.weight(4), x()),
    "group_norm": lambda d, x: d.group_norm(x(4, 6, 6), 2, x.weight(4), x.weight(4)),
    "group_norm_grad": lambda d, x: d.group_norm_grad(x(4, 3), x(4, 3), 2, x.weight(4), x(2), x(2)),
    "instance_norm": lambda d, x: d.instance_norm(x(4, 6, 6), x.weight(4), x.weight(4)),
    "instance_norm_train": lambda d, x: d.instance_norm_train(x(4, 6), x.weight(4), x.weight(4)),
    "batch_norm": lambda d, x: d.batch_norm(x(4, 6, 6), *[x.weight(4)] * 4),
    "batch_norm_grad": lambda d, x: d.batch_norm_grad(x(4, 6), x(4, 6), *[x.weight(4)] * 3),
    "max_pool": lambda d, x: d.max_pool(x(4, 6, 6), 2),
    "max_pool_grad": lambda d, x: d.max_pool_grad(x(4, 3, 3), x(4, 3, 3), x(4, 6, 6), 2),
    "max_pool of parts": lambda d, x: d.max_pool(x(4, 5, 5), 2, ceil_mode=True),
    "avg_pool": lambda d, x: d.avg_pool(x(4, 6, 6), 2),
    "avg_pool_grad": lambda d, x: d.avg_pool_grad(x(4, 3, 3), (x.batch, 4, 6, 6), 2),
    "adaptive_avg_pool": lambda d, x: d.adaptive_avg_pool(x(4, 6, 6), 2),
    "adaptive_max_pool_grad": lambda d, x: d.adaptive_max_pool_grad(x(4, 2, 2), x(4, 6, 6)),
    "interpolate": lambda d, x: d.interpolate(x(4, 6, 6), 12),
    "interpolate_grad": lambda d, x: d.interpolate_grad(x(4, 12, 12), (x.batch, 4, 6, 6)),
    "grid_sample": lambda d, x: d.grid_sample(x(4, 6, 6), x(3, 3, 2)),
    "grid_sample_input_grad": lambda d, x: d.grid_sample_input_grad(
        x(4, 3, 3), x(3, 3, 2), (x.batch, 4, 6, 6)
    ),
    "unfold": lambda d, x: d.unfold(x(4, 6, 6), 3),
    "fold": lambda d, x: d.fold(x(4, 9), 4, 2),
    "max_pool_with_indices": lambda d, x: d.max_pool_with_indices(x(4, 6, 6), 2),
    "local_response_norm": lambda d, x: d.local_response_norm(x(4, 6, 6), 5),
}


class Images:
    """Arrays on the device, whose first dimension is a batch, and weights, which have none."""

    def __init__(self, device: Device, batch: int) -> None:
        self.device, self.batch = device, batch

    def __call__(self, *shape: int) -> Any:
        return self.weight(self.batch, *shape)

    def weight(self, *shape: int) -> Any:
        return self.arrays[shape]

    async def prepare(self, call: Any) -> Any:
        """Make the arrays that a call takes."""
        self.arrays: Any = _Shapes()
        with contextlib.suppress(TypeError, AttributeError):
            call(_Nobody(), self)
        shapes = dict.fromkeys(self.arrays.asked)
        self.arrays = {s: await self.device.put(np.ones(s, np.float32)) for s in shapes}
        return call


class _Shapes:
    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __getitem__(self, shape: tuple[int, ...]) -> None:
        self.asked.append(shape)


class _Nobody:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("name", IMAGES)
async def test_batches_of_none(device: Device, name: str) -> None:
    made: dict[int, tuple[Any, ...]] = {}
    for batch in (0, 2):
        images = Images(device, batch)
        call = await images.prepare(IMAGES[name])
        result = await call(device.dnn, images)
        made[batch] = result if isinstance(result, tuple) else (result,)
    for none, two in zip(made[0], made[2], strict=True):
        assert none.dtype == two.dtype
        if two.shape[:1] == (2,) and none.shape != two.shape:
            assert none.shape == (0, *two.shape[1:])
        else:  # sums over images
            assert none.shape == two.shape
        assert not (await device.get(none)).any()


async def test_batches_of_none_have_no_statistics_to_train_with(device: Device) -> None:
    x, w = await device.empty((0, 4, 3), np.float32), await device.put(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="several values for each channel"):
        await device.dnn.batch_norm_train(x, None, None, w, w)
    for shape in ((2, 0, 3), (2, 4, 0)):
        y = await device.empty(shape, np.float32)
        with pytest.raises(ValueError, match=r"only the (first|batch) may be 0|None of them 0"):
            await device.dnn.max_pool(y, 1)
        with pytest.raises(ValueError, match=r"only the (first|batch) may be 0"):
            await device.dnn.conv(y, await device.put(np.ones((4, 4, 1), np.float32)))


async def test_plans_of_the_user_have_elements(device: Device) -> None:
    with pytest.raises(ValueError, match=r"shape must have sizes of at least 1, not \(0, 4\)"):
        device.dnn.graph().tensor((0, 4), "float32")


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
    async with device.record() as recording:
        made = recording.dnn.relu(recording.dnn.reduce(x, "norm2", 0))
    await recording.replay()
    np.testing.assert_array_equal(await device.get(made), [0, 0, 0])
