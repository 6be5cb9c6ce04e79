"""DNN and bad input; batches, recordings and rebuilds."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, GpuRefSealed, GpuRefStale, Unsupported, open_device
from atomr_accel.device.core import DeviceCore
from atomr_accel.ops import Request
from atomr_accel.testing import poison

from ... import seeds
from ..conformance import MARKS, on_cuda
from ..refusals import refuses

pytestmark = MARKS

test_bad_input_is_refused = refuses(
    "dnn",
    [
        ("conv(1, f4_4x8x3x3)", TypeError, "x"),
        ("conv(f8_2x8x6x5, f4_4x8x3x3)", TypeError, "w must have the dtype of x"),
        (
            "conv(i4_2x8x6x5, i4_2x8x6x5)",
            TypeError,
            "x must have dtype float16, bfloat16, float32 or float64, not int32",
        ),
        ("conv(f4_2x8x6x5, f4_4x3x3x3)", ValueError, "groups=1 and 8 channels"),
        (
            "conv(f4_2x8x6x5, f4_4x8x9x3)",
            ValueError,
            r"a filter must span at most 6 elements and 0 \+ 0 of padding, not",
        ),
        ("conv(f4_2x8x6, f4_4x8x3x3)", ValueError, r"\(2, 8, 6\), \(4, 8, 3, 3\)"),
        ("conv(f4_1x1x1x1x1x8, f4_1x1x1x1x1x8)", ValueError, "3 to 5 dimensions"),
        ('conv(f4_2x8x6x5, f4_4x8x3x3, layout="NWC")', ValueError, "NCHW or NHWC"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, stride=0)", ValueError, "stride.*at least 1"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, stride=(1, 1, 1))", ValueError, "stride"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, stride=1.5)", TypeError, "stride.*1.5"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, padding=-1)", ValueError, "padding"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, padding=((1, 1, 1), 1))", ValueError, "pairs"),
        ('conv(f4_2x8x6x5, f4_4x8x3x3, padding="same", stride=2)', ValueError, "stride 1"),
        ('conv(f4_2x8x6x5, f4_4x8x3x3, padding="half")', ValueError, "half"),
        ('conv(f4_2x8x6x5, f4_4x8x3x3, activation="sin")', ValueError, "relu.*'sin'"),
        (
            "conv(f4_2x8x6x5, f4_4x8x3x3, bias=f4_8)",
            ValueError,
            r"bias must have 4 elements, one for each channel, not shape \(8,\)",
        ),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, out=f4_2x8x6x5)", ValueError, r"\(2, 4, 4, 3\)"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, padding=1, out=f4_2x8x6x5)", ValueError, "out"),
        (
            "conv_input_grad(f4_2x4x4x3, f4_4x8x3x3, (2, 8, 9, 9))",
            ValueError,
            r"\(2, 8, 9, 9\).*\(2, 4, 4, 3\)",
        ),
        (
            "conv_weight_grad(f4_2x4x4x3, f4_2x8x6x5, (4, 8, 2, 2))",
            ValueError,
            r"conv_wgrad: the gradient must have shape \(2, 4, 5, 4\), as an",
        ),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, groups=3)", ValueError, "groups=3"),
        ("conv_transpose(f4_2x4x4x3, f4_4x8x3x3, padding=9)", ValueError, "would have shape"),
        (
            "layer_norm(f4_3x5, f4_4, f4_4)",
            ValueError,
            r"weight must have the last dimensions of x, \(3, 5\), not \(4,\)",
        ),
        ("layer_norm(f4_3x5, f4_5, f4_4)", ValueError, r"bias must have shape \(5,\), not \(4,\)"),
        (
            "instance_norm(f4_2x8x6x5, f4_4, f4_4)",
            ValueError,
            r"weight must have shape \(8,\), not \(4,\)",
        ),
        (
            "instance_norm(f4_2x8x6x5, f8_8, f8_8)",
            TypeError,
            "must have dtype float32, not float64",
        ),
        ("group_norm(f4_2x8x6x5, 3, f4_8, f4_8)", ValueError, "3 groups"),
        ("batch_norm(f4_2x8x6x5, None, None, f4_8, f4_8)", ValueError, "batch_norm needs both"),
        ("batch_norm_train(f4_2x8x6x5, f4_8, None, f4_8, f4_8)", ValueError, "come together"),
        ("instance_norm(f4_8, f4_8, f4_8)", ValueError, "2 to 5 dimensions"),
        ('reduce(f4_2x8x6x5, "median")', ValueError, "median"),
        ('reduce(f4_2x8x6x5, "sum", 4)', ValueError, "axis 4"),
        ('reduce(f4_2x8x6x5, "sum", (1, -3))', ValueError, "axis"),
        ('gelu(f4_2x8x6x5, approximate="erf")', ValueError, "erf"),
        ("relu_grad(f4_2x4x4x3, f4_2x8x6x5)", ValueError, r"\(2, 4, 4, 3\)"),
        ("relu(i4_2x8x6x5)", TypeError, "int32"),
        # numbers that no message carries
        ("conv(f4_2x8x6x5, f4_4x8x3x3, padding=2**40)", ValueError, "at most|more than 64 bits"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, padding=2**62)", ValueError, "at most|more than 64 bits"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, stride=2**70)", ValueError, "at most|more than 64 bits"),
        ("conv(f4_2x8x6x5, f4_4x8x3x3, dilation=2**70)", ValueError, "at most|more than 64 bits"),
        (
            "conv_transpose(f4_2x4x4x3, f4_4x8x3x3, stride=2**40)",
            ValueError,
            "at most|more than 64 bits",
        ),
        ("max_pool(f4_2x8x6x5, 2**70, padding=2**69)", ValueError, "at most|more than 64 bits"),
        ("avg_pool(f4_2x8x6x5, 2, stride=2**70)", ValueError, "at most|more than 64 bits"),
        (
            "conv_transpose(f4_2x4x4x3, f4_4x8x3x3, dilation=2, output_padding=1)",
            ValueError,
            r"output_padding must be less than stride, not \(1, 1\) with stride \(1, 1\)",
        ),
    ],
)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
async def test_a_reduction_over_no_axes_takes_every_element_by_itself(
    device: Device, dtype: str
) -> None:
    host = np.array([[-2, 3, 0.5], [4, -1, 0]], dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    x = await device.put(host)
    for mode in ("sum", "mean", "max", "min", "absmax", "norm1", "norm2"):
        expected = host if mode in ("sum", "mean", "max", "min") else np.abs(host)
        for keepdims in (False, True):
            y = await device.dnn.reduce(x, mode, (), keepdims=keepdims)
            got = await device.get(y)
            assert got.dtype == wide
            np.testing.assert_array_equal(got, expected)


async def test_refs_that_cannot_be_used(device: Device) -> None:
    x = await device.put(np.ones((1, 8, 4, 4), np.float32))
    c = await device.put(np.ones(8, np.float32))
    sealed = await device.put(np.ones(8, np.float32), sealed=True)
    with pytest.raises(GpuRefSealed, match="running_var"):
        await device.dnn.batch_norm_train(x, c, sealed, c, c)
    y = await device.dnn.batch_norm(x, c, sealed, sealed, c)  # reading is another thing
    assert y.shape == x.shape
    await device.free(x)
    with pytest.raises(GpuRefStale):
        await device.dnn.relu(x)


async def test_views_must_begin_where_cudnn_can_read(device: Device) -> None:
    x = await device.put(np.arange(64, dtype=np.float32))
    np.testing.assert_array_equal(
        await device.get(await device.dnn.relu(x[4:])), np.arange(4, 64, dtype=np.float32)
    )
    with pytest.raises(ValueError, match="begins 4 bytes into its buffer"):
        await device.dnn.relu(x[1:])


async def test_results_go_where_they_are_wanted(device: Device) -> None:
    x = await device.put(np.array([-1, 2, -3, 4], np.float32))
    out = await device.empty((4,), np.float32)
    assert await device.dnn.relu(x, out=out) is out
    np.testing.assert_array_equal(await device.get(out), [0, 2, 0, 4])
    with pytest.raises(TypeError, match=r"float16.*float32"):
        await device.dnn.relu(x, out=await device.empty((4,), np.float16))
    with pytest.raises(ValueError, match="shares memory with"):
        await device.dnn.relu(x, out=x)


# --- batches, recordings, rebuilds ----------------------------------------------------------


async def test_in_a_batch_and_in_a_recording(device: Device) -> None:
    rng = seeds.rng()
    x = rng.standard_normal((2, 4, 6, 6)).astype(np.float32)
    w = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
    refs = [await device.put(array) for array in (x, w)]
    alone = await device.dnn.conv(*refs, padding=1, activation="relu")
    expected = await device.get(alone)
    async with device.batch() as batch:
        y = batch.dnn.conv(*refs, padding=1)
        z = batch.dnn.relu(y)
    np.testing.assert_allclose(await device.get(z), expected, rtol=1e-5, atol=1e-5)
    async with device.record() as recording:
        y = recording.dnn.conv(*refs, padding=1, activation="relu")
        z = recording.dnn.tanh(y)
    await recording.replay()
    np.testing.assert_allclose(await device.get(z), np.tanh(expected), rtol=1e-4, atol=1e-5)


async def test_a_plan_in_a_batch_and_in_a_recording(device: Device) -> None:
    graph = device.dnn.graph()
    plan = await graph.build(graph.relu(graph.tensor((3,), "float32", name="facade")))
    x = await device.put(np.array([-1, 2, -3], np.float32))
    made = [await plan(facade=x)]
    async with device.batch() as batch:
        made += [batch.using(plan)(facade=x), batch.dnn.run(plan, facade=x)]
        other = batch.dnn.graph()
        other.output(other.relu(other.tensor((4,), "float32")))
        with pytest.raises(Unsupported, match="waits for the device's answer"):
            other.build()
    async with device.record() as recording:
        made += [recording.using(plan)(facade=x), recording.dnn.run(plan, facade=x)]
    await recording.replay()
    for y in made:
        np.testing.assert_array_equal(await device.get(y), [0, 2, 0])


async def test_type_checkers_know_how_many_results_there_are(device: Device) -> None:
    x = await device.put(np.ones((2, 4), np.float32))
    w = await device.put(np.ones(4, np.float32))
    q = await device.put(np.ones((1, 2, 2, 16), np.float16))
    assert_type(await device.dnn.layer_norm(x, w, w), GpuRef)
    three = await device.dnn.layer_norm_train(x, w, w)
    assert len(assert_type(three, tuple[GpuRef, GpuRef, GpuRef])) == 3
    x4 = await device.put(np.ones((2, 4, 3, 3), np.float32))
    assert_type(await device.dnn.batch_norm(x4, w, w, w, w), GpuRef)
    three = await device.dnn.batch_norm_train(x4, None, None, w, w)
    assert len(assert_type(three, tuple[GpuRef, GpuRef, GpuRef])) == 3
    assert_type(await device.dnn.instance_norm(x4, w, w), GpuRef)
    assert_type(
        device.requests.dnn.instance_norm_train(x4, w, w),
        Request[tuple[GpuRef, GpuRef, GpuRef]],
    )
    async with device.batch() as batch:
        assert_type(batch.dnn.group_norm(x4, 2, w, w), GpuRef)
        three = batch.dnn.group_norm_train(x4, 2, w, w)
        assert len(assert_type(three, tuple[GpuRef, GpuRef, GpuRef])) == 3
        assert_type(batch.dnn.flash_attention(q, q, q, causal=True), GpuRef)
        two = batch.dnn.flash_attention_with_lse(q, q, q)
        assert len(assert_type(two, tuple[GpuRef, GpuRef])) == 2
    async with device.record() as recording:
        pair = recording.dnn.rms_norm_train(x, w)
        assert len(assert_type(pair, tuple[GpuRef, GpuRef])) == 2


async def test_a_batch_asks_once_for_a_plan(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = await device.put(np.array([-1, 2, -3], np.float32))
    await device.dnn.tanh(x)  # opens the lanes
    device.dnn.clear_plans()
    names: list[str] = []
    submit = DeviceCore.submit

    def noting(core: DeviceCore, port: Any, name: str, *args: Any, **more: Any) -> Any:
        names.append(name)
        return submit(core, port, name, *args, **more)

    monkeypatch.setattr(DeviceCore, "submit", noting)
    for asked in (["dnn.plan"], []):  # from then on the host knows it
        async with device.batch() as batch:
            y = x
            for _ in range(3):
                y = batch.dnn.relu(y)
        assert names == [*asked, *["dnn.relu"] * 3]
        names.clear()


async def test_plans_are_known_again_after_a_rebuild() -> None:
    async with open_device(0, backend="cuda" if on_cuda() else "cpu") as device:
        x = await device.put(np.array([-1, 1], np.float32), sealed=True)
        await device.dnn.relu(x)
        await poison(device)
        np.testing.assert_array_equal(await device.get(await device.dnn.relu(x)), [0, 1])


async def test_statistics_and_limits(device: Device) -> None:
    x = await device.put(np.ones(8, np.float32))
    for _ in range(3):
        await device.dnn.relu(x)
    plans = device.statistics().caches["dnn.plans"]
    assert (plans.misses, plans.hits, plans.entries) == (1, 2, 1)
    device.dnn.clear_plans()
    assert device.statistics().caches["dnn.plans"].evictions == 1
    with pytest.raises(ValueError, match="at least 1"):
        device.dnn.plan_limit = 0
    no: Any = "no"
    images = await device.put(np.ones((1, 1, 4, 4), np.float32))
    filters = await device.put(np.ones((1, 1, 1, 1), np.float32))
    await device.dnn.conv(images, filters, autotune=True, allow_tf32=True)
    assert device.dnn.statistics().tuned == 1
    with pytest.raises(TypeError, match="allow_tf32 must be"):
        await device.dnn.conv(images, filters, allow_tf32=no)
    with pytest.raises(TypeError, match="autotune must be"):
        await device.dnn.conv(images, filters, autotune=no)
    assert on_cuda() or device.dnn.statistics().workspace == 0
