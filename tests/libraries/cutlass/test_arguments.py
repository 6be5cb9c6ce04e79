"""Errors in the arguments of a product are reported before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, Unsupported

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS

SHAPES: dict[str, Any] = {"a": (16, 32), "b": (24, 32)}

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "inner": ({"b": (24, 40)}, ValueError, "a has 32 columns to sum over, and b 40 rows"),
    "one dimension": (
        {"a": (32,)},
        ValueError,
        r"a and b must have at least two dimensions, not shapes \(32,\) and \(24,",
    ),
    "leading": ({"a": (2, 16, 32), "b": (3, 24, 32)}, ValueError, r"products \(2,\) and b \(3,\)"),
    "nothing": ({"a": (0, 32)}, ValueError, "no elements to multiply"),
    "rows": ({"b": (20, 32)}, ValueError, "rows of the result have 20 elements of bfloat16"),
    "depth": ({"a": (16, 20), "b": (24, 20)}, ValueError, "must have a multiple of 8"),
    "dtypes": ({"b_dtype": "float16"}, TypeError, "a is bfloat16 and b float16"),
    "float64": ({"a_dtype": "float64", "b_dtype": "float64"}, TypeError, "a is float64"),
    "result": ({"dtype": "int32"}, TypeError, "a product of bfloat16 is float16, bfloat16"),
    "fp8 layout": (
        {"a_dtype": "float8_e5m2", "b": (32, 32), "b_dtype": "float8_e5m2", "trans_b": False},
        ValueError,
        "trans_a=False and trans_b=True",
    ),
    "int32 epilogue": (
        {"a_dtype": "int8", "b_dtype": "int8", "b": (32, 32), "alpha": 2.0},
        TypeError,
        "give a dtype for the result",
    ),
    "beta": (
        {"beta": 1.0},
        ValueError,
        r"beta must be 0 without c, not 1\.0; pass the c that it scales",
    ),
    "bias": ({"bias": 1.0}, TypeError, "^bias must be"),
    "c": ({"c": 1.0, "beta": 1.0}, TypeError, "^c must be"),
    "out": ({"out": [1]}, TypeError, "^out must be"),
    "epilogue": ({"epilogue": "gelu"}, TypeError, "an expression of device.cutlass.accumulator"),
    "tile rows": ({"tile": (96, 128, 64)}, ValueError, "tile has 96 rows"),
    "tile columns": ({"tile": (128, 48, 64)}, ValueError, "tile has 48 columns"),
    "tile depth": ({"tile": (128, 128, 48)}, ValueError, "takes 32 or 64 or 128"),
    "registers": ({"tile": (256, 256, 64)}, ValueError, "128 is the most that registers hold"),
    "cluster": ({"tile": (128, 128, 64), "cluster": (3, 1, 1)}, ValueError, r"\(3, 1, 1\)"),
    "stages": ({"tile": (128, 256, 64), "stages": 5}, ValueError, "bytes of shared memory"),
    "one stage": ({"tile": (128, 128, 64), "stages": 1}, ValueError, "from 2|at least 2|2"),
    "schedule": ({"tile": (128, 128, 64), "schedule": "fast"}, ValueError, "'pingpong'"),
    "swizzle": ({"tile": (128, 128, 64), "swizzle": 3}, ValueError, "1, 2, 4 or 8"),
    "no number": ({"tile": (128, 128, 64), "swizzle": True}, TypeError, "swizzle must be"),
    "no tile": (
        {"cluster": (1, 1, 1)},
        ValueError,
        r"cluster must be None without tile, not \(1, 1, 1\); pass tile, too",
    ),
    "triple": ({"tile": 128}, TypeError, "three whole numbers"),
}


@on_shared
async def test_arguments_that_are_refused(device: Device) -> None:
    """Also in a batch: by the call itself, before anything is sent."""
    for what, (changed, error, said) in WRONG.items():
        given = {**SHAPES, "a_dtype": "bfloat16", "b_dtype": "bfloat16", "trans_b": True, **changed}
        a, b = [await device.zeros(given.pop(x), given.pop(f"{x}_dtype")) for x in ("a", "b")]
        async with device.batch() as batch:
            with pytest.raises(error, match=said):
                batch.cutlass.matmul(a, b, **given)
                pytest.fail(what)


@on_shared
async def test_epilogues_that_are_refused(device: Device) -> None:
    a, b = await device.zeros((16, 32), "bfloat16"), await device.zeros((24, 32), "bfloat16")
    x = device.cutlass.accumulator
    ones = {
        name: await device.zeros(shape, dtype)
        for name, shape, dtype in (
            ("vector", (16,), "float32"),
            ("integers", (24,), "int32"),
            ("number", (), "float16"),
            ("sums", (24,), "float32"),
            ("largest", (1,), "float32"),
        )
    }
    stored = x.amax(await device.zeros((), "float32"))
    for epilogue, error, said in (
        (x + ones["vector"], ValueError, r"a buffer of shape \(16,\)"),
        (x + ones["integers"], TypeError, "reads float16, bfloat16, float32, not int32"),
        (x * ones["number"], TypeError, "must be float32, not float16"),
        (x.sum(1, ones["sums"]), ValueError, r"sum\(1\) writes shape \(16,\)"),
        (x.amax(ones["largest"]), ValueError, r"amax writes shape \(\)"),
        (x.store(ones["integers"]), TypeError, "store writes"),
        (stored + stored, ValueError, "amax is used twice"),
    ):
        with pytest.raises(error, match=said):
            await device.cutlass.matmul(a, b, trans_b=True, epilogue=epilogue)
    many = x
    for _ in range(7):
        many = many + many
    with pytest.raises(ValueError, match="more than 64 steps"):
        await device.cutlass.matmul(a, b, trans_b=True, epilogue=many)
    for _ in range(5000):
        many = many + 1.0
    with pytest.raises(ValueError, match="more than 64 steps"):
        await device.cutlass.matmul(a, b, trans_b=True, epilogue=many)
    for number in range(17):
        many = x if not number else many + number / 4
    with pytest.raises(ValueError, match="more than 16 different numbers"):
        await device.cutlass.matmul(a, b, trans_b=True, epilogue=many + 5)
    for refused in ("1", None, [1]):
        with pytest.raises(TypeError, match="an operand of an epilogue must be a real number"):
            x + refused  # type: ignore[operator]
    with pytest.raises(TypeError, match="must be a number, not an array"):
        np.ones(3) * x  # type: ignore[operator]
    with pytest.raises(TypeError, match="is computed by itself: evaluate it first"):
        x + ones["sums"] * 2  # type: ignore[operator]
    with pytest.raises(ValueError, match="divided by zero"):
        x / 0
    with pytest.raises(
        TypeError, match="an epilogue cannot be true or false, because its values are on the"
    ):
        bool(x)
    with pytest.raises(ValueError, match="axis must be"):
        x.sum(2, ones["sums"])
    with pytest.raises(TypeError, match="out must be a GpuRef"):
        x.store(np.zeros(3))  # type: ignore[arg-type]


@on_shared
async def test_an_epilogue_is_written_as_a_program_has_it(device: Device) -> None:
    x, sums = device.cutlass.accumulator, await device.zeros((24,), "float32")
    text = repr((-x / 2 + sums).sum(0, sums).relu().maximum(1.5))
    assert (
        text
        == "<Epilogue ((-accumulator / 2) + float32[24]).sum(0, float32[24]).relu().maximum(1.5)>"
    )
    many = x
    for _ in range(50):
        many = many * many
    assert len(repr(many)) < 1000
    assert "..." in repr(many)


@on_shared
async def test_views_and_aliases(device: Device) -> None:
    a, b = await device.zeros((16, 32), "bfloat16"), await device.zeros((24, 32), "bfloat16")
    x = device.cutlass.accumulator
    with pytest.raises(ValueError, match="shares memory"):
        await device.cutlass.matmul(a, a, trans_b=True, out=a.reshape(-1)[:256].reshape(16, 16))
    largest = await device.zeros((), "float32")
    with pytest.raises(ValueError, match="memory"):
        await device.cutlass.matmul(a, b, trans_b=True, epilogue=x.amax(largest) * largest)
    shifted = (await device.zeros(16 * 32 + 4, "bfloat16"))[4:].reshape(16, 32)
    with pytest.raises(
        ValueError, match="a must begin at a multiple of 16 bytes, because TMA reads and writes"
    ):
        await device.cutlass.matmul(shifted, b, trans_b=True)


@on_shared
async def test_missing_operation_is_refused(device: Device) -> None:
    four = await device.zeros((16, 32), "float4_e2m1fn")
    with pytest.raises(Unsupported, match=r"need compute capability 10\.0"):
        await device.cutlass.matmul(four, four, trans_b=True)


@on_shared
async def test_groups_that_are_refused(device: Device) -> None:
    a, b = await device.zeros((16, 8), "float16"), await device.zeros((2, 8, 24), "float16")
    vector = await device.zeros(24, "float32")
    x = device.cutlass.accumulator
    wrong: tuple[tuple[Any, Any, type[Exception], str], ...] = (
        (
            [16],
            None,
            ValueError,
            "sizes must be 2 numbers with sum 16, one for each matrix of b and in",
        ),
        (
            [8, 9],
            None,
            ValueError,
            "sizes must be 2 numbers with sum 16, one for each matrix of b and",
        ),
        ([-1, 17], None, ValueError, r"sizes\[0\]"),
        ([8, 8.0], None, TypeError, r"sizes\[1\]"),
        (None, None, TypeError, "sizes must be whole numbers"),
        ([8, 8], x + vector, ValueError, "numbers and functions, no buffers"),
    )
    for sizes, epilogue, error, said in wrong:
        with pytest.raises(error, match=said):
            await device.cutlass.matmul_grouped(a, b, sizes, epilogue=epilogue)
    with pytest.raises(ValueError, match="nothing of this can be a kernel"):
        await device.cutlass.tune(a, b[0], tiles=[(512, 512, 64)])
    for name in ("tiles", "clusters", "schedules", "swizzles"):
        empty: dict[str, Any] = {name: []}
        with pytest.raises(ValueError, match=f"{name} is empty"):
            await device.cutlass.tune(a, b[0], **empty)
