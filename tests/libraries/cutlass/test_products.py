"""``device.cutlass`` multiplies as NumPy does in float64, with epilogues rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.libraries.cutlass._epilogue import ACCUMULATED

from ...harness import on_shared
from ..conformance import dtype_of
from .specs import COMPILING, FIXED, near, put

pytestmark = COMPILING

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("int8", "int32"),
        ("float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    ],
)
@on_shared
async def test_products(device: Device, dtype: str, result: str) -> None:
    (a, x), (b, y) = await put(device, (40, 32), dtype), await put(device, (48, 32), dtype)
    out = await device.cutlass.matmul(a, b, trans_b=True, dtype=result)
    await near(device, out, np.clip(x @ y.T, -448, 448) if "8_" in result else x @ y.T, result)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@on_shared
async def test_layouts(device: Device, trans_a: bool, trans_b: bool) -> None:
    a, x = await put(device, (24, 40) if trans_a else (40, 24), "float16")
    b, y = await put(device, (48, 24) if trans_b else (24, 48), "float16")
    out = await device.cutlass.matmul(a, b, trans_a=trans_a, trans_b=trans_b, **FIXED)
    await near(device, out, (x.T if trans_a else x) @ (y.T if trans_b else y), "float16")


@on_shared
async def test_several_products(device: Device) -> None:
    (a, x), (b, y) = (
        await put(device, (2, 3, 8, 16), "bfloat16"),
        await put(device, (2, 3, 24, 16), "bfloat16"),
    )
    each = await device.cutlass.matmul(a, b, trans_b=True, **FIXED)
    await near(device, each, x @ y.swapaxes(-1, -2), "bfloat16")
    one = await device.cutlass.matmul(a, b[0, 0], trans_b=True, **FIXED)
    await near(device, one, x @ y[0, 0].T, "bfloat16")


@on_shared
async def test_an_epilogue_is_computed_in_float32_and_rounded_once(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "bfloat16"), await put(device, (24, 8), "bfloat16")
    bias, v = await put(device, (24,), "bfloat16")
    rows, r = await put(device, (16, 1), "float32")
    other, o = await put(device, (16, 24), "bfloat16")
    c, z = await put(device, (16, 24), "float32")
    value = device.cutlass.accumulator
    epilogue = (rows * value.relu() - other).maximum(-1).minimum(3) / 2 + 0.125
    out = await device.cutlass.matmul(
        a, b, trans_b=True, alpha=0.5, beta=2.0, c=c, bias=bias, epilogue=epilogue, **FIXED
    )
    product = 0.5 * (x @ y.T) + 2 * z + v
    expected = np.clip(np.maximum(product, 0) * r - o, -1, 3) / 2 + 0.125
    await near(device, out, expected, "bfloat16")


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "__neg__"])
@on_shared
async def test_functions(device: Device, name: str) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "float16"), await put(device, (16, 8), "float16")
    epilogue = getattr(device.cutlass.accumulator, name)()
    out = await device.cutlass.matmul(a, b, trans_b=True, epilogue=epilogue, **FIXED)
    p = x @ y.T
    near_gelu = 0.5 * p * (1 + np.tanh(np.sqrt(2 / np.pi) * (p + 0.044715 * p**3)))
    expected = {
        "gelu": near_gelu,
        "gelu_tanh": near_gelu,
        "silu": p / (1 + np.exp(-p)),
        "sigmoid": 1 / (1 + np.exp(-p)),
        "tanh": np.tanh(p),
        "__neg__": -p,
    }[name]
    await near(device, out, expected, "float16")


@on_shared
async def test_epilogue_writes_its_second_output(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "float16"), await put(device, (24, 8), "float16")
    kept = await device.zeros((16, 24), np.float32)
    rows, columns = await device.zeros(24, np.float32), await device.zeros(16, np.float32)
    largest = await device.zeros((), np.float32)
    value = device.cutlass.accumulator.store(kept) * 2
    epilogue = value.sum(0, rows).sum(1, columns).amax(largest) + 1
    for _ in range(2):  # sums begin anew
        out = await device.cutlass.matmul(a, b, trans_b=True, epilogue=epilogue, **FIXED)
    p = x @ y.T
    await near(device, out, 2 * p + 1, "float16")
    await near(device, kept, p, "float32")
    await near(device, rows, 2 * p.sum(0), "float32")
    await near(device, columns, 2 * p.sum(1), "float32")
    await near(device, largest, np.abs(2 * p).max(), "float32")


@on_shared
async def test_rows_of_a_stack_that_has_one_matrix_are_those_of_one_product(device: Device) -> None:
    (a, x), (b, y) = await put(device, (3, 16, 8), "float16"), await put(device, (24, 8), "float16")
    column, z = await put(device, (3, 16, 1), "float32")
    p = x @ y.T
    beside = await device.put(np.full((4, 3, 16), 7, np.float32))
    sums = beside[1]
    accumulator = device.cutlass.accumulator
    epilogue = accumulator.sum(1, sums) + column
    out = await device.cutlass.matmul(a, b, trans_b=True, epilogue=epilogue, **FIXED)
    await near(device, out, p + z, "float16")
    await near(device, sums, p.sum(-1), "float32")
    for index in (0, 2, 3):
        assert (await device.get(beside[index]) == 7).all()
    for wrong in (accumulator + column[0], accumulator.sum(1, beside[0, 0])):
        with pytest.raises(ValueError, match=r"\(3, 16"):
            await device.cutlass.matmul(a, b, trans_b=True, epilogue=wrong, **FIXED)


@on_shared
async def test_a_result_may_take_the_place_of_what_is_added(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "float16"), await put(device, (16, 8), "float16")
    c, z = await put(device, (16, 16), "float16")
    out = await device.cutlass.matmul(a, b, trans_b=True, c=c, beta=1.0, out=c, **FIXED)
    assert out is c
    await near(device, c, x @ y.T + z, "float16")


@on_shared
async def test_groups_of_rows(device: Device) -> None:
    sizes = [5, 0, 8, 3]
    (a, x), (b, y) = (
        await put(device, (16, 8), "bfloat16"),
        await put(device, (4, 8, 24), "bfloat16"),
    )
    epilogue = device.cutlass.accumulator.relu() * 0.5
    out = await device.cutlass.matmul_grouped(a, b, sizes, epilogue=epilogue)
    ends = np.cumsum(sizes)
    parts = [
        x[end - size : end] @ y[g] for g, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]
    await near(device, out, np.maximum(np.concatenate(parts), 0) / 2, "bfloat16")
    none = await device.cutlass.matmul_grouped(await device.zeros((0, 8), "bfloat16"), b, [0] * 4)
    assert none.shape == (0, 24)


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "bfloat16"), await put(device, (24, 8), "bfloat16")
    async with device.batch() as batch:
        first = batch.cutlass.matmul(a, b, trans_b=True, **FIXED)
        second = batch.cutlass.matmul(first, b, **FIXED)
        third = batch.cutlass.matmul_grouped(a, b.reshape(3, 8, 8), [4, 4, 8])
    await near(device, first, x @ y.T, "bfloat16")
    kept = (await device.get(first)).astype(np.float64)
    await near(device, second, kept @ y, "bfloat16")
    groups = [x[:4] @ y[:8], x[4:8] @ y[8:16], x[8:] @ y[16:]]
    await near(device, third, np.concatenate(groups), "bfloat16")
    async with device.record() as recording:
        out = recording.cutlass.matmul(a, b, trans_b=True, **FIXED)
    for factor in (1, 2):
        await device.copy(await device.put((x * factor).astype(dtype_of("bfloat16"))), a)
        await recording.replay()
        await near(device, out, x @ y.T * factor, "bfloat16")


@on_shared
async def test_tuning(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "bfloat16"), await put(device, (24, 8), "bfloat16")
    before = device.cutlass.statistics()
    found = await device.cutlass.tune(
        a,
        b,
        trans_b=True,
        tiles=[(128, 128, 64), (256, 256, 64)],
        clusters=[(1, 1, 1)],
        swizzles=[1],
    )
    # No kernel has the larger tile.
    assert {(each.tile, each.schedule) for each in found} == {
        ((128, 128, 64), "cooperative"),
        ((128, 128, 64), "pingpong"),
    }
    now = device.cutlass.statistics()
    kernels = device.statistics().caches["cutlass.kernels"].entries
    assert now.builds + now.loaded - before.builds - before.loaded <= 2
    out = await device.cutlass.matmul(a, b, trans_b=True)
    assert device.statistics().caches["cutlass.kernels"].entries == kernels
    await near(device, out, x @ y.T, "bfloat16")


@on_shared
async def test_calls_that_are_alike_have_buffers_and_numbers_of_their_own(device: Device) -> None:
    (a, x), (b, y) = await put(device, (16, 8), "float16"), await put(device, (24, 8), "float16")
    value = device.cutlass.accumulator
    for number in range(6):
        bias, residual = np.full(24, number, np.float16), np.full((16, 24), -number, np.float16)
        v, r = await device.put(bias), await device.put(residual)
        kept = await device.zeros((16, 24), np.float32)
        scaled = (value + v).store(kept) * (1 + number // 3)
        for epilogue, factor in ((scaled + r, 1), (scaled + r + r, 2)):
            out = await device.cutlass.matmul(a, b, trans_b=True, epilogue=epilogue, **FIXED)
            sums = x @ y.T + number
            await near(device, kept, sums, "float32")
            await near(device, out, sums * (1 + number // 3) - factor * number, "float16")


def test_an_epilogue_comes_apart_and_together_again() -> None:
    shared = ACCUMULATED.relu() * 2
    whole = shared + shared.tanh()
    rest, refs = whole.split_refs()
    again = whole.with_refs(refs)
    assert again is not whole
    assert again.split_refs() == (rest, ())
    # Where a value is used twice it is one still.
    assert again._inputs[1]._inputs[0] is again._inputs[0]
    assert (shared + (ACCUMULATED.relu() * 2).tanh()).split_refs() != (rest, ())
    assert (shared * 0.0).split_refs() != (shared * -0.0).split_refs()
