"""Cloth: a grid of vertices that constraints hold together."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, array_of, number, shape_of, whole
from .simulation import Simulation, opened
from .wire.cloth import CLOTH

if TYPE_CHECKING:
    from .. import Device, GpuRef, Recording

_HELD: Final = (
    # What holds a vertex and the one (rows, columns) of it, as the place of its compliance.
    (0, 1, 7),
    (1, 0, 7),
    (1, 1, 8),
    (1, -1, 8),
    (0, 2, 9),
    (2, 0, 9),
)
_FINEST: Final = 16
"""Most points along a patch's side that a picture draws."""


class Cloth(Simulation):
    """A cloth; `open_cloth` makes one.

    Its state are float32 ``x`` and ``v`` of shape (rows, columns, 3), positions and velocities; and
    ``w`` of shape (rows, columns), inverse masses: 0 for pinned vertices, which only ``write``
    moves.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "gravity": SceneParameter(9.81, -1e6, 1e6, "length/s²"),
        "wind_x": SceneParameter(0.0, -1e6, 1e6, "length/s"),
        "wind_y": SceneParameter(0.0, -1e6, 1e6, "length/s"),
        "wind_z": SceneParameter(0.0, -1e6, 1e6, "length/s"),
        "drag": SceneParameter(1.0, 0.0, 1e6, "1/s"),
        "damping": SceneParameter(0.0, 0.0, 1e6, "1/s"),
        "stretch": SceneParameter(0.0, 0.0, 1e12, "s²"),
        "shear": SceneParameter(1e-4, 0.0, 1e12, "s²"),
        "bend": SceneParameter(1e-2, 0.0, 1e12, "s²"),
    }
    kernels = CLOTH

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int],
        *,
        spacing: float,
        pins: Iterable[tuple[int, int]] | None,
        positions: object,
        velocities: object,
        longest: float,
        view: object,
        image: tuple[int, int],
        given: Mapping[str, object],
        seed: int,
        every: int,
    ) -> None:
        super().__init__(device, seed=seed, every=every, given=given)
        self.shape: Final = shape_of(shape, "shape", (2,), 2)
        rows, columns = self.shape
        self.spacing: Final = number(spacing, "spacing", 1e-6, 1e6)
        self.longest: Final = number(longest, "longest", 1e-6, 1.0)
        """Seconds of the longest substep."""
        self._w = np.ones(self.shape, np.float32)
        for pin in ((0, 0), (0, columns - 1)) if pins is None else pins:
            row, column = pin
            place = whole(row, "a pin's row", 0, rows - 1)
            self._w[place, whole(column, "a pin's column", 0, columns - 1)] = 0
        if positions is None:
            row, column = np.mgrid[:rows, :columns]
            flat = (column, rows - 1 - row, np.zeros_like(row))
            positions = np.stack(flat, -1) * self.spacing
        self._x = array_of(positions, "positions", (rows, columns, 3))
        still = np.zeros_like(self._x) if velocities is None else velocities
        self._v = array_of(still, "velocities", (rows, columns, 3)).copy()
        self._v[self._w == 0] = 0
        self._image: Final = shape_of(image, "image", (2,))
        self._box = self._seen(view)
        # As many points of a patch as it has pixels in a picture, and more for what is stretched.
        cell = self.spacing / (self._box[3:5] - self._box[:2]) * self._image[::-1]
        self._fine: Final = min(_FINEST, max(1, math.ceil(1.5 * float(cell.max()))))
        points = (rows - 1) * (columns - 1) * self._fine**2
        whole(max(points, 3 * rows * columns), "the number of points drawn", 1)

    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return positions, velocities and inverse masses."""
        return {"x": self._x, "v": self._v, "w": self._w, "box": self._box}

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        return {
            "old": ((*self.shape, 3), "float32"),
            "bright": (self._image, "int32"),
            "picture": ((*self._image, 3), "uint8"),
        }

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Divide steps longer than ``longest``: short steps do more than iterations."""
        del settings
        return max(1, math.ceil(dt / self.longest * (1 - 1e-9)))

    def record(self, recording: Recording) -> None:
        """Record forces, the movement, constraints colour by colour, and new velocities."""
        s, old, values = self.state, self.room["old"], self.values
        rows, columns = self.shape
        n = rows * columns
        self.launch(recording, "accelerate", n, s["v"], old, s["x"], s["w"], values, rows, columns)
        self.launch(recording, "move", 3 * n, s["x"], s["v"], values, 3 * n)
        for down, along, which in _HELD:
            rest = self.spacing * math.hypot(down, along)
            for colour in range(2):
                self.launch(
                    *(recording, "constrain", n, s["x"], s["w"], values, rows, columns),
                    *(down, along, colour, which, rest),
                )
        self.launch(recording, "finish", 3 * n, s["v"], s["x"], old, values, 3 * n)

    def draw(self, recording: Recording) -> GpuRef:
        """Record a view against z."""
        (rows, columns), (height, width) = self.shape, self._image
        bright, picture, pixels = self.room["bright"], self.room["picture"], height * width
        self.launch(recording, "blank", pixels, bright, pixels)
        self.launch(
            *(recording, "weave", (rows - 1) * (columns - 1) * self._fine**2, bright),
            *(self.state["x"], self.state["box"], rows, columns, self._fine, height, width),
        )
        self.launch(recording, "dye", pixels, picture, bright, pixels)
        return picture

    def _seen(self, view: object) -> np.ndarray[Any, Any]:
        """Return the lowest and the highest corner of what a picture shows."""
        low, high = self._x.min((0, 1)), self._x.max((0, 1))
        reach = self.spacing * max(self.shape)
        middle = (low + high) / 2
        if view is None:
            half = 0.6 * max(float(high[0] - low[0]), float(high[1] - low[1]), self.spacing)
            view = middle[0] - half, middle[1] - half, middle[0] + half, middle[1] + half
        seen = array_of(view, "view", (4,))
        if seen[0] >= seen[2] or seen[1] >= seen[3]:
            raise ValueError(f"view must be (left, bottom, right, top), not {view!r}")
        depths = middle[2] - reach, middle[2] + reach
        return np.array([*seen[:2], depths[0], *seen[2:], depths[1]], np.float32)


@opens
async def open_cloth(
    device: Device,
    shape: tuple[int, int],
    *,
    spacing: float = 0.1,
    pins: Iterable[tuple[int, int]] | None = None,
    positions: object = None,
    velocities: object = None,
    gravity: float = 9.81,
    wind: tuple[float, float, float] = (0.0, 0.0, 0.0),
    drag: float = 1.0,
    damping: float = 0.0,
    stretch: float = 0.0,
    shear: float = 1e-4,
    bend: float = 1e-2,
    longest: float = 1 / 480,
    view: object = None,
    image: tuple[int, int] = (256, 256),
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[Cloth]:
    """Open a cloth by extended position based dynamics (XPBD).

    Constraints hold neighbours (stretch), diagonal ones (shear) and those two away (bend). They are
    solved colour by colour, so the result does not depend on the order of threads. A step is
    divided into substeps of at most ``longest`` seconds, each with one pass over the constraints.
    No step is unstable, but long substeps damp motion. Vertices have mass 1.

    Args:
        device: the device.
        shape: rows and columns of vertices, at least 2 of each.
        spacing: distance of neighbours at rest.
        pins: (row, column) of vertices that do not move; by default the first row's two ends.
        positions: of shape (rows, columns, 3); by default upright, with the first row on top.
        velocities: of the same shape; 0 by default.
        gravity: acceleration against y.
        wind: velocity of the air, the parameters ``wind_x``, ``wind_y`` and ``wind_z``.
        drag: rate at which the air takes the cloth along, against its surface.
        damping: rate at which velocities fall.
        stretch: compliance: how far a force of 1 makes neighbours yield. 0 is stiff.
        shear: compliance of diagonals.
        bend: compliance against bending.
        longest: seconds of the longest substep.
        view: (left, bottom, right, top) of the picture; by default around the first positions.
        image: rows and columns of the picture.
        seed: unused, since nothing in a cloth is random.
        every: steps from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    air = array_of(wind, "wind", (3,))
    names: dict[str, object] = {
        "gravity": gravity,
        "drag": drag,
        "damping": damping,
        **{f"wind_{axis}": float(each) for axis, each in zip("xyz", air, strict=True)},
        "stretch": stretch,
        "shear": shear,
        "bend": bend,
    }
    cloth = Cloth(
        device,
        shape,
        spacing=spacing,
        pins=pins,
        positions=positions,
        velocities=velocities,
        longest=longest,
        view=view,
        image=image,
        given=names,
        seed=seed,
        every=every,
    )
    async with opened(cloth, **place) as running:
        yield running
