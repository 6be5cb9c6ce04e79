"""Rotations that are made on the device, tested by their properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from ... import seeds
from ..conformance import MARKS
from .rotations import POINTS, rotg_promises, rotm_promises, rotmg_promises

pytestmark = MARKS

DOUBLES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DOUBLES)
async def test_rotg_makes_a_rotation_for_rot(device: Device, dtype: str) -> None:
    await rotg_promises(device, dtype)


async def test_rotg_of_nothing(device: Device) -> None:
    a, b = [await device.put(np.zeros(())) for _ in range(2)]
    _, _, c, s = await device.blas.rotg(a, b)
    assert [float(await device.get(each)) for each in (a, b, c, s)] == [0, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("point", POINTS)
async def test_rotmg_makes_a_rotation_for_rotm(
    device: Device, point: tuple[float, ...], dtype: str
) -> None:
    await rotmg_promises(device, point, dtype)


async def test_rotmg_agrees_with_scipy(device: Device) -> None:
    from scipy.linalg.blas import drotmg

    rng = seeds.rng()
    for _ in range(20):
        numbers = rng.uniform(-1, 1, 4) * 10.0 ** rng.integers(-8, 8, 4)
        refs = [await device.put(number) for number in numbers]
        param = await device.get((await device.blas.rotmg(*refs))[3])
        expected = drotmg(*numbers)
        known = {-2.0: [], -1.0: [1, 2, 3, 4], 0.0: [2, 3], 1.0: [1, 4]}[expected[0]]
        assert param[0] == expected[0]
        np.testing.assert_allclose(param[known], expected[known], rtol=1e-12)


@pytest.mark.parametrize("flag", [-2, -1, 0, 1])
async def test_rotm_as_scipy_has_it(device: Device, flag: int) -> None:
    await rotm_promises(device, flag)


async def test_invalid_rotation_is_refused(device: Device) -> None:
    one, other = [await device.put(np.ones(())) for _ in range(2)]
    single = await device.put(np.ones((), np.float32))
    blas: Any = device.blas
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: blas.rotg(one, one), ValueError, "shares memory"),
        (
            lambda: blas.rotg(one, single),
            TypeError,
            "b must have the dtype of a",
        ),
        (
            lambda: blas.rotg(one, other, s=single),
            TypeError,
            "s must have dtype float64, not float32",
        ),
        (lambda: blas.rotm(one.reshape(1), other.reshape(1), one), ValueError, "param"),
    ]
    for call, error, match in refused:
        with pytest.raises(error, match=match):
            await call()
