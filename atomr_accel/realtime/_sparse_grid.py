"""A sparse grid, on which something spreads: blocks of cells come and go on demand."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np
import trio

from .. import OutOfMemory
from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, array_of, shape_of, whole
from .simulation import Simulation, opened
from .wire.sparse_grid import SIDE, SPARSE_GRID

if TYPE_CHECKING:
    from .. import Batch, Device, GpuRef, Recording

    Array = np.ndarray[Any, Any]

_MOST_BLOCKS: Final = 1 << 27


class SparseGrid(Simulation):
    """A sparse grid; `open_sparse_grid` makes one.

    Its state are float32 ``cells`` of shape (capacity, cells of a block); int32 ``directory``, for
    each block of the whole grid its place among them, or -1; int32 ``places``, for each place its
    block, or -1; and int32 ``status``, with the number of blocks. `get` and `put` read and write
    cells by their positions.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "diffusion": SceneParameter(1.0, 0.0, 1e6, "cells²/s"),
        "fading": SceneParameter(0.0, 0.0, 1e6, "1/s"),
        "threshold": SceneParameter(0.0, 0.0, 1e30),
    }
    kernels = SPARSE_GRID

    def __init__(
        self,
        device: Device,
        shape: tuple[int, ...],
        *,
        capacity: int,
        given: Mapping[str, object],
        seed: int,
        every: int,
    ) -> None:
        super().__init__(device, seed=seed, every=every, given=given)
        if len(shape) not in {2, 3}:
            raise ValueError(f"shape must have 2 or 3 axes, not {len(shape)}")
        self.shape: Final = tuple(whole(size, "shape", 1) for size in shape)
        shape_of(self.shape[-2:], "a plane of shape", (2,))
        self._blocks: Final = tuple(-(-size // SIDE) for size in self.shape)
        if math.prod(self._blocks) > _MOST_BLOCKS:
            raise ValueError(
                f"shape must have at most {_MOST_BLOCKS} blocks of {SIDE} along each axis, not "
                f"{math.prod(self._blocks)}"
            )
        self._inner: Final = SIDE ** len(self.shape)
        self.capacity: Final = whole(capacity, "capacity", 1, (2**31 - 1) // self._inner)
        """Blocks that there is room for."""
        self._sizes: Final = (*reversed(self.shape), *(1,) * (3 - len(self.shape)))
        if len(self.shape) == 3 and self.shape[0] == 1:  # kernels would take it for two axes
            raise ValueError("shape must have more than 1 cell along z; leave the axis out")

    def begin(self) -> Mapping[str, Array]:
        """Return a grid without blocks."""
        return {
            "cells": np.zeros((self.capacity, self._inner), np.float32),
            "directory": np.full(math.prod(self._blocks), -1, np.int32),
            "places": np.full(self.capacity, -1, np.int32),
            "status": np.zeros(2, np.int32),
        }

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        blocks = (math.prod(self._blocks),)
        return {
            "made": ((self.capacity, self._inner), "float32"),
            "wanted": (blocks, "int32"),
            "new_directory": (blocks, "int32"),
            "new_places": ((self.capacity,), "int32"),
            "picture": ((*self.shape[-2:], 3), "uint8"),
        }

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Divide steps so that diffusion and fading are stable."""
        rate = 2 * len(self.shape) * settings["diffusion"] + settings["fading"]
        return max(1, math.ceil(dt * rate / 0.9))

    def record(self, recording: Recording) -> None:
        """Record which blocks there are next, their cells, and their acceptance."""
        self._rearrange(recording, None)

    def _rearrange(self, on: Batch | Recording, too: GpuRef | None) -> None:
        """Make blocks on demand, and a step; or with ``too`` only these blocks, without a step."""
        s, r = self.state, self.room
        blocks, total = math.prod(self._blocks), self.capacity * self._inner
        self.launch(on, "clear", blocks, r["wanted"], blocks)
        still = int(too is not None)
        self.launch(
            *(on, "want", total, r["wanted"], s["cells"], s["places"], self.values),
            *(*self._sizes, total, still),
        )
        if too is not None:
            self.launch(on, "want_too", too.size, r["wanted"], too, too.size)
        numbers = on.cub.inclusive_scan(r["wanted"])
        self.launch(on, "vacate", self.capacity, r["new_places"], self.capacity)
        self.launch(
            *(on, "assign", blocks, r["new_directory"], r["new_places"], s["status"]),
            *(r["wanted"], numbers, blocks, self.capacity),
        )
        self.launch(
            *(on, "diffuse", total, r["made"], s["cells"], s["directory"], r["new_places"]),
            *(s["status"], self.values, *self._sizes, total, still),
        )
        self.launch(on, "keep_cells", total, s["cells"], r["made"], s["status"], total)
        for name, n in (("directory", blocks), ("places", self.capacity)):
            self.launch(on, "keep_numbers", n, s[name], r[f"new_{name}"], s["status"], n)

    async def accept(self) -> None:
        """Refuse a step with more blocks than there is room for."""
        _, needed = (await self.device.get(self.state["status"])).tolist()
        if needed:
            raise OutOfMemory(
                f"{needed} blocks must be at most the grid's capacity of {self.capacity}; raise "
                "the threshold, or open it with a larger capacity",
                requested=needed * self._inner * 4,
            )

    def draw(self, recording: Recording) -> GpuRef:
        """Record the largest values along z."""
        s, picture = self.state, self.room["picture"]
        pixels = math.prod(self.shape[-2:])
        self.launch(recording, "project", pixels, picture, s["cells"], s["directory"], *self._sizes)
        return picture

    async def blocks(self) -> int:
        """Return the number of blocks that there are."""
        return int((await self.read("status"))[0])

    async def get(self, positions: object) -> Array:
        """Return cells: float32 of shape (n,), 0 where no block is.

        Args:
            positions: whole numbers of shape (n, 2) or (n, 3), in the order of the shape's axes.
        """
        blocks, inner = self._addressed(positions)

        async def look() -> Array:
            await self._revive()
            given = await self.device.put(blocks), await self.device.put(inner)
            async with self.device.batch() as batch:
                out = batch.empty(blocks.size, np.float32)
                self.launch(
                    *(batch, "gather", blocks.size, out, self.state["cells"]),
                    *(self.state["directory"], *given, blocks.size, self._inner),
                )
            return await self.device.get(out)

        async with self._turn():
            if not blocks.size:
                await trio.lowlevel.checkpoint()
                return np.zeros(0, np.float32)
            return await self.device.retry(look)

    async def put(self, positions: object, values: object) -> None:
        """Write cells, and make a checkpoint. Of equal positions the last one counts.

        Args:
            positions: as for `get`.
            values: finite numbers of shape (n,).

        Raises:
            OutOfMemory: more blocks than the grid's capacity. The grid is as before.
        """
        blocks, inner = self._addressed(positions)
        given = array_of(values, "values", blocks.shape)
        _, last = np.unique(
            (blocks.astype(np.int64) * self._inner + inner)[::-1], return_index=True
        )
        last = blocks.size - 1 - last

        async def change() -> None:
            await self._revive()
            with trio.CancelScope(shield=True):
                where = [await self.device.put(each[last]) for each in (blocks, inner)]
                content = await self.device.put(given[last])
                async with self.device.batch() as batch:
                    self._rearrange(batch, where[0])
                    s = self.state
                    self.launch(
                        *(batch, "scatter", last.size, s["cells"], s["directory"], s["status"]),
                        *(*where, content, last.size, self._inner),
                    )
                await self.accept()
                await self._keep()

        async with self._turn():
            if last.size:
                await self.device.retry(change)
            else:
                await trio.lowlevel.checkpoint()

    def _addressed(self, positions: object) -> tuple[Array, Array]:
        """Return blocks, and the cells' numbers in them."""
        made = np.asarray(positions)
        if made.size == 0:
            made = made.reshape(0, len(self.shape)).astype(np.int64)
        if made.dtype.kind not in "iu":
            raise TypeError(f"positions must be an array of whole numbers, not of {made.dtype}")
        if made.ndim != 2 or made.shape[1] != len(self.shape):
            raise ValueError(f"positions must have shape (n, {len(self.shape)}), not {made.shape}")
        if (made < 0).any() or (made >= np.array(self.shape)).any():
            raise ValueError(f"positions must be inside of the shape {self.shape}")
        blocks, inner = np.zeros(len(made), np.int64), np.zeros(len(made), np.int64)
        for axis, count in enumerate(self._blocks):
            blocks = blocks * count + made[:, axis] // SIDE
            inner = inner * SIDE + made[:, axis] % SIDE
        return blocks.astype(np.int32), inner.astype(np.int32)


@opens
async def open_sparse_grid(
    device: Device,
    shape: tuple[int, ...],
    *,
    capacity: int = 1024,
    diffusion: float = 1.0,
    fading: float = 0.0,
    threshold: float = 0.0,
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[SparseGrid]:
    """Open a sparse grid, on which something diffuses and fades.

    Cells are in blocks of 8 along each axis. A block is made when one of its cells is written, or
    when a neighbouring cell exceeds the threshold. It goes when neither its cells nor neighbouring
    ones do. With a threshold of 0 the cells are those of a dense grid. Cells outside of the grid
    are 0. Steps too long for diffusion are divided.

    Args:
        device: the device.
        shape: cells, as (y, x) or (z, y, x); at most 2**27 blocks.
        capacity: blocks to have room for. A step or a write that needs more raises `OutOfMemory`
            and leaves the grid unchanged. Of several substeps, those before the one without
            room remain made, and ``time`` counts them.
        diffusion: diffusion, in cells² per second.
        fading: share that fades in a second.
        threshold: size of a value up to which it does not keep its block, or make others.
        seed: unused, since nothing here is random.
        every: steps from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    names = {"diffusion": diffusion, "fading": fading, "threshold": threshold}
    grid = SparseGrid(device, shape, capacity=capacity, given=names, seed=seed, every=every)
    async with opened(grid, **place) as running:
        yield running
