"""Fluids against known solutions, and their kernels against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.realtime import Fluid, open_fluid

from .. import seeds
from ..harness import cpu_only
from .emulated import emulated, needs_compiler


def vortex(n: int) -> tuple[float, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the spacing and the velocity of a Taylor-Green vortex in a box of 2 pi."""
    h = 2 * np.pi / n
    edges, centres = h * np.arange(n), h * (np.arange(n) + 0.5)
    u = np.sin(edges)[None] * np.cos(centres)[:, None]
    v = -np.cos(centres)[None] * np.sin(edges)[:, None]
    return h, u, v


def divergence(flow: list[np.ndarray[Any, Any]], solid: np.ndarray[Any, Any]) -> float:
    total = sum(np.roll(q, -1, q.ndim - 1 - c) - q for c, q in enumerate(flow))
    return float(np.abs(np.where(solid == 0, total, 0)).max())


@pytest.mark.slow
async def test_taylor_green_vortex_decays_and_converges(device: Device) -> None:
    errors = []
    for n in (16, 32, 64):
        h, u, v = vortex(n)
        async with open_fluid(device, (n, n), spacing=h, viscosity=0.05, u=u, v=v) as fluid:
            await fluid.step(1 / n, count=n)
            errors.append(np.abs(await fluid.read("u") - u * np.exp(-0.1)).max())
    assert errors[-1] < 0.004
    orders = np.log2(errors[:-1]) - np.log2(errors[1:])
    assert orders[-1] > orders[0] > 0.8, (
        errors
    )  # towards one: projections are of first order in time


async def test_advection_is_of_second_order(device: Device) -> None:
    """A smooth cloud of smoke, a quarter of the way around a box by a uniform flow."""
    errors = []
    for n in (16, 32):
        centres = 2 * np.pi * (np.arange(n) + 0.5) / n

        def cloud(at: float, x: Any = centres) -> Any:
            line = 1 + np.sin(x - at)
            return line[None] * line[:, None]

        flow: Any = {"u": np.ones((n, n)), "v": np.ones((n, n)), "smoke": cloud(0.0)}
        async with open_fluid(device, (n, n), spacing=2 * np.pi / n, **flow) as fluid:
            await fluid.step(np.pi / n, count=n // 2)
            errors.append(np.abs(await fluid.read("smoke") - cloud(np.pi / 2)).mean())
    assert errors[1] < 0.02
    assert 1.7 < np.log2(errors[0] / errors[1]) < 2.5, errors


async def test_poiseuille_flow_between_plates(device: Device) -> None:
    """The discrete solution is the parabola, moved by an eighth for the wall at half a cell."""
    async with open_fluid(device, (6, 4), boundary="channel", viscosity=1.0, force=0.1) as fluid:
        await fluid.step(4.0, count=4)
        u = await fluid.read("u")
    y = np.arange(5) + 0.5
    assert np.abs(u[1:] - (0.05 * y * (5 - y) + 0.0125)[:, None]).max() < 2e-3
    assert not u[0].any()


@pytest.mark.parametrize("shape", [(16, 12), (6, 8, 10)])
async def test_flow_is_free_of_divergence(device: Device, shape: tuple[int, ...]) -> None:
    random = seeds.rng()
    flow = {name: random.standard_normal(shape) for name in "uvw"[: len(shape)]}
    async with open_fluid(device, shape, **flow) as fluid:  # type: ignore[arg-type]
        await fluid.step(0.1)
        found = [await fluid.read(name) for name in flow]
        assert divergence(found, await fluid.read("solid")) < 1e-5


@pytest.mark.parametrize("shape", [(16, 12), (6, 8, 10)])
async def test_obstacles_let_nothing_through(device: Device, shape: tuple[int, ...]) -> None:
    random = seeds.rng()
    flow = {name: random.standard_normal(shape) for name in "uvw"[: len(shape)]}
    block = np.zeros(shape)
    block[..., 4:7, 5:8] = 1
    given: Any = flow
    async with open_fluid(
        device, shape, boundary="walls", solid=block, iterations=20, **given
    ) as f:
        await f.step(0.1)
        found = [await f.read(name) for name in flow]
        solid = await f.read("solid")
    assert divergence(found, solid) < 1e-3
    for c, q in enumerate(found):
        closed = (solid != 0) | (np.roll(solid, 1, q.ndim - 1 - c) != 0)
        assert not q[closed].any()


async def test_still_smoke_stays_and_its_sum_is_kept_in_a_uniform_flow(device: Device) -> None:
    smoke = np.zeros((12, 16))
    smoke[4:7, 5:9] = 1
    async with open_fluid(device, (12, 16), smoke=smoke) as fluid:
        await fluid.step(0.5, count=2)
        assert (await fluid.read("smoke") == smoke).all()
    async with open_fluid(device, (12, 16), smoke=smoke, u=np.ones((12, 16))) as fluid:
        await fluid.step(1.0, count=3)  # whole cells
        assert np.abs(await fluid.read("smoke") - np.roll(smoke, 3, 1)).max() < 1e-5


async def test_smoke_rises_and_momentum_comes_only_from_forces(device: Device) -> None:
    source = np.zeros((16, 12))
    source[2:4, 5:7] = 1
    async with open_fluid(device, (16, 12), source=source, buoyancy=1.0) as fluid:
        await fluid.step(0.1, count=4)
        u, v, smoke = [await fluid.read(name) for name in ("u", "v", "smoke")]
    assert v[3, 5:7].min() > 0
    assert abs(u.sum()) < 1e-4
    assert smoke.sum() == pytest.approx(4 * 0.1 * 4, rel=1e-3)


async def test_a_step_too_long_for_viscosity_is_divided_or_refused(device: Device) -> None:
    async with open_fluid(device, (8, 8), viscosity=1.0, u=seeds.rng().random((8, 8))) as fluid:
        assert fluid.substeps(1.0, {"viscosity": 1.0}) == 5
        await fluid.step(1.0, count=3)
        assert np.isfinite(await fluid.read("u")).all()
        with pytest.raises(ValueError, match="dt must need at most 256 substeps"):
            await fluid.step(100.0)
        assert fluid.steps == 3


async def test_bad_input_is_refused_in_the_caller(device: Device) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shape": (8,)}, ValueError, "shape must have 2 or 3 axes"),
        ({"shape": (8, 3)}, ValueError, "shape must be from 4"),
        ({"spacing": 0}, ValueError, "spacing must be from"),
        ({"viscosity": np.nan}, ValueError, "viscosity must be finite"),
        ({"viscosity": -1}, ValueError, "viscosity must be from 0"),
        ({"boundary": "open"}, ValueError, "boundary must be one of"),
        ({"u": np.ones((4, 4))}, ValueError, r"u must have shape \(8, 8\)"),
        ({"smoke": np.full((8, 8), np.inf)}, ValueError, "smoke must be finite"),
        ({"smoke": "much"}, TypeError, "smoke must be an array of numbers"),
        ({"w": np.ones((8, 8))}, ValueError, "w must be left out"),
        ({"iterations": 0}, ValueError, "iterations must be from 1"),
        ({"seed": -1}, ValueError, "seed must be from 0"),
        ({"every": 0.5}, TypeError, "every must be an int"),
    ]
    for change, kind, message in wrong:
        with pytest.raises(kind, match=message):
            async with open_fluid(device, **{"shape": (8, 8), **change}):
                pass


@needs_compiler
@cpu_only
@pytest.mark.parametrize("shape", [(7, 10), (5, 6, 7)])
async def test_kernels_equal_their_functions(
    device: Device, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = seeds.rng()
    given: Any = {name: random.standard_normal(shape) for name in "uvw"[: len(shape)]}
    given |= {"smoke": random.random(shape), "source": random.random(shape)}
    given |= {"solid": random.random(shape) < 0.1, "viscosity": 0.1, "force": 1.0}
    found = []
    for kernels in (Fluid.kernels, emulated(Fluid.kernels)):
        monkeypatch.setattr(Fluid, "kernels", kernels)
        async with open_fluid(device, shape, boundary="walls", buoyancy=2.0, **given) as fluid:
            await fluid.step(0.3, count=2)
            found.append([await fluid.read(name) for name in fluid.state])
            found[-1].append(await fluid.snapshot())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4 if one.dtype.kind == "f" else 1)
