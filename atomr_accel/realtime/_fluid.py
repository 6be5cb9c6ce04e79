"""Fluids in two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, array_of, number, one_of, shape_of, whole
from .simulation import Simulation, opened
from .wire.fluid import FLUID

if TYPE_CHECKING:
    from .. import Device, GpuRef, Recording

_COMPONENTS: Final = "uvw"


class Fluid(Simulation):
    """An incompressible fluid with smoke; `open_fluid` makes one.

    Its state are float32 arrays of its shape: ``u``, ``v`` and in three dimensions ``w``, the
    velocity in length per second, on the lower faces of cells along the last axis, the one before
    it, and the first of three; ``smoke``, the density of smoke in cells; ``source``, smoke that is
    added in a second; and uint8 ``solid``, 1 in cells without fluid.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "viscosity": SceneParameter(0.0, unit="length²/s"),
        "buoyancy": SceneParameter(0.0, -math.inf, unit="length/s²"),
        "force": SceneParameter(0.0, -math.inf, unit="length/s²"),
        "fading": SceneParameter(0.0, unit="1/s"),
    }
    kernels = FLUID

    def __init__(
        self,
        device: Device,
        shape: tuple[int, ...],
        *,
        spacing: float,
        boundary: str,
        iterations: int,
        given: Mapping[str, object],
        arrays: Mapping[str, object],
        seed: int,
        every: int,
    ) -> None:
        super().__init__(device, seed=seed, every=every, given=given)
        self.shape: Final = shape_of(shape, "shape", (2, 3), 4)
        self.spacing: Final = number(spacing, "spacing", 1e-6, 1e6)
        self.boundary: Final = one_of(boundary, "boundary", ("periodic", "walls", "channel"))
        self._iterations: Final = whole(iterations, "iterations", 1, 200)
        self._first = {
            name: array_of(value, name, self.shape, np.uint8 if name == "solid" else np.float32)
            for name, value in arrays.items()
            if value is not None
        }
        self._obstacles = self.boundary != "periodic" or "solid" in self._first

    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return the first state."""
        names = (*_COMPONENTS[: len(self.shape)], "smoke", "source")
        made = {name: np.zeros(self.shape, np.float32) for name in names}
        made["solid"] = np.zeros(self.shape, np.uint8)
        made["pressure"] = np.zeros(self.shape, np.float32)
        made |= self._first
        made["solid"] = (made["solid"] != 0).astype(np.uint8)
        for axis in range(len(self.shape)):
            along_x = axis == len(self.shape) - 1
            if self.boundary == "walls" or (self.boundary == "channel" and not along_x):
                made["solid"].swapaxes(0, axis)[0] = 1
        # The inverse of the Laplacian on a grid without solid cells, by frequencies.
        total: Any = 0.0
        for axis, size in enumerate(self.shape):
            last = axis == len(self.shape) - 1
            count = size // 2 + 1 if last else size
            line = 2 - 2 * np.cos(2 * np.pi * np.arange(count) / size)
            total = total + line.reshape([-1 if at == axis else 1 for at in range(len(self.shape))])
        total.flat[0] = 1.0
        inverse = 1 / total
        inverse.flat[0] = 0.0
        made["inverse"] = inverse.astype(np.float32)
        return made

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        names = [f"new_{c}" for c in _COMPONENTS[: len(self.shape)]]
        names += ["moved", "divergence", "applied"]
        height, width = self.shape[-2:]
        return dict.fromkeys(names, (self.shape, "float32")) | {
            "picture": ((height, width, 3), "uint8")
        }

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Divide steps so that explicit viscosity is stable."""
        rate = 2 * len(self.shape) * settings["viscosity"] / self.spacing**2
        return max(1, math.ceil(dt * rate / 0.9))

    def record(self, recording: Recording) -> None:
        """Record advection, forces and the projection."""
        s, r, n = self.state, self.room, math.prod(self.shape)
        sizes = (*reversed(self.shape), *(1,) * (3 - len(self.shape)))
        names = _COMPONENTS[: len(self.shape)]
        flow = [s[names[min(c, len(names) - 1)]] for c in range(3)]
        h, v = self.spacing, self.values
        for c, name in enumerate((*names, "smoke")):
            out = r[f"new_{name}"] if name != "smoke" else r["divergence"]
            where = c if name != "smoke" else 3
            self.launch(recording, "advect", n, r["moved"], s[name], *flow, v, *sizes, where, h)
            self.launch(
                recording, "correct", n, out, r["moved"], s[name], *flow, v, *sizes, where, h
            )
        self.launch(
            recording, "emit", n, s["smoke"], r["divergence"], s["source"], s["solid"], v, n
        )
        for c, name in enumerate(names):
            self.launch(
                *(recording, "push", n, s[name], r[f"new_{name}"], s["smoke"], s["solid"], v),
                *(*sizes, c, 1, h),
            )
        self.launch(recording, "diverge", n, r["divergence"], *flow, s["solid"], *sizes, h)
        self._solve(recording, sizes, n)
        for c, name in enumerate(names):
            self.launch(recording, "project", n, s[name], s["pressure"], s["solid"], *sizes, c, h)

    def draw(self, recording: Recording) -> GpuRef:
        """Record a slice through the middle."""
        s = self.state
        height, width = self.shape[-2:]
        depth = self.shape[0] if len(self.shape) == 3 else 1
        self.launch(
            *(recording, "paint", height * width, self.room["picture"]),
            *(s["smoke"], s["u"], s["v"], s["solid"], width, height, depth),
        )
        return self.room["picture"]

    def _poisson(self, recording: Recording, right: Any) -> Any:
        """Solve where no cell is solid, by FFT."""
        spectrum = recording.fft.rfftn(right)
        scaled = recording.evaluate(spectrum * self.state["inverse"])
        return recording.fft.irfftn(scaled, s=self.shape)

    def _solve(self, recording: Recording, sizes: tuple[int, ...], n: int) -> None:
        """Find the pressure, as a product with the length of a step.

        Without solid cells the FFT solves exactly. With them it preconditions conjugate gradients,
        which begin at the last pressure.
        """
        s, b = self.state, self.room["divergence"]
        x, q = s["pressure"], self.room["applied"]
        if not self._obstacles:
            recording.evaluate(self._poisson(recording, b) * np.float32(1), out=x)
            return

        def total(of: Any) -> Any:
            return of.sum(keepdims=True)

        fluid = recording.evaluate((s["solid"] == 0).astype(np.float32))
        self.launch(recording, "laplace", n, q, x, s["solid"], *sizes)
        residual = recording.evaluate(b - q)
        z = self._poisson(recording, residual)
        direction = recording.evaluate(z * fluid)
        rho = recording.evaluate(total(residual * direction))
        for _ in range(self._iterations):
            self.launch(recording, "laplace", n, q, direction, s["solid"], *sizes)
            size = recording.evaluate(total(direction * q))
            alpha = recording.evaluate(
                np.where(size > 1e-30, rho / np.where(size > 1e-30, size, 1), 0).astype(np.float32)
            )
            recording.evaluate(x + alpha * direction, out=x)
            recording.evaluate(residual - alpha * q, out=residual)
            z = recording.evaluate(self._poisson(recording, residual) * fluid)
            new = recording.evaluate(total(residual * z))
            beta = recording.evaluate(
                np.where(rho > 1e-30, new / np.where(rho > 1e-30, rho, 1), 0).astype(np.float32)
            )
            recording.evaluate(z + beta * direction, out=direction)
            rho = new


@opens
async def open_fluid(
    device: Device,
    shape: tuple[int, ...],
    *,
    spacing: float = 1.0,
    boundary: str = "periodic",
    viscosity: float = 0.0,
    buoyancy: float = 0.0,
    force: float = 0.0,
    fading: float = 0.0,
    u: object = None,
    v: object = None,
    w: object = None,
    smoke: object = None,
    source: object = None,
    solid: object = None,
    iterations: int = 12,
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[Fluid]:
    """Open an incompressible fluid with smoke.

    Advection is MacCormack's, which is stable for steps of any length and exact to second order.
    The pressure is found by FFT. Viscosity is explicit: a step too long for it is divided.

    Args:
        device: the device.
        shape: cells, as (y, x) or (z, y, x), at least 4 along each.
        spacing: length of a cell's side.
        boundary: ``"periodic"``; ``"walls"``, with the first cells along each axis solid, which
            closes the box because the grid wraps around; or ``"channel"``, which is open along x.
        viscosity: kinematic viscosity, length² per second.
        buoyancy: acceleration upwards, along y, of smoke with density 1; length per second².
        force: acceleration along x, length per second².
        fading: share of smoke that fades in a second.
        u: velocity along x, on lower faces; of the fluid's shape, like all arrays here.
        v: velocity along y.
        w: velocity along z.
        smoke: density of smoke.
        source: density of smoke that is added in a second.
        solid: cells without fluid are not 0.
        iterations: conjugate gradients that find the pressure if there are solid cells.
        seed: unused, since nothing in a fluid is random.
        every: steps from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    arrays: dict[str, object] = {"u": u, "v": v, "smoke": smoke, "source": source, "solid": solid}
    if w is not None and len(shape_of(shape, "shape", (2, 3), 4)) == 2:
        raise ValueError("w must be left out in two dimensions")
    fluid = Fluid(
        device,
        shape,
        spacing=spacing,
        boundary=boundary,
        iterations=iterations,
        given={"viscosity": viscosity, "buoyancy": buoyancy, "force": force, "fading": fading},
        arrays=arrays | {"w": w},
        seed=seed,
        every=every,
    )
    async with opened(fluid, **place) as running:
        yield running
