"""Solvers say 0 only of residuals that are small, at every magnitude."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.solvers import bicgstab, cg, gmres, minres

from .. import seeds

SOLVERS: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "bicgstab": bicgstab,
    "minres": minres,
    "gmres": gmres,
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
N = 6
MATRIX = np.diag(np.full(N, 4.0)) - np.diag(np.ones(N - 1), 1) - np.diag(np.ones(N - 1), -1)


@each_solver
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize(
    ("dtype", "power"),
    [
        ("float32", -130), ("float32", -83), ("float32", 100), ("complex64", -83),
        ("float64", -1000), ("float64", -548), ("float64", 1000), ("complex128", -548),
    ],
)  # fmt: skip
async def test_right_sides_of_every_magnitude(
    device: Device, name: str, dtype: str, power: int, start: bool
) -> None:
    sides = np.ones(N) + (1j * np.arange(N) if "complex" in dtype else 0)
    a = await device.put(MATRIX.astype(dtype))
    b = (sides * 2.0**power).astype(dtype)
    more: dict[str, Any] = {"x0": await device.put(b / 3)} if start else {}
    norms: list[float] = []
    x, info = await SOLVERS[name](
        device, a, await device.put(b), callback=lambda _, norm: norms.append(norm), **more
    )
    assert info == 0
    wide = (await device.get(x)).astype("c16") * 2.0 ** -(power // 2) * 2.0 ** -(power - power // 2)
    assert np.linalg.norm(MATRIX @ wide - sides) <= 2e-5 * np.linalg.norm(sides)
    assert norms[-1] * 2.0 ** -(power // 2) * 2.0 ** -(power - power // 2) <= 2e-5 * 10


@each_solver
async def test_tolerances_are_in_the_callers_units(device: Device, name: str) -> None:
    a = await device.put(MATRIX)
    b = await device.put(np.full(N, 1e-200))
    _, info = await SOLVERS[name](device, a, b, rtol=0, atol=1e-199, maxiter=0)
    assert info == 0
    _, info = await SOLVERS[name](device, a, b, rtol=0, atol=1e-201, maxiter=0)
    assert info == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-5, 1e-8, 1e-14])
@each_solver
async def test_what_is_solved_has_a_small_residual(
    device: Device, name: str, dtype: str, rtol: float
) -> None:
    root = seeds.rng().random((9, 9))
    a, b = (root @ root.T).astype(dtype), np.arange(9.0).astype(dtype)
    x, info = await SOLVERS[name](
        device, await device.put(a), await device.put(b), rtol=rtol, maxiter=300
    )
    x = (await device.get(x)).astype("f8")
    left = np.linalg.norm(a.astype("f8") @ x - b)
    rounding = 9 * float(np.finfo(dtype).eps) * (np.abs(a.astype("f8")) @ np.abs(x)).sum()
    assert info in (0, 300)
    if info == 0:
        assert left <= rtol * np.linalg.norm(b) + rounding


@pytest.mark.parametrize("name", ["cg", "bicgstab"])
async def test_a_solver_begins_again_from_its_solution(device: Device, name: str) -> None:
    scales = np.logspace(0, 3, 20)
    a = np.diag(scales).astype("f4")
    b = np.ones(20, "f4")
    counts: list[int] = []
    x, info = await SOLVERS[name](
        device, await device.put(a), await device.put(b), rtol=3e-7, maxiter=500, every=1,
        callback=lambda count, _: counts.append(count),
    )  # fmt: skip
    assert info == 0
    assert counts == sorted(counts)
    assert np.linalg.norm(a @ await device.get(x) - b) <= 1e-6 * np.linalg.norm(b)
