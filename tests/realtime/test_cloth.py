"""Cloth against known solutions, and what constraints must keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ellipk, roots_laguerre

from atomr_accel import Device
from atomr_accel.realtime import Cloth, open_cloth
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, opened
from .emulated import emulated, needs_compiler

FREE: Any = {"pins": (), "gravity": 0.0, "drag": 0.0, "image": (8, 8)}
"""A cloth on which nothing acts."""
SLACK: Any = {"drag": 0.0, "shear": 0.0, "bend": 1e6, "image": (8, 8)}
"""A cloth that bends without force."""


def upright(rows: int, columns: int, spacing: float) -> np.ndarray[Any, Any]:
    row, column = np.mgrid[:rows, :columns]
    flat = np.stack([column, rows - 1 - row, np.zeros_like(row)], -1)
    return flat * spacing


async def pendulum(device: Device, part: float) -> float:
    """Return the error of a pendulum's angle after a quarter of its exact period."""
    length, gravity, angle = 0.5, 9.81, 1.2
    x = upright(2, 2, length)
    x[1, :, 1] = length - length * np.cos(angle)
    x[1, :, 2] = length * np.sin(angle)
    quarter = np.sqrt(length / gravity) * ellipk(np.sin(angle / 2) ** 2)
    count = round(quarter / part)
    async with open_cloth(
        device, (2, 2), spacing=length, positions=x, longest=1.0, gravity=gravity, **SLACK
    ) as cloth:
        await cloth.step(quarter / count, count=count)
        found = await cloth.read("x")
    assert (found[0] == x[0].astype(np.float32)).all()
    np.testing.assert_allclose(np.linalg.norm(found[1] - found[0], axis=-1), length, rtol=1e-4)
    np.testing.assert_allclose(found[1, 0], found[1, 1] - [length, 0, 0], atol=1e-4)
    return abs(float(np.arcsin(found[1, 0, 2] / length)))


async def test_a_pendulum_swings_with_the_period_of_elliptic_integrals(device: Device) -> None:
    coarse, fine = await pendulum(device, 1 / 100), await pendulum(device, 1 / 200)
    assert fine < 0.02
    assert 0.7 < np.log2(coarse / fine) < 1.3  # of first order


@pytest.mark.slow
async def test_a_hanging_chain_swings_in_its_modes(device: Device) -> None:
    """Frequencies of a chain of equal links are those of zeros of Laguerre's polynomial."""
    rows, spacing, gravity = 6, 0.2, 9.81
    links = rows - 1
    zeros, _ = roots_laguerre(links)
    # The stiffness of small swings: tensions of what hangs below each link.
    below = np.arange(links, 0, -1) * gravity / spacing
    stiff = (
        np.diag(below + np.append(below[1:], 0)) - np.diag(below[1:], 1) - np.diag(below[1:], -1)
    )
    squares, modes = np.linalg.eigh(stiff)
    np.testing.assert_allclose(squares, gravity / spacing * zeros)
    for mode in range(2):
        x = upright(rows, 2, spacing)
        x[1:, :, 2] = 0.004 * (modes[:, mode] / np.abs(modes[:, mode]).max())[:, None]
        period = 2 * np.pi / np.sqrt(squares[mode])
        async with open_cloth(
            *(device, (rows, 2)),
            **{"spacing": spacing, "positions": x, "gravity": gravity, "longest": 1.0, **SLACK},
        ) as cloth:
            await cloth.step(period / 2 / 400, count=400)
            found = await cloth.read("x")
        swing = found[1:, 0, 2] @ modes[:, mode] / (x[1:, 0, 2] @ modes[:, mode])
        assert -1.02 < swing < -0.8, (mode, swing)  # it is on the other side, a little damped


async def test_a_free_cloth_keeps_momentum_and_spin(device: Device) -> None:
    x = upright(5, 6, 0.1)
    v = np.cross([0.5, 1.0, 2.0], x - x.mean((0, 1))) + seeds.rng().normal(0, 0.1, x.shape)
    drifts = []
    for part in (1 / 250, 1 / 500):
        async with open_cloth(
            device, (5, 6), positions=x, velocities=v, longest=part, **FREE
        ) as cloth:
            await cloth.step(0.04)
            y, u = await cloth.read("x"), await cloth.read("v")
        np.testing.assert_allclose(u.sum((0, 1)), v.sum((0, 1)), atol=2e-3)
        assert (u**2).sum() <= (v**2).sum() * 1.001
        spin = np.cross(x, v).sum((0, 1))
        drifts.append(np.linalg.norm(np.cross(y, u).sum((0, 1)) - spin) / np.linalg.norm(spin))
    assert drifts[0] < 0.05
    assert drifts[1] < 0.7 * drifts[0]  # of first order
    assert np.abs(u - v).max() > 0.1


async def test_a_cloth_at_rest_stays_and_pins_hold(device: Device) -> None:
    async with open_cloth(device, (4, 5), **{**FREE, "stretch": 1e-4}) as cloth:
        await cloth.step(1 / 60, count=2)
        np.testing.assert_allclose(await cloth.read("x"), upright(4, 5, 0.1), atol=1e-6)
    pins = [(0, 0), (3, 2)]
    async with open_cloth(device, (4, 5), pins=pins, wind=(0, 0, 20.0), image=(8, 8)) as cloth:
        await cloth.step(1 / 60, count=5)
        x = await cloth.read("x")
        for pin in pins:
            np.testing.assert_allclose(x[pin], upright(4, 5, 0.1)[pin], atol=1e-7)
        assert x[..., 2].max() > 0.02
        assert x[..., 2].min() >= -1e-6
        cloth.update(wind_z=0.0, drag=0.0)
        await cloth.write("w", np.ones((4, 5)))  # nothing holds it any more
        before = (await cloth.read("v"))[..., 1].mean()
        await cloth.step(1 / 60, count=3)
        fallen = (await cloth.read("v"))[..., 1].mean() - before
        assert fallen == pytest.approx(-9.81 * 3 / 60, rel=1e-3)


async def test_a_compliant_thread_yields_as_hooke_says(device: Device) -> None:
    """A weight of 1 under each of two columns makes the stretch compliance show."""
    async with open_cloth(
        *(device, (2, 2)),
        pins=[(0, 0), (0, 1)],
        stretch=1e-3,
        damping=60.0,
        longest=0.01,
        **{**SLACK, "shear": 1e9},
    ) as cloth:
        await cloth.step(0.1, count=10)
        x = await cloth.read("x")
    assert x[0, 0, 1] - x[1, 0, 1] == pytest.approx(0.1 + 1e-3 * 9.81, rel=1e-3)


async def test_wind_takes_a_free_cloth_along(device: Device) -> None:
    async with open_cloth(
        device, (3, 3), **{**FREE, "drag": 50.0, "wind": (0.0, 5.0, 2.0)}
    ) as cloth:
        await cloth.step(1 / 60, count=20)
        v = await cloth.read("v")
    np.testing.assert_allclose(v[..., 2], 2.0, rtol=1e-3)
    np.testing.assert_allclose(v[..., :2], 0, atol=1e-4)  # along the surface there is no force


@pytest.mark.slow
async def test_a_fault_midway_and_the_picture() -> None:
    async with (
        opened() as device,
        open_cloth(device, (6, 8), image=(40, 50), every=4, longest=0.01) as cloth,
    ):
        empty = await cloth.snapshot()
        await cloth.step(1 / 60, count=10)
        await poison(device)
        await cloth.step(1 / 60, count=2)
        found = cloth.statistics()
        assert (found.steps, found.faults, found.lost_steps) == (10, 1, 2)
        again = await cloth.read("x")
        picture = await cloth.snapshot()
    async with opened() as device, open_cloth(device, (6, 8), image=(8, 8), longest=0.01) as cloth:
        await cloth.step(1 / 60, count=10)
        assert (await cloth.read("x") == again).all()
    assert picture.shape == (40, 50, 3)
    assert (picture != empty).any()
    assert 0.1 < empty.any(-1).mean() < 0.9
    rows, columns = np.nonzero(empty.any(-1))
    assert empty[rows.min() : rows.max(), columns.min() : columns.max()].any(-1).all()  # no holes


async def test_long_steps_are_divided_or_refused(device: Device) -> None:
    async with open_cloth(device, (2, 2), longest=0.01, image=(4, 4)) as cloth:
        assert cloth.substeps(0.05, {}) == 5
        with pytest.raises(ValueError, match="dt must need at most 256 substeps"):
            await cloth.step(3.0)
        assert cloth.steps == 0


async def test_bad_input(device: Device) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shape": (1, 8)}, ValueError, "shape must be from 2"),
        ({"shape": (4, 4, 4)}, ValueError, "shape must have 2 axes"),
        ({"spacing": 0}, ValueError, "spacing must be from"),
        ({"pins": [(0, 4)]}, ValueError, "a pin's column must be from 0 to 3"),
        ({"pins": [(0.5, 0)]}, TypeError, "a pin's row must be an int"),
        ({"positions": np.zeros((4, 4))}, ValueError, r"positions must have shape \(4, 4, 3\)"),
        ({"velocities": np.full((4, 4, 3), np.nan)}, ValueError, "velocities must be finite"),
        ({"wind": (1.0, np.inf, 0.0)}, ValueError, "wind must be finite"),
        ({"bend": -1}, ValueError, "bend must be from 0"),
        ({"damping": np.nan}, ValueError, "damping must be finite"),
        ({"longest": 0}, ValueError, "longest must be from"),
        ({"view": (1, 0, 0, 1)}, ValueError, "view must be"),
        ({"image": (0, 4)}, ValueError, "image must be from 1"),
    ]
    for change, kind, message in wrong:
        with pytest.raises(kind, match=message):
            async with open_cloth(device, **{"shape": (4, 4), **change}):
                pass


@needs_compiler
@cpu_only
async def test_kernels_equal_their_functions(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = seeds.rng()
    x = upright(5, 7, 0.1) + random.normal(0, 0.01, (5, 7, 3))
    found = []
    for kernels in (Cloth.kernels, emulated(Cloth.kernels)):
        monkeypatch.setattr(Cloth, "kernels", kernels)
        async with open_cloth(
            device, (5, 7), positions=x, wind=(1.0, 2.0, 3.0), damping=0.5, image=(30, 33)
        ) as cloth:
            await cloth.step(1 / 60)
            found.append([await cloth.read(name) for name in ("x", "v")])
            found[-1].append((await cloth.snapshot()).astype(int))
    for one, other in zip(found[0][:2], found[1][:2], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    assert (np.abs(found[0][2] - found[1][2]) > 2).mean() < 0.02  # pixels at edges
