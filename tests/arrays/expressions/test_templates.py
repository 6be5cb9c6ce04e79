"""Expressions of one structure are planned once, then filled in with the same results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.arrays.expressions import apart, joined
from atomr_accel.ops import CallTemplate

from ...harness import on_shared, opened

NUMBERS = (1.5, 2.0, 0.0, -0.0, -3, float("nan"), float("-inf"), 1e300, 7, 4.0, True)


def templates_of(facade: Any) -> list[CallTemplate]:
    """Return the call templates of a facade."""
    return [each for each in facade.call_templates.known.values() if isinstance(each, CallTemplate)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "complex128"])
@on_shared
async def test_numbers_are_filled_in(device: Device, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.linspace(-2, 3, 12).astype(kind).reshape(3, 4)
    x = await device.put(array)
    for number in NUMBERS:
        with np.errstate(all="ignore"):
            numbers = (number, kind.type(number))
            wanted = [array * each + array for each in numbers]
            made = [await device.evaluate(x * each + x) for each in numbers]
            async with device.batch() as batch:
                made += [batch.evaluate(x * each + x) for each in numbers]
        for ref, host in zip(made, wanted * 2, strict=True):
            got, expected = await device.get(ref), host
            assert got.dtype == expected.dtype
            if got.dtype.kind == "V":
                got, expected = got.astype(np.float32), host.astype(np.float32)
            np.testing.assert_array_equal(got, expected)
            known = ~np.isnan(expected.real)
            np.testing.assert_array_equal(
                np.signbit(got.real)[known], np.signbit(expected.real)[known]
            )


async def test_one_template_is_for_all_numbers() -> None:
    async with opened() as device:
        x = await device.put(np.arange(4.0))
        for number in (2, 3.0, -1.0, 2, 5.5):
            made = await device.evaluate(x * number - 2.0)
            np.testing.assert_array_equal(await device.get(made), np.arange(4.0) * number - 2)
        large = await device.put(np.arange(4))
        for whole in (1 << 62, -(1 << 62), -1):
            made = await device.evaluate(large + whole)
            np.testing.assert_array_equal(await device.get(made), np.arange(4) + whole)
        assert len(templates_of(device)) == 2


async def test_results_go_where_they_are_told() -> None:
    async with opened() as device:
        w, g = [await device.put(np.arange(6.0) + at) for at in range(2)]
        expected = np.arange(6.0)
        for rate in (0.5, 0.25, 0.125, 1.0):
            expected = expected - rate * (np.arange(6.0) + 1)
            assert await device.evaluate(w - rate * g, out=w) is w
            np.testing.assert_array_equal(await device.get(w), expected)
            part = w[::2]
            await device.evaluate(part * rate + w[1::2], out=part)
            expected[::2] = expected[::2] * rate + expected[1::2]
            np.testing.assert_array_equal(await device.get(w), expected)
        assert len(templates_of(device)) == 2


@on_shared
async def test_template_contains_captured_values(device: Device) -> None:
    w = await device.put(np.arange(6.0))
    scaled: Any = device.fuse(lambda a: a * w[::2] + w[3:] * 4.0)
    for number in range(4):
        x = await device.put(np.full(3, float(number)))
        wanted = number * np.arange(6.0)[::2] + np.arange(3.0, 6) * 4
        made = await scaled(x)
        async with device.batch() as batch:
            again = batch.using(scaled)(x)
        for each in (made, again):
            np.testing.assert_array_equal(await device.get(each), wanted)
    assert len(templates_of(scaled)) == 2  # also that of batches


@on_shared
async def test_structure_tells_what_is_shared(device: Device) -> None:
    a, b, c, d = [await device.put(np.arange(3.0) + at) for at in range(4)]
    one, other, same = (a + b) * (c + d), a + b, a + b
    twice, apiece = (one * one), ((a + b) * (a + b)) * ((c + d) * (c + d))
    shared = other * other
    forms = [apart(each)[0] for each in (one, shared, other * same, twice, apiece, shared * shared)]
    assert len({*forms}) == len(forms)
    assert apart((a * 2 + b) * 3.5)[0] == apart((c * 9 + d) * -1.0)[0]
    assert apart(a * 2 + b)[0] != apart(a * 2 + b.astype(np.float32))[0]
    assert apart(a.sum(keepdims=True) + b)[0] != apart(a.sum() + b)[0]
    # One buffer in two places is told by the buffers themselves.
    for _ in range(3):
        for x, y in ((a, b), (a, a), (b, a)):
            host = np.arange(3.0) + (1 if x is b else 0), np.arange(3.0) + (1 if y is b else 0)
            made = await device.evaluate(x * x + y)
            np.testing.assert_array_equal(await device.get(made), host[0] * host[0] + host[1])


@on_shared
async def test_expressions_are_joined_again(device: Device) -> None:
    x, y = [await device.put(np.arange(6.0).reshape(2, 3) + at) for at in range(2)]
    e = np.exp(x - x.max(axis=-1, keepdims=True)) * 1.5
    chosen: Any = np.where(x > 2, e, y[:, ::-1])
    for expression in (e / e.sum(axis=-1, keepdims=True), chosen, x + 0.0):
        form, operands, words = apart(expression)
        again = joined(expression, operands, words)
        assert repr(again) == repr(expression)
        assert apart(again) == (form, operands, words)


@on_shared
async def test_zeros_keep_their_sign_and_types_their_kind(device: Device) -> None:
    x = await device.put(np.ones(2, np.float32))
    for number in (0.0, -0.0, 0, False, 1, 1.0, True):
        made = await device.get(await device.evaluate(x * number))
        np.testing.assert_array_equal(np.signbit(made), np.signbit(np.ones(2, np.float32) * number))
    counts = await device.put(np.arange(3))
    assert [(counts + number).dtype.name for number in (1, 1.0, True, 1j)] == [
        (np.arange(3) + number).dtype.name for number in (1, 1.0, True, 1j)
    ]
