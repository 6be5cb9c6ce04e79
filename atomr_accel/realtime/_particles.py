"""Particles in a box: liquids by smoothed particle hydrodynamics, and balls that collide."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, array_of, number, shape_of
from .simulation import Simulation, opened
from .wire.particles import PARTICLES

if TYPE_CHECKING:
    from .. import Device, GpuRef, Recording


class _Particles(Simulation):
    """Particles in a box, moved by the leapfrog of Verlet: half a drift, a kick, half a drift."""

    kernels = PARTICLES

    def __init__(
        self,
        device: Device,
        box: tuple[float, ...],
        positions: object,
        velocities: object,
        *,
        cell: float,
        image: tuple[int, int],
        given: Mapping[str, object],
        seed: int,
        every: int,
    ) -> None:
        super().__init__(device, seed=seed, every=every, given=given)
        sides = np.asarray(box)
        if sides.shape not in {(2,), (3,)}:
            raise ValueError(f"box must have 2 or 3 sides, not {box!r}")
        self.box: Final = tuple(number(float(side), "a side of box", cell, 1e6) for side in sides)
        d = len(self.box)
        x = array_of(positions, "positions", (None, d))
        if not len(x) or (x < 0).any() or (x > np.array(self.box, np.float32)).any():
            raise ValueError("positions must be inside the box, and at least one")
        v = np.zeros_like(x) if velocities is None else velocities
        self._first = x, array_of(v, "velocities", x.shape)
        self._cell: Final = cell
        grid = [max(1, int(side / cell)) for side in self.box]
        shape_of(tuple(grid), "the grid of box", (2, 3))
        self._grid: Final = (*grid, *(1,) * (3 - d))
        self._image: Final = shape_of(image, "image", (2,))

    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return positions, velocities and numbers of particles."""
        x, v = self._first
        return {
            "x": x,
            "v": v,
            "id": np.arange(len(x), dtype=np.int32),
            "box": np.array(self.box, np.float32),
        }

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        shape = self._first[0].shape
        n = shape[:1]
        return {
            **dict.fromkeys(("old_x", "old_v", "force"), (shape, "float32")),
            **dict.fromkeys(("old_id", "keys", "order"), (n, "int32")),
            "density": (n, "float32"),
            "starts": ((math.prod(self._grid) + 1,), "int32"),
            "bright": (self._image, "int32"),
            "picture": ((*self._image, 3), "uint8"),
        }

    def record(self, recording: Recording) -> None:
        """Record half a drift, the order of cells, forces, the kick and half a drift."""
        s, r, values = self.state, self.room, self.values
        n, d = s["x"].shape
        self.launch(recording, "drift", n * d, s["x"], s["v"], s["box"], values, n, d)
        sizes = (n, d, *self._grid, self._cell)
        self.launch(recording, "cells_of", n, r["keys"], r["order"], s["x"], *sizes)
        keys, order = recording.cub.sort_pairs(r["keys"], r["order"])
        for name in ("x", "v", "id"):
            recording.copy(s[name], r[f"old_{name}"])
        self.launch(
            *(recording, "gather", n, s["x"], s["v"], s["id"], r["old_x"], r["old_v"]),
            *(r["old_id"], order, n, d),
        )
        self.launch(recording, "bounds", n + 1, r["starts"], keys, n, math.prod(self._grid))
        self.forces(recording)
        self.launch(recording, "kick", n * d, s["v"], r["force"], values, n, d)
        self.launch(recording, "drift", n * d, s["x"], s["v"], s["box"], values, n, d)

    def forces(self, recording: Recording) -> None:
        """Record what fills ``force``, as acceleration."""
        raise NotImplementedError

    def draw(self, recording: Recording) -> GpuRef:
        """Record a view along z."""
        s, r = self.state, self.room
        (rows, columns), (n, d) = self._image, s["x"].shape
        self.launch(recording, "blank", rows * columns, r["bright"], rows * columns)
        self.launch(
            recording, "splat", n, r["bright"], s["x"], s["v"], s["box"], n, d, rows, columns
        )
        self.launch(recording, "colour", rows * columns, r["picture"], r["bright"], rows * columns)
        return r["picture"]


class Liquid(_Particles):
    """A liquid of particles; `open_liquid` makes one.

    Its state are float32 ``x`` and ``v`` of shape (n, axes), and int32 ``id``, which number of the
    beginning each particle has: they are kept in the order of the cells that they are in.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "gravity": SceneParameter(9.81, -1e6, 1e6, "length/s²"),
        "wall_loss": SceneParameter(0.5, 0.0, 1.0),
        "sound": SceneParameter(20.0, 1e-6, 1e6, "length/s"),
        "viscosity": SceneParameter(0.1, 0.0, 10.0),
    }

    def __init__(self, *args: Any, spacing: float, **options: Any) -> None:
        self._spacing: Final = number(spacing, "spacing", 1e-6, 1e6)
        self._h: Final = 1.3 * self._spacing
        super().__init__(*args, cell=2 * self._h, **options)

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Divide steps in which sound would go further than a quarter of a kernel's length."""
        limit = 0.25 * self._h / (settings["sound"] * (1 + 0.6 * settings["viscosity"]))
        return max(1, math.ceil(dt / limit))

    def forces(self, recording: Recording) -> None:
        """Record densities, pressure and viscosity."""
        s, r = self.state, self.room
        n, d = s["x"].shape
        h = self._h
        scale = 10 / (7 * math.pi * h**2) if d == 2 else 1 / (math.pi * h**3)
        mass = self._spacing**d  # the density at rest is one
        grid = (*self._grid, h, scale, mass)
        self.launch(recording, "densities", n, r["density"], s["x"], r["starts"], n, d, *grid)
        self.launch(
            *(recording, "flow", n, r["force"], s["x"], s["v"], r["density"], r["starts"]),
            *(self.values, n, d, *grid, 1.0),
        )


class Balls(_Particles):
    """Balls that collide; `open_balls` makes one. Its state is that of a `Liquid`."""

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "gravity": SceneParameter(9.81, -1e6, 1e6, "length/s²"),
        "wall_loss": SceneParameter(0.0, 0.0, 1.0),
        "stiffness": SceneParameter(1e4, 0.0, 1e9, "1/s²"),
        "damping": SceneParameter(0.0, 0.0, 1e6, "1/s"),
    }

    def __init__(self, *args: Any, radius: float, **options: Any) -> None:
        self._radius: Final = number(radius, "radius", 1e-6, 1e6)
        super().__init__(*args, cell=2 * self._radius, **options)

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Divide steps longer than a fifth of the time in which a pair's spring swings."""
        stiff = math.sqrt(2 * settings["stiffness"]) / 0.2 + settings["damping"] / 0.2
        return max(1, math.ceil(dt * stiff))

    def forces(self, recording: Recording) -> None:
        """Record collisions."""
        s, r = self.state, self.room
        n, d = s["x"].shape
        self.launch(
            *(recording, "collide", n, r["force"], s["x"], s["v"], r["starts"], self.values),
            *(n, d, *self._grid, self._cell, self._radius),
        )


@opens
async def open_liquid(
    device: Device,
    box: tuple[float, ...],
    positions: object,
    *,
    spacing: float,
    velocities: object = None,
    gravity: float = 9.81,
    wall_loss: float = 0.5,
    sound: float = 20.0,
    viscosity: float = 0.1,
    image: tuple[int, int] = (256, 256),
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[Liquid]:
    """Open a liquid by smoothed particle hydrodynamics: weakly compressible, of density 1.

    Steps in which sound would go too far are divided. Pressure is never negative.

    Args:
        device: the device.
        box: sides of the box, as (x, y) or (x, y, z); its lowest corner is the origin.
        positions: particles inside of the box, of shape (n, 2) or (n, 3).
        spacing: distance of particles at rest.
        velocities: of the same shape; 0 by default.
        gravity: acceleration against y.
        wall_loss: share of the speed that a wall takes.
        sound: speed of sound; ten times the speed of the flow keeps the density within 1 %.
        viscosity: Monaghan's factor of artificial viscosity.
        image: rows and columns of the picture.
        seed: unused, since nothing in a liquid is random.
        every: steps from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    names = {"gravity": gravity, "wall_loss": wall_loss, "sound": sound, "viscosity": viscosity}
    liquid = Liquid(
        *(device, box, positions, velocities),
        spacing=spacing,
        image=image,
        given=names,
        seed=seed,
        every=every,
    )
    async with opened(liquid, **place) as running:
        yield running


@opens
async def open_balls(
    device: Device,
    box: tuple[float, ...],
    positions: object,
    *,
    radius: float,
    velocities: object = None,
    gravity: float = 9.81,
    wall_loss: float = 0.0,
    stiffness: float = 1e4,
    damping: float = 0.0,
    image: tuple[int, int] = (256, 256),
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[Balls]:
    """Open balls of mass 1 that collide with each other and with the walls of a box.

    Balls that overlap push each other apart by a spring. Steps too long for the spring are divided.

    ``radius`` is that of a ball, ``stiffness`` the force of a spring for each length of overlap,
    and ``damping`` the force against the speed at which overlapping balls close in. Other arguments
    are those of `open_liquid`.
    """
    names = {
        "gravity": gravity,
        "wall_loss": wall_loss,
        "stiffness": stiffness,
        "damping": damping,
    }
    balls = Balls(
        *(device, box, positions, velocities),
        radius=radius,
        image=image,
        given=names,
        seed=seed,
        every=every,
    )
    async with opened(balls, **place) as running:
        yield running
