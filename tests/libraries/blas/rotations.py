"""Checks of rotations that are made on the device, for every executor."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel import Device

from ... import seeds
from ..conformance import Sample, eps_of

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


async def rotg_promises(device: Device, dtype: str) -> None:
    """Check that ``rotg`` makes the rotation that ``rot`` takes, and leaves r and z."""
    sample = Sample(seeds.draw(), dtype)
    x, y = sample.array(9), sample.array(9)
    near: Any = {"rtol": 0, "atol": 16 * eps_of(x.dtype)}
    for at in range(4):
        a, b = [await device.put(vector[at].copy()) for vector in (x, y)]
        points = [await device.put(vector) for vector in (x, y)]
        r, z, c, s = await device.blas.rotg(a, b)
        assert (r, z) == (a, b)
        await device.blas.rot(points[0], points[1], c, s)
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


async def rotmg_promises(device: Device, point: tuple[float, ...], dtype: str) -> None:
    """Check that ``rotmg`` makes a rotation for ``rotm``: the second part becomes 0, norms stay."""
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


async def rotm_promises(device: Device, flag: int) -> None:
    """Check that ``rotm`` gives SciPy's result."""
    from scipy.linalg.blas import drotm

    sample = Sample(seeds.draw(), "float64")
    x, y, param = sample.array(9), sample.array(9), sample.array(5)
    param[0] = flag
    refs = [await device.put(array) for array in (x, y, param)]
    steps: Any = {"n": 4, "incx": 2, "offy": 1, "incy": -1}
    await device.blas.rotm(refs[0][:7:2], refs[1][4:0:-1], refs[2])
    expected = drotm(x, y, param, **steps)
    for ref, value in zip(refs, expected, strict=False):
        np.testing.assert_allclose(await device.get(ref), value, rtol=1e-12)
