"""Particles: conserved quantities, and a breaking dam."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.realtime import Balls, Liquid, open_balls, open_liquid

from .. import seeds
from ..harness import cpu_only
from .emulated import emulated, needs_compiler


def block(spacing: float, *counts: int) -> np.ndarray[Any, Any]:
    """Return points of a lattice."""
    axes = [(np.arange(count) + 0.5) * spacing for count in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(counts))


@pytest.mark.parametrize("d", [2, 3])
async def test_a_liquid_without_gravity_keeps_its_momentum(device: Device, d: int) -> None:
    x = block(0.1, *(5,) * d) + 1.0
    v = seeds.rng().standard_normal(x.shape)
    async with open_liquid(
        device, (3.0,) * d, x, spacing=0.1, velocities=v, gravity=0.0, image=(8, 8)
    ) as liquid:
        await liquid.step(0.005, count=3)
        found, ids = await liquid.read("v"), await liquid.read("id")
    np.testing.assert_allclose(found.sum(0), v.sum(0), atol=2e-3)
    assert sorted(ids) == [*range(len(x))]
    assert np.abs(found - v[ids]).max() > 0.01


async def test_balls_that_collide_keep_energy_and_momentum(device: Device) -> None:
    x = np.array([[1.0, 2.0], [2.0, 2.05]])
    v = np.array([[1.0, 0.0], [-1.0, 0.0]])
    async with open_balls(
        device, (4.0, 4.0), x, radius=0.25, velocities=v, gravity=0.0, image=(8, 8)
    ) as balls:
        await balls.step(0.04, count=20)
        found, ids = await balls.read("v"), await balls.read("id")
    np.testing.assert_allclose(found.sum(0), 0, atol=1e-4)
    assert (found**2).sum() == pytest.approx(2.0, rel=5e-3)
    assert found[ids == 0][0, 0] < 0  # they went apart


async def test_a_collision_is_of_second_order(device: Device) -> None:
    """Two balls that overlap swing apart as a spring does."""
    radius, overlap, stiffness = 0.25, 0.1, 50.0
    rate, errors = np.sqrt(2 * stiffness), []
    time = 1.2 / rate  # they still touch
    half = radius - overlap / 2
    x = np.array([[2 - half, 2.0], [2 + half, 2.0]])
    options: Any = {"radius": radius, "stiffness": stiffness, "gravity": 0.0, "image": (4, 4)}
    for count in (8, 16):
        async with open_balls(device, (4.0, 4.0), x, **options) as balls:
            assert balls.substeps(time / count, dict(balls.statistics().parameters)) == 1
            await balls.step(time / count, count=count)
            found = await balls.read("x")
        apart = abs(found[0, 0] - found[1, 0])
        errors.append(abs(apart - 2 * radius + overlap * np.cos(rate * time)))
    assert errors[0] < 1e-3
    assert 1.6 < np.log2(errors[0] / errors[1]) < 2.4, errors


async def test_a_ball_falls_as_newton_says_and_walls_reflect_it(device: Device) -> None:
    async with open_balls(device, (1.0, 2.0), [[0.5, 1.5]], radius=0.1, gravity=10.0) as balls:
        await balls.step(0.05, count=4)
        x, v = await balls.read("x"), await balls.read("v")
        np.testing.assert_allclose(v, [[0, -2]], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(x, [[0.5, 1.3]], rtol=1e-4)
        await balls.step(0.05, count=10)
        assert (await balls.read("v"))[0, 1] > 0
        picture = await balls.snapshot()
        assert picture.shape == (256, 256, 3)
        assert (picture.any(-1)).sum() == 1


@pytest.mark.slow
async def test_the_front_of_a_breaking_dam(device: Device) -> None:
    """Nearness to Martin and Moyce's measurement, and behind shallow water without friction.

    A gate that is lifted, and friction, make the measured front slower than a simulated one.
    """
    spacing, side, gravity = 0.04, 0.4, 9.81
    x = block(spacing, 10, 10)
    sound = 10 * np.sqrt(gravity * side)
    async with open_liquid(
        device, (3.0, 1.0), x, spacing=spacing, sound=float(sound), viscosity=0.05
    ) as liquid:
        await liquid.step(0.01, count=25)
        found, time = await liquid.read("x"), liquid.time
    front = found[:, 0].max() + spacing / 2
    limit = side + 2 * np.sqrt(gravity * side) * time
    assert front < limit
    measured = np.interp(time * np.sqrt(gravity / side), [0.84, 1.19, 1.43], [1.22, 1.44, 1.67])
    assert measured * 0.95 < front / side < measured * 1.3
    assert found[:, 1].max() < side * 1.05


async def test_bad_input(device: Device) -> None:
    good: dict[str, Any] = {"box": (1.0, 1.0), "positions": [[0.5, 0.5]], "spacing": 0.1}
    for change, kind, message in [
        ({"box": (1.0,)}, ValueError, "box must have 2 or 3 sides"),
        ({"box": (1.0, np.nan)}, ValueError, "a side of box must be finite"),
        ({"positions": [[2.0, 0.5]]}, ValueError, "positions must be inside the box"),
        ({"positions": np.zeros((0, 2))}, ValueError, "positions must be inside the box"),
        ({"positions": [[0.5, np.nan]]}, ValueError, "positions must be finite"),
        ({"velocities": [[0.5]]}, ValueError, r"velocities must have shape \(1, 2\)"),
        ({"spacing": 0}, ValueError, "spacing must be from"),
        ({"spacing": 2.0}, ValueError, "a side of box must be from"),
        ({"gravity": np.inf}, ValueError, "gravity must be finite"),
        ({"image": (8, 0)}, ValueError, "image must be from 1"),
    ]:
        with pytest.raises(kind, match=message):
            async with open_liquid(device, **{**good, **cast("Any", change)}):
                pass


@needs_compiler
@cpu_only
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", [Liquid, Balls])
async def test_kernels_equal_their_functions(
    device: Device, kind: Any, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = seeds.rng()
    x = random.uniform(0.0, 1.0, (60, d))
    v = random.standard_normal(x.shape)
    found = []
    for kernels in (kind.kernels, emulated(kind.kernels)):
        monkeypatch.setattr(kind, "kernels", kernels)
        options: Any = {"velocities": v, "image": (9, 11)}
        made = (
            open_liquid(device, (1.0,) * d, x, spacing=0.12, **options)
            if kind is Liquid
            else open_balls(device, (1.0,) * d, x, radius=0.1, damping=2.0, **options)
        )
        async with made as scene:
            await scene.step(0.002)
            found.append([await scene.read(name) for name in ("x", "v", "id")])
            found[-1].append(await scene.snapshot())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-3 if one.dtype.kind == "f" else 1)
