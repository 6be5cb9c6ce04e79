"""Kernels and the functions that stand for them, compared."""

from __future__ import annotations

import sys
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest

from atomr_accel import Device, TensorMap, Texture
from atomr_accel.testing import Comparison, compare
from atomr_accel.testing._compare import _difference

from ..harness import cpu_only, needs_nvrtc, on_shared

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SOURCE: Final = """
    struct Line { float slope, offset; };
    __device__ int count;

    extern "C" __global__ void line(const float* x, double* y, Line line, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] += line.slope * x[i] + line.offset;
        if (!i) count += n;
    }

    extern "C" __global__ void gather(float* out, const float* x, const int* at, bool wide, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[at[i]];
    }
"""
LINE: Final = np.dtype([("slope", "f4"), ("offset", "f4")], align=True)


def line(x: Any, y: Any, line: Any, n: Any, count: Any) -> None:
    y[:n] += line["slope"] * x[:n] + line["offset"]
    count += n


def gather(grid: Any, block: Any, out: Any, x: Any, at: Any, wide: Any, n: Any) -> None:
    n = min(n, grid[0] * block[0])
    out[:n] = x[at[:n]]


async def module(device: Device, **cpu: Any) -> Any:
    return await device.nvrtc.compile_module(
        SOURCE,
        cpu={"line": line, "gather": gather, **cpu},
        structs={"Line": LINE},
        variables={"count": np.zeros((), np.int32)},
    )


@needs_nvrtc
@on_shared
async def test_equal_programs_compare_equal(device: Device) -> None:
    made = await module(device)
    kernel = await made.kernel("line")
    for _ in range(2):  # variables of the module go on from where they are
        found = await compare(
            device,
            kernel,
            *(None, 64, (100,), (100,), (2.0, 0.5), 90),
            elements=90,
            rounds=3,
            rtol=1e-5,
        )
        assert isinstance(found, Comparison)
        assert found.rounds == 3
        assert len(found.differences) == 2
        assert max(found.differences.values()) < 1e-4
    assert await device.get(await made.variable("count")) == 6 * 90
    kernel = await made.kernel("gather")
    at = np.arange(50, dtype=np.int32)[::-1].copy()
    await compare(device, kernel, 1, 64, (50,), (100,), (50,), False, 50)
    found = await compare(device, kernel, 1, 64, np.zeros(50, "f4"), (100,), at, True, 50)
    assert found.differences["count"] == 0
    assert [*found.differences.values()] == [0.0] * len(found.differences)


@cpu_only
@needs_nvrtc
@on_shared
async def test_dependence_on_the_program_is_found(device: Device) -> None:
    """A function that the host has another copy of."""
    calls: list[int] = []

    def forgetful(out: Any, x: Any, at: Any, wide: Any, n: Any) -> None:
        calls.append(1)
        out[:n] = len(calls)

    kernel = await (await module(device, gather=forgetful)).kernel("gather")
    await compare(device, kernel, 1, 64, (8,), (8,), np.zeros(8, "i4"), True, 8)
    calls.append(1)
    with pytest.raises(AssertionError, match=r"'argument 0.*' differs at 8 of 8 places, .* at \[0"):
        await compare(device, kernel, 1, 64, (8,), (8,), np.zeros(8, "i4"), True, 8)


@cpu_only
@needs_nvrtc
@on_shared
async def test_const_stays_as_it_was(device: Device) -> None:
    def careless(out: Any, x: Any, at: Any, wide: Any, n: Any) -> None:
        x[0] = 5

    kernel = await (await module(device, gather=careless)).kernel("gather")
    with pytest.raises(
        AssertionError, match=r"kernel has changed 'argument 1 \(const float\*\)', which"
    ):
        await compare(device, kernel, 1, 64, (8,), (8,), (8,), True, 8)


@needs_nvrtc
@on_shared
async def test_incomparable_programs_are_refused(device: Device) -> None:
    kernel = await (await module(device)).kernel("gather")
    x: Any = await device.zeros(8, "f4")
    with pytest.raises(TypeError, match="takes 5 arguments, not 1"):
        await compare(device, kernel, 1, 64, (8,))
    with pytest.raises(TypeError, match="it takes shapes and arrays, no GpuRef"):
        await compare(device, kernel, 1, 64, (8,), x, (8,), True, 8)
    for options, error in (
        ({"rounds": 0}, ValueError),
        ({"rounds": 1.5}, TypeError),
        ({"rtol": -1}, ValueError),
        ({"atol": float("nan")}, ValueError),
    ):
        with pytest.raises(error):
            await compare(device, kernel, 1, 64, (8,), (8,), (8,), True, 8, **options)
    for made in (TensorMap(x, (4,)), Texture(x)):
        with pytest.raises(TypeError, match="no GpuRef or TensorMap, and no Texture"):
            await compare(device, kernel, 1, 64, (8,), made, (8,), True, 8)
    with pytest.raises(TypeError, match="compare takes a kernel"):
        await compare(device, print, 1, 64)  # type: ignore[arg-type]
    source = 'struct S { int a; }; extern "C" __global__ void k(S* s) {}'
    for cpu, error, said in (
        (None, ValueError, "'k' has no function"),
        (print, TypeError, "takes an array, since the source does not"),
    ):
        other = await device.nvrtc.compile(source, "k", cpu=cpu)
        with pytest.raises(error, match=said):
            await compare(device, other, 1, 1, (8,))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8", "uint64", "bool"])
def test_results_may_be_a_little_apart(dtype: str) -> None:
    one = np.array([1, 0, 1], dtype)
    assert _difference("x", one, one, None, None) == 0
    if one.dtype.kind in "fc":
        near = one * (1 + 1e-6)
        assert 0 < _difference("x", near.astype(dtype), one, None, None) < 1e-5
        odd = np.array([np.nan, np.inf, -np.inf], dtype)
        assert _difference("x", odd, odd, None, None) == 0
        with pytest.raises(AssertionError):
            _difference("x", odd, one, None, None)
    with pytest.raises(AssertionError, match=r"'x' differs at 1 of 3 places, first at \[2\]"):
        _difference("x", one, np.array([1, 0, 0], dtype), None, None)
    if dtype == "uint64":
        big = np.array([2**63], dtype)
        with pytest.raises(AssertionError):
            _difference("x", big, big + np.uint64(1), None, None)
