"""Rotations that are made on the device, by what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ... import seeds
from ..conformance import MARKS, Sample, eps_of

if TYPE_CHECKING:
    from atomr_accel import Device

pytestmark = MARKS

DOUBLES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DOUBLES)
async def test_rotg_makes_a_rotation_for_rot(device: Device, dtype: str) -> None:
    sample = Sample(seeds.draw(), dtype)
    x, y = sample.array(9), sample.array(9)
    near = {"rtol": 0, "atol": 16 * eps_of(x.dtype)}
    for at in range(4):
        a, b = [await device.put(vector[at].copy()) for vector in (x, y)]
        points = [await device.put(vector) for vector in (x, y)]
        r, z, c, s = await device.blas.rotg(a, b)
        assert (r, z) == (a, b)
        await device.blas.rot(*points, c, s)
        turned_x, turned_y = [await device.get(point) for point in points]
        length = await device.get(r)
        np.testing.assert_allclose(turned_x[at], length, **near)
        np.testing.assert_allclose(turned_y[at], 0, **near)
        norms = np.hypot(abs(x), abs(y)), np.hypot(abs(turned_x), abs(turned_y))
        np.testing.assert_allclose(*norms, **near)
        assert (await device.get(c)).dtype == x.real.dtype
        cosine, sine, told = [float(abs(await device.get(each))) for each in (c, s, z)]
        if x.dtype.kind != "c":
            expected = sine if abs(x[at]) > abs(y[at]) else 1 / cosine
            np.testing.assert_allclose(told, expected, rtol=1e-5)


async def test_rotg_of_nothing(device: Device) -> None:
    a, b = [await device.put(np.zeros(())) for _ in range(2)]
    _, _, c, s = await device.blas.rotg(a, b)
    assert [float(await device.get(each)) for each in (a, b, c, s)] == [0, 0, 1, 0]


POINTS = [
    (0.5, 0.7, 0.9, 0.3),
    (0.5, 0.7, 0.3, 0.9),
    (0.5, 0.7, -0.3, 0.9),
    (1e-9, 0.5, 0.9, 1e-6),
    (3e9, 2.0, 0.7, 0.3),
    (0.5, 0.7, 0.3, 0.0),
    (0.0, 0.7, 0.3, 0.9),
    (1e-9, 2e9, 0.7, 0.3),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("point", POINTS)
async def test_rotmg_makes_a_rotation_for_rotm(
    device: Device, point: tuple[float, ...], dtype: str
) -> None:
    d1, d2, x1, y1 = (np.array(number, dtype) for number in point)
    refs = [await device.put(number) for number in (d1, d2, x1, y1)]
    new_d1, new_d2, new_x1, param = await device.blas.rotmg(*refs)
    assert (new_d1, new_d2, new_x1) == tuple(refs[:3])
    x, y = [await device.put(number.reshape(1)) for number in (x1, y1)]
    await device.blas.rotm(x, y, param)
    f1, f2, first, u, v = [
        (await device.get(each)).astype(np.longdouble).item() for each in (*refs[:3], x, y)
    ]
    close: Any = {"rtol": 64 * eps_of(np.dtype(dtype))}
    before = d1.item() * x1.item() ** 2 + d2.item() * y1.item() ** 2
    np.testing.assert_allclose(f1 * u**2 + f2 * v**2, before, **close)
    np.testing.assert_allclose(u, first, **close)
    assert abs(f2) * v**2 <= 1e-10 * before or y1 == 0


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
    from scipy.linalg.blas import drotm

    sample = Sample(seeds.draw(), "float64")
    x, y, param = sample.array(9), sample.array(9), sample.array(5)
    param[0] = flag
    refs = [await device.put(array) for array in (x, y, param)]
    steps: Any = {"n": 4, "incx": 2, "offy": 1, "incy": -1}
    await device.blas.rotm(*refs, **steps)
    expected = drotm(x, y, param, **steps)
    for ref, value in zip(refs, expected, strict=False):
        np.testing.assert_allclose(await device.get(ref), value, rtol=1e-12)


async def test_what_makes_no_rotation(device: Device) -> None:
    one, other = [await device.put(np.ones(())) for _ in range(2)]
    single = await device.put(np.ones((), np.float32))
    blas: Any = device.blas
    for call, error, match in (
        (lambda: blas.rotg(one, one), ValueError, "shares memory"),
        (lambda: blas.rotg(one, single), TypeError, "b has dtype float32"),
        (lambda: blas.rotg(one, other, s=single), TypeError, "s has dtype float32"),
        (lambda: blas.rotm(one.reshape(1), other.reshape(1), one), ValueError, "param"),
    ):
        with pytest.raises(error, match=match):
            await call()
