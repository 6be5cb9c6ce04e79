"""Calls that resemble earlier ones: the checks that are repeated, and the forms kept apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, GpuRefSealed, GpuRefStale

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SEQUENCES = (2, 4, 2, 8)


async def buffers(device: Device) -> Any:
    """Several buffers of each kind, so that the same call has others each time."""
    rng = np.random.default_rng(5)

    async def some(count: int, shape: tuple[int, ...], dtype: Any = BFLOAT16) -> list[GpuRef]:
        arrays = [rng.standard_normal(shape).astype(dtype) for _ in range(count)]
        return [await device.put(array) for array in arrays]

    async def whole(*lists: list[int]) -> list[GpuRef]:
        return [await device.put(np.array(each, np.int32)) for each in lists]

    return SimpleNamespace(
        s=await some(8, SEQUENCES),
        packed=await some(4, (6, 2, 8)),
        ends=await whole([0, 2, 6], [0, 3, 6], [0, 1, 6]),
        lengths=await whole([1, 4], [3, 2]),
        bias=await some(2, (1, 2, 4, 4)),
        sink=await some(2, (2,), np.float32),
        lse=await some(1, (2, 2, 4), np.float32),
        x=await some(3, (2, 4, 5, 5), np.float32),
        w=await some(2, (4, 4, 1, 1), np.float32),
        c=await some(4, (4,), np.float32),
        long=await some(1, (40,), np.float32),
    )


def attend(**options: Any) -> Any:
    return lambda d, r: d.flash_attention(r.s[0], r.s[1], r.s[2], **options)


def cached(r: Any, **options: Any) -> dict[str, Any]:
    return {"cache_seqlens": r.lengths[0], **options}


# A call that is good, one like it that is not, and what that raises.
LIKE: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "half a stride": (
        lambda d, r: d.conv(r.x[0], r.w[0], stride=1),
        lambda d, r: d.conv(r.x[0], r.w[0], stride=1.0),
        *(TypeError, "stride must be an integer"),
    ),
    "half a padding": (
        lambda d, r: d.conv(r.x[0], r.w[0], padding=(1, 0)),
        lambda d, r: d.conv(r.x[0], r.w[0], padding=(1.0, 0)),
        *(TypeError, "padding must be an integer"),
    ),
    "half a window": (attend(window=(1, 2)), attend(window=(1, 2.0)), TypeError, "whole number"),
    "half a length": (
        lambda d, r: d.flash_attention_varlen(*r.packed[:3], *r.ends[:2], 4, 5),
        lambda d, r: d.flash_attention_varlen(*r.packed[:3], *r.ends[:2], 4.0, 5),
        *(TypeError, "max_seqlen_q must be a whole number"),
    ),
    "two gradients": (
        lambda d, r: d.flash_attention_grad(*r.s[:5], r.lse[0], grads=r.s[5:]),
        lambda d, r: d.flash_attention_grad(*r.s[:5], r.lse[0], grads=r.s[5:7]),
        *(ValueError, "grads must be three"),
    ),
    "no gradients": (
        lambda d, r: d.flash_attention_grad(*r.s[:5], r.lse[0]),
        lambda d, r: d.flash_attention_grad(*r.s[:5], r.lse[0], grads=()),
        *(ValueError, "grads must be three"),
    ),
    "no bias": (
        attend(),
        lambda d, r: attend(bias=r.s[0])(d, r),
        ValueError,
        "bias must have shape",
    ),
    "a buffer for a number": (
        attend(softmax_scale=1.0),
        lambda d, r: attend(softmax_scale=r.s[0])(d, r),
        *(TypeError, "softmax_scale must be a real number, not a GpuRef"),
    ),
    "an array": (
        lambda d, r: d.relu(r.x[0]),
        lambda d, _: d.relu(np.zeros((2, 4, 5, 5), np.float32)),
        *(TypeError, "x must be a GpuRef, not ndarray"),
    ),
    "nothing": (
        lambda d, r: d.relu(r.x[0]),
        lambda d, _: d.relu(None),
        *(TypeError, "x must be a GpuRef, not NoneType"),
    ),
    "out's shape": (
        lambda d, r: d.relu(r.x[0], out=r.x[1]),
        lambda d, r: d.relu(r.x[0], out=r.x[1].reshape(-1)),
        *(ValueError, r"out is float32 of shape \(200,\), but the result"),
    ),
    "out's dtype": (
        lambda d, r: d.relu(r.x[0], out=r.x[1]),
        lambda d, r: d.relu(r.x[0], out=r.x[1].view(np.int32)),
        *(TypeError, "out is int32"),
    ),
    "out of attention": (
        attend(),
        lambda d, r: d.flash_attention(*r.s[:3], out=r.s[3].reshape(-1)),
        *(ValueError, r"out is bfloat16 of shape \(128,\), but the result"),
    ),
    "in place": (
        lambda d, r: d.relu(r.x[0], out=r.x[1]),
        lambda d, r: d.relu(r.x[0], out=r.x[0]),
        *(ValueError, "out shares memory with x"),
    ),
    "half in place": (
        lambda d, r: d.relu(r.long[0][:16], out=r.long[0][16:32]),
        lambda d, r: d.relu(r.long[0][:16], out=r.long[0][8:24]),
        *(ValueError, "out shares memory with x"),
    ),
    "askew": (
        lambda d, r: d.relu(r.long[0][:16]),
        lambda d, r: d.relu(r.long[0][1:17]),
        *(ValueError, "begins 4 bytes into"),
    ),
    "freed": (
        lambda d, r: d.relu(r.x[0]),
        lambda d, r: d.relu(r.freed),
        *(GpuRefStale, "x was freed"),
    ),
    "sealed": (
        lambda d, r: d.relu(r.x[0], out=r.x[1]),
        lambda d, r: d.relu(r.x[0], out=r.sealed),
        *(GpuRefSealed, "out is sealed"),
    ),
    "a sealed cache": (
        lambda d, r: d.flash_attention_with_kvcache(*r.s[:5], **cached(r)),
        lambda d, r: d.flash_attention_with_kvcache(r.s[0], r.sealed_cache, *r.s[2:5], **cached(r)),
        *(GpuRefSealed, "k_cache is sealed"),
    ),
}


@pytest.mark.parametrize("name", LIKE)
async def test_invalid_call_is_refused_after_a_similar_valid_one(device: Device, name: str) -> None:
    good, bad, error, message = LIKE[name]
    r = await buffers(device)
    r.freed = await device.put(np.zeros((2, 4, 5, 5), np.float32))
    await device.free(r.freed)
    r.sealed = await device.put(np.zeros((2, 4, 5, 5), np.float32), sealed=True)
    r.sealed_cache = await device.put(np.zeros(SEQUENCES, BFLOAT16), sealed=True)
    with pytest.raises(error) as alone:
        await bad(device.dnn, r)
    for _ in range(2):
        await good(device.dnn, r)
        with pytest.raises(error, match=message) as after:
            await bad(device.dnn, r)
        assert str(after.value) == str(alone.value)
        async with device.batch() as batch:
            good(batch.dnn, r)
            with pytest.raises(error, match=message):
                bad(batch.dnn, r)


# Calls that are alike but for one thing: with the numbers of the buffers that they take.
CALLS: list[Any] = [
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]]),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], causal=True),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], softcap=2.0),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], softcap=3.0),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], layout="bhsd"),
    lambda d, r, i: d.flash_attention_with_lse(*(r.s[i[0]], r.s[i[1]], r.s[i[2]]), causal=True),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], bias=r.bias[i[3] % 2]),
    lambda d, r, i: d.flash_attention(r.s[i[0]], r.s[i[1]], r.s[i[2]], sink=r.sink[i[3] % 2]),
    lambda d, r, i: d.flash_attention(
        *(r.s[i[0]], r.s[i[1]], r.s[i[2]]), dropout_p=0.5, seed=i[3], offset=i[4]
    ),
    lambda d, r, i: d.flash_attention(
        *(r.s[0], r.s[1], r.s[2]),
        seqlens_q=r.lengths[i[0] % 2],
        seqlens_k=r.lengths[i[1] % 2],
        causal=True,
    ),
    lambda d, r, i: d.flash_attention_varlen_with_lse(
        *r.packed[:3], r.ends[i[0] % 3], r.ends[i[1] % 3], *(5, 5), causal=True
    ),
    lambda d, r, i: d.flash_attention_with_kvcache(
        *(r.s[i[0]], r.s[i[1]], r.s[i[2]]), cache_seqlens=r.lengths[i[3] % 2]
    ),
    lambda d, r, i: d.batch_norm(r.x[i[0] % 3], *(r.c[(i[1] + n) % 4] for n in range(4))),
    lambda d, r, i: d.conv(r.x[i[0] % 3], r.w[i[1] % 2], bias=r.c[i[2] % 4]),
    lambda d, r, i: d.conv(r.x[i[0] % 3], r.w[i[1] % 2], padding=((0, 1), 0)),
    lambda d, r, i: d.reduce(r.x[i[0] % 3], "mean", axis=[0, 2], keepdims=bool(i[1] % 2)),
    lambda d, r, i: d.leaky_relu(r.x[i[0] % 3], 0.1 * i[1]),
]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(len(CALLS))),
            st.tuples(*[st.integers(0, 5)] * 5),
        ),
        min_size=2,
        max_size=8,
    )
)
@on_shared
async def test_a_call_gives_what_it_gives_when_nothing_is_known(
    device: Device, steps: list[tuple[int, tuple[int, ...]]]
) -> None:
    r = await buffers(device)

    async def results(*, forget: bool) -> list[bytes]:
        found = []
        for call, which in steps:
            if forget:
                device.dnn.plans.calls.clear()
            made = await CALLS[call](device.dnn, r, which)
            refs = made if isinstance(made, tuple) else (made,)
            found += [(await device.get(ref)).tobytes() for ref in refs]
        return found

    assert await results(forget=False) == await results(forget=True)
    assert await results(forget=False) == await results(forget=False)


async def test_batch_norm_updates_the_buffers_of_each_call(device: Device) -> None:
    r = await buffers(device)
    x, weight, bias = r.x[0], r.c[0], r.c[1]
    for _ in range(2):
        mean, var = await device.zeros((4,), np.float32), await device.full((4,), 1, np.float32)
        await device.dnn.batch_norm_train(x, mean, var, weight, bias, momentum=1.0)
        expected = (await device.get(x)).mean((0, 2, 3))
        np.testing.assert_allclose(await device.get(mean), expected, rtol=1e-4, atol=1e-5)


async def test_a_step_waits_for_the_one_before_it_and_not_for_all(device: Device) -> None:
    r = await buffers(device)
    await device.dnn.flash_attention_with_kvcache(*r.s[:5], **cached(r))
    async with device.batch() as batch:
        for _ in range(40):
            batch.dnn.flash_attention_with_kvcache(*r.s[:5], **cached(r))
        most = max(len(op.dependencies) for op in batch._ops)
        assert most <= 2  # the step before it, and the one that had its scratch memory
