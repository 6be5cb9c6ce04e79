"""Products by CUTLASS next to those of cuBLASLt, cuBLAS and cuDNN, which the same device has.

Kernels are compiled first, which takes a minute the first time. Without a GPU sizes are small.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import trio
from side_by_side import Row, compare, open_first, show

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

    Call = Callable[[Any], Any]
    Calls = tuple[float, Call, dict[str, Call], dict[str, float]]

GROUPED: Any = {"tile": (128, 128, 64), "cluster": (1, 1, 1)}
BFLOAT16 = ml_dtypes.bfloat16


async def random(device: Device, *shape: int, dtype: Any = BFLOAT16) -> Any:
    """Numbers at random."""
    rng = np.random.default_rng(len(shape))
    return await device.put(rng.standard_normal(shape, np.float32).astype(dtype))


async def bf16(device: Device, n: int) -> Calls:
    """A product alone."""
    a, b = await random(device, n, n), await random(device, n, n)
    out = await device.empty((n, n), BFLOAT16)
    return (
        2 * n**3,
        lambda on: on.cutlass.matmul(a, b, trans_b=True, out=out),
        {"cublaslt": lambda on: on.blaslt.matmul(a, b, trans_b=True, out=out)},
        {"cublaslt": 0.95},
    )


async def fp8(device: Device, n: int) -> Calls:
    """Return products of fp8, with sums as the tensor cores round them."""
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = await random(device, n, n, dtype=e4m3), await random(device, n, n, dtype=e4m3)
    out = await device.empty((n, n), BFLOAT16)
    return (
        2 * n**3,
        lambda on: on.cutlass.matmul(a, b, trans_b=True, out=out),
        {"cublaslt": lambda on: on.blaslt.matmul(a, b, trans_b=True, out=out, fast_accum=True)},
        {"cublaslt": 0.95},
    )


async def epilogue(device: Device, n: int, k: int = 0) -> Calls:
    """Bias, GELU and a residual: here one kernel, there two."""
    k = k or n
    a, b = await random(device, n, k), await random(device, n, k)
    bias, residual = await random(device, n), await random(device, n, n)
    out, there = await device.empty((n, n), BFLOAT16), await device.empty((n, n), BFLOAT16)
    tree = device.cutlass.accumulator.gelu_tanh() + residual

    def two(on: Any) -> Any:
        on.blaslt.matmul(a, b, trans_b=True, bias=bias, epilogue="gelu_bias", out=there)
        return on.evaluate(there + residual, out=out)

    async def both(device: Device) -> None:
        async with device.batch() as batch:
            two(batch)

    return (
        2 * n * n * k,
        lambda on: on.cutlass.matmul(a, b, trans_b=True, bias=bias, epilogue=tree, out=out),
        {"two kernels": lambda on: both(on) if on is device else two(on)},
        {"two kernels": 1.15},
    )


async def short(device: Device, n: int) -> Calls:
    """Return products with a short sum, for which the epilogue takes a larger share."""
    return await epilogue(device, n, n // 8)


async def grouped(device: Device, n: int) -> Calls:
    """Groups of rows, each with a matrix of its own."""
    n //= 2
    sizes = np.random.default_rng(4).integers(n // 64, n // 4, 32).tolist()
    a, b = await random(device, sum(sizes), n), await random(device, len(sizes), n, n)
    out = await device.empty((sum(sizes), n), BFLOAT16)
    rows = tuple(sizes)
    return (
        2 * sum(sizes) * n * n,
        lambda on: on.cutlass.matmul_grouped(a, b, rows, out=out, **GROUPED),
        {"cublas": lambda on: on.blas.gemm_grouped(a, b, rows, out=out)},
        {"cublas": 1.0},
    )


async def conv(device: Device, n: int) -> Calls:
    """A 3 x 3 layer in the middle of ResNet-50."""
    images, size, channels = n // 64, 14, min(256, n)
    x = await random(device, images, size, size, channels)
    w = await random(device, channels, 3, 3, channels)
    out = await device.empty(x.shape, BFLOAT16)
    return (
        2 * x.size * 9 * channels,
        lambda on: on.cutlass.conv(x, w, padding=1, layout="NHWC", out=out),
        {"cudnn": lambda on: on.dnn.conv(x, w, padding=1, layout="NHWC", out=out)},
        {"cudnn": 1.0},
    )


async def weight_grad(device: Device, n: int, size: int, channels: int) -> Calls:
    """The gradient of a 3 x 3 layer of ResNet-50 by its filters."""
    images, channels = n // 64, min(channels, n)
    x = await random(device, images, size, size, channels)
    grad = await random(device, images, size, size, channels)
    shape = (channels, 3, 3, channels)
    options: Any = {"padding": 1, "layout": "NHWC"}
    return (
        2 * x.size * 9 * channels,
        lambda on: on.cutlass.conv_weight_grad(grad, x, shape, **options),
        {"cudnn": lambda on: on.dnn.conv_weight_grad(grad, x, shape, **options)},
        {"cudnn": 0.8},
    )


LAYERS = ((56, 64), (28, 128), (14, 256), (7, 512))
"""Extents and channels of the 3 x 3 layers of ResNet-50."""

CASES: dict[str, Callable[[Device, int], Awaitable[Calls]]] = {
    **{case.__name__: case for case in (bf16, fp8, epilogue, short, grouped, conv)},
    **{
        f"weight_grad_{size}": partial(weight_grad, size=size, channels=channels)
        for size, channels in LAYERS
    },
}


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        n = 8192 if device.backend == "cuda" else 128
        for name in sys.argv[1:] or CASES:
            amount, call, rivals, goals = await CASES[name](device, n)
            ours, _ = await compare(device, call, {})
            theirs = {}
            for rival, other in rivals.items():
                theirs[rival], _ = await compare(device, other, {})
            show(Row(f"{name} {n}", amount, "TFLOP/s", ours, theirs, goals))
        print(device.cutlass.statistics())


if __name__ == "__main__":
    trio.run(run)
